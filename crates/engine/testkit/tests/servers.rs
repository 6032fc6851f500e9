//! Each starter brings up real servers, which survive a `kill -9` by a restart and leave nothing behind.

use tasklane_testkit::sentinel::SentinelOptions;
use tasklane_testkit::{Authority, RedisCluster, RedisSentinel, RedisServer};

#[test]
fn a_redis_is_killed_restarted_and_removed() {
    let Some(mut server) = RedisServer::start() else { return };
    let (url, folder) = (server.url(), server.daemon().folder().to_owned());
    server.expect_ok(&["SET", "key", "value"]);
    server.kill();
    server.restart();
    assert_eq!((server.url(), server.command(&["GET", "key"])), (url, "$-1\r\n".to_owned()));
    server.pause();
    server.resume();
    assert_eq!(server.command(&["PING"]), "+PONG\r\n");
    let pid = server.daemon().pid();
    drop(server);
    assert!(!folder.exists() && !std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn a_paused_redis_is_removed_as_well() {
    let Some(server) = RedisServer::start() else { return };
    let folder = server.daemon().folder().to_owned();
    server.pause();
    drop(server);
    assert!(!folder.exists());
}

#[test]
fn redis_speaks_tls_with_a_certificate_of_a_private_authority() {
    let Some(authority) = Authority::new() else { return };
    let Some(server) = RedisServer::start_tls(&authority, false, &[]) else { return };
    let asked = std::process::Command::new("openssl")
        .args(["s_client", "-verify_return_error", "-brief", "-CAfile"])
        .arg(authority.ca())
        .arg("-connect")
        .arg(format!("127.0.0.1:{}", server.port()))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{asked:?}");
}

#[test]
fn sentinels_replace_a_primary_that_is_killed() {
    let Some(authority) = Authority::new() else { return };
    let options = SentinelOptions {
        authority: Some(&authority),
        password: Some("server-secret"),
        sentinel_password: Some("sentinel-secret"),
    };
    let Some(mut set) = RedisSentinel::start_with(options) else { return };
    let primary = set.primary();
    set.servers[primary].kill();
    let next = set.wait_for_other_primary(primary);
    assert_ne!(next, primary);
    set.servers[primary].restart();
}

#[test]
fn a_cluster_serves_all_slots() {
    let Some(authority) = Authority::new() else { return };
    let Some(cluster) = RedisCluster::start_tls(&authority) else { return };
    assert!(cluster.nodes[0].command(&["CLUSTER", "INFO"]).contains("cluster_slots_ok:16384"));
}
