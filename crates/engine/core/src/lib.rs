#![doc = include_str!("../README.md")]

pub mod command;
pub mod commit;
pub mod guard;
pub mod id;
pub mod lane;
pub mod member;
pub mod message;
pub mod ownership;
pub mod policy;
pub mod read;
pub mod retry;
pub mod rng;
pub mod status;
pub mod task;
pub mod time;
pub mod worker;
