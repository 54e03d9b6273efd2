//! Types, parameters and variables as debug information tells them, in every form that compilers and tools give it.

mod tools;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tools::{compile, open, run, skip_without, tool};
use trapless_symbols::{
    DebugSearch, Location, Module, ResultLocation, Scope, TypeReader, Types, TypesError, Unavailable,
    types::{Bits, Kind},
};

const C: &str = r#"
#include <stddef.h>
enum color { RED, GREEN = 5, BLUE = -1 };
struct hidden;
struct point { int x; int y; };
struct list { struct list *next; union { long number; char bytes[8]; }; struct { short low, high; } halves; };
struct bits { unsigned a : 3, b : 7; long c : 40; };
typedef struct { double d; const char *name; } pair;
typedef int (*callback)(const char *, struct list *, ...);
typedef unsigned long words[4];
struct aligned { char c; int wide __attribute__((aligned(32))); };
int counter = 7;
const char *const names[3][2] = {{"name"}};
static __thread int of_thread = 1;
struct aligned aligned;
words some_words;
__attribute__((noinline)) int walk(struct list *head, int limit, callback each, enum color color)
{
	int steps = 0;
	for (struct list *at = head; at && steps < limit; at = at->next) {
		int got = each(names[0][0], at);
		steps += got + color;
	}
	return steps + of_thread++;
}
__attribute__((noinline)) pair swap(pair p, volatile struct bits *bits, struct hidden *hidden)
{
	p.d += bits->a + (hidden != NULL);
	return p;
}
static int each(const char *name, struct list *list, ...) { return name != 0; }
int main(int argc, char **argv) { struct bits bits = {1, 2, 3}; pair p = {1, "x"}; struct list l = {0};
	return walk(&l, argc, each, GREEN) + (int)swap(p, &bits, NULL).d + aligned.c + some_words[0] + counter; }
"#;
const OTHER: &str = "struct hidden { struct hidden *self; int secret; }; struct hidden hiding; int other(struct hidden *h) { return h->secret; }\n";

/// The program in one of the forms in which its debug information may be.
fn build(folder: &Path, flags: &[&str]) -> PathBuf {
    std::fs::write(folder.join("other.c"), OTHER).unwrap();
    let flags = [flags, &["other.c"]].concat();
    compile("gcc", folder, ("a.c", C), "a", &flags)
}

/// How parameters are written: name, type, place.
fn parameters(
    reader: &mut TypeReader<'_>,
    types: &mut Types,
    address: u64,
) -> Vec<(String, String, Location)> {
    let function = reader.function(types, address).unwrap();
    let all = function.parameters.into_iter().map(|parameter| {
        (parameter.name.unwrap_or_default().to_string(), types.notation(parameter.of), parameter.location)
    });
    all.collect()
}

