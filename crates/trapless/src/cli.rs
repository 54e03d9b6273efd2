//! The command line: flags as they are written, and the commands they mean.
//!
//! [`verbs`] and [`flags`] say literally what can be typed; help, manual pages and completions come from the same
//! definitions. [`validated`] turns that once into [`validated::Command`], which the rest of the program works with
//! and which cannot hold a contradiction.

pub mod bpftrace;
pub mod flags;
pub mod inject;
mod mechanisms;
pub mod quick;
pub mod replace;
pub mod reporter;
pub mod script;
pub mod scripted;
mod targets;
pub mod unknown;
pub mod validated;
pub mod values;
pub mod verbs;

use crate::error::EXIT_CODES;
use clap::Parser;

/// Probes in running programs that do not trap.
///
/// Counts, times and traces function calls in live or launched programs, without root, without restarting them, and
/// at a cost of nanoseconds per call.
#[derive(Debug, Parser)]
#[command(name = "trapless", version, max_term_width = 100, args_conflicts_with_subcommands = true, arg_required_else_help = true, after_help = EXAMPLES, after_long_help = LONG_HELP.as_str())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Option<verbs::Verb>,
    /// A script to run, where no verb is given.
    #[command(flatten)]
    pub script: scripted::ScriptFlags,
}

/// Command lines to start from.
pub(crate) const EXAMPLES: &str = "\
Examples:
  trapless count 'libc.so.6:malloc' 'libc.so.6:free' -- ls -lR /usr/share
  trapless count -p 4242 'redis-server:*'
  trapless latency -p 4242 'redis-server:processCommand' -d 10
  trapless trace -p 4242 'libc.so.6:open*' --args 3 --return
  trapless count -p 4242 'libc.so.6:malloc' --where 'arg0 > 64k' --by 'ustack(5)'
  trapless hist -p 4242 'libc.so.6:malloc' arg0
  trapless count /usr/bin/redis-server:processCommand
  trapless replace -p 4242 './app:slow' --with ./fix.so:slow_fixed
  trapless list -p 4242 'libssl:SSL_*'
  trapless -p 4242 -e 'uprobe:libc.so.6:malloc { @ = hist(arg0); }'
  trapless explain ./bin:function";

static LONG_HELP: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| format!("{EXAMPLES}\n\n{PROBES}\n\n{SCRIPTS}\n\n{EXIT_CODES}"));

/// How probes are written, as `--help` shows it.
pub(crate) const PROBES: &str = "\
Probes:
  MODULE:FUNCTION         globs on both sides: * ? [a-z] [!a]; with -r regular expressions
  MODULE:FUNCTION+0xOFF   an instruction inside a function
  MODULE:0xADDRESS        an instruction by its address in the file, as nm and objdump print it
  MODULE:FILE:LINE        each statement of a source line; also MODULE:FILE:LINE:COLUMN
  MODULE!FUNCTION         as in frida-trace
  uprobe:PATH:FUNCTION    as in bpftrace; also uretprobe:, u:, ur:
  usdt:PATH:PROVIDER:NAME a USDT probe; also usdt:PATH:NAME, U:, and as in perf sdt_PROVIDER:NAME
  step:MODULE:FUNCTION    by this mechanism only; also jump:, boost:, emulate:
  MODULE is a path, a file name, a soname, or the unique beginning of one: libssl for libssl.so.3.
  FUNCTION is mangled or demangled, with or without its parameters: ns::Parser::parse.
  FILE is the end of a path, and no pattern: src/parser.c.";

/// Scripts in short, as `--help` shows it.
pub(crate) const SCRIPTS: &str = "\
Scripts:
  trapless FILE -p PID            a script; - is standard input; #!/usr/bin/env trapless works
  trapless -e 'PROGRAM' -p PID    the program that is given
  trapless FILE 10 app -P fast    with parameters: $1 is 10, $2 is app, getopt(\"fast\") is true
  The language is bpftrace's: PROBE /FILTER/ { STATEMENTS }, with maps: @calls[tid] = count();
  Probes are uprobe:FILE:FUNCTION, uretprobe:FILE:FUNCTION, usdt:FILE:PROVIDER:NAME,
  interval:s:1, begin, end and others. Maps are printed when a script ends.
  exit(N) ends it with code N, Ctrl-C with 0; SIGUSR1 prints the maps meanwhile.
  Called as bpftrace, by a link of that name, trapless takes bpftrace's command line.";

#[cfg(test)]
mod tests;
