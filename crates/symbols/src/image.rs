//! What the ELF headers say, in one form for both classes.
//!
//! Everything above this file works on [`Image`] and plain bytes, so that only this file and `symtab`, `pointers`
//! know that 32- and 64-bit files differ in layout.

use std::{ops::Range, path::Path};

use object::{
    LittleEndian, elf,
    read::elf::{FileHeader, ProgramHeader, SectionHeader},
};

use crate::ModuleError;

/// The instruction sets of files that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64, 64-bit files (x32 is not supported).
    X86_64,
    /// 32-bit x86.
    I386,
    /// Arm A64, 64-bit files.
    AArch64,
    /// 64-bit PowerPC, little endian, ELFv2.
    PowerPc64Le,
}

/// How a module is linked, and so how it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// An executable at fixed addresses (`ET_EXEC`): its load bias is zero.
    FixedExecutable,
    /// A position-independent executable.
    PieExecutable,
    /// A shared library, the dynamic loader or the vDSO.
    SharedLibrary,
}

/// A part of the file that is mapped into memory (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Bytes that come from the file.
    pub file_size: u64,
    /// Bytes in memory; those beyond `file_size` are zero.
    pub memory_size: u64,
    /// `PF_R`.
    pub readable: bool,
    /// `PF_W`.
    pub writable: bool,
    /// `PF_X`.
    pub executable: bool,
}

impl Segment {
    /// The virtual addresses whose bytes come from the file.
    pub fn file_backed(&self) -> Range<u64> {
        self.address..self.address + self.file_size
    }
}

/// One section header, with its name resolved.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub name: String,
    pub kind: elf::SectionType,
    pub flags: u64,
    pub address: u64,
    /// Where its bytes are in the file; empty for `SHT_NOBITS` and for sections that claim bytes the file lacks.
    pub file: Range<usize>,
    pub size: u64,
    pub align: u64,
}

impl Section {
    pub(crate) fn addresses(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    pub(crate) fn has(&self, flag: elf::SectionFlags) -> bool {
        self.flags & flag.0 != 0
    }

    /// Whether the section is part of the process image and holds instructions.
    pub(crate) fn is_code(&self) -> bool {
        self.has(elf::SHF_ALLOC) && self.has(elf::SHF_EXECINSTR) && self.size > 0
    }
}

/// The headers of one file.
#[derive(Debug)]
pub(crate) struct Image {
    pub machine: Machine,
    pub is_64: bool,
    pub is_fixed: bool,
    pub entry: u64,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    pub interpreter: Option<String>,
    pub dynamic: Option<Range<usize>>,
    pub notes: Vec<(Range<usize>, u64)>,
    /// Address range of `.eh_frame_hdr`.
    pub frame_header: Option<Range<u64>>,
}

/// Whether bytes that the headers promise must be in the file.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Completeness {
    /// The file is what is loaded.
    Whole,
    /// The file holds debug information only; its segments are empty.
    DebugOnly,
    /// The same, of a file that was never linked (`.dwo`, and what dwz makes).
    Object,
}

/// Calls a function that is generic over the ELF class.
macro_rules! by_class {
    ($is_64:expr, $function:ident($($argument:expr),* $(,)?)) => {
        if $is_64 {
            $function::<object::elf::FileHeader64<object::LittleEndian>>($($argument),*)
        } else {
            $function::<object::elf::FileHeader32<object::LittleEndian>>($($argument),*)
        }
    };
}
pub(crate) use by_class;

