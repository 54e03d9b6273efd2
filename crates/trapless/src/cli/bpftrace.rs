//! bpftrace's command line, for whoever calls the program by that name: scripts, tools and habits go on working.
//!
//! It is that of bpftrace 0.27, with the rules of `getopt_long`: options may stand behind other words, short ones may stand together
//! (`-lv`), long ones may be cut short where that is unique, and `--` ends them. What only makes sense for code in the kernel is taken and
//! does nothing, or is refused.

use super::mechanisms;
use super::script::{Buffering, Dialect, Script, Search, Source, Stage, Task, Text, Warnings};
use super::validated::{OutputOptions, Target};
use std::path::PathBuf;
use trapless_script::syntax::number;

/// What is wrong with a command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What to say; empty where the usage says it all.
    pub what: String,
    /// Whether the usage follows.
    pub usage: bool,
}

impl Misuse {
    fn plain(what: impl Into<String>) -> Self {
        Self { what: what.into(), usage: false }
    }
}

/// Whether the program was called by bpftrace's name.
pub fn is_called_so(program: &str) -> bool {
    program.rsplit('/').next() == Some("bpftrace")
}

/// An option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opt {
    Aot,
    Bench,
    Btf,
    Buffering,
    Command,
    Debug,
    DebugInfo,
    DryRun,
    DwarfPid,
    EmitElf,
    EmitLlvm,
    Execute,
    Format,
    Help,
    Include,
    IncludeDirectory,
    Info,
    List,
    Mode,
    NoFeature,
    NoWarnings,
    Output,
    OutputFormat,
    Pid,
    ProbeFilter,
    Quiet,
    Test,
    TraceableFunctions,
    Unsafe,
    UsdtFileActivation,
    Verbose,
    VerifyLlvmIr,
    Version,
    Warnings,
}

/// Long options, and whether a value follows.
const LONG: [(&str, bool, Opt); 30] = [
    ("aot", true, Opt::Aot),
    ("bench", false, Opt::Bench),
    ("btf", false, Opt::Btf),
    ("cmd", true, Opt::Command),
    ("debug", true, Opt::Debug),
    ("debuginfo", true, Opt::DebugInfo),
    ("dry-run", false, Opt::DryRun),
    ("dwarf-pid", true, Opt::DwarfPid),
    ("emit-elf", true, Opt::EmitElf),
    ("emit-llvm", true, Opt::EmitLlvm),
    ("fmt", false, Opt::Format),
    ("help", false, Opt::Help),
    ("include", true, Opt::Include),
    ("info", false, Opt::Info),
    ("list", false, Opt::List),
    ("mode", true, Opt::Mode),
    ("no-feature", true, Opt::NoFeature),
    ("no-warnings", false, Opt::NoWarnings),
    ("output", true, Opt::Output),
    ("pid", true, Opt::Pid),
    ("probe-filter", true, Opt::ProbeFilter),
    ("quiet", false, Opt::Quiet),
    ("test", false, Opt::Test),
    ("traceable-functions", true, Opt::TraceableFunctions),
    ("unsafe", false, Opt::Unsafe),
    ("usdt-file-activation", false, Opt::UsdtFileActivation),
    ("verbose", false, Opt::Verbose),
    ("verify-llvm-ir", false, Opt::VerifyLlvmIr),
    ("version", false, Opt::Version),
    ("warnings", false, Opt::Warnings),
];

/// Short options, and whether a value follows.
const SHORT: [(char, bool, Opt); 16] = [
    ('B', true, Opt::Buffering),
    ('I', true, Opt::IncludeDirectory),
    ('V', false, Opt::Version),
    ('b', false, Opt::Btf),
    ('c', true, Opt::Command),
    ('d', true, Opt::Debug),
    ('e', true, Opt::Execute),
    ('f', true, Opt::OutputFormat),
    ('h', false, Opt::Help),
    ('k', false, Opt::Warnings),
    ('l', false, Opt::List),
    ('o', true, Opt::Output),
    ('p', true, Opt::Pid),
    ('q', false, Opt::Quiet),
    ('v', false, Opt::Verbose),
    ('?', false, Opt::Help),
];

/// The options as they were written, and all other words.
#[derive(Debug, Default)]
struct Words {
    options: Vec<(Opt, String)>,
    others: Vec<String>,
}

