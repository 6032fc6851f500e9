//! Stories about the ownership machine: how a server takes, keeps, loses and gives back a lane. The test
//! itself plays the store, the coordinator and the clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::commit::{ClaimLane, Commit, GroupOutcome, LaneHead, SubmitOutcome};
use tasklane_core::id::{CommitNo, Epoch, LaneId, Name, OwnerId, QueueKey, Seq, TaskId};
use tasklane_core::lane::SubmitToken;
use tasklane_core::ownership::{
    CallError, Effect, Input, Ownership, OwnershipOptions, PackLimits, Reply, Request,
};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{Fingerprint, NewTask, Priority, TaskBody, TaskHead, TaskSpec};
use tasklane_core::time::Timestamp;

const LANE: LaneId = LaneId(3);

/// A server and one lane.
struct Stage {
    machine: Ownership,
    now: Timestamp,
    /// Calls to the store without an answer.
    calls: VecDeque<(u64, Request)>,
    /// Other effects since the last look.
    asked: Vec<Asked>,
    answers: BTreeMap<SubmitToken, Option<Vec<SubmitOutcome>>>,
    epoch: u64,
    seq: u64,
    tasks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Acquire,
    Release,
    Members,
    Parked(u32),
}

impl Stage {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut OwnershipOptions)) -> Self {
        let mut options = OwnershipOptions::default();
        change(&mut options);
        Self {
            machine: Ownership::new(options, LANE, 1, Timestamp::ZERO),
            now: Timestamp::ZERO,
            calls: VecDeque::new(),
            asked: Vec::new(),
            answers: BTreeMap::new(),
            epoch: 6,
            seq: 0,
            tasks: 0,
        }
    }

    /// A server that owns the lane, loaded and empty.
    fn owning(change: impl FnOnce(&mut OwnershipOptions)) -> Self {
        let mut server = Self::with(change);
        server.step(Input::Wanted(true));
        server.step(Input::Granted(true));
        server.becomes_owner();
        server
    }

    /// From the question who owns the lane to owning it.
    fn becomes_owner(&mut self) {
        self.head_is(0, 1);
        self.claim();
        self.claimed();
        self.members();
        self.loads();
        assert_eq!(self.machine.phase(), "owning");
        self.asked();
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.machine.step(input, self.now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Acquire => self.asked.push(Asked::Acquire),
                Effect::Release => self.asked.push(Asked::Release),
                Effect::ReadMembers => self.asked.push(Asked::Members),
                Effect::Parked { failures } => self.asked.push(Asked::Parked(failures)),
                Effect::Call { call, request } => self.calls.push_back((call, request)),
                Effect::Submitted { token, outcomes } => drop(self.answers.insert(token, outcomes)),
                Effect::Send(_)
                | Effect::NotReceiving { .. }
                | Effect::Revoke { .. }
                | Effect::Changed(_)
                | Effect::Completed(_) => {}
            }
        }
    }

    fn asked(&mut self) -> Vec<Asked> {
        std::mem::take(&mut self.asked)
    }

    /// Lets time pass, once.
    fn after(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.step(Input::Tick);
    }

    fn replies(&mut self, call: u64, reply: Result<Reply, CallError>) {
        self.step(Input::Reply { call, reply });
    }

    /// The store answers with the head of the lane.
    fn head_is(&mut self, failures: u32, commit: u64) {
        let Some((call, Request::Head)) = self.calls.pop_front() else {
            panic!("the server did not ask for the head")
        };
        let owner = Some(OwnerId::from_random(99));
        let head = LaneHead { epoch: Epoch(self.epoch), owner, commit: CommitNo(commit), failures };
        self.replies(call, Ok(Reply::Head(head)));
    }

    /// The claim without an answer.
    fn claim(&self) -> (u64, ClaimLane) {
        match self.calls.front() {
            Some((call, Request::Claim(claim))) => (*call, *claim),
            other => panic!("not a claim: {other:?}"),
        }
    }

    fn claimed(&mut self) {
        let (call, claim) = self.claim();
        assert_eq!(claim.seen, Epoch(self.epoch));
        self.calls.pop_front();
        self.epoch += 1;
        self.replies(call, Ok(Reply::Claimed(Epoch(self.epoch))));
    }

    fn claim_fails(&mut self, error: CallError) {
        let (call, _) = self.claim();
        self.calls.pop_front();
        self.replies(call, Err(error));
    }

    /// The requested view comes: it has no members.
    fn members(&mut self) {
        self.sees(1, true);
    }

    fn sees(&mut self, revision: u64, requested: bool) {
        self.step(Input::Members { revision, members: Vec::new(), requested, wall: self.now });
    }

    /// All reads are answered: there is nothing in the lane.
    fn loads(&mut self) {
        while let Some(at) = self.calls.iter().position(|(_, r)| matches!(r, Request::Load { .. })) {
            let Some((call, Request::Load { read, .. })) = self.calls.remove(at) else { unreachable!() };
            self.replies(call, Ok(Reply::Page(empty(&read))));
        }
    }

    fn submits(&mut self, count: usize) -> SubmitToken {
        let tasks = (0..count).map(|_| self.task()).collect();
        let token = SubmitToken(self.tasks);
        self.step(Input::Submit { token, tasks });
        token
    }

    fn task(&mut self) -> NewTask {
        self.tasks += 1;
        let name = |text| Name::new(text).expect("a valid name");
        let head = TaskHead {
            queue: QueueKey::new(name("default"), name("q")),
            task_type: name("job"),
            priority: Priority::default(),
            labels: BTreeMap::new(),
            flow: Vec::new(),
            hash_bucket: None,
            execution_timeout: Duration::from_mins(1),
            start_timeout: None,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy::default(),
        };
        NewTask {
            id: TaskId::from_time(LANE, self.now, self.tasks),
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(TaskBody::default()) },
            created_at: self.now,
            due: self.now,
            fingerprint: Fingerprint { version: 1, hash: 0 },
            queue_len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// The commits that are under way.
    fn commits(&self) -> Vec<(u64, Commit)> {
        let commit = |(call, request): &(u64, Request)| match request {
            Request::Commit(commit) => Some((*call, commit.clone())),
            _ => None,
        };
        self.calls.iter().filter_map(commit).collect()
    }

    /// Their numbers.
    fn numbers(&self) -> Vec<u64> {
        self.commits().iter().map(|(_, commit)| commit.number.0).collect()
    }

    /// The commit that is under way.
    fn commit(&self) -> (u64, Commit) {
        let commits = self.commits();
        assert_eq!(commits.len(), 1, "one commit at a time: {commits:?}");
        commits[0].clone()
    }

    fn has_commit(&self) -> bool {
        self.calls.iter().any(|(_, request)| matches!(request, Request::Commit(_)))
    }

    /// The commit under way is answered; returns it.
    fn commit_ends(&mut self, error: Option<CallError>) -> Commit {
        let (_, commit) = self.commit();
        self.ends(commit.number.0, error)
    }

    /// One of the commits under way is answered.
    fn ends(&mut self, number: u64, error: Option<CallError>) -> Commit {
        let under_way = self.commits().into_iter().find(|(_, commit)| commit.number.0 == number);
        let (call, commit) = under_way.expect("it is under way");
        self.calls.retain(|(c, _)| *c != call);
        let outcomes = commit.groups.iter().map(|group| {
            let seq = group.insert.as_ref().map(|_| {
                self.seq += 1;
                Seq(self.seq)
            });
            GroupOutcome::Applied { seq }
        });
        let outcomes: Vec<_> = outcomes.collect();
        self.replies(call, error.map_or(Ok(Reply::Committed(outcomes)), Err));
        commit
    }

    fn committed(&mut self) -> Commit {
        self.commit_ends(None)
    }

    fn commit_fails(&mut self, error: CallError) -> Commit {
        self.commit_ends(Some(error))
    }

    /// The answer to a submission.
    fn answer(&self, token: SubmitToken) -> Option<&Option<Vec<SubmitOutcome>>> {
        self.answers.get(&token)
    }

    fn expect_created(&self, token: SubmitToken) {
        let answer = self.answer(token).and_then(Option::as_ref).expect("the submission is answered");
        assert!(answer.iter().all(|outcome| matches!(outcome, SubmitOutcome::Created { .. })));
    }

    fn expect_not_owned(&self, token: SubmitToken) {
        assert_eq!(self.answer(token), Some(&None));
    }
}

