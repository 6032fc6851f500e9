//! Queues and their policies.

use serde::{Deserialize, Serialize};
use tasklane_core::lane::KeyInfo;
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueuePolicy, Rate, RateLimit, Strategy, UniqueRule, WhenFull, WhenReached,
};
use tasklane_core::retry::RetryPolicy;
use tasklane_runtime::node::QueueInfo;
use tasklane_runtime::request::{
    ConcurrencyJson, FieldError, LIMIT_MAX, OF_TASKS, Object, Positive, Ranged, RateJson, RetryRequest,
    UniqueJson, WebhookJson, objects, webhooks,
};
use utoipa::ToSchema;

use super::{CountsByStatus, RetryJson, Seconds, Time, WebhookOut};

/// A queue.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queue {
    name: String,
    namespace: String,
    /// Version of the policy; 0 for the default policy.
    version: u64,
    policy: PolicyOut,
    counts: CountsByStatus,
}

impl From<&QueueInfo> for Queue {
    fn from(info: &QueueInfo) -> Self {
        Self {
            name: info.queue.queue.to_string(),
            namespace: info.queue.namespace.to_string(),
            version: info.policy.version,
            policy: PolicyOut::from(&info.policy.policy),
            counts: CountsByStatus::from(info.counts),
        }
    }
}

/// A page of queues, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct QueuePage {
    pub(crate) queues: Vec<Queue>,
    /// Where to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// How a queue treats its tasks.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueuePolicy)]
struct PolicyOut {
    paused: bool,
    /// Submits are refused while this many tasks wait; `null` for no limit.
    max_length: Option<u32>,
    strategy: StrategyName,
    /// For `consistentHash`: the action while the chosen worker is full.
    when_full: WhenFullName,
    weight: u32,
    /// Limits of live attempts.
    concurrency: Vec<ConcurrencyOut>,
    /// Limits of starts in a time.
    rate: Vec<RateOut>,
    /// Allows one task at a time with the same key.
    unique: Option<UniqueOut>,
    /// Addresses to notify when its tasks have ended.
    webhooks: Vec<WebhookOut>,
    /// The key that spreads the queue over all lanes; empty for no key.
    spread: Option<String>,
    retry_policy: RetryJson,
    execution_timeout: Seconds,
}

/// A limit of live attempts.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Concurrency)]
pub(super) struct ConcurrencyOut {
    /// The key that tasks are counted by; `null` counts all tasks of the queue together.
    key: Option<String>,
    limit: u32,
    when_full: WhenReachedName,
}

/// The action for tasks above a limit.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WhenLimitFull)]
enum WhenReachedName {
    Wait,
    CancelNewest,
}

/// A limit of starts in a time.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Rate)]
pub(super) struct RateOut {
    /// The key that tasks are counted by; `null` counts all tasks of the queue together.
    key: Option<String>,
    limit: u32,
    per: Seconds,
    /// The maximum of starts at once after a quiet time.
    burst: u32,
}

/// Allows one task at a time with the same key.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Unique)]
pub(super) struct UniqueOut {
    key: String,
    /// `finished`, or a duration in seconds from the submit.
    until: UntilOut,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = UniqueUntil)]
