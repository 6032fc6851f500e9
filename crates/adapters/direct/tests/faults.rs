//! Faults between members: servers die, connections break or go silent, peers are too slow.

mod support;

use std::time::Duration;

use tasklane_core::id::{AttemptNo, LaneId, SessionId, TaskId};
use tasklane_core::message::{AttemptId, Message, Report, ToLane, WorkerBatch};
use tasklane_direct::{DirectBus, DirectOptions};
use tasklane_ports::{Address, Bus, BusError};

use support::{
    Other, Proxy, endpoint, get_through, hint, meet, patient, receive_until, role, say, server, server_with,
    to_lane, until, worker,
};

/// Options that notice a dead peer quickly.
fn watchful() -> DirectOptions {
    DirectOptions {
        keep_alive_interval: Duration::from_millis(200),
        keep_alive_timeout: Duration::from_millis(300),
        ..DirectOptions::default()
    }
}

/// Options that notice a dead peer late.
fn careless() -> DirectOptions {
    DirectOptions {
        keep_alive_interval: Duration::from_mins(10),
        keep_alive_timeout: Duration::from_mins(10),
        ..patient()
    }
}

/// A message of about this size.
fn large(number: u128, bytes: usize) -> Message {
    let attempt = AttemptId { task: TaskId::from_random(number), number: AttemptNo(1) };
    let report = ToLane::Report { attempt, report: Report::HandedBack { reason: "x".repeat(bytes) } };
    let session = SessionId::from_random(number);
    Message::ToLane(WorkerBatch { lane: LaneId(1), session, messages: vec![report] })
}

/// Without a kill no message is lost here. No message is ever repeated.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_dial_each_other_deliver_once() {
    let servers = [server().await, server().await, server().await];
    meet(&[&servers[0], &servers[1], &servers[2]], &[]).await;
    let mut subscriptions = Vec::new();
    for server in &servers {
        subscriptions.push(server.subscribe(Address::Events).await.unwrap());
    }
    let numbers = 0..1_000_u16;
    for number in numbers.clone() {
        servers[usize::from(number % 3)].publish(Address::Events, vec![hint(number)]).await.unwrap();
    }
    // One message of each server arrives last, so all earlier ones of it have arrived.
    for (number, server) in (2_000..).zip(&servers) {
        server.publish(Address::Events, vec![hint(number)]).await.unwrap();
    }
    for subscription in &mut subscriptions {
        let mut came = Vec::new();
        for last in 2_000..2_003 {
            if !came.contains(&hint(last)) {
                came.extend(receive_until(subscription, &hint(last)).await);
            }
        }
        for number in numbers.clone() {
            assert_eq!(came.iter().filter(|message| **message == hint(number)).count(), 1, "{number}");
        }
    }
}

