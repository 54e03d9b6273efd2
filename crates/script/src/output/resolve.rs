//! What the printer has to ask: names of addresses and numbers, the time, files and commands.

use crate::shape::TimeBase;
use std::io;

/// Answers the printer's questions. The crate itself looks at no file and no clock.
///
/// What is not known is left out, and printed as a number or as nothing.
pub trait Resolver {
    /// Addresses of a call stack by its number, the innermost first. Those of callers are return addresses.
    fn stack(&mut self, number: u64) -> Vec<u64>;

    /// The functions at a code address of a process: those inlined there, the innermost first, and then the one that has symbol and
    /// address.
    fn symbols(&mut self, pid: u32, address: u64) -> Vec<Symbol>;

    /// The functions that a return address leads back to: those of the call in front of it, with the distance of the address itself. Where nothing was called, as in
    /// what handlers of signals return to, those at the address.
    fn caller(&mut self, pid: u32, address: u64) -> Vec<Symbol> {
        self.symbols(pid, address)
    }

    /// Build id of the file mapped at an address, and the address's offset in the file.
    fn build_id(&mut self, pid: u32, address: u64) -> Option<(Vec<u8>, u64)>;

    /// Name of the probe at a site, as the script could have named it.
    fn probe(&mut self, site: u64) -> String;

    /// Name of the function at a site.
    fn function(&mut self, site: u64) -> String;

    /// Name of a user.
    fn user(&mut self, id: u64) -> Option<String>;

    /// Path of a control group.
    fn cgroup(&mut self, id: u64) -> Option<String>;

    /// Nanoseconds since 1970, by the clock of the wall.
    fn now(&mut self) -> i64;

    /// How many nanoseconds after 1970 a clock began. 0 for those that count from there.
    fn clock_start(&mut self, clock: TimeBase) -> i64;

    /// The local time zone at a time, in seconds since 1970.
    fn zone(&mut self, seconds: i64) -> Zone;

    /// The first bytes of a file, at most so many.
    ///
    /// # Errors
    /// It cannot be opened or read.
    fn file(&mut self, path: &[u8], most: usize) -> io::Result<Vec<u8>>;

    /// Runs a shell's command to its end and gives what it printed, on standard output and standard error together. Something is printed to
    /// its exit code by the printer.
    ///
    /// # Errors
    /// It cannot be run.
    fn command(&mut self, command: &[u8]) -> io::Result<Ran>;
}

/// A function at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// How far the address is from its beginning.
    pub offset: u64,
    /// The file that it is in, for `perf`'s form.
    pub module: Option<String>,
    /// `file:line`, where that is to be shown.
    pub line: Option<String>,
    /// Whether it is inlined there.
    pub is_inlined: bool,
}

/// A time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Seconds east of UTC.
    pub offset: i32,
    /// Its abbreviation.
    pub name: String,
}

/// What came of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// What it printed.
    pub printed: Vec<u8>,
    /// Its exit code; `None` if it did not exit by itself.
    pub code: Option<i32>,
}
