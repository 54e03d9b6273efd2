//! Where the C library keeps what detours read.

use memchr::memmem;
use object::{Object, ObjectSection, ObjectSymbol};
use std::io::Read;
use trapless_isa::{Machine, ThreadNumber};
use trapless_process::{Mapping, Mappings, Process};
use trapless_wire::ThreadMemory;

/// Where a thread's id is, from its thread pointer on: `tid` in the C library's `struct pthread`.
pub(super) fn tid_offset(process: &Process) -> Option<i32> {
    let maps = process.maps().ok()?;
    if Machine::beside(process.is_32bit()) == Machine::X86_64 && moves_thread_pointer(process, &maps) {
        return None;
    }
    of_library(process, &maps)
}

/// The same where it is known that nobody but the C library sets thread pointers, as in one's own process.
pub fn tid_offset_by_library(process: &Process) -> Option<i32> {
    of_library(process, &process.maps().ok()?)
}

/// Where the C library that is mapped has it.
fn of_library(process: &Process, maps: &Mappings) -> Option<i32> {
    let [glibc, musl] = Machine::beside(process.is_32bit()).isa().facts().thread_numbers;
    maps.iter().find_map(|mapping| {
        let name = mapping.path()?.file_name()?.to_str()?;
        match (name, glibc, musl) {
            ("libc.so.6", ThreadNumber::At(offset), _) => Some(offset),
            ("libc.so.6", ThreadNumber::Below(distance), _) => {
                let [size, at] = said_by_glibc(process, mapping)?;
                at.checked_sub(size)?.checked_sub(distance)
            }
            (name, _, ThreadNumber::At(offset)) if name.starts_with("ld-musl-") => Some(offset),
            _ => None,
        }
    })
}

/// The size of `struct pthread`, and where in it the number is, as glibc says to debuggers (`nptl_db/structs.def`).
fn said_by_glibc(process: &Process, mapping: &Mapping) -> Option<[i32; 2]> {
    /// Far beyond any library's.
    const LARGEST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    process.open_mapped_file(mapping).ok()?.take(LARGEST).read_to_end(&mut bytes).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    let word = |name: &str, word: u64| {
        let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(name))?;
        let section = elf.section_by_index(symbol.section_index()?).ok()?;
        let found = section.data_range(symbol.address() + 4 * word, 4).ok()??;
        Some(i32::from_le_bytes(found.try_into().ok()?))
    };
    // The number's bits, how many there are, and its offset.
    Some([word("_thread_db_sizeof_pthread", 0)?, word("_thread_db_pthread_tid", 2)?])
}

/// The same in a process with Go's run-time system. With a C library its threads are that one's.
///
/// Without one the thread pointer lies behind the first word of `m.tls`, and `procid` lies ahead of that: four fields with 64 bytes
/// (`gsignal`, `goSigStack` and `sigmask` follow it, `runtime/runtime2.go`), so from Go 1.11 to 1.25 at least. Arming looks whether it holds.
pub(super) fn in_go(process: &Process) -> ThreadMemory {
    const PROCID: i32 = -72;
    let offset = process.maps().ok().and_then(|maps| of_library(process, &maps)).unwrap_or(PROCID);
    ThreadMemory { self_pointer: false, tid_offset: Some(offset) }
}

/// Code that is looked through at the most, in bytes.
const MAX_CODE: u64 = 64 << 20;

/// How far apart the system call's number and its operand are loaded, at the most.
const NEAR: usize = 512;

/// So much is looked through at a time, in bytes: what a processor keeps near.
const WINDOW: usize = 256 << 10;

/// What stands in two windows. Whatever is near to a place stands in one of them together with it.
const OVERLAP: usize = 2 * NEAR;

/// Whether code beside the C library's own sets the thread pointer: then the word that it points to need not hold it, and there may be
/// none. Known by the loads of `ARCH_SET_FS` and of `arch_prctl`'s number near each other, or its name, and by `wrfsbase`.
fn moves_thread_pointer(process: &Process, maps: &Mappings) -> bool {
    let is_own =
        |name: &str| ["libc.so", "libc-", "ld-", "libpthread"].iter().any(|own| name.starts_with(own));
    let mut left = MAX_CODE;
    let mut buffer = Vec::with_capacity(WINDOW + OVERLAP);
    maps.iter().filter(|mapping| mapping.perms.exec || mapping.offset == 0).any(|mapping| {
        let Some(name) = mapping.path().and_then(|path| path.file_name()?.to_str()) else { return false };
        let size = (mapping.end.0 - mapping.start.0).min(left);
        if is_own(name) || size == 0 {
            return false;
        }
        left -= size;
        let shows = if mapping.perms.exec { sets_thread_pointer } else { names_arch_prctl };
        (0..size).step_by(WINDOW).any(|at| {
            buffer.resize((size - at).min((WINDOW + OVERLAP) as u64) as usize, 0);
            process.read_exact(mapping.start + at, &mut buffer).is_ok() && shows(&buffer)
        })
    })
}

