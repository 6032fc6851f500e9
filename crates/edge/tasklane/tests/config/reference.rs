//! `docs/configuration.md` is made from the comments in `docs/config.yaml`. `UPDATE=1 cargo test -p tasklane`
//! rewrites it.

use std::fmt::Write;

use super::docs;

/// A key or section with the comment above it.
struct Entry {
    depth: usize,
    key: String,
    value: String,
    text: String,
}

/// The text before the tables.
const HEAD: &str = "\
# Configuration

<!-- Generated from docs/config.yaml by a test: change that file, then run UPDATE=1 cargo test -p tasklane --test config -->

No setting is required. Settings come from these sources, and later sources override earlier ones:
1. the defaults below;
2. a YAML file: `--config tasklane.yaml`, or the path in `TASKLANE_CONFIG`;
3. environment variables: `TASKLANE_` and the key in capitals, `.` written as `_`, so `worker.capacity` is
   `TASKLANE_WORKER_CAPACITY`. Lists and maps are written as in YAML: `TASKLANE_WORKER_LABELS='{zone: eu}'`. An
   empty variable counts as not set;
4. flags: `--listen`, `--data-dir`, `--capacity`, `--log-format`, and `--set KEY=VALUE` for every key.

Unknown keys and unknown `TASKLANE_` variables are errors, and all faults are reported together. `tasklane config show`
prints the effective configuration and the source of each value; `tasklane config check FILE` checks a file. Durations
are written `500ms`, `10s`, `5m`, `2h`, `7d` or together, `1h30m`; sizes `512B`, `256KiB`, `16MiB`, `1GiB`.
[config.yaml](config.yaml) has all settings as a file to start from.
";

#[test]
fn the_reference_page_is_up_to_date() {
    let yaml = std::fs::read_to_string(docs("config.yaml")).unwrap();
    let page = page(&entries(&yaml));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(docs("configuration.md"), &page).unwrap();
    }
    let stored = std::fs::read_to_string(docs("configuration.md")).unwrap_or_default();
    assert_eq!(stored, page, "run UPDATE=1 cargo test -p tasklane --test config");
}

fn entries(yaml: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in yaml.lines() {
        let trimmed = line.trim_start();
        if let Some(text) = trimmed.strip_prefix('#') {
            comment.push(text.trim());
        } else if let Some((key, value)) = trimmed.split_once(':') {
            let text = comment.join(" ");
            assert!(!text.is_empty(), "{key} has no comment");
            let depth = (line.len() - trimmed.len()) / 2;
            entries.push(Entry { depth, key: key.to_owned(), value: value.trim().to_owned(), text });
            comment.clear();
        } else {
            // An empty line ends what belongs together: the head of the file belongs to no key.
            comment.clear();
        }
    }
    entries
}

fn page(entries: &[Entry]) -> String {
    let mut page = HEAD.to_owned();
    let mut section = String::new();
    page.push_str("\n## General\n");
    for (at, entry) in entries.iter().enumerate() {
        if entry.depth == 0 && entry.value.is_empty() {
            section = format!("{}.", entry.key);
            let _ = write!(page, "\n## `{}`\n{}\n", entry.key, entry.text);
            continue;
        }
        let first = at == 0 || entries[at - 1].depth != entry.depth;
        if first {
            page.push_str("\n| key | default | meaning |\n|---|---|---|\n");
        }
        let key = if entry.depth == 0 { entry.key.clone() } else { format!("{section}{}", entry.key) };
        let variable = tasklane::config::env_name(&key);
        let text = entry.text.replace('|', "\\|");
        let _ = writeln!(page, "| `{key}`<br>`{variable}` | `{}` | {text} |", entry.value);
    }
    page
}
