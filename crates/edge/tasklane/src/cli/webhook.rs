//! `tasklane webhook`: deliveries, secrets and tests of webhooks.

use std::time::Duration;

use tasklane_client::{Client, Delivery, PreviousSecret, Status, WebhookEndpoint, WebhookSecret};

use super::exit::{Exit, Usage};
use super::out::{Out, pairs, remark};
use super::value;

/// Show deliveries of webhooks, and test receivers
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
A delivery is a task: `tasklane get`, `cancel` and `retry` take its id.
docs/webhooks.md shows the messages, and how a receiver verifies their sender.")]
pub(crate) enum Command {
    /// List deliveries, the newest first
    Deliveries {
        /// Only deliveries for this task
        #[arg(long, value_name = "TASK")]
        task: Option<String>,

        /// Only deliveries in this state, such as FAILED; may be repeated
        #[arg(long, value_parser = value::status, value_name = "STATUS")]
        status: Vec<Status>,

        /// The maximum of deliveries
        #[arg(long, short = 'n', default_value_t = 50, value_name = "N")]
        limit: usize,
    },
    /// Show the signing secret, or manage the secret of an endpoint
    Secret {
        /// Replace the secret; for a day, both sign deliveries
        #[arg(long)]
        rotate: bool,

        /// The endpoint; --rotate makes or replaces its secret, which is shown once, and --remove removes it
        #[arg(long = "endpoint", value_name = "URL")]
        endpoint: Option<String>,

        /// With --endpoint: remove its secret; the secret of the namespace signs for it again
        #[arg(long, requires = "endpoint", conflicts_with = "rotate")]
        remove: bool,
    },
    /// List the endpoints with a secret of their own
    Endpoints,
    /// Send a message to an address and wait for its delivery
    Test {
        /// The address
        #[arg(value_name = "URL")]
        receiver: String,
    },
}

/// How long a test is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    match command {
        Command::Deliveries { task, status, limit } => {
            let found = client.deliveries(task.as_deref(), &status, limit).await?;
            out.rows(&found, &["DELIVERY", "STATUS", "TRIES", "EVENT", "URL", "ERROR"], cells)?;
            if found.is_empty() && (task.is_some() || !status.is_empty()) {
                remark("no delivery matches");
            } else if found.is_empty() {
                remark("no webhook was delivered; request one: tasklane run --webhook URL -- COMMAND");
            }
            Ok(Exit::OK)
        }
        Command::Endpoints => {
            let found = client.webhook_endpoints().await?;
            out.rows(&found, &["ENDPOINT", "SECRET BEFORE UNTIL"], |endpoint: &WebhookEndpoint| {
                vec![endpoint.url.clone(), value::shown_time(endpoint.previous_until)]
            })?;
            if found.is_empty() {
                remark(
                    "no endpoint has a secret of its own; create one: tasklane webhook secret --endpoint URL --rotate",
                );
            }
            Ok(Exit::OK)
        }
        Command::Secret { endpoint: Some(url), remove: true, .. } => {
            client.delete_endpoint_secret(&url).await?;
            remark(format_args!("tasklane: deliveries to {url} are signed with the secret of the namespace"));
            Ok(Exit::OK)
        }
        Command::Secret { endpoint: Some(url), rotate: true, .. } => {
            let made = client.rotate_endpoint_secret(&url).await?;
            remark("tasklane: keep the secret: no command shows it again");
            out.either(&made, |made| {
                let until = made.previous_until.map(|at| ("before until", value::shown_time(Some(at))));
                let lines =
                    [("endpoint", made.url.clone()), ("secret", made.secret.clone().unwrap_or_default())];
                pairs(&lines.into_iter().chain(until).collect::<Vec<_>>())
            })
            .map(|()| Exit::OK)
        }
        Command::Secret { endpoint: Some(_), .. } => {
            let rule = "--endpoint needs --rotate or --remove: the secret of an endpoint is shown only when it is created";
            Err(Usage(rule.to_owned()).into())
        }
        Command::Secret { rotate, .. } => {
            let secret =
                if rotate { client.rotate_webhook_secret().await? } else { client.webhook_secret().await? };
            out.either(&secret, shown).map(|()| Exit::OK)
        }
        Command::Test { receiver } => {
            let delivery = client.test_webhook(&receiver).await?;
            let arrived = async {
                loop {
                    let task = client.wait(&delivery, Duration::from_millis(500)).await?;
                    // The first failure is shown at once, although the delivery is retried.
                    if task.status.is_final() || task.error.is_some() {
                        return Ok::<_, tasklane_client::Error>(task);
                    }
                }
            };
            let task = tokio::time::timeout(PATIENCE, arrived).await.ok().transpose()?;
            match task {
                Some(task) if task.status == Status::Success => {
                    remark(format_args!("tasklane: {receiver} received the message"));
                    out.either(&task, |task| task.task_id.clone()).map(|()| Exit::OK)
                }
                other => {
                    let is_over = other.as_ref().is_some_and(|task| task.status.is_final());
                    let error = other.and_then(|task| task.error).map(|error| error.message);
                    remark(format_args!(
                        "tasklane: {receiver} did not receive the message: {}",
                        error.as_deref().unwrap_or("no answer in time")
                    ));
                    // Nobody waits for it any more.
                    if !is_over {
                        client.cancel(&delivery).await?;
                    }
                    Ok(Exit::FAILED)
                }
            }
        }
    }
}

fn cells(delivery: &Delivery) -> Vec<String> {
    vec![
        delivery.delivery_id.clone(),
        delivery.status.to_string(),
        delivery.attempts.to_string(),
        delivery.event.clone(),
        delivery.url.clone(),
        delivery.error.as_ref().map_or_else(String::new, |error| error.message.clone()),
    ]
}

fn shown(secret: &WebhookSecret) -> String {
    let mut lines = vec![("secret", secret.secret.clone())];
    for PreviousSecret { secret, until } in &secret.previous {
        lines.push(("previous", format!("{secret} until {}", value::shown_time(Some(*until)))));
    }
    pairs(&lines)
}
