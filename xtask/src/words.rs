//! The words of comments and docs: patterns that hide the acting noun are counted, and each count has a ceiling.
//!
//! The ceilings stand in `xtask/words.txt`, per 10,000 words. `cargo xtask words --write` lowers them to the present
//! counts and never raises one, so that the language can only get plainer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::cargo::{output, root};

/// Names and patterns. Each pattern stands where a sentence lacks a named subject, or says a plain thing in a rare way.
const PATTERNS: &[(&str, &str)] = &[
    ("whoever", r"\bwhoever\b"),
    ("somebody", r"\b(?:somebody|nobody|anybody)\b"),
    ("told", r"\b(?:told|tells?|telling)\b"),
    ("hear", r"\b(?:hears?|heard|hearing|deaf|ears?)\b"),
    (
        "what-clause",
        r"(?:^|[.:;,!] )[Ww]hat (?:is|was|has|it|the|a|this|they|others|waits|came|cannot|could|runs|people|servers|workers)\b",
    ),
    ("one that", r"\b(?:one|ones|those) (?:that|who)\b"),
    ("is to be", r"\b(?:is|are|was|were) to be\b"),
    ("time is over", r"\btime is (?:over|up)\b"),
    ("anew", r"\banew\b"),
    ("for ever", r"\bfor ever\b"),
];

/// Counts below this many words say nothing.
const WORDS_MIN: usize = 5_000;

/// What to do with the counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Lower the ceilings to the present counts
    #[arg(long)]
    write: bool,
    /// List the places of this pattern instead, as `file:line: text`
    #[arg(long, value_name = "PATTERN")]
    list: Option<String>,
}

/// Ceilings and counts, by kind of text and pattern.
type Figures = BTreeMap<(String, String), f64>;

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(name) = &options.list {
        return list(name);
    }
    if options.write {
        let (now, before) = (count()?, ceilings().unwrap_or_default());
        let lower = |(key, figure): (&(String, String), &f64)| {
            (key.clone(), before.get(key).map_or(*figure, |before| before.min(*figure)))
        };
        return write(&now.iter().map(lower).collect());
    }
    check()
}

/// Fails if a pattern stands more often than its ceiling allows.
pub(crate) fn check() -> Result<()> {
    let (now, ceilings) = (count()?, ceilings()?);
    let mut over = Vec::new();
    for ((kind, pattern), figure) in &now {
        let ceiling = ceilings.get(&(kind.clone(), pattern.clone())).copied().unwrap_or_default();
        println!("{kind:<6}{pattern:<14}{figure:>6.1}  at most {ceiling:.1}");
        if *figure > ceiling + 0.05 {
            over.push(format!("{kind}: \"{pattern}\" {figure:.1} per 10,000 words, at most {ceiling:.1}"));
        }
    }
    if !over.is_empty() {
        bail!(
            "sentences without a named subject have become more:\n  {}\nname the actor, in active voice; \
             `cargo xtask words --list PATTERN` shows the places",
            over.join("\n  ")
        );
    }
    Ok(())
}

fn file() -> PathBuf {
    root().join("xtask/words.txt")
}

fn ceilings() -> Result<Figures> {
    let text = std::fs::read_to_string(file()).context("cannot read xtask/words.txt")?;
    let mut figures = Figures::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, pattern, figure] = fields[..] else { bail!("xtask/words.txt: cannot read \"{line}\"") };
        let figure = figure.parse().with_context(|| format!("xtask/words.txt: no number in \"{line}\""))?;
        figures.insert((kind.to_owned(), pattern.to_owned()), figure);
    }
    Ok(figures)
}

fn write(figures: &Figures) -> Result<()> {
    let mut text = "# Ceilings of `cargo xtask verify words`, per 10,000 words. They may only fall:\n\
                    # `cargo xtask words --write` lowers them.\n"
        .to_owned();
    for ((kind, pattern), figure) in figures {
        writeln!(text, "{kind}\t{pattern}\t{figure:.1}")?;
    }
    std::fs::write(file(), text).context("cannot write xtask/words.txt")
}

