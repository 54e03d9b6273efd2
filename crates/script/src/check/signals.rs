//! Signals by number and by name, as Linux has them.

/// Names without `SIG`, by number from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// What they mean, as `strsignal` says it.
pub const TEXTS: &[(i64, &str)] = &[
    (0, "Unknown signal 0"),
    (1, "Hangup"),
    (2, "Interrupt"),
    (3, "Quit"),
    (4, "Illegal instruction"),
    (5, "Trace/breakpoint trap"),
    (6, "Aborted"),
    (7, "Bus error"),
    (8, "Floating point exception"),
    (9, "Killed"),
    (10, "User defined signal 1"),
    (11, "Segmentation fault"),
    (12, "User defined signal 2"),
    (13, "Broken pipe"),
    (14, "Alarm clock"),
    (15, "Terminated"),
    (16, "Stack fault"),
    (17, "Child exited"),
    (18, "Continued"),
    (19, "Stopped (signal)"),
    (20, "Stopped"),
    (21, "Stopped (tty input)"),
    (22, "Stopped (tty output)"),
    (23, "Urgent I/O condition"),
    (24, "CPU time limit exceeded"),
    (25, "File size limit exceeded"),
    (26, "Virtual timer expired"),
    (27, "Profiling timer expired"),
    (28, "Window changed"),
    (29, "I/O possible"),
    (30, "Power failure"),
    (31, "Bad system call"),
];

/// The number of a signal by its name, with or without `SIG`.
pub fn number(name: &str) -> Option<i64> {
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    NAMES.iter().position(|known| *known == name).map(|index| index as i64 + 1)
}
