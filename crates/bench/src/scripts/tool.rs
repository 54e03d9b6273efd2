//! A tool that runs a script, as a process of its own.
//!
//! Both tools take the same words and print the same JSON lines. A tool says that its probes are attached by the line that
//! bpftrace's own tests wait for (`NOTIFY`), and ends by SIGINT, when it prints its maps.

use super::catalog::{Script, placed};
use crate::error::Error;
use serde::Serialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Set to 1, this variable asks for a line of its own name once all probes are attached.
const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";

/// How long a tool may take to arm, to print what it has, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where nobody knows how much is printed, it was all once nothing came for so long.
const QUIET: Duration = Duration::from_millis(200);

/// Which tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// This program.
    Trapless,
    /// bpftrace.
    Bpftrace,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Trapless => "trapless",
            Kind::Bpftrace => "bpftrace",
        }
    }
}

/// A tool that is installed.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Which.
    pub kind: Kind,
    /// Its file.
    program: PathBuf,
    /// What it says of its version.
    pub version: String,
    /// This program's file, whose function scripts probe.
    probed: String,
}

impl Tool {
    /// This program.
    ///
    /// # Errors
    /// Its file is gone, or has a name that cannot stand in a script.
    pub fn trapless() -> Result<Tool, Error> {
        let (program, probed) = own()?;
        let version = format!("trapless {}", env!("CARGO_PKG_VERSION"));
        Ok(Tool { kind: Kind::Trapless, program, version, probed })
    }

    /// The bpftrace that a shell would find.
    ///
    /// # Errors
    /// There is none; the reason.
    pub fn bpftrace() -> Result<Tool, String> {
        let (own, probed) = own().map_err(|error| error.to_string())?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let file = std::env::split_paths(&path).map(|directory| directory.join("bpftrace"));
        let program = file.into_iter().find(|file| file.is_file()).ok_or("it is not installed")?;
        if program.canonicalize().is_ok_and(|file| file == own) {
            return Err("the one that is installed is trapless".to_owned());
        }
        let said = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let said = said.map_err(|error| format!("{}: {error}", program.display()))?;
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        Ok(Tool { kind: Kind::Bpftrace, program, version, probed })
    }

    /// Has it run a script in a process, and waits until its probes are attached.
    ///
    /// # Errors
    /// It does not run; what it said.
    pub fn run(&self, script: &Script, pid: i32) -> Result<Running, Error> {
        let text = placed(&script.text, &self.probed);
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("BPFTRACE_") {
                command.env_remove(name);
            }
        }
        command.args(["-f", "json", "-p", &pid.to_string(), "-e", &text]).env(NOTIFY, "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let refused =
            |said: String| Error::Script { tool: self.kind.name(), script: script.name.clone(), said };
        let start = Instant::now();
        let mut child = command.spawn().map_err(|error| refused(error.to_string()))?;
        let (send, lines) = channel();
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let reader = std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            let _ = lines.map_while(Result::ok).try_for_each(|line| send.send(line));
        });
        let errors = std::thread::spawn(move || {
            let mut said = Vec::new();
            // What could be read of it.
            let _ = errors.map(|mut errors| errors.read_to_end(&mut said));
            String::from_utf8_lossy(&said).into_owned()
        });
        let kind = self.kind;
        let mut running = Running {
            child,
            kind,
            script: script.name.clone(),
            lines,
            reader,
            errors: Some(errors),
            armed: start.elapsed(),
        };
        let mut attaches = true;
        loop {
            match running.lines.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(line) if line == NOTIFY => break,
                Ok(line) => attaches &= !is_of_none(&line),
                Err(RecvTimeoutError::Timeout) => return Err(running.stuck("attached no probe")),
                Err(RecvTimeoutError::Disconnected) => return Err(refused(running.said())),
            }
        }
        if !attaches {
            running.interrupt();
            // What it prints of no probes says nothing; that it ends lets its errors be read.
            while running.lines.recv_timeout(PATIENCE).is_ok() {}
            return Err(refused(running.said()));
        }
        running.armed = start.elapsed();
        Ok(running)
    }
}

/// This program's file, and the same as it stands in scripts.
fn own() -> Result<(PathBuf, String), Error> {
    let file = std::env::current_exe().and_then(|file| file.canonicalize()).map_err(Error::other)?;
    match file.to_str() {
        Some(text) if !text.contains([':', ' ', '"', ',']) => Ok((file.clone(), text.to_owned())),
        _ => Err(Error::other(std::io::Error::other(format!(
            "{} has characters that no probe of a script may have; move it",
            Path::display(&file)
        )))),
    }
}

