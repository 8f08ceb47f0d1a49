//! Access tokens for machines: the client credentials grant (OAuth 2.1), with what is needed to find the token endpoint.
//!
//! A token is kept in memory, fetched anew shortly before it ends and once after the server refused it. One thread
//! fetches; the others wait for it.

use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ureq::http::{Request, Response};
use ureq::{Body, Proxy};

use super::failure::Failed;
use super::line::Way;
use super::refusal::describe;
use super::settings::{HttpSettings, OAuthSettings, proxy_for};
use super::tls;
use crate::clock::{Clock, Time};
use crate::record::Executed;
use crate::wire::json::{Json, Kind};
use crate::wire::mirror::base64;
use crate::wire::url::Url;

/// A document of an authorization server above this size is none.
const DOCUMENT_BYTES_MAX: u64 = 256 << 10;

/// A token is fetched anew this long before it ends, or at nine tenths of its life if that is sooner.
const REFRESH_BEFORE: Duration = Duration::from_secs(30);

/// The longest silence of an authorization server, unless the configuration says otherwise.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Token {
    value: String,
    /// When it is to be fetched anew; `None` if nothing says that it ends.
    refresh_at: Option<Time>,
}

/// Where and how tokens are asked for.
#[derive(Clone)]
struct Endpoint {
    url: Url,
    /// What the token is for (RFC 8707).
    resource: Option<String>,
    /// The secret goes into the body instead of a header.
    secret_in_body: bool,
}

#[derive(Default)]
struct State {
    endpoint: Option<Endpoint>,
    token: Option<Token>,
}

/// The tokens for one server.
pub(super) struct Tokens {
    settings: OAuthSettings,
    http: HttpSettings,
    server: Url,
    clock: Clock,
    say: Box<dyn Fn(String) + Send + Sync>,
    state: Mutex<State>,
}

impl Tokens {
    pub(super) fn new(
        settings: OAuthSettings,
        http: HttpSettings,
        server: Url,
        clock: Clock,
        say: Box<dyn Fn(String) + Send + Sync>,
    ) -> Tokens {
        Tokens { settings, http, server, clock, say, state: Mutex::new(State::default()) }
    }

