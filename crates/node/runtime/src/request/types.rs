//! Task types that look like a slip of the pen.
//!
//! A worker may bring types of its own under any name, and may join after its first task. So an unknown type
//! is accepted, unless it is so near to a known type that the client most likely meant that one.

use crate::suggest::distance;

use super::error::FieldError;

/// Types that workers bring along.
pub(crate) const BUILT_IN: [&str; 4] = ["HTTP", "NOOP", "PYTHON_SCRIPT", "SHELL"];

/// Types of later versions.
const ANNOUNCED: [&str; 1] = ["GRPC"];

/// Why a type that no live worker offers is refused: it is announced only, or a slip of one of the known
/// types.
pub(crate) fn slip<'a>(task_type: &str, registered: impl Iterator<Item = &'a str>) -> Option<FieldError> {
    let meant = BUILT_IN.into_iter().chain(registered).find(|known| is_slip(task_type, known));
    let rule = if ANNOUNCED.iter().any(|known| is_slip(task_type, known)) {
        format!("{task_type} is not built yet: use HTTP, or start a worker that offers this type first")
    } else {
        format!(
            "no live worker offers {task_type:?}; did you mean {:?}? If not, start its worker first",
            meant?
        )
    };
    Some(FieldError::invalid("taskType", rule))
}

/// Whether a text is most likely meant to be a known word: equal but for case and separators, or for a letter
/// or two.
fn is_slip(text: &str, known: &str) -> bool {
    let plain = |text: &str| text.replace(['-', '_', '.'], "").to_lowercase();
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
    let (text, known) = (plain(text), plain(known));
    if text == known || (text == "python" && known == "pythonscript") {
        return true;
    }
    // `report2` is not `report1`, and too many words are near to a short one.
    let len = text.chars().count().min(known.chars().count());
    let far = if len >= 8 { 2 } else { 1 };
    len >= 4 && digits(&text) == digits(&known) && distance(&text, &known) <= far
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(task_type: &str) -> Option<String> {
        slip(task_type, ["resize-v1", "Report"].into_iter()).map(|error| error.message)
    }

    #[test]
    fn slips_are_told_from_other_types() {
        for (text, meant) in [
            ("shell", "SHELL"),
            ("Shel", "SHELL"),
            ("HTTPS", "HTTP"),
            ("noop", "NOOP"),
            ("python-script", "PYTHON_SCRIPT"),
            ("PYTHON_SCIRPT", "PYTHON_SCRIPT"),
            ("python", "PYTHON_SCRIPT"),
            ("report", "Report"),
            ("reports", "Report"),
            ("resize_v1", "resize-v1"),
        ] {
            assert!(
                hint(text).is_some_and(|rule| rule.contains(&format!("did you mean {meant:?}?"))),
                "{text}"
            );
        }
        for announced in ["GRPC", "grpc"] {
            assert!(hint(announced).is_some_and(|rule| rule.contains("is not built yet")), "{announced}");
        }
        for text in ["resize-v2", "echo", "import", "SQL", "sh", "nobody-offers-it", "transform"] {
            assert_eq!(hint(text), None, "{text}");
        }
    }
}
