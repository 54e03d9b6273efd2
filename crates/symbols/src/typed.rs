//! What DWARF says of types, parameters, results and variables.
//!
//! A [`TypeReader`] answers questions about one file and fills a [`Types`] with what the answers need, no more: it finds the unit that
//! an address is in, goes through that one, and reads the types that are asked for and those they refer to. Only looking up a name in
//! the whole file goes through all units, once for all readers of a [`Module`].
//!
//! | file | question it answers |
//! |---|---|
//! | `parts` | where is a DIE, in which file and unit, and to which does it refer? |
//! | `units` | which unit is an address in? |
//! | `unit_map` | which functions has a unit, and which scopes are its types in? |
//! | `shapes` | what type does a DIE describe? |
//! | `functions` | what does a function take and give, and which variables are visible in it? |
//! | `expressions` | where is that? |
//! | `name_index` | which type or variable has this name? |
//!
//! Nothing in DWARF is trusted: there is no recursion, each question reads a limited number of DIEs, and what makes no sense is
//! [`Kind::Unknown`] or [`Unavailable::Malformed`](crate::Unavailable::Malformed).

mod expressions;
mod functions;
mod name_index;
mod parts;
mod shapes;
mod unit_map;
mod units;

use std::{collections::HashMap, path::PathBuf, rc::Rc, sync::Arc};

use thiserror::Error;

pub use functions::{Scope, TypedFunction, Variable};
pub(crate) use units::UnitTable;

use crate::{
    Module, TypeId, Types,
    dwarf::DebugSections,
    types::{Kind, Language, Word},
};
use name_index::{Class, NameIndex};
use parts::{Die, Parts};
use shapes::Queue;

/// Why a question about types has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TypesError {
    /// There is no DWARF.
    #[error(
        "no debug information here, and no debug file that belongs; compile with -g, or install its debug symbols"
    )]
    NoDebugInfo,
    /// No function's description covers the address.
    #[error("no debug information describes a function at {0:#x}; its source was compiled without -g")]
    NoFunction(u64),
    /// The compiler has put the description into another file, which is missing or is another program's.
    #[error("{}, which holds the debug information of this function, is missing or does not belong; build again, or make a .dwp file", .0.display())]
    NoSplitFile(PathBuf),
    /// No type has this name.
    #[error("no type is called {0}")]
    NoType(String),
    /// No variable has this name.
    #[error("no variable is called {0}")]
    NoVariable(String),
    /// What is there makes no sense.
    #[error("the debug information makes no sense here; build the file again")]
    Malformed,
}

impl Module {
    /// Reads types, parameters and variables from the module's DWARF. The first reader finds it, and lists its units.
    ///
    /// ```
    /// use trapless_symbols::{Module, Types};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let module = Module::open("/proc/self/exe")?;
    /// let mut types = Types::new();
    /// let Ok(mut reader) = module.type_reader() else { return Ok(()) };
    /// let Some(main) = module.function_named("main") else { return Ok(()) };
    /// if let Ok(function) = reader.function(&mut types, main.address()) {
    ///     for parameter in &function.parameters {
    ///         println!("{}: {:?}", types.notation(parameter.of), parameter.location);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// There is no DWARF.
    pub fn type_reader(&self) -> Result<TypeReader<'_>, TypesError> {
        let debug = self.debug_sections().ok_or(TypesError::NoDebugInfo)?;
        let dwarf = debug.whole(&self.image, &self.source);
        let table = self.units.get_or_init(|| UnitTable::read(&dwarf));
        Ok(TypeReader {
            module: self,
            debug,
            table,
            number: table.number,
            parts: Parts::new(dwarf, debug.shared(), table, &self.search, debug.path(self.path())),
            language: Language::C,
            scopes: HashMap::new(),
            near: HashMap::new(),
        })
    }
}

/// Reads types from a file's DWARF: see [`Module::type_reader`].
pub struct TypeReader<'m> {
    module: &'m Module,
    debug: &'m DebugSections,
    table: &'m UnitTable,
    /// Of the table.
    number: u32,
    parts: Parts<'m>,
    /// Of what was read last: units that several share do not say.
    language: Language,
    scopes: HashMap<Die, Arc<str>>,
    /// Names of single units.
    near: HashMap<(u32, usize), Rc<NameIndex>>,
}

/// Units of which the names are kept.
const MOST_NEAR: usize = 64;
/// More stars than this are not behind a type's name.
const MOST_STARS: usize = 16;

impl<'m> TypeReader<'m> {
    /// The type of a name as its language writes it, with or without its word (`struct point`, `enum color`), and with stars behind it.
    /// `near` is an address of code: the types of its unit come first, and if the type is among them, nothing else is read. A name without
    /// its scopes (`String`) finds a type in a scope, if no other has the whole name.
    ///
    /// # Errors
    /// No type has this name.
    pub fn type_named(
        &mut self,
        types: &mut Types,
        name: &str,
        near: Option<u64>,
    ) -> Result<TypeId, TypesError> {
        let none = || TypesError::NoType(name.to_owned());
        let bare = name.trim_end_matches(|c: char| c == '*' || c.is_whitespace());
        let stars = name[bare.len()..].matches('*').count();
        if stars > MOST_STARS {
            return Err(none());
        }
        let bare = bare.trim();
        let bare = bare.strip_prefix("const ").unwrap_or(bare).trim();
        let (classes, plain): (&[Class], &str) = match bare.split_once(char::is_whitespace) {
            Some(("struct" | "class", rest)) => (&[Class::Struct], rest.trim()),
            Some(("union", rest)) => (&[Class::Union], rest.trim()),
            Some(("enum", rest)) => (&[Class::Enum], rest.trim()),
            _ => (&[Class::Plain, Class::Struct, Class::Union, Class::Enum], bare),
        };
        let mut id = match (plain, stars) {
            ("void", 1..) => Types::VOID,
            _ => {
                let mut found = self.find(classes, plain, near);
                for other in integer_names(plain) {
                    found = found.or_else(|| self.find(&[Class::Plain], other, near));
                }
                let die = found.ok_or_else(none)?;
                self.type_of_die(types, die)
            }
        };
        for _ in 0..stars {
            id = types.pointer_to(id);
        }
        Ok(id)
    }

