//! Map tasks: one child for each item of a list, for each shard, or on each worker.

use std::collections::BTreeSet;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tasklane_core::task::Payload;

use super::error::{FieldError, code};
use super::exact::check_readable;
use super::expressions::{CHILD_NAMES, check_labels, check_texts, render_payload};
use super::json::{Ranged, payload};
use super::render::{self, Context, Scope};
use super::task::TaskRequest;

/// The most children of a map.
pub const CHILDREN_MAX: u32 = 100_000;
/// Children that are unfinished at a time by default.
const AT_ONCE: u32 = 1_000;

/// The map that a task becomes instead of running itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSource {
    /// The items of its children.
    pub over: MapOver,
    /// The request as it was sent: children are made of it.
    pub json: String,
    /// The values for its expressions, besides the item.
    pub context: Option<serde_json::Value>,
}

/// The kind of items of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapOver {
    /// The items of a list.
    Items(Vec<String>),
    /// The items of a list that an expression names.
    Named(String),
    /// Numbers from 0.
    Shards(u32),
    /// The workers that could run it.
    Workers,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct MapJson {
    items: Option<Box<RawValue>>,
    at_once: Option<Ranged<1, { CHILDREN_MAX }>>,
    tolerate_failures: Option<Tolerance>,
    reduce: Option<Box<RawValue>>,
}

/// How many children may fail before the composite does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Tolerance {
    /// This number of children.
    Count(u32),
    /// This percentage of the children.
    Percent(u32),
}

impl Default for Tolerance {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl Tolerance {
    /// The number of failed children that a total allows.
    pub fn failures_max(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => percent as usize * total / 100,
        }
    }
}

impl<'de> Deserialize<'de> for Tolerance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rule = || de::Error::custom("must be a number of children, or a share such as \"5%\"");
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Number(number) => {
                let count = number.as_u64().and_then(|count| u32::try_from(count).ok());
                count.filter(|count| *count <= CHILDREN_MAX).map(Self::Count).ok_or_else(rule)
            }
            serde_json::Value::String(text) => {
                let percent =
                    text.strip_suffix('%').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
                let percent =
                    percent.and_then(|digits| digits.parse().ok()).filter(|percent| *percent <= 100);
                percent.map(Self::Percent).ok_or_else(rule)
            }
            _ => Err(rule()),
        }
    }
}

/// Exactly one kind of items, or none.
impl MapSource {
    pub(super) fn new(
        map: Option<MapJson>,
        shards: Option<Ranged<1, { CHILDREN_MAX }>>,
        broadcast: Option<bool>,
        body: &[u8],
    ) -> Result<Option<Self>, FieldError> {
        let items = map.as_ref().and_then(|map| map.items.as_deref());
        let broadcast = broadcast.unwrap_or(false);
        let over = match (items, shards, broadcast) {
            (Some(items), None, false) => items_of(items)?,
            (None, Some(shards), false) => MapOver::Shards(shards.0),
            (None, None, true) => MapOver::Workers,
            (None, None, false) if map.is_none() => return Ok(None),
            (None, None, false) => {
                let message = "is required, or shards or broadcast".to_owned();
                let field = "map.items".to_owned();
                return Err(FieldError { field, code: code::MISSING_FIELD, message });
            }
            _ => {
                let message = "must be the only one of map.items, shards and broadcast".to_owned();
                let field = if broadcast { "broadcast" } else { "shards" }.to_owned();
                return Err(FieldError { field, code: code::CONFLICTING_FIELDS, message });
            }
        };
        if let Some(reduce) = map.and_then(|map| map.reduce) {
            MapRequest::reduce_of(&reduce)?;
        }
        let json = String::from_utf8_lossy(body).into_owned();
        Ok(Some(Self { over, json, context: None }))
    }
}

fn items_of(raw: &RawValue) -> Result<MapOver, FieldError> {
    if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
        return Ok(MapOver::Named(text));
    }
    check_readable(raw.get()).map_err(|rule| FieldError::invalid("map.items", rule))?;
    let items: Vec<Box<RawValue>> = serde_json::from_str(raw.get())
        .map_err(|_| FieldError::invalid("map.items", "must be a list, or an expression that gives one"))?;
    check_count(items.len())?;
    Ok(MapOver::Items(items.into_iter().map(|item| item.get().to_owned()).collect()))
}

