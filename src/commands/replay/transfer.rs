//! `mcprelay replay export | import`: a queue as lines of JSON, on its way to another machine.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::guards::{Refusal, of_queue};
use super::select::{filter, open_all};
use crate::cli::{ReplayExportArgs, ReplayImportArgs};
use crate::commands::records::{self, queue_place};
use crate::commands::text::written;
use crate::exit::ExitStatus;
use crate::record::json_out::object;
use crate::record::stored::Record;
use crate::store::QUEUE_BUSY;
use crate::store::queue::{Filter, Imported, Queue, QueueError};

/// Records read at once: the database is not kept open for reading while a slow reader takes them.
const PAGE: u64 = 500;

/// A longer line is no record of ours.
const LINE_BYTES_MAX: u64 = 512 * 1024 * 1024;

pub(super) fn export(args: &ReplayExportArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let queues = match open_all(&queue_place(&settings)) {
        Ok(queues) => queues,
        Err(error) => return super::fail(false, "store", &error.to_string(), out, err),
    };
    let result = match &args.output {
        None => write_all(args, &queues, &mut BufWriter::new(&mut *out)),
        Some(path) => to_file(args, &queues, path),
    };
    match result {
        Ok(count) => {
            let _ = writeln!(err, "mcprelay: {count} stored calls written");
            ExitStatus::Success
        }
        Err(ExportError::Queue(error)) => super::fail(false, "store", &error.to_string(), out, err),
        Err(ExportError::Io(error)) => match &args.output {
            None => written(Err(error), err),
            Some(path) => {
                let text = format!("cannot write {}: {error}", path.display());
                super::fail(false, "output", &text, out, err)
            }
        },
    }
}

enum ExportError {
    Queue(QueueError),
    Io(io::Error),
}

/// A new file that only its owner can read. What was written of it is removed when it fails.
fn to_file(args: &ReplayExportArgs, queues: &[Queue], path: &Path) -> Result<u64, ExportError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(ExportError::Io)?;
    let mut buffered = BufWriter::new(&file);
    let result = write_all(args, queues, &mut buffered);
    drop(buffered);
    let result = result.and_then(|count| file.sync_all().map(|()| count).map_err(ExportError::Io));
    if result.is_err() {
        let _ = std::fs::remove_file(path);
    }
    result
}

/// The oldest first in each queue, one queue behind the other.
fn write_all(args: &ReplayExportArgs, queues: &[Queue], out: &mut dyn Write) -> Result<u64, ExportError> {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut count = 0;
    for queue in queues {
        let mut after = None;
        while left > 0 {
            let page = Filter {
                oldest_first: true,
                limit: Some(left.min(PAGE)),
                after: after.take(),
                ..filter(&args.selection)
            };
            let records = queue.list(&page).map_err(ExportError::Queue)?;
            for record in &records {
                writeln!(out, "{}", record.to_json()).map_err(ExportError::Io)?;
            }
            let found = records.len() as u64;
            (count, left) = (count + found, left - found);
            after = records.last().map(|record| record.id.clone());
            if found < PAGE {
                break;
            }
        }
    }
    out.flush().map_err(ExportError::Io)?;
    Ok(count)
}

pub(super) fn import(args: &ReplayImportArgs, out: &mut dyn Write, err: &mut dyn Write) -> ExitStatus {
    let settings = match records::load(args.config.as_deref(), err) {
        Ok(settings) => settings,
        Err(status) => return status,
    };
    let mut said = Vec::new();
    let imported = read_all(args.file.as_deref()).and_then(|lines| {
        // Only now: a file that is wrong must not leave an empty queue behind.
        let opened = Queue::open_or_make(&queue_place(&settings), QUEUE_BUSY);
        let (mut queue, warnings) = opened.map_err(|error| of_queue(&error))?;
        said = warnings;
        lines.import(&mut queue)
    });
    for warning in said {
        let _ = writeln!(err, "mcprelay: WARNING: {warning}");
    }
    match imported {
        Ok(Imported { new, known }) => {
            let text = match args.json {
                true => object(|out| _ = out.plain("imported", new).plain("known", known)),
                false if known > 0 => format!("imported: {new} ({known} were there already and stay as they are)"),
                false => format!("imported: {new}"),
            };
            written(writeln!(out, "{text}").and_then(|()| out.flush()), err)
        }
        Err(refusal) => super::fail(args.json, refusal.kind, &refusal.message, out, err),
    }
}

