//! A server that is killed again and again while it works, and restarted at once.
//!
//! The test joins two independent histories and gives them to the checker of the simulator. The first is
//! written by triggers that the test puts into the database: every row that the server writes leaves a mark
//! in the same transaction. The second is written by the tasks themselves while they are alive: a line when
//! they start, and a line every few hundredths of a second, also by children that have left their process
//! group or ignore SIGTERM.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};
use support::{Api, PATIENCE, Server, free_port};
use tasklane_core::id::{AttemptNo, Epoch, LaneId, OwnerId, SessionId, TaskId};
use tasklane_core::message::AttemptId;
use tasklane_core::rng::Rng;
use tasklane_core::status::Status;
use tasklane_core::task::TaskState;
use tasklane_core::time::Timestamp;
use tasklane_ports::codec;
use tasklane_sim::checker::{Bounds, Change, Checker, Observation};

const TASKS: usize = 5_000;
const KILLS: usize = 32;
const BATCH: usize = 100;

/// Keeps a mark of every row that the server writes.
const TRIGGERS: &str = "
    CREATE TABLE history (
        n INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, kind TEXT, lane INTEGER,
        id BLOB, state BLOB, epoch INTEGER, owner BLOB,
        failures INTEGER
    );
    CREATE TRIGGER history_created AFTER INSERT ON task BEGIN
        INSERT INTO history (at, kind, lane, id, state, epoch, owner)
        SELECT unixepoch('subsec') * 1000000, 'created', NEW.key >> 48, NEW.id, NEW.state,
               (SELECT epoch FROM lane WHERE lane = NEW.key >> 48), (SELECT owner FROM lane WHERE lane = NEW.key >> 48);
    END;
    CREATE TRIGGER history_changed AFTER UPDATE OF state ON task BEGIN
        INSERT INTO history (at, kind, lane, id, state, epoch, owner)
        SELECT unixepoch('subsec') * 1000000, 'changed', NEW.key >> 48, NEW.id, NEW.state,
               (SELECT epoch FROM lane WHERE lane = NEW.key >> 48), (SELECT owner FROM lane WHERE lane = NEW.key >> 48);
    END;
    CREATE TRIGGER history_lane AFTER INSERT ON lane WHEN NEW.epoch > 0 BEGIN
        INSERT INTO history (at, kind, lane, epoch, owner, failures)
        SELECT unixepoch('subsec') * 1000000, 'claimed', NEW.lane, NEW.epoch, NEW.owner, NEW.failures;
    END;
    CREATE TRIGGER history_claimed AFTER UPDATE ON lane WHEN NEW.epoch <> OLD.epoch BEGIN
        INSERT INTO history (at, kind, lane, epoch, owner, failures)
        SELECT unixepoch('subsec') * 1000000, 'claimed', NEW.lane, NEW.epoch, NEW.owner, NEW.failures;
    END;
";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_doubled_or_left_running_when_the_server_is_killed() {
    let seed = std::env::var("TASKLANE_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("TASKLANE_CRASH_SEED={seed}");
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let marks = folder.path().join("marks");
    let listen = format!("127.0.0.1:{}", free_port());
    let start = || Server::start_with(&data, &["--listen", &listen, "--capacity", "64"], &[]);

    // The schema is made by the server itself.
    start().terminate();
    let database = data.join("tasklane.db");
    Connection::open(&database).unwrap().execute_batch(TRIGGERS).unwrap();

    let mut server = start();
    let submitting = tokio::spawn(submit_all(server.api(), task_bodies(&marks)));
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(100 + rng.below(1_200))).await;
        server.kill();
        server = start();
    }
    let acknowledged =
        tokio::time::timeout(PATIENCE * 3, submitting).await.expect("all are submitted").unwrap();
    assert_eq!(acknowledged.len(), TASKS);
    until_all_are_final(&server.api()).await;
    server.terminate();

    let left = processes_with(&marks);
    assert!(left.is_empty(), "processes of tasks are still alive: {left:?}");
    let bounds =
        Bounds { lost_max: 5, lost_before_start_max: 20, failures_max: 3, park_for: Duration::from_mins(1) };
    let mut checker = Checker::new(bounds);
    let (observations, finals) = history(&database, &marks, &acknowledged);
    for (at, observation) in observations {
        checker.observe(at, observation);
    }
    let end = Timestamp::from_micros(i64::MAX / 2);
    checker.conclude(end);
    assert!(checker.violations().is_empty(), "{:#?}", checker.violations());
    assert_eq!(finals.values().sum::<usize>(), TASKS, "{finals:?}");
    println!("final states: {finals:?}");
}

