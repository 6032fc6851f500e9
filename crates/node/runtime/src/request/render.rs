//! Expressions in payloads: `{{ nodes.extract.result.data.path }}`.
//!
//! A text may hold any number of `{{ … }}`, each an expression of minijinja. There are no statements and no
//! comments, so scripts with `${#list}` or `{%` in them stay as they are. A text that is one expression and
//! nothing else becomes the value itself, with its type. A missing value is an error, not an empty text.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;

use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, filters, tests};
use serde_json::Value as Json;
use tasklane_core::task::Payload;

use super::exact;
use super::template::{Anything, check_code, code_of, error_text};

/// The longest expression, in characters.
const EXPRESSION_LEN_MAX: usize = 1024;
/// Filters and joins of one expression: each may copy its whole input.
pub(super) const OPERATORS_MAX: usize = 20;
/// Expressions of one payload.
const EXPRESSIONS_MAX: usize = 1_000;
/// Filters and joins of all expressions of a text or payload, times the bytes of their input: some tens of
/// milliseconds of work.
const WORK_BYTES_MAX: usize = 16 << 20;
/// The longest rendered text.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Steps that an expression may take; an honest one takes a few.
const FUEL: u64 = 100_000;

/// The environment of expressions: strict, and only with cheap functions.
static STRICT: LazyLock<Environment<'static>> = LazyLock::new(|| environment(UndefinedBehavior::Strict));
/// The same for trial renderings: every value exists.
static TRIAL: LazyLock<Environment<'static>> = LazyLock::new(|| environment(UndefinedBehavior::Chainable));

fn environment(undefined: UndefinedBehavior) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(undefined);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("abs", filters::abs);
    environment.add_filter("bool", filters::bool);
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("float", filters::float);
    environment.add_filter("int", filters::int);
    environment.add_filter("join", join);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("max", filters::max);
    environment.add_filter("min", filters::min);
    environment.add_filter("round", filters::round);
    environment.add_filter("string", filters::string);
    environment.add_filter("sum", filters::sum);
    environment.add_filter("tojson", |value: Value| json_text(&value));
    environment.add_filter("trim", filters::trim);
    environment.add_filter("upper", filters::upper);
    environment.add_test("defined", tests::is_defined);
    environment.add_test("false", tests::is_false);
    environment.add_test("none", tests::is_none);
    environment.add_test("number", tests::is_number);
    environment.add_test("string", tests::is_string);
    environment.add_test("true", tests::is_true);
    environment.add_test("undefined", tests::is_undefined);
    environment
}

fn join(value: &Value, between: Option<String>) -> Result<String, Error> {
    let between = between.unwrap_or_default();
    let mut joined = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        if at > 0 {
            joined.push_str(&between);
        }
        joined.push_str(&shown(&item)?);
        if joined.len() > TEXT_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "the text becomes too long"));
        }
    }
    Ok(joined)
}

fn json_text(value: &Value) -> Result<String, Error> {
    json_of(value).map(|json| exact::write(&json))
}

/// A value as JSON, with marks on long whole numbers.
fn json_of(value: &Value) -> Result<Json, Error> {
    let no_json = |error: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, "no JSON can be made of it").with_source(error)
    };
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.map(|item| json_of(&item)).collect(),
        ValueKind::Map => {
            let fields = value.try_iter()?.map(|name| {
                let field = json_of(&value.get_item(&name)?)?;
                Ok((name.as_str().map_or_else(|| name.to_string(), str::to_owned), field))
            });
            fields.collect::<Result<serde_json::Map<_, _>, Error>>().map(Json::Object)
        }
        ValueKind::Number if value.is_integer() => {
            let number = i128::try_from(value.clone())?;
            let short =
                i64::try_from(number).map(Json::from).or_else(|_| u64::try_from(number).map(Json::from));
            Ok(short.unwrap_or_else(|_| Json::String(exact::mark(&number.to_string()))))
        }
        _ => serde_json::to_value(value).map_err(no_json),
    }
}

/// JSON as expressions see it. They compute with whole numbers of up to 128 bits; an expression that uses a
/// longer one fails.
pub(super) fn value_of_json(json: Json) -> Value {
    match json {
        Json::String(text) => match exact::number(&text) {
            Some(number) => number.parse::<i128>().map_or_else(
                |_| {
                    let rule =
                        format!("cannot compute with {number}: it has more than 128 bits; send it as text");
                    Value::from(Error::new(ErrorKind::InvalidOperation, rule))
                },
                Value::from,
            ),
            None => Value::from(text),
        },
        Json::Array(items) => items.into_iter().map(value_of_json).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.into_iter().map(|(name, field)| (name, value_of_json(field))))
        }
        other => Value::from(Serde(other)),
    }
}

