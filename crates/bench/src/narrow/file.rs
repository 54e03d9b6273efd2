//! The 32-bit code as a program: an ELF file in memory, with symbols.
//!
//! ```text
//!      0  ELF header, program headers: one segment of code, a stack that is not executable
//!   4096  the code
//!         symbols, their names, the sections' names
//!         section headers: none, .text, .symtab, .strtab, .shstrtab
//! ```
//!
//! Figures are of `elf.h`.

use super::code::{Function, functions};
use crate::triggers::{TRIGGERS, Trigger};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// Where programs that are not position-independent begin.
const BASE: u32 = 0x0804_8000;
/// Where in the file, and so from [`BASE`] on, the code is.
const CODE: u32 = 0x1000;

const HEADER: u16 = 52;
const PROGRAM_HEADER: u16 = 32;
const SECTION_HEADER: u16 = 40;

/// Address of a trigger in the running program.
pub fn address(function: &Function) -> u64 {
    u64::from(BASE + CODE + function.offset)
}

/// The program, as a file that exists in memory only and can be executed.
///
/// # Errors
/// Those of the kernel.
pub fn program() -> io::Result<File> {
    /// `MFD_EXEC` of `include/uapi/linux/memfd.h`; kernels before 6.3 do not know it and need it not.
    const MFD_EXEC: libc::c_uint = 0x10;
    let create = |flags| {
        // SAFETY: the name ends with a zero and is copied.
        let made = unsafe { libc::memfd_create(c"trapless-bench-32".as_ptr(), libc::MFD_CLOEXEC | flags) };
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(made) }
    };
    let made = create(MFD_EXEC).or_else(|_| create(0))?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(made) });
    file.write_all(&image())?;
    Ok(file)
}

/// The file's content.
fn image() -> Vec<u8> {
    let (code, functions) = functions();
    let start = functions.first().map_or(0, |start| start.offset);
    let code_end = CODE + code.len() as u32;
    let (symbols, names) = symbols(&functions);
    let sections = b"\0.text\0.symtab\0.strtab\0.shstrtab\0";
    let symbols_at = code_end;
    let names_at = symbols_at + symbols.len() as u32;
    let sections_at = names_at + names.len() as u32;
    let table_at = (sections_at + sections.len() as u32).next_multiple_of(4);

    let mut file = Words::default();
    // e_ident: 32 bits, least significant byte first, version 1, System V
    file.bytes(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    // ET_EXEC, EM_386, version, entry, program headers, section headers, flags
    file.half(2).half(3).word(1).word(BASE + CODE + start).word(HEADER.into()).word(table_at).word(0);
    file.half(HEADER).half(PROGRAM_HEADER).half(2).half(SECTION_HEADER).half(5).half(4);
    // PT_LOAD: offset, address twice, size twice, PF_R | PF_X, alignment
    file.word(1).word(0).word(BASE).word(BASE).word(code_end).word(code_end).word(5).word(0x1000);
    // PT_GNU_STACK, PF_R | PF_W: without it, all memory that can be read would be executable
    file.word(0x6474_e551).word(0).word(0).word(0).word(0).word(0).word(6).word(16);
    file.pad(CODE).bytes(code).bytes(&symbols).bytes(&names).bytes(sections).pad(table_at);

    let mut section = |header: [u32; 10]| {
        file.bytes(header.map(u32::to_le_bytes).as_flattened());
    };
    // name, type, flags, address, offset, size, link, info, alignment, size of an entry
    section([0; 10]);
    section([1, 1, 2 | 4, BASE + CODE, CODE, code.len() as u32, 0, 0, 64, 0]);
    section([7, 2, 0, 0, symbols_at, symbols.len() as u32, 3, 1, 4, 16]);
    section([15, 3, 0, 0, names_at, names.len() as u32, 0, 0, 1, 0]);
    section([23, 3, 0, 0, sections_at, sections.len() as u32, 0, 0, 1, 0]);
    file.0
}

/// `.symtab` and `.strtab`: a global function of section 1 for each.
fn symbols(functions: &[Function]) -> (Vec<u8>, Vec<u8>) {
    let (mut symbols, mut names) = (Words::default(), vec![0]);
    symbols.pad(16);
    let called = std::iter::once("_start".to_owned()).chain(TRIGGERS.iter().map(Trigger::label));
    for (name, function) in called.zip(functions) {
        let start = BASE + CODE + function.offset;
        // STB_GLOBAL, STT_FUNC
        symbols.word(names.len() as u32).word(start).word(function.size).bytes(&[0x12, 0]).half(1);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    (symbols.0, names)
}

/// Bytes being written, least significant first.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn half(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Zeros up to an offset.
    fn pad(&mut self, offset: u32) -> &mut Self {
        self.0.resize(offset as usize, 0);
        self
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_trigger_is_a_function_of_the_file() {
        let path = std::env::temp_dir().join(format!("trapless-bench-32-{}", std::process::id()));
        std::fs::write(&path, image()).unwrap();
        let module = trapless_symbols::Module::open(&path);
        std::fs::remove_file(&path).unwrap();
        let module = module.unwrap();
        let (_, functions) = functions();
        assert_eq!(functions.len(), TRIGGERS.len() + 1);
        for (trigger, place) in TRIGGERS.iter().zip(&functions[1..]) {
            let function = module.functions().containing(address(place)).unwrap();
            assert_eq!((function.name().plain(), function.address()), (&*trigger.label(), address(place)));
            assert_eq!(function.range().end - function.range().start, u64::from(place.size));
        }
    }
}