/// Tells options from other words.
fn words(arguments: &[String]) -> Result<Words, Misuse> {
    let usage = || Misuse { what: String::new(), usage: true };
    let mut words = Words::default();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            words.others.extend(rest.cloned());
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let (takes, option) = long_option(name).ok_or_else(usage)?;
            let value = match (takes, value) {
                (true, Some(value)) => value.to_owned(),
                (true, None) => rest.next().ok_or_else(usage)?.clone(),
                (false, None) => String::new(),
                (false, Some(_)) => return Err(usage()),
            };
            words.options.push((option, value));
        } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
            for (at, letter) in short.char_indices() {
                let (_, takes, option) =
                    *SHORT.iter().find(|(known, ..)| *known == letter).ok_or_else(usage)?;
                if !takes {
                    words.options.push((option, String::new()));
                    continue;
                }
                let behind = &short[at + letter.len_utf8()..];
                let value = match behind {
                    "" => rest.next().ok_or_else(usage)?.clone(),
                    behind => behind.to_owned(),
                };
                words.options.push((option, value));
                break;
            }
        } else {
            words.others.push(word.clone());
        }
    }
    Ok(words)
}

/// A long option by its name or the beginning of it that no other one has.
fn long_option(name: &str) -> Option<(bool, Opt)> {
    let exact = LONG.iter().find(|(known, ..)| *known == name);
    let mut begins = LONG.iter().filter(|(known, ..)| known.starts_with(name));
    let found = match exact {
        Some(exact) => exact,
        None => begins.next().filter(|_| begins.next().is_none())?,
    };
    Some((found.1, found.2))
}

/// All that the options say.
#[derive(Default)]
struct Said {
    script: Option<String>,
    task: Option<Task>,
    list: bool,
    pid: Option<String>,
    command: Option<String>,
    include_directories: Vec<PathBuf>,
    include_files: Vec<PathBuf>,
    debug_directories: Vec<PathBuf>,
    is_unsafe: bool,
    warnings: Warnings,
    quiet: bool,
    verbose: bool,
    dry_run: bool,
    stages: Vec<Stage>,
    only: Option<String>,
    output: OutputOptions,
    buffering: Buffering,
}

/// What bpftrace's command line asks for. `arguments`: without the program's name.
///
/// # Errors
/// What bpftrace would not take either, in its words.
pub fn parse(arguments: &[String]) -> Result<Script, Misuse> {
    if arguments.is_empty() {
        return Err(Misuse { what: String::new(), usage: true });
    }
    let words = words(arguments)?;
    let mut said = Said::default();
    for (option, value) in &words.options {
        match option {
            Opt::Help => return Ok(Script::Say(USAGE.to_owned())),
            Opt::Version => {
                return Ok(Script::Say(format!(
                    "bpftrace v{AS_OF} (trapless {})\n",
                    env!("CARGO_PKG_VERSION")
                )));
            }
            Opt::Info => return Ok(Script::Info),
            option => said.take(*option, value)?,
        }
    }
    said.script_of(words.others)
}

/// The version of bpftrace whose language and command line this is.
pub const AS_OF: &str = "0.27.0";