/// A value within a text: texts as they are, other values as JSON.
fn shown(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => json_text(value),
    }
}

/// The names that expressions may use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Names at the top level.
    pub(crate) names: BTreeSet<&'static str>,
    /// Names after `nodes.`, where `nodes` is a name.
    pub(crate) nodes: BTreeSet<String>,
    /// The text is stored and was checked before.
    pub(crate) is_stored: bool,
}

/// The values for expressions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context(BTreeMap<&'static str, Operand>);

/// A value that an expression may name, and about how many bytes it has. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    value: Value,
    bytes: usize,
}

impl Operand {
    pub(crate) fn new(json: Json) -> Self {
        let bytes = bytes(&json);
        Self { value: value_of_json(json), bytes }
    }

    /// Several by name.
    pub(crate) fn named(pairs: impl IntoIterator<Item = (String, Self)>) -> Self {
        let mut bytes = 0;
        let values = pairs.into_iter().map(|(name, operand)| {
            bytes += name.len() + operand.bytes;
            (name, operand.value)
        });
        let value = Value::from_pairs(values);
        Self { value, bytes }
    }
}

fn bytes(json: &Json) -> usize {
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => 8,
        Json::String(text) => 8 + text.len(),
        Json::Array(items) => 8 + items.iter().map(bytes).sum::<usize>(),
        Json::Object(fields) => {
            8 + fields.iter().map(|(name, field)| name.len() + bytes(field)).sum::<usize>()
        }
    }
}

impl Context {
    pub(crate) fn put(&mut self, name: &'static str, json: Json) {
        self.share(name, Operand::new(json));
    }

    /// Puts a value that other contexts share.
    pub(crate) fn share(&mut self, name: &'static str, operand: Operand) {
        self.0.insert(name, operand);
    }

    /// Refuses a text whose expressions would have too much work with these values.
    fn check_work(&self, text: &str) -> Result<(), String> {
        let bytes: usize = self.0.values().map(|operand| operand.bytes).sum();
        // An expression without a filter copies no more than its result.
        let operators = operators(&code_of(text));
        if operators.saturating_mul(bytes) <= WORK_BYTES_MAX {
            return Ok(());
        }
        Err(format!(
            "must not take {operators} filters and joins (| ~ +) over {bytes} bytes: together at most {WORK_BYTES_MAX} \
             bytes; give it less, or use fewer of them"
        ))
    }

    /// All of it.
    pub(crate) fn json(&self) -> Json {
        let pairs = self
            .0
            .iter()
            .map(|(name, operand)| ((*name).to_owned(), json_of(&operand.value).unwrap_or_default()));
        Json::Object(pairs.collect())
    }

    fn value(&self) -> Value {
        Value::from_pairs(self.0.iter().map(|(name, operand)| (*name, operand.value.clone())))
    }
}

enum Piece<'a> {
    Text(&'a str),
    Expression(&'a str),
}

/// Splits a text into the parts outside and inside of `{{ … }}`.
fn pieces(text: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        if start > 0 {
            pieces.push(Piece::Text(&rest[..start]));
        }
        let inside = &rest[start + 2..];
        let end = end_of(inside).ok_or_else(|| {
            let shown: String = rest[start..].chars().take(40).collect();
            format!("has {shown:?} without }}}}; for the text {{{{ itself write {{{{ '{{{{' }}}}")
        })?;
        pieces.push(Piece::Expression(inside[..end].trim()));
        rest = &inside[end + 2..];
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    Ok(pieces)
}

/// The position of the `}}` that ends an expression: not within quotes, nor within other braces.
fn end_of(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            _ if quote.is_some() => quote = quote.filter(|end| *end != c),
            '\'' | '"' => quote = Some(c),
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' if text[at + 1..].starts_with('}') => return Some(at),
            _ => {}
        }
    }
    None
}

