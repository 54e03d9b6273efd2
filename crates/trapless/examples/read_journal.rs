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
        let (schema, _) = session.schema(&process)?;
        for site in session.journal.sites().filter(|site| session.is_armed(&process, site)) {
            let mechanism = site.mechanism().map_or("unknown", Mechanism::name);
            let numbers = &session.numbers(&process, &[schema.places(site.probe)])[0];
            println!("{:#x} {mechanism}, {} hits", site.site, numbers.entries);
            for write in site.writes() {
                println!("    {:#x} {:02x?} was {:02x?}", write.address, write.patched, write.original);
            }
        }
    }
    if sessions.is_empty() {
        println!("nothing is armed");
    }
    Ok(())
}
