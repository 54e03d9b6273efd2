//! Processes that nobody names by their ids: whoever runs a file, has a name, belongs to a user.

use crate::support::family::{counted, hits, is_left_alone, total};
use crate::support::text::Text;
use crate::support::tool::{Ran, Tool, finish, moments, run, trapless};
use crate::support::{Program, Target, eventually, is_root};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const RUNNER: &str = include_str!("targets/runner.c");

const NOBODY: u32 = 65534;

fn runner(name: &str) -> Program {
    Program::build(name, RUNNER, &[])
}

/// Waits until a tool that probes nobody yet says what it waits for.
fn waits(mut command: Command, errors: &Path) -> Tool {
    let tool = Tool::armed_to(&mut command, errors);
    eventually("it waits", || std::fs::read_to_string(errors).unwrap().contains("waiting for a process"));
    tool
}

/// A tool that counts for whoever runs a program, which nobody does yet.
fn counts(program: &Program) -> Tool {
    let probe = format!("{}:subject", program.path().display());
    waits(trapless(&["count", "-f", "json", &probe]), &program.dir().join("errors"))
}

/// Runs a shell's script, which is to end well.
#[track_caller]
fn script(text: &str) {
    let ran = finish(Command::new("sh").args(["-c", text]));
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
}

#[track_caller]
fn ends(tool: Tool) -> (Ran, Vec<Value>) {
    tool.signal(libc::SIGINT);
    let ran = tool.ran();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = ran.json();
    (ran, lines)
}

fn total_hits(lines: &[Value]) -> u64 {
    hits(total(lines)).values().sum()
}

fn codes(lines: &[Value]) -> Vec<&str> {
    total(lines)["notes"].as_array().unwrap().iter().map(|note| note["code"].as_str().unwrap()).collect()
}

/// Makes a waiting target call once.
fn call(target: &mut Target, line: &str) {
    target.tell(line);
    assert_eq!(target.line(), "called");
}

/// A program of a mount namespace in which one file stands in the place of another.
fn contained(mounted: &str, at: &str, program: &str) -> Target {
    let script = r#"mount --bind "$1" "$2" && exec "$3" 5 wait"#;
    let mut command = Command::new("unshare");
    Target::try_start(command.args(["-m", "sh", "-c", script, "sh", mounted, at, program])).unwrap()
}

fn has_mount_namespaces() -> bool {
    let has = finish(Command::new("unshare").args(["-m", "true"])).code == Some(0);
    if !has {
        trapless_testing::inapplicable!("no mount namespace of one's own may be made");
    }
    has
}

/// A file is what it is, not where it is seen: in a container the same one may stand elsewhere, and another one in its place.
#[test]
fn a_containers_file_is_known_by_what_it_is() {
    if !has_mount_namespaces() {
        return;
    }
    let programs = ["runner", "other", "elsewhere"].map(runner);
    let [path, other, elsewhere] = programs.each_ref().map(|program| program.path().to_str().unwrap());
    let mut same = contained(path, elsewhere, elsewhere);
    let mut another = contained(other, path, path);
    // As we see it.
    let tool = Tool::armed(&["count", &format!("{path}:subject")]);
    eventually("it is probed", || !is_left_alone(same.pid()));
    // And one that comes later.
    let mut later = contained(path, elsewhere, elsewhere);
    eventually("it is probed, too", || !is_left_alone(later.pid()));
    assert!(is_left_alone(another.pid()));
    [&mut same, &mut another, &mut later].into_iter().for_each(|target| call(target, "x"));
    let (ran, lines) = ends(tool);
    // It has made five before, which were seen if it was had in time. There is one probe, by the name that was given.
    let counted = total_hits(&lines);
    assert!((2..=7).contains(&counted) && (counted == 7 || !codes(&lines).is_empty()), "{ran:?}");
    assert_eq!(total(&lines)["probes"].as_array().unwrap().len(), 1, "{ran:?}");
    // By its process, a path is as we see it, and as the container does.
    let listed = |target: &Target, arguments: &[&str]| {
        run(&[&["list", "-p", &target.pid().to_string()], arguments].concat())
    };
    for (target, path, is_there) in
        [(&same, path, true), (&same, elsewhere, true), (&another, path, true), (&another, elsewhere, false)]
    {
        let ran = listed(target, &[&format!("{path}:subject")]);
        assert_eq!(ran.code == Some(0), is_there, "{path}: {ran:?}");
    }
    // So is what is left out.
    let subject = format!("{path}:subject");
    let ran = listed(&same, &[&format!("{path}:subj*"), "--exclude", &subject]);
    assert_eq!(ran.code, Some(5), "{ran:?}");
}

