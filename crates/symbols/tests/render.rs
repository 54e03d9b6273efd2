//! Values of living programs, as text: variables of C, C++ and Rust programs that say nothing themselves.

mod tools;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use tools::{compile, open, skip_without};
use trapless_symbols::{
    Location, Types,
    render::{Layouts, Seen, follow, render},
};

/// A program that waits at the end of its `main`.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path) -> Waiting {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Waiting(child)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compares variables of a program, which is linked to fixed addresses, with what they should be written as.
fn expect(program: &Path, expected: &[(&str, &str)]) {
    let waiting = Waiting::start(program);
    let memory = File::open(format!("/proc/{}/mem", waiting.0.id())).unwrap();
    let mut read = |address: u64, size: usize| {
        let mut bytes = vec![0; size];
        Seen::from(memory.read_exact_at(&mut bytes, address).ok().map(|()| bytes))
    };
    let module = open(program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let mut wrong = Vec::new();
    let mut layouts = Layouts::default();
    for (name, expected) in expected {
        let variable = reader.variable(&mut types, name, None).unwrap();
        reader.complete(&mut types, variable.of);
        let Location::Address(address) = variable.location else { panic!("{name}: {:?}", variable.location) };
        let Seen::Bytes(bytes) = read(address, types.size(variable.of).unwrap() as usize) else {
            panic!("{name}")
        };
        let found = render(&types, variable.of, &bytes, &mut read);
        // The same from what is read beforehand, and nothing else.
        let mut complete = |types: &mut Types, id| {
            reader.complete(types, id);
        };
        let layout = layouts.of_value(&mut types, &mut complete, variable.of);
        let recorded = follow(&layouts, &[(layout, bytes.clone())], &mut read);
        let later = render(&types, variable.of, &bytes, &mut |address, size| recorded.look(address, size));
        if later != found {
            wrong.push(format!("{name}:\n   found {found}\n   later {later}"));
        }
        if found != *expected {
            wrong.push(format!(
                "{name}: {}\n   found {found}\nexpected {expected}",
                types.notation(variable.of)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}: {}", program.display(), wrong.join("\n"));
}

const C: &str = r#"
#include <stdio.h>
#include <complex.h>
#include <stdint.h>
#include <wchar.h>
enum color { RED, GREEN = 5, BLUE = -1 };
enum flags { READ = 1, WRITE = 2, EXEC = 4 };
struct point { int x, y; };
struct node { const char *name; struct node *next; };
struct bits { unsigned a : 3; int b : 5; _Bool c : 1; enum flags d : 3; long e : 40; };
struct outer { struct point at; struct { char c; union { int i; float f; }; }; struct point *to; };
typedef struct point point_t;
int number = -5;
unsigned char byte = 200;
char letter = 'x', newline = '\n';
_Bool truth = 1;
float single = 1.5f;
double twice = 0.1;
long double extended = -2.25L;
double complex pair = 1 + 2 * I;
__int128 wide = -((__int128)1 << 126);
const char *text = "a \"quoted\"\n\x01 text";
const char *none = 0;
const char *wild = (const char *)8;
const char *longer = "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789";
char buffer[16] = "in place";
int numbers[3] = {1, 2, 3};
short grid[2][3] = {{1, 2, 3}, {4, 5, 6}};
int many[100] = {7};
enum color color = GREEN, other = BLUE, neither = 77;
enum flags flags = READ | EXEC;
struct point point = {1, 2}, *to_point = &point, *nowhere = (struct point *)16;
point_t renamed = {3, 4};
struct bits bits = {5, -3, 1, WRITE, -1};
struct outer outer = {{1, 2}, {'c', {0x3f800000}}, 0};
struct node ring = {"first", 0}, second = {"second", &ring};
void (*function)(void) = (void (*)(void))0x401000;
void *pointer = (void *)0x1234;
wchar_t wide_letter = L'ä';
struct { int only; } unnamed = {1};
struct {} empty;
struct node *chain = &ring;
int main(void) { ring.next = &second; puts("ready"); fflush(stdout); return getchar(); }
"#;

#[test]
fn values_of_c_are_written_like_initializers() {
    if skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for flags in [["-gdwarf-4", "-O0"], ["-gdwarf-5", "-O2"], ["-gdwarf-3", "-gstrict-dwarf"]] {
        let flags = [&flags[..], &["-no-pie", "-fno-eliminate-unused-debug-symbols"]].concat();
        let program = compile("gcc", folder.path(), ("a.c", C), "a", &flags);
        let point = open(&program).variable("point").unwrap();
        let ring = open(&program).variable("ring").unwrap();
        let second = open(&program).variable("second").unwrap();
        let to_point = format!("{point:#x} -> {{ .x = 1, .y = 2 }}");
        let ring_text = format!("{{ .name = \"first\", .next = {second:#x} }}");
        let chain = format!("{ring:#x} -> {{ .name = \"first\", .next = {second:#x} }}");
        let cut = format!("\"{}...", &"0123456789".repeat(20)[..196]);
        let zeros = format!("{{7{}, ...}}", ", 0".repeat(31));
        expect(
            &program,
            &[
                ("number", "-5"),
                ("byte", "200"),
                ("letter", "'x'"),
                ("newline", "'\\n'"),
                ("truth", "true"),
                ("single", "1.5"),
                ("twice", "0.1"),
                ("extended", "-2.25"),
                ("pair", "1.0 + 2.0i"),
                ("wide", "-85070591730234615865843651857942052864"),
                ("text", r#""a \"quoted\"\n\x01 text""#),
                ("none", "NULL"),
                ("wild", "0x8 (unreadable)"),
                ("longer", &cut),
                ("buffer", "\"in place\""),
                ("numbers", "{1, 2, 3}"),
                ("grid", "{{1, 2, 3}, {4, 5, 6}}"),
                ("many", &zeros),
                ("color", "GREEN"),
                ("other", "BLUE"),
                ("neither", "77"),
                ("flags", "READ | EXEC"),
                ("point", "{ .x = 1, .y = 2 }"),
                ("to_point", &to_point),
                ("nowhere", "0x10 (unreadable)"),
                ("renamed", "{ .x = 3, .y = 4 }"),
                ("bits", "{ .a = 5, .b = -3, .c = true, .d = WRITE, .e = -1 }"),
                ("outer", "{ .at = { .x = 1, .y = 2 }, .c = 'c', .i = 1065353216, .f = 1.0, .to = NULL }"),
                ("ring", &ring_text),
                ("chain", &chain),
                ("function", "0x401000"),
                ("pointer", "0x1234"),
                ("wide_letter", "'ä'"),
                ("unnamed", "{ .only = 1 }"),
                ("empty", "{}"),
            ],
        );
    }
}

const CPP: &str = r#"
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <atomic>
#include <map>
namespace shapes {
struct Point { int x; int y; };
enum class Color : unsigned char { Red = 1, Green };
struct Named { virtual ~Named() {} std::string name = "base"; };
struct Circle : Named { Point center{1, 2}; double radius = 1.5; static int count; };
int Circle::count = 3;
Circle circle;
Color color = Color::Green;
}
std::string brief = "brief", longer(30, 'y'), empty;
std::string_view view = "a view";
std::vector<int> numbers = {1, 2, 3};
std::vector<std::string> words = {"one", "two"};
std::vector<shapes::Point> points = {{1, 2}, {3, 4}};
std::vector<int> nothing;
std::unique_ptr<shapes::Point> unique = std::make_unique<shapes::Point>(shapes::Point{5, 6}), null_unique;
std::shared_ptr<std::string> shared = std::make_shared<std::string>("shared");
std::optional<int> maybe = 7, not_there;
std::optional<std::string> maybe_text = "inside";
std::atomic<int> atomic{9};
shapes::Point point{8, 9};
shapes::Point &reference = point;
const char8_t *utf8 = u8"ü";
int shapes::Point::*member = &shapes::Point::y;
int main() { printf("ready\n"); fflush(stdout); return getchar() + shapes::Circle::count; }
"#;

const CPP_EXPECTED: &[(&str, &str)] = &[
    ("brief", "\"brief\""),
    ("longer", "\"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\""),
    ("empty", "\"\""),
    ("view", "\"a view\""),
    ("numbers", "{1, 2, 3}"),
    ("words", "{\"one\", \"two\"}"),
    ("points", "{{ .x = 1, .y = 2 }, { .x = 3, .y = 4 }}"),
    ("nothing", "{}"),
    ("unique", "{ .x = 5, .y = 6 }"),
    ("null_unique", "nullptr"),
    ("shared", "\"shared\""),
    ("maybe", "7"),
    ("not_there", "nullopt"),
    ("maybe_text", "\"inside\""),
    ("atomic", "9"),
    ("point", "{ .x = 8, .y = 9 }"),
    ("reference", "{ .x = 8, .y = 9 }"),
    ("utf8", "\"ü\""),
    ("member", "0x4"),
    ("shapes::color", "Color::Green"),
    ("shapes::Circle::count", "3"),
    ("shapes::circle", "{ .name = \"base\", .center = { .x = 1, .y = 2 }, .radius = 1.5 }"),
    ("circle", "{ .name = \"base\", .center = { .x = 1, .y = 2 }, .radius = 1.5 }"),
];

#[test]
fn values_of_cpp_are_what_they_stand_for() {
    if skip_without(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for flags in [["-gdwarf-4", "-O0"], ["-gdwarf-5", "-O2"], ["-gdwarf-5", "-D_GLIBCXX_USE_CXX11_ABI=0"]] {
        let flags = [&flags[..], &["-no-pie", "-std=c++20"]].concat();
        let program = compile("g++", folder.path(), ("a.cc", CPP), "a", &flags);
        expect(&program, CPP_EXPECTED);
    }
}

#[test]
fn values_of_libcpp_are_what_they_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe.cc");
    std::fs::write(&probe, "#include <string>\n").unwrap();
    let has = Command::new("clang++").args(["-stdlib=libc++", "-fsyntax-only"]).arg(&probe).output();
    if !has.is_ok_and(|output| output.status.success()) {
        return trapless_testing::skip!("no clang++ with libc++");
    }
    let flags = ["-stdlib=libc++", "-g", "-fstandalone-debug", "-std=c++20", "-no-pie", "-fno-pie"];
    let program = compile("clang++", folder.path(), ("a.cc", CPP), "a", &flags);
    expect(&program, CPP_EXPECTED);
}

const RUST: &str = r#"
#![allow(dead_code, static_mut_refs)]
use std::{io::Read, rc::Rc, sync::{Arc, atomic::AtomicU32}, cell::Cell, num::NonZeroU8, path::PathBuf};
pub struct Point { x: i32, y: i32 }
pub struct Tuple(u8, f32);
pub struct Unit;
pub enum Shape { Circle(f64), Square { side: u32 }, Empty }
pub enum Small { A, B = 7 }
pub enum Wide { A(u128), B }
type Callback = Box<dyn Fn(i32) -> i32>;
macro_rules! globals { ($($name:ident: $type:ty = $value:expr;)*) => {
    $(#[used] static mut $name: Option<$type> = None;)*
    fn fill() { unsafe { $($name = Some($value);)* } }
} }
globals! {
    TEXT: &'static str = "a \"text\" ä";
    OWNED: String = "owned".to_owned();
    NUMBERS: Vec<u32> = vec![1, 2, 3];
    SLICE: &'static [i8] = &[-1, 2];
    BOXED: Box<Point> = Box::new(Point { x: 1, y: -2 });
    BOXED_STR: Box<str> = "boxed".into();
    POINT: Point = Point { x: 3, y: 4 };
    TUPLE: Tuple = Tuple(1, 2.5);
    PAIR: (u8, char) = (9, 'ä');
    SINGLE: (u8,) = (9,);
    UNIT: Unit = Unit;
    NOTHING: () = ();
    CIRCLE: Shape = Shape::Circle(0.5);
    SQUARE: Shape = Shape::Square { side: 4 };
    EMPTY: Shape = Shape::Empty;
    SMALL: Small = Small::B;
    WIDE: Wide = Wide::A(1 << 100);
    BIG: u128 = u128::MAX;
    NEGATIVE: i128 = -1;
    NESTED: Option<Option<bool>> = Some(Some(true));
    NESTED_NONE: Option<Option<bool>> = Some(None);
    NICHE: Option<NonZeroU8> = NonZeroU8::new(5);
    NO_BOX: Option<Box<u8>> = None;
    FINE: Result<u64, String> = Ok(5);
    FAILED: Result<u64, String> = Err("wrong".to_owned());
    REFERENCE: &'static Point = &Point { x: 5, y: 6 };
    ARRAY: [[u8; 2]; 2] = [[1, 2], [3, 4]];
    RC: Rc<Point> = Rc::new(Point { x: 7, y: 8 });
    ARC: Arc<String> = Arc::new("shared".to_owned());
    CELL: Cell<i16> = Cell::new(-3);
    ATOMIC: AtomicU32 = AtomicU32::new(12);
    PATH: PathBuf = "/tmp/x".into();
    WORDS: Vec<String> = vec!["one".into(), "two".into()];
    TRUTH: bool = false;
    FLOAT: f32 = 0.1;
}
fn main() { fill(); println!("ready"); let _ = std::io::stdin().read(&mut [0]); }
"#;

#[test]
fn values_of_rust_are_written_like_debug_does() {
    if skip_without(&["rustc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for flags in [["-g", "-Copt-level=0"], ["-g", "-Copt-level=2"]] {
        let flags = [&flags[..], &["-Crelocation-model=static", "-Ctarget-feature=+crt-static"]].concat();
        let program = compile("rustc", folder.path(), ("a.rs", RUST), "a", &flags);
        expect(
            &program,
            &[
                ("TEXT", r#"Some("a \"text\" ä")"#),
                ("OWNED", r#"Some("owned")"#),
                ("NUMBERS", "Some([1, 2, 3])"),
                ("SLICE", "Some([-1, 2])"),
                ("BOXED", "Some(Point { x: 1, y: -2 })"),
                ("BOXED_STR", r#"Some("boxed")"#),
                ("POINT", "Some(Point { x: 3, y: 4 })"),
                ("TUPLE", "Some(Tuple(1, 2.5))"),
                ("PAIR", "Some((9, 'ä'))"),
                ("SINGLE", "Some((9,))"),
                ("UNIT", "Some(Unit)"),
                ("NOTHING", "Some(())"),
                ("CIRCLE", "Some(Circle(0.5))"),
                ("SQUARE", "Some(Square { side: 4 })"),
                ("EMPTY", "Some(Empty)"),
                ("SMALL", "Some(B)"),
                ("WIDE", "Some(A(1267650600228229401496703205376))"),
                ("BIG", "Some(340282366920938463463374607431768211455)"),
                ("NEGATIVE", "Some(-1)"),
                ("NESTED", "Some(Some(Some(true)))"),
                ("NESTED_NONE", "Some(Some(None))"),
                ("NICHE", "Some(Some(5))"),
                ("NO_BOX", "Some(None)"),
                ("FINE", "Some(Ok(5))"),
                ("FAILED", r#"Some(Err("wrong"))"#),
                ("REFERENCE", "Some(&Point { x: 5, y: 6 })"),
                ("ARRAY", "Some([[1, 2], [3, 4]])"),
                ("RC", "Some(Point { x: 7, y: 8 })"),
                ("ARC", r#"Some("shared")"#),
                ("CELL", "Some(-3)"),
                ("ATOMIC", "Some(12)"),
                ("PATH", r#"Some("/tmp/x")"#),
                ("WORDS", r#"Some(["one", "two"])"#),
                ("TRUTH", "Some(false)"),
                ("FLOAT", "Some(0.1)"),
            ],
        );
    }
}
