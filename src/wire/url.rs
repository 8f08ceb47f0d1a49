//! The URLs of HTTP servers: checked, compared by origin, and resolved as references.

/// An absolute `http` or `https` URL without credentials and fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    https: bool,
    /// Lower case; an IPv6 address with its brackets.
    host: String,
    port: u16,
    /// From the first `/` or `?` on; begins with `/`.
    target: String,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it. The URL is not in the text, as it may hold a secret.
    pub fn parse(text: &str) -> Result<Url, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or("it does not begin with http:// or https://")?;
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("it does not begin with http:// or https://"),
        };
        if text.bytes().any(|byte| !(0x21..=0x7e).contains(&byte) || matches!(byte, b'<' | b'>' | b'"' | b'\\')) {
            return Err("it holds characters that must be percent-encoded");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err("it holds a user name or password; put credentials into upstream.http.headers");
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or("its host is not a host")?;
                host.parse::<core::net::Ipv6Addr>().map_err(|_| "its host is not an IPv6 address")?;
                let port =
                    if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or("its host is no host")?) };
                (format!("[{}]", host.to_ascii_lowercase()), port)
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
                None => (authority.to_ascii_lowercase(), None),
            },
        };
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%[]:".contains(&byte);
        if host.is_empty() || !host.bytes().all(in_name) {
            return Err("it names no host");
        }
        let port = match port {
            None | Some("") => {
                if https {
                    443
                } else {
                    80
                }
            }
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| "its port is not a number from 1 to 65535")?
            }
            Some(_) => return Err("its port is not a number from 1 to 65535"),
        };
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Url { https, host, port, target })
    }

    /// Scheme, host and port; the port only where it is not the scheme's own.
    #[must_use]
    pub fn origin(&self) -> String {
        let (scheme, usual) = if self.https { ("https", 443) } else { ("http", 80) };
        match self.port {
            port if port == usual => format!("{scheme}://{}", self.host),
            port => format!("{scheme}://{}:{port}", self.host),
        }
    }

    /// The whole URL.
    #[must_use]
    pub fn text(&self) -> String {
        self.origin() + &self.target
    }

    /// The URL for people: without the query, which may hold a secret.
    #[must_use]
    pub fn shown(&self) -> String {
        self.origin() + self.path()
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The host, an IPv6 address without its brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.https
    }

    /// Whether the host is this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost"
            || host.ends_with(".localhost")
            || host.parse::<core::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// What `reference` means where it stands in an answer of this URL (RFC 3986 section 5).
    ///
    /// # Errors
    /// As [`Url::parse`].
    pub fn join(&self, reference: &str) -> Result<Url, &'static str> {
        let path = self.path();
        let scheme = if self.https { "https" } else { "http" };
        if reference.contains("://") && !reference.starts_with(['/', '?', '#', '.']) {
            return Url::parse(reference);
        }
        let text = match reference.as_bytes() {
            [b'/', b'/', ..] => return Url::parse(&format!("{scheme}:{reference}")),
            [b'/', ..] => reference.to_owned(),
            [] | [b'#', ..] => self.target.clone(),
            [b'?', ..] => format!("{path}{reference}"),
            _ => format!("{}{reference}", &path[..=path.rfind('/').unwrap_or(0)]),
        };
        let joined = Url::parse(&(self.origin() + &text))?;
        let (path, query) = match joined.target.find('?') {
            Some(at) => joined.target.split_at(at),
            None => (joined.target.as_str(), ""),
        };
        let target = without_dots(path) + query;
        Ok(Url { target, ..joined })
    }
}

/// `path` without `.` and `..` segments.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    for (index, segment) in segments.iter().enumerate() {
        let last = index + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn origins_are_equal_whatever_the_spelling() {
        for text in ["https://A.example/mcp", "HTTPS://a.EXAMPLE:443/x?y", "https://a.example", "https://a.example:/"] {
            assert_eq!(url(text).origin(), "https://a.example", "{text}");
        }
        assert_eq!(url("http://[::1]:8080/mcp").origin(), "http://[::1]:8080");
        assert_eq!(url("http://h:80").text(), "http://h/");
        assert_ne!(url("http://h").origin(), url("https://h").origin());
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused_and_not_repeated() {
        for text in [
            "",
            "h",
            "ftp://h",
            "http:/h",
            "http://",
            "http:///x",
            "http://h:x",
            "http://h:99999",
            "http://[::1",
            "http://[x]/",
            "http://u:s3cret@h/",
            "http://h/a b",
            "http://h/é",
            "http://h\n",
            "http://h/<",
            "http://h_;x/",
        ] {
            let error = Url::parse(text).expect_err(text);
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn the_shown_form_has_no_query() {
        assert_eq!(url("https://h/mcp?key=s3cret#x").shown(), "https://h/mcp");
        assert_eq!(url("https://h?key=s3cret").shown(), "https://h/");
    }

    #[test]
    fn references_are_resolved() {
        let base = url("https://h/a/b?q");
        for (reference, expected) in [
            ("/m?s=1", "https://h/m?s=1"),
            ("m?s=1", "https://h/a/m?s=1"),
            ("?s=1", "https://h/a/b?s=1"),
            ("", "https://h/a/b?q"),
            ("../m", "https://h/m"),
            ("./m/.", "https://h/a/m/"),
            ("/../../m", "https://h/m"),
            ("//other/m", "https://other/m"),
            ("http://other:1/m", "http://other:1/m"),
            ("/m?u=http://x", "https://h/m?u=http://x"),
        ] {
            assert_eq!(base.join(reference).map(|url| url.text()), Ok(expected.to_owned()), "{reference}");
        }
        assert!(base.join("http://").is_err());
    }

    #[test]
    fn this_machine_is_recognised() {
        for text in
            ["http://localhost/", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]/", "http://a.localhost"]
        {
            assert!(url(text).is_loopback(), "{text}");
        }
        for text in ["http://localhost.example", "http://10.0.0.1", "http://[::2]/"] {
            assert!(!url(text).is_loopback(), "{text}");
        }
    }
}
