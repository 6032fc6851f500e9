//! `tasklane schedule`: tasks at certain times.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tasklane_client::{Backfill, Client, Fire, NextTime, Schedule, Webhook};

use super::exit::{Exit, Usage};
use super::out::{Out, pairs, remark};
use super::spec::Spec;
use super::{submit, value};

/// Create tasks at certain times
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the schedules
    List,
    /// Show a schedule
    Get {
        /// The schedule
        name: String,
    },
    Put(Box<PutArgs>),
    /// Remove schedules; their tasks stay
    Delete {
        /// The schedules
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Let a schedule fire from now on
    Enable {
        /// The schedule
        name: String,
    },
    /// Stop a schedule from firing; its tasks go on
    Disable {
        /// The schedule
        name: String,
    },
    /// Fire a schedule now and print the id of the task
    Trigger {
        /// The schedule
        name: String,
    },
    /// Fire all times of a schedule in a range again
    Backfill {
        /// The schedule
        name: String,

        /// From this time, such as 2030-01-31T00:00:00Z
        #[arg(long, value_parser = value::time, value_name = "TIME")]
        from: Timestamp,

        /// Up to this time
        #[arg(long, value_parser = value::time, value_name = "TIME")]
        until: Timestamp,

        /// Only show the plan
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the next times
    Next {
        /// The schedule
        name: String,

        /// The number of times
        #[arg(long, short = 'n', default_value_t = 10, value_name = "N")]
        count: u32,

        /// After this time, such as 2030-01-31T12:00:00Z [default: now]
        #[arg(long, value_parser = value::time, value_name = "TIME")]
        after: Option<Timestamp>,
    },
    /// Show the times of a cron expression that is not stored
    Preview {
        /// The cron expression
        #[arg(value_name = "EXPRESSION")]
        cron: String,

        /// The dialect of the expression [default: vixie]
        #[arg(long, value_parser = ["vixie", "quartz"], value_name = "DIALECT")]
        dialect: Option<String>,

        /// The time zone of the expression, such as Europe/Paris [default: UTC]
        #[arg(long, alias = "zone", value_name = "ZONE")]
        timezone: Option<String>,

        /// After this time, such as 2030-01-31T12:00:00Z [default: now]
        #[arg(long, value_parser = value::time, value_name = "TIME")]
        after: Option<Timestamp>,

        /// The number of times
        #[arg(long, short = 'n', default_value_t = 10, value_name = "N")]
        count: u32,
    },
    /// Show the last times with their outcomes and the results of their tasks, the latest first
    History {
        /// The schedule
        name: String,
    },
}

/// Create or replace a schedule; an equal one changes nothing
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A command every night:    tasklane schedule put backup --cron '0 3 * * *' -- ./backup.sh
A task every minute:      tasklane schedule put ping --every 1m --type HTTP --payload '{\"url\":\"…\"}'
From a JSON file:         tasklane schedule put backup backup.json
docs/schedules.md explains all fields.")]
pub(crate) struct PutArgs {
    /// The name of the schedule
    #[arg(value_name = "NAME")]
    schedule: String,

    /// The schedule as a JSON file, - for standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["cron", "every", "at", "task_type", "command"])]
    file: Option<PathBuf>,

    /// A cron expression: five fields, or six with seconds first, or @daily and the like
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,

    /// The dialect of the cron expression: quartz for six fields with seconds first, or seven with the year last
    /// [default: vixie]
    #[arg(long, value_parser = ["vixie", "quartz"], value_name = "DIALECT", requires = "cron")]
    dialect: Option<String>,

    /// An interval, such as 10m
    #[arg(long, value_parser = value::duration, value_name = "DURATION", conflicts_with = "at")]
    every: Option<Duration>,

    /// One time, such as 2030-01-31T12:00:00Z
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    at: Option<Timestamp>,

    /// Time zone of the cron expression, such as Europe/Paris [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,

    /// Not before this time
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    from: Option<Timestamp>,

    /// Not after this time
    #[arg(long, value_parser = value::time, value_name = "TIME")]
    until: Option<Timestamp>,

    /// Delay each fire by up to this much
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    jitter: Option<Duration>,

    /// The action while the last task is unfinished [default: skip; bufferAll with --missed runAll]
    #[arg(
        long,
        value_parser = ["skip", "bufferOne", "bufferAll", "cancelOther", "allowAll"],
        value_name = "ACTION"
    )]
    overlap: Option<String>,

    /// The action for times that passed while no server ran [default: runOnce]
    #[arg(long, value_parser = ["skip", "runOnce", "runAll"], value_name = "ACTION")]
    missed: Option<String>,

    /// A time is missed when it is this late [default: the distance to the next time, from 5s to 1m]
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    missed_after: Option<Duration>,

    /// The age up to which missed times are made up for [default: 24h]
    #[arg(long, value_parser = value::duration, value_name = "DURATION")]
    catch_up: Option<Duration>,

    /// Pause after this many failed tasks in a row
    #[arg(long, value_name = "N")]
    pause_after: Option<u32>,

    /// With --alert: a time without a running task after this long is late
    #[arg(long, value_parser = value::duration, value_name = "DURATION", requires = "alert")]
    late_after: Option<Duration>,

    /// Notify this address over HTTP when tasks of the schedule begin to fail, and when it is late; may be repeated
    #[arg(long, value_name = "URL")]
    alert: Vec<String>,

    /// Store it disabled: it fires once it is enabled
    #[arg(long)]
    disabled: bool,

    #[arg(
        long = "type",
        value_name = "TYPE",
        conflicts_with = "command",
        help = "The type of the tasks: SHELL, PYTHON_SCRIPT, HTTP, NOOP, or a registered function"
    )]
    task_type: Option<String>,

    /// The input of their executor: JSON if it is an object or a list, else text
    #[arg(long, value_name = "TEXT", requires = "task_type")]
    payload: Option<String>,

    #[command(flatten)]
    spec: Spec,

    /// A command to run, behind --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let schedule = match command {
        Command::List => {
            let schedules = client.schedules().await?;
            out.rows(&schedules, &["NAME", "WHEN", "STATE", "NEXT", "LAST", "RESULT"], cells)?;
            if schedules.is_empty() {
                remark(
                    "no schedule exists yet; create one: tasklane schedule put hello --every 10s -- echo hello",
                );
            }
            return Ok(Exit::OK);
        }
        Command::Get { name } => client.schedule(&name).await?,
        Command::Put(args) => {
            let name = args.schedule.clone();
            let schedule = client.put_schedule(&name, &body(*args)?).await?;
            remark(format_args!("tasklane: `tasklane schedule next {name}` shows its times"));
            schedule
        }
        Command::Delete { names } => {
            for name in names {
                client.delete_schedule(&name).await?;
            }
            return Ok(Exit::OK);
        }
        Command::Enable { name } => client.enable_schedule(&name, true).await?,
        Command::Disable { name } => client.enable_schedule(&name, false).await?,
        Command::Trigger { name } => {
            let task = client.trigger_schedule(&name).await?;
            return out.either(&json!({ "taskId": task }), |_| task.clone()).map(|()| Exit::OK);
        }
        Command::Backfill { name, from, until, dry_run } => {
            let plan = client.backfill_schedule(&name, from, until, dry_run).await?;
            return out.either(&plan, backfill_shown).map(|()| Exit::OK);
        }
        Command::Next { name, count, after } => {
            let times = client.next_times(&name, count, after).await?;
            return show_times(&times, out).map(|()| Exit::OK);
        }
        Command::Preview { cron, dialect, timezone, after, count } => {
            let mut rule = json!({ "cron": cron, "count": count });
            let given = [
                ("dialect", dialect.map(Value::from)),
                ("timezone", timezone.map(Value::from)),
                ("after", after.map(|after| json!(after))),
            ];
            for (field, value) in given {
                if let Some(value) = value {
                    rule[field] = value;
                }
            }
            let times = client.preview_times(&rule).await?;
            show_times(&times, out)?;
            return Ok(if times.is_empty() { Exit::FAILED } else { Exit::OK });
        }
        Command::History { name } => {
            let fires = client.schedule_history(&name).await?;
            out.rows(&fires, &["TIME", "OUTCOME", "TASK", "RESULT", "ENDED", "REASON"], fire_cells)?;
            if fires.is_empty() {
                remark("the schedule has not fired yet");
            }
            return Ok(Exit::OK);
        }
    };
    out.either(&schedule, shown).map(|()| Exit::OK)
}

