//! Strategies: the worker that gets a task.

use tasklane_core::id::TaskId;
use tasklane_core::lane::Reason;
use tasklane_core::policy::{Strategy, WhenFull};
use tasklane_core::status::Status;
use tasklane_sim::harness::{Story, Worker, task};

fn with_strategy(strategy: Strategy) -> Story {
    let lane = Story::new();
    lane.policy(|p| p.strategy = strategy);
    lane
}

/// How many of the tasks each worker got.
fn shares(workers: &[&Worker]) -> Vec<usize> {
    workers.iter().map(|worker| worker.takes().len()).collect()
}

fn worker_of(lane: &Story, id: TaskId) -> String {
    lane.stored(id).worker.map_or(String::new(), |name| name.to_string())
}

#[test]
fn round_robin_gives_each_its_turn() {
    let lane = with_strategy(Strategy::RoundRobin);
    let (w1, w2, w3) = (lane.worker("w1", 9), lane.worker("w2", 9), lane.worker("w3", 9));
    for _ in 0..3 {
        let ids = lane.submit_all((0..3).map(|_| task()));
        assert_eq!(shares(&[&w1, &w2, &w3]), [1, 1, 1], "{ids:?}");
    }
}

#[test]
fn round_robin_passes_over_who_has_no_room() {
    let lane = with_strategy(Strategy::RoundRobin);
    let (w1, w2) = (lane.worker("w1", 1), lane.worker("w2", 9));
    lane.submit_all((0..6).map(|_| task()));
    assert_eq!(shares(&[&w1, &w2]), [1, 5]);
}

#[test]
fn least_load_fills_workers_to_the_same_share() {
    let lane = with_strategy(Strategy::LeastLoad);
    let (large, small) = (lane.worker("large", 10), lane.worker("small", 2));
    lane.submit_all((0..6).map(|_| task()));
    assert_eq!(shares(&[&large, &small]), [5, 1]);
}

#[test]
fn random_leaves_nobody_out() {
    let lane = with_strategy(Strategy::Random);
    let (w1, w2) = (lane.worker("w1", 200), lane.worker("w2", 200));
    lane.submit_all((0..200).map(|_| task()));
    let shares = shares(&[&w1, &w2]);
    assert_eq!(shares.iter().sum::<usize>(), 200);
    assert!(shares.iter().all(|share| (70..=130).contains(share)), "{shares:?}");
}

#[test]
fn weighted_gives_in_proportion() {
    let lane = with_strategy(Strategy::Weighted);
    let light = lane.worker("light", 300);
    let heavy = lane.worker_with("heavy", 300, |d| d.weight = 9);
    let none = lane.worker_with("none", 300, |d| d.weight = 0);
    lane.submit_all((0..300).map(|_| task()));
    assert_eq!(shares(&[&light, &heavy, &none]), [30, 270, 0]);
}

/// The owner used to draw by chance: 30 tasks over weights 1, 1 and 4 went 9, 13 and 8.
#[test]
fn weighted_is_smooth() {
    let lane = with_strategy(Strategy::Weighted);
    let (w1, w2) = (lane.worker("w1", 20), lane.worker("w2", 20));
    let w3 = lane.worker_with("w3", 20, |d| d.weight = 4);
    for _ in 0..5 {
        lane.submit_all((0..6).map(|_| task()));
        assert_eq!(shares(&[&w1, &w2, &w3]), [1, 1, 4]);
    }
}

#[test]
fn turns_are_those_of_a_queue() {
    let lane = with_strategy(Strategy::RoundRobin);
    lane.policy_of("other", |p| p.strategy = Strategy::RoundRobin);
    let (w1, w2) = (lane.worker("w1", 9), lane.worker("w2", 9));
    for _ in 0..3 {
        lane.submit_all([task(), task().queue("other")]);
    }
    lane.submit(task());
    let of_queue =
        |worker: &Worker| worker.mailbox().iter().filter(|d| d.head.queue.queue.as_str() == "other").count();
    let mut other = [of_queue(&w1), of_queue(&w2)];
    other.sort_unstable();
    assert_eq!(other, [1, 2]);
    let mut all = shares(&[&w1, &w2]);
    all.sort_unstable();
    assert_eq!(all, [3, 4]);
}

/// Three idle workers that have room for one task each before a demand, and more tasks than that.
fn burst(strategy: Strategy, count: usize) -> (Story, [Worker; 3]) {
    let lane = with_strategy(strategy);
    let workers = ["w1", "w2", "w3"].map(|name| lane.sparing_worker(name, 20));
    lane.submit_all((0..count).map(|_| task()));
    assert_eq!(
        shares(&workers.each_ref()),
        [0, 0, 0],
        "more tasks than room: the lane asks all workers first"
    );
    (lane, workers)
}

