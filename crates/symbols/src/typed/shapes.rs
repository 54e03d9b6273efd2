//! From a DIE to a type.
//!
//! A type's DIE refers to others. They are promised ids at once and read afterwards, nearest first, so nothing recurses, and
//! reading ends when enough has been read: what is left is [`Kind::Unread`] until somebody asks for it.

use std::{collections::VecDeque, rc::Rc, sync::Arc};

use gimli::{AttributeValue, DebuggingInformationEntry, UnitOffset};

use super::{
    TypeReader,
    parts::{Die, Open},
};
use crate::{
    dwarf::Slice,
    types::{
        Array, Bits, Encoding, Enum, Kind, Language, Member, Passing, Pointer, Qualifier, Role, Signature,
        Struct, Type, TypeId, Types, Variant, Variants, Word,
    },
};

/// Types that one question reads.
const MOST_READ: usize = 4096;
/// DIEs that it goes through for them.
const MOST_DIES: usize = 1 << 20;
/// Members, enumerators, parameters of one type.
const MOST_PARTS: usize = 1 << 16;
/// Longer names are cut, in bytes.
const LONGEST_NAME: usize = 4096;
/// Scopes in scopes.
const DEEPEST_SCOPE: usize = 64;

pub(super) type Entry<'m> = DebuggingInformationEntry<Slice<'m>>;

/// Types that are promised and not yet read.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<(Die, TypeId, Language)>,
}

impl<'m> TypeReader<'m> {
    /// The type of a DIE, which is read by [`TypeReader::work`].
    pub(super) fn type_at(
        &mut self,
        types: &mut Types,
        die: Die,
        language: Language,
        queue: &mut Queue,
    ) -> TypeId {
        let origin = die.origin(self.number);
        if let Some(known) = types.known(origin) {
            return known;
        }
        let id = types.promise(origin);
        if id != Types::UNKNOWN {
            queue.waiting.push_back((die, id, language));
        }
        id
    }

    /// The type that an attribute refers to; [`Types::VOID`] where there is none.
    pub(super) fn type_of(
        &mut self,
        types: &mut Types,
        unit: &Open<'m>,
        value: Option<AttributeValue<Slice<'m>>>,
        queue: &mut Queue,
    ) -> TypeId {
        let Some(value) = value else { return Types::VOID };
        let language = unit.language.unwrap_or(self.language);
        match self.parts.referred(unit, &value) {
            Some(die) => self.type_at(types, die, language, queue),
            None => Types::UNKNOWN,
        }
    }

    /// Asks for a type again that was promised and not read.
    pub(super) fn resume(&mut self, types: &Types, id: TypeId, queue: &mut Queue) {
        if let Some(origin) = types.origin(id).filter(|origin| origin.module == self.number) {
            queue.waiting.push_back((Die::of(origin), id, self.language));
        }
    }

    /// Reads what was promised, as much as one question may.
    pub(super) fn work(&mut self, types: &mut Types, queue: &mut Queue) {
        let mut budget = MOST_DIES;
        for _ in 0..MOST_READ {
            let Some((die, id, language)) = queue.waiting.pop_front() else { return };
            if budget == 0 {
                return;
            }
            let read = self.read(types, die, language, queue, &mut budget);
            let bare = |kind| Type { name: None, size: None, align: None, language, kind };
            match read {
                Some(read) => types.replace(id, read),
                // It was not for want of sense.
                None if budget == 0 => {}
                None => types.replace(id, bare(Kind::Unknown)),
            }
        }
    }

