//! Calling conventions, against compilers: where gcc's own code puts arguments and results as it runs, and where its debug information
//! says they are on machines that are not here.

mod tools;

use std::{collections::HashMap, fmt::Write, path::Path, process::Command};

use tools::{compile, open, run, skip_without};
use trapless_symbols::{
    Context, Location, Machine, Piece, ResultLocation, TypeId, Types,
    abi::{self, Convention},
    types::Kind,
};

const TYPES: &str = r#"
typedef struct { char a; } s_char;
typedef struct { char a[3]; } s_char3;
typedef struct { int a, b; } s_int2;
typedef struct { int a; float b; } s_mixed8;
typedef struct { double a; long b; } s_mixed16;
typedef struct { long a; double b; } s_mixed16b;
typedef struct { float a, b; } s_float2;
typedef struct { float a, b, c; } s_float3;
typedef struct { float a, b, c, d; } s_float4;
typedef struct { double a, b; } s_double2;
typedef struct { double a, b, c; } s_double3;
typedef struct { double a[4]; } s_double4;
typedef struct { double a[5]; } s_double5;
typedef struct { char a[16]; } s_char16;
typedef struct { char a[17]; } s_char17;
typedef struct { long a[5]; } s_long5;
typedef struct { long a; int b; } s_long_int;
typedef struct { s_mixed8 in; int s; } s_nested;
typedef struct __attribute__((packed)) { char c; int i; char d; } s_packed;
typedef struct { int a : 3; int b : 29; } s_bits;
typedef union { int i; double d; } u_mixed;
typedef union { float f; double d; } u_float;
typedef struct { struct { float f; } one; } s_one;
typedef struct { short a; float b; double c; } s_three;
typedef enum { RED, GREEN } e_color;
typedef void *pointer;
typedef long long long_long;
typedef unsigned char byte;
"#;
const WIDE_TYPES: &str = r#"
typedef __int128 wide;
typedef struct { __int128 w; } s_wide;
typedef float v_float4 __attribute__((vector_size(16)));
typedef struct { v_float4 v; } s_vector;
typedef float _Complex c_float;
typedef double _Complex c_double;
typedef long double long_double;
typedef struct { long double l; } s_long_double;
typedef struct { int i; v_float4 v; } s_int_vector;
"#;

/// What functions take.
const PARAMETERS: &[&[&str]] = &[
    &["byte", "short", "int", "long_long", "pointer", "e_color", "int", "long", "byte"],
    &["float", "double", "int", "float", "double", "float", "double", "float", "double", "float", "double"],
    &["s_char", "s_char3", "s_int2", "s_mixed8", "s_mixed16", "s_mixed16b", "s_float2", "s_float3"],
    &["s_float4", "s_double2", "s_double3", "s_double4", "s_double5", "double", "s_float3", "s_float2"],
    &["s_char16", "s_char17", "s_long5", "s_long_int", "s_nested", "s_char16", "int", "s_long_int", "int"],
    &["s_packed", "s_bits", "u_mixed", "u_float", "s_one", "s_three", "int", "s_packed", "double"],
    &["int", "int", "int", "int", "int", "s_char16", "int", "s_char16", "int", "int", "long", "s_int2"],
    &["s_mixed16", "s_mixed16", "s_mixed16b", "s_mixed16", "s_mixed16", "s_mixed16", "s_mixed16", "float"],
    &["double", "double", "double", "double", "double", "double", "double", "s_double2", "double", "s_one"],
    &["s_long5", "int", "s_char17", "float", "s_double4", "s_double4", "s_float4", "float"],
];
const WIDE_PARAMETERS: &[&[&str]] = &[
    &["wide", "int", "wide", "long", "wide", "int", "wide"],
    &["s_wide", "int", "s_wide", "long", "s_wide", "int"],
    &["v_float4", "int", "s_vector", "double", "v_float4", "s_int_vector", "int"],
    &["c_float", "c_double", "float", "c_double", "c_float", "c_double", "c_double", "int"],
    &["long_double", "int", "s_long_double", "double", "long_double"],
    &["int", "int", "int", "int", "int", "wide", "int", "int", "wide", "long_double", "int"],
];
/// What functions give.
const RESULTS: &[&str] = &[
    "byte",
    "short",
    "int",
    "long_long",
    "pointer",
    "e_color",
    "float",
    "double",
    "s_char",
    "s_char3",
    "s_int2",
    "s_mixed8",
    "s_mixed16",
    "s_mixed16b",
    "s_float2",
    "s_float3",
    "s_float4",
    "s_double2",
    "s_double3",
    "s_double5",
    "s_char16",
    "s_char17",
    "s_long5",
    "s_long_int",
    "s_nested",
    "s_packed",
    "s_bits",
    "u_mixed",
    "u_float",
    "s_one",
    "s_three",
];
const WIDE_RESULTS: &[&str] = &[
    "wide",
    "s_wide",
    "v_float4",
    "s_vector",
    "c_float",
    "c_double",
    "long_double",
    "s_long_double",
    "s_int_vector",
];