/// Workers have room for a task or two of each lane. The first worker asked for more used to get all the rest
/// of a burst.
#[test]
fn a_burst_is_spread_over_all_that_were_asked() {
    for strategy in [Strategy::LeastLoad, Strategy::RoundRobin, Strategy::Weighted] {
        let (_lane, [w1, w2, w3]) = burst(strategy, 30);
        w1.gives(19, 0);
        assert_eq!(shares(&[&w1, &w2, &w3]), [0, 0, 0], "there is not room for all yet");
        w2.gives(19, 0);
        // There is room for all. The first two get no more than their own share before the third has
        // answered.
        let early = shares(&[&w1, &w2, &w3]);
        assert!(early.iter().all(|got| *got <= 2), "{strategy:?}: {early:?}");
        w3.gives(19, 0);
        let rest = shares(&[&w1, &w2, &w3]);
        let got = early.iter().zip(&rest).map(|(early, rest)| early + rest).collect::<Vec<_>>();
        assert_eq!(got, [10, 10, 10], "{strategy:?}");
    }
}

#[test]
fn a_task_does_not_wait_for_an_answer_for_long() {
    let (lane, [w1, w2, w3]) = burst(Strategy::LeastLoad, 9);
    w1.gives(19, 0);
    let early: usize = shares(&[&w1, &w2, &w3]).iter().sum();
    assert!(early < 9);
    lane.advance_millis(19);
    assert_eq!(shares(&[&w1, &w2, &w3]), [0, 0, 0]);
    lane.advance_millis(1);
    assert_eq!(shares(&[&w1, &w2, &w3]), [9 - early, 0, 0], "all that was left");
    assert_eq!(lane.counters().answer_late, 2);
    // A slow worker is asked again, and no task waits for it.
    lane.submit_all((0..3).map(|_| task()));
    assert_eq!(shares(&[&w1, &w2, &w3]), [3, 0, 0]);
}

#[test]
fn nothing_waits_for_a_worker_without_room() {
    let (lane, [w1, w2, w3]) = burst(Strategy::RoundRobin, 9);
    w2.gives(0, 19);
    w3.gives(0, 19);
    w1.gives(19, 0);
    assert_eq!(shares(&[&w1, &w2, &w3]), [7, 1, 1]);
    lane.submit(task());
    assert_eq!(shares(&[&w1, &w2, &w3]), [1, 0, 0]);
    // They raise their credit by themselves when they have room.
    w2.gives(1, 18);
    lane.submit_all([task(), task()]);
    assert_eq!(shares(&[&w1, &w2, &w3]), [1, 1, 0]);
}

#[test]
fn nothing_waits_for_a_worker_that_leaves() {
    let (_lane, [w1, w2, w3]) = burst(Strategy::LeastLoad, 9);
    w2.offers(|d| d.draining = true);
    w3.dies();
    w1.gives(19, 0);
    assert_eq!(w1.takes().len(), 9);
}

#[test]
fn what_a_worker_does_for_other_lanes_counts() {
    let (_lane, [w1, w2, w3]) = burst(Strategy::LeastLoad, 12);
    w1.gives(19, 6);
    w2.gives(19, 0);
    w3.gives(19, 2);
    // Seven, six and seven in all.
    assert_eq!(shares(&[&w1, &w2, &w3]), [1, 6, 5]);
}

/// The first tasks of a burst used to leave with the demand. Workers that were busy starting them answered
/// too late.
#[test]
fn a_burst_waits_no_longer_than_for_its_answers() {
    let (lane, workers) = burst(Strategy::RoundRobin, 30);
    lane.advance_millis(19);
    assert_eq!(shares(&workers.each_ref()), [0, 0, 0]);
    lane.advance_millis(1);
    assert_eq!(shares(&workers.each_ref()), [1, 1, 1], "no worker answered: as many as there is room for");
    let (_lane, [w1, w2, w3]) = burst(Strategy::RoundRobin, 30);
    w2.offers(|d| d.draining = true);
    w3.dies();
    assert_eq!(shares(&[&w1, &w2]), [1, 0], "no worker is left to compare with");
}

#[test]
fn a_burst_onto_busy_workers_does_not_wait() {
    let lane = with_strategy(Strategy::LeastLoad);
    let (w1, w2) = (lane.worker("w1", 4), lane.worker("w2", 4));
    lane.submit(task());
    assert_eq!(shares(&[&w1, &w2]).iter().sum::<usize>(), 1);
    lane.submit_all((0..30).map(|_| task()));
    assert_eq!(shares(&[&w1, &w2]).iter().sum::<usize>(), 7);
}

#[test]
fn one_task_goes_at_once_to_a_worker_with_room() {
    let lane = with_strategy(Strategy::LeastLoad);
    let (w1, w2) = (lane.sparing_worker("w1", 20), lane.sparing_worker("w2", 20));
    let first = lane.submit(task());
    assert_eq!(lane.status(first), Status::Scheduled);
    let home = if worker_of(&lane, first) == "w1" { &w1 } else { &w2 };
    assert_eq!(home.works_off(), [first]);
    let second = lane.submit(task());
    assert_eq!(lane.status(second), Status::Scheduled);
    assert_eq!(lane.counters().choice_waited, 0);
}

