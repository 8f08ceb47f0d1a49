//! Our own MCP client: one conversation with a server process, one request at a time.
//!
//! `replay` and `demo` use it. It declares no capabilities, so whatever the server asks of it but `ping` is refused.
//! The caller's thread does all the waiting; what the server writes on standard error goes to the log.

mod frames;
mod opening;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, never, select, unbounded};

use crate::clock::{Clock, Time};
use crate::dispatcher::event::{AttemptId, Event, Incarnation, ProcessEnd, RequestFailure, StopSignal, UpstreamId};
use crate::ports::link::{Link, Reach};
use crate::ports::log::{Line, Log};
use crate::ports::outbox::Report;
use crate::ports::upstream_stdio::Wiring;
use crate::record::{Executed, FailureClass};
use crate::wire::json::{Json, Kind};
use crate::wire::message::{FromUpstream, Message, Role, sniff};
use crate::wire::request_id::IdKey;
pub use opening::Era;
use opening::{Heard, Next, Opening};

/// `tools/list` is followed over this many pages.
pub const PAGES_MAX: usize = 1_000;

/// What one read of the server completed waits in a queue of this many reads.
const READS_WAITING_MAX: usize = 4;

/// A process that ended may have left its last words in the pipe, or a child that keeps the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// After SIGKILL the system needs a moment, but not for ever: a process in an uninterruptible wait is left behind.
const KILL_WAIT: Duration = Duration::from_secs(5);

const UPSTREAM: UpstreamId = UpstreamId(0);

/// The limits of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames of the server above this many bytes are dropped.
    pub frame_bytes_max: usize,
    /// How long `server/discover` may stay unanswered before `initialize` is sent as well.
    pub probe: Duration,
    /// How long the opening may take in all.
    pub opening: Duration,
    /// From closing the server's standard input to SIGTERM.
    pub stdin_grace: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            frame_bytes_max: crate::wire::framer::FRAME_BYTES_MAX_DEFAULT,
            probe: Duration::from_secs(2),
            // Package runners download a server before they start it.
            opening: Duration::from_secs(120),
            stdin_grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(2),
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// The server could not be started, or no common language was found. No call was sent.
    Unreachable(String),
    /// The server went away; whether the request may have reached it.
    Closed {
        /// How, in words.
        how: String,
        /// Not certain that nothing was sent.
        sent: bool,
    },
    /// No answer in time; the server was told that none is wanted any more.
    Timeout(Duration),
    /// A remote server gave no answer to this request, while the conversation goes on.
    Failed(Box<RequestFailure>),
    /// The answer was longer than a frame may be.
    Oversized(usize),
    /// The user wants no answer any more; whether the request may have reached the server.
    Stopped {
        /// Not certain that nothing was sent.
        sent: bool,
    },
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::Unreachable(text) => f.write_str(text),
            SessionError::Closed { how, sent: true } => write!(f, "{how} before it answered"),
            SessionError::Closed { how, sent: false } => write!(f, "{how} before anything was sent to it"),
            SessionError::Timeout(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            SessionError::Stopped { sent: true } => f.write_str("interrupted before the answer came"),
            SessionError::Stopped { sent: false } => f.write_str("interrupted before anything was sent"),
            SessionError::Failed(failure) => f.write_str(&failure.message),
            SessionError::Oversized(max) => write!(f, "the answer is longer than {max} bytes (wire.frame_max_bytes)"),
        }
    }
}

impl std::error::Error for SessionError {}

/// One tool of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its JSON text in the list.
    pub json: Vec<u8>,
}

/// All pages of `tools/list`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolList {
    /// In the server's order, each name once.
    pub tools: Vec<Tool>,
    /// Why the list may lack tools: a repeated cursor, or too many pages.
    pub cut: Option<String>,
}

