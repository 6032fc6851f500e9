//! Hostile tasks: the harm that a client with the right to submit commands, or a faulty command, can do to
//! processes around it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tasklane_client::{Error, RetryPolicy, Task, TaskRequest};

use super::plan::Class;
use super::system::{HOSTILE, System};
use super::tally::Reason;

/// How a hostile task may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// With success, in the end.
    Well,
    /// Failed, with this code.
    With(&'static str),
    /// In any way, as long as it does.
    Somehow,
}

/// The hostile tasks: a name, a script, how it may end. `FOREIGN` stands for a folder that no task may
/// change.
pub(super) const TASKS: &[HostileTask] = &[
    HostileTask("floods its output", "yes 0123456789abcdef | head -c 40000000", Ends::Well),
    HostileTask(
        "floods its errors with escapes",
        r"for i in $(seq 2000); do printf '\033]0;x\007\033[2J\r%s\342\200\256' $i >&2; done",
        Ends::Well,
    ),
    HostileTask(
        "leaves its process group",
        "setsid sleep 600 & (setsid setsid sleep 600 &) ; exit 0",
        Ends::Well,
    ),
    HostileTask(
        "leaves with a double fork and no environment",
        "(env -i setsid sh -c 'sleep 600 & sleep 600' &) & sleep 0.2",
        Ends::Well,
    ),
    HostileTask("forks a hundred", "for i in $(seq 100); do sleep 600 & done; exit 0", Ends::Well),
    HostileTask("ignores signals", "trap '' TERM INT HUP; sleep 600 & exit 0", Ends::Well),
    HostileTask(
        "links to foreign files",
        r#"d=$(dirname "$TASKLANE_RESULT_FILE"); ln -s FOREIGN "$d/a"; ln -s FOREIGN/kept "$d/b"; mkdir "$d/c"; ln -s FOREIGN "$d/c/d""#,
        Ends::Well,
    ),
    HostileTask(
        "becomes a link to a foreign folder",
        r#"d=$(dirname "$TASKLANE_RESULT_FILE"); mv "$d" "$d.moved"; ln -s FOREIGN "$d"; sleep 0.2; rm -f "$d"; mv "$d.moved" "$d""#,
        Ends::Somehow,
    ),
    HostileTask(
        "stays a link to a foreign folder",
        r#"d=$(dirname "$TASKLANE_RESULT_FILE"); mv "$d" "$d.moved"; ln -s FOREIGN "$d""#,
        Ends::Somehow,
    ),
    HostileTask(
        "gives a link as its result",
        r#"ln -s FOREIGN/kept "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "gives a pipe as its result",
        r#"mkfifo "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "gives a folder as its result",
        r#"mkdir "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "gives a huge result",
        r#"(printf '"'; head -c 3000000 /dev/zero | tr '\0' a; printf '"') > "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_too_large"),
    ),
    HostileTask(
        "gives a deep result",
        r#"head -c 50000 /dev/zero | tr '\0' '[' > "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "gives a number nobody can read",
        r#"printf '{"a":1e999}' > "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "gives half a character",
        r#"printf '"\\ud800"' > "$TASKLANE_RESULT_FILE""#,
        Ends::With("result_invalid"),
    ),
    HostileTask(
        "reports strange progress",
        r#"for i in 1e999 -1 '{"percent":"\u0000"}' '[[[[' nan; do echo "$i" >> "$TASKLANE_PROGRESS_FILE"; sleep 0.1; done; head -c 3000000 /dev/zero >> "$TASKLANE_PROGRESS_FILE""#,
        Ends::Well,
    ),
    HostileTask("kills its shim", "[ $TASKLANE_ATTEMPT -gt 1 ] || kill -9 $PPID; sleep 0.3", Ends::Well),
    HostileTask("kills its guard", KILLS_GUARD, Ends::Well),
    HostileTask("kills its shim at each attempt", "kill -9 $PPID; sleep 5", Ends::Somehow),
    HostileTask("stops its shim", "kill -STOP $PPID; exit 0", Ends::Well),
    HostileTask(KILLS_ITS_SERVER, KILLS_SERVER, Ends::Well),
    HostileTask("closes what it was given", "exec 0<&- 1>&- 2>&-; exit 0", Ends::Well),
    HostileTask("kills itself", "[ $TASKLANE_ATTEMPT -gt 1 ] || kill -9 $$; exit 0", Ends::Well),
    HostileTask(
        "reads what others wrote",
        r#"cat /proc/$PPID/environ "$(dirname "$TASKLANE_RESULT_FILE")"/../* > /dev/null 2>&1; exit 0"#,
        Ends::Well,
    ),
];

/// At their first attempt only, and only if the process is the guard or shim itself.
const KILLS_GUARD: &str = "[ $TASKLANE_ATTEMPT -gt 1 ] || { g=$(cut -d' ' -f4 /proc/$PPID/stat); \
                           grep -q tasklane-guard /proc/$g/comm && kill -9 $g; sleep 5; }; sleep 0.3";
