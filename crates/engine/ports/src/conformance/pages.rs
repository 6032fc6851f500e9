//! Follows pages to their end.

use tasklane_core::command::InboxRow;
use tasklane_core::commit::RecordKey;
use tasklane_core::id::{AttemptNo, LaneId, LineKey, QueueKey, Seq, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::task::{AttemptRecord, TaskRow};
use tasklane_core::time::Timestamp;

use crate::{AttemptList, CountList, ExpiredQuery, LoadQuery, QueueCounts, Store, TaskFilter, TaskList};

/// More pages than any case has: a reader that continues beyond them is stuck.
const PAGES_MAX: usize = 10_000;

/// Bodies up to this size are asked for.
pub const BODY_BYTES_MAX: usize = 4 << 10;

/// All lines of a lane.
pub const LINES: LaneRead = LaneRead::Lines { after: None };
/// All delayed tasks of a lane.
pub const DELAYED: LaneRead = LaneRead::Delayed { after: None };
/// All attempts that workers hold.
pub const IN_FLIGHT: LaneRead = LaneRead::InFlight { after: None };

/// All tasks of a line.
pub fn line(line: LineKey) -> LaneRead {
    LaneRead::Line { line, after: None }
}

/// All tasks that expire until a time.
pub fn expiring(until: Timestamp) -> LaneRead {
    LaneRead::Expiring { until, after: None }
}

/// One page.
pub async fn load(store: &dyn Store, lane: LaneId, read: LaneRead, limit: usize) -> LanePage {
    store.load(LoadQuery { lane, read, limit, body_bytes_max: BODY_BYTES_MAX }).await.unwrap()
}

/// One page of tasks, and whether there may be more.
pub async fn task_page(
    store: &dyn Store,
    lane: LaneId,
    read: LaneRead,
    limit: usize,
) -> (Vec<TaskRow>, bool) {
    let bounded = !matches!(read, LaneRead::Tasks { .. });
    match load(store, lane, read, limit).await {
        LanePage::Tasks { rows, more } => {
            assert!(!bounded || rows.len() <= limit, "a page of {} rows, at most {limit}", rows.len());
            (rows, more)
        }
        other => panic!("not a page of tasks: {other:?}"),
    }
}

/// All tasks of a read, page by page.
pub async fn all_tasks(store: &dyn Store, lane: LaneId, mut read: LaneRead, limit: usize) -> Vec<TaskRow> {
    let mut all = Vec::new();
    for _ in 0..PAGES_MAX {
        let (rows, more) = task_page(store, lane, read.clone(), limit).await;
        if let Some(last) = rows.last() {
            go_on(&mut read, last);
        }
        assert!(!more || !rows.is_empty(), "an empty page cannot be followed: {read:?}");
        all.extend(rows);
        if !more {
            return all;
        }
    }
    panic!("pages without end: {read:?}");
}

/// Moves a read behind a row.
fn go_on(read: &mut LaneRead, last: &TaskRow) {
    match read {
        LaneRead::InFlight { after } => *after = Some(last.id),
        LaneRead::Lines { after } => *after = Some(last.head.line()),
        LaneRead::Line { after, .. } => *after = Some(last.order()),
        LaneRead::Delayed { after } => *after = Some((last.state.due, last.seq)),
        LaneRead::Expiring { after, .. } => {
            *after = Some((last.state.start_by.expect("an expiring task has a deadline"), last.seq));
        }
        LaneRead::Tasks { .. } => {}
        LaneRead::Cursor
        | LaneRead::Records { .. }
        | LaneRead::Inbox { .. }
        | LaneRead::Arrivals { .. }
        | LaneRead::Policies { .. } => panic!("not a question for tasks: {read:?}"),
    }
}

/// All rows of an inbox, page by page.
pub async fn all_inbox(store: &dyn Store, lane: LaneId, limit: usize) -> Vec<InboxRow> {
    let mut all: Vec<InboxRow> = Vec::new();
    for _ in 0..PAGES_MAX {
        let after = all.last().map_or(Seq(0), |row| row.seq);
        match load(store, lane, LaneRead::Inbox { after }, limit).await {
            LanePage::Inbox { rows, more } => {
                assert!(rows.len() <= limit);
                assert!(rows.iter().all(|row| row.seq > after), "rows that were given before");
                assert!(!more || !rows.is_empty(), "an empty page cannot be followed");
                all.extend(rows);
                if !more {
                    return all;
                }
            }
            other => panic!("not a page of the inbox: {other:?}"),
        }
    }
    panic!("pages without end");
}

/// All records, page by page.
pub async fn all_records(store: &dyn Store, lane: LaneId, limit: usize) -> Vec<(RecordKey, Vec<u8>)> {
    let mut all: Vec<(RecordKey, Vec<u8>)> = Vec::new();
    for _ in 0..PAGES_MAX {
        let after = all.last().map(|(key, _)| key.clone());
        match load(store, lane, LaneRead::Records { after }, limit).await {
            LanePage::Records { rows, more } => {
                assert!(rows.len() <= limit);
                assert!(!more || !rows.is_empty(), "an empty page cannot be followed");
                all.extend(rows);
                if !more {
                    return all;
                }
            }
            other => panic!("not a page of records: {other:?}"),
        }
    }
    panic!("pages without end");
}

/// All arrivals after a number, page by page, and the number reached. `None` if the index does not reach back
/// so far.
pub async fn all_arrivals(
    store: &dyn Store,
    lane: LaneId,
    mut after: Seq,
    limit: usize,
) -> Option<(Vec<Arrival>, Seq)> {
    let mut all = Vec::new();
    for _ in 0..PAGES_MAX {
        match load(store, lane, LaneRead::Arrivals { after }, limit).await {
            LanePage::Arrivals { rows, next, more } => {
                assert!(rows.len() <= limit);
                assert!(next >= after && (!more || next > after), "{next} does not lead on from {after}");
                let seqs: Vec<Seq> = rows.iter().map(Arrival::seq).collect();
                assert!(seqs.is_sorted_by(|a, b| a < b), "not in order: {seqs:?}");
                assert!(seqs.iter().all(|seq| *seq > after && *seq <= next), "{seqs:?} in ({after}, {next}]");
                all.extend(rows);
                after = next;
                if !more {
                    return Some((all, after));
                }
            }
            LanePage::Gap => return None,
            other => panic!("not a page of arrivals: {other:?}"),
        }
    }
    panic!("pages without end");
}

/// Policies changed after a revision, page by page, and the revision reached.
pub async fn all_policies(
    store: &dyn Store,
    lane: LaneId,
    mut after: u64,
    limit: usize,
) -> (Vec<(QueueKey, VersionedPolicy)>, u64) {
    let mut all = Vec::new();
    for _ in 0..PAGES_MAX {
        match load(store, lane, LaneRead::Policies { after }, limit).await {
            LanePage::Policies { rows, revision, more } => {
                assert!(rows.len() <= limit);
                assert!(revision >= after && (!more || revision > after));
                all.extend(rows);
                after = revision;
                if !more {
                    return (all, after);
                }
            }
            other => panic!("not a page of policies: {other:?}"),
        }
    }
    panic!("pages without end");
}

/// The highest arrival number.
pub async fn cursor(store: &dyn Store, lane: LaneId) -> Seq {
    match load(store, lane, LaneRead::Cursor, 1).await {
        LanePage::Cursor(seq) => seq,
        other => panic!("not a cursor: {other:?}"),
    }
}

/// The ended attempts of a task, page by page.
pub async fn all_attempts(store: &dyn Store, task: TaskId, limit: usize) -> Vec<AttemptRecord> {
    let mut all: Vec<AttemptRecord> = Vec::new();
    for _ in 0..PAGES_MAX {
        let after = all.last().map_or(AttemptNo(0), |attempt| attempt.number);
        let page = store.attempts(AttemptList { task, after, limit }).await.unwrap();
        assert!(page.len() <= limit, "a page of {} attempts, at most {limit}", page.len());
        let more = page.len() == limit;
        all.extend(page);
        assert!(all.is_sorted_by(|a, b| a.number < b.number), "not in order: {all:?}");
        if !more {
            return all;
        }
    }
    panic!("pages without end");
}

/// Counts of all queues after one, page by page, while `wanted` says so.
pub async fn counts_while(
    store: &dyn Store,
    mut after: Option<QueueKey>,
    limit: usize,
    wanted: impl Fn(&QueueKey) -> bool,
) -> Vec<QueueCounts> {
    let mut all: Vec<QueueCounts> = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = store.counts(CountList { after: after.clone(), limit }).await.unwrap();
        assert!(page.len() <= limit, "a page of {} counts, at most {limit}", page.len());
        let more = page.len() == limit;
        for counts in page {
            assert!(after.is_none_or(|after| after < counts.queue), "{counts:?} is not in order");
            assert_ne!(counts.by_status, [0; 8], "{} has no tasks", counts.queue);
            after = Some(counts.queue.clone());
            if !wanted(&counts.queue) {
                return all;
            }
            all.push(counts);
        }
        if !more {
            return all;
        }
    }
    panic!("pages without end");
}