fn empty(read: &LaneRead) -> LanePage {
    match read {
        LaneRead::Cursor => LanePage::Cursor(Seq(0)),
        LaneRead::Records { .. } => LanePage::Records { rows: Vec::new(), more: false },
        LaneRead::Inbox { .. } => LanePage::Inbox { rows: Vec::new(), more: false },
        LaneRead::Arrivals { after } => LanePage::Arrivals { rows: Vec::new(), next: *after, more: false },
        LaneRead::Policies { after } => {
            LanePage::Policies { rows: Vec::new(), revision: *after, more: false }
        }
        LaneRead::InFlight { .. }
        | LaneRead::Lines { .. }
        | LaneRead::Line { .. }
        | LaneRead::Delayed { .. }
        | LaneRead::Expiring { .. }
        | LaneRead::Tasks { .. } => LanePage::Tasks { rows: Vec::new(), more: false },
    }
}

#[test]
fn a_lane_is_granted_claimed_viewed_loaded_and_owned() {
    let mut server = Stage::new();
    assert_eq!(server.machine.phase(), "idle");
    server.step(Input::Wanted(true));
    assert_eq!((server.machine.phase(), server.asked()), ("acquiring", vec![Asked::Acquire]));
    server.step(Input::Granted(true));
    assert_eq!(server.machine.phase(), "asking who owns it");
    server.head_is(0, 5);
    assert_eq!(server.machine.phase(), "claiming");
    let (_, claim) = server.claim();
    assert_eq!((claim.lane, claim.seen, claim.failures), (LANE, Epoch(6), 0));
    server.claimed();
    assert_eq!((server.machine.phase(), server.asked()), ("asking who is alive", vec![Asked::Members]));
    assert!(server.calls.is_empty(), "the server reads nothing before it has the members");
    server.members();
    assert_eq!(server.machine.phase(), "loading");
    server.loads();
    assert_eq!(server.machine.phase(), "owning");
    assert_eq!(server.machine.epoch(), Some(Epoch(7)));
}

