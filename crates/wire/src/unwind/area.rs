//! An area: written by whoever attaches, read by whoever walks.

use super::{BUCKET_BITS, Base, DIRECTORY_OFFSET, MAGIC, RULE_BITS, Rule, Slot, Table, TooLarge, VERSION};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// Bytes of the header.
const HEADER: usize = 64;

/// A module, as it lies in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Module {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Offset of its index.
    pub index: u32,
    /// Offset of its rows; 0 if there is no table.
    pub rows: u32,
    /// Offset of its rules.
    pub rules: u32,
    /// Number of rows.
    pub row_count: u32,
    /// Number of rules.
    pub rule_count: u32,
    /// 0.
    pub unused: u32,
}

/// Bytes of a module in the list.
const MODULE: usize = size_of::<Module>();
const _: () = assert!(MODULE == 40 && HEADER == 32 + 2 * Rule::SIZE);

impl Module {
    /// Code that there is no table of, such as what a program has made while it ran.
    ///
    /// Between files with tables it says that return addresses that lead there are believed.
    pub fn without_table(addresses: Range<u64>) -> Module {
        Module { start: addresses.start, end: addresses.end, ..Module::default() }
    }

    /// The same table at another address: what it tells of begins there.
    pub fn at(self, start: u64) -> Module {
        Module { start, end: start.saturating_add(self.end - self.start), ..self }
    }
}

/// What an area says of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of a word, 4 or 8.
    pub word: u32,
    /// See the [layout](super).
    pub mask: u64,
    /// See the [layout](super).
    pub fallback: Rule,
    /// See the [layout](super).
    pub arrival: Rule,
}

impl Facts {
    /// x86-64: frame pointers as `push %rbp; mov %rsp, %rbp` makes them.
    pub const X86_64: Facts = Facts {
        word: 8,
        mask: u64::MAX,
        fallback: Rule { ra: Slot(-8), fp: Slot(-16), bp: Slot::LOST, ..Rule::frame(Base::Frame, 16) },
        arrival: Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) },
    };

    /// 32-bit x86.
    pub const X86: Facts = Facts {
        word: 4,
        mask: 0xffff_ffff,
        fallback: Rule { ra: Slot(-4), fp: Slot(-8), bp: Slot::LOST, ..Rule::frame(Base::Frame, 8) },
        arrival: Rule { ra: Slot(-4), ..Rule::frame(Base::Stack, 4) },
    };

    /// arm64: records of frames, x29 and x30 (AAPCS64, "The frame pointer"). They lie anywhere in a frame, so the caller's stack pointer is
    /// not known. Addresses have 48 bits; above are pointer authentication's.
    pub const AARCH64: Facts = Facts {
        word: 8,
        mask: (1 << 48) - 1,
        fallback: Rule {
            flags: Base::Frame as u8 | Rule::STACK_LOST,
            ra: Slot(-8),
            fp: Slot(-16),
            bp: Slot::LOST,
            ..Rule::frame(Base::Frame, 16)
        },
        arrival: Rule::frame(Base::Stack, 0),
    };

    /// powerpc64le, ELFv2: the word at the stack pointer is the caller's stack pointer, always, and 16 above that lies the return address.
    pub const POWERPC64LE: Facts = Facts {
        word: 8,
        mask: u64::MAX,
        fallback: Rule {
            flags: Base::Stack as u8 | Rule::MEMORY,
            ra: Slot(16),
            fp: Slot::LOST,
            bp: Slot::LOST,
            ..Rule::frame(Base::Stack, 0)
        },
        arrival: Rule::frame(Base::Stack, 0),
    };
}

/// An area that is being written. What is in it stays as it is, but for the directory's word.
///
/// ```
/// use trapless_wire::unwind::{Area, Base, Facts, Rule, Slot, Table, Tables};
///
/// let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
/// let table = Table::new([(0, 1), (10, 0)], vec![Rule::default(), called])?;
/// let mut area = Area::new(&Facts::X86_64);
/// let module = area.add(&table)?.at(0x40_1000);
/// area.publish(&[module])?;
/// let tables = Tables::new(area.bytes()).unwrap();
/// assert_eq!(tables.rule(0x40_1009), Some(called));
/// assert_eq!(tables.rule(0x40_100a), None);
/// # Ok::<(), trapless_wire::unwind::TooLarge>(())
/// ```
#[derive(Clone, Debug)]
pub struct Area {
    bytes: Vec<u8>,
}

