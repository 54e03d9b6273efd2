//! `/proc/PID/status`, `/proc/PID/stat` and `/proc/PID/auxv` as values.
//!
//! The parsers take bytes, because a process chooses its own name, and treat unknown lines as the kernel's right.

use crate::{ProcError, RemoteAddr};

/// What a thread is doing, as the kernel's one-letter state says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// `R`: running or ready.
    Running,
    /// `S`: in an interruptible wait.
    Sleeping,
    /// `D`: in a wait that no signal and no ptrace request ends.
    Uninterruptible,
    /// `T`: stopped by a job-control signal.
    Stopped,
    /// `t`: stopped by a tracer.
    Traced,
    /// `Z`: exited, not yet reaped.
    Zombie,
    /// `X`: being removed.
    Dead,
    /// A letter this program does not know, such as `I` or `P`.
    Other(u8),
}

impl State {
    /// Whether a thread in it has ended, and has no memory any more.
    pub fn has_ended(self) -> bool {
        matches!(self, State::Zombie | State::Dead)
    }

    fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => State::Running,
            b'S' => State::Sleeping,
            b'D' => State::Uninterruptible,
            b'T' => State::Stopped,
            b't' => State::Traced,
            b'Z' => State::Zombie,
            b'X' | b'x' => State::Dead,
            other => State::Other(other),
        }
    }
}

/// Seccomp's mode of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seccomp {
    /// No restriction, or a kernel without seccomp.
    #[default]
    Off,
    /// Only read, write, exit and sigreturn; everything else kills.
    Strict,
    /// A BPF filter decides on each system call.
    Filter,
}

/// The parts of `/proc/PID/status` this project decides by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The command name, at most 15 bytes, lossily decoded.
    pub name: String,
    /// What the thread is doing.
    pub state: State,
    /// The thread group it belongs to.
    pub tgid: i32,
    /// Its parent.
    pub ppid: i32,
    /// The *thread* that traces it, 0 for none.
    pub tracer: i32,
    /// Real, effective, saved and file-system user ids.
    pub uid: [u32; 4],
    /// Real, effective, saved and file-system group ids.
    pub gid: [u32; 4],
    /// Its id in each pid namespace from ours inwards: more than one means a container.
    pub ns_pid: Vec<i32>,
    /// Number of threads.
    pub threads: u32,
    /// Signals this thread blocks; bit `n - 1` is signal `n`.
    pub sig_blocked: u64,
    /// Signals ignored by the process.
    pub sig_ignored: u64,
    /// Signals the process has handlers for.
    pub sig_caught: u64,
    /// Seccomp's mode.
    pub seccomp: Seccomp,
    /// Whether memory is locked (`mlock`, `mlockall`), so that new memory may be locked, too.
    pub locks_memory: bool,
    /// Whether this thread has a shadow stack (CET).
    pub shadow_stack: bool,
}

/// Reads the text of a `/proc/PID/status`.
///
/// # Errors
/// [`ProcError::Malformed`] when `State` or `Tgid` is missing, which no kernel's text lacks.
pub fn parse_status(text: &[u8]) -> Result<Status, ProcError> {
    let malformed = |what| ProcError::Malformed { what: "/proc/PID/status", detail: what };
    let mut status = Status {
        name: String::new(),
        state: State::Other(b'?'),
        tgid: 0,
        ppid: 0,
        tracer: 0,
        uid: [0; 4],
        gid: [0; 4],
        ns_pid: Vec::new(),
        threads: 0,
        sig_blocked: 0,
        sig_ignored: 0,
        sig_caught: 0,
        seccomp: Seccomp::Off,
        locks_memory: false,
        shadow_stack: false,
    };
    for line in text.split(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "Name" => status.name = value.to_owned(),
            "State" => status.state = value.bytes().next().map_or(State::Other(b'?'), State::from_letter),
            "Tgid" => status.tgid = value.parse().map_err(|_| malformed("Tgid is no number"))?,
            "PPid" => status.ppid = value.parse().unwrap_or(0),
            "TracerPid" => status.tracer = value.parse().unwrap_or(0),
            "Uid" => status.uid = four(value),
            "Gid" => status.gid = four(value),
            "NSpid" => status.ns_pid = value.split_whitespace().filter_map(|id| id.parse().ok()).collect(),
            "Threads" => status.threads = value.parse().unwrap_or(0),
            "SigBlk" => status.sig_blocked = u64::from_str_radix(value, 16).unwrap_or(0),
            "SigIgn" => status.sig_ignored = u64::from_str_radix(value, 16).unwrap_or(0),
            "SigCgt" => status.sig_caught = u64::from_str_radix(value, 16).unwrap_or(0),
            "VmLck" => status.locks_memory = value.split(' ').next() != Some("0"),
            "x86_Thread_features" => {
                status.shadow_stack = value.split_whitespace().any(|feature| feature == "shstk");
            }
            "Seccomp" => {
                status.seccomp = match value {
                    "0" => Seccomp::Off,
                    "1" => Seccomp::Strict,
                    _ => Seccomp::Filter,
                }
            }
            _ => {}
        }
    }
    match status {
        Status { tgid: 0, .. } => Err(malformed("no Tgid")),
        Status { state: State::Other(b'?'), .. } => Err(malformed("no State")),
        status => Ok(status),
    }
}

