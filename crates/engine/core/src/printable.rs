//! Foreign text on a screen: names, errors and output must not move the cursor, or hide or reorder the text
//! beside them.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character shows nothing and changes the text around it: control characters, line separators, and
/// the format controls that reorder text or are invisible. The joiners U+200C and U+200D, variation selectors
/// and tags are not among them: Persian, Indic scripts, emoji and flags need them.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// A text for one line on a screen: unprintable characters are escaped, such as `\n` and `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_unprintable)
}

/// The same for several lines: their ends and tabs stay as they are.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_unprintable(c) && c != '\n' && c != '\t')
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_or_hides_is_escaped() {
        assert_eq!(printable("\x1b[2Ja\rb\u{9b}1m"), r"\u{1b}[2Ja\rb\u{9b}1m");
        assert_eq!(printable("report\u{202e}gpj.exe"), r"report\u{202e}gpj.exe");
        assert_eq!(printable("a\u{200b}\u{feff}\u{2066}b\nc\td"), r"a\u{200b}\u{feff}\u{2066}b\nc\td");
        assert_eq!(printable_lines("a\tb\nc\r\x07"), "a\tb\nc\\r\\u{7}");
    }

    #[test]
    fn text_of_all_scripts_stays_as_it_is() {
        for text in ["Überprüfung", "می‌خواهم", "שלום", "👩‍🚀❤️", "日本語", ""] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
