//! Two accounts of a conversation, compared byte by byte, per request and per stream.
//!
//! An account is what `testpeer tap` wrote. What may differ is replaced before anything is compared, in the text and at
//! its place, so key order, number spelling, escapes and blanks still count:
//!
//! - `id` of requests and answers, in both directions, and `requestId` of cancels;
//! - `progressToken` of client `tools/call` requests and of the progress that answers to it;
//! - the `subscriptionId` that is the id of a listen request;
//! - `_meta.mcprelay` of `tools/call`, with a `_meta` that held nothing else;
//! - the members that a test lists as [`Volatile`].
//!
//! What a server still sends about a request after the client's cancel has crossed it on the wire is left out: whether
//! it comes depends on who is faster.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::json;

const SUBSCRIPTION: [&str; 3] = ["params", "_meta", "io.modelcontextprotocol/subscriptionId"];
const RESULT_SUBSCRIPTION: [&str; 3] = ["result", "_meta", "io.modelcontextprotocol/subscriptionId"];
const TOKEN_IN_REQUEST: [&str; 3] = ["params", "_meta", "progressToken"];
const TOKEN_IN_PROGRESS: [&str; 2] = ["params", "progressToken"];

/// A report names this many differences; one fault of a relay tends to show in every request.
const DIFFERENCES_SHOWN: usize = 6;

/// Who sent a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sender {
    Client,
    Server,
}

impl Sender {
    fn other(self) -> Sender {
        match self {
            Sender::Client => Sender::Server,
            Sender::Server => Sender::Client,
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Sender::Client => "> ",
            Sender::Server => "< ",
        }
    }
}

/// A member whose value is different each time: a clock, a random number. It is compared only by being there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volatile {
    /// The request's method.
    pub(crate) method: &'static str,
    /// The tool, prompt or URI it names; any if `None`.
    pub(crate) name: Option<&'static str>,
    /// The path of the member in the request or in its answer.
    pub(crate) path: &'static [&'static str],
}

/// The lines of an account, in the order in which they passed.
pub(crate) struct Account {
    lines: Vec<(Sender, Vec<u8>)>,
    /// The exit codes of the servers that were started, in the order of their ends.
    pub(crate) exits: Vec<String>,
}

impl Account {
    /// Reads what `testpeer tap` wrote.
    pub(crate) fn read(path: &Path) -> Account {
        let text = std::fs::read(path).unwrap_or_else(|error| panic!("no account at {}: {error}", path.display()));
        Account::parse(&text)
    }

    fn parse(text: &[u8]) -> Account {
        let mut account = Account { lines: Vec::new(), exits: Vec::new() };
        for line in text.split(|byte| *byte == b'\n') {
            match line {
                [b'>', b' ', frame @ ..] => account.lines.push((Sender::Client, frame.to_vec())),
                [b'<', b' ', frame @ ..] => account.lines.push((Sender::Server, frame.to_vec())),
                [b'=', b' ', code @ ..] => account.exits.push(String::from_utf8_lossy(code).into_owned()),
                b"" | b">." | b"<." => {}
                other => panic!("an account has no such line: {}", String::from_utf8_lossy(other)),
            }
        }
        account
    }

    /// The number of lines in both directions.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The lines of one sender.
    pub(crate) fn sent_by(&self, sender: Sender) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter(move |(by, _)| *by == sender).map(|(_, line)| line.as_slice())
    }
}

/// A conversation in a form that can be compared: what was said about each request, and each stream of the rest.
pub(crate) struct Conversation {
    threads: BTreeMap<String, Vec<String>>,
}

#[derive(Default)]
struct Builder<'a> {
    volatile: &'a [Volatile],
    threads: Vec<Thread>,
    /// Open requests by who asked and id text.
    open: BTreeMap<(Sender, Vec<u8>), usize>,
    /// Progress tokens by who asked and token text.
    tokens: BTreeMap<(Sender, Vec<u8>), usize>,
}

/// One request with all that belongs to it.
struct Thread {
    asker: Sender,
    method: String,
    name: Option<String>,
    lines: Vec<String>,
    cancelled: bool,
}

impl Conversation {
    /// Brings an account into comparable form.
    pub(crate) fn of(account: &Account, volatile: &[Volatile]) -> Conversation {
        let mut builder = Builder { volatile, ..Builder::default() };
        let mut streams: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (sender, line) in &account.lines {
            if let Some(rest) = builder.line(*sender, line) {
                let stream = format!("stream of the {sender:?}'s other messages");
                streams.entry(stream).or_default().push(rest);
            }
        }
        let mut threads = streams;
        for thread in builder.threads {
            // Requests that are alike are told apart by their order.
            let title = thread.lines[0].clone();
            let mut number = 1;
            while threads.contains_key(&format!("{title} #{number}")) {
                number += 1;
            }
            threads.insert(format!("{title} #{number}"), thread.lines);
        }
        Conversation { threads }
    }

