//! From places in the source to addresses, by DWARF 2 to 5: the statements of a line, and the inlined instances of a function.
//!
//! A **statement** of a line is where debuggers would stop for it: a row that the compiler marked as one (`is_stmt`). Rows of the
//! same line that follow each other are one statement, as long as they are in the same inlined instance; a line that was unrolled,
//! hoisted or inlined has several. Of a function's first line this is its first instruction, ahead of what sets up its frame.
//!
//! Only the line tables that name a file are read, and only the units whose code is in the answer are searched for what is inlined
//! there. For instances by name all units must be gone through, one at a time. Nothing in DWARF is trusted: what cannot be read is
//! counted in [`Gaps`], and tables that lie over each other, of which little could claim much, are given up.

mod instances;
mod names;
mod paths;
mod rows;
mod sections;
mod text;
mod units;

use std::{collections::BTreeMap, ops::RangeInclusive, path::PathBuf, sync::Arc};

use gimli::Dwarf;
use thiserror::Error;

pub use names::FunctionName;
pub use rows::Place;
pub(crate) use sections::{Contents, DebugSections, Slice, find, load_split_whole, package_section, unpack};
pub use text::{NoText, source_text};

use crate::{Module, image::section_at};
use instances::Instances;
use names::Names;
use paths::Written;
use rows::Row;
use units::Split;

/// Where a statement begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Its first instruction.
    pub address: u64,
    /// Where it is in the source.
    pub place: Place,
    /// The function that this is an inlined copy of.
    pub inlined: Option<Arc<FunctionName>>,
}

/// The statements of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSites {
    /// By address; at least one.
    pub statements: Vec<Statement>,
    /// The line: the one asked for, or the next one that has code.
    pub line: u32,
    /// The column, where one was asked for: that one, or the next one.
    pub column: Option<u32>,
    /// What could not be read.
    pub gaps: Gaps,
}

/// A copy of a function's code in another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedInstance {
    /// Where it begins.
    pub entry: u64,
    /// The function it is a copy of.
    pub name: Arc<FunctionName>,
    /// Where its entry is in the source.
    pub place: Option<Place>,
}

/// The lines that a function's code comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionLines {
    /// The file's whole path, as the compiler saw it.
    pub file: String,
    /// Of the file's contents, where the compiler told.
    pub md5: Option<[u8; 16]>,
    /// From the function's first line to its last.
    pub lines: RangeInclusive<u32>,
}

/// Debug information that is there and could not be read, so that an answer may lack something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Units that make no sense.
    pub units: usize,
    /// Files with the rest of split units that are missing, or are others': what is inlined there is not known.
    pub split: Vec<PathBuf>,
}

/// Missing files that are told by name.
const MOST_TOLD: usize = 64;

impl Gaps {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Gaps::default()
    }

    fn unit(&mut self) {
        self.units += 1;
    }

    fn split(&mut self, name: PathBuf) {
        if self.split.len() < MOST_TOLD {
            self.split.push(name);
        }
    }
}

/// Why a place in the source is nowhere in a module.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SourceError {
    /// There is no DWARF.
    #[error(
        "no line tables here, and no debug file that belongs; compile with -g, or install its debug symbols"
    )]
    NoDebugInfo,
    /// No unit was compiled from such a file.
    #[error("no code comes from a source file of this name")]
    NoFile,
    /// Several files have this name.
    #[error("several source files have this name; write one as {}", .0.join(" or "))]
    Ambiguous(Vec<String>),
    /// The file has code, but none at this line or behind it.
    #[error("no code at or behind this line; the last one with code is {0}")]
    NoLine(u32),
    /// The line has code, but none at this column or behind it.
    #[error("no statement at or behind this column; those of line {line} begin at {}", columns_told(.columns))]
    NoColumn {
        /// The line.
        line: u32,
        /// What there is; empty where the compiler told no columns.
        columns: Vec<u32>,
    },
    /// No line table covers the function.
    #[error("no line table describes it")]
    NoLines,
}