/// A tool whose probes are attached. It is ended when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    kind: Kind,
    script: String,
    lines: Receiver<String>,
    reader: JoinHandle<()>,
    errors: Option<JoinHandle<String>>,
    /// How long that took, from its start.
    pub armed: Duration,
}

impl Running {
    /// Takes what it has printed of `hits` hits; of nobody knows how many, what comes until it is quiet.
    ///
    /// # Errors
    /// It has ended, or does not print so much.
    pub fn take(&mut self, hits: Option<u64>) -> Result<u64, Error> {
        let mut taken = 0;
        while hits.is_none_or(|hits| taken < hits) {
            match self.lines.recv_timeout(if hits.is_some() { PATIENCE } else { QUIET }) {
                Ok(_) => taken += 1,
                Err(RecvTimeoutError::Timeout) if hits.is_none() => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.stuck("lost what was to be printed")),
                Err(RecvTimeoutError::Disconnected) => return Err(self.stuck("has ended")),
            }
        }
        Ok(taken)
    }

    /// Ends it: how many hits its maps have counted.
    ///
    /// # Errors
    /// It does not end, or what it prints is not JSON.
    pub fn end(mut self) -> Result<u64, Error> {
        self.interrupt();
        let start = Instant::now();
        let mut counted = 0;
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(line) => {
                    counted += told(&line).map_err(|why| self.stuck(&format!("prints '{line}': {why}")))?
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.stuck("does not end")),
            }
        }
        self.child.wait().map_err(Error::other)?;
        Ok(counted)
    }

    fn interrupt(&self) {
        // SAFETY: the child is ours and not yet waited for, so the number is its own. Nothing but a signal is sent.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
    }

    fn stuck(&self, what: &str) -> Error {
        let said = format!("it {what}");
        Error::Script { tool: self.kind.name(), script: self.script.clone(), said }
    }

    /// What it has said is wrong, after its end.
    fn said(&mut self) -> String {
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let wrong = said.lines().find(|line| line.contains("ERROR") || line.contains("error"));
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let said = wrong.or(last).unwrap_or("it has ended without a word");
        said.trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        self.interrupt();
        let start = Instant::now();
        while !self.reader.is_finished() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Nothing is left to say to one that has not ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a line says that no probe was attached: both tools go on without.
fn is_of_none(line: &str) -> bool {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    line["type"] == "attached_probes" && line["data"]["probes"] == 0
}

/// How many hits a line tells of: the numbers of maps, and in histograms the counts of their rows.
fn told(line: &str) -> Result<u64, serde_json::Error> {
    if line.is_empty() {
        return Ok(0);
    }
    let line: Value = serde_json::from_str(line)?;
    let kind = line.get("type").and_then(Value::as_str).unwrap_or_default();
    let is_of_maps = ["map", "hist"].contains(&kind);
    Ok(line.get("data").filter(|_| is_of_maps).map_or(0, sum))
}

fn sum(value: &Value) -> u64 {
    match value {
        Value::Number(number) => number.as_u64().unwrap_or(0),
        Value::Array(rows) => rows.iter().map(sum).sum(),
        Value::Object(fields) => match fields.get("count") {
            Some(count) if fields.contains_key("min") || fields.contains_key("max") => sum(count),
            _ => fields.values().map(sum).sum(),
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_histograms_tell_of_their_hits() {
        for (line, hits) in [
            (r#"{"type": "map", "data": {"@": 17}}"#, 17),
            (r#"{"type": "map", "data": {"@": {"1": 4, "2": 5}}}"#, 9),
            (
                r#"{"type": "hist", "data": {"@ns": [{"min": 8, "max": 15, "count": 3}, {"max": 7, "count": 2}]}}"#,
                5,
            ),
            (r#"{"type": "map", "data": {"@start": {}}}"#, 0),
            (r#"{"type": "attached_probes", "data": {"probes": 1}}"#, 0),
            ("", 0),
        ] {
            assert_eq!(told(line).unwrap(), hits, "{line}");
        }
        assert!(told("lost").is_err());
        assert!(is_of_none(r#"{"type": "attached_probes", "data": {"probes": 0}}"#));
        assert!(!is_of_none(r#"{"type": "attached_probes", "data": {"probes": 2}}"#) && !is_of_none("text"));
    }
}
