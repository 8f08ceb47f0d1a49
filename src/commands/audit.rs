//! `mcprelay audit …`: the trail of what was captured, denied and replayed, and the proof that nobody changed it.
//!
//! There can be two files: the configured one, and the one in the user's state directory that was used while the first
//! could not be made. Each is a trail of its own.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use super::replay::fail;
use super::table::{Column, Table};
use super::terminal::{Layout, Progress};
use super::text::{one_line, written};
use super::{records, terminal};
use crate::cli::{AuditCommand, AuditHeadArgs, AuditListArgs, AuditVerifyArgs};
use crate::exit::ExitStatus;
use crate::record::anchor::Anchor;
use crate::record::json_out::{Object, array, object};
use crate::store::QUEUE_BUSY;
use crate::store::chain::Verified;
use crate::store::error::StoreError;
use crate::store::history::StoredAudit;
use crate::store::place::Place;
use crate::store::reading::{AuditFilter, History};
use crate::wire::json::{Json, Kind};

/// Characters of a row's detail that the text form shows; all of it is in the JSON form.
const DETAIL_CHARS_MAX: usize = 120;

/// Runs one of the commands.
pub fn run(command: &AuditCommand, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    match command {
        AuditCommand::List(args) => list(args, out, err),
        AuditCommand::Verify(args) => verify(args, out, err),
        AuditCommand::Head(args) => head(args, out, err),
    }
}

/// Every history there is, the configured one first.
fn open(place: &Place) -> Result<Vec<History>, StoreError> {
    place.existing().iter().map(|path| History::open_existing(path, QUEUE_BUSY)).collect()
}

/// What stopped a list.
enum Stop {
    Output(io::Error),
    Store(StoreError),
}

fn list(args: &AuditListArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let histories = match open(&records::history_place(&settings)) {
        Ok(histories) => histories,
        Err(error) => return fail(args.json, "store", &format!("cannot {error}"), out, err),
    };
    let filter = AuditFilter {
        kind: args.kind.map(str::to_owned),
        tool: args.tool.clone(),
        caller: args.caller.clone(),
        correlation_id: args.correlation_id.clone(),
        record_id: args.record_id.clone(),
        since: args.since,
        until: args.until,
    };
    let mut buffered = BufWriter::new(&mut *out);
    let result = if args.json {
        list_json(&histories, &filter, args.limit, &mut buffered)
    } else {
        list_text(&histories, &filter, args.limit, args.header, &mut buffered)
    };
    let result = result.and_then(|()| buffered.flush().map_err(Stop::Output));
    drop(buffered);
    match result {
        Ok(()) => ExitStatus::Success,
        Err(Stop::Output(error)) => written(Err(error), err),
        // A document may have been begun, so none is added to it.
        Err(Stop::Store(error)) => fail(false, "store", &format!("cannot {error}"), out, err),
    }
}

/// Hands over the rows of all files, newest first, as many as are wanted.
fn rows(
    histories: &[History],
    filter: &AuditFilter,
    limit: u64,
    take: &mut dyn FnMut(&StoredAudit) -> io::Result<()>,
) -> Result<(), Stop> {
    let mut left = limit;
    // Rows of different files are not mixed: the one that is in use comes first, and within it the order is certain.
    for history in histories {
        let mut result = Ok(());
        let mut one = |row: StoredAudit| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            result = take(&row);
            if result.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        history.audit(filter, &mut one).map_err(Stop::Store)?;
        result.map_err(Stop::Output)?;
    }
    Ok(())
}

fn list_json(histories: &[History], filter: &AuditFilter, limit: u64, out: &mut dyn Write) -> Result<(), Stop> {
    out.write_all(b"[").map_err(Stop::Output)?;
    let mut comma = "";
    rows(histories, filter, limit, &mut |row| {
        write!(out, "{comma}{}", row_json(row))?;
        comma = ",";
        Ok(())
    })?;
    out.write_all(b"]\n").map_err(Stop::Output)
}