#[test]
fn the_grant_is_asked_for_until_it_comes() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.asked();
    server.step(Input::Granted(false));
    server.after(199);
    assert!(server.asked().is_empty());
    server.after(1);
    assert_eq!(server.asked(), [Asked::Acquire]);
    server.step(Input::Wanted(false));
    server.after(1000);
    assert!(server.asked().is_empty());
    assert_eq!(server.machine.phase(), "idle");
}

#[test]
fn a_grant_that_is_not_wanted_is_given_back() {
    let mut server = Stage::new();
    server.step(Input::Granted(true));
    assert_eq!(server.asked(), [Asked::Release]);
}

#[test]
fn a_question_that_fails_is_asked_again() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    let (call, _) = server.calls.pop_front().unwrap();
    server.replies(call, Err(CallError::NotApplied));
    assert!(server.calls.is_empty());
    server.after(200);
    server.becomes_owner();
}

#[test]
fn whoever_loses_a_claim_looks_again() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    let (_, first) = server.claim();
    server.claim_fails(CallError::Fenced);
    server.epoch = 9;
    server.head_is(0, 1);
    let (_, second) = server.claim();
    assert_eq!(second.seen, Epoch(9));
    assert_ne!(second.owner, first.owner, "every claim has its own identity");
}

#[test]
fn a_claim_whose_answer_was_lost_is_repeated_as_it_was() {
    for error in [CallError::Unknown, CallError::NotApplied] {
        let mut server = Stage::new();
        server.step(Input::Wanted(true));
        server.step(Input::Granted(true));
        server.head_is(0, 1);
        let (_, first) = server.claim();
        server.claim_fails(error);
        assert!(server.calls.is_empty());
        server.after(200);
        let (_, second) = server.claim();
        assert_eq!(second, first);
        server.claimed();
        assert_eq!(server.machine.phase(), "asking who is alive");
    }
}

