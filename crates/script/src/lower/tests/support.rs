//! Compiles and runs scripts in tests.

use crate::check::clauses::ClauseKind;
use crate::check::environment::{self, Described, Environment, Function, Held, TypeName};
use crate::check::is_native;
use crate::diagnostics::Diagnostics;
use crate::interp::Hit;
use crate::interp::maps::Tables;
use crate::ir::{Context, StackWalk, verify::verify};
use crate::lower::{Clause, Compiled, compile};
use crate::machine::{Event, Machine, Outside, OwnProbe};
use crate::output::{self, Ran, Resolver, Streams, Symbol, Zone};
use crate::shape::TimeBase;
use crate::source::Sources;
use crate::syntax::ast::{Frequency, ProbePoint};
use crate::syntax::files::NoFiles;
use crate::syntax::{Options, load};
use std::collections::BTreeMap;
use std::io;

/// The world outside of a script in a test.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// `$1`, ….
    pub parameters: Vec<String>,
    /// `--name=value`.
    pub named: Vec<(String, String)>,
    /// `--unsafe`.
    pub is_unsafe: bool,
    /// `-k`.
    pub tells_failures: bool,
    /// What debug information says of every function.
    pub function: Option<Function>,
    /// What it says of every function's result.
    pub result: Option<(Described, Held)>,
    /// The one name of an enum that it knows.
    pub enumerator: Option<(&'static str, i64)>,
    /// What it says of types.
    pub types: Vec<(TypeName, Described)>,
    /// Whether the process is a 32-bit program.
    pub is_narrow: bool,
    /// Values of the hit.
    pub contexts: Vec<(Context, u64)>,
    /// Memory of the process, by address.
    pub memory: BTreeMap<u64, Vec<u8>>,
}

impl Environment for World {
    fn parameters(&self) -> &[String] {
        &self.parameters
    }

    fn named(&self, name: &str) -> Option<String> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    fn is_unsafe_allowed(&self) -> bool {
        self.is_unsafe
    }

    fn tells_failures(&self) -> bool {
        self.tells_failures
    }

    fn machine(&self) -> environment::Machine {
        if self.is_narrow { environment::Machine::I386 } else { environment::Machine::default() }
    }

    fn described(&self, name: &TypeName) -> Option<Described> {
        self.types.iter().find(|(known, _)| known == name).map(|(_, of)| of.clone())
    }

    fn function(&self, _: &ProbePoint) -> Option<Function> {
        self.function.clone()
    }

    fn result(&self, _: &ProbePoint) -> Option<(Described, Held)> {
        self.result.clone()
    }

    fn enumerator(&self, name: &str) -> Option<(Described, i64)> {
        let (known, value) = self.enumerator?;
        (known == name).then_some((Described::Int { size: 4, signed: true }, value))
    }

    fn symbol(&self, _: &ProbePoint, name: &str) -> Option<u64> {
        (name == "counter").then_some(4)
    }
}

impl Hit for World {
    fn context(&mut self, what: Context) -> u64 {
        self.contexts.iter().find(|(known, _)| *known == what).map_or(0, |(_, value)| *value)
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        let Some((start, bytes)) = self.memory.range(..=address).next_back() else { return 0 };
        let rest = usize::try_from(address - start).ok().and_then(|from| bytes.get(from..)).unwrap_or(&[]);
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        count
    }

    fn stack(&mut self, frames: u8, _: StackWalk) -> u64 {
        frames.into()
    }

    fn thread_name(&mut self) -> [u8; 16] {
        *b"worker\0\0\0\0\0\0\0\0\0\0"
    }

    fn signal(&mut self, _: i64) {}
}

struct Names(Vec<String>);

impl Resolver for Names {
    fn stack(&mut self, number: u64) -> Vec<u64> {
        vec![0x1000; number.min(2) as usize]
    }

    fn symbols(&mut self, _: u32, address: u64) -> Vec<Symbol> {
        vec![Symbol { name: format!("f{address:x}"), ..Symbol::default() }]
    }

    fn build_id(&mut self, _: u32, _: u64) -> Option<(Vec<u8>, u64)> {
        None
    }

    fn probe(&mut self, site: u64) -> String {
        self.0.get(site as usize).cloned().unwrap_or_default()
    }

