//! How remote servers are reached (`upstream.http`).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wire::url::Url;

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// As written, variables replaced.
    Text(String),
    /// The content of a file, read anew for each request, without blanks and line ends at its end.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    /// Without the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Text(_) => f.write_str("Text(…)"),
            Secret::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// A secret's file holds more than this only by mistake.
const SECRET_BYTES_MAX: usize = 64 << 10;

impl Secret {
    /// The value now.
    ///
    /// # Errors
    /// A text that names the file, if it cannot be read or holds what no header can.
    pub fn value(&self) -> Result<String, String> {
        let path = match self {
            Secret::Text(text) => return Ok(text.clone()),
            Secret::File(path) => path,
        };
        let bytes = read_file(path, SECRET_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))?;
        let text = text.trim_end();
        if text.is_empty() {
            return Err(format!("{} is empty", path.display()));
        }
        if text.chars().any(|c| c.is_control() && c != '\t') {
            return Err(format!("{} holds more than one line", path.display()));
        }
        Ok(text.to_owned())
    }
}

/// A small file as a whole.
pub(super) fn read_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(bytes_max as u64 + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        Ok(_) if bytes.len() > bytes_max => Err(format!("{} is longer than {bytes_max} bytes", path.display())),
        Ok(_) => Ok(bytes),
    }
}

/// How access tokens are got: as a machine, by the client credentials grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuthSettings {
    /// Where tokens are asked for; else it is found out.
    pub token_url: Option<Url>,
    /// Who gives tokens; else the server is asked.
    pub issuer: Option<String>,
    /// Who we are there.
    pub client_id: Secret,
    /// By what we are known.
    pub client_secret: Secret,
    /// What the token is to allow; else the authorization server decides.
    pub scope: Option<String>,
    /// What the token is for; else what the server says of itself.
    pub resource: Option<String>,
}

/// What is sent to one origin and to no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginSettings {
    /// Names and values of headers, each name once.
    pub headers: Vec<(String, Secret)>,
    /// PEM files of a client certificate with its chain, and of its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// Access tokens.
    pub oauth: Option<OAuthSettings>,
}

/// Which proxy is used.
#[derive(Clone, PartialEq, Eq)]
pub enum ProxyChoice {
    /// What `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say; never for this machine.
    Environment,
    /// None.
    Off,
    /// This one, always. The URL may hold a password.
    Url(String),
}

impl fmt::Debug for ProxyChoice {
    /// Without the URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyChoice::Environment => "Environment",
            ProxyChoice::Off => "Off",
            ProxyChoice::Url(_) => "Url(…)",
        })
    }
}

/// `upstream.http`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// For the URL of `--http` or `--sse`, unless `origins` names its origin.
    pub own: OriginSettings,
    /// By origin, as [`Url::origin`] writes it.
    pub origins: BTreeMap<String, OriginSettings>,
    /// PEM file of authorities that are trusted besides the usual ones.
    pub ca_file: Option<PathBuf>,
    /// The way out.
    pub proxy: ProxyChoice,
    /// For looking up the name, and again for the connection with its encryption.
    pub connect_timeout: Duration,
    /// The longest silence on an open response; `None` leaves that to the call's own timeout.
    pub read_timeout: Option<Duration>,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Longer answers are refused.
    pub response_bytes_max: usize,
}

impl Default for HttpSettings {
    fn default() -> HttpSettings {
        HttpSettings {
            own: OriginSettings::default(),
            origins: BTreeMap::new(),
            ca_file: None,
            proxy: ProxyChoice::Environment,
            connect_timeout: Duration::from_secs(10),
            read_timeout: None,
            // Below the five seconds after which common servers close: a request on a connection that is being closed
            // fails with an unknown outcome.
            idle_timeout: Duration::from_secs(4),
            response_bytes_max: 64 << 20,
        }
    }
}

impl HttpSettings {
    /// What is sent to `url`. `is_own` if it is the URL that the flat form belongs to.
    #[must_use]
    pub fn for_url(&self, url: &Url, is_own: bool) -> OriginSettings {
        match self.origins.get(&url.origin()) {
            Some(settings) => settings.clone(),
            None if is_own => self.own.clone(),
            None => OriginSettings::default(),
        }
    }
}

