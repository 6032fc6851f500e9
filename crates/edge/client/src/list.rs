//! Finding tasks, page by page or as a stream.

use std::collections::VecDeque;

use futures::stream::{self, Stream, TryStreamExt};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::error::Error;
use crate::task::{Status, Task};

/// Which tasks are wanted; all that is said must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// In one of these states; empty for any.
    pub statuses: Vec<Status>,
    /// Of this type.
    pub task_type: Option<String>,
    /// In this queue.
    pub queue: Option<String>,
    /// With this name.
    pub name: Option<String>,
    /// At this worker.
    pub worker: Option<String>,
    /// Children or retries of this task.
    pub parent: Option<String>,
    /// Created at this time or later.
    pub created_after: Option<Timestamp>,
    /// Created before this time.
    pub created_before: Option<Timestamp>,
    /// With all of these pairs.
    pub metadata: Vec<(String, String)>,
    /// Tasks on a page.
    pub limit: Option<u32>,
}

impl TaskQuery {
    /// As the pairs of a query.
    fn pairs(&self) -> Vec<(String, String)> {
        let status = self.statuses.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(",");
        let pairs = [
            ("status", Some(status).filter(|text| !text.is_empty())),
            ("type", self.task_type.clone()),
            ("queue", self.queue.clone()),
            ("name", self.name.clone()),
            ("worker", self.worker.clone()),
            ("parent", self.parent.clone()),
            ("createdAfter", self.created_after.map(|time| time.to_string())),
            ("createdBefore", self.created_before.map(|time| time.to_string())),
            ("limit", self.limit.map(|limit| limit.to_string())),
        ];
        let said = pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        said.chain(self.metadata.iter().map(|(key, value)| (format!("metadata.{key}"), value.clone())))
            .collect()
    }
}

/// A page of tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskPage {
    /// The tasks. May be few or none although there are more.
    pub tasks: Vec<Task>,
    /// Leads to the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// One page of the tasks that are wanted, after a cursor.
    pub async fn list(&self, query: &TaskQuery, cursor: Option<&str>) -> Result<TaskPage, Error> {
        let call = self.get(&["tasks"]).query(&query.pairs());
        let call = if let Some(cursor) = cursor { call.query(&[("cursor", cursor)]) } else { call };
        self.answer(call).await
    }

    /// All tasks that are wanted, read page by page as they are taken.
    pub fn list_all(&self, query: TaskQuery) -> impl Stream<Item = Result<Task, Error>> + Send + use<> {
        let client = self.clone();
        let pages = stream::try_unfold(Some(None::<String>), move |at| {
            let (client, query) = (client.clone(), query.clone());
            async move {
                let Some(cursor) = at else { return Ok(None) };
                let page = client.list(&query, cursor.as_deref()).await?;
                let tasks: VecDeque<Task> = page.tasks.into();
                Ok::<_, Error>(Some((stream::iter(tasks.into_iter().map(Ok)), page.cursor.map(Some))))
            }
        });
        pages.try_flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_only_what_was_asked() {
        assert!(TaskQuery::default().pairs().is_empty());
        let query = TaskQuery {
            statuses: vec![Status::Failed, Status::Cancelled],
            metadata: vec![("tenant".to_owned(), "a&b".to_owned())],
            ..TaskQuery::default()
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(query.pairs(), [pair("status", "FAILED,CANCELLED"), pair("metadata.tenant", "a&b")]);
    }
}
