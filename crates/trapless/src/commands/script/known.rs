//! What the files that a script's probes name tell of functions, types and symbols. Nothing is read before it is asked for, and each file once.
//!
//! | file | question it answers |
//! |---|---|
//! | `places` | which functions of which files does an attach point mean? |
//! | `described` | what does the checker have to know of a type? |
//! | `held` | where is a value, in the checker's words? |

mod described;
mod held;
mod places;

use crate::cli::script::Text;
use crate::commands::registers::Registers;
use crate::spec::{Exclusion, ProbeSpec};
use described::{Describer, Names};
use places::{Group, Home};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use trapless_script::check::environment::{Described, Function, Held, Parameter, TypeName};
use trapless_script::syntax::ast::{ChosenAt, ProbePoint, UserPlace};
use trapless_symbols::types::Kind;
use trapless_symbols::{Types, UsdtArgument};

pub(super) use places::Place;

/// What is known of the files that probes name.
pub(super) struct Known<'t> {
    text: &'t Text,
    /// The attach points in programs, in their order.
    points: Vec<ProbePoint>,
    /// What chosen attach points mean.
    chosen: Chosen,
    groups: RefCell<Vec<Rc<Group>>>,
    places: RefCell<HashMap<String, Rc<[Place]>>>,
    names: RefCell<Names>,
    asked: RefCell<HashMap<TypeName, Option<Described>>>,
    functions: RefCell<HashMap<At, Option<Rc<Told>>>>,
}

/// What chosen attach points mean: specifications by their numbers, and what is left out of them.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct Chosen {
    pub specs: Vec<ProbeSpec>,
    pub exclusions: Vec<Exclusion>,
}

/// A place in a file's code: its address, and whether it is asked about as the entry of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct At {
    home: Home,
    address: u64,
    is_entry: bool,
}

/// What a function takes, and what it returns.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub function: Function,
    /// With its place at the return.
    pub result: Option<(Described, Held)>,
}

impl<'t> Known<'t> {
    /// Of the files that these attach points name.
    pub fn new<'p>(text: &'t Text, points: impl IntoIterator<Item = &'p ProbePoint>) -> Self {
        let is_in_program = |point: &&ProbePoint| {
            matches!(
                point,
                ProbePoint::Uprobe(_)
                    | ProbePoint::Uretprobe(_)
                    | ProbePoint::Usdt { .. }
                    | ProbePoint::Chosen { .. }
            )
        };
        Self {
            text,
            points: points.into_iter().filter(is_in_program).cloned().collect(),
            chosen: Chosen::default(),
            groups: RefCell::default(),
            places: RefCell::default(),
            names: RefCell::default(),
            asked: RefCell::default(),
            functions: RefCell::default(),
        }
    }

    /// The same, where these are the places that were chosen.
    pub fn choosing(self, chosen: Chosen) -> Self {
        Self { chosen, ..self }
    }

    /// Whether places were chosen.
    pub fn is_choosing(&self) -> bool {
        !self.chosen.specs.is_empty()
    }

    /// The first function that an attach point names.
    pub fn function(&self, point: &ProbePoint) -> Option<Function> {
        let places = self.places(point);
        Some(self.told(point, places.first()?)?.function.clone())
    }

    /// What the function of an attach point returns, if it names one.
    pub fn result(&self, point: &ProbePoint) -> Option<(Described, Held)> {
        match &*self.places(point) {
            [only] => self.told(point, only)?.result.clone(),
            _ => None,
        }
    }

    /// Whether all USDT probes that an attach point names say that an argument is a floating-point number. Those that it names in files that
    /// are not known yet are refused if they differ.
    pub fn is_float_operand(&self, point: &ProbePoint, argument: u8) -> bool {
        let places = self.places(point);
        let mut probes = places.iter().flat_map(|place| &place.site.usdt).peekable();
        let is_float = |arguments: &[UsdtArgument]| {
            arguments.get(usize::from(argument)).is_some_and(|argument| argument.is_float)
        };
        probes.peek().is_some() && probes.all(|probe| is_float(&probe.arguments))
    }

    /// What a function that an attach point names takes and returns.
    pub fn told(&self, point: &ProbePoint, place: &Place) -> Option<Rc<Told>> {
        let is_entry = match point {
            ProbePoint::Uprobe(user) => matches!(user.place, UserPlace::Function { offset: 0, .. }),
            ProbePoint::Chosen { at, .. } => *at != ChosenAt::Inside,
            _ => true,
        };
        let key = At { home: place.home, address: place.site.address, is_entry };
        if let Some(known) = self.functions.borrow().get(&key) {
            return known.clone();
        }
        let told = self
            .reading(place.home, |mut describer| describer.function(place.site.address, is_entry))
            .flatten()
            .map(Rc::new);
        self.functions.borrow_mut().insert(key, told.clone());
        told
    }

    /// Does something with the types of a file, if there is debug information.
    fn reading<T>(&self, home: Home, work: impl FnOnce(Describer<'_, '_>) -> T) -> Option<T> {
        let group = self.groups.borrow().get(home.group)?.clone();
        let module = group.module(home.image)?;
        let (machine, mut reader) = (module.machine(), module.type_reader().ok()?);
        let mut types = group.types.get(home.image)?.borrow_mut();
        let mut names = self.names.borrow_mut();
        let describer =
            Describer { reader: &mut reader, types: &mut types, names: &mut names, home, machine };
        Some(work(describer))
    }

    /// A type by its name.
    pub fn described(&self, name: &TypeName) -> Option<Described> {
        if let Some(known) = self.asked.borrow().get(name) {
            return known.clone();
        }
        let found = self.find_type(name);
        self.asked.borrow_mut().insert(name.clone(), found.clone());
        found
    }

    fn find_type(&self, name: &TypeName) -> Option<Described> {
        let known = self.names.borrow().type_of(name);
        if let Some((home, id)) = known {
            return self.reading(home, |mut describer| describer.members(id)).flatten();
        }
        let written = match name {
            TypeName::Struct(name) => format!("struct {name}"),
            TypeName::Union(name) => format!("union {name}"),
            TypeName::Enum(name) => format!("enum {name}"),
            TypeName::Named(name) => name.clone(),
        };
        if written.is_empty() {
            return None;
        }
        self.homes().into_iter().find_map(|(home, near)| {
            self.reading(home, |mut describer| describer.named(name, &written, near)).flatten()
        })
    }

    /// The value of a name of an enum.
    pub fn enumerator(&self, name: &str) -> Option<(Described, i64)> {
        self.homes().into_iter().find_map(|(home, near)| {
            self.reading(home, |mut describer| describer.enumerator(name, near)).flatten()
        })
    }

    /// How long a symbol of the attach point's file is.
    pub fn symbol(&self, point: &ProbePoint, name: &str) -> Option<u64> {
        let homes = self.homes_of(point);
        homes.into_iter().find_map(|(home, _)| {
            let group = self.groups.borrow().get(home.group)?.clone();
            group.module(home.image)?.symbol_size(name)
        })
    }
}

