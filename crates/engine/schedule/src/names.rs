//! Guesses the intended name behind a mistyped one.

/// More changes than this, and it is another name.
const DISTANCE_MAX: usize = 2;

/// The name that takes the fewest changes to get from `typed`, if it takes few. The last part of a name counts as well:
/// `Paris` means `Europe/Paris`.
pub(crate) fn nearest(typed: &str, names: Vec<String>) -> Option<String> {
    let typed = simple(typed);
    // In a short text, a change makes something else of it: CST is not CET.
    let distance_max = DISTANCE_MAX.min(typed.len() / 4);
    let distance_to = |name: &str| {
        let name = simple(name);
        let parts = [Some(name.as_str()), name.rsplit('/').next()].into_iter().flatten();
        // Most names are of another length, and need not be looked at.
        let close = parts.filter(|part| part.len().abs_diff(typed.len()) <= distance_max);
        close.map(|part| distance(&typed, part)).min().filter(|distance| *distance <= distance_max)
    };
    names.into_iter().filter_map(|name| Some((distance_to(&name)?, name))).min().map(|(_, name)| name)
}

fn simple(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace(' ', "_")
}

/// How many bytes must be added, removed or replaced to get from one text to the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    // `row[n]` is the distance of what was read of `from` to the first `n` bytes of `to`.
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, a) in from.bytes().enumerate() {
        let mut corner = index;
        row[0] = index + 1;
        for (n, b) in to.bytes().enumerate() {
            let replaced = corner + usize::from(a != b);
            corner = row[n + 1];
            row[n + 1] = replaced.min(corner + 1).min(row[n] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted() {
        for (from, to, changes) in
            [("", "", 0), ("abc", "abc", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("pariss", "paris", 1)]
        {
            assert_eq!(distance(from, to), changes, "{from} → {to}");
            assert_eq!(distance(to, from), changes, "{to} → {from}");
        }
    }
}