    /// A token that holds as far as is known. May take as long as the authorization server does.
    ///
    /// # Errors
    /// Why there is none. Nothing was sent to the server itself.
    pub(super) fn token(&self) -> Result<String, Failed> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now().mono;
        if let Some(token) = &state.token
            && token.refresh_at.is_none_or(|at| now < at)
        {
            return Ok(token.value.clone());
        }
        state.token = None;
        let endpoint = match &state.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let endpoint = self.find_endpoint()?;
                state.endpoint = Some(endpoint.clone());
                endpoint
            }
        };
        let token = self.fetch(&endpoint)?;
        state.token = Some(token.clone());
        Ok(token.value)
    }

    /// The server refused this token; it is not used again.
    pub(super) fn refused(&self, value: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.token.as_ref().is_some_and(|token| token.value == value) {
            state.token = None;
        }
    }

    // --- the token endpoint ---

    fn find_endpoint(&self) -> Result<Endpoint, Failed> {
        let resource = self.settings.resource.clone();
        if let Some(url) = &self.settings.token_url {
            return Ok(Endpoint { url: url.clone(), resource, secret_in_body: false });
        }
        let (issuer, resource) = match &self.settings.issuer {
            Some(issuer) => (issuer.clone(), resource),
            None => self.ask_server(resource)?,
        };
        let endpoint = self.ask_issuer(&issuer, resource)?;
        (self.say)(format!("access tokens come from {}", endpoint.url.shown()));
        Ok(endpoint)
    }

    /// RFC 9728: the server names its authorization server and what a token for it must be for.
    fn ask_server(&self, resource: Option<String>) -> Result<(String, Option<String>), Failed> {
        let root = self.server.origin() + "/.well-known/oauth-protected-resource";
        let path = self.server.path().trim_end_matches('/');
        let mut places = vec![format!("{root}{path}"), root.clone()];
        places.dedup();
        let document = self.first_document(&places, "the server does not say who gives tokens for it")?;
        let json = Json::parse(&document).map_err(|_| fault("the server's resource metadata is no JSON"))?;
        let named = text_of(json, "resource");
        // A document about another server is none about this one.
        let about_it = named.as_deref().and_then(|named| Url::parse(named).ok());
        if about_it.is_none_or(|named| named.origin() != self.server.origin()) {
            return Err(fault("the server's resource metadata is about another server"));
        }
        let servers = json.member("authorization_servers");
        let issuer = servers.and_then(|servers| servers.element(0)).and_then(Json::as_str);
        let issuer = issuer.ok_or_else(|| fault("the server's resource metadata names no authorization server"))?;
        Ok((issuer.into_owned(), resource.or(named)))
    }

    /// RFC 8414, and the same under OpenID's name: the authorization server's own description.
    fn ask_issuer(&self, issuer: &str, resource: Option<String>) -> Result<Endpoint, Failed> {
        let url = self.secure(issuer, "the authorization server")?;
        let (origin, path) = (url.origin(), url.path().trim_end_matches('/').to_owned());
        let mut places = vec![
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{origin}/.well-known/openid-configuration{path}"),
        ];
        if !path.is_empty() {
            places.push(format!("{origin}{path}/.well-known/openid-configuration"));
        }
        let document = self.first_document(&places, "the authorization server does not describe itself")?;
        let json = Json::parse(&document).map_err(|_| fault("the authorization server's metadata is no JSON"))?;
        // Else any server could speak for any other (RFC 8414 section 3.3).
        if text_of(json, "issuer").as_deref() != Some(issuer) {
            return Err(fault("the authorization server's metadata is of another issuer"));
        }
        let endpoint = text_of(json, "token_endpoint");
        let endpoint = endpoint.ok_or_else(|| fault("the authorization server names no token endpoint"))?;
        let methods = json.member("token_endpoint_auth_methods_supported").filter(|all| all.kind() == Kind::Array);
        let knows =
            |name: &str| methods.is_none_or(|all| all.elements().any(|one| one.as_str().as_deref() == Some(name)));
        let secret_in_body = !knows("client_secret_basic") && knows("client_secret_post");
        Ok(Endpoint { url: self.secure(&endpoint, "the token endpoint")?, resource, secret_in_body })
    }

    /// A URL that others gave, which must be encrypted, unless all of this happens on one machine.
    fn secure(&self, text: &str, what: &str) -> Result<Url, Failed> {
        let url = Url::parse(text).map_err(|error| fault(&format!("{what}: {error}")))?;
        if url.is_https() || url.is_loopback() && self.server.is_loopback() {
            return Ok(url);
        }
        Err(fault(&format!("{what} {} is not encrypted", url.shown())))
    }

    fn first_document(&self, places: &[String], none: &str) -> Result<Vec<u8>, Failed> {
        let mut last = None;
        for place in places {
            let url = Url::parse(place).map_err(fault)?;
            let request = Request::get(url.text()).header("Accept", "application/json").body(());
            let request = request.map_err(|error| fault(&error.to_string()))?;
            let response = self.way_to(&url)?.line().agent.run(request);
            match response {
                Ok(response) if response.status().is_success() => return body_of(response),
                Ok(response) => last = Some(format!("{}: status {}", url.shown(), response.status().as_u16())),
                Err(error) => {
                    return Err(Failed::not_sent(&format!("{none}: {}: {}", url.shown(), describe(&error))));
                }
            }
        }
        Err(fault(&format!("{none} ({})", last.unwrap_or_default())))
    }

    // --- the token ---

    fn fetch(&self, endpoint: &Endpoint) -> Result<Token, Failed> {
        let id = self.settings.client_id.value().map_err(|error| Failed::not_sent(&error))?;
        let secret = self.settings.client_secret.value().map_err(|error| Failed::not_sent(&error))?;
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        form.extend(self.settings.scope.clone().map(|scope| ("scope", scope)));
        form.extend(endpoint.resource.clone().map(|resource| ("resource", resource)));
        let mut request = Request::post(endpoint.url.text())
            .header("Accept", "application/json")
            .header("Content-Type", "application/x-www-form-urlencoded");
        if endpoint.secret_in_body {
            form.extend([("client_id", id), ("client_secret", secret)]);
        } else {
            // RFC 6749 section 2.3.1: both parts are encoded like form values first.
            let pair = format!("{}:{}", form_value(&id), form_value(&secret));
            request = request.header("Authorization", format!("Basic {}", base64(pair.as_bytes())));
        }
        let body: Vec<String> = form.iter().map(|(name, value)| format!("{name}={}", form_value(value))).collect();
        let request = request.body(body.join("&")).map_err(|error| fault(&error.to_string()))?;
        let shown = endpoint.url.shown();
        let response = self.way_to(&endpoint.url)?.line().agent.run(request);
        let response = response.map_err(|error| Failed::not_sent(&format!("{shown}: {}", describe(&error))))?;
        let status = response.status();
        let body = body_of(response)?;
        let json = Json::parse(&body).ok();
        if !status.is_success() {
            let error = json.and_then(|json| text_of(json, "error")).unwrap_or_default();
            let text = format!("{shown}: no access token: status {} {error}", status.as_u16());
            // A server that has trouble may have a token later; one that says no will say it again.
            return Err(if status.is_server_error() { Failed::not_sent(text.trim()) } else { fault(text.trim()) });
        }
        let json = json.ok_or_else(|| fault(&format!("{shown}: the access token comes in no JSON")))?;
        let value = text_of(json, "access_token").filter(|value| {
            // What cannot stand in a header would be an error of every request.
            !value.is_empty() && value.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
        });
        let value = value.ok_or_else(|| fault(&format!("{shown}: there is no access token in the answer")))?;
        let kind = text_of(json, "token_type").unwrap_or_default();
        if !kind.eq_ignore_ascii_case("bearer") {
            return Err(fault(&format!("{shown}: the access token is of a kind that is not supported")));
        }
        let seconds =
            json.member("expires_in").and_then(|seconds| std::str::from_utf8(seconds.text()).ok()?.parse().ok());
        let life = seconds.map(Duration::from_secs);
        let refresh_at = life.map(|life: Duration| {
            let early = REFRESH_BEFORE.min(life / 10);
            self.clock.now().mono.plus(life - early)
        });
        Ok(Token { value, refresh_at })
    }

    /// The way to an authorization server. Headers and client certificates are for the server alone.
    fn way_to(&self, url: &Url) -> Result<Way, Failed> {
        let env = |name: &str| std::env::var(name).ok();
        let proxy = proxy_for(url, &self.http.proxy, &env).map_err(|error| fault(&error))?;
        let proxy = proxy.map(|proxy| Proxy::new(&proxy).map_err(|_| fault("the proxy's URL is not valid")));
        let roots = env("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(std::path::PathBuf::from);
        let tls = tls::client_config(self.http.ca_file.as_deref(), None, roots.as_deref());
        let tls: Arc<rustls::ClientConfig> = tls.map_err(|error| fault(&error))?;
        let silence = self.http.read_timeout.unwrap_or(SILENCE_MAX);
        let http = HttpSettings { read_timeout: Some(silence), ..self.http.clone() };
        Ok(Way::new(http, tls, proxy.transpose()?, None))
    }
}

/// No token, and none later either.
fn fault(text: &str) -> Failed {
    Failed { final_word: true, executed: Executed::No, ..Failed::not_sent(&format!("OAuth: {text}")) }
}

fn body_of(response: Response<Body>) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    let read = response.into_body().into_reader().take(DOCUMENT_BYTES_MAX).read_to_end(&mut body);
    match read {
        Ok(_) => Ok(body),
        Err(error) => Err(Failed::not_sent(&format!("OAuth: {}", describe(&ureq::Error::from(error))))),
    }
}

fn text_of(object: Json<'_>, name: &str) -> Option<String> {
    object.member(name)?.as_str().map(std::borrow::Cow::into_owned)
}

/// `text` as `application/x-www-form-urlencoded` has it.
fn form_value(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => out.push(byte.into()),
            b' ' => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_values_are_encoded() {
        assert_eq!(form_value("a b&c=d+é~"), "a+b%26c%3Dd%2B%C3%A9%7E");
    }
}
