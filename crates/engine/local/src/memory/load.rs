//! Pages of what a lane holds.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::Bound::{Excluded, Included, Unbounded};

use tasklane_core::command::{Command, InboxRow};
use tasklane_core::id::{LineKey, Seq, TaskId};
use tasklane_core::invariant::Invariant;
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::task::{OrderKey, TaskRow};
use tasklane_core::time::Timestamp;
use tasklane_ports::LoadQuery;

use super::lane::{Lane, StoredTask};
use super::state::MemoryState;

/// After every task of a line.
const LAST: OrderKey = OrderKey { rank: u8::MAX, due: Timestamp::MAX, seq: Seq(u64::MAX) };

impl MemoryState {
    /// See [`Store::load`](tasklane_ports::Store::load). Takes `&mut self` for an invariant that may be off.
    pub fn load(&mut self, load: &LoadQuery) -> LanePage {
        let empty = Lane::default();
        let lane = self.lanes.get(&load.lane).unwrap_or(&empty);
        let limit = load.limit.max(1);
        let rows = Rows { tasks: &self.tasks, limit, body_bytes_max: load.body_bytes_max };
        let page = match &load.read {
            LaneRead::Cursor => LanePage::Cursor(lane.last),
            LaneRead::Records { after } => {
                let from = after.as_ref().map_or(Unbounded, Excluded);
                let (rows, more) = page(lane.records.range((from, Unbounded)), limit);
                LanePage::Records {
                    rows: rows.into_iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
                    more,
                }
            }
            LaneRead::InFlight { after } => {
                let from = after.map_or(Unbounded, Excluded);
                rows.page(lane.in_flight.range((from, Unbounded)))
            }
            LaneRead::Inbox { after } => {
                let (rows, more) = page(lane.inbox.range((Excluded(*after), Unbounded)), limit);
                LanePage::Inbox { rows: rows.into_iter().map(inbox_row).collect(), more }
            }
            LaneRead::Lines { after } => rows.page(first_of_lines(lane, *after)),
            LaneRead::Line { line, after } => {
                let from = after.map_or(Included((*line, OrderKey::FIRST)), |after| Excluded((*line, after)));
                rows.page(lane.ready.range((from, Included((*line, LAST)))).map(|(_, id)| id))
            }
            LaneRead::Delayed { after } => {
                let from = after.map_or(Unbounded, Excluded);
                rows.page(lane.delayed.range((from, Unbounded)).map(|(_, id)| id))
            }
            LaneRead::Expiring { until, after } => {
                let from = after.map_or(Unbounded, Excluded);
                let expiring = lane.expiring.range((from, Unbounded));
                rows.page(expiring.take_while(|((start_by, _), _)| start_by <= until).map(|(_, id)| id))
            }
            LaneRead::Arrivals { after } => arrivals(lane, *after, rows),
            LaneRead::Tasks { ids } => {
                let of_lane = ids.iter().filter(|id| id.lane() == load.lane);
                let rows = of_lane.filter_map(|id| rows.row(*id)).collect();
                LanePage::Tasks { rows, more: false }
            }
            LaneRead::Policies { after } => self.policies_after(*after, limit),
        };
        self.forget_read_commands(load, &page);
        page
    }

    fn policies_after(&self, after: u64, limit: usize) -> LanePage {
        let changed = self.policy_revisions.range((Excluded(after), Unbounded));
        let (changed, more) = page(changed, limit);
        let revision = match changed.last() {
            Some((revision, _)) if more => **revision,
            _ => self.policy_revision,
        };
        let rows = changed.into_iter().map(|(_, queue)| (queue.clone(), self.policies[queue].policy.clone()));
        LanePage::Policies { rows: rows.collect(), revision, more }
    }

    /// What must not happen, for a test to see that it is noticed.
    fn forget_read_commands(&mut self, load: &LoadQuery, page: &LanePage) {
        if self.options.invariants.on(Invariant::InboxDoneInGroup) {
            return;
        }
        let read: Vec<Seq> = match page {
            LanePage::Inbox { rows, .. } => rows.iter().map(|row| row.seq).collect(),
            LanePage::Arrivals { rows, .. } => rows.iter().map(Arrival::seq).collect(),
            LanePage::Cursor(_)
            | LanePage::Records { .. }
            | LanePage::Tasks { .. }
            | LanePage::Gap
            | LanePage::Policies { .. } => return,
        };
        let lane = self.lanes.entry(load.lane).or_default();
        for seq in read {
            lane.inbox.remove(&seq);
        }
    }
}

/// Makes pages of tasks.
#[derive(Clone, Copy)]
struct Rows<'a> {
    tasks: &'a BTreeMap<TaskId, StoredTask>,
    limit: usize,
    body_bytes_max: usize,
}

impl Rows<'_> {
    fn row(self, id: TaskId) -> Option<TaskRow> {
        self.tasks.get(&id).map(|task| task.row(id, self.body_bytes_max))
    }

    fn page<'b>(self, ids: impl Iterator<Item = &'b TaskId>) -> LanePage {
        let (ids, more) = page(ids, self.limit);
        LanePage::Tasks { rows: ids.into_iter().filter_map(|id| self.row(*id)).collect(), more }
    }
}

fn page<T>(mut all: impl Iterator<Item = T>, limit: usize) -> (Vec<T>, bool) {
    let rows = all.by_ref().take(limit).collect();
    (rows, all.next().is_some())
}

/// Jumps from line to line instead of passing over all their tasks.
fn first_of_lines(lane: &Lane, after: Option<LineKey>) -> impl Iterator<Item = &TaskId> {
    let mut passed = after;
    std::iter::from_fn(move || {
        let from = passed.map_or(Unbounded, |line| Excluded((line, LAST)));
        let ((next, _), id) = lane.ready.range((from, Unbounded)).next()?;
        passed = Some(*next);
        Some(id)
    })
}

fn arrivals(lane: &Lane, after: Seq, rows: Rows<'_>) -> LanePage {
    let from = (Excluded(after), Unbounded);
    let mut tasks = lane.arrivals.range(from).peekable();
    let mut commands = lane.inbox.range(from).peekable();
    let mut given = Vec::new();
    while given.len() < rows.limit {
        match (next_seq(&mut tasks), next_seq(&mut commands)) {
            (None, None) => break,
            (Some(task), command) if command.is_none_or(|command| task < command) => {
                let row = tasks.next().and_then(|(_, id)| rows.row(*id));
                given.extend(row.map(Arrival::Task));
            }
            _ => given.extend(commands.next().map(inbox_row).map(Arrival::Command)),
        }
    }
    let more = tasks.peek().is_some() || commands.peek().is_some();
    let next = match given.last() {
        Some(row) if more => row.seq(),
        _ => lane.last,
    };
    LanePage::Arrivals { rows: given, next, more }
}

fn next_seq<'a, T: 'a>(rows: &mut Peekable<impl Iterator<Item = (&'a Seq, &'a T)>>) -> Option<Seq> {
    rows.peek().map(|(seq, _)| **seq)
}

fn inbox_row((seq, command): (&Seq, &Command)) -> InboxRow {
    InboxRow { seq: *seq, command: command.clone() }
}