fn columns_told(columns: &[u32]) -> String {
    if columns.is_empty() {
        return "columns that the compiler did not tell".to_owned();
    }
    let columns: Vec<String> = columns.iter().map(u32::to_string).collect();
    format!("column {}", columns.join(", "))
}

/// Finds the name of the function that an instance is of.
type Name<'n> = dyn FnMut(instances::Origin) -> Option<Arc<FunctionName>> + 'n;

/// Names of which it is remembered whether they are meant.
const MOST_NAMES: usize = 1 << 16;

/// More lines than this are not between a function's name and its code.
const LONGEST_HEADING: u32 = 100;

impl Module {
    /// The statements of a line of a source file, which is named by the end of its path; where the line has none, those of the
    /// next line that has.
    ///
    /// # Errors
    /// There is no DWARF, no such file or several, and no code at or behind the line or the column.
    pub fn statements(&self, file: &str, line: u32, column: Option<u32>) -> Result<LineSites, SourceError> {
        let debug = self.debug_sections().ok_or(SourceError::NoDebugInfo)?;
        let dwarf = debug.dwarf(&self.source);
        let mut gaps = Gaps::default();
        let written = Written::new(file);
        let found = rows::statements(&dwarf, &self.code, &written, |at| at >= line, &mut gaps);
        let mut files: Vec<usize> =
            (0..found.files.len()).filter(|&file| found.files[file].lines.is_some()).collect();
        if let Some(whole) = files.iter().find(|&&file| written.is(&found.files[file].path)) {
            files = vec![*whole];
        }
        let &[file] = &files[..] else {
            let mut paths: Vec<String> = files.iter().map(|&file| found.files[file].path.clone()).collect();
            paths.sort_unstable();
            return Err(if paths.is_empty() { SourceError::NoFile } else { SourceError::Ambiguous(paths) });
        };
        let mut rows = found.rows;
        rows.retain(|row| row.path == file);
        let last = found.files[file].lines.map_or(0, |(_, last)| last);
        let line = rows.iter().map(|row| row.line).min().ok_or(SourceError::NoLine(last))?;
        rows.retain(|row| row.line == line);
        let column = match column {
            Some(wanted) => Some(nearest_column(&rows, line, wanted)?),
            None => None,
        };
        let path = &found.files[file].path;
        let statements = self.described(&dwarf, &rows, path, column, &mut gaps);
        Ok(LineSites { statements, line, column, gaps })
    }

    /// The statements of some lines of a source file, whose whole path is given.
    ///
    /// # Errors
    /// There is no DWARF.
    pub fn statements_in(
        &self,
        file: &str,
        lines: &RangeInclusive<u32>,
    ) -> Result<Vec<Statement>, SourceError> {
        let debug = self.debug_sections().ok_or(SourceError::NoDebugInfo)?;
        let dwarf = debug.dwarf(&self.source);
        let mut gaps = Gaps::default();
        let written = Written::new(file);
        let found = rows::statements(&dwarf, &self.code, &written, |line| lines.contains(&line), &mut gaps);
        let whole = found.files.iter().position(|file| written.is(&file.path));
        let mut rows = found.rows;
        rows.retain(|row| Some(row.path) == whole);
        Ok(self.described(&dwarf, &rows, &written.into_path(), None, &mut gaps))
    }

