//! Queries: tasks by id, lists, counts. A query over all lanes goes to each lane, and this module merges the
//! answers.

use std::collections::BTreeMap;

use futures::stream::{self, StreamExt, TryStreamExt};
use redis::Value;
use tasklane_core::id::{LaneId, QueueKey, TaskId};
use tasklane_core::task::{AttemptRecord, TaskRow};
use tasklane_ports::{
    AttemptList, CountList, QueueCounts, StoreError, TaskCursor, TaskFilter, TaskList, TaskPage, TaskView,
    codec,
};

use crate::connect::Traffic;
use crate::error::unexpected;
use crate::keys::LaneKey;
use crate::layout::{self, ReplyValues};
use crate::script::SCRIPTS;
use crate::store::{RedisStore, id_arg};

/// Most tasks in one answer with whole tasks: payload and result of each may be 1 MiB.
const VIEWS_MAX: usize = 64;
/// Lanes that a query reads in parallel.
pub(crate) const LANES_AT_ONCE: usize = 16;
/// Most tasks that one query over all lanes reads from a lane.
pub(crate) const SCAN_MAX: usize = 1000;
/// About how many bytes of bodies one `list` reads from a lane.
const SCAN_BYTES_MAX: usize = 4 << 20;
/// Larger bodies are not listed.
const LISTED_BODY_BYTES_MAX: usize = 4 << 10;

impl RedisStore {
    pub(crate) async fn views(&self, ids: &[TaskId]) -> Result<Vec<Option<TaskView>>, StoreError> {
        let mut by_lane = BTreeMap::<LaneId, Vec<(usize, TaskId)>>::new();
        for (place, id) in ids.iter().enumerate() {
            by_lane.entry(id.lane()).or_default().push((place, *id));
        }
        let mut views: Vec<Option<TaskView>> = vec![None; ids.len()];
        for (lane, asked) in by_lane {
            for asked in asked.chunks(VIEWS_MAX) {
                for ((place, _), view) in asked.iter().zip(self.views_of(lane, asked).await?) {
                    views[*place] = view;
                }
            }
        }
        Ok(views)
    }

    async fn views_of(
        &self,
        lane: LaneId,
        asked: &[(usize, TaskId)],
    ) -> Result<Vec<Option<TaskView>>, StoreError> {
        let lane = self.lane(lane);
        let keys = [LaneKey::State, LaneKey::Spec, LaneKey::Body, LaneKey::Result].map(|key| lane.key(key));
        let mut call = SCRIPTS.view.call(keys.into_iter());
        for (_, id) in asked {
            call.arg(id_arg(id));
        }
        let mut answer = ReplyValues::new(self.run(&SCRIPTS.view, lane.slot(), Traffic::Query, call).await?)?;
        let mut rows = Vec::with_capacity(asked.len());
        for _ in asked {
            rows.push(answer.row()?);
        }
        let mut views = Vec::with_capacity(asked.len());
        for row in rows {
            let result = answer.optional()?.map(|result| codec::decode(&result)).transpose()?;
            views.push(row.map(|row| TaskView { row, result }));
        }
        Ok(views)
    }

    pub(crate) async fn attempts_of(&self, list: AttemptList) -> Result<Vec<AttemptRecord>, StoreError> {
        let lane = self.lane(list.task.lane());
        let mut call = SCRIPTS.attempts.call([lane.key(LaneKey::Attempts)].into_iter());
        call.arg(id_arg(&list.task)).arg(list.after.0).arg(list.limit);
        match self.run(&SCRIPTS.attempts, lane.slot(), Traffic::Query, call).await? {
            Value::BulkString(packed) => layout::attempts_of(&packed),
            _ => Err(unexpected("no attempts")),
        }
    }

    pub(crate) async fn all_lanes(&self) -> Result<Vec<LaneId>, StoreError> {
        let shared = self.shared();
        let mut command = redis::cmd("SMEMBERS");
        command.arg(&shared.lanes);
        let answer = self.send(shared.slot, Traffic::Query, &command).await?;
        let mut lanes: Vec<u16> = redis::from_redis_value(answer).map_err(StoreError::corrupt)?;
        lanes.sort_unstable();
        Ok(lanes.into_iter().map(LaneId).collect())
    }

