//! The clock that counts trust windows: it goes on while the machine sleeps, and no process can set it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// Time since the machine was started, including the time that it slept (`CLOCK_BOOTTIME`).
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).expect("this clock starts at zero");
    let nanos = u32::try_from(now.tv_nsec).expect("less than a second");
    Duration::new(seconds, nanos)
}

/// Wakes a poll at a time of that clock. The timeout of `poll` itself would not count sleep.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    /// When it goes off.
    armed: Option<Duration>,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Boottime, flags)?, armed: None })
    }

    /// Arms the alarm for this time, unless it is armed for an earlier time: the receiver always reads the
    /// clock.
    pub(super) fn set(&mut self, at: Option<Duration>) -> io::Result<()> {
        let Some(at) = at.filter(|&at| self.armed.is_none_or(|armed| at < armed)) else { return Ok(()) };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            // All zero would switch the alarm off, and a time of zero has passed anyway.
            tv_nsec: i64::from(at.subsec_nanos().max(1)),
        };
        let spec = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        self.armed = Some(at);
        Ok(())
    }

    /// Call it after the alarm has gone off.
    pub(super) fn rearm(&mut self) {
        let mut times = [0; 8];
        if rustix::io::read(&self.timer, &mut times).is_ok() {
            self.armed = None;
        }
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn is_off(alarm: &Alarm) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&now)) == Ok(0)
    }

    #[test]
    fn an_alarm_of_the_past_goes_off_at_once() {
        let mut alarm = Alarm::new().unwrap();
        alarm.set(Some(Duration::ZERO)).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&alarm, PollFlags::IN)], None), Ok(1));
        alarm.rearm();
        assert!(is_off(&alarm));
    }

    #[test]
    fn the_earliest_time_counts_until_it_has_come() {
        let mut alarm = Alarm::new().unwrap();
        let later = boottime() + Duration::from_hours(1);
        alarm.set(Some(later)).unwrap();
        assert!(is_off(&alarm));
        alarm.set(Some(boottime())).unwrap();
        alarm.set(Some(later)).unwrap();
        alarm.set(None).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&alarm, PollFlags::IN)], None), Ok(1));
        alarm.rearm();
        alarm.set(Some(later)).unwrap();
        assert!(is_off(&alarm));
    }
}
