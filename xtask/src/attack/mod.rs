//! `cargo xtask attack`: a real system under honest load, attacked by everything that needs no bug of the attacker's own:
//! kills, steps of the clock, hostile requests, exhausted connections and descriptors, costly input, hostile tasks,
//! deleted and damaged files.
//!
//! ```text
//!   honest load ──▶ server ◀── hostile requests, sockets, costly input, hostile tasks
//!        │            ▲
//!     history      kills, steps of the clock            files: deleted and damaged at a server of their own
//!        └──▶ checker ◀── probe: does an honest client get its answer meanwhile?
//! ```
//! The plan is a pure function of the seed ([`plan`]). The time of each move depends a little on the speed of
//! processes; its kind and its target do not.
//!
//! The checker ([`check`](mod@check)) trusts the steady clock only: attempts record their own times on it,
//! and the clock of the server is under attack. A run in which too little happened proves nothing, and fails.
//!
//! | file | subject |
//! |---|---|
//! | [`options`], [`plan`] | the options, and the moves that follow from them |
//! | [`run`], [`system`] | one run from start to end; the processes under attack |
//! | [`honest`], [`probe`] | the load whose promises are checked, and the client that must always be served |
//! | [`kills`], [`steps`] | killed processes, and steps of the clock |
//! | [`wire`], [`forms`], [`heads`], [`requests`] | hostile requests: the bytes, the bodies, the heads, and their judge |
//! | [`sockets`], [`costly`] | exhausted connections; schemas, templates and the like that cost the server much |
//! | [`tasks`], [`files`] | hostile tasks; deleted and damaged files |
//! | [`tally`], [`check`](mod@check) | counts and violations; the judge of the whole run |

mod check;
mod costly;
mod files;
mod forms;
mod heads;
mod honest;
mod kills;
mod options;
mod plan;
mod probe;
mod requests;
mod run;
mod sockets;
mod steps;
mod system;
mod tally;
mod tasks;
mod wire;

pub(crate) use options::Options;
pub(crate) use run::run_command;
