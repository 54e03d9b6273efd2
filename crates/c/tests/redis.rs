//! Redis as a program that knows nothing of probes, and loads a module that is linked with the library.

mod common;

use common::{Bench, Linked, Running};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use trapless_testing::{inapplicable, skip};

/// Nobody waits longer for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// A server that listens at a file, and has the module.
struct Server {
    running: Running,
    log: std::path::PathBuf,
    socket: std::path::PathBuf,
}

impl Server {
    /// `None`: there is none, or it does not load modules, which is said.
    fn start(dir: &Path, module: &Path) -> Option<Self> {
        let version = match Command::new("redis-server").arg("--version").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => {
                skip!("redis-server: {error}");
                return None;
            }
        };
        let [socket, log] = ["socket", "log"].map(|name| dir.join(name));
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--daemonize", "no", "--io-threads", "2"]);
        // That thread blocks all signals, and would be ended by a breakpoint.
        command.args(["--jemalloc-bg-thread", "no"]);
        // It loads and unloads none while it runs, unless it is told so; one before 7 does not know the word.
        if !version.contains("v=6.") && !version.contains("v=5.") {
            command.args(["--enable-module-command", "yes"]);
        }
        command.arg("--unixsocket").arg(&socket).arg("--loadmodule").arg(module).current_dir(dir);
        command.stdout(fs::File::create(&log).unwrap());
        let mut server = Self { running: Running::start(&mut command), log, socket };
        let until = Instant::now() + LIMIT;
        while UnixStream::connect(&server.socket).is_err() {
            if let Some(status) = server.running.0.try_wait().unwrap() {
                let log = server.log();
                assert_eq!(status.signal(), None, "{status}\n{log}");
                skip!("redis-server does not load the module: {log}");
                return None;
            }
            assert!(Instant::now() < until, "it does not listen:\n{}", server.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn client(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }
}

struct Client(BufReader<UnixStream>);

/// What the server answers.
#[derive(Debug, PartialEq)]
enum Answer {
    Text(String),
    Number(u64),
    Nothing,
    List(Vec<Answer>),
}

impl Client {
    #[track_caller]
    fn send(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| text += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn ask(&mut self, words: &[&str]) -> Answer {
        self.send(words);
        self.answer()
    }

    #[track_caller]
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").expect("the server answers").to_owned()
    }

    #[track_caller]
    fn answer(&mut self) -> Answer {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Answer::Text(rest.to_owned()),
            ":" => Answer::Number(rest.parse().unwrap()),
            "$" if rest == "-1" => Answer::Nothing,
            "$" => Answer::Text(self.line()),
            "*" => Answer::List((0..rest.parse().unwrap()).map(|_| self.answer()).collect()),
            _ => panic!("{line}"),
        }
    }

    /// For each probe of the module: functions, calls, returns, those that were wrong, and how often it was dropped.
    #[track_caller]
    fn counts(&mut self) -> Vec<[u64; 5]> {
        let Answer::List(all) = self.ask(&["probes.counts"]) else { panic!("it is a list") };
        let numbers = all.iter().map(|one| match one {
            Answer::Number(number) => *number,
            other => panic!("{other:?}"),
        });
        numbers.collect::<Vec<_>>().chunks(5).map(|five| five.try_into().unwrap()).collect()
    }

    /// Sets and gets so many keys; the answers are right.
    #[track_caller]
    fn work(&mut self, name: &str, keys: usize) {
        for n in 0..keys {
            let (key, value) = (format!("{name}{n}"), "v".repeat(n % 300 + 1));
            assert_eq!(self.ask(&["SET", &key, &value]), text("OK"));
            assert_eq!(self.ask(&["GET", &key]), text(&value));
        }
        // Many at a time.
        (0..keys).for_each(|n| self.send(&["GET", &format!("{name}{n}")]));
        (0..keys).for_each(|n| assert_eq!(self.answer(), text(&"v".repeat(n % 300 + 1))));
        assert_eq!(self.ask(&["GET", "nothing"]), Answer::Nothing);
    }
}

fn text(text: &str) -> Answer {
    Answer::Text(text.to_owned())
}

#[test]
fn a_module_probes_the_redis_that_loads_it() {
    let Some(bench) = Bench::new("gcc") else { return };
    if !trapless_inside::is_possible() {
        return inapplicable!("there are no probes on this machine");
    }
    let module = bench.build("redis_module.c", Linked::Shared, &["-std=c11", "-O2", "-shared", "-fPIC"]);
    let Some(server) = Server::start(bench.dir(), &module) else { return };
    let mut client = server.client();
    client.work("before", 50);
    let mut entered = [0; 5];
    for round in 1..=3 {
        assert_eq!(client.ask(&["probes.put"]), text("OK"), "{}", server.log());
        let before = client.counts();
        const KEYS: usize = 300;
        let others = [0, 1, 2].map(|n| {
            let mut other = server.client();
            std::thread::spawn(move || other.work(&format!("{n}-{round}-"), KEYS))
        });
        client.work("during", KEYS);
        others.into_iter().for_each(|other| other.join().unwrap());
        let after = client.counts();
        let (keys, clients) = (KEYS as u64, 4);
        let made: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after[1] - before[1]).collect();
        assert_eq!(
            made[..2],
            [clients * (2 * keys + 1), clients * keys],
            "GET and SET: {before:?} {after:?}"
        );
        assert!(made[2] >= clients * 3 * keys, "keys that were looked up: {made:?}");
        // Each waits for its answer but where many are sent at a time.
        assert!(made[3] >= clients * 2 * keys, "answers: {made:?}");
        assert!(made[4] >= clients * keys, "memory: {made:?}");
        for [functions, entered, left, wrong, dropped] in &after {
            assert!(*functions > 0 && *wrong == 0 && *dropped == round - 1, "{after:?}");
            // One is under way, at most, on each thread.
            assert!(*left <= *entered && *entered - *left < 16, "{after:?}");
        }
        assert_eq!(client.ask(&["probes.remove"]), text("OK"));
        let removed = client.counts();
        client.work("behind", 50);
        assert_eq!(client.counts(), removed, "nothing is counted any more");
        removed.iter().for_each(|one| assert_eq!((one[0], one[4]), (0, round), "{removed:?}"));
        entered = [0, 1, 2, 3, 4].map(|n| removed[n][1]);
    }
    assert!(entered.iter().all(|count| *count > 0), "{entered:?}");
    // With probes in, which the module takes out by itself.
    assert_eq!(client.ask(&["probes.put"]), text("OK"));
    assert_eq!(client.ask(&["MODULE", "UNLOAD", "probes"]), text("OK"), "{}", server.log());
    client.work("unloaded", 100);
    assert_eq!(client.ask(&["MODULE", "LOAD", module.to_str().unwrap()]), text("OK"), "{}", server.log());
    assert_eq!(client.ask(&["probes.put"]), text("OK"));
    client.work("again", 100);
    let again = client.counts();
    assert_eq!((again[0][1], again[1][1]), (201, 100), "{again:?}");
    // It ends by itself, with probes in.
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let mut server = server;
    let status = server.running.wait();
    assert!(status.success(), "{status}\n{}", server.log());
}