    fn read(
        &mut self,
        types: &mut Types,
        die: Die,
        asked_by: Language,
        queue: &mut Queue,
        budget: &mut usize,
    ) -> Option<Type> {
        let unit = self.parts.open(die)?;
        let language = unit.language.unwrap_or(asked_by);
        self.language = language;
        let entry = unit.unit.entry(unit.offset(die)).ok()?;
        let tag = entry.tag();
        let value = |name| entry.attr_value(name);
        let number = |name| value(name).and_then(|value| value.udata_value());
        let mut size = number(gimli::DW_AT_byte_size)
            .or_else(|| number(gimli::DW_AT_bit_size).map(|bits| bits.div_ceil(8)));
        let is_declaration = matches!(value(gimli::DW_AT_declaration), Some(AttributeValue::Flag(true)));
        let of = value(gimli::DW_AT_type);
        let address_size = u64::from(unit.unit.encoding().address_size);
        // A type apart is described elsewhere in the same file, and only mentioned where it is used.
        if let Some(signature) = value(gimli::DW_AT_signature) {
            let of = self.type_of(types, &unit, Some(signature), queue);
            return Some(Type { name: None, size: None, align: None, language, kind: Kind::Typedef(of) });
        }
        let kind = match tag {
            gimli::DW_TAG_base_type => Kind::Base(encoding(&entry)),
            gimli::DW_TAG_pointer_type => {
                size = size.or(Some(address_size));
                Kind::Pointer(Pointer::Plain, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_reference_type => {
                size = size.or(Some(address_size));
                Kind::Pointer(Pointer::Reference, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_rvalue_reference_type => {
                size = size.or(Some(address_size));
                Kind::Pointer(Pointer::RvalueReference, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_ptr_to_member_type => {
                let to = self.type_of(types, &unit, of, queue);
                let class = self.type_of(types, &unit, value(gimli::DW_AT_containing_type), queue);
                let words = if self.is_function(&unit, &entry) { 2 } else { 1 };
                size = size.or(Some(words * address_size));
                Kind::MemberPointer(to, class)
            }
            gimli::DW_TAG_typedef => Kind::Typedef(self.type_of(types, &unit, of, queue)),
            gimli::DW_TAG_const_type => {
                Kind::Qualified(Qualifier::Const, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_volatile_type => {
                Kind::Qualified(Qualifier::Volatile, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_restrict_type => {
                Kind::Qualified(Qualifier::Restrict, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_atomic_type => {
                Kind::Qualified(Qualifier::Atomic, self.type_of(types, &unit, of, queue))
            }
            gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_interface_type
            | gimli::DW_TAG_union_type => {
                let word = match tag {
                    gimli::DW_TAG_structure_type => Word::Struct,
                    gimli::DW_TAG_union_type => Word::Union,
                    _ => Word::Class,
                };
                match is_declaration {
                    true => Kind::Declared(word),
                    false => {
                        let mut of = self.members(types, &unit, &entry, word, queue, budget)?;
                        let by_address = matches!(
                            value(gimli::DW_AT_calling_convention),
                            Some(AttributeValue::CallingConvention(gimli::DwCc(4)))
                        );
                        if by_address {
                            of.passing = Passing::Reference;
                        }
                        Kind::Struct(of)
                    }
                }
            }
            gimli::DW_TAG_enumeration_type if is_declaration => Kind::Declared(Word::Enum),
            gimli::DW_TAG_enumeration_type => {
                let enumerators = self.enumerators(&unit, &entry, budget)?;
                let of = of.map(|of| self.type_of(types, &unit, Some(of), queue));
                let is_class = value(gimli::DW_AT_enum_class).is_some();
                Kind::Enum(Enum { of, enumerators, is_class })
            }
            gimli::DW_TAG_array_type => {
                let counts = self.counts(&unit, &entry, budget)?;
                let is_vector = value(gimli::DW_AT_GNU_vector).is_some();
                let of = self.type_of(types, &unit, of, queue);
                Kind::Array(Array { of, counts, is_vector })
            }
            gimli::DW_TAG_subroutine_type | gimli::DW_TAG_subprogram => {
                Kind::Function(self.signature(types, &unit, &entry, queue, budget)?)
            }
            // `decltype(nullptr)`.
            gimli::DW_TAG_unspecified_type => {
                size = size.or(Some(address_size));
                Kind::Pointer(Pointer::Plain, Types::VOID)
            }
            _ => Kind::Unknown,
        };
        let name = self.full_name(&unit, &entry);
        // Compilers say of some characters only that they are numbers.
        let kind = match (kind, name.as_deref()) {
            (Kind::Base(_), Some("char8_t" | "char16_t" | "char32_t")) => Kind::Base(Encoding::Utf),
            (kind, _) => kind,
        };
        Some(Type { name, size, align: number(gimli::DW_AT_alignment), language, kind })
    }

    /// Whether what a DIE refers to is a function's type.
    fn is_function(&mut self, unit: &Open<'m>, entry: &Entry<'m>) -> bool {
        let of = entry.attr_value(gimli::DW_AT_type);
        let Some(die) = of.and_then(|of| self.parts.referred(unit, &of)) else { return false };
        let Some(unit) = self.parts.open(die) else { return false };
        let found = unit.unit.entry(unit.offset(die));
        found.is_ok_and(|entry| entry.tag() == gimli::DW_TAG_subroutine_type)
    }

    /// The text of an attribute.
    pub(super) fn text(
        &mut self,
        unit: &Open<'m>,
        value: Option<AttributeValue<Slice<'m>>>,
    ) -> Option<Arc<str>> {
        let part = self.parts.part(unit.part)?;
        let text = part.dwarf.attr_string(&unit.unit, value?).ok()?;
        let bytes = text.slice();
        let bytes = bytes.get(..LONGEST_NAME).unwrap_or(bytes);
        Some(String::from_utf8_lossy(bytes).into())
    }

    /// The name of a DIE with the scopes it is in.
    pub(super) fn full_name(&mut self, unit: &Rc<Open<'m>>, entry: &Entry<'m>) -> Option<Arc<str>> {
        let name = self.text(unit, entry.attr_value(gimli::DW_AT_name))?;
        let is_scoped = super::unit_map::is_named_type(entry.tag())
            || matches!(entry.tag(), gimli::DW_TAG_subprogram | gimli::DW_TAG_variable);
        if !is_scoped || unit.language.unwrap_or(self.language) == Language::C {
            return Some(name);
        }
        // A type apart is in no scope itself, but its declaration there is.
        let at = match entry.attr_value(gimli::DW_AT_specification) {
            Some(AttributeValue::UnitRef(of)) => of,
            _ => entry.offset(),
        };
        match self.scope_name(unit, at) {
            Some(scope) => Some(format!("{scope}::{name}").into()),
            None => Some(name),
        }
    }

    fn scope_name(&mut self, unit: &Rc<Open<'m>>, offset: UnitOffset) -> Option<Arc<str>> {
        let map = self.parts.map(unit);
        let scope = map.scope(offset)?;
        let die = unit.die(scope);
        if let Some(known) = self.scopes.get(&die) {
            return Some(known.clone());
        }
        let mut names = Vec::new();
        let (mut at, mut length) = (Some(scope), 0);
        while let Some(scope) = at.filter(|_| names.len() < DEEPEST_SCOPE && length < LONGEST_NAME) {
            let entry = unit.unit.entry(scope).ok()?;
            let name = self.text(unit, entry.attr_value(gimli::DW_AT_name));
            let name = name.unwrap_or_else(|| match entry.tag() {
                gimli::DW_TAG_namespace => "(anonymous namespace)".into(),
                _ => "(anonymous)".into(),
            });
            length += name.len();
            names.push(name);
            at = map.scope(scope);
        }
        names.reverse();
        let whole: Arc<str> = names.join("::").into();
        if self.scopes.len() >= MOST_PARTS {
            self.scopes.clear();
        }
        self.scopes.insert(die, whole.clone());
        Some(whole)
    }

    /// Calls `each` with every DIE below one, and its depth there, from 1. What `each` does not want the children of ([`Walk::Past`])
    /// is passed over. `None` where it makes no sense or the budget is used up.
    pub(super) fn below(
        unit: &Open<'m>,
        of: UnitOffset,
        budget: &mut usize,
        each: &mut dyn FnMut(isize, &Entry<'m>) -> Walk,
    ) -> Option<()> {
        let mut entries = unit.unit.entries_raw(Some(of)).ok()?;
        let mut entry = Entry::default();
        entries.read_entry(&mut entry).ok()?;
        if !entry.has_children() {
            return Some(());
        }
        let mut past: Option<isize> = None;
        while !entries.is_empty() && entries.next_depth() > 0 {
            *budget = budget.checked_sub(1)?;
            let depth = entries.next_depth();
            if past.is_some_and(|past| depth > past) {
                if let Some(abbreviation) = entries.read_abbreviation().ok()? {
                    entries.skip_attributes(abbreviation.attributes()).ok()?;
                }
                continue;
            }
            past = None;
            if !entries.read_entry(&mut entry).ok()? {
                continue;
            }
            match each(depth, &entry) {
                Walk::Into => {}
                Walk::Past => past = Some(depth),
                Walk::Stop => return Some(()),
            }
        }
        Some(())
    }

    fn members(
        &mut self,
        types: &mut Types,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        word: Word,
        queue: &mut Queue,
        budget: &mut usize,
    ) -> Option<Struct> {
        let mut of = Struct {
            word,
            members: Vec::new(),
            variants: None,
            arguments: Vec::new(),
            passing: Passing::Value,
        };
        // The discriminant is a field of the variant part, which says where.
        let mut discriminant: Option<UnitOffset> = None;
        let mut width: Option<u64> = None;
        let mut values: Option<Vec<std::ops::RangeInclusive<u128>>> = None;
        let unit_of = unit.clone();
        TypeReader::below(&unit_of, entry.offset(), budget, &mut |depth, entry| {
            let parts = of.variants.as_ref().map_or(0, |variants| variants.all.len());
            if of.members.len() + of.arguments.len() + parts >= MOST_PARTS {
                return Walk::Stop;
            }
            match (depth, entry.tag()) {
                (1, gimli::DW_TAG_member | gimli::DW_TAG_inheritance) => {
                    of.members.extend(self.member(types, unit, entry, queue));
                }
                (1, gimli::DW_TAG_template_type_parameter) => {
                    let name = self.text(unit, entry.attr_value(gimli::DW_AT_name));
                    let argument = self.type_of(types, unit, entry.attr_value(gimli::DW_AT_type), queue);
                    of.arguments.push((name, argument));
                }
                (1, gimli::DW_TAG_GNU_template_parameter_pack) => return Walk::Into,
                (1, gimli::DW_TAG_subprogram)
                    if of.passing == Passing::Value && self.is_copied_with_care(unit, entry) =>
                {
                    of.passing = Passing::Reference;
                }
                (2, gimli::DW_TAG_template_type_parameter) => {
                    let argument = self.type_of(types, unit, entry.attr_value(gimli::DW_AT_type), queue);
                    of.arguments.push((None, argument));
                }
                (1, gimli::DW_TAG_variant_part) => {
                    if let Some(AttributeValue::UnitRef(offset)) = entry.attr_value(gimli::DW_AT_discr) {
                        discriminant = Some(offset);
                    }
                    of.variants = Some(Box::new(Variants { discriminant: None, all: Vec::new() }));
                    return Walk::Into;
                }
                (2, gimli::DW_TAG_member) if discriminant == Some(entry.offset()) => {
                    if let Some(variants) = &mut of.variants {
                        variants.discriminant = self.member(types, unit, entry, queue);
                        width = entry.attr_value(gimli::DW_AT_type).and_then(|of| self.storage(unit, of));
                    }
                }
                (2, gimli::DW_TAG_variant) if of.variants.is_some() => {
                    values = Some(variant_values(entry));
                    return Walk::Into;
                }
                (3, gimli::DW_TAG_member) => {
                    if let (Some(variants), Some(values)) = (&mut of.variants, values.take())
                        && let Some(member) = self.member(types, unit, entry, queue)
                    {
                        variants.all.push(Variant { values, member });
                    }
                }
                _ => {}
            }
            Walk::Past
        })?;
        if let (Some(variants), Some(width)) = (&mut of.variants, width) {
            // Values are told with or without a sign, and compared without.
            narrow(&mut variants.all, width);
        }
        Some(of)
    }

    /// Whether a member function is a destructor or a copy or move constructor that somebody wrote: objects with one of these are passed
    /// by their address. Only newer compilers say so of the class.
    fn is_copied_with_care(&mut self, unit: &Rc<Open<'m>>, entry: &Entry<'m>) -> bool {
        let is = |name| match entry.attr_value(name) {
            Some(AttributeValue::Flag(is)) => is,
            Some(value) => value.udata_value().is_some_and(|value| value != 0),
            None => false,
        };
        // Defaulted in the class: what its members need, they say themselves.
        let is_default = entry
            .attr_value(gimli::DW_AT_defaulted)
            .and_then(|value| value.udata_value())
            .is_some_and(|value| value == u64::from(gimli::DW_DEFAULTED_in_class.0));
        if is_default || is(gimli::DW_AT_artificial) || is(gimli::DW_AT_deleted) {
            return false;
        }
        let Some(name) = self.text(unit, entry.attr_value(gimli::DW_AT_name)) else { return false };
        if name.starts_with('~') {
            return true;
        }
        let linkage = self.text(unit, entry.attr_value(gimli::DW_AT_linkage_name));
        let parameters = linkage.as_deref().and_then(|linkage| linkage.rsplit_once("C4E"));
        // Its only parameter is a reference to what was just named.
        parameters.is_some_and(|(_, of)| {
            let of = of.strip_prefix("RK").or_else(|| of.strip_prefix('O'));
            of.is_some_and(|of| {
                of == "Ss" || of.strip_prefix('S').is_some_and(|of| of.find('_') == Some(of.len() - 1))
            })
        })
    }

    fn member(
        &mut self,
        types: &mut Types,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        queue: &mut Queue,
    ) -> Option<Member> {
        let value = |name| entry.attr_value(name);
        let number = |name| value(name).and_then(|value| value.udata_value());
        // A static member is a declaration of a variable; in DWARF 4 it has the same tag.
        if value(gimli::DW_AT_external).is_some() || value(gimli::DW_AT_declaration).is_some() {
            return None;
        }
        let is_base = entry.tag() == gimli::DW_TAG_inheritance;
        let of = self.type_of(types, unit, value(gimli::DW_AT_type), queue);
        let mut offset = match value(gimli::DW_AT_data_member_location) {
            Some(AttributeValue::Exprloc(expression)) => plus(expression, unit),
            Some(AttributeValue::Block(bytes)) => plus(gimli::Expression(bytes), unit),
            Some(value) => value.udata_value(),
            None => Some(0),
        };
        let mut bits = None;
        if let Some(count) = number(gimli::DW_AT_bit_size).and_then(|count| u32::try_from(count).ok())
            && (1..=128).contains(&count)
        {
            if let Some(first) = number(gimli::DW_AT_data_bit_offset) {
                offset = Some(offset.unwrap_or(0).checked_add(first / 8)?);
                bits = Some(Bits { first: (first % 8) as u32, count });
            } else if let Some(from_top) =
                value(gimli::DW_AT_bit_offset).and_then(|value| value.sdata_value())
            {
                // DWARF 2 and 3 count from the highest bit of the storage unit.
                let storage = match number(gimli::DW_AT_byte_size) {
                    Some(size) => size,
                    None => self.storage(unit, value(gimli::DW_AT_type)?)?,
                };
                let whole = i64::try_from(storage.checked_mul(8)?).ok()?;
                let first = whole.checked_sub(from_top)?.checked_sub(i64::from(count))?;
                let first = i64::try_from(offset.unwrap_or(0)).ok()?.checked_mul(8)?.checked_add(first)?;
                let first = u64::try_from(first).ok()?;
                offset = Some(first / 8);
                bits = Some(Bits { first: (first % 8) as u32, count });
            } else {
                bits = Some(Bits { first: 0, count });
            }
        }
        let name = self.text(unit, value(gimli::DW_AT_name)).filter(|name| !name.is_empty() && !is_base);
        let is_artificial = matches!(value(gimli::DW_AT_artificial), Some(AttributeValue::Flag(true)))
            || name.as_deref().is_some_and(|name| name.starts_with("_vptr"));
        let role = match (is_base, is_artificial) {
            (true, _) => Role::Base,
            (_, true) => Role::Artificial,
            _ => Role::Field,
        };
        Some(Member { name, of, offset, bits, role })
    }

    /// The size of the type that a value refers to, without reading it into a table.
    fn storage(&mut self, unit: &Open<'m>, of: AttributeValue<Slice<'m>>) -> Option<u64> {
        let mut die = self.parts.referred(unit, &of)?;
        for _ in 0..crate::types::DEEPEST {
            let unit = self.parts.open(die)?;
            let entry = unit.unit.entry(unit.offset(die)).ok()?;
            if let Some(size) = entry.attr_value(gimli::DW_AT_byte_size) {
                return size.udata_value();
            }
            die = self.parts.referred(&unit, &entry.attr_value(gimli::DW_AT_type)?)?;
        }
        None
    }

    fn enumerators(
        &mut self,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        budget: &mut usize,
    ) -> Option<Vec<(Arc<str>, i128)>> {
        let mut all = Vec::new();
        TypeReader::below(unit, entry.offset(), budget, &mut |depth, entry| {
            if depth == 1 && entry.tag() == gimli::DW_TAG_enumerator {
                let name = self.text(unit, entry.attr_value(gimli::DW_AT_name));
                let value = entry.attr_value(gimli::DW_AT_const_value);
                if let (Some(name), Some(value)) = (name, value.and_then(constant)) {
                    all.push((name, value));
                }
            }
            if all.len() < MOST_PARTS { Walk::Past } else { Walk::Stop }
        })?;
        Some(all)
    }

    fn counts(
        &mut self,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        budget: &mut usize,
    ) -> Option<Vec<Option<u64>>> {
        let mut counts = Vec::new();
        TypeReader::below(unit, entry.offset(), budget, &mut |depth, entry| {
            if depth == 1 && entry.tag() == gimli::DW_TAG_subrange_type {
                let constant = |name| match entry.attr_value(name) {
                    Some(AttributeValue::Exprloc(_) | AttributeValue::UnitRef(_)) | None => None,
                    Some(value) => {
                        value.udata_value().or_else(|| value.sdata_value().map(|value| value as u64))
                    }
                };
                let lower = constant(gimli::DW_AT_lower_bound).unwrap_or(0);
                let upper = constant(gimli::DW_AT_upper_bound);
                let count = constant(gimli::DW_AT_count)
                    // An upper bound of -1 is an array of none.
                    .or_else(|| upper.map(|upper| upper.wrapping_add(1).wrapping_sub(lower)));
                counts.push(count);
            } else if depth == 1 && entry.tag() == gimli::DW_TAG_enumeration_type {
                counts.push(None);
            }
            if counts.len() < crate::types::DEEPEST { Walk::Past } else { Walk::Stop }
        })?;
        if counts.is_empty() {
            counts.push(None);
        }
        Some(counts)
    }

    pub(super) fn signature(
        &mut self,
        types: &mut Types,
        unit: &Rc<Open<'m>>,
        entry: &Entry<'m>,
        queue: &mut Queue,
        budget: &mut usize,
    ) -> Option<Signature> {
        let result = self.type_of(types, unit, entry.attr_value(gimli::DW_AT_type), queue);
        let (mut parameters, mut is_variadic) = (Vec::new(), false);
        TypeReader::below(unit, entry.offset(), budget, &mut |depth, entry| {
            match (depth, entry.tag()) {
                (1, gimli::DW_TAG_formal_parameter) => {
                    parameters.push(self.type_of(types, unit, entry.attr_value(gimli::DW_AT_type), queue));
                }
                (1, gimli::DW_TAG_unspecified_parameters) => is_variadic = true,
                _ => {}
            }
            if parameters.len() < MOST_PARTS { Walk::Past } else { Walk::Stop }
        })?;
        Some(Signature { result, parameters, is_variadic })
    }
}

/// What comes after a DIE.
pub(super) enum Walk {
    /// Its children.
    Into,
    /// What comes behind them.
    Past,
    /// Nothing.
    Stop,
}

fn encoding(entry: &Entry<'_>) -> Encoding {
    let Some(AttributeValue::Encoding(encoding)) = entry.attr_value(gimli::DW_AT_encoding) else {
        return Encoding::Other;
    };
    match encoding {
        gimli::DW_ATE_signed => Encoding::Signed,
        gimli::DW_ATE_unsigned | gimli::DW_ATE_address => Encoding::Unsigned,
        gimli::DW_ATE_boolean => Encoding::Bool,
        gimli::DW_ATE_signed_char => Encoding::SignedChar,
        gimli::DW_ATE_unsigned_char => Encoding::UnsignedChar,
        gimli::DW_ATE_UTF | gimli::DW_ATE_UCS | gimli::DW_ATE_ASCII => Encoding::Utf,
        gimli::DW_ATE_float => Encoding::Float,
        gimli::DW_ATE_complex_float => Encoding::Complex,
        _ => Encoding::Other,
    }
}

/// A constant. Those of fixed width are what is not negative: compilers write a sign in another form.
pub(super) fn constant(value: AttributeValue<Slice<'_>>) -> Option<i128> {
    match value {
        AttributeValue::Sdata(value) => Some(value.into()),
        AttributeValue::Udata(value) => Some(value.into()),
        AttributeValue::Data16(value) => i128::try_from(value).ok(),
        AttributeValue::Block(bytes) if bytes.len() <= 16 => {
            let value = bytes.slice().iter().rev().fold(0_u128, |value, &byte| value << 8 | u128::from(byte));
            i128::try_from(value).ok()
        }
        AttributeValue::Data1(value) => Some(value.into()),
        AttributeValue::Data2(value) => Some(value.into()),
        AttributeValue::Data4(value) => Some(value.into()),
        AttributeValue::Data8(value) => Some(value.into()),
        _ => None,
    }
}

/// The number that an old place of a member adds to the struct's address.
fn plus(expression: gimli::Expression<Slice<'_>>, unit: &Open<'_>) -> Option<u64> {
    let mut operations = expression.operations(unit.unit.encoding());
    let first = operations.next().ok()??;
    match (first, operations.next().ok()?) {
        (gimli::Operation::PlusConstant { value } | gimli::Operation::UnsignedConstant { value }, None) => {
            Some(value)
        }
        (gimli::Operation::UnsignedConstant { value }, Some(gimli::Operation::Plus)) => Some(value),
        _ => None,
    }
}

/// The values of the discriminant that mean a variant.
fn variant_values(entry: &Entry<'_>) -> Vec<std::ops::RangeInclusive<u128>> {
    if let Some(value) = entry.attr_value(gimli::DW_AT_discr_value) {
        let value = match value {
            AttributeValue::Data16(value) => Some(value),
            other => constant(other).map(|value| value as u128),
        };
        return value.map(|value| value..=value).into_iter().collect();
    }
    Vec::new()
}

/// Values of a discriminant of `size` bytes, without what a sign has put above them.
fn narrow(all: &mut [Variant], size: u64) {
    if size >= 16 || size == 0 {
        return;
    }
    let mask = (1_u128 << (size * 8)) - 1;
    for range in all.iter_mut().flat_map(|variant| &mut variant.values) {
        *range = range.start() & mask..=range.end() & mask;
    }
}
