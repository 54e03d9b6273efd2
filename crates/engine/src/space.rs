//! The address space that a blueprint is drawn for, as plain data: drawing touches no process.

use crate::EngineError;
use std::ops::Range;
use trapless_process::{GapRules, Mappings, Pid, Process, RemoteAddr};

/// What is known of a process when addresses are chosen in it.
#[derive(Debug)]
pub struct Space {
    /// Its memory.
    pub maps: Mappings,
    /// Where nothing may lie.
    pub rules: GapRules,
    /// The process.
    pub pid: Pid,
    /// When it was started ([`Process::start_time`]).
    pub start_time: u64,
    /// Whether it has 4 GB of addresses.
    pub is_32bit: bool,
}

impl Space {
    /// That of a process, as it is now.
    ///
    /// # Errors
    /// The process is gone or may not be read.
    pub fn of(process: &Process) -> Result<Self, EngineError> {
        Ok(Self {
            maps: process.maps()?,
            rules: process.gap_rules()?,
            pid: process.pid(),
            start_time: process.start_time(),
            is_32bit: process.is_32bit(),
        })
    }
}

/// Free address ranges, less those that were given out.
pub(crate) struct Taken<'a> {
    space: &'a Space,
    ours: Vec<(u64, u64)>,
}

impl<'a> Taken<'a> {
    /// Nothing is given out yet.
    pub fn new(space: &'a Space) -> Self {
        Self { space, ours: Vec::new() }
    }

    /// Where `size` bytes are free that reach all of `near`, without taking them.
    pub fn look_near(&self, near: Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let near = RemoteAddr(near.start)..RemoteAddr(near.end);
        let is_free = |at: &u64| self.ours.iter().all(|&(from, to)| at + size <= from || to <= *at);
        let Space { maps, rules, .. } = self.space;
        maps.find_gap(rules, near, reach, size).map(|at| at.0).find(is_free)
    }

    /// Takes `size` bytes that reach all of `near`.
    pub fn near(&mut self, near: Range<u64>, reach: u64, size: u64) -> Option<u64> {
        let found = self.look_near(near, reach, size)?;
        self.ours.push((found, found + size));
        Some(found)
    }

    /// Takes `size` bytes where they are in nobody's way.
    pub fn anywhere(&mut self, size: u64) -> Option<u64> {
        let quiet = self.space.maps.quiet_place(&self.space.rules, size).0;
        self.near(quiet..quiet, u64::MAX, size)
    }
}
