//! Charts as inline SVG: plain shapes with classes, which the page's style colours for light and dark.

use std::fmt::Write as _;

use super::html::escaped;
use crate::clock::Wall;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 32.0;
const Y_TICKS: usize = 4;
const X_TICKS: usize = 6;

/// One row of values over time.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// The class that gives it its colour.
    pub(super) class: &'static str,
    /// What it is called.
    pub(super) name: &'static str,
    /// One value for each slice; `None` where there is none.
    pub(super) values: Vec<Option<f64>>,
}

/// What all charts of a page have in common, and what one is about.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    /// For references inside the page.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// What the chart shows, in words, for those who cannot see it.
    pub(super) description: String,
    /// What the values are counted in; stands behind the highest tick.
    pub(super) unit: &'static str,
    /// Where each slice begins.
    pub(super) at: &'a [Wall],
    pub(super) slice_ms: i64,
}

impl Chart<'_> {
    /// A line for each series, with a gap where there is no value.
    pub(super) fn lines(&self, series: &[Series]) -> String {
        let most = series.iter().flat_map(|one| one.values.iter().flatten()).copied().fold(0.0, f64::max);
        let scale = nice(most);
        let mut shapes = String::new();
        for one in series {
            let mut path = String::new();
            let mut begun = false;
            for (n, value) in one.values.iter().enumerate() {
                let Some(value) = value else {
                    begun = false;
                    continue;
                };
                let (x, y) = (self.x(n as f64 + 0.5), y(*value, scale));
                let _ = write!(path, "{}{x:.1} {y:.1}", if begun { "L" } else { "M" });
                let alone = !begun && one.values.get(n + 1).is_none_or(Option::is_none);
                if alone {
                    let _ = write!(shapes, "<circle class=\"dot {}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>", one.class);
                }
                begun = true;
            }
            let _ = write!(shapes, "<path class=\"line {}\" d=\"{path}\"/>", one.class);
        }
        self.frame(scale, &shapes, series)
    }

    /// Bars, the series upon each other, the first at the bottom.
    pub(super) fn bars(&self, series: &[Series]) -> String {
        let value = |one: &Series, n: usize| one.values.get(n).copied().flatten().unwrap_or(0.0);
        let total = |n: usize| series.iter().map(|one| value(one, n)).sum::<f64>();
        let scale = nice((0..self.at.len()).map(total).fold(0.0, f64::max));
        let mut shapes = String::new();
        let slice = self.x(1.0) - self.x(0.0);
        let width = (slice - 1.0).max(slice * 0.8);
        for n in 0..self.at.len() {
            let mut below = 0.0;
            for one in series {
                let value = value(one, n);
                if value > 0.0 {
                    let (bottom, top) = (y(below, scale), y(below + value, scale));
                    let _ = write!(
                        shapes,
                        "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                        one.class,
                        self.x(n as f64) + (slice - width) / 2.0,
                        bottom - top
                    );
                    below += value;
                }
            }
        }
        self.frame(scale, &shapes, series)
    }

    fn x(&self, slice: f64) -> f64 {
        LEFT + slice / (self.at.len().max(1) as f64) * (WIDTH - LEFT - RIGHT)
    }

    /// The figure around the shapes: title, legend, axes.
    fn frame(&self, scale: f64, shapes: &str, series: &[Series]) -> String {
        let Chart { id, title, .. } = self;
        let mut out = String::new();
        let _ = write!(out, "<figure><figcaption>{title}<span class=\"legend\">");
        for one in series {
            let _ = write!(
                out,
                "<span><svg class=\"key\" viewBox=\"0 0 22 10\" aria-hidden=\"true\"><path class=\"line {}\" d=\"M1 5L21 5\"/></svg>{}</span>",
                one.class, one.name
            );
        }
        let _ = write!(
            out,
            "</span></figcaption>\n<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{}</desc>",
            escaped(&self.description)
        );
        for tick in 0..=Y_TICKS {
            let value = scale * tick as f64 / Y_TICKS as f64;
            let at = y(value, scale);
            let unit = if tick == Y_TICKS { self.unit } else { "" };
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/><text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{}{unit}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                tick_text(value, scale)
            );
        }
        let step = self.at.len().div_ceil(X_TICKS).max(1);
        for (n, at) in self.at.iter().enumerate().step_by(step) {
            let at = at.to_rfc3339();
            // Days where slices are days, the time of day otherwise.
            let label = if self.slice_ms >= 86_400_000 { &at[..10] } else { &at[5..16] };
            let label = label.replace('T', " ");
            let _ = write!(
                out,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\">{label}</text>",
                self.x(n as f64),
                HEIGHT - BOTTOM + 20.0
            );
        }
        let _ = write!(out, "{shapes}</svg></figure>");
        out
    }
}

fn y(value: f64, scale: f64) -> f64 {
    HEIGHT - BOTTOM - value / scale * (HEIGHT - TOP - BOTTOM)
}

/// The least round number that is not less: 1, 2, 4 or 8 times a power of ten, so that a quarter of it is short, too.
fn nice(most: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for factor in [1.0, 2.0, 4.0, 8.0] {
            let candidate = factor * power;
            // Below four, quarters would not be whole.
            if candidate >= most.max(4.0) {
                return candidate;
            }
        }
        power *= 10.0;
    }
}

/// A value on an axis that ends at `scale`, which decides the unit for all of its ticks.
fn tick_text(value: f64, scale: f64) -> String {
    match scale {
        _ if value == 0.0 => "0".to_owned(),
        scale if scale >= 1_000_000.0 => format!("{}M", value / 1_000_000.0),
        scale if scale >= 10_000.0 => format!("{}k", value / 1_000.0),
        _ => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, expected) in
            [(0.0, 4.0), (3.0, 4.0), (5.0, 8.0), (9.0, 10.0), (11.0, 20.0), (81.0, 100.0), (401.0, 800.0)]
        {
            assert_eq!(nice(most), expected, "{most}");
        }
        assert!(nice(1e18) >= 1e18);
        assert_eq!([0.0, 250.0].map(|value| tick_text(value, 1_000.0)), ["0", "250"]);
        assert_eq!([0.0, 5_000.0, 20_000.0].map(|value| tick_text(value, 20_000.0)), ["0", "5k", "20k"]);
        assert_eq!(tick_text(2_500_000.0, 10_000_000.0), "2.5M");
    }

    #[test]
    fn a_line_has_a_gap_where_there_is_no_value_and_a_lonely_value_is_seen() {
        let at: Vec<Wall> = (0..5).map(|n| Wall(n * 60_000)).collect();
        let chart =
            Chart { id: "c", title: "T", description: "a <b>".to_owned(), unit: " ms", at: &at, slice_ms: 60_000 };
        let values = vec![Some(1.0), Some(2.0), None, Some(4.0), None];
        let svg = chart.lines(&[Series { class: "s1", name: "p50", values }]);
        let path = svg.split("class=\"line s1\" d=\"").nth(2).expect("behind the legend").split('"').next();
        assert_eq!(path.map(|path| path.matches('M').count()), Some(2));
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(svg.contains("a &lt;b&gt;") && svg.contains(">4 ms</text>") && !svg.contains("NaN"), "{svg}");
        let empty = Chart { at: &[], ..chart.clone() };
        assert!(!empty.bars(&[]).contains("NaN"));
        let bars = chart.bars(&[
            Series { class: "s1", name: "a", values: vec![Some(3.0); 5] },
            Series { class: "s2", name: "b", values: vec![Some(1.0), None, None, None, None] },
        ]);
        assert_eq!(bars.matches("<rect").count(), 6);
    }
}
