//! What a function takes and gives, and which variables are visible in it.
//!
//! Where a parameter is, DWARF tells for the body of a function. A probe stands at its entry, where unoptimized code has not yet
//! stored anything: there, a place in the function's own frame is no answer, and the calling convention is asked instead, as it is
//! where optimized code tells nothing. It is not asked about clones of which the compiler has changed the parameters.

use std::{path::PathBuf, rc::Rc, sync::Arc};

use gimli::{AttributeValue, Expression, Operation, UnitOffset};

use super::{
    TypeReader, TypesError,
    expressions::{self, Frame},
    parts::{Die, Open},
    shapes::{Entry, Queue, Walk},
};
use crate::{
    Location, Machine, ResultLocation, TypeId, Types, Unavailable,
    abi::{self, Convention},
    dwarf::Slice,
    frames,
    symtab::{Table, for_each_symbol},
    types::Language,
};

/// A function with its types.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedFunction {
    /// Its name with its scopes.
    pub name: Option<Arc<str>>,
    /// What it is written in.
    pub language: Language,
    /// Where it begins.
    pub entry: u64,
    /// What it takes, in order, with where that is at the address that was asked about. `this` is among them.
    pub parameters: Vec<Variable>,
    /// Whether more may follow.
    pub is_variadic: bool,
    /// What it gives; [`Types::VOID`] for nothing.
    pub result: TypeId,
    /// Where that is when it returns.
    pub result_location: ResultLocation,
}

/// A parameter or a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name, if it has one. That of a global one has its scopes.
    pub name: Option<Arc<str>>,
    /// Its type.
    pub of: TypeId,
    /// Where it is.
    pub location: Location,
    /// Whether the compiler added it, as `this`.
    pub is_artificial: bool,
    /// Where it belongs.
    pub scope: Scope,
}

/// Where a variable belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// A function's parameter.
    Parameter,
    /// A variable in a function.
    Local,
    /// A parameter or a variable of a function that is inlined here.
    Inlined,
    /// A variable of the program.
    Global,
}

/// Variables of one function.
const MOST_VARIABLES: usize = 4096;
/// DIEs of one function.
const MOST_DIES: usize = 1 << 20;
/// From a function to its declaration it takes fewer steps.
const MOST_STEPS: usize = 8;

/// What a DIE says of itself, or by those it refers to.
struct Described<'m> {
    name: Option<(Rc<Open<'m>>, Entry<'m>)>,
    of: Option<(Rc<Open<'m>>, AttributeValue<Slice<'m>>)>,
    language: Option<Language>,
    is_artificial: bool,
    is_external: Option<AttributeValue<Slice<'m>>>,
}

impl<'m> TypeReader<'m> {
    /// The function whose code `address` is in, with what it takes and gives, and where that is when control is at `address`.
    ///
    /// # Errors
    /// No function's description covers the address.
    pub fn function(&mut self, types: &mut Types, address: u64) -> Result<TypedFunction, TypesError> {
        let (unit, offset) = self.function_die(address)?;
        let entry = unit.unit.entry(offset).map_err(|_| TypesError::Malformed)?;
        self.language = unit.language.unwrap_or_default();
        let mut queue = Queue::default();
        let described = self.described(&unit, &entry);
        let language = described.language.or(unit.language).unwrap_or_default();
        self.language = language;
        let name = match &described.name {
            Some((unit, entry)) => self.full_name(unit, entry),
            None => None,
        };
        let result = match &described.of {
            Some((unit, of)) => self.type_of(types, unit, Some(*of), &mut queue),
            None => Types::VOID,
        };
        let frame = self.frame(&unit, &entry, address);
        let (mut parameters, mut is_variadic) = self.parameters(types, &unit, &entry, &frame, &mut queue)?;
        if parameters.is_empty()
            && let Some(origin) = entry.attr_value(gimli::DW_AT_abstract_origin)
            && let Some(die) = self.parts.referred(&unit, &origin)
            && let Some(of) = self.parts.open(die)
            && let Ok(entry) = of.unit.entry(of.offset(die))
        {
            (parameters, is_variadic) = self.parameters(types, &of, &entry, &frame, &mut queue)?;
        }
        self.work(types, &mut queue);
        let convention = match language {
            Language::Rust => Convention::Rust,
            Language::C | Language::Cpp => Convention::C,
            Language::Go => Convention::Unknown,
        };
        let start = self.entry_of(&unit, &entry).unwrap_or(address);
        let is_missing = |location: &Location| matches!(location, Location::Unavailable(_));
        let misses = parameters.iter().any(|parameter| is_missing(&parameter.location));
        if frame.is_entry && misses {
            let is_external = matches!(described.is_external, Some(AttributeValue::Flag(true)));
            let is_kept = is_external && language != Language::Rust;
            let is_changed = match unit.is_llvm {
                true => is_marked_as_changed(&entry) || !is_kept && !self.is_stored(&unit, &entry),
                false => self.is_clone(start, &[b".isra.", b".constprop.", b".part."]),
            };
            let told = match is_changed {
                true => vec![Location::Unavailable(Unavailable::Changed); parameters.len()],
                false => {
                    let of: Vec<TypeId> = parameters.iter().map(|parameter| parameter.of).collect();
                    abi::arguments(self.module.machine(), convention, types, result, &of)
                }
            };
            for (parameter, told) in parameters.iter_mut().zip(told) {
                if is_missing(&parameter.location) {
                    parameter.location = told;
                }
            }
        }
        // A result that nobody needs is not given any more.
        let is_given = match unit.is_llvm {
            true => !is_marked_as_changed(&entry),
            false => result == Types::VOID || !self.is_clone(start, &[b".isra.", b".part."]),
        };
        let result_location = match is_given {
            true => abi::result(self.module.machine(), convention, types, result),
            false => ResultLocation::Unavailable(Unavailable::Changed),
        };
        Ok(TypedFunction { name, language, entry: start, parameters, is_variadic, result, result_location })
    }

