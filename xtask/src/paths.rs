//! No file of the repository names a path of a developer's machine.

use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::cargo::{output, root};

/// First folders of paths that exist only on the machine of their author.
const FOLDERS: &[&str] = &["home", "root", "Users", "work", "workspace"];

pub(crate) fn check() -> Result<()> {
    let list = output(
        Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root()),
    )?;
    let mut files = 0;
    let mut found = Vec::new();
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        // Files that are no text, or deleted but still in the index, have no lines to read.
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        files += 1;
        found.extend(
            lines_with_paths(&text).map(|(number, line)| format!("{name}:{number}: {}", line.trim())),
        );
    }
    ensure!(files > 0, "git lists no file: this check is broken");
    if !found.is_empty() {
        bail!("paths of one machine in the repository:\n  {}", found.join("\n  "));
    }
    println!("{files} files, none with a path of one machine");
    Ok(())
}

fn lines_with_paths(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let here = format!("{}/", root().display());
    let needles: Vec<String> = FOLDERS.iter().map(|folder| format!("/{folder}/")).chain([here]).collect();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(move |(_, line)| needles.iter().any(|needle| names(line, needle)))
}

/// Whether `needle` stands in a line as the start of a path, not in the middle of one or of a URL.
fn names(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !(c.is_alphanumeric() || "._-~}*".contains(c)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> bool {
        lines_with_paths(line).next().is_some()
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for folder in FOLDERS {
            assert!(found(&format!("see /{folder}/anna/x.rs")));
            assert!(found(&format!("path=\"/{folder}/anna\"")));
            assert!(found(&format!("file:///{folder}/anna")));
        }
        assert!(found(&format!("in {}", root().join("xtask").display())));
    }

    #[test]
    fn urls_and_relative_paths_are_not() {
        for folder in FOLDERS {
            assert!(!found(&format!("GET https://example.org/{folder}/anna")));
            assert!(!found(&format!("./{folder}/anna and a/{folder}/anna")));
        }
        assert!(!found("/usr/bin/env and /tmp/x and /var/lib/tasklane"));
    }
}