/// What a conversation minds while it waits for the server.
pub struct Aside {
    /// A message, or nothing else, ends the wait with [`SessionError::Stopped`].
    pub stop: Receiver<()>,
    /// Done at intervals.
    pub beat: Option<(Duration, Box<dyn FnMut()>)>,
}

impl Default for Aside {
    /// Nothing.
    fn default() -> Aside {
        Aside { stop: never(), beat: None }
    }
}

/// What is done at intervals while the conversation waits.
struct Beat {
    every: Duration,
    next: Time,
    work: Box<dyn FnMut()>,
}

/// A conversation with a running server.
pub struct Session {
    era: Era,
    reach: Reach,
    limits: Limits,
    clock: Clock,
    wiring: Wiring,
    frames: Receiver<Vec<Event>>,
    control: Receiver<Event>,
    arrived: VecDeque<Event>,
    link: Link,
    incarnation: Incarnation,
    ended: Option<ProcessEnd>,
    output_over: bool,
    next_id: u64,
    request_bytes: u64,
    /// Requests of which no byte left.
    unsent: BTreeSet<u64>,
    beat: Option<Beat>,
    stop: Receiver<()>,
    stopped: bool,
}

/// One thing that came while waiting.
enum Step {
    Answer(u64, Message),
    /// A remote server will not answer this one.
    Failed(u64, Box<RequestFailure>),
    Oversized(u64),
    Gone(String),
    Late,
    Stopped,
}

impl Session {
    /// Starts the server and agrees on an era with it. The opening is silent: it sends `server/discover` and, unless
    /// that is answered, `initialize`; a server that exits at the probe is started a second time.
    ///
    /// # Errors
    /// [`SessionError::Unreachable`]; nothing of the process is left then.
    pub fn start(reach: Reach, limits: Limits, clock: Clock, log: &Log) -> Result<Session, SessionError> {
        Session::start_minding(reach, limits, clock, log, Aside::default())
    }

