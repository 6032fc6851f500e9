//! The keys of a queue, as readers see them.

use std::time::Duration;

use tasklane_core::lane::{KeyInfo, KeyPosition};
use tasklane_core::policy::Rate;
use tasklane_sim::harness::{Story, queue, task};

use crate::{at_once, at_once_by_user, per_second_by_user};

fn keys(lane: &Story) -> Vec<KeyInfo> {
    lane.machine().keys(&queue("q"), None, 100)
}

#[test]
fn each_key_shows_what_runs_and_waits_and_when_the_next_may_start() {
    let lane = Story::new();
    lane.policy(|p| {
        p.concurrency = vec![at_once(9), at_once_by_user(2)];
        p.rate = vec![per_second_by_user(1, 1)];
    });
    let w1 = lane.worker("w1", 9);
    lane.submit_all((0..3).map(|_| task().flow("user", "alice")));
    lane.submit(task().flow("user", "bob"));
    let now = lane.now();
    w1.runs();
    let mut keys = keys(&lane);
    keys.sort_by_key(|key| key.position.key.clone());
    let shown: Vec<_> =
        keys.iter().map(|k| (&*k.position.key, k.running, k.waiting, k.more_waiting)).collect();
    assert_eq!(shown, [("", 2, 2, false), ("alice", 1, 2, false), ("bob", 1, 0, false)]);
    assert_eq!(keys[0].template, None);
    assert_eq!(keys[1].template.as_deref(), Some("user"));
    assert_eq!(keys[1].concurrency.map(|c| c.limit), Some(2));
    let rate = Rate { limit: 1, per: Duration::from_secs(1), burst: 1 };
    assert_eq!(keys[1].rate, Some((rate, now + Duration::from_secs(1))));
}

#[test]
fn pages_of_keys_follow_one_another() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    lane.submit_all((0..10).map(|n| task().flow("user", &format!("u{n}"))));
    lane.submit(task().queue("other").flow("user", "elsewhere"));
    let (mut seen, mut after): (Vec<KeyPosition>, _) = (Vec::new(), None);
    loop {
        let page = lane.machine().keys(&queue("q"), after, 3);
        let Some(last) = page.last() else { break };
        after = Some(last.position.clone());
        seen.extend(page.into_iter().map(|key| key.position));
    }
    assert_eq!(seen.len(), 10);
    assert!(seen.is_sorted());
}

#[test]
fn limits_that_tasks_bring_along_are_shown_too() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    lane.submit_all((0..3).map(|_| task().own_limit("api", "api", 2)));
    w1.runs();
    let keys = keys(&lane);
    assert_eq!((keys.len(), keys[0].running, keys[0].waiting), (1, 2, 1));
    assert_eq!((keys[0].template.clone(), keys[0].concurrency.map(|c| c.limit)), (None, Some(2)));
}

#[test]
fn keys_without_tasks_are_not_kept() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let w1 = lane.worker("w1", 50);
    lane.submit_all((0..100).map(|n| task().flow("user", &format!("u{n}"))));
    assert_eq!(w1.works_off().len(), 100);
    assert!(keys(&lane).is_empty());
    assert_eq!(lane.machine().lines_in_memory(), (0, 0));
}
