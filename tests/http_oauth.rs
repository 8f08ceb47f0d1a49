//! Access tokens for machines: found, fetched, used, replaced, and shown to nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::http::{FAST, INITIALIZE, INITIALIZED, outcome};
use crate::support::http::{HttpServer, Seen, json, legacy, ok, put, reply};
use crate::support::session::{Session, session};

/// The values that must be nowhere but in requests to whom they belong.
const SECRETS: [&str; 2] = ["s3cret-of-client", "t0ken-"];

/// A server that wants a token and gives it itself; `accepts` says whether the n-th token is good for this request.
fn guarded(accepts: impl Fn(usize, &Seen) -> bool + Send + Sync + 'static) -> HttpServer {
    let tokens = AtomicUsize::new(0);
    HttpServer::start(move |seen, stream| {
        let origin = format!("http://{}", seen.header("host").unwrap_or_default());
        let bytes = match seen.target.as_str() {
            "/.well-known/oauth-protected-resource/mcp" => {
                json(&format!(r#"{{"resource":"{origin}/mcp","authorization_servers":["{origin}/as"]}}"#))
            }
            "/.well-known/oauth-authorization-server/as" => json(&format!(
                r#"{{"issuer":"{origin}/as","token_endpoint":"{origin}/token","token_endpoint_auth_methods_supported":["client_secret_basic"]}}"#
            )),
            "/token" => {
                let number = tokens.fetch_add(1, Ordering::SeqCst) + 1;
                json(&format!(r#"{{"access_token":"t0ken-{number}","token_type":"bearer","expires_in":3600}}"#))
            }
            "/mcp" => {
                let token = seen.header("authorization").and_then(|value| value.strip_prefix("Bearer t0ken-"));
                match token.and_then(|number| number.parse().ok()) {
                    Some(number) if accepts(number, seen) => legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen))),
                    _ => reply(401, "WWW-Authenticate: Bearer error=\"invalid_token\"", ""),
                }
            }
            _ => reply(404, "", ""),
        };
        put(stream, bytes)
    })
}

fn start(name: &str, server: &HttpServer, oauth: &str) -> Session {
    let config = format!(
        "{FAST}\nupstream: {{http: {{oauth: {{client_id: \"me:1\", client_secret: \"${{CLIENT_SECRET}}\"{oauth}}}}}}}"
    );
    let session = session(name).config(&config).remote("http", &server.url());
    session.started(|start| start.env("CLIENT_SECRET", "s3cret-of-client")).start()
}

fn targets(server: &HttpServer, target: &str) -> Vec<Seen> {
    server.seen().into_iter().filter(|seen| seen.target == target).collect()
}

#[test]
fn a_token_is_found_fetched_once_and_used_for_every_request() {
    let server = guarded(|_, _| true);
    let mut session = start("oauth", &server, ", scope: \"a b\"");
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    for id in ["1", "2", "3"] {
        assert_eq!(session.call(id, "t", "{}").at("result.ok"), "true");
    }
    let ended = session.finish();
    let [asked] = &targets(&server, "/token")[..] else { panic!("{:#?}", server.seen()) };
    // "me:1" with its colon encoded, and the secret.
    assert_eq!(asked.header("authorization"), Some("Basic bWUlM0ExOnMzY3JldC1vZi1jbGllbnQ="));
    let resource = server.url().replace(':', "%3A").replace('/', "%2F");
    assert_eq!(asked.body, format!("grant_type=client_credentials&scope=a+b&resource={resource}"));
    assert!(targets(&server, "/mcp").iter().all(|seen| seen.header("authorization") == Some("Bearer t0ken-1")));
    assert!(SECRETS.iter().all(|secret| !ended.stderr.contains(secret)), "{}", ended.stderr);
}

#[test]
fn a_refused_token_is_replaced_once_and_no_call_runs_twice() {
    // The first token ends after the handshake.
    let server = guarded(|number, seen| number > 1 || seen.rpc() != "tools/call");
    let mut session = start("oauth-again", &server, "");
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    for id in ["1", "2"] {
        assert_eq!(session.call(id, "write", "{}").at("result.ok"), "true");
    }
    session.finish();
    assert_eq!(targets(&server, "/token").len(), 2);
    let good =
        server.got("tools/call").iter().filter(|seen| seen.header("authorization") == Some("Bearer t0ken-2")).count();
    assert_eq!((server.got("tools/call").len(), good), (3, 2));
}

#[test]
fn htt_7_tokens_that_are_never_good_enough_end_the_call() {
    let server = guarded(|_, seen| seen.rpc() != "tools/call");
    let mut session = start("oauth-never", &server, "");
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    let answer = session.call("1", "write", "{}");
    assert_eq!(outcome(&answer), "non_retryable no 1", "{answer:?}");
    let ended = session.finish();
    assert_eq!(server.got("tools/call").len(), 2, "once more, with a new token, and no more");
    let letters = ended.query_queue("SELECT * FROM failures").join("");
    assert!(SECRETS.iter().all(|secret| !letters.contains(secret) && !ended.stderr.contains(secret)));
}

#[test]
fn the_end_of_a_token_is_seen_coming() {
    let fetched = Arc::new(AtomicUsize::new(0));
    let own = Arc::clone(&fetched);
    let server = HttpServer::start(move |seen, stream| match seen.target.as_str() {
        "/token" => {
            let number = own.fetch_add(1, Ordering::SeqCst);
            // The first holds no longer than it takes to say so.
            let life = if number == 0 { 0 } else { 3600 };
            put(stream, json(&format!(r#"{{"access_token":"t{number}","token_type":"Bearer","expires_in":{life}}}"#)))
        }
        _ => put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen)))),
    });
    let token_url = format!(", token_url: \"{}\"", server.url().replace("/mcp", "/token"));
    let mut session = start("oauth-early", &server, &token_url);
    session.ask(INITIALIZE);
    session.send(INITIALIZED);
    session.call("1", "t", "{}");
    session.finish();
    assert_eq!(server.got("initialize")[0].header("authorization"), Some("Bearer t0"));
    assert_eq!(server.got("tools/call")[0].header("authorization"), Some("Bearer t1"));
    assert_eq!(fetched.load(Ordering::SeqCst), 2);
}