/// What is probed in a program that is meant is not taken for what stands in its container in the place of another file that is meant.
#[test]
fn a_containers_library_is_not_taken_for_another() {
    if !has_mount_namespaces() {
        return;
    }
    const LIBRARY: &str = "long g(long x) { __asm__ volatile(\"\" ::: \"memory\"); return x + K; }";
    let library = |name, number| Program::build(name, LIBRARY, &["-shared", "-fPIC", number]);
    let (own, foreign) = (library("libg.so", "-DK=1"), library("libforeign.so", "-DK=2"));
    let [own, foreign] = [&own, &foreign].map(|library| library.path().to_str().unwrap());
    let source = r#"
        #include <stdio.h>
        long g(long);
        __attribute__((noipa)) long f(long x) { return g(x); }
        int main(void) {
            char line[64];
            puts("ready");
            fflush(stdout);
            while (fgets(line, sizeof line, stdin)) { printf("%ld\n", f(1)); fflush(stdout); }
        }"#;
    let program = Program::build("links", source, &[own]);
    let path = program.path().to_str().unwrap();
    let mut plain = program.start(&[]);
    let mut another = contained(foreign, own, path);
    let tool = Tool::armed(&["count", &format!("{path}:f"), &format!("{own}:g")]);
    eventually("both are probed", || [&plain, &another].iter().all(|target| !is_left_alone(target.pid())));
    for (target, result) in [(&mut plain, "2"), (&mut another, "3")] {
        target.tell("x");
        assert_eq!(target.line(), result);
    }
    let (ran, lines) = ends(tool);
    let counted = hits(total(&lines));
    assert_eq!((counted["f"], counted["g"]), (2, 1), "{ran:?}");
}

#[test]
fn whoever_runs_a_file_is_counted_now_and_later() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let other = runner("runner");
    let mut there = [program.start(&["5", "wait"]), program.start(&["5", "wait"])];
    let mut unasked = other.start(&["5", "wait"]);
    let before = unasked.text();
    let tool = Tool::armed(&["count", &format!("{path}:subject")]);
    // The other line of the two comes when it is there, too.
    eventually("both are probed", || there.each_ref().iter().all(|target| !is_left_alone(target.pid())));
    there.iter_mut().for_each(|target| call(target, "x"));
    call(&mut unasked, "x");
    assert!(is_left_alone(unasked.pid()) && before.is_now(unasked.pid()));
    script(&format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do {path} 10; done; {} 10; {path} 7 thread",
        other.path().display()
    ));
    let (ran, lines) = ends(tool);
    let counted = counted(&lines);
    assert!(there.iter().all(|target| counted[&i64::from(target.pid())] == 1), "{ran:?}");
    if is_root() {
        // Each from its first instruction on, also one that a second thread has started.
        assert_eq!(total_hits(&lines), 2 + 10 * 10 + 7 + 6, "{ran:?}");
        assert_eq!(counted.len(), 2 + 11, "{ran:?}");
        assert!(codes(&lines).is_empty(), "{ran:?}");
    } else {
        assert!(total_hits(&lines) <= 2 + 10 * 10 + 7 + 6, "{ran:?}");
    }
    for mut target in there {
        assert!(is_left_alone(target.pid()));
        Text::of(target.pid()).assert_is_of_files(target.pid());
        call(&mut target, "x");
    }
}

