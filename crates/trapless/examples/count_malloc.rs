//! Counts the calls of `malloc` in a running program: attach, count, remove.
//!
//! ```text
//! cargo run --example count_malloc
//! ```
//!
//! The program is a shell that this one starts. It is asked for some work while the probe is in, and once more when it is out.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Makes the shell allocate: the variable grows, so it moves from block to block.
const WORK: &str = "x=; i=0; while [ $i -lt 500 ]; do x=$x.$i; i=$((i+1)); done; echo ${#x}\n";

fn main() -> Result<(), Box<dyn Error>> {
    let mut shell = Command::new("sh").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = shell.stdin.take().ok_or("no input")?;
    let mut output = BufReader::new(shell.stdout.take().ok_or("no output")?);
    let mut work = || -> std::io::Result<String> {
        input.write_all(WORK.as_bytes())?;
        let mut line = String::new();
        output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    };
    // It is ready when it has answered: before, its libraries may not be there.
    let unprobed = work()?;

    let session = trapless::attach(shell.id())?.count("libc.so*:malloc")?.arm()?;
    let probed = work()?;
    let hits = session.hits();
    let summary = session.remove()?;
    let after = work()?;

    println!("{hits} calls of malloc; the shell stood still for {:?}", summary.stopped);
    println!("it says {unprobed} without the probe, {probed} with it, {after} after it");
    // Without input it ends.
    drop(input);
    shell.wait()?;
    Ok(())
}