impl Image {
    /// Reads and checks the headers of the file at `path`, which holds `bytes`.
    pub(crate) fn read(path: &Path, bytes: &[u8], complete: Completeness) -> Result<Image, ModuleError> {
        let bits = identify(path, bytes)?;
        by_class!(bits == 64, read(path, bytes, complete))
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The section's bytes; empty when there is none of that name.
    pub(crate) fn section_bytes<'b>(&self, bytes: &'b [u8], name: &str) -> &'b [u8] {
        self.section(name).and_then(|section| bytes.get(section.file.clone())).unwrap_or(&[])
    }

    /// The file's bytes from `address` to the end of its segment's file part; empty when there are none.
    pub(crate) fn bytes_at<'b>(&self, bytes: &'b [u8], address: u64) -> &'b [u8] {
        self.segments
            .iter()
            .find(|segment| segment.file_backed().contains(&address))
            .and_then(|segment| {
                let skipped = address - segment.address;
                bytes.get((segment.offset + skipped) as usize..(segment.offset + segment.file_size) as usize)
            })
            .unwrap_or(&[])
    }

    /// The code sections by address; the executable segments when the file has no section headers.
    pub(crate) fn code_sections(&self) -> Vec<CodeSection> {
        let mut code: Vec<_> = self
            .sections
            .iter()
            .filter(|section| section.is_code())
            .map(|section| CodeSection { range: section.addresses(), is_plt: is_plt(&section.name) })
            .collect();
        if code.is_empty() {
            code = self
                .segments
                .iter()
                .filter(|segment| segment.executable && segment.file_size > 0)
                .map(|segment| CodeSection { range: segment.file_backed(), is_plt: false })
                .collect();
        }
        code.sort_by_key(|section| section.range.start);
        code
    }

    /// Bytes of a pointer: 4 or 8.
    pub(crate) fn pointer_size(&self) -> usize {
        if self.is_64 { 8 } else { 4 }
    }
}

/// Addresses that hold instructions.
#[derive(Clone, Debug)]
pub(crate) struct CodeSection {
    pub range: Range<u64>,
    /// Holds linker-made stubs, not functions.
    pub is_plt: bool,
}

/// The section among `code`, which is sorted, that `address` lies in.
pub(crate) fn section_at(code: &[CodeSection], address: u64) -> Option<&CodeSection> {
    let index = code.partition_point(|section| section.range.start <= address).checked_sub(1)?;
    Some(&code[index]).filter(|section| section.range.contains(&address))
}

fn is_plt(name: &str) -> bool {
    name == ".iplt" || name == ".plt" || name.starts_with(".plt.")
}

/// Looks at the identification only and gives the class, 32 or 64, of a file that can be read.
fn identify(path: &Path, bytes: &[u8]) -> Result<u8, ModuleError> {
    if bytes.is_empty() {
        return Err(ModuleError::Empty(path.into()));
    }
    if !bytes.starts_with(b"\x7fELF") {
        let found = match bytes {
            [b'#', b'!', ..] => "a script; its interpreter is the program",
            [0x1f, 0x8b, ..] | [0xfd, b'7', b'z', b'X', b'Z', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                "a compressed file; unpack it"
            }
            [b'!', b'<', b'a', b'r', b'c', b'h', b'>', ..] => {
                "a static library; it is part of a linked program"
            }
            [b'/', b'*', ..] => "perhaps a linker script; the library it names is the file",
            [b'M', b'Z', ..] => "a Windows program",
            [0xcf, 0xfa, 0xed, 0xfe, ..] => "a macOS program",
            _ => "no ELF magic",
        };
        return Err(ModuleError::NotElf { path: path.into(), found });
    }
    let truncated = || ModuleError::Truncated {
        path: path.into(),
        what: "the ELF header",
        end: 64,
        size: bytes.len() as u64,
    };
    let class = *bytes.get(4).ok_or_else(truncated)?;
    let data = *bytes.get(5).ok_or_else(truncated)?;
    let (bits, header) = match class {
        1 => (32, 52),
        2 => (64, 64),
        _ => return Err(corrupt(path, format!("ELF class {class} does not exist"))),
    };
    match data {
        1 => {}
        2 => return Err(ModuleError::BigEndian(path.into())),
        _ => return Err(corrupt(path, format!("byte order {data} does not exist"))),
    }
    if bytes.len() < header {
        return Err(truncated());
    }
    Ok(bits)
}

fn corrupt(path: &Path, detail: String) -> ModuleError {
    ModuleError::Corrupt { path: path.into(), detail }
}