    /// The variables that are visible where control is at `address`: the function's parameters, those of the blocks that the address is
    /// in, the innermost last, and those of functions that are inlined there. The last of several with one name is the one that is meant.
    ///
    /// # Errors
    /// No function's description covers the address.
    pub fn locals(&mut self, types: &mut Types, address: u64) -> Result<Vec<Variable>, TypesError> {
        let mut all = self.function(types, address)?.parameters;
        let (unit, offset) = self.function_die(address)?;
        let entry = unit.unit.entry(offset).map_err(|_| TypesError::Malformed)?;
        let frame = self.frame(&unit, &entry, address);
        let part = self.parts.part(unit.part).ok_or(TypesError::Malformed)?;
        let mut queue = Queue::default();
        let mut budget = MOST_DIES;
        // The depth of the blocks that are open, and whether they are inlined functions'.
        let mut open: Vec<(isize, bool)> = Vec::new();
        let of = unit.clone();
        TypeReader::below(&of, offset, &mut budget, &mut |depth, entry| {
            while open.last().is_some_and(|(of, _)| *of >= depth) {
                open.pop();
            }
            if all.len() >= MOST_VARIABLES {
                return Walk::Stop;
            }
            let is_inlined = open.last().is_some_and(|(_, is_inlined)| *is_inlined);
            match entry.tag() {
                gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine => {
                    if !covers(&part.dwarf, &unit.unit, entry, address) {
                        return Walk::Past;
                    }
                    open.push((depth, is_inlined || entry.tag() == gimli::DW_TAG_inlined_subroutine));
                    Walk::Into
                }
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter
                    if entry.tag() == gimli::DW_TAG_variable || is_inlined =>
                {
                    let scope = if is_inlined { Scope::Inlined } else { Scope::Local };
                    let variable = self.variable_at(types, &unit, entry, &frame, scope, &mut queue);
                    all.extend(variable);
                    Walk::Past
                }
                _ => Walk::Past,
            }
        });
        self.work(types, &mut queue);
        Ok(all)
    }

    /// The unit and the DIE of the function at an address.
    fn function_die(&mut self, address: u64) -> Result<(Rc<Open<'m>>, UnitOffset), TypesError> {
        let main = self.parts.part(super::parts::MAIN).ok_or(TypesError::NoDebugInfo)?;
        for index in self.table.at(&main.dwarf, address) {
            let Some(unit) = self.parts.whole(index) else { continue };
            let map = self.parts.map(&unit);
            if let Some(offset) = map.function(address) {
                return Ok((unit, offset));
            }
            let of_skeleton = unit.part == super::parts::MAIN && unit.unit.dwo_id.is_some();
            if of_skeleton && let Ok(Some(name)) = unit.unit.dwo_name() {
                let name = main
                    .dwarf
                    .attr_string(&unit.unit, name)
                    .map(|name| PathBuf::from(&*name.to_string_lossy()));
                return Err(TypesError::NoSplitFile(name.unwrap_or_default()));
            }
        }
        Err(TypesError::NoFunction(address))
    }