#[test]
fn without_a_token_nothing_is_sent_and_the_error_says_why() {
    for (status, body, expected, text) in [
        (401, r#"{"error":"invalid_client"}"#, "non_retryable no 1", "status 401 invalid_client"),
        (503, "", "transport no 3", "status 503"),
        (200, r#"{"access_token":"x","token_type":"mac"}"#, "non_retryable no 1", "a kind that is not supported"),
        (200, r#"{"access_token":"a b","token_type":"bearer"}"#, "non_retryable no 1", "no access token"),
    ] {
        let server =
            HttpServer::start(move |_, stream| put(stream, reply(status, "Content-Type: application/json", body)));
        let token_url = format!(", token_url: \"{}\"", server.url().replace("/mcp", "/token"));
        let mut session = start("oauth-none", &server, &token_url);
        let answer = session.call("1", "write", "{}");
        assert_eq!(outcome(&answer), expected, "{answer:?}");
        assert!(answer.at("error.message").contains(text), "{answer:?}");
        session.finish();
        assert!(server.seen().iter().all(|seen| seen.target == "/token"), "{status}");
    }
}

#[test]
fn documents_about_others_are_not_believed() {
    for (resource, issuer, text) in [
        ("http://127.0.0.1:1/mcp", "same", "about another server"),
        ("same", "http://127.0.0.1:1/as", "of another issuer"),
    ] {
        let server = HttpServer::start(move |seen, stream| {
            let origin = format!("http://{}", seen.header("host").unwrap_or_default());
            let or = |value: &str, own: String| if value == "same" { own } else { value.to_owned() };
            let bytes = match seen.target.as_str() {
                "/.well-known/oauth-protected-resource/mcp" => {
                    let resource = or(resource, format!("{origin}/mcp"));
                    json(&format!(r#"{{"resource":"{resource}","authorization_servers":["{origin}/as"]}}"#))
                }
                "/.well-known/oauth-authorization-server/as" => {
                    let issuer = or(issuer, format!("{origin}/as"));
                    json(&format!(r#"{{"issuer":"{issuer}","token_endpoint":"{origin}/token"}}"#))
                }
                _ => reply(404, "", ""),
            };
            put(stream, bytes)
        });
        let mut session = start("oauth-others", &server, "");
        let answer = session.call("1", "write", "{}");
        assert_eq!(outcome(&answer), "non_retryable no 1", "{answer:?}");
        assert!(answer.at("error.message").contains(text), "{answer:?}");
        session.finish();
        assert!(targets(&server, "/token").is_empty() && targets(&server, "/mcp").is_empty());
    }
}
