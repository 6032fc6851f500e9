//! The reads of a lane's owner.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tasklane_core::commit::{Group, RecordChange, RecordKind};
use tasklane_core::id::{LaneId, Seq, TaskId};
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::status::Status::{Cancelled, Dispatched, Pending, Retrying, Running, Scheduled, Success};
use tasklane_core::task::{NewTask, TaskRow};
use tasklane_core::time::Shift;

use crate::conformance::fixture::{
    APPLIED, LANE, OTHER_LANE, Owner, TaskBuilder, at, cancel, changing, create, inserting, record,
    record_key, submit, task, tasks,
};
use crate::conformance::{StoreEnv, pages};
use crate::{LoadQuery, Store};

fn ids(rows: &[TaskRow]) -> Vec<TaskId> {
    rows.iter().map(|row| row.id).collect()
}

fn new_ids(tasks: &[NewTask]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

/// 12: one row for each line that has ready tasks, the most urgent of it.
pub async fn lines_show_the_first_task_of_each(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [
        task(1).kind("A").build(),
        task(2).kind("A").priority(9).build(),
        task(3).kind("B").build(),
        task(4).kind("B").build(),
        task(5).kind("C").delay(1_000).build(),
        task(6).kind("A").queue("another").build(),
    ];
    create(&*store, new.clone()).await;
    let mut expected = [&new[1], &new[2], &new[5]];
    expected.sort_by_key(|task| task.spec.head.line());
    let expected: Vec<_> = expected.iter().map(|task| task.id).collect();
    for limit in [1, 2, 3, 100] {
        assert_eq!(ids(&pages::all_tasks(&*store, LANE, pages::LINES, limit).await), expected, "{limit}");
    }
    let (rows, more) = pages::task_page(&*store, LANE, pages::LINES, 2).await;
    assert_eq!((rows.len(), more), (2, true));
}

/// 12: by priority, then due time, then arrival.
pub async fn a_line_is_in_order(env: &dyn StoreEnv) {
    let store = env.store();
    let line = task(0).build().spec.head.line();
    let new = [
        task(1).priority(5).created(30).build(),
        task(2).priority(0).created(0).build(),
        task(3).priority(9).created(90).build(),
        task(4).priority(5).created(10).build(),
        task(5).priority(5).created(10).build(),
        task(6).priority(9).created(20).build(),
        task(7).priority(5).created(-10).build(),
    ];
    create(&*store, new.clone()).await;
    create(&*store, [task(8).kind("OTHER").priority(9).build()]).await;
    let expected: Vec<_> = [5, 2, 6, 3, 4, 0, 1].map(|i: usize| new[i].id).into();
    for limit in [1, 2, 100] {
        assert_eq!(ids(&pages::all_tasks(&*store, LANE, pages::line(line), limit).await), expected);
    }
}

/// 12: a known position need not be that of a task which is there.
pub async fn a_line_goes_on_after_a_position(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks(0..6);
    let line = new[0].spec.head.line();
    create(&*store, new.clone()).await;
    let (rows, _) = pages::task_page(&*store, LANE, pages::line(line), 3).await;
    let after = rows[2].order();
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(rows[2].id, &[Scheduled]).await;
    let read = LaneRead::Line { line, after: Some(after) };
    let rest = pages::all_tasks(&*store, LANE, read, 2).await;
    assert_eq!(ids(&rest), new_ids(&new[3..]));
}

/// 12: a line holds ready tasks, each at its old place.
pub async fn tasks_leave_their_line_when_assigned_and_come_back(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks(0..3);
    let line = pages::line(new[0].spec.head.line());
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new[0].id, &[Scheduled]).await;
    assert_eq!(ids(&pages::all_tasks(&*store, LANE, line.clone(), 10).await), new_ids(&new[1..]));
    assert_eq!(ids(&pages::all_tasks(&*store, LANE, pages::LINES, 10).await), [new[1].id]);
    owner.advance(new[0].id, &[Pending]).await;
    let rows = pages::all_tasks(&*store, LANE, line.clone(), 10).await;
    assert_eq!(ids(&rows), new_ids(&new));
    assert_eq!(rows[0].state.attempt.0, 1);
    for task in &new {
        owner.advance(task.id, &[Cancelled]).await;
    }
    assert_eq!(pages::all_tasks(&*store, LANE, line, 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::LINES, 10).await, []);
}

