#![doc = include_str!("../README.md")]

pub mod executors;
pub mod guard;
