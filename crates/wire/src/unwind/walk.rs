//! The walk itself: what a walker in machine code does, written as it does it.
//!
//! It is one loop over whole numbers: nothing is allocated and nothing calls itself. Between two rounds these live on:
//!
//! | value | is |
//! |---|---|
//! | `pc` | the address of this frame |
//! | `sp`, `fp`, `bp`, `link` | its registers; `link` on machines that have one |
//! | `general` | where the innermost frame's registers lie |
//! | `state` | bits: what is known of them |
//! | `module` | the module looked at last: mostly it is the next frame's, too |
//! | `left` | how many frames may still be told |
//! | `tables`, `read`, `real`, `out` | where rows are, how memory is read, how return points are translated, where frames go |
//!
//! Why it ends: each round tells a frame, and `left` counts them. Besides, each frame's CFA lies above the last one's, so that a stack
//! which has been overwritten is not walked in circles. Two cases are exempt, since stacks are changed there: a signal's frame, and the
//! fallback, as where a runtime has moved from one stack to another; the latter is let pass [`MOST_CHANGES`] times.
//!
//! Where no row tells of the code, the fallback is tried, as perf does it: by frame pointers on most machines. Registers that were never
//! frame pointers lead anywhere, so in code of a file that has a table the return address has to be in some module.

use super::{Base, Kind, Module, Rule, Slot, Tables};

/// How often the fallback may lead to lower addresses than before.
pub const MOST_CHANGES: u32 = 8;

/// The registers that a walk begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers<'a> {
    /// The instruction that is about to run.
    pub pc: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer: see [`Base::Frame`].
    pub fp: u64,
    /// The base pointer: see [`Base::Pointer`]. Not looked at where the machine has none.
    pub bp: u64,
    /// The link register. Not looked at where the machine has none.
    pub link: u64,
    /// All general registers by DWARF's numbers, or as many as there are: for [`Base::Other`], in the innermost frame.
    pub general: &'a [u64],
}

/// Where in its function the first frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In front of the first instruction: the caller is where a call has put it, and no row is needed for that.
    Entry,
    /// Anywhere.
    Anywhere,
}

/// How callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By rows, and by the fallback where there are none.
    Rows,
    /// By the fallback alone.
    FramePointers,
}

/// Why a walk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The outermost frame was reached.
    Outermost,
    /// As many frames as were wanted have been told.
    Limit,
    /// A row says that its rule is not one of ours, and a number why.
    Unknown(u8),
    /// There is no row here, and the fallback leads nowhere.
    NoRow,
    /// The rule needs a register whose value an earlier frame has not kept.
    RegisterLost,
    /// The rule finds the return address in the link register, which only the innermost frame can.
    LinkLost,
    /// This word could not be read.
    Unreadable(u64),
    /// The next frame would lie below this one, or at the same place.
    NotAscending,
    /// The tables are damaged.
    Damaged,
}

/// What a walk has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// How many frames were told.
    pub frames: u32,
    /// Why it has ended.
    pub ended: Ended,
}

/// Nothing was called from here yet: `pc` itself is looked up, not the call in front of it, and the link register has the caller.
const EXACT: u32 = 1;
/// The base that a rule names is lost, if bit `LOST << base` is set.
const LOST: u32 = 1 << 1;
const LOST_STACK: u32 = LOST << Base::Stack as u32;
const LOST_FRAME: u32 = LOST << Base::Frame as u32;
const LOST_POINTER: u32 = LOST << Base::Pointer as u32;
const LOST_OTHER: u32 = LOST << Base::Other as u32;
/// `pc` was found by the fallback from code of a file, and has to be in a module.
const DOUBTED: u32 = 1 << 5;
/// One of the changes of stacks that the fallback has made; the bits above count.
const CHANGE: u32 = 1 << 6;

