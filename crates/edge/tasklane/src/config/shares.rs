//! How the connections of a process to `PostgreSQL` are shared out.

use tasklane_postgres::{PostgresArchive, PostgresStore};

use super::tree::Config;

/// A connection that listens, and three for calls.
const COORDINATOR: usize = 4;
/// Connections of a worker's store: it writes output, and reads little.
const STORE_OF_WORKER: usize = 4;

/// Connections for each role. A role that another system plays has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) store: usize,
    pub(crate) store_of_worker: usize,
    pub(crate) coordinator: usize,
    pub(crate) archive: usize,
}

impl Shares {
    /// The coordinator and the archive have fixed shares, and the store has the rest.
    pub(crate) fn of(config: &Config) -> Result<Self, String> {
        let if_postgres = |is: bool, connections| if is { connections } else { 0 };
        let stores = config.store_url().scheme() == "postgres";
        let archives = config.archive.as_ref().is_some_and(|archive| archive.scheme() == "postgres");
        let coordinator = if_postgres(config.coordinator_url().scheme() == "postgres", COORDINATOR);
        let archive = if_postgres(archives, PostgresArchive::CONNECTIONS_MIN);
        let store_min = if_postgres(stores, PostgresStore::CONNECTIONS_MIN);
        let (given, min) = (config.postgres_connections, store_min + coordinator + archive);
        if given < min {
            let for_archive =
                if archive > 0 { format!(", {archive} for the archive") } else { String::new() };
            return Err(format!(
                "{given} is too few: at least {min}, which is {store_min} for the store, {coordinator} for the \
                 coordinator{for_archive}"
            ));
        }
        let store = if_postgres(stores, given - coordinator - archive);
        Ok(Self { store, store_of_worker: store.min(STORE_OF_WORKER), coordinator, archive })
    }
}

#[cfg(test)]
mod tests {
    use super::super::AdapterUrl;
    use super::*;

    fn config(connections: usize, archive: bool) -> Config {
        let url = || AdapterUrl::new("postgres://h/d");
        Config {
            store: Some(url()),
            archive: archive.then(url),
            postgres_connections: connections,
            ..Config::default()
        }
    }

    #[test]
    fn the_roles_together_have_as_many_connections_as_are_given() {
        for (connections, archive) in [(16, false), (16, true), (8, false), (10, true), (100, true)] {
            let shares = Shares::of(&config(connections, archive)).unwrap();
            assert_eq!(shares.store + shares.coordinator + shares.archive, connections);
            assert!(shares.store_of_worker + shares.coordinator <= 8);
        }
    }

    #[test]
    fn too_few_connections_are_refused() {
        assert!(Shares::of(&config(7, false)).unwrap_err().contains("at least 8"));
        assert!(Shares::of(&config(9, true)).unwrap_err().contains("2 for the archive"));
        let elsewhere = Config { postgres_connections: 0, ..Config::default() };
        assert_eq!(Shares::of(&elsewhere).unwrap().store, 0);
    }
}
