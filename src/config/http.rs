//! `upstream.http`: how remote servers are reached, and what is sent to which of them.

use std::path::PathBuf;
use std::time::Duration;

use super::place::{Place, is_header_name};
use super::reader::{Findings, Section, Show, describe, text};
use super::settings::{Env, MILLIS_MAX};
use super::tree::Tree;
use crate::ports::http::settings::{HttpSettings, OAuthSettings, OriginSettings, ProxyChoice, Secret};
use crate::wire::url::Url;

/// Headers that the transport itself sets for each message; any other value would break it.
const OURS: [&str; 8] =
    ["host", "content-length", "transfer-encoding", "connection", "content-type", "accept", "last-event-id", "expect"];

/// Reads the section under `upstream`.
pub(super) fn http(upstream: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> HttpSettings {
    const KNOWN: [&str; 11] = [
        "headers",
        "client_cert",
        "client_key",
        "oauth",
        "origins",
        "ca_file",
        "proxy",
        "connect_timeout_ms",
        "read_timeout_ms",
        "idle_timeout_ms",
        "max_response_bytes",
    ];
    let section = upstream.section("http", &KNOWN, findings);
    let default = HttpSettings::default();
    let own = origin(&section, env, findings);
    let mut origins = std::collections::BTreeMap::new();
    if let Some(tree) = section.get("origins") {
        let all = Section::of(tree, section.place.key("origins"), findings);
        for (name, tree) in all.entries {
            let place = all.place.key(name);
            let one = Section::of(tree, place.clone(), findings);
            one.only(&["headers", "client_cert", "client_key", "oauth"], findings);
            let settings = origin(&one, env, findings);
            match Url::parse(name) {
                Ok(url) if url.text() == format!("{}/", url.origin()) => {
                    if origins.insert(url.origin(), settings).is_some() {
                        findings.key(place, "this origin stands here twice", "keep one of them");
                    }
                }
                _ => findings.key(
                    place,
                    "found a name that is no origin (not shown)",
                    "write scheme, host and port alone, like \"https://host\"",
                ),
            }
        }
    }
    let millis = |key: &str, least: u64, findings: &mut Findings| {
        section.whole(key, least..=MILLIS_MAX, findings).map(Duration::from_millis)
    };
    HttpSettings {
        own,
        origins,
        ca_file: section.text("ca_file", Show::Value, findings).map(PathBuf::from),
        proxy: proxy(&section, env, findings).unwrap_or(default.proxy),
        connect_timeout: millis("connect_timeout_ms", 1, findings).unwrap_or(default.connect_timeout),
        read_timeout: millis("read_timeout_ms", 0, findings).filter(|time| !time.is_zero()),
        idle_timeout: millis("idle_timeout_ms", 0, findings).unwrap_or(default.idle_timeout),
        response_bytes_max: section
            .whole("max_response_bytes", 4_096..=u64::from(u32::MAX), findings)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or(default.response_bytes_max),
    }
}

/// What is sent to one origin.
fn origin(section: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> OriginSettings {
    let cert = section.text("client_cert", Show::Value, findings);
    let key = section.text("client_key", Show::Value, findings);
    let client_cert = match (cert, key) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            let place = section.place.key(if cert.is_some() { "client_cert" } else { "client_key" });
            findings.value(place, "client_cert and client_key belong together", "write both, or neither");
            None
        }
    };
    let headers = headers(section, env, findings);
    let oauth = section.get("oauth").and_then(|_| oauth(section, env, findings));
    if oauth.is_some() && headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
        findings.value(section.place.key("oauth"), "there is a header Authorization too", "keep one of them");
    }
    OriginSettings { headers, client_cert, oauth }
}

