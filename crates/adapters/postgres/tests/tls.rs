//! Encrypted connections, to a server that can prove who it is.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::PostgresServer;
use tasklane_ports::StoreError;
use tasklane_ports::conformance::fixture::{create, tasks};
use tasklane_ports::conformance::run;
use tasklane_postgres::PostgresStore;

/// Makes an authority and a certificate of it for a server on this machine.
fn certify(folder: &Path) {
    let openssl = |args: &str| {
        let made =
            Command::new("openssl").args(args.split_whitespace()).current_dir(folder).output().unwrap();
        assert!(made.status.success(), "{args}: {}", String::from_utf8_lossy(&made.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority"));
    openssl(&format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"));
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -extfile names -out server.pem",
    );
}

#[test]
fn a_server_that_proves_who_it_is_is_talked_to_in_secret() {
    run("tls", async {
        let certs = tempfile::tempdir().unwrap();
        certify(certs.path());
        let mut server = PostgresServer::start()?;
        server.give("server.pem", &fs::read(certs.path().join("server.pem")).unwrap());
        server.give("server.key", &fs::read(certs.path().join("server.key")).unwrap());
        server.shut_down();
        server.set(&["fsync=off", "ssl=on", "ssl_cert_file=../server.pem", "ssl_key_file=../server.key"]);
        server.start_again();

        let options = support::fresh_options();
        let trusting = certs.path().join("ca.pem").display().to_string();
        let url = format!("{}?sslmode=require&sslrootcert={trusting}", server.url());
        let store = support::connect(&url, &options).await;
        create(&store, tasks(0..10)).await;
        let encrypted = "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
                         WHERE a.application_name = 'tasklane'";
        assert_eq!(server.sql(encrypted), "t");

        // Somebody whom nobody vouches for, and somebody whose name is another.
        for url in [format!("{}?sslmode=require", server.url()), url.replace("127.0.0.1", "localhost")] {
            let error = PostgresStore::connect(&url, &options).await.unwrap_err();
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
            assert!(error.to_string().contains("certificate"), "{error}");
        }
        Some(())
    });
}
