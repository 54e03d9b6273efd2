//! Scripts that know the types of the programs which they probe: arguments and results by name and type, structs, enums, symbols.

use crate::support::tool::{Ran, finish, run};
use crate::support::{self, Program};

const C: &str = r#"
#include <stdio.h>
#include <unistd.h>

enum color { RED, GREEN = 3, BLUE };
typedef struct { int width, height; } area_t;
struct node { int value; struct node *next; };
struct hidden;
struct all {
    char name[12];
    int numbers[3];
    short grid[2][2];
    enum color color;
    area_t area;
    struct node node;
    unsigned low : 3, high : 5;
    union { int whole; char bytes[4]; };
    double ratio;
    _Bool is_set;
    struct hidden *hidden;
};
struct pair { long first, second; };
struct mixed { long count; double share; };
struct exact { char text[4]; char bytes[6]; char after[2]; };
struct large { long words[6]; };
short counter = 1234;

#define PROBED __attribute__((noipa))
PROBED int numbers(signed char small, unsigned int wide, float single, double full) {
    __asm__ volatile("" ::: "memory");
    return small + (int)wide + (int)single + (int)full;
}
PROBED const char *named(struct all *all, enum color color) {
    __asm__ volatile("" ::: "memory");
    return all->name + color * 0;
}
PROBED struct pair by_value(struct pair pair, struct mixed mixed, struct large large) {
    __asm__ volatile("" ::: "memory");
    return (struct pair){ pair.second, pair.first + mixed.count + large.words[5] };
}
PROBED int first_is_second(long filler, int value) { __asm__ volatile("" ::: "memory"); return value; }
PROBED int first_is_first(int value, long filler) { __asm__ volatile("" ::: "memory"); return value + (int)filler; }
PROBED double half(int value) { __asm__ volatile("" ::: "memory"); return value / 2.0; }
PROBED struct large *grown(struct large *large) { __asm__ volatile("" ::: "memory"); return large; }
PROBED int filled(struct exact *exact) { __asm__ volatile("" ::: "memory"); return exact->text[3]; }
PROBED int falls(int from) { __asm__ volatile("" ::: "memory"); return -from; }

int main(void) {
    struct node last = { 22, 0 };
    struct all all = { "a name", { 1, 2, 3 }, { { 4, 5 }, { 6, 7 } }, GREEN, { 640, 480 }, { 21, &last }, 5, 17,
                       { 0x01020304 }, 0.25, 1, 0 };
    struct large large = { { 1, 2, 3, 4, 5, 6 } };
    struct exact exact = { "full", { 1, 0, 2, 0, 0, 3 }, "z" };
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        numbers(-5, 4000000000u, 1.5f, 2.5);
        named(&all, BLUE);
        by_value((struct pair){ 7, 8 }, (struct mixed){ 9, 0.5 }, large);
        first_is_second(1, 42);
        first_is_first(43, 1);
        half(5);
        filled(&exact);
        grown(&large);
        falls(3);
        usleep(2000);
    }
}
"#;

const CPP: &str = r#"
#include <cstdio>
#include <unistd.h>

namespace shop {
struct Base { int id; virtual ~Base() {} };
class Item : public Base {
  public:
    int price;
    enum class Kind : unsigned char { Fruit = 2, Nut } kind;
    int &price_of() { return price; }
    __attribute__((noinline)) int cost(int count) const { __asm__ volatile("" ::: "memory"); return price * count; }
};
}
__attribute__((noinline)) int weigh(shop::Item &item, const int &grams) { __asm__ volatile("" ::: "memory"); return item.id + grams; }

int main() {
    shop::Item item;
    item.id = 5;
    item.price = 30;
    item.kind = shop::Item::Kind::Nut;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        item.cost(4);
        weigh(item, 250);
        usleep(2000);
    }
}
"#;

