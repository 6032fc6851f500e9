//! Keys of rows and of the index through which an owner finds its waiting tasks.
//!
//! A task's `place` is bytes that sort as the reads need them. They end with the task's number, which is
//! known only when the task is written: prefixes made here for a write lack it.
//! ```text
//! ready      lane  0  line  rank  due  seq
//! delayed    lane  1  due   seq
//! deadline   lane  3  start_by  seq
//! ```
//! All numbers are big-endian, and times have their sign bit turned, so that bytes sort as numbers do.

use smallvec::SmallVec;
use tasklane_core::id::{LaneId, LineKey, Seq, TaskId};
use tasklane_core::task::OrderKey;
use tasklane_core::time::Timestamp;
use uuid::Uuid;

/// Bytes that sort in an index. The longest is that of a ready task.
pub(crate) type IndexKey = SmallVec<[u8; 40]>;

const SEQ_BITS: u32 = 48;
const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
const READY: u8 = 0;
const DELAYED: u8 = 1;
const DEADLINE: u8 = 3;

/// The key of the task or inbox row `seq` of a lane. Keys of a lane are in the order of arrival; those of the
/// upper half of the lanes are negative, which does not matter.
pub(crate) fn row_key(lane: LaneId, seq: Seq) -> i64 {
    assert!(seq.0 <= SEQ_MAX, "a lane numbers at most 2^48 rows");
    ((u64::from(lane.0) << SEQ_BITS) | seq.0).cast_signed()
}

/// The last key that a row of the lane can have.
pub(crate) fn last_row_key(lane: LaneId) -> i64 {
    row_key(lane, Seq(SEQ_MAX))
}

/// The arrival number in a key.
pub(crate) fn seq_of(key: i64) -> Seq {
    Seq(key.cast_unsigned() & SEQ_MAX)
}

/// Place of a ready task, without its number.
pub(crate) fn ready_prefix(lane: LaneId, line: LineKey, rank: u8, due: Timestamp) -> IndexKey {
    let mut key = line_start(lane, line);
    key.push(rank);
    put_time(&mut key, due);
    key
}

/// Place of a delayed task, without its number.
pub(crate) fn delayed_prefix(lane: LaneId, due: Timestamp) -> IndexKey {
    let mut key = place(lane, DELAYED);
    put_time(&mut key, due);
    key
}

/// The deadline of a waiting task, without its number.
pub(crate) fn deadline_prefix(lane: LaneId, start_by: Timestamp) -> IndexKey {
    let mut key = place(lane, DEADLINE);
    put_time(&mut key, start_by);
    key
}

/// A time as bytes that sort.
pub(crate) fn time(time: Timestamp) -> [u8; 8] {
    (time.as_micros() ^ i64::MIN).to_be_bytes()
}

/// Place of a ready task.
pub(crate) fn ready(lane: LaneId, line: LineKey, order: OrderKey) -> IndexKey {
    with_seq(ready_prefix(lane, line, order.rank, order.due), order.seq)
}

/// Place of a delayed task.
pub(crate) fn delayed(lane: LaneId, due: Timestamp, seq: Seq) -> IndexKey {
    with_seq(delayed_prefix(lane, due), seq)
}

/// Deadline of a waiting task.
pub(crate) fn deadline(lane: LaneId, start_by: Timestamp, seq: Seq) -> IndexKey {
    with_seq(deadline_prefix(lane, start_by), seq)
}

/// Before all ready tasks of a lane.
pub(crate) fn ready_start(lane: LaneId) -> IndexKey {
    place(lane, READY)
}

/// After all of them, and before the delayed ones.
pub(crate) fn delayed_start(lane: LaneId) -> IndexKey {
    place(lane, DELAYED)
}

/// After the delayed ones.
pub(crate) fn delayed_end(lane: LaneId) -> IndexKey {
    place(lane, DELAYED + 1)
}

/// Before all ready tasks of a line.
pub(crate) fn line_start(lane: LaneId, line: LineKey) -> IndexKey {
    let mut key = place(lane, READY);
    key.extend_from_slice(&line.0.to_be_bytes());
    key
}

/// After all ready tasks of a line, and before the next line.
pub(crate) fn line_end(lane: LaneId, line: LineKey) -> IndexKey {
    let mut key = line_start(lane, line);
    key.push(u8::MAX);
    key
}

/// Before all ids of a lane, which begin with it.
pub(crate) fn first_id(lane: LaneId) -> TaskId {
    TaskId(Uuid::from_u128(u128::from(lane.0) << 112))
}

/// After all ids of a lane that tasks have.
pub(crate) fn last_id(lane: LaneId) -> TaskId {
    TaskId(Uuid::from_u128((u128::from(lane.0) << 112) | (u128::MAX >> 16)))
}

fn place(lane: LaneId, kind: u8) -> IndexKey {
    let mut key = IndexKey::from_slice(&lane.0.to_be_bytes());
    key.push(kind);
    key
}

fn put_time(key: &mut IndexKey, at: Timestamp) {
    key.extend_from_slice(&time(at));
}

fn with_seq(mut key: IndexKey, seq: Seq) -> IndexKey {
    key.extend_from_slice(&seq.0.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_lane_are_in_order_of_arrival() {
        for lane in [0, 1, 0x7fff, 0x8000, u16::MAX].map(LaneId) {
            assert!(row_key(lane, Seq(1)) < row_key(lane, Seq(2)));
            assert!(row_key(lane, Seq(1 << 40)) < last_row_key(lane));
            assert_eq!(seq_of(row_key(lane, Seq(77))), Seq(77));
        }
    }

    #[test]
    fn ids_of_a_lane_lie_between_its_bounds() {
        for lane in [0, 1, 0x7fff, 0x8000, u16::MAX].map(LaneId) {
            for id in [
                TaskId::from_time(lane, Timestamp::ZERO, 0),
                TaskId::from_time(lane, Timestamp::MAX, u64::MAX),
            ] {
                assert!(first_id(lane) < id && id < last_id(lane), "{id}");
            }
        }
    }

    #[test]
    fn places_sort_as_their_reads_need_them() {
        let lane = LaneId(7);
        let order = |rank, due, seq| OrderKey { rank, due: Timestamp::from_micros(due), seq: Seq(seq) };
        let in_order = [
            ready_start(lane),
            line_start(lane, LineKey(1)),
            ready(lane, LineKey(1), OrderKey::FIRST),
            ready(lane, LineKey(1), order(0, -1, 9)),
            ready(lane, LineKey(1), order(0, 0, 8)),
            ready(lane, LineKey(1), order(0, 1, 256)),
            ready(lane, LineKey(1), order(0, 1, 65536)),
            ready(lane, LineKey(1), order(9, 0, 1)),
            line_end(lane, LineKey(1)),
            ready(lane, LineKey(2), order(0, 0, 1)),
            line_end(lane, LineKey(u128::MAX)),
            delayed_start(lane),
            delayed(lane, Timestamp::from_micros(-5), Seq(3)),
            delayed(lane, Timestamp::from_micros(5), Seq(1)),
            delayed(lane, Timestamp::MAX, Seq(2)),
            delayed_end(lane),
            deadline(lane, Timestamp::from_micros(-5), Seq(3)),
            deadline(lane, Timestamp::MAX, Seq(1)),
            ready_start(LaneId(8)),
        ];
        assert!(in_order.is_sorted(), "{in_order:x?}");
    }
}
