//! The scriptable MCP server: methods, notifications, and what goes on between requests.
//!
//! It keeps ids, arguments and `_meta` as the bytes that came. Quick methods are answered in the order they came,
//! slow tools from threads of their own, so a ping passes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::output::Output;
use crate::settings::{Era, Settings};
use crate::{Ended, json, settings, tools};

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";
const CAPABILITIES: &str = r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}}"#;

/// The server's shared state.
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(crate) output: Output,
    state: Mutex<State>,
    /// Told whenever something is cancelled.
    cancelled: Condvar,
    next_id: AtomicU64,
    log: Option<Mutex<File>>,
}

#[derive(Default)]
struct State {
    methods: BTreeMap<String, u64>,
    tools: BTreeMap<String, u64>,
    /// Ids of requests that the client has cancelled, as text.
    cancelled: BTreeSet<Vec<u8>>,
    notifications: Vec<Vec<u8>>,
    /// Our open requests to the client, by id text.
    asked: BTreeMap<Vec<u8>, Sender<Vec<u8>>>,
    /// Answers kept back until `x/release`, by key: the request's id and its answer's result.
    held: BTreeMap<String, (Vec<u8>, Vec<u8>)>,
    /// Ids of open listens, oldest first.
    listens: Vec<Vec<u8>>,
    /// How often a counting tool was called, by its key.
    counts: BTreeMap<String, u64>,
    /// Answers of the batch at hand, while one is.
    batch: Option<Vec<Vec<u8>>>,
    /// Ids of open requests that named a modern version.
    modern: BTreeSet<Vec<u8>>,
}

/// Runs `server [options]` until stdin ends.
pub(crate) fn run(args: Vec<OsString>) -> Ended {
    let Some(settings) = settings::parse(args)? else {
        std::io::stdout().write_all(settings::HELP.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let log = match &settings.log {
        Some(path) => Some(Mutex::new(File::options().append(true).create(true).open(path)?)),
        None => None,
    };
    let server = Arc::new(Server {
        output: Output::new(&settings)?,
        settings,
        state: Mutex::default(),
        cancelled: Condvar::new(),
        next_id: AtomicU64::new(1),
        log,
    });
    server.note(b"#start");
    if let Some(code) = server.misstart()? {
        return Ok(ExitCode::from(code));
    }
    if server.settings.ignore_term {
        ignore_term(&server)?;
    }
    if server.settings.never_read {
        forever();
    }
    std::thread::sleep(server.settings.slow_start);
    let stdin = Input { server: &server, stdin: std::io::stdin().lock() };
    let mut input = std::io::BufReader::with_capacity(64 * 1024, stdin);
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let frame = line.trim_ascii_end();
        if !frame.is_empty() {
            server.note(frame);
            server.line(frame);
        }
    }
    server.note(b"#eof");
    if server.settings.ignore_eof {
        forever();
    }
    Ok(ExitCode::SUCCESS)
}

/// Standard input, which may be noisy to read.
struct Input<'a> {
    server: &'a Server,
    stdin: std::io::StdinLock<'static>,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.stdin.read(buffer)?;
        if self.server.settings.noise_while_reading {
            let mut noise = vec![b'x'; count];
            if let Some(last) = noise.last_mut() {
                *last = b'\n';
            }
            self.server.output.raw(&noise);
        }
        Ok(count)
    }
}

