//! `mcprelay replay run --all --plan`: what would run, by server and tool, and how long it may take.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use super::all::Chosen;
use super::context::Context;
use super::guards::{Refusal, of_queue};
use super::plan::{against, is_unknown, look_back, plan};
use crate::cli::ReplayRunAllArgs;
use crate::clock::Wall;
use crate::commands::report::{age_text, latencies};
use crate::commands::table::{Column, Table};
use crate::commands::terminal::{Layout, Progress};
use crate::commands::text::written;
use crate::exit::ExitStatus;
use crate::record::json_out::{array, object};
use crate::store::queue::{Head, Queue};

/// Latencies of this many days are looked at.
const DAYS: i64 = 30;

/// The calls of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    records: u64,
    unknown: u64,
    /// How many would be refused, by the kind of the first reason.
    refused: BTreeMap<&'static str, u64>,
    /// p50 and p95 of its calls, if there were any.
    latency: Option<(u64, u64)>,
}

impl Group {
    fn runnable(&self) -> u64 {
        self.records - self.refused.values().sum::<u64>()
    }

    /// How long its calls take in all, usually and at worst, in milliseconds.
    fn estimate(&self, pause: Duration) -> Option<(u64, u64)> {
        let pause = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        let all = |each: u64| self.runnable().saturating_mul(each.max(pause));
        self.latency.map(|(p50, p95)| (all(p50), all(p95)))
    }
}

pub(super) fn run(
    args: &ReplayRunAllArgs,
    context: &Context,
    queues: &[Queue],
    chosen: &Chosen,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> ExitStatus {
    let groups = match gather(context, queues, chosen, err) {
        Ok(groups) => groups,
        Err(refusal) => return super::fail(args.json, refusal.kind, &refusal.message, out, err),
    };
    let pause = args.pause.unwrap_or_default();
    let text = if args.json { json(&groups, chosen, pause) + "\n" } else { text(&groups, chosen, pause) };
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err)
}

fn gather(
    context: &Context,
    queues: &[Queue],
    chosen: &Chosen,
    err: &mut dyn Write,
) -> Result<BTreeMap<(String, String), Group>, Refusal> {
    let now = context.now().wall;
    let since = Wall(now.0.saturating_sub(DAYS * 86_400_000));
    let known =
        latencies(&context.settings, since, now).map_err(|error| Refusal::new("store", format!("cannot {error}")))?;
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    let mut progress = Progress::on(err);
    for (done, (at, head)) in chosen.heads.iter().enumerate() {
        let key = (head.server.clone(), head.tool.clone());
        let latency = known.get(&key).map(|[p50, p95, _]| (*p50, *p95));
        let group = groups.entry(key).or_insert_with(|| Group { latency, ..Group::default() });
        group.records += 1;
        group.unknown += u64::from(is_unknown(context, &head.tool, head.executed, head.idempotent));
        if let Some(kind) = refused(context, &queues[*at], head)? {
            *group.refused.entry(kind).or_default() += 1;
        }
        progress.tell(|| format!("{done} of {} looked at", chosen.heads.len()));
    }
    Ok(groups)
}

/// The first reason against the call.
fn refused(context: &Context, queue: &Queue, head: &Head) -> Result<Option<&'static str>, Refusal> {
    let record = queue.get(&head.id).map_err(|error| of_queue(&error))?;
    let plan = match plan(context, &record) {
        Ok(plan) => plan,
        Err(refusal) => return Ok(Some(refusal.kind)),
    };
    let seen = look_back(context, queue, &record, &plan)?;
    let against = against(context, &record, &plan, seen.as_ref());
    Ok(against.first().or(plan.server.as_ref().err()).map(|refusal| refusal.kind))
}

/// The sum of the estimates, and whether it leaves out tools of which nothing is known.
fn total(groups: &BTreeMap<(String, String), Group>, pause: Duration) -> (u64, u64, bool) {
    let mut sum = (0_u64, 0_u64, false);
    for group in groups.values().filter(|group| group.runnable() > 0) {
        match group.estimate(pause) {
            Some((usual, worst)) => {
                sum = (sum.0.saturating_add(usual), sum.1.saturating_add(worst), sum.2);
            }
            None => sum.2 = true,
        }
    }
    sum
}

