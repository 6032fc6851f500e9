//! Analyzers: they judge each result of a task type, and may add tasks to its job.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tasklane_core::id::Name;
use tasklane_core::task::{Payload, TaskRow};

use super::custom_types::CustomType;
use super::error::{FieldError, code};
use super::exact;
use super::json::{Ranged, read_json};
use super::limits::{RequestLimits, check_not_system};
use super::schema::CHECK_STEPS_MAX;
use super::task::TaskRequest;

/// The analyzer of a task type.
#[derive(Clone, Debug)]
pub struct Analyzer {
    how: AnalyzerRun,
    /// How far from its root a task of the job may be.
    pub max_depth: u32,
    /// Tasks that one result may add.
    pub max_subtasks: u32,
    /// Tasks of a job, without the analyses.
    pub max_tasks: u32,
}

#[derive(Clone, Debug)]
enum AnalyzerRun {
    /// A definition as that of a custom type.
    CustomType(CustomType),
    /// By tasks of another type.
    Type(Name),
}

/// Fields of an analyzer beside its definition as a custom type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnalyzerJson {
    task_type: Option<Name>,
    max_depth: Option<Ranged<0, 1000>>,
    max_subtasks: Option<Ranged<1, 10_000>>,
    max_tasks: Option<Ranged<1, 1_000_000>>,
}

const OWN: [&str; 4] = ["taskType", "maxDepth", "maxSubtasks", "maxTasks"];

impl Analyzer {
    /// Parses and checks an analyzer.
    pub fn from_json(body: &[u8]) -> Result<Self, FieldError> {
        let own: AnalyzerJson = read_json(body)?;
        let mut rest: Map<String, Value> = read_json::<BTreeMap<String, Value>>(body)?.into_iter().collect();
        rest.retain(|name, value| !OWN.contains(&name.as_str()) && !value.is_null());
        if rest.contains_key("payloadSchema") {
            let message = "is not a known field: only an executor has it".to_owned();
            return Err(FieldError { field: "payloadSchema".to_owned(), code: code::UNKNOWN_FIELD, message });
        }
        let how = match own.task_type {
            None => {
                AnalyzerRun::CustomType(CustomType::from_json(Value::Object(rest).to_string().as_bytes())?)
            }
            Some(task_type) => {
                check_not_system("taskType", &task_type)?;
                if let Some(field) = rest.keys().find(|field| *field != "description") {
                    let message = "must not be given together with taskType".to_owned();
                    return Err(FieldError { field: field.clone(), code: code::CONFLICTING_FIELDS, message });
                }
                AnalyzerRun::Type(task_type)
            }
        };
        Ok(Self {
            how,
            max_depth: own.max_depth.map_or(20, |n| n.0),
            max_subtasks: own.max_subtasks.map_or(1_000, |n| n.0),
            max_tasks: own.max_tasks.map_or(100_000, |n| n.0),
        })
    }

    /// The task that analyzes a result of another.
    pub(crate) fn request(&self, of: &TaskRow, given: &Value) -> Result<TaskRequest, FieldError> {
        let payload = Payload::Json(exact::write(given));
        let name = format!("analyze {}", of.body.as_ref().map_or("", |body| &body.name));
        let name: String = name.chars().take(RequestLimits::TASK_NAME_LEN_MAX).collect();
        let task_type = Name::new(&format!("{}.analyzer", of.head.task_type));
        let task_type = task_type.unwrap_or_else(|_| of.head.task_type.clone());
        let mut request = TaskRequest::new(name, task_type, payload);
        request.queue = of.head.queue.queue.clone();
        request.priority = of.head.priority;
        (request.in_job, request.roomy) = (true, true);
        match &self.how {
            AnalyzerRun::Type(task_type) => request.task_type = task_type.clone(),
            AnalyzerRun::CustomType(custom_type) => {
                request.run_as = Some(custom_type.run_as(&request, CHECK_STEPS_MAX)?);
            }
        }
        Ok(request)
    }
}

/// The result of an analysis.
#[derive(Debug, Default)]
pub struct Analysis {
    /// Tasks to add.
    pub subtasks: Vec<Result<TaskRequest, FieldError>>,
    /// The verdict on the analyzed result.
    pub verdict: Option<AnalysisVerdict>,
}

/// The verdict of an analyzer on a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AnalysisVerdict {
    /// The task has succeeded, even if its attempt failed.
    Success,
    /// It has failed.
    Failure,
    /// Run the task again.
    Retry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnalysisJson {
    #[serde(default)]
    subtasks: Vec<Box<RawValue>>,
    verdict: Option<AnalysisVerdict>,
}

impl Analysis {
    /// Parses the result of an analysis: an object, or text that is one, as a command prints it. No result
    /// adds nothing.
    pub fn from_data(data: &str) -> Result<Self, FieldError> {
        let printed = serde_json::from_str::<String>(data).ok();
        let text = printed.as_deref().unwrap_or(data).trim();
        if text.is_empty() || text == "null" {
            return Ok(Self::default());
        }
        let json: AnalysisJson = read_json(text.as_bytes())?;
        let subtasks = json.subtasks.iter().enumerate().map(|(at, raw)| {
            let below = |error: FieldError| error.below(&format!("subtasks[{at}]"));
            let mut request = TaskRequest::from_json(raw.get().as_bytes()).map_err(below)?;
            request.check_child().map_err(below)?;
            request.in_job = true;
            Ok(request)
        });
        Ok(Self { subtasks: subtasks.collect(), verdict: json.verdict })
    }
}
