//! The reads of a lane's owner.

use redis::Cmd;
use tasklane_core::id::Seq;
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_ports::{LoadQuery, StoreError};

use crate::connect::Traffic;
use crate::error::unexpected;
use crate::keys::{LaneKey, LaneKeys};
use crate::layout::{self, ReplyValues, bound};
use crate::script::SCRIPTS;
use crate::store::{RedisStore, id_arg};

/// Most ids in one call.
const IDS_MAX: usize = 1000;

impl RedisStore {
    pub(crate) async fn load_page(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        let lane = self.lane(load.lane);
        let page = PageQuery { limit: load.limit.max(1), body_bytes_max: load.body_bytes_max };
        match load.read {
            LaneRead::Cursor => self.cursor(&lane).await,
            LaneRead::Records { after } => {
                let first = after.map_or_else(bound::start, |after| bound::after_record(&after));
                self.records(&lane, first, page).await
            }
            LaneRead::InFlight { after } => {
                let first = after.map_or_else(bound::start, bound::after_id);
                self.range(&lane, LaneKey::InFlight, first, bound::end(), page).await
            }
            LaneRead::Inbox { after } => self.inbox(&lane, after, page).await,
            LaneRead::Lines { after } => {
                let mut call = page.rows_call(&lane, LaneKey::Ready);
                call.arg("lines").arg(after.map_or_else(bound::start, bound::end_of_line));
                self.rows(&lane, call).await
            }
            LaneRead::Line { line, after } => {
                let first =
                    after.map_or_else(|| bound::from_line(line), |after| bound::after_order(line, after));
                self.range(&lane, LaneKey::Ready, first, bound::end_of_line(line), page).await
            }
            LaneRead::Delayed { after } => {
                let first = after.map_or_else(bound::start, bound::after_time);
                self.range(&lane, LaneKey::Delayed, first, bound::end(), page).await
            }
            LaneRead::Expiring { until, after } => {
                let first = after.map_or_else(bound::start, bound::after_time);
                self.range(&lane, LaneKey::Expiring, first, bound::until_time(until), page).await
            }
            LaneRead::Arrivals { after } => self.arrivals(&lane, after, page).await,
            LaneRead::Tasks { ids } => {
                let ids: Vec<_> = ids.into_iter().filter(|id| id.lane() == load.lane).collect();
                let mut all = Vec::with_capacity(ids.len());
                for ids in ids.chunks(IDS_MAX) {
                    let mut call = page.rows_call(&lane, LaneKey::Ready);
                    call.arg("ids");
                    for id in ids {
                        call.arg(id_arg(id));
                    }
                    let LanePage::Tasks { rows, .. } = self.rows(&lane, call).await? else {
                        return Err(unexpected("no tasks"));
                    };
                    all.extend(rows);
                }
                Ok(LanePage::Tasks { rows: all, more: false })
            }
            LaneRead::Policies { after } => self.policies_after(after, page.limit).await,
        }
    }

    async fn cursor(&self, lane: &LaneKeys) -> Result<LanePage, StoreError> {
        let mut command = redis::cmd("HMGET");
        command.arg(lane.key(LaneKey::Lane)).arg("seq");
        let mut answer = ReplyValues::new(self.send(lane.slot(), Traffic::Lane, &command).await?)?;
        let seq = answer.optional()?.map_or(Ok(0), |text| layout::number(&text))?;
        Ok(LanePage::Cursor(Seq(seq)))
    }

    async fn range(
        &self,
        lane: &LaneKeys,
        index: LaneKey,
        first: Vec<u8>,
        last: Vec<u8>,
        page: PageQuery,
    ) -> Result<LanePage, StoreError> {
        let mut call = page.rows_call(lane, index);
        call.arg("range").arg(first).arg(last);
        self.rows(lane, call).await
    }

    async fn rows(&self, lane: &LaneKeys, call: Cmd) -> Result<LanePage, StoreError> {
        let mut answer = ReplyValues::new(self.run(&SCRIPTS.rows, lane.slot(), Traffic::Lane, call).await?)?;
        let more = answer.flag()?;
        let mut rows = Vec::with_capacity(answer.len() / 4);
        while !answer.is_empty() {
            rows.extend(answer.row()?);
        }
        Ok(LanePage::Tasks { rows, more })
    }

