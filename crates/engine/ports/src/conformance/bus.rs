//! The suite of the [`Bus`](crate::Bus). Numbers in the cases' docs are those of its promises.
//!
//! A bus may lose, repeat and reorder messages, so cases publish again until the expected messages have
//! arrived, and never assert that one arrived exactly once.

/// One test for each case of the bus's suite. Takes an `async fn` that gives an `Option` of a
/// [`BusEnv`](crate::conformance::BusEnv) with a bus of its own.
#[macro_export]
macro_rules! bus_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(bus, run, $factory, {
            deliver: [
                a_message_reaches_a_subscription_unchanged,
                every_kind_of_message_is_carried,
                a_large_message_is_carried,
                every_subscription_gets_every_message,
                addresses_are_kept_apart,
                a_batch_may_be_received_as_one,
                a_subscription_that_was_dropped_is_no_burden,
                publishing_to_nobody_is_no_error,
                receiving_can_be_cancelled,
            ],
            bounds: [
                a_slow_subscriber_slows_nobody_down,
                a_message_that_is_too_large_is_refused_with_its_batch,
            ],
        });
    };
}

mod talk {
    use std::sync::Arc;
    use std::time::Duration;

    use tasklane_core::id::{AttemptNo, DispatchNo, Epoch, LaneId};
    use tasklane_core::message::{AttemptId, Dispatch, Message, OwnerBatch, ToWorker};

    use crate::conformance::fixture::{LANE, session_id, task};
    use crate::{Address, Bus, Subscription};

    /// Between two tries to get a message through.
    const PATIENCE: Duration = Duration::from_millis(500);
    const TRIES: usize = 40;

    pub(super) fn hint(lane: u16) -> Message {
        Message::Hint { lane: LaneId(lane) }
    }

    pub(super) fn attempt(number: u64) -> AttemptId {
        AttemptId { task: task(number).id(), number: AttemptNo(1) }
    }

    /// A dispatch of a task with a payload of this size.
    pub(super) fn dispatch(number: u64, payload_bytes: usize) -> Message {
        let new = task(number).payload_bytes(payload_bytes).build();
        let dispatch = Dispatch {
            k: DispatchNo(number),
            attempt: attempt(number),
            head: Arc::clone(&new.spec.head),
            body: Some(Arc::clone(&new.spec.body)),
        };
        Message::ToWorker(OwnerBatch {
            lane: LANE,
            epoch: Epoch(7),
            session: session_id(1),
            messages: vec![ToWorker::Dispatch(dispatch)],
        })
    }

    /// Publishes until all of the messages have arrived. Answers everything that arrived.
    pub(super) async fn deliver(
        bus: &dyn Bus,
        address: Address,
        messages: &[Message],
        subscriptions: &mut [&mut Box<dyn Subscription>],
    ) -> Vec<Vec<Message>> {
        let mut came = vec![Vec::new(); subscriptions.len()];
        for _ in 0..TRIES {
            bus.publish(address, messages.to_vec()).await.unwrap();
            for (subscription, came) in subscriptions.iter_mut().zip(&mut came) {
                while !messages.iter().all(|message| came.contains(message)) {
                    match tokio::time::timeout(PATIENCE, subscription.receive()).await {
                        Ok(received) => came.extend(received.expect("the bus is open")),
                        Err(_) => break,
                    }
                }
            }
            if came.iter().all(|came| messages.iter().all(|message| came.contains(message))) {
                return came;
            }
        }
        panic!("{messages:?} did not come through, only {came:?}");
    }
}

/// Which message reaches which subscription.
pub mod deliver {
    use std::time::Duration;

    use tasklane_core::id::{AttemptNo, DispatchNo, Epoch, LaneId, Name, QueueKey, SessionId};
    use tasklane_core::message::{
        AckReason, Control, Ending, EventBatch, EventPlace, Finish, Heartbeat, HeldAttempt, HeldState,
        Message, OwnerBatch, Report, RetryAdvice, TaskEvent, ToLane, ToWorker, WorkerBatch, WorkerStats,
    };
    use tasklane_core::status::Status;
    use tasklane_core::task::TaskError;
    use tasklane_core::time::Timestamp;

    use super::talk::{attempt, deliver, dispatch, hint};
    use crate::Address;
    use crate::conformance::BusEnv;
    use crate::conformance::fixture::{LANE, OTHER_LANE, result, session_id, task};

    const TO_LANE: Address = Address::Lane(LANE);

    /// 1: from one handle to another.
    pub async fn a_message_reaches_a_subscription_unchanged(env: &dyn BusEnv) {
        let mut subscription = env.second().await.subscribe(TO_LANE).await.unwrap();
        let came = deliver(&*env.bus(), TO_LANE, &[hint(3)], &mut [&mut subscription]).await;
        assert!(came[0].iter().all(|message| *message == hint(3)), "{came:?}");
    }

