//! The schema, and the ways to it.

mod support;

use support::PostgresServer;
use tasklane_ports::conformance::{run, skipped};
use tasklane_postgres::PostgresArchive;

/// As in `migrate.rs`.
const STEPS: [&str; 3] = [
    include_str!("../migrations/0001_tables.sql"),
    include_str!("../migrations/0002_functions.sql"),
    include_str!("../migrations/0003_members.sql"),
];

#[test]
fn schema_after_all_steps_is_the_committed_one() {
    run("schema", async {
        let server = PostgresServer::start()?;
        let options = support::fresh_options();
        support::connect(&server.url(), &options).await;
        PostgresArchive::connect(&server.url(), &options).await.unwrap();
        // Others write the same in another way.
        if !server.sql("SHOW server_version").starts_with("15.") {
            skipped("schema", "the committed one is as version 15 writes it");
            return Some(());
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
        let head = "-- The schema after all migrations, that of the archive included. Written by a test: \
                    run it with TASKLANE_BLESS=1 after adding a step.\n\n";
        let found = format!("{head}{}", server.dump(&options.schema));
        if std::env::var_os("TASKLANE_BLESS").is_some() {
            std::fs::write(file, &found).unwrap();
        }
        let committed = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            committed == found,
            "schema.sql differs: run this test with TASKLANE_BLESS=1 and look at the diff"
        );
        Some(())
    });
}

#[test]
fn every_version_leads_to_the_newest() {
    run("every version", async {
        let server = PostgresServer::start()?;
        let fresh = support::fresh_options();
        support::connect(&server.url(), &fresh).await;
        for start in 0..=STEPS.len() {
            let options = support::fresh_options();
            let schema = &options.schema;
            let steps = STEPS[..start].concat();
            server.sql(&format!(
                "CREATE SCHEMA {schema}; SET search_path = {schema};
                 CREATE TABLE schema_version (version integer NOT NULL);
                 INSERT INTO schema_version VALUES ({start}); {steps}"
            ));
            for _ in 0..2 {
                support::connect(&server.url(), &options).await;
                assert_eq!(
                    server.sql(&format!("SELECT version FROM {schema}.schema_version")),
                    STEPS.len().to_string()
                );
            }
            assert!(server.dump(schema) == server.dump(&fresh.schema), "from version {start}");
        }
        Some(())
    });
}
