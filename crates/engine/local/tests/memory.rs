//! The abilities of the memory store beyond the port: strictness and history.

use std::sync::Arc;

use tasklane_core::commit::{Commit, Group, RecordKind};
use tasklane_core::id::{CommitNo, Epoch, LaneId, Seq};
use tasklane_core::status::Status::{Dispatched, Retrying, Running, Scheduled, Success};
use tasklane_core::status::Version;
use tasklane_core::task::{AttemptOutcome, NewTask, TaskState};
use tasklane_local::memory::{HistoryEvent, StateSummary};
use tasklane_local::{MemoryOptions, MemoryState};
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, TaskBuilder, cancel, changing, ended, inserting, inserting_assigned, owner_id,
    record, record_key, result, session_id, task, tasks,
};
use tasklane_ports::{ClaimLane, StoreError, Submit, codec};

fn strict() -> MemoryState {
    let mut state =
        MemoryState::new(MemoryOptions { strict: true, history: true, ..MemoryOptions::default() });
    let claim = ClaimLane { lane: LANE, owner: owner_id(1), seen: Epoch(0), failures: 0 };
    state.claim_lane(claim).expect("nobody else claims it");
    state
}

fn submit(lane: LaneId, tasks: impl Into<Arc<[NewTask]>>) -> Submit {
    Submit { lane, tasks: tasks.into() }
}

fn commit(number: u64, groups: impl Into<Arc<[Group]>>) -> Commit {
    Commit {
        lane: LANE,
        epoch: Epoch(1),
        owner: owner_id(1),
        number: CommitNo(number),
        groups: groups.into(),
        cursor: Seq(0),
    }
}

#[test]
#[should_panic = "is submitted to another lane"]
fn a_submit_to_two_lanes_is_found_out() {
    let _ = strict().submit(&submit(LANE, [task(1).build(), TaskBuilder::new(OTHER_LANE, 1).build()]));
}

#[test]
#[should_panic = "touches task"]
fn a_group_that_touches_another_lane_is_found_out() {
    let other = TaskBuilder::new(OTHER_LANE, 1).build();
    let mut state = strict();
    state.submit(&submit(OTHER_LANE, [other.clone()])).unwrap();
    let _ = state.commit(&commit(1, [changing(other.id, &other.state(), &[Scheduled])]));
}

#[test]
#[should_panic = "inserts one task and changes another"]
fn a_group_about_two_tasks_is_found_out() {
    let (first, second) = (task(1).build(), task(2).build());
    let mut state = strict();
    state.submit(&submit(LANE, [second.clone()])).unwrap();
    let group = Group { ..changing(second.id, &second.state(), &[Scheduled]) };
    let _ = state.commit(&commit(1, [Group { insert: Some(Box::new(first)), ..group }]));
}

#[test]
#[should_panic = "over the limit"]
fn a_submit_of_too_many_operations_is_found_out() {
    let _ = strict().submit(&submit(LANE, tasks(0..33)));
}

#[test]
#[should_panic = "over the limit"]
fn a_commit_of_too_many_operations_is_found_out() {
    let groups: Vec<_> = tasks(0..33).into_iter().map(inserting).collect();
    let _ = strict().commit(&commit(1, groups));
}

#[test]
#[should_panic = "over the limit"]
fn a_commit_of_too_many_bytes_is_found_out() {
    let groups = [1, 2].map(|n| inserting(task(n).payload_bytes(700 << 10).build()));
    let _ = strict().commit(&commit(1, groups));
}

#[test]
fn without_strictness_too_much_is_refused() {
    let mut state = MemoryState::default();
    let max = state.capabilities().ops_max;
    let refused = state.submit(&submit(LANE, tasks(0..=max as u64 / 4)));
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })), "{refused:?}");
    assert_eq!(state.all_tasks().count(), 0);
}

