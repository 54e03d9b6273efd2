//! The protocol of return instances in Rust: what detours and their routines do to memory, told without machine code.
//!
//! The protocol itself is told in [`crate::detour::memory`]. This is the reference that every instruction set's code is tested against:
//! the same calls, returns and look-ups on both, and the memory must be the same word for word. Calls here are of any thread,
//! in any order; an interleaving check (in the tests) cuts each step into its single loads and stores.

use crate::detour::*;

/// Memory as the routines see it: words of the program by address. Each call is one step.
pub trait Read {
    /// One load.
    fn load(&mut self, address: u64) -> u64;
}

/// The same, to be changed.
pub trait Memory: Read {
    /// One store.
    fn store(&mut self, address: u64, value: u64);
    /// Stores `value` if 0 stands there; else what stands there. As it is here it takes several steps: for memory that nobody else
    /// changes meanwhile.
    fn reserve(&mut self, address: u64, value: u64) -> Result<(), u64> {
        match self.load(address) {
            0 => {
                self.store(address, value);
                Ok(())
            }
            other => Err(other),
        }
    }
    /// What stands there, which is incremented. The same goes for its steps.
    fn take_number(&mut self, address: u64) -> u64 {
        let number = self.load(address);
        self.store(address, number + 1);
        number
    }
}

/// What a return part finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The instance: where to go, and the time of the entry.
    Known {
        /// The return address. After a tail call it is the older call's return point.
        address: u64,
        /// Time stamp of the entry.
        entered: u64,
    },
    /// No instance: the way home is what stands in the slot, if that is not the return point itself.
    AsTheSlotSays,
}

/// The numbers of the blocks that may be the page's, in order.
fn places(layout: &Layout, slot: u64) -> impl Iterator<Item = u64> + use<> {
    let (mask, first) = ((1 << layout.return_bits) - 1, layout.block_index(slot));
    (0..u64::from(SHADOW_PROBES)).map(move |n| (first + n) & mask)
}

/// The instance that this one was reached from by a tail call. A slot's name is none.
fn older_than(memory: &mut (impl Read + ?Sized), instance: u64) -> Option<u64> {
    let older = memory.load(instance.wrapping_add(u64::from(RETURN_OLDER)));
    (older != 0 && older & 1 == 0).then_some(older)
}

/// The address of the instance of a slot, if its page has a shadow block.
pub fn instance_of(memory: &mut (impl Read + ?Sized), layout: &Layout, slot: u64) -> Option<u64> {
    for block in places(layout, slot) {
        match memory.load(layout.tag(block)) {
            0 => return None,
            tag if tag == slot >> STACK_PAGE_SHIFT => {
                return Some(layout.shadow_block(block) + layout.instance_offset(slot));
            }
            _another_page => {}
        }
    }
    None
}

/// The same, with a block claimed for the page if it has none.
fn claim_instance(memory: &mut dyn Memory, layout: &Layout, slot: u64) -> Option<u64> {
    let page = slot >> STACK_PAGE_SHIFT;
    for block in places(layout, slot) {
        let tag_at = layout.tag(block);
        let mut tag = memory.load(tag_at);
        if tag == 0 {
            // Another thread may be quicker, with this very page even.
            tag = match memory.reserve(tag_at, page) {
                Ok(()) => {
                    let number = memory.take_number(layout.pages + u64::from(PAGES_COUNT));
                    memory.store(layout.pages + u64::from(PAGES_FIRST) + 8 * number, page);
                    page
                }
                Err(other) => other,
            };
        }
        if tag == page {
            return Some(layout.shadow_block(block) + layout.instance_offset(slot));
        }
    }
    None
}

/// The entry of a followed call: an instance for it, or `None` when it is lost. Its fields are filled in, the point last but the time;
/// then the caller puts the point in the place of the return address.
pub fn enter(
    memory: &mut dyn Memory,
    layout: &Layout,
    slot: u64,
    caller: u64,
    point: u64,
    entered: u64,
) -> Option<u64> {
    let instance = claim(memory, layout, slot, caller)?;
    memory.store(instance + u64::from(RETURN_ADDRESS), caller);
    memory.store(instance + u64::from(RETURN_POINT), point);
    memory.store(instance + u64::from(RETURN_ENTERED), entered);
    Some(instance)
}

/// The routine *claim*.
pub fn claim(memory: &mut dyn Memory, layout: &Layout, slot: u64, caller: u64) -> Option<u64> {
    let instance = claim_instance(memory, layout, slot)?;
    let field = |offset: u32| instance + u64::from(offset);
    match memory.load(field(RETURN_POINT)) {
        free if layout.is_free(free) => name(memory, layout, instance, slot),
        point if point == caller => {
            let older = from_pool(memory, layout, slot, point)?;
            for offset in [RETURN_ADDRESS, RETURN_ENTERED, RETURN_OLDER] {
                let word = memory.load(field(offset));
                memory.store(older + u64::from(offset), word);
            }
            memory.store(field(RETURN_OLDER), older);
        }
        _abandoned => {
            let mut next = older_than(memory, instance);
            memory.store(field(RETURN_OLDER), 0);
            memory.store(field(RETURN_POINT), 0);
            while let Some(older) = next {
                next = older_than(memory, older);
                memory.store(older + u64::from(RETURN_POINT), 0);
            }
            name(memory, layout, instance, slot);
        }
    }
    Some(instance)
}

