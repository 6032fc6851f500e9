//! The schema, version by version. A version table names the current version. All missing steps run in one
//! transaction, under a lock that keeps other servers from doing the same. A released step is never changed:
//! add another. `schema.sql` shows the result of all of them.
//!
//! Servers of the version before go on during a step and after it. So a step adds, and a step of the release
//! after removes the replaced parts. A function that changes gets another name.

use tasklane_ports::StoreError;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::connect::{Database, Schema};
use crate::error::{CallError, unexpected};

/// The steps to one set of tables. Step `n` leads from version `n` to `n + 1`.
#[derive(Debug)]
pub(crate) struct Migration {
    /// The version table.
    version_table: &'static str,
    steps: &'static [&'static str],
}

/// The tables of every port but the archive.
pub(crate) const STORE: Migration = Migration {
    version_table: "schema_version",
    steps: &[
        include_str!("../migrations/0001_tables.sql"),
        include_str!("../migrations/0002_functions.sql"),
        include_str!("../migrations/0003_members.sql"),
    ],
};

/// The archive, which may lie in the same schema.
pub(crate) const ARCHIVE: Migration = Migration {
    version_table: "archive_version",
    steps: &[
        include_str!("../migrations/archive_0001_tables.sql"),
        include_str!("../migrations/archive_0002_keys.sql"),
    ],
};

/// The oldest server version with all features in use.
const SERVER_MIN: i32 = 13;

/// Brings a schema to the newest version, and creates it if it does not exist. Refuses a schema that is newer
/// still, without touching it.
pub(crate) async fn migrate(database: &Database, migration: &Migration) -> Result<(), StoreError> {
    let (client, driver) = database.open().await?;
    let migrated = migrate_over(&client, &database.schema, migration).await;
    drop(client);
    // The driver ends after the client, with the last messages sent.
    let _ = driver.await;
    migrated
}

async fn migrate_over(client: &Client, schema: &Schema, migration: &Migration) -> Result<(), StoreError> {
    check_server(client).await?;
    if version(client, schema, migration).await? == Some(migration.steps.len()) {
        return Ok(());
    }
    // Another server holds the lock for as long as its steps take.
    run(client, "BEGIN; SET LOCAL statement_timeout = 0").await?;
    let done = migrate_within(client, schema, migration).await;
    let end = run(client, if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
    done.and(end)
}

async fn migrate_within(client: &Client, schema: &Schema, migration: &Migration) -> Result<(), StoreError> {
    let Schema { name, quoted } = schema;
    let Migration { version_table, steps } = migration;
    run(client, &format!("SELECT pg_advisory_xact_lock(hashtextextended('tasklane schema {name}', 0))"))
        .await?;
    // Another server may have been first.
    let found = version(client, schema, migration).await?;
    if found.is_none() {
        // Creating a schema takes a right that using it does not.
        let there = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
        if !ask::<bool>(client, there, &[(name, Type::TEXT)]).await? {
            run(client, &format!("CREATE SCHEMA {quoted}")).await?;
        }
        run(client, &format!("CREATE TABLE {quoted}.{version_table} (version integer NOT NULL)")).await?;
        run(client, &format!("INSERT INTO {quoted}.{version_table} VALUES (0)")).await?;
    }
    run(client, &format!("SET LOCAL search_path = {quoted}")).await?;
    for step in &steps[found.unwrap_or(0)..] {
        client.batch_execute(step).await.map_err(|error| match error.code() {
            Some(&SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_FUNCTION) => StoreError::Refused {
                reason: format!(
                    "schema {name} holds tables of another program. Give one that is empty or not there yet, with \
                     ?schema=… in the URL"
                ),
            },
            _ => failed(error),
        })?;
    }
    run(client, &format!("UPDATE {version_table} SET version = {}", steps.len())).await
}

async fn check_server(client: &Client) -> Result<(), StoreError> {
    let major: i32 =
        ask(client, "SELECT current_setting('server_version_num')::integer / 10000", &[]).await?;
    if major < SERVER_MIN {
        let reason = format!("PostgreSQL {major} is too old: at least {SERVER_MIN} is needed");
        return Err(StoreError::Refused { reason });
    }
    Ok(())
}

/// The version of a schema; `None` where no table of Tasklane is.
async fn version(
    client: &Client,
    schema: &Schema,
    migration: &Migration,
) -> Result<Option<usize>, StoreError> {
    let Schema { name, quoted } = schema;
    let Migration { version_table, steps } = migration;
    // `to_regclass` may answer from before the wait for the lock.
    let there = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1 AND c.relname = $2)";
    if !ask::<bool>(client, there, &[(name, Type::TEXT), (version_table, Type::TEXT)]).await? {
        return Ok(None);
    }
    let found: i32 = ask(client, &format!("SELECT version FROM {quoted}.{version_table}"), &[]).await?;
    let newest = steps.len();
    match usize::try_from(found) {
        Ok(found) if found <= newest => Ok(Some(found)),
        _ => Err(StoreError::Refused {
            reason: format!(
                "schema {name} is of version {found} and this Tasklane knows versions up to {newest}: it was \
                 upgraded by a newer Tasklane. Run that one, or restore a copy of the schema from before the upgrade"
            ),
        }),
    }
}

async fn run(client: &Client, sql: &str) -> Result<(), StoreError> {
    client.batch_execute(sql).await.map_err(failed)
}

/// Reads one value. Nothing is prepared: a pooler may stand in between, and is not probed yet.
async fn ask<T: for<'a> FromSql<'a>>(
    client: &Client,
    sql: &str,
    params: &[(&(dyn ToSql + Sync), Type)],
) -> Result<T, StoreError> {
    let rows = client.query_typed(sql, params).await.map_err(failed)?;
    let row = rows.first().ok_or_else(|| unexpected("no row where there is always one"))?;
    row.try_get(0).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> StoreError {
    CallError::Failed(error).into()
}