/// An interpreter is opened with a lock held that a tracer waits for.
#[test]
fn l1_scripts_and_loaders_wait_for_nobody() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let text = program.dir().join("script");
    std::fs::write(&text, format!("#!{path} 40\n")).unwrap();
    std::fs::set_permissions(&text, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // `./program 40 ./script`: the calls that its first argument says.
    let tool = counts(&program);
    script(&format!("for i in 1 2 3; do {}; done; {path} 2", text.display()));
    let (ran, lines) = ends(tool);
    match codes(&lines)[..] {
        [] => assert_eq!(total_hits(&lines), 3 * 40 + 2, "{ran:?}"),
        _ => assert!(total_hits(&lines) <= 3 * 40 + 2, "{ran:?}"),
    }
}

/// Children of who is probed are told of, and are no strangers.
#[test]
fn l1_probed_programs_that_fork_all_the_time_are_counted() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let tool = counts(&program);
    script(&format!("{path} 5 forks & {path} 5 forks; wait"));
    let (ran, lines) = ends(tool);
    if is_root() {
        assert_eq!(total_hits(&lines), 2 * (5 + 300 * 2), "{ran:?}");
        assert!(
            codes(&lines).is_empty() && total(&lines)["not_followed"] == serde_json::json!([]),
            "{ran:?}"
        );
    }
}

/// A program that is built anew is another file.
#[test]
fn a_file_that_is_written_anew_is_watched_anew() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let tool = counts(&program);
    script(&format!("cp {path} {path}.new && mv {path}.new {path} && sleep 3 && {path} 10"));
    let (ran, lines) = ends(tool);
    assert!(codes(&lines).contains(&"found-late"), "{ran:?}");
    if is_root() {
        assert_eq!(total_hits(&lines), 10, "{ran:?}");
    }
}

/// The kernel asks for leave, we become the tracer, and then there is no new program.
#[test]
fn a_program_that_cannot_be_run_after_all_is_no_loss() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let other = runner("runner");
    // The file that it tries to run is the probed one.
    let mut command = Command::new(other.path());
    let mut target = Target::start(command.arg0(path).args(["5", "wait"]));
    let tool =
        waits(trapless(&["count", "-f", "json", &format!("{path}:subject")]), &other.dir().join("errors"));
    for _ in 0..3 {
        call(&mut target, "fails");
    }
    let (ran, lines) = ends(tool);
    assert_eq!(total_hits(&lines), 0, "{ran:?}");
    assert_eq!(codes(&lines).last(), Some(&"nobody"), "{ran:?}");
    assert!(is_left_alone(target.pid()));
    call(&mut target, "fails");
}

/// Without root nobody is told of a program that starts. It is found, and what is missing is said.
#[test]
fn l1_without_root_those_who_come_later_are_found() {
    if !is_root() {
        trapless_testing::skip!("only root can be two users");
        return;
    }
    let program = runner("runner");
    let (path, dir) = (program.path().to_str().unwrap(), program.dir());
    let copy = dir.join("trapless");
    trapless_testing::copy_program(env!("CARGO_BIN_EXE_trapless"), &copy);
    let mut command = Command::new(&copy);
    command.args(["count", "-f", "json", &format!("{path}:subject")]).uid(NOBODY).gid(NOBODY);
    command.current_dir("/").stdin(Stdio::null());
    let tool = waits(command, &dir.join("errors"));
    let mut ours = program.start(&["3", "wait"]);
    let mut later = Command::new(path);
    let mut later = Target::start(later.args(["5", "wait"]).uid(NOBODY).gid(NOBODY));
    eventually("it is found", || !is_left_alone(later.pid()));
    call(&mut later, "x");
    call(&mut ours, "x");
    let (ran, lines) = ends(tool);
    assert_eq!(counted(&lines).into_iter().collect::<Vec<_>>(), [(i64::from(later.pid()), 1)], "{ran:?}");
    assert_eq!(codes(&lines), ["found-late"], "{ran:?}");
    assert!(is_left_alone(later.pid()) && is_left_alone(ours.pid()));
}