fn four(value: &str) -> [u32; 4] {
    let mut ids = [0; 4];
    for (id, text) in ids.iter_mut().zip(value.split_whitespace()) {
        *id = text.parse().unwrap_or(0);
    }
    ids
}

/// The parts of `/proc/PID/stat` this project decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is doing.
    pub state: State,
    /// `PF_*` flags of the kernel's task.
    pub flags: u64,
    /// Which of the signals 1 to 31 are blocked; bit `n - 1` is signal `n`.
    pub blocked: u32,
    /// Clock ticks after boot.
    pub start_time: u64,
    /// Where the heap starts or would start; 0 when we may not know.
    pub start_brk: u64,
    /// The processor it last ran on.
    pub processor: u64,
}

impl Stat {
    /// `PF_KTHREAD` of `include/linux/sched.h`.
    const KTHREAD: u64 = 0x0020_0000;

    /// `PF_IO_WORKER`, of what io_uring has for a process since 5.12.
    const IO_WORKER: u64 = 0x10;

    /// `PF_USER_WORKER`, of what vhost has, too, since 6.4.
    const USER_WORKER: u64 = 0x4000;

    /// What has all signals blocked but SIGKILL and SIGSTOP, of which this field shows the first 31.
    const BLOCKED: u32 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1)) & 0x7fff_ffff;

    /// Whether it is one of the kernel's own threads, which belong to no process.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & Self::KTHREAD != 0
    }

    /// Whether the kernel has it in a process for work of its own, which the process has asked for. It runs nothing of the program, ever,
    /// but is listed among its threads, can be attached to, and stops when it likes or not at all.
    ///
    /// The second flag meant something else before, which threads that make system calls could have: so signals count as well.
    pub fn is_worker(&self) -> bool {
        self.flags & Self::IO_WORKER != 0
            || self.flags & Self::USER_WORKER != 0 && self.blocked == Self::BLOCKED
    }
}

/// Reads a `/proc/PID/stat`. The name in it may hold blanks and parentheses, so fields are counted from the last `)`.
///
/// # Errors
/// [`ProcError::Malformed`] when something is missing that no kernel's text lacks.
pub fn parse_stat(text: &[u8]) -> Result<Stat, ProcError> {
    let malformed = |detail| ProcError::Malformed { what: "/proc/PID/stat", detail };
    let end = text.iter().rposition(|&byte| byte == b')').ok_or(malformed("no command name"))?;
    let rest = String::from_utf8_lossy(&text[end + 1..]);
    // proc(5) counts from 1 and the state is field 3.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok());
    Ok(Stat {
        state: fields
            .first()
            .and_then(|text| text.bytes().next())
            .map(State::from_letter)
            .ok_or(malformed("no state"))?,
        flags: number(9).ok_or(malformed("no flags"))?,
        blocked: number(32).ok_or(malformed("no mask of signals"))? as u32,
        start_time: number(22).ok_or(malformed("no start time"))?,
        start_brk: number(47).unwrap_or(0),
        processor: number(39).unwrap_or(0),
    })
}

/// The auxiliary vector the kernel gave the program at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auxv {
    entries: Vec<(libc::c_ulong, u64)>,
    is_32bit: bool,
}

impl Auxv {
    /// Reads the bytes of `/proc/PID/auxv`, in the width of a target of the given class.
    pub fn parse(bytes: &[u8], is_32bit: bool) -> Auxv {
        let word = if is_32bit { 4 } else { 8 };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
        let entries = bytes
            .chunks_exact(2 * word)
            .map(|pair| (number(&pair[..word]) as libc::c_ulong, number(&pair[word..])))
            .take_while(|&(key, _)| key != libc::AT_NULL)
            .collect();
        Auxv { entries, is_32bit }
    }

