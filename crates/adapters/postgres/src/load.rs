//! The owner's reads: pages of a lane's tasks, arrivals and records.

use rustc_hash::FxHashMap;
use tasklane_core::command::InboxRow;
use tasklane_core::commit::{RecordKey, RecordKind};
use tasklane_core::id::{LaneId, LineKey, Seq, TaskId};
use tasklane_core::policy::VersionedPolicy;
use tasklane_core::read::{Arrival, LanePage, LaneRead};
use tasklane_core::time::Timestamp;
use tasklane_ports::{LoadQuery, StoreError, codec};
use tokio_postgres::Row;

use crate::columns::Column;
use crate::error::unexpected;
use crate::keys::{self, IndexKey, seq_of};
use crate::rows::{Heads, column, number, queue_key};
use crate::store::PostgresStore;

impl PostgresStore {
    /// Answers one page.
    pub(crate) async fn load_page(&self, load: LoadQuery) -> Result<LanePage, StoreError> {
        let lane = load.lane;
        let limit = load.limit.max(1);
        let bodies = i32::try_from(load.body_bytes_max).unwrap_or(i32::MAX);
        let page = PageQuery { store: self, lane, limit, bodies };
        match load.read {
            LaneRead::Cursor => page.cursor().await,
            LaneRead::Records { after } => page.records(after).await,
            LaneRead::InFlight { after } => page.in_flight(after).await,
            LaneRead::Inbox { after } => page.inbox(after).await,
            LaneRead::Lines { after } => page.lines(after).await,
            LaneRead::Line { line, after } => {
                let from = after
                    .map_or_else(|| keys::line_start(lane, line), |order| keys::ready(lane, line, order));
                page.places(&from, &keys::line_end(lane, line)).await
            }
            LaneRead::Delayed { after } => {
                let from = after
                    .map_or_else(|| keys::delayed_start(lane), |(due, seq)| keys::delayed(lane, due, seq));
                page.places(&from, &keys::delayed_end(lane)).await
            }
            LaneRead::Expiring { until, after } => {
                let (start_by, seq) = after.unwrap_or((Timestamp::from_micros(i64::MIN), Seq(0)));
                let from = keys::deadline(lane, start_by, seq);
                page.places(&from, &keys::deadline(lane, until, Seq(u64::MAX))).await
            }
            LaneRead::Arrivals { after } => page.arrivals(after).await,
            LaneRead::Tasks { ids } => page.tasks(&ids).await,
            LaneRead::Policies { after } => page.policies(after).await,
        }
    }
}

struct PageQuery<'a> {
    store: &'a PostgresStore,
    lane: LaneId,
    limit: usize,
    bodies: i32,
}

