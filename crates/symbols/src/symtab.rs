//! Which symbols a table holds, and with which versions.

use object::{
    LittleEndian, elf,
    read::elf::{FileHeader, SectionHeader, Sym},
};

use crate::{
    image::{Image, by_class},
    name::LONGEST_NAME,
};

/// Which of a file's two symbol tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Table {
    /// `.symtab`, for linkers and debuggers.
    Static,
    /// `.dynsym`, for the dynamic loader.
    Dynamic,
}

/// A defined symbol that has a name and an address.
pub(crate) struct Symbol<'b> {
    pub name: &'b [u8],
    /// Version name, and whether it is the default one.
    pub version: Option<(&'b [u8], bool)>,
    pub address: u64,
    pub size: u64,
    pub kind: elf::SymbolType,
    pub binding: elf::SymbolBind,
    pub other: u8,
}

/// Calls `each` for every defined symbol of a table. An error says why the table could not be read.
pub(crate) fn for_each_symbol<'b>(
    image: &Image,
    bytes: &'b [u8],
    table: Table,
    each: &mut dyn FnMut(Symbol<'b>),
) -> Result<(), object::read::Error> {
    by_class!(image.is_64, walk(bytes, table, each))
}

fn walk<'b, H: FileHeader<Endian = LittleEndian>>(
    bytes: &'b [u8],
    table: Table,
    each: &mut dyn FnMut(Symbol<'b>),
) -> Result<(), object::read::Error> {
    let e = LittleEndian;
    let sections = H::parse(bytes)?.sections(e, bytes)?;
    let kind = match table {
        Table::Static => elf::SHT_SYMTAB,
        Table::Dynamic => elf::SHT_DYNSYM,
    };
    let symbols = sections.symbols(e, bytes, kind)?;
    let versions = match table {
        Table::Dynamic => sections.versions(e, bytes)?,
        Table::Static => None,
    };
    let strings = match sections.section(symbols.string_section()) {
        Ok(section) => section.data(e, bytes)?,
        Err(_) => &[],
    };
    // Every name is looked through for its end. Names overlap legitimately, but only a little.
    let mut budget = bytes.len().saturating_mul(8).saturating_add(1 << 16);
    for (index, symbol) in symbols.enumerate() {
        let section = symbol.st_shndx(e);
        if section == elf::SHN_UNDEF || section == elf::SHN_ABS || section == elf::SHN_COMMON {
            continue;
        }
        let name = name_at(strings, symbol.st_name(e));
        budget = budget.saturating_sub(name.map_or(LONGEST_NAME, <[u8]>::len) + 1);
        if budget == 0 {
            break;
        }
        let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
        let version = versions.as_ref().and_then(|versions| {
            let index = versions.version_index(e, index);
            let version = versions.version(index.index()).ok()??;
            Some((version.name(), !index.is_hidden()))
        });
        each(Symbol {
            name,
            version,
            address: symbol.st_value(e).into(),
            size: symbol.st_size(e).into(),
            kind: symbol.st_type(),
            binding: symbol.st_bind(),
            other: symbol.st_other().0,
        });
    }
    Ok(())
}

/// Whether the dynamic loader looks for a symbol with this name in other files.
pub(crate) fn imports(image: &Image, bytes: &[u8], name: &str) -> bool {
    by_class!(image.is_64, is_imported(bytes, name)).unwrap_or(false)
}

fn is_imported<H: FileHeader<Endian = LittleEndian>>(
    bytes: &[u8],
    name: &str,
) -> Result<bool, object::read::Error> {
    let e = LittleEndian;
    let sections = H::parse(bytes)?.sections(e, bytes)?;
    let symbols = sections.symbols(e, bytes, elf::SHT_DYNSYM)?;
    let strings = sections.section(symbols.string_section())?.data(e, bytes)?;
    let undefined = symbols.iter().filter(|symbol| symbol.st_shndx(e) == elf::SHN_UNDEF);
    // Compared where it lies, so a name without an end costs no more than the name that is asked for.
    let mut names = undefined.filter_map(|symbol| strings.get(symbol.st_name(e) as usize..));
    Ok(names.any(|at| at.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))))
}

/// Address of what the file defines by this name in its full symbol table.
pub(crate) fn defined(image: &Image, bytes: &[u8], name: &str) -> Option<u64> {
    by_class!(image.is_64, find_defined(bytes, name)).ok().flatten()
}

fn find_defined<H: FileHeader<Endian = LittleEndian>>(
    bytes: &[u8],
    name: &str,
) -> Result<Option<u64>, object::read::Error> {
    let e = LittleEndian;
    let sections = H::parse(bytes)?.sections(e, bytes)?;
    let symbols = sections.symbols(e, bytes, elf::SHT_SYMTAB)?;
    let strings = sections.section(symbols.string_section())?.data(e, bytes)?;
    let is_it = |offset: u32| {
        let rest = strings.get(offset as usize..).and_then(|at| at.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    };
    let mut defined = symbols.iter().filter(|symbol| symbol.st_shndx(e) != elf::SHN_UNDEF);
    Ok(defined.find(|symbol| is_it(symbol.st_name(e))).map(|symbol| symbol.st_value(e).into()))
}

fn name_at(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(offset as usize..)?;
    let window = rest.get(..LONGEST_NAME + 1).unwrap_or(rest);
    let len = window.iter().position(|&byte| byte == 0)?;
    Some(&window[..len])
}
