//! The report as one JSON document; `docs/cli.md` describes it.

use super::Report;
use super::gather::{Member, Sums};
use super::queue::{QueueState, Waiting};
use crate::record::json_out::{Object, array, object, string};

/// The document, on one line.
pub(super) fn document(report: &Report) -> String {
    let text_or_null = |out: &mut Object, name: &str, text: &Option<String>| {
        match text {
            Some(text) => out.text(name, text),
            None => out.null(name),
        };
    };
    object(|out| {
        out.text("since", &report.since.to_rfc3339()).text("until", &report.until.to_rfc3339());
        out.text("generated_at", &report.at.to_rfc3339());
        out.object("filters", |out| {
            text_or_null(out, "tool", &report.tool);
            text_or_null(out, "caller", &report.caller);
            text_or_null(out, "server", &report.server);
        });
        out.raw("group_by", &array(report.group_by.iter().map(|dimension| string(dimension.as_str()))));
        out.object("totals", |out| sums(out, &report.calls.totals));
        let groups = report.calls.groups.iter().map(|group| {
            object(|out| {
                for (dimension, member) in report.group_by.iter().zip(&group.members) {
                    match member {
                        Member::Text(text) => out.text(dimension.as_str(), text),
                        Member::Time(at) => out.text(dimension.as_str(), &at.to_rfc3339()),
                        Member::None => out.null(dimension.as_str()),
                        Member::Other => out.text(dimension.as_str(), "(other)"),
                    };
                }
                sums(out, &group.sums);
            })
        });
        out.raw("groups", &array(groups));
        out.plain("latency_error_max", report.calls.latency_error_max);
        match &report.queue {
            Some(queue) => out.raw("queue", &queue_json(queue, report.hours())),
            None => out.null("queue"),
        };
    })
}

fn sums(out: &mut Object, sums: &Sums) {
    out.plain("calls", sums.calls)
        .plain("allowed", sums.allowed)
        .plain("denied", sums.denied)
        .plain("failed", sums.failed)
        .plain("cancelled", sums.cancelled)
        .plain("retried", sums.retried)
        .plain("replayed", sums.replayed)
        .plain("error_rate", sums.error_rate())
        .plain("executed", sums.latencies.total());
    let percentiles = sums.percentiles();
    for (at, name) in ["latency_p50_ms", "latency_p95_ms", "latency_p99_ms"].into_iter().enumerate() {
        match percentiles {
            Some(all) => out.plain(name, all[at]),
            None => out.null(name),
        };
    }
    out.plain("request_bytes", sums.request_bytes).plain("response_bytes", sums.response_bytes);
    let classes = sums.top_classes();
    let classes = classes.iter().map(|(class, count)| {
        object(|out| {
            out.text("class", class).plain("count", count);
        })
    });
    out.raw("errors", &array(classes));
}

fn queue_json(queue: &QueueState, hours: f64) -> String {
    let waiting = |out: &mut Object, waiting: &Waiting| {
        out.plain("depth", waiting.depth);
        match waiting.oldest {
            Some(oldest) => out.text("oldest_at", &oldest.to_rfc3339()),
            None => out.null("oldest_at"),
        };
        match waiting.age_ms(queue.at) {
            Some(age) => out.plain("oldest_age_s", age / 1_000),
            None => out.null("oldest_age_s"),
        };
        out.plain("arrivals", waiting.arrivals).plain("arrivals_per_hour", waiting.arrivals as f64 / hours);
    };
    object(|out| {
        waiting(out, &queue.all);
        out.object("by_status", |out| {
            for (status, count) in &queue.by_status {
                out.plain(status, count);
            }
        });
        let rows = queue.rows.iter().map(|(key, one)| {
            object(|out| {
                let (tool, class) = key.as_ref().map_or(("(other)", "(other)"), |(tool, class)| (tool, class));
                out.text("tool", tool).text("class", class);
                waiting(out, one);
            })
        });
        out.raw("by_tool_and_class", &array(rows));
    })
}
