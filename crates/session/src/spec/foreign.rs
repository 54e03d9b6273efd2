//! Probes of other tools that are none here, and where to go with them.

const KERNEL: &str = "names a place in the kernel, where trapless does not look; bpftrace and perf do. Functions of programs are MODULE:FUNCTION";
const TIMED: &str = "is no place in a program; perf record samples by time and by hardware events. Functions are MODULE:FUNCTION";
const ENTRY: &str =
    "is how bcc and perf name an entry; write MODULE:FUNCTION, or '*:FUNCTION' for every module";
const RETURN: &str =
    "is how bcc and perf name a return; write uretprobe:MODULE:FUNCTION, or MODULE:FUNCTION with --return";

/// What bpftrace, bcc and perf write before a name. No module is called so.
const LONG: [(&str, &str); 10] = [
    ("kprobe", KERNEL),
    ("kretprobe", KERNEL),
    ("fentry", KERNEL),
    ("fexit", KERNEL),
    ("kfunc", KERNEL),
    ("kretfunc", KERNEL),
    ("ksyscall", KERNEL),
    ("kretsyscall", KERNEL),
    ("tracepoint", KERNEL),
    ("rawtracepoint", KERNEL),
];

/// Words that a module may be called by, too; then nothing else separates.
const SHORT: [(&str, &str); 15] = [
    ("p", ENTRY),
    ("r", RETURN),
    ("k", KERNEL),
    ("kr", KERNEL),
    ("f", KERNEL),
    ("fr", KERNEL),
    ("t", KERNEL),
    ("rt", KERNEL),
    ("h", TIMED),
    ("s", TIMED),
    ("i", TIMED),
    ("profile", TIMED),
    ("interval", TIMED),
    ("hardware", TIMED),
    ("software", TIMED),
];

/// The prefix of another tool that `text` begins with, and what to say of it. `has_separator` tells whether a module and a
/// function could still follow.
pub(super) fn prefix(
    text: &str,
    has_separator: impl Fn(&str) -> bool,
) -> Option<(&'static str, &'static str)> {
    let behind = |prefix: &str| text.strip_prefix(prefix)?.strip_prefix(':');
    let long = LONG.into_iter().find(|(prefix, _)| behind(prefix).is_some());
    long.or_else(|| SHORT.into_iter().find(|(prefix, _)| behind(prefix).is_some_and(&has_separator)))
}