    /// The same, minding other things already while the server starts.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_minding(
        reach: Reach,
        limits: Limits,
        clock: Clock,
        log: &Log,
        aside: Aside,
    ) -> Result<Session, SessionError> {
        let (frames_tx, frames) = bounded(READS_WAITING_MAX);
        let (control_tx, control) = unbounded();
        let wiring = Wiring { frames: frames_tx, control: control_tx, log: log.clone(), watch: None };
        let link = spawn(&reach, Incarnation(0), limits.frame_bytes_max, clock, &wiring)?;
        let mut session = Session {
            era: Era::Legacy,
            reach,
            limits,
            clock,
            wiring,
            frames,
            control,
            arrived: VecDeque::new(),
            link,
            incarnation: Incarnation(0),
            ended: None,
            output_over: false,
            next_id: 1,
            request_bytes: 0,
            unsent: BTreeSet::new(),
            beat: None,
            stop: aside.stop,
            stopped: false,
        };
        session.mind(aside.beat);
        match session.open() {
            Ok(()) => Ok(session),
            Err(text) => {
                session.end();
                Err(SessionError::Unreachable(text))
            }
        }
    }

    /// The era that was agreed on.
    #[must_use]
    pub fn era(&self) -> Era {
        self.era
    }

    /// The length of `params` in the last request.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// What is done from now on every so often while the conversation waits for the server.
    pub fn mind(&mut self, beat: Option<(Duration, Box<dyn FnMut()>)>) {
        let now = self.now();
        self.beat = beat.map(|(every, work)| Beat { every, next: now.plus(every), work });
    }

    fn open(&mut self) -> Result<(), String> {
        let until = self.now().plus(self.limits.opening);
        let mut probe_until = Some(self.now().plus(self.limits.probe).min(until));
        let mut opening = Opening::default();
        let discover = self.send_request(frames::discover);
        let mut initialize = None;
        loop {
            let heard = match self.step(probe_until.unwrap_or(until)) {
                Step::Answer(id, message) if id == discover => heard_of_discover(&message),
                Step::Answer(id, message) if Some(id) == initialize => heard_of_initialize(&message),
                // What is refused for good, and not for who asks, is not known there; everything else says nothing of eras.
                Step::Failed(id, failure) if id == discover && failure.executed != Executed::No => {
                    match failure.class {
                        FailureClass::NonRetryable => {
                            Heard::DiscoverRefused { versions: Vec::new(), text: failure.message }
                        }
                        _ => return Err(failure.message),
                    }
                }
                Step::Failed(id, failure) if id == discover || Some(id) == initialize => return Err(failure.message),
                Step::Answer(..) | Step::Oversized(_) | Step::Failed(..) => continue,
                Step::Gone(how) => Heard::Gone(how),
                Step::Stopped => return Err("interrupted while the server started".to_owned()),
                Step::Late if probe_until.is_some() => Heard::Silence,
                Step::Late => {
                    let seconds = self.limits.opening.as_secs();
                    return Err(format!("{} did not answer the opening within {seconds} s", self.name()));
                }
            };
            // A server that refused `initialize` gets the probe's time once more to answer the probe.
            let refused = matches!(heard, Heard::InitializeRefused(_));
            probe_until = refused.then(|| self.now().plus(self.limits.probe).min(until));
            match opening.hear(heard) {
                Next::Wait => {}
                Next::Initialize => initialize = Some(self.send_request(frames::initialize)),
                Next::StartAgain => {
                    self.start_again().map_err(|error| error.to_string())?;
                    initialize = Some(self.send_request(frames::initialize));
                }
                Next::Ready(era) => {
                    self.era = era;
                    if era == Era::Legacy {
                        self.send(frames::initialized(), None);
                    }
                    return Ok(());
                }
                Next::Fail(text) => return Err(format!("no conversation with {}: {text}", self.name())),
            }
        }
    }

    /// The server's program, for messages.
    fn name(&self) -> String {
        match &self.reach {
            Reach::Command { argv, .. } => {
                let program = argv.first().map(|program| program.to_string_lossy().into_owned());
                format!("the server {:?}", program.unwrap_or_default())
            }
            Reach::Remote(server) => format!("the server at {}", server.url.shown()),
        }
    }

    fn start_again(&mut self) -> Result<(), SessionError> {
        let incarnation = Incarnation(self.incarnation.0 + 1);
        let link = spawn(&self.reach, incarnation, self.limits.frame_bytes_max, self.clock, &self.wiring)?;
        let old = std::mem::replace(&mut self.link, link);
        (self.incarnation, self.ended, self.output_over) = (incarnation, None, false);
        stop_group(old);
        Ok(())
    }

    /// Every tool of the server, each page within `timeout`.
    ///
    /// # Errors
    /// See [`SessionError`]; a server that refuses `tools/list` is [`SessionError::Unreachable`].
    pub fn tools(&mut self, timeout: Duration) -> Result<ToolList, SessionError> {
        let mut list = ToolList::default();
        let mut names = BTreeSet::new();
        let mut cursors: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut cursor: Option<Vec<u8>> = None;
        for _ in 0..PAGES_MAX {
            let era = self.era;
            let message = self.ask(timeout, |id| frames::tools_list(era, id, cursor.as_deref()))?;
            let Some(result) = message.result() else {
                let text = message.error().map_or("no result".to_owned(), frames::error_text);
                return Err(SessionError::Unreachable(format!("{} refused tools/list: {text}", self.name())));
            };
            for tool in result.member("tools").into_iter().flat_map(Json::elements) {
                let Some(name) = tool.member("name").and_then(Json::as_str) else { continue };
                if names.insert(name.clone().into_owned()) {
                    list.tools.push(Tool { name: name.into_owned(), json: tool.text().to_vec() });
                }
            }
            match result.member("nextCursor") {
                Some(next) if next.kind() == Kind::String => {
                    if !cursors.insert(next.text().to_vec()) {
                        list.cut = Some("the server gave the same cursor twice".to_owned());
                        return Ok(list);
                    }
                    cursor = Some(next.text().to_vec());
                }
                _ => return Ok(list),
            }
        }
        list.cut = Some(format!("only the first {PAGES_MAX} pages were read"));
        Ok(list)
    }

    /// Calls a tool once and gives the answer, a result or an error. `arguments` and the values of `meta` are JSON text and go out as they are; `meta` is added
    /// to what the era asks for.
    ///
    /// # Errors
    /// See [`SessionError`]. After [`SessionError::Timeout`] the tool may have run, or may yet.
    pub fn call(
        &mut self,
        tool: &str,
        arguments: Option<&[u8]>,
        meta: &[(&str, Vec<u8>)],
        timeout: Duration,
    ) -> Result<Message, SessionError> {
        let era = self.era;
        self.ask(timeout, |id| frames::tools_call(era, id, tool, arguments, meta))
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, timeout: Duration, frame: impl FnOnce(u64) -> Vec<u8>) -> Result<Message, SessionError> {
        let until = self.now().plus(timeout);
        let asked = self.send_request(frame);
        loop {
            match self.step(until) {
                Step::Answer(id, message) if id == asked => return Ok(message),
                Step::Oversized(id) if id == asked => return Err(SessionError::Oversized(self.limits.frame_bytes_max)),
                // Of a request that was given up.
                Step::Answer(..) | Step::Oversized(_) => {}
                Step::Failed(id, failure) if id == asked => return Err(SessionError::Failed(failure)),
                Step::Failed(..) => {}
                Step::Gone(how) => {
                    // What is still in line for a process that is gone never leaves.
                    self.unsent.extend(self.link.abandon().into_iter().map(|attempt| attempt.0));
                    return Err(SessionError::Closed { how, sent: !self.unsent.contains(&asked) });
                }
                Step::Stopped => {
                    self.unsent.extend(self.link.abandon().into_iter().map(|attempt| attempt.0));
                    return Err(SessionError::Stopped { sent: !self.unsent.contains(&asked) });
                }
                Step::Late => {
                    self.send(frames::cancelled(asked), None);
                    return Err(SessionError::Timeout(timeout));
                }
            }
        }
    }

    fn send_request(&mut self, frame: impl FnOnce(u64) -> Vec<u8>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let frame = frame(id);
        let params = Json::parse(&frame).ok().and_then(|frame| frame.member("params"));
        self.request_bytes = params.map_or(0, |params| params.text().len() as u64);
        self.send(frame, Some(AttemptId(id)));
        id
    }

    fn send(&mut self, frame: Vec<u8>, attempt: Option<AttemptId>) {
        if let Some(Report::Gone { unsent }) = self.link.send(frame, attempt) {
            self.unsent.extend(unsent.into_iter().map(|attempt| attempt.0));
        }
    }

    fn now(&self) -> Time {
        self.clock.now().mono
    }

    /// Waits for the next thing that matters, at most until `until`.
    fn step(&mut self, until: Time) -> Step {
        // Known once the process ends: how long its last words are waited for.
        let mut last_words: Option<Time> = self.ended.map(|_| self.now().plus(LAST_WORDS));
        loop {
            if self.output_over && self.arrived.is_empty() {
                return Step::Gone(self.end_text());
            }
            if self.stopped {
                return Step::Stopped;
            }
            let limit = last_words.map_or(until, |last| last.min(until));
            match self.next_event(limit) {
                Some(Event::UpstreamFrame { incarnation, frame, .. }) if incarnation == self.incarnation => {
                    if let Some(step) = self.frame(frame) {
                        return step;
                    }
                }
                Some(Event::UpstreamOversized { incarnation, head, .. }) if incarnation == self.incarnation => {
                    let sniffed = sniff(&head);
                    let id = sniffed.id.filter(|_| !sniffed.has_method).and_then(|id| number(id.key()));
                    if let Some(id) = id {
                        return Step::Oversized(id);
                    }
                }
                Some(Event::RequestFailed { incarnation, attempt, failure, .. }) if incarnation == self.incarnation => {
                    return Step::Failed(attempt.0, failure);
                }
                Some(Event::UpstreamDeaf { incarnation, unsent, .. }) if incarnation == self.incarnation => {
                    self.unsent.extend(unsent.into_iter().map(|attempt| attempt.0));
                }
                Some(Event::UpstreamClosed { incarnation, .. }) if incarnation == self.incarnation => {
                    self.output_over = true;
                    // Its end follows as a rule and says more than a closed pipe.
                    let wait = self.now().plus(LAST_WORDS);
                    while self.ended.is_none()
                        && let Some(event) = self.next_event(wait)
                    {
                        self.note_end(&event);
                    }
                }
                Some(event) => {
                    if self.note_end(&event) {
                        last_words = Some(self.now().plus(LAST_WORDS));
                    }
                }
                None if self.now() < limit => {}
                None if last_words == Some(limit) => {
                    // Somebody else holds its output open; the server itself is gone.
                    self.output_over = true;
                }
                None => return Step::Late,
            }
        }
    }

    fn note_end(&mut self, event: &Event) -> bool {
        match event {
            Event::UpstreamExited { incarnation, end, .. } if *incarnation == self.incarnation => {
                self.ended = Some(*end);
                true
            }
            _ => false,
        }
    }

    fn end_text(&self) -> String {
        match self.ended {
            Some(end) => format!("{} {end}", self.name()),
            None => format!("{} closed its output", self.name()),
        }
    }

    fn frame(&mut self, frame: FromUpstream) -> Option<Step> {
        match frame {
            FromUpstream::Message(message) => self.message(message),
            FromUpstream::Batch(messages) => {
                // A server may answer one by one or all at once; we have one request open, so one answer matters.
                messages.into_iter().fold(None, |step, message| self.message(message).or(step))
            }
            FromUpstream::Noise(line) => {
                self.wiring.log.line(Line::Noise(line));
                None
            }
        }
    }

    fn message(&mut self, message: Message) -> Option<Step> {
        match &message.role {
            Role::Response { id } => {
                let id = number(id.as_ref()?.key())?;
                Some(Step::Answer(id, message))
            }
            Role::Request { id, .. } => {
                let answer = frames::answer_to(&message, id.raw());
                self.send(answer, None);
                None
            }
            Role::Notification { .. } => None,
        }
    }

    /// The next event of the process, or `None` at `until` or a little earlier.
    fn next_event(&mut self, until: Time) -> Option<Event> {
        if let Some(event) = self.arrived.pop_front() {
            return Some(event);
        }
        let now = self.now();
        let mut wake = until;
        if let Some(beat) = &mut self.beat {
            if beat.next <= now {
                (beat.work)();
                beat.next = now.plus(beat.every);
            }
            wake = wake.min(beat.next);
        }
        let wait = wake.saturating_since(now);
        select! {
            // Both senders are in `wiring`, so neither channel closes.
            recv(self.frames) -> events => self.arrived.extend(events.unwrap_or_default()),
            recv(self.control) -> event => self.arrived.extend(event.ok()),
            recv(self.stop) -> stop => match stop {
                Ok(()) => self.stopped = true,
                // Nobody can say it any more.
                Err(_) => self.stop = never(),
            },
            default(wait) => {}
        }
        self.arrived.pop_front()
    }

    /// Ends the conversation: closes the server's input, waits, signals its process group, and leaves nothing of it.
    /// Gives how the server ended, if it was seen to.
    pub fn end(mut self) -> Option<ProcessEnd> {
        self.beat = None;
        self.link.close();
        if !self.wait_for_exit(self.limits.stdin_grace) {
            self.link.signal(StopSignal::Term);
            if !self.wait_for_exit(self.limits.term_grace) {
                self.link.signal(StopSignal::Kill);
                self.wait_for_exit(KILL_WAIT);
            }
        }
        stop_group(self.link);
        self.ended
    }

    /// Reads on, so that a server with much to say can come to its end.
    fn wait_for_exit(&mut self, limit: Duration) -> bool {
        let until = self.now().plus(limit);
        while self.ended.is_none() && self.now() < until {
            if let Some(event) = self.next_event(until) {
                self.note_end(&event);
            }
        }
        self.ended.is_some()
    }
}

