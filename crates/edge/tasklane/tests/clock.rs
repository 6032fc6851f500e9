//! Steps of the wall clock of a real server: moved by an offset that exists only in builds with the feature `test-clock`.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use support::{Api, PATIENCE, Server};
use tasklane_testkit::{PostgresServer, RedisServer};

const TEN_DAYS: i64 = 10 * 24 * 3600;

/// The wall clock of a server under test.
struct Clock(PathBuf);

impl Clock {
    fn new(folder: &Path) -> Self {
        let clock = Self(folder.join("clock"));
        clock.ahead(0);
        clock
    }

    /// So many seconds before the machine's clock; behind it, if negative.
    fn ahead(&self, seconds: i64) {
        let next = self.0.with_extension("next");
        std::fs::write(&next, (seconds * 1000).to_string()).unwrap();
        std::fs::rename(next, &self.0).unwrap();
    }

    fn start(&self, command: &str, data: &Path, set: &[&str]) -> Server {
        self.start_with(command, data, set, &[])
    }

    /// Starts a server as if the machine was started again meanwhile: its steady clock says nothing about the time before.
    fn start_after_a_boot(&self, data: &Path, set: &[&str]) -> Server {
        let boot = ("TASKLANE_TEST_BOOT_ID", "0b007000-0000-4000-8000-000000000000");
        self.start_with("dev", data, set, &[boot])
    }

    fn start_with(&self, command: &str, data: &Path, set: &[&str], env: &[(&str, &str)]) -> Server {
        let mut args = vec!["--listen", "127.0.0.1:0"];
        for set in set {
            args.extend(["--set", *set]);
        }
        let clock = ("TASKLANE_TEST_CLOCK", self.0.to_str().unwrap());
        Server::start_as(command, data, &args, &[&[clock], env].concat())
    }
}

async fn page(server: &Server, path: &str) -> String {
    reqwest::get(format!("{}{path}", server.url)).await.unwrap().text().await.unwrap()
}