impl PageQuery<'_> {
    async fn read(
        &self,
        statement: &str,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.store.database.read(statement, params).await
    }

    fn statements(&self) -> &crate::statements::Statements {
        &self.store.database.statements
    }

    fn lane_number(&self) -> i32 {
        i32::from(self.lane.0)
    }

    /// One row more than the page holds: whether there is more.
    fn one_more(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX).saturating_add(1)
    }

    fn cut<T>(&self, mut rows: Vec<T>) -> (Vec<T>, bool) {
        let more = rows.len() > self.limit;
        rows.truncate(self.limit);
        (rows, more)
    }

    fn task_page(&self, rows: Vec<Row>) -> Result<LanePage, StoreError> {
        let (rows, more) = self.cut(rows);
        let rows = Heads::task_rows(&rows)?;
        self.store.note(rows.iter());
        Ok(LanePage::Tasks { rows, more })
    }

    async fn cursor(&self) -> Result<LanePage, StoreError> {
        let rows = self.read(&self.statements().cursor, &[&self.lane_number()]).await?;
        let last = rows.first().map(|row| number(row, 0)).transpose()?;
        Ok(LanePage::Cursor(Seq(last.unwrap_or(0))))
    }

    async fn in_flight(&self, after: Option<TaskId>) -> Result<LanePage, StoreError> {
        let (first, last) = (keys::first_id(self.lane), keys::last_id(self.lane));
        let from = after.unwrap_or(first);
        let rows = self
            .read(&self.statements().in_flight, &[&self.bodies, &from.0, &last.0, &self.one_more()])
            .await?;
        self.task_page(rows)
    }

    /// Tasks whose place is between two, in the order of their places.
    async fn places(&self, after: &IndexKey, before: &IndexKey) -> Result<LanePage, StoreError> {
        let (after, before) = (after.as_slice(), before.as_slice());
        let rows =
            self.read(&self.statements().places, &[&self.bodies, &after, &before, &self.one_more()]).await?;
        self.task_page(rows)
    }

    /// The first ready task of each line.
    async fn lines(&self, after: Option<LineKey>) -> Result<LanePage, StoreError> {
        let from = after.map_or_else(|| keys::ready_start(self.lane), |line| keys::line_end(self.lane, line));
        let end = keys::delayed_start(self.lane);
        let count = i32::try_from(self.one_more()).unwrap_or(i32::MAX);
        let rows = self
            .read(&self.statements().lines, &[&self.bodies, &from.as_slice(), &end.as_slice(), &count])
            .await?;
        self.task_page(rows)
    }

    async fn tasks(&self, ids: &[TaskId]) -> Result<LanePage, StoreError> {
        let asked = Column::of_uuids(ids.iter().filter(|id| id.lane() == self.lane).map(|id| id.0));
        let rows = self.read(&self.statements().tasks, &[&self.bodies, &asked]).await?;
        let found: FxHashMap<TaskId, _> =
            Heads::task_rows(&rows)?.into_iter().map(|row| (row.id, row)).collect();
        Ok(LanePage::Tasks {
            rows: ids.iter().filter_map(|id| found.get(id).cloned()).collect(),
            more: false,
        })
    }

    async fn inbox(&self, after: Seq) -> Result<LanePage, StoreError> {
        let (from, end) = (keys::row_key(self.lane, after), keys::last_row_key(self.lane));
        let rows = self.read(&self.statements().inbox, &[&from, &end, &self.one_more()]).await?;
        let rows = rows.iter().map(|row| {
            Ok(InboxRow { seq: seq_of(column(row, 0)?), command: codec::decode(column(row, 1)?)? })
        });
        let (rows, more) = self.cut(rows.collect::<Result<_, StoreError>>()?);
        Ok(LanePage::Inbox { rows, more })
    }

    async fn arrivals(&self, after: Seq) -> Result<LanePage, StoreError> {
        let (from, end) = (keys::row_key(self.lane, after), keys::last_row_key(self.lane));
        let found = self
            .read(
                &self.statements().arrivals,
                &[&self.bodies, &self.lane_number(), &from, &end, &self.one_more()],
            )
            .await?;
        // Every number of a lane was given out with its row.
        let last = found.first().map(|row| number(row, 0)).transpose()?.map_or(Seq(0), Seq);
        let (mut rows, mut heads) = (Vec::with_capacity(found.len()), Heads::default());
        for row in &found {
            let Some(key) = column::<Option<i64>>(row, 1)? else { continue };
            rows.push(match column::<Option<&[u8]>>(row, 6)? {
                Some(command) => {
                    Arrival::Command(InboxRow { seq: seq_of(key), command: codec::decode(command)? })
                }
                None => Arrival::Task(heads.task_row(row, 1)?),
            });
        }
        let (rows, more) = self.cut(rows);
        self.store.note(rows.iter().filter_map(|arrival| match arrival {
            Arrival::Task(row) => Some(row),
            Arrival::Command(_) => None,
        }));
        let next = match rows.last() {
            Some(last) if more => last.seq(),
            // The page also covers the numbers of finished commands.
            _ => last,
        };
        Ok(LanePage::Arrivals { rows, next, more })
    }

    async fn records(&self, after: Option<RecordKey>) -> Result<LanePage, StoreError> {
        let (kind, key) = after.map_or((0, String::new()), |key| (i16::from(key.kind.code()), key.key));
        let found = self
            .read(
                &self.statements().records,
                &[&self.lane_number(), &kind, &key.as_bytes(), &self.one_more()],
            )
            .await?;
        let rows = found.iter().map(|row| {
            let code: i16 = column(row, 0)?;
            let kind = u8::try_from(code).ok().and_then(RecordKind::from_code);
            let kind = kind.ok_or_else(|| unexpected(format!("a record has kind {code}")))?;
            let key = String::from_utf8(column(row, 1)?).map_err(unexpected)?;
            Ok((RecordKey { kind, key }, column(row, 2)?))
        });
        let (rows, more) = self.cut(rows.collect::<Result<_, StoreError>>()?);
        Ok(LanePage::Records { rows, more })
    }

    async fn policies(&self, after: u64) -> Result<LanePage, StoreError> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let found = self.read(&self.statements().policies, &[&after, &self.one_more()]).await?;
        let mut rows = Vec::with_capacity(found.len());
        let mut revision = 0;
        for row in &found {
            let Some(of_row) = column::<Option<i64>>(row, 1)? else {
                // No change since.
                revision = number(row, 0)?;
                break;
            };
            if rows.len() == self.limit {
                return Ok(LanePage::Policies { rows, revision, more: true });
            }
            revision = of_row.cast_unsigned();
            let policy =
                VersionedPolicy { version: number(row, 4)?, policy: codec::decode(column(row, 5)?)? };
            rows.push((queue_key(row, 2)?, policy));
        }
        Ok(LanePage::Policies { rows, revision, more: false })
    }
}