fn read<H: FileHeader<Endian = LittleEndian>>(
    path: &Path,
    bytes: &[u8],
    complete: Completeness,
) -> Result<Image, ModuleError> {
    let e = LittleEndian;
    let wrong = |error: object::read::Error| corrupt(path, error.to_string());
    let header = H::parse(bytes).map_err(wrong)?;
    let is_64 = header.is_class_64();
    let machine = match (header.e_machine(e), is_64) {
        (elf::EM_X86_64, true) => Machine::X86_64,
        (elf::EM_386, false) => Machine::I386,
        (elf::EM_AARCH64, true) => Machine::AArch64,
        (elf::EM_PPC64, true) => Machine::PowerPc64Le,
        (other, _) => {
            let bits = if is_64 { 64 } else { 32 };
            return Err(ModuleError::UnsupportedMachine { path: path.into(), machine: other.0, bits });
        }
    };
    let not_loadable = |what| ModuleError::NotLoadable { path: path.into(), what };
    let is_fixed = match header.e_type(e) {
        elf::ET_EXEC => true,
        elf::ET_DYN => false,
        elf::ET_REL if complete == Completeness::Object => false,
        elf::ET_REL => return Err(not_loadable("an object file")),
        elf::ET_CORE => return Err(not_loadable("a core dump")),
        other => return Err(corrupt(path, format!("file type {} does not exist", other.0))),
    };
    let mut image = Image {
        machine,
        is_64,
        is_fixed,
        entry: header.e_entry(e).into(),
        segments: Vec::new(),
        sections: Vec::new(),
        interpreter: None,
        dynamic: None,
        notes: Vec::new(),
        frame_header: None,
    };

    let section_headers = match header.section_headers(e, bytes) {
        Ok(headers) => headers,
        Err(_) if complete == Completeness::Whole && header.e_shoff(e).into() >= bytes.len() as u64 => {
            return Err(ModuleError::Truncated {
                path: path.into(),
                what: "the section header table",
                end: header.e_shoff(e).into(),
                size: bytes.len() as u64,
            });
        }
        Err(error) => return Err(wrong(error)),
    };
    let strings = header.section_strings(e, bytes, section_headers).unwrap_or_default();
    for section in section_headers {
        // Names of sections are short; a long one is a corrupt string table, which is not worth keeping.
        let name = section.name(e, strings).unwrap_or_default();
        let name = String::from_utf8_lossy(name.get(..64).unwrap_or(name)).into_owned();
        let file = match section.file_range(e) {
            Some((offset, size)) => file_range(bytes, offset, size).unwrap_or(0..0),
            None => 0..0,
        };
        image.sections.push(Section {
            name,
            kind: section.sh_type(e),
            flags: section.sh_flags(e).0,
            address: section.sh_addr(e).into(),
            file,
            size: section.sh_size(e).into(),
            align: section.sh_addralign(e).into(),
        });
    }

    for header in header.program_headers(e, bytes).map_err(wrong)? {
        let (offset, file_size) = header.file_range(e);
        let address: u64 = header.p_vaddr(e).into();
        let flags = header.p_flags(e);
        let contents = file_range(bytes, offset, file_size);
        match header.p_type(e) {
            elf::PT_LOAD => {
                let memory_size: u64 = header.p_memsz(e).into();
                if contents.is_none() && complete == Completeness::Whole {
                    return Err(ModuleError::Truncated {
                        path: path.into(),
                        what: "a segment",
                        end: offset.saturating_add(file_size),
                        size: bytes.len() as u64,
                    });
                }
                if memory_size < file_size || address.checked_add(memory_size).is_none() {
                    return Err(corrupt(path, format!("segment at {address:#x} has an impossible size")));
                }
                let file_size = if contents.is_some() { file_size } else { 0 };
                image.segments.push(Segment {
                    address,
                    offset,
                    file_size,
                    memory_size,
                    readable: flags.0 & elf::PF_R.0 != 0,
                    writable: flags.0 & elf::PF_W.0 != 0,
                    executable: flags.0 & elf::PF_X.0 != 0,
                });
            }
            elf::PT_INTERP => {
                image.interpreter = contents.map(|range| text(&bytes[range])).filter(|path| !path.is_empty());
            }
            elf::PT_DYNAMIC => image.dynamic = contents,
            elf::PT_NOTE => image.notes.extend(contents.map(|range| (range, header.p_align(e).into()))),
            elf::PT_GNU_EH_FRAME => {
                image.frame_header = Some(address..address.saturating_add(header.p_memsz(e).into()));
            }
            _ => {}
        }
    }
    if image.segments.is_empty() && complete == Completeness::Whole {
        return Err(not_loadable("a file without loadable segments"));
    }
    Ok(image)
}

fn file_range(bytes: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let end = offset.checked_add(size)?;
    (end <= bytes.len() as u64).then_some(offset as usize..end as usize)
}

/// The string up to the first zero byte, at most a path's length of it.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = bytes.get(..libc::PATH_MAX as usize).unwrap_or(bytes);
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