impl Area {
    /// One without modules.
    pub fn new(facts: &Facts) -> Area {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(facts.word.to_le_bytes());
        bytes.extend(facts.mask.to_le_bytes());
        bytes.extend((HEADER as u64).to_le_bytes());
        bytes.extend(bytemuck::bytes_of(&facts.fallback));
        bytes.extend(bytemuck::bytes_of(&facts.arrival));
        Area { bytes }
    }

    /// Adds a table. The module begins at 0: say where it is by [`Module::at`].
    ///
    /// # Errors
    /// The area would pass 4 GiB.
    pub fn add(&mut self, table: &Table) -> Result<Module, TooLarge> {
        let index = self.room(table.size())?;
        self.bytes.extend(bytemuck::cast_slice::<u32, u8>(&table.index));
        let rows = self.bytes.len() as u32;
        self.bytes.extend(bytemuck::cast_slice::<u32, u8>(&table.rows));
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let rules = self.bytes.len() as u32;
        self.bytes.extend(bytemuck::cast_slice::<Rule, u8>(&table.rules));
        Ok(Module {
            start: 0,
            end: table.length.into(),
            index,
            rows,
            rules,
            row_count: table.rows.len() as u32,
            rule_count: table.rules.len() as u32,
            unused: 0,
        })
    }

    /// Makes these the modules. They are sorted here; of two that overlap, the one that begins first keeps its range, and the other is left
    /// out.
    ///
    /// Where the area is in use: write the bytes that are new, from the former length on, and then the word at [`DIRECTORY_OFFSET`], at
    /// once.
    ///
    /// # Errors
    /// The area would pass 4 GiB.
    pub fn publish(&mut self, modules: &[Module]) -> Result<(), TooLarge> {
        let mut sorted: Vec<_> = modules.iter().copied().filter(|module| module.start < module.end).collect();
        sorted.sort_by_key(|module| module.start);
        let mut end = 0;
        sorted.retain(|module| {
            let free = module.start >= end;
            end = if free { module.end } else { end };
            free
        });
        let at = self.room(sorted.len() * MODULE)?;
        self.bytes.extend(bytemuck::cast_slice::<Module, u8>(&sorted));
        let word = u64::from(at) | (sorted.len() as u64) << 32;
        self.bytes[DIRECTORY_OFFSET..DIRECTORY_OFFSET + 8].copy_from_slice(&word.to_le_bytes());
        Ok(())
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the next `size` bytes go.
    fn room(&mut self, size: usize) -> Result<u32, TooLarge> {
        let at = self.bytes.len().next_multiple_of(8);
        let end = at.checked_add(size).and_then(|end| u32::try_from(end).ok());
        end.ok_or(TooLarge)?;
        self.bytes.resize(at, 0);
        Ok(at as u32)
    }
}

/// Why bytes are no area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It does not begin as one of this version does.
    Header,
    /// The list of modules lies outside, or is not sorted.
    Directory,
    /// A module's table lies outside, or does not hang together.
    Table,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self {
            Damage::Header => "the header",
            Damage::Directory => "the list of modules",
            Damage::Table => "a table",
        };
        write!(f, "unwind tables are damaged: {what}")
    }
}

impl std::error::Error for Damage {}

/// An area that is read, with the modules of one moment.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    bytes: &'a [u8],
    modules: &'a [u8],
    facts: Facts,
}

