//! What probes in one's own process cost, above the bare call, and how long it takes to put one in.
//!
//! ```text
//! cargo run --release -p trapless-inside --features script --example costs [COMMAND]
//! ```
//!
//! With the path of the command `trapless`, scripts are armed by that in this process, too, and told beside.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn subject(a: u64) -> u64 {
    black_box(a) + 1
}

#[inline(never)]
extern "C" fn other(a: u64) -> u64 {
    black_box(a) + 2
}

/// Nanoseconds of a call: the best of some rounds.
fn call() -> f64 {
    const CALLS: u64 = 2_000_000;
    let function = black_box(subject as extern "C" fn(u64) -> u64);
    let rounds = (0..7).map(|_| {
        let start = Instant::now();
        (0..CALLS).for_each(|n| _ = black_box(function(n)));
        start.elapsed().as_nanos() as f64 / CALLS as f64
    });
    rounds.fold(f64::MAX, f64::min)
}

/// Nanoseconds of two reads of the processor's clock, which whoever times a call cannot do without: the best of some rounds.
fn clock() -> f64 {
    const READS: u64 = 2_000_000;
    let rounds = (0..7).map(|_| {
        let start = Instant::now();
        (0..READS).for_each(|_| _ = black_box(trapless_process::ticks()));
        2.0 * start.elapsed().as_nanos() as f64 / READS as f64
    });
    rounds.fold(f64::MAX, f64::min)
}

#[cfg(feature = "script")]
const SCRIPTS: [&str; 6] = [
    "uprobe:subject { @ = count(); }",
    "uprobe:subject { @[arg0] = count(); }",
    "uprobe:subject { @[arg0 & 63] = count(); }",
    "uprobe:subject { @ = hist(arg0); }",
    "uretprobe:subject { @ = count(); }",
    "uretprobe:subject { @ = hist(retval); }",
];

/// What the hits of scripts cost that a command has armed in this process, where one is given.
#[cfg(feature = "script")]
fn scripts_from_outside(bare: f64) -> Result<Vec<f64>, Box<dyn Error>> {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let Some(command) = std::env::args().nth(1) else { return Ok(Vec::new()) };
    let mut costs = Vec::new();
    for text in SCRIPTS {
        let mut outside = Command::new(&command);
        outside.args(["-p", &std::process::id().to_string(), "-e", text]).stdout(Stdio::null());
        outside.stderr(Stdio::piped());
        let mut outside = outside.spawn()?;
        let mut lines = BufReader::new(outside.stderr.take().ok_or("no output")?);
        // It says that all is attached.
        lines.read_line(&mut String::new())?;
        costs.push(call() - bare);
        Command::new("kill").args(["-INT", &outside.id().to_string()]).status()?;
        std::io::copy(&mut lines, &mut std::io::sink())?;
        outside.wait()?;
    }
    Ok(costs)
}

/// What the hits of scripts cost, and how long it takes to put one in and out, the first time and again.
#[cfg(feature = "script")]
fn scripts(inside: trapless_inside::Inside, bare: f64, outside: &[f64]) -> Result<(), Box<dyn Error>> {
    for (number, text) in SCRIPTS.into_iter().enumerate() {
        let options = || trapless_inside::ScriptOptions::default().output(std::io::sink());
        let start = Instant::now();
        let script = inside.script_with(text, options())?;
        let within = start.elapsed();
        let from_outside =
            outside.get(number).map_or(String::new(), |cost| format!(", from outside {cost:+.2} ns"));
        println!("{text:44} {:+6.2} ns{from_outside}; in within {within:.1?}", call() - bare);
        script.stop()?;
        const ROUNDS: u32 = 100;
        let start = Instant::now();
        (0..ROUNDS).try_for_each(|_| inside.script_with(text, options()).map(drop))?;
        println!("{:44} in and out again {:.1?}", "", start.elapsed() / ROUNDS);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (inside, function) = (trapless_inside::inside()?, subject as *const ());
    let bare = call();
    println!("a bare call           {bare:6.2} ns");
    #[cfg(feature = "script")]
    let outside = scripts_from_outside(bare)?;
    let count = inside.count_function(function)?;
    println!("counted               {:+6.2} ns", call() - bare);
    drop(count);
    let latency = inside.latency_function(function)?;
    println!("timed                 {:+6.2} ns", call() - bare);
    drop(latency);
    println!("two reads of the clock {:5.2} ns", clock());
    let probe = inside.on_function(function, |_| {})?;
    println!("an empty handler      {:+6.2} ns", call() - bare);
    drop(probe);
    let probe = inside.on_function(function, |call| {
        COUNT.store(COUNT.load(Ordering::Relaxed) + call.arg::<u64>(0), Ordering::Relaxed);
    })?;
    println!("one that sums up      {:+6.2} ns", call() - bare);
    drop(probe);
    let probe = inside.around_function(function, |_| (), |_, ()| {})?;
    println!("at both ends          {:+6.2} ns", call() - bare);
    drop(probe);
    #[cfg(feature = "script")]
    scripts(inside, bare, &outside)?;
    // SAFETY: both are alike.
    let replacement = unsafe { inside.replace(function, other as *const ()) }?;
    println!("another function      {:+6.2} ns", call() - bare);
    drop(replacement);
    println!("taken out             {:+6.2} ns", call() - bare);

    for round in ["the C library's", "the same again"] {
        let start = Instant::now();
        let all = inside.on("libc.so*:*", |_| {})?;
        let (functions, within) = (all.functions(), start.elapsed());
        let start = Instant::now();
        drop(all);
        println!(
            "{round}: {functions} functions in within {within:.1?}, and out within {:.1?}",
            start.elapsed()
        );
    }

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    black_box(subject(1));
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
        }
        const ROUNDS: u32 = 200;
        let start = Instant::now();
        let all = (0..ROUNDS).try_for_each(|_| inside.on_function(function, |_| {}).map(drop));
        println!("in and out, 8 threads {:6.0} µs", start.elapsed().as_micros() as f64 / f64::from(ROUNDS));
        stop.store(true, Ordering::Relaxed);
        all
    })?;
    Ok(())
}
