//! Which functions did Go's compiler make, and which its assembler?
//!
//! Go keeps a table of its functions in the program for its own unwinder, also where symbols were stripped: `.gopclntab`. What is read of it is, for
//! each function, where it begins and a flag that says whether it was written in assembly.
//!
//! | offset in the header | 64 bits |
//! |---|---|
//! | 0 | magic number, in 32 bits; then two bytes 0, the smallest instruction, the size of a pointer |
//! | 8 | number of functions |
//! | 24 | address that the functions' are told from (`runtime.text`), or 0 |
//! | 64 | offset of the list of functions: pairs of 32 bits, distance of the function and offset of its record in the list |
//!
//! Source: `src/runtime/symtab.go` of Go (`pcHeader`, `_func`, `funcFlagAsm`). Tables of before Go 1.18 have no such flag, or cannot be told from
//! those that have none.

use crate::frames::little_endian;

/// From Go 1.20 on, where a record has the function's first line, too.
const GO_1_20: u64 = 0xffff_fff1;
const GO_1_18: u64 = 0xffff_fff0;

const COUNT: usize = 8;
const TEXT: usize = 24;
const FUNCTIONS: usize = 64;

/// The flag of functions that were written in assembly.
const ASSEMBLY: u8 = 1 << 2;

/// The functions that Go's compiler has made.
#[derive(Debug, Default)]
pub(crate) struct GoTable {
    /// Where they begin, sorted.
    compiled: Vec<u64>,
}

impl GoTable {
    /// What `table` says, of a 64-bit program. `text`: what the symbol table says is `runtime.text`, if it says that. A table that cannot be read
    /// tells of no function.
    pub(crate) fn read(table: &[u8], text: Option<u64>) -> GoTable {
        let mut compiled = read(table, text).unwrap_or_default();
        compiled.sort_unstable();
        GoTable { compiled }
    }

    /// Whether a function of the compiler's begins at `address`.
    pub(crate) fn is_compiled(&self, address: u64) -> bool {
        self.compiled.binary_search(&address).is_ok()
    }
}

fn read(table: &[u8], text: Option<u64>) -> Option<Vec<u64>> {
    let number = |at: usize, size: usize| table.get(at..at.checked_add(size)?).map(little_endian);
    let flag_at = match number(0, 4)? {
        GO_1_20 => 41,
        GO_1_18 => 37,
        _ => return None,
    };
    let text = match (number(TEXT, 8)?, text) {
        (0, symbol) => symbol?,
        (own, None) => own,
        (own, Some(symbol)) => (own == symbol).then_some(own)?,
    };
    let list = table.get(usize::try_from(number(FUNCTIONS, 8)?).ok()?..)?;
    let count = usize::try_from(number(COUNT, 8)?).ok()?;
    let (entries, _) = list.as_chunks::<8>();
    let is_assembly = |record: u64| Some(list.get(record as usize + flag_at)? & ASSEMBLY != 0);
    let function = |entry: &[u8; 8]| {
        let (distance, record) = entry.split_at(4);
        let address = text.checked_add(little_endian(distance))?;
        Some((address, is_assembly(little_endian(record))?))
    };
    // One that cannot be read spoils the rest: it is not what it is taken for.
    let functions: Option<Vec<(u64, bool)>> = entries.get(..count)?.iter().map(function).collect();
    Some(
        functions?
            .into_iter()
            .filter_map(|(address, is_assembly)| (!is_assembly).then_some(address))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of functions at these distances with these flags.
    fn table(magic: u64, text: u64, functions: &[(u32, u8)]) -> Vec<u8> {
        const LIST: usize = 72;
        let mut table = vec![0; LIST];
        table[..4].copy_from_slice(&(magic as u32).to_le_bytes());
        table[COUNT..][..8].copy_from_slice(&(functions.len() as u64).to_le_bytes());
        table[TEXT..][..8].copy_from_slice(&text.to_le_bytes());
        table[FUNCTIONS..][..8].copy_from_slice(&(LIST as u64).to_le_bytes());
        let records = 8 * functions.len() + 8;
        for (index, (distance, _)) in functions.iter().enumerate() {
            table.extend(distance.to_le_bytes());
            table.extend(((records + 44 * index) as u32).to_le_bytes());
        }
        table.extend([0; 8]);
        for (_, flag) in functions {
            let mut record = [0; 44];
            record[if magic == GO_1_20 { 41 } else { 37 }] = *flag;
            table.extend(record);
        }
        table
    }

    fn compiled(table: &[u8], text: Option<u64>) -> Vec<u64> {
        GoTable::read(table, text).compiled
    }

    #[test]
    fn assembly_is_told_from_what_is_compiled() {
        for magic in [GO_1_18, GO_1_20] {
            let table = table(magic, 0x401000, &[(0, 0), (0x20, ASSEMBLY), (0x40, 1), (0x60, 7)]);
            assert_eq!(compiled(&table, None), [0x401000, 0x401040]);
            assert_eq!(compiled(&table, Some(0x401000)), [0x401000, 0x401040]);
            assert!(GoTable::read(&table, None).is_compiled(0x401040));
            assert!(!GoTable::read(&table, None).is_compiled(0x401020));
        }
    }

    #[test]
    fn the_symbol_tells_where_the_header_does_not() {
        let table = table(GO_1_20, 0, &[(0x10, 0)]);
        assert_eq!(compiled(&table, Some(0x5000)), [0x5010]);
        assert_eq!(compiled(&table, None), []);
    }

    #[test]
    fn what_cannot_be_believed_tells_of_no_function() {
        let good = table(GO_1_20, 0x401000, &[(0, 0), (0x20, 0)]);
        assert_eq!(compiled(&good, None).len(), 2);
        assert_eq!(compiled(&good, Some(0x402000)), [], "another place than the symbol's");
        assert_eq!(compiled(&table(0xffff_fffa, 0x401000, &[(0, 0)]), None), [], "Go 1.16, or 1.17");
        for length in 0..good.len() - 2 {
            assert_eq!(compiled(&good[..length], None), [], "cut at {length}");
        }
        let mut many = good.clone();
        many[COUNT..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(compiled(&many, None), []);
        let mut far = good;
        far[FUNCTIONS..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(compiled(&far, None), []);
        assert_eq!(compiled(&table(GO_1_20, u64::MAX, &[(1, 0)]), None), [], "behind the address space");
    }
}
