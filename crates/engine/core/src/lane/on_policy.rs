//! Policies. A new version binds from the commit that first names it. Changed numbers apply to waiting tasks
//! at once, and a lowered limit never stops a running attempt.

use crate::commit::{Group, RecordChange, RecordKey, RecordKind};
use crate::id::{Name, QueueKey};
use crate::policy::VersionedPolicy;

use super::limits::Rules;
use super::machine::{Lane, Timer};

impl Lane {
    pub(super) fn on_policy(&mut self, queue: &QueueKey, policy: VersionedPolicy) {
        if self.policies.get(queue).is_some_and(|known| known.version >= policy.version) {
            return;
        }
        self.policies.insert(queue.clone(), policy);
        if self.loading.is_complete() {
            self.apply_policy(queue);
        }
    }

    /// After loading: applies the newest policies, whichever versions the last owner applied.
    pub(super) fn apply_policies(&mut self) {
        let queues: Vec<QueueKey> = self.policies.keys().cloned().collect();
        for queue in queues {
            self.apply_policy(&queue);
        }
    }

    fn apply_policy(&mut self, key: &QueueKey) {
        let policy = self.policies[key].clone();
        if let Some(&queue) = self.queue_by_key.get(key) {
            let q = &mut self.queues[queue];
            let strategy_changed = q.policy.policy.strategy != policy.policy.strategy;
            q.rules = Rules::of(&policy.policy);
            q.policy = policy.clone();
            q.full = false;
            if let Some(at) = q.rate_until.take() {
                self.timers.remove(&(at, Timer::QueueRate(queue)));
            }
            self.limits.settle_rates(queue, &self.queues[queue].rules, self.now);
            self.bind_whole(queue);
            self.recount_whole(queue);
            if strategy_changed {
                self.queues[queue].turns.clear();
                self.reclass_queue(queue);
            }
            let lines: Vec<_> = self.lines.iter().filter(|(_, l)| l.queue == queue).map(|(h, _)| h).collect();
            for line in lines {
                self.lines[line].parked = false;
                if let Some(at) = self.lines[line].rate_until.take() {
                    self.timers.remove(&(at, Timer::LineRate(line)));
                }
                self.refresh_line(line);
                self.want_refill(line);
                self.cancel_newest(line, None);
            }
            self.refresh_active(queue);
        }
        // Only queues of this lane are recorded; one without tasks here is recorded when its first task is
        // assigned.
        let in_lane = self.queue_by_key.contains_key(key);
        if in_lane && self.applied.get(key).is_none_or(|&version| version < policy.version) {
            self.counters.policy_applied += 1;
            self.record_policy(key, policy.version);
        }
    }

    /// Writes the version that this lane applies, ahead of the assignments that are judged by it.
    pub(super) fn record_policy(&mut self, key: &QueueKey, version: u64) {
        self.applied.insert(key.clone(), version);
        let record = RecordChange { key: policy_record(key), value: Some(policy_value(version)) };
        self.write_loose(Group { records: vec![record], ..Group::default() });
    }
}

pub(super) fn policy_record(queue: &QueueKey) -> RecordKey {
    RecordKey { kind: RecordKind::AppliedPolicy, key: queue.to_string() }
}

/// The value of such a record.
pub(super) fn policy_value(version: u64) -> Vec<u8> {
    i64::try_from(version).unwrap_or(i64::MAX).to_le_bytes().to_vec()
}

/// Back from the key of such a record.
pub(super) fn parse_policy_record(key: &str) -> QueueKey {
    let (namespace, queue) = key.split_once('/').unwrap_or(("default", key));
    let name = |text| Name::new(text).expect("the record was written for a queue with valid names");
    QueueKey::new(name(namespace), name(queue))
}