    /// The inlined instances of the functions whose names `means` tells, by address, and what could not be read.
    ///
    /// # Errors
    /// There is no DWARF.
    pub fn inlined(
        &self,
        mut means: impl FnMut(&FunctionName) -> bool,
    ) -> Result<(Vec<InlinedInstance>, Gaps), SourceError> {
        let debug = self.debug_sections().ok_or(SourceError::NoDebugInfo)?;
        let dwarf = debug.dwarf(&self.source);
        let split = self.split_units();
        let mut meant: BTreeMap<Arc<FunctionName>, bool> = BTreeMap::new();
        let mut all = Vec::new();
        let mut gaps = Gaps::default();
        let mut names = Names::new(&dwarf);
        units::each(&dwarf, &mut gaps, |unit, gaps| {
            let mut found: Vec<(u64, Arc<FunctionName>)> = Vec::new();
            let mut add = |read: gimli::Result<Instances>, gaps: &mut Gaps, name: &mut Name<'_>| {
                let Ok(mut instances) = read else { return gaps.unit() };
                if instances.all.iter().any(|instance| !instance.is_entry_said) {
                    instances.begin_at_statements(&rows::begun(&dwarf, unit, &self.code));
                }
                for instance in instances.all {
                    if section_at(&self.code, instance.entry).is_none() {
                        continue;
                    }
                    let Some(name) = name(instance.origin) else { continue };
                    let is_meant = match meant.get(&name) {
                        Some(is_meant) => *is_meant,
                        None if meant.len() >= MOST_NAMES => means(&name),
                        None => *meant.entry(name.clone()).or_insert_with_key(|name| means(name)),
                    };
                    if is_meant {
                        found.push((instance.entry, name));
                    }
                }
            };
            if unit.dwo_id.is_none() {
                // What was found out about names serves all units.
                add(Instances::read(&dwarf, unit), gaps, &mut |origin| names.name(unit, origin));
            } else {
                split.whole(&dwarf, unit, gaps, &mut |dwarf, unit, gaps| {
                    let mut names = Names::new(dwarf);
                    add(Instances::read(dwarf, unit), gaps, &mut |origin| names.name(unit, origin));
                });
            }
            found.sort();
            found.dedup();
            let entries: Vec<u64> = found.iter().map(|(entry, _)| *entry).collect();
            let places = match entries.is_empty() {
                true => Vec::new(),
                false => rows::places(&dwarf, unit, &self.code, &entries),
            };
            let mut places = places.into_iter();
            all.extend(found.into_iter().map(|(entry, name)| InlinedInstance {
                entry,
                name,
                place: places.next().flatten(),
            }));
        });
        all.sort_by(|a, b| (a.entry, &a.name).cmp(&(b.entry, &b.name)));
        all.dedup_by(|a, b| (a.entry, &a.name) == (b.entry, &b.name));
        Ok((all, gaps))
    }

    /// The lines of the source that the code of a function comes from, without what is inlined into it.
    ///
    /// # Errors
    /// There is no DWARF, or no line table for it.
    pub fn function_lines(&self, code: std::ops::Range<u64>) -> Result<FunctionLines, SourceError> {
        let debug = self.debug_sections().ok_or(SourceError::NoDebugInfo)?;
        let dwarf = debug.dwarf(&self.source);
        let split = self.split_units();
        let mut gaps = Gaps::default();
        let mut found = None;
        units::each(&dwarf, &mut gaps, |unit, gaps| {
            if found.is_some() || !units::covers(&dwarf, unit, code.start) {
                return;
            }
            let mut rows = rows::between(&dwarf, unit, &self.code, &code);
            rows.sort_by_key(|row| row.0);
            let addresses: Vec<u64> = rows.iter().map(|row| row.0).collect();
            let mut is_own = vec![true; rows.len()];
            let mut declared = None;
            split.whole(&dwarf, unit, gaps, &mut |dwarf, unit, _| {
                declared = instances::declared(dwarf, unit, code.start);
                let Ok(mut instances) = Instances::read(dwarf, unit) else { return };
                let innermost = instances.innermost(&addresses);
                for ((is_own, innermost), (address, file, line)) in
                    is_own.iter_mut().zip(innermost).zip(&rows)
                {
                    *is_own = instances.of_row(innermost, *address, *file, *line).is_none();
                }
            });
            let own = rows.iter().zip(&is_own).filter(|(_, is_own)| **is_own).map(|(row, _)| (row.1, row.2));
            let own: Vec<(u64, u32)> = own.collect();
            // The first instruction may be another function's that is inlined there.
            let Some(&(file, _)) = own.first() else { return };
            let lines = own.iter().filter(|(of, _)| *of == file).map(|(_, line)| *line);
            let (Some(first), Some(last)) = (lines.clone().min(), lines.max()) else { return };
            // Its name may stand some lines ahead of its code.
            let first = match declared {
                Some((of, line)) if of == file && line < first && first - line <= LONGEST_HEADING => line,
                _ => first,
            };
            let Some((path, md5)) = rows::file(&dwarf, unit, file) else { return };
            found = Some(FunctionLines { file: path, md5, lines: first..=last });
        });
        found.ok_or(SourceError::NoLines)
    }

    /// The last names of all source files that the line tables list, sorted.
    pub fn source_files(&self) -> Vec<String> {
        let Some(debug) = self.debug_sections() else { return Vec::new() };
        rows::names(&debug.dwarf(&self.source)).into_iter().collect()
    }

    /// Where the rest of its split units is looked for.
    fn split_units(&self) -> Split<'_> {
        let own = self.path();
        Split::new(&self.search, [own, self.debug_sections().map_or(own, |debug| debug.path(own))])
    }

    /// Of rows of one file those at which statements begin, with what is inlined there.
    fn described(
        &self,
        dwarf: &Dwarf<Slice<'_>>,
        rows: &[Row],
        path: &str,
        column: Option<u32>,
        gaps: &mut Gaps,
    ) -> Vec<Statement> {
        let split = self.split_units();
        let file: Arc<str> = path.into();
        let mut statements: BTreeMap<u64, Statement> = BTreeMap::new();
        for rows in rows.chunk_by(|a, b| a.unit == b.unit) {
            let unit = dwarf
                .unit_header(gimli::DebugInfoOffset(rows[0].unit))
                .and_then(|header| dwarf.unit(header))
                .map(std::rc::Rc::new);
            let Ok(unit) = unit else { continue };
            let mut addresses: Vec<u64> = rows.iter().map(|row| row.address).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let mut inlined: Vec<Option<(usize, Option<Arc<FunctionName>>)>> = vec![None; rows.len()];
            split.whole(dwarf, &unit, gaps, &mut |dwarf, unit, gaps| {
                let Ok(mut instances) = Instances::read(dwarf, unit) else {
                    return gaps.unit();
                };
                let mut names = Names::new(dwarf);
                let innermost = instances.innermost(&addresses);
                for (of, row) in inlined.iter_mut().zip(rows) {
                    let at = addresses.binary_search(&row.address).ok().and_then(|at| innermost[at]);
                    let Some(index) = instances.of_row(at, row.address, row.file, row.line) else { continue };
                    let name = names.name(unit, instances.all[index].origin);
                    *of = Some((index, name));
                }
            });
            let mut before = None;
            for (row, instance) in rows.iter().zip(&inlined) {
                let instance = instance.as_ref();
                let this = (row.run, instance.map(|(index, _)| *index), column.map(|_| row.column));
                let begins = before != Some(this);
                before = Some(this);
                if begins && column.is_none_or(|column| column == row.column) {
                    let unnamed = || Arc::new(FunctionName::Written("(unnamed)".to_owned()));
                    let name = instance.map(|(_, name)| name.clone().unwrap_or_else(unnamed));
                    let place = Place { file: file.clone(), line: row.line, column: row.column };
                    statements.entry(row.address).or_insert(Statement {
                        address: row.address,
                        place,
                        inlined: name,
                    });
                }
            }
        }
        statements.into_values().collect()
    }
}

/// The column that has a statement: the one wanted, or the next one on the line.
fn nearest_column(rows: &[Row], line: u32, wanted: u32) -> Result<u32, SourceError> {
    let columns: std::collections::BTreeSet<u32> =
        rows.iter().map(|row| row.column).filter(|&column| column > 0).collect();
    let nearest = columns.range(wanted..).next().copied();
    nearest.ok_or_else(|| SourceError::NoColumn { line, columns: columns.into_iter().collect() })
}