impl Said {
    fn take(&mut self, option: Opt, value: &str) -> Result<(), Misuse> {
        const AGAINST: &str = "USAGE: -k, --warnings conflicts with --no-warnings";
        match option {
            Opt::Help | Opt::Version | Opt::Info => {}
            Opt::Execute => self.script = Some(value.to_owned()),
            Opt::List => self.list = true,
            Opt::Pid => self.pid = Some(value.to_owned()),
            Opt::Command => self.command = Some(value.to_owned()),
            Opt::IncludeDirectory => self.include_directories.push(value.into()),
            Opt::Include => self.include_files.push(value.into()),
            Opt::DebugInfo => {
                self.debug_directories.extend(value.split(':').filter(|d| !d.is_empty()).map(PathBuf::from));
            }
            Opt::Unsafe => self.is_unsafe = true,
            Opt::Quiet => self.quiet = true,
            Opt::Verbose => self.verbose = true,
            Opt::DryRun => self.dry_run = true,
            Opt::ProbeFilter => self.only = Some(value.to_owned()),
            Opt::Output => self.output.file = (value != "-").then(|| value.into()),
            Opt::OutputFormat => match value {
                "text" => (self.output.json, self.output.folded) = (false, false),
                "json" => (self.output.json, self.output.folded) = (true, false),
                "folded" => (self.output.json, self.output.folded) = (false, true),
                _ => {
                    return Err(Misuse::plain(format!(
                        "Invalid output format \"{value}\"\nValid formats: 'text', 'json'"
                    )));
                }
            },
            Opt::Buffering => {
                self.buffering = match value {
                    "line" => Buffering::Line,
                    "full" => Buffering::Full,
                    "none" => Buffering::Never,
                    _ => return Err(Misuse::plain("USAGE: -B must be either 'line', 'full', or 'none'.")),
                };
            }
            Opt::Debug => self.stages.extend(stages(value)?),
            Opt::Test => self.mode(Task::Test, "--test")?,
            Opt::Bench => self.mode(Task::Bench, "--bench")?,
            Opt::Format => self.mode(Task::Format, "--fmt")?,
            Opt::Mode => {
                self.task = Some(match value {
                    "codegen" | "compiler-bench" => Task::Compile,
                    "bench" => Task::Bench,
                    "test" => Task::Test,
                    "format" => Task::Format,
                    _ => {
                        return Err(Misuse::plain(
                            "USAGE: --mode can only be 'codegen', 'compiler-bench', 'bench', 'test' or 'format'.",
                        ));
                    }
                });
            }
            Opt::NoWarnings if self.warnings == Warnings::All => return Err(Misuse::plain(AGAINST)),
            Opt::NoWarnings => self.warnings = Warnings::Off,
            Opt::Warnings => match self.warnings {
                Warnings::Off => return Err(Misuse::plain(AGAINST)),
                Warnings::All => {
                    return Err(Misuse::plain(
                        "USAGE: -kk has been deprecated. Use a single -k for runtime warnings for errors in map lookups and probe reads.",
                    ));
                }
                Warnings::Usual => self.warnings = Warnings::All,
            },
            Opt::NoFeature => {
                let known = ["kprobe_multi", "kprobe_session", "uprobe_multi"];
                if value.split(',').any(|feature| !known.contains(&feature)) {
                    return Err(Misuse::plain(
                        "USAGE: --no-feature can only have values 'kprobe_multi,kprobe_session,uprobe_multi'.",
                    ));
                }
            }
            Opt::Aot | Opt::EmitElf | Opt::EmitLlvm => {
                return Err(Misuse::plain(
                    "USAGE: --aot, --emit-elf and --emit-llvm make programs for the kernel's virtual machine, and trapless makes native code: leave them out",
                ));
            }
            // Any process is unwound by its tables, and semaphores are raised in the processes that are probed.
            Opt::Btf
            | Opt::DwarfPid
            | Opt::TraceableFunctions
            | Opt::UsdtFileActivation
            | Opt::VerifyLlvmIr => {}
        }
        Ok(())
    }

    fn mode(&mut self, task: Task, name: &str) -> Result<(), Misuse> {
        if self.task.is_some() {
            return Err(Misuse::plain(format!("USAGE: {name} conflicts with existing --mode")));
        }
        self.task = Some(task);
        Ok(())
    }