    /// What was said about each request, without the streams of the rest.
    pub(crate) fn requests_only(mut self) -> Conversation {
        self.threads.retain(|title, _| !title.starts_with("stream of "));
        self
    }

    /// How many requests and streams there are.
    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// What is different in `other`, in words; `None` if nothing is.
    pub(crate) fn difference(&self, other: &Conversation, names: [&str; 2]) -> Option<String> {
        let mut found = Vec::new();
        for (title, lines) in &self.threads {
            match other.threads.get(title) {
                None => found.push(format!("\nonly in {}:\n{}", names[0], shown(lines))),
                Some(others) if lines != others => found.push(first_difference(lines, others, names)),
                Some(_) => {}
            }
        }
        for (title, lines) in &other.threads {
            if !self.threads.contains_key(title) {
                found.push(format!("\nonly in {}:\n{}", names[1], shown(lines)));
            }
        }
        let count = found.len();
        found.truncate(DIFFERENCES_SHOWN);
        if count > DIFFERENCES_SHOWN {
            found.push(format!("\n… and {} more differences\n", count - DIFFERENCES_SHOWN));
        }
        (count > 0).then(|| found.concat())
    }
}

impl Builder<'_> {
    /// Takes one line in; gives it back if it belongs to no request.
    fn line(&mut self, sender: Sender, line: &[u8]) -> Option<String> {
        let method = json::get_str(line, &["method"]);
        let id = json::get(line, &["id"]);
        match (method, id) {
            (Some(method), Some(id)) => self.request(sender, method, id, line),
            (None, Some(id)) => return self.answer(sender, id, line),
            (Some(method), None) => return self.notification(sender, &method, line),
            (None, None) => return Some(entry(sender, line)),
        }
        None
    }

    fn request(&mut self, sender: Sender, method: String, id: &[u8], line: &[u8]) {
        let mut edits = Edits::of(line, &[&["id"]]);
        let number = self.threads.len();
        if let Some(token) = json::get(line, &TOKEN_IN_REQUEST) {
            self.tokens.insert((sender, token.to_vec()), number);
        }
        if sender == Sender::Client && method == "tools/call" {
            edits.mask(&TOKEN_IN_REQUEST);
            edits.remove_mark();
        }
        let name = ["name", "uri"].iter().find_map(|member| json::get_str(line, &["params", member]));
        for volatile in self.volatile.iter().filter(|volatile| volatile.fits(&method, name.as_deref())) {
            edits.mask(volatile.path);
        }
        self.open.insert((sender, id.to_vec()), number);
        let lines = vec![entry(sender, &edits.apply())];
        self.threads.push(Thread { asker: sender, method, name, lines, cancelled: false });
    }

    fn answer(&mut self, sender: Sender, id: &[u8], line: &[u8]) -> Option<String> {
        let Some(&number) = self.open.get(&(sender.other(), id.to_vec())) else { return Some(entry(sender, line)) };
        let thread = &mut self.threads[number];
        let mut edits = Edits::of(line, &[&["id"]]);
        if json::get(line, &RESULT_SUBSCRIPTION) == Some(id) {
            edits.mask(&RESULT_SUBSCRIPTION);
        }
        for volatile in self.volatile.iter().filter(|volatile| volatile.fits(&thread.method, thread.name.as_deref())) {
            edits.mask(volatile.path);
        }
        thread.add(sender, &edits.apply());
        None
    }

    fn notification(&mut self, sender: Sender, method: &str, line: &[u8]) -> Option<String> {
        let (path, number): (&[&str], _) = match method {
            "notifications/cancelled" => {
                let id = json::get(line, &["params", "requestId"])?.to_vec();
                let own = self.open.get(&(sender, id.clone()));
                (&["params", "requestId"], own.or_else(|| self.open.get(&(sender.other(), id))))
            }
            "notifications/progress" => {
                let token = json::get(line, &TOKEN_IN_PROGRESS)?.to_vec();
                (&TOKEN_IN_PROGRESS, self.tokens.get(&(sender.other(), token)))
            }
            _ => {
                let id = json::get(line, &SUBSCRIPTION).map(<[u8]>::to_vec);
                (&SUBSCRIPTION, id.and_then(|id| self.open.get(&(sender.other(), id))))
            }
        };
        let Some(&number) = number else { return Some(entry(sender, line)) };
        let thread = &mut self.threads[number];
        let masked = method != "notifications/progress" || thread.method == "tools/call";
        let edits = if masked { Edits::of(line, &[path]) } else { Edits::of(line, &[]) };
        thread.add(sender, &edits.apply());
        thread.cancelled |= method == "notifications/cancelled" && sender == thread.asker;
        None
    }
}