#[test]
fn names_users_and_groups_are_conditions() {
    let program = runner("trapless_whom");
    let other = runner("trapless_else");
    let mut targets = [program.start(&["5", "wait"]), other.start(&["5", "wait"])];
    let user = Command::new("id").arg("-u").output().unwrap();
    let user = String::from_utf8(user.stdout).unwrap().trim().to_owned();
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let group = groups.lines().find_map(|line| line.splitn(3, ':').nth(2)).unwrap_or("/").to_owned();
    for (conditions, whom) in [
        (&["-n", "trapless_whom"][..], 0..1),
        (&["-n", "trapless_*"], 0..2),
        (&["-n", "trapless_e*", "--user", &user], 1..2),
        (&["-n", "trapless_*", "--cgroup", &group], 0..2),
    ] {
        let tool = Tool::armed(&[&["count", "trapless_*:subject"], conditions].concat());
        let wanted = targets[whom.clone()].iter().map(Target::pid).collect::<Vec<_>>();
        eventually("they are probed", || wanted.iter().all(|&pid| !is_left_alone(pid)));
        targets.iter_mut().for_each(|target| call(target, "x"));
        let (ran, lines) = ends(tool);
        let counted: Vec<i64> = counted(&lines).into_keys().collect();
        let mut wanted: Vec<i64> = wanted.into_iter().map(i64::from).collect();
        wanted.sort_unstable();
        assert_eq!(counted, wanted, "{conditions:?} {ran:?}");
    }
    let nobody =
        run(&["count", "-f", "json", "-d", "0.2", "-n", "trapless_whom", "--cgroup", "/nowhere", "x:y"]);
    assert_eq!(nobody.code, Some(0), "{nobody:?}");
    assert!(nobody.err.contains("named trapless_whom in the control group /nowhere"), "{nobody:?}");
}

#[test]
fn whoever_has_mapped_a_library_is_found() {
    let library = "long subject(long x) { __asm__ volatile(\"\"); return x * 3 + 7; }";
    let library = Program::build("libwhom.so", library, &["-shared", "-fPIC"]);
    let own = RUNNER.replace("__attribute__((noipa)) long subject", "long subject(long); long unused");
    let flags = [library.path().to_str().unwrap(), &format!("-Wl,-rpath,{}", library.dir().display())];
    let program = Program::build("linked", &own, &flags);
    let mut there = program.start(&["5", "wait"]);
    let tool = Tool::armed(&["count", &format!("{}:subject", library.path().display())]);
    let mut later = program.start(&["5", "wait"]);
    eventually("it is found", || !is_left_alone(later.pid()));
    [&mut there, &mut later].into_iter().for_each(|target| call(target, "x"));
    let (ran, lines) = ends(tool);
    assert_eq!(total_hits(&lines), 2, "{ran:?}");
    assert_eq!(codes(&lines), ["found-late"], "{ran:?}");
}

/// Many at once, as a shell's pipelines and builds start them.
#[test]
fn l1_many_short_programs_are_counted_exactly_or_it_is_said() {
    const PROGRAMS: u64 = 200;
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    let tool = counts(&program);
    script(&format!("seq {PROGRAMS} | xargs -P 8 -I N {path} 10"));
    let (ran, lines) = ends(tool);
    match codes(&lines).is_empty() {
        true => assert_eq!(total_hits(&lines), 10 * PROGRAMS, "{ran:?}"),
        false => assert!(total_hits(&lines) <= 10 * PROGRAMS, "{ran:?}"),
    }
}

