//! Programs to point the tool at, and the tool itself, both ended when the test ends, however it ends.
//!
//! A target is compiled from C when the test runs. Its first line of output is `ready` and the addresses that the test wants to
//! know, in hexadecimal. A probed program's code is compared byte for byte with what it was and with the file.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod assembly;
pub mod family;
pub mod live;
pub mod park;
pub mod replacing;
pub mod schema;
pub mod spinners;
pub mod text;
pub mod tool;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test calls it a hang: long, since tests that step through a program at each instruction take
/// minutes where a machine is slow and shared.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The compiler of 32-bit programs.
const NARROW: &str = "i686-linux-gnu-gcc";

/// What makes 32-bit programs run with the compiler's own C library, where the machine has none for them.
fn own_loader() -> Vec<String> {
    let asked = Command::new(NARROW).arg("-print-file-name=ld-linux.so.2").output();
    let loader =
        asked.ok().and_then(|told| std::fs::canonicalize(String::from_utf8_lossy(&told.stdout).trim()).ok());
    match loader {
        Some(loader) if !Path::new("/lib/ld-linux.so.2").exists() => {
            let libraries = loader.parent().unwrap().display().to_string();
            // Also for what the library loads by itself, so as to end threads.
            let loader = format!("-Wl,--dynamic-linker={}", loader.display());
            vec![loader, format!("-Wl,-rpath={libraries},--disable-new-dtags")]
        }
        _ => Vec::new(),
    }
}

/// A compiled program, in a directory of its own that everybody may read.
pub struct Program {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    /// Compiles C, with assembly in it as needed. `flags` come after `-O1 -pthread`.
    pub fn build(name: &str, source: &str, flags: &[&str]) -> Program {
        let built = Program::try_build("gcc", name, source, flags);
        built.unwrap_or_else(|error| panic!("the tests need gcc: {error}"))
    }

    /// The program in as many bits as the tool has and, where that can be compiled and run, in 32.
    pub fn in_both_widths(name: &str, source: &str, flags: &[&str]) -> Vec<Program> {
        let own = Program::build(name, source, flags);
        let other = if own.is_32bit() { None } else { Program::narrow(name, source, flags) };
        std::iter::once(own).chain(other).collect()
    }

    /// The program in 32 bits; `None`, said aloud, where that cannot be compiled or run.
    pub fn narrow(name: &str, source: &str, flags: &[&str]) -> Option<Program> {
        // The tool probes those of x86 alone.
        if !assembly::X86 {
            return None;
        }
        let runs = || {
            let nothing = Program::try_build(NARROW, "nothing", "int main(void) { return 0; }", &[])?;
            let ran = Command::new(nothing.path()).status().map_err(|error| error.to_string())?;
            if ran.success() { Ok(()) } else { Err("32-bit programs do not run here".to_owned()) }
        };
        match runs() {
            // Where anything can be compiled, this must be, too.
            Ok(()) => Some(Program::try_build(NARROW, name, source, flags).unwrap()),
            Err(error) => {
                trapless_testing::skip!("in 32 bits: {error}");
                None
            }
        }
    }