    /// The value of an `AT_*` key.
    pub fn get(&self, key: libc::c_ulong) -> Option<u64> {
        self.entries.iter().find(|&&(k, _)| k == key).map(|&(_, value)| value)
    }

    /// Where the program's own code starts (`AT_ENTRY`).
    pub fn entry(&self) -> Option<RemoteAddr> {
        self.get(libc::AT_ENTRY).map(RemoteAddr)
    }

    /// Where the dynamic loader was mapped (`AT_BASE`); `None` for a static program.
    pub fn loader_base(&self) -> Option<RemoteAddr> {
        self.get(libc::AT_BASE).filter(|&base| base != 0).map(RemoteAddr)
    }

    /// Whether the kernel says to programs that the processor has one of these capabilities, by the key of their kind (`AT_HWCAP`,
    /// `AT_HWCAP2`).
    pub fn has_capability(&self, kind: libc::c_ulong, capabilities: u64) -> bool {
        self.get(kind).is_some_and(|all| all & capabilities != 0)
    }

    /// Whether the program runs with more rights than its caller (`AT_SECURE`).
    pub fn is_secure(&self) -> bool {
        self.get(libc::AT_SECURE).is_some_and(|value| value != 0)
    }

    /// Whether the program is a 32-bit one.
    pub fn is_32bit(&self) -> bool {
        self.is_32bit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_container_under_a_filter() {
        let text =
            b"Name:\tred\xffis\nState:\tt (tracing stop)\nTgid:\t42\nPid:\t42\nPPid:\t1\nTracerPid:\t7\n\
            Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nNSpid:\t42\t1\nThreads:\t3\nSigBlk:\t0000000000000010\n\
            SigIgn:\t0000000000001000\nSigCgt:\t8000000000000000\nSeccomp:\t2\n";
        let status = parse_status(text).unwrap();
        assert_eq!((status.tgid, status.tracer, status.threads), (42, 7, 3));
        assert_eq!((status.state, status.seccomp), (State::Traced, Seccomp::Filter));
        assert_eq!((status.uid, status.gid), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!(status.ns_pid, [42, 1]);
        assert_eq!((status.sig_blocked, status.sig_ignored, status.sig_caught), (0x10, 0x1000, 1 << 63));
    }

    #[test]
    fn status_of_locked_memory_and_a_shadow_stack() {
        let read = |rest: &str| parse_status(format!("Tgid:\t1\nState:\tR\n{rest}").as_bytes()).unwrap();
        for (text, expected) in [
            ("", (false, false)),
            ("VmLck:\t       0 kB\nx86_Thread_features:\t\n", (false, false)),
            ("VmLck:\t    1024 kB\n", (true, false)),
            ("x86_Thread_features:\tshstk wrss \n", (false, true)),
            ("x86_Thread_features_locked:\tshstk wrss \n", (false, false)),
        ] {
            let status = read(text);
            assert_eq!((status.locks_memory, status.shadow_stack), expected, "{text:?}");
        }
    }

    #[test]
    fn status_without_what_we_decide_by_is_refused() {
        for text in [&b""[..], b"Name:\tx\n", b"State:\tR\n", b"Tgid:\tx\nState:\tR\n", b"\xff\xfe:\n"] {
            assert!(parse_status(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn stat_of_a_program_named_like_a_stat_line() {
        let mut text = b"9 (a) R 1 (b)) S".to_vec();
        for field in 4..=52 {
            text.extend(format!(" {field}").bytes());
        }
        let stat = parse_stat(&text).unwrap();
        assert_eq!((stat.state, stat.flags, stat.start_time, stat.start_brk), (State::Sleeping, 9, 22, 47));
        for cut in 0..text.len() {
            // Any prefix gives a value or an error, never a panic.
            let _ = parse_stat(&text[..cut]);
        }
    }

    #[test]
    fn auxv_in_both_widths() {
        let wide: Vec<u8> =
            [9u64, 0x40_1000, 7, 0, 23, 1, 0, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        let auxv = Auxv::parse(&wide, false);
        assert_eq!((auxv.entry(), auxv.loader_base()), (Some(RemoteAddr(0x40_1000)), None));
        assert!(auxv.is_secure());
        let narrow: Vec<u8> = [7u32, 0xf7f0_0000, 9, 0x1000].iter().flat_map(|n| n.to_le_bytes()).collect();
        let auxv = Auxv::parse(&narrow, true);
        assert_eq!(
            (auxv.loader_base(), auxv.entry()),
            (Some(RemoteAddr(0xf7f0_0000)), Some(RemoteAddr(0x1000)))
        );
    }
}
