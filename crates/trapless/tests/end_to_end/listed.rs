//! bpftrace's `-l`: what can be probed, by patterns, in files, processes and scripts.

use crate::support::Program;
use crate::support::tool::{Ran, finish, trapless};
use std::os::unix::process::CommandExt;

const SOURCE: &str = r#"
#include <stdio.h>
struct point { int x, y; const char *name; char tag[8]; int (*next)(int); };
enum color { RED, GREEN = 5 };
__attribute__((noipa)) int area(struct point *of, unsigned char scale) { return of->x * of->y * scale; }
__attribute__((noipa)) long area_of_all(const char **names, enum color color) { return names != 0 && color; }
__attribute__((noipa)) void other(void) { __asm__ volatile(""); }
int main(void) {
    struct point one = {2, 3, "one"};
    puts("ready"); fflush(stdout);
    other();
    return getchar() < 0 && area(&one, 1) + area_of_all(0, RED) < 0;
}
"#;

fn program(flags: &[&str]) -> Program {
    Program::build("shapes", SOURCE, flags)
}

fn list(arguments: &[&str]) -> Ran {
    finish(trapless(arguments).arg0("bpftrace"))
}

#[track_caller]
fn lines(arguments: &[&str]) -> Vec<String> {
    let ran = list(arguments);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn functions_of_a_file_are_listed_as_scripts_write_them() {
    let shapes = program(&[]);
    let path = shapes.path().display();
    let dir = shapes.dir().display();
    for (pattern, found) in [
        (format!("uprobe:{path}:area"), vec![format!("uprobe:{path}:area")]),
        (
            format!("uprobe:{path}:area*"),
            vec![format!("uprobe:{path}:area"), format!("uprobe:{path}:area_of_all")],
        ),
        (format!("u:{dir}/sha*:*rea"), vec![format!("uprobe:{path}:area")]),
        (format!("ur:{path}:area"), vec![format!("uretprobe:{path}:area")]),
        (
            format!("uprobe:{path}:other,uretprobe:{path}:main"),
            vec![format!("uprobe:{path}:other"), format!("uretprobe:{path}:main")],
        ),
        (format!("*:{path}:oth*"), vec![format!("uprobe:{path}:other")]),
        ("interval:*".to_owned(), ["hz", "ms", "s", "us"].map(|unit| format!("interval:{unit}:")).to_vec()),
    ] {
        assert_eq!(lines(&["-l", &pattern]), found, "{pattern}");
    }
    let all = lines(&["-l", shapes.path().to_str().unwrap()]);
    for name in ["area", "area_of_all", "main", "other"] {
        assert!(all.contains(&format!("uprobe:{path}:{name}")), "{name}: {all:?}");
    }
}

#[test]
fn arguments_are_shown_as_their_types_say() {
    let shapes = program(&["-g"]);
    let path = shapes.path().display();
    assert_eq!(
        lines(&["-lv", &format!("uprobe:{path}:area*")]),
        [
            format!("uprobe:{path}:area"),
            "    struct point* of".to_owned(),
            "    unsigned char scale".to_owned(),
            format!("uprobe:{path}:area_of_all"),
            "    const char** names".to_owned(),
            "    enum color color".to_owned(),
        ]
    );
    assert_eq!(
        lines(&["-lv", &format!("uretprobe:{path}:area_of_all")]),
        [format!("uretprobe:{path}:area_of_all"), "    long int retval".to_owned()]
    );
    let stripped = program(&["-g0"]);
    let path = stripped.path().display().to_string();
    let ran = list(&["-lv", &format!("uprobe:{path}:area")]);
    assert_eq!((ran.code, ran.out), (Some(0), format!("uprobe:{path}:area\n")));
    assert!(ran.err.contains("No DWARF found") && ran.err.contains(&path), "{}", ran.err);
}

#[test]
fn a_process_is_searched_whole() {
    let shapes = program(&["-g"]);
    let target = shapes.start(&[]);
    let (path, pid) = (shapes.path().display(), target.pid().to_string());
    let all = lines(&["-l", "-p", &pid]);
    assert!(all.contains(&format!("uprobe:{path}:area")));
    assert!(all.iter().any(|line| line.starts_with("uprobe:") && line.ends_with(":puts")), "libraries, too");
    for pattern in ["uprobe:*:area", "uprobe:area", "area", "uprobe:shapes:area"] {
        assert_eq!(lines(&["-l", pattern, "-p", &pid]), [format!("uprobe:{path}:area")], "{pattern}");
    }
    assert_eq!(
        lines(&["-lv", "struct point", "-p", &pid]),
        [
            &*format!("{path}: struct point {{"),
            "\tint x;",
            "\tint y;",
            "\tconst char *name;",
            "\tchar tag[8];",
            "\tint (*next)(int);",
            "};"
        ]
    );
    assert_eq!(
        lines(&["-lv", "enum color", "-p", &pid]),
        [&*format!("{path}: enum color {{"), "\tRED = 0,", "\tGREEN = 5,", "};"]
    );
}

#[test]
fn a_script_lists_its_own() {
    let shapes = program(&[]);
    let path = shapes.path().display();
    let script =
        format!("begin {{ }} interval:ms:5 {{ exit(); }} uprobe:{path}:area* {{ @ = count(); }} end {{ }}");
    let expected =
        ["interval:ms:".to_owned(), format!("uprobe:{path}:area"), format!("uprobe:{path}:area_of_all")];
    assert_eq!(lines(&["-l", "-e", &script]), expected);
    let file = shapes.dir().join("own.bt");
    std::fs::write(&file, &script).unwrap();
    assert_eq!(lines(&["-l", file.to_str().unwrap()]), expected);
    let ran = list(&["-l", "-e", "begin {"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
}

#[test]
fn what_is_not_found_says_where_to_go() {
    let shapes = program(&[]);
    let path = shapes.path().display().to_string();
    for (pattern, code, words) in [
        (format!("uprobe:{path}:areas"), 0, "did you mean area"),
        ("uprobe:/nowhere/at/all:f".to_owned(), 0, "/nowhere/at/all: no such program or library"),
        ("kprobe:vfs_*".to_owned(), 0, "kprobe probes are in the kernel"),
        ("struct point".to_owned(), 0, "give -p PID"),
        ("uprobe:malloc".to_owned(), 1, "names no file; write uprobe:FILE:malloc, or give -p PID"),
        ("nobody:knows".to_owned(), 1, "Invalid probe type: nobody"),
        ("absent.bt".to_owned(), 0, "It appears that 'absent.bt' is a filename but the file does not exist."),
    ] {
        let ran = list(&["-l", &pattern]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{pattern}: {ran:?}");
        assert!(ran.err.contains(words), "{pattern}: {}", ran.err);
    }
}