#[test]
fn only_the_view_that_was_asked_for_begins_the_loading() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    server.claimed();
    server.sees(5, false);
    assert_eq!(server.machine.phase(), "asking who is alive", "it may be older than the claim");
    server.sees(4, true);
    assert_eq!(server.machine.phase(), "loading");
}

#[test]
fn a_read_that_fails_is_asked_again() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    server.claimed();
    server.members();
    for error in [CallError::NotApplied, CallError::Unknown] {
        let (call, asked) = server.calls.pop_front().unwrap();
        server.replies(call, Err(error));
        server.after(200);
        assert_eq!(server.calls.front().map(|(_, request)| request), Some(&asked));
    }
    server.loads();
    assert_eq!(server.machine.phase(), "owning");
}

#[test]
fn a_lane_that_is_not_owned_or_not_loaded_takes_no_submissions() {
    let mut server = Stage::new();
    let idle = server.submits(1);
    server.expect_not_owned(idle);
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    server.claimed();
    server.members();
    let loading = server.submits(1);
    server.expect_not_owned(loading);
}

#[test]
fn a_submission_is_answered_when_it_is_written() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(2);
    assert_eq!(server.answer(token), None);
    let commit = server.committed();
    assert_eq!((commit.lane, commit.epoch, commit.number), (LANE, Epoch(7), CommitNo(1)));
    server.expect_created(token);
    let token = server.submits(1);
    assert_eq!(server.committed().number, CommitNo(2));
    server.expect_created(token);
}

#[test]
fn a_commit_with_an_unknown_outcome_is_repeated_as_it_was() {
    for error in [CallError::Unknown, CallError::NotApplied] {
        let mut server = Stage::owning(|_| {});
        let token = server.submits(1);
        let first = server.commit_fails(error);
        let later = server.submits(1);
        assert!(!server.has_commit(), "later decisions wait");
        server.after(199);
        assert!(!server.has_commit());
        server.after(1);
        let second = server.committed();
        assert_eq!(second, first, "the same number and the same groups");
        server.expect_created(token);
        assert_eq!(server.answer(later), None);
        assert_eq!(server.committed().number, CommitNo(2));
        server.expect_created(later);
    }
}

#[test]
fn a_fenced_owner_drops_everything_and_looks_who_owns_the_lane() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    server.commit_fails(CallError::Fenced);
    server.expect_not_owned(token);
    assert!(server.machine.machine().is_none());
    assert_eq!(server.machine.phase(), "acquiring", "the grant may be lost, too");
    server.step(Input::Granted(true));
    assert_eq!(server.machine.phase(), "asking who owns it");
    server.epoch = 12;
    server.becomes_owner();
    assert_eq!(server.machine.epoch(), Some(Epoch(13)));
    server.submits(1);
    assert_eq!(server.committed().number, CommitNo(1), "a new owner counts from the start");
}

#[test]
fn a_commit_that_cannot_be_settled_leads_to_a_new_claim() {
    let mut server = Stage::owning(|o| o.commit_tries_max = 3);
    let token = server.submits(1);
    for _ in 0..3 {
        server.commit_fails(CallError::Unknown);
        assert_eq!(server.machine.phase(), "owning");
        server.after(200);
    }
    server.commit_fails(CallError::Unknown);
    server.expect_not_owned(token);
    server.step(Input::Granted(true));
    server.becomes_owner();
    assert_eq!(server.machine.epoch(), Some(Epoch(8)));
}

