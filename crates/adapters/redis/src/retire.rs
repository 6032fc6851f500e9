//! Retention of finished tasks. The query goes to every lane, and this module merges the answers. Retiring
//! goes to the lanes of the tasks; a lane holds everything of its tasks.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::task::TaskState;
use tasklane_ports::{ExpiredQuery, ExpiredTasks, StoreError, TaskCursor};

use crate::connect::Traffic;
use crate::keys::LaneKey;
use crate::layout::{self, ReplyValues};
use crate::query::{LANES_AT_ONCE, SCAN_MAX};
use crate::script::SCRIPTS;
use crate::store::{RedisStore, id_arg};

/// Fewest tasks that a lane reads for a page, so that a lane which holds all of them is not read in tiny
/// steps.
const SHARE_MIN: usize = 100;
/// Most tasks that one script retires: some milliseconds.
const RETIRED_MAX: usize = 500;

impl RedisStore {
    pub(crate) async fn expired_page(&self, retire: ExpiredQuery) -> Result<ExpiredTasks, StoreError> {
        let limit = retire.limit.max(1);
        let lanes = self.all_lanes().await?;
        let share = limit.div_ceil(lanes.len().max(1)).max(SHARE_MIN).min(limit).min(SCAN_MAX);
        let asked = lanes.into_iter().map(|lane| self.finished_of(lane, &retire, share));
        let pages: Vec<FinishedInLane> = stream::iter(asked).buffered(LANES_AT_ONCE).try_collect().await?;
        Ok(merge(pages, &retire, limit))
    }

    async fn finished_of(
        &self,
        lane: LaneId,
        retire: &ExpiredQuery,
        share: usize,
    ) -> Result<FinishedInLane, StoreError> {
        let lane = self.lane(lane);
        let keys = [LaneKey::Created, LaneKey::State].map(|key| lane.key(key));
        let mut call = SCRIPTS.expired.call(keys.into_iter());
        let first = retire.after.map(layout::cursor_key);
        call.arg(first.map_or_else(|| b"-".to_vec(), |first| [b"(".as_slice(), &first].concat()));
        call.arg([b"(".as_slice(), &layout::time_key(retire.end())].concat()).arg(share);
        let mut answer =
            ReplyValues::new(self.run(&SCRIPTS.expired, lane.slot(), Traffic::Query, call).await?)?;
        let entry = answer.bytes()?;
        let stopped_at = if entry.is_empty() { None } else { Some(layout::cursor_of(&entry)?) };
        let mut tasks = Vec::with_capacity(answer.len() / 2);
        while !answer.is_empty() {
            let id = layout::task_id(&answer.bytes()?)?;
            let (state, has_data) = layout::finished(&answer.bytes()?)?;
            tasks.push(FinishedTask { id, state, has_data });
        }
        Ok(FinishedInLane { tasks, stopped_at })
    }

    pub(crate) async fn retire_tasks(&self, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        let mut by_lane = BTreeMap::<LaneId, (Vec<TaskId>, Vec<TaskId>)>::new();
        for id in strip {
            by_lane.entry(id.lane()).or_default().0.push(*id);
        }
        for id in forget {
            by_lane.entry(id.lane()).or_default().1.push(*id);
        }
        for (lane, (strip, forget)) in by_lane {
            for strip in strip.chunks(RETIRED_MAX) {
                self.retire_in(lane, strip, &[]).await?;
            }
            for forget in forget.chunks(RETIRED_MAX) {
                self.retire_in(lane, &[], forget).await?;
            }
        }
        Ok(())
    }

    async fn retire_in(&self, lane: LaneId, strip: &[TaskId], forget: &[TaskId]) -> Result<(), StoreError> {
        use LaneKey::{
            Arrivals, Attempts, Body, Children, Counts, Created, Lane, ParentOf, Result, Spec, State, Unique,
            UniqueOf,
        };
        let lane = self.lane(lane);
        let keys = [
            Lane, State, Spec, Body, Result, Attempts, Arrivals, Counts, Created, Unique, UniqueOf, Children,
            ParentOf,
        ];
        let mut call = SCRIPTS.retire.call(keys.map(|key| lane.key(key)).into_iter());
        call.arg(strip.len());
        for id in strip.iter().chain(forget) {
            call.arg(id_arg(id));
        }
        self.run(&SCRIPTS.retire, lane.slot(), Traffic::Query, call).await?;
        Ok(())
    }
}

struct FinishedTask {
    id: TaskId,
    state: TaskState,
    has_data: bool,
}

/// The finished tasks that one lane has read.
struct FinishedInLane {
    tasks: Vec<FinishedTask>,
    /// The last task read; `None` at the end of the lane.
    stopped_at: Option<TaskCursor>,
}

/// Merges the pages of the lanes. The result ends where the first lane stopped reading.
fn merge(pages: Vec<FinishedInLane>, retire: &ExpiredQuery, limit: usize) -> ExpiredTasks {
    let horizon = pages.iter().filter_map(|page| page.stopped_at).min();
    let cursor = |task: &FinishedTask| TaskCursor { created_at: task.state.created_at, id: task.id };
    let mut tasks: Vec<FinishedTask> = pages.into_iter().flat_map(|page| page.tasks).collect();
    tasks.retain(|task| horizon.is_none_or(|horizon| cursor(task) <= horizon));
    tasks.sort_unstable_by_key(cursor);
    let cut = tasks.get(limit).is_some();
    tasks.truncate(limit);
    let next = if cut { tasks.last().map(cursor) } else { horizon };
    let mut expired = ExpiredTasks { next, ..ExpiredTasks::default() };
    for task in &tasks {
        expired.judge(retire, task.id, &task.state, task.has_data);
    }
    expired
}