fn spawn(
    reach: &Reach,
    incarnation: Incarnation,
    frame_bytes_max: usize,
    clock: Clock,
    wiring: &Wiring,
) -> Result<Link, SessionError> {
    Link::start(reach, UPSTREAM, incarnation, frame_bytes_max, clock, wiring).map_err(SessionError::Unreachable)
}

/// What a server that has ended started and left behind goes with it.
fn stop_group(link: Link) {
    link.signal(StopSignal::Term);
    link.signal(StopSignal::Kill);
    link.reap();
}

fn number(id: &IdKey) -> Option<u64> {
    match id {
        IdKey::Integer(id) => u64::try_from(*id).ok(),
        IdKey::Decimal(_) | IdKey::Text(_) => None,
    }
}

fn heard_of_discover(message: &Message) -> Heard {
    if let Some(error) = message.error() {
        // -32022 names the versions that are served; other errors have no such list.
        let versions = frames::strings_of(error.member("data"), "supported");
        return Heard::DiscoverRefused { versions, text: frames::error_text(error) };
    }
    let versions = frames::strings_of(message.result(), "supportedVersions");
    if versions.is_empty() {
        // Not what the specification calls an answer: something that says yes to every method.
        return Heard::DiscoverRefused { versions, text: "the answer to server/discover names no versions".to_owned() };
    }
    Heard::Discovered(versions)
}

