//! Rows of line tables: where the statements of a source file begin.
//!
//! Only the tables that name the file are read, and each once, although several units may share it. The rows of code that the
//! linker left out stay in the tables, at addresses near zero, so a sequence counts only if it begins in the module's code.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use gimli::{ColumnType, Dwarf, IncompleteLineProgram, LineRow, Section as _, Unit};

use super::{
    Gaps,
    paths::{self, Written},
    sections::Slice,
    units,
};
use crate::image::{CodeSection, section_at};

/// A row at which a statement begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub address: u64,
    pub line: u32,
    /// From 1; 0 where the compiler did not tell.
    pub column: u32,
    /// Index of the file's path.
    pub path: usize,
    /// The file's number in the unit's table.
    pub file: u64,
    /// Rows of one line that follow each other without another line between them have the same number.
    pub run: u32,
    /// Offset of its unit in `.debug_info`.
    pub unit: usize,
}

/// A source file that is meant.
pub(super) struct File {
    pub path: String,
    /// The first and the last line that has code.
    pub lines: Option<(u32, u32)>,
}

/// More statements than this are not of one file, and more bytes of names not of one program.
const MOST_ROWS: usize = 1 << 22;
const MOST_NAME_BYTES: u64 = 1 << 32;
/// No path is longer, in bytes.
const LONGEST_NAME: usize = libc::PATH_MAX as usize;

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub files: Vec<File>,
    pub rows: Vec<Row>,
}

/// The statements of all files that `written` means, of the lines that `keep` tells.
pub(super) fn statements(
    dwarf: &Dwarf<Slice<'_>>,
    code: &[CodeSection],
    written: &Written,
    keep: impl Fn(u32) -> bool,
    gaps: &mut Gaps,
) -> Found {
    let mut found = Found::default();
    let mut by_path: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut name_bytes = 0;
    let mut runs = 0;
    let mut budget = budget_of(dwarf);
    units::each(dwarf, gaps, |unit, gaps| {
        let Some(program) = &unit.line_program else { return };
        let header = program.header();
        if !seen.insert(header.offset().0) {
            return;
        }
        if name_bytes > MOST_NAME_BYTES {
            return gaps.unit();
        }
        let meant = files(dwarf, unit, written, &mut by_path, &mut found.files, &mut name_bytes);
        if meant.is_empty() {
            return;
        }
        let Some(offset) = unit.header.debug_info_offset() else { return };
        let mut place = None;
        let whole = walk(program, code, &mut budget, |row| {
            if row.end_sequence() {
                place = None;
                return;
            }
            // Line 0 is code that belongs to no line; what was before it goes on behind it.
            let (line, column) = line_and_column(row);
            if line == 0 {
                return;
            }
            if place != Some((row.file_index(), line)) {
                place = Some((row.file_index(), line));
                runs += 1;
            }
            let Some(&path) = meant.get(&row.file_index()).filter(|_| row.is_stmt()) else { return };
            let lines = &mut found.files[path].lines;
            *lines = Some(lines.map_or((line, line), |(first, last)| (first.min(line), last.max(line))));
            let address = row.address();
            if keep(line) && found.rows.len() < MOST_ROWS && section_at(code, address).is_some() {
                let file = row.file_index();
                found.rows.push(Row { address, line, column, path, file, run: runs, unit: offset.0 });
            }
        });
        if !whole || found.rows.len() >= MOST_ROWS {
            gaps.unit();
        }
    });
    found
}

/// Each byte of a table makes one row at most, so only tables that lie over each other make more.
fn budget_of(dwarf: &Dwarf<Slice<'_>>) -> u64 {
    dwarf.debug_line.reader().len() as u64 + 1
}

/// Goes through the rows of live code, the ends of sequences among them. False where the table ends in nonsense, or there is more of
/// it than `budget`.
fn walk(
    program: &IncompleteLineProgram<Slice<'_>>,
    code: &[CodeSection],
    budget: &mut u64,
    mut row: impl FnMut(&LineRow),
) -> bool {
    let mut rows = program.clone().rows();
    let mut live = None;
    loop {
        let next = match rows.next_row() {
            Ok(Some((_, next))) => next,
            Ok(None) => return true,
            Err(_) => return false,
        };
        *budget = budget.saturating_sub(1);
        if *budget == 0 {
            return false;
        }
        let is_live = *live.get_or_insert_with(|| section_at(code, next.address()).is_some());
        if is_live {
            row(next);
        }
        if next.end_sequence() {
            live = None;
        }
    }
}

/// Both from 1, and 0 where there is none.
fn line_and_column(row: &LineRow) -> (u32, u32) {
    let column = match row.column() {
        ColumnType::LeftEdge => 0,
        ColumnType::Column(column) => column.get(),
    };
    let line = row.line().map_or(0, |line| line.get());
    (u32::try_from(line).unwrap_or(0), u32::try_from(column).unwrap_or(0))
}

