//! `tasklane events`: follows the events of tasks.

use serde_json::json;
use tasklane_client::{Client, EventItem};

use super::exit::Exit;
use super::out::{Out, print_line, print_object, remark};
use super::value::shown_time;

/// Follow the changes of tasks, until Ctrl-C
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Begin after this event [default: now]
    #[arg(long, value_name = "ID")]
    after: Option<String>,

    /// End after this many events
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let mut events = client.events(args.after.as_deref());
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(item) = events.next().await else { break };
        left -= 1;
        match item? {
            EventItem::Event(event) if out.is_json() => {
                let mut event = json!(event);
                event["id"] = events.position().into();
                print_object(&event)?;
            }
            EventItem::Event(event) => {
                let time = shown_time(event.at);
                let (id, status) = (&event.task_id, event.status);
                print_line(format_args!("{time}  {status:<10}  {id}  {} #{}", event.queue, event.attempt))?;
            }
            EventItem::Gap if out.is_json() => {
                print_object(&json!({ "gap": true, "id": events.position() }))?;
            }
            EventItem::Gap => {
                remark("some events are missing here; `tasklane list` shows the current state");
            }
        }
    }
    Ok(Exit::OK)
}
