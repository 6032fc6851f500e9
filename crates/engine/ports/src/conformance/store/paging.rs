//! Pages are bounded, and following them gives each entry that existed throughout, once, whatever changes
//! meanwhile.

use std::collections::BTreeSet;

use tasklane_core::commit::Group;
use tasklane_core::id::{Seq, TaskId};
use tasklane_core::read::{Arrival, LaneRead};
use tasklane_core::status::Status::{Cancelled, Scheduled};

use crate::conformance::fixture::{APPLIED, LANE, Owner, at, cancel, changing, create, record, task, tasks};
use crate::conformance::{StoreEnv, pages};
use crate::{TaskCursor, TaskFilter, TaskList};

/// 12: with one row a page, as with a thousand.
pub async fn tiny_pages_of_every_kind_give_everything_once(env: &dyn StoreEnv) {
    let store = env.store();
    let mut new = Vec::new();
    for number in 0..8 {
        let kind = ["A", "B", "C"][usize::try_from(number % 3).unwrap()];
        new.push(task(number).kind(kind).start_timeout(1_000).build());
        new.push(task(100 + number).kind(kind).delay(10 + number / 2).build());
        new.push(task(200 + number).build());
    }
    create(&*store, new.clone()).await;
    store.post(LANE, &new.iter().map(|task| cancel(task.id)).collect::<Vec<_>>()).await.unwrap();
    let mut owner = Owner::claim(&store, LANE).await;
    for number in 200..208 {
        owner.advance(task(number).id(), &[Scheduled]).await;
    }
    let records = (0..8).map(|n| record(&n.to_string(), Some(b"1"))).collect();
    owner.commit([Group { records, ..Group::default() }]).await;

    let line = new[0].spec.head.line();
    for (read, expected) in [
        (pages::LINES, 3),
        (pages::line(line), 3),
        (pages::DELAYED, 8),
        (pages::IN_FLIGHT, 8),
        (pages::expiring(at(2_000)), 8),
    ] {
        let all = pages::all_tasks(&*store, LANE, read.clone(), 1_000).await;
        assert_eq!(all.len(), expected, "{read:?}");
        for limit in [1, 2, 3] {
            assert_eq!(pages::all_tasks(&*store, LANE, read.clone(), limit).await, all, "{read:?} {limit}");
        }
    }
    let inbox = pages::all_inbox(&*store, LANE, 1_000).await;
    let records = pages::all_records(&*store, LANE, 1_000).await;
    let arrivals = pages::all_arrivals(&*store, LANE, Seq(0), 1_000).await.unwrap().0;
    assert_eq!((inbox.len(), records.len(), arrivals.len()), (24, 8, 48));
    for limit in [1, 2, 3] {
        assert_eq!(pages::all_inbox(&*store, LANE, limit).await, inbox);
        assert_eq!(pages::all_records(&*store, LANE, limit).await, records);
        assert_eq!(pages::all_arrivals(&*store, LANE, Seq(0), limit).await.unwrap().0, arrivals);
    }
}

/// 12: tasks before and after the reader's place come and go; the remaining tasks are given once.
pub async fn pages_of_a_line_while_it_changes(env: &dyn StoreEnv) {
    let store = env.store();
    let stay = tasks(0..10);
    let go = tasks(100..110);
    let line = stay[0].spec.head.line();
    let both: Vec<_> = stay.iter().zip(&go).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    create(&*store, both).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut seen: Vec<TaskId> = Vec::new();
    let mut after = None;
    for round in 0.. {
        let (rows, more) = pages::task_page(&*store, LANE, LaneRead::Line { line, after }, 2).await;
        seen.extend(rows.iter().map(|row| row.id));
        after = rows.last().map(tasklane_core::task::TaskRow::order).or(after);
        if !more {
            break;
        }
        // One leaves at either end, and a more and a less urgent one come.
        if round < 5 {
            for task in [&go[round], &go[9 - round]] {
                let group = changing(task.id, &task.state(), &[Cancelled]);
                assert_eq!(owner.commit([group]).await, [APPLIED]);
            }
        }
        let number = 1_000 + 2 * round as u64;
        create(&*store, [task(number).priority(9).build(), task(number + 1).priority(0).build()]).await;
        assert!(round < 100, "the line does not end");
    }
    let once: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(once.len(), seen.len(), "given twice");
    for task in stay {
        assert!(once.contains(&task.id), "{} was there throughout", task.id);
    }
}

/// 12: tasks that come due while the reader pages.
pub async fn pages_of_delayed_tasks_while_they_move(env: &dyn StoreEnv) {
    let store = env.store();
    let new: Vec<_> = (0..12).map(|n| task(n).delay(100 * (n + 1)).build()).collect();
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut seen = Vec::new();
    let mut after = None;
    for due in &new {
        let (rows, more) = pages::task_page(&*store, LANE, LaneRead::Delayed { after }, 3).await;
        seen.extend(rows.iter().map(|row| row.id));
        after = rows.last().map(|row| (row.state.due, row.seq)).or(after);
        // The first that is still delayed moves to its line.
        let mut group = changing(due.id, &due.state(), &[]);
        group.change.as_mut().unwrap().state.delayed = false;
        assert_eq!(owner.commit([group]).await, [APPLIED]);
        if !more {
            break;
        }
    }
    assert_eq!(seen, new.iter().map(|task| task.id).collect::<Vec<_>>());
}

/// 12: a reader of the list is not disturbed by newer tasks, nor by changes of state.
pub async fn pages_of_the_list_while_tasks_come(env: &dyn StoreEnv) {
    let store = env.store();
    let new: Vec<_> = (0..9).map(|n| task(n).created(i64::try_from(n).unwrap() / 2).build()).collect();
    create(&*store, new.clone()).await;
    let mut owner = Owner::claim(&store, LANE).await;
    let mut seen = Vec::new();
    let mut after: Option<TaskCursor> = None;
    for round in 0..100 {
        let list = TaskList { filter: TaskFilter::default(), after, limit: 2 };
        let page = store.list(list).await.unwrap();
        seen.extend(page.tasks.iter().map(|row| row.id));
        create(&*store, [task(1_000 + round).created(1_000).build()]).await;
        if let Some(task) = new.get(usize::try_from(round).unwrap()) {
            owner.advance(task.id, &[Cancelled]).await;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut expected = new.clone();
    expected.sort_by_key(|task| std::cmp::Reverse((task.created_at, task.id)));
    assert_eq!(seen, expected.iter().map(|task| task.id).collect::<Vec<_>>());
    let (rows, _) = pages::all_arrivals(&*store, LANE, Seq(0), 4).await.unwrap();
    assert!(rows.iter().all(|row| matches!(row, Arrival::Task(_))));
}
