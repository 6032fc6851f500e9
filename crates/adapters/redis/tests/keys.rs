//! The stored keys and their sizes, as users of the server see them.

mod support;

use std::sync::Arc;

use support::RedisServer;
use tasklane_core::id::{LaneId, Seq};
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::status::Status::{Cancelled, Scheduled};
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, Owner, TaskBuilder, at, cancel, changing, create, ended, inserting_assigned, record,
    result, submit, task, tasks,
};
use tasklane_ports::conformance::{pages, run};
use tasklane_ports::{LogChunk, LogPosition, LogStream, Logs, Store, TaskFilter};
use tasklane_redis::RedisStore;

async fn store(server: &RedisServer, prefix: &str) -> Arc<RedisStore> {
    let url = format!("{}?prefix={prefix}", server.url());
    Arc::new(support::connect(&url, &support::fresh_options()).await)
}

fn number_of_keys(server: &RedisServer) -> u32 {
    server.command(&["DBSIZE"]).trim_start_matches(':').trim().parse().expect("a number")
}

#[test]
fn a_lane_has_a_fixed_number_of_keys() {
    run("number of keys", async {
        let server = RedisServer::start()?;
        let redis = store(&server, "k").await;
        let store: Arc<dyn Store> = redis.clone();
        let mut owner = Owner::claim(&store, LANE).await;
        let mut keys = Vec::new();
        for first in [0, 100, 200] {
            let mut groups = Vec::new();
            let delayed = (first + 50..first + 60)
                .map(|n| task(n).delay(1_000).start_timeout(10).unique(&n.to_string()));
            let large = task(first + 60).payload_bytes(100_000);
            let new: Vec<_> = tasks(first..first + 50)
                .into_iter()
                .chain(delayed.chain([large]).map(TaskBuilder::build))
                .collect();
            create(&*store, new.clone()).await;
            store.post(LANE, &[cancel(new[0].id)]).await.unwrap();
            for new in &new[..20] {
                let mut group = changing(new.id, &new.state(), &[Scheduled]);
                let change = group.change.as_mut().unwrap();
                change.result = Some(result(0, 10));
                change.ended = vec![ended(1, tasklane_core::task::AttemptOutcome::Lost)];
                group.records = vec![record(&new.id.to_string(), Some(b"1"))];
                groups.push(group);
            }
            assert_eq!(owner.commit(groups).await, vec![APPLIED; 20]);
            keys.push(number_of_keys(&server));
        }
        // 18 of the lane, and the list of lanes and the version of the data.
        assert_eq!(keys, [20; 3]);
        Some(())
    });
}

#[test]
fn all_keys_start_with_the_prefix_and_name_their_lane() {
    run("names of keys", async {
        let server = RedisServer::start()?;
        let store = store(&server, "some:prefix").await;
        let new = task(1).build();
        create(&*store, [new.clone()]).await;
        let position = LogPosition { attempt: tasklane_core::id::AttemptNo(1), number: 0 };
        let chunk = LogChunk {
            task: new.id,
            position,
            stream: LogStream::Stdout,
            at: new.created_at,
            bytes: b"\xff".to_vec(),
        };
        store.append(std::slice::from_ref(&chunk)).await.unwrap();
        assert_eq!(store.read(new.id, None, 10).await.unwrap(), [chunk]);
        let answer = server.command(&["KEYS", "*"]);
        let keys: Vec<&str> = answer.lines().skip(2).step_by(2).collect();
        assert!(keys.iter().all(|key| key.starts_with("{some:prefix")), "{keys:?}");
        let of_lane = keys.iter().filter(|key| key.starts_with("{some:prefix:3}:")).count();
        assert_eq!(of_lane, keys.len() - 2, "{keys:?}");
        assert!(keys.contains(&format!("{{some:prefix:3}}:log:{}", new.id.0.simple()).as_str()), "{keys:?}");
        Some(())
    });
}

#[test]
fn arrivals_are_trimmed_to_the_committed_cursor_and_no_further() {
    run("trimmed arrivals", async {
        let server = RedisServer::start()?;
        let store: Arc<dyn Store> = store(&server, "k").await;
        let mut owner = Owner::claim(&store, LANE).await;
        let new = tasks(0..10);
        create(&*store, new.clone()).await;
        store.post(LANE, &[cancel(new[0].id)]).await.unwrap();
        let length = || server.command(&["LLEN", "{k:3}:arrivals"]);
        assert_eq!(length(), ":11\r\n");

        // A cursor that is refused trims nothing.
        let mut commit = owner.numbered(2, []);
        commit.cursor = Seq(5);
        store.commit(&commit).await.unwrap_err();
        assert_eq!(length(), ":11\r\n");

        let mut commit = owner.next([]);
        commit.cursor = Seq(4);
        store.commit(&commit).await.unwrap();
        assert_eq!(length(), ":7\r\n");
        let (rows, next) = pages::all_arrivals(&*store, LANE, Seq(4), 3).await.unwrap();
        let seqs: Vec<u64> = rows.iter().map(|row| row.seq().0).collect();
        assert_eq!((seqs, next), ((5..=11).collect(), Seq(11)));
        assert!(matches!(rows.last(), Some(Arrival::Command(_))));
        assert_eq!(pages::load(&*store, LANE, LaneRead::Arrivals { after: Seq(3) }, 3).await, LanePage::Gap);

        // An earlier cursor restores nothing; a cursor beyond the last arrival trims every entry.
        for (cursor, left) in [(2, 7), (1_000, 0)] {
            let mut commit = owner.next([]);
            commit.cursor = Seq(cursor);
            store.commit(&commit).await.unwrap();
            assert_eq!(length(), format!(":{left}\r\n"));
        }
        assert_eq!(pages::all_arrivals(&*store, LANE, Seq(11), 3).await, Some((vec![], Seq(11))));
        create(&*store, [task(11).build()]).await;
        let (rows, next) = pages::all_arrivals(&*store, LANE, Seq(11), 3).await.unwrap();
        assert_eq!((rows.len(), next), (1, Seq(12)));
        // Commands trimmed from the index are still in the inbox.
        assert_eq!(pages::all_inbox(&*store, LANE, 10).await.len(), 1);
        Some(())
    });
}

