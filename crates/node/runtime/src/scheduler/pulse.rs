//! The watchdog of the lane drivers.
//!
//! A driver that does not come to its next turn is held up: by code on its thread that does not end, or by
//! threads that are all busy. Its lane decides nothing then, while a renewed session of the server would keep
//! other servers from it. So the watchdog asks each driver for a turn repeatedly, on a thread that nothing
//! else uses; while one does not take it, the session is not renewed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tasklane_core::id::LaneId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::LaneEnd;
use super::lane::ToDriver;

/// A driver without a turn for this time is held up.
const HELD_UP_AFTER: Duration = Duration::from_secs(3);

/// Lanes whose drivers are held up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldUp {
    /// The lanes.
    pub lanes: Vec<LaneId>,
}

impl fmt::Display for HeldUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lanes: Vec<String> = self.lanes.iter().map(ToString::to_string).collect();
        let (noun, have) = if lanes.len() == 1 { ("lane", "has") } else { ("lanes", "have") };
        write!(f, "{noun} {} {have} not answered for {} s", lanes.join(", "), HELD_UP_AFTER.as_secs())
    }
}

/// The watchdog's record of a driver.
#[derive(Clone, Copy)]
struct Driver {
    /// The turns that it had taken at the last check.
    turns: Option<u64>,
    /// How long it has taken none, without the time in which the watchdog itself did not run.
    silent: Duration,
}

/// Asks all drivers for a turn, this often, until the scheduler has ended.
pub(super) async fn watch(
    lanes: Arc<[LaneEnd]>,
    every: Duration,
    held_up: watch::Sender<Option<HeldUp>>,
    shutdown: CancellationToken,
) {
    let mut drivers = vec![Driver { turns: None, silent: Duration::ZERO }; lanes.len()];
    loop {
        for (lane, driver) in lanes.iter().zip(&mut drivers) {
            let turns = lane.turns.load(Ordering::Relaxed);
            let has_left = lane.inputs.is_closed() && shutdown.is_cancelled();
            if driver.turns.replace(turns) == Some(turns) && !has_left {
                driver.silent += every;
            } else {
                driver.silent = Duration::ZERO;
                // A queue of inputs that is full asks for a turn as well.
                let _ = lane.inputs.try_send(ToDriver::Ping);
            }
        }
        let silent = drivers.iter().zip(0..).filter(|(driver, _)| driver.silent >= HELD_UP_AFTER);
        let lanes: Vec<LaneId> = silent.map(|(_, lane)| LaneId(lane)).collect();
        let now = (!lanes.is_empty()).then_some(HeldUp { lanes });
        held_up.send_if_modified(|before| {
            let changed = *before != now;
            match (&before, &now) {
                (_, Some(now)) if changed => tracing::error!(
                    "{now}: something holds up their threads. The server's session is not renewed until they do, so that \
                     other servers take its lanes"
                ),
                (Some(before), None) => {
                    tracing::info!(lanes = ?before.lanes, "all lanes answer again");
                }
                _ => {}
            }
            *before = now;
            changed
        });
        tokio::time::sleep(every).await;
    }
}
