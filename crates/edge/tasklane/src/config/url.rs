//! Where a system is: a URL, whose password is never shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The address of a store, bus, coordinator or archive.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SystemUrl(String);

impl SystemUrl {
    /// Takes a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL as it was given, for whoever connects.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What kind of system it is: what stands before `://`.
    pub fn scheme(&self) -> &str {
        match self.0.split_once("://") {
            Some(("postgresql", _)) => "postgres",
            Some((scheme, _)) => scheme,
            None => "",
        }
    }

    /// What follows `://`.
    pub fn rest(&self) -> &str {
        self.0.split_once("://").map_or("", |(_, rest)| rest)
    }
}

impl fmt::Display for SystemUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.rest();
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let credentials = authority.rsplit_once('@').map(|(credentials, _)| credentials);
        match credentials.and_then(|credentials| credentials.split_once(':')) {
            Some((user, password)) => {
                write!(f, "{}://{user}:***{}", self.scheme(), &rest[user.len() + 1 + password.len()..])
            }
            None => f.write_str(&self.0),
        }
    }
}

impl fmt::Debug for SystemUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for SystemUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        let shown = |url: &str| SystemUrl::new(url).to_string();
        assert_eq!(shown("postgres://me:s3:cr@t@db:5432/x?y=z"), "postgres://me:***@db:5432/x?y=z");
        assert_eq!(shown("redis://:secret@cache/1"), "redis://:***@cache/1");
        assert_eq!(shown("redis://cache:6379"), "redis://cache:6379");
        assert_eq!(shown("postgres:///db?host=/run/x"), "postgres:///db?host=/run/x");
        assert_eq!(shown("nonsense"), "nonsense");
    }

    #[test]
    fn it_has_a_scheme_and_a_rest() {
        let url = SystemUrl::new("direct://0.0.0.0:7071");
        assert_eq!((url.scheme(), url.rest()), ("direct", "0.0.0.0:7071"));
        assert_eq!(SystemUrl::new("nonsense").scheme(), "");
    }
}
