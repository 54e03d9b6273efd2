//! `trace --typed`: calls of C, C++ and Rust programs, with arguments and results as their types say.

use crate::support::schema::Schema;
use crate::support::tool::{Ran, run};
use crate::support::{Program, Target};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const C: &str = r#"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum color { RED, GREEN = 5, BLUE = -1 };
enum flags { READ = 1, WRITE = 2, EXEC = 4 };
struct point { int x, y; };
struct pair { double a, b; };
struct mixed { long count; float share; };
struct large { long words[6]; const char *name; };
struct node { const char *name; struct node *next; };
struct bits { unsigned low : 3; int high : 5; enum flags flags : 3; bool on : 1; };
union both { int whole; float single; };
struct outer { union both both; struct bits bits; char name[8]; const char *words[3]; };
struct huge { char head[16]; long numbers[1000]; const char *tail; };
typedef struct { short left, right; } renamed_t;

#define PROBED __attribute__((noipa))
#define BODY __asm__ volatile("nop; nop; nop; nop; nop" ::: "memory")
PROBED double weigh(double x, float y, struct point *p) { BODY; return x * y + p->x; }
PROBED enum color paint(enum color color, enum flags flags, bool on, char letter) { BODY; return on ? color : RED; }
PROBED long numbers(signed char a, unsigned short b, unsigned c, long d, unsigned long e, int f, long on_stack, char too) { BODY; return a + b + c + d + e + f + on_stack + too; }
PROBED const char *text(const char *text, char *none) { BODY; return text + 2; }
PROBED struct point small(struct point p) { BODY; return (struct point){ p.y, p.x }; }
PROBED struct pair floats(struct pair p) { BODY; return (struct pair){ p.b, p.a }; }
PROBED struct mixed mix(struct mixed m) { BODY; return (struct mixed){ m.count + 1, m.share * 2 }; }
PROBED struct large grow(struct large l, int by) { BODY; l.words[0] += by; return l; }
PROBED void deep(struct outer *outer, renamed_t renamed, union both both) { BODY; }
PROBED void list(struct node *node) { BODY; }
PROBED float odd(double nan, float infinite, double minus) { BODY; return (float)nan; }
PROBED struct huge *giant(struct huge *huge) { BODY; return huge; }
PROBED const char *wild(const char *text, struct point *point, struct outer *edge) { BODY; return text; }
PROBED __int128 wide(__int128 value) { BODY; return -value; }
PROBED void change(char *text) { BODY; strcpy(text, "after"); }
PROBED int falls(int from) { BODY; return -from; }
PROBED void *nothing(void) { BODY; return (void *)0x1234; }

int main(void) {
    struct point p = { 1, -2 };
    struct outer outer = { { 0x3f800000 }, { 5, -3, WRITE | EXEC, 1 }, "inside", { "one", "two", 0 } };
    struct node second = { "second", 0 }, first = { "first", &second };
    second.next = &first;
    struct large l = { { 1, 2, 3, 4, 5, 6 }, "large" };
    static struct huge huge = { "a head", { 7 }, "the tail" };
    long size = sysconf(_SC_PAGESIZE);
    char *page = mmap(0, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + size, size);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        char buffer[8] = "before";
        weigh(1.5, 2.5f, &p);
        paint(BLUE, READ | EXEC, true, 'x');
        numbers(-5, 65535, 4000000000u, -1, 1ul << 63, 6, 77, '!');
        text("a \"quoted\"\n text", 0);
        small(p);
        floats((struct pair){ 0.5, -0.25 });
        mix((struct mixed){ 9, 0.25f });
        grow(l, 10);
        deep(&outer, (renamed_t){ -1, 2 }, (union both){ 0x40000000 });
        list(&first);
        odd(NAN, INFINITY, -0.0);
        giant(&huge);
        wild((char *)8, (struct point *)0x7fffffffffffffff, (struct outer *)(page + size - 8));
        wide(-((__int128)1 << 100));
        change(buffer);
        falls(3);
        nothing();
        usleep(2000);
    }
}
"#;