/// An empty list is allowed: the map then has nothing to do.
pub(crate) fn check_count(items: usize) -> Result<(), FieldError> {
    if items > CHILDREN_MAX as usize {
        let rule = format!("must have at most {CHILDREN_MAX} entries, not {items}");
        return Err(FieldError::invalid("map.items", rule));
    }
    Ok(())
}

/// The parts of a map request, parsed from the text that was sent.
#[derive(Clone, Debug)]
pub struct MapRequest {
    /// The request of every child, but for its payload.
    pub task: TaskRequest,
    /// Without a payload, a child gets its item.
    has_payload: bool,
    /// Children that are unfinished at a time.
    pub at_once: u32,
    /// Children that may fail.
    pub tolerate: Tolerance,
    /// The task that runs when all children have ended.
    pub reduce: Option<TaskRequest>,
}

#[derive(Deserialize)]
struct PayloadOnly {
    payload: Option<Box<RawValue>>,
    map: Option<MapJson>,
}

impl MapRequest {
    /// Parses a request that was checked before.
    pub fn from_json(json: &str) -> Result<Self, FieldError> {
        let request = match TaskRequest::from_json(json.as_bytes()) {
            Ok(request) => request,
            Err(_) => super::json::read_node(json.as_bytes())?.1,
        };
        let only: PayloadOnly = super::json::read_json(json.as_bytes())?;
        let map = only.map;
        let at_once = map.as_ref().and_then(|map| map.at_once).map_or(AT_ONCE, |at_once| at_once.0);
        let tolerate = map.as_ref().and_then(|map| map.tolerate_failures).unwrap_or_default();
        let reduce = map.and_then(|map| map.reduce).map(|reduce| Self::reduce_of(&reduce)).transpose()?;
        let task = TaskRequest {
            map: None,
            request_id: None,
            run_at: None,
            delay: None,
            // Webhooks announce the end of the composite, not of children.
            webhooks: Vec::new(),
            ..request
        };
        Ok(Self { task, has_payload: only.payload.is_some(), at_once, tolerate, reduce })
    }

    fn reduce_of(raw: &RawValue) -> Result<TaskRequest, FieldError> {
        let below = |error: FieldError| error.below("map.reduce");
        let reduce = TaskRequest::from_json(raw.get().as_bytes()).map_err(below)?;
        reduce.check_child().map_err(below)?;
        if reduce.map.is_some() {
            return Err(below(FieldError::invalid("map", "must not be given: it is one task")));
        }
        Ok(reduce)
    }

    /// Checks that all names in its expressions can exist. Returns the nodes that they name.
    pub(crate) fn check(&self, over: &MapOver, scope: &Scope) -> Result<BTreeSet<String>, FieldError> {
        let mut named = BTreeSet::new();
        let invalid = |field: &str| {
            let field = field.to_owned();
            move |rule| FieldError::invalid(field, rule)
        };
        if let MapOver::Named(text) = over {
            named.extend(render::check_text(text, scope).map_err(invalid("map.items"))?);
            if !text.contains("{{") {
                return Err(FieldError::invalid(
                    "map.items",
                    "must be a list, or an expression that gives one",
                ));
            }
        }
        let mut of_child = scope.clone();
        of_child.names.extend(CHILD_NAMES);
        // The labels of a broadcast choose its workers, so no worker is known before them.
        if *over == MapOver::Workers {
            check_labels(&self.task, scope)?;
        }
        named.extend(check_texts(&self.task, &of_child)?);
        named.extend(render::check_payload(&self.task.payload, &of_child).map_err(invalid("payload"))?);
        if let Some(reduce) = &self.reduce {
            let mut of_reduce = scope.clone();
            of_reduce.names.extend(["failed", "results", "resultsFrom", "succeeded", "total"]);
            named.extend(check_texts(reduce, &of_reduce).map_err(|error| error.below("map.reduce"))?);
            named.extend(
                render::check_payload(&reduce.payload, &of_reduce).map_err(invalid("map.reduce.payload"))?,
            );
        }
        Ok(named)
    }

    /// The payload of a child.
    pub(crate) fn payload_of(&self, item: &str, context: &Context) -> Result<Payload, String> {
        if self.has_payload {
            return render_payload(&self.task.task_type, &self.task.payload, context);
        }
        let item: Box<RawValue> = serde_json::from_str(item).map_err(|error| error.to_string())?;
        payload(&item).map_err(|error| error.message)
    }
}