/// A file that imports the C library's wrapper has its name among its dynamic symbols, and one that asks the loader for it among its
/// strings. Both end it by a NUL, as our own text does not: a tool that traces itself is no such program.
fn names_arch_prctl(strings: &[u8]) -> bool {
    const NAME: &[u8] = b"arch_prctl";
    memmem::find_iter(strings, NAME)
        .any(|at| at > 0 && strings[at - 1] == 0 && strings.get(at + NAME.len()) == Some(&0))
}

fn sets_thread_pointer(code: &[u8]) -> bool {
    // Complemented, so that no code of ours loads it: who traces this tool shall not take it for such a program.
    let arch_set_fs = !std::hint::black_box(!0x1002_u32);
    const ARCH_PRCTL: u32 = 158;
    // `mov r32, imm32`, or `mov r64, imm32`.
    let is_load = |code: &[u8], at: usize| {
        let before = |n: usize| at.checked_sub(n).and_then(|at| code.get(at)).copied().unwrap_or(0);
        before(1) & 0xf8 == 0xb8 || before(1) & 0xf8 == 0xc0 && before(2) == 0xc7
    };
    let loads =
        |code: &[u8], value: u32| memmem::find_iter(code, &value.to_le_bytes()).any(|at| is_load(code, at));
    let calls =
        memmem::find_iter(code, &arch_set_fs.to_le_bytes()).filter(|&at| is_load(code, at)).any(|at| {
            let around = &code[at.saturating_sub(NEAR)..code.len().min(at + NEAR)];
            loads(around, ARCH_PRCTL)
        });
    // `wrfsbase r` is f3 (rex) 0f ae /2 with a register.
    let writes = |at: usize| {
        let prefixed =
            at >= 1 && code[at - 1] == 0xf3 || at >= 2 && code[at - 2] == 0xf3 && code[at - 1] & 0xf0 == 0x40;
        prefixed && code.get(at + 2).is_some_and(|modrm| modrm & 0xf8 == 0xd0)
    };
    calls || memmem::find_iter(code, &[0x0f, 0xae]).any(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_sets_the_thread_pointer_is_known() {
        // A later test reads the program that this one is in, which must not hold the bytes itself.
        let complement =
            |bytes: &[u8]| -> Vec<u8> { std::hint::black_box(bytes).iter().map(|byte| !byte).collect() };
        let load = |register: u8, value: u32| [&[0xb8 + register][..], &value.to_le_bytes()].concat();
        let call = [load(7, 0x1002), load(0, 158), vec![0x0f, 0x05]].concat();
        let far = [load(7, 0x1002), vec![0x90; 2 * NEAR], load(0, 158)].concat();
        for (name, code, sets) in [
            ("the system call", call, true),
            ("its operand alone", load(7, 0x1002), false),
            ("its number elsewhere", far, false),
            ("wrfsbase rdi", complement(&[0x0c, 0xb7, 0xf0, 0x51, 0x28]), true),
            ("wrfsbase eax", complement(&[0x0c, 0xf0, 0x51, 0x2f]), true),
            ("rdfsbase rax", vec![0xf3, 0x48, 0x0f, 0xae, 0xc0], false),
            ("nothing", vec![], false),
        ] {
            assert_eq!(sets_thread_pointer(&code), sets, "{name}");
        }
    }

    #[test]
    fn the_wrapper_is_known_by_its_whole_name() {
        for (strings, names) in [
            (&b"\0arch_prctl\0"[..], true),
            (b"\0arch_prctl", false),
            (b"arch_prctl\0", false),
            (b"\0my_arch_prctl\0", false),
        ] {
            assert_eq!(names_arch_prctl(strings), names, "{strings:?}");
        }
    }

    #[test]
    fn this_program_is_none_that_sets_its_thread_pointer() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!sets_thread_pointer(&own));
    }
}