fn show_times(times: &[NextTime], out: Out) -> anyhow::Result<()> {
    out.rows(times, &["TIME", "THERE", "NOTE"], next_cells)?;
    if times.is_empty() {
        remark("the schedule has no further times");
    }
    Ok(())
}

/// The schedule that the flags describe, in the form of the API.
fn body(args: PutArgs) -> anyhow::Result<Value> {
    if let Some(file) = &args.file {
        return serde_json::from_str(&submit::read_text(file)?)
            .with_context(|| format!("{} is not a schedule in JSON", file.display()));
    }
    let (task_type, payload) = match (args.task_type, args.command.as_slice()) {
        (Some(task_type), _) => (task_type, args.payload.map(submit::payload_value).into()),
        (None, []) => {
            let rule = "no task is given: use a command behind --, or --type and --payload, or a FILE";
            return Err(Usage(rule.to_owned()).into());
        }
        (None, command) => ("SHELL".to_owned(), json!({ "argv": command })),
    };
    let task = args.spec.request(&task_type, payload, &args.schedule, None);
    let seconds = |duration: Duration| json!(duration.as_secs_f64());
    let on: &[&str] = if args.late_after.is_some() { &["failing", "late"] } else { &["failing"] };
    let alerts: Vec<Webhook> = args.alert.iter().map(|url| Webhook::new(url, on)).collect();
    let mut body = Map::new();
    for (field, given) in [
        ("cron", args.cron.map(Value::from)),
        ("dialect", args.dialect.map(Value::from)),
        ("every", args.every.map(seconds)),
        ("at", args.at.map(|time| json!(time))),
        ("timezone", args.timezone.map(Value::from)),
        ("from", args.from.map(|time| json!(time))),
        ("until", args.until.map(|time| json!(time))),
        ("jitter", args.jitter.map(seconds)),
        ("overlap", args.overlap.map(Value::from)),
        ("missed", args.missed.map(Value::from)),
        ("missedAfter", args.missed_after.map(seconds)),
        ("catchUp", args.catch_up.map(seconds)),
        ("pauseAfterFailures", args.pause_after.map(Value::from)),
        ("lateAfter", args.late_after.map(seconds)),
        ("webhooks", (!alerts.is_empty()).then(|| json!(alerts))),
        ("enabled", args.disabled.then_some(Value::Bool(false))),
        ("task", Some(serde_json::to_value(task)?)),
    ] {
        body.extend(given.map(|value| (field.to_owned(), value)));
    }
    Ok(Value::Object(body))
}

