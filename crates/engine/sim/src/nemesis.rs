//! What goes wrong, and when it stops.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::LaneId;
use tasklane_core::time::Timestamp;

use crate::checker::Observation;
use crate::timing::FAR_LAST;
use crate::worker::WorkerInput;
use crate::world::{Event, World};

/// The state of the surroundings.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of weather of its own")]
pub(crate) struct Weather {
    pub(crate) store_down: bool,
    pub(crate) slow_store: bool,
    pub(crate) coordinator_down: bool,
    /// Most messages are lost.
    pub(crate) storm: bool,
    /// The next commit's answer is lost.
    pub(crate) force_unknown: bool,
    /// Lanes whose machine panics.
    pub(crate) curses: BTreeMap<LaneId, Curse>,
    /// All faults are over.
    pub(crate) healed: bool,
    pub(crate) healed_at: Timestamp,
}

/// The machine of a lane panics, whoever owns it.
#[derive(Debug)]
pub(crate) struct Curse {
    /// How often.
    panics: u64,
    /// Inputs that it still takes well.
    inputs: u64,
}

/// A lane machine takes at most this many inputs between two panics of a curse. Few enough that owners fail before they
/// have loaded, while they load, and when they have committed something.
const CURSE_INPUTS_MAX: u64 = 40;
/// Panics of a curse that is meant to park the lane, and to fail again when it is tried after that.
const CURSE_PANICS: (u64, u64) = (4, 7);

/// Faults go on for at least this long …
const FAULTS_MIN: Duration = Duration::from_secs(50);
/// … and at most this long.
const FAULTS_MAX: Duration = Duration::from_secs(150);

/// For this long it is left to chance which faults there are.
const LUCK_FOR: Duration = Duration::from_secs(15);

impl World {
    pub(crate) fn plan_nemesis(&mut self) {
        let delay = self.between(2_000_000, 6_000_000);
        self.after(delay, Event::Nemesis);
    }

    /// One fault, and the time of the next.
    pub(crate) fn nemesis(&mut self) {
        let age = self.now.since(Timestamp::from_millis(1_000_000));
        let enough = age > FAULTS_MIN && self.report.is_full();
        if (enough && self.rng.chance(30)) || age > FAULTS_MAX {
            return self.heal_all();
        }
        let lacks_losses = age > LUCK_FOR && self.report.worker_losses < 2;
        let clock = match (self.scenario.clock_jumps, self.scenario.clock_steps) {
            (true, _) => 1,
            (_, true) => 5,
            (false, false) => 0,
        };
        let kind = self.rng.below(13 + clock);
        match kind {
            // What a run must have and has not met by chance. A worker is lost only while it executes something.
            _ if lacks_losses && self.executions.is_empty() => {}
            _ if lacks_losses => self.break_worker(true),
            _ if age > LUCK_FOR && self.report.takeovers < 2 => self.break_owner(true),
            0 | 1 => self.break_owner(true),
            2 => self.break_owner(false),
            3 | 4 => self.break_worker(true),
            5 => self.break_worker(false),
            6 | 7 => self.pause_worker(),
            8 => {
                let long = self.rng.chance(30);
                let kind = if long { "store down for longer than a TTL" } else { "store down" };
                let time =
                    if long { self.between(6_000_000, 20_000_000) } else { self.between(100_000, 4_000_000) };
                self.weather.store_down = true;
                self.begin(kind, time);
            }
            9 => {
                self.weather.slow_store = true;
                let time = self.between(1_000_000, 10_000_000);
                self.begin("store slow", time);
            }
            10 => {
                if self.rng.chance(30) {
                    self.weather.coordinator_down = true;
                    let time = self.between(500_000, 8_000_000);
                    self.begin("coordinator down", time);
                } else {
                    self.weather.storm = true;
                    let time = self.between(1_000_000, 10_000_000);
                    self.begin("storm on the bus", time);
                }
            }
            11 => self.drain_worker(),
            12 => self.curse_lane(),
            _ if self.scenario.clock_jumps => self.jump_clock(),
            // Some steps are seen by nobody, or forgotten by the one who saw them.
            13 => {
                self.break_owner(true);
                self.step_clock();
            }
            14 => {
                self.step_clock();
                self.break_owner(true);
            }
            _ => self.step_clock(),
        }
        if self.report.unknown_commits == 0 {
            self.weather.force_unknown = true;
        }
        let longest = if lacks_losses { 700_000 } else { 7_000_000 };
        let delay = self.between(500_000, longest);
        self.after(delay, Event::Nemesis);
    }

    fn begin(&mut self, kind: &'static str, time: Duration) {
        self.report.fault(kind);
        self.after(time, Event::Heal(kind));
    }

