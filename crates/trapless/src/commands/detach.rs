//! `detach`: takes out what is armed in a process, whoever armed it.

use crate::cli::validated::Processes;
use crate::error::Error;
use crate::report::DetachedSession;
use crate::target;
use crate::terminal::tell;
use trapless_engine::{find_sessions, remove_kept};

/// Does it, process by process.
///
/// # Errors
/// No such process, no permission, or a session could not be removed; later processes are still tried.
pub fn run(processes: &Processes) -> Result<u8, Error> {
    let mut rows = Vec::new();
    let mut failed = None;
    for &pid in &processes.pids {
        let sessions = target::open(pid)
            .map_err(Error::from)
            .and_then(|process| Ok((find_sessions(&process).map_err(Error::other)?, process)));
        let (sessions, process) = match sessions {
            Ok(found) => found,
            Err(error) => {
                failed = failed.or(Some(error));
                continue;
            }
        };
        if let Err(error) = super::note_disbelieved(&process) {
            failed = failed.or(Some(error));
        }
        for session in sessions {
            // With the one before it may have gone the memory of this one, if it was only that.
            let regions = find_sessions(&process).unwrap_or_default();
            if !regions.iter().any(|found| found.header.region == session.header.region) {
                continue;
            }
            match remove_kept(&process, &session, &super::stop_options(processes.allow_seccomp)) {
                Ok(removed) => rows.push(DetachedSession {
                    pid,
                    owner: session.header.tool as i32,
                    restored: removed.restored,
                    left: removed.left,
                    returns: removed.returns,
                    memory_kept: removed.kept.is_some(),
                    memory_kept_because: removed.kept.map(|kept| kept.to_string()),
                    freed: removed.freed,
                    stopped_us: removed.stopped.as_micros() as u64,
                }),
                Err(error) => failed = failed.or(Some(Error::other(error))),
            }
        }
    }
    if rows.is_empty() && failed.is_none() && !processes.output.json {
        tell("nothing is armed");
    }
    processes.output.rows(&rows)?;
    failed.map_or(Ok(0), Err)
}
