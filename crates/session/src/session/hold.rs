//! Who holds the target while it is changed.

use trapless_engine::EngineError;
use trapless_process::launch::Launched;
use trapless_process::{Process, RemoteError, StopError, StopOptions, Stopped};

/// How the target is held still while it is changed.
pub enum Hold<'s> {
    /// It runs: a keeper stops it.
    Stop(StopOptions),
    /// It stands where it was launched, and stands on.
    Launched(&'s Launched, StopOptions),
    /// Who asks holds it, and traces it.
    Held(&'s mut dyn Holder),
}

impl Hold<'_> {
    /// The same, to be used once more.
    pub fn again(&mut self) -> Hold<'_> {
        match self {
            Hold::Stop(options) => Hold::Stop(options.clone()),
            Hold::Launched(launched, options) => Hold::Launched(launched, options.clone()),
            Hold::Held(holder) => Hold::Held(&mut **holder),
        }
    }

    /// Does `work` while the process stands: in a keeper, which `kept` starts, where it runs.
    pub(super) fn with<T, E: From<EngineError>>(
        &mut self,
        process: &Process,
        kept: impl FnOnce(&StopOptions) -> Result<T, E>,
        mut work: impl FnMut(&mut Stopped<'_>) -> Result<T, EngineError>,
    ) -> Result<T, E> {
        let mut done = None;
        let held = match self {
            Hold::Stop(options) => return kept(options),
            Hold::Launched(launched, options) => {
                launched.hold(options).map(|mut stopped| done = Some(work(&mut stopped)))
            }
            Hold::Held(holder) => holder.hold(&mut |stopped| done = Some(work(stopped))),
        };
        // What was done is done, whatever became of the hold.
        let gone = || StopError::Gone(process.pid()).into();
        let done = done.unwrap_or_else(|| Err(held.err().map_or_else(gone, EngineError::from)));
        done.map_err(E::from)
    }
}

/// Who traces a process and holds it for its probes to be armed.
pub trait Holder {
    /// Does `work` while the process stands.
    ///
    /// # Errors
    /// It cannot be held; then nothing was done.
    fn hold(&mut self, work: &mut dyn FnMut(&mut Stopped<'_>)) -> Result<(), RemoteError>;
}
