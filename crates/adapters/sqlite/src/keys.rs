//! Keys of rows and of the two indexes through which an owner finds its tasks.
//!
//! A task's `place` is one column under one index, whatever the task is waiting for. It holds bytes that sort
//! as the reads need them, so that a change of place is one entry out and one entry in:
//! ```text
//! ready      lane  0  line  rank  due  seq
//! delayed    lane  1  due   seq
//! in flight  lane  2  id
//! finished   NULL
//! ```
//! An `expiry` is `lane, start deadline, seq`. All numbers are big-endian, and times have their sign bit
//! turned, so that bytes sort as numbers do.

use smallvec::SmallVec;
use tasklane_core::id::{LaneId, LineKey, Seq, TaskId};
use tasklane_core::task::OrderKey;
use tasklane_core::time::Timestamp;

/// Bytes that sort in an index. The longest is that of a ready task.
pub(crate) type IndexKey = SmallVec<[u8; 40]>;

const SEQ_BITS: u32 = 48;
const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
const READY: u8 = 0;
const DELAYED: u8 = 1;
const IN_FLIGHT: u8 = 2;

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

/// Place of a ready task.
pub(crate) fn ready(lane: LaneId, line: LineKey, order: OrderKey) -> IndexKey {
    let mut key = line_start(lane, line);
    key.push(order.rank);
    put_time(&mut key, order.due);
    put_seq(&mut key, order.seq);
    key
}

/// Place of a delayed task.
pub(crate) fn delayed(lane: LaneId, due: Timestamp, seq: Seq) -> IndexKey {
    let mut key = place(lane, DELAYED);
    put_time(&mut key, due);
    put_seq(&mut key, seq);
    key
}

/// Place of a task in flight.
pub(crate) fn in_flight(lane: LaneId, id: TaskId) -> IndexKey {
    let mut key = place(lane, IN_FLIGHT);
    key.extend_from_slice(id.0.as_bytes());
    key
}

/// Expiry of a waiting task.
pub(crate) fn expiry(lane: LaneId, start_by: Timestamp, seq: Seq) -> IndexKey {
    let mut key = IndexKey::from_slice(&lane.0.to_be_bytes());
    put_time(&mut key, start_by);
    put_seq(&mut key, seq);
    key
}

/// Before all ready tasks of a lane.
pub(crate) fn ready_start(lane: LaneId) -> IndexKey {
    place(lane, READY)
}

/// After all of them, and before the delayed ones.
pub(crate) fn delayed_start(lane: LaneId) -> IndexKey {
    place(lane, DELAYED)
}

/// After the delayed ones, and before the tasks in flight.
pub(crate) fn in_flight_start(lane: LaneId) -> IndexKey {
    place(lane, IN_FLIGHT)
}

/// After everything of the lane.
pub(crate) fn places_end(lane: LaneId) -> IndexKey {
    place(lane, IN_FLIGHT + 1)
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

/// The line of a ready task's place.
pub(crate) fn line_of(place: &[u8]) -> Option<LineKey> {
    let line = place.get(3..19)?;
    Some(LineKey(u128::from_be_bytes(line.try_into().ok()?)))
}

fn place(lane: LaneId, kind: u8) -> IndexKey {
    let mut key = IndexKey::from_slice(&lane.0.to_be_bytes());
    key.push(kind);
    key
}

fn put_time(key: &mut IndexKey, time: Timestamp) {
    key.extend_from_slice(&(time.as_micros() ^ i64::MIN).to_be_bytes());
}

fn put_seq(key: &mut IndexKey, seq: Seq) {
    key.extend_from_slice(&seq.0.to_be_bytes());
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
    fn places_sort_as_their_reads_need_them() {
        let lane = LaneId(7);
        let order = |rank, due, seq| OrderKey { rank, due: Timestamp::from_micros(due), seq: Seq(seq) };
        let id = |n| TaskId::from_time(lane, Timestamp::from_millis(n), 0);
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
            in_flight_start(lane),
            in_flight(lane, id(1)),
            in_flight(lane, id(2)),
            places_end(lane),
            ready_start(LaneId(8)),
        ];
        assert!(in_order.is_sorted(), "{in_order:x?}");
        assert_eq!(line_of(&ready(lane, LineKey(42), OrderKey::FIRST)), Some(LineKey(42)));
    }
}
