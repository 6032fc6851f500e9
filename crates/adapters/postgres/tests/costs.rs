//! The cost of a commit does not grow with the history of its rows.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::sync::Arc;

use support::PostgresServer;
use tasklane_core::status::Status::Scheduled;
use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{LANE, Owner, changing, create, inserting, task, tasks};
use tasklane_ports::conformance::run;
use tasklane_postgres::PostgresOptions;
use tokio_postgres::NoTls;

/// Makes some commits of one task each, over connections of their own. Answers the pages that one commit
/// reads in the tables that every commit changes.
async fn pages_looked_at(
    server: &PostgresServer,
    options: &PostgresOptions,
    numbers: std::ops::Range<u64>,
) -> f64 {
    let before = pages(server, &options.schema);
    let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), options).await);
    let mut owner = Owner::claim(&store, LANE).await;
    for number in numbers.clone() {
        let new = task(number).build();
        owner.commit([inserting(new.clone())]).await;
        owner.commit([changing(new.id, &new.state(), &[Scheduled])]).await;
    }
    // A connection publishes its statistics when it ends.
    store.close().await.unwrap();
    while server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tasklane'") != "0" {}
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let commits = 2.0 * (numbers.end - numbers.start) as f64;
    (pages(server, &options.schema) - before) / commits
}

fn pages(server: &PostgresServer, schema: &str) -> f64 {
    let sum = format!(
        "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables
         WHERE schemaname = '{schema}' AND relname IN ('lane', 'lane_seq', 'counts')"
    );
    server.sql(&sum).parse().unwrap()
}

/// An old snapshot of the database (a dump, a forgotten transaction) keeps dead rows from being cleaned away.
/// A row that changes with every commit was then found by passing all of its dead versions.
#[test]
fn somebody_with_an_old_view_does_not_make_commits_dear() {
    run("old view", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        let store = support::connect(&server.url(), &options).await;
        create(&store, tasks([999_999])).await;
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class").await.unwrap();
        store.close().await.unwrap();

        let first = pages_looked_at(&server, &options, 0..100).await;
        pages_looked_at(&server, &options, 100..3_000).await;
        let last = pages_looked_at(&server, &options, 3_000..3_100).await;
        assert!(last < 1.25 * first, "{first} pages for each of the first commits, {last} for the last");
        client.batch_execute("COMMIT").await.unwrap();
        Some(())
    });
}
