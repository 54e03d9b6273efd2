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

/// The code addresses in relocations or, for fixed executables, also in data; sorted. And what could not be read of them.
pub(crate) fn code_pointers(image: &Image, bytes: &[u8], code: &[CodeSection]) -> (Vec<u64>, Option<String>) {
    let mut pointers = Vec::new();
    // Of most words a look at the first and the last section is enough.
    let start = code.first().map_or(0, |section| section.range.start);
    let length = code.iter().map(|section| section.range.end).max().unwrap_or(0).saturating_sub(start);
    let mut keep = |address: u64| {
        let address = if image.is_64 { address } else { address & 0xffff_ffff };
        if address.wrapping_sub(start) < length && section_at(code, address).is_some() {
            pointers.push(address);
        }
    };
    let mut whole =
        by_class!(image.is_64, relocated(image, bytes, &mut keep)).map_err(|error| error.to_string());
    if image.is_fixed {
        whole = whole.and(words(image, bytes, &mut keep));
    } else if image.sections.is_empty() {
        // Its relocations are found by their sections.
        whole = whole.and(Err("there are no section headers".to_owned()));
    }
    keep(image.entry);
    pointers.sort_unstable();
    pointers.dedup();
    (pointers, whole.err())
}

/// Sections that claim the same bytes over and over.
const CLAIMED: &str = "the sections are larger than the file";

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
) -> Result<(), Box<dyn std::error::Error>> {
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
        budget = budget.checked_sub(size as usize).ok_or(CLAIMED)?;
        if let Some((relocations, _)) = section.rela(e, bytes)? {
            for relocation in relocations {
                let addend = relocation.r_addend(e).into() as u64;
                resolve(relocation.r_type(e, false).0, relocation.r_sym(e, false), addend);
            }
        } else if let Some((relocations, _)) = section.rel(e, bytes)? {
            for relocation in relocations {
                let addend = stored(relocation.r_offset(e).into());
                resolve(relocation.r_type(e).0, relocation.r_sym(e), addend);
            }
        } else if let Some(relocations) = section.relr(e, bytes)? {
            relocated_by_relr.extend(relocations.map(Into::into));
        }
    }
    relocated_by_relr.into_iter().map(stored).for_each(keep);
    Ok(())
}

/// What the loader puts at `address`, where that is an address of the file's own.
pub(crate) fn relative_at(image: &Image, bytes: &[u8], address: u64) -> Option<u64> {
    by_class!(image.is_64, relative(image, bytes, address)).ok().flatten()
}

fn relative<H: FileHeader<Endian = LittleEndian>>(
    image: &Image,
    bytes: &[u8],
    address: u64,
) -> Result<Option<u64>, object::read::Error> {
    let e = LittleEndian;
    for section in H::parse(bytes)?.sections(e, bytes)?.iter() {
        let relocations = section.rela(e, bytes)?.map_or(&[][..], |(relocations, _)| relocations);
        let is_it = |relocation: &&H::Rela| {
            let is_relative = form(image.machine, relocation.r_type(e, false).0) == Some(Form::Relative);
            is_relative && relocation.r_offset(e).into() == address
        };
        if let Some(relocation) = relocations.iter().find(is_it) {
            return Ok(Some(relocation.r_addend(e).into() as u64));
        }
    }
    Ok(None)
}

/// Every aligned word in sections, or segments, that are not code.
fn words(image: &Image, bytes: &[u8], mut keep: impl FnMut(u64)) -> Result<(), String> {
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
        budget = budget.checked_sub(range.len()).ok_or(CLAIMED)?;
        let skipped = (address as usize).wrapping_neg() % size;
        let contents = bytes.get(range).and_then(|contents| contents.get(skipped..)).unwrap_or(&[]);
        match size {
            8 => contents.as_chunks().0.iter().for_each(|word| keep(u64::from_le_bytes(*word))),
            _ => contents.chunks_exact(size).for_each(|word| keep(little_endian(word))),
        }
    }
    Ok(())
}
