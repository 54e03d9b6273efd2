//! Which code addresses data refers to.
//!
//! An indirect branch can only go where a pointer leads. In a position-independent file the loader must adjust every
//! pointer, so the relocations list them all. A fixed executable has no such list: there, every aligned word of its
//! data that could be a code address is taken for one, which names too many but misses none.

use object::{
    LittleEndian, elf,
    read::elf::{FileHeader, Rel, Rela, SectionHeader, Sym},
};

use crate::{
    frames::little_endian,
    image::{CodeSection, Image, Machine, by_class, section_at},
};

/// How a relocation makes a pointer.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Load bias plus addend.
    Relative,
    /// Symbol plus addend.
    Symbol,
    /// Symbol alone; any addend belongs to the slot's old contents.
    Slot,
}

/// The code addresses in relocations or, for fixed executables, also in data; sorted.
pub(crate) fn code_pointers(image: &Image, bytes: &[u8], code: &[CodeSection]) -> Vec<u64> {
    let mut pointers = Vec::new();
    let mut keep = |address: u64| {
        let address = if image.is_64 { address } else { address & 0xffff_ffff };
        if section_at(code, address).is_some() {
            pointers.push(address);
        }
    };
    // What cannot be read names nothing; the headers have been checked before.
    let _ = by_class!(image.is_64, relocated(image, bytes, &mut keep));
    if image.is_fixed {
        words(image, bytes, &mut keep);
    }
    keep(image.entry);
    pointers.sort_unstable();
    pointers.dedup();
    pointers
}

fn form(machine: Machine, kind: u32) -> Option<Form> {
    use Form::{Relative, Slot, Symbol};
    let rows: &[(u32, Form)] = match machine {
        Machine::X86_64 => &[
            (elf::R_X86_64_RELATIVE.0, Relative),
            (elf::R_X86_64_RELATIVE64.0, Relative),
            (elf::R_X86_64_IRELATIVE.0, Relative),
            (elf::R_X86_64_64.0, Symbol),
            (elf::R_X86_64_GLOB_DAT.0, Slot),
            (elf::R_X86_64_JUMP_SLOT.0, Slot),
        ],
        Machine::I386 => &[
            (elf::R_386_RELATIVE.0, Relative),
            (elf::R_386_IRELATIVE.0, Relative),
            (elf::R_386_32.0, Symbol),
            (elf::R_386_GLOB_DAT.0, Slot),
            (elf::R_386_JMP_SLOT.0, Slot),
        ],
        Machine::AArch64 => &[
            (elf::R_AARCH64_RELATIVE.0, Relative),
            (elf::R_AARCH64_IRELATIVE.0, Relative),
            (elf::R_AARCH64_ABS64.0, Symbol),
            (elf::R_AARCH64_GLOB_DAT.0, Symbol),
            (elf::R_AARCH64_JUMP_SLOT.0, Slot),
        ],
        Machine::PowerPc64Le => &[
            (elf::R_PPC64_RELATIVE.0, Relative),
            (elf::R_PPC64_IRELATIVE.0, Relative),
            (elf::R_PPC64_ADDR64.0, Symbol),
            (elf::R_PPC64_GLOB_DAT.0, Symbol),
            (elf::R_PPC64_JMP_SLOT.0, Slot),
        ],
    };
    rows.iter().find(|row| row.0 == kind).map(|row| row.1)
}

fn relocated<H: FileHeader<Endian = LittleEndian>>(
    image: &Image,
    bytes: &[u8],
    keep: &mut dyn FnMut(u64),
) -> object::read::Result<()> {
    let e = LittleEndian;
    let sections = H::parse(bytes)?.sections(e, bytes)?;
    let symbols = sections.symbols(e, bytes, elf::SHT_DYNSYM)?;
    let mut resolve = |kind: u32, index: u32, addend: u64| {
        let symbol = || {
            let symbol = symbols.symbol(object::read::SymbolIndex(index as usize)).ok()?;
            (symbol.st_shndx(e) != elf::SHN_UNDEF).then(|| -> u64 { symbol.st_value(e).into() })
        };
        let target = match form(image.machine, kind) {
            Some(Form::Relative) => Some(addend),
            Some(Form::Symbol) => symbol().map(|value| value.wrapping_add(addend)),
            Some(Form::Slot) => symbol(),
            None => None,
        };
        target.into_iter().for_each(&mut *keep);
    };
    let stored =
        |address: u64| image.bytes_at(bytes, address).get(..image.pointer_size()).map_or(0, little_endian);
    let mut relocated_by_relr: Vec<u64> = Vec::new();
    // Several headers may not claim the same bytes over and over.
    let mut budget = bytes.len();
    for section in sections.iter() {
        let flags: u64 = section.sh_flags(e).0;
        let size: u64 = section.sh_size(e).into();
        let kind = section.sh_type(e);
        if !matches!(kind, elf::SHT_RELA | elf::SHT_REL | elf::SHT_RELR) || flags & elf::SHF_ALLOC.0 == 0 {
            continue;
        }
        let Some(left) = budget.checked_sub(size as usize) else { break };
        budget = left;
        if let Ok(Some((relocations, _))) = section.rela(e, bytes) {
            for relocation in relocations {
                let addend = relocation.r_addend(e).into() as u64;
                resolve(relocation.r_type(e, false).0, relocation.r_sym(e, false), addend);
            }
        } else if let Ok(Some((relocations, _))) = section.rel(e, bytes) {
            for relocation in relocations {
                let addend = stored(relocation.r_offset(e).into());
                resolve(relocation.r_type(e).0, relocation.r_sym(e), addend);
            }
        } else if let Ok(Some(relocations)) = section.relr(e, bytes) {
            relocated_by_relr.extend(relocations.map(Into::into));
        }
    }
    relocated_by_relr.into_iter().map(stored).for_each(keep);
    Ok(())
}

/// Every aligned word in sections, or segments, that are not code.
fn words(image: &Image, bytes: &[u8], keep: &mut dyn FnMut(u64)) {
    let size = image.pointer_size();
    let data = image.sections.iter().filter(|section| section.has(elf::SHF_ALLOC) && !section.is_code());
    let mut parts: Vec<_> = data.map(|section| (section.address, section.file.clone())).collect();
    if parts.is_empty() {
        let data = image.segments.iter().filter(|segment| !segment.executable);
        parts.extend(data.map(|segment| {
            (segment.address, segment.offset as usize..(segment.offset + segment.file_size) as usize)
        }));
    }
    let mut budget = bytes.len();
    for (address, range) in parts {
        let Some(left) = budget.checked_sub(range.len()) else { break };
        budget = left;
        let skipped = (address as usize).wrapping_neg() % size;
        let contents = bytes.get(range).and_then(|contents| contents.get(skipped..)).unwrap_or(&[]);
        contents.chunks_exact(size).for_each(|word| keep(little_endian(word)));
    }
}
