//! `inject`: what is done to calls, and to which.
//!
//! [`InjectFlags`] says literally what is typed; [`Injection`] is what the program works with.

use super::flags::{FollowFlags, OutputFlags, ProbeFlags, RiskFlags, RunFlags, TableFlags, TargetFlags};
use super::quick::{FilterFlags, expressions};
use super::values::nanoseconds;
use crate::error::Error;
use clap::Args;
use std::str::FromStr;
use trapless_script::check::{error_number, signals};
use trapless_script::ir::MOST_DELAY;

/// Flags of `inject`.
#[derive(Args, Debug)]
pub struct InjectFlags {
    /// Probes.
    #[command(flatten)]
    pub probes: ProbeFlags,
    /// Target.
    #[command(flatten)]
    pub target: TargetFlags,
    /// Children.
    #[command(flatten)]
    pub follow: FollowFlags,
    /// What is done.
    #[command(flatten)]
    pub deeds: DeedFlags,
    /// Which calls.
    #[command(flatten)]
    pub filter: FilterFlags,
    /// Risks.
    #[command(flatten)]
    pub risk: RiskFlags,
    /// Run.
    #[command(flatten)]
    pub run: RunFlags,
    /// Output.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Table.
    #[command(flatten)]
    pub table: TableFlags,
}

/// What is done to calls, and how often.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Injection")]
pub struct DeedFlags {
    /// Skip the call: the caller gets this, an expression such as 0, -1 or arg1, and the function does not run
    #[arg(long = "return", value_name = "EXPR", allow_negative_numbers = true, conflicts_with_all = ["result", "sets"])]
    pub returns: Option<String>,

    /// Skip the call of a function that returns nothing
    #[arg(long, conflicts_with_all = ["returns", "result", "sets"])]
    pub skip: bool,

    /// Let the function run, and give the caller this for its result, such as -1 or 'retval / 2'
    #[arg(long, value_name = "EXPR", allow_negative_numbers = true, conflicts_with = "sets")]
    pub result: Option<String>,

    /// Set errno, with --return, --skip or --result: a name such as ENOMEM, or a number
    #[arg(long, value_name = "ERROR", value_parser = errno, conflicts_with = "sets")]
    pub errno: Option<i64>,

    /// Give the function another argument, such as arg1=4096 or 'arg1=arg1 * 2'. May be given several times
    #[arg(long = "set", value_name = "argN=EXPR", allow_hyphen_values = true)]
    pub sets: Vec<Setting>,

    /// Send the process a signal, such as TERM or 10
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub signal: Option<i64>,

    /// Have the calling thread sleep ahead of the function, or with --result behind it: 100us, 50ms, up to 60s
    #[arg(long, value_name = "TIME", value_parser = delay)]
    pub delay: Option<u64>,

    /// Do it to each Nth of the calls that are meant, in each process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub every: u64,

    /// Do it to calls at random, with this probability: 0.001 or 0.1%
    #[arg(long, value_name = "P")]
    pub probability: Option<Probability>,

    /// End once it was done N times. No further call is changed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "max_events")]
    pub count: Option<u64>,

    /// Change nothing: count the calls that it would be done to
    #[arg(long)]
    pub dry_run: bool,
}

/// An argument that is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its number.
    pub argument: u8,
    /// The expression.
    pub to: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, to)| {
            let number = name.trim().strip_prefix("arg")?;
            let is_plain = number == "0" || !number.starts_with(['0', '+']);
            Some((number.parse().ok().filter(|_| is_plain)?, to.trim()))
        });
        match parts {
            Some((argument, to)) if !to.is_empty() && !to.starts_with('=') => {
                Ok(Self { argument, to: to.to_owned() })
            }
            _ => Err("write an argument as arg1=4096".to_owned()),
        }
    }
}

/// How likely something is: so many of 2^32 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probability(pub u64);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, of) = match text.trim().strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text.trim(), 1.0),
        };
        let share = number.trim().parse::<f64>().map(|number| number / of);
        let times = share.map(|share| (share, (share * 4_294_967_296.0).round()));
        match times {
            Ok((share, times)) if share <= 1.0 && times >= 1.0 => Ok(Self(times as u64)),
            _ => Err("write a probability above 0, up to 1, such as 0.001 or 0.1%".to_owned()),
        }
    }
}

fn errno(text: &str) -> Result<i64, String> {
    let number = error_number(text).or_else(|| text.parse().ok());
    let number = number.filter(|number| (1..=4095).contains(number));
    number.ok_or_else(|| "write an error by its name, such as ENOMEM, or its number".to_owned())
}