/// Occurrences of each pattern per 10,000 words, in comments of Rust and in Markdown.
fn count() -> Result<Figures> {
    let mut figures = Figures::new();
    for (kind, texts) in texts()? {
        let words: usize = texts.iter().flat_map(|(_, lines)| lines).map(|(_, line)| word_count(line)).sum();
        ensure!(words >= WORDS_MIN, "found only {words} words of {kind}: this check is broken");
        for (name, pattern) in PATTERNS {
            let pattern = Regex::new(pattern)?;
            // Lines of one text are joined, so that a pattern is found over the end of a line.
            let joined = texts.iter().map(|(_, lines)| joined(lines));
            let found: usize = joined.map(|text| pattern.find_iter(&text).count()).sum();
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            let figure = 10_000.0 * found as f64 / words as f64;
            figures.insert((kind.to_owned(), (*name).to_owned()), (figure * 10.0).round() / 10.0);
        }
    }
    Ok(figures)
}

fn joined(lines: &[(usize, String)]) -> String {
    lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(" ")
}

fn word_count(line: &str) -> usize {
    line.split_whitespace().count()
}

fn list(name: &str) -> Result<()> {
    let Some((_, pattern)) = PATTERNS.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = PATTERNS.iter().map(|(name, _)| *name).collect();
        bail!("there is no pattern \"{name}\"; there are: {}", known.join(", "));
    };
    let pattern = Regex::new(pattern)?;
    for (_, texts) in texts()? {
        for (file, lines) in texts {
            for (number, line) in lines.iter().filter(|(_, line)| pattern.is_match(line)) {
                println!("{file}:{number}: {}", line.trim());
            }
        }
    }
    Ok(())
}

/// Lines of a file with their numbers.
type Lines = Vec<(usize, String)>;

/// The comments of each Rust file, and the prose of each Markdown file.
fn texts() -> Result<BTreeMap<&'static str, Vec<(String, Lines)>>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.rs", "*.md"]);
    let list = output(list.current_dir(root()))?;
    let mut texts = BTreeMap::<_, Vec<_>>::new();
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        let is_rust = Path::new(name).extension().is_some_and(|extension| extension == "rs");
        let (kind, lines) = if is_rust { ("rust", comments(&text)) } else { ("docs", prose(&text)) };
        texts.entry(kind).or_default().push((name.to_owned(), lines));
    }
    Ok(texts)
}

fn comments(text: &str) -> Lines {
    let comment = |line: &str| {
        let line = line.trim_start().strip_prefix("//")?;
        Some(line.strip_prefix(['/', '!']).unwrap_or(line).trim().to_owned())
    };
    numbered(text).filter_map(|(number, line)| Some((number, comment(line)?))).collect()
}

/// Markdown without its listings.
fn prose(text: &str) -> Lines {
    let mut is_listing = false;
    let mut lines = Lines::new();
    for (number, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            is_listing = !is_listing;
        } else if !is_listing {
            lines.push((number, line.to_owned()));
        }
    }
    lines
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<&'static str> {
        let matches = |pattern: &str| Regex::new(pattern).unwrap().is_match(line);
        PATTERNS.iter().filter(|(_, pattern)| matches(pattern)).map(|(name, _)| *name).collect()
    }

    #[test]
    fn sentences_without_a_named_subject_are_found() {
        assert_eq!(names("Nothing. What is stored stays"), ["what-clause"]);
        assert_eq!(names("whoever asks is told"), ["whoever", "told"]);
        assert_eq!(names("the one that is to be read anew"), ["one that", "is to be", "anew"]);
        assert!(names("The owner notifies the worker of each report.").is_empty());
    }

    #[test]
    fn only_comments_and_prose_are_read() {
        let comment = "let told = 1;\n/// The owner.\n    // A worker.\n//! A page.\n";
        let texts: Vec<String> = comments(comment).into_iter().map(|(_, line)| line).collect();
        assert_eq!(texts, ["The owner.", "A worker.", "A page."]);
        let lines = prose("One.\n```sh\nanew\n```\nTwo.\n");
        assert_eq!(lines, [(1, "One.".to_owned()), (5, "Two.".to_owned())]);
    }
}
