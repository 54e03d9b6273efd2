//! What is printed of `test` and `bench` probes.

use super::json;
use super::value::Value;
use super::{Layout, Printer, Streams};
use std::io;

/// One test that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tested {
    /// Its name.
    pub name: String,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took, in nanoseconds.
    pub duration: u64,
    /// What it printed. It is shown if it did not pass.
    pub printed: Vec<u8>,
}

/// One benchmark that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// Its name.
    pub name: String,
    /// Nanoseconds of a run, on average.
    pub average: u64,
    /// How many runs there were.
    pub runs: u64,
}

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

impl Printer {
    /// Prints that so many tests begin.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn tests_begin(&mut self, count: usize, streams: &mut Streams<'_>) -> io::Result<()> {
        match self.options.layout {
            Layout::Text if count > 0 => {
                writeln!(streams.out, "{GREEN}[==========]{PLAIN} Running {count} tests.")
            }
            _ => Ok(()),
        }
    }

    /// Prints what came of a test.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn tested(&mut self, test: &Tested, streams: &mut Streams<'_>) -> io::Result<()> {
        let Tested { name, passed, duration, printed } = test;
        let mut out = Vec::new();
        match self.options.layout {
            Layout::Json => {
                let result = Value::Record(vec![
                    ("duration".into(), Value::Unsigned(*duration)),
                    ("passed".into(), Value::Bool(*passed)),
                    ("output".into(), Value::Text(printed.clone())),
                ]);
                named("test_result", name, &result, &mut out);
            }
            Layout::Text => {
                out.extend(format!("{GREEN}[ RUN      ]{PLAIN} {name}\n").bytes());
                if !passed {
                    for line in printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                        out.extend(line);
                        out.push(b'\n');
                    }
                }
                let result = match passed {
                    true => format!("{GREEN}[       OK ]{PLAIN}"),
                    false => format!("{RED}[  FAILED  ]{PLAIN}"),
                };
                out.extend(format!("{result} {name} ({})\n", duration_text(*duration)).bytes());
            }
        }
        streams.out.write_all(&out)
    }

    /// Prints what came of all tests.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn tests_end(&mut self, tests: &[Tested], streams: &mut Streams<'_>) -> io::Result<()> {
        if self.options.layout == Layout::Json || tests.is_empty() {
            return Ok(());
        }
        let tests_of = |count: usize| format!("{count} {}", if count == 1 { "test" } else { "tests" });
        let failed: Vec<&Tested> = tests.iter().filter(|test| !test.passed).collect();
        let passed = tests_of(tests.len() - failed.len());
        writeln!(streams.out, "{GREEN}[==========]{PLAIN} {} ran.", tests_of(tests.len()))?;
        writeln!(streams.out, "{GREEN}[  PASSED  ]{PLAIN} {passed}.")?;
        if failed.is_empty() {
            return Ok(());
        }
        writeln!(streams.out, "{RED}[  FAILED  ]{PLAIN} {}, listed below:", tests_of(failed.len()))?;
        failed.iter().try_for_each(|test| writeln!(streams.out, "{RED}[  FAILED  ]{PLAIN} {}", test.name))
    }

    /// Prints what came of all benchmarks.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn benchmarks(&mut self, benchmarks: &[Benchmark], streams: &mut Streams<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        let names = benchmarks.iter().map(|benchmark| benchmark.name.len());
        let width = names.max().unwrap_or(0).max(40) + 1;
        if self.options.layout == Layout::Text && !benchmarks.is_empty() {
            out.extend(format!("{:width$}{:15}Iterations\n", "Benchmark", "Time(ns)").bytes());
            out.extend(format!("{}\n", "-".repeat(width + 15 + "Iterations".len())).bytes());
        }
        for Benchmark { name, average, runs } in benchmarks {
            match self.options.layout {
                Layout::Text => out.extend(format!("{name:width$}{average:<15}{runs}\n").bytes()),
                Layout::Json => {
                    let result = Value::Record(vec![
                        ("average".into(), Value::Unsigned(*average)),
                        ("iters".into(), Value::Unsigned(*runs)),
                    ]);
                    named("benchmark_result", name, &result, &mut out);
                }
            }
        }
        streams.out.write_all(&out)
    }
}

/// Writes `{"type": kind, "data": {name: value}}`.
fn named(kind: &str, name: &str, value: &Value, out: &mut Vec<u8>) {
    out.extend(format!(r#"{{"type": "{kind}", "data": {{"#).bytes());
    json::write_string(name.as_bytes(), out);
    out.extend(b": ");
    json::write_value(value, out);
    out.extend(b"}}\n");
}

fn duration_text(nanoseconds: u64) -> String {
    match nanoseconds {
        1_000_000_000.. => format!("{} s", nanoseconds / 1_000_000_000),
        1_000_000.. => format!("{} ms", nanoseconds / 1_000_000),
        1000.. => format!("{} μs", nanoseconds / 1000),
        _ => format!("{nanoseconds} ns"),
    }
}
