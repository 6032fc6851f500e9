//! The host and the port of a request, read strictly.
//!
//! The checks of a server without a token rest on the name under which a browser reached it. A name that two programs
//! could read in two ways is read in none: user info, a bracket with something behind it, a dot at the end, a port that is
//! no number.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{HeaderValue, Version};

/// A host and its port, if one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Ip(IpAddr),
    /// In lower case.
    Name(String),
}

impl Authority {
    /// `localhost:7070`, `10.1.2.3`, `[::1]:80`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = if let Some(text) = text.strip_prefix('[') {
            let (ip, rest) = text.split_once(']')?;
            (Host::Ip(ip.parse::<Ipv6Addr>().ok()?.into()), rest)
        } else {
            let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            (Host::parse(host)?, rest)
        };
        let port = if port.is_empty() { None } else { Some(port_of(port.strip_prefix(':')?)?) };
        Some(Self { host, port })
    }

    /// The host and port that a request is sent to; `Ok(None)` if it names none, as HTTP/1.0 allows.
    pub(crate) fn of(request: &Request) -> Result<Option<Self>, &'static str> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        if more.is_some() {
            return Err("the request has two headers `Host`");
        }
        if host.is_none() && request.version() >= Version::HTTP_11 {
            return Err("the request has no header `Host`");
        }
        let host = host.map(Self::of_header).transpose()?;
        let Some(target) = request.uri().authority() else { return Ok(host) };
        let target = Self::parse(target.as_str()).ok_or(WRONG)?;
        match host {
            Some(host) if !host.is_same(&target, 80) => {
                Err("the request names one host in its first line and another one in its header `Host`")
            }
            _ => Ok(Some(target)),
        }
    }

    fn of_header(value: &HeaderValue) -> Result<Self, &'static str> {
        value.to_str().ok().and_then(Self::parse).ok_or(WRONG)
    }

    /// Whether both are the same place, where `usual` is the port that is left out.
    pub(crate) fn is_same(&self, other: &Self, usual: u16) -> bool {
        self.host == other.host && self.port.unwrap_or(usual) == other.port.unwrap_or(usual)
    }

    /// An address, or a name that every machine keeps for itself: a page of another site cannot point these here.
    pub(crate) fn is_local(&self) -> bool {
        match &self.host {
            Host::Ip(_) => true,
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        }
    }

    pub(crate) fn is_named(&self, name: &str) -> bool {
        matches!(&self.host, Host::Name(own) if own.eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => write!(f, "{ip}"),
            Host::Name(name) => f.write_str(name),
        }
    }
}

/// Said of a host that cannot be read.
const WRONG: &str = "the host of the request must be a name or an address, with or without a port";

fn port_of(text: &str) -> Option<u16> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(ip) = text.parse::<Ipv4Addr>() {
            return Some(Self::Ip(ip.into()));
        }
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        text.split('.').all(is_label).then(|| Self::Name(text.to_ascii_lowercase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_a_port_is_a_number() {
        for (text, is_local) in [
            ("localhost", true),
            ("LocalHost:7070", true),
            ("a.localhost:1", true),
            ("127.0.0.1:7070", true),
            ("[::1]", true),
            ("[::1]:65535", true),
            ("tasks_1.example:80", false),
            ("127.1", false),
            ("2130706433", false),
            ("127.0.0.1.evil.test", false),
        ] {
            assert_eq!(Authority::parse(text).map(|parsed| parsed.is_local()), Some(is_local), "{text}");
        }
        for odd in [
            "",
            ":80",
            "a@localhost",
            "user:pw@localhost",
            "localhost.",
            "127.0.0.1.",
            "localhost:",
            "localhost:x",
            "localhost:+80",
            "localhost:65536",
            "localhost:80:80",
            "[127.0.0.1].evil.test",
            "[::1].evil.test",
            "[::1]evil",
            "[::1]:",
            "[::1",
            "::1",
            "[localhost]",
            "local host",
            "localhost/x",
            "localhost#",
            "a..b",
            "evil.test\\.localhost",
            "localhost,evil.test",
            "löcalhost",
        ] {
            assert_eq!(Authority::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_usual_port_may_be_left_out() {
        let same = |one: &str, other: &str, usual| {
            Authority::parse(one).unwrap().is_same(&Authority::parse(other).unwrap(), usual)
        };
        assert!(same("a.b", "A.b:80", 80) && same("a.b:443", "a.b", 443));
        assert!(!same("a.b", "a.b:80", 443) && !same("a.b", "a.c", 80));
    }
}
