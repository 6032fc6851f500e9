//! Submitting.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tasklane_core::commit::SubmitOutcome::{Created, Duplicate, Exists, QueueFull, RequestIdReused};
use tasklane_core::id::LaneId;
use tasklane_core::id::LimitId;
use tasklane_core::status::Status::{self, Dispatched, Retrying, Running, Scheduled};
use tasklane_core::task::{Fingerprint, FlowKey, NewTask, Payload};

use crate::Submit;
use crate::conformance::fixture::{LANE, Owner, TaskBuilder, at, create, created, submit, task, tasks, view};
use crate::conformance::{StoreEnv, pages};

/// 1: submitted tasks are stored when the call returns, whole.
pub async fn a_created_task_is_stored_as_it_was_sent(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1)
        .queue("orders")
        .priority(9)
        .created(5)
        .delay(7_000)
        .start_timeout(60_000)
        .with(|head, body| {
            head.labels = [("zone".to_owned(), "eu".to_owned())].into();
            head.flow = vec![FlowKey { limit: LimitId::of("customer"), key: "42".into(), own: None }];
            head.hash_bucket = Some(1023);
            head.progress_timeout = Some(Duration::from_micros(1));
            head.retry.max_retries = 0;
            body.payload = Payload::Json("{\"a\": [1, 2.5, null]}".to_owned());
            body.metadata = [("team".to_owned(), "search".to_owned())].into();
            body.parent = Some(task(99).id());
            body.schedule = Some("nightly".to_owned());
            body.nominal_time = Some(at(-1));
        })
        .build();
    let seq = create(&*store, [new.clone()]).await[0];
    let found = view(&*env.second().await, new.id).await;
    assert_eq!(found.row.seq, seq);
    assert_eq!(found.row.head, new.spec.head);
    assert_eq!(found.row.body.as_ref(), Some(&new.spec.body));
    assert_eq!(found.row.state, new.state());
    assert_eq!(found.result, None);
}

/// 1, 2: the same request again is a duplicate, whatever the state of its task.
pub async fn a_repeated_submit_changes_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    assert_eq!(submit(&*store, [new.clone()]).await, [Duplicate]);
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new.id, &[Scheduled, Dispatched, Running, Status::Success]).await;
    let before = view(&*store, new.id).await;
    let later = NewTask { created_at: at(9), due: at(9), ..new.clone() };
    assert_eq!(submit(&*store, [later]).await, [Duplicate]);
    assert_eq!(view(&*store, new.id).await, before);
}

/// 2: another request under the same id is refused, unless the fingerprints cannot be compared. Fingerprints
/// of another kind of request can.
pub async fn another_request_under_the_same_id_is_refused(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).fingerprint(1, 10).build();
    create(&*store, [new.clone()]).await;
    let before = view(&*store, new.id).await;
    let others = [
        task(1).fingerprint(1, 11).priority(9).build(),
        task(1).fingerprint(2, 11).build(),
        task(1).fingerprint(1, u64::MAX).build(),
        task(1).fingerprint(Fingerprint::RETRY | 1, 10).build(),
        task(1).fingerprint(Fingerprint::RETRY | 2, 11).build(),
    ];
    let refused = [RequestIdReused, Duplicate, RequestIdReused, RequestIdReused, RequestIdReused];
    assert_eq!(submit(&*store, others).await, refused);
    assert_eq!(view(&*store, new.id).await, before);

    let retry = task(2).fingerprint(Fingerprint::RETRY | 1, 10).build();
    create(&*store, [retry]).await;
    let others = [
        task(2).fingerprint(Fingerprint::RETRY | 1, 10).build(),
        task(2).fingerprint(Fingerprint::RETRY | 1, 11).build(),
        task(2).fingerprint(1, 10).build(),
    ];
    assert_eq!(submit(&*store, others).await, [Duplicate, RequestIdReused, RequestIdReused]);
}

/// 2: however many submit the same tasks at once, each is created once.
pub async fn racing_submits_create_once(env: &dyn StoreEnv) {
    let handles = [env.store(), env.second().await];
    let racers = (0..16).map(|racer| {
        let store = Arc::clone(&handles[racer % 2]);
        // Not all in the same order, so that locks taken in the order of the batch would meet.
        let mut numbers: Vec<u64> = (0..8).collect();
        numbers.rotate_left(racer % 8);
        tokio::spawn(async move {
            let outcomes = submit(&*store, tasks(numbers.clone())).await;
            numbers.into_iter().zip(outcomes).collect::<Vec<_>>()
        })
    });
    let mut created_by_number = [0; 8];
    for outcome in join_all(racers).await {
        for (number, outcome) in outcome.unwrap() {
            match outcome {
                Created { .. } => created_by_number[usize::try_from(number).unwrap()] += 1,
                Duplicate => {}
                RequestIdReused | Exists { .. } | QueueFull => panic!("{outcome:?}"),
            }
        }
    }
    assert_eq!(created_by_number, [1; 8]);
    let (arrived, _) = pages::all_arrivals(&*handles[0], LANE, tasklane_core::id::Seq(0), 3).await.unwrap();
    assert_eq!(arrived.len(), 8);
}

