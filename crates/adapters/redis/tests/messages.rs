//! The bus when servers and connections fail: hints may be lost, subscriptions are not.

mod support;

use std::time::{Duration, Instant};

use support::{Cluster, Mode, Proxy, RedisServer};
use tasklane_core::id::{AttemptNo, LaneId, SessionId, TaskId};
use tasklane_core::message::{AttemptId, Message, Report, ToLane, WorkerBatch};
use tasklane_ports::conformance::run;
use tasklane_ports::{Address, Bus, BusError, Subscription};
use tasklane_redis::{RedisBus, RedisOptions};

const TO_LANE: Address = Address::Lane(LaneId(7));

async fn connect(url: &str, options: &RedisOptions) -> RedisBus {
    RedisBus::connect(url, options).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn hint(lane: u16) -> Message {
    Message::Hint { lane: LaneId(lane) }
}

/// Publishes until the message arrives.
async fn deliver(bus: &RedisBus, to: Address, message: Message, subscription: &mut Box<dyn Subscription>) {
    for _ in 0..200 {
        let _ = bus.publish(to, vec![message.clone()]).await;
        while let Ok(came) = tokio::time::timeout(Duration::from_millis(200), subscription.receive()).await {
            if came.expect("the bus is open").contains(&message) {
                return;
            }
        }
    }
    panic!("{message:?} did not come through");
}

#[test]
fn subscriptions_outlive_the_server() {
    run("restart", async {
        let mut server = RedisServer::start()?;
        let options = support::fresh_options();
        let (here, there) = (connect(&server.url(), &options).await, connect(&server.url(), &options).await);
        let addresses = [TO_LANE, Address::Session(SessionId::from_random(1)), Address::Events];
        let mut subscriptions = Vec::new();
        for address in addresses {
            subscriptions.push(there.subscribe(address).await.unwrap());
        }
        for round in 0..3 {
            for (address, subscription) in addresses.into_iter().zip(&mut subscriptions) {
                deliver(&here, address, hint(round), subscription).await;
            }
            server.kill();
            // Publishing continues without waiting, and reports the failure sooner or later.
            let mut failed = false;
            while !failed {
                let published =
                    tokio::time::timeout(Duration::from_secs(1), here.publish(TO_LANE, vec![hint(9)]));
                let published = published.await.expect("publishing does not wait");
                failed = matches!(published, Err(BusError::Unavailable { .. }));
                tokio::task::yield_now().await;
            }
            server.start_again();
        }
        deliver(&here, TO_LANE, hint(10), &mut subscriptions[0]).await;
        here.publish(TO_LANE, vec![hint(11)]).await.unwrap();
        Some(())
    });
}

#[test]
fn a_subscriber_that_was_cut_off_comes_back() {
    run("slow subscriber", async {
        let server = RedisServer::start()?;
        server.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 1mb 1"]);
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let here = connect(&server.url(), &options).await;
        let slow = connect(&proxy.url(), &options).await;
        let mut subscription = slow.subscribe(TO_LANE).await.unwrap();
        deliver(&here, TO_LANE, hint(1), &mut subscription).await;
        proxy.set(Mode::HoldAnswers);
        let batch: Vec<_> = (0..10_000).map(hint).collect();
        while server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).contains("cmd=") {
            here.publish(TO_LANE, batch.clone()).await.unwrap();
            tokio::task::yield_now().await;
        }
        proxy.set(Mode::Pass);
        deliver(&here, TO_LANE, hint(20_000), &mut subscription).await;
        Some(())
    });
}

#[test]
fn a_connection_that_is_silent_is_asked() {
    run("silent connection", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = RedisOptions { response_timeout: Duration::from_secs(1), ..support::fresh_options() };
        let here = connect(&server.url(), &options).await;
        let there = connect(&proxy.url(), &options).await;
        let mut subscription = there.subscribe(TO_LANE).await.unwrap();
        deliver(&here, TO_LANE, hint(1), &mut subscription).await;
        // No byte passes that connection any more, and neither side closes it. New connections pass.
        proxy.silence();
        deliver(&here, TO_LANE, hint(2), &mut subscription).await;
        Some(())
    });
}

#[test]
fn all_subscriptions_share_a_connection_that_goes_with_the_last() {
    run("connections", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let bus = connect(&server.url(), &options).await;
        let mut subscriptions = Vec::new();
        for lane in 0..50 {
            subscriptions.push(bus.subscribe(Address::Lane(LaneId(lane))).await.unwrap());
        }
        let subscribers = || server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).matches("cmd=").count();
        assert_eq!(subscribers(), 1);
        let numsub = || server.command(&["PUBSUB", "CHANNELS"]);
        subscriptions.truncate(1);
        while !numsub().starts_with("*1\r\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The bus itself may go before its subscriptions.
        let other = connect(&server.url(), &options).await;
        drop(bus);
        deliver(&other, Address::Lane(LaneId(0)), hint(1), &mut subscriptions[0]).await;
        drop(subscriptions);
        while subscribers() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Some(())
    });
}