#[test]
fn a_store_that_takes_no_writes_is_known_to_clients_within_a_second() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    for _ in 0..2 {
        server.commit_fails(CallError::Refused);
        assert_eq!(server.machine.phase(), "owning", "a moment without room passes unnoticed");
        server.after(200);
    }
    server.commit_fails(CallError::Refused);
    server.expect_not_owned(token);
    server.step(Input::Granted(true));
    // The claim is repeated until there is room, and nothing of this counts as a failure of the lane.
    server.head_is(1, 5);
    for _ in 0..100 {
        let failures = server.claim().1.failures;
        assert_eq!(failures, 0);
        server.claim_fails(CallError::Refused);
        server.after(200);
    }
}

#[test]
fn a_commit_that_will_never_succeed_leads_to_a_new_claim() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    server.commit_fails(CallError::Fatal);
    server.expect_not_owned(token);
    server.step(Input::Granted(true));
    server.head_is(1, 5);
    assert_eq!(server.claim().1.failures, 2, "a lane that cannot be written to is parked in the end");
}

#[test]
fn large_batches_are_packed_into_commits_and_answered_as_one() {
    let mut server = Stage::owning(|o| o.pack = PackLimits { ops_max: 9, bytes_max: 1 << 20 });
    let token = server.submits(5);
    let mut groups = Vec::new();
    for (number, under_way) in [(1, vec![1, 2]), (2, vec![2, 3]), (3, vec![3])] {
        assert_eq!((server.answer(token), server.numbers()), (None, under_way));
        groups.push(server.ends(number, None).groups.len());
    }
    assert_eq!(groups, [2, 2, 1]);
    server.expect_created(token);
}

#[test]
fn a_second_commit_follows_one_that_is_under_way() {
    let mut server = Stage::owning(|o| o.lane.ahead = 2);
    let first = server.submits(1);
    let alone = server.submits(1);
    assert_eq!(server.numbers(), [1], "one group is not worth a commit of its own");
    let second = server.submits(1);
    let third = server.submits(2);
    assert_eq!(server.numbers(), [1, 2]);
    server.ends(1, None);
    server.expect_created(first);
    assert_eq!((server.answer(second), server.numbers()), (None, vec![2, 3]));
    server.ends(2, None);
    server.expect_created(alone);
    server.expect_created(second);
    server.ends(3, None);
    server.expect_created(third);
}

#[test]
fn commits_are_settled_in_their_order() {
    let mut server = Stage::owning(|o| o.lane.ahead = 1);
    let (first, second) = (server.submits(1), server.submits(1));
    server.ends(2, None);
    assert_eq!((server.answer(first), server.answer(second)), (None, None));
    server.ends(1, None);
    server.expect_created(first);
    server.expect_created(second);
    assert_eq!(server.numbers(), []);
}

#[test]
fn a_commit_that_came_before_the_one_before_it_is_sent_again() {
    let mut server = Stage::owning(|o| o.lane.ahead = 1);
    let (first, second) = (server.submits(1), server.submits(1));
    let refused = server.ends(2, Some(CallError::Fenced));
    assert_eq!(server.numbers(), [1]);
    server.ends(1, None);
    server.expect_created(first);
    assert_eq!(server.commit().1, refused);
    server.committed();
    server.expect_created(second);
}

#[test]
fn nothing_follows_a_commit_that_is_repeated() {
    let mut server = Stage::owning(|o| o.lane.ahead = 1);
    let first = server.submits(1);
    server.commit_fails(CallError::NotApplied);
    let second = server.submits(1);
    assert_eq!(server.numbers(), []);
    server.after(200);
    assert_eq!(server.numbers(), [1]);
    server.committed();
    server.expect_created(first);
    assert_eq!(server.commit().1.number, CommitNo(2));
    server.committed();
    server.expect_created(second);
}

#[test]
fn what_the_store_passed_over_leads_to_a_new_claim() {
    let mut server = Stage::owning(|o| o.lane.ahead = 1);
    let (first, second) = (server.submits(1), server.submits(1));
    server.ends(1, Some(CallError::Unknown));
    server.ends(2, None);
    server.after(200);
    // It was applied, and the store remembers only the outcomes of the second.
    server.ends(1, Some(CallError::Fenced));
    server.expect_not_owned(first);
    server.expect_not_owned(second);
}