/// 1, 2: each task of a batch has its own outcome, in its place; within a batch the first one counts; arrival numbers
/// rise in the order of the batch.
pub async fn outcomes_come_in_the_order_of_the_tasks(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks([2])).await;
    let batch = [
        task(1).build(),
        task(2).build(),
        task(3).build(),
        task(2).fingerprint(1, 77).build(),
        task(3).build(),
        task(3).fingerprint(1, 77).build(),
        task(4).build(),
    ];
    let outcomes = submit(&*store, batch).await;
    let numbers: Vec<_> = outcomes.iter().filter_map(created).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let outcomes: Vec<_> =
        outcomes.iter().map(|o| Some(o.clone()).filter(|o| created(o).is_none())).collect();
    let expected =
        [None, Some(Duplicate), None, Some(RequestIdReused), Some(Duplicate), Some(RequestIdReused), None];
    assert_eq!(outcomes, expected);
}

/// 3: tasks above the maximum are refused, counting those of the same batch; a task that exists is still a
/// duplicate.
pub async fn a_full_queue_refuses_what_is_above_it(env: &dyn StoreEnv) {
    let store = env.store();
    let batch: Vec<_> = (0..5).map(|n| task(n).len_max(3).build()).collect();
    let outcomes = submit(&*store, batch).await;
    assert_eq!(outcomes.iter().filter_map(created).count(), 3, "{outcomes:?}");
    assert_eq!(outcomes[3..], [QueueFull, QueueFull]);
    let again =
        [task(0).len_max(3).build(), task(9).len_max(3).build(), task(9).queue("other").len_max(3).build()];
    let outcomes = submit(&*store, again).await;
    assert_eq!(outcomes[..2], [Duplicate, QueueFull]);
    assert!(created(&outcomes[2]).is_some(), "another queue is not full");
    assert!(
        created(&submit(&*store, [task(9).len_max(4).build()]).await[0]).is_some(),
        "a higher maximum counts"
    );
    assert!(created(&submit(&*store, [task(10).build()]).await[0]).is_some(), "no maximum is none");
    assert_eq!(submit(&*store, [task(11).queue("empty").len_max(0).build()]).await, [QueueFull]);
}

/// 3: tasks at workers and finished ones make room; tasks that wait for a retry or their due time do not.
pub async fn only_waiting_tasks_fill_a_queue(env: &dyn StoreEnv) {
    let store = env.store();
    let one = |n| task(n).len_max(1).delay(100_000).build();
    create(&*store, [one(1)]).await;
    assert_eq!(submit(&*store, [one(2)]).await, [QueueFull]);
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(one(1).id, &[Scheduled]).await;
    create(&*store, [one(2)]).await;
    owner.advance(one(2).id, &[Status::Cancelled]).await;
    owner.advance(one(1).id, &[Dispatched, Running, Retrying]).await;
    assert_eq!(submit(&*store, [one(3)]).await, [QueueFull]);
    owner.advance(one(1).id, &[Status::Cancelled]).await;
    create(&*store, [one(3)]).await;
}

/// 1: a body of 1 MiB.
pub async fn a_large_payload_is_kept(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).payload_bytes(1 << 20).build();
    create(&*store, [new.clone()]).await;
    assert_eq!(view(&*store, new.id).await.row.body, Some(new.spec.body));
}

/// 1: lanes need no owner, and the first and the last are lanes like others.
pub async fn every_lane_takes_tasks(env: &dyn StoreEnv) {
    let store = env.store();
    for lane in [0, 1, u16::MAX] {
        let new = TaskBuilder::new(LaneId(lane), 1).build();
        create(&*store, [new.clone()]).await;
        assert_eq!(view(&*store, new.id).await.row.id, new.id);
    }
}

/// 1: text of users goes through unchanged.
pub async fn any_text_is_kept(env: &dyn StoreEnv) {
    let store = env.store();
    let text = "“\\'\"` %s $1 {0} \r\n\t \u{7f} é 漢字 🦀 \u{10ffff}";
    let new = task(1)
        .with(|head, body| {
            head.labels = [(text.to_owned(), text.to_owned()), (String::new(), String::new())].into();
            head.flow = vec![FlowKey { limit: LimitId::of("l"), key: text.into(), own: None }];
            text.clone_into(&mut body.name);
            body.payload = Payload::Text(format!("{text}\0\u{1}"));
            body.metadata = [(text.to_owned(), text.to_owned()), (String::new(), String::new())].into();
            body.request_id = Some(text.to_owned());
            body.schedule = Some(text.to_owned());
        })
        .build();
    create(&*store, [new.clone()]).await;
    let row = view(&*store, new.id).await.row;
    assert_eq!((row.head, row.body), (new.spec.head, Some(new.spec.body)));
}

/// 1: the stated capabilities hold.
pub async fn a_submit_as_large_as_the_store_takes_is_stored(env: &dyn StoreEnv) {
    let store = env.store();
    let capabilities = store.capabilities();
    let count = (capabilities.ops_max / task(0).build().ops()).clamp(1, 1_000);
    let many: Vec<_> = (0..count as u64).map(|n| task(n).build()).collect();
    create(&*store, many).await;
    let mut large = Vec::new();
    let mut bytes = 0;
    for number in 10_000.. {
        let new = task(number).payload_bytes(200 << 10).build();
        bytes += new.bytes();
        if bytes > capabilities.bytes_max.min(4 << 20) {
            break;
        }
        large.push(new);
    }
    let lane = LANE;
    let outcomes = store.submit(Submit { lane, tasks: large.clone().into() }).await.unwrap();
    assert_eq!(outcomes.iter().filter_map(created).count(), large.len());
}