fn row_json(row: &StoredAudit) -> String {
    let or_null = |out: &mut Object, name: &str, value: Option<&str>| {
        match value {
            Some(value) => out.text(name, value),
            None => out.null(name),
        };
    };
    object(|out| {
        out.plain("seq", row.seq).text("id", &row.id).text("at", &row.at.to_rfc3339()).text("kind", &row.kind);
        out.text("correlation_id", &row.correlation_id);
        or_null(out, "record_id", row.record_id.as_deref());
        out.text("caller", &row.caller).text("tool", &row.tool);
        match &row.detail {
            None => out.null("detail"),
            Some(detail) => match Json::parse(detail.as_bytes()) {
                Ok(json) if json.kind() == Kind::Object => out.raw("detail", detail),
                // Whoever wrote that, the document stays one.
                _ => out.text("detail", detail),
            },
        };
        out.text("previous_hash", &row.previous_hash).text("hash", &row.hash());
    })
}

fn list_text(
    histories: &[History],
    filter: &AuditFilter,
    limit: u64,
    header: bool,
    out: &mut dyn Write,
) -> Result<(), Stop> {
    let columns = vec![
        Column::new("SEQ").right(),
        Column::new("AT"),
        Column::new("KIND"),
        Column::new("CALLER").narrowest(8),
        Column::new("TOOL").narrowest(8),
        Column::new("RECORD").rank(1),
        Column::new("CORRELATION").rank(3),
        Column::new("DETAIL").narrowest(12).rank(2),
    ];
    let mut table = Table::new(out, Layout::of_stdout(), columns, header);
    rows(histories, filter, limit, &mut |row| {
        let detail: String = match &row.detail {
            Some(detail) if detail.chars().nth(DETAIL_CHARS_MAX).is_some() => {
                detail.chars().take(DETAIL_CHARS_MAX - 1).chain(['…']).collect()
            }
            detail => detail.clone().unwrap_or_default(),
        };
        table.row(vec![
            row.seq.to_string().into(),
            row.at.to_rfc3339().into(),
            (&row.kind).into(),
            (&row.caller).into(),
            (&row.tool).into(),
            row.record_id.as_deref().unwrap_or("-").into(),
            (&row.correlation_id).into(),
            detail.into(),
        ])
    })?;
    table.finish().map(drop).map_err(Stop::Output)
}

/// What verifying one file came to.
struct Checked {
    path: String,
    verified: Verified,
    /// For each anchor: whether the file holds its row as it was, or has another one under its number.
    anchors: Vec<Option<bool>>,
}

fn verify(args: &AuditVerifyArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let place = records::history_place(&settings);
    let mut progress = terminal::Progress::on(err);
    let checked = open(&place).and_then(|histories| {
        histories.iter().map(|history| check(history, &args.anchors, &mut progress)).collect::<Result<Vec<_>, _>>()
    });
    drop(progress);
    let checked = match checked {
        Ok(checked) => checked,
        Err(error) => return fail(args.json, "store", &format!("cannot {error}"), out, err),
    };
    let anchors: Vec<(&Anchor, bool, String)> =
        args.anchors.iter().enumerate().map(|(at, anchor)| judged(anchor, at, &checked)).collect();
    let ok = checked.iter().all(|file| file.verified.breaks.is_empty()) && anchors.iter().all(|(_, ok, _)| *ok);
    let text = if args.json { verify_json(ok, &checked, &anchors) } else { verify_text(&place, &checked, &anchors) };
    let status = written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err);
    if ok { status } else { ExitStatus::Failure }
}

fn check(history: &History, anchors: &[Anchor], progress: &mut Progress<'_>) -> Result<Checked, StoreError> {
    // The anchor of a trail without rows is held by every trail.
    let mut held: Vec<Option<bool>> =
        anchors.iter().map(|anchor| (*anchor == Anchor::empty()).then_some(true)).collect();
    let mut count = 0_u64;
    let verified = history.verify(&mut |link| {
        count += 1;
        progress.tell(|| format!("{count} rows checked"));
        let hash = link.hashes.as_ref().map(|(own, _)| own);
        for (held, anchor) in held.iter_mut().zip(anchors).filter(|(_, anchor)| anchor.seq == link.seq) {
            *held = Some(hash == Some(&anchor.hash));
        }
    })?;
    Ok(Checked { path: history.path().display().to_string(), verified, anchors: held })
}

