//! Which functions does a Go program have, and which of them did Go's compiler make, and which its assembler, or C's?
//!
//! Go keeps a table of its functions in the program for its own unwinder, also where symbols were stripped: `.gopclntab`. What is
//! read of it, in 64-bit programs:
//!
//! | offset in the header | |
//! |---|---|
//! | 0 | magic number, in 32 bits; two bytes 0; the smallest instruction, 1; the size of a pointer, 8 |
//! | 8 | number of functions |
//! | 24 | address that the functions' are told from (`runtime.text`), or 0 where the loader puts it there |
//! | 32 | offset of the names, each of which ends with a 0 |
//! | 56 | offset of the tables of values by address |
//! | 64 | offset of the list of functions: pairs of 32 bits, distance of the function and offset of its record in the list |
//!
//! | offset in a record | |
//! |---|---|
//! | 4 | offset of its name among the names, in 32 bits |
//! | 16, 24 | offsets of the tables of its stack pointer and of its lines, in 32 bits; 0 where there are none |
//! | 36, from Go 1.20 on 40 | what the run-time system knows it by; wrappers have a number of their own |
//! | 37, from Go 1.20 on 41 | flags, one of which says that it was written in assembly |
//!
//! A table of values has, for each run of addresses with one value, what is added to the value and how many addresses there are, each in 7 bits a
//! byte, the lowest first; 0 is added to none but the first, and ends it. So it tells where its function ends.
//!
//! Functions of C that Go's own linker has linked in stand in the table, too, but have no tables there. What they keep for their
//! callers Go's do not, so nothing is believed of a function but what all of its record says.
//!
//! Source: `src/runtime/symtab.go` (`pcHeader`, `_func`, `funcFlagAsm`, `moduledataverify1`) and `src/cmd/link/internal/ld/pcln.go` of
//! Go. Tables of before Go 1.18 have no such flag, or cannot be told from those that have none.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{Module, frames::little_endian, name::LONGEST_NAME, pointers};

/// From Go 1.20 on, where a record has the function's first line, too.
const GO_1_20: u32 = 0xffff_fff1;
const GO_1_18: u32 = 0xffff_fff0;

/// What follows the magic number.
const OF_X86_64: [u8; 4] = [0, 0, 1, 8];
const COUNT: usize = 8;
const TEXT: usize = 24;
const NAMES: usize = 32;
const VALUES: usize = 56;
const FUNCTIONS: usize = 64;

const NAME: usize = 4;
const STACK_TABLE: usize = 16;
const LINE_TABLE: usize = 24;
const FLAGS_1_18: usize = 37;
const FLAGS_1_20: usize = 41;

/// The flag of functions that were written in assembly.
const ASSEMBLY: u8 = 1 << 2;

/// How many times over the table may be read because functions share what is in it.
const MOST_SHARED: usize = 16;

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
        self.go_table.get_or_init(|| GoTable::of(&self.go_functions())).is_compiled(address)
    }

    /// What its table of functions says, by address; nothing if it has none that can be read.
    pub(crate) fn go_functions(&self) -> Vec<GoFunction<'_>> {
        let Some((address, table)) = self.go_table_bytes().filter(|_| self.image.is_64) else {
            return Vec::new();
        };
        let relocated = || pointers::relative_at(&self.image, &self.source, address + TEXT as u64);
        read(table, self.variable("runtime.text"), relocated).unwrap_or_default()
    }

    /// Where the table is, and its bytes: in a section of its own, or, where the system's linker has put it elsewhere, where a symbol says.
    fn go_table_bytes(&self) -> Option<(u64, &[u8])> {
        let section = |name: &&str| {
            Some((self.image.section(name)?.address, self.image.section_bytes(&self.source, name)))
        };
        let by_symbols = || {
            let [start, end] = ["runtime.pclntab", "runtime.epclntab"].map(|name| self.variable(name));
            let size = end?.checked_sub(start?)?;
            Some((start?, self.bytes_at(start?).get(..usize::try_from(size).ok()?)?))
        };
        SECTIONS.iter().find_map(section).or_else(by_symbols)
    }
}

/// A function in the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GoFunction<'t> {
    pub address: u64,
    /// 0: not known.
    pub size: u64,
    /// In programs made before Go 1.21, without what is in brackets.
    pub name: &'t [u8],
    maker: Maker,
    /// What Go's run-time system knows it by, if it does; wrappers have a number of their own.
    id: u8,
}

/// The functions that Go's compiler has made.
#[derive(Debug, Default)]
pub(crate) struct GoTable {
    /// Where they begin, sorted.
    compiled: Vec<u64>,
}

/// Who made a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    Compiler,
    Assembler,
    /// Not known.
    Other,
}