    /// The first queues over all lanes: merging the first ones of each lane misses none.
    pub(crate) async fn queue_counts(&self, list: &CountList) -> Result<Vec<QueueCounts>, StoreError> {
        let lanes = self.all_lanes().await?;
        let asked = lanes.into_iter().map(|lane| self.counts_of(lane, list));
        let counts: Vec<_> = stream::iter(asked).buffered(LANES_AT_ONCE).try_collect().await?;
        let mut all = BTreeMap::<QueueKey, [u64; 8]>::new();
        for (queue, counts) in counts.into_iter().flatten() {
            let by_status = all.entry(queue).or_default();
            by_status.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let counts = all.into_iter().take(list.limit);
        Ok(counts.map(|(queue, by_status)| QueueCounts { queue, by_status }).collect())
    }

    async fn counts_of(
        &self,
        lane: LaneId,
        list: &CountList,
    ) -> Result<Vec<(QueueKey, [u64; 8])>, StoreError> {
        let lane = self.lane(lane);
        let mut call = SCRIPTS.counts.call([lane.key(LaneKey::Counts)].into_iter());
        call.arg(list.after.as_ref().map(layout::queue_key).unwrap_or_default()).arg(list.limit);
        let mut answer =
            ReplyValues::new(self.run(&SCRIPTS.counts, lane.slot(), Traffic::Query, call).await?)?;
        let mut counts = Vec::with_capacity(answer.len() / 9);
        while !answer.is_empty() {
            let queue = layout::queue_of(&answer.bytes()?)?;
            let mut by_status = [0; 8];
            for count in &mut by_status {
                *count = answer.number()?;
            }
            counts.push((queue, by_status));
        }
        Ok(counts)
    }

    pub(crate) async fn page(&self, list: TaskList) -> Result<TaskPage, StoreError> {
        let limit = list.limit.max(1);
        let list = &TaskList { limit, ..list };
        let lanes = self.all_lanes().await?;
        let asked = lanes.into_iter().map(|lane| self.page_of(lane, list));
        let pages: Vec<LaneList> = stream::iter(asked).buffered(LANES_AT_ONCE).try_collect().await?;
        Ok(merge(pages, limit))
    }

    async fn page_of(&self, lane: LaneId, list: &TaskList) -> Result<LaneList, StoreError> {
        let TaskList { filter, after, limit } = list;
        let lane = self.lane(lane);
        let keys = [LaneKey::Created, LaneKey::State, LaneKey::Spec, LaneKey::Body, LaneKey::Children];
        let keys = keys.map(|key| lane.key(key));
        let mut call = SCRIPTS.list.call(keys.into_iter());
        // Newest first: from the cursor, or the end of the time asked for, back to its start.
        let before = filter.created_before.map(|time| layout::time_key(time).to_vec());
        let newest = [after.map(layout::cursor_key), before].into_iter().flatten().min();
        call.arg(newest.map_or_else(|| b"+".to_vec(), |newest| [b"(".as_slice(), &newest].concat()));
        let oldest = filter.created_from.map(layout::time_key);
        call.arg(oldest.map_or_else(|| b"-".to_vec(), |oldest| [b"[".as_slice(), &oldest].concat()));
        // The index of children holds the children of one parent only.
        let rest = TaskFilter { parent: None, ..filter.clone() };
        let wants_bodies = wants_bodies(&rest);
        call.arg(if *filter == TaskFilter::default() { *limit } else { SCAN_MAX }).arg(*limit);
        call.arg(if wants_bodies { u32::MAX as usize } else { LISTED_BODY_BYTES_MAX }).arg(SCAN_BYTES_MAX);
        call.arg(filter.statuses.iter().map(|status| status.code()).collect::<Vec<u8>>());
        for name in [&filter.namespace, &filter.queue] {
            call.arg(name.as_ref().map_or("", |name| name.as_str()));
        }
        call.arg(filter.parent.as_ref().map_or(&[][..], id_arg));
        let mut answer = ReplyValues::new(self.run(&SCRIPTS.list, lane.slot(), Traffic::Query, call).await?)?;
        let entry = answer.bytes()?;
        let stopped_at = if entry.is_empty() { None } else { Some(layout::cursor_of(&entry)?) };
        let mut rows = Vec::with_capacity(answer.len() / 4);
        while !answer.is_empty() {
            let mut row = answer.row()?.ok_or_else(|| unexpected("a listed task that is not there"))?;
            if rest.matches(&row) {
                row.body = row.body.filter(|body| body.bytes() <= LISTED_BODY_BYTES_MAX);
                rows.push(row);
            }
        }
        Ok(LaneList { rows, stopped_at })
    }
}

/// Whether a condition needs the body, however large it is.
fn wants_bodies(filter: &TaskFilter) -> bool {
    filter.name.is_some() || filter.schedule.is_some() || !filter.metadata.is_empty()
}

/// A part of the list of one lane.
struct LaneList {
    rows: Vec<TaskRow>,
    /// The last task read; `None` at the end of the lane.
    stopped_at: Option<TaskCursor>,
}

/// Merges the lists of the lanes. The result ends where the first lane stopped reading.
fn merge(pages: Vec<LaneList>, limit: usize) -> TaskPage {
    let horizon = pages.iter().filter_map(|page| page.stopped_at).max();
    let cursor = |row: &TaskRow| TaskCursor { created_at: row.state.created_at, id: row.id };
    let mut tasks: Vec<TaskRow> = pages.into_iter().flat_map(|page| page.rows).collect();
    tasks.retain(|row| horizon.is_none_or(|horizon| cursor(row) >= horizon));
    tasks.sort_unstable_by_key(|row| std::cmp::Reverse(cursor(row)));
    let next = if tasks.len() > limit {
        tasks.truncate(limit);
        tasks.last().map(cursor)
    } else {
        horizon
    };
    TaskPage { tasks, next }
}
