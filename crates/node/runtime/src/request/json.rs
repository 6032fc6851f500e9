//! Requests as JSON.
//!
//! A good body is parsed once, straight into its types. Only a bad one is parsed again, to find the path of
//! the wrong field.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use jiff::fmt::temporal::Pieces;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use tasklane_core::id::Name;
use tasklane_core::task::{Payload, Priority};
use tasklane_core::time::Timestamp;
use tasklane_workflow::TriggerRule;

use super::duration::{Positive, Span};
use super::error::{FieldError, code};
use super::exact::{self, check_readable};
use super::flow::{ConcurrencyJson, RateJson, UniqueJson, objects};
use super::map::{CHILDREN_MAX, MapJson, MapSource};
use super::task::{RetryRequest, TaskRequest};
use super::webhook::{OF_TASKS, WebhookJson, webhooks};

/// Parses a body that is an object; an error names the field.
pub fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, FieldError> {
    serde_json::from_slice(body).map(|Object(value)| value).map_err(|error| {
        let again = &mut serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, Object<T>>(again) {
            Ok(_) => field_error("", &error),
            // Serde takes a number that no program can hold for bad syntax.
            Err(error) if is_out_of_range(error.inner()) && is_json(body) => FieldError {
                field: error.path().to_string(),
                code: code::INVALID_VALUE,
                message: "must not have a number beyond 1.8e308".to_owned(),
            },
            // Where a word is expected, serde calls anything else bad syntax.
            Err(error) if error.inner().is_syntax() && is_json(body) => FieldError {
                field: error.path().to_string(),
                code: code::WRONG_TYPE,
                message: "must be text".to_owned(),
            },
            Err(error) => field_error(&error.path().to_string(), error.inner()),
        }
    })
}

fn is_out_of_range(error: &serde_json::Error) -> bool {
    error.is_syntax() && error.to_string().starts_with("number out of range")
}

fn is_json(body: &[u8]) -> bool {
    serde_json::from_slice::<de::IgnoredAny>(body).is_ok()
}

/// One form for all spellings of the same JSON: without blanks, fields in order.
pub fn canonical(json: &str) -> String {
    fn sorted(value: serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(fields) => {
                let fields: BTreeMap<String, serde_json::Value> = fields.into_iter().collect();
                fields.into_iter().map(|(name, field)| (name, sorted(field))).collect()
            }
            serde_json::Value::Array(items) => items.into_iter().map(sorted).collect(),
            other => other,
        }
    }
    exact::parse(json).map_or_else(|_| json.to_owned(), |value| exact::write(&sorted(value)))
}

/// A struct that is parsed from an object only. By itself serde would also take a list of its fields.
#[derive(Clone, Copy, Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOnly<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for MapOnly<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(MapOnly(PhantomData)).map(Self)
    }
}

/// A list of 1 to `MAX` entries, each as its text. The entries beyond them are not read.
#[derive(Debug)]
pub struct Entries<const MAX: usize>(pub Vec<Box<RawValue>>);

impl<'de, const MAX: usize> Deserialize<'de> for Entries<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UpTo<const MAX: usize>;
        impl<'de, const MAX: usize> Visitor<'de> for UpTo<MAX> {
            type Value = Vec<Box<RawValue>>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    if entries.len() == MAX {
                        return Err(de::Error::custom(format_args!(
                            "must have 1 to {MAX} entries, not more"
                        )));
                    }
                    entries.push(entry);
                }
                if entries.is_empty() {
                    return Err(de::Error::custom(format_args!("must have 1 to {MAX} entries, not 0")));
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_seq(UpTo::<MAX>).map(Self)
    }
}

pub(super) fn read_task(body: &[u8]) -> Result<TaskRequest, FieldError> {
    let mut json: TaskJson = read_json(body)?;
    let of_nodes = [
        ("name", json.name.is_some()),
        ("dependsOn", json.depends_on.is_some()),
        ("when", json.when.is_some()),
        ("triggerRule", json.trigger_rule.is_some()),
    ];
    if let Some((field, _)) = of_nodes.into_iter().find(|(_, given)| *given) {
        let message = "is not a known field: only a node of a workflow has it".to_owned();
        return Err(FieldError { field: field.to_owned(), code: code::UNKNOWN_FIELD, message });
    }
    let name = json.task_name.take().ok_or_else(|| missing("taskName"))?;
    json.into_request(name, body)
}

/// The fields of a workflow node beside its task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeJson {
    pub(super) name: String,
    pub(super) depends_on: Vec<String>,
    pub(super) when: Option<String>,
    pub(super) rule: Option<TriggerRule>,
}

/// A node of a workflow: its place among the others, and its task.
pub(super) fn read_node(body: &[u8]) -> Result<(NodeJson, TaskRequest), FieldError> {
    let mut json: TaskJson = read_json(body)?;
    let node = NodeJson {
        name: json.name.take().ok_or_else(|| missing("name"))?,
        depends_on: json.depends_on.take().unwrap_or_default(),
        when: json.when.take(),
        rule: json.trigger_rule.take(),
    };
    let name = json.task_name.take().unwrap_or_else(|| node.name.clone());
    Ok((node, json.into_request(name, body)?))
}

