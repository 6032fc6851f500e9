//! Where a system is: a URL, whose password is never shown.

use std::fmt;

use serde::{Deserialize, Serialize};
use tasklane_core::mask::masked_url;

/// Redis and Valkey, plain or encrypted (a second `s`): one server, a cluster, or sentinels that know the server.
const REDIS: &[&str] = &[
    "redis",
    "rediss",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey",
    "valkeys",
    "valkey+cluster",
    "valkeys+cluster",
    "valkey+sentinel",
    "valkeys+sentinel",
];

/// Parameters that are passwords.
const SECRETS: &[&str] = &["sentinel_password", "password", "sslpassword"];

/// The address of a store, bus, coordinator or archive.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct AdapterUrl(String);

impl AdapterUrl {
    /// Takes a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL as it was given, for adapters that connect.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The kind of system: what stands before `://`, and one word for all that are the same system.
    pub fn scheme(&self) -> &str {
        match self.given_scheme() {
            "postgresql" => "postgres",
            scheme if REDIS.contains(&scheme) => "redis",
            scheme => scheme,
        }
    }

    /// The part before `://`.
    fn given_scheme(&self) -> &str {
        self.0.split_once("://").map_or("", |(scheme, _)| scheme)
    }

    /// The part after `://`.
    pub fn rest(&self) -> &str {
        self.0.split_once("://").map_or("", |(_, rest)| rest)
    }
}

impl fmt::Display for AdapterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked_url(&self.0, |parameter| !SECRETS.contains(&parameter)))
    }
}

impl fmt::Debug for AdapterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for AdapterUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let shown = |url: &str| AdapterUrl::new(url).to_string();
        assert_eq!(shown("postgres://me:s3:cr@t@db:5432/x?y=z"), "postgres://me:***@db:5432/x?y=z");
        assert_eq!(shown("redis://:secret@cache/1"), "redis://:***@cache/1");
        assert_eq!(shown("redis://cache:6379"), "redis://cache:6379");
        assert_eq!(shown("postgres:///db?host=/run/x"), "postgres:///db?host=/run/x");
        assert_eq!(
            shown("postgres://me@db/x?sslkey=/k&sslpassword=x"),
            "postgres://me@db/x?sslkey=/k&sslpassword=***"
        );
        assert_eq!(shown("nonsense"), "nonsense");
        assert_eq!(
            shown("rediss+sentinel://u:p@a,b/m/0?sentinel_user=s&sentinel_password=x&prefix=y"),
            "rediss+sentinel://u:***@a,b/m/0?sentinel_user=s&sentinel_password=***&prefix=y"
        );
    }

    #[test]
    fn it_has_a_scheme_and_a_rest() {
        let url = AdapterUrl::new("direct://0.0.0.0:7071");
        assert_eq!((url.scheme(), url.rest()), ("direct", "0.0.0.0:7071"));
        assert_eq!(AdapterUrl::new("nonsense").scheme(), "");
        for scheme in ["redis", "rediss+cluster", "redis+sentinel", "valkey", "valkeys"] {
            assert_eq!(AdapterUrl::new(format!("{scheme}://h")).scheme(), "redis", "{scheme}");
        }
        assert_eq!(AdapterUrl::new("redis+ring://h").scheme(), "redis+ring");
    }
}
