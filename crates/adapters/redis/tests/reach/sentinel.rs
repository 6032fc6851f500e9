//! A primary that sentinels replace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tasklane_core::id::LaneId;
use tasklane_core::message::Message;
use tasklane_core::status::Status::{Dispatched, Scheduled};
use tasklane_ports::conformance::fixture::{APPLIED, LANE, Owner, changing, create, state, tasks};
use tasklane_ports::conformance::run;
use tasklane_ports::{Address, Bus, Store};
use tasklane_redis::{RedisBus, RedisOptions};
use tasklane_testkit::sentinel::{PRIMARY, SentinelOptions};
use tasklane_testkit::{Authority, RedisSentinel, RedisServer};

use super::{everything_works, refused, support};

/// A lane commits while its primary dies: the same commit is sent until a primary takes it, and nothing that
/// both servers had is lost.
#[test]
fn a_lane_commits_on_when_the_sentinels_replace_the_primary() {
    run("sentinel failover", async {
        let mut set = RedisSentinel::start()?;
        let options = RedisOptions { response_timeout: Duration::from_secs(1), ..support::fresh_options() };
        let redis = support::connect(&set.url(), &options).await;
        assert!(redis.warnings().iter().any(|warning| warning.contains("failover")), "{redis:?}");
        let store: Arc<dyn Store> = Arc::new(redis);
        let bus = RedisBus::connect(&set.url(), &options).await.expect("the bus is there");
        let to = Address::Lane(LaneId(7));
        let mut subscription = bus.subscribe(to).await.expect("the bus is there");
        let new = tasks(0..10);
        create(&*store, new.clone()).await;
        let mut owner = Owner::claim(&store, LANE).await;
        owner.advance(new[0].id, &[Scheduled]).await;
        let primary = set.primary();
        assert_eq!(set.servers[primary].command(&["WAIT", "1", "4000"]), ":1\r\n");

        set.servers[primary].kill();
        let next = owner.next([changing(new[1].id, &new[1].state(), &[Scheduled])]);
        let started = Instant::now();
        let mut refusals = 0;
        let outcomes = loop {
            match owner.send(&next).await {
                Ok(outcomes) => break outcomes,
                Err(error) => {
                    refusals += 1;
                    assert!(error.is_retryable(), "{error}");
                    assert!(started.elapsed() < Duration::from_mins(1), "{error}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        assert_eq!((outcomes.as_slice(), refusals > 0), (&[APPLIED][..], true));
        assert_ne!(set.primary(), primary);
        assert_eq!(state(&*store, new[0].id).await.status, Scheduled);
        assert_eq!(store.lane_head(LANE).await.expect("the store is there").commit, next.number);

        // Subscriptions follow too: a message that is published until it arrives does arrive.
        let hint = Message::Hint { lane: LaneId(7) };
        let arrived = async {
            loop {
                let _ = bus.publish(to, vec![hint.clone()]).await;
                let came = tokio::time::timeout(Duration::from_millis(200), subscription.receive()).await;
                if came.is_ok_and(|came| came.expect("the bus is open").contains(&hint)) {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_mins(1), arrived).await.expect("the message arrives");

        // The old primary comes back as a replica, and the new one goes on.
        set.servers[primary].restart();
        let scheduled = state(&*store, new[1].id).await;
        assert_eq!(owner.commit([changing(new[1].id, &scheduled, &[Dispatched])]).await, [APPLIED]);

        // A dead sentinel is skipped.
        set.sentinels[0].kill();
        support::connect(&set.url(), &options).await;
        Some(())
    });
}

#[test]
fn sentinels_encrypt_and_have_a_password_of_their_own() {
    run("sentinel tls", async {
        let authority = Authority::new()?;
        let set = RedisSentinel::start_with(SentinelOptions {
            authority: Some(&authority),
            password: Some("server-secret"),
            sentinel_password: Some("sentinel-secret"),
        })?;
        let primary = &set.servers[set.primary()];
        let options = support::fresh_options();
        everything_works(&set.url(), &options, |command| _ = primary.command(command)).await;
        refused(&set.url().replace("sentinel-secret", "wrong"), &["uthentication"]).await;
        Some(())
    });
}

#[test]
fn what_is_no_sentinel_and_no_primary_is_refused() {
    run("no sentinel", async {
        let set = RedisSentinel::start()?;
        refused(&set.url().replace(PRIMARY, "other"), &["other", "sentinel monitor"]).await;
        refused(&format!("redis://{}", set.hosts().split(',').next()?), &["redis+sentinel://"]).await;
        let server = RedisServer::start()?;
        let url = format!("redis+sentinel://127.0.0.1:{}/{PRIMARY}", server.port());
        refused(&url, &["no sentinel", "redis://"]).await;
        Some(())
    });
}
