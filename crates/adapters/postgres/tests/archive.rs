//! The archive: the rows of its tables.

mod support;

use support::PostgresServer;
use tasklane_core::status::Status::{Dispatched, Pending, Running, Scheduled, Success};
use tasklane_core::task::{AttemptOutcome, TaskRow};
use tasklane_ports::conformance::fixture::{advance, at, ended, result, task};
use tasklane_ports::conformance::run;
use tasklane_ports::{Archive, ArchivedTask, TaskView};
use tasklane_postgres::{PostgresArchive, PostgresOptions};

/// A task that was lost once, and then went well.
fn archived(number: u64) -> ArchivedTask {
    let new = task(number)
        .with(|_, body| {
            body.metadata = [("team".to_owned(), "se\0arch".to_owned())].into();
            body.name = format!("task\0{number}");
            body.parent = Some(task(1_000).id());
        })
        .build();
    let path = [Scheduled, Pending, Scheduled, Dispatched, Running, Success];
    let (_, state) = advance(&new.state(), &path, at(0));
    let row = TaskRow {
        id: new.id,
        seq: tasklane_core::id::Seq(number),
        head: new.spec.head.clone(),
        body: Some(new.spec.body),
        state,
    };
    let attempts = vec![ended(1, AttemptOutcome::Lost)];
    ArchivedTask { task: TaskView { row, result: Some(*result(0, 10)) }, attempts }
}

#[test]
fn one_that_cannot_be_reached_is_opened_and_takes_tasks_later() {
    run("archive", async {
        let mut server = PostgresServer::start()?;
        server.kill();
        let options = PostgresOptions { schema: "later".to_owned(), ..support::fresh_options() };
        let archive = PostgresArchive::connect(&server.url(), &options).await.unwrap();
        assert!(archive.put(&[archived(0)]).await.unwrap_err().is_retryable());
        server.start_again();
        archive.put(&[archived(0)]).await.unwrap();
        assert_eq!(server.sql("SELECT count(*) FROM later.archived_task"), "1");
        Some(())
    });
}

#[test]
fn what_an_earlier_version_has_archived_is_kept() {
    run("archive of version 1", async {
        let server = PostgresServer::start()?;
        let options = PostgresOptions { schema: "earlier".to_owned(), ..support::fresh_options() };
        let (id, first) = (archived(0).task.row.id, include_str!("../migrations/archive_0001_tables.sql"));
        server.sql(&format!(
            "CREATE SCHEMA earlier; SET search_path = earlier;
             CREATE TABLE archive_version (version integer NOT NULL); INSERT INTO archive_version VALUES (1); {first}
             INSERT INTO archived_task (id, namespace, queue, type, priority, status, attempts, created_at)
                 VALUES ('{id}', 'n', 'q', 'T', 5, 'SUCCESS', 1, '2020-01-01Z');
             INSERT INTO archived_attempt (task, number, scheduled_at) VALUES ('{id}', 1, '2020-01-01Z')"
        ));
        let archive = PostgresArchive::connect(&server.url(), &options).await.unwrap();
        archive.put(&[archived(0)]).await.unwrap();
        assert_eq!(server.sql("SELECT count(*), count(DISTINCT id) FROM earlier.archived_task"), "2|1");
        assert_eq!(server.sql("SELECT count(*), count(DISTINCT task) FROM earlier.archived_attempt"), "3|1");
        Some(())
    });
}

#[test]
fn a_task_given_twice_is_kept_once() {
    run("archive", async {
        let server = PostgresServer::start()?;
        let options = PostgresOptions { schema: "kept".to_owned(), ..support::fresh_options() };
        let archive = PostgresArchive::connect(&server.url(), &options).await.unwrap();
        archive.put(&[]).await.unwrap();
        let tasks: Vec<_> = (0..1_500).map(archived).collect();
        archive.put(&tasks).await.unwrap();
        // Archived again, in another order and with another end: the first one counts.
        let mut again = tasks[..10].to_vec();
        again.reverse();
        again[0].task.row.state.error = Some(tasklane_core::task::TaskError::new("late", "not kept"));
        again.push(archived(1_500));
        archive.put(&again).await.unwrap();
        // A request id that was used again, long after: another task, though its id is the same.
        let mut later = archived(8);
        later.task.row.state.created_at = at(1_000_000);
        archive.put(&[later]).await.unwrap();

        assert_eq!(server.sql("SELECT count(*), count(error_code) FROM kept.archived_task"), "1502|0");
        assert_eq!(server.sql("SELECT count(*) FROM kept.archived_attempt"), "3004");
        let id = tasks[7].task.row.id;
        let found = server.sql(&format!(
            "SET timezone = 'UTC';
             SELECT namespace, queue, type, name, priority, status, attempts, created_at, finished_at, worker,
                 result_code, length(result), payload, metadata->>'team', request_id, parent, schedule
             FROM kept.archived_task WHERE id = '{id}'"
        ));
        let parent = task(1_000).id();
        assert_eq!(
            found,
            format!(
                "default|q|SHELL|task\u{fffd}7|5|SUCCESS|2|2023-11-14 22:13:20+00|2023-11-14 22:13:20.005+00|worker-1|\
                 0|10|echo|se\u{fffd}arch|request 7|{parent}|"
            )
        );
        let attempts = server.sql(&format!(
            "SELECT number, outcome, worker, error_code FROM kept.archived_attempt WHERE task = '{id}' ORDER BY number"
        ));
        assert_eq!(attempts, "1|LOST|worker-1|exit_code\n2|SUCCESS|worker-1|");
        Some(())
    });
}

#[test]
fn an_archive_and_a_store_may_share_a_schema() {
    run("shared schema", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        for _ in 0..2 {
            support::connect(&server.url(), &options).await;
            let archive = PostgresArchive::connect(&server.url(), &options).await.unwrap();
            archive.put(&[archived(1)]).await.unwrap();
        }
        let stripped = ArchivedTask {
            task: TaskView { row: TaskRow { body: None, ..archived(2).task.row }, result: None },
            attempts: Vec::new(),
        };
        let archive = PostgresArchive::connect(&server.url(), &options).await.unwrap();
        archive.put(&[stripped]).await.unwrap();
        let schema = &options.schema;
        assert_eq!(server.sql(&format!("SELECT count(*), count(name) FROM {schema}.archived_task")), "2|1");
        Some(())
    });
}
