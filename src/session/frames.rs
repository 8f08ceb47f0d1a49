//! The frames that we send to a server ourselves, and what its answers say.

use super::opening::{Era, LEGACY_VERSIONS, MODERN_VERSION};
use crate::wire::json::{Json, Kind};
use crate::wire::message::Message;
use crate::wire::splice::quote;

/// JSON-RPC 2.0 section 5.1, given to requests for what we declared no capability for.
const METHOD_NOT_FOUND: i64 = crate::wire::message::METHOD_NOT_FOUND;

fn client_info() -> String {
    format!(r#"{{"name":"mcprelay","version":"{}"}}"#, env!("CARGO_PKG_VERSION"))
}

/// The members of `params._meta` that every modern request carries.
fn modern_meta() -> String {
    format!(
        "\"io.modelcontextprotocol/protocolVersion\":\"{MODERN_VERSION}\",\
         \"io.modelcontextprotocol/clientInfo\":{},\
         \"io.modelcontextprotocol/clientCapabilities\":{{}}",
        client_info()
    )
}

/// A request whose params are the given members (JSON text, without braces) and `_meta`.
fn request(id: u64, method: &str, members: &[u8], meta: &[u8]) -> Vec<u8> {
    let mut params = members.to_vec();
    if !meta.is_empty() {
        if !params.is_empty() {
            params.push(b',');
        }
        params.extend_from_slice(&[b"\"_meta\":{", meta, b"}"].concat());
    }
    let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"#);
    [head.as_bytes(), &params, b"}}"].concat()
}

pub(super) fn discover(id: u64) -> Vec<u8> {
    request(id, "server/discover", b"", modern_meta().as_bytes())
}

pub(super) fn initialize(id: u64) -> Vec<u8> {
    let version = LEGACY_VERSIONS[0];
    let members = format!(r#""protocolVersion":"{version}","capabilities":{{}},"clientInfo":{}"#, client_info());
    request(id, "initialize", members.as_bytes(), b"")
}

pub(super) fn initialized() -> Vec<u8> {
    br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_vec()
}

/// `cursor` is JSON text as the server wrote it.
pub(super) fn tools_list(era: Era, id: u64, cursor: Option<&[u8]>) -> Vec<u8> {
    let members = cursor.map(|cursor| [b"\"cursor\":", cursor].concat()).unwrap_or_default();
    request(id, "tools/list", &members, meta(era, &[]).as_slice())
}

/// `arguments` and the values of `extra` are JSON text and go out as they are.
pub(super) fn tools_call(
    era: Era,
    id: u64,
    tool: &str,
    arguments: Option<&[u8]>,
    extra: &[(&str, Vec<u8>)],
) -> Vec<u8> {
    let mut members = [b"\"name\":", &quote(tool)[..]].concat();
    if let Some(arguments) = arguments {
        members.extend_from_slice(b",\"arguments\":");
        members.extend_from_slice(arguments);
    }
    request(id, "tools/call", &members, &meta(era, extra))
}

fn meta(era: Era, extra: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut members = match era {
        Era::Legacy => Vec::new(),
        Era::Modern => vec![modern_meta().into_bytes()],
    };
    members.extend(extra.iter().map(|(name, value)| [&quote(name)[..], b":", value].concat()));
    members.join(&b","[..])
}

pub(super) fn cancelled(id: u64) -> Vec<u8> {
    let params = format!(r#"{{"requestId":{id},"reason":"timed out"}}"#);
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#).into_bytes()
}

/// Our answer to a request of the server: we are there, and can do nothing for it.
pub(super) fn answer_to(request: &Message, id: &[u8]) -> Vec<u8> {
    let body = match request.method_name().as_deref() {
        Some("ping") => "\"result\":{}}".to_owned(),
        _ => format!("\"error\":{{\"code\":{METHOD_NOT_FOUND},\"message\":\"this client cannot do that\"}}}}"),
    };
    [b"{\"jsonrpc\":\"2.0\",\"id\":", id, b",", body.as_bytes()].concat()
}

/// The strings of the array called `name`.
pub(super) fn strings_of(object: Option<Json<'_>>, name: &str) -> Vec<String> {
    let array = object.and_then(|object| object.member(name)).filter(|value| value.kind() == Kind::Array);
    array.into_iter().flat_map(Json::elements).filter_map(|value| value.as_str().map(Into::into)).collect()
}

/// An error of the server in words: its message and code.
pub(super) fn error_text(error: Json<'_>) -> String {
    let message = error.member("message").and_then(Json::as_str).unwrap_or("error without a message".into());
    match error.member("code") {
        Some(code) => format!("{message} ({})", String::from_utf8_lossy(code.text())),
        None => message.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{FromUpstream, from_upstream};

    fn text(frame: &[u8]) -> &str {
        Json::parse(frame).expect("frames are JSON");
        std::str::from_utf8(frame).expect("frames are text")
    }

    #[test]
    fn jsn_2_stored_arguments_are_sent_byte_for_byte() {
        let arguments = br#"{ "n":1.10, "big":12345678901234567890e400,"s":"\u00e9" }"#;
        let meta = [("idempotencyKey", quote("k\"1"))];
        let frame = tools_call(Era::Legacy, 7, "a\"b", Some(arguments), &meta);
        assert_eq!(
            text(&frame),
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a\"b","arguments":{ "n":1.10, "big":12345678901234567890e400,"s":"\u00e9" },"_meta":{"idempotencyKey":"k\"1"}}}"#
        );
        let frame = tools_call(Era::Legacy, 7, "t", None, &[]);
        assert_eq!(text(&frame), r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#);
    }

    #[test]
    fn modern_requests_say_version_and_capabilities_and_legacy_ones_do_not() {
        let modern = text(&discover(1)).to_owned() + text(&tools_list(Era::Modern, 2, Some(b"\"\"")));
        assert_eq!(modern.matches("io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"").count(), 2);
        assert_eq!(modern.matches("clientCapabilities\":{}").count(), 2);
        assert!(modern.contains(r#""params":{"cursor":"","_meta":{"#), "{modern}");
        assert_eq!(
            text(&tools_list(Era::Legacy, 2, None)),
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#
        );
        assert!(text(&initialize(1)).contains(r#""protocolVersion":"2025-11-25","capabilities":{}"#));
    }

    #[test]
    fn a_ping_is_answered_and_all_else_refused_under_the_server_s_own_id() {
        let answer = |frame: &str| {
            let FromUpstream::Message(message) = from_upstream(frame.as_bytes().to_vec()) else { panic!("{frame}") };
            String::from_utf8(answer_to(&message, b"\"\\u0061\"")).expect("text")
        };
        assert_eq!(answer(r#"{"id":"a","method":"ping"}"#), r#"{"jsonrpc":"2.0","id":"\u0061","result":{}}"#);
        for method in ["sampling/createMessage", "elicitation/create", "roots/list"] {
            let answer = answer(&format!(r#"{{"id":"a","method":"{method}"}}"#));
            assert!(answer.contains(r#""error":{"code":-32601,"#), "{answer}");
            Json::parse(answer.as_bytes()).expect("JSON");
        }
    }
}
