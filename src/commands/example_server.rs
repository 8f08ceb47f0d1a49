//! The MCP server of `mcprelay demo`: small, of both eras, with tools that fail on purpose.
//!
//! `mcprelay example-server <directory>` keeps its state in the directory: `notes` is what `add_note` wrote, `rates` how
//! often `get_rate` was called, and while there is a file `disk-full`, `add_note` fails.

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;

use crate::wire::framer::{FRAME_BYTES_MAX_DEFAULT, Framed, Framer};
use crate::wire::json::{Json, Kind};
use crate::wire::message::{FromClient, INVALID_PARAMS, METHOD_NOT_FOUND, Message, Role, from_client};
use crate::wire::splice::quote;

/// `get_rate` fails so often before it works.
pub const BUSY_ANSWERS: usize = 2;

/// JSON-RPC's range for errors of servers.
const SERVER_ERROR: i64 = -32000;

const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

const TOOLS: &str = concat!(
    r#"{"name":"get_rate","description":"The exchange rate of a currency; busy at first.","inputSchema":"#,
    r#"{"type":"object","properties":{"currency":{"type":"string"}},"required":["currency"]}},"#,
    r#"{"name":"add_note","description":"Appends a line to the notes.","inputSchema":"#,
    r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}"#,
);

/// What a request comes to: the JSON text of the result's members, or a code and a message.
type Answer = Result<String, (i64, String)>;