fn missing(field: &str) -> FieldError {
    FieldError { field: field.to_owned(), code: code::MISSING_FIELD, message: "is required".to_owned() }
}

/// Turns serde's messages into ours. Its texts are the only place that shows the kind of an error.
fn field_error(path: &str, error: &serde_json::Error) -> FieldError {
    let path = if path == "." { "" } else { path };
    let full = error.to_string();
    if error.classify() != Category::Data {
        return FieldError { field: String::new(), code: code::INVALID_JSON, message: full };
    }
    let position = full.rfind(" at line ").unwrap_or(full.len());
    let message = full[..position].to_owned();
    let named = |prefix: &str| message.strip_prefix(prefix)?.split('`').next().map(str::to_owned);
    // The path of an unknown field may or may not end with its name already.
    let below = |name: String| match path {
        "" => name,
        path if path == name || path.ends_with(&format!(".{name}")) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    if let Some(name) = named("unknown field `") {
        let field = below(name);
        return FieldError { field, code: code::UNKNOWN_FIELD, message: "is not a known field".into() };
    }
    if let Some(name) = named("missing field `") {
        return FieldError { field: below(name), code: code::MISSING_FIELD, message: "is required".into() };
    }
    if let Some(name) = named("duplicate field `") {
        let field = below(name);
        return FieldError { field, code: code::DUPLICATE_FIELD, message: "must be given once".into() };
    }
    let code = if message.starts_with("invalid type: ") { code::WRONG_TYPE } else { code::INVALID_VALUE };
    FieldError { field: path.to_owned(), code, message }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TaskJson {
    task_name: Option<String>,
    task_type: Name,
    payload: Option<Box<RawValue>>,
    execution_timeout: Option<Positive>,
    retry_count: Option<Ranged<0, { RETRIES_MAX }>>,
    retry_policy: Option<Object<RetryJson>>,
    request_id: Option<String>,
    queue: Option<Name>,
    priority: Option<Ranged<0, 9>>,
    run_at: Option<Moment>,
    delay: Option<Span>,
    metadata: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    hash_key: Option<String>,
    start_timeout: Option<Positive>,
    progress_timeout: Option<Positive>,
    concurrency: Option<Vec<Object<ConcurrencyJson>>>,
    rate: Option<Vec<Object<RateJson>>>,
    unique: Option<Object<UniqueJson>>,
    webhooks: Option<Vec<Object<WebhookJson>>>,
    map: Option<Object<MapJson>>,
    shards: Option<Ranged<1, { CHILDREN_MAX }>>,
    broadcast: Option<bool>,
    // Only a node of a workflow has these.
    name: Option<String>,
    depends_on: Option<Vec<String>>,
    when: Option<String>,
    trigger_rule: Option<TriggerRule>,
}

/// The most retries that a request may ask for.
pub const RETRIES_MAX: u32 = 10_000;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RetryJson {
    max_retries: Option<Ranged<0, { RETRIES_MAX }>>,
    retry_delay: Option<Span>,
    backoff_rate: Option<Percent<Backoff>>,
    max_delay: Option<Span>,
    jitter: Option<Percent<Jitter>>,
}

impl<'de> Deserialize<'de> for RetryRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Object::<RetryJson>::deserialize(deserializer).map(|Object(json)| json.into_request())
    }
}

impl RetryJson {
    fn into_request(self) -> RetryRequest {
        RetryRequest {
            max_retries: self.max_retries.map(|n| n.0),
            delay: self.retry_delay.map(|span| span.0),
            backoff_percent: self.backoff_rate.map(|share| share.percent),
            delay_max: self.max_delay.map(|span| span.0),
            jitter_percent: self.jitter.and_then(|share| u8::try_from(share.percent).ok()),
        }
    }
}