    /// 1: with every field.
    pub async fn every_kind_of_message_is_carried(env: &dyn BusEnv) {
        let to_worker = Message::ToWorker(OwnerBatch {
            lane: LaneId(u16::MAX),
            epoch: Epoch(u64::MAX),
            session: session_id(1),
            messages: vec![
                ToWorker::Skip { first: DispatchNo(1), last: DispatchNo(u64::MAX) },
                ToWorker::Recall { k: DispatchNo(2), attempt: attempt(1) },
                ToWorker::Stop { attempt: attempt(2) },
                ToWorker::Ack { attempt: attempt(3), verdict: AckReason::Committed },
                ToWorker::Ack { attempt: attempt(3), verdict: AckReason::Stale },
                ToWorker::Demand { wanted: 17, up_to: DispatchNo(20) },
            ],
        });
        let finish = |ending| {
            let finish = Finish { ran: Duration::from_micros(1), ending, result: *result(-1, 100) };
            ToLane::Report { attempt: attempt(1), report: Report::Finished(Box::new(finish)) }
        };
        let error = || TaskError::new("exit_code", "“no” 漢字");
        let report = |report| ToLane::Report { attempt: attempt(1), report };
        let held = [HeldState::Queued, HeldState::Running(Duration::from_secs(1)), HeldState::Ended];
        let to_lane = Message::ToLane(WorkerBatch {
            lane: LANE,
            session: session_id(2),
            messages: vec![
                report(Report::Accepted),
                report(Report::Started { ago: Duration::from_millis(3) }),
                report(Report::HandedBack { reason: "draining".to_owned() }),
                finish(Ending::Success),
                finish(Ending::Failed { error: error(), retry: RetryAdvice::Policy }),
                finish(Ending::Failed { error: error(), retry: RetryAdvice::After(Duration::from_secs(9)) }),
                finish(Ending::Failed { error: error(), retry: RetryAdvice::Never }),
                finish(Ending::TimedOut { error: error() }),
                finish(Ending::Cancelled),
                ToLane::Heartbeat(Heartbeat {
                    beat: 1,
                    epoch: Epoch(2),
                    credit: DispatchNo(3),
                    used: DispatchNo(2),
                    held: held.map(|state| HeldAttempt { attempt: attempt(4), state }).to_vec(),
                    load: 5,
                    wanted_back: true,
                }),
            ],
        });
        let name = |text: &str| Name::new(text).unwrap();
        let events = vec![TaskEvent {
            task: task(1).id(),
            queue: QueueKey::new(name("default"), name("q")),
            status: Status::Cancelled,
            attempt: AttemptNo(1),
            at: Timestamp::from_millis(7),
            composite: None,
        }];
        let place = Some(EventPlace { lane: LaneId(3), epoch: Epoch(4), number: 5 });
        let changed = Message::Changed(EventBatch { origin: SessionId::from_random(8), place, events });
        let stats = Message::Stats(WorkerStats {
            session: SessionId::from_random(9),
            cpu_percent: 150,
            memory_bytes: 1 << 30,
            running: 3,
            queued: 1,
            at: Timestamp::from_millis(8),
        });
        let control = Message::Control(Control::Capacity(7));
        let mut subscription = env.second().await.subscribe(Address::Events).await.unwrap();
        let servers = Message::Servers(vec!["10.0.0.1:7071/secret".to_owned()]);
        let messages = [to_worker, to_lane, changed, stats, control, servers, hint(0), dispatch(1, 10)];
        deliver(&*env.bus(), Address::Events, &messages, &mut [&mut subscription]).await;
    }

    /// 1: a body of 1 MiB, or of the bus's maximum.
    pub async fn a_large_message_is_carried(env: &dyn BusEnv) {
        let bus = env.bus();
        let bytes = (1 << 20).min(bus.capabilities().message_bytes_max - 4_096);
        let to = Address::Session(session_id(1));
        let mut subscription = env.second().await.subscribe(to).await.unwrap();
        deliver(&*bus, to, &[dispatch(1, bytes)], &mut [&mut subscription]).await;
    }

    /// 2: whichever handle they were opened over.
    pub async fn every_subscription_gets_every_message(env: &dyn BusEnv) {
        let (bus, second) = (env.bus(), env.second().await);
        let mut first = bus.subscribe(TO_LANE).await.unwrap();
        let mut other = bus.subscribe(TO_LANE).await.unwrap();
        let mut third = second.subscribe(TO_LANE).await.unwrap();
        let messages: Vec<_> = (0..20).map(hint).collect();
        deliver(&*second, TO_LANE, &messages, &mut [&mut first, &mut other, &mut third]).await;
    }

