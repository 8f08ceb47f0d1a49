//! A client that measures: it keeps a number of calls in flight, checks every answer and prints one JSON line.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::Ended;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// As many bytes as surely fit a pipe, so that one thread may write them all before it reads.
const SURELY_FITS: usize = 32 * 1024;

struct Settings {
    calls: usize,
    warmup: usize,
    in_flight: usize,
    payload: usize,
    command: Vec<OsString>,
}

/// Runs `bench-client --calls N --in-flight K --payload BYTES [--warmup N] -- COMMAND...`.
pub(crate) fn run(args: Vec<OsString>) -> Ended {
    let settings = parse(args)?;
    let mut child = crate::start(&settings.command)?;
    let mut input = child.stdin.take().ok_or("the child has no stdin")?;
    let mut output = BufReader::with_capacity(256 * 1024, child.stdout.take().ok_or("the child has no stdout")?);
    handshake(&mut input, &mut output)?;

    let own_before = cpu_ms("self", Whose::Own);
    let total = settings.warmup + settings.calls;
    let latencies = if settings.in_flight * (settings.payload + 200) <= SURELY_FITS || settings.in_flight == 1 {
        one_thread(&settings, total, &mut input, &mut output)?
    } else {
        let (latencies, back) = two_threads(&settings, total, input, &mut output)?;
        input = back;
        latencies
    };
    let (seconds, mut latencies) = (latencies.seconds, latencies.micros);
    let own = cpu_ms("self", Whose::Own) - own_before;
    let peak = status_kb(child.id(), "VmHWM:");

    drop(input);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest)?;
    if !rest.is_empty() {
        return Err(format!("{} bytes came after the last answer", rest.len()).into());
    }
    let status = child.wait()?;
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize] as f64 / 1000.0;
    let line = serde_json::json!({
        "calls": settings.calls, "in_flight": settings.in_flight, "payload": settings.payload,
        "seconds": seconds, "calls_per_s": (settings.calls as f64 / seconds).round(),
        "p50_us": at(0.5), "p99_us": at(0.99),
        "client_cpu_ms": own, "tree_cpu_ms": cpu_ms("self", Whose::Children), "child_peak_kb": peak,
        "exit": crate::exit_code(status),
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn parse(args: Vec<OsString>) -> Result<Settings, Error> {
    use lexopt::Arg::{Long, Value};
    let mut settings = Settings { calls: 1000, warmup: 0, in_flight: 1, payload: 100, command: Vec::new() };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        let number = |parser: &mut lexopt::Parser| -> Result<usize, Error> {
            Ok(parser.value()?.to_string_lossy().parse().map_err(|_| "a number is expected")?)
        };
        match arg {
            Long("calls") => settings.calls = number(&mut parser)?.max(1),
            Long("warmup") => settings.warmup = number(&mut parser)?,
            Long("in-flight") => settings.in_flight = number(&mut parser)?.max(1),
            Long("payload") => settings.payload = number(&mut parser)?,
            Value(first) => {
                settings.command = vec![first];
                settings.command.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(settings)
}

fn handshake(input: &mut impl Write, output: &mut impl BufRead) -> Result<(), Error> {
    input.write_all(
        concat!(
            r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
            r#""capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#,
            "\n"
        )
        .as_bytes(),
    )?;
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line)?;
    if answered(&line) != Some(0) {
        return Err(format!("no answer to initialize, but: {}", String::from_utf8_lossy(&line)).into());
    }
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
    Ok(())
}

/// Times per call and of all of them, the warm-up left out.
struct Measured {
    seconds: f64,
    /// Nanoseconds from before the write of each call to after the read of its answer.
    micros: Vec<u128>,
}

/// Builds calls and accounts for answers.
struct Book {
    text: Vec<u8>,
    tail: Vec<u8>,
    started: Vec<Option<Instant>>,
    warmup: usize,
    measured: Measured,
    began: Instant,
    done: usize,
}

impl Book {
    fn new(settings: &Settings, total: usize) -> Book {
        Book {
            text: Vec::new(),
            tail: tail(settings.payload),
            started: vec![None; total + 1],
            warmup: settings.warmup,
            measured: Measured { seconds: 0.0, micros: Vec::with_capacity(total) },
            began: Instant::now(),
            done: 0,
        }
    }

    /// The frame of call `id`, noting its start.
    fn call(&mut self, id: usize) -> &[u8] {
        frame(&mut self.text, id, &self.tail);
        self.started[id] = Some(Instant::now());
        &self.text
    }

    fn answer(&mut self, line: &[u8], end: Instant) -> Result<(), Error> {
        let id = answered(line).unwrap_or(0);
        let started = self.started.get_mut(id).and_then(Option::take);
        let Some(started) = started.filter(|_| memchr::memmem::find(line, b"\"result\"").is_some()) else {
            let start = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
            return Err(format!("an answer to no open call: {start}").into());
        };
        self.note(started, end);
        Ok(())
    }

    fn note(&mut self, started: Instant, end: Instant) {
        self.done += 1;
        if self.done <= self.warmup {
            self.began = end;
        } else {
            self.measured.micros.push((end - started).as_nanos());
            self.measured.seconds = (end - self.began).as_secs_f64();
        }
    }
}

fn one_thread(
    settings: &Settings,
    total: usize,
    input: &mut impl Write,
    output: &mut impl BufRead,
) -> Result<Measured, Error> {
    let mut book = Book::new(settings, total);
    let mut line = Vec::new();
    let mut sent = 0;
    while book.done < total {
        while sent < total && sent - book.done < settings.in_flight {
            sent += 1;
            input.write_all(book.call(sent))?;
        }
        read_line(output, &mut line)?;
        book.answer(&line, Instant::now())?;
    }
    Ok(book.measured)
}

/// One thread writes as long as there is room in the window, this one reads and makes room.
fn two_threads<W: Write + Send + 'static>(
    settings: &Settings,
    total: usize,
    mut input: W,
    output: &mut impl BufRead,
) -> Result<(Measured, W), Error> {
    let (room, has_room) = channel::<()>();
    let (start, starts) = channel::<(usize, Instant)>();
    let payload = settings.payload;
    for _ in 0..settings.in_flight {
        room.send(())?;
    }
    let writer = std::thread::spawn(move || -> Result<W, Error> {
        let tail = tail(payload);
        let mut text = Vec::new();
        for id in 1..=total {
            has_room.recv()?;
            frame(&mut text, id, &tail);
            start.send((id, Instant::now()))?;
            input.write_all(&text)?;
        }
        Ok(input)
    });
    let mut book = Book::new(settings, total);
    let mut line = Vec::new();
    while book.done < total {
        read_line(output, &mut line)?;
        let end = Instant::now();
        take_starts(&starts, &mut book);
        book.answer(&line, end)?;
        let _ = room.send(());
    }
    let input = writer.join().map_err(|_| "the writer panicked")??;
    Ok((book.measured, input))
}

fn take_starts(starts: &Receiver<(usize, Instant)>, book: &mut Book) {
    while let Ok((id, at)) = starts.try_recv() {
        book.started[id] = Some(at);
    }
}

fn read_line(output: &mut impl BufRead, line: &mut Vec<u8>) -> Result<(), Error> {
    line.clear();
    if output.read_until(b'\n', line)? == 0 {
        return Err("the command closed its output with calls open".into());
    }
    Ok(())
}

fn tail(payload: usize) -> Vec<u8> {
    let text = "x".repeat(payload);
    format!(r#","method":"tools/call","params":{{"name":"echo","arguments":{{"text":"{text}"}}}}}}{}"#, "\n")
        .into_bytes()
}

fn frame(text: &mut Vec<u8>, id: usize, tail: &[u8]) {
    text.clear();
    text.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    text.extend_from_slice(id.to_string().as_bytes());
    text.extend_from_slice(tail);
}

/// The id of an answer, if it is one of ours.
fn answered(line: &[u8]) -> Option<usize> {
    let at = memchr::memmem::find(&line[..line.len().min(256)], b"\"id\":")? + 5;
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[at..at + digits]).ok()?.parse().ok()
}

#[derive(Clone, Copy)]
enum Whose {
    Own,
    Children,
}

/// Processor time from Linux' /proc, to its 10 ms; 0 elsewhere.
fn cpu_ms(pid: &str, whose: Whose) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold blanks; the fields after it are numbered from 3.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let ticks = match whose {
        Whose::Own => ticks(14) + ticks(15),
        Whose::Children => ticks(16) + ticks(17),
    };
    ticks * 10
}

fn status_kb(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}
