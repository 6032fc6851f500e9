//! The readable page at `/api`, made of the description. Plain HTML: nothing is loaded from elsewhere.

use std::fmt::Write;

use serde_json::Value;

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width\"><title>Tasklane API</title><style>\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
code{font:14px ui-monospace,monospace}h2{margin-top:3rem}section{border-top:1px solid #ccc;padding:.5rem 0}\
h3 code{font-size:16px}.method{font-weight:bold}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;border-bottom:1px solid #eee}\
pre{background:#f4f4f4;padding:.6rem;overflow:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}pre{background:#222}section,td,th{border-color:#333}\
a{color:#8bf}}</style></head><body>\n";

/// The page of a description.
pub(crate) fn page(api: &Value) -> String {
    let mut page = String::from(HEAD);
    write_page(&mut page, api).expect("writing to a string");
    page
}

fn write_page(page: &mut String, api: &Value) -> std::fmt::Result {
    writeln!(page, "<h1>Tasklane API</h1><p>{}</p>", prose(text(&api["info"]["description"])))?;
    writeln!(page, "<p>The same for programs: <a href=\"/api/openapi.json\">OpenAPI 3.1</a>.</p>")?;
    for tag in list(&api["tags"]) {
        let name = text(&tag["name"]);
        writeln!(page, "<h2>{}</h2><p>{}</p>", escape(name), prose(text(&tag["description"])))?;
        for (path, operations) in entries(&api["paths"]) {
            for (method, operation) in entries(operations) {
                if list(&operation["tags"]).iter().any(|tag| text(tag) == name) {
                    write_operation(page, path, method, operation)?;
                }
            }
        }
    }
    writeln!(page, "<h2 id=\"schemas\">Schemas</h2>")?;
    for (name, schema) in entries(&api["components"]["schemas"]) {
        write_schema(page, name, schema)?;
    }
    writeln!(page, "</body></html>")
}

fn write_operation(page: &mut String, path: &str, method: &str, operation: &Value) -> std::fmt::Result {
    let id = escape(text(&operation["operationId"]));
    let method = escape(&method.to_uppercase());
    writeln!(
        page,
        "<section id=\"{id}\"><h3><code><span class=\"method\">{method}</span> {}</code></h3>",
        escape(path)
    )?;
    let (summary, description) = (text(&operation["summary"]), text(&operation["description"]));
    writeln!(page, "<p><b>{}.</b> {}</p>", escape(summary), prose(description))?;
    let parameters = list(&operation["parameters"]);
    if !parameters.is_empty() {
        writeln!(page, "<table><tr><th>Parameter</th><th>In</th><th>Type</th><th></th></tr>")?;
        for parameter in parameters {
            let (name, place) = (escape(text(&parameter["name"])), escape(text(&parameter["in"])));
            let (kind, about) = (type_of(&parameter["schema"]), prose(text(&parameter["description"])));
            writeln!(
                page,
                "<tr><td><code>{name}</code></td><td>{place}</td><td>{kind}</td><td>{about}</td></tr>"
            )?;
        }
        writeln!(page, "</table>")?;
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        writeln!(page, "<p>Body: {}</p>", type_of(body))?;
    }
    writeln!(page, "<table><tr><th>Answer</th><th></th><th></th></tr>")?;
    for (status, response) in entries(&operation["responses"]) {
        let kinds = entries(&response["content"]).map(|(_, content)| type_of(&content["schema"]));
        let kinds = kinds.collect::<Vec<_>>().join(" or ");
        let about = prose(text(&response["description"]));
        writeln!(page, "<tr><td>{}</td><td>{kinds}</td><td>{about}</td></tr>", escape(status))?;
    }
    writeln!(page, "</table></section>")
}

fn write_schema(page: &mut String, name: &str, schema: &Value) -> std::fmt::Result {
    let name = escape(name);
    writeln!(page, "<section id=\"schema-{name}\"><h3><code>{name}</code></h3>")?;
    writeln!(page, "<p>{}</p>", prose(text(&schema["description"])))?;
    let properties = entries(&schema["properties"]);
    let required = list(&schema["required"]);
    let mut rows = String::new();
    for (field, property) in properties {
        let star = if required.iter().any(|name| text(name) == field) { " (required)" } else { "" };
        let (kind, about) = (type_of(property), prose(text(&property["description"])));
        writeln!(
            rows,
            "<tr><td><code>{}</code>{star}</td><td>{kind}</td><td>{about}</td></tr>",
            escape(field)
        )?;
    }
    if rows.is_empty() {
        writeln!(page, "<p>{}</p>", type_of(schema))?;
    } else {
        writeln!(page, "<table><tr><th>Field</th><th>Type</th><th></th></tr>{rows}</table>")?;
    }
    for example in list(&schema["examples"]) {
        let example = serde_json::to_string_pretty(example).unwrap_or_default();
        writeln!(page, "<pre><code>{}</code></pre>", escape(&example))?;
    }
    writeln!(page, "</section>")
}

/// A schema in a few words.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        let name = escape(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    for key in ["oneOf", "anyOf"] {
        let choices = list(&schema[key]);
        if !choices.is_empty() && schema["properties"].is_null() {
            return choices.iter().map(type_of).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Value::Array(values) = &schema["enum"] {
        return values
            .iter()
            .map(|value| format!("<code>{}</code>", escape(&value.to_string())))
            .collect::<Vec<_>>()
            .join(" ");
    }
    let mut kind = match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    };
    if schema["type"] == "array" {
        return format!("list of {}", type_of(&schema["items"]));
    }
    for (key, word) in [("format", ""), ("minimum", "≥ "), ("maximum", "≤ "), ("maxLength", "length ≤ ")]
    {
        match &schema[key] {
            Value::Null => {}
            Value::String(value) => kind = format!("{kind}, {word}{value}"),
            value => kind = format!("{kind}, {word}{value}"),
        }
    }
    escape(&kind)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// Text with `code` in it.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(n, part)| match n % 2 {
        0 => escape(part),
        _ => format!("<code>{}</code>", escape(part)),
    });
    parts.collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_operation_and_loads_nothing() {
        let api = crate::openapi::openapi();
        let page = page(&api);
        for (path, operations) in entries(&api["paths"]) {
            assert!(page.contains(&escape(path)), "{path}");
            for (_, operation) in entries(operations) {
                let id = text(&operation["operationId"]);
                assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
            }
        }
        for foreign in ["href=\"http", "url(", "<script", "src="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(prose("a <b> `<i>`"), "a &lt;b&gt; <code>&lt;i&gt;</code>");
    }
}
