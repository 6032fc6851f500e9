//! Answers to requests that make something: 201 with its place, or 200 if it existed.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tasklane_core::id::{Name, TaskId};

/// An answer about something new, or something that was there.
#[derive(Debug)]
pub(crate) struct CreatedResponse<T> {
    /// The path of the new resource; none if it was there.
    location: Option<String>,
    body: T,
}

impl<T> CreatedResponse<T> {
    pub(crate) fn new(is_new: bool, path: String, body: T) -> Self {
        Self { location: is_new.then_some(path), body }
    }
}

impl<T: Serialize> IntoResponse for CreatedResponse<T> {
    fn into_response(self) -> Response {
        match self.location {
            Some(path) => (StatusCode::CREATED, [(LOCATION, path)], Json(self.body)).into_response(),
            None => Json(self.body).into_response(),
        }
    }
}

pub(crate) fn task_path(id: TaskId) -> String {
    format!("/api/v1/tasks/{id}")
}

pub(crate) fn run_path(id: TaskId) -> String {
    format!("/api/v1/workflows/runs/{id}")
}

/// The path of something with a name; names need no escaping.
pub(crate) fn named_path(collection: &str, name: &Name) -> String {
    format!("/api/v1/{collection}/{name}")
}
