//! A node from submit to result, over the in-process systems.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Fault, Run, System, default_namespace, name, request, success};
use tasklane_core::id::{AttemptNo, QueueKey};
use tasklane_core::lane::Reason;
use tasklane_core::message::{Ending, Finish, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, Progress, TaskError};
use tasklane_ports::{LogStream, PutPolicy, StoreError, TaskFilter, TaskList};
use tasklane_runtime::node::{
    BULK_TYPE, BulkAction, Cancel, RetentionOptions, Retry, StreamItem, SubmitError, WorkerChange,
};
use tasklane_runtime::request::TaskRequest;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_run_and_their_output_is_kept() {
    let echo = Run(|_, attempt: Arc<dyn tasklane_ports::Attempt>| async move {
        attempt.output(LogStream::Stdout, b"hello\n");
        success()
    });
    let system = System::start(vec![("echo", Arc::new(echo))]).await;
    let ids = system.submit((0..100).map(|_| request("echo")).collect()).await;
    for &id in &ids {
        let view = system.wait(id).await;
        assert_eq!(view.row.state.status, Status::Success);
        let logs = system.node.logs(id, None, 10).await.unwrap();
        assert_eq!(logs.len(), 1);
        assert_eq!(logs[0].bytes, b"hello\n");
    }
    let counts = system.node.stats().await.unwrap().counts;
    assert_eq!(counts[usize::from(Status::Success.code())], 100);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_is_retried_and_both_are_kept() {
    let flaky = Run(|dispatch: tasklane_core::message::Dispatch, _| async move {
        if dispatch.attempt.number == AttemptNo(1) {
            let error = TaskError::new("exit_code", "exit code 1");
            let ending = Ending::Failed { error, retry: RetryAdvice::After(Duration::ZERO) };
            return Finish { ending, ..success() };
        }
        success()
    });
    let system = System::start(vec![("flaky", Arc::new(flaky))]).await;
    let mut soon = request("flaky");
    soon.retry.delay = Some(Duration::from_millis(10));
    let id = system.submit(vec![soon]).await[0];
    let view = system.wait(id).await;
    assert_eq!((view.row.state.status, view.row.state.attempt), (Status::Success, AttemptNo(2)));
    let earlier = system.node.attempts(id, AttemptNo(0), 10).await.unwrap();
    assert_eq!(earlier.len(), 1);
    assert_eq!(earlier[0].outcome, Some(AttemptOutcome::Failed));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_task_is_cancelled_and_a_finished_one_is_not() {
    let started = Arc::new(Notify::new());
    let signal = Arc::clone(&started);
    let endless = Run(move |_, attempt: Arc<dyn tasklane_ports::Attempt>| {
        let signal = Arc::clone(&signal);
        async move {
            signal.notify_one();
            attempt.stopped().await;
            let error = TaskError::new("signal", "killed");
            Finish { ending: Ending::Failed { error, retry: RetryAdvice::Policy }, ..success() }
        }
    });
    let system = System::start(vec![("endless", Arc::new(endless))]).await;
    let id = system.submit(vec![request("endless")]).await[0];
    started.notified().await;
    let namespace = default_namespace();
    assert_eq!(system.node.cancel(&namespace, id).await.unwrap(), Cancel::Accepted);
    assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    assert_eq!(system.node.cancel(&namespace, id).await.unwrap(), Cancel::AlreadyCancelled);
    let Retry::Created(again) = system.node.retry(&namespace, id, None).await.unwrap() else { panic!() };
    started.notified().await;
    let view = system.node.task(&namespace, again.id).await.unwrap().unwrap();
    assert_eq!(view.row.body.unwrap().parent, Some(id));
    assert!(matches!(system.node.retry(&namespace, again.id, None).await.unwrap(), Retry::Unfinished(_)));
    assert_eq!(system.node.cancel(&namespace, again.id).await.unwrap(), Cancel::Accepted);
    system.wait(again.id).await;
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_task_is_explained_and_a_paused_queue_goes_on_when_resumed() {
    let system = System::start(vec![("noop", Arc::new(Run(|_, _| async { success() })))]).await;
    let namespace = default_namespace();
    let nobody = system.submit(vec![request("unknown")]).await[0];
    let explained = system.node.explain(&namespace, nobody).await.unwrap().unwrap();
    assert!(matches!(explained.reasons[0], Reason::NoCapableWorker { .. }), "{explained:?}");

    let queue = QueueKey::new(namespace.clone(), name("slow"));
    let mut policy = system.node.queue(&queue).await.unwrap().policy;
    policy.policy.paused = true;
    let put = PutPolicy { queue: queue.clone(), expected: 0, policy: policy.policy.clone() };
    assert_eq!(system.node.put_policy(put).await.unwrap(), 1);
    let mut held = request("noop");
    held.queue = name("slow");
    let held = system.submit(vec![held]).await[0];
    let explained = system.node.explain(&namespace, held).await.unwrap().unwrap();
    assert!(explained.reasons.contains(&Reason::Paused), "{explained:?}");
    policy.policy.paused = false;
    system.node.put_policy(PutPolicy { queue, expected: 1, policy: policy.policy }).await.unwrap();
    assert_eq!(system.wait(held).await.row.state.status, Status::Success);
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_kept_and_its_lack_is_a_timeout() {
    let told = Run(|_, attempt: Arc<dyn tasklane_ports::Attempt>| async move {
        attempt.progress(Progress { percent: Some(40), message: "copying".to_owned() });
        attempt.stopped().await;
        let error = TaskError::new("signal", "killed");
        Finish { ending: Ending::Failed { error, retry: RetryAdvice::Never }, ..success() }
    });
    let system = System::start(vec![("told", Arc::new(told))]).await;
    let mut quiet = request("told");
    quiet.progress_timeout = Some(Duration::from_millis(400));
    let mut last = quiet.clone();
    last.retry.max_retries = Some(0);
    let ids = system.submit(vec![quiet, last]).await;
    let failed = system.wait(ids[1]).await.row.state;
    let outcome = failed.last_attempt().and_then(|last| last.outcome);
    assert_eq!((failed.status, outcome), (Status::Failed, Some(AttemptOutcome::TimedOut)));
    let id = ids[0];
    let namespace = default_namespace();
    let mut follow = system.node.follow(id);
    let view = loop {
        let view = system.node.task(&namespace, id).await.unwrap().unwrap();
        if view.row.state.status == Status::Retrying || view.row.state.status.is_final() {
            break view;
        }
        follow.changed().await;
    };
    assert_eq!(view.row.state.progress.unwrap().percent, Some(40));
    assert_eq!(view.row.state.error.unwrap().code, "progress_timeout");
    system.node.cancel(&namespace, id).await.unwrap();
    system.wait(id).await;
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_offers_can_be_changed_while_it_runs() {
    let system = System::start(vec![("noop", Arc::new(Run(|_, _| async { success() })))]).await;
    let id = system.submit(vec![request("noop")]).await[0];
    system.wait(id).await;
    let change = WorkerChange { capacity: Some(9), ..WorkerChange::default() };
    let worker = system.node.change_worker("w1", change).await.unwrap();
    assert_eq!((worker.descriptor.capacity, worker.descriptor.weight), (9, 1));

    // At first no worker has the label; then one joins that has it.
    let gpu = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
    let waiting = TaskRequest { labels: gpu.clone(), ..request("noop") };
    let waiting = system.submit(vec![waiting]).await[0];
    let change = WorkerChange { weight: Some(3), labels: Some(gpu.clone()), capacity: None };
    let worker = system.node.change_worker("w1", change).await.unwrap();
    let offered = &worker.descriptor;
    assert_eq!((offered.capacity, offered.weight, &offered.labels), (9, 3, &gpu));
    system.wait(waiting).await;
    assert!(system.node.drain("w1").await.unwrap().descriptor.draining || system.node.workers().is_empty());
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_are_counted_before_they_are_cancelled() {
    let system = System::start(vec![]).await;
    let ids = system.submit((0..20).map(|_| request("unknown")).collect()).await;
    let filter = TaskFilter { namespace: Some(default_namespace()), ..TaskFilter::default() };
    assert_eq!(system.node.bulk_count(BulkAction::Cancel, &filter).await.unwrap(), 20);
    assert_eq!(system.node.bulk_count(BulkAction::Retry, &filter).await.unwrap(), 0);
    for id in ids {
        system.node.cancel(&default_namespace(), id).await.unwrap();
        assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    }
    system.close().await;
}

/// Tasks that the operation had cancelled before it was killed were missing from the count.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_goes_on_counts_what_was_cancelled_before() {
    let namespace = default_namespace();
    for statuses in [vec![], vec![Status::Pending]] {
        let system = System::start(vec![]).await;
        let ids = system.submit((0..20).map(|_| request("unknown")).collect()).await;
        // These do not belong to the operation.
        system.node.cancel(&namespace, ids[0]).await.unwrap();
        system.wait(ids[0]).await;
        let (node, some) = (system.node.clone(), ids[1..8].to_vec());
        let crash = async move {
            for id in some {
                node.cancel(&default_namespace(), id).await.unwrap();
                node.wait(&default_namespace(), id, Duration::from_mins(1)).await.unwrap();
            }
        };
        *system.before_bulk.lock().unwrap() = Some(Box::pin(crash));
        let filter = TaskFilter { namespace: Some(namespace.clone()), statuses, ..TaskFilter::default() };
        let operation = system.node.bulk(&namespace, BulkAction::Cancel, filter, false).await.unwrap();
        let view = system.wait(operation).await;
        assert_eq!((view.row.state.status, view.row.state.attempt), (Status::Success, AttemptNo(2)));
        let counted = system.node.bulk_status(&namespace, operation).await.unwrap().unwrap();
        assert_eq!((counted.matched, counted.done, counted.failed), (19, 19, 0));
        for id in ids {
            assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
        }
        system.close().await;
    }
}

/// Every task with a posted cancel counted as done, and the operation showed no progress before its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_many_counts_what_came_of_it_and_tells_how_far_it_is() {
    let go_on = CancellationToken::new();
    let wait = go_on.clone();
    // Succeeds, though it was stopped.
    let stubborn = Run(move |_, attempt: Arc<dyn tasklane_ports::Attempt>| {
        let wait = wait.clone();
        async move {
            attempt.stopped().await;
            wait.cancelled().await;
            success()
        }
    });
    let system = System::start(vec![("stubborn", Arc::new(stubborn))]).await;
    let namespace = default_namespace();
    let waiting = system.submit((0..1200).map(|_| request("unknown")).collect()).await;
    let running = system.submit((0..2).map(|_| request("stubborn")).collect()).await;
    for &id in &running {
        let mut follow = system.node.follow(id);
        while system.node.task(&namespace, id).await.unwrap().unwrap().row.state.status != Status::Running {
            follow.changed().await;
        }
    }
    let filter = TaskFilter { namespace: Some(namespace.clone()), ..TaskFilter::default() };
    let operation = system.node.bulk(&namespace, BulkAction::Cancel, filter, false).await.unwrap();
    let counted = async || {
        let told = system.node.bulk_status(&namespace, operation).await.unwrap().unwrap();
        (told.status.is_final(), told.matched, told.done, told.failed)
    };
    let mut follow = system.node.follow(operation);
    while counted().await != (false, 1202, 1200, 0) {
        let _ = tokio::time::timeout(Duration::from_millis(50), follow.changed()).await;
    }
    go_on.cancel();
    assert_eq!(system.wait(operation).await.row.state.status, Status::Success);
    assert_eq!(counted().await, (true, 1202, 1200, 2));
    for id in running {
        assert_eq!(system.wait(id).await.row.state.status, Status::Success);
    }
    for id in waiting {
        assert_eq!(system.wait(id).await.row.state.status, Status::Cancelled);
    }
    system.close().await;
}

/// On any error of the store, the task counted as failed.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_tries_again_when_the_store_could_not_be_used() {
    let noop = || -> Arc<dyn tasklane_ports::Executor> { Arc::new(Run(|_, _| async { success() })) };
    let system = System::start(vec![("noop", noop())]).await;
    let namespace = default_namespace();
    let ids = system.submit((0..5).map(|_| request("noop")).collect()).await;
    for &id in &ids {
        system.wait(id).await;
    }
    let filter = TaskFilter {
        namespace: Some(namespace.clone()),
        statuses: vec![Status::Success],
        ..TaskFilter::default()
    };
    // The first of the five is taken, the second one is not.
    let mut reads = 0;
    system.store.plan(move |verb| {
        reads += u32::from(verb == "tasks");
        (verb == "tasks" && reads == 4).then(|| Fault::Error(StoreError::unavailable("for a moment")))
    });
    let operation = system.node.bulk(&namespace, BulkAction::Retry, filter, false).await.unwrap();
    // The follower waits without reads, which the plan would count.
    let mut follow = system.node.follow(operation);
    let status = loop {
        let page = system.node.list(all_operations()).await.unwrap();
        match page.tasks.iter().find(|row| row.id == operation) {
            Some(row) if row.state.status.is_final() => break row.state.clone(),
            _ => _ = tokio::time::timeout(Duration::from_millis(50), follow.changed()).await,
        }
    };
    assert_eq!((status.status, status.attempt), (Status::Success, AttemptNo(2)), "{status:?}");
    let counted = system.node.bulk_status(&namespace, operation).await.unwrap().unwrap();
    assert_eq!((counted.matched, counted.done, counted.failed), (5, 5, 0));
    for id in ids {
        let filter = TaskFilter { parent: Some(id), ..TaskFilter::default() };
        let again = system.node.list(TaskList { filter, after: None, limit: 10 }).await.unwrap().tasks;
        assert_eq!(again.len(), 1, "each is run again once");
    }
    system.close().await;
}

fn all_operations() -> TaskList {
    let filter = TaskFilter { task_type: Some(name(BULK_TYPE)), ..TaskFilter::default() };
    TaskList { filter, after: None, limit: 10 }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_waits_for_a_full_queue() {
    let system = System::start(vec![("noop", Arc::new(Run(|_, _| async { success() })))]).await;
    let namespace = default_namespace();
    let queue = QueueKey::new(namespace.clone(), name("short"));
    let of_queue = |_| {
        let mut request = request("noop");
        request.queue = name("short");
        request
    };
    let ids = system.submit((0..3).map(of_queue).collect()).await;
    for &id in &ids {
        system.wait(id).await;
    }
    let mut policy = system.node.queue(&queue).await.unwrap().policy.policy;
    policy.len_max = Some(1);
    policy.paused = true;
    system
        .node
        .put_policy(PutPolicy { queue: queue.clone(), expected: 0, policy: policy.clone() })
        .await
        .unwrap();
    let filter = TaskFilter {
        namespace: Some(namespace.clone()),
        queue: Some(name("short")),
        ..TaskFilter::default()
    };
    // Reads: the operation, the first task, which is accepted and fills the queue, and the second,
    // repeatedly.
    let full = Arc::new(Notify::new());
    let (signal, mut reads) = (Arc::clone(&full), 0);
    system.store.plan(move |verb| {
        reads += u32::from(verb == "tasks");
        if reads == 4 {
            signal.notify_one();
        }
        None
    });
    let operation = system.node.bulk(&namespace, BulkAction::Retry, filter, false).await.unwrap();
    full.notified().await;
    policy.paused = false;
    system.node.put_policy(PutPolicy { queue, expected: 1, policy }).await.unwrap();
    system.wait(operation).await;
    let counted = system.node.bulk_status(&namespace, operation).await.unwrap().unwrap();
    assert_eq!((counted.matched, counted.done, counted.failed), (3, 3, 0));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tasks_lose_their_data_first_and_their_id_later() {
    let echo = Run(|_, attempt: Arc<dyn tasklane_ports::Attempt>| async move {
        attempt.output(LogStream::Stdout, b"hello\n");
        success()
    });
    let retention = RetentionOptions {
        tasks: Duration::ZERO,
        request_ids: Duration::from_hours(1),
        every: Duration::from_hours(1),
        batch: 3,
    };
    let system = System::start_with(vec![("echo", Arc::new(echo))], retention).await;
    let namespace = default_namespace();
    let named = |number: u32| {
        let mut request = request("echo");
        request.request_id = Some(format!("r{number}"));
        request
    };
    let ids = system.submit((0..10).map(named).collect()).await;
    for &id in &ids {
        system.wait(id).await;
    }
    let waiting = system.submit(vec![request("unknown")]).await[0];
    // The node makes a pass by itself when it starts, and may take some of them.
    let (stripped, removed) = system.node.retire_once().await.unwrap();
    assert!(stripped <= 10 && removed == 0, "{stripped}, {removed}");
    while system.node.retire_once().await.unwrap() != (0, 0) {}
    for &id in &ids {
        let view = system.node.task(&namespace, id).await.unwrap().unwrap();
        assert!(view.row.body.is_none() && view.result.is_none());
        assert!(system.node.logs(id, None, 10).await.unwrap().is_empty());
        assert_eq!(system.node.retry(&namespace, id, None).await.unwrap(), Retry::Removed);
    }
    assert!(system.node.task(&namespace, waiting).await.unwrap().unwrap().row.body.is_some());
    let again = system.node.submit(&namespace, vec![named(3)]).await.pop().unwrap().unwrap();
    assert!(again.duplicate, "the id outlives the data");
    assert_eq!(system.node.retire_once().await.unwrap(), (0, 0));
    system.close().await;
}

/// A retry was accepted even above the maximum length of its queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_a_retry_too() {
    let system = System::start(vec![("noop", Arc::new(Run(|_, _| async { success() })))]).await;
    let namespace = default_namespace();
    let queue = QueueKey::new(namespace.clone(), name("short"));
    let of_queue = || {
        let mut request = request("noop");
        request.queue = name("short");
        request
    };
    let done = system.submit(vec![of_queue()]).await[0];
    system.wait(done).await;
    let mut policy = system.node.queue(&queue).await.unwrap().policy.policy;
    (policy.paused, policy.len_max) = (true, Some(1));
    system.node.put_policy(PutPolicy { queue, expected: 0, policy }).await.unwrap();
    system.submit(vec![of_queue()]).await;
    let retried = system.node.retry(&namespace, done, None).await;
    assert!(matches!(retried, Err(SubmitError::QueueFull { .. })), "{retried:?}");
    system.close().await;
}

/// The counts of all queues were read for one.
#[tokio::test(flavor = "multi_thread")]
async fn one_queue_is_asked_for_alone() {
    let system = System::start(vec![]).await;
    let names: Vec<String> = (0..1100).map(|n| format!("q{n}")).chain(["q".into(), "q1-".into()]).collect();
    let of_queue = |text: &String| {
        let mut request = request("unknown");
        request.queue = name(text);
        request
    };
    system.submit(names.iter().map(of_queue).collect()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    system.store.plan(move |verb| {
        counted.fetch_add(usize::from(verb == "counts"), Ordering::Relaxed);
        None
    });
    let wanted = ["q", "q0", "q1", "q1-", "q999", "none", "zzz", "-"];
    for queue in wanted {
        let info = system.node.queue(&QueueKey::new(default_namespace(), name(queue))).await.unwrap();
        let waiting = info.counts[usize::from(Status::Pending.code())];
        assert_eq!(waiting, u64::from(names.iter().any(|name| name == queue)), "{queue}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), wanted.len());
    system.close().await;
}

/// A page was bounded only in the number of its pieces, which may be large.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_output_is_bounded_in_bytes_and_the_next_one_goes_on() {
    let flood = Run(|_, attempt: Arc<dyn tasklane_ports::Attempt>| async move {
        attempt.output(LogStream::Stdout, &vec![b'x'; 2 << 20]);
        success()
    });
    let system = System::start(vec![("flood", Arc::new(flood))]).await;
    let id = system.submit(vec![request("flood")]).await[0];
    system.wait(id).await;
    let (mut after, mut bytes, mut pages) = (None, 0, 0);
    loop {
        let page = system.node.logs(id, after, 1_000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.position);
        let size: usize = page.iter().map(|chunk| chunk.bytes.len()).sum();
        assert!(size <= 512 << 10, "{size}");
        (bytes, pages) = (bytes + size, pages + 1);
    }
    assert_eq!(bytes, 2 << 20);
    assert!(pages >= 4);
    system.close().await;
}

/// No code called it: a client that follows events over a change of owner got no gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_gets_its_owner_puts_a_gap_into_the_events() {
    let system = System::start(vec![]).await;
    let mut events = system.node.events(None);
    let id = system.submit(vec![request("unknown")]).await[0];
    let Some(StreamItem::Event(first, event)) = events.next().await else { panic!() };
    assert_eq!((event.task, event.status), (id, Status::Pending));
    // Before it lie the gaps of the two lanes that were claimed when the system was started.
    let before = first.to_string();
    let (origin, number) = before.split_once('.').unwrap();
    assert_eq!(number, "3");
    let mut from_start = system.node.events(Some(format!("{origin}.0").parse().unwrap()));
    assert!(matches!(from_start.next().await, Some(StreamItem::Gap(_))));
    assert!(matches!(from_start.next().await, Some(StreamItem::Gap(_))));
    assert!(matches!(from_start.next().await, Some(StreamItem::Event(_, _))));
    system.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_waits_once_for_a_store_that_is_away() {
    let system = System::start(Vec::new()).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    system.store.plan(move |verb| {
        (verb == "bind_queue").then(|| {
            count.fetch_add(1, Ordering::Relaxed);
            Fault::Error(StoreError::unavailable("away"))
        })
    });
    let of_queue = |queue| TaskRequest { queue: name(queue), ..request("nobody-offers-it") };
    let answers = system.node.submit(&default_namespace(), ["a", "b", "c"].map(of_queue).to_vec()).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(SubmitError::Store(_)))), "{answers:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    system.close().await;
}
