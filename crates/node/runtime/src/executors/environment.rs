//! The environment of commands: a little of the worker's own, and the variables of Tasklane.

use std::collections::BTreeMap;
use std::path::Path;

use tasklane_core::message::Dispatch;

use super::CommandOptions;

/// Where programs are found if the worker does not know.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// All variables of a command. Of two with the same name the later one counts: the worker's, the operator's, the
/// task's, Tasklane's.
pub(super) fn environment(
    options: &CommandOptions,
    dispatch: &Dispatch,
    of_task: &[(String, String)],
    files: &Path,
) -> Vec<(String, String)> {
    // A variable that is not text never matches the list.
    let own = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let mut env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    env.extend(own.filter(|(name, _)| is_inherited(options, name)));
    env.extend(options.env.clone());
    env.extend(of_task.iter().cloned());
    let attempt = dispatch.attempt.number.to_string();
    let name = dispatch.body.as_ref().map_or("", |body| &body.name);
    let file = |name: &str| files.join(name).display().to_string();
    env.extend(
        [
            ("TASKLANE_TASK_ID", dispatch.attempt.task.to_string()),
            ("TASKLANE_TASK_NAME", name.replace('\0', "")),
            // Rises with every attempt, so that a receiver that keeps the highest value seen can refuse an
            // older attempt.
            ("TASKLANE_FENCE", attempt.clone()),
            ("TASKLANE_ATTEMPT", attempt),
            ("TASKLANE_RESULT_FILE", file(RESULT_FILE)),
            ("TASKLANE_PROGRESS_FILE", file(PROGRESS_FILE)),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    if let Some((parent, child_name)) =
        dispatch.body.as_ref().and_then(|body| body.parent.zip(body.child_name.clone()))
    {
        env.insert("TASKLANE_PARENT_ID".to_owned(), parent.to_string());
        env.insert("TASKLANE_CHILD_NAME".to_owned(), child_name);
    }
    env.into_iter().collect()
}

/// Within the folder of an attempt.
pub(super) const RESULT_FILE: &str = "result";
pub(super) const PROGRESS_FILE: &str = "progress";

fn is_inherited(options: &CommandOptions, name: &str) -> bool {
    // The list cannot allow these: they are settings and secrets of the worker.
    !name.starts_with("TASKLANE_")
        && options.env_inherit.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_names_are_inherited() {
        let mut options = CommandOptions::default();
        for name in ["PATH", "LC_ALL", "TZ"] {
            assert!(is_inherited(&options, name), "{name}");
        }
        for name in ["AWS_SECRET_ACCESS_KEY", "PATHS", "LC", "TASKLANE_TOKEN", "LD_PRELOAD"] {
            assert!(!is_inherited(&options, name), "{name}");
        }
        options.env_inherit = vec!["*".to_owned()];
        assert!(is_inherited(&options, "ANYTHING"));
        assert!(!is_inherited(&options, "TASKLANE_TOKEN"));
    }
}