impl<'a> Tables<'a> {
    /// Checks everything that looking up relies on but the contents of rows, and takes the modules of now. Costs a look at each module's
    /// table's bounds, not at the rows.
    ///
    /// # Errors
    /// What is damaged.
    pub fn new(bytes: &'a [u8]) -> Result<Tables<'a>, Damage> {
        let word = |at: usize| number(bytes, at, 8).ok_or(Damage::Header);
        if bytes.get(..8) != Some(&MAGIC) || number(bytes, 8, 4) != Some(VERSION.into()) {
            return Err(Damage::Header);
        }
        let word_size = number(bytes, 12, 4).ok_or(Damage::Header)? as u32;
        if !matches!(word_size, 4 | 8) {
            return Err(Damage::Header);
        }
        let facts = Facts {
            word: word_size,
            mask: word(16)?,
            fallback: rule_at(bytes, 32).ok_or(Damage::Header)?,
            arrival: rule_at(bytes, 48).ok_or(Damage::Header)?,
        };
        let directory = word(DIRECTORY_OFFSET)?;
        let (at, count) = (directory as u32 as usize, (directory >> 32) as usize);
        let size = count.checked_mul(MODULE).ok_or(Damage::Directory)?;
        let modules = at.checked_add(size).and_then(|end| bytes.get(at..end)).ok_or(Damage::Directory)?;
        let tables = Tables { bytes, modules, facts };
        let mut end = 0;
        for index in 0..count {
            let module = tables.module(index).ok_or(Damage::Directory)?;
            if module.start < end || module.end <= module.start {
                return Err(Damage::Directory);
            }
            end = module.end;
            if module.rows != 0 {
                tables.check(&module).ok_or(Damage::Table)?;
            }
        }
        Ok(tables)
    }

    fn check(&self, module: &Module) -> Option<()> {
        let buckets = usize::try_from((module.end - module.start).div_ceil(1 << BUCKET_BITS)).ok()?;
        let within = |at: u32, count: usize, size: usize| {
            let end = count.checked_mul(size)?.checked_add(at as usize)?;
            (end <= self.bytes.len()).then_some(())
        };
        within(module.index, buckets.checked_add(1)?, 4)?;
        within(module.rows, module.row_count as usize, 4)?;
        within(module.rules, module.rule_count as usize, Rule::SIZE)?;
        (module.row_count > 0).then_some(())
    }

    /// What it says of the machine.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How many modules there are.
    pub fn modules(&self) -> usize {
        self.modules.len() / MODULE
    }

    /// One of them, from the lowest addresses.
    pub fn module(&self, index: usize) -> Option<Module> {
        let at = index.checked_mul(MODULE)?;
        let bytes = self.modules.get(at..at.checked_add(MODULE)?)?;
        Some(bytemuck::pod_read_unaligned(bytes))
    }

    /// The module that an address lies in.
    pub fn module_at(&self, address: u64) -> Option<Module> {
        // The last one that begins at the address or before it, if there is one.
        let (mut at, mut rest) = (0, self.modules());
        while rest > 1 {
            let half = rest / 2;
            if number(self.modules, (at + half) * MODULE, 8)? <= address {
                at += half;
            }
            rest -= half;
        }
        self.module(at).filter(|module| module.start <= address && address < module.end)
    }

    /// The rule for an address in `module`; [`Kind::Nothing`](super::Kind::Nothing) where no row tells of it, `None` where the table is
    /// damaged.
    #[inline]
    pub fn rule_in(&self, module: &Module, address: u64) -> Option<Rule> {
        if module.rows == 0 {
            return Some(Rule::default());
        }
        let key = address.wrapping_sub(module.start);
        let bucket = (key >> BUCKET_BITS) as usize;
        let index = module.index as usize + bucket * 4;
        let bounds = number(self.bytes, index, 8)?;
        // The row before the bucket's first holds if all of them are greater; it is not compared.
        let mut at = (bounds as u32).checked_sub(1)?;
        let mut rest = ((bounds >> 32) as u32).checked_sub(at)?;
        let wanted = (key as u32) << RULE_BITS | ((1 << RULE_BITS) - 1);
        let rows = module.rows as usize;
        while rest > 1 {
            let half = rest / 2;
            let row = number(self.bytes, rows + (at + half) as usize * 4, 4)? as u32;
            at = if row <= wanted { at + half } else { at };
            rest -= half;
        }
        let row = number(self.bytes, rows + at as usize * 4, 4)? as u32;
        let rule = (row & ((1 << RULE_BITS) - 1)) as usize;
        rule_at(self.bytes, module.rules as usize + rule * Rule::SIZE)
    }

    /// The rule for an address; `None` where no module is, or no row tells of it.
    pub fn rule(&self, address: u64) -> Option<Rule> {
        let rule = self.rule_in(&self.module_at(address)?, address)?;
        (rule.kind != Rule::NOTHING).then_some(rule)
    }
}

#[inline]
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(match size {
        8 => u64::from_le_bytes(bytes.try_into().ok()?),
        _ => u32::from_le_bytes(bytes.try_into().ok()?).into(),
    })
}

#[inline]
fn rule_at(bytes: &[u8], at: usize) -> Option<Rule> {
    bytes.get(at..at.checked_add(Rule::SIZE)?).map(bytemuck::pod_read_unaligned)
}