fn signal(text: &str) -> Result<i64, String> {
    let number = signals::number(text).or_else(|| text.parse().ok());
    let number = number.filter(|number| (1..=64).contains(number));
    number.ok_or_else(|| "write a signal by its name, such as TERM, or its number".to_owned())
}

fn delay(text: &str) -> Result<u64, String> {
    match nanoseconds(text)? {
        short if short < 1000 => Err("the shortest delay is 1us".to_owned()),
        long if long > MOST_DELAY => Err("the longest delay is 60s".to_owned()),
        time => Ok(time),
    }
}

/// What is done to calls, and to how many of those that are meant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injection {
    /// When it is done.
    pub at: Moment,
    /// Whether it is skipped, and returns nothing.
    pub skips: bool,
    /// What the caller gets.
    pub result: Option<String>,
    /// What `errno` is.
    pub errno: Option<i64>,
    /// The arguments that are set.
    pub sets: Vec<Setting>,
    /// The signal that is sent.
    pub signal: Option<i64>,
    /// For how many nanoseconds the thread sleeps.
    pub delay: Option<u64>,
    /// It is done to each of so many.
    pub every: u64,
    /// To so many of 2^32, at random.
    pub probability: Option<u64>,
    /// Whether nothing is done.
    pub is_dry: bool,
}

/// When something is done to a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// Ahead of the function.
    #[default]
    Entry,
    /// When it has returned.
    Return,
}

impl TryFrom<&DeedFlags> for Injection {
    type Error = Error;

    fn try_from(flags: &DeedFlags) -> Result<Self, Error> {
        let ends = flags.returns.is_some() || flags.result.is_some() || flags.skip;
        if !ends && flags.sets.is_empty() && flags.signal.is_none() && flags.delay.is_none() {
            let text = "inject needs to know what to do to calls: --return, --skip, --result, --set, --signal or --delay";
            return Err(Error::Usage(text.to_owned()));
        }
        if flags.errno.is_some() && !ends {
            let text =
                "--errno says why a call has failed: give --return or --result, too, such as --return -1";
            return Err(Error::Usage(text.to_owned()));
        }
        let twice = |(index, set): (usize, &Setting)| {
            flags.sets[..index].iter().any(|one| one.argument == set.argument)
        };
        if let Some(set) = flags.sets.iter().enumerate().find(|set| twice(*set)).map(|(_, set)| set) {
            return Err(Error::Usage(format!("--set: arg{} is set twice", set.argument)));
        }
        expressions("--return", flags.returns.as_slice())?;
        expressions("--result", flags.result.as_slice())?;
        Ok(Self {
            at: if flags.result.is_some() { Moment::Return } else { Moment::Entry },
            skips: flags.skip,
            result: flags.returns.clone().or_else(|| flags.result.clone()),
            errno: flags.errno,
            sets: flags.sets.clone(),
            signal: flags.signal,
            delay: flags.delay,
            every: flags.every,
            probability: flags.probability.map(|Probability(times)| times).filter(|times| *times < 1 << 32),
            is_dry: flags.dry_run,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read() {
        assert_eq!("arg1=4096".parse(), Ok(Setting { argument: 1, to: "4096".to_owned() }));
        assert_eq!("arg0 = arg0 == 1".parse(), Ok(Setting { argument: 0, to: "arg0 == 1".to_owned() }));
        for wrong in
            ["arg256=1", "arg+6=1", "arg=1", "arg1", "arg1=", "arg1==2", "arg01=2", "size=1", "1=2", ""]
        {
            assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
        }
        assert_eq!("0.5".parse(), Ok(Probability(1 << 31)));
        assert_eq!("25%".parse(), Ok(Probability(1 << 30)));
        assert_eq!("1".parse(), Ok(Probability(1 << 32)));
        for wrong in ["0", "-0.1", "1.5", "101%", "1e-20", "NaN", "inf", "x", "", "%"] {
            assert!(wrong.parse::<Probability>().is_err(), "{wrong}");
        }
        assert_eq!([errno("ENOMEM"), errno("5")], [Ok(12), Ok(5)]);
        assert_eq!([signal("TERM"), signal("SIGUSR1"), signal("9")], [Ok(15), Ok(10), Ok(9)]);
        assert_eq!([delay("1us"), delay("1.5s"), delay("60s")], [1000, 1_500_000_000, MOST_DELAY].map(Ok));
        for wrong in ["999ns", "61s", "0s", "-1s", "5", "1h", ""] {
            assert!(delay(wrong).is_err(), "{wrong}");
        }
        assert!(
            errno("NOMEM").is_err() && errno("0").is_err() && signal("65").is_err() && signal("X").is_err()
        );
    }
}
