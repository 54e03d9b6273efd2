//! Which functions of which files an attach point means.

use super::super::probed;
use super::{Known, Types};
use crate::cli::script::Text;
use crate::cli::validated::Target;
use crate::error::Error;
use crate::files::Files;
use crate::resolve::{self, Kinds, Site};
use crate::spec::{Kind, Location, Pattern, ProbeSpec};
use crate::target::{self, Image};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use trapless_process::Process;
use trapless_running::{files, points};
use trapless_script::nearest::nearest;
use trapless_script::syntax::ast::{ProbePoint, UserPlace};
use trapless_session::error::Error as SessionError;
use trapless_session::select::SelectError;
use trapless_symbols::Module;

/// More functions than that are not looked at for one attach point.
const MOST: usize = 10_000;

/// Files that are looked at together: those of a process, or one that no process needs to run.
pub(in super::super) struct Group {
    process: Option<Process>,
    images: Vec<Image>,
    pub types: Vec<RefCell<Types>>,
}

impl Group {
    fn of(process: Option<Process>, images: Vec<Image>) -> Self {
        let types = images.iter().map(|_| RefCell::new(Types::new())).collect();
        Self { process, images, types }
    }

    /// The contents of one of its files.
    pub fn module(&self, image: usize) -> Option<&Module> {
        self.images.get(image)?.module(self.process.as_ref()).ok()
    }
}

/// Which file: its group's number, and its own in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Home {
    pub group: usize,
    pub image: usize,
}

/// A function, or a place in one, that an attach point means.
#[derive(Clone, Debug)]
pub(in super::super) struct Place {
    pub home: Home,
    /// The file, as the process sees it that is given.
    pub module: String,
    pub site: Site,
    /// It alone, in its file.
    pub location: Location,
}

/// The files that an attach point of a script means, as far as that is known.
fn modules_of(text: &Text, point: &ProbePoint) -> Vec<PathBuf> {
    match point {
        ProbePoint::Chosen { .. } => Vec::new(),
        other => probed::modules_of(text, other).unwrap_or_default(),
    }
}