/// The lines of an import, all of which are fine.
enum Lines {
    /// Read twice: first to look at every line, then to take it in, so that a file of any size fits into memory.
    File { file: File, name: String },
    /// What cannot be read twice.
    Kept(Vec<Record>),
}

fn read_all(path: Option<&Path>) -> Result<Lines, Refusal> {
    let Some(path) = path else {
        let mut kept = Vec::new();
        let mut input = BufReader::new(std::io::stdin().lock());
        each_line(&mut input, "standard input", &mut |record| kept.push(record))?;
        return Ok(Lines::Kept(kept));
    };
    let name = path.display().to_string();
    let cannot = |error: io::Error| Refusal::new("input", format!("cannot read {name}: {error}"));
    let mut file = File::open(path).map_err(cannot)?;
    let is_file = file.metadata().map_err(cannot)?.is_file();
    let mut kept = Vec::new();
    each_line(&mut BufReader::new(&file), &name, &mut |record| {
        if !is_file {
            kept.push(record);
        }
    })?;
    if !is_file {
        return Ok(Lines::Kept(kept));
    }
    file.rewind().map_err(cannot)?;
    Ok(Lines::File { file, name })
}

impl Lines {
    fn import(self, queue: &mut Queue) -> Result<Imported, Refusal> {
        let imported = match self {
            Lines::Kept(records) => {
                let mut records = records.into_iter();
                queue.import(|| records.next().map(Ok::<_, Refusal>))
            }
            Lines::File { file, name } => {
                let (mut input, mut number) = (BufReader::new(file), 0);
                queue.import(|| next_record(&mut input, &name, &mut number))
            }
        };
        imported.map_err(|error| of_queue(&error))?
    }
}

fn each_line(input: &mut dyn BufRead, name: &str, take: &mut dyn FnMut(Record)) -> Result<(), Refusal> {
    let mut number = 0;
    while let Some(record) = next_record(input, name, &mut number) {
        take(record?);
    }
    Ok(())
}

/// The next record; blank lines are passed over. `number` is that of the line that was read last.
fn next_record(input: &mut dyn BufRead, name: &str, number: &mut u64) -> Option<Result<Record, Refusal>> {
    loop {
        let mut line = Vec::new();
        *number += 1;
        let wrong = |text: String| {
            Some(Err(Refusal::new("input", format!("{name}, line {number}: {text}; nothing was imported"))))
        };
        match io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) => return wrong(error.to_string()),
        }
        let is_whole = line.last() == Some(&b'\n');
        if line.trim_ascii().is_empty() {
            continue;
        }
        return match Record::from_export(line.trim_ascii()) {
            Ok(record) => Some(Ok(record)),
            Err(text) if is_whole => wrong(text),
            Err(text) => wrong(format!("{text}; the line is cut off")),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::redact::Redactor;
    use crate::record::test_values::letter;

    fn lines(text: &str) -> Result<Vec<String>, String> {
        let mut ids = Vec::new();
        let result = each_line(&mut text.as_bytes(), "f", &mut |record| ids.push(record.id));
        result.map(|()| ids).map_err(|refusal| refusal.message)
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them_and_a_cut_one_is_said_to_be_cut() {
        let line = |id: &str| Record::of(&letter(id), &Redactor::new(&[])).0.to_json();
        let (a, b) = (line("01A"), line("01B"));
        assert_eq!(lines(&format!("{a}\n\r\n{b}")), Ok(vec!["01A".to_owned(), "01B".to_owned()]));
        assert_eq!(lines(""), Ok(Vec::new()));
        let cut = lines(&format!("{a}\n\n{}", &b[..b.len() - 9])).expect_err("cut");
        assert!(cut.starts_with("f, line 3: ") && cut.ends_with("the line is cut off; nothing was imported"), "{cut}");
        let wrong = lines(&format!("{a}\n{{}}\n{b}\n")).expect_err("no record");
        assert_eq!(wrong, "f, line 2: the member schema_version is missing or wrong; nothing was imported");
    }
}
