//! The forms of a report, of plain values.

use super::gather::{Group, Slice, Sums};
use super::latency::{Latencies, Precision};
use super::queue::Waiting;
use super::*;

/// 2026-11-30T10:00:00Z.
const NOW: i64 = 1_796_032_800_000;

fn sums(failed: u64) -> Sums {
    let mut latencies = Latencies::default();
    for millis in [10, 20, 1_500] {
        latencies.add(millis, Precision::EXACT);
    }
    latencies.settle();
    Sums {
        calls: 5 + failed,
        allowed: 3,
        denied: 1,
        failed,
        cancelled: 1,
        retried: 1,
        replayed: 2,
        request_bytes: 1_234,
        response_bytes: 56_789,
        classes: [("timeout".to_owned(), failed)].into_iter().filter(|(_, count)| *count > 0).collect(),
        latencies,
    }
}

fn report(tool: &str) -> Report {
    let group = |tool: &str, failed| Group {
        members: ["local", "files", tool].map(|text| Member::Text(text.to_owned())).to_vec(),
        sums: sums(failed),
    };
    let slices = [(0, 1), (1, 0)].map(|(n, failed)| Slice { at: Wall(NOW - 3_600_000 * (2 - n)), sums: sums(failed) });
    Report {
        since: Wall(NOW - 7_200_000),
        until: Wall(NOW),
        at: Wall(NOW),
        tool: Some("*".to_owned()),
        caller: None,
        server: None,
        group_by: vec![Dimension::Caller, Dimension::Server, Dimension::Tool],
        calls: Gathered {
            totals: sums(2),
            groups: vec![group(tool, 2), group("b", 0)],
            slices: slices.to_vec(),
            slice_ms: 3_600_000,
            latency_error_max: 0.0,
        },
        queue: Some(QueueState {
            all: Waiting { depth: 3, oldest: Some(Wall(NOW - 90_000)), arrivals: 4 },
            by_status: [("pending".to_owned(), 3), ("replayed".to_owned(), 1)].into(),
            rows: vec![
                (
                    Some((tool.to_owned(), "timeout".to_owned())),
                    Waiting { depth: 3, oldest: Some(Wall(NOW - 90_000)), arrivals: 3 },
                ),
                (None, Waiting { depth: 0, oldest: None, arrivals: 1 }),
            ],
            at: Wall(NOW),
        }),
    }
}

/// Every name that a client could bring.
const NASTY: &str = "</td><script>alert(\"1\")</script>&'\n\u{1b}[2J\\";

#[test]
fn names_are_text_and_nothing_else_in_the_page() {
    let page = html::page(&report(NASTY));
    assert!(!page.contains("<script") && !page.contains('\u{1b}'), "{page}");
    assert!(page.contains("&lt;/td&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;\\n\\u{1b}[2J\\"));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
}

