//! Scripts in forked children know whom they are in.
// Scripts of 32-bit programs run at traps.
#![cfg(not(target_arch = "x86"))]

use crate::support::tool::run;
use crate::support::{self, Program};

/// Every child and grandchild, twice each, their parent, and a thread of that.
const CALLS: u32 = 2 + 1 + 10 * 2 * 2;

fn program() -> Program {
    Program::build("kin", include_str!("targets/kin.c"), &["-O1", "-pthread"])
}

#[test]
fn forked_children_are_told_by_their_own_ids() {
    let program = program();
    let script = "uprobe:kin:told {
        @own[(int32)arg0 == pid, (int32)arg0 == tid, leader_tid == pid] = count();
        @parent[(int32)arg1 == ppid] = count();
        @all[pid] = count();
    }
    end { print(len(@all)); clear(@all); }";
    let ran = run(&["-F", "-e", script, "--", program.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let has = |line: String| assert!(ran.out.lines().any(|own| own == line), "{line}: {ran:?}");
    has(format!("@own[true, true, true]: {}", CALLS - 1));
    has("@own[true, false, true]: 1".to_owned());
    has(format!("@parent[true]: {CALLS}"));
    has("21".to_owned());
}

#[test]
fn forked_children_have_random_numbers_of_their_own() {
    let program = program();
    // Each process's first.
    let script = "uprobe:kin:told /!@seen[pid]/ { @seen[pid] = 1; printf(\"random %d\\n\", rand); }
        end { clear(@seen); }";
    let ran = run(&["-F", "-e", script, "--", program.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut numbers: Vec<&str> = ran.out.lines().filter_map(|line| line.strip_prefix("random ")).collect();
    assert_eq!(numbers.len(), 21, "{ran:?}");
    numbers.sort_unstable();
    numbers.dedup();
    // Two of 32 bits are hardly ever the same.
    assert!(numbers.len() >= 20, "{ran:?}");
}

#[test]
fn processes_are_told_by_their_names_and_those_of_their_parents() {
    let program = program();
    let alone = support::tool::finish(&mut std::process::Command::new(program.path()));
    let script = "uprobe:kin:told /pcomm != leader_comm/ { @[comm, leader_comm] = count(); }
        uprobe:kin:told /pcomm == \"eldest\"/ { @of_eldest[leader_comm] = count(); }
        uprobe:kin:told /leader_comm == \"grandchild\"/ { @above[pcomm] = count(); }";
    let ran = run(&["-F", "--unsafe", "-e", script, "--", program.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut own: Vec<&str> = ran.out.lines().filter(|line| line.starts_with('@')).collect();
    own.sort_unstable();
    assert_eq!(
        own,
        [
            "@[child, child]: 20",
            "@[eldest, eldest]: 2",
            "@[grandchild, grandchild]: 20",
            "@[thread, eldest]: 1",
            "@above[child]: 20",
            "@of_eldest[child]: 20",
        ],
        "{ran:?}"
    );
    // No descriptor is left behind.
    assert!(alone.out.starts_with("free ") && ran.out.contains(&alone.out), "{alone:?} {ran:?}");
}

#[test]
fn the_tool_has_a_name_and_a_parent_too() {
    let ran = run(&["-e", "begin { print((comm, leader_comm, strlen(pcomm) > 0)); }"]);
    assert_eq!(ran.out.trim(), "(trapless, trapless, true)", "{ran:?}");
}
