//! What is planned for the sites of a process: the code that is brought in, and what is known of each function when its calls are told.

use super::body::{self, AT_ENTRY, AT_RETURN, INSIDE};
use super::function::{Function, Planner, Source, Why};
use super::table::{Part, Placed, Root, Table};
use crate::cli::validated::{CodeFor, Selection};
use crate::commands::registers::Registers;
use crate::commands::script::check_sandbox;
use crate::error::Error;
use crate::report::plural;
use crate::resolve::{Site, Sites};
use crate::session::{MemoryOperands, Overlap, Run, RunAt, SiteNumbers};
use crate::spec::Location;
use crate::target::Image;
use crate::terminal::tell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use trapless_engine::Script;
use trapless_process::Process;
use trapless_running::beginning::{Beginning, is_go};
use trapless_script::interp::maps::Tables;
use trapless_script::ir::verify::verify;
use trapless_script::native::{self, Moment, memory};
use trapless_symbols::Types;
use trapless_symbols::render::Layouts;

/// Log2 of the size of each thread's ring of messages.
pub(super) const RING_BITS: u32 = 18;

/// Names that stand behind each reason.
const EXAMPLES: usize = 3;

/// A run of `trace --typed`: its code, and what is known of the functions that it is called at.
pub(super) struct Typed {
    /// For each of the specifications, what is called where it leads.
    clauses: Vec<RunAt>,
    /// How many words are shown where nothing is known of a function.
    args: u8,
    allow_seccomp: bool,
    numbers: Arc<SiteNumbers>,
    beginning: Beginning,
    told: Mutex<Told>,
}

/// What is known of functions.
#[derive(Default)]
struct Told {
    /// By the numbers of sites, with the process that each was planned for.
    sites: HashMap<u32, Vec<(i32, Known)>>,
    /// What was said to the user.
    said: Vec<String>,
}

/// What is known of the function at a site.
#[derive(Clone)]
pub(super) enum Known {
    /// What its types say.
    Typed(Arc<Function>, Arc<Types>),
    /// Nothing: its first words are shown, and the result as one.
    Words,
}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("clauses", &self.clauses).finish_non_exhaustive()
    }
}

/// Sites by what is not known of them.
#[derive(Default)]
struct Unknown {
    /// Functions without types, by the reason.
    functions: BTreeMap<String, Vec<String>>,
    /// Arguments and results that have no place, by the reason.
    values: BTreeMap<Why, Vec<String>>,
}

impl Typed {
    /// For what is selected. `args`: how many words are shown of functions of which nothing is known.
    ///
    /// # Errors
    /// USDT probes are among them.
    pub fn new(selection: &Selection, args: u8, allow_seccomp: bool) -> Result<Self, Error> {
        let clause = |location: &Location| match location {
            Location::Function { offset: 0, .. } => Ok(RunAt::Call(AT_ENTRY.0 as u16, AT_RETURN.0 as u16)),
            Location::Usdt { .. } => Err(Error::Usage(
                "USDT probes say themselves what their arguments are: trace them without --typed".to_owned(),
            )),
            _ => Ok(RunAt::Entry(INSIDE.0 as u16)),
        };
        let clauses = selection.probes.iter().map(|probe| clause(&probe.spec.location));
        Ok(Self {
            clauses: clauses.collect::<Result<_, _>>()?,
            args,
            allow_seccomp,
            numbers: Arc::default(),
            beginning: Beginning::now(),
            told: Mutex::default(),
        })
    }

    /// The number of a site.
    pub(super) fn numbers(&self) -> &SiteNumbers {
        &self.numbers
    }

    /// What is known of a site in a process. A forked child's is what was planned for its parent.
    pub(super) fn known(&self, pid: i32, site: u32) -> Known {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let all = told.sites.get(&site).map(Vec::as_slice).unwrap_or_default();
        let own = all.iter().rfind(|(of, _)| *of == pid).or(all.last());
        own.map_or(Known::Words, |(_, known)| known.clone())
    }

