//! The parts of a URL: parameters of the client library, and parameters of this crate.

use crate::tls::TlsOptions;

/// A URL, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// The rest of the URL, for the client library.
    pub(crate) url: String,
    pub(crate) schema: Option<String>,
    pub(crate) tls: TlsOptions,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut target = Self::default();
        let mut others = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value =
                decoded(value).ok_or_else(|| format!("{name}={value} is not percent-encoded text"))?;
            let tls = &mut target.tls;
            match name {
                "schema" => target.schema = Some(value),
                "sslmode" => tls.mode = Some(value),
                "sslrootcert" => tls.root_certs = Some(value),
                "sslcert" => tls.cert = Some(value),
                "sslkey" => tls.key = Some(value),
                "target_session_attrs" => check_attrs(&value)?,
                _ => others.push(part),
            }
        }
        let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        target.url = format!("{base}{query}");
        Ok(target)
    }
}

/// Connections are always made to a server that takes writes, so the parameter may only repeat that.
fn check_attrs(value: &str) -> Result<(), String> {
    if matches!(value, "any" | "read-write" | "primary") {
        return Ok(());
    }
    Err(format!(
        "target_session_attrs={value} cannot be used: Tasklane writes, so it must be read-write, which is also the default"
    ))
}

/// Text of a URL without its percent-encoding; `None` where that is invalid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_taken_out_of_the_url() {
        let parse = |url: &str| Target::parse(url).unwrap();
        let target = |url: &str, schema: Option<&str>| {
            let (url, schema) = (url.to_owned(), schema.map(str::to_owned));
            Target { url, schema, ..Target::default() }
        };
        assert_eq!(parse("postgres://u:p@h:1/d"), target("postgres://u:p@h:1/d", None));
        assert_eq!(
            parse("postgres:///d?host=/run/postgresql&schema=a&application_name=b"),
            target("postgres:///d?host=/run/postgresql&application_name=b", Some("a"))
        );
        assert_eq!(parse("postgres://h/d?schema=b"), target("postgres://h/d", Some("b")));
    }

    #[test]
    fn files_may_be_percent_encoded() {
        let target = Target::parse("postgres://h/d?sslrootcert=%2Fa%20b.pem&sslcert=/c&sslkey=/k").unwrap();
        let tls = TlsOptions {
            mode: None,
            root_certs: Some("/a b.pem".to_owned()),
            cert: Some("/c".to_owned()),
            key: Some("/k".to_owned()),
        };
        assert_eq!(target.tls, tls);
        assert!(Target::parse("postgres://h/d?sslrootcert=%2").unwrap_err().contains("sslrootcert"));
    }

    #[test]
    fn a_server_that_only_reads_cannot_be_asked_for() {
        let parse = |value: &str| Target::parse(&format!("postgres://a,b/d?target_session_attrs={value}"));
        assert_eq!(parse("read-write").unwrap().url, "postgres://a,b/d");
        assert!(parse("standby").unwrap_err().contains("read-write"));
    }
}