/// Saves what arguments and results are in, and calls nothing, or the function in `target`.
const CAPTURE: &str = r#"
#include <stdio.h>
#include <string.h>
unsigned char registers[6 * 8 + 8 * 16], results[2 * 8 + 2 * 16 + 2 * 16], saved[4096];
void *target;
void capture(void), call(void);
__asm__(".pushsection .text\ncapture:\n mov %rdi, registers(%rip)\n mov %rsi, registers+8(%rip)\n mov %rdx, registers+16(%rip)\n"
 " mov %rcx, registers+24(%rip)\n mov %r8, registers+32(%rip)\n mov %r9, registers+40(%rip)\n"
 " movups %xmm0, registers+48(%rip)\n movups %xmm1, registers+64(%rip)\n movups %xmm2, registers+80(%rip)\n"
 " movups %xmm3, registers+96(%rip)\n movups %xmm4, registers+112(%rip)\n movups %xmm5, registers+128(%rip)\n"
 " movups %xmm6, registers+144(%rip)\n movups %xmm7, registers+160(%rip)\n mov %rsp, %rsi\n lea saved(%rip), %rdi\n mov $1024, %ecx\n rep movsb\n ret\n"
 "call:\n sub $8, %rsp\n call *target(%rip)\n mov %rax, results(%rip)\n mov %rdx, results+8(%rip)\n"
 " movups %xmm0, results+16(%rip)\n movups %xmm1, results+32(%rip)\n"
 " cmpb $0, extended(%rip)\n je 1f\n fstpt results+48(%rip)\n fldt results+48(%rip)\n1: add $8, %rsp\n ret\n.popsection\n");
char extended;
static void hex(char kind, const void *bytes, int count) {
  printf("%c ", kind); for (int i = 0; i < count; i++) printf("%02x", ((const unsigned char *)bytes)[i]); printf("\n"); }
static void fill(void *bytes, int count, int seed) { for (int i = 0; i < count; i++) ((unsigned char *)bytes)[i] = seed * 37 + i * 11 + 1; }
"#;

fn is_extended(name: &str) -> bool {
    name.contains("long_double")
}

/// A program that calls functions with all these parameters, and functions with all these results, and prints what was where.
fn native() -> String {
    let mut text = format!("{CAPTURE}{TYPES}{WIDE_TYPES}");
    let mut main = String::new();
    for (index, parameters) in PARAMETERS.iter().chain(WIDE_PARAMETERS).enumerate() {
        let declared: Vec<String> =
            parameters.iter().enumerate().map(|(n, of)| format!("{of} a{n}")).collect();
        let names: Vec<String> = (0..parameters.len()).map(|n| format!("a{n}")).collect();
        let list = declared.join(", ");
        writeln!(text, "__attribute__((noinline)) void f{index}({list}) {{ __asm__(\"\"); }}").unwrap();
        writeln!(text, "__attribute__((noinline)) void call{index}(void) {{").unwrap();
        for (n, of) in parameters.iter().enumerate() {
            match is_extended(of) {
                true => writeln!(text, "{of} a{n}; memset(&a{n}, 0, 16); *(long double *)&a{n} = {n}.25L;")
                    .unwrap(),
                false => writeln!(text, "{of} a{n}; fill(&a{n}, sizeof a{n}, {n});").unwrap(),
            }
        }
        let values = names.join(", ");
        writeln!(text, "((__typeof__(f{index}) *)capture)({values});").unwrap();
        writeln!(text, "hex('F', registers, sizeof registers); hex('S', saved, 1024);").unwrap();
        for name in names {
            writeln!(text, "hex('V', &{name}, sizeof {name});").unwrap();
        }
        text.push_str("}\n");
        writeln!(main, "call{index}();").unwrap();
    }
    for (index, of) in RESULTS.iter().chain(WIDE_RESULTS).enumerate() {
        let extended = usize::from(is_extended(of));
        let begin = match is_extended(of) {
            true => "memset(&v, 0, 16); *(long double *)&v = 7.25L;",
            false => "fill(&v, sizeof v, 5);",
        };
        writeln!(
            text,
            "{of} v{index}; __attribute__((noinline)) {of} g{index}(void) {{ __asm__(\"\"); return v{index}; }}\n\
             __attribute__((noinline)) void give{index}(void) {{ {of} v; {begin} memcpy(&v{index}, &v, sizeof v);\n\
             target = (void *)g{index}; extended = {extended}; {of} r = ((__typeof__(g{index}) *)call)();\n\
             unsigned char *at = *(unsigned char **)results;\n\
             if (at > (unsigned char *)&v - 4096 && at < (unsigned char *)&v + 4096) memcpy(saved, at, sizeof r);\n\
             hex('R', results, sizeof results); hex('M', saved, 64); hex('V', &v{index}, sizeof r); }}"
        )
        .unwrap();
        writeln!(main, "give{index}();").unwrap();
    }
    write!(text, "int main(void) {{ {main} return 0; }}").unwrap();
    text
}

