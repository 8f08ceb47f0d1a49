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

/// The files of the tests' own authority.
pub(crate) fn tls_file(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Encrypts what comes to a new port and passes it on to `server`; asks for a client's certificate if it is to.
/// Gives the port.
pub(crate) fn encrypted(server: &HttpServer, wants_client: bool) -> u16 {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = |name| CertificateDer::from_pem_file(tls_file(name)).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let builder = if wants_client {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate("ca.pem")).expect("an authority");
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::from_pem_file(tls_file("server.key")).expect("a key");
    let config = Arc::new(builder.with_single_cert(vec![certificate("server.pem")], key).expect("a pair"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, to) = (listener.local_addr().expect("an address").port(), server.address);
    std::thread::spawn(move || {
        for outer in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).expect("a connection");
                let mut outer = rustls::StreamOwned::new(connection, outer);
                // One request a connection, so that bytes go one way at a time.
                let Some(request) = read_request_bytes(&mut outer) else { return };
                let mut inner = TcpStream::connect(to).expect("the server");
                inner.write_all(&request).expect("the request");
                inner.shutdown(std::net::Shutdown::Write).expect("the end of it");
                let _ = std::io::copy(&mut inner, &mut outer);
                outer.conn.send_close_notify();
                let _ = outer.flush();
            });
        }
    });
    port
}

/// The bytes of one request.
fn read_request_bytes(stream: &mut impl std::io::Read) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
        if let Some(head) = bytes.strip_suffix(b"\r\n\r\n") {
            let head = String::from_utf8_lossy(head).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).ok()?;
            bytes.extend(body);
            return Some(bytes);
        }
    }
}

/// Ends the connection with a reset instead of an orderly end.
pub(crate) fn reset(stream: &TcpStream) {
    use rustix::net::sockopt::set_socket_linger;
    set_socket_linger(stream, Some(std::time::Duration::ZERO)).expect("a socket option");
}