/// The files of a unit that are meant, by their index in its table.
fn files(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    written: &Written,
    by_path: &mut BTreeMap<String, usize>,
    files: &mut Vec<File>,
    name_bytes: &mut u64,
) -> BTreeMap<u64, usize> {
    let Some(header) = unit.line_program.as_ref().map(|program| program.header()) else {
        return BTreeMap::new();
    };
    let first = if header.version() >= 5 { 0 } else { 1 };
    let mut meant = BTreeMap::new();
    for (index, file) in (first..).zip(header.file_names()) {
        let Ok(name) = dwarf.attr_string(unit, file.path_name()) else { continue };
        *name_bytes += name.len() as u64;
        if *name_bytes > MOST_NAME_BYTES {
            break;
        }
        if name.len() > LONGEST_NAME || !written.may_be(name.slice()) {
            continue;
        }
        let path = paths::whole(dwarf, unit, header, file);
        if !written.means(&path) {
            continue;
        }
        let known = *by_path.entry(path).or_insert_with_key(|path| {
            files.push(File { path: path.clone(), lines: None });
            files.len() - 1
        });
        meant.insert(index, known);
    }
    meant
}

/// The last names of all source files, once each.
pub(super) fn names(dwarf: &Dwarf<Slice<'_>>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut name_bytes = 0;
    units::each(dwarf, &mut Gaps::default(), |unit, _| {
        let Some(program) = &unit.line_program else { return };
        for file in program.header().file_names() {
            let Ok(name) = dwarf.attr_string(unit, file.path_name()) else { continue };
            name_bytes += name.len() as u64;
            if name_bytes > MOST_NAME_BYTES || names.len() >= MOST_ROWS {
                return;
            }
            if name.len() > LONGEST_NAME {
                continue;
            }
            let name = name.to_string_lossy();
            let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
            if !names.contains(name) {
                names.insert(name.to_owned());
            }
        }
    });
    names
}

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file's whole path, as the compiler saw it.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// From 1; 0 where the compiler did not tell.
    pub column: u32,
}

/// Where in the source some addresses of a unit are, which are sorted. `None` where its table does not tell.
pub(super) fn places(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    code: &[CodeSection],
    addresses: &[u64],
) -> Vec<Option<Place>> {
    let mut found = vec![None; addresses.len()];
    let Some(program) = &unit.line_program else { return Vec::new() };
    let mut last: Option<(u64, u64, (u32, u32))> = None;
    let mut budget = budget_of(dwarf);
    // An address is in one sequence. Tables that say otherwise are not believed for long.
    let mut work = 1024 + 16 * addresses.len();
    walk(program, code, &mut budget, |row| {
        if let Some((start, file, place)) = last.take()
            && start < row.address()
        {
            let from = addresses.partition_point(|&address| address < start);
            let inside = addresses[from..].iter().take_while(|&&address| address < row.address()).count();
            let inside = inside.min(work);
            work -= inside;
            found[from..from + inside].fill(Some((file, place)));
        }
        if !row.end_sequence() {
            last = Some((row.address(), row.file_index(), line_and_column(row)));
        }
    });
    let header = program.header();
    let mut paths: BTreeMap<u64, Option<Arc<str>>> = BTreeMap::new();
    let mut named = |place: Option<(u64, (u32, u32))>| {
        let (file, (line, column)) = place.filter(|(_, (line, _))| *line > 0)?;
        let path = || Some(paths::whole(dwarf, unit, header, header.file(file)?).into());
        Some(Place { file: paths.entry(file).or_insert_with(path).clone()?, line, column })
    };
    found.into_iter().map(&mut named).collect()
}

/// The rows of the code in `range`: address, file and line, without those of line 0. What is in effect where the range begins counts
/// as a row there.
pub(super) fn between(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    code: &[CodeSection],
    range: &Range<u64>,
) -> Vec<(u64, u64, u32)> {
    let mut rows = Vec::new();
    let Some(program) = &unit.line_program else { return rows };
    let mut before = None;
    walk(program, code, &mut budget_of(dwarf), |row| {
        let (line, address) = (line_and_column(row).0, row.address());
        let in_effect = before.take();
        if address > range.start
            && let Some((file, line)) = in_effect
        {
            rows.push((range.start, file, line));
        }
        if row.end_sequence() || line == 0 {
        } else if address < range.start {
            before = Some((row.file_index(), line));
        } else if address < range.end {
            rows.push((address, row.file_index(), line));
        }
    });
    rows
}

/// Path of a file in a unit's table, and the checksum of its contents where there is one.
pub(super) fn file(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    index: u64,
) -> Option<(String, Option<[u8; 16]>)> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let path = paths::whole(dwarf, unit, header, file);
    Some((path, header.file_has_md5().then(|| *file.md5())))
}

/// The addresses at which statements of a unit begin, sorted.
pub(super) fn begun(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, code: &[CodeSection]) -> Vec<u64> {
    let mut begun = Vec::new();
    let Some(program) = &unit.line_program else { return begun };
    let mut budget = budget_of(dwarf);
    walk(program, code, &mut budget, |row| {
        if row.is_stmt() && !row.end_sequence() && line_and_column(row).0 > 0 {
            begun.push(row.address());
        }
    });
    begun.sort_unstable();
    begun.dedup();
    begun
}