/// Serves `input` on `output` until `input` ends.
///
/// # Errors
/// If either fails. A client that has gone away is no error.
pub fn run(state: &Path, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut framer = Framer::new(FRAME_BYTES_MAX_DEFAULT);
    let mut frames = Vec::new();
    loop {
        let chunk = input.fill_buf()?;
        let count = chunk.len();
        if count == 0 {
            return Ok(());
        }
        framer.push(chunk, &mut frames);
        input.consume(count);
        for framed in frames.drain(..) {
            let Framed::Frame(frame) = framed else { continue };
            let FromClient::Message(message) = from_client(frame) else { continue };
            let Role::Request { id, .. } = &message.role else { continue };
            let body = match answer(state, &message) {
                Ok(members) => format!(r#""result":{{"resultType":"complete",{members}}}"#).into_bytes(),
                Err((code, text)) => {
                    [format!(r#""error":{{"code":{code},"message":"#).as_bytes(), &quote(&text), b"}"].concat()
                }
            };
            let frame = [b"{\"jsonrpc\":\"2.0\",\"id\":", id.raw(), b",", &body, b"}\n"].concat();
            match output.write_all(&frame).and_then(|()| output.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                result => result?,
            }
        }
    }
}

fn answer(state: &Path, request: &Message) -> Answer {
    let params = request.params();
    let param = |name: &str| params.and_then(|params| params.member(name));
    let info = format!(r#"{{"name":"example","version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    let caching = r#""ttlMs":0,"cacheScope":"private""#;
    match request.method_name().as_deref().unwrap_or_default() {
        "server/discover" => Ok(format!(
            r#""supportedVersions":["2026-07-28"],"capabilities":{{"tools":{{}}}},{caching},"_meta":{{"io.modelcontextprotocol/serverInfo":{info}}}"#
        )),
        "initialize" => {
            let asked = param("protocolVersion").and_then(Json::as_str).unwrap_or_default();
            let version = VERSIONS.into_iter().find(|version| *version == asked).unwrap_or(VERSIONS[0]);
            Ok(format!(r#""protocolVersion":"{version}","capabilities":{{"tools":{{}}}},"serverInfo":{info}"#))
        }
        "ping" => Ok(r#""_meta":{}"#.to_owned()),
        "tools/list" => Ok(format!(r#""tools":[{TOOLS}],{caching}"#)),
        "tools/call" => {
            let name = param("name").and_then(Json::as_str).unwrap_or_default();
            let argument = |name: &str| match param("arguments").and_then(|arguments| arguments.member(name)) {
                Some(value) if value.kind() == Kind::String => Ok(value.as_str().unwrap_or_default().into_owned()),
                _ => Err((INVALID_PARAMS, format!("the argument {name} must be a text"))),
            };
            let text = match name.as_ref() {
                "get_rate" => get_rate(state, &argument("currency")?)?,
                "add_note" => add_note(state, &argument("text")?)?,
                other => return Err((INVALID_PARAMS, format!("unknown tool {other:?}"))),
            };
            let text = String::from_utf8_lossy(&quote(&text)).into_owned();
            Ok(format!(r#""content":[{{"type":"text","text":{text}}}]"#))
        }
        other => Err((METHOD_NOT_FOUND, format!("unknown method {other:?}"))),
    }
}

fn get_rate(state: &Path, currency: &str) -> Result<String, (i64, String)> {
    let file = state.join("rates");
    let calls = fs::read(&file).map_or(0, |calls| calls.len());
    append(&file, "x")?;
    if calls < BUSY_ANSWERS {
        return Err((SERVER_ERROR, "the bank is busy, try again".to_owned()));
    }
    Ok(format!("1 {currency} is 1.10 USD"))
}

fn add_note(state: &Path, text: &str) -> Result<String, (i64, String)> {
    if state.join("disk-full").exists() {
        return Err((SERVER_ERROR, "no space left for notes".to_owned()));
    }
    append(&state.join("notes"), &format!("{text}\n"))?;
    Ok("noted".to_owned())
}

fn append(file: &Path, text: &str) -> Result<(), (i64, String)> {
    let opened = fs::File::options().append(true).create(true).open(file);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| (SERVER_ERROR, format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(state: &Path, input: &str) -> Vec<String> {
        let mut output = Vec::new();
        run(state, &mut input.as_bytes(), &mut output).expect("it serves");
        let output = String::from_utf8(output).expect("text");
        output
            .lines()
            .map(|line| {
                Json::parse(line.as_bytes()).expect("JSON");
                line.to_owned()
            })
            .collect()
    }

    fn call(tool: &str, arguments: &str) -> String {
        format!(
            r#"{{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        ) + "\n"
    }

    #[test]
    fn it_opens_in_both_eras_and_answers_requests_only() {
        let state = Path::new("/nonexistent");
        let answers = serve(
            state,
            concat!(
                r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#,
                "\n",
                r#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}"#,
                "\n",
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
                "\nnoise\n",
                r#"{"jsonrpc":"2.0","id":3,"method":"tools/list"}"#,
                "\n",
                r#"{"jsonrpc":"2.0","id":4,"method":"x/y"}"#,
                "\n",
            ),
        );
        assert_eq!(answers.len(), 4);
        assert!(answers[0].contains(r#""supportedVersions":["2026-07-28"]"#), "{}", answers[0]);
        assert!(answers[1].contains(r#""protocolVersion":"2025-03-26""#), "{}", answers[1]);
        assert!(answers[2].contains(r#""name":"get_rate""#) && answers[2].contains(r#""name":"add_note""#));
        assert!(answers[3].contains("-32601"), "{}", answers[3]);
    }

    #[test]
    fn its_tools_fail_as_the_story_needs_it() {
        let state = std::env::temp_dir().join(format!("mcprelay-example-{}", std::process::id()));
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(&state).expect("a temporary directory");
        let rate = call("get_rate", r#"{"currency":"EUR"}"#);
        let answers = serve(&state, &rate.repeat(3));
        let busy = answers.iter().filter(|answer| answer.contains("busy")).count();
        assert_eq!((busy, answers[2].contains("1 EUR is")), (BUSY_ANSWERS, true), "{answers:?}");

        fs::write(state.join("disk-full"), "").expect("written");
        assert!(serve(&state, &call("add_note", r#"{"text":"a"}"#))[0].contains("no space"));
        fs::remove_file(state.join("disk-full")).expect("removed");
        assert!(serve(&state, &call("add_note", r#"{"text":"b"}"#))[0].contains("noted"));
        assert!(serve(&state, &call("add_note", r#"{"text":1}"#))[0].contains("-32602"));
        assert_eq!(fs::read_to_string(state.join("notes")).expect("notes"), "b\n");
        let _ = fs::remove_dir_all(&state);
    }
}