impl GoTable {
    fn of(functions: &[GoFunction<'_>]) -> GoTable {
        // Go's run-time system has functions in assembly. A table that tells of none does not tell.
        let tells = functions.iter().any(|function| function.maker == Maker::Assembler);
        let compiled = functions.iter().filter(|function| tells && function.maker == Maker::Compiler);
        GoTable { compiled: compiled.map(|function| function.address).collect() }
    }

    /// Whether a function of the compiler's begins at `address`.
    fn is_compiled(&self, address: u64) -> bool {
        self.compiled.binary_search(&address).is_ok()
    }
}

/// Those at which all calls of their names arrive, and which end where is known.
///
/// What assembly calls, or what calls assembly, has a wrapper of its name for the other calling convention, made by the compiler, which calls
/// it. What number wrappers have, those of assembly tell. Where it is not known which of two is one, neither is given.
pub(crate) fn called(functions: Vec<GoFunction<'_>>) -> Vec<GoFunction<'_>> {
    let mut by_name: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (index, function) in functions.iter().enumerate() {
        // Instances of generic functions share a name, too, and assembly calls none.
        if function.maker != Maker::Other && !function.name.contains(&b'[') {
            by_name.entry(function.name).or_default().push(index);
        }
    }
    let several = by_name.into_values().filter(|named| named.len() > 1);
    let (compiled, of_assembly): (Vec<_>, Vec<_>) =
        several.partition(|named| named.iter().all(|index| functions[*index].maker == Maker::Compiler));
    let mut wrappers: Vec<usize> = of_assembly.into_iter().flatten().collect();
    wrappers.retain(|index| functions[*index].maker == Maker::Compiler);
    let ids: BTreeSet<u8> = wrappers.iter().map(|index| functions[*index].id).collect();
    let id = ids.first().copied().filter(|_| ids.len() == 1);
    for named in compiled {
        let (wrapping, called): (Vec<usize>, Vec<usize>) =
            named.iter().partition(|index| Some(functions[**index].id) == id);
        // Some of package reflect's have the wrappers' number, and wrappers.
        wrappers.extend(if called.len() == 1 { wrapping } else { named });
    }
    let wrappers: HashSet<usize> = wrappers.into_iter().collect();
    let all = functions.into_iter().enumerate();
    let called = all.filter(|(index, function)| function.size > 0 && !wrappers.contains(index));
    called.map(|(_, function)| function).collect()
}

/// The functions by address. `symbol`: where `runtime.text` is, as the symbol table says, if it does. `relocated`: the same, as the loader puts
/// it into the header.
fn read(
    table: &[u8],
    symbol: Option<u64>,
    relocated: impl FnOnce() -> Option<u64>,
) -> Option<Vec<GoFunction<'_>>> {
    let number = |at: usize| table.get(at..at.checked_add(8)?).map(little_endian);
    let flags_at = match little_endian(table.get(..4)?) as u32 {
        GO_1_20 => FLAGS_1_20,
        GO_1_18 => FLAGS_1_18,
        _ => return None,
    };
    if table.get(4..8)? != OF_X86_64 {
        return None;
    }
    let text = match (number(TEXT)?, symbol) {
        (0, symbol) => symbol.or_else(relocated)?,
        (own, None) => own,
        (own, Some(symbol)) => (own == symbol).then_some(own)?,
    };
    let part = |at: usize| table.get(usize::try_from(number(at)?).ok()?..);
    let (names, values, list) = (part(NAMES)?, part(VALUES)?, part(FUNCTIONS)?);
    let (entries, _) = list.as_chunks::<8>();
    // One that cannot be read spoils the rest: it is not what it is taken for.
    let entries = entries.get(..usize::try_from(number(COUNT)?).ok()?)?;
    // Functions share names and values, but not over and over.
    let mut budget = MOST_SHARED * table.len();
    let distance = |entry: &[u8; 8]| little_endian(&entry[..4]);
    let mut functions = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let to_next = match entries.get(index + 1) {
            Some(next) => distance(next).checked_sub(distance(entry))?,
            None => u32::MAX.into(),
        };
        let record = list.get(little_endian(&entry[4..]) as usize..)?;
        let word = |at: usize| Some(little_endian(record.get(at..at + 4)?) as usize);
        let name = names.get(word(NAME)?..)?;
        let name = &name[..name.iter().take(LONGEST_NAME + 1).position(|byte| *byte == 0)?];
        budget = budget.checked_sub(name.len() + 1)?;
        let (stack, lines) = (word(STACK_TABLE)?, word(LINE_TABLE)?);
        let (id, is_assembly) = (*record.get(flags_at - 1)?, record.get(flags_at)? & ASSEMBLY != 0);
        let (maker, size) = match stack != 0 && lines != 0 {
            true => {
                let size = covered(values.get(stack..)?, to_next, &mut budget)?;
                (if is_assembly { Maker::Assembler } else { Maker::Compiler }, size)
            }
            false => (Maker::Other, 0),
        };
        let address = text.checked_add(distance(entry))?;
        address.checked_add(size)?;
        functions.push(GoFunction { address, size, name, maker, id });
    }
    Some(functions)
}