/// The first call of a function, as its line shows it: without what comes before the name, the time, and the values of addresses.
#[track_caller]
fn call(program: &Path, target: &Target, function: &str) -> String {
    let name = program.file_name().unwrap().to_str().unwrap();
    let ran =
        run(&["trace", "--typed", "-p", &target.pid().to_string(), &format!("{name}:{function}"), "-M", "1"]);
    assert_eq!(ran.code, Some(0), "{function}: {ran:?}");
    let line = ran.out.lines().nth(1).unwrap_or_else(|| panic!("{function}: {ran:?}"));
    let (_, line) = line.split_once(&format!("  {name}:")).unwrap_or_else(|| panic!("{line}"));
    let (line, time) = line.rsplit_once(" <").unwrap_or_else(|| panic!("{line}"));
    assert!(time.ends_with('>'), "{line}");
    line.to_owned()
}

/// The line with each address of more than 4 digits as `0x…`.
fn without_addresses(line: &str) -> String {
    let mut parts = line.split("0x");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(part.len());
        shown += if end > 4 { "0x…" } else { &line[..0] };
        shown += &if end > 4 { part[end..].to_owned() } else { format!("0x{part}") };
    }
    shown
}

/// Whether results in memory are where the caller said, and nobody says it at the return.
const IS_LEFT_WHERE_TOLD: bool = cfg!(any(target_arch = "aarch64", target_arch = "powerpc64"));