    pub fn try_build(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Result<Program, String> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let c = dir.path().join(format!("{name}.c"));
        std::fs::write(&c, source).unwrap();
        std::fs::write(dir.path().join("assembly.h"), assembly::HEADER).unwrap();
        let path = dir.path().join(name);
        let mut command = Command::new(compiler);
        if compiler == NARROW {
            command.args(own_loader());
        }
        let output = command.args(["-O1", "-pthread", "-o"]).arg(&path).arg(&c).args(flags).output();
        let output = output.map_err(|error| format!("{compiler}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Ok(Program { dir, path })
    }

    /// Compiles Go, with `flags` for `go build`; `None`, said aloud, where there is no Go.
    pub fn go(name: &str, source: &str, flags: &[&str]) -> Option<Program> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (main, path) = (dir.path().join("main.go"), dir.path().join(name));
        std::fs::write(&main, source).unwrap();
        let mut build = trapless_testing::go();
        let Ok(built) = build.arg("build").args(flags).arg("-o").args([&path, &main]).output() else {
            trapless_testing::skip!("no go");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(Program { dir, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a 32-bit program.
    pub fn is_32bit(&self) -> bool {
        // EI_CLASS of the ELF header.
        std::fs::read(&self.path).unwrap()[4] == 1
    }

    /// The directory it is in, for files that go with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it and waits until it says that it is ready.
    pub fn start(&self, args: &[&str]) -> Target {
        Target::start(Command::new(&self.path).args(args))
    }
}

/// A running program, killed when dropped.
pub struct Target {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    addresses: Vec<u64>,
}

impl Target {
    /// Starts `command`, whose program says `ready`.
    pub fn start(command: &mut Command) -> Target {
        Target::try_start(command).expect("the target says that it is ready")
    }

    /// As [`Target::start`]; `None` when it does not say so.
    pub fn try_start(command: &mut Command) -> Option<Target> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = end_with_us(command).spawn().expect("the target starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut target = Target { input: child.stdin.take(), child, output, addresses: Vec::new() };
        let line = target.line();
        let mut words = line.split_whitespace();
        if words.next() != Some("ready") {
            return None;
        }
        let parse = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
        target.addresses = words.map(parse).collect();
        Some(target)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The addresses it told, in order.
    pub fn address(&self, index: usize) -> u64 {
        self.addresses[index]
    }

    /// Its next line of output; empty at its end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        if self.output.read_line(&mut line).expect("its output is text") == 0 {
            // Why a test fails that has waited for it.
            eprintln!("no more output of {}: {:?}", self.pid(), self.child.try_wait());
        }
        line.trim_end().to_owned()
    }

    /// Sends it a line.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        // In one piece: a program that reads a byte and execs would leave the rest to its successor.
        input
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| input.flush())
            .expect("it reads its input");
    }

    /// Gives it nothing more to read.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: kill takes two integers; the child is not reaped yet, so the id is still its own.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Stops it as a shell's Ctrl-Z would, and waits until it stands.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        self.wait_for_state("T");
    }

    /// Lets a stopped one go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.input = None;
        let mut status = None;
        eventually("the target ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// State letter of its leader, as in `/proc/PID/stat`.
    pub fn state(&self) -> char {
        thread_state(self.pid(), self.pid())
    }

    /// Waits until every thread is in one of these states.
    pub fn wait_for_state(&self, states: &str) {
        eventually("a state", || {
            self.threads().iter().all(|&t| states.contains(thread_state(self.pid(), t)))
        });
    }

    /// Ids of its threads, the leader's first.
    pub fn threads(&self) -> Vec<i32> {
        let entries = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let mut threads: Vec<i32> =
            entries.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        // Ids start over at the largest one: those of later threads may be smaller.
        threads.sort_unstable_by_key(|&thread| (thread != self.pid(), thread));
        threads
    }

    /// Reads its memory.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        text::read(self.pid(), address, length).expect("the target's memory can be read")
    }

    /// Reads one word of it.
    pub fn read_word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().unwrap())
    }

    /// Writes its memory, code too.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        text::write(self.pid(), address, bytes);
    }

    /// Its code as it is now.
    pub fn text(&self) -> text::Text {
        text::Text::of(self.pid())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn thread_state(pid: i32, tid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('X')
}

/// Lets a command end when we are killed.
pub fn end_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: prctl and signal are plain system calls, safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // A shell has those ignore it that it runs in the background, such as these tests.
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            Ok(())
        })
    }
}

/// Where the named mapping of a process is.
pub fn mapping(pid: i32, name: &str) -> std::ops::Range<u64> {
    let found = mappings(pid, "rw").into_iter().find(|(_, n)| n == name);
    found.unwrap_or_else(|| panic!("process {pid} has no {name}")).0
}

/// Executable memory of a process that is no file's: arenas.
pub fn arenas(pid: i32) -> Vec<std::ops::Range<u64>> {
    nameless(pid, "r-xp")
}

/// Where a process has readable and writable memory without a name.
pub fn anonymous(pid: i32) -> Vec<std::ops::Range<u64>> {
    nameless(pid, "rw")
}

fn nameless(pid: i32, rights: &str) -> Vec<std::ops::Range<u64>> {
    mappings(pid, rights).into_iter().filter(|(_, name)| name.is_empty()).map(|(range, _)| range).collect()
}

/// Mappings whose rights begin like this, with their names.
fn mappings(pid: i32, rights: &str) -> Vec<(std::ops::Range<u64>, String)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        words.next()?.starts_with(rights).then_some(())?;
        let at = |text| u64::from_str_radix(text, 16).ok();
        Some((at(start)?..at(end)?, words.nth(3).unwrap_or_default().to_owned()))
    };
    maps.lines().filter_map(mapping).collect()
}

/// So much of what is usual where threads are stepped: `TRAPLESS_STEPS` percent, since emulated machines step slowly.
pub fn part(usual: usize) -> usize {
    usual * trapless_testing::asked("TRAPLESS_STEPS", 100) / 100
}

/// Whether a session that only counts is asked by the program's unwinder: then no other one may follow calls meanwhile.
pub fn counting_tells_unwinders() -> bool {
    trapless_isa::Machine::beside(false).isa().facts().walks_by_chain
}

/// Waits until `condition` holds, and fails when it never does.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_or(|| what.to_owned(), condition);
}

/// The same where what is to be said is found out when it never does.
#[track_caller]
pub fn eventually_or(what: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for: {}", what());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until so many threads of a process wait for a word of its memory, as those do that sleep in a body.
#[track_caller]
pub fn wait_until_asleep(pid: i32, threads: usize) {
    let futex = format!("{} ", libc::SYS_futex);
    eventually("they sleep", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let calls = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("syscall")).ok());
        calls.filter(|call| call.starts_with(&futex)).count() == threads
    });
}

pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
