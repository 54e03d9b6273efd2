//! Sites of a library that was unloaded and has come back to where it was: their detours are there, and only their patches are put in.
//!
//! A program that loads and unloads a library all the time would fill a session with detours otherwise. Nothing that a detour knows has
//! changed: it is the same file at the same address, which the bytes are compared with as ever. All sites are put in or none; then they are
//! added as new ones are.

use crate::{
    Attempt, EngineError, Session,
    answer::Answer,
    reach,
    scan::{self, Ranges},
    writes,
};
use std::ops::Range;
use trapless_process::{Process, StopOptions, Stopped, keeper};
use trapless_wire::{Journal, JournalSite, SiteState, Write};

/// Sites that were given up, to be put in again.
#[derive(Debug)]
pub struct Returning {
    /// Their indices in the session's journal.
    indices: Vec<usize>,
    /// They alone, planned.
    journal: Journal,
}

impl Session {
    /// The sites that were given up in a range, if there are any: those of the probes that `is_wanted` says, by their ids.
    pub fn returning(&self, range: &Range<u64>, is_wanted: impl Fn(u32) -> bool) -> Option<Returning> {
        let mut returning = Returning { indices: Vec::new(), journal: Journal::default() };
        for site in self.given_up().iter().filter_map(|&index| self.journal().site(index)) {
            if range.contains(&site.site) && is_wanted(site.probe) {
                let planned = JournalSite { state: SiteState::Planned as u8, ..*site };
                returning.journal.push(planned, &site.writes().collect::<Vec<_>>())?;
                returning.indices.push(site.index);
            }
        }
        (!returning.indices.is_empty()).then_some(returning)
    }

    /// Puts them in, in a process that stands; whether they are.
    ///
    /// # Errors
    /// Those of the memory. [`EngineError::NotArmed`]: the session is gone.
    pub fn put_in_again(
        &self,
        stopped: &mut Stopped<'_>,
        returning: &Returning,
    ) -> Result<bool, EngineError> {
        let process = stopped.process();
        let all = self.among(process)?;
        let ips: Vec<u64> = stopped.threads().iter().map(|thread| thread.registers().ip().0).collect();
        let is_free = |write: Write<'_>| {
            writes::stands(process, write.address, write.original)
                && !ips.iter().any(|ip| write.range().contains(ip))
        };
        if !returning.journal.sites().all(|site| site.writes().all(is_free)) {
            return Ok(false);
        }
        // Where instructions begin behind the first byte is not kept, so no context may lead anywhere there.
        let behind = returning.journal.sites().flat_map(|site| {
            site.writes().map(|write| (write.address + 1, write.range().end)).collect::<Vec<_>>()
        });
        let inside = Ranges::new(behind.filter(|(start, end)| start < end));
        if !scan::led_into(process, stopped, &inside, &reach::regions(self.header()), &all, &[])?
            .to
            .is_empty()
        {
            return Ok(false);
        }
        // Ahead of the patches: whoever is killed between leaves a journal that tells of them.
        self.say(returning, SiteState::Planned)?;
        let refused = writes::put_in(process, &returning.journal)?;
        if !refused.is_empty() {
            writes::take_out(process, &returning.journal, |_| true)?;
            self.say(returning, SiteState::Skipped)?;
        }
        Ok(refused.is_empty())
    }

    /// The same from a keeper.
    ///
    /// # Errors
    /// Those of [`Session::put_in_again`].
    pub fn put_in_again_kept(
        &self,
        process: &Process,
        returning: &Returning,
        options: &StopOptions,
    ) -> Result<bool, EngineError> {
        let answer = keeper::run(|_| {
            let done = process.stop_with(options).map_err(EngineError::from).and_then(|mut stopped| {
                let are_in = self.put_in_again(&mut stopped, returning)?;
                Ok((are_in, stopped.resume_and_detach()))
            });
            match done {
                Ok((true, stopped)) => Answer::Armed { stopped, left_alone: Vec::new() },
                Ok((false, _)) => Answer::Taken,
                Err(error) => Attempt::Failed(error).into(),
            }
            .bytes()
        })?;
        match Answer::read(&answer)? {
            Answer::Armed { .. } => Ok(true),
            Answer::Taken => Ok(false),
            Answer::Failed(failure) => Err(failure.into()),
            _ => Err(crate::answer::Malformed::Another.into()),
        }
    }

    /// Says in the shared memory what has become of the sites.
    fn say(&self, returning: &Returning, state: SiteState) -> Result<(), EngineError> {
        returning.indices.iter().zip(returning.journal.sites()).try_for_each(|(&index, site)| {
            let site = JournalSite { state: state as u8, ..*site };
            self.region().write(self.header().journal.site_at(index as u64), bytemuck::bytes_of(&site))
        })
    }

    /// Takes note of sites that are in again. Their indices in the plans, counted on over all that were added.
    pub fn take_back(&mut self, returning: &Returning) -> Vec<u32> {
        self.planned_again(&returning.indices);
        returning.indices.iter().map(|&index| index as u32).collect()
    }
}
