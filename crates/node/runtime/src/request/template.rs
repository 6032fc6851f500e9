//! Templates of keys: the fields of a task that form the keys by which it is counted.
//!
//! A template is text with `{{ … }}` in it, parsed by minijinja. It may name only the fields of a task, and a
//! field that the task lacks is an error, not an empty text. Statements, loops and multiplication are left
//! out, and long payloads: a key is made for every task, from templates that any client may send.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use minijinja::value::{Object, Value};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, filters, tests};
use tasklane_core::id::Name;
use tasklane_core::task::Payload;

use super::error::FieldError;
use super::exact;
use super::limits::check_key;
use super::render::{check_operators, value_of_json};
use super::task::TaskRequest;

/// The longest template, in characters.
pub const TEMPLATE_LEN_MAX: usize = 512;

/// The fields that a template may name.
const FIELDS: [&str; 10] = [
    "hashKey",
    "labels",
    "metadata",
    "namespace",
    "payload",
    "priority",
    "queue",
    "requestId",
    "taskName",
    "taskType",
];

/// The largest payload that keys are made of: each step may copy it.
const PAYLOAD_BYTES_MAX: usize = 16 << 10;

/// Steps that a template may take; an honest one takes a few.
const FUEL: u64 = 1_000;

/// A template of a key.
#[derive(Debug)]
pub(crate) struct KeyTemplate(KeyTemplateKind);

#[derive(Debug)]
enum KeyTemplateKind {
    /// No template at all.
    Text(String),
    /// `{{ metadata.name }}`, the most frequent form.
    Metadata(String),
    /// Any other template, and the fields that it names.
    Other(Box<Environment<'static>>, Vec<&'static str>),
}

/// The values that a key is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySource<'a> {
    pub(crate) namespace: &'a Name,
    pub(crate) request: &'a TaskRequest,
}

/// The cache of parsed templates. Few are in use at a time.
static KNOWN: LazyLock<Mutex<HashMap<String, Arc<KeyTemplate>>>> = LazyLock::new(Mutex::default);

/// Templates in the cache.
const KNOWN_MAX: usize = 1_000;

impl KeyTemplate {
    /// Parses the template; the error is the rule that it breaks.
    pub(crate) fn parse(text: &str) -> Result<Arc<Self>, String> {
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = known().get(text) {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(Self::read(text)?);
        let mut known = known();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(text.to_owned(), Arc::clone(&template));
        Ok(template)
    }

    fn read(text: &str) -> Result<Self, String> {
        let len = text.chars().count();
        if !(1..=TEMPLATE_LEN_MAX).contains(&len) {
            return Err(format!("must be 1 to {TEMPLATE_LEN_MAX} characters long, not {len}"));
        }
        if !text.contains("{{") && !text.contains("{%") && !text.contains("{#") {
            check_key("", text).map_err(|error| error.message)?;
            return Ok(Self(KeyTemplateKind::Text(text.to_owned())));
        }
        check_code(text)?;
        check_operators(text)?;
        if code_of(text).split(|c| !is_name(c)).any(|word| word == "self") {
            return Err(format!("names \"self\", which is none of {}", FIELDS.join(", ")));
        }
        let mut environment = Environment::empty();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("default", filters::default);
        environment.add_filter("d", filters::default);
        environment.add_filter("first", filters::first);
        environment.add_filter("int", filters::int);
        environment.add_filter("last", filters::last);
        environment.add_filter("length", filters::length);
        environment.add_filter("lower", filters::lower);
        environment.add_filter("string", filters::string);
        environment.add_filter("trim", filters::trim);
        environment.add_filter("upper", filters::upper);
        environment.add_test("defined", tests::is_defined);
        environment.add_test("none", tests::is_none);
        environment.add_test("undefined", tests::is_undefined);
        environment.add_template_owned("key", text.to_owned()).map_err(|error| error_text(&error))?;
        let template = environment.get_template("key").map_err(|error| error_text(&error))?;
        let named = template.undeclared_variables(false);
        if let Some(unknown) = named.iter().find(|name| !FIELDS.contains(&name.as_str())) {
            return Err(format!("names {unknown:?}, which is none of {}", FIELDS.join(", ")));
        }
        // Filters and tests are looked up when they are used. The result for an empty task does not matter.
        let mut trial = environment.clone();
        trial.set_undefined_behavior(UndefinedBehavior::Chainable);
        let never_right = [
            ErrorKind::UnknownFilter,
            ErrorKind::UnknownTest,
            ErrorKind::UnknownFunction,
            ErrorKind::TooManyArguments,
            ErrorKind::MissingArgument,
        ];
        let texts = || Value::from_pairs(FIELDS.map(|field| (field, Value::from_object(Anything))));
        for context in [Value::from(()), texts()] {
            if let Err((Some(kind), text)) = rendered(&trial, context)
                && never_right.contains(&kind)
            {
                return Err(text);
            }
        }
        let inner = text.trim_start_matches("{{").trim_end_matches("}}").trim();
        let plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if text.starts_with("{{")
            && text.ends_with("}}")
            && let Some(name) = inner.strip_prefix("metadata.").filter(plain)
        {
            return Ok(Self(KeyTemplateKind::Metadata(name.to_owned())));
        }
        let fields = FIELDS.into_iter().filter(|field| named.contains(*field)).collect();
        Ok(Self(KeyTemplateKind::Other(Box::new(environment), fields)))
    }

    /// The key of a task; empty if the template renders to nothing for it. The error names the fault.
    pub(crate) fn render<'a>(&'a self, source: KeySource<'a>) -> Result<Cow<'a, str>, String> {
        let key = match &self.0 {
            KeyTemplateKind::Text(text) => return Ok(Cow::Borrowed(text)),
            KeyTemplateKind::Metadata(name) => {
                let value = source.request.metadata.get(name);
                Cow::Borrowed(value.ok_or_else(|| format!("metadata.{name} is not given"))?.as_str())
            }
            KeyTemplateKind::Other(environment, fields) => {
                let values = fields.iter().map(|field| Ok((*field, source.value(field)?)));
                let values = values.collect::<Result<Vec<_>, String>>()?;
                Cow::Owned(rendered(environment, Value::from_pairs(values)).map_err(|error| error.1)?)
            }
        };
        if !key.is_empty() {
            check_key("", &key).map_err(|error| format!("a key {}", error.message))?;
        }
        Ok(key)
    }
}

/// A value that has a text under every name.
#[derive(Debug)]
pub(super) struct Anything;

impl Object for Anything {
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::from("1"))
    }
}

