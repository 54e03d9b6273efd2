//! Whole reports, as they appear.

use super::*;
use crate::spec::Kind;
use std::io::Write;
use std::sync::Arc;
use trapless_session::name::SiteName;

/// A row of a probe by a jump.
pub(super) fn row(module: &str, function: &str, kind: Kind, hits: u64) -> ProbeSummary {
    let function = SiteName::new(function, 0);
    let probe = Arc::new(Probed { module: module.into(), function, mechanism: "jump" });
    ProbeSummary { probe, kind, address: 0x7f00_0000_1000, sites: 1, hits, lost: 0, collected: None }
}

fn probe(function: &str, kind: Kind, hits: u64) -> ProbeSummary {
    row("libc.so.6", function, kind, hits)
}

fn latency() -> LatencySummary {
    let buckets = vec![Bucket { low: 512, high: 640, count: 3 }, Bucket { low: 1024, high: 1280, count: 1 }];
    LatencySummary { avg: 777, p50: 600, p90: 1100, p99: 1100, p999: 1100, max: 1234, buckets }
}

fn summary(probes: Vec<ProbeSummary>) -> Summary {
    let skipped = ["a", "b", "c"].map(|f| Skipped {
        module: "libc.so.6".into(),
        function: f.into(),
        source: Default::default(),
        why: trapless_session::outcome::Why::plain("too_short", "too short"),
    });
    Summary {
        pid: 42,
        command: None,
        parent: None,
        stopped_us: 1500,
        duration_ns: 2_000_000_000,
        ran_another_program: false,
        exit: Some(Exit::Code(0)),
        shown: None,
        probes,
        skipped: skipped.to_vec(),
        losses: Losses::default(),
    }
}

fn text(view: View, summary: &Summary) -> String {
    let options = TextOptions {
        view,
        width: Some(80),
        color: false,
        sort: Sort::Hits,
        top: Some(2),
        all: false,
        histograms: 1,
        folded: false,
    };
    let mut output = Vec::new();
    Text::new(&mut output, Vec::new(), options).summary(summary).unwrap();
    let text = String::from_utf8(output).unwrap();
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    text
}

#[test]
fn counts_read_as_a_table() {
    let probes = vec![
        probe("free", Kind::Entry, 7),
        probe("malloc", Kind::Entry, 1_234_567),
        probe("calloc", Kind::Entry, 3),
        probe("realloc", Kind::Entry, 0),
    ];
    assert_eq!(
        text(View::Count, &summary(probes)),
        "
process 42, 2.00s, exit code 0
     HITS  MODULE     FUNCTION
1,234,567  libc.so.6  malloc
        7  libc.so.6  free
1 more; a larger --top shows them
1 probe never hit; --all shows them
skipped 3 sites: too short
    libc.so.6:a, libc.so.6:b, …
"
    );
}

#[test]
fn what_differs_between_probes_gets_a_column() {
    let row = probe("f", Kind::Return, 9);
    let stepped = Arc::new(Probed { mechanism: "step", ..(*row.probe).clone() });
    let trapped = ProbeSummary { probe: stepped, lost: 5, ..row };
    let text = text(View::Count, &Summary { skipped: vec![], exit: None, ..summary(vec![trapped]) });
    assert_eq!(
        text,
        "
process 42, 2.00s
HITS  LOST    KIND    BY  MODULE     FUNCTION
   9     5  return  step  libc.so.6  f
"
    );
}

#[test]
fn latencies_read_as_a_table_with_histograms() {
    let long = "ns::Parser<std::allocator<char>, std::less<void>>::parse(std::string)";
    let measured =
        |name| ProbeSummary { collected: Collected::times(Some(latency())), ..probe(name, Kind::Return, 4) };
    let summary = Summary { skipped: vec![], exit: Some(Exit::Signal(9)), ..summary(vec![measured(long)]) };
    assert_eq!(
        text(View::Latency, &summary),
        "
process 42, 2.00s, ended by signal 9
CALLS    AVG    P50     P90     P99   P99.9     MAX  FUNCTION (libc.so.6)
    4  777ns  600ns  1.10µs  1.10µs  1.10µs  1.23µs  ns::Parser<st…(std::string)

libc.so.6:ns::Parser<std::allocator<char>, std::less<void>>::parse(std::string)
  [512ns, 1µs)     3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
  [1µs, 2µs)       1 |@@@@@@@@@@@@@@@@@@@                                      |
"
    );
}

