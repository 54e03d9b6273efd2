//! The ways to collect. A further one is a further [`Collector`] and entries of [`VARIANTS`].

use super::kernel::{Counted, Uprobe};
use super::narrow;
use super::target::Target;
use super::triggers::{Probed, Side, TRIGGERS, USDT_OPERANDS};
use crate::error::Error;
use serde::Serialize;
use trapless_isa::Mechanism;
use trapless_process::StopOptions;
use trapless_session::resolve::{self, Kinds, Site, Sites, UsdtSite};
use trapless_session::session::{Asked, Calls, Hold, Origin, Session};
use trapless_symbols::UsdtArgument;

/// Who collects what: the columns of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Collector {
    /// A jump to a detour that counts; at a return, entry and return.
    Count,
    /// The same with the time from entry to return in a histogram.
    Latency,
    /// The same with a record in a ring: time, thread, three arguments, which are operands at a USDT probe; at a
    /// return also its value and time.
    Record,
    /// A breakpoint whose tracer counts, and has the thread step the displaced instruction.
    Step,
    /// A breakpoint whose tracer counts, and emulates the displaced instruction.
    Emulate,
    /// A breakpoint whose tracer counts, and sends the thread to a copy of the instruction that jumps back.
    Boost,
    /// A kernel uprobe or uretprobe that counts.
    Kernel,
}

/// What the time of a hit is taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Time {
    /// The calling thread's processor time: others on the machine do not count.
    Processor,
    /// The time that passes: the thread waits while its tracer works.
    Elapsed,
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
pub const VARIANTS: [Variant; 19] = {
    use Collector::*;
    use Side::*;
    [
        Variant { collector: Count, side: Entry },
        Variant { collector: Count, side: Return },
        Variant { collector: Count, side: Inside },
        Variant { collector: Latency, side: Return },
        Variant { collector: Record, side: Entry },
        Variant { collector: Record, side: Return },
        Variant { collector: Record, side: Inside },
        Variant { collector: Step, side: Entry },
        Variant { collector: Step, side: Return },
        Variant { collector: Step, side: Inside },
        Variant { collector: Emulate, side: Entry },
        Variant { collector: Emulate, side: Return },
        Variant { collector: Emulate, side: Inside },
        Variant { collector: Boost, side: Entry },
        Variant { collector: Boost, side: Return },
        Variant { collector: Boost, side: Inside },
        Variant { collector: Kernel, side: Entry },
        Variant { collector: Kernel, side: Return },
        Variant { collector: Kernel, side: Inside },
    ]
};

/// Records that are written before rings are emptied: they hold 16 384.
const BURST: u64 = 6_000;

impl Collector {
    /// The column's heading.
    pub fn heading(self) -> &'static str {
        match self {
            Collector::Count => "COUNT",
            Collector::Latency => "LATENCY",
            Collector::Record => "RECORD",
            Collector::Step => "STEP",
            Collector::Emulate => "EMULATE",
            Collector::Boost => "BOOST",
            Collector::Kernel => "KERNEL",
        }
    }

    /// Which of our mechanisms; `None` for the kernel's.
    fn ours(self) -> Option<Mechanism> {
        match self {
            Collector::Count | Collector::Latency | Collector::Record => Some(Mechanism::Jump),
            Collector::Step => Some(Mechanism::Step),
            Collector::Emulate => Some(Mechanism::Emulate),
            Collector::Boost => Some(Mechanism::Boost),
            Collector::Kernel => None,
        }
    }

    /// How control gets from the program to the collector.
    pub fn mechanism(self) -> &'static str {
        self.ours().map_or("kernel", Mechanism::name)
    }

    /// Whether a tracer serves the hits.
    pub fn is_traced(self) -> bool {
        self.ours().is_some_and(|mechanism| mechanism != Mechanism::Jump)
    }

    /// What its hits are timed by.
    pub fn time(self) -> Time {
        if self.is_traced() { Time::Elapsed } else { Time::Processor }
    }

    /// How many calls may be made before [`Armed::empty`].
    pub fn burst(self) -> u64 {
        match self {
            Collector::Record => BURST,
            _ => u64::MAX,
        }
    }

    /// What it asks for at a trigger, or at its return, too.
    fn kinds(self, returns: bool) -> Kinds {
        match self {
            Collector::Latency => Kinds { timed: true, ..Kinds::default() },
            Collector::Record => Kinds { traced: Some(3), ..Kinds::hits(true, returns) },
            _ => Kinds::hits(true, returns),
        }
    }
}

/// Probes in a child. Those that a tracer serves are taken out when it is dropped, which has to be before the child ends.
pub enum Armed {
    /// Ours.
    Session(Box<Session>, Calls),
    /// The kernel's.
    Kernel(Vec<Uprobe>),
}

/// Triggers that are not probed, and why.
pub type Refused = Vec<(usize, String)>;