/// Refuses a template that fails for every task, or that would cost too much.
pub(super) fn check_code(text: &str) -> Result<(), String> {
    let code = code_of(text);
    if text.contains("{%") || code.contains('*') {
        return Err("must be made of text and {{ … }}, without {% … %} and without *".to_owned());
    }
    let calls = code.match_indices('.').any(|(at, _)| {
        let rest = code[at + 1..].trim_start();
        rest.starts_with(is_name) && rest.trim_start_matches(is_name).trim_start().starts_with('(')
    });
    if calls {
        return Err("must not call methods; there are filters, as {{ metadata.tenant | lower }}".to_owned());
    }
    let slices =
        code.split('[').skip(1).any(|rest| rest.split(']').next().is_some_and(|at| at.contains(':')));
    if slices {
        return Err("must not cut texts with [ : ]".to_owned());
    }
    Ok(())
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The code within {{ … }}, without quoted text.
pub(super) fn code_of(text: &str) -> String {
    let (mut code, mut inside, mut quote, mut before) = (String::new(), false, None, ' ');
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => continue,
            None if inside && (c == '\'' || c == '"') => quote = Some(c),
            None if before == '{' && c == '{' => inside = true,
            None if before == '}' && c == '}' => inside = false,
            None => {}
        }
        if inside {
            code.push(c);
        }
        before = c;
    }
    code
}

/// Renders the template of an environment. Some expressions on some texts make minijinja panic (slices that
/// go backwards): the template is at fault, and the panic ends only its rendering.
fn rendered(environment: &Environment<'_>, context: Value) -> Result<String, (Option<ErrorKind>, String)> {
    let render = || environment.get_template("key").and_then(|template| template.render(context));
    match std::panic::catch_unwind(AssertUnwindSafe(render)) {
        Ok(result) => result.map_err(|error| (Some(error.kind()), error_text(&error))),
        Err(_) => Err((None, "the expression cannot be worked out".to_owned())),
    }
}

impl KeySource<'_> {
    fn value(&self, field: &str) -> Result<Value, String> {
        let request = self.request;
        if field == "payload" && request.payload.as_str().len() > PAYLOAD_BYTES_MAX {
            return Err(format!("the payload is larger than {PAYLOAD_BYTES_MAX} bytes"));
        }
        let pairs = |pairs: &BTreeMap<String, String>| {
            Value::from_pairs(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
        };
        let text =
            |text: &Option<String>| text.as_ref().map_or(Value::UNDEFINED, |text| Value::from(text.as_str()));
        Ok(match field {
            "hashKey" => text(&request.hash_key),
            "labels" => pairs(&request.labels),
            "metadata" => pairs(&request.metadata),
            "namespace" => Value::from(self.namespace.as_str()),
            "payload" => match &request.payload {
                Payload::Text(text) => Value::from(text.as_str()),
                Payload::Json(json) => {
                    exact::parse(json).map_or(Value::UNDEFINED, |json| value_of_json(without_nulls(json)))
                }
            },
            "priority" => Value::from(request.priority.get()),
            "queue" => Value::from(request.queue.as_str()),
            "requestId" => text(&request.request_id),
            "taskName" => Value::from(request.task_name.as_str()),
            "taskType" => Value::from(request.task_type.as_str()),
            _ => Value::UNDEFINED,
        })
    }
}

