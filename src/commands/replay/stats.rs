//! `mcprelay replay stats`: what the queue holds of each tool and class.

use std::collections::BTreeMap;
use std::io::Write;

use super::plan::may_harm;
use super::select::{filter, open_all};
use crate::cli::ReplayStatsArgs;
use crate::clock::{Clock, Wall};
use crate::commands::records::{self, queue_place};
use crate::commands::report::age_text;
use crate::commands::table::{Column, Table};
use crate::commands::terminal::Layout;
use crate::commands::text::written;
use crate::config::Settings;
use crate::exit::ExitStatus;
use crate::record::json_out::{Object, array, object};
use crate::record::{FailureClass, Status};
use crate::store::queue::{QueueError, StatsRow};

/// The records of one tool and class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    statuses: BTreeMap<Status, u64>,
    oldest: Option<Wall>,
    newest: Option<Wall>,
    unknown: u64,
}

type Rows = BTreeMap<(String, FailureClass), Row>;

impl Row {
    fn add(&mut self, other: &StatsRow, unknown: bool) {
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.oldest = [self.oldest, other.oldest].into_iter().flatten().min();
        self.newest = [self.newest, other.newest].into_iter().flatten().max();
        self.unknown += if unknown { other.maybe } else { 0 };
    }

    fn of(&self, status: Status) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    fn count(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Records that nobody has brought to an end.
    fn waiting(&self) -> u64 {
        [Status::Pending, Status::Replaying, Status::FailedReplay, Status::Parked]
            .map(|status| self.of(status))
            .iter()
            .sum()
    }

    fn members(&self, out: &mut Object) {
        out.plain("count", self.count()).plain("waiting", self.waiting()).plain("unknown", self.unknown);
        out.plain("parked", self.of(Status::Parked));
        out.object("statuses", |out| {
            for status in Status::ALL {
                out.plain(status.as_str(), self.of(*status));
            }
        });
        for (name, at) in [("oldest", self.oldest), ("newest", self.newest)] {
            match at {
                Some(at) => out.text(name, &at.to_rfc3339()),
                None => out.null(name),
            };
        }
    }
}

pub(super) fn run(args: &ReplayStatsArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let rows = match gather(args, &settings) {
        Ok(rows) => rows,
        Err(error) => return super::fail(args.json, "store", &error.to_string(), out, err),
    };
    let mut total = Row::default();
    for row in rows.values() {
        for (status, count) in &row.statuses {
            *total.statuses.entry(*status).or_default() += count;
        }
        total.oldest = [total.oldest, row.oldest].into_iter().flatten().min();
        total.newest = [total.newest, row.newest].into_iter().flatten().max();
        total.unknown += row.unknown;
    }
    let result = match args.json {
        true => writeln!(out, "{}", json(&rows, &total)),
        false => text(&rows, &total, Clock::start().now().wall, Layout::of_stdout(), out),
    };
    written(result.and_then(|()| out.flush()), err)
}

fn gather(args: &ReplayStatsArgs, settings: &Settings) -> Result<Rows, QueueError> {
    let filter = filter(&args.selection);
    let mut rows = Rows::new();
    for queue in open_all(&queue_place(settings))? {
        for row in queue.stats(&filter)? {
            let unknown = may_harm(&settings.reliability, &row.tool, row.idempotent);
            rows.entry((row.tool.clone(), row.class)).or_default().add(&row, unknown);
        }
    }
    Ok(rows)
}

fn json(rows: &Rows, total: &Row) -> String {
    let rows = rows.iter().map(|((tool, class), row)| {
        object(|out| {
            out.text("tool", tool).text("class", class.as_str());
            row.members(out);
        })
    });
    let rows = array(rows);
    object(|out| _ = out.object("total", |out| total.members(out)).raw("groups", &rows))
}

fn text(rows: &Rows, total: &Row, now: Wall, layout: Layout, out: &mut dyn Write) -> std::io::Result<()> {
    let columns = vec![
        Column::new("TOOL").narrowest(8),
        Column::new("CLASS").narrowest(7),
        Column::new("COUNT").right(),
        Column::new("WAITING").right(),
        Column::new("PARKED").right().rank(2),
        Column::new("UNKNOWN").right().rank(1),
        Column::new("OLDEST").right().rank(3),
        Column::new("NEWEST").right().rank(4),
    ];
    let age = |at: Option<Wall>| at.map_or("-".to_owned(), |at| age_text(now.0.saturating_sub(at.0)));
    let mut table = Table::new(&mut *out, layout, columns, true);
    let total_name = ("total".to_owned(), String::new());
    let named = rows.iter().map(|((tool, class), row)| ((tool.clone(), class.as_str().to_owned()), row));
    for ((tool, class), row) in named.chain([(total_name, total)]) {
        let cells = [
            tool,
            class,
            row.count().to_string(),
            row.waiting().to_string(),
            row.of(Status::Parked).to_string(),
            row.unknown.to_string(),
            age(row.oldest),
            age(row.newest),
        ];
        table.row(cells.iter().map(Into::into).collect())?;
    }
    table.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Rows {
        let row = |idempotent, statuses: &[(Status, u64)], oldest, maybe| StatsRow {
            tool: "write".to_owned(),
            class: FailureClass::Timeout,
            idempotent,
            statuses: statuses.to_vec(),
            oldest: Some(Wall(oldest)),
            newest: Some(Wall(oldest + 60_000)),
            maybe,
        };
        let mut one = Row::default();
        one.add(&row(false, &[(Status::Pending, 3), (Status::Parked, 1), (Status::Replayed, 4)], 3_600_000, 2), true);
        one.add(&row(true, &[(Status::Pending, 1)], 7_200_000, 1), false);
        Rows::from([(("write".to_owned(), FailureClass::Timeout), one)])
    }

    #[test]
    fn what_waits_is_told_apart_from_what_is_over_and_unknown_calls_are_those_that_may_do_harm() {
        let rows = rows();
        let row = rows.values().next().expect("one");
        assert_eq!((row.count(), row.waiting(), row.of(Status::Parked), row.unknown), (9, 5, 1, 2));
        let mut out = Vec::new();
        text(&rows, row, Wall(10_800_000), Layout::default(), &mut out).expect("written");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "TOOL   CLASS    COUNT  WAITING  PARKED  UNKNOWN  OLDEST  NEWEST\n\
             write  timeout      9        5       1        2   2h 0m  59m 0s\n\
             total               9        5       1        2   2h 0m  59m 0s\n"
        );
        let json = json(&rows, row);
        let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["groups"][0]["statuses"]["replayed"], 4);
        assert_eq!(value["total"]["oldest"], "1970-01-01T01:00:00.000Z");
    }
}