/// Looks at everything that the program has.
fn check(module: &Module) {
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let address = |name: &str| module.function_named(name).unwrap().address();
    let [rdi, rsi, rdx, rcx] = [5, 4, 1, 2].map(Location::Register);
    let expected = [
        ("head", "struct list *", rdi.clone()),
        ("limit", "int", rsi),
        ("each", "callback", rdx),
        ("color", "enum color", rcx),
    ];
    let expected = expected.map(|(name, of, location)| (name.to_owned(), of.to_owned(), location));
    assert_eq!(parameters(&mut reader, &mut types, address("walk")), expected);
    let swap = reader.function(&mut types, address("swap")).unwrap();
    let notations: Vec<String> =
        swap.parameters.iter().map(|parameter| types.notation(parameter.of)).collect();
    assert_eq!(notations, ["pair", "volatile struct bits *", "struct hidden *"]);
    let Location::Pieces(pieces) = &swap.parameters[0].location else { panic!() };
    assert_eq!(
        pieces.iter().map(|piece| &piece.location).collect::<Vec<_>>(),
        [&Location::Register(17), &rdi]
    );
    let ResultLocation::At(Location::Pieces(pieces)) = &swap.result_location else { panic!() };
    let registers: Vec<_> = pieces.iter().map(|piece| &piece.location).collect();
    assert_eq!(registers, [&Location::Register(17), &Location::Register(0)]);

    // What is only declared here is described elsewhere.
    let hidden = types.target(swap.parameters[2].of).unwrap();
    assert!(reader.complete(&mut types, hidden));
    assert_eq!(types.field(hidden, "secret").unwrap().offset, 8);
    assert_eq!(types.field(hidden, "self.self.secret"), None, "a pointer is not followed");

    let walk = Some(address("walk"));
    for near in [None, walk] {
        let list = reader.type_named(&mut types, "struct list", near).unwrap();
        assert_eq!((types.size(list), types.align(list)), (Some(24), 8));
        for (path, offset, of) in [
            ("next", 0, "struct list *"),
            ("number", 8, "long"),
            ("bytes", 8, "char[8]"),
            ("halves", 16, "struct {...}"),
            ("halves.high", 18, "short"),
        ] {
            let field = types.field(list, path).unwrap();
            // clang says `long`.
            let notation = types.notation(field.of).replace("long int", "long").replace("short int", "short");
            assert_eq!((field.offset, notation.as_str()), (offset, of), "{path}");
        }
        assert_eq!(types.field(list, "low"), None, "the name of a struct is needed");
        let bits = reader.type_named(&mut types, "bits", near).unwrap();
        let place = |name| types.field(bits, name).map(|field| (field.offset, field.bits.unwrap()));
        assert_eq!(place("a"), Some((0, Bits { first: 0, count: 3 })));
        assert_eq!(place("b"), Some((0, Bits { first: 3, count: 7 })));
        assert_eq!(place("c"), Some((1, Bits { first: 2, count: 40 })));
        for (name, notation, size) in [
            ("struct list **", "struct list **", Some(8)),
            ("enum color", "enum color", Some(4)),
            ("color", "enum color", Some(4)),
            ("callback", "callback", Some(8)),
            ("words", "words", Some(32)),
            ("unsigned int", "unsigned int", Some(4)),
            ("unsigned", "unsigned int", Some(4)),
            ("void *", "void *", Some(8)),
            ("struct aligned", "struct aligned", Some(64)),
        ] {
            let id = reader.type_named(&mut types, name, near).unwrap();
            assert_eq!((types.notation(id), types.size(id)), (notation.to_owned(), size), "{name}");
        }
        let callback = reader.type_named(&mut types, "callback", near).unwrap();
        assert_eq!(types.notation(types.stripped(callback)), "int (*)(const char *, struct list *, ...)");
        let aligned = reader.type_named(&mut types, "struct aligned", near).unwrap();
        assert_eq!(types.field(aligned, "wide").unwrap().offset, 32);
        // In DWARF 4, clang does not tell what was asked for.
        assert!(matches!(types.align(aligned), 32 | 4));
        for name in ["struct nothing", "union list", "enum list", "", "*", "struct"] {
            let found = reader.type_named(&mut types, name, near);
            assert!(matches!(found, Err(TypesError::NoType(_))), "{name}");
        }
        let (color, blue) = reader.enumerator(&mut types, "BLUE", near).unwrap();
        assert_eq!((types.notation(color).as_str(), blue), ("enum color", -1));
        let counter = reader.variable(&mut types, "counter", near).unwrap();
        assert_eq!(counter.location, Location::Address(module.variable("counter").unwrap()));
        let names = reader.variable(&mut types, "names", near).unwrap();
        assert_eq!(types.notation(names.of), "const char *const[3][2]");
        let of_thread = reader.variable(&mut types, "of_thread", near).unwrap();
        // In the split units of DWARF 4, gcc leaves the offset unrelocated.
        assert!(matches!(of_thread.location, Location::ThreadLocal(_)) && of_thread.scope == Scope::Global);
        assert!(matches!(reader.variable(&mut types, "steps", near), Err(TypesError::NoVariable(_))));
    }
    let color = reader.type_named(&mut types, "color", None).unwrap();
    let Kind::Enum(color) = types.kind(color) else { panic!() };
    assert_eq!((color.name_of(5), color.value_of("BLUE"), color.name_of(1)), (Some("GREEN"), Some(-1), None));
    assert!(matches!(reader.function(&mut types, 0x10), Err(TypesError::NoFunction(0x10))));
}

