//! The HTTP headers that mirror a message's body (MCP 2026-07-28, Streamable HTTP): computed from the body that is sent.

use std::collections::BTreeSet;

use super::json::{Json, Kind, Span};
use super::message::{Message, Role};
use super::number::Decimal;
use super::splice::Edits;

/// `_meta` of a modern request: the revision it is written in.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// The annotation that asks for a header.
const ANNOTATION: &str = "x-mcp-header";

/// Schemas nested deeper than this are not looked into: no annotation is expected there, and reading would cost its depth
/// times its length.
const SCHEMA_DEPTH_MAX: usize = 100;

/// Keywords whose value is a schema or a list of schemas, under which no annotation may stand.
const APPLICATORS: [&str; 16] = [
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "oneOf",
    "anyOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

/// Keywords whose value maps names to schemas, under which no annotation may stand.
const SCHEMA_MAPS: [&str; 5] = ["patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// An argument that is mirrored into a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The header's name, `Mcp-Param-…`.
    pub name: String,
    /// The names that lead from `arguments` to the value.
    pub path: Vec<String>,
}

/// The headers that a tool's input schema asks for.
///
/// # Errors
/// Why the schema's annotations are not valid, so that a client must not offer the tool.
pub fn param_headers(input_schema: Json<'_>) -> Result<Vec<ParamHeader>, String> {
    let mut found: Vec<ParamHeader> = Vec::new();
    let mut names = BTreeSet::new();
    let mut stack = vec![Place { schema: input_schema, path: Vec::new(), plain: true, depth: 0 }];
    while let Some(place) = stack.pop() {
        if place.depth > SCHEMA_DEPTH_MAX {
            continue;
        }
        for member in place.schema.members() {
            let key = member.key;
            if key.is(ANNOTATION) {
                let header = place.annotated(member.value)?;
                if !names.insert(header.name.to_ascii_lowercase()) {
                    return Err(format!("{ANNOTATION} {:?} occurs twice", &header.name["Mcp-Param-".len()..]));
                }
                found.push(header);
            } else if key.is("properties") {
                for property in member.value.members() {
                    let mut path = place.path.clone();
                    path.push(property.key.unescape_lossy().into_owned());
                    stack.push(Place { schema: property.value, path, plain: place.plain, depth: place.depth + 1 });
                }
            } else if SCHEMA_MAPS.iter().any(|name| key.is(name)) {
                stack.extend(member.value.members().map(|entry| place.aside(entry.value)));
            } else if APPLICATORS.iter().any(|name| key.is(name)) {
                stack.push(place.aside(member.value));
                stack.extend(member.value.elements().map(|schema| place.aside(schema)));
            }
        }
    }
    // The stack turns the order around; nothing depends on it, but equal schemas should give equal lists.
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// A schema inside a tool's input schema.
struct Place<'a> {
    schema: Json<'a>,
    /// The names of the properties that lead to it.
    path: Vec<String>,
    /// It is reached through `properties` alone.
    plain: bool,
    depth: usize,
}

impl<'a> Place<'a> {
    /// A schema in here that does not stand for one argument.
    fn aside(&self, schema: Json<'a>) -> Place<'a> {
        Place { schema, path: Vec::new(), plain: false, depth: self.depth + 1 }
    }

    fn annotated(&self, value: Json<'_>) -> Result<ParamHeader, String> {
        let Some(name) = value.as_str() else { return Err(format!("{ANNOTATION} is not a text")) };
        if !is_token(&name) {
            return Err(format!("{ANNOTATION} {name:?} is not a header name"));
        }
        if !self.plain || self.path.is_empty() {
            return Err(format!("{ANNOTATION} {name:?} does not stand at a property"));
        }
        let kind = self.schema.member("type").and_then(Json::as_str);
        if !matches!(kind.as_deref(), Some("string" | "integer" | "boolean")) {
            return Err(format!("{ANNOTATION} {name:?} stands at a property that is not a string, integer or boolean"));
        }
        Ok(ParamHeader { name: format!("Mcp-Param-{name}"), path: self.path.clone() })
    }
}

/// Whether `name` is a token as RFC 9110 section 5.6.2 allows for header names.
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// The revision that a message says it is written in; only modern ones say it.
#[must_use]
pub fn claimed_version(message: &Message) -> Option<String> {
    Some(message.params_meta()?.member(PROTOCOL_VERSION)?.as_str()?.into_owned())
}

/// The headers of a modern request, besides the version's: what is asked, of what, and the arguments in `params`.
/// Nothing for a message that is no request, for which the protocol defines none.
#[must_use]
pub fn mirrored(message: &Message, params: &[ParamHeader]) -> Vec<(String, String)> {
    let Role::Request { .. } = message.role else { return Vec::new() };
    let method = message.method_name().unwrap_or_default();
    let mut headers = vec![("Mcp-Method".to_owned(), field_value(&method))];
    let named_by = match &*method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        tasks if tasks.starts_with("tasks/") => Some("taskId"),
        _ => None,
    };
    let name = named_by.and_then(|member| message.params()?.member(member)?.raw_str());
    if let Some(name) = name {
        headers.push(("Mcp-Name".to_owned(), field_value(&name.unescape_lossy())));
    }
    let arguments = message.params().and_then(|params| params.member("arguments"));
    for param in params {
        let mut value = arguments;
        for name in &param.path {
            value = value.and_then(|object| object.member(name));
        }
        if let Some(text) = value.and_then(plain_text) {
            headers.push((param.name.clone(), field_value(&text)));
        }
    }
    headers
}

/// The form of an argument in a header; `None` if it has none, as `null` does.
fn plain_text(value: Json<'_>) -> Option<String> {
    match value.kind() {
        Kind::String => Some(value.raw_str()?.unescape_lossy().into_owned()),
        Kind::Number => Some(Decimal::parse(value.text())?.canonical()),
        Kind::True => Some("true".to_owned()),
        Kind::False => Some("false".to_owned()),
        Kind::Object | Kind::Array | Kind::Null => None,
    }
}

/// `text` as a header's value: as it is where that is safe, else in the protocol's base64 form.
#[must_use]
pub fn field_value(text: &str) -> String {
    let clean = text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let blank = |end: Option<char>| end.is_none_or(|end| matches!(end, ' ' | '\t'));
    let looks_wrapped = text.starts_with("=?base64?") && text.ends_with("?=");
    if clean && !blank(text.chars().next()) && !blank(text.chars().next_back()) && !looks_wrapped {
        return text.to_owned();
    }
    format!("=?base64?{}?=", base64(text.as_bytes()))
}

/// Standard base64 with padding (RFC 4648 section 4).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            out.push(if digit <= three.len() { DIGITS[index].into() } else { '=' });
        }
    }
    out
}

