//! Golden files: the bytes that stores and buses hold, so that a rename or a new field order cannot change them unseen.
//!
//! A golden file lies in `tests/golden/` of the crate that owns its types. An entry has a title, the value as JSON for
//! readers, and the bytes as hex:
//! ```text
//! == Message.Hint
//! {"Hint":{"lane":3}}
//! 81a448696e7481a46c616e6503
//! ```
//! A check encodes each value and compares the bytes with the file. It also decodes the bytes of the file and compares
//! the values. A renamed field or variant fails the check: `#[serde(rename = "…")]` keeps the stored name.
//! `UPDATE=1` rewrites the file. The diff of the file then shows each form that earlier versions cannot read.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What an entry's title begins with.
const TITLE: &str = "== ";
/// Hex digits of one line.
const LINE: usize = 100;

/// Compares the entries that `fill` adds with `tests/golden/NAME.txt` of the crate under test, and the titles of the file
/// with those of the entries. `UPDATE=1` writes the file instead.
pub fn check(name: &str, fill: impl FnOnce(&mut Golden)) {
    // Cargo runs tests in the folder of their crate.
    let path = PathBuf::from(format!("tests/golden/{name}.txt"));
    let mut golden =
        Golden { stored: entries(&fs::read_to_string(&path).unwrap_or_default()), ..Golden::default() };
    fill(&mut golden);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all("tests/golden").unwrap();
        return fs::write(&path, written(&golden.now)).unwrap();
    }
    let wrong = golden.differences();
    assert!(
        wrong.is_empty(),
        "{} holds what other versions read and write:\n\n{}\n\nkeep a stored name by #[serde(rename = \"…\")]; a new \
         type or variant gets its entry by UPDATE=1",
        path.display(),
        wrong.join("\n\n")
    );
}

/// The bytes that `tasklane_ports::codec` writes: `MessagePack` with the names of fields.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

/// The variants of an enum, for [`Golden::variants`]: a new variant does not compile until its name stands in the list.
#[derive(Debug)]
pub struct Variants<T> {
    /// Names the variant of a value, as Rust does.
    pub name: fn(&T) -> &'static str,
    /// All names.
    pub all: &'static [&'static str],
}

impl<T: Serialize + Debug> Variants<T> {
    fn titled(self, title: &str, values: impl IntoIterator<Item = T>) -> Vec<(String, T)> {
        let mut missing: BTreeSet<&str> = self.all.iter().copied().collect();
        let values: Vec<T> =
            values.into_iter().inspect(|value| _ = missing.remove((self.name)(value))).collect();
        assert!(missing.is_empty(), "no value of {title} is {missing:?}");
        values.into_iter().map(|value| (format!("{title}.{}", stored_name(&value)), value)).collect()
    }
}

/// Lists all variants of an enum that is in scope: `variants!(Status: Pending, Running)`.
#[macro_export]
macro_rules! variants {
    ($enum:ident: $($variant:ident),+ $(,)?) => {
        $crate::golden::Variants::<$enum> {
            name: |value| match value {
                $($enum::$variant { .. } => stringify!($variant),)+
            },
            all: &[$(stringify!($variant)),+],
        }
    };
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    title: String,
    lines: Vec<String>,
}

/// The entries of a golden file: stored, and expected now.
#[derive(Debug, Default)]
pub struct Golden {
    stored: Vec<Entry>,
    now: Vec<Entry>,
    wrong: Vec<String>,
}

impl Golden {
    /// A value that `tasklane_ports::codec` writes.
    pub fn packed<T: Serialize + DeserializeOwned + Debug>(&mut self, title: &str, value: &T) {
        let json = serde_json::to_string(value).unwrap();
        let title = self.add(title, vec![json, hex(&encode(value))]);
        let Some(bytes) = self.stored_lines(&title).map(|lines| unhex(&lines[1..])) else { return };
        match rmp_serde::from_slice::<T>(&bytes) {
            Ok(read) => self.compare(&title, &format!("{value:?}"), &format!("{read:?}")),
            Err(error) => self.wrong.push(format!("{title}: the stored bytes cannot be read: {error}")),
        }
    }

    /// One value of each variant of an enum at least. Titles end with the stored name of the variant.
    pub fn variants<T: Serialize + DeserializeOwned + Debug>(
        &mut self,
        title: &str,
        variants: Variants<T>,
        values: impl IntoIterator<Item = T>,
    ) {
        for (title, value) in variants.titled(title, values) {
            self.packed(&title, &value);
        }
    }

    /// The same for an enum that is stored as JSON.
    pub fn json_variants<T: Serialize + DeserializeOwned + Debug>(
        &mut self,
        title: &str,
        variants: Variants<T>,
        values: impl IntoIterator<Item = T>,
    ) {
        for (title, value) in variants.titled(title, values) {
            self.json(&title, &value);
        }
    }

    /// A value that is stored as JSON: in a payload, a result or a document.
    pub fn json<T: Serialize + DeserializeOwned + Debug>(&mut self, title: &str, value: &T) {
        let title = self.add(title, vec![serde_json::to_string(value).unwrap()]);
        let Some(stored) = self.stored_lines(&title) else { return };
        match serde_json::from_str::<T>(&stored[0]) {
            Ok(read) => self.compare(&title, &format!("{value:?}"), &format!("{read:?}")),
            Err(error) => self.wrong.push(format!("{title}: the stored JSON cannot be read: {error}")),
        }
    }

