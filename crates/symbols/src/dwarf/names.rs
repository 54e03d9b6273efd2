//! What the functions are called that inlined instances are of.
//!
//! The name may be several steps away, in another unit or in the file that several programs have in common. Where there is a
//! linkage name, it is what a symbol would be; else the name is made of those of the scopes around it.

use std::{
    collections::{BTreeMap, HashMap},
    rc::Rc,
    sync::Arc,
};

use gimli::{AttributeValue, Dwarf, Unit, UnitHeader, UnitOffset};

use super::{instances::Origin, sections::Slice};

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FunctionName {
    /// As its symbol would be: `_ZN2ns1fEi`, or `f` in C.
    Symbol(String),
    /// As it is written, with its scopes and without parameters: `ns::f`.
    Written(String),
}

impl FunctionName {
    /// The symbol, or the name as it is written.
    pub fn text(&self) -> &str {
        match self {
            FunctionName::Symbol(text) | FunctionName::Written(text) => text,
        }
    }
}

/// A function is told from its declarations in fewer steps than this.
const MOST_STEPS: usize = 16;
/// Units that are kept at hand.
const MOST_UNITS: usize = 256;
/// Longer names are cut.
const LONGEST: usize = 4096;
/// How many bytes of names are kept at hand, of functions and of scopes each.
const MOST_BYTES: usize = 64 << 20;

type Scopes = HashMap<usize, Rc<str>>;
type Units<'a> = BTreeMap<usize, (UnitHeader<Slice<'a>>, Option<Rc<Unit<Slice<'a>>>>)>;

/// The names of one file, found when they are asked for and kept.
pub(super) struct Names<'d, 'a> {
    dwarf: &'d Dwarf<Slice<'a>>,
    /// Of the file itself, and of the one that it shares.
    units: [Option<Units<'a>>; 2],
    held: usize,
    scopes: HashMap<(bool, usize), Rc<Scopes>>,
    known: HashMap<(usize, Origin), Option<Arc<FunctionName>>>,
    known_bytes: usize,
}

impl<'d, 'a> Names<'d, 'a> {
    pub(super) fn new(dwarf: &'d Dwarf<Slice<'a>>) -> Self {
        Names {
            dwarf,
            units: [None, None],
            held: 0,
            scopes: HashMap::new(),
            known: HashMap::new(),
            known_bytes: 0,
        }
    }

    /// The name of the function that a DIE of `unit` refers to.
    pub(super) fn name(&mut self, unit: &Rc<Unit<Slice<'a>>>, origin: Origin) -> Option<Arc<FunctionName>> {
        let key = (unit.header.debug_info_offset().map_or(0, |offset| offset.0), origin);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let name = self.find(unit, origin).map(Arc::new);
        self.known_bytes += name.as_ref().map_or(0, |name| name.text().len());
        if self.known_bytes > MOST_BYTES {
            self.known.clear();
            self.known_bytes = 0;
        }
        self.known.insert(key, name.clone());
        name
    }

    fn find(&mut self, unit: &Rc<Unit<Slice<'a>>>, origin: Origin) -> Option<FunctionName> {
        let (mut is_shared, mut unit, mut origin) = (false, unit.clone(), origin);
        let mut named: Option<(bool, Rc<Unit<Slice<'a>>>, usize, String)> = None;
        for _ in 0..MOST_STEPS {
            let offset = match origin {
                Origin::Unit(offset) => offset,
                Origin::Info(at) => {
                    let offset;
                    (unit, offset) = self.unit_at(is_shared, at)?;
                    offset
                }
                Origin::Shared(at) => {
                    is_shared = true;
                    let offset;
                    (unit, offset) = self.unit_at(true, at)?;
                    offset
                }
                Origin::Unknown => break,
            };
            let dwarf = if is_shared { self.dwarf.sup()? } else { self.dwarf };
            let text = |value: AttributeValue<Slice<'a>>| {
                let text = dwarf.attr_string(&unit, value).ok()?;
                let bytes = text.slice();
                Some(String::from_utf8_lossy(bytes.get(..LONGEST).unwrap_or(bytes)).into_owned())
            };
            let entry = unit.entry(UnitOffset(offset)).ok()?;
            let linkage = [gimli::DW_AT_linkage_name, gimli::DW_AT_MIPS_linkage_name]
                .iter()
                .find_map(|&name| entry.attr_value(name));
            if let Some(linkage) = linkage.and_then(text) {
                return Some(FunctionName::Symbol(linkage));
            }
            if named.is_none()
                && let Some(name) = entry.attr_value(gimli::DW_AT_name).and_then(text)
            {
                named = Some((is_shared, unit.clone(), offset, name));
            }
            let next = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
            let Some(next) = next.iter().find_map(|&name| entry.attr_value(name)) else { break };
            origin = Origin::of(&next);
        }
        let (is_shared, unit, offset, name) = named?;
        let scopes = self.scopes(is_shared, &unit);
        Some(match scopes.get(&offset) {
            Some(scope) => FunctionName::Written(format!("{scope}::{name}")),
            None => FunctionName::Symbol(name),
        })
    }

