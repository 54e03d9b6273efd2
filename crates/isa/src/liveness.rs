//! Which registers and flags does the program certainly not read any more?
//!
//! A detour may use those without saving them. The scan walks every path from a place, over both sides of
//! conditional branches, and calls a register dead when each path writes it in full before reading it. Wherever a
//! path ends in something that may read anything (a call, a return, an indirect jump, the kernel, the end of the
//! bytes or of patience) whatever was not yet written is live, but for what the instruction set knows to be unread there. So nothing is assumed of
//! calling conventions: local callers compiled with `-fipa-ra`, hand-written assembly and its flags across calls are as safe as any.
//!
//! Where a probe tells of registers ([`Site::observed`]) all of them are read.
//!
//! A handler of faults, which a program may install at any time, may go on behind an instruction that has written nothing. So what may
//! fault reads and never writes; but in Go, where a fault is a panic, and but for accesses that fail only where the program's own frame
//! or data is gone. One that goes on elsewhere is taken to find there what calls keep, as where an exception lands.

use crate::Site;
use alloc::vec::Vec;

/// General registers, a bit for each by its number, and flags, a bit for each as the instruction set numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub registers: u32,
    pub flags: u32,
}

impl Known {
    /// What is in both or in one.
    pub fn and(self, other: Self) -> Self {
        Self { registers: self.registers | other.registers, flags: self.flags | other.flags }
    }

    /// What is not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self { registers: self.registers & !other.registers, flags: self.flags & !other.flags }
    }

    fn within(self, other: Self) -> Self {
        Self { registers: self.registers & other.registers, flags: self.flags & other.flags }
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// What an instruction reads, and what it then writes in full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub reads: Known,
    pub writes: Known,
    /// Whether it may fault, and somebody may go on behind it.
    pub may_fault: bool,
    pub next: Next,
}

/// Where a path goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// There.
    At(u64),
    /// At either.
    Either(u64, u64),
    /// Somewhere that may read anything but this.
    Elsewhere { unread: Known },
}

/// An instruction set, and a site.
pub(crate) trait Steps {
    /// What the instruction at an address of the function does; `None` where nobody knows.
    fn step(&mut self, address: u64) -> Option<Step>;

    /// What nobody reads at an address of another function.
    fn unread_at(&self, _address: u64) -> Known {
        Known::default()
    }
}

/// How many instructions are looked at, on all paths together.
const PATIENCE: u32 = 96;

/// What of `all` is dead before the instruction at `address`, which lies in the site's function.
pub(crate) fn dead(all: Known, site: &Site<'_>, address: u64, steps: impl Steps) -> Known {
    let mut scan = Scan {
        steps,
        code: (site.function, site.code.len() as u64),
        observed: site.observed,
        all,
        live: Known::default(),
        paths: Vec::new(),
        visited: Vec::with_capacity(PATIENCE as usize),
        seen: 0,
        patience: PATIENCE,
    };
    scan.paths.push((address, Known::default()));
    while let Some((address, written)) = scan.paths.pop() {
        scan.path(address, written);
    }
    all.without(scan.live)
}

struct Scan<'s, S> {
    steps: S,
    observed: &'s [u64],
    /// Address and length of the function.
    code: (u64, u64),
    all: Known,
    /// Read on some path before being written there.
    live: Known,
    /// Where paths go on, and what was written on the way there.
    paths: Vec<(u64, Known)>,
    visited: Vec<(u64, Known)>,
    /// A bit for each remainder of a visited address: most places are passed once, and the list need not be searched for them.
    seen: u128,
    patience: u32,
}

impl<S: Steps> Scan<'_, S> {
    fn path(&mut self, mut address: u64, mut written: Known) {
        loop {
            if self.tells_nothing(written) || self.covered(address, written) {
                return;
            }
            self.visited.push((address, written));
            self.seen |= remainder(address);
            if address.wrapping_sub(self.code.0) >= self.code.1 {
                return self.reads_all_but(written.and(self.steps.unread_at(address)));
            }
            if self.observed.binary_search(&address).is_ok() {
                return self.reads_all_but(written);
            }
            let Some(step) = self.step(address) else { return self.reads_all_but(written) };
            self.live = self.live.and(step.reads.without(written));
            // A register that is read and written is no dead one, but the value that is left in it is new.
            if !step.may_fault {
                written = written.and(step.writes.within(self.all));
            }
            address = match step.next {
                Next::At(next) => next,
                Next::Either(next, target) => {
                    self.paths.push((target, written));
                    next
                }
                Next::Elsewhere { unread } => return self.reads_all_but(written.and(unread)),
            };
        }
    }

    fn step(&mut self, address: u64) -> Option<Step> {
        self.patience = self.patience.checked_sub(1)?;
        self.steps.step(address)
    }

    /// Whether all that this path may yet read was read by another, or written.
    fn tells_nothing(&self, written: Known) -> bool {
        self.all.without(self.live.and(written)).is_empty()
    }

    /// Whether this place was passed before with no more written than now.
    fn covered(&self, address: u64, written: Known) -> bool {
        self.seen & remainder(address) != 0
            && self.visited.iter().any(|(a, w)| *a == address && w.without(written).is_empty())
    }

    fn reads_all_but(&mut self, unread: Known) {
        self.live = self.live.and(self.all.without(unread));
    }
}

fn remainder(address: u64) -> u128 {
    1 << (address % u64::from(u128::BITS))
}

#[cfg(test)]
mod tests;
