//! The report as metrics, in the OpenMetrics text format. Everything is a gauge, without a time: the text is then also
//! what a node exporter's textfile collector reads.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::gather::Sums;
use super::queue::Waiting;
use super::{Report, member_text};
use crate::commands::report::gather::Member;

/// Labels and their values, as they stand between the braces.
type Labels = String;

/// The text of the whole file.
pub(super) fn text(report: &Report) -> String {
    let mut out = Metrics::default();
    let window = (report.until.0 - report.since.0) as f64 / 1_000.0;
    out.family("mcprelay_report_window_seconds", Some("seconds"), "The time that the calls below ended in.");
    out.sample("", window);
    out.family("mcprelay_report_timestamp_seconds", Some("seconds"), "When the report was made, since 1970.");
    out.sample("", report.at.0 as f64 / 1_000.0);

    let groups: Vec<(Labels, &Sums)> = report
        .calls
        .groups
        .iter()
        .map(|group| {
            let members = group.members.iter().map(|member| match member {
                Member::None => String::new(),
                member => member_text(member),
            });
            let labels: Vec<(&str, String)> =
                report.group_by.iter().map(|dimension| dimension.as_str()).zip(members).collect();
            (labels_text(&labels), &group.sums)
        })
        .collect();
    out.family("mcprelay_calls", None, "Calls by how they ended.");
    for (labels, sums) in &groups {
        let ends = [
            ("allowed", sums.allowed),
            ("denied", sums.denied),
            ("failed", sums.failed),
            ("cancelled", sums.cancelled),
        ];
        for (end, count) in ends {
            out.sample(&with(labels, "outcome", end), count as f64);
        }
    }
    out.family("mcprelay_failed_calls", None, "Failed calls by the class of the failure.");
    for (labels, sums) in &groups {
        for (class, count) in &sums.classes {
            out.sample(&with(labels, "failure_class", class), *count as f64);
        }
    }
    type Value = fn(&Sums) -> f64;
    let values: [(&str, Option<&str>, &str, Value); 4] = [
        ("mcprelay_retried_calls", None, "Calls of more than one attempt.", |sums| sums.retried as f64),
        ("mcprelay_replayed_calls", None, "Replays of stored calls.", |sums| sums.replayed as f64),
        ("mcprelay_request_bytes", Some("bytes"), "Bytes of all requests.", |sums| sums.request_bytes as f64),
        ("mcprelay_response_bytes", Some("bytes"), "Bytes of all results.", |sums| sums.response_bytes as f64),
    ];
    for (name, unit, help, value) in values {
        out.family(name, unit, help);
        for (labels, sums) in &groups {
            out.sample(labels, value(sums));
        }
    }
    let help = "Latency of calls that ran or may have run, from arrival to answer.";
    out.family("mcprelay_call_latency_seconds", Some("seconds"), help);
    for (labels, sums) in &groups {
        let Some(percentiles) = sums.percentiles() else { continue };
        for (percent, millis) in ["50", "95", "99"].into_iter().zip(percentiles) {
            out.sample(&with(labels, "percentile", percent), millis as f64 / 1_000.0);
        }
    }
    queue(report, &mut out);
    out.text + "# EOF\n"
}

fn queue(report: &Report, out: &mut Metrics) {
    let Some(queue) = &report.queue else { return };
    out.family("mcprelay_queue_records", None, "Stored calls by their status.");
    for (status, count) in &queue.by_status {
        out.sample(&labels_text(&[("status", status.clone())]), *count as f64);
    }
    let rows: Vec<(Labels, &Waiting)> = queue
        .rows
        .iter()
        .map(|(key, waiting)| {
            let (tool, class) = key.clone().unwrap_or_else(|| ("(other)".to_owned(), "(other)".to_owned()));
            (labels_text(&[("tool", tool), ("failure_class", class)]), waiting)
        })
        .collect();
    out.family("mcprelay_queue_depth", None, "Stored calls that nobody has settled yet, over all and by tool.");
    out.sample("", queue.all.depth as f64);
    rows.iter().for_each(|(labels, one)| out.sample(labels, one.depth as f64));
    let help = "Age of the oldest stored call that nobody has settled yet, over all and by tool.";
    out.family("mcprelay_queue_oldest_age_seconds", Some("seconds"), help);
    for (labels, one) in [(String::new(), &queue.all)].iter().chain(&rows) {
        if let Some(age) = one.age_ms(queue.at) {
            out.sample(labels, age as f64 / 1_000.0);
        }
    }
    out.family("mcprelay_queue_arrivals_per_hour", None, "Stored calls that came in, over all and by tool.");
    for (labels, one) in [(String::new(), &queue.all)].iter().chain(&rows) {
        out.sample(labels, one.arrivals as f64 / report.hours());
    }
}

/// The text as far as it is written.
#[derive(Default)]
struct Metrics {
    text: String,
    name: &'static str,
    /// The labels that the family has had. A second sample with the same ones would make the whole file invalid.
    seen: BTreeSet<Labels>,
}

impl Metrics {
    fn family(&mut self, name: &'static str, unit: Option<&str>, help: &str) {
        self.name = name;
        self.seen.clear();
        let _ = writeln!(self.text, "# TYPE {name} gauge");
        if let Some(unit) = unit {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name} {help}");
    }

    fn sample(&mut self, labels: &str, value: f64) {
        if !self.seen.insert(labels.to_owned()) {
            return;
        }
        let _ = match labels {
            "" => writeln!(self.text, "{} {value}", self.name),
            labels => writeln!(self.text, "{}{{{labels}}} {value}", self.name),
        };
    }
}

fn labels_text(labels: &[(&str, String)]) -> Labels {
    labels.iter().fold(String::new(), |text, (name, value)| with(&text, name, value))
}

/// The labels with one more.
fn with(labels: &str, name: &str, value: &str) -> Labels {
    let comma = if labels.is_empty() { "" } else { "," };
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{labels}{comma}{name}=\"{value}\"")
}
