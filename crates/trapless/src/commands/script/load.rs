//! From a text to a script that can run, or to what is wrong with it.

use super::environment::Outside;
use super::known::Known;
use super::variants::{Variants, variants};
use super::{machine, missing, name_of};
use crate::cli::script::{Dialect, Source, Text, Warnings};
use crate::cli::validated::Target;
use crate::error::Error;
use crate::terminal::tell_plainly;
use std::fs::File;
use std::io;
use std::path::Path;
use trapless_isa::Machine;
use trapless_running::texts;
use trapless_script::check;
use trapless_script::diagnostics::{Diagnostic, Diagnostics};
use trapless_script::lower::{Compiled, Compiler};
use trapless_script::source::{SourceId, Sources};
use trapless_script::syntax::ast::ProbePoint;
use trapless_script::syntax::attach::AttachContext;
use trapless_script::syntax::config::Settings;
use trapless_script::syntax::{self, Script, c};

/// A script that can run.
pub(super) struct Loaded {
    pub compiled: Compiled,
    pub settings: Settings,
    /// The bodies for single functions.
    pub variants: Variants,
}

/// Reads and compiles a script.
///
/// # Errors
/// It cannot be read, or is wrong; what is wrong has been told.
pub(super) fn load(text: &Text) -> Result<Loaded, Error> {
    let (script, sources, told) = parsed(text)?;
    let points = script.probes.iter().flat_map(|probe| &probe.attach).flat_map(|attach| &attach.points);
    let known = Known::new(text, points);
    let loaded = compiled(text, script, &sources, told, &known)?;
    check_named(text, &loaded.compiled)?;
    Ok(loaded)
}

/// Compiles a script that was parsed.
///
/// # Errors
/// As [`load`].
pub(super) fn compiled(
    text: &Text,
    script: Script,
    sources: &Sources,
    mut told: Diagnostics,
    known: &Known<'_>,
) -> Result<Loaded, Error> {
    let outside = Outside::new(text, known);
    let compiled = Compiler::new(&script, sources, &outside).and_then(|mut compiler| {
        let variants = variants(&mut compiler, known)?;
        Ok((compiler.finish(), variants))
    });
    let (mut compiled, variants) = match compiled {
        Ok(compiled) => compiled,
        Err(mut errors) => {
            told.append(std::mem::take(&mut errors));
            return Err(refused(text, &told, sources));
        }
    };
    told.append(compiled.warnings.clone());
    told.append(missing::leave_out(
        text,
        known,
        script.settings.missing_probes,
        &mut compiled.clauses,
        &variants,
    ));
    if told.has_errors() {
        return Err(refused(text, &told, sources));
    }
    if text.warnings != Warnings::Off {
        tell_plainly(&of_people(&told, sources).render(sources));
    }
    Ok(Loaded { compiled, settings: script.settings, variants })
}

/// What the texts of a script are read with.
pub(super) fn options(text: &Text) -> syntax::Options<'static> {
    syntax::Options {
        attach: attach_context(text),
        import_paths: paths(&text.include_directories),
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        c: headers(text),
        is_native: &check::is_native,
        files: &texts::Disk,
    }
}

/// The attach points of a script, each with its text.
///
/// # Errors
/// As [`load`]. What is only known when bodies are checked is no error here.
pub(super) fn attach_points(text: &Text) -> Result<Vec<(String, ProbePoint)>, Error> {
    let (script, ..) = parsed(text)?;
    let points = script.probes.into_iter().flat_map(|probe| probe.attach);
    Ok(points.flat_map(|one| one.points.into_iter().map(move |point| (one.text.clone(), point))).collect())
}

/// Reads a script, with what it imports and includes.
fn parsed(text: &Text) -> Result<(Script, Sources, Diagnostics), Error> {
    let (mut sources, source) = sources(text)?;
    let mut told = Diagnostics::default();
    let options = options(text);
    let script = syntax::load(&mut sources, source, &options, &mut told);
    match script.filter(|_| !told.has_errors()) {
        Some(script) => Ok((script, sources, told)),
        None => Err(refused(text, &told, &sources)),
    }
}

/// A script in the usual form.
///
/// # Errors
/// It cannot be read or parsed; what is wrong has been told.
pub(super) fn formatted(text: &Text) -> Result<String, Error> {
    let (sources, source) = sources(text)?;
    let mut told = Diagnostics::default();
    let (context, mut ids) = (attach_context(text), Default::default());
    let program = syntax::parse_program(&sources, source, &context, &mut ids, &mut told);
    match told.has_errors() {
        true => Err(refused(text, &told, &sources)),
        false => Ok(syntax::print(&program, &sources)),
    }
}