#[test]
fn types_and_places_are_told_in_all_forms_of_dwarf() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc"]) {
        return;
    }
    for flags in [
        &["-gdwarf-3", "-O0"][..],
        &["-gdwarf-4", "-O0"],
        &["-gdwarf-5", "-O0"],
        &["-gdwarf-5", "-O2"],
        &["-gdwarf-4", "-O2"],
        &["-gdwarf-4", "-fdebug-types-section"],
        &["-gdwarf-5", "-fdebug-types-section", "-O1"],
        &["-gdwarf-5", "-gsplit-dwarf"],
        &["-gdwarf-4", "-gsplit-dwarf", "-O2"],
        &["-gdwarf-4", "-gsplit-dwarf", "-fdebug-types-section"],
        &["-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section"],
        &["-gdwarf-5", "-gz"],
        &["-gdwarf64", "-gdwarf-5"],
        &["-g", "-fcf-protection=full", "-O0"],
        &["-g", "-flto", "-O0"],
    ] {
        println!("{flags:?}");
        let folder = tempfile::tempdir().unwrap();
        let program = build(folder.path(), flags);
        check(&Module::open(&program).unwrap());
    }
}

#[test]
fn clang_tells_the_same() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["clang"]) {
        return;
    }
    for flags in [
        &["-gdwarf-4", "-O0"][..],
        &["-gdwarf-5", "-O0"],
        &["-gdwarf-5", "-O1"],
        &["-gdwarf-5", "-gsplit-dwarf"],
    ] {
        println!("{flags:?}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other.c"), OTHER).unwrap();
        let flags = [flags, &["other.c"]].concat();
        let program = compile("clang", folder.path(), ("a.c", C), "a", &flags);
        check(&Module::open(&program).unwrap());
    }
}

#[test]
fn packages_replace_the_files_beside_the_objects() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc", "dwp"]) {
        return;
    }
    for flags in [["-gdwarf-5", "-gsplit-dwarf"], ["-gdwarf-4", "-gsplit-dwarf"]] {
        for types_apart in [&[][..], &["-fdebug-types-section"]] {
            let folder = tempfile::tempdir().unwrap();
            let program = build(folder.path(), &[&flags[..], types_apart].concat());
            let missing = |folder: &Path| {
                let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
                for path in all.filter(|path| path.extension().is_some_and(|ending| ending == "dwo")) {
                    std::fs::remove_file(path).unwrap();
                }
            };
            // Of types apart, this version of dwp writes what it cannot read.
            let packed =
                Command::new("dwp").current_dir(folder.path()).args(["-e", "a", "-o", "a.dwp"]).output();
            let is_packed = packed.is_ok_and(|output| output.status.success());
            missing(folder.path());
            if is_packed {
                println!("{flags:?} {types_apart:?}");
                check(&Module::open(&program).unwrap());
                std::fs::remove_file(folder.path().join("a.dwp")).unwrap();
            }
            let module = Module::open(&program).unwrap();
            let walk = module.function_named("walk").unwrap().address();
            let found = module.type_reader().unwrap().function(&mut Types::new(), walk);
            assert!(matches!(found, Err(TypesError::NoSplitFile(_))), "{found:?}");
        }
    }
}

#[test]
fn what_dwz_moves_is_followed() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc", "dwz"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let program = build(folder.path(), &[version]);
        // Within one file, and between two.
        let copy = folder.path().join("b");
        std::fs::copy(&program, &copy).unwrap();
        tool(folder.path(), "dwz", &["a"]);
        check(&open(&program));
        let program = build(folder.path(), &[version]);
        tool(folder.path(), "dwz", &["-m", "shared.debug", "-M", "shared.debug", "a", "b"]);
        check(&Module::open(&program).unwrap());
        check(&Module::open(&copy).unwrap());
    }
}

