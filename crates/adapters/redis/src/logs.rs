//! Output of attempts: one sorted set for each task, in the slot of its lane.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::Cmd;
use tasklane_core::id::{LaneId, TaskId};
use tasklane_ports::{LogChunk, LogPosition, LogStream, Logs, StoreError};

use crate::connect::Traffic;
use crate::error::unexpected;
use crate::layout::{self, ReplyValues};
use crate::script::SCRIPTS;
use crate::store::RedisStore;

/// About how many bytes one script appends.
const APPEND_BYTES_MAX: usize = 4 << 20;
/// Most tasks whose output one command removes.
const REMOVED_MAX: usize = 1000;

#[async_trait]
impl Logs for RedisStore {
    async fn append(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        let mut by_lane = BTreeMap::<LaneId, Vec<&LogChunk>>::new();
        for chunk in chunks {
            by_lane.entry(chunk.task.lane()).or_default().push(chunk);
        }
        for (lane, chunks) in by_lane {
            for batch in batches(&chunks) {
                self.append_batch(lane, batch).await?;
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        task: TaskId,
        after: Option<LogPosition>,
        limit: usize,
    ) -> Result<Vec<LogChunk>, StoreError> {
        let lane = self.lane(task.lane());
        let mut command = redis::cmd("ZRANGEBYLEX");
        command.arg(lane.log_of(task));
        match after {
            // After a position comes the stream, which is never 255.
            Some(after) => command.arg([b"(".as_slice(), &position_key(after), &[0xff]].concat()),
            None => command.arg("-"),
        };
        command.arg("+").arg("LIMIT").arg(0).arg(limit);
        self.chunks(task, lane.slot(), &command).await
    }

    async fn tail(&self, task: TaskId, limit: usize) -> Result<Vec<LogChunk>, StoreError> {
        let lane = self.lane(task.lane());
        let mut command = redis::cmd("ZREVRANGEBYLEX");
        command.arg(lane.log_of(task)).arg("+").arg("-").arg("LIMIT").arg(0).arg(limit);
        let mut chunks = self.chunks(task, lane.slot(), &command).await?;
        chunks.reverse();
        Ok(chunks)
    }

    async fn remove(&self, tasks: &[TaskId]) -> Result<(), StoreError> {
        let mut by_lane = BTreeMap::<LaneId, Vec<TaskId>>::new();
        for task in tasks {
            by_lane.entry(task.lane()).or_default().push(*task);
        }
        for (lane, tasks) in by_lane {
            let lane = self.lane(lane);
            for tasks in tasks.chunks(REMOVED_MAX) {
                // The server frees the memory beside its work.
                let mut command = redis::cmd("UNLINK");
                for task in tasks {
                    command.arg(lane.log_of(*task));
                }
                self.send(lane.slot(), Traffic::Query, &command).await?;
            }
        }
        Ok(())
    }
}

impl RedisStore {
    async fn chunks(&self, task: TaskId, slot: u16, command: &Cmd) -> Result<Vec<LogChunk>, StoreError> {
        let mut answer = ReplyValues::new(self.send(slot, Traffic::Query, command).await?)?;
        let mut chunks = Vec::with_capacity(answer.len());
        while !answer.is_empty() {
            chunks.push(chunk_of(task, &answer.bytes()?)?);
        }
        Ok(chunks)
    }

    async fn append_batch(&self, lane: LaneId, batch: &[&LogChunk]) -> Result<(), StoreError> {
        let lane = self.lane(lane);
        let mut tasks: Vec<TaskId> = batch.iter().map(|chunk| chunk.task).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let keys: Vec<String> = tasks.iter().map(|task| lane.log_of(*task)).collect();
        let mut call = SCRIPTS.append_logs.call(keys.iter().map(String::as_str));
        for chunk in batch {
            let key = tasks.binary_search(&chunk.task).expect("all tasks of the batch are there");
            add_chunk(&mut call, key + 1, chunk);
        }
        self.run(&SCRIPTS.append_logs, lane.slot(), Traffic::Query, call).await?;
        Ok(())
    }
}

/// Cuts chunks into parts that one script appends.
fn batches<'a, 'b>(chunks: &'a [&'b LogChunk]) -> impl Iterator<Item = &'a [&'b LogChunk]> {
    let mut rest = chunks;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|chunk| {
            let first = bytes == 0;
            bytes += chunk.bytes.len() + 64;
            first || bytes <= APPEND_BYTES_MAX
        });
        let (batch, after) = rest.split_at(fits.count());
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

fn position_key(position: LogPosition) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&position.attempt.0.to_be_bytes());
    key[4..].copy_from_slice(&position.number.to_be_bytes());
    key
}

pub(crate) fn add_chunk(call: &mut Cmd, key: usize, chunk: &LogChunk) {
    let kept = [&[chunk.stream.code()], &layout::time_key(chunk.at)[..], &chunk.bytes].concat();
    call.arg(key).arg(&position_key(chunk.position)).arg(kept);
}

pub(crate) fn chunk_of(task: TaskId, member: &[u8]) -> Result<LogChunk, StoreError> {
    let (position, rest) = member.split_first_chunk::<8>().ok_or_else(|| unexpected("a chunk cut off"))?;
    let position = u64::from_be_bytes(*position);
    let (stream, rest) = rest.split_first().ok_or_else(|| unexpected("a chunk cut off"))?;
    let (at, bytes) = rest.split_first_chunk::<8>().ok_or_else(|| unexpected("a chunk cut off"))?;
    #[expect(clippy::cast_possible_truncation, reason = "two halves")]
    let (attempt, number) = ((position >> 32) as u32, position as u32);
    Ok(LogChunk {
        task,
        position: LogPosition { attempt: tasklane_core::id::AttemptNo(attempt), number },
        stream: LogStream::from_code(*stream).ok_or_else(|| unexpected("an unknown stream"))?,
        at: layout::time_of(*at),
        bytes: bytes.to_vec(),
    })
}
