//! Licences of all compiled packages: each package must offer an acceptable one.

use anyhow::{Result, bail};

use crate::cargo::Metadata;

/// Licences that ask for no more than being named.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

pub(crate) fn check() -> Result<()> {
    let packages = Metadata::read()?.packages;
    let refused: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            let licence = package.license.as_deref().unwrap_or("none named");
            (!acceptable(licence)).then(|| format!("{} {}: {licence}", package.name, package.version))
        })
        .collect();
    if !refused.is_empty() {
        bail!("packages under licences that are not on the list:\n  {}", refused.join("\n  "));
    }
    println!("{} packages, all under licences on the list", packages.len());
    Ok(())
}

/// Whether an SPDX expression can be met with allowed licences alone. `/` is the old way to write `OR`.
fn acceptable(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    either(&mut rest) == Some(true) && rest.is_empty()
}

// Each of these reads its part from the front of `rest`; `None` if it is not there. `OR` binds least, `WITH` most.

fn either(rest: &mut &[&str]) -> Option<bool> {
    let mut good = both(rest)?;
    while take(rest, "OR") {
        good |= both(rest)?;
    }
    Some(good)
}

fn both(rest: &mut &[&str]) -> Option<bool> {
    let mut good = single(rest)?;
    while take(rest, "AND") {
        good &= single(rest)?;
    }
    Some(good)
}

fn single(rest: &mut &[&str]) -> Option<bool> {
    if take(rest, "(") {
        let good = either(rest)?;
        return take(rest, ")").then_some(good);
    }
    let (name, after) = rest.split_first()?;
    *rest = after;
    let mut licence = (*name).to_owned();
    if take(rest, "WITH") {
        let (exception, after) = rest.split_first()?;
        *rest = after;
        licence = format!("{licence} WITH {exception}");
    }
    Some(ALLOWED.contains(&licence.as_str()))
}

fn take(rest: &mut &[&str], word: &str) -> bool {
    let there = rest.first() == Some(&word);
    if there {
        *rest = &rest[1..];
    }
    there
}

#[cfg(test)]
mod tests {
    use super::acceptable;

    #[test]
    fn one_allowed_choice_is_enough() {
        for expression in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
            "MIT AND (GPL-2.0-only OR Zlib)",
        ] {
            assert!(acceptable(expression), "{expression}");
        }
    }

    #[test]
    fn whatever_cannot_be_met_is_refused() {
        for expression in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND MPL-2.0",
            "Apache-2.0 WITH Other-exception",
            "MIT OR",
            "(MIT",
            "MIT MIT",
            "",
            "none named",
        ] {
            assert!(!acceptable(expression), "{expression}");
        }
    }
}
