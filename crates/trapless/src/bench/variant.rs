//! The ways to collect. A further mechanism is a further entry of [`VARIANTS`] and a case of [`Variant::arm`].

use super::kernel::Uprobe;
use super::target::Target;
use super::triggers::TRIGGERS;
use crate::error::Error;
use crate::resolve::{self, Kinds, Sites};
use crate::session::{Calls, Hold, Measure, Session};
use serde::Serialize;
use trapless_isa::Mechanism;
use trapless_process::StopOptions;

/// Entry or return: the rows of the benchmark are named by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// `uprobe-…`
    Entry,
    /// `uretprobe-…`
    Return,
}

/// Who collects what: the columns of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Collector {
    /// A jump to a detour that counts; at a return, entry and return.
    Count,
    /// The same with the time from entry to return in a histogram.
    Latency,
    /// The same with a record in a ring: time, thread, three arguments; at a return also its value and time.
    Record,
    /// A kernel uprobe or uretprobe that counts.
    Kernel,
}

/// What one child is armed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Who collects what.
    pub collector: Collector,
    /// Where.
    pub side: Side,
}

/// All of them, in the order of the columns.
pub const VARIANTS: [Variant; 7] = {
    use Collector::*;
    use Side::*;
    [
        Variant { collector: Count, side: Entry },
        Variant { collector: Count, side: Return },
        Variant { collector: Latency, side: Return },
        Variant { collector: Record, side: Entry },
        Variant { collector: Record, side: Return },
        Variant { collector: Kernel, side: Entry },
        Variant { collector: Kernel, side: Return },
    ]
};

/// Records that are written before rings are emptied: they hold 16 384.
const BURST: u64 = 6_000;

impl Side {
    /// The benchmark's name for a trigger probed here.
    pub fn row(self, trigger: &str) -> String {
        match self {
            Side::Entry => format!("uprobe-{trigger}"),
            Side::Return => format!("uretprobe-{trigger}"),
        }
    }
}

impl Collector {
    /// The column's heading.
    pub fn heading(self) -> &'static str {
        match self {
            Collector::Count => "COUNT",
            Collector::Latency => "LATENCY",
            Collector::Record => "RECORD",
            Collector::Kernel => "KERNEL",
        }
    }

    /// How control gets from the program to the collector.
    pub fn mechanism(self) -> &'static str {
        match self {
            Collector::Kernel => "kernel",
            _ => "jump",
        }
    }

    /// How many calls may be made before [`Armed::empty`].
    pub fn burst(self) -> u64 {
        match self {
            Collector::Record => BURST,
            _ => u64::MAX,
        }
    }

    /// Traps per hit.
    pub fn traps(self, trigger: usize) -> u32 {
        match self {
            Collector::Kernel => TRIGGERS[trigger].kernel_traps,
            _ => 0,
        }
    }
}

/// Probes in a child. Nothing is removed at the end, since the child ends, too.
pub enum Armed {
    /// Ours.
    Session(Box<Session>, Calls),
    /// The kernel's.
    Kernel(Vec<Uprobe>),
}

impl Variant {
    /// Arms the triggers of a child.
    ///
    /// # Errors
    /// Some trigger cannot be probed so; why.
    pub fn arm(self, target: &Target, triggers: &[usize]) -> Result<Armed, Error> {
        let returns = self.side == Side::Return;
        let measure = match self.collector {
            Collector::Kernel => {
                let uprobes =
                    triggers.iter().map(|&t| Uprobe::open(&target.process, target.triggers[t], returns));
                return Ok(Armed::Kernel(uprobes.collect::<Result<_, _>>().map_err(Error::other)?));
            }
            Collector::Count => Measure::Count,
            Collector::Latency => Measure::Latency,
            Collector::Record => Measure::Trace { args: 3 },
        };
        let images = target.images()?;
        let mut sites = sites(target, &images, triggers, Kinds { entry: true, returns })?;
        sites.sites.sort_by_key(|site| (site.image, site.address));
        let asked = sites.sites.len();
        let hold = Hold::Stop(StopOptions::default());
        let session = Session::attach(&target.process, &images, sites, measure, &[Mechanism::Jump], hold)?;
        match session.skipped().first() {
            Some(skipped) if session.probes().len() < asked => {
                Err(Error::Usage(format!("{}: {}", skipped.function, skipped.reason)))
            }
            _ => Ok(Armed::Session(Box::new(session), Calls::default())),
        }
    }
}

/// By address: a stripped program has the functions, but not their names.
fn sites(
    target: &Target,
    images: &[crate::target::Image],
    triggers: &[usize],
    kinds: Kinds,
) -> Result<Sites, Error> {
    let mut sites = Sites::default();
    for &trigger in triggers {
        let address = target.triggers[trigger];
        let name = TRIGGERS[trigger].name;
        let missing =
            || Error::Usage(format!("the trigger '{name}' is not a function of this program's file"));
        let index = images.iter().position(|i| i.range.contains(&address)).ok_or_else(missing)?;
        let module = images[index].module(Some(&target.process))?;
        let address = address - images[index].bias(Some(&target.process))?;
        let function = module.functions().containing(address).ok_or_else(missing)?;
        if function.address() != address {
            return Err(missing());
        }
        sites.sites.push(resolve::site(index, function, 0, kinds));
    }
    Ok(sites)
}

impl Armed {
    /// Makes room for [`Collector::burst`] records.
    pub fn empty(&mut self, target: &Target) {
        if let Armed::Session(session, calls) = self {
            let rate = session.clock().rate();
            calls.take(session, target.process.pid().0, 3, rate);
        }
    }

    /// How many hits were counted in all.
    ///
    /// # Errors
    /// Those of reading the kernel's counters.
    pub fn hits(&self) -> Result<u64, Error> {
        match self {
            Armed::Session(session, _) => Ok(session.snapshot().hits()),
            Armed::Kernel(uprobes) => {
                let hits = uprobes.iter().map(Uprobe::hits).sum::<std::io::Result<u64>>();
                hits.map_err(Error::other)
            }
        }
    }
}
