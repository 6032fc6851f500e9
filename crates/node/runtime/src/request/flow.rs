//! Limits, rates and uniqueness by key, in policies and tasks: parsed, checked, and turned into the keys of a
//! task.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use tasklane_core::id::LimitId;
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueueBinding, QueuePolicy, Rate, RateLimit, UniqueRule, WhenReached,
};
use tasklane_core::task::{FlowKey, OwnLimit};

use super::duration::Positive;
use super::error::{FieldError, code};
use super::json::{Object, Ranged};
use super::limits::RequestLimits;
use super::task::TaskRequest;
use super::template::{KeySource, KeyTemplate, check_template};

/// Limits of one kind that a queue or a task may have: each makes a key for every task.
pub const LIMITS_MAX: usize = 4;

/// The largest limit and burst.
pub const LIMIT_MAX: u32 = 1_000_000;

/// The largest limit that cancels: the lane keeps as many tasks of a key in memory.
const CANCEL_LIMIT_MAX: u32 = 1_000;

/// The longest time that a rate counts over: longer ones are schedules.
const RATE_PER_MAX: Duration = Duration::from_hours(24 * 366);

/// A limit for attempts that run together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ConcurrencyJson {
    key: Option<String>,
    limit: Ranged<1, { LIMIT_MAX }>,
    when_full: Option<WhenFullName>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum WhenFullName {
    #[default]
    Wait,
    CancelNewest,
}

/// A limit for starts in a time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RateJson {
    key: Option<String>,
    limit: Ranged<1, { LIMIT_MAX }>,
    per: Positive,
    burst: Option<Ranged<1, { LIMIT_MAX }>>,
}

/// One task at a time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct UniqueJson {
    key: String,
    until: Option<Until>,
}

/// Until when a task holds its unique key.
#[derive(Debug)]
enum Until {
    Finished,
    For(Duration),
}

impl<'de> Deserialize<'de> for Until {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        if value == "finished" {
            return Ok(Self::Finished);
        }
        let rule = "must be \"finished\", seconds as a number, or text such as \"90s\", \"5m\" or \"1h30m\"";
        Positive::deserialize(value).map(|span| Self::For(span.0)).map_err(|_| de::Error::custom(rule))
    }
}

impl ConcurrencyJson {
    /// The limit in the form of the core.
    pub fn into_limit(self) -> ConcurrencyLimit {
        let when_reached = match self.when_full.unwrap_or_default() {
            WhenFullName::Wait => WhenReached::Wait,
            WhenFullName::CancelNewest => WhenReached::CancelNewest,
        };
        ConcurrencyLimit { key: self.key, concurrency: Concurrency { limit: self.limit.0, when_reached } }
    }
}

impl RateJson {
    /// The limit in the form of the core.
    pub fn into_limit(self) -> RateLimit {
        let burst = self.burst.map_or(1, |n| n.0);
        RateLimit { key: self.key, rate: Rate { limit: self.limit.0, per: self.per.0, burst } }
    }
}

impl UniqueJson {
    /// The rule in the form of the core.
    pub fn into_rule(self) -> UniqueRule {
        let hold_for = match self.until {
            None | Some(Until::Finished) => None,
            Some(Until::For(time)) => Some(time),
        };
        UniqueRule { key: self.key, hold_for }
    }
}

/// Parses a list of objects.
pub fn objects<J, T>(list: Option<Vec<Object<J>>>, into: impl Fn(J) -> T) -> Vec<T> {
    list.unwrap_or_default().into_iter().map(|Object(json)| into(json)).collect()
}

impl RequestLimits {
    /// Checks the key templates of a queue's policy. Fields are named below `policy`.
    pub fn check_policy(&self, policy: &QueuePolicy) -> Result<(), FieldError> {
        let spread = policy.spread.as_deref();
        if let Some(template) = spread.filter(|template| !template.is_empty()) {
            check_template("policy.spread", template)?;
        }
        if spread.is_some() && policy.len_max.is_some() {
            let rule = "must not be given for a queue that is spread: its tasks are not counted together";
            return Err(FieldError::invalid("policy.maxLength", rule));
        }
        check_limits("policy.", &policy.concurrency, &policy.rate, policy.unique.as_ref(), false, spread)?;
        self.check_hold("policy.unique.until", policy.unique.as_ref())
    }

    /// Checks the key templates of a task.
    pub(crate) fn check_flow(&self, request: &TaskRequest, binding: &QueueBinding) -> Result<(), FieldError> {
        let TaskRequest { concurrency, rate, unique, .. } = request;
        let spread = match binding {
            QueueBinding::Lane(_) => None,
            QueueBinding::Spread { key, .. } => Some(key.as_str()),
        };
        check_limits("", concurrency, rate, unique.as_ref(), true, spread)?;
        self.check_hold("unique.until", unique.as_ref())
    }

    /// A key is held as long as its task is stored.
    fn check_hold(&self, field: &str, unique: Option<&UniqueRule>) -> Result<(), FieldError> {
        let max = self.unique_for_max;
        if unique.and_then(|unique| unique.hold_for).is_some_and(|time| time > max) {
            let rule = format!("must be at most {} seconds, as long as request ids are kept", max.as_secs());
            return Err(FieldError::invalid(field, rule));
        }
        Ok(())
    }
}

