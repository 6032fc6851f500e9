//! Hostile bodies, parameters and paths for each route of the API. The routes, and the fields of their
//! bodies, come from the server's own description.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use tasklane_core::rng::Rng;

use super::requests::Rule;
use super::system::HOSTILE;
use super::wire::Shot;

/// How deep fields of bodies are looked for.
const DEPTH_MAX: usize = 4;
/// Names that hostile requests give to what they make, so that it stays little.
const NAMES: u64 = 8;

/// A route of the API.
#[derive(Clone, Debug)]
pub(super) struct Route {
    method: String,
    path: String,
    /// Its query parameters.
    params: Vec<String>,
    /// A body that it takes, and the fields of it.
    body: Option<(Value, Vec<Field>)>,
}

/// A field of a body: the way to it, and the types that it may have; empty if that is not known.
#[derive(Clone, Debug)]
struct Field {
    way: Vec<String>,
    types: BTreeSet<String>,
}

/// All routes of a description.
pub(super) fn routes(description: &Value) -> Result<Vec<Route>> {
    let paths = description["paths"].as_object().context("the description has no paths")?;
    let mut routes = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let params = parameters
                .map(|parameter| resolve(description, parameter))
                .filter(|parameter| parameter["in"] == "query")
                .filter_map(|parameter| Some(parameter["name"].as_str()?.to_owned()))
                .collect();
            let content = &operation["requestBody"]["content"]["application/json"];
            let body = content.get("schema").map(|schema| {
                let mut fields = Vec::new();
                collect(description, schema, &mut Vec::new(), &mut fields);
                (harmless(example(description, content)), fields)
            });
            routes.push(Route { method: method.to_uppercase(), path: path.clone(), params, body });
        }
    }
    let has_bodies = routes.iter().filter(|route| route.body.is_some()).count();
    ensure!(routes.len() > 30 && has_bodies > 10, "the description has {} routes only", routes.len());
    Ok(routes)
}

fn resolve<'a>(description: &'a Value, value: &'a Value) -> &'a Value {
    let target = value["$ref"].as_str().and_then(|path| description.pointer(path.strip_prefix('#')?));
    target.unwrap_or(value)
}

fn example(description: &Value, content: &Value) -> Value {
    let of_schema = &resolve(description, &content["schema"])["examples"][0];
    let example = if of_schema.is_null() { &content["example"] } else { of_schema };
    if example.is_object() { example.clone() } else { json!({}) }
}

/// Nothing runs but `NOOP`, and nothing is sent anywhere but to a closed port.
fn harmless(value: Value) -> Value {
    match value {
        Value::String(text) if text.contains("://") => "http://127.0.0.1:9/hook".into(),
        Value::Array(items) => items.into_iter().map(harmless).collect(),
        Value::Object(fields) => {
            let noop = |(name, value)| {
                let value = if name == "taskType" { "NOOP".into() } else { harmless(value) };
                (name, value)
            };
            Value::Object(fields.into_iter().map(noop).collect())
        }
        other => other,
    }
}

fn collect(description: &Value, schema: &Value, way: &mut Vec<String>, fields: &mut Vec<Field>) {
    let resolved = resolve(description, schema);
    if way.len() >= DEPTH_MAX {
        return;
    }
    let alternatives = ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|name| resolved[name].as_array());
    for alternative in alternatives.flatten() {
        collect(description, alternative, way, fields);
    }
    for (name, schema) in resolved["properties"].as_object().into_iter().flatten() {
        way.push(name.clone());
        fields.push(Field { way: way.clone(), types: types(resolve(description, schema)) });
        collect(description, schema, way, fields);
        way.pop();
    }
    if resolved["items"].is_object() {
        way.push("0".into());
        collect(description, &resolved["items"], way, fields);
        way.pop();
    }
}

