//! The paths of the API, one file for each subject.

pub(crate) mod bulk;
pub(crate) mod created;
pub(crate) mod custom_types;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod locks;
pub(crate) mod logs;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod submit;
pub(crate) mod tasks;
pub(crate) mod webhooks;
pub(crate) mod workers;
pub(crate) mod workflows;