impl Variant {
    /// Arms the triggers of a child, as far as the mechanism goes.
    ///
    /// # Errors
    /// No trigger can be probed so; why.
    pub fn arm(self, target: &Target, triggers: &[usize]) -> Result<(Armed, Refused), Error> {
        let returns = self.side == Side::Return;
        let Some(mechanism) = self.collector.ours() else {
            return self.arm_kernel(target, triggers);
        };
        let images = target.images()?;
        let mut sites = sites(target, &images, triggers, self.collector.kinds(returns))?;
        let names: Vec<(usize, String)> = triggers
            .iter()
            .copied()
            .zip(sites.sites.iter().map(|site| site.name.text().to_owned()))
            .collect();
        sites.sites.sort_by_key(|site| (site.image, site.address));
        let hold = Hold::Stop(StopOptions::default());
        let asked = Asked::of(&[mechanism]);
        let session = Session::attach(&target.process, &images, sites, asked, hold)?;
        let reason = |name: &str| {
            let skipped = session.skipped().iter().find(|skipped| skipped.function == name);
            skipped.map(|skipped| skipped.why.reason.clone())
        };
        let refused = names.iter().filter_map(|(trigger, name)| Some((*trigger, reason(name)?))).collect();
        Ok((Armed::Session(Box::new(session), Calls::default()), refused))
    }

    fn arm_kernel(self, target: &Target, triggers: &[usize]) -> Result<(Armed, Refused), Error> {
        let (mut uprobes, mut refused) = (Vec::new(), Vec::new());
        let counted = match self.side {
            Side::Entry | Side::Inside => Counted::Hits,
            Side::Return => Counted::Returns,
        };
        for &trigger in triggers {
            let address = target.triggers[trigger] + TRIGGERS[trigger].offset();
            match Uprobe::open(&target.process, address, counted) {
                Ok(uprobe) => uprobes.push(uprobe),
                Err(error) if refused.len() + 1 == triggers.len() => return Err(Error::other(error)),
                Err(error) => refused.push((trigger, error.to_string())),
            }
        }
        Ok((Armed::Kernel(uprobes), refused))
    }
}

/// By address: a stripped program has the functions, but not their names.
fn sites(
    target: &Target,
    images: &[trapless_session::target::Image],
    triggers: &[usize],
    kinds: Kinds,
) -> Result<Sites, Error> {
    let mut sites = Sites::default();
    for &trigger in triggers {
        let address = target.triggers[trigger];
        let trigger = &TRIGGERS[trigger];
        let missing = || Error::NoTrigger(trigger.label());
        let index = images.iter().position(|i| i.range.contains(&address)).ok_or_else(missing)?;
        let module = images[index].module(Some(&target.process))?;
        let address = address - images[index].bias(Some(&target.process))?;
        let function = module.functions().containing(address).ok_or_else(missing)?;
        if function.address() != address {
            return Err(missing());
        }
        let site = resolve::site(index, function, trigger.offset(), kinds);
        sites.sites.push(match trigger.probed {
            Probed::Function | Probed::Return => site,
            Probed::Inside(_) => {
                let usdt = usdt(trigger.name, target.bits);
                Site { name: usdt.site_name(), usdt: vec![usdt], ..site }
            }
        });
    }
    Ok(sites)
}

/// A USDT probe as its note would tell of it, with three operands: registers, and what 32-bit code has on the
/// stack.
fn usdt(name: &str, bits: u32) -> UsdtSite {
    let (size, operands) = if bits == 32 { (4, narrow::USDT_OPERANDS) } else { (8, USDT_OPERANDS) };
    let argument =
        |operand: &str| UsdtArgument { size, is_signed: false, is_float: false, operand: operand.to_owned() };
    UsdtSite {
        provider: "bench".to_owned(),
        name: name.to_owned(),
        semaphore: None,
        arguments: operands.map(argument).to_vec(),
        asked: Vec::new(),
    }
}

impl Armed {
    /// Makes room for [`Collector::burst`] records.
    pub fn empty(&mut self, target: &Target) {
        if let Armed::Session(session, calls) = self {
            let clock = session.clock();
            calls.take(session, Origin { pid: target.process.pid().0, clock, rate: clock.rate() });
        }
    }

    /// Takes out what a tracer serves. The numbers can still be read.
    ///
    /// # Errors
    /// The child could not be stopped or changed.
    pub fn end(&self, target: &Target) -> Result<(), Error> {
        match self {
            Armed::Session(session, _) if session.is_served() => {
                session.remove(&target.process, &StopOptions::default())?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// How many hits were counted in all.
    ///
    /// # Errors
    /// Those of reading the kernel's counters.
    pub fn hits(&self) -> Result<u64, Error> {
        match self {
            Armed::Session(session, _) => Ok(session.hits()),
            Armed::Kernel(uprobes) => {
                let hits = uprobes.iter().map(Uprobe::hits).sum::<std::io::Result<u64>>();
                hits.map_err(Error::other)
            }
        }
    }
}
