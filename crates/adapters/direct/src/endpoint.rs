//! The endpoint of a server, `host:port/secret`. Without the secret the server refuses a connection.

use std::fmt;
use std::net::SocketAddr;

use subtle::ConstantTimeEq;
use tonic::transport::Uri;

/// A server as its peers know it. A process that can read it may connect.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    /// `host:port`.
    place: String,
    secret: Secret,
}

/// Random for each start of a server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Secret(String);

impl Endpoint {
    /// The endpoint of a server bound to `bound`. `advertised` replaces the host, or host and port, where
    /// peers reach the server under another name.
    pub(crate) fn new(bound: SocketAddr, advertised: Option<&str>) -> Result<Self, String> {
        let place = match advertised {
            None if bound.ip().is_unspecified() => {
                return Err(format!("{bound} is no address that peers could dial: one must be advertised"));
            }
            None => bound.to_string(),
            Some(place) if has_port(place) => place.to_owned(),
            Some(host) => format!("{host}:{}", bound.port()),
        };
        let secret = format!("{:032x}", rand::random::<u128>());
        Self::parse(&format!("{place}/{secret}"))
    }

    /// Parses the endpoint that another server has published.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        // Errors name the fault without the secret.
        let (place, secret) = text.split_once('/').ok_or("an endpoint without a secret")?;
        let uri: Uri = format!("http://{place}").parse().map_err(|_| format!("{place:?} is no place"))?;
        let known =
            uri.host().is_some_and(|host| !host.is_empty()) && uri.port_u16().is_some_and(|port| port > 0);
        if !known
            || uri.authority().is_none_or(|authority| authority.as_str() != place || place.contains('@'))
        {
            return Err(format!("{place:?} is not of the form host:port"));
        }
        if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("the secret of {place} is not one"));
        }
        Ok(Self { place: place.to_owned(), secret: Secret(secret.to_owned()) })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.place)
    }

    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

fn has_port(place: &str) -> bool {
    place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok() && !place.ends_with(']'))
}

impl Secret {
    /// The header value that a dialler presents.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether a dialler presents this secret. A wrong secret takes as long as the right one.
    pub(crate) fn is_shown_by(&self, authorization: &[u8]) -> bool {
        self.bearer().as_bytes().ct_eq(authorization).into()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.secret.0)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_advertised_goes_before_what_is_bound() {
        let place = |bind: &str, advertised| Endpoint::new(bound(bind), advertised).unwrap().place;
        assert_eq!(place("127.0.0.1:7000", None), "127.0.0.1:7000");
        assert_eq!(place("[::1]:7000", None), "[::1]:7000");
        assert_eq!(place("0.0.0.0:7000", Some("node-1.example")), "node-1.example:7000");
        assert_eq!(place("0.0.0.0:7000", Some("node-1.example:80")), "node-1.example:80");
        assert_eq!(place("[::]:7000", Some("[2001:db8::1]")), "[2001:db8::1]:7000");
        assert_eq!(place("[::]:7000", Some("[2001:db8::1]:80")), "[2001:db8::1]:80");
    }

    #[test]
    fn a_place_that_nobody_can_dial_is_refused() {
        assert!(Endpoint::new(bound("0.0.0.0:7000"), None).is_err());
        for advertised in ["", "two words", "a/b", "user@host", "::1", "host:0", "http://host"] {
            assert!(Endpoint::new(bound("127.0.0.1:7000"), Some(advertised)).is_err(), "{advertised:?}");
        }
    }

    #[test]
    fn an_endpoint_is_read_as_it_was_written_and_never_shown_with_its_secret() {
        let endpoint = Endpoint::new(bound("127.0.0.1:7000"), None).unwrap();
        assert_eq!(Endpoint::parse(&endpoint.to_string()), Ok(endpoint.clone()));
        assert!(!format!("{endpoint:?}").contains(&endpoint.secret.0));
        for wrong in ["", "host:1", "host:1/", "host/secret", ":1/secret", "host:1/a b", "host:1/a/b"] {
            let refused = Endpoint::parse(wrong).unwrap_err();
            assert!(!refused.contains("secret/") && !refused.contains("a b"), "{refused}");
        }
    }

    #[test]
    fn only_the_whole_secret_opens() {
        let secret = Secret("abc".to_owned());
        assert!(secret.is_shown_by(b"Bearer abc"));
        for wrong in ["", "Bearer ", "Bearer ab", "Bearer abcd", "bearer abc", "abc"] {
            assert!(!secret.is_shown_by(wrong.as_bytes()), "{wrong:?}");
        }
    }
}
