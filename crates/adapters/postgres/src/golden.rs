//! Packed columns keep their bytes: see `tasklane_testkit::golden`.

use tasklane_core::commit::{GroupOutcome, SubmitOutcome};
use tasklane_core::id::{AttemptNo, LaneId, LineKey, Seq, TaskId};
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{Fingerprint, OrderKey};
use tasklane_core::time::Timestamp;
use tasklane_testkit::golden::check;

use crate::{keys, outcomes, write_lane};

const LANE: LaneId = LaneId(0x8003);
const LINE: LineKey = LineKey(u128::MAX - 1);
const AT: Timestamp = Timestamp::from_micros(1_800_000_000_000_001);
const ORDER: OrderKey = OrderKey { rank: 4, due: AT, seq: Seq(258) };

/// The outcomes of a lane's last commit are read by its next owner, which may be of another version.
#[test]
fn packed_outcomes_keep_their_bytes() {
    let applied = |seq| GroupOutcome::Applied { seq };
    let version = Version { status: Status::Running, attempt: AttemptNo(2) };
    let all = [
        applied(Some(Seq(7))),
        applied(Some(Seq(8))),
        applied(None),
        GroupOutcome::NotCreated(SubmitOutcome::Created { seq: Seq(9) }),
        GroupOutcome::NotCreated(SubmitOutcome::Duplicate),
        GroupOutcome::NotCreated(SubmitOutcome::RequestIdReused),
        GroupOutcome::NotCreated(SubmitOutcome::Exists { task: TaskId::from_random(7) }),
        GroupOutcome::NotCreated(SubmitOutcome::QueueFull),
        GroupOutcome::Mismatch { found: Some(version) },
        GroupOutcome::Mismatch { found: None },
    ];
    check("outcomes", |golden| golden.packed("outcomes", &outcomes::pack(&all)));
}

#[test]
fn columns_and_keys_keep_their_bytes() {
    let version = Version { status: Status::Cancelled, attempt: AttemptNo(258) };
    let fingerprint = Fingerprint { version: 129, hash: u64::MAX - 1 };
    check("columns", |golden| {
        golden.text("version", write_lane::version_number(version));
        assert_eq!(write_lane::version_of(write_lane::version_number(version)), Some(version));
        let stored = golden.bytes("fixed", &write_lane::fixed(fingerprint, LINE, 4));
        assert_eq!(write_lane::fingerprint_of(&stored), Some(fingerprint));
        golden.text("key of a row", keys::row_key(LANE, Seq(258)));
        golden.bytes("time", &keys::time(AT));
        golden.bytes("place of a ready task", &keys::ready(LANE, LINE, ORDER));
        golden.bytes("place of a delayed task", &keys::delayed(LANE, AT, Seq(258)));
        golden.bytes("deadline", &keys::deadline(LANE, AT, Seq(258)));
    });
}
