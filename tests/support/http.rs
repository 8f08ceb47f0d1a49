//! An HTTP server whose every byte the test decides.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::session::eventually;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// The connection that it came on, counted from 1.
    pub(crate) connection: usize,
    /// Its place among all requests, counted from 1.
    pub(crate) number: usize,
}

impl Seen {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The names of all headers, in lower case.
    pub(crate) fn header_names(&self) -> Vec<String> {
        self.headers.iter().map(|(name, _)| name.to_ascii_lowercase()).collect()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    /// The JSON-RPC method; empty if there is none.
    pub(crate) fn rpc(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }

    /// The JSON-RPC id as JSON text.
    pub(crate) fn id(&self) -> String {
        self.json()["id"].to_string()
    }
}

/// A response with a body of a given length.
pub(crate) fn reply(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let headers: String = headers.lines().map(|line| format!("{}\r\n", line.trim())).collect();
    format!("HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// A JSON response.
pub(crate) fn json(body: &str) -> Vec<u8> {
    reply(200, "Content-Type: application/json", body)
}

/// The head of an event stream that ends with its connection.
pub(crate) const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

/// The result `{"ok":true}` for a request.
pub(crate) fn ok(seen: &Seen) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":[],"ok":true}}}}"#, seen.id())
}

/// What a legacy server with the session `session` says to a handshake, notifications and streams; `None` for the rest.
pub(crate) fn legacy(seen: &Seen, session: &str) -> Option<Vec<u8>> {
    match (seen.method.as_str(), seen.rpc().as_str()) {
        ("POST", "initialize") => {
            let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"remote","version":"1"}}"#;
            let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.id());
            Some(reply(200, &format!("Content-Type: application/json\nMcp-Session-Id: {session}"), &body))
        }
        ("POST", method) if method.starts_with("notifications/") => Some(reply(202, "", "")),
        ("POST", _) if seen.json().get("method").is_none() => Some(reply(202, "", "")),
        ("GET", _) => Some(reply(405, "Allow: POST", "")),
        ("DELETE", _) => Some(reply(200, "", "")),
        _ => None,
    }
}

/// A running server.
pub(crate) struct HttpServer {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl HttpServer {
    /// Answers each request as `handler` does, on 127.0.0.1; it gets the connection to write to, and ends it by `false`.
    pub(crate) fn start(handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static) -> HttpServer {
        HttpServer::at("127.0.0.1:0", handler)
    }

    /// The same at another address.
    pub(crate) fn at(
        address: &str,
        handler: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> HttpServer {
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().expect("an address");
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, handler, connections) = (Arc::clone(&seen), Arc::new(handler), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let connection = connections.fetch_add(1, Ordering::SeqCst) + 1;
                let (log, handler) = (Arc::clone(&log), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream, connection, &log, &*handler));
            }
        });
        HttpServer { address, seen }
    }

    /// The address of its endpoint.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }

    /// The requests with this JSON-RPC method.
    pub(crate) fn got(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.rpc() == method).collect()
    }

    /// Waits for requests.
    pub(crate) fn wait(&self, what: &str, enough: impl Fn(&[Seen]) -> bool) {
        eventually(what, || {
            let seen = self.seen();
            if enough(&seen) { Ok(()) } else { Err(format!("{seen:#?}")) }
        });
    }
}

fn serve(
    mut stream: TcpStream,
    connection: usize,
    log: &Mutex<Vec<Seen>>,
    handler: &dyn Fn(&Seen, &mut TcpStream) -> bool,
) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    while let Some(mut seen) = read_request(&mut reader, connection) {
        {
            let mut log = log.lock().expect("no panic");
            seen.number = log.len() + 1;
            log.push(seen.clone());
        }
        if !handler(&seen, &mut stream) {
            break;
        }
    }
}

pub(crate) fn read_request(reader: &mut impl BufRead, connection: usize) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap_or(0))];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Seen { method, target, headers, body, connection, number: 0 })
}

/// Writes; whether the other end took it.
pub(crate) fn put(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) -> bool {
    stream.write_all(bytes.as_ref()).and_then(|()| stream.flush()).is_ok()
}

/// Ends the connection with a reset instead of an orderly end.
pub(crate) fn reset(stream: &TcpStream) {
    use rustix::net::sockopt::set_socket_linger;
    set_socket_linger(stream, Some(std::time::Duration::ZERO)).expect("a socket option");
}
