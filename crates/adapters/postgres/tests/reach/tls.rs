//! Encrypted connections, to a server that can prove who it is, and by a client that can.

use std::time::Duration;

use tasklane_core::member::Role;
use tasklane_ports::conformance::fixture::{create, session_id, tasks};
use tasklane_ports::conformance::run;
use tasklane_ports::{Archive, Coordinator, OpenSession, StoreError};
use tasklane_postgres::{PostgresArchive, PostgresCoordinator, PostgresStore};
use tasklane_testkit::Authority;

use crate::support::{self, PostgresServer};

/// Whether all connections of these tests are encrypted, and whether there are any.
fn encrypted(server: &PostgresServer) -> String {
    server.sql(
        "SELECT count(*) > 0, bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
         WHERE a.application_name = 'tasklane'",
    )
}

async fn error_of(url: &str) -> StoreError {
    PostgresStore::connect(url, &support::fresh_options()).await.unwrap_err()
}

/// An authority that knows nothing of the server, as its file.
fn stranger() -> (Authority, String) {
    let authority = Authority::new().unwrap();
    let file = authority.ca().display().to_string();
    (authority, file)
}

#[test]
fn tls_is_used_where_the_server_offers_it() {
    run("tls by default", async {
        let authority = Authority::new()?;
        let server = PostgresServer::start_tls(&authority, &authority.local_server())?;
        for url in [server.url(), format!("{}?sslmode=prefer", server.url())] {
            let store = support::connect(&url, &support::fresh_options()).await;
            create(&store, tasks(0..10)).await;
            assert_eq!(encrypted(&server), "t|t", "{url}");
        }
        // The server takes no encrypted connections from now on, though it still offers them.
        server.admit(&["hostnossl all all 127.0.0.1/32 trust"]);
        let store = support::connect(&server.url(), &support::fresh_options()).await;
        create(&store, tasks(0..10)).await;
        Some(())
    });
}

#[test]
fn tls_that_is_not_offered_is_done_without_unless_it_is_required() {
    run("no tls", async {
        let server = PostgresServer::start()?;
        let store = support::connect(&server.url(), &support::fresh_options()).await;
        create(&store, tasks(0..10)).await;
        assert_eq!(encrypted(&server), "t|f");
        for mode in ["require", "verify-ca", "verify-full"] {
            let error = error_of(&format!("{}?sslmode={mode}", server.url())).await.to_string();
            assert!(error.contains("ssl = on") && error.contains("sslmode=prefer"), "{error}");
        }
        Some(())
    });
}

#[test]
fn a_server_that_proves_who_it_is_is_talked_to_in_secret() {
    run("tls", async {
        let authority = Authority::new()?;
        let server = PostgresServer::start_tls(&authority, &authority.server(&["IP:127.0.0.1"]))?;
        let options = support::fresh_options();
        let (_stranger, unknown) = stranger();
        let url = |mode: &str, root: &str| format!("{}?sslmode={mode}&sslrootcert={root}", server.url());
        let known = authority.ca().display().to_string();
        let accepted = [
            url("verify-full", &known),
            // The name is not checked.
            url("verify-ca", &known).replace("127.0.0.1", "localhost"),
            url("require", &known).replace("127.0.0.1", "localhost"),
            // The certificate is not checked.
            format!("{}?sslmode=require", server.url()),
        ];
        for url in accepted {
            let store = support::connect(&url, &support::fresh_options()).await;
            create(&store, tasks(0..10)).await;
            assert_eq!(encrypted(&server), "t|t", "{url}");
        }
        // An authority that has not signed the certificate, and a name that is not in it.
        let refused = [
            (url("verify-full", &unknown), "sslrootcert="),
            (url("verify-ca", &unknown), "sslrootcert="),
            (url("require", &unknown), "sslrootcert="),
            (format!("{}?sslmode=verify-full", server.url()), "sslrootcert="),
            (url("verify-full", &known).replace("127.0.0.1", "localhost"), "sslmode=verify-ca"),
        ];
        for (url, remedy) in refused {
            let error = PostgresStore::connect(&url, &options).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
            assert!(
                error.to_string().contains("certificate") && error.to_string().contains(remedy),
                "{error}"
            );
        }
        Some(())
    });
}

#[test]
fn a_server_that_asks_for_certificates_takes_every_connection_with_one_and_none_without() {
    run("client certificates", async {
        let authority = Authority::new()?;
        let server = PostgresServer::start_tls(&authority, &authority.local_server())?;
        server.admit(&["hostssl all all 127.0.0.1/32 cert"]);
        let with = |client: &tasklane_testkit::Certificate| {
            let (cert, key) = (client.cert.display(), client.key.display());
            let root = authority.ca();
            format!(
                "{}?sslmode=verify-full&sslrootcert={}&sslcert={cert}&sslkey={key}",
                server.url(),
                root.display()
            )
        };
        let url = with(&authority.client("tasklane"));
        let options = support::fresh_options();
        let store = support::connect(&url, &options).await;
        create(&store, tasks(0..10)).await;
        let archive = PostgresArchive::connect(&url, &options).await.unwrap();
        archive.put(&[]).await.unwrap();
        // The connection that listens is another one.
        let coordinator = PostgresCoordinator::connect(&url, &options).await.unwrap();
        let _watch = coordinator.watch().await.unwrap();
        let role = Role::Server { address: "here".to_owned(), bus: String::new() };
        let open = OpenSession { session: session_id(1), ttl: Duration::from_mins(1), role };
        coordinator.open(open).await.unwrap();
        assert_eq!(encrypted(&server), "t|t");
        let listening = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
        tasklane_testkit::wait_until("nothing listens", || server.sql(listening) == "t");

        let error = error_of(&format!("{}?sslmode=require", server.url())).await.to_string();
        assert!(error.contains("sslcert=") && error.contains("sslkey="), "{error}");
        // A certificate of another name, a certificate of an unknown authority, and a key that does not
        // match.
        let error = error_of(&with(&authority.client("somebody"))).await.to_string();
        assert!(error.contains("authentication failed"), "{error}");
        let (stranger, _) = stranger();
        let error = error_of(&with(&stranger.client("tasklane"))).await.to_string();
        assert!(error.contains("sslcert"), "{error}");
        let mixed = tasklane_testkit::Certificate {
            key: authority.client("tasklane").key,
            ..authority.client("tasklane")
        };
        let error = error_of(&with(&mixed)).await.to_string();
        assert!(error.contains("sslcert and sslkey"), "{error}");
        Some(())
    });
}
