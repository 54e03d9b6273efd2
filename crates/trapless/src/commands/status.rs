//! `status`: what is armed in a process, found by the journals in its memory, and what memory earlier sessions have left.

use crate::cli::validated::Processes;
use crate::error::Error;
use crate::files::Files;
use crate::report::{ArmedSite, KeptMemory};
use crate::target::{self, Image};
use crate::terminal::tell;
use trapless_engine::find_sessions;
use trapless_isa::Mechanism;
use trapless_process::Process;
use trapless_session::clock::Clock;
use trapless_session::outcome::LatencySummary;

/// Shows it.
///
/// # Errors
/// No such process, or no permission.
pub fn run(processes: &Processes) -> Result<u8, Error> {
    let clock = Clock::now();
    let mut rows = Vec::new();
    let mut kept = Vec::new();
    let files = Files::default();
    for &pid in &processes.pids {
        let process = target::open(pid)?;
        let images = target::images(&process, &files)?;
        super::note_disbelieved(&process)?;
        for session in find_sessions(&process).map_err(Error::other)? {
            let owner = session.header.tool as i32;
            let owner_alive = session.has_owner();
            if session.is_removed() {
                kept.push(KeptMemory {
                    pid,
                    owner,
                    address: session.header.region,
                    code: session.header.arenas().map(|arena| arena.size).sum(),
                });
            }
            let (schema, doubted) = session.schema(&process).map_err(Error::other)?;
            if doubted > 0 {
                let numbers = if doubted == 1 { "number" } else { "numbers" };
                let where_from =
                    format!("{doubted} {numbers} of the session at {:#x}", session.header.region);
                tell(format!("process {pid}: where {where_from} would be makes no sense; not shown"));
            }
            let sites: Vec<_> = session
                .journal
                .sites()
                .filter(|site| !site.is_exit() && session.is_armed(&process, site))
                .collect();
            let places: Vec<_> = sites.iter().map(|site| schema.places(site.probe)).collect();
            let numbers = session.numbers(&process, &places);
            // Measuring the clock takes a moment.
            let rate = numbers.iter().any(|numbers| numbers.latency.is_some()).then(|| clock.rate());
            for ((site, places), numbers) in sites.iter().zip(places).zip(numbers) {
                let (module, function) = name(&process, &images, site.probed());
                rows.push(ArmedSite {
                    pid,
                    owner,
                    owner_alive,
                    module,
                    function,
                    address: site.probed(),
                    mechanism: site.mechanism().map_or("unknown", Mechanism::name),
                    hits: places.entries.map_or(numbers.returns, |_| numbers.entries),
                    returns: places.returns.map(|_| numbers.returns),
                    lost: places.lost.map(|_| numbers.lost),
                    in_children: numbers.in_children,
                    latency: numbers
                        .latency
                        .zip(rate)
                        .map(|(latency, rate)| LatencySummary::of(&latency, rate)),
                    replaced: site.is_replaced(),
                    records: places.recorded_entries.is_some() || places.recorded_returns,
                });
            }
        }
    }
    if rows.is_empty() && !processes.output.json {
        tell("nothing is armed");
    }
    processes.output.rows_of_two(&rows, &kept)?;
    Ok(0)
}

/// The module and function at an address of the target.
fn name(process: &Process, images: &[Image], address: u64) -> (String, String) {
    let unknown = || ("?".to_owned(), format!("{address:#x}"));
    let Some(image) = images.iter().find(|image| image.range.contains(&address)) else { return unknown() };
    let name = image.name().to_owned();
    let (Ok(module), Ok(bias)) = (image.module(Some(process)), image.bias(Some(process))) else {
        return (name, unknown().1);
    };
    let address = address.wrapping_sub(bias);
    match module.function_containing(address) {
        Some(function) => {
            let plain = trapless_symbols::demangle(function.name().plain()).into_owned();
            // Behind an endbr64 is the entry all the same.
            match address - function.address() {
                0 | 4 => (name, plain),
                offset => (name, format!("{plain}+{offset:#x}")),
            }
        }
        None => (name, format!("{address:#x}")),
    }
}