    /// The types of the unit that `address` is in come first.
    pub(super) fn unit_of(&mut self, address: u64) -> Option<Rc<Open<'m>>> {
        let main = self.parts.part(super::parts::MAIN)?;
        let index = *self.table.at(&main.dwarf, address).first()?;
        self.parts.whole(index)
    }

    fn entry_of(&mut self, unit: &Open<'m>, entry: &Entry<'m>) -> Option<u64> {
        let part = self.parts.part(unit.part)?;
        if let Some(low) = entry.attr_value(gimli::DW_AT_low_pc) {
            return part.dwarf.attr_address(&unit.unit, low).ok()?;
        }
        let list = entry.attr_value(gimli::DW_AT_ranges)?;
        let mut list = part.dwarf.attr_ranges(&unit.unit, list).ok()??;
        Some(list.next().ok()??.begin)
    }

    /// The stack pointer, and where the caller's frame begins above it when a function is entered.
    fn at_call(&self) -> (u16, i64) {
        match self.module.machine() {
            Machine::X86_64 => (7, 8),
            Machine::I386 => (4, 4),
            Machine::AArch64 => (31, 0),
            Machine::PowerPc64Le => (1, 0),
        }
    }

    /// What expressions of a function may ask for, where control is at `address`.
    fn frame(&mut self, unit: &Open<'m>, entry: &Entry<'m>, address: u64) -> Frame<'m> {
        let is_entry = self.entry_of(unit, entry).is_some_and(|start| self.is_entry(start, address));
        let cfa = match is_entry {
            true => Some(self.at_call()),
            false => frames::cfa(&self.module.image, &self.module.source, address),
        };
        Frame { address, is_entry, base: entry.attr_value(gimli::DW_AT_frame_base), cfa }
    }

    /// Whether nothing has happened between a function's first instruction and `address`: it is that one, or the next after a landing
    /// mark (`endbr64`, `bti`), or powerpc's local entry behind the two instructions that set r2.
    fn is_entry(&self, start: u64, address: u64) -> bool {
        if address == start {
            return true;
        }
        let code = self.module.code_at(start);
        let Some(word) = code.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else { return false };
        match (self.module.machine(), address.wrapping_sub(start)) {
            (Machine::X86_64, 4) => word == 0xfa1e_0ff3,
            (Machine::I386, 4) => word == 0xfb1e_0ff3,
            // BTI and PACIASP are hints.
            (Machine::AArch64, 4) => word & 0xffff_ff3f == 0xd503_241f || word == 0xd503_233f,
            (Machine::PowerPc64Le, 8) => word >> 16 == 0x3c4c || word >> 16 == 0x3c40,
            _ => false,
        }
    }

    /// Whether all parameters of a function have places, and one of them a place in the frame for the whole of it: optimized code keeps
    /// what it can in registers, and does without the rest.
    fn is_stored(&mut self, unit: &Rc<Open<'m>>, entry: &Entry<'m>) -> bool {
        let (mut is_all, mut is_stored) = (true, false);
        let (stack_pointer, _) = self.at_call();
        let mut budget = MOST_DIES;
        let read = TypeReader::below(unit, entry.offset(), &mut budget, &mut |depth, entry| {
            if depth == 1 && entry.tag() == gimli::DW_TAG_formal_parameter {
                let location = entry.attr_value(gimli::DW_AT_location);
                is_all &= location.is_some();
                if let Some(AttributeValue::Exprloc(expression)) = location {
                    is_stored |= matches!(first(unit, &expression), Some(Operation::FrameOffset { .. }))
                        || is_by(unit, &expression, stack_pointer);
                }
            }
            Walk::Past
        });
        is_all && is_stored && read.is_some()
    }

    /// Whether the symbol there is that of a clone, by what is in its name.
    fn is_clone(&self, entry: u64, marks: &[&[u8]]) -> bool {
        let mut found = false;
        let mut look = |image, bytes| {
            let mut see = |symbol: crate::symtab::Symbol<'_>| {
                found |= symbol.address == entry
                    && marks.iter().any(|mark| memchr::memmem::find(symbol.name, mark).is_some());
            };
            // What cannot be read tells nothing.
            let _ = for_each_symbol(image, bytes, Table::Static, &mut see);
        };
        look(&self.module.image, &self.module.source);
        if let Some(file) = self.debug.file() {
            look(&file.image, &file.source);
        }
        found
    }

    fn parameters(
        &mut self,
        types: &mut Types,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        frame: &Frame<'m>,
        queue: &mut Queue,
    ) -> Result<(Vec<Variable>, bool), TypesError> {
        let (mut all, mut is_variadic) = (Vec::new(), false);
        // A clone lists what it has no use for behind the rest. Their order is that of what they come from.
        let mut order = Vec::new();
        let mut budget = MOST_DIES;
        let read = TypeReader::below(unit, entry.offset(), &mut budget, &mut |depth, entry| {
            match (depth, entry.tag()) {
                (1, gimli::DW_TAG_formal_parameter) => {
                    if let Some(variable) =
                        self.variable_at(types, unit, entry, frame, Scope::Parameter, queue)
                    {
                        order.extend(
                            entry
                                .attr_value(gimli::DW_AT_abstract_origin)
                                .and_then(|origin| self.parts.referred(unit, &origin))
                                .map(|die| (die.part, die.offset)),
                        );
                        all.push(variable);
                    }
                }
                (1, gimli::DW_TAG_unspecified_parameters) => is_variadic = true,
                _ => {}
            }
            if all.len() < MOST_VARIABLES { Walk::Past } else { Walk::Stop }
        });
        read.ok_or(TypesError::Malformed)?;
        if order.len() == all.len() {
            let mut both: Vec<_> = order.into_iter().zip(all).collect();
            both.sort_by_key(|(order, _)| *order);
            all = both.into_iter().map(|(_, variable)| variable).collect();
        }
        Ok((all, is_variadic))
    }

    /// A parameter or a variable of a function. None for a declaration of one that is elsewhere.
    fn variable_at(
        &mut self,
        types: &mut Types,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        frame: &Frame<'m>,
        scope: Scope,
        queue: &mut Queue,
    ) -> Option<Variable> {
        if entry.attr_value(gimli::DW_AT_declaration).is_some() {
            return None;
        }
        let described = self.described(unit, entry);
        let name = match &described.name {
            Some((unit, entry)) => self.text(unit, entry.attr_value(gimli::DW_AT_name)),
            None => None,
        };
        let of = match &described.of {
            Some((unit, of)) => self.type_of(types, unit, Some(*of), queue),
            None => Types::UNKNOWN,
        };
        let location = self.place_of(unit, entry, frame, scope == Scope::Parameter);
        Some(Variable { name, of, location, is_artificial: described.is_artificial, scope })
    }

    fn place_of(
        &mut self,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        frame: &Frame<'m>,
        is_parameter: bool,
    ) -> Location {
        if let Some(value) = entry.attr_value(gimli::DW_AT_const_value) {
            return constant(value);
        }
        let Some(part) = self.parts.part(unit.part) else {
            return Location::Unavailable(Unavailable::Malformed);
        };
        let Some(value) = entry.attr_value(gimli::DW_AT_location) else {
            return Location::Unavailable(Unavailable::OptimizedOut);
        };
        // The stack pointer of the whole function is that behind its prologue.
        if is_parameter
            && frame.is_entry
            && let AttributeValue::Exprloc(expression) = &value
            && is_by(unit, expression, self.at_call().0)
        {
            return Location::Unavailable(Unavailable::NotHere);
        }
        let told = expressions::place(&part, unit, frame, value);
        // What lies below the frame's top is the function's own, and not yet there.
        let is_stored = match (&told.location, frame.cfa) {
            (Location::Memory { register, offset }, Some((top, at))) => {
                // Powerpc's callers leave room there for what they give in registers.
                let is_room = self.module.machine() == Machine::PowerPc64Le;
                *register != top || *offset < at || is_room
            }
            (Location::Indirect { .. } | Location::Pieces(_), _) => true,
            _ => false,
        };
        if is_parameter && frame.is_entry && told.is_whole && is_stored {
            return Location::Unavailable(Unavailable::NotHere);
        }
        told.location
    }

    /// What a DIE says of itself, or by those it refers to.
    fn described(&mut self, unit: &Rc<Open<'m>>, entry: &Entry<'m>) -> Described<'m> {
        let mut found =
            Described { name: None, of: None, language: None, is_artificial: false, is_external: None };
        let (mut unit, mut entry) = (unit.clone(), entry.clone());
        for _ in 0..MOST_STEPS {
            if found.name.is_none() && entry.attr_value(gimli::DW_AT_name).is_some() {
                found.name = Some((unit.clone(), entry.clone()));
            }
            if found.of.is_none()
                && let Some(of) = entry.attr_value(gimli::DW_AT_type)
            {
                found.of = Some((unit.clone(), of));
            }
            found.language = found.language.or(unit.language);
            found.is_external = found.is_external.or_else(|| entry.attr_value(gimli::DW_AT_external));
            found.is_artificial |=
                matches!(entry.attr_value(gimli::DW_AT_artificial), Some(AttributeValue::Flag(true)));
            let next = [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification];
            let Some(next) = next.iter().find_map(|&name| entry.attr_value(name)) else { break };
            let Some(die) = self.parts.referred(&unit, &next) else { break };
            let Some(of) = self.parts.open(die) else { break };
            let Ok(referred) = of.unit.entry(of.offset(die)) else { break };
            (unit, entry) = (of, referred);
        }
        found
    }

    /// A variable of the program, from its DIE.
    pub(super) fn global_at(&mut self, types: &mut Types, die: Die) -> Option<Variable> {
        let unit = self.parts.open(die)?;
        let entry = unit.unit.entry(unit.offset(die)).ok()?;
        let part = self.parts.part(unit.part)?;
        self.language = unit.language.unwrap_or_default();
        let mut queue = Queue::default();
        let described = self.described(&unit, &entry);
        let name = match &described.name {
            Some((unit, entry)) => self.full_name(unit, entry),
            None => None,
        };
        let of = match &described.of {
            Some((unit, of)) => self.type_of(types, unit, Some(*of), &mut queue),
            None => Types::UNKNOWN,
        };
        let frame = Frame { address: 0, is_entry: false, base: None, cfa: None };
        let location =
            match (entry.attr_value(gimli::DW_AT_const_value), entry.attr_value(gimli::DW_AT_location)) {
                (Some(value), _) => constant(value),
                (_, Some(value)) => expressions::place(&part, &unit, &frame, value).location,
                _ => Location::Unavailable(Unavailable::OptimizedOut),
            };
        self.work(types, &mut queue);
        Some(Variable { name, of, location, is_artificial: described.is_artificial, scope: Scope::Global })
    }
}