/// 12: by due time, then arrival; ready tasks are not among them.
pub async fn delayed_tasks_are_by_due_time(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [
        task(1).delay(3_000).build(),
        task(2).delay(1_000).priority(0).build(),
        task(3).build(),
        task(4).delay(2_000).kind("OTHER").build(),
        task(5).delay(1_000).priority(9).build(),
    ];
    create(&*store, new.clone()).await;
    let expected: Vec<_> = [1, 4, 3, 0].map(|i: usize| new[i].id).into();
    for limit in [1, 2, 3, 4, 100] {
        assert_eq!(ids(&pages::all_tasks(&*store, LANE, pages::DELAYED, limit).await), expected, "{limit}");
    }
    let read = LaneRead::Delayed { after: Some((at(1_500), Seq(u64::from(u32::MAX)))) };
    assert_eq!(ids(&pages::all_tasks(&*store, LANE, read, 1).await), [new[3].id, new[0].id]);
}

/// 12: a task that came due and could not be assigned moves by a change without a path.
pub async fn a_delayed_task_moves_to_its_line(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).delay(1_000).build();
    create(&*store, [new.clone(), task(2).created(5_000).build()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new.id, &new.state(), &[]);
    group.change.as_mut().unwrap().state.delayed = false;
    assert_eq!(owner.commit([group]).await, [APPLIED]);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::DELAYED, 10).await, []);
    let rows = pages::all_tasks(&*store, LANE, pages::line(new.spec.head.line()), 10).await;
    assert_eq!(ids(&rows), [new.id, task(2).id()]);
    assert!(!rows[0].state.delayed);
}

/// 12: after a step of the clock delayed tasks are moved by changes without a path, and found in their new order.
pub async fn a_delayed_task_is_found_at_its_new_time(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [task(1).delay(1_000).build(), task(2).delay(2_000).build(), task(3).delay(3_000).build()];
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    for (index, by, expected) in [(0, 1_500, [1, 0, 2]), (2, -2_900, [2, 1, 0])] {
        let mut group = changing(new[index].id, &new[index].state(), &[]);
        let by = Shift::from_millis(by);
        group.change.as_mut().unwrap().state.shift_by(by, by);
        assert_eq!(owner.commit([group]).await, [APPLIED]);
        for limit in [1, 10] {
            let rows = pages::all_tasks(&*store, LANE, pages::DELAYED, limit).await;
            assert_eq!(ids(&rows), expected.map(|index: usize| new[index].id), "{limit}");
        }
    }
}

/// 12: a retry waits for its time among the delayed tasks.
pub async fn a_retrying_task_is_delayed(env: &dyn StoreEnv) {
    let store = env.store();
    let new = task(1).build();
    create(&*store, [new.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let retrying = owner.advance(new.id, &[Scheduled, Dispatched, Running, Retrying]).await;
    let rows = pages::all_tasks(&*store, LANE, pages::DELAYED, 10).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].state, retrying);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::LINES, 10).await, []);
    // It came due and was assigned at once: over PENDING, in one step.
    owner.advance(new.id, &[Pending, Scheduled]).await;
    assert_eq!(pages::all_tasks(&*store, LANE, pages::DELAYED, 10).await, []);
    assert_eq!(pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, 10).await.len(), 1);
}

/// 12: every task at a worker, at whatever stage.
pub async fn in_flight_tasks_are_by_id(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks(0..7);
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let steps = [Scheduled, Dispatched, Running, Success];
    for (task, taken) in new.iter().zip([1, 2, 3, 4, 1, 2, 0]) {
        if taken > 0 {
            owner.advance(task.id, &steps[..taken]).await;
        }
    }
    let mut expected = new_ids(&[&new[..3], &new[4..6]].concat());
    expected.sort();
    for limit in [1, 2, 5, 100] {
        assert_eq!(ids(&pages::all_tasks(&*store, LANE, pages::IN_FLIGHT, limit).await), expected, "{limit}");
    }
}

