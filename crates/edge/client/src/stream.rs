//! Events of tasks, as they happen.

use futures::stream::{self, Stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::client::Client;
use crate::error::Error;
use crate::sse::EventSource;
use crate::task::Status;

/// A task has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Which one.
    pub task_id: String,
    /// Its queue.
    #[serde(default)]
    pub queue: String,
    /// Where it is now.
    pub status: Status,
    /// The number of its current attempt.
    #[serde(default)]
    pub attempt: u32,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// What comes while events are followed.
#[derive(Clone, Debug, PartialEq)]
pub enum EventItem {
    /// A task has changed.
    Event(Event),
    /// Events are missing here: a follower that mirrors the tasks has to list them again.
    Gap,
}

/// Follows events. Resumes by itself after a break; a gap stands for events that cannot be made up for.
#[derive(Debug)]
pub struct EventFollow {
    source: EventSource,
    url: String,
    ended: bool,
}

impl EventFollow {
    /// Connects now instead of at the first [`next`](Self::next). What happens after this has returned is not missed.
    pub async fn connect(&mut self) -> Result<(), Error> {
        self.source.connect().await
    }

    /// The next one; `None` when the server has no more.
    pub async fn next(&mut self) -> Option<Result<EventItem, Error>> {
        loop {
            if self.ended {
                return None;
            }
            let item = match self.source.next().await {
                Ok(Some(event)) => match event.name.as_str() {
                    "gap" => Ok(EventItem::Gap),
                    "task" | "message" => serde_json::from_str(&event.data)
                        .map(EventItem::Event)
                        .map_err(|error| Error::Answer { url: self.url.clone(), why: error.to_string() }),
                    // For later versions.
                    _ => continue,
                },
                Ok(None) => return None,
                Err(error) => Err(error),
            };
            self.ended = item.is_err();
            return Some(item);
        }
    }

    /// Where to go on with [`Client::events`].
    pub fn position(&self) -> Option<&str> {
        self.source.last_id()
    }

    /// As a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<EventItem, Error>> + Send {
        stream::unfold(self, |mut follow| async move { follow.next().await.map(|item| (item, follow)) })
    }
}

impl Client {
    /// Follows the events of tasks, after a position or from now on.
    pub fn events(&self, after: Option<&str>) -> EventFollow {
        let source = EventSource::new(self, after.map(str::to_owned), |client| client.get(&["events"]));
        EventFollow { source, url: self.url().to_owned(), ended: false }
    }
}
