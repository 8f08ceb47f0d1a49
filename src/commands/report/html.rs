//! The report as one page that holds all it needs: no script, no network, light and dark as the reader's system is.

use std::fmt::Write as _;

use super::chart::{Chart, Series};
use super::gather::{Slice, Sums};
use super::{Report, age_text, member_text};
use crate::clock::Wall;
use crate::commands::text::one_line;

const STYLE: &str = include_str!("page.css");

/// The page.
pub(super) fn page(report: &Report) -> String {
    let mut out = String::new();
    let (since, until) = (report.since.to_rfc3339(), report.until.to_rfc3339());
    // Nothing may be loaded from anywhere and nothing may run, whatever a name in the page holds.
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>mcprelay report, {since} to {until}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>mcprelay report</h1>\n<p class=\"window\">{since} to {until}, made {}</p>\n",
        report.at.to_rfc3339()
    );
    for (name, wanted) in [("tool", &report.tool), ("caller", &report.caller), ("server", &report.server)] {
        if let Some(wanted) = wanted {
            let _ = writeln!(out, "<p class=\"window\">Only {name} <code>{}</code></p>", escaped(wanted));
        }
    }
    tiles(report, &mut out);
    charts(report, &mut out);
    calls(report, &mut out);
    queue(report, &mut out);
    out.push_str(
        "<footer>Latency counts from the arrival of a call to its answer, over calls that ran or may have run: calls that \
         were denied, cancelled or never sent are left out. Percentiles are nearest rank",
    );
    match report.calls.latency_error_max {
        0.0 => out.push_str(". "),
        off => drop(write!(out, ", rounded down by at most {:.2}&nbsp;%. ", off * 100.0)),
    }
    out.push_str("All times are UTC.</footer>\n</main>\n</body>\n</html>\n");
    out
}

fn tiles(report: &Report, out: &mut String) {
    let all = &report.calls.totals;
    let percentiles = all.percentiles();
    let millis = |at: usize| percentiles.map_or("–".to_owned(), |all| format!("{} ms", grouped(all[at])));
    let mut tiles = vec![
        ("Calls", grouped(all.calls), String::new()),
        ("Failed", grouped(all.failed), format!("{:.1} % of all", all.error_rate() * 100.0)),
        ("Denied", grouped(all.denied), String::new()),
        ("Retried", grouped(all.retried), format!("{} replayed", grouped(all.replayed))),
        ("Latency p50", millis(0), String::new()),
        ("Latency p95", millis(1), format!("p99 {}", millis(2))),
    ];
    if let Some(queue) = &report.queue {
        let oldest = queue.all.age_ms(queue.at).map_or(String::new(), |age| format!("oldest {}", age_text(age)));
        tiles.push(("Queue depth", grouped(queue.all.depth), oldest));
    }
    out.push_str("<dl class=\"tiles\">\n");
    for (name, value, note) in tiles {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>");
    }
    out.push_str("</dl>\n");
}

fn charts(report: &Report, out: &mut String) {
    let slices = &report.calls.slices;
    out.push_str("<h2>Over time</h2>\n");
    if slices.is_empty() {
        out.push_str("<p>There were no calls in this time.</p>\n");
        return;
    }
    let at: Vec<Wall> = slices.iter().map(|slice| slice.at).collect();
    let slice = age_text(report.calls.slice_ms);
    let values =
        |value: &dyn Fn(&Sums) -> Option<f64>| slices.iter().map(|slice| value(&slice.sums)).collect::<Vec<_>>();
    let percentile = |at: usize| values(&move |sums| sums.percentiles().map(|all| all[at] as f64));
    let count = |count: fn(&Sums) -> u64| values(&move |sums| Some(count(sums) as f64));
    let series = |class, name, values| Series { class, name, values };
    let highest = |values: &dyn Fn(&Slice) -> u64| {
        let most = slices.iter().map(|slice| (values(slice), slice.at)).max_by_key(|(value, at)| (*value, -at.0));
        most.map_or(String::new(), |(value, at)| format!("{} at {}", grouped(value), at.to_rfc3339()))
    };
    let chart =
        |id, title, unit, description| Chart { id, title, description, unit, at: &at, slice_ms: report.calls.slice_ms };

    let p99 = |slice: &Slice| slice.sums.percentiles().map_or(0, |all| all[2]);
    let text = format!(
        "Lines for the 50th, 95th and 99th percentile in slices of {slice}. The highest 99th percentile is {} (ms).",
        highest(&p99)
    );
    let latency = chart("latency", "Latency", " ms", text);
    let lines =
        [series("p50", "p50", percentile(0)), series("p95", "p95", percentile(1)), series("p99", "p99", percentile(2))];
    let _ = writeln!(out, "{}", latency.lines(&lines));

    let text = format!("Bars in slices of {slice}. The most failures are {}.", highest(&|slice| slice.sums.failed));
    let failures = chart("errors", "Failed calls", "", text);
    let _ = writeln!(out, "{}", failures.bars(&[series("failed", "failed", count(|sums| sums.failed))]));

    let text = format!("Stacked bars in slices of {slice}. The most calls are {}.", highest(&|slice| slice.sums.calls));
    let ends = [
        series("failed", "failed", count(|sums| sums.failed)),
        series("denied", "denied", count(|sums| sums.denied)),
        series("cancelled", "cancelled", count(|sums| sums.cancelled)),
        series("allowed", "allowed", count(|sums| sums.allowed)),
    ];
    let _ = writeln!(out, "{}", chart("calls", "Calls by how they ended", "", text).bars(&ends));

    out.push_str("<details><summary>The charts as a table</summary>\n");
    let titles = ["From", "Calls", "Failed", "Denied", "Cancelled", "p50 ms", "p95 ms", "p99 ms"];
    open_table(out, "Calls over time", &titles, 1);
    for slice in slices.iter().filter(|slice| slice.sums.calls > 0) {
        let sums = &slice.sums;
        let percentiles = sums.percentiles();
        let millis = |at: usize| percentiles.map_or("–".to_owned(), |all| grouped(all[at]));
        let counts = [sums.calls, sums.failed, sums.denied, sums.cancelled].map(grouped);
        let cells = [slice.at.to_rfc3339()].into_iter().chain(counts).chain([millis(0), millis(1), millis(2)]);
        row(out, cells, 1);
    }
    out.push_str("</tbody></table></div></details>\n");
}