/// The tools of a `tools/list` result: each name with its headers, or with why it must not be offered.
#[must_use]
pub fn listed_tools(result: Json<'_>) -> Vec<(String, Result<Vec<ParamHeader>, String>)> {
    let tools = result.member("tools").filter(|tools| tools.kind() == Kind::Array);
    let named = |tool: Json<'_>| {
        let name = tool.member("name")?.raw_str()?.unescape_lossy().into_owned();
        Some((name, tool.member("inputSchema").map_or(Ok(Vec::new()), param_headers)))
    };
    tools.into_iter().flat_map(Json::elements).filter_map(named).collect()
}

/// A tool that must not be offered over HTTP: its name, and what is wrong with it.
pub type InvalidTool = (String, String);

/// The answer to `tools/list` without the tools that a client must not offer over HTTP, and their names and faults.
/// `None` if there are none, so that the answer stays as it came.
#[must_use]
pub fn without_invalid_tools(answer: &Message) -> Option<(Vec<u8>, Vec<InvalidTool>)> {
    let tools = answer.result()?.member("tools").filter(|tools| tools.kind() == Kind::Array)?;
    let spans: Vec<Span> = tools.elements().map(|tool| tool.span_in(&answer.bytes)).collect();
    let mut edits = Edits::new();
    let mut dropped = Vec::new();
    let mut kept_any = false;
    for (index, tool) in tools.elements().enumerate() {
        let Some(Err(fault)) = tool.member("inputSchema").map(param_headers) else {
            kept_any = true;
            continue;
        };
        let name = tool.member("name").and_then(Json::raw_str).map(|name| name.unescape_lossy().into_owned());
        dropped.push((name.unwrap_or_default(), fault));
        // One comma goes with it: the one before it, or after it where no tool stays in front.
        let span = spans[index];
        let span = if kept_any {
            Span { start: spans[index - 1].end, end: span.end }
        } else {
            Span { start: span.start, end: spans.get(index + 1).map_or(span.end, |next| next.start) }
        };
        edits.replace(span, &b""[..]);
    }
    (!dropped.is_empty()).then(|| (edits.apply(&answer.bytes), dropped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{FromClient, FromUpstream, from_client, from_upstream};

    fn json(text: &str) -> Json<'_> {
        Json::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn request(method: &str, params: &str) -> Message {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let FromClient::Message(message) = from_client(text.into_bytes()) else { panic!("{method} {params}") };
        message
    }

    fn header(name: &str, path: &[&str]) -> ParamHeader {
        ParamHeader { name: name.to_owned(), path: path.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn values_are_written_as_the_protocol_s_table_has_them() {
        for (text, expected) in [
            ("eu-1", "eu-1"),
            ("日本", "=?base64?5pel5pys?="),
            (" x ", "=?base64?IHgg?="),
            ("=?base64?a?=", "=?base64?PT9iYXNlNjQ/YT89?="),
            ("-7", "-7"),
            ("a\tb", "a\tb"),
            ("a\t", "=?base64?YQk=?="),
            ("a\r\nX: y", "=?base64?YQ0KWDogeQ==?="),
            ("", "=?base64??="),
            ("=?base64?a", "=?base64?a"),
            ("=?BASE64?c3Vt?=", "=?BASE64?c3Vt?="),
            ("\u{7f}", "=?base64?fw==?="),
        ] {
            assert_eq!(field_value(text), expected, "{text:?}");
        }
    }

    #[test]
    fn the_headers_of_a_request_say_what_its_body_says() {
        let headers = |method, params| {
            let pairs = mirrored(&request(method, params), &[]);
            pairs.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(" | ")
        };
        assert_eq!(headers("tools/list", "{}"), "Mcp-Method: tools/list");
        assert_eq!(headers("tools/call", r#"{"name":"sum"}"#), "Mcp-Method: tools/call | Mcp-Name: sum");
        assert_eq!(headers("prompts/get", r#"{"name":"\u0061"}"#), "Mcp-Method: prompts/get | Mcp-Name: a");
        assert_eq!(
            headers("resources/read", r#"{"uri":"file:///w/a%20b.txt","name":"no"}"#),
            "Mcp-Method: resources/read | Mcp-Name: file:///w/a%20b.txt"
        );
        assert_eq!(headers("tasks/get", r#"{"taskId":"t1"}"#), "Mcp-Method: tasks/get | Mcp-Name: t1");
        assert_eq!(headers("completion/complete", r#"{"name":"x"}"#), "Mcp-Method: completion/complete");
        let told = br#"{"jsonrpc":"2.0","method":"notifications/x","params":{"name":"n"}}"#.to_vec();
        let FromClient::Message(told) = from_client(told) else { panic!("a message") };
        assert_eq!(mirrored(&told, &[]), []);
    }

    #[test]
    fn annotated_arguments_are_mirrored_and_absent_ones_are_not() {
        let params = [
            header("Mcp-Param-Region", &["region"]),
            header("Mcp-Param-N", &["deep", "n"]),
            header("Mcp-Param-B", &["b"]),
        ];
        let values = |arguments: &str| {
            let message = request("tools/call", &format!(r#"{{"name":"t","arguments":{arguments}}}"#));
            mirrored(&message, &params).split_off(2)
        };
        let pair = |name: &str, value: &str| (format!("Mcp-Param-{name}"), value.to_owned());
        assert_eq!(
            values(r#"{"region":"eu-1","deep":{"n":4.20e1},"b":false}"#),
            [pair("Region", "eu-1"), pair("N", "42"), pair("B", "false")]
        );
        assert_eq!(values(r#"{"region":null,"deep":{"n":-7},"c":1}"#), [pair("N", "-7")]);
        assert_eq!(values(r#"{"deep":{"n":9007199254740991}}"#), [pair("N", "9007199254740991")]);
        assert_eq!(values(r#"{"deep":7,"region":"\u65e5\u672c"}"#), [pair("Region", "=?base64?5pel5pys?=")]);
        assert_eq!(mirrored(&request("tools/call", r#"{"name":"t"}"#), &params).len(), 2);
    }

    #[test]
    fn annotations_are_found_at_properties_however_deep() {
        let schema = r#"{"type":"object","properties":{
            "region":{"type":"string","x-mcp-header":"Region"},
            "place":{"type":"object","properties":{"n":{"x-mcp-header":"N","type":"integer"}}},
            "x-mcp-header":{"type":"string"},
            "plain":{"type":"number","default":{"x-mcp-header":"no"},"enum":[{"x-mcp-header":"no"}]}}}"#;
        let expected = [header("Mcp-Param-N", &["place", "n"]), header("Mcp-Param-Region", &["region"])];
        assert_eq!(param_headers(json(schema)), Ok(expected.to_vec()));
        assert_eq!(param_headers(json("{}")), Ok(Vec::new()));
        assert_eq!(param_headers(json("true")), Ok(Vec::new()));
    }

    #[test]
    fn every_fault_of_an_annotation_makes_the_tool_invalid() {
        let one = |property: &str| format!(r#"{{"properties":{{"a":{property}}}}}"#);
        for (schema, fault) in [
            (one(r#"{"type":"string","x-mcp-header":""}"#), "is not a header name"),
            (one(r#"{"type":"string","x-mcp-header":"a b"}"#), "is not a header name"),
            (one(r#"{"type":"string","x-mcp-header":"a:"}"#), "is not a header name"),
            (one(r#"{"type":"string","x-mcp-header":"a\r\nb"}"#), "is not a header name"),
            (one(r#"{"type":"string","x-mcp-header":"é"}"#), "is not a header name"),
            (one(r#"{"type":"string","x-mcp-header":1}"#), "is not a text"),
            (one(r#"{"type":"number","x-mcp-header":"A"}"#), "not a string, integer or boolean"),
            (one(r#"{"type":"object","x-mcp-header":"A"}"#), "not a string, integer or boolean"),
            (one(r#"{"type":["string","null"],"x-mcp-header":"A"}"#), "not a string, integer or boolean"),
            (one(r#"{"x-mcp-header":"A"}"#), "not a string, integer or boolean"),
            (r#"{"type":"string","x-mcp-header":"A"}"#.to_owned(), "does not stand at a property"),
            (one(r#"{"items":{"type":"string","x-mcp-header":"A"}}"#), "does not stand at a property"),
            (one(r#"{"items":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}"#), "does not stand"),
            (one(r#"{"oneOf":[{"type":"string","x-mcp-header":"A"}]}"#), "does not stand"),
            (one(r#"{"additionalProperties":{"type":"string","x-mcp-header":"A"}}"#), "does not stand"),
            (r#"{"$defs":{"d":{"type":"string","x-mcp-header":"A"}}}"#.to_owned(), "does not stand"),
            (r#"{"if":{"properties":{"d":{"type":"string","x-mcp-header":"A"}}}}"#.to_owned(), "does not stand"),
            (
                r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"string","x-mcp-header":"a"}}}}}"#
                    .to_owned(),
                "occurs twice",
            ),
        ] {
            let found = param_headers(json(&schema)).expect_err(&schema);
            assert!(found.contains(fault), "{schema}: {found}");
        }
    }

    #[test]
    fn a_schema_of_any_depth_is_read_without_harm() {
        let deep = format!("{}true{}", r#"{"properties":{"a":"#.repeat(20_000), "}}".repeat(20_000));
        assert_eq!(param_headers(json(&deep)), Ok(Vec::new()));
    }

    #[test]
    fn invalid_tools_are_cut_from_the_list_and_nothing_else_changes() {
        let good = r#"{ "name":"g","inputSchema":{"type":"object"} , "x":1.0e5}"#;
        let bad = r#"{"name":"b","inputSchema":{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}}"#;
        for count in 0..16_u32 {
            for length in 0..=4_usize {
                let parts: Vec<&str> = (0..length).map(|i| if count >> i & 1 == 1 { bad } else { good }).collect();
                let kept = parts.iter().filter(|part| **part == good).count();
                let text =
                    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[ {} ],"ttlMs":0}}}}"#, parts.join(" , "));
                let FromUpstream::Message(message) = from_upstream(text.clone().into_bytes()) else { panic!("{text}") };
                let cut = without_invalid_tools(&message);
                if kept == length {
                    assert_eq!(cut, None, "{text}");
                    continue;
                }
                let (bytes, dropped) = cut.unwrap_or_else(|| panic!("nothing was cut from {text}"));
                assert_eq!(dropped.len(), length - kept);
                assert!(dropped.iter().all(|(name, fault)| name == "b" && fault.contains("\"A\"")), "{dropped:?}");
                let out = String::from_utf8(bytes).expect("text");
                let tools = json(&out).member("result").and_then(|result| result.member("tools")).expect("tools");
                assert_eq!(tools.elements().map(|tool| tool.text()).collect::<Vec<_>>(), vec![good.as_bytes(); kept]);
                assert!(out.ends_with(r#" ],"ttlMs":0}}"#), "{out}");
            }
        }
    }

    #[test]
    fn the_listing_tells_each_tool_s_headers() {
        let list = r#"{"tools":[{"name":"a","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}},
            {"name":"b"},{"nameless":1},{"name":"c","inputSchema":{"x-mcp-header":"X"}}]}"#;
        let found = listed_tools(json(list));
        assert_eq!(found[0], ("a".to_owned(), Ok(vec![header("Mcp-Param-R", &["r"])])));
        assert_eq!(found[1], ("b".to_owned(), Ok(Vec::new())));
        assert!(found[2].1.is_err() && found.len() == 3, "{found:?}");
    }
}