/// Checks an expression against a scope. Returns the names that it uses after `nodes.`. The error is the rule
/// that it breaks.
pub(crate) fn check_expression(text: &str, scope: &Scope) -> Result<BTreeSet<String>, String> {
    let len = text.chars().count();
    if !(1..=EXPRESSION_LEN_MAX).contains(&len) {
        return Err(format!("must have expressions of 1 to {EXPRESSION_LEN_MAX} characters, not {len}"));
    }
    let code = format!("{{{{{text}}}}}");
    check_code(&code)?;
    check_operators(&code)?;
    let expression =
        TRIAL.compile_expression(text).map_err(|error| format!("has {text:?}: {}", error_text(&error)))?;
    let mut nodes = BTreeSet::new();
    for name in expression.undeclared_variables(true) {
        let mut path = name.split('.');
        let (root, next) = (path.next().unwrap_or_default(), path.next());
        if !scope.names.contains(root) {
            let known: Vec<&str> = scope.names.iter().copied().collect();
            return Err(match known[..] {
                [] => format!("names {root:?}, and there is nothing to name here: write the value itself"),
                _ => format!("names {root:?}, which is none of {}", known.join(", ")),
            });
        }
        if root != "nodes" {
            continue;
        }
        match next {
            Some(node) if scope.nodes.contains(node) => _ = nodes.insert(node.to_owned()),
            Some(node) => {
                return Err(format!(
                    "names nodes.{node}, and the node does not depend on {node:?}; add it to dependsOn"
                ));
            }
            None => return Err("must say which node is meant, as in nodes.NAME.result.data".to_owned()),
        }
    }
    if scope.is_stored {
        return Ok(nodes);
    }
    // Filters and tests are looked up when they are used.
    let never_right = [
        ErrorKind::UnknownFilter,
        ErrorKind::UnknownTest,
        ErrorKind::UnknownFunction,
        ErrorKind::TooManyArguments,
        ErrorKind::MissingArgument,
    ];
    let anything = || Value::from_pairs(scope.names.iter().map(|name| (*name, Value::from_object(Anything))));
    for context in [Value::from(()), anything()] {
        let tried = std::panic::catch_unwind(AssertUnwindSafe(|| expression.eval(context)));
        if let Ok(Err(error)) = tried
            && never_right.contains(&error.kind())
        {
            return Err(format!("has {text:?}: {}", error_text(&error)));
        }
    }
    Ok(nodes)
}

/// Filters and joins in code.
fn operators(code: &str) -> usize {
    code.matches(['|', '~', '+']).count()
}

/// Refuses an expression of too many filters and joins.
pub(super) fn check_operators(text: &str) -> Result<(), String> {
    let operators = operators(&code_of(text));
    if operators > OPERATORS_MAX {
        return Err(format!(
            "must have at most {OPERATORS_MAX} filters and joins (| ~ +) in one expression, not {operators}"
        ));
    }
    Ok(())
}

/// The same for all expressions within a text.
pub(crate) fn check_text(text: &str, scope: &Scope) -> Result<BTreeSet<String>, String> {
    let mut nodes = BTreeSet::new();
    for piece in pieces(text)? {
        if let Piece::Expression(expression) = piece {
            nodes.extend(check_expression(expression, scope)?);
        }
    }
    Ok(nodes)
}

/// Whether an expression within a text names one of these.
pub(crate) fn names_any(text: &str, names: &[&str]) -> bool {
    let names_one = |expression: &str| {
        let compiled = TRIAL.compile_expression(expression);
        compiled
            .is_ok_and(|it| it.undeclared_variables(false).iter().any(|name| names.contains(&name.as_str())))
    };
    pieces(text)
        .unwrap_or_default()
        .iter()
        .any(|piece| matches!(piece, Piece::Expression(it) if names_one(it)))
}

/// The same for all expressions within a payload.
pub(crate) fn check_payload(payload: &Payload, scope: &Scope) -> Result<BTreeSet<String>, String> {
    if !payload.as_str().contains("{{") {
        return Ok(BTreeSet::new());
    }
    match payload {
        Payload::Text(text) => {
            let mut left = EXPRESSIONS_MAX;
            let mut nodes = BTreeSet::new();
            check_json(&Json::String(text.clone()), scope, &mut nodes, &mut left)?;
            Ok(nodes)
        }
        Payload::Json(json) => {
            let json: Json = serde_json::from_str(json).map_err(|error| format!("is not JSON: {error}"))?;
            let (mut nodes, mut left) = (BTreeSet::new(), EXPRESSIONS_MAX);
            check_json(&json, scope, &mut nodes, &mut left)?;
            Ok(nodes)
        }
    }
}

