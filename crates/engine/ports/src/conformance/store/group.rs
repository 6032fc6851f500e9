//! The writes of a group of a commit, and when they do not happen.

use tasklane_core::commit::{Group, GroupOutcome, RecordChange, RecordKind, SubmitOutcome};
use tasklane_core::id::{AttemptNo, Seq};
use tasklane_core::status::Status::{
    self, Cancelled, Dispatched, Failed, Pending, Retrying, Running, Scheduled, Success,
};
use tasklane_core::status::Version;
use tasklane_core::task::{AttemptOutcome, TaskError};
use tasklane_core::time::Shift;

use crate::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, TaskBuilder, at, cancel, change, changing, create, ended, inserting,
    inserting_assigned, name, record, record_key, result, session_id, state, task, tasks, view,
};
use crate::conformance::{StoreEnv, pages, skipped};

fn mismatch(status: Status, attempt: u32) -> GroupOutcome {
    GroupOutcome::Mismatch { found: Some(Version { status, attempt: AttemptNo(attempt) }) }
}

/// 8: status and attempt are compared; the other groups of the commit apply.
pub async fn a_group_with_another_expectation_is_skipped_alone(env: &dyn StoreEnv) {
    let store = env.store();
    let (first, second) = (task(1).build(), task(2).build());
    create(&*store, [first.clone(), second.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let assigned = owner.advance(first.id, &[Scheduled]).await;
    // Back and assigned again: the status is the same, the attempt is not.
    let again = owner.advance(first.id, &[Pending, Scheduled]).await;
    assert_eq!(again.attempt, AttemptNo(2));
    let groups = [
        changing(first.id, &first.state(), &[Scheduled]),
        changing(first.id, &assigned, &[Dispatched]),
        changing(second.id, &second.state(), &[Scheduled]),
    ];
    assert_eq!(owner.commit(groups).await, [mismatch(Scheduled, 2), mismatch(Scheduled, 2), APPLIED]);
    assert_eq!(state(&*store, first.id).await, again);
    assert_eq!(state(&*store, second.id).await.status, Scheduled);
}

/// 8: nothing is created by a change.
pub async fn a_change_of_an_unknown_task_is_skipped(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(1).build();
    let mut group = changing(new.id, &new.state(), &[Scheduled]);
    group.change.as_mut().unwrap().ended = vec![ended(1, AttemptOutcome::Lost)];
    assert_eq!(owner.commit([group]).await, [GroupOutcome::Mismatch { found: None }]);
    assert_eq!(store.tasks(&[new.id]).await.unwrap(), [None]);
    assert_eq!(pages::all_attempts(&*store, new.id, 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, 10).await, []);
}

/// 8: a change reaches the task of its own lane, whatever else carries the same request id.
pub async fn the_same_request_in_another_lane_is_another_task(env: &dyn StoreEnv) {
    let store = env.store();
    let (new, other) = (task(1).build(), TaskBuilder::new(OTHER_LANE, 1).build());
    create(&*store, [new.clone()]).await;
    create(&*store, [other.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new.id, &[Scheduled]).await;
    assert_eq!(state(&*store, other.id).await, other.state());
}

/// 9: a path that the status table does not allow is skipped like a wrong expectation.
pub async fn a_path_outside_the_table_is_never_written(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    for path in
        [&[Running][..], &[Success], &[Pending], &[Retrying], &[Scheduled, Running], &[Cancelled, Pending]]
    {
        let group = changing(new.id, &new.state(), path);
        assert_eq!(owner.commit([group]).await, [mismatch(Pending, 0)], "{path:?}");
    }
    assert_eq!(state(&*store, new.id).await, new.state());
}

/// 9: the stored state is always the end of the path.
pub async fn a_state_that_is_not_the_end_of_its_path_is_never_written(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut another_status = changing(new.id, &new.state(), &[Scheduled]);
    another_status.change.as_mut().unwrap().state.status = Dispatched;
    let mut another_attempt = changing(new.id, &new.state(), &[Scheduled]);
    another_attempt.change.as_mut().unwrap().state.attempt = AttemptNo(2);
    let mut no_path = changing(new.id, &new.state(), &[Scheduled]);
    no_path.change.as_mut().unwrap().path.clear();
    let outcomes = owner.commit([another_status, another_attempt, no_path]).await;
    assert_eq!(outcomes, [mismatch(Pending, 0), mismatch(Pending, 0), mismatch(Pending, 0)]);
    assert_eq!(state(&*store, new.id).await, new.state());
}

/// 9: not their status, and nothing else of them either.
pub async fn final_states_never_change(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks([1, 2, 3]);
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let ways: [&[Status]; 3] = [&[Scheduled, Dispatched, Running, Success], &[Failed], &[Cancelled]];
    for (new, way) in new.iter().zip(ways) {
        let done = owner.advance(new.id, way).await;
        for next in Status::ALL {
            let group = changing(new.id, &done, &[next]);
            assert_eq!(owner.commit([group]).await, [mismatch(done.status, done.attempt.0)]);
        }
        let mut touched = changing(new.id, &done, &[]);
        touched.change.as_mut().unwrap().state.cancel_requested = true;
        touched.change.as_mut().unwrap().result = Some(result(9, 9));
        assert_eq!(owner.commit([touched]).await, [mismatch(done.status, done.attempt.0)]);
        let found = view(&*store, new.id).await;
        assert_eq!((found.row.state, found.result), (done, None));
    }
}

/// 9: several steps at once, through more than one attempt.
pub async fn a_long_path_is_written_once(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let path = [
        Scheduled, Pending, Scheduled, Dispatched, Pending, Scheduled, Dispatched, Running, Retrying, Pending,
    ];
    let after = owner.advance(new.id, &path).await;
    assert_eq!(after.attempt, AttemptNo(3));
    assert_eq!(state(&*store, new.id).await, after);
    let after = owner.advance(new.id, &[Scheduled, Dispatched, Running, Success]).await;
    assert_eq!(after.version(), Version { status: Success, attempt: AttemptNo(4) });
    assert_eq!(state(&*store, new.id).await, after);
}

/// 6: a state is read as it was written, with every field set and with none.
pub async fn all_fields_of_a_state_are_kept(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut full = changing(new.id, &new.state(), &[Scheduled, Dispatched, Running]);
    let written = &mut full.change.as_mut().unwrap().state;
    written.retries = u32::MAX;
    written.lost = 3;
    written.due = at(123_456_789);
    written.delayed = true;
    written.start_by = Some(at(i64::from(u32::MAX)));
    written.relative = true;
    written.shift = Some(Shift::from_micros(i64::MIN));
    written.cancel_requested = true;
    written.session = Some(session_id(u128::from(u64::MAX)));
    written.worker = Some(name("worker:7@host.example_1"));
    written.error = Some(TaskError::new("exit_code", "“quoted” 'text'\n漢字 🦀"));
    let written = written.clone();
    assert_eq!(owner.commit([full]).await, [APPLIED]);
    assert_eq!(state(&*store, new.id).await, written);
    let mut bare = changing(new.id, &written, &[Pending]);
    let state_after = &mut bare.change.as_mut().unwrap().state;
    let (attempt, version) = (written.attempt, Version { status: Pending, attempt: written.attempt });
    *state_after = new.state();
    state_after.attempt = attempt;
    let state_after = state_after.clone();
    assert_eq!(owner.commit([bare]).await, [APPLIED]);
    assert_eq!(state(&*store, new.id).await, state_after);
    assert_eq!(state_after.version(), version);
}

/// 8: a task whose times were moved before it was written: the change without a path gives the state in which
/// it is created.
pub async fn an_insert_and_a_change_without_a_path_are_one(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(1).delay(1_000).start_timeout(500).shift(0).with(|_, body| body.relative = true).build();
    let mut moved = new.state();
    assert_eq!((moved.relative, moved.shift), (true, Some(Shift::ZERO)));
    moved.shift_by(Shift::from_millis(9_000), Shift::from_millis(9_000));
    let mut group = inserting(new.clone());
    group.change = Some(change(new.id, &moved, &[]));
    let outcomes = owner.commit([group]).await;
    assert!(matches!(outcomes[..], [GroupOutcome::Applied { seq: Some(_) }]), "{outcomes:?}");
    assert_eq!(state(&*store, new.id).await, moved);
    assert_eq!((moved.due, moved.start_by), (at(10_000), Some(at(10_500))));
    for (until, found) in [(10_499, 0), (10_500, 1)] {
        let rows = pages::all_tasks(&*store, LANE, pages::expiring(at(until)), 10).await;
        assert_eq!(rows.len(), found, "{until}");
    }
}

/// 8: a commit creates tasks as a submit does.
pub async fn an_insert_creates_a_task(env: &dyn StoreEnv) {
    let store = env.store();
    let before = create(&*store, tasks([1])).await[0];
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(2).delay(10).start_timeout(50).build();
    let outcomes = owner.commit([inserting(new.clone())]).await;
    let [GroupOutcome::Applied { seq: Some(seq) }] = outcomes[..] else { panic!("{outcomes:?}") };
    assert!(seq > before);
    let found = view(&*store, new.id).await;
    assert_eq!((found.row.seq, &found.row.head, &found.row.state), (seq, &new.spec.head, &new.state()));
    assert_eq!(found.row.body.as_ref(), Some(&new.spec.body));
    assert_eq!(crate::conformance::fixture::submit(&*store, [new]).await, [SubmitOutcome::Duplicate]);
    let (arrived, _) = pages::all_arrivals(&*store, LANE, before, 10).await.unwrap();
    assert_eq!(arrived.len(), 1);
}

/// 8: a task that is created and assigned in one group never waits.
pub async fn an_insert_and_its_first_assignment_are_one(env: &dyn StoreEnv) {
    let store = env.store();
    if !store.capabilities().insert_and_assign {
        skipped("an_insert_and_its_first_assignment_are_one", "the store cannot do it in one group");
        return;
    }
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(1).start_timeout(50).build();
    let outcomes = owner.commit([inserting_assigned(new.clone())]).await;
    assert!(matches!(outcomes[..], [GroupOutcome::Applied { seq: Some(_) }]), "{outcomes:?}");
    let found = state(&*store, new.id).await;
    assert_eq!(found.version(), Version { status: Scheduled, attempt: AttemptNo(1) });
    assert_eq!(pages::all_tasks(&*store, LANE, pages::LINES, 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::expiring(at(1_000_000)), 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, 10).await.len(), 1);
}

/// 8: if the task is there already, the rest of its group is not for this owner to write.
pub async fn an_insert_that_is_refused_skips_its_group(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    store.post(LANE, &[cancel(new.id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let with_rest = |task| Group {
        inbox_done: vec![inbox[0].seq],
        records: vec![record("a", Some(b"1"))],
        ..inserting_assigned(task)
    };
    let groups = [with_rest(new.clone()), with_rest(task(1).fingerprint(1, 77).build())];
    let refused = [SubmitOutcome::Duplicate, SubmitOutcome::RequestIdReused].map(GroupOutcome::NotCreated);
    assert_eq!(owner.commit(groups).await, refused);
    assert_eq!(state(&*store, new.id).await, new.state());
    assert_eq!(pages::all_inbox(&*store, LANE, 10).await, inbox);
    assert_eq!(pages::all_records(&*store, LANE, 10).await, []);
}

/// 8: nothing of a skipped group is written, not even the task that could have been created.
pub async fn an_insert_with_a_wrong_change_leaves_nothing(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(1).build();
    let mut stale = inserting_assigned(new.clone());
    stale.change.as_mut().unwrap().expected.attempt = AttemptNo(1);
    let illegal = Group { change: Some(change(new.id, &new.state(), &[Running])), ..inserting(new.clone()) };
    let skipped = GroupOutcome::Mismatch { found: None };
    assert_eq!(owner.commit([stale, illegal]).await, [skipped.clone(), skipped]);
    assert_eq!(store.tasks(&[new.id]).await.unwrap(), [None]);
    assert_eq!(pages::all_arrivals(&*store, LANE, Seq(0), 10).await.unwrap().0, []);
    assert_eq!(pages::all_counts(&*store, 10).await, []);
    create(&*store, [new]).await;
}

/// 3, 8: an insert counts waiting tasks, including groups of the same commit before it.
pub async fn an_insert_into_a_full_queue_is_refused(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new = |n| task(n).len_max(2).build();
    let full = GroupOutcome::NotCreated(SubmitOutcome::QueueFull);
    let groups = [
        inserting(new(1)),
        inserting_assigned(new(2)),
        inserting(new(3)),
        inserting(new(4)),
        inserting_assigned(new(5)),
        changing(new(1).id, &new(1).state(), &[Cancelled]),
        inserting(new(6)),
    ];
    let outcomes = owner.commit(groups).await;
    assert_eq!(outcomes[3..6], [full.clone(), full, APPLIED]);
    for created in [0, 1, 2, 6] {
        assert!(matches!(outcomes[created], GroupOutcome::Applied { seq: Some(_) }), "{outcomes:?}");
    }
}

/// 8: each group sees what those before it wrote.
pub async fn groups_apply_in_their_order(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let new = task(1).build();
    let first = change(new.id, &new.state(), &[Scheduled]);
    let second = change(new.id, &first.state, &[Dispatched]);
    let after = second.state.clone();
    let writing = |value: &[u8]| Group { records: vec![record("a", Some(value))], ..Group::default() };
    let groups = [
        Group { change: Some(first.clone()), ..Group::default() },
        inserting(new.clone()),
        inserting(new.clone()),
        Group { change: Some(first), ..writing(b"1") },
        Group { change: Some(second), ..writing(b"2") },
    ];
    let outcomes = owner.commit(groups).await;
    assert_eq!(outcomes[0], GroupOutcome::Mismatch { found: None });
    assert!(matches!(outcomes[1], GroupOutcome::Applied { seq: Some(_) }));
    assert_eq!(outcomes[2], GroupOutcome::NotCreated(SubmitOutcome::Duplicate));
    assert_eq!(outcomes[3..], [APPLIED, APPLIED]);
    assert_eq!(state(&*store, new.id).await, after);
    assert_eq!(pages::all_records(&*store, LANE, 10).await[0].1, b"2");
}

/// 11: a command is gone when the group that names it has applied, and not before. Naming an unknown one
/// changes nothing.
pub async fn inbox_rows_go_with_the_group_that_names_them(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks([1, 2, 3]);
    create(&*store, new.clone()).await;
    let commands: Vec<_> = new.iter().map(|task| cancel(task.id)).collect();
    env.second().await.post(LANE, &commands).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    assert_eq!(inbox.iter().map(|row| row.command.clone()).collect::<Vec<_>>(), commands);
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new[1].id, &new[1].state(), &[Cancelled]);
    group.inbox_done = vec![inbox[1].seq];
    assert_eq!(owner.commit([group]).await, [APPLIED]);
    assert_eq!(pages::all_inbox(&*store, LANE, 10).await, [inbox[0].clone(), inbox[2].clone()]);
    let rest = Group { inbox_done: inbox.iter().map(|row| row.seq).collect(), ..Group::default() };
    assert_eq!(owner.commit([rest.clone()]).await, [APPLIED]);
    assert_eq!(owner.commit([rest]).await, [APPLIED]);
    assert_eq!(pages::all_inbox(&*store, LANE, 10).await, []);
    // A command that is posted again is another one.
    store.post(LANE, &commands[..1]).await.unwrap();
    assert!(pages::all_inbox(&*store, LANE, 10).await[0].seq > inbox[2].seq);
}

/// 8, 11: a command whose group was skipped is still to be done.
pub async fn inbox_rows_stay_when_their_group_is_skipped(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    store.post(LANE, &[cancel(new.id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new.id, &[Scheduled]).await;
    let mut group = changing(new.id, &new.state(), &[Cancelled]);
    group.inbox_done = vec![inbox[0].seq];
    assert_eq!(owner.commit([group]).await, [mismatch(Scheduled, 1)]);
    assert_eq!(pages::all_inbox(&*store, LANE, 10).await, inbox);
}

/// 8: records of every kind, with any bytes.
pub async fn records_are_written_replaced_and_removed(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let writing = |records| [Group { records, ..Group::default() }];
    let policy = |value| RecordChange { key: record_key(RecordKind::AppliedPolicy, "a"), value };
    let first = vec![record("a", Some(&all_bytes)), record("b/漢 %", Some(b"")), policy(Some(b"1".to_vec()))];
    assert_eq!(owner.commit(writing(first)).await, [APPLIED]);
    let expected = [
        (record_key(RecordKind::Rate, "a"), all_bytes),
        (record_key(RecordKind::Rate, "b/漢 %"), Vec::new()),
        (record_key(RecordKind::AppliedPolicy, "a"), b"1".to_vec()),
    ];
    assert_eq!(pages::all_records(&*store, LANE, 10).await, expected);
    let second = vec![record("a", None), record("c", None), policy(Some(b"22".to_vec()))];
    assert_eq!(owner.commit(writing(second)).await, [APPLIED]);
    let expected = [
        (record_key(RecordKind::Rate, "b/漢 %"), Vec::new()),
        (record_key(RecordKind::AppliedPolicy, "a"), b"22".to_vec()),
    ];
    assert_eq!(pages::all_records(&*store, LANE, 10).await, expected);
    assert_eq!(pages::all_records(&*store, OTHER_LANE, 10).await, []);
}

/// 8: the record of a rate moves only with the assignment that moves it.
pub async fn records_stay_when_their_group_is_skipped(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let written = [Group { records: vec![record("a", Some(b"1"))], ..Group::default() }];
    owner.commit(written).await;
    let new = task(1).build();
    let mut group = changing(new.id, &new.state(), &[Scheduled]);
    group.records = vec![record("a", Some(b"2")), record("b", Some(b"3"))];
    assert_eq!(owner.commit([group]).await, [GroupOutcome::Mismatch { found: None }]);
    let records = pages::all_records(&*store, LANE, 10).await;
    assert_eq!(records, [(record_key(RecordKind::Rate, "a"), b"1".to_vec())]);
}

/// 8: rows of attempts come in the order of their numbers; one written again is replaced.
pub async fn ended_attempts_have_rows_by_number(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group =
        changing(new.id, &new.state(), &[Scheduled, Pending, Scheduled, Dispatched, Pending, Scheduled]);
    let mut bare = ended(2, AttemptOutcome::HandedBack);
    (bare.session, bare.worker, bare.started_at, bare.error) = (None, None, None, None);
    let change = group.change.as_mut().unwrap();
    change.ended = vec![bare.clone(), ended(1, AttemptOutcome::Lost)];
    let after = change.state.clone();
    assert_eq!(owner.commit([group]).await, [APPLIED]);
    let found = pages::all_attempts(&*store, new.id, 10).await;
    assert_eq!(found, [ended(1, AttemptOutcome::Lost), bare.clone()]);
    let mut group = changing(new.id, &after, &[Pending]);
    group.change.as_mut().unwrap().ended =
        vec![ended(1, AttemptOutcome::TimedOut), ended(3, AttemptOutcome::Failed)];
    assert_eq!(owner.commit([group]).await, [APPLIED]);
    let expected = [ended(1, AttemptOutcome::TimedOut), bare, ended(3, AttemptOutcome::Failed)];
    for limit in [1, 2, 3, 10] {
        assert_eq!(pages::all_attempts(&*store, new.id, limit).await, expected, "{limit}");
    }
}

/// 8: a change without a result keeps the stored result.
pub async fn a_result_is_kept_until_another_comes(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut failed = changing(new.id, &new.state(), &[Scheduled, Dispatched, Running, Retrying]);
    failed.change.as_mut().unwrap().result = Some(result(i32::MIN, 10));
    owner.commit([failed]).await;
    assert_eq!(view(&*store, new.id).await.result, Some(*result(i32::MIN, 10)));
    let before = owner.advance(new.id, &[Pending, Scheduled, Dispatched, Running]).await;
    assert_eq!(view(&*store, new.id).await.result, Some(*result(i32::MIN, 10)));
    let mut success = changing(new.id, &before, &[Success]);
    success.change.as_mut().unwrap().result = Some(result(0, 0));
    owner.commit([success]).await;
    assert_eq!(view(&*store, new.id).await.result, Some(*result(0, 0)));
}

/// 8: a result of 1 MiB.
pub async fn a_large_result_is_kept(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).payload_bytes(1 << 20).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new.id, &new.state(), &[Scheduled, Dispatched, Running, Success]);
    group.change.as_mut().unwrap().result = Some(result(0, 1 << 20));
    assert_eq!(owner.commit([group]).await, [APPLIED]);
    let found = view(&*store, new.id).await;
    assert_eq!(found.result, Some(*result(0, 1 << 20)));
    assert_eq!(found.row.body, Some(new.spec.body));
}
