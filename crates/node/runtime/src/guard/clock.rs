//! The clock that leases are counted by: it goes on while the machine sleeps, and nobody can set it.

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
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Goes off at this time, or never. Forgets the time before.
    pub(super) fn set(&self, at: Option<Duration>) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // All zero would switch it off, and a time of zero has passed anyway.
        let at = at.map_or(zero, |at| Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at.subsec_nanos().max(1)),
        });
        let spec = Itimerspec { it_interval: zero, it_value: at };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn an_alarm_of_the_past_goes_off_at_once() {
        let alarm = Alarm::new().unwrap();
        alarm.set(Some(Duration::ZERO)).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&alarm, PollFlags::IN)], None), Ok(1));
    }

    #[test]
    fn an_alarm_that_is_off_stays_silent() {
        let alarm = Alarm::new().unwrap();
        alarm.set(Some(boottime() + Duration::from_hours(1))).unwrap();
        alarm.set(None).unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&alarm, PollFlags::IN)], Some(&now)), Ok(0));
    }
}
