//! The scripts that are measured, and what each may cost.

use super::called;

/// What stands for the benchmark's program in a script's text.
pub const FILE: &str = ":bench:";

/// The function that is probed, as scripts call it, and as this program has it.
const FUNCTION: (&str, &str) = (":bench:called", ":trapless_bench_called");

/// A script.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// What it is called.
    pub name: String,
    /// Its text. The file of its probes is `bench`, their function `called`.
    pub text: String,
    /// What a hit may cost, in nanoseconds; `None` where nobody has said.
    pub budget_ns: Option<f64>,
    /// What it tells of its hits.
    pub tells: Tells,
}

/// What a script tells of its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Its maps count all of them.
    All,
    /// Its maps count those with the first key.
    FirstKeys,
    /// It prints a line for each.
    Lines,
    /// Whatever its author pleases, in lines at hits.
    Something,
    /// The same, in maps alone.
    SomethingAtTheEnd,
}

impl Tells {
    /// Whether something is printed at hits.
    pub fn is_at_hits(self) -> bool {
        matches!(self, Tells::Lines | Tells::Something)
    }

    /// How many hits a tool must have told of once so many calls were made in a row; `None` where nobody knows.
    pub fn of(self, calls: u64) -> Option<u64> {
        match self {
            Tells::All | Tells::Lines => Some(calls),
            Tells::FirstKeys => Some(called::calls_of_first_key(calls)),
            Tells::Something | Tells::SomethingAtTheEnd => None,
        }
    }
}

/// How long a tool may take from its start to armed, with one probe, in milliseconds.
pub const ARMED_BUDGET_MS: f64 = 60.0;

/// What the row of that is called.
pub const ARMED: &str = "armed";

/// The script by which that is measured. Its file is one that everybody has; that of the benchmark is larger than most.
pub const ARMED_SCRIPT: &str = "uprobe:libc:malloc { @ = count(); }";

/// All that have budgets. The filter lets one key in 4,096 pass, so that it can be told from a probe that is not there.
pub fn scripts() -> Vec<Script> {
    use Tells::{All, FirstKeys, Lines};
    let entry = |name: &str, budget_ns: f64, tells: Tells, what: &str| Script {
        name: name.to_owned(),
        text: format!("uprobe:bench:called {what}"),
        budget_ns: Some(budget_ns),
        tells,
    };
    vec![
        entry("filter", 2.5, FirstKeys, "/arg0 == 0/ { @ = count(); }"),
        entry("count", 1.5, All, "{ @ = count(); }"),
        entry("hist", 6.0, All, "{ @ = hist(arg0); }"),
        entry("keyed", 12.0, All, "{ @[arg0] = count(); }"),
        entry("tid", 8.0, All, "{ @[tid] = count(); }"),
        entry(
            "delta",
            40.0,
            All,
            "{ @start[tid] = nsecs; } uretprobe:bench:called /@start[tid]/ \
             { @ns = hist(nsecs - @start[tid]); delete(@start, tid); }",
        ),
        entry("printf", 30.0, Lines, r#"{ printf("%d %d %d\n", arg0, arg2, arg0 + 1); }"#),
        entry("str", 400.0, All, "{ @[str(arg1)] = count(); }"),
        entry("ustack", 500.0, All, "{ @[ustack(20)] = count(); }"),
    ]
}

/// A script that somebody has typed.
pub fn typed(text: &str) -> Script {
    let prints = ["print", "cat(", "join(", "time("].iter().any(|name| text.contains(name));
    let tells = if prints { Tells::Something } else { Tells::SomethingAtTheEnd };
    Script { name: "typed".to_owned(), text: text.to_owned(), budget_ns: None, tells }
}

/// The text as a tool gets it that probes the program in this file.
pub fn placed(text: &str, program: &str) -> String {
    text.replace(FUNCTION.0, &format!("{FILE}{}", &FUNCTION.1[1..])).replace(FILE, &format!(":{program}:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_the_program_where_they_name_the_bench() {
        let text = "uprobe:bench:called, uretprobe:bench:called { print(1); }";
        let placed = placed(text, "/bin/a");
        assert_eq!(
            placed,
            "uprobe:/bin/a:trapless_bench_called, uretprobe:/bin/a:trapless_bench_called { print(1); }"
        );
        assert_eq!(typed(text).tells, Tells::Something);
        assert_eq!(typed("uprobe:bench:called { @ = sum(arg2); }").tells, Tells::SomethingAtTheEnd);
    }

    #[test]
    fn every_script_has_a_name_of_its_own_and_a_budget() {
        let scripts = scripts();
        let names: std::collections::BTreeSet<&str> = scripts.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names.len(), scripts.len());
        assert!(!names.contains(ARMED));
        assert!(scripts.iter().all(|script| script.budget_ns.is_some() && script.tells.of(1).is_some()));
    }
}
