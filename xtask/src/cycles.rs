//! Modules of a crate that use each other in a circle: a circle of more than a few modules is one module in disguise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use crate::cargo::root;

/// The most modules that may use each other in a circle.
const CIRCLE_MAX: usize = 4;

/// Larger circles that exist, as crate and modules in it. This list may only become shorter.
const KNOWN: &[(&str, usize)] =
    &[("engine/core", 7), ("engine/sim", 14), ("node/runtime", 22), ("node/runtime", 12), ("xtask", 9)];

/// Modules by name, each with the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    let mut modules = 0;
    for name in crates()? {
        let uses = read(&folder(&name).join("src"))?;
        modules += uses.len();
        for circle in circles(&uses).into_iter().filter(|circle| circle.len() > CIRCLE_MAX) {
            let is_known = KNOWN.iter().any(|&(known, most)| known == name && circle.len() <= most);
            if !is_known {
                wrong.push(format!("{name}: {}", circle.join(", ")));
            }
        }
    }
    ensure!(modules > 100, "found only {modules} modules: this check is broken");
    if !wrong.is_empty() {
        bail!("more than {CIRCLE_MAX} modules use each other in a circle:\n  {}", wrong.join("\n  "));
    }
    println!("{modules} modules, no new circle of more than {CIRCLE_MAX}");
    Ok(())
}

fn folder(name: &str) -> std::path::PathBuf {
    if name == "xtask" { root().join(name) } else { root().join("crates").join(name) }
}

/// The crates of the workspace, by their folders.
fn crates() -> Result<Vec<String>> {
    let mut names = vec!["xtask".to_owned()];
    for group in folders(&root().join("crates"))? {
        for name in folders(&root().join("crates").join(&group))? {
            names.push(format!("{group}/{name}"));
        }
    }
    names.retain(|name| folder(name).join("Cargo.toml").exists());
    Ok(names)
}

fn folders(of: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(of).with_context(|| format!("cannot list {}", of.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Reads the modules below a folder.
fn read(src: &Path) -> Result<Uses> {
    let mut texts = BTreeMap::new();
    read_into(src, &mut Vec::new(), &mut texts)?;
    let statement = Regex::new(r"(?m)^\s*(?:pub\([^)]*\)\s+)?use\s+([^;]+);")?;
    let names: BTreeSet<String> = texts.keys().cloned().collect();
    let used = |name: &str, text: &str| {
        let trees =
            statement.captures_iter(text).map(|found| found[1].split_whitespace().collect::<String>());
        let paths = trees.flat_map(|tree| paths(&tree));
        paths.filter_map(|path| resolve(name, &path, &names)).filter(|used| used != name).collect()
    };
    Ok(texts.iter().map(|(name, text)| (name.clone(), used(name, text))).collect())
}

fn read_into(folder: &Path, module: &mut Vec<String>, texts: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            module.push(stem);
            read_into(&path, module, texts)?;
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut name = module.clone();
            if !["mod", "lib", "main"].contains(&stem.as_str()) {
                name.push(stem);
            }
            let text = std::fs::read_to_string(&path)?;
            // Tests may use what they like.
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            texts.insert(name.join("::"), text);
        }
    }
    Ok(())
}

/// The paths of a `use` tree that was written without spaces.
fn paths(tree: &str) -> Vec<String> {
    let Some((start, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let body = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut parts) = (0_usize, vec![String::new()]);
    for c in body.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match (c, depth) {
            (',', 0) => parts.push(String::new()),
            _ => parts.last_mut().expect("there is a first part").push(c),
        }
    }
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| paths(part)).map(|path| format!("{start}{path}")).collect()
}

/// The module that a path of a module leads to, if it is one of the crate.
fn resolve(module: &str, path: &str, names: &BTreeSet<String>) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").collect();
    let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match parts[0] {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            while parts.get(1) == Some(&"super") {
                parts.remove(0);
                base.pop();
            }
            base.pop();
        }
        _ => return None,
    }
    base.extend(&parts[1..]);
    while !base.is_empty() && !names.contains(&base.join("::")) {
        base.pop();
    }
    Some(base.join("::")).filter(|name| names.contains(name))
}

/// Sets of modules of which each reaches each other.
fn circles(uses: &Uses) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|from| (from, reach(from, uses))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in uses.keys() {
        let circle: Vec<String> =
            reached[from].iter().filter(|to| reached[*to].contains(from)).map(|to| (*to).clone()).collect();
        if !circle.is_empty() && circle.iter().all(|module| seen.insert(module.clone())) {
            circles.push(circle);
        }
    }
    circles
}

fn reach<'a>(from: &'a String, uses: &'a Uses) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = uses[from].iter().collect();
    while let Some(module) = open.pop() {
        if reached.insert(module) {
            open.extend(&uses[module]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_trees_are_taken_apart() {
        assert_eq!(
            paths("crate::a::{b,c::{d,e},self}"),
            ["crate::a::b", "crate::a::c::d", "crate::a::c::e", "crate::a::self"]
        );
    }

    #[test]
    fn paths_lead_to_modules() {
        let names: BTreeSet<String> = ["", "a", "a::b", "c"].map(str::to_owned).into();
        assert_eq!(resolve("a::b", "super::Thing", &names).as_deref(), Some("a"));
        assert_eq!(resolve("a::b", "super::super::c::Thing", &names).as_deref(), Some("c"));
        assert_eq!(resolve("a", "crate::a::b::Thing", &names).as_deref(), Some("a::b"));
        assert_eq!(resolve("a", "std::fmt", &names), None);
    }

    #[test]
    fn circles_are_found() {
        let uses = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let graph = Uses::from([
            ("a".to_owned(), uses(&["b"])),
            ("b".to_owned(), uses(&["c"])),
            ("c".to_owned(), uses(&["a", "d"])),
            ("d".to_owned(), uses(&[])),
        ]);
        assert_eq!(circles(&graph), [["a", "b", "c"]]);
    }
}
