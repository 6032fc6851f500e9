//! Printed results of commands: tables for people, JSON for programs.

use std::fmt::{Display, Write as _};
use std::io::{IsTerminal, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tasklane_core::printable::{printable, printable_lines};

/// Where results go. Remarks for people go to standard error, so that results can be piped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    json: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// JSON for programs, otherwise the text of `people`.
    pub(crate) fn either<T: Serialize>(
        self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json { print_object(value) } else { print_line(people(value).trim_end()) }
    }

    /// Each as a JSON object on a line, or all of them as a table.
    pub(crate) fn rows<T: Serialize>(
        self,
        rows: &[T],
        head: &[&str],
        cells: impl Fn(&T) -> Vec<String>,
    ) -> anyhow::Result<()> {
        if self.json {
            return rows.iter().try_for_each(|row| print_object(row));
        }
        print_line(table(head, rows.iter().map(cells)))
    }
}

/// Prints a line of the result, or some. Names and messages in it are what others wrote.
pub(crate) fn print_line(line: impl Display) -> anyhow::Result<()> {
    print_raw(printable_lines(&line.to_string()))
}

/// Prints a text for programs, unchanged.
pub(crate) fn print_raw(line: impl Display) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

/// Prints what takes the place of what was printed before; on something that is no screen, below it.
pub(crate) fn redraw(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let clear = if out.is_terminal() { "\x1b[H\x1b[2J\x1b[3J" } else { "" };
    write!(out, "{clear}{}\n\n", printable_lines(&text.to_string()))?;
    Ok(out.flush()?)
}

/// Prints one JSON object on a line.
pub(crate) fn print_object(value: &impl Serialize) -> anyhow::Result<()> {
    print_raw(serde_json::to_string(value)?)
}

/// Prints a remark for people.
pub(crate) fn remark(line: impl Display) {
    // Without a place for remarks there are none.
    let _ = writeln!(std::io::stderr().lock(), "{}", printable_lines(&line.to_string()));
}

/// A table without lines around it. As wide as the terminal, where there is one.
pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head.to_vec());
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)).collect::<Vec<_>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Names and values below each other; those without a value are left out.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let said = || pairs.iter().filter(|(_, value)| !value.is_empty());
    let width = said().map(|(name, _)| name.len()).max().unwrap_or(0) + 2;
    let mut text = String::new();
    for (name, value) in said() {
        let _ = writeln!(text, "{name:<width$}{}", printable(value));
    }
    text
}

/// A bar on standard error if a person is looking, else nothing.
pub(crate) fn bar(total: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:>10} [{bar:32}] {human_pos}/{human_len} {per_sec} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_space_at_the_end_of_its_lines() {
        let rows = [vec!["1".to_owned(), "long name".to_owned()], vec!["22".to_owned(), "x".to_owned()]];
        let expected = "ID  NAME\n1   long name\n22  x";
        assert_eq!(table(&["ID", "NAME"], rows.into_iter()), expected);
    }

    #[test]
    fn pairs_without_a_value_are_left_out() {
        let text =
            pairs(&[("status", "FAILED".to_owned()), ("worker", String::new()), ("queue", "q".to_owned())]);
        assert_eq!(text, "status  FAILED\nqueue   q\n");
    }
}
