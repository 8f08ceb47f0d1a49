//! The report as text for people.

use std::io::{self, Write};

use super::gather::Sums;
use super::{Report, age_text, member_text};
use crate::cli::Dimension;
use crate::commands::table::{Cell, Column, Table};
use crate::commands::terminal::{Layout, Style};
use crate::commands::text::one_line;

/// Classes that a row shows.
const CLASSES_SHOWN: usize = 3;

/// Writes the report.
///
/// # Errors
/// Those of the output.
pub(super) fn write(report: &Report, header: bool, layout: Layout, out: &mut dyn Write) -> io::Result<()> {
    let Report { since, until, calls, .. } = report;
    let mut paragraph = |text: &str| writeln!(out, "{}", wrapped(text, layout.width));
    paragraph(&format!("window: {} .. {}", since.to_rfc3339(), until.to_rfc3339()))?;
    let filters = [("tool", &report.tool), ("caller", &report.caller), ("server", &report.server)];
    for (name, wanted) in filters {
        if let Some(wanted) = wanted {
            paragraph(&format!("{name}: {}", one_line(wanted)))?;
        }
    }
    let all = &calls.totals;
    paragraph(&format!(
        "calls {} · allowed {} · denied {} · failed {} · cancelled {} · retried {} · replayed {}",
        all.calls, all.allowed, all.denied, all.failed, all.cancelled, all.retried, all.replayed
    ))?;
    if let Some([p50, p95, p99]) = all.percentiles() {
        let off = match calls.latency_error_max {
            0.0 => String::new(),
            off => format!(" (rounded down by at most {:.2} %)", off * 100.0),
        };
        paragraph(&format!("latency p50 {p50} ms · p95 {p95} ms · p99 {p99} ms{off}"))?;
    }
    writeln!(out)?;

    let mut columns: Vec<Column> = report.group_by.iter().map(|dimension| dimension_column(*dimension)).collect();
    columns.extend([
        Column::new("CALLS").right(),
        Column::new("ALLOWED").right().rank(6),
        Column::new("DENIED").right().rank(5),
        Column::new("FAILED").right(),
        Column::new("CANCELLED").right().rank(8),
        Column::new("RETRIED").right().rank(7),
        Column::new("REPLAYED").right().rank(9),
        Column::new("ERR%").right().rank(1),
        Column::new("P50").right().rank(3),
        Column::new("P95").right().rank(1),
        Column::new("P99").right().rank(4),
        Column::new("REQ_BYTES").right().rank(11),
        Column::new("RESP_BYTES").right().rank(10),
        Column::new("ERRORS").narrowest(10).rank(2),
    ]);
    let mut table = Table::new(out, layout, columns, header);
    for group in &calls.groups {
        let mut cells: Vec<Cell> = group.members.iter().map(|member| member_text(member).into()).collect();
        cells.extend(sums_cells(&group.sums));
        table.row(cells)?;
    }
    let left_out = table.finish()?;
    if !left_out.is_empty() {
        let text = format!("(no space for {}; a wider terminal or --csv has them)", left_out.join(", "));
        for line in wrapped(&text, layout.width).lines() {
            writeln!(out, "{}", layout.styled(Style::Dim, line))?;
        }
    }
    queue(report, header, layout, out)
}

fn dimension_column(dimension: Dimension) -> Column {
    let column = Column::new(dimension.as_str().to_uppercase());
    match dimension {
        Dimension::Caller | Dimension::Server => column.narrowest(6),
        Dimension::Tool => column.narrowest(10),
        Dimension::Class | Dimension::Decision | Dimension::Hour | Dimension::Day => column,
    }
}

fn sums_cells(sums: &Sums) -> Vec<Cell> {
    let percentiles = sums.percentiles();
    let millis = |at: usize| -> Cell { percentiles.map_or("-".to_owned(), |all| format!("{}ms", all[at])).into() };
    let count = |count: u64| -> Cell { count.to_string().into() };
    let alarming = |cell: Cell| if sums.failed > 0 { cell.styled(Style::Red) } else { cell };
    let classes = sums.top_classes();
    let mut shown: Vec<String> =
        classes.iter().take(CLASSES_SHOWN).map(|(class, count)| format!("{class} {count}")).collect();
    if classes.len() > CLASSES_SHOWN {
        shown.push("…".to_owned());
    }
    vec![
        count(sums.calls),
        count(sums.allowed),
        count(sums.denied),
        alarming(count(sums.failed)),
        count(sums.cancelled),
        count(sums.retried),
        count(sums.replayed),
        alarming(format!("{:.1}%", sums.error_rate() * 100.0).into()),
        millis(0),
        millis(1),
        millis(2),
        count(sums.request_bytes),
        count(sums.response_bytes),
        shown.join(", ").into(),
    ]
}

fn queue(report: &Report, header: bool, layout: Layout, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    let Some(queue) = &report.queue else { return writeln!(out, "queue: none yet") };
    let per_hour = |arrivals: u64| format!("{:.1}", arrivals as f64 / report.hours());
    let age = |age: Option<i64>| age.map_or("-".to_owned(), age_text);
    let mut parts = vec![
        format!("depth {}", queue.all.depth),
        format!("oldest {}", age(queue.all.age_ms(queue.at))),
        format!("arrivals {} ({} an hour)", queue.all.arrivals, per_hour(queue.all.arrivals)),
    ];
    let present = queue.by_status.iter().filter(|(_, count)| **count > 0);
    parts.extend(present.map(|(status, count)| format!("{} {count}", one_line(status))));
    writeln!(out, "{}", wrapped(&format!("queue: {}", parts.join(" · ")), layout.width))?;
    if queue.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let columns = vec![
        Column::new("TOOL").narrowest(10),
        Column::new("CLASS").narrowest(10),
        Column::new("DEPTH").right(),
        Column::new("OLDEST").right(),
        Column::new("ARRIVALS").right().rank(2),
        Column::new("PER_HOUR").right().rank(1),
    ];
    let mut table = Table::new(out, layout, columns, header);
    for (key, waiting) in &queue.rows {
        let (tool, class) = key.as_ref().map_or(("(other)", "(other)"), |(tool, class)| (tool, class));
        table.row(vec![
            tool.into(),
            class.into(),
            waiting.depth.to_string().into(),
            age(waiting.age_ms(queue.at)).into(),
            waiting.arrivals.to_string().into(),
            per_hour(waiting.arrivals).into(),
        ])?;
    }
    table.finish().map(drop)
}

/// `text` in lines of at most `width` characters, broken at blanks.
fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut lines = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push('\n');
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}