/// 12: waiting tasks with a deadline, ready or delayed, up to a time; a task at a worker does not expire.
pub async fn waiting_tasks_expire_by_deadline(env: &dyn StoreEnv) {
    let store = env.store();
    let new = [
        task(1).start_timeout(300).build(),
        task(2).start_timeout(100).build(),
        task(3).build(),
        task(4).delay(100).start_timeout(100).build(),
        task(5).start_timeout(100).kind("OTHER").build(),
        task(6).start_timeout(900).build(),
    ];
    create(&*store, new.clone()).await;
    let expired =
        async |until, limit| ids(&pages::all_tasks(&*store, LANE, pages::expiring(at(until)), limit).await);
    let of = |indices: &[usize]| indices.iter().map(|i| new[*i].id).collect::<Vec<_>>();
    for limit in [1, 2, 100] {
        assert_eq!(expired(300, limit).await, of(&[1, 4, 3, 0]), "{limit}");
    }
    assert_eq!(expired(99, 10).await, []);
    assert_eq!(expired(100, 10).await, of(&[1, 4]));
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(new[1].id, &[Scheduled]).await;
    owner.advance(new[4].id, &[Cancelled]).await;
    assert_eq!(expired(300, 10).await, of(&[3, 0]));
    owner.advance(new[1].id, &[Pending]).await;
    assert_eq!(expired(300, 10).await, of(&[1, 3, 0]));
    let before = owner.advance(new[1].id, &[Scheduled, Dispatched, Running, Retrying]).await;
    let mut moved = changing(new[1].id, &before, &[]);
    moved.change.as_mut().unwrap().state.start_by = Some(at(250));
    assert_eq!(owner.commit([moved]).await, [APPLIED]);
    assert_eq!(expired(300, 10).await, of(&[3, 1, 0]));
    let mut without = changing(new[0].id, &new[0].state(), &[]);
    without.change.as_mut().unwrap().state.start_by = None;
    assert_eq!(owner.commit([without]).await, [APPLIED]);
    assert_eq!(expired(1_000, 1).await, of(&[3, 1, 5]));
}

/// 11, 12: commands in the order in which they were posted.
pub async fn the_inbox_is_in_order_of_arrival(env: &dyn StoreEnv) {
    let store = env.store();
    let commands: Vec<_> = (0..7).map(|n| cancel(task(n).id())).collect();
    store.post(LANE, &commands[..3]).await.unwrap();
    env.second().await.post(LANE, &commands[3..]).await.unwrap();
    for limit in [1, 2, 7, 100] {
        let inbox = pages::all_inbox(&*store, LANE, limit).await;
        assert_eq!(inbox.iter().map(|row| row.command.clone()).collect::<Vec<_>>(), commands);
        assert!(inbox.is_sorted_by(|a, b| a.seq < b.seq));
    }
}

/// 12: by kind, then key.
pub async fn records_are_by_key(env: &dyn StoreEnv) {
    let store = env.store();
    let mut owner = Owner::claim(&store, LANE).await;
    let keys = ["", "Z", "a", "aa", "a\u{1}", "b", "é", "漢"];
    let mut records: Vec<_> = keys.iter().map(|key| record(key, Some(key.as_bytes()))).collect();
    records.extend(keys.iter().map(|key| RecordChange {
        key: record_key(RecordKind::AppliedPolicy, key),
        value: Some(b"policy".to_vec()),
    }));
    let mut expected: Vec<_> = records.iter().map(|r| (r.key.clone(), r.value.clone().unwrap())).collect();
    expected.sort();
    records.reverse();
    assert_eq!(owner.commit([Group { records, ..Group::default() }]).await, [APPLIED]);
    for limit in [1, 3, 100] {
        assert_eq!(pages::all_records(&*store, LANE, limit).await, expected, "{limit}");
    }
}

/// An arrival, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ArrivalId {
    Task(TaskId),
    Command(TaskId),
}

fn what(rows: &[Arrival]) -> Vec<ArrivalId> {
    let what = |row: &Arrival| match row {
        Arrival::Task(row) => ArrivalId::Task(row.id),
        Arrival::Command(row) => {
            let tasklane_core::command::Command::Cancel { task } = row.command;
            ArrivalId::Command(task)
        }
    };
    rows.iter().map(what).collect()
}