#[test]
fn json_is_one_object_per_line_with_its_type_first() {
    let mut output = Vec::new();
    let mut lines = JsonLines::new(&mut output);
    lines.attached(&Attached { pid: 42, stopped_us: 1500, probes: 1, skipped: 0 }).unwrap();
    let hit = Hit {
        time_ns: 5,
        pid: 42,
        tid: 43,
        of_child: false,
        module: "libc.so.6".to_owned(),
        function: "open".to_owned(),
        source: Default::default(),
        kind: Kind::Return,
        args: vec![1, u64::MAX],
        usdt: None,
        retval: Some(3),
        duration_ns: Some(9),
        typed: None,
        told: None,
    };
    lines.hit(&hit).unwrap();
    let measured =
        ProbeSummary { collected: Collected::times(Some(latency())), ..probe("f", Kind::Return, 4) };
    lines.interval(&[Interval { pid: 42, time_ns: 7, probes: vec![] }]).unwrap();
    lines
        .summary(&Summary { duration_ns: 9, ..summary(vec![probe("a\"b", Kind::Entry, 1), measured]) })
        .unwrap();
    let expected = concat!(
        r#"{"type":"attached","version":1,"pid":42,"stopped_us":1500,"probes":1,"skipped":0}"#,
        "\n",
        r#"{"type":"hit","time_ns":5,"pid":42,"tid":43,"module":"libc.so.6","function":"open","kind":"return","args":[1,18446744073709551615],"args_hex":["0x1","0xffffffffffffffff"],"retval":3,"retval_hex":"0x3","duration_ns":9}"#,
        "\n",
        r#"{"type":"interval","pid":42,"time_ns":7,"probes":[]}"#,
        "\n",
        r#"{"type":"summary","pid":42,"stopped_us":1500,"duration_ns":9,"exit":{"code":0},"probes":["#,
        r#"{"module":"libc.so.6","function":"a\"b","kind":"entry","address":139637976731648,"mechanism":"jump","hits":1,"lost":0},"#,
        r#"{"module":"libc.so.6","function":"f","kind":"return","address":139637976731648,"mechanism":"jump","hits":4,"lost":0,"#,
        r#""latency_ns":{"avg":777,"p50":600,"p90":1100,"p99":1100,"p999":1100,"max":1234,"#,
        r#""buckets":[{"low":512,"high":640,"count":3},{"low":1024,"high":1280,"count":1}]}}],"#,
        r#""skipped":[{"module":"libc.so.6","function":"a","code":"too_short","reason":"too short"},"#,
        r#"{"module":"libc.so.6","function":"b","code":"too_short","reason":"too short"},"#,
        r#"{"module":"libc.so.6","function":"c","code":"too_short","reason":"too short"}],"#,
        r#""not_shown":0,"without_stack":0,"left_by_exception":0,"children":[],"sharing_children":0,"lost_sites":[],"notes":[]}"#,
        "\n",
    );
    assert_eq!(String::from_utf8(output).unwrap(), expected);
}

/// Takes a few bytes and then has no more room.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.min(bytes.len()) {
            0 => Err(io::ErrorKind::StorageFull.into()),
            taken => {
                self.0 -= taken;
                Ok(taken)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_with_its_own_kind() {
    let summary = summary(vec![probe("f", Kind::Entry, 1)]);
    let options = TextOptions {
        view: View::Count,
        width: None,
        color: false,
        sort: Sort::Hits,
        top: None,
        all: true,
        histograms: 0,
        folded: false,
    };
    for room in [0, 1, 20, 60] {
        let json = JsonLines::new(Full(room)).summary(&summary).unwrap_err();
        let text = Text::new(Full(room), Vec::new(), options.clone()).summary(&summary).unwrap_err();
        assert_eq!(
            (json.kind(), text.kind()),
            (io::ErrorKind::StorageFull, io::ErrorKind::StorageFull),
            "{room}"
        );
    }
}

fn in_interval(pid: i32, probes: Vec<ProbeSummary>) -> Interval {
    Interval { pid, time_ns: 1_000_000_000, probes }
}

fn intervals(intervals: &[Interval]) -> String {
    let options = TextOptions {
        view: View::Count,
        width: None,
        color: false,
        sort: Sort::Hits,
        top: None,
        all: false,
        histograms: 0,
        folded: false,
    };
    let mut output = Vec::new();
    Text::new(&mut output, Vec::new(), options).interval(intervals).unwrap();
    String::from_utf8(output).unwrap()
}

#[test]
fn an_idle_interval_is_silent() {
    assert_eq!(intervals(&[in_interval(42, vec![]), in_interval(43, vec![])]), "");
    let one = intervals(&[in_interval(42, vec![]), in_interval(43, vec![probe("f", Kind::Entry, 7)])]);
    assert_eq!(one, "\nprocess 43 after 1.00s\nHITS  MODULE     FUNCTION\n   7  libc.so.6  f\n");
}

#[test]
fn several_busy_processes_have_a_total() {
    let busy = |pid, hits| in_interval(pid, vec![probe("f", Kind::Entry, hits)]);
    let text = intervals(&[busy(42, 7), busy(43, 8), in_interval(44, vec![])]);
    assert!(
        text.ends_with("\nall 2 processes after 1.00s\nHITS  MODULE     FUNCTION\n  15  libc.so.6  f\n"),
        "{text}"
    );
}
