//! What goes wrong, and when it stops.

use std::time::Duration;

use tasklane_core::id::LaneId;
use tasklane_core::time::Timestamp;

use crate::worker::WorkerInput;
use crate::world::{Event, World};

/// The state of the surroundings.
#[derive(Debug, Default)]
pub(crate) struct Weather {
    pub(crate) store_down: bool,
    pub(crate) slow_store: bool,
    pub(crate) coordinator_down: bool,
    /// Most messages are lost.
    pub(crate) storm: bool,
    /// The next commit's answer is lost.
    pub(crate) force_unknown: bool,
    /// All faults are over.
    pub(crate) healed: bool,
    pub(crate) healed_at: Timestamp,
}

/// Faults go on for at least this long …
const FAULTS_MIN: Duration = Duration::from_secs(50);
/// … and at most this long.
const FAULTS_MAX: Duration = Duration::from_secs(150);

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
        let kind = self.rng.below(if self.scenario.clock_jumps { 13 } else { 12 });
        match kind {
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
            _ => self.jump_clock(),
        }
        if self.report.unknown_commits == 0 {
            self.weather.force_unknown = true;
        }
        let delay = self.between(500_000, 7_000_000);
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
            _ => self.weather.store_down = false,
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

    fn drain_worker(&mut self) {
        let index = self.rng.index(self.workers.len());
        self.report.fault("worker drained");
        let incarnation = self.workers[index].incarnation;
        self.worker_input(index, incarnation, WorkerInput::Drain);
    }

    fn jump_clock(&mut self) {
        self.report.fault("clock jumped");
        let micros = i64::try_from(self.rng.below(240_000_000)).unwrap_or(0) - 120_000_000;
        let index = self.rng.index(self.servers.len());
        self.servers[index].wall_ahead = micros;
    }

    /// All faults are over: everyone is back, and everything must come to rest.
    fn heal_all(&mut self) {
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