#[test]
fn debug_files_are_found_by_link_by_build_id_and_where_debuginfod_leaves_them() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc", "objcopy", "strip"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let program = build(here, &["-g", "-Wl,--build-id=0xabcdef0123456789"]);
    // Not `a.debug`, which is found beside `a` without a link.
    tool(here, "objcopy", &["--only-keep-debug", "a", "kept.debug"]);
    tool(here, "strip", &["--strip-debug", "a"]);
    assert!(matches!(Module::open(&program).unwrap().type_reader(), Err(TypesError::NoDebugInfo)));
    let fetched = here.join("client/abcdef0123456789");
    std::fs::create_dir_all(&fetched).unwrap();
    std::fs::copy(here.join("kept.debug"), fetched.join("debuginfo")).unwrap();
    let search =
        DebugSearch { roots: Vec::new(), fetched: vec![here.join("client")], ..DebugSearch::default() };
    check(&Module::open_with(&program, search).unwrap());
    let by_id = here.join("root/.build-id/ab");
    std::fs::create_dir_all(&by_id).unwrap();
    std::fs::copy(here.join("kept.debug"), by_id.join("cdef0123456789.debug")).unwrap();
    let search = DebugSearch { roots: vec![here.join("root")], ..DebugSearch::default() };
    check(&Module::open_with(&program, search).unwrap());
    tool(here, "objcopy", &["--add-gnu-debuglink=kept.debug", "a"]);
    check(&Module::open(&program).unwrap());
}

#[test]
fn variables_are_told_where_control_is() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), &["-gdwarf-5", "-O0", "-fno-omit-frame-pointer"]);
    let module = open(&program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let mut at = |line: u32| {
        let address = module.statements("a.c", line, None).unwrap().statements[0].address;
        let all = reader.locals(&mut types, address).unwrap();
        let told = all.iter().map(|variable| {
            (
                variable.name.as_deref().unwrap_or_default().to_owned(),
                variable.location.clone(),
                variable.scope,
            )
        });
        told.collect::<Vec<_>>()
    };
    let line_of = |text: &str| 1 + C.lines().position(|line| line.contains(text)).unwrap() as u32;
    let frame = |offset| Location::Memory { register: 6, offset };
    let inside = at(line_of("steps += got"));
    let names: Vec<(&str, Scope)> = inside.iter().map(|(name, _, scope)| (name.as_str(), *scope)).collect();
    assert_eq!(
        names,
        [
            ("head", Scope::Parameter),
            ("limit", Scope::Parameter),
            ("each", Scope::Parameter),
            ("color", Scope::Parameter),
            ("steps", Scope::Local),
            ("at", Scope::Local),
            ("got", Scope::Local),
        ]
    );
    assert!(
        inside.iter().all(|(_, location, _)| matches!(location, Location::Memory { register: 6, .. })),
        "{inside:?}"
    );
    assert_eq!(inside[0].1, frame(-40));
    assert_eq!(at(line_of("return steps")).len(), 5, "blocks that have ended have no variables");
}

#[test]
fn optimized_parameters_move_and_vanish() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    const SOURCE: &str = "int other(int);\n__attribute__((noinline)) int moves(int a, int b) { int s = other(b); return s + other(s); }\n\
        static __attribute__((noinline)) int part(int unused, int used, const int *p) { return used * *p + other(used); }\n\
        int main(int argc, char **argv) { int x = 3; return moves(argc, 2) + part(1, argc, &x); }\n\
        __attribute__((noipa)) int other(int n) { return n; }\n";
    let program = compile("gcc", folder.path(), ("o.c", SOURCE), "o", &["-O2", "-g"]);
    let module = open(&program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let moves = module.function_named("moves").unwrap();
    let entry = parameters(&mut reader, &mut types, moves.address());
    assert_eq!(entry[1].2, Location::Register(4));
    let last = moves.range().end - 1;
    let late = parameters(&mut reader, &mut types, last);
    assert!(
        late.iter().all(|(.., location)| matches!(location, Location::Unavailable(_))),
        "after the calls, nothing is kept: {late:?}"
    );
    assert!(
        late.iter().any(|(.., location)| *location == Location::Unavailable(Unavailable::OnlyAtEntry)),
        "{late:?}"
    );
    // A clone with other parameters takes only those it says.
    let clone = module
        .functions()
        .iter()
        .find(|function| function.names().any(|name| name.plain().starts_with("part.")));
    if let Some(clone) = clone {
        let told = parameters(&mut reader, &mut types, clone.address());
        let names: Vec<&str> = told.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["unused", "used", "p"]);
        assert!(matches!(told[0].2, Location::Constant(_)), "{told:?}");
        assert_eq!(told[2].2, Location::Unavailable(Unavailable::Changed));
    }
}