impl Server {
    /// Ends a start that was to fail.
    fn misstart(&self) -> std::io::Result<Option<u8>> {
        if let (Some(path), true) = (&self.settings.state, self.settings.crash_starts > 0) {
            let starts = std::fs::read(path).map_or(0, |text| text.len());
            File::options().append(true).create(true).open(path)?.write_all(b"x")?;
            if starts < self.settings.crash_starts {
                return Ok(Some(1));
            }
        }
        if let Some(code) = self.settings.crash_on_start {
            writeln!(std::io::stderr(), "testpeer: cannot start: no licence found")?;
            return Ok(Some(code));
        }
        Ok(None)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line to the log, if there is one.
    pub(crate) fn note(&self, what: &[u8]) {
        if let Some(log) = &self.log {
            let entry = [format!("{}\t", std::process::id()).as_bytes(), what, b"\n"].concat();
            let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(&entry);
        }
    }

    fn line(self: &Arc<Server>, frame: &[u8]) {
        let Some(members) = json::elements(frame) else { return self.message(frame) };
        if self.settings.batch_answers {
            self.lock().batch = Some(Vec::new());
        }
        for member in members {
            self.message(&frame[member]);
        }
        let answers = self.lock().batch.take().unwrap_or_default();
        if !answers.is_empty() {
            self.output.answer(&[b"[", answers.join(&b","[..]).as_slice(), b"]"].concat());
        }
    }

    fn message(self: &Arc<Server>, frame: &[u8]) {
        let id = json::get(frame, &["id"]);
        let Some(method) = json::get_str(frame, &["method"]) else {
            return match id.and_then(|id| self.lock().asked.remove(id)) {
                Some(asker) => drop(asker.send(frame.to_vec())),
                None => self.error(b"null", -32700, "not a message", None),
            };
        };
        *self.lock().methods.entry(method.clone()).or_default() += 1;
        match id {
            Some(id) => self.request(id, &method, frame),
            None => self.notification(&method, frame),
        }
    }

    fn notification(&self, method: &str, frame: &[u8]) {
        let mut state = self.lock();
        state.notifications.push(frame.to_vec());
        if method == "notifications/cancelled"
            && let Some(id) = json::get(frame, &["params", "requestId"])
        {
            state.cancelled.insert(id.to_vec());
            state.listens.retain(|listen| listen != id);
            self.cancelled.notify_all();
        }
    }

    fn request(self: &Arc<Server>, id: &[u8], method: &str, frame: &[u8]) {
        let modern = json::get(frame, &["params", "_meta", VERSION_KEY]).is_some();
        let mute = self.settings.era == Era::Legacy || (self.settings.era == Era::Both && !modern);
        if mute {
            self.lock().modern.remove(id);
        } else {
            self.lock().modern.insert(id.to_vec());
        }
        let params = json::get(frame, &["params"]).unwrap_or(b"{}");
        match (method, self.settings.era) {
            ("initialize", Era::Modern) => self.version_error(id, "initialize"),
            ("initialize", _) => self.initialize(id, params),
            ("server/discover", _) => self.discover(id),
            ("ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe", _) => {
                self.result(id, b"{}")
            }
            ("tools/list", _) => self.tools_list(id, params),
            ("tools/call", _) if self.settings.close_stdout_on_call => self.output.close(),
            ("tools/call", _) => {
                let name = json::get_str(params, &["name"]).unwrap_or_default();
                *self.lock().tools.entry(name.clone()).or_default() += 1;
                tools::call(self, id, &name, params);
            }
            ("subscriptions/listen", _) => self.listen(id, params),
            ("x/echo", _) => self.result(id, params),
            ("x/stats", _) => self.stats(id),
            ("x/notifications", _) => {
                let all = self.lock().notifications.join(&b","[..]);
                self.result(id, &[b"{\"notifications\":[", all.as_slice(), b"]}"].concat());
            }
            ("x/era", _) => self.result(id, if mute { br#"{"era":"legacy"}"# } else { br#"{"era":"modern"}"# }),
            ("x/notify", _) => self.notify(id, params),
            ("x/raw", _) => {
                self.output.raw(json::get_str(params, &["text"]).unwrap_or_default().as_bytes());
                self.result(id, b"{}");
            }
            ("x/stderr", _) => {
                let _ = std::io::stderr().write_all(json::get_str(params, &["text"]).unwrap_or_default().as_bytes());
                self.result(id, b"{}");
            }
            ("x/release", _) => self.release(id, params),
            ("x/end-listen", _) => self.end_listen(id, params),
            ("tasks/get" | "tasks/cancel" | "tasks/result", _) => tools::task_method(self, id, method, params),
            _ => self.error(id, -32601, &format!("method not found: {method}"), None),
        }
    }

    fn initialize(&self, id: &[u8], params: &[u8]) {
        if let Some(code) = self.settings.exit_on_initialize {
            std::process::exit(i32::from(code));
        }
        let version = json::get(params, &["protocolVersion"]).unwrap_or(br#""2025-11-25""#);
        let rest = format!(
            r#","capabilities":{CAPABILITIES},"serverInfo":{{"name":"{}","version":"1.0.0"}}}}"#,
            self.settings.name
        );
        self.result(id, &[b"{\"protocolVersion\":", version, rest.as_bytes()].concat());
    }

    fn discover(&self, id: &[u8]) {
        if self.settings.exit_on_discover {
            std::process::exit(1);
        }
        if self.settings.silent_discover {
            return;
        }
        if let Some(code) = self.settings.discover_error {
            return self.error(id, code, "no discovery here", None);
        }
        if self.settings.era == Era::Legacy {
            return self.error(id, -32601, "method not found: server/discover", None);
        }
        let result = format!(
            r#"{{"supportedVersions":["2026-07-28"],"capabilities":{CAPABILITIES},"ttlMs":0,"cacheScope":"private","resultType":"complete","_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"{}","version":"1.0.0"}}}}}}"#,
            self.settings.name
        );
        self.send(id, b"result", result.as_bytes());
    }

    fn version_error(&self, id: &[u8], requested: &str) {
        let data = format!(r#"{{"supported":["2026-07-28"],"requested":"{requested}"}}"#);
        self.error(id, -32022, "only 2026-07-28 is served here", Some(data.as_bytes()));
    }

    fn tools_list(&self, id: &[u8], params: &[u8]) {
        let all = self.settings.tools.clone().unwrap_or_else(tools::listing);
        let all = all.as_bytes();
        let places = json::elements(all).unwrap_or_default();
        let size = self.settings.page_size.unwrap_or(places.len()).max(1);
        let cursor = json::get_str(params, &["cursor"]);
        // The empty string is a cursor like any other: it stands for the second page here.
        let first = match cursor.as_deref() {
            None => 0,
            Some("") => size,
            Some(text) => text.parse().unwrap_or(0),
        };
        let page: Vec<&[u8]> = places.iter().skip(first).take(size).map(|place| &all[place.clone()]).collect();
        let next = first + size;
        let cursor = if self.settings.repeat_cursor {
            Some(size.to_string())
        } else if self.settings.empty_cursor && first == 0 {
            Some(String::new())
        } else {
            (next < places.len()).then(|| next.to_string())
        };
        let cursor = cursor.map(|text| format!(r#","nextCursor":"{text}""#)).unwrap_or_default();
        let caching = if self.modern(id) { r#","ttlMs":0,"cacheScope":"private""# } else { "" };
        let page = page.join(&b","[..]);
        self.result(
            id,
            &[b"{\"tools\":[", page.as_slice(), b"]", cursor.as_bytes(), caching.as_bytes(), b"}"].concat(),
        );
    }

    fn listen(&self, id: &[u8], params: &[u8]) {
        let wanted = json::get(params, &["notifications"]).unwrap_or(b"{}");
        self.lock().listens.push(id.to_vec());
        let head =
            br#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":"#;
        let meta = format!(r#","_meta":{{"{SUBSCRIPTION_KEY}":"#);
        self.output.frame(&[head, wanted, meta.as_bytes(), id, b"}}}"].concat());
    }

    /// Sends the frames in `frames`; `$SUB` in one stands for the id of the newest open listen.
    fn notify(&self, id: &[u8], params: &[u8]) {
        let listen = self.lock().listens.last().cloned().unwrap_or_else(|| b"null".to_vec());
        for frame in json::get(params, &["frames"]).map(elements_of).unwrap_or_default() {
            self.output.frame(&substitute(&frame, b"\"$SUB\"", &listen));
        }
        self.result(id, b"{}");
    }

    /// Ends the newest open listen with its result, or with a cancel if `how` is `cancel`.
    fn end_listen(&self, id: &[u8], params: &[u8]) {
        let listen = self.lock().listens.pop();
        if let Some(listen) = listen {
            if json::get_str(params, &["how"]).as_deref() == Some("cancel") {
                let head = br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"#;
                self.output.frame(&[head, listen.as_slice(), b"}}"].concat());
            } else {
                let head = format!(r#"{{"resultType":"complete","_meta":{{"{SUBSCRIPTION_KEY}":"#);
                self.send(&listen, b"result", &[head.as_bytes(), &listen, b"}}"].concat());
            }
        }
        self.result(id, b"{}");
    }

    /// Answers held calls in the order of `keys`, waiting for one that has not come yet.
    fn release(self: &Arc<Server>, id: &[u8], params: &[u8]) {
        let keys: Vec<String> =
            json::get(params, &["keys"]).and_then(|keys| serde_json::from_slice(keys).ok()).unwrap_or_default();
        for key in keys {
            let held = self.lock().held.remove(&key);
            match held {
                Some((held_id, result)) => self.result(&held_id, &result),
                None => return self.error(id, -32602, &format!("nothing is held as {key}"), None),
            }
        }
        self.result(id, b"{}");
    }

    fn stats(&self, id: &[u8]) {
        let result = {
            let state = self.lock();
            let cancelled: Vec<&str> = state.cancelled.iter().filter_map(|id| std::str::from_utf8(id).ok()).collect();
            serde_json::json!({
                "pid": std::process::id(), "methods": state.methods, "tools": state.tools, "cancelled": cancelled
            })
        };
        self.result(id, result.to_string().as_bytes());
    }

    // What tools use.

    /// Whether the open request `id` is a modern one.
    pub(crate) fn modern(&self, id: &[u8]) -> bool {
        self.lock().modern.contains(id)
    }

    /// Answers `id` with an object, given without `resultType`; a modern client gets that added.
    pub(crate) fn result(&self, id: &[u8], result: &[u8]) {
        if self.modern(id) && json::get(result, &["resultType"]).is_none() && result.first() == Some(&b'{') {
            let rest = &result[1..];
            let comma: &[u8] = if rest == b"}" { b"" } else { b"," };
            return self.send(id, b"result", &[br#"{"resultType":"complete""#, comma, rest].concat());
        }
        self.send(id, b"result", result);
    }

    /// Answers `id` with an error.
    pub(crate) fn error(&self, id: &[u8], code: i64, message: &str, data: Option<&[u8]>) {
        let message = serde_json::Value::from(message).to_string();
        let data = data.map(|data| [b",\"data\":", data].concat()).unwrap_or_default();
        let head = format!(r#"{{"code":{code},"message":{message}"#);
        self.send(id, b"error", &[head.as_bytes(), &data, b"}"].concat());
    }

    /// Sends an answer with the member `name`; into the batch at hand if there is one.
    pub(crate) fn send(&self, id: &[u8], name: &[u8], value: &[u8]) {
        let frame = [br#"{"jsonrpc":"2.0","id":"#, id, b",\"", name, b"\":", value, b"}"].concat();
        if let Some(batch) = &mut self.lock().batch {
            return batch.push(frame);
        }
        self.output.answer(&frame);
        self.note(&[b"#answered ", id].concat());
    }

    /// Waits; `false` as soon as the client has cancelled `id`.
    pub(crate) fn wait(&self, id: &[u8], wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.lock();
        loop {
            if state.cancelled.contains(id) {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.cancelled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for good; returns once the client has cancelled `id`.
    pub(crate) fn wait_for_cancel(&self, id: &[u8]) {
        while self.wait(id, Duration::from_secs(3600)) {}
    }

    /// Sends a request to the client; its answer, the whole frame, comes through the receiver.
    pub(crate) fn ask(&self, id: Option<&[u8]>, method: &str, params: &[u8]) -> Receiver<Vec<u8>> {
        let fresh = self.next_id.fetch_add(1, Ordering::Relaxed).to_string().into_bytes();
        let id = id.map_or(fresh, <[u8]>::to_vec);
        let (sender, receiver) = channel();
        self.lock().asked.insert(id.clone(), sender);
        let method = format!(r#","method":"{method}","params":"#);
        self.output.frame(&[br#"{"jsonrpc":"2.0","id":"#, id.as_slice(), method.as_bytes(), params, b"}"].concat());
        receiver
    }

    /// Keeps the answer to `id` back until `x/release` names `key`.
    pub(crate) fn hold(&self, key: &str, id: &[u8], result: &[u8]) {
        self.lock().held.insert(key.into(), (id.to_vec(), result.to_vec()));
    }

    /// Counts a call under `key`: 1 for the first.
    pub(crate) fn count(&self, key: &str) -> u64 {
        let mut state = self.lock();
        let count = state.counts.entry(key.into()).or_default();
        *count += 1;
        *count
    }
}

/// The texts of an array's elements.
pub(crate) fn elements_of(array: &[u8]) -> Vec<Vec<u8>> {
    json::elements(array).unwrap_or_default().into_iter().map(|place| array[place].to_vec()).collect()
}

/// `text` with each `what` replaced.
pub(crate) fn substitute(text: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in memchr::memmem::find_iter(text, what) {
        out.extend_from_slice(&text[from..at]);
        out.extend_from_slice(with);
        from = at + what.len();
    }
    out.extend_from_slice(&text[from..]);
    out
}

fn ignore_term(server: &Arc<Server>) -> std::io::Result<()> {
    let seen = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&seen))?;
    let server = Arc::clone(server);
    std::thread::spawn(move || {
        loop {
            if seen.swap(false, Ordering::SeqCst) {
                server.note(b"#term");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    Ok(())
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
