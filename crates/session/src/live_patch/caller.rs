//! The library of the code that calls functions instead of others ([`trapless_isa::loader::Caller`]): the file that the process loads out of memory, and whether it
//! has done so before.
//!
//! Its three segments are one piece of the file, which is mapped three times. Addresses are those in the file and a multiple of the largest page.

use crate::error::Error;
use crate::library_file::{eh_frame_header, halves, longs, words};
use object::elf;
use trapless_isa::Isa;
use trapless_isa::loader::{CALLER, CALLER_MEMORY, Caller};
use trapless_process::{Mappings, Process, RemoteAddr};

/// The largest page that kernels have.
const APART: u64 = 1 << 16;

/// Where its parts lie in the file. The first segment has headers and tables, the second the code, the third what the loader writes to.
const HEADER: u64 = 0x200;
const TABLE: u64 = 0x220;
const SYMBOLS: u64 = 0x2a0;
const STRINGS: u64 = 0x2d0;
const HASH: u64 = 0x2f0;
const CODE: u64 = 0x400;
const DYNAMIC: u64 = 0x600;
const END: u64 = 0x660;

/// Where the code is in memory.
const CODE_AT: u64 = APART + CODE;

/// `sh_info` and `st_shndx` of what is in a section, whichever: there are no headers of sections.
const SOME_SECTION: u16 = 1;

/// The code, as it has to be in the library; `None`: none is needed.
fn code(isa: &dyn Isa) -> Option<Caller> {
    isa.caller(CODE_AT, TABLE)
}