/// Counts of all queues, page by page.
pub async fn all_counts(store: &dyn Store, limit: usize) -> Vec<QueueCounts> {
    counts_while(store, None, limit, |_| true).await
}

/// All tasks that match a filter, page by page.
pub async fn all_listed(store: &dyn Store, filter: TaskFilter, limit: usize) -> Vec<TaskRow> {
    let mut all = Vec::new();
    let mut after = None;
    for _ in 0..PAGES_MAX {
        let page = store.list(TaskList { filter: filter.clone(), after, limit }).await.unwrap();
        assert!(page.tasks.len() <= limit);
        all.extend(page.tasks);
        match page.next {
            None => return all,
            Some(next) => {
                assert!(after.is_none_or(|after| next < after), "the cursor does not lead on");
                after = Some(next);
            }
        }
    }
    panic!("pages without end");
}

/// All expired tasks, page by page: those to strip and those to forget.
pub async fn all_expired(store: &dyn Store, mut retire: ExpiredQuery) -> (Vec<TaskId>, Vec<TaskId>) {
    let (mut strip, mut forget) = (Vec::new(), Vec::new());
    for _ in 0..PAGES_MAX {
        let page = store.expired(retire).await.unwrap();
        assert!(page.strip.len() + page.forget.len() <= retire.limit, "{page:?} of at most {}", retire.limit);
        strip.extend(page.strip);
        forget.extend(page.forget);
        let Some(next) = page.next else { return (strip, forget) };
        assert!(retire.after.is_none_or(|after| next > after), "the cursor does not lead on");
        assert!(next.created_at < retire.end(), "{next:?} lies behind the end");
        retire.after = Some(next);
    }
    panic!("pages without end");
}
