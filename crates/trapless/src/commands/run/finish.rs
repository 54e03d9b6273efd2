//! The end of a run: first the probes are taken out of every target, then it is told what there was.
//!
//! Nothing is written before the last probe is out, since whoever reads may take as long as they like.

use super::Armed;
use super::collect::Collector;
use crate::attach::ENDING;
use crate::cli::validated::Run;
use crate::commands::signals;
use crate::error::Error;
use crate::report::{ChildHits, Exit, Losses, Note, Running, lost};
use crate::session::Snapshot;
use crate::terminal::printable;
use std::time::Duration;
use trapless_session::session::notes::{of_handlers, of_memory};

/// A target without probes.
pub(in crate::commands) struct Finished {
    pub armed: Armed,
    /// How long its probes were there.
    pub ran: Duration,
    /// How long it stood still for them.
    pub stopped: Duration,
    /// What became of our memory in it.
    pub memory: Vec<Note>,
}

/// Takes the probes out of every target and reports what there was. `result` is how watching ended: if the output is
/// broken, there is nothing to report to, but the probes are taken out all the same.
///
/// # Errors
/// `result`'s, that of a removal, or that of the output.
pub(super) fn finish(
    run: &Run,
    targets: Vec<Armed>,
    collector: &mut dyn Collector,
    result: Result<(), Error>,
    exit: Option<Exit>,
    running: &Running,
) -> Result<(), Error> {
    let mut first_error = result.err();
    let mut finished = Vec::with_capacity(targets.len());
    for mut armed in targets {
        let ran = armed.session.clock().elapsed();
        if armed.pending.is_some() {
            armed.session.ignore_changes();
        }
        let mut stopped = armed.session.stopped();
        let mut memory = of_memory(armed.session.freed(), None);
        if exit.is_none() && armed.process.is_alive() {
            armed.session.look_again(&armed.process, true);
            if let Some(pending) = armed.pending.as_mut().filter(|_| armed.session.is_armed(&armed.process)) {
                pending.check(&armed.process, &armed.session);
            }
            armed.ran_another_program |=
                armed.process.runs_another_program() || armed.session.replaced_by().is_some();
            match armed.session.remove(&armed.process, &super::super::stop_options(run.allow_seccomp)) {
                Ok(removed) => {
                    stopped += removed.stopped;
                    memory = of_memory(armed.session.freed() + removed.freed, removed.kept);
                    memory.extend(of_handlers(&removed));
                }
                // A target that ended meanwhile took its probes along.
                Err(_) if armed.process.has_ended_within(ENDING) => {}
                // That the tracer was killed is told of probes that are out by then.
                Err(why @ trapless_session::error::Error::Unserved) => {
                    first_error = first_error.or(Some(why.into()));
                }
                Err(why) => first_error = first_error.or(Some(Error::StillProbed { pid: armed.pid(), why })),
            }
        }
        finished.push(Finished { armed, ran, stopped, memory });
    }
    signals::release();
    running.finish();
    let is_broken = matches!(first_error, Some(Error::Output { .. }));
    if !is_broken && finished.iter().all(|target| target.armed.announced) {
        let reported = collector.finish(finished, exit);
        first_error = first_error.or(reported.err());
    }
    first_error.map_or(Ok(()), Err)
}

/// What the numbers do not show.
pub(super) fn losses_of(armed: &Armed, now: &Snapshot, traced: bool, memory: Vec<Note>) -> Losses {
    let losses = armed.session.losses(now);
    // One that shares the memory shows the number of its parent, and so does one that no C library was told of.
    let own = armed.process.pid().0;
    let child = |(&pid, &hits): (&i32, &u64)| ChildHits { pid: (pid != own).then_some(pid), hits };
    let children = match traced || !armed.children.is_empty() {
        true => armed.children.iter().map(child).collect(),
        false => losses.children,
    };
    let notes = losses.notes.into_iter().chain(known(armed)).chain(memory).map(shown).collect();
    Losses { children, notes, ..losses }
}

/// What is to be known of a run beside its numbers. `memory`: what became of ours.
pub(in crate::commands) fn beside_numbers(armed: &Armed, memory: Vec<Note>) -> Vec<Note> {
    let lost = lost(&armed.session.lost_sites()).into_iter().map(|text| Note { code: "lost", text });
    let notes = armed.session.notes().into_iter().chain(known(armed)).chain(memory);
    lost.chain(notes.chain(armed.session.hidden_children()).map(shown)).collect()
}

/// What is known of a target beside what its session knows.
fn known(armed: &Armed) -> impl Iterator<Item = Note> {
    let pending = armed.pending.iter().flat_map(|pending| pending.notes(&armed.session));
    other_program(armed).into_iter().chain(pending)
}

fn shown(note: Note) -> Note {
    Note { text: printable(&note.text), ..note }
}

fn other_program(armed: &Armed) -> Option<Note> {
    let way = "launch that one, or attach to it with -p";
    let text = match (armed.session.replaced_by(), &armed.renamed) {
        (Some(path), _) if !path.as_os_str().is_empty() => {
            let path = path.display();
            format!("the process ran another program, whose calls were not counted: {path}; {way}")
        }
        (other, _) if armed.ran_another_program || other.is_some() => {
            format!("the process ran another program, whose calls were not counted; {way}")
        }
        (_, Some(name)) => {
            let name = name.trim_end();
            format!(
                "the process seems to have run another program, whose calls were not counted: {name}; {way}"
            )
        }
        _ => return None,
    };
    Some(Note { code: "exec", text })
}
