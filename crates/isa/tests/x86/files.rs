//! Functions of ELF files on this machine, as sites.

use object::{Architecture, Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use trapless_isa::{BranchTargets, Machine, ReadOnlyData, Site};

/// An ELF file's code: its sections, its functions, and where its branches lead.
pub struct Library {
    pub machine: Machine,
    pub text: Vec<Section>,
    pub data: Data,
    /// Names and ends by start address.
    pub functions: BTreeMap<u64, (String, u64)>,
    pub targets: BranchTargets,
}

pub struct Section {
    pub address: u64,
    pub bytes: Vec<u8>,
}

pub struct Data(Vec<Section>);

impl ReadOnlyData for Data {
    fn at(&self, address: u64) -> &[u8] {
        let section = self.0.iter().find(|s| address.wrapping_sub(s.address) < s.bytes.len() as u64);
        section.map_or(&[], |s| &s.bytes[(address - s.address) as usize..])
    }
}

impl Library {
    /// Reads the first of `paths` that exists; says so when none does.
    pub fn open(paths: &[&str]) -> Option<Self> {
        let Some(bytes) = paths.iter().find_map(|path| std::fs::read(path).ok()) else {
            trapless_testing::inapplicable!("none of {paths:?} is here");
            return None;
        };
        Some(Self::parse(&bytes).expect("an x86 ELF file"))
    }

    /// `None` when it is no ELF file of an x86.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        let machine = match file.architecture() {
            Architecture::X86_64 => Machine::X86_64,
            Architecture::I386 => Machine::I386,
            _ => return None,
        };
        let sections = |wanted: fn(SectionKind) -> bool| {
            file.sections()
                .filter(|s| wanted(s.kind()))
                .filter_map(|s| Some(Section { address: s.address(), bytes: s.data().ok()?.to_vec() }))
                .collect::<Vec<_>>()
        };
        let text = sections(|kind| kind == SectionKind::Text);
        let data =
            Data(sections(|k| matches!(k, SectionKind::ReadOnlyData | SectionKind::ReadOnlyDataWithRel)));
        let mut functions = BTreeMap::new();
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            if symbol.kind() == SymbolKind::Text && symbol.is_definition() && symbol.size() > 0 {
                let name = symbol.name().unwrap_or("?").to_owned();
                functions.insert(symbol.address(), (name, symbol.address().saturating_add(symbol.size())));
            }
        }
        for (start, end) in frames(&file) {
            functions.entry(start).or_insert_with(|| (format!("sub_{start:x}"), end));
        }
        let mut library = Self { machine, text, data, functions, targets: BranchTargets::default() };
        library.targets = library.find_targets();
        Some(library)
    }

    /// Function by function where symbols say, the rest as whatever lies between.
    fn find_targets(&self) -> BranchTargets {
        let mut targets = Vec::new();
        for section in &self.text {
            self.machine.isa().branch_targets(&section.bytes, section.address, &self.data, &mut targets);
        }
        BranchTargets::new(targets)
    }

    /// Calls `visit` with the name and the entry of every function.
    pub fn each<'l>(&'l self, mut visit: impl FnMut(&str, &Site<'l>)) {
        let starts: Vec<u64> = self.functions.keys().copied().collect();
        for (&start, (name, end)) in &self.functions {
            let Some(section) =
                self.text.iter().find(|s| start.wrapping_sub(s.address) < s.bytes.len() as u64)
            else {
                continue;
            };
            let bytes = &section.bytes[(start - section.address) as usize..];
            let length = ((end - start) as usize).min(bytes.len());
            let next = starts.get(starts.partition_point(|s| *s < start + length as u64));
            let gap = next.map_or(bytes.len(), |n| (n - start) as usize).clamp(length, bytes.len());
            // Never more than the alignment of a function: beyond it may lie code without a symbol.
            let gap = gap.min((length + 63) & !15).max(length);
            visit(
                name,
                &Site { padding: &bytes[length..gap], ..Site::new(start, &bytes[..length], &self.targets) },
            );
        }
    }
}

/// Starts and ends of functions by the unwinder's index (`.eh_frame_hdr`), which stripped files keep. The encodings are
/// the ones that linkers write: a sorted table of 32-bit distances, and FDEs with PC-relative 32-bit addresses.
fn frames(file: &object::File<'_>) -> Vec<(u64, u64)> {
    let section = |name| {
        let section = file.section_by_name(name)?;
        Some((section.address(), section.data().ok()?))
    };
    let (Some((index, table)), Some((frames, fdes))) = (section(".eh_frame_hdr"), section(".eh_frame"))
    else {
        return Vec::new();
    };
    let i32_at = |bytes: &[u8], at: usize| Some(i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    // DW_EH_PE_pcrel | sdata4, udata4, datarel | sdata4.
    if !table.starts_with(&[1, 0x1b, 0x03, 0x3b]) {
        return Vec::new();
    }
    let entry = |i: usize| {
        let start = index.wrapping_add(i32_at(table, 12 + 8 * i)? as u64);
        let fde = index.wrapping_add(i32_at(table, 16 + 8 * i)? as u64);
        let length = i32_at(fdes, usize::try_from(fde.checked_sub(frames)?).ok()? + 12)?;
        Some((start, start.saturating_add(length as u32 as u64)))
    };
    (0..).map_while(entry).collect()
}

/// What the libraries' tests look at: (name, paths).
pub const LIBRARIES: &[(&str, &[&str])] = &[
    ("libc", &["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"]),
    (
        "libstdc++",
        &["/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib64/libstdc++.so.6", "/usr/lib/libstdc++.so.6"],
    ),
    (
        "libcrypto",
        &["/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib64/libcrypto.so.3", "/usr/lib/libcrypto.so.3"],
    ),
    ("libpython", &["/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0"]),
    ("python3", &["/usr/bin/python3"]),
    ("git", &["/usr/bin/git"]),
    (
        "sqlite3",
        &[
            "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
            "/usr/lib64/libsqlite3.so.0",
            "/usr/lib/libsqlite3.so.0",
        ],
    ),
    // Debian's redis-server is a link to it.
    ("redis-server", &["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"]),
    ("libc 32", &["/lib32/libc.so.6", "/usr/lib32/libc.so.6", "/lib/i386-linux-gnu/libc.so.6"]),
];
