//! Secrets in URLs: passwords and query strings are not shown.

use std::borrow::Cow;

/// Takes the place of a secret.
const MASK: &str = "***";

/// A text with the URLs in it masked: `https://***@host/path?***`. In URLs of other kinds than `http` and
/// `https` the name of the user stays: `postgres://user:***@host/db?***`.
pub fn masked(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let begin = rest[..at].rfind(|c: char| !is_of_scheme(c)).map_or(0, |c| c + width(&rest[c..]));
        let end = at + 3 + len_of_url(&rest[at + 3..]);
        result.push_str(&rest[..begin]);
        result.push_str(&masked_url(&rest[begin..end], |_| false));
        rest = &rest[end..];
    }
    result.push_str(rest);
    Cow::Owned(result)
}

/// A single URL. Parameters of its query whose names are `shown` keep their values.
pub fn masked_url(url: &str, shown: impl Fn(&str) -> bool) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (base, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    let mut result = format!("{scheme}://");
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let authority = &base[..base.find('/').unwrap_or(base.len())];
    // Stores are given by hand, so that a password may have a slash that is not encoded.
    let end = authority.rfind('@').or_else(|| base.rfind('@').filter(|_| !is_http));
    if let Some(end) = end {
        // A token is often given as the user of an address.
        let user = if is_http { None } else { Some(base[..end].split_once(':')) };
        match user {
            None => result.push_str(MASK),
            Some(None) => result.push_str(&base[..end]),
            Some(Some((user, _))) => {
                result.push_str(user);
                result.push(':');
                result.push_str(MASK);
            }
        }
    }
    result.push_str(&base[end.unwrap_or(0)..]);
    if query.len() > 1 {
        push_query(&mut result, query, shown);
    } else {
        result.push_str(query);
    }
    result
}

fn push_query(result: &mut String, query: &str, shown: impl Fn(&str) -> bool) {
    let (mark, query) = query.split_at(1);
    result.push_str(mark);
    let name_of = |part: &str| part.split_once('=').map(|(name, _)| name.to_owned());
    if !query.split('&').any(|part| name_of(part).is_some_and(|name| shown(&name))) {
        result.push_str(MASK);
        return;
    }
    for (n, part) in query.split('&').enumerate() {
        if n > 0 {
            result.push('&');
        }
        match name_of(part) {
            Some(name) if shown(&name) => result.push_str(part),
            Some(name) => {
                result.push_str(&name);
                result.push('=');
                result.push_str(MASK);
            }
            None => result.push_str(MASK),
        }
    }
}

fn is_of_scheme(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

fn width(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// A URL in a text ends at a blank or a quote; punctuation before the end belongs to the text.
fn len_of_url(text: &str) -> usize {
    let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '`');
    let url = &text[..text.find(ends).unwrap_or(text.len())];
    url.trim_end_matches([')', ']', '}', '.', ',', ';', ':', '\'', '\\']).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_queries_of_urls_in_a_text_are_masked() {
        for (text, shown) in [
            (
                "error sending request for url (https://me:pw@host:8/a?key=s3cret&b=(1)x): Connection refused",
                "error sending request for url (https://***@host:8/a?***): Connection refused",
            ),
            (
                "see http://host/a#token=1, or https://TOKEN@host.",
                "see http://host/a#***, or https://***@host.",
            ),
            (
                r#"{"url":"http://host/?q=1","x":"é://u:p@h"}"#,
                r#"{"url":"http://host/?***","x":"é://u:***@h"}"#,
            ),
            ("postgres://me:pw@db/x?password=1", "postgres://me:***@db/x?***"),
            ("http://host/@scope/x?", "http://host/@scope/x?"),
            ("no url: a@b?c=d", "no url: a@b?c=d"),
            ("://?x", "://?***"),
            ("http://", "http://"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }

    #[test]
    fn a_url_may_show_some_of_its_query() {
        let shown = |url: &str| masked_url(url, |name| name != "password");
        assert_eq!(
            shown("redis://:p w@h/0?prefix=a&password=b&c"),
            "redis://:***@h/0?prefix=a&password=***&***"
        );
        assert_eq!(shown("postgres://u:p/w@h/db?password=b"), "postgres://u:***@h/db?***");
        assert_eq!(shown("postgres:///db?host=/run/x"), "postgres:///db?host=/run/x");
        assert_eq!(shown("nonsense"), "nonsense");
    }
}
