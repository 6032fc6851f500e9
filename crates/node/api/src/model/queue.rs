//! Queues and their policies.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tasklane_core::id::Name;
use tasklane_core::policy::{Limit, LimitScope, QueuePolicy, Rate, Strategy, WhenFull};
use tasklane_core::retry::RetryPolicy;
use tasklane_runtime::node::QueueInfo;
use tasklane_runtime::request::{FieldError, Object, Positive, Ranged, RetryRequest, code};
use utoipa::ToSchema;

use super::{CountsByStatus, RetryJson, Seconds};

/// A queue.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queue {
    name: String,
    namespace: String,
    /// Version of the policy; 0 if nobody has put one.
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
    /// For `consistentHash`: what to do while the chosen worker has no room.
    when_full: WhenFullName,
    weight: u32,
    limits: Vec<LimitOut>,
    retry_policy: RetryJson,
    execution_timeout: Seconds,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Limit)]
struct LimitOut {
    name: String,
    scope: ScopeName,
    concurrency: Option<u32>,
    rate: Option<RateOut>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Rate)]
struct RateOut {
    limit: u32,
    per: Seconds,
    burst: u32,
}

/// How a worker is chosen.
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

/// What consistent hashing does while the chosen worker has no room.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WhenFull)]
enum WhenFullName {
    #[default]
    Wait,
    Next,
}

/// What a limit counts together: all tasks of the queue, or those with the same value of the metadata called as the
/// limit.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LimitScope)]
enum ScopeName {
    #[default]
    Queue,
    Key,
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
        let limits = policy.limits.iter().map(|limit| LimitOut {
            name: limit.name.to_string(),
            scope: match limit.scope {
                LimitScope::Queue => ScopeName::Queue,
                LimitScope::Key => ScopeName::Key,
            },
            concurrency: limit.concurrency,
            rate: limit.rate.map(|rate| RateOut {
                limit: rate.limit,
                per: Seconds(rate.per),
                burst: rate.burst,
            }),
        });
        Self {
            paused: policy.paused,
            max_length: policy.len_max,
            strategy,
            when_full,
            weight: policy.weight,
            limits: limits.collect(),
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

/// A policy as it is put: what is not said is as in a queue that nobody has touched.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PolicyJson {
    paused: Option<bool>,
    max_length: Option<Ranged<1, { u32::MAX }>>,
    strategy: Option<StrategyName>,
    when_full: Option<WhenFullName>,
    weight: Option<Ranged<1, { NUMBER_MAX }>>,
    limits: Option<Vec<Object<LimitJson>>>,
    retry_policy: Option<RetryRequest>,
    execution_timeout: Option<Positive>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LimitJson {
    name: Name,
    scope: Option<ScopeName>,
    concurrency: Option<Ranged<1, { NUMBER_MAX }>>,
    rate: Option<Object<RateJson>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RateJson {
    limit: Ranged<1, { NUMBER_MAX }>,
    per: Positive,
    burst: Option<Ranged<1, { NUMBER_MAX }>>,
}

/// Limits of one queue: each is looked at for each line.
const LIMITS_MAX: usize = 16;

/// The largest weight, concurrency, rate and burst.
const NUMBER_MAX: u32 = 1_000_000;

/// The longest time that a rate counts over: longer ones are schedules.
const RATE_PER_MAX: Duration = Duration::from_hours(24 * 366);

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
        let limits = self.limits.unwrap_or_default();
        if limits.len() > LIMITS_MAX {
            return Err(FieldError::invalid("policy.limits", format!("must be at most {LIMITS_MAX}")));
        }
        let limits: Result<Vec<Limit>, FieldError> = limits
            .into_iter()
            .enumerate()
            .map(|(n, Object(limit))| limit.into_limit(&format!("policy.limits[{n}]")))
            .collect();
        let limits = limits?;
        if let Some(n) = (1..limits.len()).find(|&n| limits[..n].iter().any(|l| l.name == limits[n].name)) {
            return Err(FieldError::invalid(format!("policy.limits[{n}].name"), "must occur once"));
        }
        let retry = self.retry_policy.map_or_else(RetryPolicy::default, |retry| retry.over(&base.retry));
        Ok(QueuePolicy {
            paused: self.paused.unwrap_or(base.paused),
            len_max: self.max_length.map(|n| n.0),
            strategy,
            weight: self.weight.map_or(base.weight, |n| n.0),
            limits,
            retry,
            execution_timeout: self.execution_timeout.map_or(base.execution_timeout, |span| span.0),
        })
    }
}

impl LimitJson {
    fn into_limit(self, path: &str) -> Result<Limit, FieldError> {
        let concurrency = self.concurrency.map(|n| n.0);
        let rate = self.rate.map(|Object(rate)| rate.into_rate(&format!("{path}.rate"))).transpose()?;
        if concurrency.is_none() && rate.is_none() {
            return Err(FieldError {
                field: path.to_owned(),
                code: code::MISSING_FIELD,
                message: "must have concurrency, rate, or both".into(),
            });
        }
        let scope = match self.scope.unwrap_or_default() {
            ScopeName::Queue => LimitScope::Queue,
            ScopeName::Key => LimitScope::Key,
        };
        Ok(Limit { name: self.name, scope, concurrency, rate })
    }
}

impl RateJson {
    fn into_rate(self, path: &str) -> Result<Rate, FieldError> {
        if self.per.0 > RATE_PER_MAX {
            return Err(FieldError::invalid(format!("{path}.per"), "must be at most 366 days"));
        }
        Ok(Rate { limit: self.limit.0, per: self.per.0, burst: self.burst.map_or(1, |n| n.0) })
    }
}

#[cfg(test)]
mod tests {
    use tasklane_runtime::request::read_json;

    use super::*;

    #[test]
    fn a_policy_that_was_given_out_can_be_put_again() {
        let policy = QueuePolicy {
            paused: true,
            len_max: Some(7),
            strategy: Strategy::ConsistentHash { when_full: WhenFull::Next },
            weight: 3,
            limits: vec![Limit {
                name: Name::new("tenant").unwrap(),
                scope: LimitScope::Key,
                concurrency: Some(2),
                rate: Some(Rate { limit: 5, per: Duration::from_millis(1500), burst: 2 }),
            }],
            retry: RetryPolicy { backoff_percent: 150, ..RetryPolicy::default() },
            execution_timeout: Duration::from_secs(9),
        };
        for policy in [policy, QueuePolicy::default()] {
            let json = serde_json::to_vec(&PolicyOut::from(&policy)).unwrap();
            assert_eq!(read_json::<PolicyJson>(&json).unwrap().into_policy().unwrap(), policy);
        }
    }

    #[test]
    fn rules_across_fields_name_the_field() {
        let cases = [
            (r#"{"limits":[{"name":"a"}]}"#, "policy.limits[0]"),
            (r#"{"limits":[{"name":"a","rate":{"limit":1,"per":"367d"}}]}"#, "policy.limits[0].rate.per"),
            (
                r#"{"limits":[{"name":"a","concurrency":1},{"name":"a","concurrency":1}]}"#,
                "policy.limits[1].name",
            ),
        ];
        for (json, field) in cases {
            let error = read_json::<PolicyJson>(json.as_bytes()).unwrap().into_policy().unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
    }
}