impl Describer<'_, '_> {
    /// What a function takes and returns, where control is at `address`.
    fn function(&mut self, address: u64, is_entry: bool) -> Option<Told> {
        let typed = self.reader.function(self.types, address).ok()?;
        let mut function = Function::default();
        for parameter in &typed.parameters {
            let Some(name) = &parameter.name else { continue };
            let of = self.described(parameter.of);
            let registers = Registers::of(self.machine, typed.language);
            let place = registers.at(&parameter.location, self.types.size(parameter.of), is_entry);
            function.parameters.push(Parameter { name: name.to_string(), of, place });
        }
        let result = (typed.result != Types::VOID).then(|| self.described(typed.result));
        let place = held::returned(self.machine, &typed.result_location, self.types.size(typed.result));
        function.result.clone_from(&result);
        function.returned.clone_from(&place);
        Some(Told { function, result: result.zip(place) })
    }

    fn enumerator(&mut self, name: &str, near: Option<u64>) -> Option<(Described, i64)> {
        let (id, value) = self.reader.enumerator(self.types, name, near)?;
        Some((self.described(id), i64::try_from(value).ok()?))
    }

    /// The type of a name, where it is that kind of type.
    fn named(&mut self, name: &TypeName, written: &str, near: Option<u64>) -> Option<Described> {
        let id = self.reader.type_named(self.types, written, near).ok()?;
        self.complete(id);
        let is_enum = matches!(name, TypeName::Enum(_));
        match self.types.kind(id) {
            Kind::Struct(_) if !is_enum => self.members_of(name, id),
            Kind::Enum(_) if matches!(name, TypeName::Enum(_) | TypeName::Named(_)) => {
                Some(self.described(id))
            }
            Kind::Declared(_) | Kind::Unknown | Kind::Unread | Kind::Struct(_) | Kind::Enum(_) => None,
            _ if matches!(name, TypeName::Named(_)) => Some(self.described(id)),
            _ => None,
        }
    }
}