/// The count of operations covers the dearest group there is: everything at once, with a deadline that moves.
#[test]
fn the_dearest_groups_write_no_more_keys_than_they_say() {
    let mut state = strict();
    let new = task(1).start_timeout(10).build();
    state.post(LANE, &[cancel(new.id)]);
    let inbox: Vec<_> = state.inbox(LANE).collect();
    let insert = Group {
        inbox_done: vec![inbox[0].seq],
        records: vec![record("a", Some(b"1"))],
        ..inserting_assigned(new.clone())
    };
    state.commit(&commit(1, [insert])).unwrap();
    let before = state.task(new.id).unwrap().state.clone();
    let mut retry = changing(new.id, &before, &[Dispatched, Running, Retrying]);
    let change = retry.change.as_mut().unwrap();
    change.ended = vec![ended(1, AttemptOutcome::Failed)];
    change.result = Some(result(1, 10));
    assert_eq!(state.commit(&commit(2, [retry])).unwrap(), [APPLIED]);
}

#[test]
fn history_tells_what_was_applied_and_nothing_else() {
    let mut state = strict();
    let new = task(1).build();
    state.submit(&submit(LANE, [new.clone(), new.clone()])).unwrap();
    let groups = [
        changing(new.id, &new.state(), &[Running]),
        changing(new.id, &new.state(), &[Scheduled, Dispatched, Running, Success]),
    ];
    let sent = commit(1, groups);
    state.commit(&sent).unwrap();
    state.commit(&sent).unwrap();
    let HistoryEvent::Changed { path, .. } = &state.take_history()[2] else { panic!("not a change") };
    assert_eq!(path.len(), 4);
    assert_eq!(state.take_history(), []);

    let mut state = strict();
    let repeated = ClaimLane { lane: LANE, owner: owner_id(1), seen: Epoch(0), failures: 0 };
    state.claim_lane(repeated).unwrap();
    state.submit(&submit(LANE, [new.clone(), new.clone()])).unwrap();
    state.commit(&sent).unwrap();
    let to = StateSummary {
        status: Success,
        attempt: tasklane_core::id::AttemptNo(1),
        session: Some(session_id(1)),
        cancel_requested: false,
        lost: 0,
        lost_before_start: 0,
    };
    let expected = [
        HistoryEvent::Claimed { lane: LANE, epoch: Epoch(1), owner: owner_id(1) },
        HistoryEvent::Created {
            task: new.id,
            head: Arc::clone(&new.spec.head),
            seq: Seq(1),
            call: 3,
            unique: None,
        },
        HistoryEvent::Changed {
            task: new.id,
            lane: LANE,
            epoch: Epoch(1),
            owner: owner_id(1),
            number: CommitNo(1),
            from: Version::NEW,
            path: sent.groups[1].change.as_ref().unwrap().path.clone(),
            to,
        },
    ];
    assert_eq!(state.take_history(), expected);
}

#[test]
fn a_checker_sees_everything() {
    let mut state = strict();
    let new = task(1).build();
    state.submit(&submit(LANE, [new.clone()])).unwrap();
    state.post(LANE, &[cancel(new.id)]);
    let group = Group { records: vec![record("a", Some(b"1"))], ..Group::default() };
    state.commit(&commit(1, [group])).unwrap();
    assert_eq!(state.all_tasks().map(|(id, _)| id).collect::<Vec<_>>(), [new.id]);
    assert_eq!(state.inbox(LANE).map(|row| row.command).collect::<Vec<_>>(), [cancel(new.id)]);
    let records: Vec<_> = state.records(LANE).collect();
    assert_eq!(records, [(&record_key(RecordKind::Rate, "a"), &b"1"[..])]);
    let heads: Vec<_> = state.lane_heads().map(|(lane, head)| (lane, head.epoch, head.commit)).collect();
    assert_eq!(heads, [(LANE, Epoch(1), CommitNo(1))]);
}

/// A count of zero is not written, so these are the bytes that earlier versions wrote and read.
#[test]
fn a_task_of_an_earlier_version_has_lost_no_attempt_before_its_start() {
    let mut state = task(1).build().state();
    state.lost = 3;
    let bytes = codec::encode(&state);
    assert!(!bytes.windows(3).any(|field| field == b"\xa2lu"));
    assert_eq!(codec::decode::<TaskState>(&bytes).unwrap(), state);
    state.lost_before_start = 4;
    assert_eq!(codec::decode::<TaskState>(&codec::encode(&state)).unwrap(), state);
}