/// 10: submits, inserts of commits and posts share one order.
pub async fn arrivals_are_tasks_and_commands_in_one_order(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks(0..4);
    create(&*store, [new[0].clone(), new[1].clone()]).await;
    store.post(LANE, &[cancel(new[1].id), cancel(new[0].id)]).await.unwrap();
    let mut owner = Owner::claim(&store, LANE).await;
    owner.commit([inserting(new[2].clone())]).await;
    store.post(LANE, &[cancel(new[2].id)]).await.unwrap();
    create(&*store, [new[3].clone()]).await;
    let expected = [
        ArrivalId::Task(new[0].id),
        ArrivalId::Task(new[1].id),
        ArrivalId::Command(new[1].id),
        ArrivalId::Command(new[0].id),
        ArrivalId::Task(new[2].id),
        ArrivalId::Command(new[2].id),
        ArrivalId::Task(new[3].id),
    ];
    for limit in [1, 2, 3, 7, 100] {
        let (rows, _) = pages::all_arrivals(&*store, LANE, Seq(0), limit).await.unwrap();
        assert_eq!(what(&rows), expected, "{limit}");
    }
}

/// 10: a task is shown with its present state, even a final one; a command that was done is not shown.
pub async fn arrivals_show_tasks_as_they_are_now(env: &dyn StoreEnv) {
    let store = env.store();
    let new = tasks([1, 2]);
    create(&*store, new.clone()).await;
    store.post(LANE, &[cancel(new[0].id), cancel(new[1].id)]).await.unwrap();
    let inbox = pages::all_inbox(&*store, LANE, 10).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut group = changing(new[0].id, &new[0].state(), &[Cancelled]);
    group.inbox_done = vec![inbox[0].seq];
    owner.commit([group]).await;
    let (rows, _) = pages::all_arrivals(&*store, LANE, Seq(0), 1).await.unwrap();
    let expected = [ArrivalId::Task(new[0].id), ArrivalId::Task(new[1].id), ArrivalId::Command(new[1].id)];
    assert_eq!(what(&rows), expected);
    let Arrival::Task(first) = &rows[0] else { panic!("{rows:?}") };
    assert_eq!(first.state.status, Cancelled);
    assert_eq!(first.body, Some(new[0].spec.body.clone()), "a small body is there");
}

/// 10: following from where the last page ended gives the new, once.
pub async fn arrivals_go_on_where_they_ended(env: &dyn StoreEnv) {
    let store = env.store();
    let (rows, mut after) = pages::all_arrivals(&*store, LANE, Seq(0), 10).await.unwrap();
    assert_eq!(rows, []);
    for round in 0..4 {
        let new = tasks([round * 2, round * 2 + 1]);
        create(&*store, new.clone()).await;
        let (rows, next) = pages::all_arrivals(&*store, LANE, after, 10).await.unwrap();
        assert_eq!(what(&rows), new.iter().map(|task| ArrivalId::Task(task.id)).collect::<Vec<_>>());
        let (rows, again) = pages::all_arrivals(&*store, LANE, next, 10).await.unwrap();
        assert_eq!((rows, again), (Vec::new(), next));
        after = next;
    }
}