#[test]
fn a_release_waits_for_the_commit_under_way() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    server.step(Input::Wanted(false));
    assert_eq!((server.machine.phase(), server.asked()), ("releasing", vec![]));
    let late = server.submits(1);
    server.expect_not_owned(late);
    server.commit_fails(CallError::Unknown);
    server.after(200);
    server.committed();
    server.expect_created(token);
    assert_eq!((server.machine.phase(), server.asked()), ("idle", vec![Asked::Release]));
}

#[test]
fn a_lane_with_nothing_to_write_is_released_at_once() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Wanted(false));
    assert_eq!((server.machine.phase(), server.asked()), ("idle", vec![Asked::Release]));
}

#[test]
fn a_release_that_failed_is_asked_for_again() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Wanted(false));
    assert_eq!(server.asked(), [Asked::Release]);
    server.step(Input::NotReleased);
    assert_eq!((server.machine.phase(), server.asked()), ("idle", vec![Asked::Release]));
    // A server that wants the lane meanwhile may have lost it: it asks for the grant.
    server.step(Input::Wanted(true));
    server.step(Input::NotReleased);
    assert_eq!((server.machine.phase(), server.asked()), ("acquiring", vec![Asked::Acquire]));
}

#[test]
fn a_release_that_has_begun_is_completed() {
    let mut server = Stage::owning(|_| {});
    server.submits(1);
    server.step(Input::Wanted(false));
    server.step(Input::Wanted(true));
    assert_eq!(server.machine.phase(), "releasing");
    server.committed();
    assert_eq!(server.asked(), [Asked::Release]);
    server.after(1);
    assert_eq!((server.machine.phase(), server.asked()), ("acquiring", vec![Asked::Acquire]));
}

#[test]
fn a_lost_grant_ends_the_ownership_at_once() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    let (call, _) = server.commit();
    server.step(Input::Granted(false));
    server.expect_not_owned(token);
    assert_eq!(server.machine.phase(), "acquiring");
    server.calls.clear();
    server.replies(call, Ok(Reply::Committed(vec![GroupOutcome::Applied { seq: Some(Seq(1)) }])));
    assert_eq!(server.machine.phase(), "acquiring", "a late answer changes nothing");
    server.step(Input::Granted(true));
    server.becomes_owner();
}

#[test]
fn a_grant_lost_on_the_way_ends_the_attempt_to_own() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    let (call, _) = server.claim();
    server.calls.clear();
    server.step(Input::Granted(false));
    server.replies(call, Ok(Reply::Claimed(Epoch(7))));
    assert_eq!(server.machine.phase(), "acquiring");
}

#[test]
fn a_gap_in_the_arrivals_leads_to_a_new_claim() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Hint);
    let Some((call, Request::Load { read: LaneRead::Arrivals { .. }, .. })) = server.calls.pop_front() else {
        panic!("not a question for arrivals")
    };
    server.replies(call, Ok(Reply::Page(LanePage::Gap)));
    server.becomes_owner();
}

#[test]
fn a_failure_is_counted_in_the_claim_that_follows() {
    let mut server = Stage::owning(|_| {});
    let token = server.submits(1);
    server.step(Input::Failed);
    server.expect_not_owned(token);
    server.calls.retain(|(_, request)| matches!(request, Request::Head));
    server.head_is(1, 5);
    let (_, claim) = server.claim();
    assert_eq!(claim.failures, 2);
    server.claimed();
    assert_eq!(server.machine.phase(), "asking who is alive");
}

#[test]
fn failures_of_others_are_carried_on_until_an_owner_commits() {
    for (commit, failures) in [(0, 2), (1, 0)] {
        let mut server = Stage::new();
        server.step(Input::Wanted(true));
        server.step(Input::Granted(true));
        server.head_is(2, commit);
        let (_, claim) = server.claim();
        assert_eq!(claim.failures, failures);
    }
}