/// Drops null values: as a key, null would be a word.
fn without_nulls(json: serde_json::Value) -> serde_json::Value {
    match json {
        serde_json::Value::Object(fields) => {
            let given = fields.into_iter().filter(|(_, value)| !value.is_null());
            given.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        other => other,
    }
}

/// Checks a template; the error names the field.
pub(crate) fn check_template(field: &str, text: &str) -> Result<(), FieldError> {
    KeyTemplate::parse(text).map(drop).map_err(|rule| FieldError::invalid(field, rule))
}

/// The message of minijinja, without the place: a template is a line.
pub(super) fn error_text(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None if error.kind() == ErrorKind::UndefinedError => {
            "names something that the task does not have (of a payload only what is JSON has fields); give a default, as \
             {{ metadata.tenant | default('none') }}"
                .to_owned()
        }
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod template_tests {
    use super::*;

    fn request() -> TaskRequest {
        let payload = Payload::Json(r#"{"region":"eu","n":7,"list":["a","b"],"none":null}"#.to_owned());
        let mut request = TaskRequest::new("import", Name::new("SHELL").unwrap(), payload);
        request.metadata.insert("tenant".to_owned(), "Acme".to_owned());
        request.metadata.insert("empty".to_owned(), String::new());
        request.metadata.insert("odd name".to_owned(), "o".to_owned());
        request
    }

    fn key(template: &str) -> Result<String, String> {
        let namespace = Name::new("prod").unwrap();
        let source = KeySource { namespace: &namespace, request: &request() };
        KeyTemplate::parse(template)?.render(source).map(Cow::into_owned)
    }

    #[test]
    fn a_key_is_made_of_what_the_task_says() {
        for (template, expected) in [
            ("fixed", "fixed"),
            ("{{ metadata.tenant }}", "Acme"),
            ("{{metadata.tenant}}", "Acme"),
            ("{{ metadata['odd name'] }}", "o"),
            ("{{ metadata.empty }}", ""),
            ("{{ metadata.tenant | lower }}:{{ payload.region }}", "acme:eu"),
            ("{{ metadata.owner | default('none') }}", "none"),
            ("{{ payload.n }}/{{ priority }}/{{ queue }}", "7/5/default"),
            ("{{ namespace }}.{{ taskType }}.{{ taskName }}", "prod.SHELL.import"),
            ("{{ payload.list | first }}", "a"),
            ("{{ payload.none | default('n') }}", "n"),
            ("{{ 'b' if labels.big is defined else 's' }}", "s"),
            ("a.b(1)*: {{ metadata.owner | default('a.b(1)*[1:2] self') }}", "a.b(1)*: a.b(1)*[1:2] self"),
            ("{{ payload.list[1] }}", "b"),
        ] {
            assert_eq!(key(template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_a_task_lacks_is_told() {
        for template in [
            "{{ metadata.owner }}",
            "{{ payload.none }}",
            "{{ payload.a.b }}",
            "{{ requestId }}",
            "{{ labels.zone }}x",
        ] {
            let error = key(template).unwrap_err();
            assert!(error.contains("not"), "{template}: {error}");
        }
        assert!(key("{{ payload.list }}\u{7}").is_err());
    }

    #[test]
    fn a_template_that_cannot_be_right_is_refused_before_it_is_used() {
        let long = "x".repeat(TEMPLATE_LEN_MAX + 1);
        for (template, part) in [
            ("", "1 to 512"),
            (long.as_str(), "1 to 512"),
            ("{{ metdata.tenant }}", "\"metdata\""),
            ("{{ metadata.tenant", "syntax error"),
            ("{{ metadata.tenant | shout }}", "unknown filter"),
            ("{{ metadata.tenant is odd }}", "unknown test"),
            ("{{ range(9) }}", "\"range\""),
            ("{% if true %}x{% endif %}", "without {%"),
            ("{{ 'x' * 1000000000 }}", "without"),
            ("{{ metadata.tenant.upper() }}", "methods"),
            ("{{ metadata . get ('tenant') }}", "methods"),
            ("{{ metadata.tenant[0:1] }}", "cut"),
            ("{{ self }}", "\"self\""),
            ("{{ metadata.tenant | upper(1, 2) }}", "too many arguments"),
        ] {
            let rule = KeyTemplate::parse(template).unwrap_err();
            assert!(rule.contains(part), "{template}: {rule}");
        }
    }
}
