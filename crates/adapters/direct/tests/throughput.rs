//! Measures how many messages the bus carries between two processes of one machine. It asserts nothing and
//! runs only on request: `cargo test --profile ci -p tasklane-direct --test throughput -- --ignored
//! --nocapture`.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "what was measured is printed")]

mod support;

use std::time::{Duration, Instant};

use tasklane_core::id::{AttemptNo, LaneId, SessionId, TaskId};
use tasklane_core::message::{AttemptId, Ending, Finish, Message, Report, ToLane, WorkerBatch};
use tasklane_core::task::TaskResult;
use tasklane_ports::{Bus, codec};

use support::{Other, endpoint, hint, role, say, server, to_lane, until, worker};

/// Messages of one batch.
const BATCH: u32 = 100;
/// Batches between two progress messages of the receiver.
const STEP: u32 = 10;
/// Most batches on the way: none is lost, so the sent messages are the carried ones.
const UNDER_WAY: u32 = 200;

const THERE: u16 = 1;
const BACK: u16 = 2;

/// The end of an attempt: about a hundred bytes.
fn report(number: u32) -> Message {
    let attempt = AttemptId { task: TaskId::from_random(u128::from(number) << 64), number: AttemptNo(1) };
    let result = TaskResult { code: 0, message: String::new(), data: "{}".to_owned() };
    let finish = Finish { ran: Duration::from_micros(250), ending: Ending::Success, result };
    let report = ToLane::Report { attempt, report: Report::Finished(Box::new(finish)) };
    // Of different sessions, so that they stay apart.
    let session = SessionId::from_random(number.into());
    Message::ToLane(WorkerBatch { lane: LaneId(THERE), session, messages: vec![report] })
}

/// The reports of one worker as one message.
fn reports_together() -> Message {
    let mut all = report(0);
    let Message::ToLane(batch) = &mut all else { unreachable!("a report goes to a lane") };
    batch.messages = vec![batch.messages[0].clone(); BATCH as usize];
    all
}

/// Reports how many parts have arrived, and publishes every message of one part back.
#[test]
#[ignore = "run by the other test, as another process"]
fn other_process() {
    let Some(role) = role() else { return };
    runtime().block_on(async {
        let server = server().await;
        let mut subscription = server.subscribe(to_lane(THERE)).await.unwrap();
        say(&endpoint(&server));
        let mut came = 0;
        while let Some(messages) = subscription.receive().await {
            if role == "echo" {
                server.publish(to_lane(BACK), messages).await.unwrap();
                continue;
            }
            let before = came / (STEP * BATCH);
            came += u32::try_from(messages.iter().map(Message::parts).sum::<usize>()).unwrap();
            for step in before..came / (STEP * BATCH) {
                server.publish(to_lane(BACK), vec![hint(u16::try_from(step + 1).unwrap())]).await.unwrap();
                if step % 100 == 99 {
                    say(&cpu_ticks().to_string());
                }
            }
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Hundredths of a second that this process has used.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    [11, 12].map(|index: usize| fields[index].parse::<u64>().unwrap()).iter().sum()
}

/// Sends batches, and pauses while too many are on the way.
async fn carry(what: &str, batch: &[Message], batches: u32) {
    let mut other = Other::start("count");
    let sender = worker().await;
    let mut subscription = sender.subscribe(to_lane(BACK)).await.unwrap();
    sender.set_peers(vec![other.hear().unwrap()]);
    until(&sender, |now| now.peers == 1).await;
    let bytes = codec::encode(batch).len();
    let (started, ticks) = (Instant::now(), cpu_ticks());
    let mut carried = 0;
    for sent in 0..batches {
        while sent >= carried + UNDER_WAY {
            carried = heard(&mut subscription).await;
        }
        sender.publish(to_lane(THERE), batch.to_vec()).await.unwrap();
    }
    while carried < batches {
        carried = heard(&mut subscription).await;
    }
    let parts = f64::from(batches * BATCH);
    let rate = parts / started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let cpu = |ticks: u64| ticks as f64 * 1e4 / parts;
    let mut theirs = 0;
    for _ in 0..batches / STEP / 100 {
        theirs = other.hear().unwrap().parse().unwrap();
    }
    println!(
        "{what:<40} {rate:>10.0}/s, {:>4.0} bytes each; CPU {:.2} us to send one, {:.2} us to receive it; {:?}",
        f64::from(u32::try_from(bytes).unwrap()) / f64::from(BATCH),
        cpu(cpu_ticks() - ticks),
        cpu(theirs),
        sender.counters(),
    );
}

async fn heard(subscription: &mut Box<dyn tasklane_ports::Subscription>) -> u32 {
    let messages = subscription.receive().await.unwrap();
    let Some(Message::Hint { lane: LaneId(step) }) = messages.last() else { panic!("{messages:?}") };
    u32::from(*step) * STEP
}

async fn round_trips(count: usize) {
    let mut other = Other::start("echo");
    let sender = worker().await;
    let mut subscription = sender.subscribe(to_lane(BACK)).await.unwrap();
    sender.set_peers(vec![other.hear().unwrap()]);
    until(&sender, |now| now.peers == 1).await;
    let mut times = Vec::new();
    for _ in 0..count {
        let started = Instant::now();
        assert_eq!(sender.publish_now(to_lane(THERE), hint(1)), None);
        subscription.receive().await.unwrap();
        times.push(started.elapsed());
    }
    times.sort_unstable();
    println!("{:<40} p50 {:?}, p99 {:?}", "there and back", times[count / 2], times[count * 99 / 100]);
}

async fn within(what: &str, bus: &dyn Bus, count: u32) {
    let mut subscription = bus.subscribe(to_lane(THERE)).await.unwrap();
    let started = Instant::now();
    for number in 0..count {
        assert_eq!(bus.publish_now(to_lane(THERE), report(number)), None);
        if number % 512 == 511 {
            subscription.receive().await.unwrap();
        }
    }
    let rate = f64::from(count) / started.elapsed().as_secs_f64();
    println!("{what:<40} {rate:>10.0}/s");
}

#[test]
#[ignore = "a measurement"]
fn messages_per_second() {
    runtime().block_on(async {
        let reports: Vec<Message> = (0..BATCH).map(report).collect();
        carry("reports, 100 messages a batch", &reports, 20_000).await;
        carry("reports, 100 parts of a message", &[reports_together()], 40_000).await;
        carry("hints, 100 messages a batch", &vec![hint(1); BATCH as usize], 40_000).await;
        round_trips(10_000).await;
        within("within a process, local bus", &tasklane_local::LocalBus::default(), 1_000_000).await;
        within("within a process, direct bus", &worker().await, 1_000_000).await;
    });
}
