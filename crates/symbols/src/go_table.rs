//! Which functions did Go's compiler make, and which its assembler, or C's?
//!
//! Go keeps a table of its functions in the program for its own unwinder, also where symbols were stripped: `.gopclntab`. What is
//! read of it, in 64-bit programs:
//!
//! | offset in the header | |
//! |---|---|
//! | 0 | magic number, in 32 bits; two bytes 0; the smallest instruction, 1; the size of a pointer, 8 |
//! | 8 | number of functions |
//! | 24 | address that the functions' are told from (`runtime.text`), or 0 |
//! | 64 | offset of the list of functions: pairs of 32 bits, distance of the function and offset of its record in the list |
//!
//! | offset in a record | |
//! |---|---|
//! | 16, 24 | offsets of the tables of its stack pointer and of its lines, in 32 bits; 0 where there are none |
//! | 37, from Go 1.20 on 41 | flags, one of which says that it was written in assembly |
//!
//! Functions of C that Go's own linker has linked in stand in the table, too, but have no tables there. What they keep for their
//! callers Go's do not, so nothing is believed of a function but what all of its record says.
//!
//! Source: `src/runtime/symtab.go` (`pcHeader`, `_func`, `funcFlagAsm`, `moduledataverify1`) and `src/cmd/link/internal/ld/pcln.go` of
//! Go. Tables of before Go 1.18 have no such flag, or cannot be told from those that have none.

use crate::{Module, frames::little_endian};

/// From Go 1.20 on, where a record has the function's first line, too.
const GO_1_20: u32 = 0xffff_fff1;
const GO_1_18: u32 = 0xffff_fff0;

/// What follows the magic number.
const OF_X86_64: [u8; 4] = [0, 0, 1, 8];
const COUNT: usize = 8;
const TEXT: usize = 24;
const FUNCTIONS: usize = 64;

const STACK_TABLE: usize = 16;
const LINE_TABLE: usize = 24;
const FLAGS_1_18: usize = 37;
const FLAGS_1_20: usize = 41;

/// The flag of functions that were written in assembly.
const ASSEMBLY: u8 = 1 << 2;

/// The sections that Go has its table of functions in, of programs at fixed addresses and of others.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];

impl Module {
    /// Whether Go's compiler made it: its run-time tables are in there.
    pub fn is_go(&self) -> bool {
        let mut marks = SECTIONS.iter().chain(&[".go.buildinfo", ".note.go.buildid"]);
        marks.any(|name| self.image.section(name).is_some())
    }

    /// Whether Go's compiler, and not its assembler or C's compiler, made the function that begins at `address`. Of programs made
    /// before Go 1.18, and of other ones than 64-bit x86's, that is not known.
    pub fn is_compiled_by_go(&self, address: u64) -> bool {
        let table = self.go_table.get_or_init(|| {
            let section = SECTIONS.iter().find(|name| self.image.section(name).is_some());
            let read = |name: &&str| {
                let table = self.image.section_bytes(&self.source, name);
                GoTable::read(table, self.variable("runtime.text"))
            };
            section.filter(|_| self.image.is_64).map(read).unwrap_or_default()
        });
        table.is_compiled(address)
    }
}

/// The functions that Go's compiler has made.
#[derive(Debug, Default)]
pub(crate) struct GoTable {
    /// Where they begin, sorted.
    compiled: Vec<u64>,
}

/// Who made a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    Compiler,
    Assembler,
    /// Not known.
    Other,
}

impl GoTable {
    /// What `table` says. `text`: what the symbol table says is `runtime.text`, if it says that. A table that cannot be read tells of no
    /// function.
    fn read(table: &[u8], text: Option<u64>) -> GoTable {
        let functions = read(table, text).unwrap_or_default();
        // Go's run-time system has functions in assembly. A table that tells of none does not tell.
        let tells = functions.iter().any(|(_, maker)| *maker == Maker::Assembler);
        let compiled = functions.iter().filter(|(_, maker)| tells && *maker == Maker::Compiler);
        let mut compiled: Vec<u64> = compiled.map(|(address, _)| *address).collect();
        compiled.sort_unstable();
        GoTable { compiled }
    }

    /// Whether a function of the compiler's begins at `address`.
    fn is_compiled(&self, address: u64) -> bool {
        self.compiled.binary_search(&address).is_ok()
    }
}

