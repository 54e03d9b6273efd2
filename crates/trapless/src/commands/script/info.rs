//! `--info`: what there is on this machine, in the lines by which scripts' test suites decide what they may ask.

use trapless_isa::Machine;

/// What is told.
pub(super) fn text() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let yes_or_no = |yes: bool| if yes { "yes" } else { "no" };
    let system = [
        ("OS", format!("{} {}", std::env::consts::OS, release.trim())),
        ("Arch", std::env::consts::ARCH.to_owned()),
    ];
    let build = [
        ("version", format!("v{} (trapless {})", crate::cli::bpftrace::AS_OF, env!("CARGO_PKG_VERSION"))),
        ("libdw (DWARF support)", yes_or_no(true).to_owned()),
        ("dwunwind (DWARF stack unwinding)", yes_or_no(true).to_owned()),
        ("blazesym (advanced symbolization)", yes_or_no(false).to_owned()),
        ("bcc library path resolution", yes_or_no(true).to_owned()),
        ("native code", yes_or_no(Machine::HOST.is_some_and(|host| host.isa().runs_bodies())).to_owned()),
    ];
    let features = [
        ("Loop support", true),
        ("loop", true),
        ("signal", true),
        ("send_signal", true),
        ("lookup_percpu_elem", true),
        ("get_tai_ns", true),
        ("get_ktime_ns", true),
        ("get_func_ip", true),
        ("uprobe", true),
        ("uprobe_multi", true),
        ("usdt", true),
        ("kprobe", false),
        ("kprobe_multi", false),
        ("kprobe_session", false),
        ("tracepoint", false),
        ("fentry", false),
        ("iter", false),
        ("btf", false),
        ("probe_read_kernel", false),
        ("dpath", false),
        ("skboutput", false),
        ("jiffies64", false),
    ];
    let mut text = String::from("System\n");
    system.iter().for_each(|(name, value)| text += &format!("  {name}: {value}\n"));
    text += "\nBuild\n";
    build.iter().for_each(|(name, value)| text += &format!("  {name}: {value}\n"));
    text += "\nWhat scripts may use: programs in user space are probed, and the kernel is not\n";
    features.iter().for_each(|(name, there)| text += &format!("  {name}: {}\n", yes_or_no(*there)));
    text
}