/// `left` is the number of expressions that are still allowed.
fn check_json(
    json: &Json,
    scope: &Scope,
    nodes: &mut BTreeSet<String>,
    left: &mut usize,
) -> Result<(), String> {
    match json {
        Json::String(text) => {
            let many = || format!("must have at most {EXPRESSIONS_MAX} expressions");
            *left = left.checked_sub(text.matches("{{").count()).ok_or_else(many)?;
            nodes.extend(check_text(text, scope)?);
        }
        Json::Array(items) => items.iter().try_for_each(|item| check_json(item, scope, nodes, left))?,
        Json::Object(fields) => {
            fields.values().try_for_each(|field| check_json(field, scope, nodes, left))?;
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
    Ok(())
}

/// The value of an expression. The error names a missing value.
fn value_of(expression: &str, context: &Context) -> Result<Value, String> {
    let worked_out = || STRICT.compile_expression(expression).and_then(|it| it.eval(context.value()));
    let value = match std::panic::catch_unwind(AssertUnwindSafe(worked_out)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) if error.kind() == ErrorKind::UndefinedError && error.detail().is_none() => {
            Value::UNDEFINED
        }
        Ok(Err(error)) => return Err(format!("{{{{ {expression} }}}}: {}", error_text(&error))),
        Err(_) => return Err(format!("{{{{ {expression} }}}} cannot be worked out")),
    };
    if value.is_undefined() {
        return Err(format!("{{{{ {expression} }}}} is not there"));
    }
    Ok(value)
}

/// Whether a condition holds.
pub(crate) fn holds(expression: &str, context: &Context) -> Result<bool, String> {
    context.check_work(&format!("{{{{{expression}}}}}"))?;
    value_of(expression, context).map(|value| value.is_true())
}

fn as_json(expression: &str, value: &Value) -> Result<Json, String> {
    json_of(value).map_err(|error| format!("{{{{ {expression} }}}} is no JSON: {}", error_text(&error)))
}

/// A rendered text.
pub(crate) fn render_text(text: &str, context: &Context) -> Result<String, String> {
    let mut rendered = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => rendered.push_str(text),
            Piece::Expression(expression) => {
                let value = value_of(expression, context)?;
                let text = shown(&value)
                    .map_err(|error| format!("{{{{ {expression} }}}}: {}", error_text(&error)))?;
                rendered.push_str(&text);
            }
        }
        if rendered.len() > TEXT_BYTES_MAX {
            return Err(format!("a text becomes longer than {TEXT_BYTES_MAX} bytes"));
        }
    }
    Ok(rendered)
}

/// A rendered text; if it is one expression and nothing else, its value.
pub(crate) fn render_value(text: &str, context: &Context) -> Result<Json, String> {
    match &pieces(text)?[..] {
        [Piece::Expression(expression)] => as_json(expression, &value_of(expression, context)?),
        _ => render_text(text, context).map(Json::String),
    }
}

/// A rendered payload.
pub(crate) fn render_payload(payload: &Payload, context: &Context) -> Result<Payload, String> {
    if !payload.as_str().contains("{{") {
        return Ok(payload.clone());
    }
    context.check_work(payload.as_str())?;
    match payload {
        Payload::Text(text) => render_text(text, context).map(Payload::Text),
        Payload::Json(json) => {
            let json = exact::parse(json).map_err(|error| format!("is not JSON: {error}"))?;
            let mut room = TEXT_BYTES_MAX;
            Ok(payload_of(render_json(json, context, &mut room)?))
        }
    }
}

/// A JSON value as a payload: text as it is.
pub(crate) fn payload_of(json: Json) -> Payload {
    match json {
        Json::String(text) => match exact::number(&text) {
            Some(number) => Payload::Json(number.to_owned()),
            None => Payload::Text(text),
        },
        json => Payload::Json(exact::write(&json)),
    }
}

/// `room` is the number of bytes that the result may still grow by.
fn render_json(json: Json, context: &Context, room: &mut usize) -> Result<Json, String> {
    Ok(match json {
        Json::String(text) if text.contains("{{") => {
            let value = render_value(&text, context)?;
            let bytes = match &value {
                Json::String(text) => text.len(),
                other => other.to_string().len(),
            };
            let too_large = || format!("becomes larger than {TEXT_BYTES_MAX} bytes");
            *room = room.checked_sub(bytes).ok_or_else(too_large)?;
            value
        }
        Json::Array(items) => {
            let items = items.into_iter().map(|item| render_json(item, context, room));
            items.collect::<Result<_, _>>()?
        }
        Json::Object(fields) => {
            let fields =
                fields.into_iter().map(|(name, field)| Ok((name, render_json(field, context, room)?)));
            fields.collect::<Result<_, String>>()?
        }
        other => other,
    })
}

