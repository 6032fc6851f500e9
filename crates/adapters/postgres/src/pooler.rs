//! Finds poolers that lose prepared statements.
//!
//! `PgBouncer` in transaction mode gives each transaction any of its server connections. Before version 1.21,
//! and without `max_prepared_statements`, it does not prepare a client's statements there: the server knows
//! no statement of that name, or runs another client's statement of that name. The fault stays hidden while
//! few connections are used, so the probe provokes it: the first connection prepares a statement, the second
//! one takes the prepared server connection away by a transaction, and the first runs its statement.
//!
//! A direct connection, a pooler in session mode and a pooler that prepares statements wherever they are run
//! all pass.

use std::fmt::Write as _;

use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

/// No statement of another program has this many parameters, so the server refuses to run it in place of the
/// probe's.
const PARAMS: usize = 61;

/// The second connection does not always take the right server connection where other clients use the pooler
/// as well.
const ROUNDS: usize = 3;

/// Fails with the server's error if the first connection's prepared statement is not its own.
pub(crate) async fn probe(first: &Client, second: &Client) -> Result<(), Error> {
    // Probes of other processes use the same name: each fails for all numbers but its own.
    let number = rand::random_range(0..i32::MAX);
    let mut sql = format!("SELECT 1 / ($1::integer = {number})::integer");
    for n in 2..=PARAMS {
        let _ = write!(sql, ", ${n}::integer");
    }
    let params: Vec<&(dyn ToSql + Sync)> =
        std::iter::repeat_n(&number as &(dyn ToSql + Sync), PARAMS).collect();
    let statement = first.prepare(&sql).await?;
    for _ in 0..ROUNDS {
        second.batch_execute("BEGIN; SELECT 1").await?;
        let answer = first.query_one(&statement, &params).await;
        second.batch_execute("COMMIT").await?;
        answer?;
    }
    Ok(())
}

/// Whether the error names a prepared statement that the session does not have, or that another session has
/// made.
pub(crate) fn loses_statements(error: &DbError) -> bool {
    let ends = matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    let codes = [
        SqlState::INVALID_SQL_STATEMENT_NAME,
        SqlState::DUPLICATE_PSTATEMENT,
        SqlState::PROTOCOL_VIOLATION,
        SqlState::INVALID_BINARY_REPRESENTATION,
        SqlState::DIVISION_BY_ZERO,
    ];
    !ends && codes.contains(error.code())
}

/// The remedy, as the last part of an error.
pub(crate) const REMEDY: &str = "a pooler between Tasklane and PostgreSQL loses prepared statements. Use PgBouncer with \
                                 pool_mode = session, or PgBouncer 1.21 or later with max_prepared_statements = 200, or \
                                 connect to PostgreSQL itself";
