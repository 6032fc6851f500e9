//! `cargo xtask chaos`: a real cluster under load and under every fault that clusters meet; and the question
//! whether it kept its promises.
//!
//! ```text
//!   load ──REST──▶ servers ◀──bus──▶ workers ──▶ guards ──▶ attempts ──▶ history of their own
//!                     │                 │
//!                   proxy             proxy        one for each process
//!                     └──▶ database ◀───┘
//!   nemesis: kills, stops and restarts any of these, and cuts the lines between them
//! ```
//! Everything is a real process, on addresses of the loopback interface. The kind, the target and the order
//! of the faults follow from a seed; their times do not quite, because the nemesis waits until enough
//! attempts run and because real processes take their own time.
//!
//! At the end two accounts of the run are joined: the attempts' own records ([`attempt`]), and the API's
//! answers. The checker of the simulator judges them, with a few questions that only this harness can ask
//! ([`check`](mod@check)). A run in which too little happened proves nothing, and fails.
//!
//! | file | subject |
//! |---|---|
//! | [`options`] | what can be asked for, and what follows from it |
//! | [`run`] | one run from start to end |
//! | [`database`], [`process`], [`proxy`], [`namespace`] | the parts of a cluster |
//! | [`plan`], [`nemesis`] | what happens to them |
//! | [`load`], [`attempt`] | the work |
//! | [`watch`], [`history`] | what is seen of it |
//! | [`check`](mod@check), [`recovery`], [`report`] | what it means |

pub(crate) mod attempt;
mod check;
pub(crate) mod clock;
pub(crate) mod database;
pub(crate) mod history;
mod load;
mod namespace;
mod nemesis;
pub(crate) mod options;
mod plan;
pub(crate) mod process;
mod proxy;
mod recovery;
mod report;
mod run;
mod watch;

pub(crate) use database::{Database, Disk};
pub(crate) use options::{Options, Topology};
pub(crate) use process::Spawner;
pub(crate) use run::{check, run_command, upgrade};