    /// The unit that the byte at `at` of `.debug_info` is in, and where in it that is.
    fn unit_at(&mut self, is_shared: bool, at: usize) -> Option<(Rc<Unit<Slice<'a>>>, usize)> {
        let dwarf = if is_shared { self.dwarf.sup()? } else { self.dwarf };
        let units = self.units[usize::from(is_shared)].get_or_insert_with(|| {
            let mut units = Units::new();
            let mut headers = dwarf.units();
            while let Ok(Some(header)) = headers.next() {
                if let Some(offset) = header.debug_info_offset() {
                    units.insert(offset.0, (header, None));
                }
            }
            units
        });
        if self.held >= MOST_UNITS {
            units.values_mut().for_each(|(_, unit)| *unit = None);
            self.held = 0;
        }
        let (&start, (header, kept)) = units.range_mut(..=at).next_back()?;
        if kept.is_none() {
            *kept = Some(Rc::new(dwarf.unit(*header).ok()?));
            self.held += 1;
        }
        Some((kept.clone()?, at - start))
    }

    /// The scopes that functions of a unit are in, by their DIEs. None in C, where there are no scopes.
    fn scopes(&mut self, is_shared: bool, unit: &Rc<Unit<Slice<'a>>>) -> Rc<Scopes> {
        let key = (is_shared, unit.header.debug_info_offset().map_or(0, |offset| offset.0));
        if let Some(known) = self.scopes.get(&key) {
            return known.clone();
        }
        let dwarf = if is_shared { self.dwarf.sup().unwrap_or(self.dwarf) } else { self.dwarf };
        let mut scopes = Scopes::new();
        // As far as it can be read.
        let _ = read_scopes(dwarf, unit, &mut scopes);
        let scopes = Rc::new(scopes);
        self.scopes.insert(key, scopes.clone());
        scopes
    }
}

fn read_scopes(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    scopes: &mut Scopes,
) -> Result<(), gimli::Error> {
    let mut entries = unit.entries_raw(None)?;
    let mut attributes = Vec::new();
    let mut around: Vec<(isize, Rc<str>)> = Vec::new();
    let mut bytes = 0;
    while !entries.is_empty() {
        let (depth, offset) = (entries.next_depth(), entries.next_offset().0);
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        while around.last().is_some_and(|(of, _)| *of >= depth) {
            around.pop();
        }
        let tag = abbreviation.tag();
        let is_scope = matches!(
            tag,
            gimli::DW_TAG_namespace
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_union_type
                | gimli::DW_TAG_interface_type
                | gimli::DW_TAG_module
        );
        if !is_scope || !abbreviation.has_children() {
            entries.skip_attributes(abbreviation.attributes())?;
            if tag == gimli::DW_TAG_subprogram
                && let Some((_, scope)) = around.last()
            {
                scopes.insert(offset, scope.clone());
            }
            continue;
        }
        entries.read_attributes(abbreviation.attributes(), &mut attributes)?;
        let name = attributes.iter().find(|attribute| attribute.name() == gimli::DW_AT_name);
        let name = name.and_then(|name| dwarf.attr_string(unit, name.value()).ok());
        let name = name.as_ref().map_or(&b"(anonymous namespace)"[..], |name| name.slice());
        let name = String::from_utf8_lossy(name.get(..LONGEST).unwrap_or(name));
        let whole = match around.last() {
            Some((_, scope)) => format!("{scope}::{name}"),
            None => name.into_owned(),
        };
        let whole = whole.chars().take(LONGEST).collect::<String>();
        bytes += whole.len();
        if bytes > MOST_BYTES {
            return Ok(());
        }
        around.push((depth, whole.into()));
    }
    Ok(())
}
