//! Detours as they are made from outside, and the code that those near each other share.

use crate::Error;
use crate::code::{Arenas, REACH, instructions};
use crate::find::Found;
use crate::patch::Memory;
use std::sync::atomic::AtomicU64;
use trapless_isa::body::Runs;
use trapless_isa::detour::{DetourRequest, Layout, Runtime, Stack};
use trapless_isa::{BranchTargets, Displaced, Isa, Machine, Payload, Site};

/// Code that a detour stands ahead of.
pub(crate) struct Ahead<'c> {
    /// What runs in the detour.
    pub displaced: Displaced,
    /// Its bytes, and maybe more.
    pub original: &'c [u8],
    /// The beginning of the function that it is in, and where that is.
    pub function: (u64, &'c [u8]),
}

impl<'c> From<&'c Found> for Ahead<'c> {
    fn from(found: &'c Found) -> Self {
        let function = (found.code.0, &found.code.1[..]);
        Self { displaced: found.displaced, original: &found.original, function }
    }
}

/// Those that work in one memory.
pub(crate) struct Detours {
    /// It stays for good.
    pub layout: &'static Layout,
    /// Code, each within reach of some.
    runtimes: Vec<Runtime>,
}

impl Detours {
    pub fn new(layout: &'static Layout) -> Self {
        Self { layout, runtimes: Vec::new() }
    }

    /// Writes one that does what `payload` says, and goes on in the code; where it is.
    pub fn write(
        &mut self,
        arenas: &mut Arenas,
        memory: &Memory,
        ahead: &Ahead<'_>,
        payload: Payload,
        runs: Runs<'_>,
    ) -> Result<u64, Error> {
        let isa = Machine::HOST.ok_or(Error::Machine)?.isa();
        let start = ahead.displaced.start;
        let layout = self.layout;
        let runtime = self.runtime(isa, arenas, memory, start)?;
        let targets = BranchTargets::default();
        let site = Site::new(ahead.function.0, ahead.function.1, &targets);
        let length = usize::from(ahead.displaced.length);
        let make = |address| {
            isa.detour(&DetourRequest {
                address,
                displaced: ahead.displaced,
                original: ahead.original.get(..length).unwrap_or_default(),
                site: &site,
                payload,
                operands: &[],
                runs,
                stack: Stack::Enough,
                layout,
                runtime,
                tells: false,
            })
            .map_err(Error::Code)
        };
        Ok(arenas.write(start, memory, make, |detour| &detour.code)?.0)
    }

    /// Writes one for the function with this entry that does what `payload` says, and goes on where a word says, which may be another detour; where it is, and the
    /// word. Nothing is overwritten: what comes next may read it.
    pub fn write_ahead(
        &mut self,
        arenas: &mut Arenas,
        memory: &Memory,
        entry: u64,
        payload: Payload,
        runs: Runs<'_>,
    ) -> Result<(u64, &'static AtomicU64), Error> {
        let inside = instructions().ok_or(Error::Machine)?;
        let word = arenas.place(entry, 0)?.word;
        // As if the function were a jump that goes there.
        let jump = inside.pad(entry, word.as_ptr().addr() as u64).map_err(Error::Code)?;
        let displaced = Displaced { start: entry, length: jump.len() as u8, instructions: 1 };
        let ahead = Ahead { displaced, original: &jump, function: (entry, &jump) };
        Ok((self.write(arenas, memory, &ahead, payload, runs)?, word))
    }

    /// The code that detours near an address share.
    fn runtime(
        &mut self,
        isa: &dyn Isa,
        arenas: &mut Arenas,
        memory: &Memory,
        near: u64,
    ) -> Result<&Runtime, Error> {
        // The detour is as far from there as its arena, at most.
        let reaches = |runtime: &Runtime| {
            runtime.routines.first().is_some_and(|routine| routine.abs_diff(near) < REACH / 2)
        };
        if let Some(index) = self.runtimes.iter().position(reaches) {
            return Ok(&self.runtimes[index]);
        }
        let make = |at| isa.runtime(at, self.layout).map_err(Error::Code);
        let (_, runtime) = arenas.write(near, memory, make, |runtime| &runtime.code)?;
        self.runtimes.push(runtime);
        Ok(&self.runtimes[self.runtimes.len() - 1])
    }
}