/// 10: a reader that follows while many write sees everything, each once: nothing appears behind it.
pub async fn arrivals_under_concurrent_writers_appear_in_order(env: &dyn StoreEnv) {
    const WRITERS: u64 = 6;
    const ROUNDS: u64 = 12;
    let handles = [env.store(), env.second().await];
    let mut owner = Owner::claim(&handles[0], LANE).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&handles[usize::try_from(writer % 2).unwrap()]);
            tokio::spawn(async move {
                for round in 0..ROUNDS {
                    // Batches of different lengths, so that some take longer than others.
                    let first = (writer * ROUNDS + round) * 10;
                    submit(&*store, tasks(first..=first + writer)).await;
                    store.post(LANE, &[cancel(task(first).id())]).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let committing = tokio::spawn(async move {
        for round in 0..ROUNDS {
            owner.commit([inserting(task(100_000 + round).build())]).await;
            tokio::task::yield_now().await;
        }
    });
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = [1, 5, 1_000]
        .into_iter()
        .map(|limit| {
            let (store, done) = (Arc::clone(&handles[limit % 2]), Arc::clone(&done));
            tokio::spawn(async move { follow(&*store, limit, &done).await })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    committing.await.unwrap();
    done.store(true, Ordering::Release);
    let batches: u64 = (1..=WRITERS).sum();
    let expected = usize::try_from(batches * ROUNDS + WRITERS * ROUNDS + ROUNDS).unwrap();
    for reader in readers {
        let seen = reader.await.unwrap();
        assert_eq!(seen.len(), expected);
    }
}

/// Follows arrivals until `done`, and once more to the end.
async fn follow(store: &dyn Store, limit: usize, done: &AtomicBool) -> BTreeSet<Seq> {
    let mut seen = BTreeSet::new();
    let mut after = Seq(0);
    loop {
        let last_round = done.load(Ordering::Acquire);
        let (rows, next) = pages::all_arrivals(store, LANE, after, limit).await.unwrap();
        for row in rows {
            assert!(seen.insert(row.seq()), "{} was given twice", row.seq());
        }
        after = next;
        if last_round {
            return seen;
        }
        tokio::task::yield_now().await;
    }
}

/// 10: an arrival is at or below the cursor when it is read, or comes after it. A new owner begins this way.
pub async fn the_cursor_covers_what_was_there(env: &dyn StoreEnv) {
    let store = env.store();
    let numbers = create(&*store, tasks(0..3)).await;
    let cursor = pages::cursor(&*store, LANE).await;
    assert!(cursor >= numbers[2]);
    let next = create(&*store, tasks([3])).await[0];
    assert!(next > cursor);
    let (rows, _) = pages::all_arrivals(&*store, LANE, cursor, 10).await.unwrap();
    assert_eq!(what(&rows), [ArrivalId::Task(task(3).id())]);
    store.post(LANE, &[cancel(task(0).id())]).await.unwrap();
    let (rows, _) = pages::all_arrivals(&*store, LANE, next, 10).await.unwrap();
    assert_eq!(what(&rows), [ArrivalId::Command(task(0).id())]);
}

/// 10: a store may trim arrivals that its owner has seen, and answers so; it never shows a part of them.
pub async fn arrivals_behind_a_committed_cursor_are_complete(env: &dyn StoreEnv) {
    let store = env.store();
    let numbers = create(&*store, tasks(0..6)).await;
    let all: Vec<_> = (0..8).map(|n| ArrivalId::Task(task(n).id())).collect();
    let mut owner = Owner::claim(&store, LANE).await;
    // Some of them, all of them, and less than before.
    for (seen, kept) in [(2, 2), (6, 6), (4, 6)] {
        let mut commit = owner.next([]);
        commit.cursor = numbers[seen - 1];
        owner.send(&commit).await.unwrap();
        let rest = pages::all_arrivals(&*store, LANE, numbers[kept - 1], 1).await;
        let (rows, _) = rest.expect("the owner's own place is kept");
        assert_eq!(what(&rows), all[kept..6], "{seen}");
    }
    create(&*store, tasks(6..8)).await;
    owner.commit([]).await;
    for seen in 0..=6 {
        let after = if seen == 0 { Seq(0) } else { numbers[seen - 1] };
        match pages::all_arrivals(&*store, LANE, after, 3).await {
            Some((rows, _)) => assert_eq!(what(&rows), all[seen..], "{seen}"),
            None => assert!(seen < 6, "the owner's own place is kept"),
        }
    }
}

/// 12: the tasks that exist in the lane, in the order asked for.
pub async fn tasks_are_read_by_id(env: &dyn StoreEnv) {
    let store = env.store();
    create(&*store, tasks(0..4)).await;
    let foreign = TaskBuilder::new(OTHER_LANE, 1).build();
    create(&*store, [foreign.clone()]).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(task(1).id(), &[Cancelled]).await;
    let asked = vec![task(3).id(), task(77).id(), task(1).id(), foreign.id, task(0).id()];
    let (rows, more) = pages::task_page(&*store, LANE, LaneRead::Tasks { ids: asked }, 10).await;
    assert_eq!(ids(&rows), [task(3).id(), task(1).id(), task(0).id()]);
    assert_eq!(rows[1].state.status, Cancelled);
    assert!(!more);
    let (rows, _) = pages::task_page(&*store, LANE, LaneRead::Tasks { ids: Vec::new() }, 10).await;
    assert_eq!(rows, []);
}

/// 12: a body is there if it is not larger than asked for, in every kind of page.
pub async fn large_bodies_are_left_out(env: &dyn StoreEnv) {
    let store = env.store();
    let new = |n: u64, bytes| task(n).payload_bytes(bytes).start_timeout(10);
    let all = [
        new(1, 10).build(),
        new(2, 100_000).build(),
        new(3, 10).delay(10).build(),
        new(4, 100_000).delay(10).build(),
        new(5, 10).kind("OTHER").build(),
        new(6, 100_000).kind("OTHER").build(),
    ];
    create(&*store, all.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    owner.advance(all[4].id, &[Scheduled]).await;
    owner.advance(all[5].id, &[Scheduled]).await;
    let reads = [
        (pages::line(all[0].spec.head.line()), 2),
        (pages::DELAYED, 2),
        (pages::IN_FLIGHT, 2),
        (pages::expiring(at(1_000)), 4),
        (LaneRead::Tasks { ids: new_ids(&all) }, 6),
        (LaneRead::Arrivals { after: Seq(0) }, 6),
    ];
    for (read, expected) in reads {
        for (body_bytes_max, share) in [(0, 0), (50_000, 2), (1 << 20, 1)] {
            let load = LoadQuery { lane: LANE, read: read.clone(), limit: 10, body_bytes_max };
            let rows = match store.load(load).await.unwrap() {
                LanePage::Tasks { rows, .. } => rows,
                LanePage::Arrivals { rows, .. } => rows.into_iter().map(task_of).collect(),
                other => panic!("{other:?}"),
            };
            assert_eq!(rows.len(), expected, "{read:?}");
            let bodies = rows.iter().filter(|row| row.body.is_some()).count();
            assert_eq!(bodies, expected.checked_div(share).unwrap_or(0), "{read:?} {body_bytes_max}");
            for row in rows {
                let new = all.iter().find(|new| new.id == row.id).unwrap();
                assert!(row.body.is_none_or(|body| body == new.spec.body));
            }
        }
    }
}

fn task_of(arrival: Arrival) -> TaskRow {
    match arrival {
        Arrival::Task(row) => row,
        Arrival::Command(row) => panic!("{row:?}"),
    }
}

/// 12: whatever the kind of page.
pub async fn a_lane_shows_nothing_of_another(env: &dyn StoreEnv) {
    let store = env.store();
    let new = |lane: LaneId, n| TaskBuilder::new(lane, n).start_timeout(10);
    for lane in [LaneId(LANE.0 - 1), OTHER_LANE] {
        let foreign = [new(lane, 1).build(), new(lane, 2).delay(10).build(), new(lane, 3).build()];
        create(&*store, foreign.clone()).await;
        store.post(lane, &[cancel(foreign[0].id)]).await.unwrap();
        let mut owner = Owner::claim(&store, lane).await;
        owner.advance(foreign[2].id, &[Scheduled]).await;
        owner.commit([Group { records: vec![record("a", Some(b"1"))], ..Group::default() }]).await;
    }
    is_empty(&*store, LANE).await;
}

/// 12: a question about a lane that was never used is answered.
pub async fn an_unused_lane_is_empty(env: &dyn StoreEnv) {
    is_empty(&*env.store(), LANE).await;
    let cursor = pages::cursor(&*env.store(), LANE).await;
    assert!(create(&*env.store(), tasks([1])).await[0] > cursor);
}

async fn is_empty(store: &dyn Store, lane: LaneId) {
    let of_line = pages::line(task(1).build().spec.head.line());
    for read in [pages::LINES, of_line, pages::DELAYED, pages::IN_FLIGHT, pages::expiring(at(1_000_000))] {
        assert_eq!(pages::all_tasks(store, lane, read.clone(), 10).await, [], "{read:?}");
    }
    assert_eq!(pages::all_inbox(store, lane, 10).await, []);
    assert_eq!(pages::all_records(store, lane, 10).await, []);
    assert_eq!(pages::all_arrivals(store, lane, Seq(0), 10).await.unwrap().0, []);
}
