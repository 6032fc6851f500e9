//! Records of lanes keep their keys and values.

use tasklane_testkit::golden::check;

use crate::commit::RecordKey;
use crate::id::{LimitId, Name, QueueKey, TaskId};
use crate::time::Timestamp;

use super::completions::completion_record;
use super::limits::{parse_rate_record, rate_record, rate_value};
use super::on_policy::{parse_policy_record, policy_record, policy_value};

#[test]
fn records_keep_their_keys_and_values() {
    let name = |text| Name::new(text).expect("a valid name");
    let queue = QueueKey::new(name("default"), name("mail"));
    let (limit, task) = (LimitId::of("{{ metadata.k }}"), TaskId::from_random(7));
    let (rate, policy) = (rate_record(&queue, limit, "a/b"), policy_record(&queue));
    assert_eq!(parse_rate_record(&rate.key), Some((queue.clone(), limit, "a/b")));
    assert_eq!(parse_policy_record(&policy.key), queue);
    let text = |key: RecordKey| format!("{} {}", key.kind.code(), key.key);
    check("lane_records", |golden| {
        golden.text("key of a rate", text(rate));
        golden.bytes("value of a rate", &rate_value(Timestamp::from_micros(1_800_000_000_000_001)));
        golden.text("key of an applied policy", text(policy));
        golden.bytes("value of an applied policy", &policy_value(7));
        golden.text("key of a completion note", text(completion_record(task)));
    });
}
