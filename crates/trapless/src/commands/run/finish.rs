//! The end of a run: first the probes are taken out of every target, then it is told what there was.
//!
//! Nothing is written before the last probe is out, since whoever reads may take as long as they like.

use super::Armed;
use super::collect::Collector;
use crate::cli::validated::Run;
use crate::commands::signals;
use crate::error::Error;
use crate::report::{ChildHits, Exit, Losses, Note, Running, lost, plural};
use crate::session::Snapshot;
use crate::terminal::printable;
use std::time::Duration;
use trapless_engine::Removed;
use trapless_session::outcome::Remark;

/// How long a target that has given up its memory may take to be seen to have ended.
const ENDING: Duration = Duration::from_millis(200);

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
        let mut memory = memory_notes(armed.session.freed(), None);
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
                    memory = memory_notes(armed.session.freed() + removed.freed, removed.kept);
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
    // One that shares the memory shows the number of its parent, and so does one that no C library was told of.
    let own = armed.process.pid().0;
    let child = |(&pid, &hits): (&i32, &u64)| ChildHits { pid: (pid != own).then_some(pid), hits };
    let children = match traced || !armed.children.is_empty() {
        true => armed.children.iter().map(child).collect(),
        false if now.in_children > 0 => vec![ChildHits { pid: None, hits: now.in_children }],
        false => Vec::new(),
    };
    Losses {
        not_shown: now.records_lost,
        without_stack: now.unrecorded,
        left_by_exception: now.unwound,
        children,
        sharing_children: armed.session.sharing_children(),
        lost_sites: armed.session.lost_sites(),
        notes: all_notes(armed, memory).chain(of_anybody(now)).collect(),
    }
}

/// What is to be known of a run beside its numbers. `memory`: what became of ours.
pub(in crate::commands) fn beside_numbers(armed: &Armed, memory: Vec<Note>) -> Vec<Note> {
    let lost = lost(&armed.session.lost_sites()).into_iter().map(|text| Note { code: "lost", text });
    lost.chain(all_notes(armed, memory)).collect()
}

/// What is to be known of a run, and what became of `memory` of ours and of children.
fn all_notes(armed: &Armed, memory: Vec<Note>) -> impl Iterator<Item = Note> {
    notes(armed).into_iter().chain(memory).chain(hidden_children(armed))
}

/// What became of memory of ours: of sessions before, and of this one.
pub(super) fn memory_notes(freed: usize, kept: Option<trapless_engine::Kept>) -> Vec<Note> {
    let sessions = plural(freed as u64, "session");
    let freed = (freed > 0).then(|| Note {
        code: "memory-freed",
        text: format!("unmapped now is memory of {sessions} before, which had to stay in the target"),
    });
    let kept = kept.map(|why| Note {
        code: "memory-kept",
        text: format!(
            "all probes are out, but their memory stays in the target: {why}; the next attach or detach tries again"
        ),
    });
    freed.into_iter().chain(kept).collect()
}

/// Which handlers of signals saw detours where they see the program, and which ones have left bodies of scripts.
pub(super) fn of_handlers(removed: &Removed) -> impl Iterator<Item = Note> + use<> {
    let note = |code, times: usize, text: &dyn Fn(String) -> String| {
        (times > 0).then(|| Note { code, text: text(crate::report::count(times as u64)) })
    };
    let unseen = note("handler-without-stub", removed.without_stub, &|times| {
        format!(
            "handlers of signals that could not be shown the program: {times}; what they read in contexts may have been a detour's"
        )
    });
    let cut = note("hits-cut-short", removed.cut, &|times| {
        format!(
            "hits that may be in some of the script's numbers only: {times}; handlers of signals came in between, and did not go back there"
        )
    });
    unseen.into_iter().chain(cut)
}

/// What became of children that no tracer is told of.
fn hidden_children(armed: &Armed) -> Option<Note> {
    let ended = armed.session.ended_children();
    let text = format!(
        "breakpoints have ended children that hide from tracers (CLONE_UNTRACED): {}",
        crate::report::count(ended as u64)
    );
    (ended > 0).then_some(Note { code: "hidden-children", text })
}

/// What is counted of threads that nobody can tell from a child's.
fn of_anybody(now: &Snapshot) -> Option<Note> {
    let text = format!(
        "{} above, counted on threads that found no memory of their own left, and maybe in forked children: give --follow where a program makes thousands",
        plural(now.of_anybody, "hit")
    );
    (now.of_anybody > 0).then_some(Note { code: "maybe-in-children", text })
}

/// What else is to be known of a run.
fn notes(armed: &Armed) -> Vec<Note> {
    let remark = |remark: &Remark| Note { code: remark.code, text: printable(&remark.text) };
    let mut notes: Vec<Note> = armed.session.remarks().iter().map(remark).collect();
    notes.extend(other_program(armed));
    notes.extend(armed.session.mapped_again().iter().map(|path| Note {
        code: "mapped_again",
        text: format!(
            "{} was mapped again at another place while it was probed; calls there were not counted",
            printable(&path.display().to_string())
        ),
    }));
    notes.extend(armed.pending.iter().flat_map(|pending| pending.notes(&armed.session)));
    let sharing = armed.session.sharing_threads();
    if sharing > 0 {
        let threads = if sharing == 1 { "thread shares" } else { "threads share" };
        let text = format!(
            "{sharing} {threads} a thread pointer with another one; hits of such threads at the same time may be lost"
        );
        notes.push(Note { code: "shared_thread_pointer", text });
    }
    let clones = armed.session.unseen_clones();
    if clones > 0 {
        let times = if clones == 1 { "once".to_owned() } else { format!("{clones} times") };
        let text = format!(
            "clone was called {times}; what children called that share the memory (CLONE_VM with CLONE_VFORK) was counted as the process's own"
        );
        notes.push(Note { code: "clones", text });
    }
    notes
}

fn other_program(armed: &Armed) -> Option<Note> {
    let way = "launch that one, or attach to it with -p";
    let text = match (armed.session.replaced_by(), &armed.renamed) {
        (Some(path), _) if !path.as_os_str().is_empty() => {
            let path = printable(&path.display().to_string());
            format!("the process ran another program, whose calls were not counted: {path}; {way}")
        }
        (other, _) if armed.ran_another_program || other.is_some() => {
            format!("the process ran another program, whose calls were not counted; {way}")
        }
        (_, Some(name)) => {
            let name = printable(name.trim_end());
            format!(
                "the process seems to have run another program, whose calls were not counted: {name}; {way}"
            )
        }
        _ => return None,
    };
    Some(Note { code: "exec", text })
}