    /// 3: lanes, sessions, events and statistics.
    pub async fn addresses_are_kept_apart(env: &dyn BusEnv) {
        let bus = env.bus();
        let addresses = [
            TO_LANE,
            Address::Lane(OTHER_LANE),
            Address::Lane(LaneId(33)),
            Address::Session(session_id(1)),
            Address::Session(session_id(2)),
            Address::Events,
            Address::Stats,
            Address::Servers,
        ];
        let mut subscriptions = Vec::new();
        for address in addresses {
            subscriptions.push(env.second().await.subscribe(address).await.unwrap());
        }
        for (number, address) in (0..).zip(addresses) {
            bus.publish(address, vec![hint(number)]).await.unwrap();
        }
        for ((number, address), subscription) in (0..).zip(addresses).zip(&mut subscriptions) {
            let came = deliver(&*bus, address, &[hint(number)], &mut [subscription]).await;
            assert!(came[0].iter().all(|message| *message == hint(number)), "{address:?}: {came:?}");
        }
    }

    /// 1: waiting messages arrive together, in bounded portions.
    pub async fn a_batch_may_be_received_as_one(env: &dyn BusEnv) {
        let mut subscription = env.second().await.subscribe(TO_LANE).await.unwrap();
        let messages: Vec<_> = (0..500).map(hint).collect();
        deliver(&*env.bus(), TO_LANE, &messages, &mut [&mut subscription]).await;
    }

    /// 4: publishers do not wait for dropped subscriptions.
    pub async fn a_subscription_that_was_dropped_is_no_burden(env: &dyn BusEnv) {
        let bus = env.bus();
        for _ in 0..10 {
            drop(bus.subscribe(TO_LANE).await.unwrap());
        }
        let mut subscription = bus.subscribe(TO_LANE).await.unwrap();
        deliver(&*bus, TO_LANE, &[hint(1)], &mut [&mut subscription]).await;
    }

    /// 1: a hint without a subscriber is lost, without an error.
    pub async fn publishing_to_nobody_is_no_error(env: &dyn BusEnv) {
        env.bus().publish(Address::Session(session_id(99)), vec![hint(1)]).await.unwrap();
        env.bus().publish(TO_LANE, Vec::new()).await.unwrap();
    }

    /// 1: a cancelled `receive` loses nothing.
    pub async fn receiving_can_be_cancelled(env: &dyn BusEnv) {
        let bus = env.bus();
        let mut subscription = bus.subscribe(TO_LANE).await.unwrap();
        for number in 0..5 {
            let nothing = tokio::time::timeout(Duration::from_millis(20), subscription.receive()).await;
            // A message that was published twice may still come.
            assert!(nothing.is_err() || number > 0, "{nothing:?}");
            deliver(&*bus, TO_LANE, &[hint(number)], &mut [&mut subscription]).await;
        }
    }
}

/// Bounds of size and speed.
pub mod bounds {
    use std::time::Duration;

    use super::talk::{deliver, dispatch, hint};
    use crate::conformance::BusEnv;
    use crate::conformance::fixture::{LANE, session_id};
    use crate::{Address, BusError};

    /// 4: the publisher sends far more than any queue holds while one subscriber sleeps.
    pub async fn a_slow_subscriber_slows_nobody_down(env: &dyn BusEnv) {
        let bus = env.bus();
        let to = Address::Lane(LANE);
        let mut slow = env.second().await.subscribe(to).await.unwrap();
        let mut quick = env.second().await.subscribe(to).await.unwrap();
        for round in 0..100_u16 {
            let batch = (0..200).map(|_| hint(round)).collect();
            let published = tokio::time::timeout(Duration::from_secs(10), bus.publish(to, batch)).await;
            published.expect("publishing does not wait for subscribers").unwrap();
        }
        deliver(&*bus, to, &[hint(1_000)], &mut [&mut quick]).await;
        // The slow subscriber has lost some messages, and receives the next ones.
        deliver(&*bus, to, &[hint(1_001)], &mut [&mut slow]).await;
    }

    /// 5: nothing of the batch is sent.
    pub async fn a_message_that_is_too_large_is_refused_with_its_batch(env: &dyn BusEnv) {
        let bus = env.bus();
        let max = bus.capabilities().message_bytes_max;
        let to = Address::Session(session_id(1));
        let mut subscription = bus.subscribe(to).await.unwrap();
        let refused = bus.publish(to, vec![hint(1), dispatch(1, max + 1)]).await;
        assert!(matches!(refused, Err(BusError::TooLarge { max: m, .. }) if m == max), "{refused:?}");
        let came = deliver(&*bus, to, &[hint(2)], &mut [&mut subscription]).await;
        assert!(!came[0].contains(&hint(1)), "{came:?}");
    }
}