    async fn records(
        &self,
        lane: &LaneKeys,
        first: Vec<u8>,
        page: PageQuery,
    ) -> Result<LanePage, StoreError> {
        let keys = [LaneKey::RecordKeys, LaneKey::Records].map(|key| lane.key(key));
        let mut call = SCRIPTS.records.call(keys.into_iter());
        call.arg(first).arg(page.limit);
        let mut answer =
            ReplyValues::new(self.run(&SCRIPTS.records, lane.slot(), Traffic::Lane, call).await?)?;
        let more = answer.flag()?;
        let mut rows = Vec::with_capacity(answer.len() / 2);
        while !answer.is_empty() {
            rows.push((layout::record_key_of(&answer.bytes()?)?, answer.bytes()?));
        }
        Ok(LanePage::Records { rows, more })
    }

    async fn inbox(&self, lane: &LaneKeys, after: Seq, page: PageQuery) -> Result<LanePage, StoreError> {
        let mut command = redis::cmd("ZRANGEBYLEX");
        command.arg(lane.key(LaneKey::Inbox)).arg(bound::after_seq(after)).arg(bound::end());
        command.arg("LIMIT").arg(0).arg(page.limit + 1);
        let mut answer = ReplyValues::new(self.send(lane.slot(), Traffic::Lane, &command).await?)?;
        let more = answer.len() > page.limit;
        let mut rows = Vec::with_capacity(answer.len());
        while !answer.is_empty() && rows.len() < page.limit {
            rows.push(layout::inbox_row(&answer.bytes()?)?);
        }
        Ok(LanePage::Inbox { rows, more })
    }

    async fn arrivals(&self, lane: &LaneKeys, after: Seq, page: PageQuery) -> Result<LanePage, StoreError> {
        use LaneKey::{Arrivals, Body, Inbox, Lane, Spec, State};
        let keys = [Lane, Arrivals, Inbox, State, Spec, Body].map(|key| lane.key(key));
        let mut call = SCRIPTS.arrivals.call(keys.into_iter());
        call.arg(page.body_bytes_max).arg(page.limit).arg(after.0);
        let mut answer =
            ReplyValues::new(self.run(&SCRIPTS.arrivals, lane.slot(), Traffic::Lane, call).await?)?;
        match answer.bytes()?.as_slice() {
            b"ok" => {}
            b"gap" => return Ok(LanePage::Gap),
            _ => return Err(unexpected("neither arrivals nor a gap")),
        }
        let (highest, next) = (answer.number()?, answer.number()?);
        let mut rows = Vec::with_capacity(answer.len() / 4);
        while !answer.is_empty() {
            rows.push(answer.arrival()?);
        }
        Ok(LanePage::Arrivals { rows, next: Seq(next), more: next < highest })
    }

    async fn policies_after(&self, after: u64, limit: usize) -> Result<LanePage, StoreError> {
        let shared = self.shared();
        let keys = [&shared.policies, &shared.policy_changes, &shared.policy_revision].map(String::as_str);
        let mut call = SCRIPTS.policies.call(keys.into_iter());
        // An entry goes on with the name of a queue, whose bytes are all below 255.
        call.arg([b"(".as_slice(), &after.to_be_bytes(), &[0xff]].concat()).arg(limit);
        let mut answer =
            ReplyValues::new(self.run(&SCRIPTS.policies, shared.slot, Traffic::Lane, call).await?)?;
        let (current, more) = (answer.number()?, answer.flag()?);
        let mut rows = Vec::with_capacity(answer.len() / 2);
        let mut revision = current;
        while !answer.is_empty() {
            let (queue, stored) = (answer.bytes()?, answer.bytes()?);
            if more {
                revision = layout::be_number(&stored)?;
            }
            rows.push((layout::queue_of(&queue)?, layout::policy_of(&stored)?));
        }
        Ok(LanePage::Policies { rows, revision, more })
    }
}

/// Bounds of an answer.
#[derive(Clone, Copy)]
struct PageQuery {
    limit: usize,
    body_bytes_max: usize,
}

impl PageQuery {
    /// A call of `rows.lua`; the query's arguments follow.
    fn rows_call(self, lane: &LaneKeys, index: LaneKey) -> Cmd {
        let keys = [LaneKey::State, LaneKey::Spec, LaneKey::Body, index].map(|key| lane.key(key));
        let mut call = SCRIPTS.rows.call(keys.into_iter());
        call.arg(self.body_bytes_max).arg(self.limit);
        call
    }
}

impl ReplyValues {
    /// A task, or an empty id and a command.
    fn arrival(&mut self) -> Result<Arrival, StoreError> {
        if self.is_command() {
            self.bytes()?;
            let row = layout::inbox_row(&self.bytes()?)?;
            self.optional()?;
            self.optional()?;
            return Ok(Arrival::Command(row));
        }
        let row = self.row()?.ok_or_else(|| unexpected("an arrival without a task"))?;
        Ok(Arrival::Task(row))
    }
}
