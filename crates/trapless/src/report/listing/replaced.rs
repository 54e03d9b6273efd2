//! Rows of `replace`: what is called instead of what, and that it is not any more.

use super::Row;
use crate::report::table::Align;
use serde::Serialize;

/// A function that is replaced, or could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplacedFunction {
    /// The target.
    pub pid: i32,
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Its address in the target.
    pub address: u64,
    /// File name of the library.
    pub library: String,
    /// The function of it that is called instead.
    pub with: String,
    /// Address of that in the target; not there where nothing was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_address: Option<u64>,
    /// Whether it was only looked whether it can be done.
    pub dry_run: bool,
    /// Calls that were let pass, since the library could not be loaded in them.
    pub passed: u64,
    /// How long the target stood still while the function was replaced, in microseconds.
    pub stopped_us: u64,
}

impl Row for ReplacedFunction {
    const TYPE: &'static str = "replaced";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("ADDRESS", Align::Right),
        ("STOPPED", Align::Right),
        ("FUNCTION", Align::Left),
        ("REPLACED BY", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            format!("{:#x}", self.address),
            crate::report::duration(self.stopped_us.saturating_mul(1000)),
            format!("{}:{}", self.module, self.function),
            format!("{}:{}", self.library, self.with),
        ]
    }

    fn note(&self) -> Option<String> {
        if self.dry_run {
            return Some("it can be done; nothing was changed".to_owned());
        }
        let passed = (self.passed > 0).then(|| {
            let calls = crate::report::plural(self.passed, "call");
            format!("{calls} were let pass before the library could be loaded; ")
        });
        Some(format!("{}Ctrl-C takes it back, and the library stays loaded", passed.unwrap_or_default()))
    }
}

/// A function that is itself again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoredFunction {
    /// The target.
    pub pid: i32,
    /// File name of the module.
    pub module: String,
    /// The function, demangled.
    pub function: String,
    /// Whether its code is what it was; not where somebody else has changed it, or taken the replacement out.
    pub restored: bool,
    /// Why memory of ours stays mapped, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kept_because: Option<String>,
    /// How long the target stood still for it, in microseconds.
    pub stopped_us: u64,
}

impl Row for RestoredFunction {
    const TYPE: &'static str = "restored";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PID", Align::Right),
        ("RESTORED", Align::Left),
        ("STOPPED", Align::Right),
        ("FUNCTION", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.pid.to_string(),
            if self.restored { "yes" } else { "no" }.to_owned(),
            crate::report::duration(self.stopped_us.saturating_mul(1000)),
            format!("{}:{}", self.module, self.function),
        ]
    }

    fn note(&self) -> Option<String> {
        let kept = self.memory_kept_because.as_ref();
        let kept = kept.map(|why| format!("; memory stays mapped: {why}")).unwrap_or_default();
        Some(match self.restored {
            true => format!("the library stays loaded{kept}"),
            false => format!("somebody else has taken it out, or changed the code{kept}"),
        })
    }
}