    /// Says which sites came later than the plan, in libraries that were loaded since: the code for them knows nothing of theirs.
    pub(super) fn tell_unplanned(&self, sites: impl Iterator<Item = (u32, String)>) {
        let planned =
            |site| self.told.lock().unwrap_or_else(PoisonError::into_inner).sites.contains_key(&site);
        let names = sites.filter(|(site, _)| !planned(*site)).map(|(_, name)| name).collect::<Vec<_>>();
        if !names.is_empty() {
            let why = "their library was loaded later; attach again for them".to_owned();
            let functions = BTreeMap::from([(why, names)]);
            self.tell(&Unknown { functions, ..Unknown::default() });
        }
    }

    /// Plans for the sites of a file.
    fn plan(
        &self,
        image: &Image,
        process: &Process,
        sites: &[&Site],
        plans: &mut Plans,
    ) -> Result<(), Error> {
        let module = image.module(Some(process))?;
        let mut reader = match module.type_reader() {
            Ok(reader) => reader,
            Err(why) => {
                sites.iter().for_each(|site| self.plan_words(image, site, &why.to_string(), plans));
                return Ok(());
            }
        };
        let (mut types, mut layouts, mut placed) = (Types::new(), Layouts::default(), Placed::default());
        let mut planned: Vec<(u32, Function)> = Vec::new();
        for site in sites {
            let function = match reader.function(&mut types, site.address) {
                Ok(function) if plans.table.has_room() => function,
                Ok(_) => {
                    let why = "there are more functions and types than the probes' table holds; name fewer";
                    self.plan_words(image, site, why, plans);
                    continue;
                }
                Err(why) => {
                    // Which address it is matters to nobody who reads of hundreds.
                    let why = match why {
                        trapless_symbols::TypesError::NoFunction(_) => {
                            "their source was compiled without -g".to_owned()
                        }
                        other => other.to_string(),
                    };
                    self.plan_words(image, site, &why, plans);
                    continue;
                }
            };
            let is_entry = module.functions().get(site.function).is_some_and(|f| f.address() == site.address);
            let moment = if is_entry { Moment::Entry } else { Moment::Inside };
            let mut planner = Planner {
                reader: &mut reader,
                types: &mut types,
                layouts: &mut layouts,
                placed: &mut placed,
                table: &mut plans.table,
                registers: plans.registers,
            };
            let (function, lists) = planner.plan(&function, moment);
            let name = site.name.text();
            for value in
                function.arguments.iter().chain(function.result.iter().filter(|_| site.kinds.returns))
            {
                if let Source::Nowhere(why) = value.from {
                    let value = value.name.as_deref().unwrap_or("the result");
                    plans.unknown.values.entry(why).or_default().push(format!("{value} of {name}"));
                }
            }
            let number = self.numbers.of(&image.path, &site.name);
            plans.set(number, lists);
            planned.push((number, function));
        }
        let types = Arc::new(types);
        let known = |(number, function)| (number, Known::Typed(Arc::new(function), Arc::clone(&types)));
        plans.known.extend(planned.into_iter().map(known));
        Ok(())
    }

    /// Plans for a site of which nothing is known.
    fn plan_words(&self, image: &Image, site: &Site, why: &str, plans: &mut Plans) {
        let word = |register| Root {
            size: 8,
            parts: vec![(0, Part::Register { register, shift: 0, plus: 0 })],
            layout: None,
        };
        let is_call = site.no_return.is_none();
        let registers = plans.registers.arguments.iter().copied();
        let arguments: Vec<Root> =
            registers.take(usize::from(self.args)).filter(|_| is_call).map(word).collect();
        let result = word(plans.registers.results[0] as u8);
        let lists = [plans.table.list(&arguments), plans.table.list(&[result])];
        let number = self.numbers.of(&image.path, &site.name);
        plans.set(number, lists);
        plans.known.push((number, Known::Words));
        plans.unknown.functions.entry(why.to_owned()).or_default().push(site.name.text().to_owned());
    }

