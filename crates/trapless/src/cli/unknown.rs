//! What to say of options that people know from bpftrace, bcc, perf, strace, uftrace and frida-trace.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const STACKS: &str = "call stacks are had by count --stack, or --by 'ustack(5)', and by trace --stack";
const FILTER: &str =
    "hits are filtered by --where EXPR, such as --where 'arg0 > 100', and calls by --slower TIME";
const THREADS: &str = "threads are chosen by --tid TID, and told apart by --by tid";
const FOLLOW: &str = "count, latency and trace probe children and the programs that they run with --follow";
const SCRIPT: &str =
    "a script is run without a command: trapless -e 'PROGRAM' -p PID, or trapless FILE -p PID";
const GROUP: &str = "count, latency and hist group by any value: --by 'arg0'";
const SAMPLE: &str = "every call is counted, since that costs nanoseconds; --sample 1/100 takes fewer, and trace --rate 1000/s shows fewer";
const PROCESSES: &str = "count, latency and trace choose processes by -p PID, -n NAME, --user and --cgroup";
const TIMES: &str = "every line of a trace has its time, and times choose their unit themselves; -i shows results every so often";
const ARGUMENTS: &str =
    "arguments are shown by trace --args N, or by name and type with --arg NAME, return values by --return";
const NAMES: &str = "functions are named without an option, as MODULE:FUNCTION";

/// Options of other tools, and the way here.
const KNOWN: [(&[&str], &str); 16] = [
    (&["-e", "--eval", "--script"], SCRIPT),
    (&["-T", "--timestamp", "--time", "-u", "-m", "--microseconds", "--milliseconds"], TIMES),
    (&["-U", "-K", "-s", "-k", "-g", "-b", "--stacks", "--ustack", "--backtrace", "--call-graph"], STACKS),
    (&["--filter", "--if", "--min"], FILTER),
    (&["-L", "-t", "--thread", "--per-thread"], THREADS),
    (&["--key", "--group", "--group-by"], GROUP),
    (&["--follow-fork", "--follow-forks", "--children", "--fork"], FOLLOW),
    (&["--every", "--max-rate", "--freq", "--frequency"], SAMPLE),
    (&["-C", "--comm", "-G", "--uid", "--exec-name", "--process-name"], PROCESSES),
    (&["-A", "-R", "--argument", "--arguments", "--retval", "--auto-args"], ARGUMENTS),
    (&["-P", "-I", "--patch", "--include", "--probe", "--func", "--function", "--add"], NAMES),
    (&["-X"], "functions are left out with -x PATTERN"),
    (&["-l", "--list"], "trapless list shows what can be probed"),
    (&["-c", "--cmd", "--command", "--spawn"], "a command is launched by writing it last: -- COMMAND"),
    (&["-j", "-J", "--json", "--csv"], "machines read -f json"),
    (&["-w", "--wait", "-E", "-D", "--depth", "--max-depth"], "trapless --help shows what there is"),
];

/// The message for an option that does not exist, or `None` for other errors.
pub fn message(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let option = text(ContextKind::InvalidArg)?;
    // `--filter=x` is told of as `--filter`.
    let name = option.split('=').next().unwrap_or(option);
    let known = KNOWN.iter().find(|(names, _)| names.contains(&name)).map(|(_, way)| *way);
    let way = match (known, text(ContextKind::SuggestedArg)) {
        (Some(way), _) => way.to_owned(),
        (None, Some(near)) => format!("did you mean {near}?"),
        (None, None) => "--help lists those there are".to_owned(),
    };
    Some(format!("no option '{option}'; {way}"))
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;
    use clap::Parser;

    fn of(line: &str) -> String {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        message(&error).unwrap_or_else(|| panic!("{line}: {error}"))
    }

    #[test]
    fn options_of_other_tools_say_where_to_go() {
        for (line, way) in [
            ("trapless count -e x", "no option '-e'; a script is run without a command: trapless -e"),
            ("trapless count -T m:f", "every line of a trace has its time"),
            ("trapless trace -U m:f", "count --stack"),
            ("trapless trace --backtrace m:f", "count --stack"),
            ("trapless trace --filter arg0>1 m:f", "--where 'arg0 > 100'"),
            ("trapless trace --filter=x m:f", "no option '--filter'"),
            ("trapless trace -L 3 m:f", "--tid TID"),
            ("trapless count --key arg0 m:f", "--by 'arg0'"),
            ("trapless count --every 100 m:f", "--sample 1/100"),
            ("trapless count --follow-forks m:f", "with --follow"),
            ("trapless count --children m:f", "with --follow"),
            ("trapless count --json m:f", "-f json"),
            ("trapless count --duratoin 3 m:f", "did you mean --duration?"),
            ("trapless count --zzzzzz m:f", "--help"),
        ] {
            let text = of(line);
            assert!(text.contains(way) && text.lines().count() == 1, "{line}: {text}");
        }
    }

    #[test]
    fn no_option_that_exists_is_called_unknown() {
        let mut cli = <Cli as clap::CommandFactory>::command();
        cli.build();
        for verb in ["count", "latency", "trace"] {
            let verb = cli.find_subcommand(verb).unwrap();
            for argument in verb.get_arguments() {
                let long = argument.get_long().map(|name| format!("--{name}"));
                let short = argument.get_short().map(|letter| format!("-{letter}"));
                for name in long.into_iter().chain(short) {
                    let known = KNOWN.iter().find(|(names, _)| names.contains(&name.as_str()));
                    assert!(known.is_none(), "{name} of {verb}");
                }
            }
        }
    }

    #[test]
    fn other_errors_are_left_to_clap() {
        let error = Cli::try_parse_from(["trapless", "count", "-d", "x"]).unwrap_err();
        assert_eq!(message(&error), None);
    }
}
