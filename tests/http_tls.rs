//! Encrypted connections to remote servers (hazard HTT-12), with an authority of the tests' own.

use std::io::BufReader;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::http::{FAST, INITIALIZE, INITIALIZED, outcome};
use crate::support::http::{HttpServer, encrypted, json, legacy, ok, put, read_request, reply, tls_file};
use crate::support::session::session;

/// A legacy server behind encryption; gives the port, and keeps the server alive.
fn secure(wants_client: bool) -> (u16, HttpServer) {
    let server = HttpServer::start(|seen, stream| {
        put(stream, legacy(seen, "s1").unwrap_or_else(|| json(&ok(seen))));
        false
    });
    (encrypted(&server, wants_client), server)
}

#[test]
fn htt_12_a_private_authority_must_be_named_and_then_works() {
    let (port, server) = secure(false);
    let ca = tls_file("ca.pem");
    for url in [format!("https://localhost:{port}/mcp"), format!("https://127.0.0.1:{port}/mcp")] {
        let config = format!("{FAST}\nupstream: {{http: {{ca_file: {}}}}}", ca.display());
        let mut session = session("htt-12").config(&config).remote("http", &url).start();
        session.ask(INITIALIZE);
        session.send(INITIALIZED);
        assert_eq!(session.call("1", "t", "{}").at("result.ok"), "true", "{url}");
        session.finish();
    }
    let before = server.seen().len();
    let mut session =
        session("htt-12-unknown").config(FAST).remote("http", &format!("https://localhost:{port}/mcp")).start();
    let answer = session.call("1", "t", "{}");
    assert_eq!(outcome(&answer), "transport no 3", "{answer:?}");
    assert!(answer.at("error.message").contains("certificate"), "{answer:?}");
    session.finish();
    assert_eq!(server.seen().len(), before, "nothing was sent");
}

#[test]
fn htt_12_a_variable_may_name_the_authorities_and_a_bad_file_is_named() {
    let (port, _server) = secure(false);
    let url = format!("https://localhost:{port}/mcp");
    let mut good = session("htt-12-variable").config(FAST).remote("http", &url);
    good = good.started(|start| start.env("SSL_CERT_FILE", tls_file("ca.pem")));
    let mut good = good.start();
    assert_eq!(good.ask(INITIALIZE).at("result.serverInfo.name"), "\"remote\"");
    good.finish();
    for file in ["/nonexistent/roots.pem", "/dev/null"] {
        let config = format!("{FAST}\nupstream: {{http: {{ca_file: {file}}}}}");
        let session = session("htt-12-bad").config(&config).remote("http", &url).start();
        let ended = session.finish();
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains("upstream.http.ca_file: ") && ended.stderr.contains(file), "{}", ended.stderr);
    }
}

#[test]
fn a_client_certificate_opens_what_is_closed_without_it() {
    let (port, server) = secure(true);
    let url = format!("https://localhost:{port}/mcp");
    let file = |name| tls_file(name).display().to_string();
    let trust = format!("ca_file: {}", file("ca.pem"));
    let own = format!("client_cert: {}, client_key: {}", file("client.pem"), file("client.key"));
    let config = format!("{FAST}\nupstream: {{http: {{{trust}, {own}}}}}");
    let mut with = session("mtls").config(&config).remote("http", &url).start();
    with.ask(INITIALIZE);
    with.send(INITIALIZED);
    assert_eq!(with.call("1", "t", "{}").at("result.ok"), "true");
    with.finish();
    let before = server.seen().len();
    // Settings of another origin count as little as none.
    let elsewhere = format!("{trust}, origins: {{\"https://localhost:1\": {{{own}}}}}");
    for http in [trust.clone(), elsewhere] {
        let config = format!("{FAST}\nupstream: {{http: {{{http}}}}}");
        let mut without = session("mtls-without").config(&config).remote("http", &url).start();
        let answer = without.call("1", "t", "{}");
        assert_eq!(outcome(&answer), "transport no 3", "refused in the handshake: {answer:?}");
        without.finish();
    }
    assert_eq!(server.seen().len(), before, "nothing reached the server");
    let swapped = format!("{trust}, client_cert: {}, client_key: {}", file("client.pem"), file("server.key"));
    let config = format!("upstream: {{http: {{{swapped}}}}}");
    let ended = session("mtls-swapped").config(&config).remote("http", &url).start().finish();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("do not fit together"), "{}", ended.stderr);
}

/// A proxy that connects to whatever it is asked for, or refuses; gives its port and what it was asked.
fn proxy(refuses: bool) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut reader = BufReader::new(client.try_clone().expect("a handle"));
            let Some(request) = read_request(&mut reader, 1) else { continue };
            let credential = request.header("proxy-authorization").unwrap_or("none");
            log.lock().expect("no panic").push(format!("{} {} {credential}", request.method, request.target));
            if refuses {
                put(&mut client, reply(407, "", ""));
                continue;
            }
            // The name is the proxy's to look up; every name is this machine here.
            let port = request.target.rsplit(':').next().expect("a port").to_owned();
            let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the server");
            put(&mut client, b"HTTP/1.1 200 OK\r\n\r\n");
            let (mut up, mut back) = (server.try_clone().expect("a handle"), client.try_clone().expect("a handle"));
            std::thread::spawn(move || std::io::copy(&mut client, &mut up));
            std::thread::spawn(move || std::io::copy(&mut server, &mut back));
        }
    });
    (port, asked)
}

#[test]
fn htt_12_a_proxy_is_used_and_what_it_refuses_was_not_sent() {
    let (port, server) = secure(false);
    // A proxy that is configured counts for every name, one from a variable not for this machine.
    for (refuses, by_variable) in [(false, false), (true, false), (false, true)] {
        let (proxy_port, asked) = proxy(refuses);
        let way = format!("http://u:pr0xy-secret@127.0.0.1:{proxy_port}");
        let http = match by_variable {
            true => format!("ca_file: {}", tls_file("ca.pem").display()),
            false => format!("ca_file: {}, proxy: \"{way}\"", tls_file("ca.pem").display()),
        };
        let config = format!("{FAST}\nupstream: {{http: {{{http}}}}}");
        let mut setup =
            session("htt-12-proxy").config(&config).remote("http", &format!("https://localhost:{port}/mcp"));
        if by_variable {
            setup = setup.started(|start| start.env("HTTPS_PROXY", "http://127.0.0.1:1"));
        }
        let before = server.seen().len();
        let mut session = setup.start();
        let answer = session.call("1", "t", "{}");
        let ended = session.finish();
        let asked = asked.lock().expect("no panic").clone();
        if by_variable {
            assert_eq!(answer.at("result.ok"), "true", "this machine is not proxied by accident");
            assert!(asked.is_empty());
        } else if refuses {
            assert_eq!(outcome(&answer), "transport no 3", "{answer:?}");
            assert!(answer.at("error.message").contains("the proxy refused"), "{answer:?}");
            assert_eq!(server.seen().len(), before);
        } else {
            assert_eq!(answer.at("result.ok"), "true");
            assert_eq!(asked, [format!("CONNECT localhost:{port} Basic dTpwcjB4eS1zZWNyZXQ=")]);
        }
        assert!(!ended.stderr.contains("pr0xy-secret") && !answer.text().contains("pr0xy-secret"));
    }
}