#[test]
fn the_page_is_well_formed_and_every_chart_is_told_in_words() {
    let page = html::page(&report("a"));
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("every tag ends");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap_or_default();
        match tag {
            tag if tag.starts_with('!') || tag.ends_with('/') || name == "meta" => {}
            tag if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "in {tag}"),
            _ => open.push(name),
        }
    }
    assert_eq!(open, [""; 0]);
    assert_eq!(page.matches("<svg class=\"chart\"").count(), 3);
    for id in ["latency", "errors", "calls"] {
        assert!(page.contains(&format!("role=\"img\" aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">")));
        assert!(page.contains(&format!("<desc id=\"{id}-d\">")));
    }
    assert!(page.contains("The most failures are 1 at 2026-11-30T08:00:00.000Z."), "{page}");
    assert!(page.contains("prefers-color-scheme: dark"));
    let empty =
        html::page(&Report { calls: Gather::new(Filter::default(), &[], None).finish(), queue: None, ..report("a") });
    assert!(empty.contains("There were no calls") && empty.contains("no queue yet") && !empty.contains("<svg"));
}

#[test]
fn the_document_is_one_line_of_json_with_its_types() {
    let text = json::document(&report(NASTY));
    assert!(!text.contains('\n'));
    let json: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(json["since"], "2026-11-30T08:00:00.000Z");
    assert_eq!(json["filters"], serde_json::json!({"tool": "*", "caller": null, "server": null}));
    assert_eq!(json["group_by"], serde_json::json!(["caller", "server", "tool"]));
    assert_eq!(json["groups"][0]["tool"], NASTY);
    assert_eq!(json["groups"][0]["latency_p50_ms"], 20);
    assert_eq!(json["groups"][0]["errors"], serde_json::json!([{"class": "timeout", "count": 2}]));
    assert_eq!(json["totals"]["error_rate"], serde_json::json!(2.0 / 7.0));
    assert_eq!(json["queue"]["oldest_age_s"], 90);
    assert_eq!(json["queue"]["arrivals_per_hour"], 2);
    assert_eq!(json["queue"]["by_tool_and_class"][1]["tool"], "(other)");
    assert_eq!(json["queue"]["by_tool_and_class"][1]["oldest_at"], serde_json::Value::Null);
}

#[test]
fn text_fits_the_width_there_is() {
    for width in [40, 60, 80, 100, 120, 200] {
        let mut out = Vec::new();
        let layout = Layout { width: Some(width), colour: false };
        text::write(&report("a_tool_with_a_very_long_name_indeed"), true, layout, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line:?}");
        }
        assert!(width < 60 || text.contains("FAILED") && text.contains("CALLS"), "{width}:\n{text}");
        assert_eq!(text.contains("no space for"), width < 180, "{width}:\n{text}");
    }
}

/// Names and values.
type Labels = Vec<(String, String)>;

/// One family as a reader of the format sees it.
#[derive(Debug, Default)]
struct Family {
    unit: Option<String>,
    samples: Vec<(Labels, f64)>,
}

/// Reads OpenMetrics text as its grammar has it, of gauges only; panics on whatever breaks a rule.
fn parsed(text: &str) -> Vec<(String, Family)> {
    let body = text.strip_suffix("# EOF\n").expect("the last line is # EOF");
    assert!(!body.contains("# EOF"));
    let mut families: Vec<(String, Family)> = Vec::new();
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name, rest) = (words.next().expect("a kind"), words.next().expect("a name"), words.next());
            match kind {
                "TYPE" => {
                    assert_eq!(rest, Some("gauge"));
                    assert!(families.iter().all(|(known, _)| known != name), "{name} is there twice");
                    families.push((name.to_owned(), Family::default()));
                }
                "UNIT" => {
                    let (family, entry) = families.last_mut().expect("TYPE stands before");
                    let unit = rest.expect("a unit");
                    assert!(family == name && name.ends_with(&format!("_{unit}")), "{line}");
                    entry.unit = Some(unit.to_owned());
                }
                "HELP" => {
                    assert_eq!(families.last().map(|(known, _)| known.as_str()), Some(name));
                    assert!(!rest.expect("a text").contains(['\\', '"']));
                }
                other => panic!("{other} is no line of the format"),
            }
            continue;
        }
        let (family, entry) = families.last_mut().expect("a family stands before");
        let (name, rest) = line.split_at(line.find(['{', ' ']).expect("a value follows"));
        assert_eq!(name, family, "samples stand with their family");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{name}");
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest),
            None => (Vec::new(), rest),
        };
        let value = value.strip_prefix(' ').expect("one blank before the value");
        assert!(!value.contains(' '), "no time stands behind the value: {line}");
        let value: f64 = value.parse().expect("a number");
        assert!(value.is_finite());
        assert!(entry.samples.iter().all(|(known, _)| *known != labels), "twice the same labels: {line}");
        entry.samples.push((labels, value));
    }
    families
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> (Labels, &str) {
    let mut found = Labels::new();
    loop {
        let (name, after) = rest.split_once("=\"").expect("a label");
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert!(found.iter().all(|(known, _)| known != name), "{name} is there twice");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("the value ends") {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next().expect("something is escaped").1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    other => panic!("\\{other} is no escape"),
                },
                (_, c) => value.push(c),
            }
        };
        found.push((name.to_owned(), value));
        match after[end..].split_at(1) {
            (",", after) => rest = after,
            ("}", after) => return (found, after),
            (other, _) => panic!("{other} behind a label"),
        }
    }
}

#[test]
fn metrics_are_valid_whatever_names_are_in_them_and_whatever_rows_were_asked_for() {
    let families = parsed(&openmetrics::text(&report(NASTY)));
    let value = |family: &str, wanted: &[(&str, &str)]| {
        let (_, entry) = families.iter().find(|(name, _)| name == family).expect(family);
        let has = |labels: &[(String, String)]| {
            wanted.iter().all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
        };
        let found: Vec<f64> = entry.samples.iter().filter(|(labels, _)| has(labels)).map(|(_, value)| *value).collect();
        found[0]
    };
    assert_eq!(value("mcprelay_calls", &[("tool", NASTY), ("outcome", "failed")]), 2.0);
    assert_eq!(value("mcprelay_failed_calls", &[("failure_class", "timeout")]), 2.0);
    assert_eq!(value("mcprelay_call_latency_seconds", &[("percentile", "99")]), 1.5);
    assert_eq!(value("mcprelay_report_window_seconds", &[]), 7_200.0);
    assert_eq!(value("mcprelay_queue_depth", &[]), 3.0);
    assert_eq!(value("mcprelay_queue_oldest_age_seconds", &[("tool", NASTY)]), 90.0);
    assert_eq!(value("mcprelay_queue_records", &[("status", "replayed")]), 1.0);
    assert_eq!(value("mcprelay_queue_arrivals_per_hour", &[]), 2.0);

    // Rows of the same labels: only one of them may be there.
    let mut twice = report("a");
    twice.group_by = vec![Dimension::Class, Dimension::Decision];
    for group in &mut twice.calls.groups {
        group.members = vec![Member::None, Member::Other];
    }
    parsed(&openmetrics::text(&twice));
    parsed(&openmetrics::text(&Report { queue: None, ..report("a") }));
}

#[test]
fn csv_has_one_cell_for_each_title() {
    let mut out = Vec::new();
    csv::write(&report("a"), true, &mut out).expect("written");
    let text = String::from_utf8(out).expect("text");
    let counts: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(counts, [18, 18, 18], "{text}");
    assert!(text.starts_with("caller,server,tool,calls,"));
    assert!(
        text.contains("local,files,a,7,3,1,2,1,1,2,0.2857142857142857,3,20,1500,1500,1234,56789,timeout=2\n"),
        "{text}"
    );
    let mut out = Vec::new();
    csv::write(&report("a"), false, &mut out).expect("written");
    assert_eq!(String::from_utf8_lossy(&out).lines().count(), 2);
}

#[test]
fn ages_are_short() {
    for (millis, text) in [(-5, "0s"), (59_999, "59s"), (60_000, "1m 0s"), (3_661_000, "1h 1m"), (90_061_000, "1d 1h")]
    {
        assert_eq!(age_text(millis), text);
    }
}
