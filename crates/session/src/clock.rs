//! From time stamps to nanoseconds.
//!
//! Detours read the CPU's time-stamp counter, which runs at a constant rate on every CPU that this program supports
//! (`constant_tsc`, `nonstop_tsc`). The rate is measured against the kernel's clock over the session itself: the
//! longer a session, the better it is known.

use std::time::{Duration, Instant};
use trapless_process::ticks;

/// Shortest time over which the rate is measured.
const BASELINE: Duration = Duration::from_millis(20);

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ticks: u64,
    time: Instant,
}

/// How long a tick is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    nanoseconds_per_tick: f64,
}

impl Clock {
    /// Now.
    pub fn now() -> Self {
        Self { ticks: ticks(), time: Instant::now() }
    }

    /// Time stamp of this moment.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Time since this moment.
    pub fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    /// The rate since this moment; waits until there is enough of it.
    pub fn rate(&self) -> Rate {
        std::thread::sleep(BASELINE.saturating_sub(self.elapsed()));
        let now = Self::now();
        let time = now.time.duration_since(self.time).as_nanos() as f64;
        Rate { nanoseconds_per_tick: time / now.ticks.wrapping_sub(self.ticks).max(1) as f64 }
    }
}

impl Rate {
    /// A number of ticks in nanoseconds.
    pub fn nanoseconds(self, ticks: u64) -> u64 {
        (ticks as f64 * self.nanoseconds_per_tick).round() as u64
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_in_ticks_as_in_nanoseconds() {
        let clock = Clock::now();
        let rate = clock.rate();
        let (start, time) = (Clock::now(), Instant::now());
        std::thread::sleep(Duration::from_millis(30));
        let measured = rate.nanoseconds(Clock::now().ticks() - start.ticks()) as f64;
        let ratio = measured / time.elapsed().as_nanos() as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }
}
