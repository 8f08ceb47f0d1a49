//! One line to a remote server: the HTTP library, watched so that it is certain whether a request left.
//!
//! The library repeats nothing by itself: its run of a request sends once and returns the first error, on new and on
//! kept connections alike. Redirects are off. What is added here is the moment of the first byte.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ureq::config::AutoHeaderValue;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, TcpConnector, Transport,
};
use ureq::{Agent, Proxy};

use super::settings::HttpSettings;
use super::tls::TlsConnector;
use crate::dispatcher::event::AttemptId;
use crate::ports::outbox::Watch;

/// A response's headers above this size are refused.
const HEADER_BYTES_MAX: usize = 64 << 10;

type Chain = dyn Connector<(), Out = Box<dyn Transport>>;

/// What all lines to one server share: the way there, and what is trusted on it.
pub(super) struct Way {
    chain: Arc<Chain>,
    proxy: Option<Proxy>,
    settings: HttpSettings,
    watch: Option<Arc<dyn Watch>>,
}

impl Way {
    pub(super) fn new(
        settings: HttpSettings,
        tls: Arc<rustls::ClientConfig>,
        proxy: Option<Proxy>,
        watch: Option<Arc<dyn Watch>>,
    ) -> Way {
        let chain = ().chain(ConnectProxyConnector::default()).chain(TcpConnector::default()).chain(TlsConnector(tls));
        Way { chain: Arc::new(Boxed(chain)), proxy, settings, watch }
    }

    /// A line of its own: its connections are closed together.
    pub(super) fn line(&self) -> Line {
        let sending = Arc::new(Sending {
            begun: AtomicBool::new(false),
            attempt: Mutex::new(None),
            watch: self.watch.clone(),
            connecting: AtomicUsize::new(0),
        });
        let settings = &self.settings;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(self.proxy.clone())
            .user_agent(concat!("mcprelay/", env!("CARGO_PKG_VERSION")))
            .accept_encoding(AutoHeaderValue::None)
            .max_response_header_size(HEADER_BYTES_MAX)
            .max_idle_connections(1)
            .max_idle_connections_per_host(1)
            .max_idle_age(settings.idle_timeout)
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_per_read(settings.read_timeout)
            .build();
        let watched = Watched { chain: Arc::clone(&self.chain), sending: Arc::clone(&sending) };
        Line { agent: Agent::with_parts(config, watched, DefaultResolver::default()), sending }
    }
}

/// The library with its own connections, for one exchange at a time.
pub(super) struct Line {
    pub(super) agent: Agent,
    sending: Arc<Sending>,
}

impl Line {
    /// An exchange begins; its first byte is noted for `attempt`.
    pub(super) fn begin(&self, attempt: Option<AttemptId>) {
        self.sending.begun.store(false, Ordering::SeqCst);
        *self.sending.attempt.lock().unwrap_or_else(PoisonError::into_inner) = attempt;
    }

    /// Whether the first byte of the request may have left.
    pub(super) fn has_sent(&self) -> bool {
        self.sending.begun.load(Ordering::SeqCst)
    }
}

struct Sending {
    begun: AtomicBool,
    attempt: Mutex<Option<AttemptId>>,
    watch: Option<Arc<dyn Watch>>,
    /// How many connections are being made inside each other: the one to a proxy is inside that to the server.
    connecting: AtomicUsize,
}

impl Sending {
    fn first_byte(&self) {
        if self.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        let attempt = *self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(watch), Some(attempt)) = (&self.watch, attempt) {
            watch.begins(attempt);
        }
    }
}

/// Gives every connection one type.
#[derive(Debug)]
struct Boxed<C>(C);

impl<C: Connector<()>> Connector<()> for Boxed<C> {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        let transport = self.0.connect(details, chained)?;
        Ok(transport.map(|transport| Box::new(transport) as Box<dyn Transport>))
    }
}

/// Makes connections that tell when a request begins to leave.
struct Watched {
    chain: Arc<Chain>,
    sending: Arc<Sending>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

impl Connector<()> for Watched {
    type Out = Box<dyn Transport>;

    fn connect(&self, details: &ConnectionDetails<'_>, chained: Option<()>) -> Result<Option<Self::Out>, ureq::Error> {
        let inside = self.sending.connecting.fetch_add(1, Ordering::SeqCst) > 0;
        let transport = self.chain.connect(details, chained);
        self.sending.connecting.fetch_sub(1, Ordering::SeqCst);
        let wrap =
            |inner| Box::new(WatchedTransport { inner, sending: Arc::clone(&self.sending) }) as Box<dyn Transport>;
        // What a proxy is told is not the request.
        Ok(transport?.map(|inner| if inside { inner } else { wrap(inner) }))
    }
}

struct WatchedTransport {
    inner: Box<dyn Transport>,
    sending: Arc<Sending>,
}

impl fmt::Debug for WatchedTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedTransport")
    }
}

impl Transport for WatchedTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        if amount > 0 {
            self.sending.first_byte();
        }
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
