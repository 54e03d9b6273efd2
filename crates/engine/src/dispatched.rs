//! Programs that have their threads' system calls made into signals (`PR_SET_SYSCALL_USER_DISPATCH`), as Wine has for those of Windows' code.
//!
//! Ours are made with that ended for the while ([`trapless_process::Remote`]). Those that a thread itself is to make on its way through a probe would come to the
//! program's handler, which takes them for something else. So no such probes are put in. A thread that asks for it later is not
//! seen: nobody tells.

use crate::{EngineError, LeftAlone, LivePatch, Plan};
use trapless_process::Stopped;

/// Fails where threads would make system calls for us that become signals: those of a script's bodies, or of a library that is loaded.
pub(crate) fn require(stopped: &Stopped<'_>, plan: &Plan<'_>) -> Result<(), EngineError> {
    let script =
        plan.script.is_some_and(|script| script.program.routines.iter().any(|code| code.system_call));
    let loads = || plan.sites.iter().any(|site| matches!(site.request.live_patch, Some(LivePatch::Load(_))));
    let asked = (script || loads()).then(|| stopped.dispatching()).flatten();
    asked.map_or(Ok(()), |tid| Err(EngineError::Dispatching(tid)))
}

/// Leaves the gate alone, which makes a call, too.
pub(crate) fn refuse_gate(stopped: &Stopped<'_>, plan: &Plan<'_>, refused: &mut [Option<LeftAlone>]) {
    if let Some(index) = plan.sites.iter().position(|site| site.request.wanted.gate)
        && stopped.dispatching().is_some()
    {
        refused[index] = Some(LeftAlone::Dispatching);
    }
}