/// What a script prints for a process that runs `program`; it ends itself. `FILE` in it is the program.
#[track_caller]
fn printed(program: &Program, target: &support::Target, script: &str) -> String {
    let script = script.replace("FILE", program.path().to_str().unwrap());
    let ran = run(&["-p", &target.pid().to_string(), "-e", &script]);
    assert_eq!(ran.code, Some(0), "{script}: {ran:?}");
    ran.out.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn check(program: &Program, cases: &[(&str, &str)]) {
    let target = program.start(&[]);
    for (script, expected) in cases {
        assert_eq!(printed(program, &target, script), *expected, "{script}");
    }
}

/// What is said of a script that is wrong.
#[track_caller]
fn refused(program: &Program, script: &str) -> Ran {
    let script = script.replace("FILE", program.path().to_str().unwrap());
    let ran = run(&["-e", &script]);
    assert_eq!(ran.code, Some(2), "{script}: {ran:?}");
    ran
}

#[test]
fn arguments_have_names_types_and_places() {
    let program = Program::build("types", C, &["-g"]);
    check(
        &program,
        &[
            (
                "uprobe:FILE:numbers { print((args.small, args.wide, args.single, args.full)); exit(); }",
                "(-5, 4000000000, 1.5, 2.5)",
            ),
            (
                "uprobe:FILE:numbers { print(args); exit(); }",
                "{ .small = -5, .wide = 4000000000, .single = 1.5, .full = 2.5 }",
            ),
            ("uprobe:FILE:named { print(str(args.all->name)); exit(); }", "a name"),
            (
                "uprobe:FILE:named { print((args.all.name, args->all->numbers)); exit(); }",
                "(a name, [1,2,3])",
            ),
            ("uprobe:FILE:named { print(args.all.grid[1][0]); exit(); }", "6"),
            ("uprobe:FILE:named { print(args.all.node.next->value); exit(); }", "22"),
            ("uprobe:FILE:named { print(args.all.area); exit(); }", "{ .width = 640, .height = 480 }"),
            ("uprobe:FILE:named { print((args.all.low, args.all.high)); exit(); }", "(5, 17)"),
            (
                "uprobe:FILE:named { printf(\"%x %x\\n\", args.all.whole, args.all.bytes[3]); exit(); }",
                "1020304 1",
            ),
            ("uprobe:FILE:named { print((args.all.ratio, args.all.is_set)); exit(); }", "(0.25, true)"),
            ("uprobe:FILE:named { print((args.color, args.all.color)); exit(); }", "(BLUE, GREEN)"),
            ("uprobe:FILE:named /args.color == BLUE/ { print(GREEN + 1); exit(); }", "4"),
            ("uprobe:FILE:named { print(args.all.hidden); exit(); }", "0x0"),
            (
                "uprobe:FILE:by_value { print((args.pair, args.mixed, args.large.words[5])); exit(); }",
                "({ .first = 7, .second = 8 }, { .count = 9, .share = 0.5 }, 6)",
            ),
        ],
    );
}

#[test]
fn types_of_the_program_are_known_by_name() {
    let program = Program::build("types", C, &["-g"]);
    check(
        &program,
        &[
            ("uprobe:FILE:named { print(((struct all *)arg0)->numbers[2]); exit(); }", "3"),
            (
                "uprobe:FILE:named { print(((area_t *)(arg0 + offsetof(struct all, area)))->height); exit(); }",
                "480",
            ),
            ("uprobe:FILE:named { print((sizeof(struct all), sizeof(area_t))); exit(); }", "(96, 8)"),
            ("uprobe:FILE:named { print((enum color)arg1); exit(); }", "BLUE"),
            ("uprobe:FILE:named { print(*uaddr(\"counter\")); exit(); }", "1234"),
            // The script's own definition is the one that is meant.
            ("struct node { int own; } uprobe:FILE:named { print(args.all.node.own); exit(); }", "21"),
            ("uprobe:FILE:named { $n = args.all->node.next; print($n->value); exit(); }", "22"),
        ],
    );
}

#[test]
fn text_that_fills_its_array_is_whole_and_bytes_are_not_cut_at_a_zero() {
    let program = Program::build("types", C, &["-g"]);
    let declared = "struct exact { char text[4]; char bytes[6]; char after[2]; } ";
    for prefix in ["", declared] {
        let at = format!("{prefix}uprobe:FILE:filled {{ $e = (struct exact *)arg0; ");
        let cases = [
            ("print($e->text);", "full"),
            ("printf(\"%s|%s\\n\", $e->text, $e->after);", "full|z"),
            ("print(*$e);", "{ .text = full, .bytes = \u{1}, .after = z }"),
            (
                "print(($e->text == \"full\", $e->text == \"fully\", $e->text == \"ful\"));",
                "(true, false, false)",
            ),
            ("print((strlen($e->text), $e->text[3], str($e->text, 2)));", "(4, 108, fu)"),
            ("printf(\"%r\\n\", buf($e->bytes, 6));", "\\x01\\x00\\x02\\x00\\x00\\x03"),
            ("print(macaddr($e->bytes));", "01:00:02:00:00:03"),
            ("print((uint8[6])$e->bytes);", "[1,0,2,0,0,3]"),
            // A copy in the script's own memory, and a key: nothing of what is behind the text is in it.
            ("$own = *$e; print(($own.text, $own.after)); print($own.text[0]);", "(full, z)\n102"),
            ("$own = *$e; @[$own.bytes] = 1; print(@[\"\\x01\"]); clear(@);", "1"),
            ("@[$e->bytes] = 1; print(@[\"\\x01\"]); clear(@);", "1"),
        ];
        let cases: Vec<_> = cases.map(|(body, says)| (format!("{at}{body} exit(); }}"), says)).into();
        check(&program, &cases.iter().map(|(script, says)| (script.as_str(), *says)).collect::<Vec<_>>());
    }
}

#[test]
fn what_cannot_be_read_and_what_is_beyond_an_array_is_told_where_it_is() {
    let program = Program::build("types", C, &["-g"]);
    let target = program.start(&[]);
    let run = |script: &str| {
        let script = script.replace("FILE", program.path().to_str().unwrap());
        let (link, pid) = (program.dir().join("bpftrace"), target.pid().to_string());
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_trapless"), &link);
        let mut command = std::process::Command::new(link);
        finish(command.args(["-k", "-q", "-p", &pid, "-e", &script]))
    };
    let place = "uprobe:FILE:falls { ".replace("FILE", program.path().to_str().unwrap()).len() + 1;
    let ran = run("uprobe:FILE:falls { $n = ((struct node *)16)->value; $i = (uint64)5; exit(); }");
    let says = format!("stdin:1:{}", place + 6);
    assert!(ran.err.contains(&says) && ran.err.contains("WARNING: Bad address"), "{says} {ran:?}");
    let ran = run("uprobe:FILE:named { $i = (uint64)5; print(args.all->numbers[$i]); exit(); }");
    assert!(ran.err.contains("WARNING: Array access out of bounds"), "{ran:?}");
    let ran = run("uprobe:FILE:named { $i = (uint64)2; print(args.all->numbers[$i]); exit(); }");
    assert_eq!((ran.out.trim(), ran.err.as_str()), ("3", ""));
}

#[test]
fn results_have_types_and_arguments_are_kept_for_them() {
    let program = Program::build("types", C, &["-g"]);
    check(
        &program,
        &[
            ("uretprobe:FILE:falls { print(retval); exit(); }", "-3"),
            ("uretprobe:FILE:falls /retval < 0/ { print((args.from, retval)); exit(); }", "(3, -3)"),
            ("uretprobe:FILE:half { print((args.value, retval)); exit(); }", "(5, 2.5)"),
            ("uretprobe:FILE:named { print(str(retval)); exit(); }", "a name"),
            ("uretprobe:FILE:named { print(args.all.area.width); exit(); }", "640"),
            ("uretprobe:FILE:grown { print(retval->words[1]); exit(); }", "2"),
            ("uretprobe:FILE:by_value { print(retval); exit(); }", "{ .first = 8, .second = 22 }"),
        ],
    );
}

#[test]
fn each_function_has_its_arguments_where_they_are_in_it() {
    let program = Program::build("types", C, &["-g"]);
    let path = program.path().display();
    // Maps are printed in the order of their values.
    let by_function = "@[first_is_second]: 42\n@[first_is_first]: 43";
    let by_probe = format!("@[uprobe:{path}:first_is_second]: 42\n@[uprobe:{path}:first_is_first]: 43");
    check(
        &program,
        &[
            ("uprobe:FILE:first_is_* { @[func] = args.value; if (len(@) == 2) { exit(); } }", by_function),
            ("uretprobe:FILE:first_is_* { @[func] = args.value; if (len(@) == 2) { exit(); } }", by_function),
            (
                "uprobe:FILE:first_is_first, uprobe:FILE:first_is_second { @[probe] = args.value; if (len(@) == 2) { exit(); } }",
                &by_probe,
            ),
        ],
    );
}

#[test]
fn methods_and_references_of_cpp() {
    let program = match Program::try_build("g++", "shop", CPP, &["-g", "-x", "c++"]) {
        Ok(program) => program,
        Err(error) => panic!("the tests need g++: {error}"),
    };
    check(
        &program,
        &[
            (
                "uprobe:FILE:cpp:\"shop::Item::cost\" { print((args.this->price, args.count)); exit(); }",
                "(30, 4)",
            ),
            ("uprobe:FILE:cpp:\"shop::Item::cost\" { print(args.this->id); exit(); }", "5"),
            ("uprobe:FILE:cpp:\"shop::Item::cost\" { print(args.this->kind); exit(); }", "Nut"),
            ("uprobe:FILE:cpp:weigh { print((args.item->price, *args.grams)); exit(); }", "(30, 250)"),
        ],
    );
}

#[test]
fn what_is_not_there_is_refused_with_the_reason() {
    let program = Program::build("types", C, &["-g"]);
    for (script, what) in [
        ("uprobe:FILE:numbers { print(args.nothing) }", "does not contain a field named 'nothing'"),
        (
            "uprobe:FILE:named { print(args.all->nothing) }",
            "'struct all' does not contain a field named 'nothing'",
        ),
        ("uprobe:FILE:named { print(args.all->hidden->deep) }", "Unknown struct/union: 'struct hidden'"),
        ("uprobe:FILE:first_is_* { print(args.from) }", "does not contain a field named 'from'"),
        (
            "uprobe:FILE:named { print(((struct nobody *)arg0)->a) }",
            "Cannot resolve unknown type \"struct nobody\"",
        ),
        ("uprobe:FILE:named { print(*uaddr(\"nowhere\")) }", "Could not resolve symbol"),
    ] {
        let ran = refused(&program, script);
        assert!(ran.err.contains(what), "{script}: {}", ran.err);
    }
    let bare = Program::build("types", C, &[]);
    let ran = refused(&bare, "uprobe:FILE:named { print(args.all) }");
    assert!(ran.err.contains("Cannot read function parameters"), "{}", ran.err);
}