/// `subscribe` returns after the peers' acknowledgements, so the very first message arrives.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_after_a_subscription_comes() {
    let (server, worker) = (server().await, worker().await);
    meet(&[&server], &[&worker]).await;
    for lane in 0..200 {
        let mut subscription = worker.subscribe(to_lane(lane)).await.unwrap();
        server.publish(to_lane(lane), vec![hint(lane)]).await.unwrap();
        assert_eq!(receive_until(&mut subscription, &hint(lane)).await, [hint(lane)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_message_at_once_comes_too() {
    let (server, worker) = (server().await, worker().await);
    meet(&[&server], &[&worker]).await;
    let mut subscription = worker.subscribe(to_lane(1)).await.unwrap();
    assert_eq!(server.publish_now(to_lane(1), hint(1)), None);
    assert_eq!(receive_until(&mut subscription, &hint(1)).await, [hint(1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_comes_although_its_publisher_leaves() {
    for dialler_leaves in [false, true] {
        let (server, worker) = (server().await, worker().await);
        meet(&[&server], &[&worker]).await;
        let (stays, leaves) = if dialler_leaves { (server, worker) } else { (worker, server) };
        let mut subscription = stays.subscribe(to_lane(1)).await.unwrap();
        let mut own = leaves.subscribe(to_lane(1)).await.unwrap();
        for number in 0..1_000 {
            leaves.publish(to_lane(1), vec![hint(number), large(number.into(), 1_000)]).await.unwrap();
        }
        leaves.close().await;
        let came = receive_until(&mut subscription, &large(999, 1_000)).await;
        assert_eq!(came.len(), 2_000);
        until(&stays, |now| now.connections == 0).await;
        let mut heard = 0;
        while let Some(messages) = own.receive().await {
            heard += messages.len();
        }
        assert_eq!(heard, 2_000);
        assert!(matches!(leaves.publish(to_lane(1), vec![hint(1)]).await, Err(BusError::Closed)));
        assert!(matches!(leaves.subscribe(to_lane(1)).await, Err(BusError::Closed)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_in_the_list_any_more_is_left() {
    let (first, second, worker) = (server().await, server().await, worker().await);
    worker.set_peers(vec![endpoint(&first), endpoint(&second)]);
    until(&worker, |now| now.peers == 2).await;
    worker.set_peers(vec![endpoint(&second)]);
    until(&worker, |now| now.peers == 1).await;
    until(&first, |now| now.peers == 0).await;
    worker.set_peers(vec![endpoint(&first)]);
    until(&first, |now| now.peers == 1).await;
    until(&second, |now| now.peers == 0).await;
}

/// A server recognises itself under every name in its list.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_not_talk_to_itself() {
    let (server, worker) = (server().await, worker().await);
    let own = endpoint(&server);
    let other_name = own.replace("127.0.0.1", "localhost");
    server.set_peers(vec![own.clone(), other_name, "nonsense".to_owned()]);
    let mut subscription = server.subscribe(to_lane(1)).await.unwrap();
    worker.set_peers(vec![own]);
    until(&server, |now| now.peers == 1).await;
    server.publish(to_lane(1), vec![hint(1), hint(2)]).await.unwrap();
    assert_eq!(receive_until(&mut subscription, &hint(2)).await, [hint(1), hint(2)]);
    assert_eq!(server.connected().borrow().connections, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_place_to_dial_is_refused() {
    let bind = Some("0.0.0.0:0".parse().unwrap());
    let options = DirectOptions { bind, ..DirectOptions::default() };
    let refused = DirectBus::listen(options.clone()).await;
    assert!(matches!(refused, Err(BusError::Unavailable { .. })), "{refused:?}");
    let advertise = Some("localhost".to_owned());
    let server = DirectBus::listen(DirectOptions { advertise, ..options }).await.unwrap();
    let worker = worker().await;
    worker.set_peers(vec![endpoint(&server)]);
    until(&worker, |now| now.peers == 1).await;
    let taken = endpoint(&server).split_once('/').unwrap().0.replace("localhost", "0.0.0.0");
    let options = DirectOptions { bind: Some(taken.parse().unwrap()), ..DirectOptions::default() };
    let refused = DirectBus::listen(options).await;
    assert!(matches!(refused, Err(BusError::Unavailable { .. })), "{refused:?}");
}

/// A process that merely reaches the port must not send commands to workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_without_the_secret_is_refused() {
    let server = server().await;
    let (place, secret) =
        endpoint(&server).split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let channel =
        tonic::transport::Channel::from_shared(format!("http://{place}")).unwrap().connect().await.unwrap();
    let ask = async |authorization: Option<String>| {
        let mut request = tonic::Request::new(futures::stream::pending::<()>());
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value.parse().unwrap());
        }
        let path = "/tasklane.direct.v1.Bus/Connect".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.unwrap();
        client.streaming(request, path, codec).await.map(drop).map_err(|status| status.code())
    };
    for wrong in [
        None,
        Some(String::new()),
        Some("Bearer ".to_owned()),
        Some(format!("Bearer {secret}0")),
        Some(secret.clone()),
    ] {
        assert_eq!(ask(wrong.clone()).await, Err(tonic::Code::Unauthenticated), "{wrong:?}");
    }
    assert_eq!(ask(Some(format!("Bearer {secret}"))).await, Ok(()));
}

/// A connection breaks. Both sides announce their subscriptions over the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_made_again() {
    let (server, worker) = (server().await, worker().await);
    let proxy = Proxy::start(&endpoint(&server)).await;
    worker.set_peers(vec![proxy.endpoint(&endpoint(&server))]);
    let mut to_worker = worker.subscribe(to_lane(1)).await.unwrap();
    let mut to_server = server.subscribe(to_lane(2)).await.unwrap();
    for number in 0..5 {
        get_through(&server, to_lane(1), &mut to_worker, &hint(number)).await;
        get_through(&worker, to_lane(2), &mut to_server, &hint(number)).await;
        proxy.cut();
    }
}

/// No byte passes, and neither side gets an error. Both sides notice, publishers are not held up meanwhile,
/// and messages pass again when the proxy lets them.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_given_up_and_made_again() {
    let server = server_with(watchful()).await;
    let worker = DirectBus::listen(watchful()).await.unwrap();
    let proxy = Proxy::start(&endpoint(&server)).await;
    worker.set_peers(vec![proxy.endpoint(&endpoint(&server))]);
    until(&worker, |now| now.peers == 1).await;
    let mut to_worker = worker.subscribe(to_lane(1)).await.unwrap();
    let mut to_server = server.subscribe(to_lane(2)).await.unwrap();
    proxy.hold();
    // The peer cannot acknowledge it; `subscribe` waits for a bounded time only.
    let _ear = worker.subscribe(to_lane(3)).await.unwrap();
    for number in 0..1_000 {
        worker.publish(to_lane(2), vec![large(number, 1_000)]).await.unwrap();
        server.publish(to_lane(1), vec![large(number, 1_000)]).await.unwrap();
    }
    until(&worker, |now| now.connections == 0).await;
    until(&server, |now| now.connections == 0).await;
    proxy.pass();
    get_through(&server, to_lane(1), &mut to_worker, &hint(1)).await;
    get_through(&worker, to_lane(2), &mut to_server, &hint(2)).await;
}

/// The worker knows that its connection is lost and has made another, while the server still believes in the
/// old one.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_connections_the_newest_is_used() {
    let server = server_with(careless()).await;
    let worker = DirectBus::listen(watchful()).await.unwrap();
    let proxy = Proxy::start(&endpoint(&server)).await;
    worker.set_peers(vec![proxy.endpoint(&endpoint(&server))]);
    let mut subscription = worker.subscribe(to_lane(1)).await.unwrap();
    get_through(&server, to_lane(1), &mut subscription, &hint(1)).await;
    proxy.hold_present();
    until(&server, |now| now.connections > 1).await;
    assert_eq!(server.connected().borrow().peers, 1);
    // On a slow machine the worker may give this connection up too, and dials again.
    get_through(&server, to_lane(1), &mut subscription, &hint(2)).await;
}

/// A peer that takes nothing loses messages. Other peers receive all of theirs, and publishers are not held
/// up.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_peer_slows_nobody_down() {
    let server = server_with(DirectOptions { peer_bytes_max: 1 << 20, ..careless() }).await;
    let (slow, quick) = (DirectBus::listen(careless()).await.unwrap(), worker().await);
    let proxy = Proxy::start(&endpoint(&server)).await;
    slow.set_peers(vec![proxy.endpoint(&endpoint(&server))]);
    quick.set_peers(vec![endpoint(&server)]);
    until(&server, |now| now.peers == 2).await;
    let mut slow_ear = slow.subscribe(Address::Events).await.unwrap();
    let mut quick_ear = quick.subscribe(Address::Events).await.unwrap();
    proxy.hold();
    // Far more than the buffers on the way hold.
    for number in 0..1_000 {
        server.publish(Address::Events, vec![large(number, 100_000)]).await.unwrap();
        let came = receive_until(&mut quick_ear, &large(number, 100_000)).await;
        assert_eq!(came.len(), 1);
    }
    assert!(server.counters().dropped_by_peers > 0);
    proxy.pass();
    get_through(&server, Address::Events, &mut slow_ear, &hint(1)).await;
    assert_eq!(slow.counters().dropped_by_subscribers, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_loses_the_oldest_and_they_are_counted() {
    let (server, worker) =
        (server().await, DirectBus::listen(DirectOptions { waiting_max: 100, ..patient() }).await.unwrap());
    meet(&[&server], &[&worker]).await;
    let mut slow = worker.subscribe(to_lane(1)).await.unwrap();
    let mut other = worker.subscribe(to_lane(2)).await.unwrap();
    for number in 0..1_000 {
        server.publish(to_lane(1), vec![hint(number)]).await.unwrap();
    }
    // Sent after them, so that they are all there.
    server.publish(to_lane(2), vec![hint(1)]).await.unwrap();
    receive_until(&mut other, &hint(1)).await;
    let came = receive_until(&mut slow, &hint(999)).await;
    assert_eq!(came, (900..1_000).map(hint).collect::<Vec<_>>());
    assert_eq!(worker.counters().dropped_by_subscribers, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_is_refused_before_anything_is_sent() {
    let (server, worker) = (server().await, worker().await);
    meet(&[&server], &[&worker]).await;
    let max = server.capabilities().message_bytes_max;
    let mut subscription = worker.subscribe(to_lane(1)).await.unwrap();
    // By its parts it would just fit; encoded it does not.
    for bytes in [max - 10, max + 1] {
        let refused = server.publish(to_lane(1), vec![hint(1), large(1, bytes)]).await;
        assert!(matches!(refused, Err(BusError::TooLarge { max: m, .. }) if m == max), "{refused:?}");
    }
    assert_eq!(server.publish_now(to_lane(1), large(1, max + 1)), None);
    // A batch may be larger than a message.
    let batch: Vec<Message> = (2..6).map(|number| large(number, max - 1_000)).collect();
    server.publish(to_lane(1), batch.clone()).await.unwrap();
    assert_eq!(receive_until(&mut subscription, &batch[3]).await, batch);
}

/// A process that publishes the messages that it receives.
#[test]
#[ignore = "run by the other tests, as another process"]
fn other_process() {
    role().expect("started by another test");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server().await;
        let mut subscription = server.subscribe(to_lane(1)).await.unwrap();
        say(&endpoint(&server));
        while let Some(messages) = subscription.receive().await {
            server.publish(to_lane(2), messages).await.unwrap();
        }
    });
}

/// Each start of a server has another port and another secret. The worker gets the new endpoint in its list.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_is_found_at_its_next_place() {
    let worker = worker().await;
    let mut subscription = worker.subscribe(to_lane(2)).await.unwrap();
    let mut old = None;
    for number in 0..3 {
        let mut server = Other::start("server");
        let endpoint = server.hear().expect("it has started");
        worker.set_peers(old.iter().chain([&endpoint]).cloned().collect());
        get_through(&worker, to_lane(1), &mut subscription, &hint(number)).await;
        server.kill();
        until(&worker, |now| now.connections == 0).await;
        old = Some(endpoint);
    }
}

/// As after a long pause of its machine: peers have closed their connections, and connect again when it goes
/// on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_stopped_is_found_again_when_it_goes_on() {
    let worker = DirectBus::listen(watchful()).await.unwrap();
    let mut subscription = worker.subscribe(to_lane(2)).await.unwrap();
    let mut server = Other::start("server");
    worker.set_peers(vec![server.hear().expect("it has started")]);
    get_through(&worker, to_lane(1), &mut subscription, &hint(1)).await;
    server.signal("-STOP");
    until(&worker, |now| now.connections == 0).await;
    server.signal("-CONT");
    get_through(&worker, to_lane(1), &mut subscription, &hint(2)).await;
}