fn check_limits(
    path: &str,
    concurrency: &[ConcurrencyLimit],
    rate: &[RateLimit],
    unique: Option<&UniqueRule>,
    needs_key: bool,
    spread: Option<&str>,
) -> Result<(), FieldError> {
    for (n, ConcurrencyLimit { concurrency, .. }) in concurrency.iter().enumerate() {
        let max = match concurrency.when_reached {
            WhenReached::Wait => LIMIT_MAX,
            WhenReached::CancelNewest => CANCEL_LIMIT_MAX,
        };
        if !(1..=max).contains(&concurrency.limit) {
            let rule = format!("must be between 1 and {max}, not {}", concurrency.limit);
            return Err(FieldError::invalid(format!("{path}concurrency[{n}].limit"), rule));
        }
    }
    let concurrency: Vec<Option<&str>> = concurrency.iter().map(|limit| limit.key.as_deref()).collect();
    let rates: Vec<Option<&str>> = rate.iter().map(|limit| limit.key.as_deref()).collect();
    for (list, keys) in [("concurrency", &concurrency), ("rate", &rates)] {
        if keys.len() > LIMITS_MAX {
            let rule = format!("must have at most {LIMITS_MAX} entries, not {}", keys.len());
            return Err(FieldError::invalid(format!("{path}{list}"), rule));
        }
        for (n, key) in keys.iter().enumerate() {
            let field = format!("{path}{list}[{n}].key");
            if keys[..n].contains(key) {
                return Err(FieldError::invalid(field, "must differ from those before it"));
            }
            if key.is_none() && needs_key {
                let message = "is required: limits over the whole queue are set in its policy".to_owned();
                return Err(FieldError { field, code: code::MISSING_FIELD, message });
            }
            if let Some(spread) = spread.filter(|spread| *key != Some(*spread)) {
                let rule = match spread {
                    "" => "cannot be limited: the queue is spread without a key".to_owned(),
                    spread => format!(
                        "must be {spread:?}: the queue is spread by it, and counts nothing else together"
                    ),
                };
                return Err(FieldError::invalid(field, rule));
            }
            key.map_or(Ok(()), |key| check_template(&field, key))?;
        }
    }
    for (n, limit) in rate.iter().enumerate() {
        if limit.rate.per > RATE_PER_MAX {
            return Err(FieldError::invalid(format!("{path}rate[{n}].per"), "must be at most 366 days"));
        }
    }
    unique.map_or(Ok(()), |unique| check_template(&format!("{path}unique.key"), &unique.key))
}

/// Makes the keys of a task.
pub(super) struct Keys<'a> {
    pub(super) policy: &'a QueuePolicy,
    pub(super) source: KeySource<'a>,
}

impl Keys<'_> {
    /// The keys that limits count the task under.
    pub(super) fn flow(&self) -> Result<Vec<FlowKey>, FieldError> {
        let mut keys: Vec<FlowKey> = Vec::new();
        let said = self.policy.concurrency.iter().map(|limit| &limit.key);
        for template in said.chain(self.policy.rate.iter().map(|limit| &limit.key)).flatten() {
            let limit = LimitId::of(template);
            if keys.iter().all(|key| key.limit != limit) {
                keys.extend(self.key(limit, template, None, "queue")?);
            }
        }
        let TaskRequest { concurrency, rate, .. } = self.source.request;
        for (n, limit) in concurrency.iter().enumerate() {
            let Some(template) = &limit.key else { continue };
            let (id, own) = (LimitId::of(template), OwnLimit::Concurrency(limit.concurrency));
            let own = self.key(id, template, Some(own), &format!("concurrency[{n}].key"))?;
            // The same template in the policy: counted once, and limited by both.
            keys.retain(|key| key.limit != id);
            keys.extend(own);
        }
        for (n, RateLimit { key, rate }) in rate.iter().enumerate() {
            let Some(template) = key else { continue };
            let id = LimitId::of_own_rate(template, rate);
            let own = self.key(id, template, Some(OwnLimit::Rate(*rate)), &format!("rate[{n}].key"))?;
            keys.retain(|key| key.limit != id);
            keys.extend(own);
        }
        Ok(keys)
    }

    /// One of the keys; `None` if the template renders to nothing.
    fn key(
        &self,
        limit: LimitId,
        template: &str,
        own: Option<OwnLimit>,
        field: &str,
    ) -> Result<Option<FlowKey>, FieldError> {
        let key = self.render(template, field)?;
        Ok((!key.is_empty()).then(|| FlowKey { limit, key: key.into(), own }))
    }

    /// The unique key that the task takes, made of its template.
    pub(super) fn unique(&self, spread_key: Option<&str>) -> Result<Option<UniqueRule>, FieldError> {
        let own = self.source.request.unique.as_ref().map(|unique| (unique, "unique.key"));
        let Some((unique, field)) =
            own.or_else(|| self.policy.unique.as_ref().map(|unique| (unique, "queue")))
        else {
            return Ok(None);
        };
        let key = self.render(&unique.key, field)?;
        if key.is_empty() {
            return Ok(None);
        }
        // In a spread queue each spread key has unique keys of its own.
        let key = spread_key.map_or_else(|| key.clone(), |spread| format!("{spread}\n{key}"));
        Ok(Some(UniqueRule { key, hold_for: unique.hold_for }))
    }

    /// The key by which a queue is spread; `None` if there is none for this task.
    pub(super) fn spread(&self, template: &str) -> Result<Option<String>, FieldError> {
        if template.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.render(template, "queue")?).filter(|key| !key.is_empty()))
    }

    fn render(&self, template: &str, field: &str) -> Result<String, FieldError> {
        let key = KeyTemplate::parse(template)
            .and_then(|parsed| parsed.render(self.source).map(std::borrow::Cow::into_owned));
        key.map_err(|rule| {
            let whose = if field == "queue" { "its policy asks for the key" } else { "the key" };
            FieldError::invalid(field, format!("{whose} {template:?}, which cannot be made: {rule}"))
        })
    }
}