const CPP: &str = r#"
#include <string>
namespace shapes {
template <typename T, int N> struct Box { T values[N]; T first() const; };
template <typename T, int N> T Box<T, N>::first() const { return values[0]; }
struct Base { virtual ~Base() {} int base = 1; };
class Circle : public Base { public: double radius = 2; static int count; __attribute__((noinline)) double area(float scale, const std::string &name); };
int Circle::count = 1;
double Circle::area(float scale, const std::string &name) { return radius * scale + name.size() + count; }
namespace { enum class Mode : unsigned char { Fast, Slow }; struct Local { Mode mode; }; }
__attribute__((noinline)) std::string join(std::string first, Local local, int &&n, Box<long, 3> box, decltype(nullptr) none) { return first + std::to_string(n + (int)local.mode + box.first()); }
}
struct Empty {};
__attribute__((noinline)) int empty(Empty e, int n) { return n; }
int main(int argc, char **) { shapes::Circle c; return c.area(argc, "name") + shapes::join("a", {shapes::Mode::Slow}, 3, {{1, 2, 3}}, nullptr).size() + empty({}, argc); }
"#;

#[test]
fn classes_templates_and_objects_are_passed_as_cpp_does() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (compiler, flags) in [
        ("g++", ["-gdwarf-4", "-O0"]),
        ("g++", ["-gdwarf-5", "-O1"]),
        ("g++", ["-gdwarf-5", "-fdebug-types-section"]),
        ("clang++", ["-gdwarf-5", "-O0"]),
    ] {
        if skip_without(&[compiler]) {
            continue;
        }
        println!("{compiler} {flags:?}");
        // Else clang leaves the library's classes to the library.
        let whole = if compiler == "clang++" { &["-fstandalone-debug"][..] } else { &[] };
        let program = compile(compiler, folder.path(), ("a.cc", CPP), "a", &[&flags[..], whole].concat());
        let module = open(&program);
        let mut types = Types::new();
        let mut reader = module.type_reader().unwrap();
        let mut of = |symbol: &str| {
            let address =
                module.functions().iter().find(|function| function.name().demangled().path == symbol);
            let address = address.unwrap_or_else(|| panic!("{symbol}")).address();
            let function = reader.function(&mut types, address).unwrap();
            assert_eq!(function.name.as_deref(), Some(symbol));
            let all = function.parameters.iter().map(|parameter| {
                let name = parameter.name.as_deref().unwrap_or_default().to_owned();
                (name, types.notation(parameter.of), parameter.location.clone())
            });
            (all.collect::<Vec<_>>(), function.result_location)
        };
        let (area, result) = of("shapes::Circle::area");
        let this = (
            area[0].0.as_str(),
            area[0].1.trim_start_matches("const ").trim_end_matches("const"),
            &area[0].2,
        );
        assert_eq!(this, ("this", "shapes::Circle *", &Location::Register(5)));
        assert_eq!((area[1].1.as_str(), &area[1].2), ("float", &Location::Register(17)));
        assert_eq!((area[2].0.as_str(), &area[2].2), ("name", &Location::Register(4)));
        assert!(area[2].1.starts_with("const std::") && area[2].1.ends_with(" &"), "{}", area[2].1);
        assert_eq!(result, ResultLocation::At(Location::Register(17)));
        let (join, result) = of("shapes::join");
        // A string has a destructor: it comes, and goes, by its address.
        assert_eq!(result, ResultLocation::At(Location::Memory { register: 0, offset: 0 }));
        let in_memory = |register| Location::Memory { register, offset: 0 };
        assert_eq!(join[0].2, in_memory(4));
        assert_eq!(join[1].1, "shapes::(anonymous namespace)::Local");
        assert_eq!((join[2].1.as_str(), &join[2].2), ("int &&", &Location::Register(2)));
        assert_eq!(
            join[3].1,
            "shapes::Box<long, 3>".replace("long", if compiler == "g++" { "long int" } else { "long" })
        );
        assert_eq!(join[3].2, Location::Memory { register: 7, offset: 8 });
        assert_eq!(join[1].2, Location::Register(1));
        let (empty, _) = of("empty");
        assert_eq!(empty[1].2, Location::Register(5), "an empty object takes no register");

        let circle = reader.type_named(&mut types, "shapes::Circle", None).unwrap();
        for (path, offset) in [("radius", 16), ("base", 8)] {
            assert_eq!(types.field(circle, path).map(|field| field.offset), Some(offset), "{path}");
        }
        assert_eq!(reader.type_named(&mut types, "class Circle", None), Ok(circle));
        assert_eq!(
            reader.type_named(&mut types, "Circle *", None).map(|id| types.notation(id)),
            Ok("shapes::Circle *".into())
        );
        let count = reader.variable(&mut types, "shapes::Circle::count", None).unwrap();
        assert!(matches!(count.location, Location::Address(_)));
        let (mode, slow) = reader.enumerator(&mut types, "Slow", None).unwrap();
        assert_eq!((types.notation(mode).as_str(), slow), ("shapes::(anonymous namespace)::Mode", 1));
    }
}