#[cfg(test)]
mod render_tests {
    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        Scope {
            names: BTreeSet::from(["input", "nodes"]),
            nodes: BTreeSet::from(["extract".to_owned()]),
            is_stored: false,
        }
    }

    fn context() -> Context {
        let mut context = Context::default();
        let result = json!({ "data": { "path": "/tmp/a b", "n": 3, "list": [1, "two"], "none": null } });
        context.put("nodes", json!({ "extract": { "status": "SUCCESS", "result": result } }));
        context.put("input", json!({ "day": "mon" }));
        context
    }

    fn rendered(payload: Json) -> Result<Json, String> {
        let payload = payload_of(payload);
        check_payload(&payload, &scope())?;
        render_payload(&payload, &context()).map(|payload| match payload {
            Payload::Text(text) => Json::String(text),
            Payload::Json(json) => serde_json::from_str(&json).unwrap(),
        })
    }

    #[test]
    fn values_keep_their_type_and_texts_are_put_together() {
        let data = "nodes.extract.result.data";
        for (template, expected) in [
            (json!({ "n": format!("{{{{ {data}.n }}}}") }), json!({ "n": 3 })),
            (json!([format!("{{{{{data}.list}}}}")]), json!([[1, "two"]])),
            (json!(format!("cp '{{{{ {data}.path }}}}' {{{{ input.day }}}}")), json!("cp '/tmp/a b' mon")),
            (json!(format!("{{{{ {data}.n }}}}")), json!("3")),
            (json!(format!("{{{{ {data}.list }}}}")), json!("[1,\"two\"]")),
            (json!({ "t": format!("n={{{{ {data}.n + 1 }}}}") }), json!({ "t": "n=4" })),
            (json!({ "t": "{{ input.week | default('now') }}" }), json!({ "t": "now" })),
            (json!({ "t": format!("{{{{ {data}.none }}}}") }), json!({ "t": null })),
            (json!("${#list[@]} {% x %} {{ '{{' }}"), json!("${#list[@]} {% x %} {{")),
            (json!({ "t": "{{ {'a': {'b': 1}} }}" }), json!({ "t": { "a": { "b": 1 } } })),
            (json!({ "t": format!("{{{{ {data}.list | join('-') }}}}") }), json!({ "t": "1-two" })),
            (json!({ "plain": ["as", 1, null] }), json!({ "plain": ["as", 1, null] })),
        ] {
            assert_eq!(rendered(template.clone()), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        for (template, part) in [
            ("{{ nodes.extract.result.data.pth }}", "nodes.extract.result.data.pth }} is not there"),
            ("x {{ input.week.day }}", "input.week.day }} is not there"),
            ("{{ input.day + 1 }}", "input.day + 1"),
        ] {
            let error = rendered(json!({ "a": template })).unwrap_err();
            assert!(error.contains(part), "{template}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_before_it_is_used() {
        for (template, part) in [
            ("{{ nodes.load.result }}", "does not depend on \"load\""),
            ("{{ nodes['extract'] }}", "which node"),
            ("{{ node.extract }}", "\"node\""),
            ("{{ input.day", "without }}"),
            ("{{ }}", "1 to 1024"),
            ("{{ input.day | shout }}", "unknown filter"),
            ("{{ input.day is odd }}", "unknown test"),
            ("{{ 'x' * 1000000000 }}", "without"),
            ("{{ input.day.upper() }}", "methods"),
            ("{{ input.. }}", "syntax"),
        ] {
            let error = check_text(template, &scope()).unwrap_err();
            assert!(error.contains(part), "{template}: {error}");
        }
    }

    #[test]
    fn conditions_are_true_or_false() {
        for (condition, expected) in [
            ("nodes.extract.result.data.n > 2", true),
            ("nodes.extract.result.data.n > 3", false),
            ("nodes.extract.status == 'SUCCESS' and input.day != 'sun'", true),
            ("input.week is defined", false),
        ] {
            check_expression(condition, &scope()).unwrap();
            assert_eq!(holds(condition, &context()), Ok(expected), "{condition}");
        }
        assert!(holds("input.week", &context()).is_err());
    }
}
