//! The unwind tables of a process: what its files and the vDSO say, laid out for whoever walks its stacks.

use crate::error::Error;
use crate::files::File;
use crate::target::{Image, machine};
use trapless_isa::Machine;
use trapless_process::{Mapping, Process};
use trapless_symbols::{Cfa, FrameRule, Module, Rule, Saved, UnwindBase, UnwindRows};
use trapless_wire::unwind::{Area, Base, Facts, Module as Listed, Rule as Packed, Slot, Table, TooLarge};

/// What holds on a machine whatever its files say.
pub fn facts(machine: Machine) -> Facts {
    match machine {
        Machine::X86_64 => Facts::X86_64,
        Machine::I386 => Facts::X86,
        Machine::AArch64 => Facts::AARCH64,
        Machine::PowerPc64Le => Facts::POWERPC64LE,
    }
}

/// The tables of all files that `process` runs, of its vDSO, and its other code, for which there are none. A file that cannot be read
/// counts as such code, and so does one without tables.
///
/// # Errors
/// The process has ended, or the tables are too large.
pub fn area(process: &Process, images: &[Image]) -> Result<Area, Error> {
    let maps = process.maps().map_err(Error::other)?;
    let main = images.iter().find_map(|image| image.module(Some(process)).ok());
    let mut area = Area::new(&facts(main.map_or(Machine::X86_64, machine)));
    let mut modules = Vec::new();
    for image in images {
        if let (Ok(file), Ok(bias)) = (image.opened(Some(process)), image.bias(Some(process))) {
            let compiled = file.unwind_table().map_err(Error::other)?;
            modules.extend(listed(&mut area, compiled, bias).map_err(Error::other)?);
        }
    }
    if let Some(mapping) = maps.special("[vdso]")
        && let Some(rows) = vdso(process, mapping)
    {
        // It is linked to begin at 0.
        let compiled = table(&rows).map_err(Error::other)?;
        modules.extend(listed(&mut area, (&compiled, rows.base), mapping.start.0).map_err(Error::other)?);
    }
    for mapping in maps.iter().filter(|mapping| mapping.perms.exec) {
        // What lies around the tables is code that there is none for.
        let mut at = mapping.start.0;
        let mut between: Vec<_> = modules
            .iter()
            .filter(|module: &&Listed| module.start < mapping.end.0 && mapping.start.0 < module.end)
            .map(|module| module.start..module.end)
            .collect();
        between.sort_by_key(|range| range.start);
        for range in between {
            modules.push(Listed::without_table(at..range.start.max(at)));
            at = at.max(range.end);
        }
        modules.push(Listed::without_table(at.min(mapping.end.0)..mapping.end.0));
    }
    area.publish(&modules).map_err(Error::other)?;
    Ok(area)
}

/// Adds a table, if there is anything in it; `bias` is added to addresses of its file.
fn listed(area: &mut Area, (table, base): (&Table, u64), bias: u64) -> Result<Option<Listed>, TooLarge> {
    if table.is_empty() {
        Ok(None)
    } else {
        area.add(table).map(|module| Some(module.at(base.wrapping_add(bias))))
    }
}

/// The kernel's own library, which is in no file.
fn vdso(process: &Process, mapping: &Mapping) -> Option<UnwindRows> {
    /// The vDSO has a few pages.
    const LARGEST: u64 = 1 << 20;
    let mut bytes = vec![0; mapping.len().min(LARGEST) as usize];
    process.read_exact(mapping.start, &mut bytes).ok()?;
    Some(Module::parse("[vdso]", bytes).ok()?.unwind_rows())
}

/// The rows of a file in the form of an area. Addresses are relative to [`UnwindRows::base`].
///
/// # Errors
/// There are too many.
pub fn table(rows: &UnwindRows) -> Result<Table, TooLarge> {
    if rows.rows.is_empty() {
        return Table::new([], Vec::new());
    }
    let length = u32::try_from(rows.end - rows.base).map_err(|_| TooLarge)?;
    let last = rows.rows.last().map_or(0, |row| row.offset);
    let end = (last < length).then_some((length, 0));
    Table::new(
        rows.rows.iter().map(|row| (row.offset, row.rule)).chain(end),
        rows.rules.iter().map(packed).collect(),
    )
}

fn packed(rule: &Rule) -> Packed {
    let frame = match rule {
        Rule::Nothing => return Packed::default(),
        Rule::End => return Packed::of_kind(Packed::END),
        Rule::Unknown(why) => return Packed::of_kind(Packed::UNKNOWN + *why as u8),
        Rule::Frame(frame) => frame,
    };
    let base = |base| match base {
        UnwindBase::Stack => Base::Stack,
        UnwindBase::Frame => Base::Frame,
        UnwindBase::Pointer => Base::Pointer,
        UnwindBase::Other(_) => Base::Other,
    };
    let mut packed = match frame.cfa {
        Cfa::Register { base: from @ UnwindBase::Other(number), offset } => {
            Packed { plus: number.into(), ..Packed::frame(base(from), offset) }
        }
        Cfa::Register { base: from, offset } => Packed::frame(base(from), offset),
        Cfa::Memory { base: from, offset, plus } => {
            let packed = Packed::frame(base(from), offset);
            Packed { flags: packed.flags | Packed::MEMORY, plus, ..packed }
        }
    };
    let FrameRule { return_address, mut frame_pointer, mut base_pointer, interrupted, .. } = *frame;
    // One flag stands for both. They differ in hand-written code at the most.
    let at_base = |saved| matches!(saved, Saved::AtBase(_));
    let at_cfa = |saved| matches!(saved, Saved::AtCfa(_));
    let both = [frame_pointer, base_pointer];
    if both.into_iter().any(at_base) {
        packed.flags |= Packed::SAVED_AT_BASE;
        if at_cfa(frame_pointer) {
            frame_pointer = Saved::Lost;
        }
        if at_cfa(base_pointer) {
            base_pointer = Saved::Lost;
        }
    }
    if at_base(return_address) {
        packed.flags |= Packed::RA_AT_BASE;
    }
    (packed.ra, packed.fp, packed.bp) = (slot(return_address), slot(frame_pointer), slot(base_pointer));
    if let Some(link) = interrupted {
        packed.flags |= Packed::INTERRUPTED;
        packed.link = slot(link);
    }
    packed
}

fn slot(saved: Saved) -> Slot {
    match saved {
        Saved::Unchanged => Slot::UNCHANGED,
        Saved::Lost => Slot::LOST,
        Saved::AtCfa(offset) | Saved::AtBase(offset) => Slot(offset),
    }
}

impl File {
    /// Its unwind rows in the form of an area, and the address that they begin at.
    ///
    /// # Errors
    /// There are too many.
    pub fn unwind_table(&self) -> Result<(&Table, u64), TooLarge> {
        let compiled = self.unwind.get_or_init(|| {
            let rows = self.module().unwind_rows();
            table(&rows).map(|table| (table, rows.base))
        });
        compiled.as_ref().map(|(table, base)| (table, *base)).map_err(|error| *error)
    }
}
