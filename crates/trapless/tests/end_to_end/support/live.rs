//! Scripts that run in a process until the test ends them, and what they have told.

use super::Target;
use super::tool::{Tool, trapless};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A script that runs in a process.
pub struct Live {
    pub tool: Tool,
    errors: PathBuf,
    _dir: tempfile::TempDir,
}

impl Live {
    /// Runs `script` in `target`, armed.
    #[track_caller]
    pub fn run(target: &Target, script: &str) -> Live {
        Live::run_with(&["-p", &target.pid().to_string()], script)
    }

    #[track_caller]
    pub fn run_with(arguments: &[&str], script: &str) -> Live {
        let dir = tempfile::tempdir().unwrap();
        let errors = dir.path().join("errors");
        // Behind definitions, which come first.
        let script = format!("{script} begin {{ printf(\"armed\\n\"); }}");
        let mut tool = Tool::armed_to(&mut trapless(&[&["-e", &script][..], arguments].concat()), &errors);
        let line = tool.line();
        let live = Live { tool, errors, _dir: dir };
        assert_eq!(line, "armed", "{script}: {}", live.errors());
        live
    }

    pub fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Ends it as Ctrl-C would: what it has printed since it was armed, and what it said beside.
    #[track_caller]
    pub fn end(self) -> Told {
        self.tool.signal(libc::SIGINT);
        self.ended()
    }

    /// Waits for its own end.
    #[track_caller]
    pub fn ended(self) -> Told {
        let ran = self.tool.ran();
        let err = std::fs::read_to_string(&self.errors).unwrap();
        eprint!("{err}");
        assert_eq!(ran.code, Some(0), "{ran:?} {err}");
        Told { out: ran.out, err }
    }
}

const MEMORY_STAYS: &str = "trapless: all probes are out, but their memory stays in the target";

/// The lines that a script has written on standard error, but for those that say nothing of its numbers.
pub fn left_out(err: &str) -> Vec<&str> {
    let others = [
        "Attached ",
        "trapless: reading symbols",
        MEMORY_STAYS,
        "trapless: unmapped now is memory",
        // Where children that share the memory are not told from their parent, a static program's own clone may make some.
        #[cfg(not(target_arch = "x86_64"))]
        "trapless: clone was called ",
    ];
    let says = |line: &&str| !line.is_empty() && !others.iter().any(|other| line.starts_with(other));
    err.lines().filter(says).collect()
}

/// What a script has told.
#[derive(Debug)]
pub struct Told {
    pub out: String,
    pub err: String,
}

impl Told {
    /// Whether something led into memory of ours yet, so that it stays until somebody looks again.
    pub fn memory_stays(&self) -> bool {
        self.err.lines().any(|line| line.starts_with(MEMORY_STAYS))
    }

    /// The value of a map's key, or of the map: `@name`, `@name[key]`.
    #[track_caller]
    pub fn value(&self, name: &str) -> i64 {
        let found = self.out.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("no {name}: {self:?}")).parse().unwrap()
    }

    /// All of a map with numbers for keys.
    pub fn numbers(&self, map: &str) -> BTreeMap<i64, i64> {
        let entry = |line: &str| {
            let (key, value) = line.strip_prefix(map)?.strip_prefix('[')?.split_once("]: ")?;
            Some((key.parse().ok()?, value.parse().ok()?))
        };
        self.out.lines().filter_map(entry).collect()
    }

    /// How many a map's histogram has in each of its rows.
    pub fn histogram(&self, map: &str) -> BTreeMap<String, i64> {
        let lines = self.out.lines().skip_while(|line| *line != format!("{map}:")).skip(1);
        let row = |line: &str| {
            let end = line.find([')', ']'])? + 1;
            let (label, rest) = line.split_at(end);
            Some((label.to_owned(), rest.split_whitespace().next()?.parse().ok()?))
        };
        lines.map_while(|line| line.starts_with(['[', '(']).then(|| row(line))?).collect()
    }

    /// Messages that it said were lost.
    pub fn lost(&self) -> u64 {
        let number = |line: &str| line.strip_prefix("Lost ")?.strip_suffix(" events")?.parse::<u64>().ok();
        self.err.lines().filter_map(number).sum::<u64>()
    }

    /// Hits that it said found no scratch.
    pub fn unrun(&self) -> u64 {
        let number = |line: &str| {
            let (number, _) = line.strip_prefix("trapless: ")?.split_once(" hits did not run their probe")?;
            number.parse::<u64>().ok()
        };
        self.err.lines().filter_map(number).sum()
    }

    /// Fails where anything is said to be left out.
    #[track_caller]
    pub fn assert_whole(&self) {
        assert_eq!(left_out(&self.err), Vec::<&str>::new());
    }
}

/// Has the target do something, and fails where it finds anything wrong.
#[track_caller]
pub fn does(target: &mut Target, deed: &str) {
    target.tell(deed);
    assert_eq!(target.line(), "done 0", "{deed}");
}
