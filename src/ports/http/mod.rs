//! A remote server over HTTP.
//!
//! [`conversation`](self) decides what is sent when; each exchange runs on a thread of a pool, which keeps its own
//! connection alive. What the threads find out they tell the conversation before they hand messages on, so that a
//! client's reply never meets a conversation that knows less than the client.

mod conversation;
mod exchange;
mod failure;
mod line;
mod memory;
mod oauth;
mod refusal;
pub mod settings;
mod tls;
mod tools;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use self::conversation::{Conversation, End, Exchange, Out, What};
use self::exchange::{Control, Run};
use self::failure::Failed;
use self::line::Way;
use self::oauth::Tokens;
use self::settings::{HttpSettings, OriginSettings};
use super::log::Line as LogLine;
use super::upstream_stdio::Wiring;
use crate::clock::Clock;
use crate::dispatcher::event::{AttemptId, Event, Incarnation, Level, ProcessEnd, UpstreamId};
use crate::wire::message::{FromUpstream, Message, from_upstream};
use crate::wire::url::Url;

/// A thread without work ends after this time; its connection has ended before.
const THREAD_IDLE: Duration = Duration::from_secs(10);

/// Streams that gave their answer and do not end are kept up to this number.
const LINGERING_MAX: usize = 16;

/// A server to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteServer {
    /// Its address.
    pub url: Url,
    /// Only the older HTTP+SSE transport is spoken.
    pub sse: bool,
    /// How it is reached.
    pub settings: HttpSettings,
    /// It is the server that the flat form of the settings belongs to.
    pub is_own: bool,
}

impl RemoteServer {
    /// What is configured for another server, or for one that nobody has named, is not sent to this one: a text that
    /// says so, if that may be a surprise.
    #[must_use]
    pub fn withheld(&self) -> Option<String> {
        let none = OriginSettings::default();
        let withheld = self.settings.own != none && self.settings.for_url(&self.url, self.is_own) == none;
        withheld.then(|| {
            let (shown, origin) = (self.url.shown(), self.url.origin());
            format!(
                "no headers and no client certificate are sent to {shown}: name it with --http, or its origin {origin:?} \
                 in upstream.http.origins"
            )
        })
    }
}

/// A conversation with a remote server.
pub struct HttpUpstream {
    shared: Arc<Shared>,
}

type Idle = Vec<(u64, Sender<Job>)>;

struct Job {
    exchange: Exchange,
    control: Arc<Control>,
}

/// What became of a message.
enum Delivered {
    /// It was the answer that is waited for.
    Answer,
    /// It was another.
    Message,
    /// Nobody takes messages any more.
    Nobody,
}

