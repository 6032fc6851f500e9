//! The schema, version by version. SQLite's `user_version` names the version of a file; each step is one
//! transaction. A released step is never changed: add another. `schema.sql` shows the result of all of them.

use rusqlite::Connection;
use tasklane_ports::StoreError;

use crate::error::{Failure, read_failed};

/// Step `n` leads from version `n` to `n + 1`.
const STEPS: &[&str] = &[
    include_str!("../migrations/0001_tasks.sql"),
    include_str!("../migrations/0002_unique_keys.sql"),
    include_str!("../migrations/0003_documents.sql"),
];

/// In the file's header: the bytes of "Lane". So no other program's file is mistaken for Tasklane's.
const APPLICATION_ID: i32 = i32::from_be_bytes(*b"Lane");

/// Brings a file to the newest version. Refuses a file that is newer still, or belongs to another program,
/// without touching it.
pub(crate) fn migrate(conn: &Connection) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| read_failed(&error.into());
    let found = version(conn)?;
    let newest = STEPS.len();
    if found > newest {
        return Err(StoreError::Refused {
            reason: format!(
                "its schema is version {found} and this Tasklane knows versions up to {newest}: it was written by \
                 a newer Tasklane. Run that one, or restore a copy of the file from before the upgrade"
            ),
        });
    }
    if found == 0 {
        // Before the first table, so that free pages can be given back to the disk.
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(failed)?;
    }
    for (at, step) in STEPS.iter().enumerate().skip(found) {
        let next = at + 1;
        let sql = format!(
            "BEGIN IMMEDIATE; {step} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {next}; COMMIT;"
        );
        conn.execute_batch(&sql).map_err(|error| {
            // Ends the transaction where SQLite has not done so itself; the first error is the one to report.
            let _ = conn.execute_batch("ROLLBACK");
            failed(error)
        })?;
    }
    Ok(())
}

/// The version of a file; 0 for an empty one.
fn version(conn: &Connection) -> Result<usize, StoreError> {
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let read = || -> rusqlite::Result<(i64, i64, i64)> {
        Ok((
            number("PRAGMA application_id")?,
            number("PRAGMA user_version")?,
            number("SELECT count(*) FROM sqlite_schema")?,
        ))
    };
    let (application, version, objects) = read().map_err(|error| match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::NotADatabase) => not_ours(),
        _ => read_failed(&Failure::from(error)),
    })?;
    let ours = application == i64::from(APPLICATION_ID);
    let empty = application == 0 && version == 0 && objects == 0;
    if !ours && !empty {
        return Err(not_ours());
    }
    usize::try_from(version).map_err(|_| not_ours())
}

fn not_ours() -> StoreError {
    StoreError::Refused {
        reason: "the file is not a Tasklane database. Give a path where there is no file yet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(conn: &Connection) -> String {
        let mut statement = conn
            .prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type DESC, name")
            .unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.map(|sql| sql.unwrap() + ";\n\n").collect::<String>().trim_end().to_owned() + "\n"
    }

    fn reason(error: StoreError) -> String {
        match error {
            StoreError::Refused { reason } => reason,
            other => panic!("not refused: {other}"),
        }
    }

    #[test]
    fn schema_after_all_steps_is_the_committed_one() {
        let conn = Connection::open_in_memory().unwrap();
        migrate(&conn).unwrap();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
        let head = "-- The schema after all migrations. Written by a test: \
                    run it with TASKLANE_BLESS=1 after adding a step.\n\n";
        let found = format!("{head}{}", dump(&conn));
        if std::env::var_os("TASKLANE_BLESS").is_some() {
            std::fs::write(file, &found).unwrap();
        }
        let committed = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            committed == found,
            "schema.sql differs: run this test with TASKLANE_BLESS=1 and look at the diff"
        );
    }

    #[test]
    fn every_version_leads_to_the_newest() {
        for start in 0..=STEPS.len() {
            let conn = Connection::open_in_memory().unwrap();
            for step in &STEPS[..start] {
                conn.execute_batch(step).unwrap();
            }
            if start > 0 {
                conn.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
            }
            conn.pragma_update(None, "user_version", i64::try_from(start).unwrap()).unwrap();
            migrate(&conn).unwrap();
            let fresh = Connection::open_in_memory().unwrap();
            migrate(&fresh).unwrap();
            assert_eq!(dump(&conn), dump(&fresh), "from version {start}");
            assert_eq!(version(&conn).unwrap(), STEPS.len());
        }
    }

    #[test]
    fn newer_schema_is_refused_and_says_what_to_do() {
        let conn = Connection::open_in_memory().unwrap();
        migrate(&conn).unwrap();
        conn.pragma_update(None, "user_version", 999).unwrap();
        let reason = reason(migrate(&conn).unwrap_err());
        assert!(
            reason.contains("version 999") && reason.contains("newer Tasklane. Run that one"),
            "{reason}"
        );
    }

    #[test]
    fn file_of_another_program_is_refused() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(reason(migrate(&conn).unwrap_err()).contains("not a Tasklane database"));
        assert_eq!(dump(&conn), "CREATE TABLE theirs (x);\n");
    }
}