const KILLS_SERVER: &str = "[ $TASKLANE_ATTEMPT -gt 1 ] || { g=$(cut -d' ' -f4 /proc/$PPID/stat); \
                            grep -q tasklane-guard /proc/$g/comm && kill -9 $(cut -d' ' -f4 /proc/$g/stat); sleep 5; }";

/// Each of its plays ends a server that no other move ends.
pub(super) const KILLS_ITS_SERVER: &str = "kills its server";

/// A name, a script, and how it may end.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostileTask(&'static str, &'static str, Ends);

/// A hostile task ends within this time, its retries included.
const ENDS_WITHIN: Duration = Duration::from_secs(150);
const ASK_EVERY: Duration = Duration::from_millis(300);
/// The content of the foreign file.
const FOREIGN: &str = "foreign";

/// How long processes sleep that must not be left behind: no other process sleeps so long.
pub(super) fn long_sleep() -> String {
    format!("600.{}", std::process::id())
}

/// Makes a folder that belongs to another user.
pub(super) fn make_foreign(folder: &Path) -> Result<()> {
    let foreign = folder.join(FOREIGN);
    std::fs::create_dir_all(foreign.join("below"))?;
    for name in ["kept", "below/kept"] {
        std::fs::write(foreign.join(name), FOREIGN)?;
    }
    Ok(())
}

/// The damage to the folder that belongs to another user.
pub(super) fn foreign_damage(folder: &Path) -> Vec<String> {
    let foreign = folder.join(FOREIGN);
    let is_gone = |name: &&str| std::fs::read(foreign.join(name)).ok().as_deref() != Some(FOREIGN.as_bytes());
    let gone = ["kept", "below/kept"].into_iter().filter(is_gone);
    gone.map(|name| format!("{} is changed or gone", foreign.join(name).display())).collect()
}

/// Submits a hostile task and waits for its end.
pub(super) async fn play(system: &Arc<System>, at: usize) -> Result<()> {
    let HostileTask(name, script, ends) = TASKS[at];
    let clients = system.clients(HOSTILE)?;
    let client = clients.first().context("there is a server")?;
    // Its server goes down whenever it comes to run.
    let kills = name == KILLS_ITS_SERVER;
    let _turn = if kills { Some(system.turn.lock().await) } else { None };
    let down = kills.then(|| system.tally.outage(Reason::Down));
    let script = script.replace("FOREIGN", &system.folder.join(FOREIGN).display().to_string());
    let script = script.replace("sleep 600", &format!("sleep {}", long_sleep()));
    let request = TaskRequest {
        retry_policy: Some(RetryPolicy {
            max_retries: Some(8),
            retry_delay: Some(Duration::from_millis(300)),
            backoff_rate: Some(1.0),
            ..RetryPolicy::default()
        }),
        execution_timeout: Some(Duration::from_secs(20)),
        queue: Some("hostile".to_owned()),
        request_id: Some(format!("{name} {}", crate::chaos::clock::Boot::now().0)),
        ..TaskRequest::new(name, "SHELL", json!(script))
    };
    let deadline = tokio::time::Instant::now() + ENDS_WITHIN;
    let mut id = None;
    let ended: Option<Task> = loop {
        if tokio::time::Instant::now() > deadline {
            break None;
        }
        let asked = match &id {
            None => client.submit(&request).await.map(|submitted| {
                id = Some(submitted.task_id);
                None
            }),
            Some(id) => client.task(id).await.map(|task| task.status.is_final().then_some(task)),
        };
        match asked {
            Ok(Some(task)) => break Some(task),
            Err(Error::Problem(problem)) if problem.status < 429 => {
                system.tally.violation("hostile task", &format!("{name}: {problem}"));
                break None;
            }
            Ok(None) | Err(_) => tokio::time::sleep(ASK_EVERY).await,
        }
    };
    if kills {
        system.until_ready().await?;
    }
    drop(down);
    system.tally.count(Class::Tasks, name);
    match ended {
        None => system.tally.violation("hostile task", &format!("{name}: task {id:?} has not ended")),
        Some(task) if !is_right(ends, &task) => {
            let error = task.error.map(|error| format!("{}: {}", error.code, error.message));
            let what = format!("{name}: task {} is {} ({error:?}), not {ends:?}", task.task_id, task.status);
            system.tally.violation("hostile task", &what);
        }
        Some(_) => {}
    }
    for damage in foreign_damage(&system.folder) {
        system.tally.violation("foreign files", &format!("{name}: {damage}"));
    }
    Ok(())
}

fn is_right(ends: Ends, task: &Task) -> bool {
    let code = task.error.as_ref().map(|error| error.code.as_str());
    let is_success = task.status == tasklane_client::Status::Success;
    match ends {
        Ends::Well => is_success,
        Ends::With(wanted) => !is_success && code == Some(wanted),
        Ends::Somehow => true,
    }
}
