//! Encrypted connections to remote servers: whom they trust, and as whom they come.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use super::settings::read_file;

/// Where systems keep the authorities they trust, as one PEM file.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/usr/local/share/certs/ca-root-nss.crt",
];

/// Certificate files above this size are none.
const PEM_BYTES_MAX: usize = 8 << 20;

/// How encrypted connections are made: trusted is what `SSL_CERT_FILE` names, else what the system has, else a list that
/// is compiled in; and in addition `ca_file`.
///
/// # Errors
/// A text that names the file at fault.
pub(super) fn client_config(
    ca_file: Option<&Path>,
    client_cert: Option<&(PathBuf, PathBuf)>,
    ssl_cert_file: Option<&Path>,
) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = ssl_cert_file {
        trust(&mut roots, path).map_err(|error| format!("SSL_CERT_FILE: {error}"))?;
    } else {
        let system = SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.is_file());
        if system.is_none_or(|path| trust(&mut roots, path).is_err()) {
            roots.roots.extend_from_slice(webpki_roots::TLS_SERVER_ROOTS);
        }
    }
    if let Some(path) = ca_file {
        trust(&mut roots, path).map_err(|error| format!("upstream.http.ca_file: {error}"))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot prepare encryption: {error}"))?
        .with_root_certificates(roots);
    let Some((cert, key)) = client_cert else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let chain = certificates(cert).map_err(|error| format!("upstream.http.client_cert: {error}"))?;
    let key_text = read_file(key, PEM_BYTES_MAX).map_err(|error| format!("upstream.http.client_key: {error}"))?;
    let private = PrivateKeyDer::from_pem_slice(&key_text)
        .map_err(|_| format!("upstream.http.client_key: {} holds no private key in PEM form", key.display()))?;
    let config = builder
        .with_client_auth_cert(chain, private)
        .map_err(|error| format!("upstream.http.client_cert and client_key do not fit together: {error}"))?;
    Ok(Arc::new(config))
}

fn trust(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    match roots.add_parsable_certificates(certificates(path)?) {
        (0, _) => Err(format!("{} holds no certificate that can be used", path.display())),
        _ => Ok(()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read_file(path, PEM_BYTES_MAX)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{} holds no certificate in PEM form", path.display())),
    }
}

/// Encrypts a connection where the URL says so.
pub(super) struct TlsConnector(pub(super) Arc<ClientConfig>);

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Either<In, Encrypted>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        if !details.needs_tls() || transport.is_tls() {
            return Ok(Some(Either::A(transport)));
        }
        let host = details.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|_| ureq::Error::Tls("the host's name is not valid"))?;
        let mut connection = ClientConnection::new(Arc::clone(&self.0), name)?;
        let mut socket = TransportAdapter::new(transport.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        // The whole handshake, so that a fault in it is a fault before the request.
        connection.complete_io(&mut socket)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Either::B(Encrypted { buffers, stream: StreamOwned::new(connection, socket) })))
    }
}

/// An encrypted connection.
pub(super) struct Encrypted {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encrypted")
    }
}

impl Encrypted {
    /// What the server said before it closed the connection, if it said something. It tells a refused handshake, whose
    /// last word crosses the first bytes of the request, from a connection that broke.
    fn alert(&mut self) -> Option<std::io::Error> {
        loop {
            if let Err(fault) = self.stream.conn.process_new_packets() {
                return Some(std::io::Error::new(std::io::ErrorKind::InvalidData, fault));
            }
            let read = self.stream.conn.read_tls(&mut self.stream.sock);
            if !read.is_ok_and(|count| count > 0) {
                return None;
            }
        }
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        use std::io::Write as _;
        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output).map_err(|error| self.alert().unwrap_or(error))?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        use std::io::Read as _;
        self.stream.get_mut().set_timeout(timeout);
        let input = self.buffers.input_append_buf();
        let amount = match self.stream.read(input) {
            Ok(amount) => amount,
            Err(error) => return Err(self.alert().unwrap_or(error).into()),
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
