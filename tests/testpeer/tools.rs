//! The tools of the scriptable server. `listing` names them; their arguments stand at each.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::json;
use crate::server::{Server, elements_of, substitute};

/// Every tool with what its arguments mean.
const TOOLS: &[(&str, &str)] = &[
    ("echo", "structuredContent is the arguments, byte for byte"),
    ("echo-length", "the number of bytes of its arguments"),
    ("echo-meta", "structuredContent is {\"_meta\": params._meta}, byte for byte"),
    ("echo-params", "structuredContent is {\"params\": params}, byte for byte"),
    ("boom", "isError with `text`"),
    ("rpc-error", "the error `code` (-32000), `message`, `data`"),
    ("flaky", "fails `fail_times` (2) with `code` (-32000), counted per `key`, then succeeds"),
    ("flaky-protocol", "the same with -32602"),
    ("sleep", "answers after `ms`; not once cancelled, unless `ignore_cancel`"),
    (
        "progress",
        "`steps` (3) notifications every `interval_ms` (0), `values` for odd ones, `after` more after the answer, under another \
         `token` if one is given",
    ),
    ("crash", "after `delay_ms`: prints `partial`, exits with `exit_code` (1), or aborts if `abort`"),
    ("hang", "never answers"),
    ("hold", "answers when x/release names `key`"),
    ("ask-client", "asks for sampling, gives back the client's answer; `id` raw, `then_ms` wait"),
    ("ask-elicitation", "the same with a form"),
    ("ask-roots", "the same with roots"),
    ("ask-many", "asks for roots and a form at once"),
    ("side-effect", "appends `line` to `file`, then: `then` = answer | hang | crash | error | close-stdout"),
    ("big", "`bytes` of text"),
    ("flood", "answers, and in the same breath writes `bytes` of x before the next line end"),
    ("raw", "writes the strings in `frames` as lines; `$ID` in one is the request's id"),
    ("task", "a task handle, done after `ms`; `progress` notifications go on"),
    ("input-required", "asks for input (modern), succeeds when inputResponses came"),
    ("slow-drain", "writes `count` notifications of `bytes` each, then answers"),
];

/// The array that tools/list gives.
pub(crate) fn listing() -> String {
    let tool = |(name, text): &(&str, &str)| {
        serde_json::json!({"name": name, "description": text, "inputSchema": {"type": "object"}}).to_string()
    };
    format!("[{}]", TOOLS.iter().map(tool).collect::<Vec<_>>().join(","))
}

/// Serves one tools/call: at once, or from a thread if the tool takes time.
pub(crate) fn call(server: &Arc<Server>, id: &[u8], name: &str, params: &[u8]) {
    let call = Call {
        server: Arc::clone(server),
        id: id.to_vec(),
        name: name.to_string(),
        arguments: json::get(params, &["arguments"]).unwrap_or(b"{}").to_vec(),
        params: params.to_vec(),
    };
    match name {
        "sleep" | "progress" | "crash" | "hang" | "ask-client" | "ask-elicitation" | "ask-roots" | "ask-many"
        | "side-effect" | "slow-drain" | "flood" => {
            std::thread::spawn(move || call.slow());
        }
        _ => call.quick(),
    }
}

struct Call {
    server: Arc<Server>,
    id: Vec<u8>,
    name: String,
    arguments: Vec<u8>,
    params: Vec<u8>,
}

impl Call {
    fn quick(&self) {
        match &*self.name {
            "echo" => self.structured(&self.arguments),
            "echo-length" => self.text(&self.arguments.len().to_string()),
            "echo-meta" => {
                let meta = json::get(&self.params, &["_meta"]).unwrap_or(b"null");
                self.structured(&[b"{\"_meta\":", meta, b"}"].concat());
            }
            "echo-params" => self.structured(&[b"{\"params\":", self.params.as_slice(), b"}"].concat()),
            "boom" => {
                let text = quote(&self.string("text").unwrap_or_else(|| "boom".into()));
                let result = format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":true}}"#);
                self.server.result(&self.id, result.as_bytes());
            }
            "rpc-error" => self.error(-32000),
            "flaky" => self.flaky(-32000),
            "flaky-protocol" => self.flaky(-32602),
            "hold" => {
                let key = self.string("key").unwrap_or_default();
                self.server.hold(&key, &self.id, text_result(&format!("held {key}")).as_bytes());
            }
            "big" => self.text(&"x".repeat(usize::try_from(self.number("bytes", 0)).unwrap_or(0))),
            "raw" => {
                for frame in json::get(&self.arguments, &["frames"]).map(elements_of).unwrap_or_default() {
                    let text: String = serde_json::from_slice(&frame).unwrap_or_default();
                    self.server.output.raw(&substitute(text.as_bytes(), b"$ID", &self.id));
                    self.server.output.raw(b"\n");
                }
            }
            "task" => self.task(),
            "input-required" => self.input_required(),
            _ => self.server.error(&self.id, -32602, &format!("unknown tool: {}", self.name), None),
        }
    }

