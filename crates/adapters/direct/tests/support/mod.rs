//! Members of a bus for tests, and a proxy that misbehaves on request.

#![allow(clippy::unwrap_used, reason = "parts of tests fail by panicking")]
#![allow(clippy::print_stdout, clippy::exit, reason = "how another process talks and ends")]
#![allow(dead_code, unused_imports, reason = "each test file uses a part of this")]

mod process;
mod proxy;

pub(crate) use process::{Other, role, say};
pub(crate) use proxy::Proxy;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tasklane_core::id::LaneId;
use tasklane_core::message::Message;
use tasklane_direct::{ConnectionCounts, DirectBus, DirectOptions};
use tasklane_ports::{Address, Bus, Subscription};

/// The bound of every wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A free port of this machine.
pub(crate) fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Options for a machine that is busy with other tests: no peer is given up for being slow.
pub(crate) fn patient() -> DirectOptions {
    DirectOptions {
        announce_timeout: PATIENCE,
        close_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        keep_alive_timeout: PATIENCE,
        ..DirectOptions::default()
    }
}

pub(crate) async fn server() -> DirectBus {
    server_with(patient()).await
}

pub(crate) async fn server_with(options: DirectOptions) -> DirectBus {
    DirectBus::listen(DirectOptions { bind: Some(anywhere()), ..options }).await.unwrap()
}

pub(crate) async fn worker() -> DirectBus {
    DirectBus::listen(patient()).await.unwrap()
}

pub(crate) fn endpoint(bus: &DirectBus) -> String {
    bus.endpoint().unwrap()
}

/// Lets everyone dial these servers, and waits until all are connected.
pub(crate) async fn meet(servers: &[&DirectBus], workers: &[&DirectBus]) {
    let endpoints: Vec<String> = servers.iter().map(|server| endpoint(server)).collect();
    for bus in servers.iter().chain(workers) {
        bus.set_peers(endpoints.clone());
    }
    let others = servers.len() - 1;
    for server in servers {
        until(server, |now| now.connections == 2 * others + workers.len()).await;
    }
    for worker in workers {
        until(worker, |now| now.peers == servers.len()).await;
    }
}

/// Waits until the connections of a bus are as wanted.
pub(crate) async fn until(bus: &DirectBus, wanted: impl FnMut(&ConnectionCounts) -> bool) {
    let mut connected = bus.connected();
    let came = tokio::time::timeout(PATIENCE, connected.wait_for(wanted)).await.is_ok();
    assert!(came, "{:?} for too long", *bus.connected().borrow());
}

pub(crate) fn hint(lane: u16) -> Message {
    Message::Hint { lane: LaneId(lane) }
}

pub(crate) fn to_lane(lane: u16) -> Address {
    Address::Lane(LaneId(lane))
}

/// Receives until `last` arrives; answers all messages.
pub(crate) async fn receive_until(subscription: &mut Box<dyn Subscription>, last: &Message) -> Vec<Message> {
    let mut came = Vec::new();
    while !came.contains(last) {
        let received = tokio::time::timeout(PATIENCE, subscription.receive()).await;
        came.extend(received.unwrap_or_else(|_| panic!("only {came:?}")).expect("the bus is open"));
    }
    came
}

/// Publishes a message until it arrives.
pub(crate) async fn get_through(
    from: &DirectBus,
    address: Address,
    subscription: &mut Box<dyn Subscription>,
    message: &Message,
) {
    let trying = async {
        loop {
            from.publish(address, vec![message.clone()]).await.unwrap();
            let patience = Duration::from_millis(100);
            if let Ok(received) = tokio::time::timeout(patience, subscription.receive()).await
                && received.expect("the bus is open").contains(message)
            {
                break;
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, trying).await.is_ok(), "{message:?} did not come through");
}