fn calls(report: &Report, out: &mut String) {
    out.push_str("<h2>Calls</h2>\n");
    if report.calls.groups.is_empty() {
        out.push_str("<p>There were no calls in this time.</p>\n");
        return;
    }
    let names = report.group_by.len();
    let mut titles: Vec<String> = report.group_by.iter().map(|dimension| capitalised(dimension.as_str())).collect();
    let sums = [
        "Calls",
        "Allowed",
        "Denied",
        "Failed",
        "Cancelled",
        "Retried",
        "Replayed",
        "Failed %",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "Request bytes",
        "Response bytes",
    ];
    titles.extend(sums.map(str::to_owned));
    titles.push("Errors".to_owned());
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    open_table(out, "Calls by what tells them apart", &titles, names);
    for group in &report.calls.groups {
        let sums = &group.sums;
        let percentiles = sums.percentiles();
        let millis = |at: usize| percentiles.map_or("–".to_owned(), |all| grouped(all[at]));
        let classes: Vec<String> =
            sums.top_classes().iter().map(|(class, count)| format!("{class} {}", grouped(*count))).collect();
        let counts = [sums.calls, sums.allowed, sums.denied, sums.failed, sums.cancelled, sums.retried, sums.replayed];
        let cells = group
            .members
            .iter()
            .map(member_text)
            .chain(counts.map(grouped))
            .chain([format!("{:.1}", sums.error_rate() * 100.0), millis(0), millis(1), millis(2)])
            .chain([grouped(sums.request_bytes), grouped(sums.response_bytes), classes.join(", ")]);
        row(out, cells, names);
    }
    out.push_str("</tbody></table></div>\n");
}

fn queue(report: &Report, out: &mut String) {
    out.push_str("<h2>Queue</h2>\n");
    let Some(queue) = &report.queue else {
        out.push_str("<p>There is no queue yet: no call has finally failed.</p>\n");
        return;
    };
    let per_hour = |arrivals: u64| format!("{:.1}", arrivals as f64 / report.hours());
    let age = |age: Option<i64>| age.map_or("–".to_owned(), age_text);
    let statuses = queue.by_status.iter().filter(|(_, count)| **count > 0);
    let statuses: Vec<String> =
        statuses.map(|(status, count)| format!("{} {}", escaped(status), grouped(*count))).collect();
    let _ = writeln!(
        out,
        "<p>{} wait, the oldest for {}; {} came in, {} an hour. By status: {}.</p>",
        grouped(queue.all.depth),
        age(queue.all.age_ms(queue.at)),
        grouped(queue.all.arrivals),
        per_hour(queue.all.arrivals),
        if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }
    );
    if queue.rows.is_empty() {
        return;
    }
    let titles = ["Tool", "Class", "Depth", "Oldest", "Arrivals", "An hour"];
    open_table(out, "Stored calls by tool and class", &titles, 2);
    for (key, one) in &queue.rows {
        let (tool, class) = key.clone().unwrap_or_else(|| ("(other)".to_owned(), "(other)".to_owned()));
        let counts = [grouped(one.depth), age(one.age_ms(queue.at)), grouped(one.arrivals), per_hour(one.arrivals)];
        row(out, [tool, class].into_iter().chain(counts), 2);
    }
    out.push_str("</tbody></table></div>\n");
}

/// The beginning of a table up to its first row. The first `names` columns hold text, all others but `Errors` numbers.
/// A table that is wider than the page is scrolled by itself, also from the keyboard.
fn open_table(out: &mut String, caption: &str, titles: &[&str], names: usize) {
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\"><table><caption>{caption}</caption><thead><tr>"
    );
    for (n, title) in titles.iter().enumerate() {
        let class = if n < names || *title == "Errors" { "" } else { " class=\"n\"" };
        let _ = write!(out, "<th scope=\"col\"{class}>{title}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
}

fn row(out: &mut String, cells: impl IntoIterator<Item = String>, names: usize) {
    out.push_str("<tr>");
    for (n, cell) in cells.into_iter().enumerate() {
        let cell = escaped(&cell);
        let _ = match n {
            0 => write!(out, "<th scope=\"row\">{cell}</th>"),
            n if n < names => write!(out, "<td>{cell}</td>"),
            // Only the last column, of error classes, holds letters here.
            _ if cell.starts_with(|c: char| c.is_ascii_lowercase()) => write!(out, "<td>{cell}</td>"),
            _ => write!(out, "<td class=\"n\">{cell}</td>"),
        };
    }
    out.push_str("</tr>\n");
}

/// Text that stays text wherever it stands in the page; control characters are shown.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number with its thousands set apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            // A narrow space that keeps the number on its line.
            out.push('\u{202F}');
        }
        out.push(digit);
    }
    out
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
