//! Which way dependencies point: the folders are the architecture, and each crate may use only what is named here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{Metadata, Package, cargo, output, root};
use crate::cycles;

/// The crates of ours that a crate, or every crate of a folder, may use. Patterns are `group/crate`,
/// `group/*` or `*`.
struct Rule {
    of: &'static str,
    may_use: &'static [&'static str],
    /// … and besides, in its tests.
    tests_may_use: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule { of: "engine/core", may_use: &[], tests_may_use: &[] },
    Rule { of: "engine/ports", may_use: &["engine/core"], tests_may_use: &[] },
    Rule { of: "engine/schedule", may_use: &["engine/core"], tests_may_use: &[] },
    Rule { of: "engine/workflow", may_use: &["engine/core"], tests_may_use: &[] },
    Rule { of: "engine/local", may_use: &["engine/core", "engine/ports"], tests_may_use: &[] },
    Rule {
        of: "engine/sim",
        may_use: &["engine/core", "engine/ports", "engine/local", "engine/schedule", "engine/workflow"],
        tests_may_use: &[],
    },
    Rule { of: TESTKIT, may_use: &[], tests_may_use: &[] },
    // Adapters are compared with the memory store, but only in tests.
    Rule { of: "adapters/*", may_use: &["engine/core", "engine/ports"], tests_may_use: &["engine/local"] },
    Rule {
        of: "node/runtime",
        may_use: &["engine/core", "engine/ports", "engine/schedule", "engine/workflow"],
        tests_may_use: &["engine/*"],
    },
    Rule {
        of: "node/api",
        may_use: &["engine/core", "engine/ports", "engine/schedule", "engine/workflow", "node/runtime"],
        tests_may_use: &["engine/*"],
    },
    Rule { of: "edge/client", may_use: &["engine/core"], tests_may_use: &[] },
    Rule {
        of: "edge/tasklane",
        may_use: &["engine/core", "engine/ports", "engine/local", "adapters/*", "node/*", "edge/client"],
        tests_may_use: &["engine/sim"],
    },
    Rule { of: "xtask", may_use: &["*"], tests_may_use: &[] },
];

/// Starts servers for tests: all tests may use it, and nothing that is shipped.
const TESTKIT: &str = "engine/testkit";

/// Crates that `core` must not use, directly or through others: what reads a clock, draws random numbers, does I/O or
/// runs tasks. An entry that ends in `*` names all that begin so.
const NOT_IN_CORE: &[&str] = &[
    "tokio*",
    "async-std",
    "async-io",
    "smol",
    "mio",
    "polling",
    "socket2",
    "rayon",
    "crossbeam*",
    "futures-timer",
    "time",
    "chrono",
    "jiff",
    "quanta",
    "minstant",
    "coarsetime",
    "instant",
    "web-time",
    "clocksource",
    "rustix",
    "nix",
    "libc",
    "rand*",
    "getrandom",
    "fastrand",
    "oorandom",
    "nanorand",
    "ahash",
    "const-random",
];

pub(crate) fn check() -> Result<()> {
    let metadata = Metadata::read()?;
    let mut wrong = Vec::new();
    let mut edges = 0;
    for package in metadata.packages.iter().filter(|package| package.source.is_none()) {
        let from = place(package.manifest_path.parent().context("a manifest lies in a folder")?)?;
        for (to, dev) in dependencies(package)? {
            edges += 1;
            wrong.extend(judge(&from, &to, dev));
        }
    }
    wrong.extend(core_uses()?.into_iter().filter(|name| forbidden_in_core(name)).map(|name| {
        format!(
            "engine/core must stay without clock, I/O and randomness, but {name} is among its dependencies"
        )
    }));
    ensure!(edges > 0, "found no dependency between crates of the workspace: this check is broken");
    if !wrong.is_empty() {
        bail!("dependencies point the wrong way:\n  {}", wrong.join("\n  "));
    }
    println!("{edges} dependencies between our crates, all as drawn");
    cycles::check()
}

