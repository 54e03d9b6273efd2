//! A function of another process that is replaced by one of a library.

use super::Session;
use std::time::Duration;
use trapless_process::{Process, StopOptions};
use trapless_session::error::Error;
use trapless_session::live_patch::{Library, LivePatch};
use trapless_session::spec::ProbeSpec;
use trapless_session::target::Image;

/// How long a call is waited for unless somebody says otherwise.
const WAIT: Duration = Duration::from_secs(10);

/// A function that is to be replaced ([`Attach::replace`](super::Attach::replace)).
///
/// The library is loaded by a thread of the process, which calls the function, when nothing on its stack speaks against that: no handler of
/// a signal, no loader or allocator that is at work, and room enough. Then calls are led to the library's function by a jump, at the cost of two
/// jumps a call. When the [`Session`] is removed or dropped, the code is what it was; the library stays loaded.
#[must_use = "nothing is replaced before it is armed"]
pub struct Replace {
    process: Process,
    images: Vec<Image>,
    function: ProbeSpec,
    with: String,
    original: Option<String>,
    wait: Duration,
    options: StopOptions,
}

impl Replace {
    pub(super) fn new(
        process: Process,
        images: Vec<Image>,
        function: ProbeSpec,
        with: String,
        options: StopOptions,
    ) -> Self {
        Self { process, images, function, with, original: None, wait: WAIT, options }
    }

    /// Has a pointer that the library exports lead to what runs the original, such as `long (*slow_original)(long);`. Before and afterwards it
    /// leads to the function itself.
    pub fn original(self, symbol: &str) -> Self {
        Self { original: Some(symbol.to_owned()), ..self }
    }

    /// How long a call of the function is waited for in which the library can be loaded: 10 seconds unless this says otherwise.
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Lets system calls be made in the process, and the library be loaded, although its seccomp filter might end it for them.
    pub fn allow_seccomp(mut self) -> Self {
        self.options.allow_seccomp = true;
        self
    }

    /// Looks whether it can be done, and changes nothing.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), Error> {
        self.patch().map(drop)
    }

    /// Has the library loaded, and calls of the function led to that of the library.
    ///
    /// # Errors
    /// It cannot be done, which is found out before anything is touched as far as it can be; no call came in which the library could be loaded; or the
    /// process could not load it. Nothing is patched then.
    pub fn arm(self) -> Result<Session, Error> {
        let patch = self.patch()?;
        let found = patch.load(self.wait, &|| false)?;
        let armed = patch.arm(&found)?;
        drop(patch);
        Ok(Session::new(self.process, armed, self.options))
    }

    fn patch(&self) -> Result<LivePatch<'_>, Error> {
        let library = Library::open(&self.with, self.original.as_deref())?;
        LivePatch::new(&self.process, &self.images, &self.function, library, self.options.clone())
    }
}

impl std::fmt::Debug for Replace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Replace");
        shown
            .field("pid", &self.process.pid())
            .field("function", &self.function.text)
            .field("with", &self.with)
            .finish()
    }
}