    /// The global or static variable of a name, with its scopes (`ns::count`, `Class::count`) or without. `near` as of
    /// [`TypeReader::type_named`].
    ///
    /// # Errors
    /// No variable has this name.
    pub fn variable(
        &mut self,
        types: &mut Types,
        name: &str,
        near: Option<u64>,
    ) -> Result<Variable, TypesError> {
        let die = self.find(&[Class::Variable], name, near);
        let found = die.and_then(|die| self.global_at(types, die));
        found.ok_or_else(|| TypesError::NoVariable(name.to_owned()))
    }

    /// The enum that an enumerator is of, and its number.
    pub fn enumerator(&mut self, types: &mut Types, name: &str, near: Option<u64>) -> Option<(TypeId, i128)> {
        let die = self.find(&[Class::Enumerator], name, near)?;
        let id = self.type_of_die(types, die);
        let Kind::Enum(of) = types.kind(id) else { return None };
        let last = name.rsplit("::").next().unwrap_or(name);
        of.value_of(last).map(|value| (id, value))
    }

    /// Reads on, where a type was only declared, or not yet read, and puts what was found in its place. True if the type is described
    /// now. To be called before a type's fields are looked at; it costs nothing where there is nothing to do.
    pub fn complete(&mut self, types: &mut Types, id: TypeId) -> bool {
        for _ in 0..crate::types::DEEPEST {
            let at = types.stripped(id);
            let word = match &types.get(at).kind {
                Kind::Unread => {
                    let mut queue = Queue::default();
                    self.resume(types, at, &mut queue);
                    self.work(types, &mut queue);
                    if types.get(at).kind == Kind::Unread {
                        return false;
                    }
                    continue;
                }
                Kind::Declared(word) => *word,
                Kind::Unknown => return false,
                _ => return true,
            };
            let Some(name) = types.get(at).name.clone() else { return false };
            let class = match word {
                Word::Struct | Word::Class => Class::Struct,
                Word::Union => Class::Union,
                Word::Enum => Class::Enum,
            };
            let Some(die) = self.find_whole(&[class], &name) else { return false };
            let found = self.type_of_die(types, die);
            if matches!(types.get(found).kind, Kind::Declared(_) | Kind::Unread) {
                return false;
            }
            let found = types.get(found).clone();
            types.replace(at, found);
        }
        false
    }

    fn type_of_die(&mut self, types: &mut Types, die: Die) -> TypeId {
        let mut queue = Queue::default();
        let id = self.type_at(types, die, self.language, &mut queue);
        self.work(types, &mut queue);
        id
    }

    fn find(&mut self, classes: &[Class], name: &str, near: Option<u64>) -> Option<Die> {
        let here = near.and_then(|address| self.unit_of(address));
        if let Some(unit) = here {
            let key = (unit.part, unit.start);
            let names = match self.near.get(&key) {
                Some(names) => names.clone(),
                None => {
                    let part = self.parts.part(unit.part)?;
                    let names = Rc::new(NameIndex::of_unit(&part.dwarf, &unit));
                    if self.near.len() >= MOST_NEAR {
                        self.near.clear();
                    }
                    self.near.insert(key, names.clone());
                    names
                }
            };
            if let Some(found) = names.find(classes, name) {
                return Some(found);
            }
        }
        self.names().find(classes, name)
    }

    fn find_whole(&mut self, classes: &[Class], name: &str) -> Option<Die> {
        self.names().find_whole(classes, name)
    }

    /// The names of the whole file.
    fn names(&mut self) -> &'m NameIndex {
        let table = self.table;
        table.names.get_or_init(|| NameIndex::of_file(&mut self.parts, table))
    }
}

/// What compilers call the C integer type that is written like this.
fn integer_names(written: &str) -> &'static [&'static str] {
    if written.is_empty() {
        return &[];
    }
    let (mut longs, mut is_short, mut is_unsigned, mut is_signed, mut is_char) =
        (0, false, false, false, false);
    for word in written.split_whitespace() {
        match word {
            "long" => longs += 1,
            "short" => is_short = true,
            "unsigned" => is_unsigned = true,
            "signed" => is_signed = true,
            "char" => is_char = true,
            "int" => {}
            _ => return &[],
        }
    }
    match (longs, is_short, is_char, is_unsigned) {
        (0, false, true, false) if is_signed => &["signed char"],
        (0, false, true, false) => &["char"],
        (0, false, true, true) => &["unsigned char"],
        (0, true, false, false) => &["short int", "short"],
        (0, true, false, true) => &["short unsigned int", "unsigned short"],
        (0, false, false, false) => &["int"],
        (0, false, false, true) => &["unsigned int"],
        (1, false, false, false) => &["long int", "long"],
        (1, false, false, true) => &["long unsigned int", "unsigned long"],
        (2, false, false, false) => &["long long int", "long long"],
        (2, false, false, true) => &["long long unsigned int", "unsigned long long"],
        _ => &[],
    }
}