struct Shared {
    conversation: Mutex<Conversation>,
    running: Mutex<BTreeMap<u64, Arc<Control>>>,
    lingering: Mutex<VecDeque<Arc<Control>>>,
    idle: Mutex<Idle>,
    way: Way,
    base: Url,
    /// Where the server said that it is, within its origin.
    moved: Mutex<Option<Url>>,
    origin: OriginSettings,
    tokens: Option<Tokens>,
    response_bytes_max: usize,
    clock: Clock,
    upstream: UpstreamId,
    incarnation: Incarnation,
    wiring: Wiring,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves plain data behind, which is still right.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpUpstream {
    /// Prepares the conversation with `server`; over Streamable HTTP nothing is sent before the first message.
    ///
    /// # Errors
    /// A text that names the file or setting at fault.
    pub fn start(
        server: &RemoteServer,
        upstream: UpstreamId,
        incarnation: Incarnation,
        clock: Clock,
        wiring: &Wiring,
    ) -> Result<HttpUpstream, String> {
        let settings = &server.settings;
        let env = |name: &str| std::env::var(name).ok();
        let origin = settings.for_url(&server.url, server.is_own);
        let proxy = settings::proxy_for(&server.url, &settings.proxy, &env)?;
        // The library's text could repeat the URL with its password.
        let proxy = proxy.map(|url| ureq::Proxy::new(&url).map_err(|_| "the proxy's URL is not valid".to_owned()));
        let roots = env("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
        let tls = tls::client_config(settings.ca_file.as_deref(), origin.client_cert.as_ref(), roots.as_deref())?;
        // A secret that cannot be read is better found now than with the first call.
        origin.headers.iter().try_for_each(|(_, secret)| secret.value().map(drop))?;
        let log = wiring.log.clone();
        let say = Box::new(move |text| log.diagnose(text));
        let tokens = origin.oauth.clone();
        let tokens = tokens.map(|oauth| Tokens::new(oauth, settings.clone(), server.url.clone(), clock, say));
        let way = Way::new(settings.clone(), tls, proxy.transpose()?, wiring.watch.clone());
        let (conversation, out) = match server.sse {
            true => Conversation::sse(),
            false => (Conversation::streamable(), Vec::new()),
        };
        let shared = Arc::new(Shared {
            conversation: Mutex::new(conversation),
            running: Mutex::new(BTreeMap::new()),
            lingering: Mutex::new(VecDeque::new()),
            idle: Mutex::new(Vec::new()),
            way,
            base: server.url.clone(),
            moved: Mutex::new(None),
            origin,
            tokens,
            response_bytes_max: settings.response_bytes_max,
            clock,
            upstream,
            incarnation,
            wiring: wiring.clone(),
        });
        shared.with(|_| out);
        Ok(HttpUpstream { shared })
    }

    /// Sends one frame; `attempt` if it is a request. Never blocks.
    pub fn send(&self, bytes: Vec<u8>, attempt: Option<AttemptId>) {
        self.shared.with(|conversation| conversation.send(bytes, attempt));
    }

    /// How full it is now.
    #[must_use]
    pub fn level(&self) -> Level {
        lock(&self.shared.conversation).level()
    }

    /// Closes the streams and ends the session; the end is reported like that of a process.
    pub fn close(&self) {
        self.shared.with(Conversation::close);
    }

    /// Closes everything at once.
    pub fn abort(&self) {
        self.shared.with(Conversation::abort);
    }
}

impl Shared {
    /// Tells the conversation something and does what it says, before anybody else tells it more.
    fn with(self: &Arc<Shared>, tell: impl FnOnce(&mut Conversation) -> Vec<Out>) {
        let mut conversation = lock(&self.conversation);
        let mut todo: VecDeque<Out> = tell(&mut conversation).into();
        while let Some(out) = todo.pop_front() {
            match out {
                Out::Start(exchange) => {
                    let id = exchange.id;
                    if let Err(error) = self.dispatch(exchange) {
                        let failed = Failed::not_sent(&format!("cannot start a thread: {error}"));
                        todo.extend(conversation.done(id, End::Failed(failed)));
                    }
                }
                Out::Shut(exchange) => {
                    let control = lock(&self.running).get(&exchange).cloned();
                    if let Some(control) = control {
                        control.shut();
                    }
                }
                Out::Fail(attempt, failure) => {
                    let (upstream, incarnation) = (self.upstream, self.incarnation);
                    let failure = Box::new(failure);
                    self.report(Event::RequestFailed { upstream, incarnation, attempt, failure });
                }
                Out::Level(level) => {
                    let (upstream, incarnation) = (self.upstream, self.incarnation);
                    self.report(Event::UpstreamOutbox { upstream, incarnation, level });
                }
                Out::Diagnose(text) => self.wiring.log.diagnose(text),
                Out::Ended => self.ended(),
            }
        }
    }

    fn report(&self, event: Event) {
        // A closed channel means that the session is over and nobody waits for this.
        let _ = self.wiring.control.send(event);
    }

    /// The end of a conversation is that of a process which closed its output and exited.
    fn ended(&self) {
        for control in lock(&self.lingering).drain(..) {
            control.shut();
        }
        let (upstream, incarnation) = (self.upstream, self.incarnation);
        self.report(Event::UpstreamClosed { upstream, incarnation, unsent: Vec::new() });
        let end = ProcessEnd::Code(0);
        self.report(Event::UpstreamExited { upstream, incarnation, end, unsent: Vec::new() });
    }

    // --- threads ---

    /// Gives an exchange to a thread: the one that worked last, whose connection is the most alive, or a new one.
    fn dispatch(self: &Arc<Shared>, exchange: Exchange) -> std::io::Result<()> {
        let id = exchange.id;
        let control = Arc::new(Control::new());
        lock(&self.running).insert(id, Arc::clone(&control));
        let mut job = Job { exchange, control };
        loop {
            let idle = lock(&self.idle).pop();
            let Some((_, thread)) = idle else { break };
            match thread.send(job) {
                Ok(()) => return Ok(()),
                Err(refused) => job = refused.0,
            }
        }
        let own = Arc::clone(self);
        let result = super::spawn("http", move || work(&own, job));
        if result.is_err() {
            lock(&self.running).remove(&id);
        }
        result.map(drop)
    }

    /// The exchange has given its answer, and its stream is still open.
    fn linger(self: &Arc<Shared>, exchange: u64, control: &Arc<Control>) {
        lock(&self.running).remove(&exchange);
        let surplus = {
            let mut lingering = lock(&self.lingering);
            lingering.push_back(Arc::clone(control));
            if lingering.len() > LINGERING_MAX { lingering.pop_front() } else { None }
        };
        if let Some(control) = surplus {
            control.shut();
        }
        self.with(|conversation| conversation.done(exchange, End::Done));
    }

    // --- what exchanges ask and tell ---

    fn target(&self, what: &What) -> Url {
        let endpoint = lock(&self.conversation).endpoint().and_then(|url| Url::parse(url).ok());
        match what {
            What::Ask { .. } | What::Tell { .. } => endpoint.unwrap_or_else(|| self.url()),
            What::Listen | What::Stream { .. } | What::Delete => self.url(),
        }
    }

    fn url(&self) -> Url {
        lock(&self.moved).clone().unwrap_or_else(|| self.base.clone())
    }

    fn moved(&self, what: &What, to: &Url) {
        // The endpoint of the older transport moves by itself.
        if matches!(what, What::Stream { .. }) || lock(&self.conversation).endpoint().is_none() {
            *lock(&self.moved) = Some(to.clone());
        }
    }

    /// Answers come over another exchange than the one that asks.
    fn answers_come_elsewhere(&self) -> bool {
        lock(&self.conversation).endpoint().is_some()
    }

    fn secret_headers(&self) -> Result<Vec<(String, String)>, String> {
        let values = self.origin.headers.iter().map(|(name, secret)| Ok((name.clone(), secret.value()?)));
        values.collect()
    }

    fn response_bytes_max(&self) -> usize {
        self.response_bytes_max
    }

    fn endpoint_named(self: &Arc<Shared>, exchange: u64, url: String) {
        self.with(|conversation| conversation.endpoint_named(exchange, url));
    }

    fn answering(self: &Arc<Shared>, exchange: u64, session: Option<String>, message: Message) -> Option<FromUpstream> {
        let mut shown = None;
        self.with(|conversation| {
            let (bytes, out) = conversation.answering(exchange, session, message);
            shown = bytes;
            out
        });
        shown.map(from_upstream)
    }

    /// Hands a frame to the engine, which may take its time; whether it is wanted.
    fn hand_over(&self, frame: FromUpstream) -> bool {
        let (upstream, incarnation) = (self.upstream, self.incarnation);
        self.wiring.frames.send(vec![Event::UpstreamFrame { upstream, incarnation, frame }]).is_ok()
    }

    fn diagnose(&self, text: &str) {
        self.wiring.log.diagnose(text.to_owned());
    }

    fn noise(&self, line: Vec<u8>) {
        self.wiring.log.line(LogLine::Noise(line));
    }
}

/// The life of a thread: exchanges one after the other, on a connection that is kept in between.
fn work(shared: &Arc<Shared>, first: Job) {
    let (sender, jobs): (Sender<Job>, Receiver<Job>) = unbounded();
    let mut line = shared.way.line();
    let mut next = Some(first);
    while let Some(Job { exchange, control }) = next.take() {
        control.attach(line.agent.clone());
        let end = Run { shared, line: &line, control: &control, exchange: &exchange }.run();
        control.detach();
        if control.is_cut() {
            line = shared.way.line();
        }
        lock(&shared.lingering).retain(|lingering| !Arc::ptr_eq(lingering, &control));
        lock(&shared.running).remove(&exchange.id);
        let id = exchange.id;
        lock(&shared.idle).push((id, sender.clone()));
        shared.with(|conversation| conversation.done(id, end));
        next = match jobs.recv_timeout(THREAD_IDLE) {
            Ok(job) => Some(job),
            Err(_) => {
                let mut idle = lock(&shared.idle);
                let before = idle.len();
                idle.retain(|(of, _)| *of != id);
                // Taken from the list meanwhile: work is on its way.
                if idle.len() == before { jobs.recv().ok() } else { None }
            }
        };
    }
}