    fn tell(&self, unknown: &Unknown) {
        let mut lines = Vec::new();
        for (why, names) in &unknown.functions {
            let functions = plural(names.len() as u64, "function");
            lines.push(format!("{functions} without types ({}): {why}", some(names)));
        }
        for (why, names) in &unknown.values {
            let values = plural(names.len() as u64, "value");
            lines.push(format!("{values} shown as ? ({}): {why}", some(names)));
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            // The next process of the same program has the same to say.
            if !told.said.contains(&line) {
                tell(&line);
                told.said.push(line);
            }
        }
    }
}

/// Some names, and dots where there are more.
fn some(names: &[String]) -> String {
    let more = if names.len() > EXAMPLES { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(EXAMPLES)].join(", "))
}

/// What is planned for a process.
struct Plans {
    registers: &'static Registers,
    table: Table,
    /// By the numbers of sites, where their lists are.
    lists: [Vec<u32>; 2],
    known: Vec<(u32, Known)>,
    unknown: Unknown,
}

impl Plans {
    fn set(&mut self, number: u32, lists: [u32; 2]) {
        let number = number as usize;
        for (all, list) in self.lists.iter_mut().zip(lists) {
            if all.len() <= number {
                all.resize(number + 1, 0);
            }
            all[number] = list;
        }
    }
}

impl CodeFor for Typed {
    fn check_shared(&self) -> Result<(), Error> {
        Ok(())
    }

    fn run_in(&self, process: &Process, images: &[Image], sites: &Sites) -> Result<Run, Error> {
        if process.is_32bit() {
            let what =
                "--typed shows calls of 64-bit programs; trapless trace shows those of others as words";
            return Err(Error::Usage(format!("process {}: {what}", process.pid())));
        }
        check_sandbox(process, self.allow_seccomp, "trace without --typed")?;
        if is_go(process, images) {
            let why = "process is a Go program, whose calls are not told with their types yet: leave out --typed, or have a script tell some";
            return Err(Error::Usage(why.to_owned()));
        }
        let mut plans = Plans {
            registers: Registers::here(),
            table: Table::new(),
            lists: Default::default(),
            known: Vec::new(),
            unknown: Unknown::default(),
        };
        let mut by_image: BTreeMap<usize, Vec<&Site>> = BTreeMap::new();
        for site in sites.sites.iter().filter(|site| site.kinds.are_any()) {
            by_image.entry(site.image).or_default().push(site);
        }
        for (image, sites) in by_image {
            self.plan(&images[image], process, &sites, &mut plans)?;
        }
        self.tell(&plans.unknown);
        let [entries, returns] = plans.lists;
        let program = body::program(plans.registers, &entries, &returns, plans.table.into_bytes());
        verify(&program).map_err(Error::other)?;
        let target = native::Target::here(RING_BITS).map_err(Error::other)?;
        let native = native::compile(&program, &body::MOMENTS, &target).map_err(Error::other)?;
        let about = self.beginning.about(process, Vec::new());
        let shared = memory::image(&program, &native.layout, &about, &mut Tables::new(&program));
        let pid = process.pid().0;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, known) in plans.known {
            let all = told.sites.entry(number).or_default();
            all.retain(|(of, _)| *of != pid);
            all.push((pid, known));
        }
        let script = Script {
            program: native.code,
            shared,
            shared_size: native.layout.shared,
            block_size: native.layout.thread,
            walks: None,
            interpreter: None,
        };
        Ok(Run {
            script,
            clauses: self.clauses.clone(),
            numbers: Arc::clone(&self.numbers),
            overlap: Overlap::Once,
            in_go: None,
            memory_operands: MemoryOperands::LeftOut,
        })
    }
}