/// A crate's place in the drawing: its folder below `crates`, or below the root.
fn place(folder: &Path) -> Result<String> {
    let below = folder.strip_prefix(root()).with_context(|| format!("{} is not ours", folder.display()))?;
    let below = below.strip_prefix("crates").unwrap_or(below);
    Ok(below.to_string_lossy().replace('\\', "/"))
}

/// The crates of ours that a package uses, and whether it does so only in tests.
fn dependencies(package: &Package) -> Result<Vec<(String, bool)>> {
    let ours =
        package.dependencies.iter().filter_map(|dependency| Some((dependency, dependency.path.as_ref()?)));
    ours.map(|(dependency, path)| Ok((place(path)?, dependency.kind.as_deref() == Some("dev")))).collect()
}

/// The fault of `from` using `to`, if there is one.
fn judge(from: &str, to: &str, dev: bool) -> Option<String> {
    let Some(rule) = RULES.iter().find(|rule| fits(rule.of, from)) else {
        return Some(format!("{from} has no rule: say in {} what it may use", file!()));
    };
    if to == TESTKIT && (dev || from == "xtask") {
        return None;
    }
    if to == TESTKIT {
        return Some(format!("{from} must not use {to}, except as a dev-dependency of its tests"));
    }
    let allowed = |patterns: &[&str]| patterns.iter().any(|pattern| fits(pattern, to));
    if allowed(rule.may_use) || dev && (from == to || allowed(rule.tests_may_use)) {
        return None;
    }
    Some(format!("{from} must not use {to}{}", if dev { ", not even in tests" } else { "" }))
}

fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

/// Every crate that `core` uses, directly or through others, when it is built alone with all its features.
fn core_uses() -> Result<Vec<String>> {
    let tree: &mut Command = &mut cargo(&[
        "tree",
        "--package=tasklane-core",
        "--edges=normal,build",
        "--all-features",
        "--prefix=none",
        "--format={p}",
    ]);
    let names: Vec<String> =
        output(tree)?.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
    ensure!(
        names.iter().any(|name| name == "serde"),
        "core's dependencies were not found: this check is broken"
    );
    Ok(names)
}

fn forbidden_in_core(name: &str) -> bool {
    NOT_IN_CORE.iter().any(|pattern| fits(pattern, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_directions_are_allowed() {
        for (from, to, dev) in [
            ("engine/ports", "engine/core", false),
            ("engine/local", "engine/ports", true),
            ("adapters/redis", "engine/ports", false),
            ("adapters/redis", "engine/local", true),
            ("edge/tasklane", "adapters/redis", false),
            ("xtask", "engine/sim", false),
            ("engine/core", "engine/testkit", true),
            ("adapters/redis", "engine/testkit", true),
            ("edge/tasklane", "engine/testkit", true),
        ] {
            assert_eq!(judge(from, to, dev), None);
        }
    }

    #[test]
    fn other_directions_are_refused() {
        for (from, to, dev) in [
            ("engine/core", "engine/ports", false),
            ("engine/core", "engine/ports", true),
            ("engine/ports", "engine/local", true),
            ("adapters/redis", "adapters/sqlite", false),
            ("adapters/redis", "adapters/sqlite", true),
            ("adapters/redis", "engine/local", false),
            ("adapters/redis", "node/runtime", false),
            ("node/runtime", "adapters/redis", true),
            ("edge/tasklane", "engine/sim", false),
            ("edge/tasklane", "engine/testkit", false),
            ("node/runtime", "engine/testkit", false),
            ("engine/testkit", "engine/core", false),
        ] {
            assert!(judge(from, to, dev).is_some(), "{from} → {to}");
        }
    }

    #[test]
    fn a_crate_without_a_rule_is_refused() {
        assert!(judge("engine/new", "engine/core", false).is_some_and(|text| text.contains("no rule")));
    }

    #[test]
    fn clocks_and_randomness_are_kept_out_of_core() {
        for name in ["tokio", "tokio-util", "rand_core", "time", "getrandom"] {
            assert!(forbidden_in_core(name), "{name}");
        }
        for name in ["serde", "timely", "indexmap"] {
            assert!(!forbidden_in_core(name), "{name}");
        }
    }
}