    pub(crate) fn heal(&mut self, kind: &'static str) {
        match kind {
            "store slow" => self.weather.slow_store = false,
            "coordinator down" => self.weather.coordinator_down = false,
            "storm on the bus" => self.weather.storm = false,
            _ => {
                self.weather.store_down = false;
                self.checker.observe(self.now, Observation::StoreBack);
            }
        }
    }

    /// Kills or pauses a server, most often one that owns a lane and has work under way.
    fn break_owner(&mut self, kill: bool) {
        let owner = (0..self.servers.len()).find(|&index| {
            let server = self.servers[index].process.as_ref();
            server.is_some_and(|s| s.lanes.iter().any(|lane| lane.epoch().is_some()))
        });
        let random = self.rng.index(self.servers.len());
        let index = if self.rng.chance(80) { owner.unwrap_or(random) } else { random };
        if self.servers[index].process.is_none() || self.servers[index].paused {
            return;
        }
        if kill {
            self.report.fault("server killed");
            self.kill_server(index);
            let back = self.between(10_000, 8_000_000);
            self.after(back, Event::StartServer { index });
        } else {
            self.report.fault("server paused past its TTL");
            self.servers[index].paused = true;
            let time = self.between(5_000_000, 20_000_000);
            self.after(time, Event::ResumeServer { index });
        }
    }

    fn busy_worker(&mut self) -> usize {
        let busy: Vec<usize> = self.executions.values().map(|execution| execution.worker).collect();
        if busy.is_empty() { self.rng.index(self.workers.len()) } else { busy[self.rng.index(busy.len())] }
    }

    fn break_worker(&mut self, guarded: bool) {
        let index = self.busy_worker();
        if self.workers[index].process.is_some() {
            self.report.fault(if guarded { "worker killed" } else { "worker killed with its host" });
            self.kill_worker(index, !guarded);
        }
    }

    fn pause_worker(&mut self) {
        let index = self.busy_worker();
        let host = &mut self.workers[index];
        if host.process.is_none() || host.paused {
            return;
        }
        host.paused = true;
        let long = self.rng.chance(60);
        self.report.fault(if long { "worker paused past its TTL" } else { "worker paused" });
        let time = if long { self.between(15_000_000, 40_000_000) } else { self.between(500_000, 8_000_000) };
        self.after(time, Event::ResumeWorker { index });
    }

    fn curse_lane(&mut self) {
        let lane = LaneId(u16::try_from(self.rng.index(usize::from(self.scenario.lanes))).unwrap_or(0));
        let (low, high) = CURSE_PANICS;
        let panics = if self.rng.chance(50) { 1 } else { low + self.rng.below(high - low + 1) };
        if panics > 1 {
            self.report.fault("lane machine cursed to panic in a row");
        }
        let inputs = self.rng.below(CURSE_INPUTS_MAX);
        self.weather.curses.insert(lane, Curse { panics, inputs });
    }

    /// Whether the machine of a lane panics at the input that its owner gives it now.
    pub(crate) fn lane_panics(&mut self, lane: LaneId) -> bool {
        let Some(curse) = self.weather.curses.get_mut(&lane) else { return false };
        if curse.inputs > 0 {
            curse.inputs -= 1;
            return false;
        }
        curse.panics -= 1;
        curse.inputs = self.rng.below(CURSE_INPUTS_MAX);
        if curse.panics == 0 {
            self.weather.curses.remove(&lane);
        }
        true
    }

    fn drain_worker(&mut self) {
        let index = self.rng.index(self.workers.len());
        self.report.fault("worker drained");
        let incarnation = self.workers[index].incarnation;
        self.worker_input(index, incarnation, WorkerInput::Drain);
        let grace = self.between(100_000, 4_000_000);
        self.after(grace, Event::Worker { index, incarnation, input: WorkerInput::Leave });
    }

    fn jump_clock(&mut self) {
        self.report.fault("clock jumped");
        let micros = i64::try_from(self.rng.below(240_000_000)).unwrap_or(0) - 120_000_000;
        let index = self.rng.index(self.servers.len());
        self.servers[index].wall_ahead = micros;
    }

    /// All faults are over: everyone is back, and everything must come to rest.
    fn heal_all(&mut self) {
        if self.scenario.far_steps {
            self.set_clock_far(FAR_LAST);
        }
        self.weather = Weather { healed: true, healed_at: self.now, ..Weather::default() };
        for index in 0..self.servers.len() {
            self.resume_server(index);
            self.start_server(index);
        }
        for index in 0..self.workers.len() {
            self.resume_worker(index);
            self.start_worker(index);
        }
        self.settle_policies();
        for lane in (0..self.scenario.lanes).map(LaneId) {
            self.send_hint(lane);
        }
    }
}