const RUST: &str = r#"
use std::{collections::HashMap, hint::black_box};
pub struct Point { pub x: i32, pub y: i32 }
pub enum Shape { Circle(f64), Square { side: u32 }, Empty }
pub enum Small { A, B, C }
#[no_mangle] #[inline(never)] pub fn texts(s: &str, owned: String, v: Vec<u32>, slice: &[u8]) -> usize { black_box((s, &owned, &v, slice)); 1 }
#[no_mangle] #[inline(never)] pub fn options(a: Option<u32>, b: Option<&Point>, c: Option<Box<Point>>, d: Result<u64, String>, e: Option<String>) -> Option<u64> { black_box((a, b, c, d, e)); None }
#[no_mangle] #[inline(never)] pub fn shapes(s: Shape, t: &Shape, u: Small, w: u128, p: Point, ch: char, b: bool, f: f32) -> Point { black_box((s, t, u, w, ch, b, f)); p }
#[no_mangle] #[inline(never)] pub fn others(a: [u8; 3], t: (u8, u64), d: &dyn Fn(i32) -> i32, m: &HashMap<u32, u32>) -> String { black_box((a, t, d, m)); String::new() }
#[no_mangle] #[inline(never)] pub extern "C" fn outside(a: [u8; 3], p: Point) -> u8 { black_box((a, p)); 3 }
fn main() {
    let p = Point { x: 1, y: 2 };
    black_box((texts("abc", "owned".into(), vec![1], &[1, 2]), options(Some(3), Some(&p), None, Ok(5), None)));
    black_box(shapes(Shape::Square { side: 4 }, &Shape::Circle(1.5), Small::B, 1 << 70, p, 'a', true, 2.5));
    black_box((others([1, 2, 3], (1, 2), &|x| x + 1, &HashMap::new()), Shape::Empty, Small::A, Small::C));
}
"#;