fn heard_of_initialize(message: &Message) -> Heard {
    match message.error() {
        Some(error) => Heard::InitializeRefused(frames::error_text(error)),
        None => {
            let version = message.result().and_then(|result| result.member("protocolVersion")).and_then(Json::as_str);
            Heard::Initialized(version.map(Into::into).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn start(limits: Limits, aside: Aside) -> SessionError {
        let argv = ["sh", "-c", "cat >/dev/null"].map(std::ffi::OsString::from).to_vec();
        let log = Log::start(std::io::sink(), |_| String::new()).expect("a thread");
        let started = Session::start_minding(Reach::Command { argv, cwd: None }, limits, Clock::start(), &log, aside);
        started.err().expect("a server that says nothing does not open")
    }

    fn limits(opening_ms: u64) -> Limits {
        Limits { probe: Duration::from_millis(10), opening: Duration::from_millis(opening_ms), ..Limits::default() }
    }

    #[test]
    fn sql_4_a_claim_is_renewed_already_while_its_server_starts() {
        let beats = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&beats);
        let work = move || _ = counted.fetch_add(1, Ordering::SeqCst);
        let aside = Aside { beat: Some((Duration::from_millis(20), Box::new(work))), ..Aside::default() };
        start(limits(300), aside);
        assert!(beats.load(Ordering::SeqCst) >= 2, "{beats:?}");
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let (tell, stop) = unbounded();
        tell.send(()).expect("it listens");
        let error = start(limits(600_000), Aside { stop, ..Aside::default() });
        assert_eq!(error, SessionError::Unreachable("interrupted while the server started".to_owned()));
        // Nobody who could tell is left: it waits as usual.
        let (tell, stop) = unbounded();
        drop(tell);
        let error = start(limits(100), Aside { stop, ..Aside::default() });
        assert!(matches!(&error, SessionError::Unreachable(text) if text.contains("did not answer")), "{error}");
    }
}