    fn script_of(self, others: Vec<String>) -> Result<Script, Misuse> {
        if self.command.is_some() && self.pid.is_some() {
            return Err(Misuse { what: "USAGE: Cannot use both -c and -p.".to_owned(), usage: true });
        }
        let pid = self.pid.as_deref().map(pid).transpose()?;
        let mut others = others.into_iter();
        let source = if self.list && self.script.is_none() {
            let searched = others.next();
            if others.next().is_some() {
                return Err(Misuse { what: String::new(), usage: true });
            }
            match searched {
                Some(file) if is_script(&file) => Source::File(file.into()),
                searched => {
                    let pattern = searched.filter(|text| text != "*").unwrap_or_else(|| "*:*".to_owned());
                    let Said { verbose, output, debug_directories, .. } = self;
                    return Ok(Script::Search(Search { pattern, pid, verbose, debug_directories, output }));
                }
            }
        } else if let Some(script) = self.script {
            Source::Argument(script)
        } else {
            match others.next() {
                Some(name) if name == "-" => Source::Stdin,
                Some(name) => Source::File(name.into()),
                None => return Err(Misuse::plain("USAGE: filename or -e 'program' required.")),
            }
        };
        let task = match self.task {
            _ if self.list => Task::List,
            None | Some(Task::Run) if self.dry_run => Task::DryRun,
            Some(task) => task,
            None => Task::Run,
        };
        let (named, positional): (Vec<_>, Vec<_>) = others.partition(|word| word.starts_with("--"));
        let target = match (pid, &self.command) {
            (Some(pid), _) => Some(Target::Processes(vec![pid])),
            (None, Some(command)) => {
                let words: Vec<_> = command.split_whitespace().map(Into::into).collect();
                if words.is_empty() {
                    return Err(Misuse::plain("Failed to fork child: invalid empty command"));
                }
                Some(Target::Launch(words))
            }
            (None, None) => None,
        };
        Ok(Script::Text(Box::new(Text {
            source,
            task,
            positional,
            named: named.iter().map(|word| word[2..].to_owned()).collect(),
            target,
            follow: false,
            include_directories: self.include_directories,
            include_files: self.include_files,
            debug_directories: self.debug_directories,
            is_unsafe: self.is_unsafe,
            warnings: self.warnings,
            quiet: self.quiet,
            verbose: self.verbose,
            stages: self.stages,
            only: self.only,
            output: self.output,
            buffering: self.buffering,
            allow_seccomp: false,
            mechanisms: mechanisms::allowed(&[], false),
            dialect: Dialect::Bpftrace,
        })))
    }
}

/// Whether a word that is to be listed is a script's file: a program is searched instead.
fn is_script(word: &str) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    let read = std::fs::File::open(word).and_then(|mut file| file.read(&mut start));
    read.is_ok_and(|read| start[..read] != *b"\x7fELF")
}

fn pid(text: &str) -> Result<i32, Misuse> {
    /// The highest process id that any kernel gives.
    const MOST: u64 = 0x40_0000;
    match number::parse(text) {
        Err(error) => Err(Misuse::plain(format!("Failed to parse pid: {error}"))),
        Ok(pid) if pid > MOST => Err(Misuse::plain(format!("Pid out of range: {pid}"))),
        Ok(pid) => Ok(pid as i32),
    }
}

fn stages(names: &str) -> Result<Vec<Stage>, Misuse> {
    let mut all = Vec::new();
    for name in names.split(',').filter(|name| !name.is_empty()) {
        match name {
            "all" => all.extend([Stage::Ast, Stage::Types, Stage::Codegen, Stage::Disassembly]),
            "ast" | "parse" => all.push(Stage::Ast),
            "types" => all.push(Stage::Types),
            "codegen" | "codegen-opt" => all.push(Stage::Codegen),
            "dis" => all.push(Stage::Disassembly),
            // Of the kernel's side.
            "libbpf" | "verifier" => {}
            other => return Err(Misuse::plain(format!("USAGE: invalid option for -d: {other}"))),
        }
    }
    Ok(all)
}

/// The usage, as `--help` shows it.
pub const USAGE: &str = "\
bpftrace's language for user space, run by trapless in the probed programs themselves

USAGE:
    bpftrace [options] filename
    bpftrace [options] - <stdin input>
    bpftrace [options] -e 'program'
    use -- after filename/-e 'program' for named script parameters

OPTIONS:
    -e 'program'   execute this program
    -l, --list [search|filename]
                   list probes in programs
    -v, --verbose  enable verbose messages; with -l, also show probe arguments
    -h, --help     show this help message
    -V, --version  version
    --info         print information about this machine

    -p, --pid PID  probe this process only
    -c, --cmd CMD  run CMD and probe it from its first instruction on

    -o, --output FILE
                   redirect output to FILE
    -f FORMAT      output format ('text', 'json')
    -B MODE        output buffering mode ('line', 'full', 'none')
    -q, --quiet    keep messages quiet
    -k, --warnings emit a warning when reads of memory and maps fail
    --no-warnings  disable all warning messages

    -I DIR         add the directory to the include search path
    --include FILE add an #include file before preprocessing
    --debuginfo DIR[:DIR]
                   add directories to the debug info search path

    --unsafe       allow unsafe/destructive functionality