/// What a program printed of one call.
struct Captured {
    registers: HashMap<u16, Vec<u8>>,
    stack: Vec<u8>,
    rsp: u64,
}

impl Context for Captured {
    fn register(&mut self, number: u16) -> Option<Vec<u8>> {
        match number {
            7 => Some(self.rsp.to_le_bytes().to_vec()),
            _ => self.registers.get(&number).cloned(),
        }
    }

    fn memory(&mut self, address: u64, size: usize) -> Option<Vec<u8>> {
        let at = address.checked_sub(self.rsp)? as usize;
        self.stack.get(at..at + size).map(<[u8]>::to_vec)
    }

    fn relocated(&mut self, _: u64) -> Option<u64> {
        None
    }
}

fn bytes(line: &str, kind: &str) -> Vec<u8> {
    let digits = line.strip_prefix(kind).unwrap_or_else(|| panic!("{kind}: {line}")).trim();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Which bytes of a value are its fields' and not padding.
fn covered(types: &Types, id: TypeId, at: usize, into: &mut [bool]) {
    let size = types.size(id).unwrap() as usize;
    match types.kind(id) {
        Kind::Struct(of) if of.members.iter().all(|member| member.bits.is_none()) => {
            for member in &of.members {
                covered(types, member.of, at + member.offset.unwrap() as usize, into);
            }
        }
        Kind::Base(_) if types.get(types.stripped(id)).name.as_deref() == Some("long double") => {
            into[at..at + 10].fill(true);
        }
        _ => into[at..at + size].fill(true),
    }
}

fn masked(types: &Types, id: TypeId, bytes: &[u8]) -> Vec<u8> {
    let mut mask = vec![false; bytes.len()];
    covered(types, id, 0, &mut mask);
    bytes.iter().zip(mask).map(|(byte, is_covered)| if is_covered { *byte } else { 0 }).collect()
}

#[test]
fn arguments_and_results_are_where_running_code_has_them() {
    if !cfg!(target_arch = "x86_64") || skip_without(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = native();
    for optimized in ["-O0", "-O2"] {
        let flags = ["-g", "-w", "-fno-ipa-sra", "-fno-ipa-cp", optimized];
        let program = compile("gcc", folder.path(), ("abi.c", &text), "abi", &flags);
        let printed = run(&mut Command::new(&program)).unwrap();
        let mut lines = printed.lines();
        let module = open(&program);
        let mut types = Types::new();
        let mut reader = module.type_reader().unwrap();
        let machine = Machine::X86_64;
        for (index, parameters) in PARAMETERS.iter().chain(WIDE_PARAMETERS).enumerate() {
            let address = module.function_named(&format!("f{index}")).unwrap().address();
            let function = reader.function(&mut types, address).unwrap();
            let given: Vec<TypeId> = function.parameters.iter().map(|parameter| parameter.of).collect();
            let told = abi::arguments(machine, Convention::C, &types, function.result, &given);
            let registers = bytes(lines.next().unwrap(), "F");
            let stack = bytes(lines.next().unwrap(), "S");
            let mut all = HashMap::new();
            for (at, number) in [5, 4, 1, 2, 8, 9].into_iter().enumerate() {
                all.insert(number, registers[at * 8..at * 8 + 8].to_vec());
            }
            for vector in 0..8 {
                all.insert(17 + vector as u16, registers[48 + vector * 16..64 + vector * 16].to_vec());
            }
            let mut captured = Captured { registers: all, stack, rsp: 0x7fff_0000 };
            for (n, (of, name)) in function.parameters.iter().zip(*parameters).enumerate() {
                let expected = masked(&types, of.of, &bytes(lines.next().unwrap(), "V"));
                // What the reader tells at the entry, and what the rules alone tell.
                for location in [&of.location, &told[n]] {
                    let found = location.read(types.size(of.of).unwrap(), &mut captured);
                    let found = found.map(|found| masked(&types, of.of, &found));
                    assert_eq!(
                        found.as_ref(),
                        Some(&expected),
                        "{optimized} f{index} {n}: {name} in {location:?}"
                    );
                }
            }
        }
        for (index, name) in RESULTS.iter().chain(WIDE_RESULTS).enumerate() {
            let address = module.function_named(&format!("g{index}")).unwrap().address();
            let function = reader.function(&mut types, address).unwrap();
            let results = bytes(lines.next().unwrap(), "R");
            let memory = bytes(lines.next().unwrap(), "M");
            let expected = masked(&types, function.result, &bytes(lines.next().unwrap(), "V"));
            let register = |at: usize, size| results[at..at + size].to_vec();
            let all = [
                (0, register(0, 8)),
                (1, register(8, 8)),
                (17, register(16, 16)),
                (18, register(32, 16)),
                (33, register(48, 16)),
            ];
            let rax = u64::from_le_bytes(*results.first_chunk().unwrap());
            let mut captured = Captured { registers: all.into(), stack: memory, rsp: rax };
            let ResultLocation::At(location) = &function.result_location else { panic!("{name}") };
            let found = location.read(types.size(function.result).unwrap(), &mut captured);
            let found = found.map(|found| masked(&types, function.result, &found));
            assert_eq!(found, Some(expected), "{optimized} g{index}: {name} in {location:?}");
        }
        assert_eq!(lines.next(), None);
    }
}

/// The same place, written in one way: pieces that follow each other in memory are one, and so is a single piece.
fn normal(location: &Location, size: u64) -> Location {
    let Location::Pieces(pieces) = location else { return location.clone() };
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces {
        if let (Some(last), Location::Memory { register, offset }) = (all.last_mut(), &piece.location)
            && let Location::Memory { register: before, offset: at } = last.location
            && (before, at + last.size as i64) == (*register, *offset)
        {
            last.size += piece.size;
            continue;
        }
        all.push(piece.clone());
    }
    match &all[..] {
        [one] if one.size >= size => one.location.clone(),
        _ => Location::Pieces(all),
    }
}

/// Compares the rules with what a cross compiler tells of optimized functions, and gives how many places were compared.
fn cross(folder: &Path, compiler: &str, machine: Machine, text: &str, count: usize) -> usize {
    let flags = ["-O2", "-g", "-w", "-shared", "-fPIC", "-nostdlib"];
    let program = compile(compiler, folder, ("cross.c", text), "cross.so", &flags);
    let module = open(&program);
    let mut types = Types::new();
    let mut reader = module.type_reader().unwrap();
    let mut compared = 0;
    for index in 0..count {
        let address = module.function_named(&format!("f{index}")).unwrap().address();
        let function = reader.function(&mut types, address).unwrap();
        let given: Vec<TypeId> = function.parameters.iter().map(|parameter| parameter.of).collect();
        let told = abi::arguments(machine, Convention::C, &types, function.result, &given);
        for (n, (parameter, told)) in function.parameters.iter().zip(&told).enumerate() {
            let size = types.size(parameter.of).unwrap();
            let name = types.notation(parameter.of);
            if let Location::Unavailable(reason) = &parameter.location {
                panic!("{compiler} f{index} {n}: {name}: {reason}");
            }
            assert_eq!(
                normal(told, size),
                normal(&parameter.location, size),
                "{compiler} f{index} {n}: {name}"
            );
            compared += 1;
        }
    }
    compared
}

#[test]
fn arguments_are_where_cross_compilers_say_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, machine, is_wide) in [
        ("gcc", Machine::X86_64, true),
        ("aarch64-linux-gnu-gcc", Machine::AArch64, true),
        ("powerpc64le-linux-gnu-gcc", Machine::PowerPc64Le, true),
        ("i686-linux-gnu-gcc", Machine::I386, false),
    ] {
        if skip_without(&[compiler]) {
            continue;
        }
        let mut text = TYPES.to_owned();
        let mut all = PARAMETERS.to_vec();
        if is_wide {
            text.push_str(WIDE_TYPES);
            all.extend(WIDE_PARAMETERS);
        }
        for (index, parameters) in all.iter().enumerate() {
            let declared: Vec<String> =
                parameters.iter().enumerate().map(|(n, of)| format!("{of} a{n}")).collect();
            writeln!(text, "void f{index}({}) {{}}", declared.join(", ")).unwrap();
        }
        let compared = cross(folder.path(), compiler, machine, &text, all.len());
        println!("{compiler}: {compared} places");
        assert!(compared > 80, "{compared}");
    }
}