impl Thread {
    fn add(&mut self, sender: Sender, line: &[u8]) {
        if !(self.cancelled && sender != self.asker) {
            self.lines.push(entry(sender, line));
        }
    }
}

impl Volatile {
    fn fits(&self, method: &str, name: Option<&str>) -> bool {
        self.method == method && self.name.is_none_or(|wanted| name == Some(wanted))
    }
}

/// Replacements in one line, applied from the back so that places stay valid.
struct Edits<'a> {
    line: &'a [u8],
    list: Vec<(Range<usize>, &'static [u8])>,
}

impl<'a> Edits<'a> {
    fn of(line: &'a [u8], masked: &[&[&str]]) -> Edits<'a> {
        let mut edits = Edits { line, list: Vec::new() };
        for path in masked {
            edits.mask(path);
        }
        edits
    }

    fn mask(&mut self, path: &[&str]) {
        if let Some(range) = json::find(self.line, path) {
            self.list.push((range, b"\xe2\x80\xa6"));
        }
    }

    /// Takes out `params._meta.mcprelay`, and a `_meta` that is empty without it.
    fn remove_mark(&mut self) {
        let meta = json::find(self.line, &["params", "_meta"]);
        let members = meta.and_then(|range| json::members(&self.line[range])).map(|members| members.len());
        let marked = json::find(self.line, &["params", "_meta", "mcprelay"]).is_some();
        match (members, marked) {
            (Some(0), _) | (Some(1), true) => self.remove(&["params", "_meta"]),
            (_, true) => self.remove(&["params", "_meta", "mcprelay"]),
            _ => {}
        }
    }

    /// Takes out a member with the comma that belongs to it: the one before it, or for the first the one after it.
    fn remove(&mut self, path: &[&str]) {
        let Some(value) = json::find(self.line, path) else { return };
        let name = path.last().map_or(0, |name| name.len() + 2);
        let head = &self.line[..value.start];
        let Some(colon) = head.iter().rposition(|byte| *byte == b':') else { return };
        let start = head[..colon].trim_ascii_end().len() - name;
        let before = self.line[..start].trim_ascii_end();
        let range = if before.last() == Some(&b',') {
            before.len() - 1..value.end
        } else {
            let rest = &self.line[value.end..];
            let comma = rest.iter().position(|byte| !byte.is_ascii_whitespace()).filter(|at| rest[*at] == b',');
            start..value.end + comma.map_or(0, |at| at + 1)
        };
        // What stands inside goes with it.
        self.list.retain(|(inner, _)| inner.start < range.start || inner.end > range.end);
        self.list.push((range, b""));
    }

    fn apply(mut self) -> Vec<u8> {
        self.list.sort_by_key(|(range, _)| range.start);
        let mut out = Vec::with_capacity(self.line.len());
        let mut from = 0;
        for (range, with) in &self.list {
            out.extend_from_slice(&self.line[from..range.start]);
            out.extend_from_slice(with);
            from = range.end;
        }
        out.extend_from_slice(&self.line[from..]);
        out
    }
}

fn entry(sender: Sender, line: &[u8]) -> String {
    format!("{}{}", sender.mark(), String::from_utf8_lossy(line))
}

fn shown(lines: &[String]) -> String {
    let cut = |line: &String| match line.char_indices().nth(400) {
        Some((at, _)) => format!("  {}… ({} bytes)\n", &line[..at], line.len()),
        None => format!("  {line}\n"),
    };
    lines.iter().map(cut).collect()
}

fn first_difference(left: &[String], right: &[String], names: [&str; 2]) -> String {
    let mut at = 0;
    while at < left.len() && at < right.len() && left[at] == right[at] {
        at += 1;
    }
    let head = format!("\nin: {}", shown(&left[..1]));
    let (Some(one), Some(two)) = (left.get(at), right.get(at)) else {
        let (name, more) = if at < left.len() { (names[0], &left[at..]) } else { (names[1], &right[at..]) };
        return format!("{head}  more in {name}:\n{}", shown(more));
    };
    let same = one.bytes().zip(two.bytes()).take_while(|(a, b)| a == b).count();
    let window = |line: &str| {
        let from = line.floor_char_boundary(same.saturating_sub(60));
        let to = line.floor_char_boundary((same + 160).min(line.len()));
        let (before, after) = (if from > 0 { "…" } else { "" }, if to < line.len() { "…" } else { "" });
        format!("{before}{}{after}", &line[from..to])
    };
    format!(
        "{head}  message {} differs at byte {same}:\n  {:>10}: {}\n  {:>10}: {}\n",
        at + 1,
        names[0],
        window(one),
        names[1],
        window(two)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECT: &str = r#"> {"id":0,"method":"tools/call","params":{"name":"a","arguments":{"x":1e5},"_meta":{"progressToken":"t"}}}
< {"method":"notifications/progress","params":{"progressToken":"t","progress":1}}
< {"method":"notifications/progress","params":{"progressToken":"t","progress":2}}
> {"id":1,"method":"tools/call","params":{"name":"b"}}
< {"result":{"b": 1.10},"id":1}
< {"result":{"a":1},"id":0}
> {"id":"L","method":"subscriptions/listen"}
< {"method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}
> {"method":"notifications/cancelled","params":{"requestId":"L"}}
< {"id":0,"method":"roots/list"}
> {"id":0,"result":{"roots":[]}}
< {"method":"notifications/message","params":{"data":1}}
< {"method":"notifications/message","params":{"data":2}}
"#;

    fn compare(other: &str) -> Option<String> {
        let conversation = |text: &str| Conversation::of(&Account::parse(text.as_bytes()), &[]);
        conversation(DIRECT).difference(&conversation(other), ["direct", "wrapped"])
    }

    #[test]
    fn the_splices_are_no_difference() {
        let wrapped = r#"> {"id":7,"method":"tools/call","params":{"name":"a","arguments":{"x":1e5},"_meta":{"progressToken":"m-1","mcprelay":{"correlation_id":"u"}}}}
< {"method":"notifications/progress","params":{"progressToken":"m-1","progress":1}}
> {"id":8,"method":"tools/call","params":{"name":"b","_meta":{"mcprelay":{"correlation_id":"v"}}}}
< {"method":"notifications/progress","params":{"progressToken":"m-1","progress":2}}
< {"result":{"a":1},"id":7}
< {"result":{"b": 1.10},"id":8}
> {"id":9,"method":"subscriptions/listen"}
< {"method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":9}}}
> {"method":"notifications/cancelled","params":{"requestId":9}}
< {"id":5,"method":"roots/list"}
> {"id":5,"result":{"roots":[]}}
< {"method":"notifications/message","params":{"data":1}}
< {"method":"notifications/message","params":{"data":2}}
"#;
        assert_eq!(compare(wrapped), None);
    }

    #[test]
    fn every_other_change_is_a_difference() {
        let changes = [
            ("1e5", "100000.0"),
            (r#"{"b": 1.10}"#, r#"{"b":1.10}"#),
            (r#""progress":1"#, r#""progress":3"#),
            (r#"{"result":{"a":1},"id":0}"#, r#"{"id":0,"result":{"a":1}}"#),
            (r#"{"result":{"a":1},"id":0}"#, r#"{"result":{"a":1},"id":1}"#),
            (r#"subscriptionId":"L""#, r#"subscriptionId":"M""#),
            (r#"requestId":"L""#, r#"requestId":"M""#),
            (r#"{"progressToken":"t","progress":1}"#, r#"{"progressToken":"u","progress":1}"#),
            (r#"{"data":1}"#, r#"{"data":2}"#),
            ("> {\"id\":0,\"result\":{\"roots\":[]}}\n", ""),
            (r#"{"name":"b"}"#, r#"{"name":"b","_meta":{"other":1}}"#),
        ];
        for (from, to) in changes {
            let changed = DIRECT.replacen(from, to, 1);
            assert_ne!(changed, DIRECT, "{from} is not in the text");
            assert!(compare(&changed).is_some(), "{from} -> {to} was not seen");
        }
    }

    #[test]
    fn an_answer_that_goes_to_the_wrong_request_is_a_difference() {
        let swapped = DIRECT.replace(r#"},"id":1}"#, r#"},"id":9}"#).replace(r#"},"id":0}"#, r#"},"id":1}"#);
        assert!(compare(&swapped.replace(r#"},"id":9}"#, r#"},"id":0}"#)).is_some());
    }

    #[test]
    fn the_report_names_both_sides_and_the_place() {
        let report = compare(&DIRECT.replace("1.10", "1.1")).expect("a difference");
        assert!(report.contains("direct: < {\"result\":{\"b\": 1.10}"), "{report}");
        assert!(report.contains("wrapped: < {\"result\":{\"b\": 1.1}"), "{report}");
    }
}