DEVELOPER OPTIONS:
    --mode MODE    used for benchmarking and testing
                   ('codegen', 'compiler-bench', 'bench', 'test', 'format')
    --test         run all test: probes (same as --mode test)
    --bench        run all bench: probes (same as --mode bench)
    --probe-filter REGEX
                   only run probes whose name matches REGEX
    --fmt          format the input script and print it

TROUBLESHOOTING OPTIONS:
    --dry-run      end right after attaching all the probes
    -d, --debug STAGE
                   show stages of the work ('all', 'ast', 'types', 'codegen', 'dis')

Accepted and without meaning here, since no code is made for the kernel:
    --btf, --no-feature, --traceable-functions, --verify-llvm-ir, --dwarf-pid, --usdt-file-activation
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Script, Misuse> {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        parse(&words)
    }

    fn text(line: &str) -> Text {
        match parsed(line) {
            Ok(Script::Text(text)) => *text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_stand_where_getopt_lets_them() {
        let one = text("-e begin -p 42 a --unsafe b -- --x --y=1");
        assert_eq!(one.source, Source::Argument("begin".into()));
        assert_eq!(one.target, Some(Target::Processes(vec![42])));
        assert_eq!(
            (one.positional, one.named),
            (vec!["a".into(), "b".into()], vec!["x".into(), "y=1".into()])
        );
        assert!(one.is_unsafe);
        let two = text("-qvfjson script.bt --pid=7 --dry");
        assert_eq!((two.source, two.task), (Source::File("script.bt".into()), Task::DryRun));
        assert!(two.quiet && two.verbose && two.output.json);
        assert_eq!(two.target, Some(Target::Processes(vec![7])));
        assert_eq!(text("- -c sleep_1").target, Some(Target::Launch(vec!["sleep".into(), "1".into()])));
        assert_eq!(text("-e x -o -").output.file, None);
        assert_eq!(text("-e x -o out").output.file, Some("out".into()));
        assert_eq!(text("-e x --test --probe-filter a.*").only.as_deref(), Some("a.*"));
        assert_eq!(text("-e x --verify-llvm-ir --btf").task, Task::Run);
        assert_eq!(text("-e x -k").warnings, Warnings::All);
    }

    #[test]
    fn searches_are_no_scripts() {
        let Ok(Script::Search(search)) = parsed("-lv uprobe:/bin/sh:*") else { panic!() };
        assert!(search.verbose);
        assert_eq!(search.pattern, "uprobe:/bin/sh:*");
        let Ok(Script::Search(search)) = parsed("-l") else { panic!() };
        assert_eq!(search.pattern, "*:*");
        assert_eq!(text("-l -e begin{}").task, Task::List);
    }

    #[test]
    fn what_bpftrace_refuses_is_refused() {
        for (line, what) in [
            ("-p 1 -c ls -e x", "Cannot use both"),
            ("-e x -p -1", "Failed to parse pid: invalid integer: -1"),
            ("-e x -p 111a1", "Failed to parse pid: invalid trailing bytes: 111a1"),
            ("-e x -p 99999999", "Pid out of range"),
            ("-v", "filename or -e"),
            ("-e x -B x", "-B must be"),
            ("-e x -f yaml", "Invalid output format"),
            ("-e x -d nothing", "invalid option for -d"),
            ("-e x --test --bench", "--bench conflicts"),
            ("-e x --no-warnings -k", "conflicts with --no-warnings"),
            ("-e x -k -k", "-kk has been deprecated"),
            ("-e x --no-feature btf", "--no-feature can only"),
            ("-e x --mode fast", "--mode can only"),
            ("-e x --aot f", "native code"),
            ("-e x -c _", "invalid empty command"),
            ("-e x -c", ""),
            ("-e x --nothing", ""),
            ("-e x --no", ""),
            ("-e x -Z", ""),
            ("-l a b", ""),
        ] {
            let misuse = parsed(line).unwrap_err();
            assert!(misuse.what.contains(what), "{line}: {misuse:?}");
            assert!(misuse.usage || !what.is_empty(), "{line}");
        }
    }
}
