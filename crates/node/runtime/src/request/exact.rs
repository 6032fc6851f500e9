//! JSON that every reader can parse, and whole numbers that keep their value.
//!
//! JSON text may hold values that its readers cannot represent: `1e999` is infinite to most of them,
//! `"\ud800"` is half a character. Such text is refused at the entry. A whole number of more than 64 bits is
//! fine, but a [`Value`] would hold the nearest float instead: while JSON is a `Value`, such a number is a
//! text with a mark, and it is a number again in the JSON that is written.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::depth::{JSON_DEPTH_MAX, too_deep};

/// Begins the text that stands for a number. No character has this code, so no text of a user begins with it by chance.
const MARK: char = '\u{10fffe}';

/// Whole numbers with fewer digits fit 64 bits.
const LONG_DIGITS: usize = 19;

/// Refuses JSON text that some readers could not parse; the error is the rule.
pub fn check_readable(json: &str) -> Result<(), String> {
    if too_deep(json) {
        return Err(format!("must not be nested deeper than {JSON_DEPTH_MAX} levels"));
    }
    serde_json::from_str::<Readable>(json).map(drop).map_err(|error| {
        format!(
            "must be JSON that every program can read: {error}; write a number beyond 1.8e308 as text, and characters beyond \
             U+FFFF as such or as both of their halves"
        )
    })
}

/// JSON text as a value in which long whole numbers are marked.
pub(crate) fn parse(json: &str) -> serde_json::Result<Value> {
    match marked(json) {
        Some(marked) => serde_json::from_str(&marked),
        None => serde_json::from_str(json),
    }
}

/// A value as JSON text, its marked numbers as numbers.
pub(crate) fn write(value: &Value) -> String {
    let json = value.to_string();
    if !json.contains(MARK) {
        return json;
    }
    let mut written = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some((before, number, after)) = next_marked(rest) {
        written.push_str(before);
        written.push_str(number);
        rest = after;
    }
    written.push_str(rest);
    written
}

/// The digits of a number that is marked.
pub(super) fn number(text: &str) -> Option<&str> {
    text.strip_prefix(MARK).filter(|digits| is_whole(digits))
}

/// The text that stands for a whole number.
pub(super) fn mark(number: &str) -> String {
    format!("{MARK}{number}")
}

/// The text before the next marked number of a JSON text, the number, and the text after it.
fn next_marked(json: &str) -> Option<(&str, &str, &str)> {
    let quoted = format!("\"{MARK}");
    let mut from = 0;
    loop {
        let at = from + json[from..].find(&quoted)?;
        let digits = at + quoted.len();
        let end = digits + json[digits..].find('"')?;
        let (before, after) = (&json[..at], &json[end + 1..]);
        // A quote within a text has a backslash before it, and a name is followed by a colon.
        let is_value = before.chars().next_back().is_none_or(|c| matches!(c, '[' | ',' | ':'))
            && !after.starts_with(':');
        if is_value && is_whole(&json[digits..end]) {
            return Some((before, &json[digits..end], after));
        }
        from = digits;
    }
}

/// JSON text in which long whole numbers are marked texts; `None` if it has none.
fn marked(json: &str) -> Option<String> {
    let mut marked = String::new();
    let (mut copied, mut at) = (0, 0);
    let bytes = json.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = end_of_text(bytes, at),
            b'-' | b'0'..=b'9' => {
                let len = bytes[at..].iter().take_while(|byte| is_of_number(**byte)).count();
                let token = &json[at..at + len];
                if len >= LONG_DIGITS && is_whole(token) && !fits_64_bits(token) {
                    marked.push_str(&json[copied..at]);
                    marked.push('"');
                    marked.push(MARK);
                    marked.push_str(token);
                    marked.push('"');
                    copied = at + len;
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    (copied > 0).then(|| marked + &json[copied..])
}

/// The position after the text that begins here.
fn end_of_text(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
}

/// Whether a text is a whole number as JSON writes it.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'))
}

fn fits_64_bits(number: &str) -> bool {
    number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok()
}

/// A value whose every part was parsed.
struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Readable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Readable, E> {
        Ok(Readable)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Readable, A::Error> {
        while items.next_element::<Readable>()?.is_some() {}
        Ok(Readable)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Readable, A::Error> {
        // A name is parsed as a text, so its characters are whole as well.
        while fields.next_entry::<Name, Readable>()?.is_some() {}
        Ok(Readable)
    }
}

/// The name of a field.
struct Name;

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Reader).map(|_| Self)
    }
}

#[cfg(test)]
mod exact_tests {
    use super::*;

    #[test]
    fn what_some_cannot_read_is_refused() {
        for json in ["null", "-1.5e300", r#"{"a":["\ud83d\ude00",1e-999]}"#, "123456789012345678901234567890"]
        {
            assert_eq!(check_readable(json), Ok(()), "{json}");
        }
        let long = "9".repeat(400);
        for json in ["1e999", "[-1E400]", r#""\ud800""#, r#"{"\udc00":1}"#, r#"["\ud800x"]"#, &long] {
            assert!(check_readable(json).unwrap_err().contains("every program"), "{json}");
        }
        assert!(
            check_readable(&format!("{}{}", "[".repeat(101), "]".repeat(101))).unwrap_err().contains("100")
        );
    }

    #[test]
    fn long_numbers_stay_what_they_are() {
        for json in [
            "123456789012345678901234567890",
            "[18446744073709551615,18446744073709551616,-9223372036854775809]",
            r#"{"a":{"b":[1,2.5,340282366920938463463374607431768211456]},"c":"18446744073709551616"}"#,
            r#"{"18446744073709551616":"say \"18446744073709551616\"","n":18446744073709551616}"#,
        ] {
            assert_eq!(write(&parse(json).unwrap()), json);
        }
        assert!(parse("[00000000000000000000001]").is_err());
        // A text that looks like a marked number within another text, or as a name, stays a text.
        let forged = serde_json::json!({ mark("12"): format!("[\"{}\"]", mark("34")) });
        assert_eq!(write(&forged), forged.to_string());
    }
}
