//! Faults of remote servers in words: of the connection, and of responses that are no success.

use super::failure::Failed;
use crate::wire::json::{Json, Kind};
use crate::wire::splice::quote;

/// So much of what a server says is repeated.
const QUOTED_CHARS_MAX: usize = 500;

/// Error codes that only modern servers give (MCP 2026-07-28): headers differ, capability missing, version not served.
const MODERN_ERRORS: [&[u8]; 3] = [b"-32020", b"-32021", b"-32022"];

/// A fault of the library or the connection.
pub(super) fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Resolve) => "its name was not found in time".to_owned(),
        ureq::Error::Timeout(ureq::Timeout::Connect) => {
            "no connection within upstream.http.connect_timeout_ms".to_owned()
        }
        ureq::Error::Timeout(ureq::Timeout::PerRead) => {
            "silent for longer than upstream.http.read_timeout_ms".to_owned()
        }
        ureq::Error::HostNotFound => "its name is not known".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::ConnectProxyFailed(text) => format!("the proxy refused: {}", cut(text)),
        other => other.to_string(),
    }
}

/// Whether the server refused us in the handshake. Its word arrives when the request is already on its way (TLS 1.3 asks
/// for the client's certificate in the last message), but no such request is ever looked at.
pub(super) fn is_handshake_alert(error: &ureq::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let fault = match error {
        ureq::Error::Rustls(fault) => fault,
        ureq::Error::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(fault) => fault,
            None => return false,
        },
        _ => return false,
    };
    matches!(
        fault,
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::HandshakeFailure
        )
    )
}

/// A response that is no success and no answer.
pub(super) struct Said<'a> {
    pub(super) status: u16,
    /// `WWW-Authenticate`.
    pub(super) challenge: Option<String>,
    pub(super) body: &'a [u8],
}

/// What it means. `shown` is the server's URL for people.
pub(super) fn refusal(shown: &str, said: &Said<'_>) -> Failed {
    let json = Json::parse(said.body).ok();
    let error = json.and_then(|json| json.member("error")).filter(|error| error.kind() == Kind::Object);
    let words = error.and_then(|error| error.member("message")).and_then(Json::as_str);
    let code = error.and_then(|error| error.member("code"));
    let challenge = said.challenge.as_deref();
    let mut message = match said.status {
        401 if parameter(challenge, "error").as_deref() == Some("invalid_token") => {
            format!("{shown}: status 401: the credential is not valid (any more)")
        }
        401 => format!("{shown}: status 401: the server wants a credential (upstream.http.headers)"),
        403 => match parameter(challenge, "scope") {
            Some(scope) => {
                format!("{shown}: status 403: the credential lacks a permission; asked for: {}", cut(&scope))
            }
            None => format!("{shown}: status 403: the server does not permit this"),
        },
        status => format!("{shown}: status {status}"),
    };
    if let Some(words) = words {
        message = format!("{message}: {}", cut(&words));
    }
    let mut detail = format!("{{\"status\":{}", said.status).into_bytes();
    if let Some(challenge) = challenge {
        detail.extend_from_slice(b",\"www_authenticate\":");
        detail.extend_from_slice(&quote(&cut(challenge)));
    }
    if let Some(error) = error {
        detail.extend_from_slice(b",\"error\":");
        detail.extend_from_slice(error.text());
    }
    detail.push(b'}');
    Failed {
        modern_error: code.is_some_and(|code| MODERN_ERRORS.contains(&code.text())),
        detail: Some(detail),
        ..Failed::refused(said.status, &message)
    }
}

/// The value of a parameter of a challenge: `name="value"` or `name=value`.
fn parameter(challenge: Option<&str>, name: &str) -> Option<String> {
    let challenge = challenge?;
    let lower = challenge.to_ascii_lowercase();
    let at = lower
        .match_indices(&format!("{name}="))
        .map(|(at, _)| at)
        .find(|at| *at == 0 || matches!(lower.as_bytes()[at - 1], b' ' | b',' | b'\t'))?;
    let value = &challenge[at + name.len() + 1..];
    match value.strip_prefix('"') {
        Some(quoted) => Some(quoted.split('"').next().unwrap_or_default().to_owned()),
        None => Some(value.split([',', ' ']).next().unwrap_or_default().to_owned()),
    }
}

fn cut(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: u16, challenge: Option<&str>, body: &str) -> Failed {
        refusal("https://h/mcp", &Said { status, challenge: challenge.map(str::to_owned), body: body.as_bytes() })
    }

    #[test]
    fn htt_7_the_error_tells_a_bad_credential_from_a_missing_permission() {
        let expired = r#"Bearer error="invalid_token", resource_metadata="https://h/x""#;
        let failed = said(401, Some(expired), "<html>");
        assert_eq!(failed.message, "https://h/mcp: status 401: the credential is not valid (any more)");
        assert_eq!(
            String::from_utf8(failed.detail.expect("a detail")).expect("text"),
            r#"{"status":401,"www_authenticate":"Bearer error=\"invalid_token\", resource_metadata=\"https://h/x\""}"#
        );
        assert!(said(401, None, "").message.contains("wants a credential"));
        let scope = said(403, Some(r#"Bearer error="insufficient_scope", scope="files:write x""#), "");
        assert_eq!(
            scope.message,
            "https://h/mcp: status 403: the credential lacks a permission; asked for: files:write x"
        );
        assert!(scope.final_word);
    }

    #[test]
    fn htt_8_a_page_is_not_repeated_and_an_error_message_is() {
        assert_eq!(said(502, None, "<html>Bad Gateway</html>").message, "https://h/mcp: status 502");
        let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Server not\u0000 initialized"}}"#;
        assert_eq!(said(400, None, body).message, "https://h/mcp: status 400: Server not  initialized");
        assert!(!said(400, None, body).modern_error);
        assert!(said(400, None, r#"{"error":{"code":-32022,"message":"m"}}"#).modern_error);
    }
}