/// Whoever runs the file may wait for a child that is about to run it, too, and that waits for us.
#[test]
fn whoever_makes_children_that_run_the_same_file_is_probed_too() {
    let source = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        __attribute__((noipa)) long subject(long x) { return x * 3 + 7; }
        static char *own;
        static volatile int is_over;
        static void *make(void *unused) {
            while (!is_over) {
                pid_t child = vfork();
                if (child == 0) { execl(own, own, "once", (char *)0); _exit(9); }
                int status;
                if (waitpid(child, &status, 0) != child || status) _exit(8);
                usleep(20000);
            }
            return 0;
        }
        int main(int count, char **arguments) {
            pthread_t threads[3];
            char line[16];
            own = arguments[0];
            if (count > 1) return subject(1) != 10;
            for (int n = 0; n < 3; n++) pthread_create(&threads[n], 0, make, 0);
            puts("ready");
            fflush(stdout);
            while (fgets(line, sizeof line, stdin)) { puts(subject(2) == 13 ? "called" : "wrong"); fflush(stdout); }
            is_over = 1;
            for (int n = 0; n < 3; n++) pthread_join(threads[n], 0);
            return 0;
        }"#;
    let program = Program::build("makes", source, &[]);
    let mut target = program.start(&[]);
    let tool = Tool::armed(&["count", &format!("{}:subject", program.path().display())]);
    eventually("it is probed", || !is_left_alone(target.pid()));
    call(&mut target, "x");
    assert!(target.wait().success());
    let (ran, lines) = ends(tool);
    assert_eq!(total(&lines)["not_followed"].as_array().unwrap().len(), 0, "{ran:?}");
    let of_target = |line: &&Value| line["type"] == "summary" && line["pid"] == target.pid();
    assert!(lines.iter().filter(of_target).any(|line| hits(line)["subject"] == 1), "{ran:?}");
}

/// A child that runs in its parent's memory keeps both from being probed for as long as it does. That is no reason to leave them alone for good.
#[test]
fn whoever_is_in_the_way_of_probes_is_tried_again() {
    let source = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <string.h>
        #include <unistd.h>
        __attribute__((noipa)) long subject(long x) { return x * 3 + 7; }
        static int ends[2];
        static void *lend(void *unused) {
            if (vfork() == 0) { char told; read(ends[0], &told, 1); _exit(0); }
            return 0;
        }
        int main(void) {
            char line[16];
            pthread_t thread;
            if (pipe(ends) || pthread_create(&thread, 0, lend, 0)) return 1;
            puts("ready");
            fflush(stdout);
            while (fgets(line, sizeof line, stdin)) {
                if (!strcmp(line, "end\n") && (write(ends[1], "x", 1) != 1 || pthread_join(thread, 0))) return 2;
                puts(subject(2) == 13 ? "called" : "wrong");
                fflush(stdout);
            }
            return 0;
        }"#;
    let program = Program::build("lends", source, &[]);
    for ends_in_time in [true, false] {
        let mut target = program.start(&[]);
        let tool = counts(&program);
        call(&mut target, "x");
        if ends_in_time {
            call(&mut target, "end");
            eventually("it is probed", || !is_left_alone(target.pid()));
            call(&mut target, "x");
        }
        let (ran, lines) = ends(tool);
        let not_followed = total(&lines)["not_followed"].as_array().unwrap();
        assert_eq!(total_hits(&lines), u64::from(ends_in_time), "{ran:?}");
        if ends_in_time {
            assert!(not_followed.is_empty(), "{ran:?}");
        } else {
            let own = not_followed.iter().find(|other| other["pid"] == target.pid()).expect("it is told");
            assert!(own["reason"].as_str().unwrap().contains("shares its memory"), "{ran:?}");
            call(&mut target, "end");
        }
        assert!(target.wait().success());
    }
}

#[test]
fn p9_programs_that_start_while_the_tool_is_killed_go_on() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    for moment in moments(6, Duration::from_millis(500)) {
        let tool = counts(&program);
        let text = format!("for i in $(seq 60); do {path} 3 || echo bad; done");
        let programs = std::thread::spawn(move || script(&text));
        std::thread::sleep(moment);
        tool.kill();
        programs.join().unwrap();
    }
}

#[test]
fn what_nobody_can_run_is_refused_before_anybody_is_waited_for() {
    let program = runner("runner");
    let path = program.path().to_str().unwrap();
    run(&["count", &format!("{path}:nothing")]).assert_refused(5, &["no function matches"]);
    run(&["count", "/nowhere/program:subject"]).assert_refused(2, &["/nowhere/program", "no such file"]);
    run(&["count", "runner:subject"]).assert_refused(2, &["no target", "-n NAME"]);
    run(&["count", "-n", "runner", "-p", "1", "runner:subject"]).assert_refused(2, &["leave them out"]);
    run(&["count", "-n", "runner", "runner:subject", "--allow-trap"]).assert_refused(2, &["by jumps alone"]);
}
