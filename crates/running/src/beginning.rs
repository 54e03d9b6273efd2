//! When a script began, and what its code is told of a process.

use crate::names::clock_ns;
use crate::own;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use trapless_engine::admit::{Marks, Runtime};
use trapless_process::{Process, ticks};
use trapless_script::ir::{ClockKind, Symbol};
use trapless_script::native::memory;
use trapless_session::clock;
use trapless_session::target::Image;
use trapless_wire::Clock;

/// When a script began.
#[derive(Clone, Copy, Debug)]
pub struct Beginning {
    /// In nanoseconds of the boot clock.
    began: u64,
    /// The clock that ticks are measured by.
    clock: clock::Clock,
}

impl Beginning {
    /// This moment.
    pub fn now() -> Self {
        Self { began: clock_ns(libc::CLOCK_BOOTTIME) as u64, clock: clock::Clock::now() }
    }

    /// What code is told of a process, with the addresses of symbols that it has asked for.
    pub fn about(&self, process: &Process, symbols: Vec<u64>) -> memory::About {
        let pid = process.pid().0;
        let status = process.status().ok();
        // Of one that has ended meanwhile nothing is there.
        let (maps, auxv) = (process.maps().ok(), process.auxv().ok());
        let constant = maps.zip(auxv.and_then(|auxv| auxv.entry()));
        memory::About {
            pid: pid as u64,
            parent: status.as_ref().map_or(0, |status| status.ppid as u64),
            uid: status.as_ref().map_or(0, |status| status.uid[0].into()),
            gid: std::fs::metadata(format!("/proc/{pid}")).map_or(0, |about| about.gid().into()),
            cgroup: own::cgroup_of(pid as u32),
            seed: RandomState::new().build_hasher().finish(),
            processors: own::processors(),
            began: self.began,
            constant: constant.map_or(0..0, |(maps, entry)| maps.constant_around(entry)),
            clocks: self.clocks(),
            symbols,
        }
    }

    /// The clocks as they are now. A tick is as long as it was since the script began.
    fn clocks(&self) -> Vec<(ClockKind, Clock)> {
        let rate = self.clock.rate();
        // Nanoseconds of 2^32 ticks.
        let scale = rate.nanoseconds(1 << 32);
        let kinds =
            [ClockKind::Monotonic, ClockKind::Boot, ClockKind::Tai, ClockKind::Real, ClockKind::Coarse];
        let clock = |kind| {
            let (ticks_base, base) = (ticks(), clock_ns(own::clock(kind)) as u64);
            (kind, Clock { ticks_base, base, scale })
        };
        kinds.map(clock).to_vec()
    }
}

/// The address of a symbol in a process; 0 if it is not there.
pub fn address_of(symbol: &Symbol, process: &Process, images: &[Image]) -> u64 {
    let is_meant = |image: &&Image| match &symbol.target {
        None => true,
        Some(target) => {
            image.path == *target || image.name() == target || image.path.ends_with(target.as_str())
        }
    };
    let find = |image: &Image| {
        let address = image.module(Some(process)).ok()?.symbol_address(&symbol.name)?;
        Some(address.wrapping_add(image.bias(Some(process)).ok()?))
    };
    images.iter().filter(is_meant).find_map(find).unwrap_or(0)
}

/// Whether some file of a process is one of Go's.
pub fn is_go(process: &Process, images: &[Image]) -> bool {
    images.iter().any(|image| {
        let mut marks = Marks::default();
        if let Ok(module) = image.module(Some(process)) {
            module.section_names().for_each(|section| marks.section(section));
        }
        marks.runtimes().contains(Runtime::Go)
    })
}