#[test]
fn a_lane_that_fails_under_several_owners_is_parked_and_tried_again_later() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Failed);
    server.calls.retain(|(_, request)| matches!(request, Request::Head));
    server.head_is(3, 0);
    server.claimed();
    assert_eq!((server.machine.phase(), server.asked()), ("parked", vec![Asked::Parked(4)]));
    let token = server.submits(1);
    server.expect_not_owned(token);
    server.after(59_000);
    assert!(server.calls.is_empty());
    assert_eq!(server.machine.next_deadline(), Some(server.now + Duration::from_secs(1)));
    server.after(1_000);
    assert_eq!(server.machine.phase(), "asking who owns it");
    server.head_is(4, 0);
    assert_eq!(server.claim().1.failures, 4, "counted once");
}

/// A parked lane whose failures were stored used to be parked again without end, though no server had tried
/// it.
#[test]
fn a_lane_that_was_parked_long_enough_is_owned_again() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Failed);
    server.calls.retain(|(_, request)| matches!(request, Request::Head));
    server.head_is(3, 0);
    server.claimed();
    server.asked();
    server.after(60_000);
    server.head_is(4, 0);
    server.claimed();
    assert_eq!((server.machine.phase(), server.asked()), ("asking who is alive", vec![Asked::Members]));
}

/// Failures were added up for as long as a server lived, so that one a day parked the lane on the fourth day.
#[test]
fn a_failure_after_long_work_is_counted_from_the_start() {
    for (worked, failures) in [(299_999, 4), (300_000, 1)] {
        let mut server = Stage::owning(|_| {});
        server.after(worked);
        server.step(Input::Failed);
        server.calls.retain(|(_, request)| matches!(request, Request::Head));
        server.head_is(3, 5);
        assert_eq!(server.claim().1.failures, failures);
    }
}

/// A claim that was applied without an answer, and then given up, used to count the same failure once more.
#[test]
fn a_failure_is_counted_once_and_not_after_somebody_else_has_claimed() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Failed);
    server.calls.retain(|(_, request)| matches!(request, Request::Head));
    server.head_is(0, 5);
    server.claim_fails(CallError::Unknown);
    server.step(Input::Granted(false));
    server.step(Input::Granted(true));
    server.epoch += 1;
    server.head_is(1, 0);
    assert_eq!(server.claim().1.failures, 1);
}

/// The rest of one server used to excuse failures that others had later.
#[test]
fn a_rest_counts_only_if_nobody_has_claimed_the_lane_since() {
    let mut server = Stage::owning(|_| {});
    server.step(Input::Failed);
    server.calls.retain(|(_, request)| matches!(request, Request::Head));
    server.head_is(3, 0);
    server.claimed();
    server.asked();
    server.step(Input::Wanted(false));
    server.after(60_000);
    assert_eq!((server.machine.phase(), server.asked()), ("idle", vec![Asked::Release]));
    server.epoch += 2;
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(5, 0);
    server.claimed();
    assert_eq!((server.machine.phase(), server.asked()), ("parked", vec![Asked::Acquire, Asked::Parked(5)]));
}

#[test]
fn a_lane_that_others_could_not_run_is_parked_before_it_is_tried() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.asked();
    server.head_is(4, 0);
    server.claimed();
    assert_eq!((server.machine.phase(), server.asked()), ("parked", vec![Asked::Parked(4)]));
    server.after(60_000);
    server.becomes_owner();
}

#[test]
fn the_lane_follows_the_wall_clock_of_the_moment_it_was_taken() {
    let mut server = Stage::new();
    server.step(Input::Wanted(true));
    server.step(Input::Granted(true));
    server.head_is(0, 1);
    server.claimed();
    let ahead = Duration::from_hours(1000);
    let wall = server.now + ahead;
    server.step(Input::Members { revision: 1, members: Vec::new(), requested: true, wall });
    server.loads();
    let mut task = server.task();
    (task.created_at, task.due) = (wall, wall + Duration::from_secs(2));
    server.step(Input::Submit { token: SubmitToken(1), tasks: vec![task] });
    server.committed();
    assert_eq!(server.machine.next_deadline(), Some(server.now + Duration::from_secs(2)));
}
