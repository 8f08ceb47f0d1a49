//! The rows of the report as comma-separated values (RFC 4180, lines ended by a newline alone).

use std::io::{self, Write};

use super::Report;
use super::gather::Member;

/// Writes the rows.
///
/// # Errors
/// Those of the output.
pub(super) fn write(report: &Report, header: bool, out: &mut dyn Write) -> io::Result<()> {
    const SUMS: [&str; 15] = [
        "calls",
        "allowed",
        "denied",
        "failed",
        "cancelled",
        "retried",
        "replayed",
        "error_rate",
        "executed",
        "latency_p50_ms",
        "latency_p95_ms",
        "latency_p99_ms",
        "request_bytes",
        "response_bytes",
        "errors",
    ];
    if header {
        let names: Vec<&str> = report.group_by.iter().map(|dimension| dimension.as_str()).chain(SUMS).collect();
        writeln!(out, "{}", names.join(","))?;
    }
    for group in &report.calls.groups {
        let sums = &group.sums;
        let percentile = |at: usize| sums.percentiles().map_or(String::new(), |all| all[at].to_string());
        let errors: Vec<String> = sums.top_classes().iter().map(|(class, count)| format!("{class}={count}")).collect();
        let mut cells: Vec<String> = group
            .members
            .iter()
            .map(|member| match member {
                Member::Text(text) => cell(text),
                Member::Time(at) => at.to_rfc3339(),
                Member::None => String::new(),
                Member::Other => "(other)".to_owned(),
            })
            .collect();
        let counts = [sums.calls, sums.allowed, sums.denied, sums.failed, sums.cancelled, sums.retried, sums.replayed];
        cells.extend(counts.iter().map(u64::to_string));
        cells.extend([sums.error_rate().to_string(), sums.latencies.total().to_string()]);
        cells.extend([percentile(0), percentile(1), percentile(2)]);
        cells.extend([sums.request_bytes.to_string(), sums.response_bytes.to_string(), cell(&errors.join(" "))]);
        writeln!(out, "{}", cells.join(","))?;
    }
    Ok(())
}

/// One text. Spreadsheets run a cell that begins like a formula, and names of tools come from clients, so such a text
/// gets an apostrophe in front.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn a_cell_is_one_cell_and_no_formula() {
        for (text, expected) in [
            ("read_file", "read_file"),
            ("a,b", "\"a,b\""),
            ("say \"x\"\nnow", "\"say \"\"x\"\"\nnow\""),
            ("=HYPERLINK(\"x\")", "\"'=HYPERLINK(\"\"x\"\")\""),
            ("-1", "'-1"),
            ("@a", "'@a"),
            ("", ""),
        ] {
            assert_eq!(cell(text), expected);
        }
    }
}
