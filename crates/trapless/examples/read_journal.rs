//! Shows what is armed in a process, from the journal in its memory.
//!
//! ```text
//! cargo run --example read_journal -- PID
//! ```
//!
//! The journal is written before anything is patched, so it is there whatever became of the tool. Nothing is stopped or changed.

use std::error::Error;
use trapless_engine::find_sessions;
use trapless_isa::Mechanism;
use trapless_process::{Pid, Process};

fn main() -> Result<(), Box<dyn Error>> {
    let pid = std::env::args().nth(1).ok_or("usage: read_journal PID")?.parse()?;
    let process = Process::open(Pid(pid))?;
    let sessions = find_sessions(&process)?;
    for session in &sessions {
        let owner = if session.has_owner() { "runs" } else { "is gone" };
        println!("armed by {}, which {owner}", session.header.tool);
        for entry in session.journal.iter().filter(|entry| session.is_armed(&process, entry)) {
            let mechanism = entry.mechanism().map_or("unknown", Mechanism::name);
            println!(
                "{:#x} {mechanism} {:02x?} was {:02x?}, {} hits",
                entry.site,
                entry.patched(),
                entry.original(),
                session.hits(&process, entry)
            );
        }
    }
    if sessions.is_empty() {
        println!("nothing is armed");
    }
    Ok(())
}