/// The types that a schema allows, if it says so plainly.
fn types(schema: &Value) -> BTreeSet<String> {
    let types = match &schema["type"] {
        Value::String(one) => vec![one.clone()],
        Value::Array(several) => several.iter().filter_map(|one| Some(one.as_str()?.to_owned())).collect(),
        _ => Vec::new(),
    };
    types.into_iter().collect()
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Field {
    /// Whether a value cannot be right here. A field that is null counts as left out.
    fn refuses(&self, value: &Value) -> bool {
        let kind = type_of(value);
        let fits = self.types.contains(kind) || kind == "integer" && self.types.contains("number");
        !self.types.is_empty() && !value.is_null() && !fits
    }
}

/// A hostile request to one of the routes, and the outcome that it must have.
pub(super) fn shot(routes: &[Route], rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let with_body: Vec<&Route> = routes.iter().filter(|route| route.body.is_some()).collect();
    match rng.below(100) {
        ..40 => field(with_body[rng.index(with_body.len())], rng),
        40..65 => broken_text(with_body[rng.index(with_body.len())], rng),
        65..80 => parameter(&routes[rng.index(routes.len())], rng),
        80..92 => path(&routes[rng.index(routes.len())], rng),
        _ => namespace(&routes[rng.index(routes.len())], rng),
    }
}

const NAMESPACE_LINE: &str = "tasklane-namespace: hostile\r\n";

impl Route {
    /// The path with names of our own, and with unused ids.
    fn target(&self, rng: &mut Rng) -> String {
        let id = "00000000-0000-8000-8000-000000000001";
        let has_uuid =
            ["/tasks/", "/jobs/", "/runs/", "/operations/"].iter().any(|part| self.path.contains(part));
        let mut target = String::new();
        for segment in self.path.split('/').skip(1) {
            target.push('/');
            match segment.strip_prefix('{') {
                Some("id}") if has_uuid => target.push_str(id),
                Some("code}") => target.push_str("internal"),
                Some(_) => target.extend(["h", &rng.below(NAMES).to_string()]),
                None => target.push_str(segment),
            }
        }
        target
    }

    fn is_dry(&self) -> bool {
        self.path.ends_with("/bulk") || self.path.ends_with("/backfill")
    }
}

/// One field of the body has another value.
fn field(route: &Route, rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let (example, fields) = route.body.as_ref().expect("it was chosen for its body");
    let mut body = example.clone();
    let mut rule = Rule::Answered;
    let field = &fields[rng.index(fields.len().max(1)).min(fields.len() - 1)];
    let value = value(rng);
    if rng.chance(8) {
        body[format!("x{}", rng.below(9))] = value;
        rule = Rule::Refused;
    } else {
        if field.refuses(&value) {
            rule = Rule::Refused;
        }
        put(&mut body, &field.way, value);
    }
    if route.is_dry() {
        body["dryRun"] = true.into();
        if field.way == ["dryRun"] {
            rule = Rule::Answered;
        }
    }
    // Each task of a batch is refused for itself.
    if field.way.len() > 1 && field.way[0] == "tasks" {
        rule = Rule::Answered;
    }
    let text = serde_json::to_vec(&body).unwrap_or_default();
    ("a wrong field", Shot::request(&route.method, &route.target(rng), NAMESPACE_LINE, Some(&text)), rule)
}

/// Values that a developer may not have thought of.
fn value(rng: &mut Rng) -> Value {
    match rng.below(24) {
        0 => Value::Null,
        1 => true.into(),
        2 => 0.into(),
        3 => (-1).into(),
        4 => 1.5.into(),
        5 => json!(1e308),
        6 => json!(u64::MAX),
        7 => json!(i64::MIN),
        8 => "".into(),
        9 => "\u{0}".into(),
        10 => "a\u{202e}b\u{1b}[31m".into(),
        11 => "x".repeat(70_000).into(),
        12 => "{{ payload".into(),
        13 => "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}".into(),
        14 => "99999999999d".into(),
        15 => "-5s".into(),
        16 => "9999-12-31T23:59:60Z".into(),
        17 => "0 0 31 2 *".into(),
        18 => json!([]),
        19 => json!({}),
        20 => json!([[[[[[[[[[]]]]]]]]]]),
        21 => Value::Array(vec![Value::Null; 3_000]),
        22 => (0..2_000).map(|n| (format!("k{n}"), n.into())).collect::<Map<_, _>>().into(),
        _ => "..\\../../etc/passwd".into(),
    }
}

/// Sets the value at the end of a way, and makes what is missing on it.
fn put(body: &mut Value, way: &[String], value: Value) {
    let Some((first, rest)) = way.split_first() else {
        *body = value;
        return;
    };
    if first == "0" {
        if !body.is_array() {
            *body = json!([]);
        }
        if let Value::Array(items) = body {
            if items.is_empty() {
                items.push(Value::Null);
            }
            put(&mut items[0], rest, value);
        }
        return;
    }
    if !body.is_object() {
        *body = json!({});
    }
    put(&mut body[first], rest, value);
}

/// A body that no JSON parser should take, or that no client could read back.
fn broken_text(route: &Route, rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let deep = |depth: usize| {
        let mut text = br#"{"taskName":"a","taskType":"NOOP","payload":"#.to_vec();
        text.extend(std::iter::repeat_n(b'[', depth));
        text.extend(std::iter::repeat_n(b']', depth));
        text.push(b'}');
        text
    };
    let payload =
        |json: &str| format!(r#"{{"taskName":"a","taskType":"NOOP","payload":{json}}}"#).into_bytes();
    let text: Vec<u8> = match rng.below(24) {
        0 => deep(101),
        1 => deep(5_000),
        2 => deep(200_000),
        3 => payload("1e999"),
        4 => payload("-1e999"),
        5 => payload(r#""\ud800""#),
        6 => payload(r#"{"\udc00": 1}"#),
        7 => payload(&format!(r#""{}""#, "x".repeat(300 << 10))),
        8 => payload("NaN"),
        9 => payload("'a'"),
        10 => payload("1 // one"),
        11 => payload("[1,]"),
        12 => payload("+1"),
        13 => payload("01"),
        14 => payload("\"\u{1}\""),
        15 => Vec::new(),
        16 => b"\xef\xbb\xbf{}".to_vec(),
        17 => b"{\0\"\0a\0\"\0:\x001\0}\0".to_vec(),
        18 => b"{\"taskName\":\"\xff\xfe\",\"taskType\":\"NOOP\"}".to_vec(),
        19 => br#"{"taskName":"a","taskName":"b","taskType":"NOOP"}"#.to_vec(),
        20 => br#"{"taskName":"a","taskType":"NOOP"}{"#.to_vec(),
        21 => b"[".repeat(100_000),
        22 => br#"{"a":"#.repeat(60_000),
        _ => (0..200).map(|_| u8::try_from(rng.below(256)).unwrap_or(0)).collect(),
    };
    ("broken JSON", Shot::request(&route.method, &route.target(rng), NAMESPACE_LINE, Some(&text)), {
        // Where a body may be left out, an empty one is no fault.
        if text.is_empty() { Rule::Answered } else { Rule::Refused }
    })
}

fn parameter(route: &Route, rng: &mut Rng) -> (&'static str, Shot, Rule) {
    const VALUES: [&str; 12] = [
        "-1",
        "0",
        "99999999999999999999",
        "1e9",
        "",
        "%00",
        "%ff%fe",
        "a%0d%0aset-cookie:%20x",
        "%E2%80%AE",
        "2030-13-45T99:99:99Z",
        "..%2f..",
        "null",
    ];
    let known = rng.index(route.params.len() + 1);
    let is_api = route.path.starts_with("/api/v1/");
    let (name, rule) = match route.params.get(known) {
        Some(name) => (name.clone(), Rule::Answered),
        None if is_api => ("zzz".to_owned(), Rule::Refused),
        None => ("zzz".to_owned(), Rule::Answered),
    };
    let value = VALUES[rng.index(VALUES.len())].to_owned();
    let value = if rng.chance(10) { "y".repeat(9_000) } else { value };
    let target = format!("{}?{name}={value}", route.target(rng));
    let body = route.body.as_ref().map(|(example, _)| dry(route, example));
    ("a wrong parameter", Shot::request(&route.method, &target, NAMESPACE_LINE, body.as_deref()), rule)
}

fn dry(route: &Route, example: &Value) -> Vec<u8> {
    let mut body = example.clone();
    if route.is_dry() {
        body["dryRun"] = true.into();
    }
    serde_json::to_vec(&body).unwrap_or_default()
}

/// Something strange where the path has a name or an id.
fn path(route: &Route, rng: &mut Rng) -> (&'static str, Shot, Rule) {
    const SEGMENTS: [&str; 12] = [
        "%00",
        "..",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%ff%fe",
        "%F0%9F%92%A9",
        "%1b[31m",
        "not-a-uuid",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "%E2%80%AEexe",
        "a%20b",
        "%zz",
    ];
    let long = "n".repeat(6_000);
    let segment = SEGMENTS.get(rng.index(SEGMENTS.len() + 1)).copied().unwrap_or(&long);
    let segments =
        route.path.split('/').skip(1).map(|part| if part.starts_with('{') { segment } else { part });
    let target: String = segments.flat_map(|part| ["/", part]).collect();
    let body = route.body.as_ref().map(|(example, _)| dry(route, example));
    let shot = Shot::request(&route.method, &target, NAMESPACE_LINE, body.as_deref());
    ("a strange path", shot, Rule::Answered)
}

fn namespace(route: &Route, rng: &mut Rng) -> (&'static str, Shot, Rule) {
    let long = "n".repeat(5_000);
    let headers = [
        format!("tasklane-namespace: {HOSTILE}\r\ntasklane-namespace: other\r\n"),
        "tasklane-namespace: \u{7f}\r\n".to_owned(),
        format!("tasklane-namespace: {long}\r\n"),
        "tasklane-namespace:\r\n".to_owned(),
        format!("{NAMESPACE_LINE}idempotency-key: a\r\nidempotency-key: b\r\n"),
        format!("{NAMESPACE_LINE}idempotency-key: {long}\r\n"),
        format!("{NAMESPACE_LINE}last-event-id: {long}\r\n"),
        format!("{NAMESPACE_LINE}authorization: Bearer {long}\r\n"),
        format!("{NAMESPACE_LINE}content-encoding: gzip\r\n"),
    ];
    let body = route.body.as_ref().map(|(example, _)| dry(route, example));
    let header = &headers[rng.index(headers.len())];
    let shot = Shot::request(&route.method, &route.target(rng), header, body.as_deref());
    ("a strange header", shot, Rule::Tolerated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Value {
        serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap()
    }

    #[test]
    fn fields_of_bodies_are_found_with_their_types() {
        let routes = routes(&description()).unwrap();
        let submit =
            routes.iter().find(|route| route.method == "POST" && route.path == "/api/v1/tasks").unwrap();
        let (example, fields) = submit.body.as_ref().unwrap();
        assert_eq!(example["taskType"], "NOOP");
        let field = |way: &[&str]| fields.iter().find(|field| field.way == way).unwrap();
        assert!(field(&["priority"]).refuses(&"9".into()));
        assert!(!field(&["priority"]).refuses(&9.into()));
        assert!(!field(&["payload"]).refuses(&json!([1])));
        assert!(field(&["retryPolicy", "maxRetries"]).refuses(&json!({})));
    }

    #[test]
    fn values_are_put_where_the_way_leads() {
        let mut body = json!({"a": 1});
        put(&mut body, &["tasks".into(), "0".into(), "labels".into()], json!(7));
        assert_eq!(body, json!({"a": 1, "tasks": [{"labels": 7}]}));
    }
}