/// Asks until an answer is as it should be.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "{what} never comes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until `/readyz` has a text.
async fn ready_says(server: &Server, text: &str) {
    until(text, async || page(server, "/readyz").await.contains(text).then_some(())).await;
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// By how much a time lies in the future of the machine's clock.
fn from_now(value: &Value) -> SignedDuration {
    time(value).duration_since(Timestamp::now())
}

fn request(n: usize) -> Value {
    json!({ "taskName": "t", "taskType": "NOOP", "requestId": format!("r{n}"), "payload": format!("p{n}") })
}

fn schedule(more: &Value) -> Value {
    let mut schedule = json!({ "task": { "taskName": "s", "taskType": "NOOP", "queue": "fired" } });
    schedule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    schedule
}

/// Waits until a schedule was fired for so many times around that of the server's clock.
async fn fires(api: &Api, id: &str, ahead: i64, count: usize) {
    until("fires", async || {
        let (_, history) = api.get(&format!("/schedules/{id}/history")).await;
        let now = Timestamp::now() + SignedDuration::from_secs(ahead);
        let is_near = |fire: &&Value| {
            fire["outcome"] == "fired" && time(&fire["nominalTime"]).duration_since(now).abs().as_secs() < 20
        };
        (history["fires"].as_array().unwrap().iter().filter(is_near).count() >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ten_days_ahead_for_a_moment_removes_doubles_and_silences_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::new(folder.path());
    let server = clock.start("dev", &folder.path().join("data"), &["retention.every=50ms"]);
    let api = server.api();
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(api.submit(request(n)).await);
    }
    for id in &ids {
        assert_eq!(api.finished(id).await["status"], "SUCCESS");
    }
    for (id, more) in [
        ("daily", json!({ "cron": "0 0 * * *" })),
        ("flood", json!({ "every": "1s", "missed": "runAll", "overlap": "allowAll", "catchUp": "30d" })),
    ] {
        let (status, answer) = api.put(&format!("/schedules/{id}"), schedule(&more)).await;
        assert_eq!(status, 201, "{answer}");
    }
    fires(&api, "flood", 0, 1).await;

    clock.ahead(TEN_DAYS);
    ready_says(&server, "stepped by +86").await;
    // What comes now is fired, some of it a moment late. By the ninth time retention has looked again and again.
    fires(&api, "flood", TEN_DAYS, 9).await;
    clock.ahead(0);
    ready_says(&server, "stepped by -86").await;
    fires(&api, "flood", 0, 5).await;

    for (n, id) in ids.iter().enumerate() {
        let (status, task) = api.get(&format!("/tasks/{id}")).await;
        assert_eq!((status, &task["payload"]), (200, &json!(format!("p{n}"))), "{task}");
        let (status, again) = api.post("/tasks", request(n)).await;
        assert_eq!((status, again["taskId"].as_str()), (200, Some(id.as_str())), "{again}");
    }
    let (_, daily) = api.get("/schedules/daily").await;
    assert!(from_now(&daily["nextTime"]) <= SignedDuration::from_hours(24), "{daily}");
    let (_, queue) = api.get("/queues/fired").await;
    let fired: u64 = queue["counts"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(fired < 200, "a jump of some seconds made {fired} tasks");
    server.terminate();
}

/// Takes a lock, unless another owner holds it.
async fn take(api: &Api, owner: &str) -> bool {
    let (status, answer) = api.put("/locks/l", json!({ "owner": owner, "ttl": "2s" })).await;
    assert!([200, 409].contains(&status), "{answer}");
    status == 200
}

#[tokio::test]
async fn a_lock_is_held_for_its_time_whichever_way_the_clock_steps() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::new(folder.path());
    let mut server = clock.start("dev", &folder.path().join("data"), &[]);
    for (owner, other, ahead, restarts) in
        [("a", "b", TEN_DAYS, false), ("c", "d", 0, false), ("e", "f", TEN_DAYS, true)]
    {
        let api = server.api();
        until("the lock", async || take(&api, owner).await.then_some(())).await;
        let taken = Instant::now();
        clock.ahead(ahead);
        if restarts {
            server.terminate();
            server = clock.start("dev", &folder.path().join("data"), &[]);
        }
        if !restarts {
            ready_says(&server, if ahead == 0 { "stepped by -86" } else { "stepped by +86" }).await;
        }
        let api = server.api();
        until("the end of the lock", async || take(&api, other).await.then_some(())).await;
        assert!(taken.elapsed() > Duration::from_millis(1900), "after {:?}", taken.elapsed());
    }
    server.terminate();
}

/// The unique key expired at such a start: the same request made a second task.
#[tokio::test]
async fn a_start_after_a_gap_waits_before_it_removes_anything() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, data) = (Clock::new(folder.path()), folder.path().join("data"));
    let server = clock.start("dev", &data, &["retention.every=50ms"]);
    let id = server.api().submit(request(0)).await;
    server.api().finished(&id).await;
    let keyed = json!({ "taskName": "k", "taskType": "NOOP", "unique": { "key": "k", "until": "1h" } });
    let holder = server.api().submit(keyed.clone()).await;
    let lock = async |server: &Server, owner: &str| {
        server.api().put("/locks/gap", json!({ "owner": owner, "ttl": "1h" })).await.0
    };
    assert_eq!(lock(&server, "a").await, 200);
    until("the time in the store", async || {
        let database = rusqlite::Connection::open(data.join("tasklane.db")).unwrap();
        let noted = "SELECT count(*) FROM document WHERE id = 'clock'";
        database.query_row(noted, [], |row| row.get::<_, i64>(0)).ok().filter(|count| *count > 0)
    })
    .await;
    server.terminate();
    clock.ahead(TEN_DAYS);
    let server = clock.start_after_a_boot(&data, &["retention.every=50ms", "clock.settle_time=4s"]);
    assert!(page(&server, "/readyz").await.contains("the last time that the store knows of"));
    let (status, again) = server.api().post("/tasks", keyed.clone()).await;
    assert_eq!((status, again["taskId"].as_str()), (200, Some(holder.as_str())), "{again}");
    assert_eq!(lock(&server, "b").await, 409);
    let (_, again) = server.api().post("/tasks", request(0)).await;
    assert_eq!(again["taskId"].as_str(), Some(id.as_str()), "{again}");
    // A clock that stays as it is is right in the end.
    until("retention", async || (server.api().get(&format!("/tasks/{id}")).await.0 == 404).then_some(()))
        .await;
    let (status, next) = server.api().post("/tasks", keyed).await;
    assert_eq!(status, 201, "{next}");
    assert_eq!(lock(&server, "b").await, 200);
    server.terminate();
}

/// One number of the metrics.
async fn metric(server: &Server, name: &str) -> Option<f64> {
    let metrics = page(server, "/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with(&format!("tasklane_{name} ")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// A server whose clock is an hour ahead says so, and goes by the clock that all servers share.
async fn follows_the_shared_clock(store: &str) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::new(folder.path());
    clock.ahead(3600);
    let store = format!("store={store}");
    let server = clock.start("server", &folder.path().join("data"), &[&store]);
    let api = server.api();
    ready_says(&server, "wrong by more than 2 s").await;
    let logged = async |line: &str| {
        let log = || std::fs::read_to_string(folder.path().join("data.log")).unwrap();
        until(line, async || log().contains(line).then_some(())).await;
        log().matches(line).count()
    };
    assert_eq!(
        logged("the clock of this machine is wrong: the coordinator's is this far ahead of it").await,
        1
    );
    let offset = metric(&server, "clock_offset_seconds").await.unwrap();
    assert!((-3602.0..-3598.0).contains(&offset), "{offset}");
    assert_eq!(metric(&server, "clock_settled").await, Some(0.0));
    let created = async || {
        let id = api.submit(json!({ "taskName": "t", "taskType": "NOOP", "delay": "1h" })).await;
        let (_, task) = api.get(&format!("/tasks/{id}")).await;
        from_now(&task["createdAt"]).abs()
    };
    assert!(created().await < SignedDuration::from_mins(2));

    // Ten days more change nothing of that, also before the next comparison.
    let (_, answer) = api.put("/schedules/daily", schedule(&json!({ "cron": "0 0 * * *" }))).await;
    clock.ahead(TEN_DAYS);
    until("the offset", async || {
        metric(&server, "clock_offset_seconds").await.filter(|offset| *offset < -800_000.0)
    })
    .await;
    assert!(created().await < SignedDuration::from_mins(2));
    let (_, daily) = api.get("/schedules/daily").await;
    assert_eq!(daily["nextTime"], answer["nextTime"], "{daily}");

    clock.ahead(0);
    until("agreement", async || (metric(&server, "clock_settled").await == Some(1.0)).then_some(())).await;
    assert!(!page(&server, "/readyz").await.contains("wrong by"));
    assert_eq!(logged("the clock of this machine is right again").await, 1);
    server.terminate();
}

#[tokio::test]
async fn a_server_on_postgres_follows_its_clock_and_says_how_far_its_own_is_off() {
    let Some(postgres) = PostgresServer::start() else { return };
    follows_the_shared_clock(&postgres.url()).await;
}

#[tokio::test]
async fn a_server_on_redis_follows_its_clock_and_says_how_far_its_own_is_off() {
    let Some(redis) = RedisServer::start() else { return };
    follows_the_shared_clock(&redis.url()).await;
}
