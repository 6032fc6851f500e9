//! The ways to servers: encrypted, behind sentinels, by a name that moves, as a user with few rights.

mod hosts;
mod sentinel;
mod tls;

use std::sync::Arc;

use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::Role;
use tasklane_core::message::Message;
use tasklane_core::status::Status::Scheduled;
use tasklane_ports::conformance::fixture::{LANE, Owner, create, state, tasks};
use tasklane_ports::{Address, Bus, Coordinator, Intake, OpenSession, Store, StoreError};
use tasklane_redis::{RedisBus, RedisCoordinator, RedisIntake, RedisOptions, RedisStore};

use super::support;

/// The command of docs/cluster.md that makes a user for Tasklane.
pub(crate) fn documented_user() -> Vec<&'static str> {
    let docs = include_str!("../../../../../docs/cluster.md");
    let command = docs.lines().find(|line| line.starts_with("ACL SETUSER tasklane "));
    command.expect("the docs have the command").split_whitespace().collect()
}

/// Uses the store, the bus, the coordinator and the intake behind a URL. `produce` puts a message into the inbox.
async fn everything_works(url: &str, options: &RedisOptions, produce: impl FnOnce(&[&str])) {
    let store: Arc<dyn Store> = Arc::new(support::connect(url, options).await);
    let new = tasks(0..10);
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new[0].id, &[Scheduled]).await;
    assert_eq!(state(&*store, new[0].id).await.status, Scheduled);

    let bus = RedisBus::connect(url, options).await.expect("the bus is there");
    let lane = LaneId(7);
    let mut subscription = bus.subscribe(Address::Lane(lane)).await.expect("the bus is there");
    let hint = Message::Hint { lane };
    bus.publish(Address::Lane(lane), vec![hint.clone()]).await.expect("the bus is there");
    while !subscription.receive().await.expect("the bus is open").contains(&hint) {}

    let coordinator = RedisCoordinator::connect(url, options).await.expect("the coordinator is there");
    let session = SessionId::from_random(1);
    let role = Role::Server { address: "10.0.0.1:1".to_owned(), bus: String::new() };
    let opening = OpenSession { session, ttl: std::time::Duration::from_secs(5), role };
    let opened = coordinator.open(opening).await.expect("a session is opened");
    coordinator.close(&opened).await.expect("the session is closed");

    let intake = RedisIntake::connect(url, options, session).await.expect("the intake is there");
    let inbox = format!("{}:inbox", options.prefix);
    produce(&["LPUSH", &inbox, "body"]);
    let taken = intake.take(1).await.expect("the intake is there");
    assert_eq!(taken[0].body, b"body");
    intake.acknowledge(&[taken[0].id.clone()]).await.expect("the intake is there");
}

/// A store that must be refused, for a reason with all these words.
async fn refused(url: &str, words: &[&str]) {
    let error = RedisStore::connect(url, &support::fresh_options()).await.expect_err("a refusal");
    assert!(matches!(error, StoreError::Refused { .. }), "{url}: {error}");
    for word in words {
        assert!(error.to_string().contains(word), "{url}: {error}");
    }
}