/// Whether the anchor holds in any file, and in words.
fn judged<'a>(anchor: &'a Anchor, at: usize, checked: &[Checked]) -> (&'a Anchor, bool, String) {
    let seq = anchor.seq;
    let found = checked.iter().filter_map(|file| file.anchors[at]).max();
    let (ok, text) = match found {
        Some(true) if seq == 0 => {
            (true, "was taken of a trail without rows and proves nothing of later ones".to_owned())
        }
        Some(true) => (true, format!("row {seq} is as it was, and so is every row before it that no line above names")),
        Some(false) => (false, format!("row {seq} is not what it was when the anchor was taken")),
        None if seq == 0 && *anchor == Anchor::empty() => (true, "there was no row, and there is none".to_owned()),
        None => (false, format!("row {seq} was removed since the anchor was taken")),
    };
    (anchor, ok, text)
}

fn verify_text(place: &Place, checked: &[Checked], anchors: &[(&Anchor, bool, String)]) -> String {
    let mut lines = Vec::new();
    if checked.is_empty() {
        lines.push(format!("{}: there is no audit trail yet", place.configured().display()));
    }
    for Checked { path, verified, .. } in checked {
        let rows = verified.rows;
        match verified.breaks.len() {
            0 => lines.push(format!("{path}: {rows} rows, the chain holds")),
            _ => lines.push(format!("{path}: {rows} rows, the chain is BROKEN")),
        }
        lines.extend(verified.breaks.iter().map(|found| format!("  {found}")));
        match &verified.head {
            Some(head) => lines.push(format!("  head {head}")),
            None => lines.push("  head: the newest row cannot be read".to_owned()),
        }
    }
    for (anchor, ok, text) in anchors {
        let word = if *ok { "holds" } else { "is BROKEN" };
        lines.push(format!("anchor {} {word}: {text}", anchor.seq));
    }
    lines.iter().map(|line| one_line(line) + "\n").collect()
}

fn verify_json(ok: bool, checked: &[Checked], anchors: &[(&Anchor, bool, String)]) -> String {
    let files = checked.iter().map(|Checked { path, verified, .. }| {
        object(|out| {
            out.text("path", path).plain("rows", verified.rows);
            match &verified.head {
                Some(head) => out.text("head", &head.to_string()),
                None => out.null("head"),
            };
            let breaks = verified.breaks.iter().map(|found| {
                object(|out| {
                    out.text("kind", found.kind.as_str()).plain("first", found.first).plain("last", found.last);
                    out.text("message", &found.to_string());
                })
            });
            out.raw("breaks", &array(breaks));
        })
    });
    let anchors = anchors.iter().map(|(anchor, ok, text)| {
        object(|out| {
            out.text("anchor", &anchor.to_string()).plain("ok", ok).text("message", text);
        })
    });
    object(|out| {
        out.plain("ok", ok).raw("files", &array(files)).raw("anchors", &array(anchors));
    }) + "\n"
}

fn head(args: &AuditHeadArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let place = records::history_place(&settings);
    let heads = open(&place).and_then(|histories| {
        histories.iter().map(|history| Ok((history.path().display().to_string(), history.head()?))).collect()
    });
    let mut heads: Vec<(String, Anchor)> = match heads {
        Ok(heads) => heads,
        Err(error) => return fail(args.json, "store", &format!("cannot {error}"), out, err),
    };
    if heads.is_empty() {
        heads.push((place.configured().display().to_string(), Anchor::empty()));
    }
    let text = if args.json {
        let files = heads.iter().map(|(path, anchor)| {
            object(|out| {
                out.text("path", path).text("anchor", &anchor.to_string());
            })
        });
        object(|out| {
            out.raw("heads", &array(files));
        }) + "\n"
    } else {
        heads.iter().map(|(_, anchor)| format!("{anchor}\n")).collect()
    };
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()), err)
}