    fn slow(&self) {
        match &*self.name {
            "sleep" => {
                let wait = self.millis("ms");
                if json::is_true(&self.arguments, &["ignore_cancel"]) {
                    std::thread::sleep(wait);
                } else if !self.server.wait(&self.id, wait) {
                    return;
                }
                self.text("slept");
            }
            "progress" => self.progress(),
            "crash" => self.crash(),
            "side-effect" => self.side_effect(),
            "slow-drain" => self.slow_drain(),
            "flood" => {
                let answer =
                    [br#"{"jsonrpc":"2.0","id":"#, self.id.as_slice(), br#","result":{"content":[]}}"#].concat();
                self.server.output.flood(&answer, self.number("bytes", 0));
            }
            "hang" => self.server.wait_for_cancel(&self.id),
            _ => self.ask(),
        }
    }

    fn flaky(&self, code: i64) {
        let count = self.server.count(&format!("{}:{}", self.name, self.string("key").unwrap_or_default()));
        if count <= self.number("fail_times", 2) {
            return self.error(code);
        }
        self.text(&format!("attempt {count}"));
    }

    fn progress(&self) {
        let given = json::get(&self.arguments, &["token"]);
        let Some(token) = given.or_else(|| json::get(&self.params, &["_meta", "progressToken"])) else {
            return self.text("no token");
        };
        let steps = self.number("steps", 3);
        let values = json::get(&self.arguments, &["values"]).map(elements_of).unwrap_or_default();
        for step in 1..=steps + self.number("after", 0) {
            if step == steps + 1 {
                self.text("done");
            }
            if !self.server.wait(&self.id, self.millis("interval_ms")) {
                return;
            }
            let place = usize::try_from(step - 1).unwrap_or(usize::MAX);
            let value = values.get(place).cloned().unwrap_or_else(|| step.to_string().into_bytes());
            let head = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
            let total = format!(",\"total\":{steps}}}}}");
            self.server.output.frame(&[head, token, b",\"progress\":", &value, total.as_bytes()].concat());
        }
        if self.number("after", 0) == 0 {
            self.text("done");
        }
    }

    fn crash(&self) {
        std::thread::sleep(self.millis("delay_ms"));
        if let Some(partial) = self.string("partial") {
            self.server.output.raw(&substitute(partial.as_bytes(), b"$ID", &self.id));
        }
        self.server.note(b"#crash");
        if json::is_true(&self.arguments, &["abort"]) {
            std::process::abort();
        }
        std::process::exit(i32::try_from(self.number("exit_code", 1)).unwrap_or(1));
    }

    fn side_effect(&self) {
        let file = self.string("file").unwrap_or_default();
        let line = self.string("line").unwrap_or_else(|| "done".into()) + "\n";
        let written = std::fs::File::options()
            .append(true)
            .create(true)
            .open(&file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            return self.server.error(&self.id, -32602, &format!("cannot write {file}: {error}"), None);
        }
        match self.string("then").as_deref() {
            Some("hang") => self.server.wait_for_cancel(&self.id),
            Some("crash") => std::process::exit(1),
            Some("error") => self.error(-32000),
            Some("close-stdout") => self.server.output.close(),
            _ => self.text("written"),
        }
    }

    fn ask(&self) {
        let roots = ("roots/list", "{}");
        let form = (
            "elicitation/create",
            r#"{"mode":"form","message":"Go on?","requestedSchema":{"type":"object","properties":{"yes":{"type":"boolean"}}}}"#,
        );
        let sampling = (
            "sampling/createMessage",
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"maxTokens":8}"#,
        );
        let questions = match &*self.name {
            "ask-client" => vec![sampling],
            "ask-elicitation" => vec![form],
            "ask-roots" => vec![roots],
            _ => vec![roots, form],
        };
        let id = json::get(&self.arguments, &["id"]);
        let answers: Vec<_> =
            questions.iter().map(|(method, params)| self.server.ask(id, method, params.as_bytes())).collect();
        let answers: Vec<Vec<u8>> = answers.into_iter().filter_map(|answer| answer.recv().ok()).collect();
        if self.server.wait(&self.id, self.millis("then_ms")) {
            self.structured(&[b"{\"answers\":[", answers.join(&b","[..]).as_slice(), b"]}"].concat());
        }
    }

