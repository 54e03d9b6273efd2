//! Is this instruction between a load-reserve and its store-conditional?
//!
//! A trap in between takes the reservation away, and so does a detour, whose counters take reservations of their own:
//! the loop around them would never end. In between is what lies on a path from `l?arx` to `st?cx.` that passes no other
//! of them. The load itself may be displaced: its copy in the detour opens the reservation and branches into the
//! window.

use super::decode::{Form, decode, form};
use alloc::{vec, vec::Vec};

/// Whether a patch at `site` would be entered with a reservation that matters. `code` is the function, at `address`.
pub(super) fn inside_reservation(code: &[u8], address: u64, site: u64) -> bool {
    let function = Function { code, address };
    let all = |wanted: Form| (0..code.len() / 4).filter(move |&i| function.form(i) == Some(wanted));
    let loads: Vec<usize> = all(Form::LoadReserve).collect();
    if loads.is_empty() {
        return false;
    }
    let Some(site) = function.index(site) else { return false };
    let after_a_load = function.reached(loads.iter().flat_map(|&load| function.next(load)));
    after_a_load[site] && {
        let after_the_site = function.reached(core::iter::once(site));
        all(Form::StoreConditional).any(|store| after_the_site[store])
    }
}

#[derive(Clone, Copy)]
struct Function<'a> {
    code: &'a [u8],
    address: u64,
}

impl Function<'_> {
    fn index(&self, address: u64) -> Option<usize> {
        let offset = address.wrapping_sub(self.address);
        (offset < self.code.len() as u64 / 4 * 4 && offset.is_multiple_of(4)).then_some((offset / 4) as usize)
    }

    fn address_of(&self, index: usize) -> u64 {
        self.address.wrapping_add(4 * index as u64)
    }

    fn form(&self, index: usize) -> Option<Form> {
        form(&self.code[4 * index..], self.address_of(index)).ok().map(|(form, _)| form)
    }

    /// The instructions of the function that the one at `index` can go on to.
    fn next(&self, index: usize) -> impl Iterator<Item = usize> {
        let decoded = decode(&self.code[4 * index..], self.address_of(index)).ok();
        let through = decoded.filter(|d| d.flow.falls_through()).and_then(|d| self.index(d.end()));
        let target = decoded.and_then(|d| d.flow.target()).and_then(|target| self.index(target));
        through.into_iter().chain(target)
    }

    /// What can be reached from `starts`, themselves included, without going on from a load-reserve or a
    /// store-conditional.
    fn reached(&self, starts: impl Iterator<Item = usize>) -> Vec<bool> {
        let mut reached = vec![false; self.code.len() / 4];
        let mut work: Vec<usize> = starts.collect();
        while let Some(index) = work.pop() {
            let before = core::mem::replace(&mut reached[index], true);
            if !before && !matches!(self.form(index), Some(Form::LoadReserve | Form::StoreConditional)) {
                work.extend(self.next(index));
            }
        }
        reached
    }
}
