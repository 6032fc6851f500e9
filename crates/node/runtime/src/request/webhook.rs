//! Webhooks of tasks, queues and schedules: addresses, and the events for each.

use reqwest::Url;
use serde::{Deserialize, Serialize};
use tasklane_core::task::{Occasion, Webhook};

use super::error::{FieldError, code};
use super::json::Object;

/// The most webhooks of a task, a queue or a schedule.
pub const WEBHOOKS_MAX: usize = 5;
/// The longest address, in characters.
pub const WEBHOOK_URL_LEN_MAX: usize = 2048;

/// The longest name of a host, as DNS has it.
const HOST_LEN_MAX: usize = 253;

/// A webhook as JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct WebhookJson {
    url: String,
    on: Option<Vec<OccasionName>>,
}

/// How JSON names the events of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OccasionName {
    /// A task has ended with any status.
    Finished,
    /// A task has failed.
    Failed,
    /// The tasks of a schedule begin to fail, or no longer do.
    Failing,
    /// A schedule is late, or no longer.
    Late,
}

impl From<OccasionName> for Occasion {
    fn from(name: OccasionName) -> Self {
        match name {
            OccasionName::Finished => Self::Finished,
            OccasionName::Failed => Self::Failed,
            OccasionName::Failing => Self::Failing,
            OccasionName::Late => Self::Late,
        }
    }
}

impl From<Occasion> for OccasionName {
    fn from(occasion: Occasion) -> Self {
        match occasion {
            Occasion::Finished => Self::Finished,
            Occasion::Failed => Self::Failed,
            Occasion::Failing => Self::Failing,
            Occasion::Late => Self::Late,
        }
    }
}

/// The events of a single task.
pub const OF_TASKS: &[Occasion] = &[Occasion::Finished, Occasion::Failed];
/// The events of a schedule.
pub const OF_SCHEDULES: &[Occasion] =
    &[Occasion::Finished, Occasion::Failed, Occasion::Failing, Occasion::Late];

/// Parses and checks the list of webhooks at `field`.
pub fn webhooks(
    field: &str,
    list: Option<Vec<Object<WebhookJson>>>,
    allowed: &[Occasion],
) -> Result<Vec<Webhook>, FieldError> {
    let list = list.unwrap_or_default();
    if list.len() > WEBHOOKS_MAX {
        let rule = format!("must have at most {WEBHOOKS_MAX} entries, not {}", list.len());
        return Err(FieldError::invalid(field, rule));
    }
    let mut webhooks: Vec<Webhook> = Vec::with_capacity(list.len());
    for (n, Object(json)) in list.into_iter().enumerate() {
        let webhook = webhook_of(&format!("{field}[{n}]"), json, allowed)?;
        if webhooks.iter().any(|other| is_same(&other.url, &webhook.url)) {
            return Err(FieldError::invalid(format!("{field}[{n}].url"), "must differ from those before it"));
        }
        webhooks.push(webhook);
    }
    Ok(webhooks)
}

fn webhook_of(path: &str, json: WebhookJson, allowed: &[Occasion]) -> Result<Webhook, FieldError> {
    check_url(&format!("{path}.url"), &json.url)?;
    let field = format!("{path}.on");
    let mut on: Vec<Occasion> = match json.on {
        None => vec![Occasion::Finished],
        Some(names) if names.is_empty() => {
            return Err(FieldError::invalid(field, "must name at least one occasion"));
        }
        Some(names) => names.into_iter().map(Occasion::from).collect(),
    };
    on.sort_unstable();
    on.dedup();
    if on.iter().any(|occasion| !allowed.contains(occasion)) {
        let rule = "must be finished or failed: only schedules are failing or late";
        return Err(FieldError::invalid(field, rule));
    }
    Ok(Webhook { url: json.url, on })
}

/// The rule of webhook addresses.
pub fn check_url(field: &str, url: &str) -> Result<(), FieldError> {
    let invalid =
        |rule: String| FieldError { field: field.to_owned(), code: code::INVALID_VALUE, message: rule };
    let len = url.chars().count();
    if len > WEBHOOK_URL_LEN_MAX {
        return Err(invalid(format!("must be at most {WEBHOOK_URL_LEN_MAX} characters long, not {len}")));
    }
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(invalid("must not contain blanks or control characters".to_owned()));
    }
    match Url::parse(url) {
        _ if !url.starts_with("http://") && !url.starts_with("https://") => {
            Err(invalid("must begin with http:// or https://".to_owned()))
        }
        Ok(parsed) => match parsed.host_str().map_or(0, str::len) {
            0 => Err(invalid("must name a host".to_owned())),
            1..=HOST_LEN_MAX => Ok(()),
            len => Err(invalid(format!("must name a host of at most {HOST_LEN_MAX} characters, not {len}"))),
        },
        Err(error) => Err(invalid(format!("must be an address such as https://example.com/hook: {error}"))),
    }
}

/// An address in one spelling.
pub(crate) fn same_url(url: &str) -> String {
    Url::parse(url).map_or_else(
        |_| url.to_owned(),
        |mut url| {
            url.set_fragment(None);
            url.into()
        },
    )
}

/// Whether two addresses differ at most in spelling.
fn is_same(one: &str, other: &str) -> bool {
    one == other || same_url(one) == same_url(other)
}

/// Adds the webhooks of `more` that are new; an address in both gets the events of both.
pub(crate) fn merge(webhooks: &mut Vec<Webhook>, more: &[Webhook]) {
    for other in more {
        match webhooks.iter_mut().find(|webhook| is_same(&webhook.url, &other.url)) {
            None => webhooks.push(other.clone()),
            Some(webhook) => {
                webhook.on.extend(&other.on);
                webhook.on.sort_unstable();
                webhook.on.dedup();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<Webhook>, FieldError> {
        webhooks("webhooks", Some(serde_json::from_str(json).unwrap()), OF_TASKS)
    }

    #[test]
    fn webhooks_are_checked() {
        let hooks =
            read(r#"[{"url":"https://a/b"},{"url":"http://c:1/","on":["failed","failed"]}]"#).unwrap();
        assert_eq!(hooks[0].on, [Occasion::Finished]);
        assert_eq!(hooks[1].on, [Occasion::Failed]);
        for (json, field) in [
            (r#"[{"url":"ftp://a"}]"#, "webhooks[0].url"),
            (r#"[{"url":"a"}]"#, "webhooks[0].url"),
            (r#"[{"url":"http://a/ b"}]"#, "webhooks[0].url"),
            (r#"[{"url":"http://a"},{"url":"http://a"}]"#, "webhooks[1].url"),
            (r#"[{"url":"http://a"},{"url":"http://A/#x"}]"#, "webhooks[1].url"),
            (r#"[{"url":"http://a","on":[]}]"#, "webhooks[0].on"),
            (r#"[{"url":"http://a","on":["late"]}]"#, "webhooks[0].on"),
        ] {
            assert_eq!(read(json).unwrap_err().field, field, "{json}");
        }
        let many: Vec<String> = (0..6).map(|n| format!(r#"{{"url":"http://a/{n}"}}"#)).collect();
        assert_eq!(read(&format!("[{}]", many.join(","))).unwrap_err().field, "webhooks");
    }

    #[test]
    fn who_is_named_twice_is_told_once() {
        let mut own = read(r#"[{"url":"http://a","on":["failed"]}]"#).unwrap();
        merge(&mut own, &read(r#"[{"url":"http://a"},{"url":"http://b"}]"#).unwrap());
        assert_eq!(own.len(), 2);
        assert_eq!(own[0].on, [Occasion::Finished, Occasion::Failed]);
    }
}