    fn task(&self) {
        let status = r#""status":"working","ttl":60000,"pollInterval":50"#;
        let task = format!(
            r#"{{"taskId":"task-1",{status},"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z"}}"#
        );
        if self.server.modern(&self.id) {
            let result = format!(r#"{{"resultType":"task",{}"#, &task[1..]);
            self.server.send(&self.id, b"result", result.as_bytes());
        } else {
            self.server.send(&self.id, b"result", format!(r#"{{"task":{task}}}"#).as_bytes());
        }
        let Some(token) = json::get(&self.params, &["_meta", "progressToken"]) else { return };
        for step in 1..=self.number("progress", 0) {
            let head = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
            let tail = format!(",\"progress\":{step}}}}}");
            self.server.output.frame(&[head, token, tail.as_bytes()].concat());
        }
    }

    fn input_required(&self) {
        if let Some(given) = json::get(&self.params, &["inputResponses"]) {
            let state = json::get(&self.params, &["requestState"]).unwrap_or(b"null");
            return self.structured(&[b"{\"given\":", given, b",\"state\":", state, b"}"].concat());
        }
        let result = br#"{"resultType":"input_required","inputRequests":{"ok":{"method":"elicitation/create","params":{"mode":"form","message":"Go on?","requestedSchema":{"type":"object","properties":{"yes":{"type":"boolean"}}}}}},"requestState":"state-1"}"#;
        self.server.send(&self.id, b"result", result);
    }

    fn slow_drain(&self) {
        let data = "x".repeat(usize::try_from(self.number("bytes", 1000)).unwrap_or(0));
        for number in 0..self.number("count", 10) {
            let frame = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{{"n":{number},"x":"{data}"}}}}}}"#
            );
            self.server.output.frame(frame.as_bytes());
        }
        self.text("drained");
    }

    fn structured(&self, value: &[u8]) {
        let head = br#"{"content":[{"type":"text","text":"see structuredContent"}],"structuredContent":"#;
        self.server.result(&self.id, &[head, value, b"}"].concat());
    }

    fn text(&self, text: &str) {
        self.server.result(&self.id, text_result(text).as_bytes());
    }

    fn error(&self, code: i64) {
        let code =
            json::get(&self.arguments, &["code"]).and_then(|code| serde_json::from_slice(code).ok()).unwrap_or(code);
        let message = self.string("message").unwrap_or_else(|| format!("{} failed", self.name));
        self.server.error(&self.id, code, &message, json::get(&self.arguments, &["data"]));
    }

    fn string(&self, name: &str) -> Option<String> {
        json::get_str(&self.arguments, &[name])
    }

    fn number(&self, name: &str, otherwise: u64) -> u64 {
        json::get_u64(&self.arguments, &[name]).unwrap_or(otherwise)
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name, 0))
    }
}

/// tasks/get, tasks/result (blocks for `ms`) and tasks/cancel.
pub(crate) fn task_method(server: &Arc<Server>, id: &[u8], method: &str, params: &[u8]) {
    match method {
        "tasks/result" => {
            let wait = Duration::from_millis(json::get_u64(params, &["ms"]).unwrap_or(0));
            let (server, id) = (Arc::clone(server), id.to_vec());
            std::thread::spawn(move || {
                if server.wait(&id, wait) {
                    server.result(&id, text_result("task done").as_bytes());
                }
            });
        }
        "tasks/get" => server.result(id, br#"{"taskId":"task-1","status":"completed"}"#),
        _ => server.result(id, br#"{"taskId":"task-1","status":"cancelled"}"#),
    }
}

fn text_result(text: &str) -> String {
    format!(r#"{{"content":[{{"type":"text","text":{}}}]}}"#, quote(text))
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