impl TaskJson {
    /// `body` is the parsed text.
    fn into_request(mut self, name: String, body: &[u8]) -> Result<TaskRequest, FieldError> {
        let source =
            MapSource::new(self.map.take().map(|Object(map)| map), self.shards, self.broadcast, body)?;
        let retry = match (self.retry_count, self.retry_policy) {
            // Answers have both, with the same number: a request may repeat them.
            (Some(count), Some(Object(policy))) if policy.max_retries != Some(count) => {
                return Err(FieldError {
                    field: "retryCount".into(),
                    code: code::CONFLICTING_FIELDS,
                    message: "must not be given together with retryPolicy, unless retryPolicy.maxRetries is the same"
                        .into(),
                });
            }
            (Some(count), None) => RetryRequest { max_retries: Some(count.0), ..RetryRequest::default() },
            (_, Some(Object(policy))) => policy.into_request(),
            (None, None) => RetryRequest::default(),
        };
        let payload = self.payload.map_or_else(|| Ok(Payload::default()), |raw| payload(&raw))?;
        let new = TaskRequest::new(name, self.task_type, payload);
        let priority = self.priority.and_then(|n| Priority::new(u8::try_from(n.0).ok()?));
        Ok(TaskRequest {
            execution_timeout: self.execution_timeout.map(|span| span.0),
            retry,
            request_id: self.request_id,
            queue: self.queue.unwrap_or(new.queue),
            priority: priority.unwrap_or_default(),
            run_at: self.run_at.map(|moment| moment.0),
            delay: self.delay.map(|span| span.0),
            metadata: self.metadata.unwrap_or_default(),
            labels: self.labels.unwrap_or_default(),
            hash_key: self.hash_key,
            start_timeout: self.start_timeout.map(|span| span.0),
            progress_timeout: self.progress_timeout.map(|span| span.0),
            concurrency: objects(self.concurrency, ConcurrencyJson::into_limit),
            rate: objects(self.rate, RateJson::into_limit),
            unique: self.unique.map(|Object(unique)| unique.into_rule()),
            webhooks: webhooks("webhooks", self.webhooks, OF_TASKS)?,
            map: source.map(Box::new),
            ..new
        })
    }
}

/// A JSON text becomes the text itself; everything else is kept as it was written.
pub(super) fn payload(raw: &RawValue) -> Result<Payload, FieldError> {
    check_readable(raw.get()).map_err(|rule| FieldError::invalid("payload", rule))?;
    if !raw.get().starts_with('"') {
        return Ok(Payload::Json(raw.get().to_owned()));
    }
    serde_json::from_str(raw.get()).map(Payload::Text).map_err(|error| FieldError {
        field: "payload".into(),
        code: code::INVALID_JSON,
        message: error.to_string(),
    })
}

/// A whole number within bounds. As in JSON Schema, `5.0` is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranged<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Ranged<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounds(u32, u32);
        impl Visitor<'_> for Bounds {
            type Value = u32;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number between {} and {}", self.0, self.1)
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<u32, E> {
                let fits = u32::try_from(n).ok().filter(|n| (self.0..=self.1).contains(n));
                fits.ok_or_else(|| out_of_bounds(self.0, self.1, n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<u32, E> {
                match u64::try_from(n) {
                    Ok(n) => self.visit_u64(n),
                    Err(_) => Err(out_of_bounds(self.0, self.1, n)),
                }
            }
            fn visit_f64<E: de::Error>(self, n: f64) -> Result<u32, E> {
                if n.fract() != 0.0 {
                    return Err(E::invalid_type(de::Unexpected::Float(n), &self));
                }
                if !(f64::from(self.0)..=f64::from(self.1)).contains(&n) {
                    return Err(out_of_bounds(self.0, self.1, shown(n)));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole and in bounds"
                )]
                Ok(n as u32)
            }
        }
        deserializer.deserialize_any(Bounds(MIN, MAX)).map(Self)
    }
}

fn out_of_bounds<E: de::Error>(min: impl fmt::Display, max: impl fmt::Display, n: impl fmt::Display) -> E {
    E::custom(format_args!("must be between {min} and {max}, not {n}"))
}

/// A number in few characters.
pub(super) fn shown(number: f64) -> String {
    if number.abs() < 1e16 { number.to_string() } else { format!("{number:e}") }
}

/// The bounds of a number that is kept in percent.
trait Share {
    const MIN: f64;
    const MAX: f64;
}

struct Backoff;
impl Share for Backoff {
    const MIN: f64 = 1.0;
    const MAX: f64 = 1000.0;
}

struct Jitter;
impl Share for Jitter {
    const MIN: f64 = 0.0;
    const MAX: f64 = 1.0;
}

struct Percent<S> {
    percent: u32,
    share: PhantomData<S>,
}

impl<'de, S: Share> Deserialize<'de> for Percent<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        if !(S::MIN..=S::MAX).contains(&number) {
            return Err(out_of_bounds(S::MIN, S::MAX, shown(number)));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the bounds are small")]
        let percent = (number * 100.0).round() as u32;
        Ok(Self { percent, share: PhantomData })
    }
}

/// A point in time, as RFC 3339 writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub Timestamp);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_time(&text).map(Self).map_err(de::Error::custom)
    }
}

/// Reads a point in time; the error is the rule.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.map(|time| Timestamp::from_micros(time.as_microsecond())).map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        // A well-formed time is out of range.
        let well_written = Pieces::parse(text)
            .is_ok_and(|pieces| pieces.time().is_some() && pieces.to_numeric_offset().is_some());
        if well_written {
            return format!("must be a time up to 9999-12-30T22:00:00Z, not {shown:?}");
        }
        format!("must be a time with its offset, as 2030-01-31T12:00:00Z, not {shown:?}")
    })
}