fn oauth(parent: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> Option<OAuthSettings> {
    const KNOWN: [&str; 6] = ["token_url", "issuer", "client_id", "client_secret", "scope", "resource"];
    let section = parent.section("oauth", &KNOWN, findings);
    let url = |key: &str, findings: &mut Findings| {
        let text = section.text(key, Show::Kind, findings)?;
        let url = Url::parse(text).ok().filter(|url| url.is_https() || url.is_loopback());
        if url.is_none() {
            let found = "found a text that is no https:// URL (not shown)";
            findings.value(section.place.key(key), found, "write one; http:// is allowed on this machine alone");
        }
        url.map(|url| (url, text.to_owned()))
    };
    let token_url = url("token_url", findings).map(|(url, _)| url);
    // Compared character by character with what the issuer says of itself.
    let issuer = url("issuer", findings).map(|(_, text)| text);
    if token_url.is_some() && issuer.is_some() {
        findings.value(section.place.key("issuer"), "there is a token_url too", "keep one of them");
    }
    let needed = |key: &str, findings: &mut Findings| match section.get(key) {
        Some(tree) => secret(tree, section.place.key(key), env, findings),
        None => {
            findings.value(
                section.place.clone(),
                format!("the key {key} is missing"),
                "write {env: NAME} or {file: PATH}",
            );
            None
        }
    };
    let (client_id, client_secret) = (needed("client_id", findings), needed("client_secret", findings));
    let text = |key: &str, findings: &mut Findings| section.text(key, Show::Value, findings).map(str::to_owned);
    let (scope, resource) = (text("scope", findings), text("resource", findings));
    Some(OAuthSettings { token_url, issuer, client_id: client_id?, client_secret: client_secret?, scope, resource })
}

fn headers(parent: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> Vec<(String, Secret)> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    let Some(tree) = parent.get("headers") else { return headers };
    let section = Section::of(tree, parent.place.key("headers"), findings);
    for (name, value) in section.entries {
        let place = section.place.key(name);
        if !is_header_name(name) {
            findings.key(
                place.clone(),
                "found a name that no header can have (not shown)",
                "write the name alone, like Authorization",
            );
        } else if OURS.iter().any(|ours| ours.eq_ignore_ascii_case(name)) {
            findings.key(place.clone(), "this header is set by the transport itself", "remove it");
        } else if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            findings.key(place.clone(), "this header stands here twice", "keep one: case does not tell names apart");
        }
        if let Some(value) = secret(value, place, env, findings) {
            headers.push((name.clone(), value));
        }
    }
    headers
}

/// A text with `${NAME}`, or `{env: NAME}`, or `{file: PATH}`.
fn secret(tree: &Tree, place: Place, env: Env<'_>, findings: &mut Findings) -> Option<Secret> {
    match tree {
        Tree::String(text) if text.chars().any(|c| c.is_control() && c != '\t') => {
            findings.value(place, "found control characters in a header value", "write it on one line");
            None
        }
        Tree::String(text) => expanded(text, &place, env, findings).map(Secret::Text),
        Tree::Map(_) => {
            let section = Section::of(tree, place.clone(), findings);
            section.only(&["env", "file"], findings);
            match (section.get("env"), section.get("file")) {
                (Some(name), None) => {
                    let place = place.key("env");
                    let name = text(name, place.clone(), Show::Kind, findings)?;
                    variable(name, &place, env, findings).map(Secret::Text)
                }
                (None, Some(path)) => {
                    text(path, place.key("file"), Show::Kind, findings).map(|path| Secret::File(PathBuf::from(path)))
                }
                _ => {
                    findings.value(place, "found a mapping without exactly one of env and file", "write one of them");
                    None
                }
            }
        }
        other => {
            findings.value(place, describe(other, Show::Kind), "write a text: put it in quotes");
            None
        }
    }
}