/// When it fires, in a few words.
fn when(schedule: &Schedule) -> String {
    let text = |field: &str| schedule.more.get(field).and_then(Value::as_str).map(str::to_owned);
    if let Some(cron) = text("cron") {
        let dialect = text("dialect").filter(|dialect| dialect != "vixie");
        let more: Vec<String> =
            dialect.into_iter().chain(text("timezone").filter(|zone| zone != "UTC")).collect();
        return if more.is_empty() { cron } else { format!("{cron} ({})", more.join(", ")) };
    }
    if let Some(seconds) = schedule.more.get("every").and_then(Value::as_f64) {
        let every = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        return format!("every {}", value::shown_duration(every));
    }
    text("at").map_or_else(String::new, |at| format!("at {at}"))
}

fn state(schedule: &Schedule) -> String {
    match &schedule.paused_because {
        Some(reason) if reason != "disabled" => format!("paused: {reason}"),
        Some(_) => "disabled".to_owned(),
        None if schedule.next_time.is_none() => "over".to_owned(),
        None => "enabled".to_owned(),
    }
}

fn cells(schedule: &Schedule) -> Vec<String> {
    let last = schedule.last_run.as_ref();
    vec![
        schedule.id.clone(),
        when(schedule),
        state(schedule),
        value::shown_time(schedule.next_time),
        value::shown_time(last.map(|last| last.nominal_time)),
        last.map_or_else(String::new, |last| result(last.status.as_deref())),
    ]
}