/// Where instances bear names: this one is the slot's, and has no older one.
fn name(memory: &mut dyn Memory, layout: &Layout, instance: u64, slot: u64) {
    if layout.shadows() == Shadows::Plain {
        memory.store(instance + u64::from(RETURN_OLDER), slot_name(slot));
    }
}

fn from_pool(memory: &mut dyn Memory, layout: &Layout, slot: u64, point: u64) -> Option<u64> {
    let mask = (1u64 << POOL_BITS) - 1;
    let mut index = layout.pool_index(slot);
    for _ in 0..POOL_PROBES {
        let place = layout.returns + (index << RETURN_SHIFT);
        if memory.reserve(place + u64::from(RETURN_POINT), point).is_ok() {
            return Some(place);
        }
        index = (index + 1) & mask;
    }
    None
}

/// The return part: the address goes back to its slot before the instance is free.
pub fn leave(memory: &mut dyn Memory, layout: &Layout, slot: u64, point: u64) -> Home {
    let Some(instance) = instance_of(memory, layout, slot) else { return Home::AsTheSlotSays };
    if memory.load(instance + u64::from(RETURN_POINT)) != point {
        return Home::AsTheSlotSays;
    }
    let mine = match older_than(memory, instance) {
        None => instance,
        Some(older) => exchange(memory, instance, older),
    };
    let address = memory.load(mine + u64::from(RETURN_ADDRESS));
    memory.store(slot, address);
    let entered = memory.load(mine + u64::from(RETURN_ENTERED));
    // Where the detour has found it by itself it leaves the name.
    let first = layout.shadow_block(layout.block_index(slot)) + layout.instance_offset(slot);
    let is_at_hand = layout.shadows() == Shadows::Plain && mine == first;
    memory.store(mine + u64::from(RETURN_POINT), if is_at_hand { slot_name(slot) } else { 0 });
    Home::Known { address, entered }
}

/// The routine *leave*, where a tail call was followed: the older instance takes the slot's place, and the younger one is in the pool.
fn exchange(memory: &mut dyn Memory, instance: u64, older: u64) -> u64 {
    for offset in [RETURN_ADDRESS, RETURN_ENTERED, RETURN_POINT].map(u64::from) {
        let (a, b) = (memory.load(instance + offset), memory.load(older + offset));
        memory.store(instance + offset, b);
        if offset == u64::from(RETURN_ADDRESS) {
            // As soon as the address is there: for an unwinder the last one's is always the real one.
            let next = memory.load(older + u64::from(RETURN_OLDER));
            memory.store(instance + u64::from(RETURN_OLDER), next);
        }
        memory.store(older + offset, a);
    }
    older
}

/// The real return address of the call at `slot`, if `point` is that of its instance, or of one that it was reached from: what unwinders
/// are told.
pub fn real_address(
    memory: &mut (impl Read + ?Sized),
    layout: &Layout,
    slot: u64,
    point: u64,
) -> Option<u64> {
    let mut instance = instance_of(memory, layout, slot)?;
    // As many as there are; what leads in a circle was forged.
    let mut is_known = false;
    for _ in 0..=1u32 << POOL_BITS {
        is_known |= memory.load(instance.wrapping_add(u64::from(RETURN_POINT))) == point;
        match older_than(memory, instance) {
            None => return is_known.then(|| memory.load(instance.wrapping_add(u64::from(RETURN_ADDRESS)))),
            Some(older) => instance = older,
        }
    }
    None
}

/// An unwinder, whose context has its code address at `field`, walks over the calls at `slot`.
pub fn walked(memory: &mut dyn Memory, layout: &Layout, field: u64, slot: u64) {
    let Some(mut call) = instance_of(memory, layout, slot) else { return };
    let mut calls = 1;
    while let Some(older) = older_than(memory, call) {
        call = older;
        calls += 1;
    }
    // Nothing returns there, so whatever has the slot was left behind.
    let Some(record) = claim(memory, layout, field, 0) else { return };
    let before = record_in(memory, record).filter(|&(last, _)| field <= last && last < slot);
    let calls = calls + before.map_or(0, |(_, calls)| calls);
    memory.store(record + u64::from(RETURN_POINT), 0);
    memory.store(record + u64::from(WALK_LAST), slot);
    memory.store(record + u64::from(WALK_CALLS), slot.wrapping_add(calls));
}

/// The same unwinder lands in the frame that has made the call at `slot`: how many calls it leaves.
pub fn landed(memory: &mut dyn Memory, layout: &Layout, field: u64, slot: u64) -> u64 {
    let Some(record) = instance_of(memory, layout, field) else { return 0 };
    if memory.load(record + u64::from(RETURN_POINT)) != 0 {
        return 0;
    }
    let known = record_in(memory, record).filter(|&(last, calls)| calls > 0 && field <= last && last <= slot);
    let Some((last, calls)) = known else { return 0 };
    memory.store(record + u64::from(WALK_LAST), 0);
    memory.store(record + u64::from(WALK_CALLS), 0);
    match instance_of(memory, layout, last).map(|call| memory.load(call + u64::from(RETURN_POINT))) {
        Some(point) if !layout.is_free(point) => calls,
        Some(_) | None => 0,
    }
}

/// The last slot and the number of calls of a walk's record.
fn record_in(memory: &mut dyn Memory, record: u64) -> Option<(u64, u64)> {
    let last = memory.load(record + u64::from(WALK_LAST));
    let calls = memory.load(record + u64::from(WALK_CALLS)).wrapping_sub(last);
    (calls < WALK_MOST).then_some((last, calls))
}

#[cfg(test)]
mod tests;