/// How many addresses a table of values covers: not 0, and no more than `most`. `budget`: how many bytes may be looked at.
fn covered(values: &[u8], most: u64, budget: &mut usize) -> Option<u64> {
    let (mut bytes, mut covered) = (values.iter(), 0u64);
    let mut number = || {
        let mut number = 0u32;
        for shift in (0..32).step_by(7) {
            *budget = budget.checked_sub(1)?;
            let byte = *bytes.next()?;
            number |= u32::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    };
    loop {
        let is_last = number()? == 0 && covered > 0;
        if is_last {
            return Some(covered);
        }
        let more = number().filter(|more| *more > 0)?;
        covered = Some(covered + u64::from(more)).filter(|covered| *covered <= most)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of C's in a table.
    const NO_TABLES: u8 = 1 << 7;

    /// How long all functions are: 5 and 130 addresses with two values.
    const SIZE: u64 = 135;
    const COVERED: [u8; 6] = [8, 5, 7, 0x82, 1, 0];

    /// A table of functions at these distances with these flags, named `f`, `g` and so on.
    fn table(magic: u32, text: u64, functions: &[(u32, u8)]) -> Vec<u8> {
        let named = |(name, &(distance, flags))| (distance, flags, 0, [name, 0]);
        table_of(magic, text, &(b'f'..).zip(functions).map(named).collect::<Vec<_>>())
    }

    /// The same with their numbers and names.
    fn table_of<const N: usize>(magic: u32, text: u64, functions: &[(u32, u8, u8, [u8; N])]) -> Vec<u8> {
        let mut table = vec![0; 72];
        table[..4].copy_from_slice(&magic.to_le_bytes());
        table[4..8].copy_from_slice(&OF_X86_64);
        table[COUNT..][..8].copy_from_slice(&(functions.len() as u64).to_le_bytes());
        table[TEXT..][..8].copy_from_slice(&text.to_le_bytes());
        let begin = |table: &mut Vec<u8>, part: usize| {
            let at = table.len() as u64;
            table[part..][..8].copy_from_slice(&at.to_le_bytes());
        };
        begin(&mut table, NAMES);
        functions.iter().for_each(|(.., name)| table.extend(name));
        begin(&mut table, VALUES);
        table.push(0);
        table.extend(COVERED);
        begin(&mut table, FUNCTIONS);
        let records = 8 * functions.len() + 8;
        for (index, (distance, ..)) in functions.iter().enumerate() {
            table.extend(distance.to_le_bytes());
            table.extend(((records + 44 * index) as u32).to_le_bytes());
        }
        table.extend([0; 8]);
        for (index, (_, flags, id, _)) in functions.iter().enumerate() {
            let mut record = [0; 44];
            record[NAME] = (N * index) as u8;
            record[STACK_TABLE] = u8::from(flags & NO_TABLES == 0);
            record[LINE_TABLE + 3] = record[STACK_TABLE];
            let flags_at = if magic == GO_1_20 { FLAGS_1_20 } else { FLAGS_1_18 };
            record[flags_at - 1..=flags_at].copy_from_slice(&[*id, *flags & !NO_TABLES]);
            table.extend(record);
        }
        table
    }

    fn compiled(table: &[u8], text: Option<u64>) -> Vec<u64> {
        GoTable::of(&read(table, text, || None).unwrap_or_default()).compiled
    }

    #[test]
    fn what_is_compiled_is_told_from_assembly_and_from_c() {
        for magic in [GO_1_18, GO_1_20] {
            let functions = [(0, 0), (0x200, ASSEMBLY), (0x400, 1), (0x600, 7), (0x800, NO_TABLES)];
            let table = table(magic, 0x401000, &functions);
            assert_eq!(compiled(&table, None), [0x401000, 0x401400]);
            assert_eq!(compiled(&table, Some(0x401000)), [0x401000, 0x401400]);
            let functions = read(&table, None, || None).unwrap();
            let made = GoTable::of(&functions);
            assert_eq!([0x401400, 0x401200, 0x401800].map(|at| made.is_compiled(at)), [true, false, false]);
            let told: Vec<_> = functions.iter().map(|function| (function.name, function.size)).collect();
            let names = [&b"f"[..], b"g", b"h", b"i", b"j"];
            assert_eq!(told, names.map(|name| (name, if name == b"j" { 0 } else { SIZE })));
        }
    }

    #[test]
    fn symbols_or_relocations_tell_where_the_header_does_not() {
        let table = table(GO_1_20, 0, &[(0, ASSEMBLY), (0x100, 0)]);
        assert_eq!(compiled(&table, Some(0x5000)), [0x5100]);
        let relocated = read(&table, None, || Some(0x6000)).unwrap();
        assert_eq!(GoTable::of(&relocated).compiled, [0x6100]);
        assert_eq!(compiled(&table, None), []);
    }

    #[test]
    fn values_cover_addresses_to_their_end() {
        let covered = |values: &[u8], most| covered(values, most, &mut 100);
        assert_eq!(covered(&COVERED, SIZE), Some(SIZE));
        assert_eq!(covered(&[0, 3, 0], SIZE), Some(3), "the first value may be none");
        for cut in 0..COVERED.len() - 1 {
            assert_eq!(covered(&COVERED[..cut], SIZE), None, "cut at {cut}");
        }
        assert_eq!(covered(&[1, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0], SIZE), None, "more than 32 bits");
        assert_eq!(covered(&COVERED, SIZE - 1), None, "more than there are");
        assert_eq!(covered(&[1, 0, 2, 0, 0], SIZE), None, "no addresses");
        assert_eq!(covered(&[1; 200], SIZE), None, "too much to read");
    }

    #[test]
    fn wrappers_are_told_by_those_that_call_assembly() {
        const WRAPPER: u8 = 21;
        let at = |place: u32| 0x100 * place;
        let functions = [
            (at(0), ASSEMBLY, 0, *b"a\0"),
            (at(1), 0, WRAPPER, *b"a\0"),
            (at(2), 0, 0, *b"b\0"),
            (at(3), 0, WRAPPER, *b"b\0"),
            (at(4), 0, 0, *b"[\0"),
            (at(5), 0, WRAPPER, *b"[\0"),
            (at(6), 0, WRAPPER, *b"c\0"),
            (at(7), ASSEMBLY, 0, *b"d\0"),
        ];
        let places = |functions: &[_]| -> Vec<u64> {
            let table = table_of(GO_1_20, 0, functions);
            let functions = called(read(&table, None, || Some(0)).unwrap());
            functions.iter().map(|function| function.address / 0x100).collect()
        };
        assert_eq!(places(&functions), [0, 2, 4, 5, 6, 7]);
        assert_eq!(places(&functions[2..]), [4, 5, 6, 7], "nothing tells the number");
        let alike = (at(2), 0, WRAPPER, *b"b\0");
        assert_eq!(places(&[functions[0], functions[1], alike, functions[3]]), [0], "both may be one");
    }

    #[test]
    fn functions_that_nothing_is_known_of_may_lie_at_one_address() {
        let table =
            table(GO_1_20, 0x401000, &[(0, ASSEMBLY), (0x200, NO_TABLES), (0x200, NO_TABLES), (0x200, 0)]);
        assert_eq!(compiled(&table, None), [0x401200]);
    }

    #[test]
    fn what_cannot_be_believed_tells_of_no_function() {
        let good = table(GO_1_20, 0x401000, &[(0, 0), (0x200, 0), (0x400, ASSEMBLY)]);
        assert_eq!(compiled(&good, None).len(), 2);
        assert_eq!(compiled(&good, Some(0x402000)), [], "another place than the symbol's");
        let none_in_assembly = table(GO_1_20, 0x401000, &[(0, 0), (0x200, 0)]);
        assert_eq!(compiled(&none_in_assembly, None), []);
        assert_eq!(
            compiled(&table(0xffff_fffa, 0x401000, &[(0, 0), (0x200, ASSEMBLY)]), None),
            [],
            "Go 1.17"
        );
        let overlapping = table(GO_1_20, 0x401000, &[(0, 0), (0x20, 0), (0x400, ASSEMBLY)]);
        assert_eq!(compiled(&overlapping, None), [], "longer than to the next");
        for length in 0..good.len() - 2 {
            assert_eq!(compiled(&good[..length], None), [], "cut at {length}");
        }
        let changed = |at: usize, bytes: &[u8]| {
            let mut table = good.clone();
            table[at..][..bytes.len()].copy_from_slice(bytes);
            compiled(&table, None)
        };
        assert_eq!(changed(7, &[4]), [], "32 bits");
        for at in [COUNT, NAMES, VALUES, FUNCTIONS] {
            assert_eq!(changed(at, &[0xff; 8]), []);
        }
        assert_eq!(changed(TEXT, &[0xff; 8]), [], "behind the address space");
    }
}