enum UntilOut {
    Word(&'static str),
    Time(Seconds),
}

impl From<&ConcurrencyLimit> for ConcurrencyOut {
    fn from(ConcurrencyLimit { key, concurrency }: &ConcurrencyLimit) -> Self {
        Self { key: key.clone(), ..Self::from(*concurrency) }
    }
}

impl From<Concurrency> for ConcurrencyOut {
    fn from(Concurrency { limit, when_reached }: Concurrency) -> Self {
        let when_full = match when_reached {
            WhenReached::Wait => WhenReachedName::Wait,
            WhenReached::CancelNewest => WhenReachedName::CancelNewest,
        };
        Self { key: None, limit, when_full }
    }
}

impl From<&RateLimit> for RateOut {
    fn from(RateLimit { key, rate: Rate { limit, per, burst } }: &RateLimit) -> Self {
        Self { key: key.clone(), limit: *limit, per: Seconds(*per), burst: *burst }
    }
}

impl From<&UniqueRule> for UniqueOut {
    fn from(UniqueRule { key, hold_for }: &UniqueRule) -> Self {
        let until = hold_for.map_or(UntilOut::Word("finished"), |time| UntilOut::Time(Seconds(time)));
        // In a queue that is spread the spread key stands before it.
        let key = key.rsplit('\n').next().unwrap_or_default().to_owned();
        Self { key, until }
    }
}

/// A key that a limit of a queue counts, or that tasks wait for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueKey)]
pub(crate) struct KeyOut {
    /// The key; `null` for a limit over the whole queue.
    key: Option<String>,
    /// The template of the key, if the policy of the queue has it; `null` for a limit of a task's own.
    template: Option<String>,
    /// Live attempts.
    running: u32,
    /// Waiting tasks; at least this many if `moreWaiting` is set.
    waiting: usize,
    more_waiting: bool,
    /// The maximum of live attempts.
    limit: Option<u32>,
    rate: Option<KeyRateOut>,
}

/// The rate of a key.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = KeyRate)]
struct KeyRateOut {
    limit: u32,
    per: Seconds,
    burst: u32,
    /// When the next attempt may start.
    next_at: Time,
}

impl From<&KeyInfo> for KeyOut {
    fn from(info: &KeyInfo) -> Self {
        let key = &info.position.key;
        Self {
            key: (!key.is_empty()).then(|| key.to_string()),
            template: info.template.clone(),
            running: info.running,
            waiting: info.waiting,
            more_waiting: info.more_waiting,
            limit: info.concurrency.map(|concurrency| concurrency.limit),
            rate: info.rate.map(|(Rate { limit, per, burst }, next_at)| KeyRateOut {
                limit,
                per: Seconds(per),
                burst,
                next_at: Time(next_at),
            }),
        }
    }
}

/// A page of keys.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct KeyPage {
    pub(crate) keys: Vec<KeyOut>,
    /// Where to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) cursor: Option<String>,
}

/// The choice of a worker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Strategy)]
enum StrategyName {
    Random,
    RoundRobin,
    #[default]
    LeastLoad,
    Weighted,
    ConsistentHash,
}

/// The action of consistent hashing while the chosen worker is full.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WhenFull)]
enum WhenFullName {
    #[default]
    Wait,
    Next,
}

impl From<&QueuePolicy> for PolicyOut {
    fn from(policy: &QueuePolicy) -> Self {
        let (strategy, when_full) = match policy.strategy {
            Strategy::Random => (StrategyName::Random, WhenFullName::default()),
            Strategy::RoundRobin => (StrategyName::RoundRobin, WhenFullName::default()),
            Strategy::LeastLoad => (StrategyName::LeastLoad, WhenFullName::default()),
            Strategy::Weighted => (StrategyName::Weighted, WhenFullName::default()),
            Strategy::ConsistentHash { when_full: WhenFull::Wait } => {
                (StrategyName::ConsistentHash, WhenFullName::Wait)
            }
            Strategy::ConsistentHash { when_full: WhenFull::Next } => {
                (StrategyName::ConsistentHash, WhenFullName::Next)
            }
        };
        Self {
            paused: policy.paused,
            max_length: policy.len_max,
            strategy,
            when_full,
            weight: policy.weight,
            concurrency: policy.concurrency.iter().map(ConcurrencyOut::from).collect(),
            rate: policy.rate.iter().map(RateOut::from).collect(),
            unique: policy.unique.as_ref().map(UniqueOut::from),
            webhooks: policy.webhooks.iter().map(WebhookOut::from).collect(),
            spread: policy.spread.clone(),
            retry_policy: RetryJson::from(&policy.retry),
            execution_timeout: Seconds(policy.execution_timeout),
        }
    }
}

/// A change of a policy: the version that it replaces, and the new one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutQueue {
    pub(crate) version: Ranged<0, { u32::MAX }>,
    pub(crate) policy: Object<PolicyJson>,
}