/// Compared by hand with the code that rustc 1.95 makes of it.
#[test]
fn rust_functions_take_numbers_and_pairs_in_registers() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["rustc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("rustc", folder.path(), ("a.rs", RUST), "a", &["-g"]);
    let module = open(&program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let register = Location::Register;
    let by = |register| Location::Memory { register, offset: 0 };
    let on_stack = |offset| Location::Memory { register: 7, offset };
    // Registers: 5 rdi, 4 rsi, 1 rdx, 2 rcx, 8 r8, 9 r9, 17 xmm0.
    for (name, expected) in [
        (
            "texts",
            vec![
                ("&str", vec![register(5), register(4)]),
                ("alloc::string::String", vec![by(1)]),
                ("alloc::vec::Vec<u32, alloc::alloc::Global>", vec![by(2)]),
                ("&[u8]", vec![register(8), register(9)]),
            ],
        ),
        (
            "options",
            vec![
                ("core::option::Option<u32>", vec![register(5), register(4)]),
                ("core::option::Option<&a::Point>", vec![register(1)]),
                (
                    "core::option::Option<alloc::boxed::Box<a::Point, alloc::alloc::Global>>",
                    vec![register(2)],
                ),
                ("core::result::Result<u64, alloc::string::String>", vec![by(8)]),
                ("core::option::Option<alloc::string::String>", vec![by(9)]),
            ],
        ),
        (
            "shapes",
            vec![
                ("a::Shape", vec![by(5)]),
                ("&a::Shape", vec![register(4)]),
                ("a::Small", vec![register(1)]),
                ("u128", vec![register(2), register(8)]),
                ("a::Point", vec![register(9), on_stack(8)]),
                ("char", vec![on_stack(16)]),
                ("bool", vec![on_stack(24)]),
                ("f32", vec![register(17)]),
            ],
        ),
        (
            "others",
            vec![
                ("[u8; 3]", vec![register(4)]),
                ("(u8, u64)", vec![register(1), Location::Constant(Vec::new()), register(2)]),
                ("&dyn core::ops::function::Fn<(i32), Output=i32>", vec![register(8), register(9)]),
                (
                    "&std::collections::hash::map::HashMap<u32, u32, std::hash::random::RandomState, alloc::alloc::Global>",
                    vec![on_stack(8)],
                ),
            ],
        ),
    ] {
        let address = module.function_named(name).unwrap().address();
        let found: Vec<(String, Vec<Location>)> = parameters(&mut reader, &mut types, address)
            .into_iter()
            .map(|(_, of, location)| match location {
                Location::Pieces(pieces) => (of, pieces.into_iter().map(|piece| piece.location).collect()),
                other => (of, vec![other]),
            })
            .collect();
        let expected: Vec<_> = expected.into_iter().map(|(of, places)| (of.to_owned(), places)).collect();
        assert_eq!(found, expected, "{name}");
    }
    let others = module.function_named("others").unwrap().address();
    let others = reader.function(&mut types, others).unwrap();
    assert_eq!(others.result_location, ResultLocation::At(by(0)));
    assert_eq!(
        reader.type_named(&mut types, "Shape", None).map(|id| types.notation(id)),
        Ok("a::Shape".into())
    );
}

#[test]
fn the_system_debugger_agrees_about_types() {
    if skip_without(&["gcc", "gdb"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = build(folder.path(), &["-g"]);
    let module = open(&program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    for name in [
        "struct list",
        "struct bits",
        "struct aligned",
        "pair",
        "words",
        "callback",
        "enum color",
        "struct hidden",
    ] {
        let id = reader.type_named(&mut types, name, None).unwrap();
        reader.complete(&mut types, id);
        let mut asked = vec![format!("print (long)sizeof({name})"), format!("print (long)_Alignof({name})")];
        let mut expected = vec![types.size(id).unwrap(), types.align(id)];
        for field in types.field_names(id) {
            let of = types.field(id, &field).unwrap();
            if of.bits.is_none() {
                asked.push(format!("print (long)&(({name} *)0)->{field}"));
                expected.push(of.offset);
            }
        }
        let asked: Vec<&str> = asked.iter().flat_map(|question| ["-ex", question.as_str()]).collect();
        let told = run(Command::new("gdb").args(["-nx", "-batch"]).args(asked).arg(&program)).unwrap();
        let told: Vec<u64> =
            told.lines().filter_map(|line| line.split_once("= ")?.1.trim().parse().ok()).collect();
        assert_eq!(told, expected, "{name}");
    }
}