/// The functions by address, each with who made it.
fn read(table: &[u8], text: Option<u64>) -> Option<Vec<(u64, Maker)>> {
    let number = |at: usize| table.get(at..at.checked_add(8)?).map(little_endian);
    let flags_at = match little_endian(table.get(..4)?) as u32 {
        GO_1_20 => FLAGS_1_20,
        GO_1_18 => FLAGS_1_18,
        _ => return None,
    };
    if table.get(4..8)? != OF_X86_64 {
        return None;
    }
    let text = match (number(TEXT)?, text) {
        (0, symbol) => symbol?,
        (own, None) => own,
        (own, Some(symbol)) => (own == symbol).then_some(own)?,
    };
    let list = table.get(usize::try_from(number(FUNCTIONS)?).ok()?..)?;
    let maker = |record: u64| {
        let record = list.get(usize::try_from(record).ok()?..)?;
        let has = |at: usize| Some(record.get(at..at + 4)? != [0; 4]);
        let is_assembly = record.get(flags_at)? & ASSEMBLY != 0;
        Some(match has(STACK_TABLE)? && has(LINE_TABLE)? {
            true if is_assembly => Maker::Assembler,
            true => Maker::Compiler,
            false => Maker::Other,
        })
    };
    let function = |entry: &[u8; 8]| {
        let (distance, record) = entry.split_at(4);
        Some((text.checked_add(little_endian(distance))?, maker(little_endian(record))?))
    };
    let (entries, _) = list.as_chunks::<8>();
    // One that cannot be read spoils the rest: it is not what it is taken for.
    entries.get(..usize::try_from(number(COUNT)?).ok()?)?.iter().map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of C's in a table.
    const NO_TABLES: u8 = 1 << 7;

    /// A table of functions at these distances with these flags.
    fn table(magic: u32, text: u64, functions: &[(u32, u8)]) -> Vec<u8> {
        const LIST: usize = 72;
        let mut table = vec![0; LIST];
        table[..4].copy_from_slice(&magic.to_le_bytes());
        table[4..8].copy_from_slice(&OF_X86_64);
        table[COUNT..][..8].copy_from_slice(&(functions.len() as u64).to_le_bytes());
        table[TEXT..][..8].copy_from_slice(&text.to_le_bytes());
        table[FUNCTIONS..][..8].copy_from_slice(&(LIST as u64).to_le_bytes());
        let records = 8 * functions.len() + 8;
        for (index, (distance, _)) in functions.iter().enumerate() {
            table.extend(distance.to_le_bytes());
            table.extend(((records + 44 * index) as u32).to_le_bytes());
        }
        table.extend([0; 8]);
        for (_, flags) in functions {
            let mut record = [0; 44];
            record[STACK_TABLE] = u8::from(flags & NO_TABLES == 0);
            record[LINE_TABLE + 3] = record[STACK_TABLE];
            record[if magic == GO_1_20 { FLAGS_1_20 } else { FLAGS_1_18 }] = *flags & !NO_TABLES;
            table.extend(record);
        }
        table
    }

    fn compiled(table: &[u8], text: Option<u64>) -> Vec<u64> {
        GoTable::read(table, text).compiled
    }

    #[test]
    fn what_is_compiled_is_told_from_assembly_and_from_c() {
        for magic in [GO_1_18, GO_1_20] {
            let functions = [(0, 0), (0x20, ASSEMBLY), (0x40, 1), (0x60, 7), (0x80, NO_TABLES)];
            let table = table(magic, 0x401000, &functions);
            assert_eq!(compiled(&table, None), [0x401000, 0x401040]);
            assert_eq!(compiled(&table, Some(0x401000)), [0x401000, 0x401040]);
            let table = GoTable::read(&table, None);
            assert_eq!([0x401040, 0x401020, 0x401080].map(|at| table.is_compiled(at)), [true, false, false]);
        }
    }

    #[test]
    fn the_symbol_tells_where_the_header_does_not() {
        let table = table(GO_1_20, 0, &[(0, ASSEMBLY), (0x10, 0)]);
        assert_eq!(compiled(&table, Some(0x5000)), [0x5010]);
        assert_eq!(compiled(&table, None), []);
    }

    #[test]
    fn what_cannot_be_believed_tells_of_no_function() {
        let good = table(GO_1_20, 0x401000, &[(0, 0), (0x20, 0), (0x40, ASSEMBLY)]);
        assert_eq!(compiled(&good, None).len(), 2);
        assert_eq!(compiled(&good, Some(0x402000)), [], "another place than the symbol's");
        let none_in_assembly = table(GO_1_20, 0x401000, &[(0, 0), (0x20, 0)]);
        assert_eq!(compiled(&none_in_assembly, None), []);
        assert_eq!(compiled(&table(0xffff_fffa, 0x401000, &[(0, 0), (8, ASSEMBLY)]), None), [], "Go 1.17");
        for length in 0..good.len() - 2 {
            assert_eq!(compiled(&good[..length], None), [], "cut at {length}");
        }
        let changed = |at: usize, bytes: &[u8]| {
            let mut table = good.clone();
            table[at..][..bytes.len()].copy_from_slice(bytes);
            compiled(&table, None)
        };
        assert_eq!(changed(7, &[4]), [], "32 bits");
        assert_eq!(changed(COUNT, &[0xff; 8]), []);
        assert_eq!(changed(FUNCTIONS, &[0xff; 8]), []);
        assert_eq!(changed(TEXT, &[0xff; 8]), [], "behind the address space");
    }
}