    fn function(&mut self, _: u64) -> String {
        "f".to_owned()
    }

    fn user(&mut self, id: u64) -> Option<String> {
        (id == 0).then(|| "root".to_owned())
    }

    fn cgroup(&mut self, _: u64) -> Option<String> {
        None
    }

    fn now(&mut self) -> i64 {
        0
    }

    fn clock_start(&mut self, _: TimeBase) -> i64 {
        0
    }

    fn zone(&mut self, _: i64) -> Zone {
        Zone::default()
    }

    fn file(&mut self, _: &[u8], _: usize) -> io::Result<Vec<u8>> {
        Err(io::Error::from_raw_os_error(2))
    }

    fn command(&mut self, _: &[u8]) -> io::Result<Ran> {
        Err(io::Error::from_raw_os_error(2))
    }
}

/// Compiles a script, or tells what is wrong with it: errors, then warnings.
pub fn compiled(script: &str, world: &World) -> Result<(Compiled, String), String> {
    let mut sources = Sources::default();
    let source = sources.add("stdin", script).unwrap();
    let mut told = Diagnostics::default();
    let mut options = Options {
        attach: Default::default(),
        import_paths: Vec::new(),
        environment: Vec::new(),
        c: Default::default(),
        is_native: &is_native,
        files: &NoFiles,
    };
    options.attach.parameters = world.parameters.clone();
    options.c = options.c.machine("x86_64");
    let Some(script) = load(&mut sources, source, &options, &mut told) else {
        return Err(told.render(&sources));
    };
    match compile(&script, &sources, world) {
        Ok(compiled) => {
            verify(&compiled.program).unwrap_or_else(|fault| panic!("{fault}\n{}", compiled.program));
            told.append(compiled.warnings.clone());
            Ok((compiled, told.render(&sources)))
        }
        Err(wrong) => {
            told.append(wrong);
            Err(told.render(&sources))
        }
    }
}

/// The first thing that is told of a script: its severity and what it says, without the place. Empty if nothing is.
pub fn first(script: &str, world: &World) -> String {
    let told = match compiled(script, world) {
        Ok((_, warnings)) => warnings,
        Err(errors) => errors,
    };
    let line = told.lines().next().unwrap_or("");
    match line.find("ERROR: ").or_else(|| line.find("WARNING: ")) {
        Some(at) => line[at..].to_owned(),
        None => line.to_owned(),
    }
}

/// What a script prints: its `begin` probes, then so many hits of its probes of functions in their order, then its end.
pub fn ran(script: &str, world: &World) -> String {
    let compiled = match compiled(script, world) {
        Ok((compiled, _)) => compiled,
        Err(told) => return told,
    };
    let mut probes = Vec::new();
    let mut names = Vec::new();
    for clause in compiled.clauses.iter().filter(|clause| !clause.is_implied) {
        for point in &clause.points {
            let event = match (clause.kind, &point.point) {
                (ClauseKind::Begin, _) => Event::Begin,
                (ClauseKind::End, _) => Event::End,
                (ClauseKind::Test, ProbePoint::Test(name)) => Event::Test(name.clone()),
                (_, ProbePoint::Interval(Frequency::Every(every))) => Event::Interval(*every),
                _ => continue,
            };
            probes.push(OwnProbe { event, body: clause.body, site: names.len() as u64 });
            names.push(point.text.clone());
        }
    }
    let hits: Vec<Clause> =
        compiled.clauses.iter().filter(|clause| clause.kind.is_in_target()).cloned().collect();
    let options = output::Options::default();
    let mut maps = Tables::new(&compiled.program);
    let mut machine = Machine::new(compiled.program, compiled.messages, probes, options).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (mut world, mut names) = (world.clone(), Names(names));
    let streams = Streams { out: &mut out, err: &mut err };
    let mut outside = Outside { hit: &mut world, maps: &mut maps, resolver: &mut names, streams };
    machine.begin(0, &mut outside).unwrap();
    for clause in hits {
        machine.run(clause.body, u64::MAX, &mut outside).unwrap();
    }
    if let Some(due) = machine.next_deadline() {
        machine.tick(due, &mut outside).unwrap();
    }
    machine.finish(&mut outside).unwrap();
    let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
    let lines = err.lines().chain(out.lines()).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}
