//! Many writers on one lane, for long enough that every row that is changed in place has moved on in its
//! index.

mod support;

use std::collections::BTreeSet;

use futures::future::join_all;
use support::PostgresServer;
use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::Seq;
use tasklane_core::status::Status::Cancelled;
use tasklane_ports::conformance::fixture::{
    LANE, Owner, cancel, changing, inserting, state, submit, task, tasks,
};
use tasklane_ports::conformance::{pages, run_long};
use tasklane_ports::{ExpiredQuery, ExpiredTasks, Store};

const WRITERS: u64 = 6;
const ROUNDS: u64 = 60;

#[test]
fn numbers_and_counts_are_right_whoever_writes_at_once() {
    run_long("races", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let store: std::sync::Arc<dyn Store> =
            std::sync::Arc::new(support::connect(&server.url(), &options).await);
        let mut owner = Owner::claim(&store, LANE).await;

        let submits = (0..WRITERS).map(|writer| {
            let store = &store;
            async move {
                let mut numbers = Vec::new();
                for round in 0..ROUNDS {
                    let number = writer * ROUNDS + round;
                    // A new task, a task that all writers submit, and sometimes a command.
                    let outcomes = submit(&**store, tasks([number, 1_000_000 + round])).await;
                    numbers.extend(outcomes.iter().filter_map(|outcome| match outcome {
                        SubmitOutcome::Created { seq } => Some(*seq),
                        _ => None,
                    }));
                    if round % 3 == 0 {
                        store.post(LANE, &[cancel(task(number).id())]).await.unwrap();
                    }
                }
                numbers
            }
        });
        let commits = async {
            for number in 2_000_000..2_000_000 + 2 * ROUNDS {
                let new = task(number).build();
                let end = changing(new.id, &new.state(), &[Cancelled]);
                owner.commit([inserting(new)]).await;
                owner.commit([end]).await;
            }
        };
        let retires = async {
            for _ in 0..ROUNDS {
                let (bound, after) = (tasklane_core::time::Timestamp::MAX, None);
                let retire = ExpiredQuery { finished_before: bound, forget_before: bound, after, limit: 10 };
                let ExpiredTasks { forget, .. } = store.expired(retire).await.unwrap();
                store.retire(&[], &forget).await.unwrap();
            }
        };
        let (numbers, (), ()) = futures::join!(join_all(submits), commits, retires);
        let numbers: Vec<Seq> = numbers.into_iter().flatten().collect();
        let created = WRITERS * ROUNDS + ROUNDS;
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len() as u64, created);

        let schema = &options.schema;
        for (table, rows) in [("lane", "1"), ("lane_seq", "1")] {
            assert_eq!(server.sql(&format!("SELECT count(*) FROM {schema}.{table}")), rows, "{table}");
        }
        let doubled = format!(
            "SELECT count(*) FROM (SELECT FROM {schema}.counts GROUP BY queue, lane, side, status HAVING count(*) > 1) d"
        );
        assert_eq!(server.sql(&doubled), "0");
        let counted = pages::all_counts(&*store, 10).await[0].by_status;
        let ended = server.sql(&format!("SELECT count(*) FROM {schema}.task WHERE version & 255 = 7"));
        assert_eq!((counted[0], counted[7].to_string()), (created, ended));
        assert_eq!(state(&*store, task(0).id()).await.status.code(), 0);
        Some(())
    });
}