/// A tenth of the tasks takes longer than a second; of these some ignore SIGTERM and some leave their session.
fn task_bodies(marks: &Path) -> Vec<Value> {
    let marks = marks.display();
    let mark =
        |what: &str| format!("echo \"$TASKLANE_TASK_ID $TASKLANE_ATTEMPT $(date +%s%6N) {what}\" >> {marks}");
    let (started, alive) = (mark("start"), mark("alive"));
    let beats = |n: u32| format!("for i in $(seq {n}); do {alive}; sleep 0.05; done");
    (0..TASKS)
        .map(|at| {
            let payload = match at % 20 {
                0 => format!("{started}; {}", beats(24)),
                10 if at % 40 == 10 => format!("trap '' TERM; {started}; {}", beats(24)),
                10 => format!("{started}; setsid sh -c '{}' & {}; wait", beats(30), beats(22)),
                n if n % 4 == 1 => format!("{started}; {alive}"),
                _ => return json!({"taskName": "quick", "taskType": "NOOP", "requestId": format!("r{at}")}),
            };
            json!({
                "taskName": "marked", "taskType": "SHELL", "payload": payload, "requestId": format!("r{at}"),
            })
        })
        .collect()
}

/// Submits until every batch is acknowledged, over all kills.
async fn submit_all(api: Api, tasks: Vec<Value>) -> BTreeSet<TaskId> {
    let mut ids = BTreeSet::new();
    for batch in tasks.chunks(BATCH) {
        let body = json!({ "tasks": batch });
        let results = loop {
            match api.try_post("/tasks/batch", &body).await {
                Ok((200, answer)) => {
                    let results = answer["results"].as_array().unwrap().clone();
                    if results.iter().all(|result| result["taskId"].is_string()) {
                        break results;
                    }
                }
                Ok((503, _)) | Err(_) => {}
                Ok(other) => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        ids.extend(
            results.iter().map(|result| result["taskId"].as_str().unwrap().parse::<TaskId>().unwrap()),
        );
        // The kills should meet submits as well as work.
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    ids
}

async fn until_all_are_final(api: &Api) {
    let started = Instant::now();
    loop {
        let (_, stats) = api.get("/stats").await;
        let (_, open) = api.get("/tasks?status=PENDING,SCHEDULED,DISPATCHED,RUNNING,RETRYING&limit=1").await;
        if open["tasks"].as_array().is_some_and(Vec::is_empty) && open["nextCursor"].is_null() {
            return;
        }
        assert!(started.elapsed() < PATIENCE * 3, "tasks are stuck: {stats} {open}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Processes whose command line names the file of marks: children of tasks, wherever they have gone.
fn processes_with(marks: &Path) -> Vec<(String, String)> {
    let name = marks.display().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|process| {
            let pid = process.file_name().into_string().ok()?;
            let bytes = std::fs::read(process.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&bytes).replace('\0', " ");
            (pid.parse::<u32>().is_ok() && line.contains(&name)).then_some((pid, line))
        })
        .collect()
}

/// How many tasks ended how, and why.
type Finals = BTreeMap<(Status, String), usize>;

/// Everything that happened, in order.
fn history(
    database: &Path,
    marks: &Path,
    acknowledged: &BTreeSet<TaskId>,
) -> (Vec<(Timestamp, Observation)>, Finals) {
    let mut observations: Vec<(Timestamp, u8, Observation)> = Vec::new();
    let mut sessions: BTreeMap<AttemptId, SessionId> = BTreeMap::new();
    let mut finals = BTreeMap::new();
    let connection = Connection::open(database).unwrap();
    let sql = "SELECT at, kind, lane, id, state, epoch, owner, failures FROM history ORDER BY n";
    let mut statement = connection.prepare(sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    let mut known: BTreeMap<TaskId, TaskState> = BTreeMap::new();
    let mut newest = Timestamp::ZERO;
    while let Some(row) = rows.next().unwrap() {
        // The order of the rows is what counts; the wall clock may step back.
        newest = newest.max(Timestamp::from_micros(row.get(0).unwrap()));
        let kind: String = row.get(1).unwrap();
        let lane = LaneId(row.get(2).unwrap());
        let epoch = Epoch(row.get::<_, Option<i64>>(5).unwrap().unwrap_or(0).cast_unsigned());
        let owner: Option<Vec<u8>> = row.get(6).unwrap();
        let owner =
            owner.map_or(OwnerId::from_random(0), |bytes| OwnerId(uuid::Uuid::from_slice(&bytes).unwrap()));
        if kind == "claimed" {
            let failures = row.get(7).unwrap();
            observations.push((newest, 0, Observation::Claimed { lane, epoch, owner, failures }));
            continue;
        }
        let task = TaskId(uuid::Uuid::from_slice(&row.get::<_, Vec<u8>>(3).unwrap()).unwrap());
        let state: TaskState = codec::decode(&row.get::<_, Vec<u8>>(4).unwrap()).unwrap();
        if kind == "created" {
            observations.push((newest, 0, Observation::Created { task }));
        }
        let before = known.insert(task, state.clone()).map_or(Status::Pending, |before| before.status);
        if kind == "created" && state.status == Status::Pending {
            continue;
        }
        if let Some(session) = state.session {
            sessions.insert(AttemptId { task, number: state.attempt }, session);
        }
        let path = if before == state.status { Vec::new() } else { vec![(state.status, newest)] };
        let (attempt, lost, lost_before_start) = (state.attempt, state.lost, state.lost_before_start);
        let (session, cancel_requested, status) = (state.session, state.cancel_requested, state.status);
        let rates = Vec::new();
        observations.push((
            newest,
            0,
            Observation::Changed(Change {
                limit_reached: false,
                task,
                lane,
                epoch,
                owner,
                path,
                status,
                attempt,
                session,
                cancel_requested,
                lost,
                lost_before_start,
                rates,
            }),
        ));
    }
    for state in known.values() {
        let why = state.error.as_ref().map_or("", |error| error.code.as_str());
        *finals.entry((state.status, why.to_owned())).or_default() += 1;
    }
    // Otherwise the kills would have met nothing.
    let lost: u32 = known.values().map(|state| state.lost + state.lost_before_start).sum();
    assert!(lost > 200, "only {lost} attempts were lost to {KILLS} kills");

    for (execution, (attempt, (first, end))) in (0..).zip(lives(marks)) {
        let session = sessions.get(&attempt).copied().unwrap_or(SessionId::from_random(0));
        let limits = Vec::new();
        observations.push((first, 1, Observation::Started { execution, attempt, session, limits }));
        observations.push((end, 2, Observation::Ended { execution }));
    }
    let end = Timestamp::from_micros(i64::MAX / 2);
    for &task in acknowledged {
        observations.push((end, 3, Observation::Acknowledged { task, wrongly_duplicate: false }));
    }
    observations.sort_by_key(|(at, rank, _)| (*at, *rank));
    (observations.into_iter().map(|(at, _, observation)| (at, observation)).collect(), finals)
}

/// First and last sign of life of each attempt.
fn lives(marks: &Path) -> BTreeMap<AttemptId, (Timestamp, Timestamp)> {
    let mut lives: BTreeMap<AttemptId, (Timestamp, Timestamp)> = BTreeMap::new();
    let path: PathBuf = marks.to_owned();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [task, attempt, at, _] = words[..] else { panic!("a mark is not whole: {line}") };
        let id = AttemptId { task: task.parse().unwrap(), number: AttemptNo(attempt.parse().unwrap()) };
        let at = Timestamp::from_micros(at.parse().unwrap());
        let life = lives.entry(id).or_insert((at, at));
        life.0 = life.0.min(at);
        life.1 = life.1.max(at);
    }
    lives
}