/// The library's file; `None`: none is needed.
pub(super) fn file(isa: &dyn Isa) -> Option<Vec<u8>> {
    let caller = code(isa)?;
    let mut file = vec![0; END as usize];
    let mut put = |at: u64, bytes: &[u8]| file[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(0, &header());
    let (read, run, write) = (elf::PF_R, elf::PF_R | elf::PF_X, elf::PF_R | elf::PF_W);
    let length = END - DYNAMIC;
    let segments = [
        segment(elf::PT_LOAD.0, read.0, 0, 0, CODE),
        segment(elf::PT_LOAD.0, run.0, CODE, APART, DYNAMIC - CODE),
        segment(elf::PT_LOAD.0, write.0, DYNAMIC, 2 * APART, length),
        segment(elf::PT_DYNAMIC.0, write.0, DYNAMIC, 2 * APART, length),
        segment(elf::PT_GNU_EH_FRAME.0, read.0, HEADER, 0, 20),
        // Without it stacks would be made such that they can be run.
        segment(elf::PT_GNU_STACK.0, write.0, 0, 0, 0),
    ];
    put(64, &segments.concat());
    put(HEADER, &eh_frame_header(HEADER, TABLE, caller.entry, CODE_AT));
    put(TABLE, &caller.unwind);
    put(SYMBOLS + 24, &symbol(caller.code.len() as u64));
    put(STRINGS + 1, CALLER.as_bytes());
    // A hash table with one place, which leads to the second of two symbols; the first one is none.
    put(HASH, &words(&[1, 2, 1, 0, 0]));
    put(CODE, &caller.code);
    put(DYNAMIC, &dynamic());
    Some(file)
}

/// Where the process has the code, at an address that it tells or wherever else; `None`: nowhere. What is there is believed by the kernel's word and its bytes.
///
/// # Errors
/// The process is gone.
pub(super) fn find(process: &Process, isa: &dyn Isa, told: Option<u64>) -> Result<Option<u64>, Error> {
    let Some(caller) = code(isa) else { return Ok(None) };
    let maps: Mappings = process.maps().map_err(Error::other)?;
    let name = format!("/memfd:{CALLER_MEMORY}");
    let named = maps.iter().filter(|mapping| {
        mapping.perms.exec && !mapping.perms.write && mapping.path().is_some_and(|path| path == name.as_str())
    });
    let places = named.map(|mapping| mapping.start.0 + CODE).filter(|at| told.is_none_or(|told| told == *at));
    let is_there = |at: &u64| {
        let mut bytes = vec![0; caller.code.len()];
        process.read_exact(RemoteAddr(*at), &mut bytes).is_ok() && bytes == caller.code
    };
    Ok(places.into_iter().find(is_there))
}

/// `Elf64_Ehdr`: of 64 bits, little-endian; a library of powerpc64le's second ABI; six program headers behind it.
fn header() -> Vec<u8> {
    const SECOND_ABI: u32 = 2;
    let mut identity = [0; 16];
    identity[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    [
        identity.to_vec(),
        halves(&[elf::ET_DYN.0, elf::EM_PPC64.0]),
        words(&[1]),
        longs(&[0, 64, 0]),
        words(&[SECOND_ABI]),
        halves(&[64, 56, 6, 0, 0, 0]),
    ]
    .concat()
}

/// `Elf64_Phdr`
fn segment(kind: u32, flags: u32, at: u64, further: u64, length: u64) -> Vec<u8> {
    let address = at + further;
    [words(&[kind, flags]), longs(&[at, address, address, length, length, APART])].concat()
}

/// `Elf64_Sym`: a function that others may find.
fn symbol(length: u64) -> Vec<u8> {
    let information = elf::STB_GLOBAL.0 << 4 | elf::STT_FUNC.0;
    [words(&[1]), vec![information, 0], halves(&[SOME_SECTION]), longs(&[CODE_AT, length])].concat()
}

/// `Elf64_Dyn`
fn dynamic() -> Vec<u8> {
    const DT_NULL: u64 = 0;
    const DT_HASH: u64 = 4;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_STRSZ: u64 = 10;
    const DT_SYMENT: u64 = 11;
    let strings = 2 + CALLER.len() as u64;
    let entries = [
        [DT_HASH, HASH],
        [DT_STRTAB, STRINGS],
        [DT_SYMTAB, SYMBOLS],
        [DT_STRSZ, strings],
        [DT_SYMENT, 24],
        [DT_NULL, 0],
    ];
    longs(entries.as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::Endianness;
    use object::read::elf::{ElfFile64, FileHeader};
    use std::process::Command;
    use trapless_isa::Machine;

    #[test]
    fn the_file_exports_the_code_and_tells_unwinders_of_it() {
        let isa = Machine::PowerPc64Le.isa();
        let file = file(isa).unwrap();
        let caller = code(isa).unwrap();
        assert!(TABLE + caller.unwind.len() as u64 <= SYMBOLS && CODE + caller.code.len() as u64 <= DYNAMIC);
        let parsed = ElfFile64::<Endianness>::parse(&*file).unwrap();
        assert_eq!(parsed.elf_header().e_machine(Endianness::Little), elf::EM_PPC64);
        // The table's entry begins at the code.
        let field = (TABLE + u64::from(caller.entry) + 8) as usize;
        let begins = i32::from_le_bytes(file[field..field + 4].try_into().unwrap());
        assert_eq!(field as u64 + begins as u64, CODE_AT);
        for machine in [Machine::X86_64, Machine::AArch64] {
            assert_eq!(super::file(machine.isa()), None);
        }
    }

    /// Calls functions of a library as a detour does for a caller in its own file.
    const CALLS: &str = r#"
#include <cstdio>
#include <stdexcept>
#include <dlfcn.h>
extern "C" { void *function, *caller; long by_caller(long); }
__asm__(".text\n.globl by_caller\n.type by_caller,@function\nby_caller:\n0: addis 2,12,.TOC.-0b@ha\n addi 2,2,.TOC.-0b@l\n"
    ".localentry by_caller,.-by_caller\n mflr 12\n sub 12,12,2\n stw 12,12(1)\n std 2,24(1)\n"
    " addis 12,2,caller@toc@ha\n ld 12,caller@toc@l(12)\n mtctr 12\n"
    " addis 12,2,function@toc@ha\n ld 12,function@toc@l(12)\n bctr\n.size by_caller,.-by_caller\n");
int main(int, char **names) {
    void *by = dlopen(names[1], RTLD_NOW), *library = dlopen(names[2], RTLD_NOW);
    if (!by || !library) return std::puts(dlerror()), 1;
    caller = dlsym(by, CALLER);
    for (auto name : {"adds", "fails", "adds"}) {
        function = dlsym(library, name);
        try { std::printf("%ld\n", by_caller(7)); } catch (const std::exception &error) { std::puts(error.what()); }
    }
}
"#;
    const CALLED: &str = r#"
#include <stdexcept>
static long more = 1;
extern "C" long adds(long x) { return x + ++more; }
extern "C" long fails(long) { throw std::logic_error("failed"); }
"#;

    /// Unwinders tell frames apart by where they end, which that of the code has no place of its own for.
    #[test]
    fn an_exception_passes_by_the_code() {
        let folder = std::env::var_os("TRAPLESS_CROSS").map(std::path::PathBuf::from);
        let Some(qemu) = folder.map(|folder| folder.join("bin/qemu-ppc64le")).filter(|qemu| qemu.exists())
        else {
            return trapless_testing::skip!(
                "no qemu-ppc64le; run scripts/cross-setup PREFIX and set TRAPLESS_CROSS=PREFIX"
            );
        };
        let dir = tempfile::tempdir().unwrap();
        let compile = |name: &str, source: &str, flags: &[&str]| {
            let (file, text) = (dir.path().join(name), dir.path().join(format!("{name}.cc")));
            std::fs::write(&text, source).unwrap();
            let mut compiler = Command::new("powerpc64le-linux-gnu-g++");
            let status = compiler.args(["-O1", "-o"]).args([&file, &text]).args(flags).status();
            status.is_ok_and(|status| status.success()).then_some(file)
        };
        let name = format!("-DCALLER=\"{CALLER}\"");
        let calls = compile("calls", CALLS, &[&name, "-ldl"]);
        let (Some(calls), Some(called)) = (calls, compile("called.so", CALLED, &["-shared", "-fPIC"])) else {
            return trapless_testing::skip!("no powerpc64le-linux-gnu-g++");
        };
        let library = dir.path().join("caller.so");
        std::fs::write(&library, file(Machine::PowerPc64Le.isa()).unwrap()).unwrap();
        let mut emulated = Command::new(qemu);
        let ran = emulated
            .args(["-L", "/usr/powerpc64le-linux-gnu"])
            .args([calls, library, called])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "9\nfailed\n10\n", "{ran:?}");
    }
}
