//! Hard case H1: a target, or a process that shares its descriptors, replaces or truncates the memory that the tool makes in it;
//! and H2: what its mappings name is not a file. The tool gives up with a reason, or works as if nothing were.

use crate::support::tool::{finish, run, trapless};
use crate::support::{PATIENCE, Program, Target, is_root};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

fn program() -> Program {
    Program::build("shares_files", include_str!("targets/shares_files.c"), &[])
}

/// Runs a program as a user without rights, if we are root.
fn as_nobody(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command
}

/// A file that the target must not change.
fn victim(program: &Program, mode: u32) -> PathBuf {
    let path = program.dir().join("victim");
    std::fs::write(&path, "32 bytes that belong to another.").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Attaches until the target has won the race for the descriptor, and looks at the file every time.
fn attach_until_replaced(target: &Target, victim: &Path) {
    let start = Instant::now();
    let pid = target.pid().to_string();
    let before = std::fs::read(victim).unwrap();
    let mut won = 0;
    while won < 3 {
        let ran = run(&["count", "-p", &pid, "shares_files:subject", "-d", "0.01"]);
        assert_eq!(std::fs::read(victim).unwrap(), before, "{ran:?}");
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        if ran.err.contains("replaces its files") {
            assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
            won += 1;
        }
        assert!(start.elapsed() < PATIENCE, "the target never won: {ran:?}");
    }
}

#[test]
fn h1_a_descriptor_that_only_names_a_file_of_roots_is_not_opened_for_writing() {
    if !is_root() {
        trapless_testing::inapplicable!("only root may write a file of root's");
        return;
    }
    let program = program();
    let victim = victim(&program, 0o600);
    for last in ["", "leaderless"] {
        let arguments = ["replace", victim.to_str().unwrap(), "path", last];
        let target = Target::start(as_nobody(program.path()).args(arguments));
        attach_until_replaced(&target, &victim);
    }
}

#[test]
fn h1_a_file_in_the_place_of_our_memory_is_left_alone() {
    let program = program();
    let victim = victim(&program, 0o666);
    for last in ["", "leaderless"] {
        let arguments = ["replace", victim.to_str().unwrap(), "open", last];
        let target = Target::start(as_nobody(program.path()).args(arguments));
        attach_until_replaced(&target, &victim);
    }
}

#[test]
fn h1_shared_memory_cannot_be_truncated_under_the_tool() {
    let program = program();
    for last in ["", "leaderless"] {
        let target = Target::start(Command::new(program.path()).args(["truncate", last]));
        let pid = target.pid().to_string();
        let start = Instant::now();
        let mut armed = 0;
        while armed < 3 {
            let ran =
                run(&["count", "-i", "0.05", "-d", "0.3", "-p", &pid, "shares_files:subject", "-f", "json"]);
            if ran.code == Some(0) {
                assert!(ran.summary().hits("subject", "entry") > 0, "{ran:?}");
                armed += 1;
            } else {
                // The target was quicker than the seals.
                ran.assert_refused(1, &["the shared memory made in the process", "nothing was changed"]);
            }
            assert!(start.elapsed() < PATIENCE, "never armed: {ran:?}");
        }
    }
}

#[test]
fn h2_a_pipe_at_a_modules_path_keeps_nobody_waiting() {
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDONLY);
    mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    close(fd);
    unlink(argv[1]);
    mkfifo(argv[1], 0666);
    puts("ready"); fflush(stdout);
    for (;;) pause();
}
"#;
    let program = Program::build("pipes", source, &[]);
    let folder = program.dir().join("modules");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let module = folder.join("libpipe.so");
    std::fs::copy(program.path(), &module).unwrap();
    let target = Target::start(as_nobody(program.path()).arg(&module));
    let pid = target.pid().to_string();
    // Without rights the tool has only the path to go by; with them it finds the mapped file all the same.
    let list = trapless(&["list", "-p", &pid, "libpipe.so:*"]);
    let mut command = as_nobody(Path::new(list.get_program()));
    let ran = finish(command.args(list.get_args()));
    assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    if is_root() {
        assert_eq!(run(&["list", "-p", &pid, "libpipe.so:main"]).code, Some(0));
    }
}