#[track_caller]
fn check(program: &Path, target: &Target, cases: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (function, expected) in cases {
        let found = without_addresses(&call(program, target, function));
        // Spread over seven registers of powerpc64le, it is told where debug information says so.
        let is_spread = cfg!(target_arch = "powerpc64") && found == "grow(l: ?, by: 10) = ?";
        if found != *expected && !is_spread {
            wrong.push(format!("   found {found}\nexpected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", program.display(), wrong.join("\n"));
}

/// Where a large result is, only the caller knows there when the call returns.
const GROW: &str = if IS_LEFT_WHERE_TOLD {
    r#"grow(l: { .words = {1, 2, 3, 4, 5, 6}, .name = "large" }, by: 10) = ?"#
} else {
    r#"grow(l: { .words = {1, 2, 3, 4, 5, 6}, .name = "large" }, by: 10) = { .words = {11, 2, 3, 4, 5, 6}, .name = "large" }"#
};

const C_CALLS: &[(&str, &str)] = &[
    ("weigh", "weigh(x: 1.5, y: 2.5, p: 0x… -> { .x = 1, .y = -2 }) = 4.75"),
    ("paint", "paint(color: BLUE, flags: READ | EXEC, on: true, letter: 'x') = BLUE"),
    (
        "numbers",
        "numbers(a: -5, b: 65535, c: 4000000000, d: -1, e: 9223372036854775808, f: 6, on_stack: 77, too: '!') = -9223372032854710163",
    ),
    ("text", r#"text(text: "a \"quoted\"\n text", none: NULL) = "\"quoted\"\n text""#),
    ("small", "small(p: { .x = 1, .y = -2 }) = { .x = -2, .y = 1 }"),
    ("floats", "floats(p: { .a = 0.5, .b = -0.25 }) = { .a = -0.25, .b = 0.5 }"),
    ("mix", "mix(m: { .count = 9, .share = 0.25 }) = { .count = 10, .share = 0.5 }"),
    ("grow", GROW),
    (
        "deep",
        r#"deep(outer: 0x… -> { .both = { .whole = 1065353216, .single = 1.0 }, .bits = { .low = 5, .high = -3, .flags = WRITE | EXEC, .on = true }, .name = "inside", .words = {"one", "two", NULL} }, renamed: { .left = -1, .right = 2 }, both: { .whole = 1073741824, .single = 2.0 }) returns"#,
    ),
    ("list", r#"list(node: 0x… -> { .name = "first", .next = 0x… }) returns"#),
    ("odd", "odd(nan: nan, infinite: inf, minus: -0.0) = nan"),
    (
        "wild",
        "wild(text: 0x8 (unreadable), point: 0x… (unreadable), edge: 0x… (unreadable)) = 0x8 (unreadable)",
    ),
    ("wide", "wide(value: -1267650600228229401496703205376) = 1267650600228229401496703205376"),
    // What it was when the function was called.
    ("change", r#"change(text: "before") returns"#),
    ("falls", "falls(from: 3) = -3"),
    ("nothing", "nothing() = 0x1234"),
];

#[test]
fn calls_of_c_show_values_as_c_writes_them() {
    for flags in [["-g", "-O0"], ["-g", "-O2"], ["-gdwarf-4", "-Os"]] {
        let program = Program::build("typed", C, &flags);
        let target = program.start(&[]);
        check(program.path(), &target, C_CALLS);
        // Of what is larger than a read, the beginning is shown.
        let giant = call(program.path(), &target, "giant");
        assert!(giant.contains(r#"{ .head = "a head", .numbers = {7, 0, 0,"#), "{giant}");
        assert!(giant.contains("...}, .tail = ... }) = 0x"), "{giant}");
    }
}

#[test]
fn debug_information_may_be_in_other_files() {
    let program = Program::build("typed", C, &["-g", "-gsplit-dwarf", "-O2"]);
    let cases = &C_CALLS[..4];
    // Beside the program; older compilers write it where they are called.
    let is_dwo = |entry: &std::fs::DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with("typed") && name.ends_with(".dwo"))
    };
    let find = |folder: &Path| std::fs::read_dir(folder).unwrap().flatten().find(is_dwo);
    let target = program.start(&[]);
    if let Some(dwo) = find(program.dir()).or_else(|| find(Path::new("."))) {
        check(program.path(), &target, cases);
        std::fs::remove_file(dwo.path()).unwrap();
    } else {
        trapless_testing::skip!("gcc writes no .dwo file here");
    }
    let program = Program::build("typed", C, &["-g", "-O2"]);
    let debug = program.dir().join("typed.debug");
    let (path, debug) = (program.path().to_str().unwrap(), debug.to_str().unwrap());
    let link = format!("--add-gnu-debuglink={debug}");
    for arguments in [&["--only-keep-debug", path, debug][..], &["--strip-debug", path], &[&link, path]] {
        let done = Command::new("objcopy").args(arguments).status().unwrap();
        assert!(done.success(), "{arguments:?}");
    }
    let target = program.start(&[]);
    check(program.path(), &target, cases);
}

#[test]
fn json_has_each_value_with_its_type() {
    let program = Program::build("typed", C, &["-g", "-O1"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let ran = run(&["trace", "--typed", "-p", &pid, "typed:paint", "-M", "1", "-f", "json"]);
    let schema = Schema::read();
    ran.json().iter().for_each(|line| schema.check(line));
    let hit = ran.json().into_iter().find(|line| line["type"] == "hit").unwrap();
    let expected = serde_json::json!([
        { "name": "color", "type": "enum color", "text": "BLUE" },
        { "name": "flags", "type": "enum flags", "text": "READ | EXEC" },
        { "name": "on", "type": "_Bool", "text": "true" },
        { "name": "letter", "type": "char", "text": "'x'" },
    ]);
    assert_eq!(hit["arguments"], expected, "{ran:?}");
    assert_eq!(hit["result"], serde_json::json!({ "type": "enum color", "text": "BLUE" }), "{ran:?}");
    assert_eq!(hit["kind"], "return");
    assert!(hit["duration_ns"].is_u64());
    assert_eq!(ran.summary().hits("paint", "return"), 1, "{ran:?}");
}

#[test]
fn entries_alone_and_places_show_arguments() {
    let program = Program::build("typed", C, &["-g", "-O0"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let line = |probe: &str| {
        let ran = run(&["trace", "--typed", "-p", &pid, probe, "-M", "1"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let line = ran.out.lines().nth(1).unwrap_or_else(|| panic!("{ran:?}")).to_owned();
        without_addresses(line.split_once("  typed:").unwrap().1)
    };
    assert_eq!(line("uprobe:typed:falls"), "falls(from: 3)");
    // Behind the prologue, which has stored them: push, mov, mov; sub sp, str; or std, stdu, mr, mr, stw.
    let at = match () {
        () if cfg!(target_arch = "aarch64") => "0x8",
        () if cfg!(target_arch = "powerpc64") => "0x14",
        () => "0x7",
    };
    let inside = line(&format!("typed:falls+{at}"));
    assert!(inside == format!("falls+{at}(from: 3)") || inside == "falls+0xb(from: 3)", "{inside}");
}

const CPP: &str = r#"
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#define PROBED __attribute__((noipa))
#define BODY __asm__ volatile("" ::: "memory")
namespace shop {
enum class Kind : unsigned char { Fruit = 2, Nut };
struct Point { int x, y; };
struct Base { int id = 5; virtual ~Base() {} };
class Item : public Base {
  public:
    std::string name = "a name that is too long to be short";
    int price = 30;
    Kind kind = Kind::Nut;
    PROBED int cost(int count, const std::string &unit) const { BODY; return price * count; }
};
PROBED Kind kind_of(const Item &item, Kind other) { BODY; return item.kind; }
PROBED std::string join(const std::vector<std::string> &words, std::string_view between) {
    BODY;
    std::string all;
    for (const std::string &word : words) { all += word; all += between; }
    return all;
}
PROBED std::vector<int> &add(std::vector<int> &numbers, int more) { BODY; numbers[0] += more; return numbers; }
PROBED std::optional<int> maybe(std::optional<std::string> text, std::optional<Point> none) { BODY; return text->size(); }
PROBED std::unique_ptr<Point> made(std::unique_ptr<Point> from) { BODY; return from; }
PROBED Point moved(Point &&point, Point *null) { BODY; return Point{point.y, point.x}; }
}

int main() {
    using namespace shop;
    Item item;
    std::vector<std::string> words = {"one", "two words", "a third one which is longer than sixteen"};
    std::vector<int> numbers = {1, 2, 3};
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        numbers[0] = 1;
        item.cost(4, "kg");
        kind_of(item, Kind::Fruit);
        join(words, ", ");
        add(numbers, 9);
        maybe("text", std::nullopt);
        made(std::make_unique<Point>(Point{5, 6}));
        moved(Point{7, 8}, nullptr);
        usleep(2000);
    }
}
"#;

#[test]
fn calls_of_cpp_show_what_objects_stand_for() {
    for flags in [["-g", "-O0"], ["-g", "-O2"]] {
        let flags = [&flags[..], &["-std=c++17", "-x", "c++"]].concat();
        // The flag stands ahead of the file.
        let program = match cpp(&flags) {
            Some(program) => program,
            None => return,
        };
        let path = program.path();
        let target = program.start(&[]);
        let item =
            r#"{ .id = 5, .name = "a name that is too long to be short", .price = 30, .kind = Kind::Nut }"#;
        check(
            path,
            &target,
            &[
                (
                    "*Item::cost*",
                    &format!(
                        r#"shop::Item::cost(int, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&) const(this: 0x… -> {item}, count: 4, unit: "kg") = 120"#
                    ),
                ),
                (
                    "*kind_of*",
                    &format!(
                        "shop::kind_of(shop::Item const&, shop::Kind)(item: {item}, other: Kind::Fruit) = Kind::Nut"
                    ),
                ),
                (
                    "*shop::add*",
                    "shop::add(std::vector<int, std::allocator<int> >&, int)(numbers: {1, 2, 3}, more: 9) = {10, 2, 3}",
                ),
                (
                    "*shop::moved*",
                    "shop::moved(shop::Point&&, shop::Point*)(point: { .x = 7, .y = 8 }, null: nullptr) = { .x = 8, .y = 7 }",
                ),
            ],
        );
        let has = |function: &str, parts: &[&str]| {
            let line = call(path, &target, function);
            assert!(parts.iter().all(|part| line.contains(part)), "{line}\n{parts:?}");
        };
        let longest = r#""a third one which is longer than sixteen""#;
        let joined = if IS_LEFT_WHERE_TOLD { "?" } else { r#""one, two words, "# };
        has(
            "*shop::join*",
            &[&format!(r#"(words: {{"one", "two words", {longest}}}, between: ", ") = {joined}"#)],
        );
        has("*shop::maybe*", &[r#"(text: "text", none: nullopt) = 4"#]);
        let made = if IS_LEFT_WHERE_TOLD { "?" } else { "{ .x = 5, .y = 6 }" };
        has("*shop::made*", &[&format!("(from: {{ .x = 5, .y = 6 }}) = {made}")]);
    }
}

fn cpp(flags: &[&str]) -> Option<Program> {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("typed.cc");
    std::fs::write(&source, CPP).unwrap();
    let source = source.to_str().unwrap();
    let flags: Vec<&str> =
        flags.iter().copied().filter(|flag| !["-x", "c++"].contains(flag)).chain([source]).collect();
    // The file that is written for the compiler has nothing in it.
    match Program::try_build("g++", "typed", "", &flags) {
        Ok(program) => Some(program),
        Err(error) if error.contains("No such file") => {
            trapless_testing::skip!("no g++");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const RUST: &str = r#"
use std::{hint::black_box, io::Write, time::Duration};
mod web {
    use std::hint::black_box;
    #[derive(Clone, Copy)]
    pub struct Point { pub x: i32, pub y: i32 }
    pub enum Shape { Circle(f64), Named { name: String, sides: u8 }, Empty }
    pub struct List { pub name: &'static str, pub next: Option<Box<List>> }
    #[inline(never)]
    pub fn weigh(x: f64, y: f64, p: &Point) -> f64 { black_box(x * y + f64::from(black_box(p).x) - 1.0) }
    #[inline(never)]
    pub fn join(words: &[String], between: &str) -> String { black_box(words).join(black_box(between)) }
    #[inline(never)]
    pub fn first(numbers: Vec<u32>) -> Option<u32> { black_box(&numbers).first().copied() }
    #[inline(never)]
    pub fn parsed(text: &str, base: Option<u32>) -> Result<u64, String> {
        let base = black_box(base).unwrap_or(10);
        u64::from_str_radix(black_box(text), base).map_err(|error| error.to_string())
    }
    #[inline(never)]
    pub fn shapes(shapes: &[Shape], one: &Shape) -> u128 { black_box((shapes, one)); 1 << 100 }
    #[inline(never)]
    pub fn pair(pair: (u8, char), unit: (), big: u128) -> (i64, bool) { black_box((pair, unit, big)); (-1, true) }
    #[inline(never)]
    pub fn list(list: &List) -> usize { black_box(list); 4 }
    #[inline(never)]
    pub fn lies(text: &str, numbers: &[u64]) -> usize { black_box((text, numbers)); text.len() }
}
use web::*;
fn main() {
    println!("ready");
    std::io::stdout().flush().unwrap();
    let words = vec!["one".to_owned(), "zwei ä".to_owned()];
    let all = [Shape::Circle(0.5), Shape::Named { name: "square".into(), sides: 4 }, Shape::Empty];
    let mut list_ = List { name: "0", next: None };
    for name in ["1", "2", "3", "4", "5", "6", "7", "8", "9"] { list_ = List { name, next: Some(Box::new(list_)) }; }
    // Lengths that lie: nobody but the tool looks behind the first bytes.
    let text: &'static str = unsafe { std::mem::transmute::<(*const u8, usize), &str>((b"start".as_ptr(), 1 << 60)) };
    let numbers: &'static [u64] = unsafe { std::mem::transmute::<(*const u64, usize), &[u64]>((8 as *const u64, 1 << 59)) };
    loop {
        black_box(weigh(1.5, 2.5, &Point { x: 1, y: 2 }));
        black_box(join(&words, ", "));
        black_box(first(vec![7, 8, 9]));
        black_box(parsed("ff", Some(16))).ok();
        black_box(parsed("zz", None)).ok();
        black_box(shapes(&all, &all[1]));
        black_box(pair((9, 'ä'), (), u128::MAX));
        black_box(list(&list_));
        black_box(lies(text, numbers));
        std::thread::sleep(Duration::from_millis(2));
    }
}
"#;

#[test]
fn calls_of_rust_show_values_as_debug_does() {
    if cfg!(target_arch = "powerpc64") {
        return trapless_testing::inapplicable!(
            "nobody says where functions of Rust have their arguments there"
        );
    }
    for flags in [["-g", "-Copt-level=0"], ["-g", "-Copt-level=2"]] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (source, path) = (dir.path().join("typed.rs"), dir.path().join("typed"));
        std::fs::write(&source, RUST).unwrap();
        let mut rustc = Command::new("rustc");
        let built = rustc.args(["--edition", "2021"]).args(flags).arg("-o").args([&path, &source]).output();
        let Ok(built) = built else { return trapless_testing::skip!("no rustc") };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let target = Target::start(&mut Command::new(&path));
        // Optimized functions may have lost what their callers do not need: that is a question mark, and never another value.
        let is_optimized = flags[1] != "-Copt-level=0";
        let (square, big) =
            (r#"Named { name: "square", sides: 4 }"#, "340282366920938463463374607431768211455");
        let shapes = format!("shapes: [Circle(0.5), {square}, Empty]");
        let one = format!("one: &{square}");
        let big = format!("big: {big}");
        let joined = if IS_LEFT_WHERE_TOLD { "?" } else { r#""one, zwei ä""# };
        let cases: [(&str, &[&str], &str); 4] = [
            ("weigh", &["x: 1.5", "y: 2.5", "p: &Point { x: 1, y: 2 }"], "3.75"),
            ("join", &[r#"words: ["one", "zwei ä"]"#, r#"between: ", ""#], joined),
            ("pair", &["pair: (9, 'ä')", "()", &big], "(-1, true)"),
            ("shapes", &[&shapes, &one], "1267650600228229401496703205376"),
        ];
        for (function, arguments, result) in cases {
            let line = call(&path, &target, &format!("*web::{function}"));
            let mut rest =
                line.strip_prefix(&format!("typed::web::{function}(")).unwrap_or_else(|| panic!("{line}"));
            for (index, argument) in arguments.iter().enumerate() {
                rest =
                    rest.strip_prefix(if index > 0 { ", " } else { "" }).unwrap_or_else(|| panic!("{line}"));
                let unknown = argument.split_once(": ").map(|(name, _)| format!("{name}: ?"));
                let unknown = unknown.filter(|_| is_optimized);
                let left = rest.strip_prefix(argument).or_else(|| rest.strip_prefix(unknown?.as_str()));
                rest = left.unwrap_or_else(|| panic!("{argument} in {line}"));
            }
            assert!(rest == format!(") = {result}") || is_optimized && rest == ") = ?", "{result} in {line}");
        }
        // Unoptimized code does not tell where it is at the entry, and the compiler may have changed functions that nobody else calls.
        let first = call(&path, &target, "*web::first");
        let expected =
            ["typed::web::first(numbers: [7, 8, 9]) = Some(7)", "typed::web::first(numbers: ?) = Some(7)"];
        assert!(first == expected[0] || first == expected[1] && !is_optimized, "{first}");
        let pid = target.pid().to_string();
        let ran = run(&["trace", "--typed", "-p", &pid, "typed:*web::parsed", "-M", "2"]);
        for (arguments, result) in [
            (r#"text: "ff", base: Some(16)"#, "Ok(255)"),
            (r#"text: "zz", base: None"#, r#"Err("invalid digit found in string")"#),
        ] {
            let result = if IS_LEFT_WHERE_TOLD { "?" } else { result };
            let expected = &format!("parsed({arguments}) = {result}");
            let is_unknown = is_optimized && ran.out.contains("parsed(text: ?, base: ?) = ?");
            assert!(is_unknown || ran.out.contains(expected), "{expected}: {ran:?}");
        }
        // A list ends after a bound.
        let list = call(&path, &target, "*web::list");
        assert!(list.contains(r#"list: &List { name: "9", next: Some(List { name: "8","#), "{list}");
        let is_whole = list.ends_with("= 4") || is_optimized && list.ends_with("= ?");
        assert!(list.contains("...") && is_whole && list.len() < 300, "{list}");
        let lies = call(&path, &target, "*web::lies");
        let has = |known: &str, unknown: &str| lies.contains(known) || is_optimized && lies.contains(unknown);
        assert!(has("(text: \"start", "(text: ?"), "{lies}");
        assert!(has("numbers: 0x8 (unreadable))", "numbers: ?)"), "{lies}");
        assert!(lies.len() < 700, "{lies}");
    }
}

#[test]
fn functions_without_debug_information_are_shown_as_words() {
    let program = Program::build("typed", C, &["-O1"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let ran = run(&["trace", "--typed", "--args", "1", "-p", &pid, "typed:falls", "-M", "1"]);
    assert!(ran.out.contains("typed:falls(3) = -3 <"), "{ran:?}");
    let told = ran.err.lines().filter(|line| line.contains("1 function without types (falls)")).count();
    assert_eq!(told, 1, "{ran:?}");
}

#[test]
fn what_optimized_code_does_not_tell_is_a_question_mark() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <unistd.h>
static __attribute__((noinline)) int used(int kept, int *gone, int more) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop" ::: "memory");
    return kept * more;
}
int main(int argc, char **argv) {
    printf("ready\n");
    fflush(stdout);
    for (;;) { used(argc, &argc, 3); used(argc + 1, &argc, 3); usleep(2000); }
}
"#;
    let program = Program::build("typed", SOURCE, &["-g", "-O2"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let ran = run(&["trace", "--typed", "-p", &pid, "typed:used*", "-M", "1", "-f", "json"]);
    let hit = ran.json().into_iter().find(|line| line["type"] == "hit").unwrap();
    let arguments = hit["arguments"].as_array().unwrap();
    ran.json().iter().for_each(|line| Schema::read().check(line));
    let of = |name: &str| arguments.iter().find(|argument| argument["name"] == name).unwrap_or(&Value::Null);
    // `used` takes what its clone takes, or says that it does not know; it never tells of another register.
    let kept = &of("kept")["text"];
    assert!(*kept == "1" || *kept == "2" || kept.is_null(), "{ran:?}");
    let gone = of("gone");
    let is_address = gone["text"].as_str().is_some_and(|text| text.starts_with("0x7f"));
    assert!(is_address || gone["reason"].is_string(), "{ran:?}");
    assert!(["3", "null"].contains(&of("more")["text"].as_str().unwrap_or("null")), "{ran:?}");
}

#[test]
fn what_cannot_be_shown_with_types_is_refused() {
    let refused = |arguments: &[&str], words: &[&str]| {
        let ran: Ran = run(arguments);
        ran.assert_refused(2, words);
    };
    let pid = std::process::id().to_string();
    refused(
        &["trace", "--typed", "--allow-trap", "-p", &pid, "libc.so.6:malloc"],
        &["--typed", "jumps alone"],
    );
    refused(
        &["trace", "--typed", "--where", "arg0 > 1", "-p", &pid, "libc.so.6:malloc"],
        &["--typed", "--where"],
    );
    refused(&["trace", "--typed", "-p", &pid, "usdt:libc.so.6:libc:*"], &["USDT", "without --typed"]);
}

#[test]
fn calls_of_many_threads_are_told_apart_and_none_is_wrong() {
    const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
struct twice { long value, again; const char *text; };
__attribute__((noipa)) long check(struct twice *twice, long value) { __asm__ volatile("" ::: "memory"); return twice->again + value; }
__attribute__((noipa)) long outer(long value, char *text) { struct twice twice = { value, value, text }; return check(&twice, value) - value; }
static void *work(void *number) {
    char text[16];
    for (long i = 0;; i++) {
        long value = (long)number * 1000000 + i % 1000;
        snprintf(text, sizeof text, "%ld", value);
        outer(value, text);
        if (i % 4 == 0) usleep(10000);
    }
}
int main(void) {
    pthread_t thread;
    for (long number = 1; number < 5; number++) pthread_create(&thread, 0, work, (void *)number);
    printf("ready\n");
    fflush(stdout);
    pause();
}
"#;
    let program = Program::build("typed", SOURCE, &["-g", "-O1"]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let ran =
        run(&["trace", "--typed", "-p", &pid, "typed:check", "typed:outer", "-M", "4000", "-f", "json"]);
    let mut seen = 0;
    for hit in ran.json().into_iter().filter(|line| line["type"] == "hit" && line["arguments"].is_array()) {
        let arguments = hit["arguments"].as_array().unwrap();
        let text = |value: &Value| value["text"].as_str().unwrap_or_else(|| panic!("{hit}")).to_owned();
        if hit["kind"] == "entry" {
            continue;
        }
        let result: i64 = text(&hit["result"]).parse().unwrap();
        match hit["function"].as_str() {
            Some("check") => {
                let value = result / 2;
                let twice = format!("-> {{ .value = {value}, .again = {value}, .text = \"{value}\" }}");
                assert!(text(&arguments[0]).ends_with(&twice), "{hit}");
                assert_eq!(text(&arguments[1]), value.to_string(), "{hit}");
            }
            Some("outer") => {
                assert_eq!(text(&arguments[0]), result.to_string(), "{hit}");
                assert_eq!(text(&arguments[1]), format!("\"{result}\""), "{hit}");
            }
            _ => panic!("{hit}"),
        }
        seen += 1;
    }
    // On a busy machine many are lost, which makes two lines of a call.
    assert!(seen > 100, "{seen}");
}