/// Whether LLVM says that a function does not keep to the calling convention: it has taken parameters away, or the result, of a function
/// that nobody else calls.
fn is_marked_as_changed(entry: &Entry<'_>) -> bool {
    let told = entry.attr_value(gimli::DW_AT_calling_convention);
    matches!(told, Some(AttributeValue::CallingConvention(gimli::DW_CC_nocall)))
}

/// Whether the code of a block is at `address`.
fn covers(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    entry: &Entry<'_>,
    address: u64,
) -> bool {
    if let Some(list) = entry.attr_value(gimli::DW_AT_ranges) {
        let Ok(Some(mut list)) = dwarf.attr_ranges(unit, list) else { return false };
        while let Ok(Some(range)) = list.next() {
            if (range.begin..range.end).contains(&address) {
                return true;
            }
        }
        return false;
    }
    let low = entry.attr_value(gimli::DW_AT_low_pc).and_then(|low| dwarf.attr_address(unit, low).ok()?);
    let (Some(low), Some(high)) = (low, entry.attr_value(gimli::DW_AT_high_pc)) else {
        // A block without addresses is the whole of what it is in.
        return entry.tag() == gimli::DW_TAG_lexical_block && low.is_none();
    };
    let high = match high {
        AttributeValue::Udata(size) => low.saturating_add(size),
        other => dwarf.attr_address(unit, other).ok().flatten().unwrap_or(low),
    };
    (low..high).contains(&address)
}

fn first<'m>(unit: &Open<'m>, expression: &Expression<Slice<'m>>) -> Option<Operation<Slice<'m>>> {
    expression.operations(unit.unit.encoding()).next().ok().flatten()
}

/// Whether an expression tells of a place by this register.
fn is_by<'m>(unit: &Open<'m>, expression: &Expression<Slice<'m>>, number: u16) -> bool {
    matches!(first(unit, expression), Some(Operation::RegisterOffset { register, .. }) if register.0 == number)
}

fn constant(value: AttributeValue<Slice<'_>>) -> Location {
    let bytes = match value {
        AttributeValue::Block(bytes) if bytes.len() <= 4096 => bytes.slice().to_vec(),
        AttributeValue::Data16(value) => value.to_le_bytes().to_vec(),
        AttributeValue::Sdata(value) => i128::from(value).to_le_bytes().to_vec(),
        other => match other.udata_value() {
            Some(value) => value.to_le_bytes().to_vec(),
            None => return Location::Unavailable(Unavailable::Computed),
        },
    };
    Location::Constant(bytes)
}