#[test]
fn entries_of_unique_keys_go_with_their_tasks() {
    run("unique keys", async {
        let server = RedisServer::start()?;
        let store: Arc<dyn Store> = store(&server, "k").await;
        let mut owner = Owner::claim(&store, LANE).await;
        // Unique keys, and tasks that hold one.
        let entries =
            || ["unique", "uniqueof"].map(|key| server.command(&["HLEN", &format!("{{k:3}}:{key}")]));
        let lengths = |keys: u32, tasks: u32| [format!(":{keys}\r\n"), format!(":{tasks}\r\n")];
        create(&*store, [task(1).unique("a").build(), task(2).unique_until("b", at(10)).build()]).await;
        owner.commit([inserting_assigned(task(3).unique("c").build())]).await;
        // Refused tasks leave no entry, and neither do tasks without a key.
        submit(&*store, [task(4).unique("a").build(), task(5).unique("d").len_max(0).build()]).await;
        create(&*store, [task(6).build()]).await;
        assert_eq!(entries(), lengths(3, 3));

        for number in [1, 2, 3, 6] {
            owner.advance(task(number).id(), &[Cancelled]).await;
        }
        let all: Vec<_> = (1..=7).map(|number| task(number).id()).collect();
        store.retire(&all, &[]).await.unwrap();
        assert_eq!(entries(), lengths(3, 3));
        // Taken over: the earlier task keeps its entry until it is forgotten.
        create(&*store, [task(7).unique("a").build()]).await;
        assert_eq!(entries(), lengths(3, 4));
        store.retire(&[], &all).await.unwrap();
        assert_eq!(entries(), lengths(1, 1));
        owner.advance(task(7).id(), &[Cancelled]).await;
        store.retire(&[], &all).await.unwrap();
        assert_eq!(entries(), lengths(0, 0));
        Some(())
    });
}

/// Just below the limit of numbers that Lua counts exactly.
const START: u64 = (1 << 53) - 100;

#[test]
fn arrival_numbers_stay_exact_far_beyond_any_use() {
    run("large numbers", async {
        let server = RedisServer::start()?;
        let store: Arc<dyn Store> = store(&server, "k").await;
        server.command(&["HSET", "{k:3}:lane", "seq", &START.to_string(), "trimmed", &START.to_string()]);
        let new = tasks(0..20);
        let seqs = create(&*store, new.clone()).await;
        assert_eq!(seqs, (START + 1..=START + 20).map(Seq).collect::<Vec<_>>());
        store.post(LANE, &[cancel(new[0].id)]).await.unwrap();
        let (rows, next) = pages::all_arrivals(&*store, LANE, Seq(START), 7).await.unwrap();
        assert_eq!(
            rows.iter().map(|row| row.seq().0).collect::<Vec<_>>(),
            (START + 1..=START + 21).collect::<Vec<_>>()
        );
        assert_eq!((next, pages::cursor(&*store, LANE).await), (Seq(START + 21), Seq(START + 21)));
        let line = pages::all_tasks(&*store, LANE, pages::line(new[0].spec.head.line()), 3).await;
        assert_eq!(line.iter().map(|row| row.seq).collect::<Vec<_>>(), seqs);
        Some(())
    });
}

#[test]
fn a_list_over_many_lanes_is_one_list() {
    run("many lanes", async {
        let server = RedisServer::start()?;
        let store: Arc<dyn Store> = store(&server, "k").await;
        let mut expected = Vec::new();
        for lane in 0..20 {
            // Each lane has another share of a time that all have in common.
            for n in 0..u64::from(lane) {
                let millis = i64::try_from(n * 7 % 11).unwrap();
                let new = TaskBuilder::new(LaneId(lane), n).created(millis).build();
                expected.push((new.created_at, new.id));
                create(&*store, [new]).await;
            }
        }
        expected.sort_unstable();
        expected.reverse();
        for limit in [1, 7, 100, 1_000] {
            let listed = pages::all_listed(&*store, TaskFilter::default(), limit).await;
            let listed: Vec<_> = listed.iter().map(|row| (row.state.created_at, row.id)).collect();
            assert_eq!(listed, expected, "by {limit}");
        }
        Some(())
    });
}