/// How a task stands; its status is not known once it is removed.
fn result(status: Option<&str>) -> String {
    status.unwrap_or("no longer kept").to_owned()
}

fn shown(schedule: &Schedule) -> String {
    let mut lines = vec![
        ("name", schedule.id.clone()),
        ("when", when(schedule)),
        ("state", state(schedule)),
        ("next", value::shown_time(schedule.next_time)),
    ];
    if let Some(last) = &schedule.last_run {
        let time = value::shown_time(Some(last.nominal_time));
        lines.push(("last", format!("{time} {} {}", last.task_id, result(last.status.as_deref()))));
    }
    let more = |field: &str| schedule.more.get(field);
    let text = |field: &str| more(field).and_then(Value::as_str).map(str::to_owned);
    let shown = |field: &str| {
        let seconds = more(field).and_then(Value::as_f64)?;
        Some(value::shown_duration(Duration::try_from_secs_f64(seconds).ok()?))
    };
    let duration = |field: &str| shown(field).filter(|_| more(field).and_then(Value::as_f64) > Some(0.0));
    let given = [
        ("from", text("from")),
        ("until", text("until")),
        ("jitter", duration("jitter")),
        ("overlap", text("overlap")),
        ("missed", text("missed")),
        ("missed after", duration("missedAfter")),
        ("catch up", shown("catchUp")),
        ("late after", duration("lateAfter")),
        ("late", text("late").map(|at| format!("since {at}"))),
        ("pause after", more("pauseAfterFailures").map(|failures| format!("{failures} failures"))),
        ("waiting", more("bufferedCount").map(|count| format!("{count} for the task before"))),
    ];
    lines.extend(given.into_iter().filter_map(|(name, value)| Some((name, value?))));
    for webhook in more("webhooks").and_then(Value::as_array).into_iter().flatten() {
        lines.push(("alert", alert(webhook)));
    }
    if schedule.failures > 0 {
        lines.push(("failures", format!("{} in a row", schedule.failures)));
    }
    for field in ["task", "workflow"] {
        lines.extend(more(field).map(|target| (field, target.to_string())));
    }
    pairs(&lines)
}

/// An alert's URL and its events.
fn alert(webhook: &Value) -> String {
    let on = webhook["on"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!("{} on {}", webhook["url"].as_str().unwrap_or_default(), on.collect::<Vec<_>>().join(", "))
}

fn next_cells(next: &NextTime) -> Vec<String> {
    vec![value::shown_time(Some(next.time)), next.local.clone(), next.note.clone().unwrap_or_default()]
}

fn fire_cells(fire: &Fire) -> Vec<String> {
    let count =
        fire.count.filter(|count| *count > 1).map_or_else(String::new, |count| format!(" ({count} times)"));
    vec![
        value::shown_time(Some(fire.nominal_time)),
        format!("{}{count}", fire.outcome),
        fire.task_id.clone().unwrap_or_default(),
        if fire.task_id.is_some() { result(fire.task_status.as_deref()) } else { String::new() },
        value::shown_time(fire.ended_at),
        fire.reason.clone().unwrap_or_default(),
    ]
}

fn backfill_shown(plan: &Backfill) -> String {
    let does = if plan.dry_run { "would fire" } else { "fires" };
    let range =
        plan.first.zip(plan.last).map_or_else(String::new, |(first, last)| format!(", {first} to {last}"));
    format!("{does} {} times{range}", plan.count)
}
