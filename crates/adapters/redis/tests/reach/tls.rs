//! Encrypted connections, with certificates of a private authority.

use std::sync::OnceLock;
use std::time::Duration;

use tasklane_ports::conformance::run;
use tasklane_redis::{RedisOptions, RedisStore};
use tasklane_testkit::redis::IN_MEMORY;
use tasklane_testkit::{Authority, RedisCluster, RedisServer};

use super::super::{RedisBusEnv, RedisEnv};
use super::{everything_works, refused, support};

#[test]
fn everything_works_over_tls() {
    run("tls", async {
        let authority = Authority::new()?;
        let server = RedisServer::start_tls(&authority, false, IN_MEMORY)?;
        let options = support::fresh_options();
        everything_works(&server.url(), &options, |command| _ = server.command(command)).await;
        // Every connection of the adapter has ended at the encrypted port, where a plain one cannot speak.
        everything_works(
            &server.url().replace("rediss://", "valkeys://"),
            &support::fresh_options(),
            |command| {
                _ = server.command(command);
            },
        )
        .await;
        Some(())
    });
}

#[test]
fn a_certificate_that_is_not_trusted_is_refused_with_the_remedy() {
    run("untrusted", async {
        let (authority, other) = (Authority::new()?, Authority::new()?);
        let server = RedisServer::start_tls(&authority, false, IN_MEMORY)?;
        let address = format!("rediss://127.0.0.1:{}", server.port());
        let trusting = |authority: &Authority| format!("{address}?sslrootcert={}", authority.ca().display());
        refused(&trusting(&other), &["127.0.0.1", "certificate", "sslrootcert="]).await;
        refused(
            &format!("{address}?sslmode=verify-ca&sslrootcert={}", other.ca().display()),
            &["sslrootcert="],
        )
        .await;
        support::connect(&trusting(&authority), &support::fresh_options()).await;
        support::connect(&format!("{address}?sslmode=require"), &support::fresh_options()).await;

        let elsewhere = RedisServer::start_tls_named(&authority, &["DNS:elsewhere"])?;
        refused(&elsewhere.url(), &["127.0.0.1", "sslmode=verify-ca"]).await;
        let url = format!("{}&sslmode=verify-ca", elsewhere.url());
        support::connect(&url, &support::fresh_options()).await;
        Some(())
    });
}

#[test]
fn a_server_that_wants_certificates_gets_one() {
    run("client certificates", async {
        let authority = Authority::new()?;
        let server = RedisServer::start_tls(&authority, true, IN_MEMORY)?;
        refused(&server.url(), &["sslcert=", "sslkey="]).await;
        let client = authority.client("tasklane");
        let (cert, key) = (client.cert.display(), client.key.display());
        let url = format!("{}&sslcert={cert}&sslkey={key}", server.url());
        support::connect(&url, &support::fresh_options()).await;
        Some(())
    });
}

#[test]
fn a_plain_port_is_not_taken_for_an_encrypted_one() {
    run("plain port", async {
        let server = RedisServer::start()?;
        let url = format!("rediss://127.0.0.1:{}?sslmode=require", server.port());
        let options = RedisOptions { connect_timeout: Duration::from_secs(1), ..support::fresh_options() };
        let error = RedisStore::connect(&url, &options).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("TLS port"), "{error}");
        refused(&format!("{}?colour=red", server.url()), &["colour"]).await;
        Some(())
    });
}

/// A cluster whose nodes encrypt.
mod cluster {
    use super::*;

    async fn env() -> Option<RedisEnv> {
        static AUTHORITY: OnceLock<Option<Authority>> = OnceLock::new();
        static CLUSTER: OnceLock<Option<RedisCluster>> = OnceLock::new();
        let authority = AUTHORITY.get_or_init(Authority::new).as_ref()?;
        let cluster = CLUSTER.get_or_init(|| RedisCluster::start_tls(authority)).as_ref()?;
        Some(RedisEnv::open(cluster.url(), Vec::new()).await)
    }

    async fn bus_env() -> Option<RedisBusEnv> {
        Some(RedisBusEnv::open(env().await?.url).await)
    }

    tasklane_ports::logs_conformance!(env);
    tasklane_ports::documents_conformance!(env);
    tasklane_ports::bus_conformance!(bus_env);
}

#[test]
fn a_server_without_a_cluster_is_no_cluster() {
    run("no cluster", async {
        let server = RedisServer::start()?;
        let url = server.url().replace("redis://", "redis+cluster://");
        refused(&url, &["no node of a cluster", "redis://"]).await;
        Some(())
    });
}

#[test]
fn valkey_is_used_as_redis() {
    run("valkey", async {
        // The scheme works with any server; a Valkey itself is tried where there is one.
        let server = RedisServer::start()?;
        let url = server.url().replace("redis://", "valkey://");
        support::connect(&url, &support::fresh_options()).await;
        let valkey = RedisServer::start_valkey()?;
        let url = valkey.url().replace("redis://", "valkey://");
        everything_works(&url, &support::fresh_options(), |command| _ = valkey.command(command)).await;
        Some(())
    });
}