#[test]
fn workers_without_weight_still_work_when_there_is_nobody_else() {
    let lane = with_strategy(Strategy::Weighted);
    let w1 = lane.worker_with("w1", 5, |d| d.weight = 0);
    lane.submit_all((0..5).map(|_| task()));
    assert_eq!(w1.takes().len(), 5);
}

const WAIT: Strategy = Strategy::ConsistentHash { when_full: WhenFull::Wait };
const NEXT: Strategy = Strategy::ConsistentHash { when_full: WhenFull::Next };

/// The worker that tasks with key `k` go to, and the other one.
fn home_of_k(lane: &Story, capacity: u32) -> (Worker, Worker) {
    let (w1, w2) = (lane.worker("w1", capacity), lane.worker("w2", capacity));
    let probe = lane.submit(task().hash_key("k"));
    let (home, other) = if worker_of(lane, probe) == "w1" { (w1, w2) } else { (w2, w1) };
    assert_eq!(home.works_off(), [probe]);
    (home, other)
}

#[test]
fn the_same_key_goes_to_the_same_worker() {
    for strategy in [WAIT, NEXT] {
        let lane = with_strategy(strategy);
        let (home, other) = home_of_k(&lane, 9);
        let ids = lane.submit_all((0..5).map(|_| task().hash_key("k")));
        assert_eq!(home.takes(), ids);
        assert!(other.takes().is_empty());
    }
}

#[test]
fn keys_are_spread_over_the_workers() {
    let lane = with_strategy(WAIT);
    let (w1, w2) = (lane.worker("w1", 100), lane.worker("w2", 100));
    lane.submit_all((0..100).map(|n| task().hash_key(&n.to_string())));
    let shares = shares(&[&w1, &w2]);
    assert_eq!(shares.iter().sum::<usize>(), 100);
    assert!(shares.iter().all(|share| *share > 25), "{shares:?}");
}

#[test]
fn a_key_waits_for_its_worker_and_hides_no_other_key() {
    let lane = with_strategy(WAIT);
    let (home, other) = home_of_k(&lane, 1);
    let first = lane.submit(task().hash_key("k"));
    let second = lane.submit(task().hash_key("k"));
    assert_eq!(home.runs(), [first]);
    assert!(other.takes().is_empty());
    assert_eq!(lane.explain(second)[0], Reason::AllFull { workers: 1 });
    let elsewhere = (0..).map(|n| lane.submit(task().hash_key(&n.to_string())));
    let elsewhere = elsewhere.take(20).find(|id| lane.status(*id) != Status::Pending);
    assert_eq!(other.takes(), Vec::from_iter(elsewhere));
    home.finishes(first);
    assert!(home.takes().contains(&second));
}

#[test]
fn a_key_takes_the_next_worker_when_its_own_has_no_room() {
    let lane = with_strategy(NEXT);
    let (home, other) = home_of_k(&lane, 1);
    let ids = lane.submit_all((0..3).map(|_| task().hash_key("k")));
    assert_eq!(home.runs(), [ids[0]]);
    assert_eq!(other.runs(), [ids[1]]);
    home.finishes(ids[0]);
    assert_eq!(home.takes(), [ids[2]]);
}

#[test]
fn a_key_stays_with_its_worker_over_a_restart_of_the_same_name() {
    for strategy in [WAIT, NEXT] {
        let lane = with_strategy(strategy);
        let (home, other) = home_of_k(&lane, 1);
        let home = home.restarts();
        let id = lane.submit(task().hash_key("k"));
        assert_eq!(home.takes(), [id]);
        assert!(other.takes().is_empty());
    }
}

#[test]
fn a_key_whose_worker_is_gone_goes_to_another() {
    let lane = with_strategy(WAIT);
    let (home, other) = home_of_k(&lane, 1);
    let running = lane.submit(task().hash_key("k"));
    let waiting = lane.submit(task().hash_key("k"));
    home.runs();
    home.dies();
    assert_eq!(other.runs(), [running]);
    other.finishes(running);
    assert_eq!(other.runs(), [waiting]);
}

#[test]
fn a_task_without_a_key_goes_to_whoever_has_least_to_do() {
    let lane = with_strategy(WAIT);
    let (w1, w2) = (lane.worker("w1", 4), lane.worker("w2", 4));
    lane.submit_all((0..4).map(|_| task()));
    assert_eq!(shares(&[&w1, &w2]), [2, 2]);
}

#[test]
fn a_changed_strategy_applies_to_waiting_tasks() {
    let lane = with_strategy(WAIT);
    let (home, other) = home_of_k(&lane, 1);
    let ids = lane.submit_all((0..2).map(|_| task().hash_key("k")));
    assert_eq!(home.takes(), [ids[0]]);
    assert!(other.takes().is_empty());
    lane.policy(|p| p.strategy = Strategy::LeastLoad);
    assert_eq!(other.takes(), [ids[1]]);
}