    /// Bytes in a form of their own. The stored bytes come back, for a check of what they are read as.
    pub fn bytes(&mut self, title: &str, bytes: &[u8]) -> Vec<u8> {
        let title = self.add(title, vec![hex(bytes)]);
        self.stored_lines(&title).map_or_else(|| bytes.to_vec(), unhex)
    }

    /// A text as it is stored: a name, a key, a number.
    pub fn text(&mut self, title: &str, text: impl std::fmt::Display) {
        self.add(title, vec![text.to_string()]);
    }

    fn add(&mut self, title: &str, mut lines: Vec<String>) -> String {
        let number = self.now.iter().filter(|entry| entry.title.split(" #").next() == Some(title)).count();
        let title = if number == 0 { title.to_owned() } else { format!("{title} #{}", number + 1) };
        lines = lines.iter().flat_map(|line| line.lines().map(str::to_owned)).collect();
        self.now.push(Entry { title: title.clone(), lines });
        title
    }

    fn stored_lines(&self, title: &str) -> Option<&[String]> {
        let entry = self.stored.iter().find(|entry| entry.title == title)?;
        (!entry.lines.is_empty()).then_some(&entry.lines)
    }

    fn compare(&mut self, title: &str, now: &str, read: &str) {
        if now != read {
            self.wrong.push(format!(
                "{title}: the stored form reads as another value\n  value: {now}\n  read:  {read}"
            ));
        }
    }

    fn differences(&self) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        for entry in &self.now {
            match self.stored.iter().find(|stored| stored.title == entry.title) {
                None => wrong.push(format!("{}: has no entry", entry.title)),
                Some(stored) if stored != entry => wrong.push(format!(
                    "{}: the bytes differ\n  stored: {}\n  now:    {}",
                    entry.title,
                    stored.lines.join("\n          "),
                    entry.lines.join("\n          ")
                )),
                Some(_) => {}
            }
        }
        let now: BTreeSet<&str> = self.now.iter().map(|entry| entry.title.as_str()).collect();
        let gone = self.stored.iter().filter(|stored| !now.contains(stored.title.as_str()));
        wrong
            .extend(gone.map(|stored| format!("{}: nothing is written in this form any more", stored.title)));
        wrong
    }
}

/// The name by which an enum's variant is stored.
fn stored_name<T: Serialize + Debug>(value: &T) -> String {
    match serde_json::to_value(value).unwrap() {
        serde_json::Value::String(name) => name,
        serde_json::Value::Object(fields) if fields.len() == 1 => fields.keys().next().unwrap().clone(),
        other => panic!("{value:?} is stored as {other}, which names no variant"),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(LINE / 2) {
        for byte in line {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn unhex(lines: &[String]) -> Vec<u8> {
    let digits = lines.concat();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix(TITLE), entries.last_mut()) {
            (Some(title), _) => entries.push(Entry { title: title.to_owned(), lines: Vec::new() }),
            (None, Some(entry)) => entry.lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    entries
}

fn written(entries: &[Entry]) -> String {
    let mut text =
        String::from("Bytes that other versions read and write; see crates/engine/testkit/src/golden.rs.\n");
    for Entry { title, lines } in entries {
        writeln!(text, "{TITLE}{title}").unwrap();
        for line in lines {
            writeln!(text, "{line}").unwrap();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    enum Old {
        #[serde(rename = "a")]
        Renamed {
            number: u32,
        },
        Plain,
    }

    #[derive(Debug, Serialize, Deserialize)]
    enum New {
        #[serde(rename = "a")]
        Renamed {
            count: u32,
        },
        Simple,
    }

    fn stored(fill: impl FnOnce(&mut Golden)) -> Golden {
        let mut golden = Golden::default();
        fill(&mut golden);
        Golden { stored: entries(&written(&golden.now)), ..Golden::default() }
    }

    fn old(golden: &mut Golden) {
        golden.variants("Kind", variants!(Old: Renamed, Plain), [Old::Renamed { number: 1 }, Old::Plain]);
    }

    #[test]
    fn the_same_values_agree() {
        let mut golden = stored(old);
        old(&mut golden);
        assert_eq!(golden.differences(), Vec::<String>::new());
    }

    #[test]
    fn renamed_fields_and_variants_are_found() {
        let mut golden = stored(old);
        golden.variants("Kind", variants!(New: Renamed, Simple), [New::Renamed { count: 1 }, New::Simple]);
        let wrong = golden.differences().join("\n");
        for part in [
            "Kind.a: the stored bytes cannot be read",
            "Kind.a: the bytes differ",
            "Kind.Simple: has no entry",
        ] {
            assert!(wrong.contains(part), "{part} is missing: {wrong}");
        }
        assert!(wrong.contains("Kind.Plain: nothing is written in this form any more"), "{wrong}");
    }

    #[test]
    #[should_panic(expected = "no value of Kind is {\"Plain\"}")]
    fn a_variant_without_a_value_is_found() {
        Golden::default().variants("Kind", variants!(Old: Renamed, Plain), [Old::Renamed { number: 1 }]);
    }
}