/// A policy as it is put: a missing field has its default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PolicyJson {
    paused: Option<bool>,
    max_length: Option<Ranged<1, { u32::MAX }>>,
    strategy: Option<StrategyName>,
    when_full: Option<WhenFullName>,
    weight: Option<Ranged<1, { LIMIT_MAX }>>,
    concurrency: Option<Vec<Object<ConcurrencyJson>>>,
    rate: Option<Vec<Object<RateJson>>>,
    unique: Option<Object<UniqueJson>>,
    webhooks: Option<Vec<Object<WebhookJson>>>,
    spread: Option<String>,
    retry_policy: Option<RetryRequest>,
    execution_timeout: Option<Positive>,
}

impl PolicyJson {
    pub(crate) fn into_policy(self) -> Result<QueuePolicy, FieldError> {
        let base = QueuePolicy::default();
        let when_full = match self.when_full.unwrap_or_default() {
            WhenFullName::Wait => WhenFull::Wait,
            WhenFullName::Next => WhenFull::Next,
        };
        let strategy = match self.strategy.unwrap_or_default() {
            StrategyName::Random => Strategy::Random,
            StrategyName::RoundRobin => Strategy::RoundRobin,
            StrategyName::LeastLoad => Strategy::LeastLoad,
            StrategyName::Weighted => Strategy::Weighted,
            StrategyName::ConsistentHash => Strategy::ConsistentHash { when_full },
        };
        let retry = self.retry_policy.map_or_else(RetryPolicy::default, |retry| retry.over(&base.retry));
        Ok(QueuePolicy {
            paused: self.paused.unwrap_or(base.paused),
            len_max: self.max_length.map(|n| n.0),
            strategy,
            weight: self.weight.map_or(base.weight, |n| n.0),
            concurrency: objects(self.concurrency, ConcurrencyJson::into_limit),
            rate: objects(self.rate, RateJson::into_limit),
            unique: self.unique.map(|Object(unique)| unique.into_rule()),
            webhooks: webhooks("policy.webhooks", self.webhooks, OF_TASKS)?,
            spread: self.spread,
            retry,
            execution_timeout: self.execution_timeout.map_or(base.execution_timeout, |span| span.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tasklane_core::task::{Occasion, Webhook};
    use tasklane_runtime::request::read_json;

    use super::*;

    #[test]
    fn a_policy_that_was_given_out_can_be_put_again() {
        let policy = QueuePolicy {
            paused: true,
            len_max: Some(7),
            strategy: Strategy::ConsistentHash { when_full: WhenFull::Next },
            weight: 3,
            concurrency: [(None, WhenReached::Wait), (Some("{{ taskType }}"), WhenReached::CancelNewest)]
                .map(|(key, when_reached)| ConcurrencyLimit {
                    key: key.map(str::to_owned),
                    concurrency: Concurrency { limit: 2, when_reached },
                })
                .to_vec(),
            rate: vec![RateLimit {
                key: Some("{{ metadata.tenant }}".to_owned()),
                rate: Rate { limit: 5, per: Duration::from_millis(1500), burst: 2 },
            }],
            unique: Some(UniqueRule { key: "k".to_owned(), hold_for: Some(Duration::from_mins(1)) }),
            webhooks: vec![Webhook { url: "http://a/b".to_owned(), on: vec![Occasion::Failed] }],
            spread: Some("{{ metadata.tenant }}".to_owned()),
            retry: RetryPolicy { backoff_percent: 150, ..RetryPolicy::default() },
            execution_timeout: Duration::from_secs(9),
        };
        let unique = Some(UniqueRule { key: "k".to_owned(), hold_for: None });
        let other = QueuePolicy { unique, ..QueuePolicy::default() };
        for policy in [policy, other, QueuePolicy::default()] {
            let json = serde_json::to_vec(&PolicyOut::from(&policy)).unwrap();
            assert_eq!(read_json::<PolicyJson>(&json).unwrap().into_policy().unwrap(), policy);
        }
    }
}