impl Known<'_> {
    /// What an attach point means, in the order of addresses; nothing where that is not known.
    pub fn places(&self, point: &ProbePoint) -> Rc<[Place]> {
        let key = points::written(point);
        if let Some(known) = self.places.borrow().get(&key) {
            return Rc::clone(known);
        }
        let mut places = Vec::new();
        if let ProbePoint::Chosen { number, .. } = point {
            places = self.chosen_places(*number);
        }
        for module in modules_of(self.text, point) {
            if let Some(module) = module.to_str() {
                places.extend(self.places_in(point, module));
            }
        }
        let places: Rc<[Place]> = places.into();
        self.places.borrow_mut().insert(key, Rc::clone(&places));
        places
    }

    /// Whether an attach point names files that can be read, and means nothing in any of them.
    pub fn is_missing(&self, point: &ProbePoint) -> bool {
        match points::specification(point, Pattern::everything()).map(|spec| spec.location) {
            // Whether an address is one in the code is told of by itself, with the reason.
            None | Some(Location::Address(_)) => return false,
            Some(_) => {}
        }
        let Ok(modules) = probed::modules_of(self.text, point) else { return false };
        !modules.is_empty() && modules.iter().all(|module| self.is_missing_in(point, module).unwrap_or(false))
    }

    /// The name that was probably meant by an attach point that means nothing: of a function, or of a USDT probe.
    pub fn nearest(&self, point: &ProbePoint) -> Option<String> {
        for (home, _) in self.homes_of(point) {
            let group = self.groups.borrow().get(home.group)?.clone();
            let module = group.module(home.image)?;
            let near = match point {
                ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user) => match &user.place {
                    UserPlace::Function { name, .. } => {
                        let names = module.functions().iter().flat_map(|function| function.names());
                        nearest(name, names.map(|name| name.plain())).map(str::to_owned)
                    }
                    _ => None,
                },
                ProbePoint::Usdt { name, .. } => {
                    let probes = module.usdt().unwrap_or_default();
                    nearest(name, probes.iter().map(|probe| probe.name.as_str())).map(str::to_owned)
                }
                _ => None,
            };
            if near.is_some() {
                return near;
            }
        }
        None
    }

    /// `None`: the file is not known here.
    fn is_missing_in(&self, point: &ProbePoint, module: &Path) -> Option<bool> {
        let module = module.to_str()?;
        let of_process = self.process().map(|number| self.resolved(point, module, number));
        let resolved = match of_process.flatten() {
            // Not mapped in the process yet: the file says it.
            None | Some(Err(SessionError::Select(SelectError::NoModule { .. }))) => {
                self.resolved(point, module, self.file(module)?)?
            }
            Some(resolved) => resolved,
        };
        Some(resolved.is_err_and(|error| {
            matches!(
                error,
                SessionError::Select(SelectError::NoFunction { .. } | SelectError::NoUsdt { .. })
                    | SessionError::Source { .. }
                    | SessionError::OnlyInlined { .. }
            )
        }))
    }

    /// What a specification means that was chosen, in the process that is given or in the file that it names.
    fn chosen_places(&self, number: u32) -> Vec<Place> {
        let spec = usize::try_from(number).ok().and_then(|number| self.chosen.specs.get(number));
        let Some(spec) = spec else { return Vec::new() };
        let returns = spec.kind == Some(Kind::Return);
        let kinds = Kinds::hits(!returns, returns);
        let in_group = |number: usize, spec: &ProbeSpec| {
            let group = self.groups.borrow().get(number)?.clone();
            let (process, images) = (group.process.as_ref(), &group.images);
            let exclusions = &self.chosen.exclusions;
            let found = resolve::resolve(process, images, [(spec, kinds)], exclusions, MOST).ok()?;
            Some((number, found.sites))
        };
        let found = match self.process() {
            Some(process) => in_group(process, spec),
            None => self.named_file(spec).and_then(|path| {
                let file = self.file(&path)?;
                in_group(file, &ProbeSpec { module: Pattern::everything(), by_file: false, ..spec.clone() })
            }),
        };
        let Some((group, sites)) = found else { return Vec::new() };
        let place = |site: Site| {
            let home = Home { group, image: site.image };
            let location = self.location(home, &site);
            let module = self.path_of(home).unwrap_or_else(|| spec.module.text().to_owned());
            Place { home, module, site, location }
        };
        sites.into_iter().map(place).collect()
    }

    /// Why the process that is given has nothing of what was chosen, if that is so.
    pub fn problem(&self) -> Option<Error> {
        let number = self.process()?;
        let group = self.groups.borrow().get(number)?.clone();
        let kinds = Kinds::ENTRY;
        let specs = self.chosen.specs.iter().map(|spec| (spec, kinds));
        let (process, images) = (group.process.as_ref(), &group.images);
        let found = resolve::resolve(process, images, specs, &self.chosen.exclusions, MOST);
        found.err().map(Error::from)
    }

    /// The file that a specification names, where no process says which one is meant.
    fn named_file(&self, spec: &ProbeSpec) -> Option<String> {
        let name = spec.module.as_literal()?;
        if name.contains('/') {
            return Some(name.to_owned());
        }
        let command = match &self.text.target {
            Some(Target::Launch(command)) => command.first().map(Path::new),
            _ => None,
        };
        let is_own = |path: &&Path| path.file_name().is_some_and(|file| file == name) && path.is_file();
        match command.filter(is_own) {
            Some(own) => own.to_str().map(str::to_owned),
            None => files::named(name).ok()?.first()?.to_str().map(str::to_owned),
        }
    }

    fn places_in(&self, point: &ProbePoint, module: &str) -> Vec<Place> {
        let found = self.process().and_then(|number| self.found(point, module, number));
        let found = found.or_else(|| self.found(point, module, self.file(module)?));
        let Some((group, sites)) = found else { return Vec::new() };
        sites
            .into_iter()
            .map(|site| {
                let home = Home { group, image: site.image };
                let location = self.location(home, &site);
                let module = self.path_of(home).unwrap_or_else(|| module.to_owned());
                Place { home, module, site, location }
            })
            .collect()
    }

    /// What it means in the files of a group.
    fn found(&self, point: &ProbePoint, module: &str, number: usize) -> Option<(usize, Vec<Site>)> {
        Some((number, self.resolved(point, module, number)?.ok()?))
    }

    /// The same, or why it means nothing there.
    fn resolved(
        &self,
        point: &ProbePoint,
        module: &str,
        number: usize,
    ) -> Option<Result<Vec<Site>, SessionError>> {
        let group = self.groups.borrow().get(number)?.clone();
        let wanted = match group.process {
            Some(_) => files::pattern(module),
            None => Pattern::everything(),
        };
        let spec = points::specification(point, wanted)?;
        let returns = spec.kind == Some(Kind::Return);
        let kinds = Kinds::hits(!returns, returns);
        let found = resolve::resolve(group.process.as_ref(), &group.images, [(&spec, kinds)], &[], MOST);
        Some(found.map(|found| found.sites))
    }

    /// A file that a process has, as that process sees it.
    fn path_of(&self, home: Home) -> Option<String> {
        let group = self.groups.borrow().get(home.group)?.clone();
        group.process.as_ref()?;
        Some(group.images.get(home.image)?.path.clone())
    }

    /// A site by the name of its function where no other has it, and by its address else.
    fn location(&self, home: Home, site: &Site) -> Location {
        let named = || {
            let group = self.groups.borrow().get(home.group)?.clone();
            let functions = group.module(home.image)?.functions();
            let function = functions.get(site.function)?;
            let name = function.is_named().then(|| function.name().versioned())?;
            let is_meant = function.address() == site.address && functions.named(name).len() == 1;
            is_meant.then(|| Location::Function { pattern: Pattern::literal(name), offset: 0 })
        };
        named().unwrap_or(Location::Address(site.address))
    }

    /// The files of the process that is given.
    fn process(&self) -> Option<usize> {
        let Some(Target::Processes(pids)) = &self.text.target else { return None };
        if let Some(known) = self.groups.borrow().iter().position(|group| group.process.is_some()) {
            return Some(known);
        }
        let process = target::open(*pids.first()?).ok()?;
        let images = target::images(&process, &self.files()).ok()?;
        self.add(Group::of(Some(process), images))
    }

    /// A file by its path.
    fn file(&self, path: &str) -> Option<usize> {
        let is_it = |group: &Rc<Group>| {
            group.process.is_none() && group.images.iter().any(|image| image.path == path)
        };
        if let Some(known) = self.groups.borrow().iter().position(is_it) {
            return Some(known);
        }
        let image = Image::file_of(Path::new(path), &self.files()).ok()?;
        self.add(Group::of(None, vec![image]))
    }

    fn files(&self) -> Files {
        Files::searching(self.text.debug_directories.iter().cloned())
    }

    fn add(&self, group: Group) -> Option<usize> {
        let mut groups = self.groups.borrow_mut();
        groups.push(Rc::new(group));
        Some(groups.len() - 1)
    }

    /// The files that an attach point names, each with an address whose unit's types come first.
    pub(super) fn homes_of(&self, point: &ProbePoint) -> Vec<(Home, Option<u64>)> {
        let mut homes: Vec<(Home, Option<u64>)> = Vec::new();
        for place in self.places(point).iter() {
            if homes.iter().all(|(home, _)| *home != place.home) {
                homes.push((place.home, Some(place.site.address)));
            }
        }
        if homes.is_empty() {
            // A file without such a function has types, too.
            let modules = modules_of(self.text, point);
            let numbers = modules.iter().filter_map(|module| self.file(module.to_str()?));
            homes.extend(numbers.map(|group| (Home { group, image: 0 }, None)));
        }
        homes
    }

    /// The files that all attach points name.
    pub(super) fn homes(&self) -> Vec<(Home, Option<u64>)> {
        let mut homes: Vec<(Home, Option<u64>)> = Vec::new();
        for found in self.points.iter().flat_map(|point| self.homes_of(point)) {
            if homes.iter().all(|(home, _)| *home != found.0) {
                homes.push(found);
            }
        }
        homes
    }
}
