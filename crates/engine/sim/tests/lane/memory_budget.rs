//! The memory budget over all lines and queues: many lines share it, idle queues are forgotten.

use tasklane_core::id::TaskId;
use tasklane_sim::harness::{Make, Story, task};

use crate::{at_once, per_second};

fn of_user(user: usize) -> Make {
    task().flow("user", &user.to_string())
}

fn sorted(mut ids: Vec<TaskId>) -> Vec<TaskId> {
    ids.sort_unstable();
    ids
}

#[test]
fn many_lines_share_the_room_and_all_go_on_at_once() {
    let lane = Story::with(|o| (o.window, o.tasks_max, o.page) = (64, 200, 16));
    let mut ids = lane.store_all((0..2000).map(|n| of_user(n % 20)));
    lane.hint();
    assert!(lane.machine().tasks_in_memory() <= 200, "{}", lane.machine().tasks_in_memory());
    ids.extend(lane.submit_all((0..1000).map(|n| of_user(n % 20))));
    assert!(lane.machine().tasks_in_memory() <= 200, "{}", lane.machine().tasks_in_memory());
    assert_eq!(lane.machine().lines_in_memory().0, 20, "none is left out");
    let w1 = lane.worker("w1", 20);
    let now = lane.now();
    assert_eq!(sorted(w1.works_off()), sorted(ids));
    assert_eq!(lane.now(), now, "no time passes");
}

#[test]
fn windows_are_cut_when_lines_become_many() {
    let lane = Story::with(|o| (o.window, o.tasks_max, o.page) = (64, 200, 16));
    let mut ids = Vec::new();
    for user in 0..20 {
        ids.extend(lane.submit_all((0..100).map(|_| of_user(user))));
        let held = lane.machine().tasks_in_memory();
        assert!(held <= 200, "{held} tasks in memory of {} users", user + 1);
    }
    assert!(lane.counters().window_evicted > 0);
    let w1 = lane.worker("w1", 3);
    assert_eq!(sorted(w1.works_off()), sorted(ids));
}

#[test]
fn what_cannot_run_leaves_room_for_what_can() {
    let lane = Story::with(|o| (o.window, o.tasks_max, o.page) = (64, 200, 16));
    let w1 = lane.worker("w1", 1);
    lane.store_all((0..2000).map(|n| task().of_type(&format!("nobody-{}", n % 20))));
    lane.hint();
    let now = lane.now();
    let ids = [lane.submit(task()), lane.arrive(task()), lane.submit(of_user(1)), lane.arrive(of_user(2))];
    assert_eq!(w1.works_off(), ids);
    assert_eq!(lane.now(), now, "no time passes");
    assert!(lane.machine().tasks_in_memory() <= 200);
}

#[test]
fn more_lines_than_there_is_room_for_are_all_served() {
    let lane = Story::with(|o| (o.window, o.tasks_max, o.page) = (64, 100, 8));
    let ids = lane.store_all((0..2000).map(|n| of_user(n % 200)));
    lane.takeover();
    let (held, lines) = (lane.machine().tasks_in_memory(), lane.machine().lines_in_memory().0);
    assert!(held <= 200 && lines < 200, "{held} tasks and {lines} lines in memory");
    let w1 = lane.worker("w1", 10);
    let mut done = w1.works_off();
    for _ in 0..50 {
        assert!(lane.machine().tasks_in_memory() <= 200);
        lane.advance(5);
        done.extend(w1.works_off());
    }
    assert_eq!(sorted(done), sorted(ids));
    assert_eq!(lane.machine().tasks_in_memory(), 0);
}

#[test]
fn a_line_that_can_run_finds_room_among_many_that_cannot() {
    let lane = Story::with(|o| (o.window, o.tasks_max, o.page) = (64, 100, 8));
    let w1 = lane.worker("w1", 1);
    lane.store_all((0..2000).map(|n| task().of_type(&format!("nobody-{}", n % 200))));
    lane.takeover();
    let id = lane.arrive(task());
    lane.advance(120);
    assert_eq!(w1.takes(), [id]);
}

#[test]
fn idle_queues_are_forgotten() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 4);
    for n in 0..5000 {
        lane.submit(task().queue(&format!("queue-{n}")));
        assert_eq!(w1.works_off().len(), 1);
        assert!(lane.machine().queues_in_memory() <= 1100, "bounded, also between sweeps");
    }
    let waiting = lane.submit(task().queue("waits").of_type("nobody"));
    lane.advance(5);
    assert_eq!(lane.machine().queues_in_memory(), 1);
    lane.cancel(waiting);
    lane.advance(5);
    assert_eq!(lane.machine().queues_in_memory(), 0);
}

#[test]
fn a_forgotten_queue_has_its_policy_when_it_is_used_again() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 4);
    lane.policy(|p| p.concurrency = vec![at_once(1)]);
    for _ in 0..2 {
        lane.submit_all([task(), task()]);
        assert_eq!(w1.mailbox().len(), 1, "one at once");
        assert_eq!(w1.works_off().len(), 2);
        lane.advance(5);
        assert_eq!((lane.machine().queues_in_memory(), lane.machine().lines_in_memory()), (0, (0, 0)));
    }
    lane.policy(|p| p.concurrency = vec![at_once(2)]);
    lane.submit_all([task(), task(), task()]);
    assert_eq!(w1.runs().len(), 2);
}

#[test]
fn a_queue_is_kept_while_its_rate_is_not_full() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 50);
    lane.policy(|p| p.rate = vec![per_second(1, 20)]);
    lane.submit_all((0..20).map(|_| task()));
    assert_eq!(w1.works_off().len(), 20, "the burst");
    lane.advance(10);
    assert_eq!(lane.machine().queues_in_memory(), 1);
    lane.submit_all((0..20).map(|_| task()));
    assert_eq!(w1.works_off().len(), 10, "the rate of ten seconds");
    lane.advance(45);
    assert_eq!(w1.works_off().len(), 10);
    lane.advance(30);
    assert_eq!((lane.machine().queues_in_memory(), lane.machine().lines_in_memory()), (0, (0, 0)));
}
