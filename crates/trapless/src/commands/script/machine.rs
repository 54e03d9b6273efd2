//! Which machine a script is for: that of the program which it probes, as far as one is named. It decides how wide addresses are, where
//! arguments lie, and whether there is native code.

use crate::cli::script::Text;
use crate::cli::validated::Target;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use trapless_isa::Machine;
use trapless_running::files;

/// The machine of the process that is given or of the command that is launched; of whoever runs a file, our own: nobody else is probed then.
pub(super) fn of(text: &Text) -> Machine {
    let program: Option<PathBuf> = match &text.target {
        Some(Target::Processes(pids)) => pids.first().map(|pid| format!("/proc/{pid}/exe").into()),
        Some(Target::Launch(command)) => command.first().and_then(|name| {
            let found = files::named(&name.to_string_lossy()).ok()?;
            found.into_iter().next()
        }),
        Some(Target::Whoever(_)) | None => None,
    };
    match program.is_some_and(|program| is_narrow(&program)) {
        true => Machine::I386,
        false => Machine::HOST.unwrap_or(Machine::X86_64),
    }
}

/// Whether a file is a 32-bit x86 program. One that cannot be read is refused later, with the reason.
fn is_narrow(program: &Path) -> bool {
    /// `e_machine` of the ELF header, and `EM_386`.
    const MACHINE: std::ops::Range<usize> = 18..20;
    const EM_386: [u8; 2] = [3, 0];
    let mut head = [0; 20];
    let read = File::open(program).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head.starts_with(b"\x7fELF") && head[MACHINE] == EM_386
}