/// Tells the addresses of a stack, from the innermost frame outwards, at most `limit`. All but the first, and those that a signal has
/// interrupted, are return addresses: the call is in front of them.
///
/// - `read` reads a word of the target, as many bytes as [`Facts::word`](super::Facts::word) says.
/// - `real` is asked about each return address that is found, with the address of its slot, or 0 where it was in the link register. It
///   answers with the return address that the program believes to be there, where it is one of our return points.
/// - `out` is told each frame's address.
///
/// ```
/// use trapless_wire::unwind::{Area, Base, Ended, Facts, Method, Place, Registers, Rule, Slot, Table, Tables, walk};
///
/// let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
/// let mut area = Area::new(&Facts::X86_64);
/// let table = Table::new([(0, 1), (16, 2), (32, 0)], vec![Rule::default(), called, Rule::of_kind(Rule::END)])?;
/// let module = area.add(&table)?.at(0x40_1000);
/// area.publish(&[module])?;
/// let tables = Tables::new(area.bytes()).unwrap();
/// let start = Registers { pc: 0x40_1004, sp: 0x7000, ..Registers::default() };
/// let stack = |address| (address == 0x7000).then_some(0x40_1018);
/// let mut frames = vec![];
/// let walked = walk(&tables, start, Place::Anywhere, Method::Rows, 10, stack, |_, found| found, |pc| frames.push(pc));
/// assert_eq!(frames, [0x40_1004, 0x40_1018]);
/// assert_eq!(walked.ended, Ended::Outermost);
/// # Ok::<(), trapless_wire::unwind::TooLarge>(())
/// ```
#[allow(clippy::too_many_arguments, reason = "they are the values that live through the loop")]
#[inline]
pub fn walk(
    tables: &Tables<'_>,
    start: Registers<'_>,
    place: Place,
    method: Method,
    limit: u32,
    mut read: impl FnMut(u64) -> Option<u64>,
    mut real: impl FnMut(u64, u64) -> u64,
    mut out: impl FnMut(u64),
) -> Walked {
    let facts = tables.facts();
    let mask = facts.mask;
    let Registers { mut pc, mut sp, mut fp, mut bp, mut link, general } = start;
    let mut state = EXACT;
    let mut arriving = place == Place::Entry;
    let mut module = Module::default();
    let mut left = limit;
    let ended = loop {
        // 1. The module, which is mostly the last one. A call may be a function's last instruction, so the call is looked up and not what
        //    is behind it.
        let at = if state & EXACT != 0 { pc } else { pc.wrapping_sub(1) & mask };
        let mut known = module.start <= at && at < module.end;
        if !known
            && method == Method::Rows
            && let Some(found) = tables.module_at(at)
        {
            module = found;
            known = true;
        }
        // 2. What the fallback has found may be anything.
        if state & DOUBTED != 0 && !known {
            break Ended::NoRow;
        }
        // 3. Tell this frame.
        if left == 0 {
            break Ended::Limit;
        }
        out(pc);
        left -= 1;
        // 4. The rule.
        let mut rule = if arriving {
            arriving = false;
            facts.arrival
        } else if known && method == Method::Rows {
            match tables.rule_in(&module, at) {
                Some(rule) => rule,
                None => break Ended::Damaged,
            }
        } else {
            Rule::default()
        };
        // 5. Or the fallback, also for a rule that needs a stack pointer which the fallback could not tell. From here on `next` becomes the
        //    next frame's state.
        let mut next = state & !(EXACT | DOUBTED) | LOST_OTHER;
        let base = u32::from(rule.flags & Rule::BASE);
        let stackless = base == Base::Stack as u32 && state & LOST_STACK != 0;
        let fell_back = rule.kind == Rule::NOTHING || rule.kind == Rule::FRAME && stackless;
        if fell_back {
            rule = facts.fallback;
            if known && module.rows != 0 {
                next |= DOUBTED;
            }
        }
        match rule.kind() {
            Kind::Frame => {}
            Kind::End => break Ended::Outermost,
            Kind::Nothing => break Ended::NoRow,
            Kind::Unknown(why) => break Ended::Unknown(why),
        }
        // 6. The base, and the CFA.
        let base = u32::from(rule.flags & Rule::BASE);
        if state & LOST << base != 0 {
            break if fell_back { Ended::NoRow } else { Ended::RegisterLost };
        }
        let base = match base {
            0 => sp,
            1 => fp,
            2 => bp,
            _ => match general.get(usize::from(rule.plus as u16)) {
                Some(&value) => value,
                None => break Ended::RegisterLost,
            },
        };
        if fell_back && base == 0 {
            break if next & DOUBTED != 0 { Ended::NoRow } else { Ended::Outermost };
        }
        let mut cfa = base.wrapping_add(rule.cfa as u64) & mask;
        if rule.flags & Rule::MEMORY != 0 {
            match read(cfa) {
                // A back chain ends so.
                Some(0) => break Ended::Outermost,
                Some(found) => cfa = found.wrapping_add(rule.plus as u64) & mask,
                None if fell_back => break Ended::NoRow,
                None => break Ended::Unreadable(cfa),
            }
        }
        // 7. Stacks grow downwards, so the caller's frame is above. Only where nothing was pushed it is at the same place.
        let interrupted = rule.flags & Rule::INTERRUPTED != 0;
        let in_link = rule.ra == Slot::UNCHANGED;
        if cfa <= sp && !interrupted && !(in_link && cfa == sp) {
            if fell_back && next / CHANGE < MOST_CHANGES {
                next += CHANGE;
            } else {
                break Ended::NotAscending;
            }
        }
        // 8. The return address.
        let found = if in_link {
            if state & EXACT == 0 {
                break Ended::LinkLost;
            }
            real(0, link)
        } else {
            let from = if rule.flags & Rule::RA_AT_BASE != 0 { base } else { cfa };
            let slot = from.wrapping_add(rule.ra.0 as u64) & mask;
            match read(slot) {
                Some(found) if interrupted => found,
                Some(found) => real(slot, found),
                None if fell_back => break Ended::NoRow,
                None => break Ended::Unreadable(slot),
            }
        };
        // 9. The saved registers.
        let from = if rule.flags & Rule::SAVED_AT_BASE != 0 { base } else { cfa };
        let mut restored = true;
        let mut restore = |slot: Slot, value: &mut u64, lost: u32| match slot {
            Slot::UNCHANGED => {}
            Slot::LOST => next |= lost,
            Slot(offset) => match read(from.wrapping_add(offset as u64) & mask) {
                Some(found) => {
                    *value = found;
                    next &= !lost;
                }
                None => restored = false,
            },
        };
        restore(rule.fp, &mut fp, LOST_FRAME);
        restore(rule.bp, &mut bp, LOST_POINTER);
        if interrupted {
            restore(rule.link, &mut link, 0);
            next |= EXACT;
        }
        if !restored {
            break Ended::Unreadable(from);
        }
        // 10. The caller's frame is the next one.
        sp = cfa;
        next = if rule.flags & Rule::STACK_LOST != 0 { next | LOST_STACK } else { next & !LOST_STACK };
        pc = found & mask;
        state = next;
        if pc == 0 {
            break Ended::Outermost;
        }
    };
    Walked { frames: limit - left, ended }
}