#[test]
fn closing_ends_subscriptions_after_what_waits() {
    run("closing", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let bus = connect(&server.url(), &options).await;
        let other = connect(&server.url(), &options).await;
        let mut subscription = bus.subscribe(TO_LANE).await.unwrap();
        let mut elsewhere = other.subscribe(TO_LANE).await.unwrap();
        deliver(&bus, TO_LANE, hint(1), &mut subscription).await;
        bus.publish(TO_LANE, vec![hint(2)]).await.unwrap();
        bus.close();
        assert!(matches!(bus.publish(TO_LANE, vec![hint(3)]).await, Err(BusError::Closed)));
        assert!(matches!(bus.subscribe(TO_LANE).await, Err(BusError::Closed)));
        // The queued messages were sent.
        while !elsewhere.receive().await.unwrap().contains(&hint(2)) {}
        while subscription.receive().await.is_some() {}
        Some(())
    });
}

#[test]
fn subscriptions_in_a_cluster_follow_their_slots() {
    run("moving slot", async {
        let mut cluster = Cluster::start()?;
        let options = support::fresh_options();
        let (here, there) =
            (connect(&cluster.url(), &options).await, connect(&cluster.url(), &options).await);
        let mut subscription = there.subscribe(TO_LANE).await.unwrap();
        let mut events = there.subscribe(Address::Events).await.unwrap();
        deliver(&here, TO_LANE, hint(1), &mut subscription).await;
        let slot = cluster.nodes[0].slot_of(&format!("{{{}:7}}", options.prefix));
        let from = Cluster::first_owner_of(slot);
        let to = (from + 1) % 3;
        cluster.begin_move(slot, from, to);
        cluster.end_move(slot, to);
        deliver(&here, TO_LANE, hint(2), &mut subscription).await;
        deliver(&here, Address::Events, hint(3), &mut events).await;
        // A node that other connections need dies and comes back.
        cluster.nodes[to].kill();
        cluster.nodes[to].start_again();
        deliver(&here, TO_LANE, hint(4), &mut subscription).await;
        deliver(&here, Address::Events, hint(5), &mut events).await;
        Some(())
    });
}

/// Prints how much the bus carries from one process to another, and how fast, for comparison.
#[test]
#[ignore = "measures"]
fn how_much_it_carries() {
    const MESSAGES: usize = 1_000_000;
    const ALONE: usize = 2_000;
    run("throughput", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let (here, there) = (connect(&server.url(), &options).await, connect(&server.url(), &options).await);
        let said = |lane: u16, number: usize| {
            let attempt = AttemptId { task: TaskId::from_random(number as u128), number: AttemptNo(1) };
            let report = Report::HandedBack { reason: "x".repeat(200) };
            let messages = vec![ToLane::Report { attempt, report }];
            Message::ToLane(WorkerBatch { lane: LaneId(lane), session: SessionId::from_random(1), messages })
        };
        let mut subscriptions = Vec::new();
        for lane in 0..4 {
            let mut subscription = there.subscribe(Address::Lane(LaneId(lane))).await.unwrap();
            subscriptions.push(tokio::spawn(async move {
                let (mut parts, mut last) = (0, Instant::now());
                while let Ok(Some(came)) =
                    tokio::time::timeout(Duration::from_secs(2), subscription.receive()).await
                {
                    parts += came.iter().map(Message::parts).sum::<usize>();
                    last = Instant::now();
                }
                (parts, last)
            }));
        }
        let started = Instant::now();
        for number in 0..MESSAGES {
            let lane = u16::try_from(number % 4).unwrap();
            here.publish_now(Address::Lane(LaneId(lane)), said(lane, number));
            if number % 1_000 == 0 {
                // As busy as a scheduler that waits for its commits.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let (mut parts, mut ended) = (0, started);
        for subscription in subscriptions {
            let (came, at) = subscription.await.unwrap();
            (parts, ended) = (parts + came, ended.max(at));
        }
        println!("{parts} of {MESSAGES} messages came in {:?}", ended - started);

        let mut subscription = there.subscribe(Address::Events).await.unwrap();
        let mut times = Vec::new();
        for number in 0..ALONE {
            let sent = Instant::now();
            here.publish(Address::Events, vec![said(0, number)]).await.unwrap();
            subscription.receive().await.unwrap();
            times.push(sent.elapsed());
        }
        times.sort();
        println!("one alone takes {:?} (p50), {:?} (p99)", times[ALONE / 2], times[ALONE * 99 / 100]);
        Some(())
    });
}
