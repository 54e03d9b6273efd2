//! The unwind tables of a process: what its files and the vDSO say, laid out for whoever walks its stacks.

use crate::error::Error;
use crate::files::{File, Files};
use crate::target::{Image, machine};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use trapless_isa::Machine;
use trapless_process::{Mapping, Mappings, Process};
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
    Ok(Unwinding::new(process, images, u64::from(u32::MAX))?.area)
}

/// The unwind tables of a process while it runs: what it loads later is added.
#[derive(Debug)]
pub struct Unwinding {
    area: Area,
    /// Most bytes that the area may have. Tables that find no room are left out.
    room: u64,
    /// What was added, by the table's address: files stay open as long as their images are here.
    added: HashMap<usize, Listed>,
    held: Vec<Arc<File>>,
    vdso: Option<Listed>,
    /// The code that was there when the list was made.
    code: Vec<Range<u64>>,
    /// How many bytes were there before the last change.
    before: usize,
}

impl Unwinding {
    /// Those of now, in at most `room` bytes.
    ///
    /// # Errors
    /// The process has ended, or the tables are too large.
    pub fn new(process: &Process, images: &[Image], room: u64) -> Result<Self, Error> {
        let main = images.iter().find_map(|image| image.module(Some(process)).ok());
        let mut unwinding = Self {
            area: Area::new(&facts(main.map_or(Machine::X86_64, machine))),
            room,
            added: HashMap::new(),
            held: Vec::new(),
            vdso: None,
            code: Vec::new(),
            before: 0,
        };
        unwinding.list(process, images, &process.maps().map_err(Error::other)?)?;
        Ok(unwinding)
    }

    /// Everything that whoever walks reads.
    pub fn bytes(&self) -> &[u8] {
        self.area.bytes()
    }

    /// What the last change has added: where it begins, and the bytes. Once they are there, the word at
    /// [`trapless_wire::unwind::DIRECTORY_OFFSET`] is written.
    pub fn fresh(&self) -> (u64, &[u8]) {
        (self.before as u64, self.area.bytes().get(self.before..).unwrap_or_default())
    }

    /// Looks whether the process has other code than before, and adds what is new. Whether it had.
    ///
    /// # Errors
    /// The process has ended, or the tables are too large.
    pub fn update(&mut self, process: &Process, files: &Files) -> Result<bool, Error> {
        let maps = process.maps().map_err(Error::other)?;
        if code(&maps) == self.code {
            return Ok(false);
        }
        let images = crate::target::images(process, files)?;
        self.list(process, &images, &maps)?;
        Ok(true)
    }

    fn list(&mut self, process: &Process, images: &[Image], maps: &Mappings) -> Result<(), Error> {
        self.before = self.area.bytes().len();
        let mut modules = Vec::new();
        for image in images {
            if let (Ok(file), Ok(bias)) = (image.opened(Some(process)), image.bias(Some(process))) {
                let (table, base) = file.unwind_table().map_err(Error::other)?;
                let known = std::ptr::from_ref(table) as usize;
                let listed = match self.added.get(&known) {
                    Some(listed) => Some(*listed),
                    None => self.add(table)?,
                };
                if let Some(listed) = listed {
                    self.added.insert(known, listed);
                    modules.push(listed.at(base.wrapping_add(bias)));
                }
            }
        }
        if let Some(mapping) = maps.special("[vdso]") {
            if self.vdso.is_none()
                && let Some(rows) = vdso(process, mapping)
            {
                // It is linked to begin at 0.
                let listed = self.add(&table(&rows).map_err(Error::other)?)?;
                self.vdso = listed.map(|listed| listed.at(rows.base));
            }
            modules.extend(self.vdso.map(|listed| listed.at(listed.start.wrapping_add(mapping.start.0))));
        }
        self.code = code(maps);
        for mapping in &self.code {
            // What lies around the tables is code that there is none for.
            let mut at = mapping.start;
            let mut between: Vec<_> = modules
                .iter()
                .filter(|module: &&Listed| module.start < mapping.end && mapping.start < module.end)
                .map(|module| module.start..module.end)
                .collect();
            between.sort_by_key(|range| range.start);
            for range in between {
                modules.push(Listed::without_table(at..range.start.max(at)));
                at = at.max(range.end);
            }
            modules.push(Listed::without_table(at.min(mapping.end)..mapping.end));
        }
        if self.has_room(modules.len() * size_of::<Listed>()) {
            self.area.publish(&modules).map_err(Error::other)?;
        }
        for file in images.iter().filter_map(|image| image.held(Some(process))) {
            if !self.held.iter().any(|held| Arc::ptr_eq(held, &file)) {
                self.held.push(file);
            }
        }
        Ok(())
    }

    fn has_room(&self, more: usize) -> bool {
        self.area.bytes().len() as u64 + more as u64 + 64 <= self.room
    }

    /// Adds a table, if there is anything in it and room for it.
    fn add(&mut self, table: &Table) -> Result<Option<Listed>, Error> {
        if table.is_empty() || !self.has_room(table.size()) {
            return Ok(None);
        }
        self.area.add(table).map(Some).map_err(Error::other)
    }
}

/// Where a process has code.
fn code(maps: &Mappings) -> Vec<Range<u64>> {
    let code = maps.iter().filter(|mapping| mapping.perms.exec);
    code.map(|mapping| mapping.start.0..mapping.end.0).collect()
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