/// What is told of what people have written. What of the text around it is wrong follows from that; it is told where it is all there is.
fn of_people(told: &Diagnostics, sources: &Sources) -> Diagnostics {
    let is_of_frame = |diagnostic: &&Diagnostic| {
        diagnostic.span.is_some_and(|span| sources.get(span.source).name() == syntax::FRAME)
    };
    let mut kept = Diagnostics::default();
    told.iter()
        .filter(|diagnostic| !is_of_frame(diagnostic))
        .for_each(|diagnostic| kept.push(diagnostic.clone()));
    if told.has_errors() && !kept.has_errors() { told.clone() } else { kept }
}

/// Tells what is wrong.
pub(super) fn refused(text: &Text, told: &Diagnostics, sources: &Sources) -> Error {
    let told = &of_people(told, sources);
    if text.dialect == Dialect::Bpftrace {
        // The compiler's own line, as bpftrace passes it on.
        let of_compiler = |message: &&str| message.contains(": fatal error: ");
        let messages = told.iter().map(|diagnostic| diagnostic.message.as_str());
        messages.filter(of_compiler).for_each(|message| tell_plainly(&format!("{message}\n")));
    }
    tell_plainly(&told.render(sources));
    Error::Told(text.dialect.failure())
}

fn sources(text: &Text) -> Result<(Sources, SourceId), Error> {
    let bytes = match &text.source {
        Source::Argument(program) => Ok(program.clone().into_bytes()),
        Source::Stdin => texts::read(io::stdin().lock()),
        Source::File(path) => File::open(path).and_then(texts::read),
    };
    let name = name_of(&text.source);
    let bytes = bytes.map_err(|error| {
        let why = crate::error::plain(&error);
        Error::Script(text.dialect, format!("failed to open file '{name}': {why}"))
    })?;
    let program = String::from_utf8(bytes)
        .map_err(|_| Error::Script(text.dialect, format!("'{name}' is no text in UTF-8")))?;
    let mut sources = Sources::default();
    let source = sources
        .add(&name, &program)
        .map_err(|error| Error::Script(text.dialect, format!("'{name}': {error}")))?;
    Ok((sources, source))
}

fn attach_context(text: &Text) -> AttachContext {
    AttachContext {
        parameters: text.positional.clone(),
        process: matches!(text.target, Some(Target::Processes(_) | Target::Launch(_))),
    }
}

fn headers(text: &Text) -> c::Options {
    let name = match machine::of(text) {
        Machine::I386 => "i386",
        _ => std::env::consts::ARCH,
    };
    let mut options = c::Options::default().machine(name);
    let own = paths(&text.include_directories);
    options.include_paths.splice(0..0, own);
    options.include_files = paths(&text.include_files);
    if let Source::File(path) = &text.source {
        options.beside = path.parent().unwrap_or(Path::new("")).display().to_string();
    }
    options
}

fn paths(paths: &[std::path::PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// Fails where a named parameter is given that the script does not take, or its named parameters are asked for.
fn check_named(text: &Text, compiled: &Compiled) -> Result<(), Error> {
    let name = |given: &String| given.split_once('=').map_or(given.as_str(), |(name, _)| name).to_owned();
    let takes = |name: &String| compiled.options.iter().any(|option| option.name == *name);
    let mut unknown: Vec<String> = text.named.iter().map(name).filter(|name| !takes(name)).collect();
    let given = unknown.len();
    unknown.retain(|name| name != "help");
    let is_help = unknown.len() < given;
    if given == 0 {
        return Ok(());
    }
    let mut expected: Vec<String> = compiled
        .options
        .iter()
        .map(|option| match &option.description {
            Some(description) => format!("--{}: {description}", option.name),
            None => format!("--{}", option.name),
        })
        .collect();
    expected.dedup();
    let hint = match (expected.is_empty(), is_help) {
        (true, _) => "HINT: no custom program options defined.".to_owned(),
        (false, true) => format!("HINT: expected program options:\n{}", expected.join("\n")),
        (false, false) => format!("HINT: expected program options: {}", expected.join(", ")),
    };
    if unknown.is_empty() {
        // What was asked for is no error, and yet nothing was done.
        tell_plainly(&format!("{hint}\n"));
        return Err(Error::Told(text.dialect.failure()));
    }
    let unknown: Vec<String> = unknown.iter().map(|name| format!("--{name}")).collect();
    let what = format!("unexpected program command line options: {}\n{hint}", unknown.join(", "));
    Err(Error::Script(text.dialect, what))
}
