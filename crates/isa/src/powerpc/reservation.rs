//! Is this instruction between a load-reserve and its store-conditional?
//!
//! A trap in between takes the reservation away, and so does a detour, whose counters take reservations of their own:
//! the loop around them would never end. In between is what lies on a path from `l?arx` to `st?cx.` that passes no other
//! of them. The load itself may be displaced: its copy in the detour opens the reservation and branches into the
//! window.

use super::decode::Form;
use super::flow::Function;
use alloc::vec::Vec;

/// Whether a patch at `site` would be entered with a reservation that matters. `code` is the function, at `address`.
pub(super) fn inside_reservation(code: &[u8], address: u64, site: u64) -> bool {
    let function = Function { code, address };
    let all = |wanted: Form| (0..function.len()).filter(move |&i| function.form(i) == Some(wanted));
    let loads: Vec<usize> = all(Form::LoadReserve).collect();
    if loads.is_empty() {
        return false;
    }
    let Some(site) = function.index(site) else { return false };
    let stops = |index| matches!(function.form(index), Some(Form::LoadReserve | Form::StoreConditional));
    let after_a_load = function.reached(loads.iter().flat_map(|&load| function.next(load)), stops);
    after_a_load[site] && {
        let after_the_site = function.reached(core::iter::once(site), stops);
        all(Form::StoreConditional).any(|store| after_the_site[store])
    }
}