fn json(groups: &BTreeMap<(String, String), Group>, chosen: &Chosen, pause: Duration) -> String {
    let (usual, worst, partial) = total(groups, pause);
    let rows = groups.iter().map(|((server, tool), group)| {
        object(|out| {
            out.text("server", server).text("tool", tool);
            out.plain("records", group.records).plain("runnable", group.runnable()).plain("unknown", group.unknown);
            out.object("refused", |out| {
                for (kind, count) in &group.refused {
                    out.plain(kind, count);
                }
            });
            match (group.latency, group.estimate(pause)) {
                (Some((p50, p95)), Some((usual, worst))) => out
                    .plain("p50_ms", p50)
                    .plain("p95_ms", p95)
                    .plain("estimate_ms", usual)
                    .plain("estimate_p95_ms", worst),
                _ => out.null("p50_ms").null("p95_ms").null("estimate_ms").null("estimate_p95_ms"),
            };
        })
    });
    let rows = array(rows);
    object(|out| {
        out.plain("all", true).plain("plan", true).plain("selected", chosen.heads.len());
        out.plain("runnable", groups.values().map(Group::runnable).sum::<u64>());
        out.plain("unknown", chosen.unknown).raw("left_out", &chosen.left_out_json());
        out.plain("estimate_ms", usual).plain("estimate_p95_ms", worst).plain("estimate_partial", partial);
        out.raw("groups", &rows);
    })
}

fn text(groups: &BTreeMap<(String, String), Group>, chosen: &Chosen, pause: Duration) -> String {
    let mut text = Vec::new();
    let time = |millis: u64| age_text(i64::try_from(millis).unwrap_or(i64::MAX));
    let columns = vec![
        Column::new("SERVER").narrowest(8),
        Column::new("TOOL").narrowest(8),
        Column::new("CALLS").right(),
        Column::new("WOULD RUN").right(),
        Column::new("MAY HAVE RUN").right(),
        Column::new("P50").right().rank(2),
        Column::new("TIME").right().rank(1),
        Column::new("REFUSED").rank(3),
    ];
    let mut table = Table::new(&mut text, Layout::of_stdout(), columns, true);
    for ((server, tool), group) in groups {
        let refused: Vec<String> = group.refused.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let estimate = group.estimate(pause).map_or("?".to_owned(), |(usual, _)| time(usual));
        let p50 = group.latency.map_or("?".to_owned(), |(p50, _)| format!("{p50}ms"));
        let cells = [
            server.clone(),
            tool.clone(),
            group.records.to_string(),
            group.runnable().to_string(),
            group.unknown.to_string(),
            p50,
            estimate,
            refused.join(", "),
        ];
        // A Vec takes everything.
        let _ = table.row(cells.iter().map(Into::into).collect());
    }
    if !groups.is_empty() {
        let _ = table.finish();
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    let (usual, worst, partial) = total(groups, pause);
    let runnable: u64 = groups.values().map(Group::runnable).sum();
    let (selected, unknown) = (chosen.heads.len(), chosen.unknown);
    text += &format!("plan: {selected} selected, {runnable} would run, {unknown} may have run before");
    match (usual, partial) {
        (0, true) => text += "; how long they take is not known\n",
        (0, false) => text += "\n",
        _ => {
            let partial = if partial { ", without tools of which no call is known" } else { "" };
            text += &format!("; about {}, at p95 {}{partial}\n", time(usual), time(worst));
        }
    }
    text + &chosen.left_out_text().iter().map(|line| format!("plan: {line}\n")).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_counts_what_would_run_at_the_rate_that_is_allowed() {
        let group = |records, refused: &[(&'static str, u64)], latency| Group {
            records,
            unknown: 0,
            refused: refused.iter().copied().collect(),
            latency,
        };
        let one = group(10, &[("policy", 2), ("redacted", 3)], Some((100, 400)));
        assert_eq!((one.runnable(), one.estimate(Duration::ZERO)), (5, Some((500, 2_000))));
        assert_eq!(one.estimate(Duration::from_millis(300)), Some((1_500, 2_000)));
        let key = |tool: &str| ("s".to_owned(), tool.to_owned());
        let mut groups = BTreeMap::from([(key("a"), one)]);
        assert_eq!(total(&groups, Duration::ZERO), (500, 2_000, false));
        groups.insert(key("b"), group(1, &[("policy", 1)], None));
        assert_eq!(total(&groups, Duration::ZERO), (500, 2_000, false), "nothing of it runs");
        groups.insert(key("c"), group(1, &[], None));
        assert_eq!(total(&groups, Duration::ZERO), (500, 2_000, true));
    }
}