/// The proxy for `url`, if one is to be used.
///
/// # Errors
/// What is wrong with the proxy's URL, which is not in the text.
pub(super) fn proxy_for(
    url: &Url,
    choice: &ProxyChoice,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, String> {
    let (proxy, from) = match choice {
        ProxyChoice::Off => return Ok(None),
        ProxyChoice::Url(proxy) => (proxy.clone(), "upstream.http.proxy".to_owned()),
        ProxyChoice::Environment => {
            let either = |name: &str| {
                let lower = name.to_ascii_lowercase();
                let found = [lower, name.to_owned()].into_iter().find_map(|name| Some((env(&name)?, name)));
                found.filter(|(value, _)| !value.trim().is_empty())
            };
            let exempt = either("NO_PROXY").is_some_and(|(list, _)| is_exempt(url.host(), &list));
            if url.is_loopback() || exempt {
                return Ok(None);
            }
            let own = if url.is_https() { "HTTPS_PROXY" } else { "HTTP_PROXY" };
            let Some(found) = either(own).or_else(|| either("ALL_PROXY")) else { return Ok(None) };
            found
        }
    };
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    let scheme = proxy.split("://").next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(format!("{from}: only http:// and https:// proxies are supported"));
    }
    Ok(Some(proxy))
}

/// Whether the entries of `NO_PROXY` name `host`: itself, a domain above it, or `*`.
fn is_exempt(host: &str, list: &str) -> bool {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.trim_start_matches('*').trim_start_matches('.').to_ascii_lowercase();
        entry.is_empty() || host == entry || host.ends_with(&format!(".{entry}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(url: &str, vars: &[(&str, &str)]) -> Result<Option<String>, String> {
        let env = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        proxy_for(&Url::parse(url).expect("a URL"), &ProxyChoice::Environment, &env)
    }

    #[test]
    fn htt_12_proxy_variables_work_and_this_machine_is_never_proxied() {
        let vars = [("HTTPS_PROXY", "http://p:1"), ("http_proxy", "q:2"), ("NO_PROXY", "a.example, .b.example,[::2]")];
        assert_eq!(proxy("https://x.example/", &vars), Ok(Some("http://p:1".into())));
        assert_eq!(proxy("http://x.example/", &vars), Ok(Some("http://q:2".into())));
        for direct in
            ["https://a.example/", "https://c.b.example", "http://localhost:3/", "http://127.0.0.1/", "http://[::1]/"]
        {
            assert_eq!(proxy(direct, &vars), Ok(None), "{direct}");
        }
        assert_eq!(proxy("https://xa.example/", &vars), Ok(Some("http://p:1".into())));
        assert_eq!(proxy("https://x/", &[("ALL_PROXY", "http://p:1"), ("no_proxy", "*")]), Ok(None));
        assert_eq!(proxy("https://x/", &[("https_proxy", "")]), Ok(None));
        let refused = proxy("https://x/", &[("ALL_PROXY", "socks5://u:s3cret@p")]).expect_err("refused");
        assert!(refused.starts_with("ALL_PROXY: only http") && !refused.contains("s3cret"), "{refused}");
    }

    #[test]
    fn settings_of_one_origin_go_to_no_other() {
        let origin = |value: &str| OriginSettings {
            headers: vec![("Authorization".into(), Secret::Text(value.into()))],
            ..OriginSettings::default()
        };
        let settings = HttpSettings {
            own: origin("own"),
            origins: BTreeMap::from([("https://a.example".into(), origin("a"))]),
            ..HttpSettings::default()
        };
        let of = |url: &str, is_own| settings.for_url(&Url::parse(url).expect("a URL"), is_own);
        assert_eq!(of("https://A.example:443/x", true), origin("a"));
        assert_eq!(of("https://a.example/", false), origin("a"));
        assert_eq!(of("https://b.example/", true), origin("own"));
        for other in ["https://b.example/", "http://a.example/", "https://a.example:444/"] {
            assert_eq!(of(other, false), OriginSettings::default(), "{other}");
        }
        assert!(!format!("{settings:?}").contains("own\""), "{settings:?}");
    }
}