/// `text` with every `${NAME}` replaced; `$${` stands for `${`.
fn expanded(text: &str, place: &Place, env: Env<'_>, findings: &mut Findings) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, after) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &after[2..];
            continue;
        }
        out.push_str(before);
        let Some((name, after)) = after[2..].split_once('}') else {
            findings.value(place.clone(), "found ${ without }", "write ${NAME}; $${ stands for ${ itself");
            return None;
        };
        out.push_str(&variable(name, place, env, findings)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

fn variable(name: &str, place: &Place, env: Env<'_>, findings: &mut Findings) -> Option<String> {
    let is_name = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.as_bytes()[0].is_ascii_digit();
    if !is_name {
        findings.value(
            place.clone(),
            "found a text that no environment variable is named (not shown)",
            "write the name of a variable, like TOKEN",
        );
        return None;
    }
    let (found, remedy) = match env(name).as_deref() {
        Some("") => (format!("the environment variable {name} is empty"), "put the value there"),
        Some(value) if value.chars().any(|c| c.is_control() && c != '\t') => {
            (format!("the environment variable {name} holds control characters"), "put the value on one line")
        }
        Some(value) => return Some(value.to_owned()),
        None => (format!("the environment variable {name} is not set"), "set it before mcprelay starts"),
    };
    findings.value(place.clone(), found, remedy);
    None
}

fn proxy(section: &Section<'_>, env: Env<'_>, findings: &mut Findings) -> Option<ProxyChoice> {
    let place = section.place.key("proxy");
    if let Some(Tree::Bool(false)) = section.get("proxy") {
        return Some(ProxyChoice::Off);
    }
    let text = section.text("proxy", Show::Kind, findings)?;
    let url = expanded(text, &place, env, findings)?;
    let (scheme, rest) = url.split_once("://").unwrap_or(("", &url));
    // Credentials are allowed here, and only here.
    let without = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if !matches!(scheme, "http" | "https") || Url::parse(&format!("{scheme}://{without}")).is_err() {
        findings.value(
            place,
            "found a text that is no URL of a proxy (not shown)",
            "write http://host:port, or false for none; without the key the usual variables count",
        );
        return None;
    }
    Some(ProxyChoice::Url(url))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::settings::resolve;
    use super::super::{Overrides, Settings};
    use super::*;

    fn env(name: &str) -> Option<String> {
        let found =
            [("TOKEN", "s3cret"), ("EMPTY", ""), ("LINES", "s3cret\nx")].into_iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.to_owned())
    }

    fn read(text: &str) -> Result<Settings, Vec<String>> {
        let text = format!("upstream: {{http: {text}}}");
        let loaded = resolve(&text, Path::new("t.yaml"), &Overrides::default(), &env);
        loaded
            .map(|loaded| loaded.settings)
            .map_err(|refused| refused.problems.iter().map(ToString::to_string).collect())
    }

    fn good(text: &str) -> HttpSettings {
        read(text).unwrap_or_else(|problems| panic!("{text}: {problems:#?}")).http
    }

    fn text(value: &str) -> Secret {
        Secret::Text(value.to_owned())
    }

    #[test]
    fn header_values_come_from_the_file_the_environment_or_another_file() {
        let settings = good(
            r#"{headers: {Authorization: "Bearer ${TOKEN}", X-A: {env: TOKEN}, X-B: {file: /run/t}, X-C: "$${TOKEN} $5"}}"#,
        );
        let expected = [
            ("Authorization".to_owned(), text("Bearer s3cret")),
            ("X-A".to_owned(), text("s3cret")),
            ("X-B".to_owned(), Secret::File("/run/t".into())),
            ("X-C".to_owned(), text("${TOKEN} $5")),
        ];
        assert_eq!(settings.own.headers, expected);
        assert!(!format!("{settings:?}").contains("s3cret"));
    }

    #[test]
    fn every_other_key_arrives_and_the_defaults_are_the_documented_ones() {
        let default = good("{}");
        assert_eq!(default, HttpSettings::default());
        assert_eq!(default.response_bytes_max, 67_108_864);
        let settings = good(
            r#"{ca_file: c.pem, client_cert: a.pem, client_key: a.key, proxy: "http://u:${TOKEN}@p:3128", connect_timeout_ms: 5,
            read_timeout_ms: 6, idle_timeout_ms: 0, max_response_bytes: 4096,
            origins: {"https://A.example": {headers: {X: y}}, "http://h:81/": {client_cert: b.pem, client_key: b.key}}}"#,
        );
        assert_eq!(settings.ca_file.as_deref(), Some(Path::new("c.pem")));
        assert_eq!(settings.own.client_cert, Some(("a.pem".into(), "a.key".into())));
        assert_eq!(settings.proxy, ProxyChoice::Url("http://u:s3cret@p:3128".into()));
        let millis = |time: Duration| time.as_millis();
        assert_eq!((millis(settings.connect_timeout), settings.read_timeout.map(millis)), (5, Some(6)));
        assert_eq!((millis(settings.idle_timeout), settings.response_bytes_max), (0, 4096));
        assert_eq!(settings.origins["https://a.example"].headers, [("X".to_owned(), text("y"))]);
        assert_eq!(settings.origins["http://h:81"].client_cert, Some(("b.pem".into(), "b.key".into())));
        assert_eq!(good("{proxy: false}").proxy, ProxyChoice::Off);
        assert_eq!(good("{read_timeout_ms: 0}").read_timeout, None);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_shown() {
        for (text, expected) in [
            (r#"{headers: {A: "${NOPE}"}}"#, "http.headers.A: the environment variable NOPE is not set"),
            (r#"{headers: {A: "${EMPTY}"}}"#, "the environment variable EMPTY is empty"),
            (r#"{headers: {A: {env: LINES}}}"#, "headers.A.env: the environment variable LINES holds control"),
            (r#"{headers: {A: "${s3cret-x}"}}"#, "no environment variable is named (not shown)"),
            (r#"{headers: {A: "${s3cret"}}"#, "found ${ without }"),
            (r#"{headers: {A: {}}}"#, "exactly one of env and file"),
            (r#"{headers: {A: {env: TOKEN, file: x}}}"#, "exactly one of env and file"),
            (r#"{headers: {A: [s3cret]}}"#, "found a list"),
            (r#"{headers: {a: x, A: y}}"#, "this header stands here twice"),
            (r#"{headers: {Content-Length: "5"}}"#, "set by the transport itself"),
            (r#"{client_cert: x}"#, "belong together"),
            (r#"{origins: {"https://h/path": {}}}"#, "is no origin (not shown)"),
            (r#"{origins: {"https://u:s3cret@h": {headers: {A: x}}}}"#, "is no origin (not shown)"),
            (r#"{origins: {"https://h": {}, "https://H:443": {}}}"#, "this origin stands here twice"),
            (r#"{origins: {"https://h": {ca_file: x}}}"#, "ca_file: unknown key"),
            (r#"{proxy: "socks5://u:s3cret@h"}"#, "is no URL of a proxy (not shown)"),
            (r#"{oauth: {client_id: a}}"#, "http.oauth: the key client_secret is missing"),
            (
                r#"{oauth: {client_id: a, client_secret: "${NOPE}"}}"#,
                "oauth.client_secret: the environment variable NOPE",
            ),
            (r#"{oauth: {token_url: "http://h/s3cret", client_id: a, client_secret: b}}"#, "is no https:// URL"),
            (
                r#"{oauth: {token_url: "https://h/", issuer: "https://h", client_id: a, client_secret: b}}"#,
                "there is a token_url too",
            ),
            (
                r#"{headers: {authorization: x}, oauth: {client_id: a, client_secret: b}}"#,
                "there is a header Authorization too",
            ),
            (r#"{proxy: true}"#, "found a value that is no text (not shown)"),
            (r#"{max_response_bytes: 1}"#, "write a whole number from 4096"),
        ] {
            let problems = read(text).map(|_| ()).expect_err(text);
            assert!(problems.iter().any(|line| line.contains(expected)), "{text}: {problems:#?}");
            assert!(!problems.join("").contains("s3cret"), "{text}: {problems:#?}");
        }
    }
}
