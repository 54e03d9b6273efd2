//! A library that is to be loaded: is it one, and what does it have?
//!
//! Its file is looked at before the process is. What a loader would choke on is refused here: it runs in the process, which may be killed by
//! it (a file that ends before its segments do), or changed (executable stacks).

use super::error::{BadLibrary, LivePatchError, Nearest};
use object::elf::{self, ProgramFlags, SymbolType};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, SectionIndex};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use trapless_isa::Machine;
use trapless_process::Process;

/// The most that is read of a library.
pub(super) const LARGEST: u64 = 1 << 30;

/// So many bytes of a function are compared with what the process has of it: a jump is written over fewer.
const BEGINNING: usize = 16;

/// A library, and the function of it that is called instead of another.
#[derive(Debug)]
pub struct Library {
    /// Its path as we see it.
    path: PathBuf,
    /// Which file it is.
    metadata: Metadata,
    /// The function's name, and its address in the file.
    function: (String, u64),
    /// Its first bytes.
    begins: Vec<u8>,
    /// The same of the pointer that is to lead to the original.
    pointer: Option<(String, u64)>,
}

/// What is read of an exported symbol.
struct Exported {
    kind: SymbolType,
    address: u64,
    size: u64,
}

type Header = elf::FileHeader64<Endianness>;

impl Library {
    /// Reads the library that `FILE:FUNCTION` names. `original`: the name of its pointer to the original, if it has one.
    ///
    /// # Errors
    /// It is no library that could be loaded into a program of this machine, or has no such function.
    pub fn open(with: &str, original: Option<&str>) -> Result<Self, LivePatchError> {
        let named = || LivePatchError::Names(with.to_owned());
        let (path, function) = with.rsplit_once(':').ok_or_else(named)?;
        if path.is_empty() || function.is_empty() || function.contains('/') || with.contains('\0') {
            return Err(named());
        }
        let path = Path::new(path);
        let bad = |why: BadLibrary| LivePatchError::Library { path: path.into(), why };
        let unreadable = |error: std::io::Error| bad(BadLibrary::Unreadable(error));
        // A pipe that nobody writes to would not be opened before somebody does.
        let options = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut file: File = options.map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(bad(BadLibrary::NoFile));
        }
        if metadata.len() > LARGEST {
            return Err(bad(BadLibrary::TooLarge));
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        file.by_ref().take(LARGEST).read_to_end(&mut bytes).map_err(unreadable)?;
        let (function, begins, pointer) = read(&bytes, function, original).map_err(bad)?;
        Ok(Self { path: path.into(), metadata, function, begins, pointer })
    }

    /// Its file's name.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The function's name.
    pub fn function(&self) -> &str {
        &self.function.0
    }

    /// Its address in the file.
    pub(super) fn function_address(&self) -> u64 {
        self.function.1
    }

    /// Its first bytes: as many as a jump could change of it, or all.
    pub(super) fn function_begins(&self) -> &[u8] {
        &self.begins
    }

    /// The pointer to the original, and its address in the file.
    pub(super) fn pointer(&self) -> Option<(&str, u64)> {
        self.pointer.as_ref().map(|(name, address)| (name.as_str(), *address))
    }

    /// Which file it is.
    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its path as the process sees it.
    ///
    /// # Errors
    /// Another file is there, or none.
    pub(super) fn path_in(&self, process: &Process) -> Result<PathBuf, LivePatchError> {
        let pid = process.pid().0;
        // What is given as a path below the process's root is one there.
        let own = self.path.strip_prefix(format!("/proc/{pid}/root")).map(|path| Path::new("/").join(path));
        let path = own.or_else(|_| self.path.canonicalize()).unwrap_or_else(|_| self.path.clone());
        let another = |what| LivePatchError::AnotherFile { pid, path: path.clone(), what };
        if path.as_os_str().as_bytes().contains(&0) || !path.is_absolute() {
            return Err(another("no path that it could open"));
        }
        let seen = std::fs::metadata(process.path_in_root(&path));
        let seen = seen.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => another("where we may not look"),
            _ => another("not there"),
        })?;
        match (seen.dev(), seen.ino()) == (self.metadata.dev(), self.metadata.ino()) {
            true => Ok(path),
            false => Err(another("another file")),
        }
    }
}

/// A name, and its address in the file.
type Named = (String, u64);

/// The function with its first bytes, and the pointer.
fn read(
    bytes: &[u8],
    function: &str,
    pointer: Option<&str>,
) -> Result<(Named, Vec<u8>, Option<Named>), BadLibrary> {
    let (class, data, machine, kind) = match bytes {
        [0x7f, b'E', b'L', b'F', class, data, ..] if bytes.len() >= 64 => {
            let word = |at: usize| match data {
                2 => u16::from_be_bytes([bytes[at], bytes[at + 1]]),
                _ => u16::from_le_bytes([bytes[at], bytes[at + 1]]),
            };
            (*class, *data, word(18), word(16))
        }
        _ => return Err(BadLibrary::NoElf),
    };
    let (wanted, number) = wanted();
    if (class, data, machine) != (elf::ELFCLASS64.0, elf::ELFDATA2LSB.0, number.0) {
        return Err(BadLibrary::Machine { found: machine_name(class, data, machine), wanted });
    }
    match elf::FileType(kind) {
        elf::ET_DYN => {}
        elf::ET_EXEC => return Err(BadLibrary::Program),
        _ => return Err(BadLibrary::OtherKind),
    }
    let damaged = |what: &'static str| move |_: object::Error| BadLibrary::Damaged(what);
    let header = Header::parse(bytes).map_err(damaged("its header"))?;
    let endian = header.endian().map_err(damaged("its header"))?;
    let segments = header.program_headers(endian, bytes).map_err(damaged("its program headers"))?;
    check_segments(segments, endian, bytes)?;
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, bytes).transpose());
    let dynamic = dynamic.ok_or(BadLibrary::OtherKind)?.map_err(damaged("its dynamic section"))?;
    let flags = dynamic.iter().find(|entry| entry.d_tag(endian) == elf::DT_FLAGS_1);
    let flags = flags.map_or(0, |entry| entry.d_val(endian));
    if flags & elf::DF_1_PIE.0 != 0 {
        return Err(BadLibrary::Program);
    }
    if flags & elf::DF_1_NOOPEN.0 != 0 {
        return Err(BadLibrary::NoOpen);
    }
    let symbols = Symbols::read(header, endian, bytes)?;
    // What the file has of its code from an address on.
    let code = |address: u64| {
        segments.iter().find_map(|segment| {
            let is_code = segment.p_type(endian) == elf::PT_LOAD
                && segment.p_flags(endian) & elf::PF_X != ProgramFlags(0);
            let data = segment.data(endian, bytes).ok().filter(|_| is_code)?;
            data.get(usize::try_from(address.checked_sub(segment.p_vaddr(endian))?).ok()?..)
                .filter(|code| !code.is_empty())
        })
    };
    let found = symbols.exported(function)?;
    let code = match found.kind {
        elf::STT_FUNC => code(found.address),
        elf::STT_GNU_IFUNC => return Err(BadLibrary::Ifunc(function.to_owned())),
        _ => None,
    };
    let code = code.ok_or_else(|| BadLibrary::NoFunction(function.to_owned()))?;
    let begins = code[..code.len().min(BEGINNING)].to_vec();
    let pointer = pointer.map(|name| {
        let found = symbols.exported(name)?;
        let is_pointer = found.kind == elf::STT_OBJECT
            && found.size == size_of::<u64>() as u64
            && found.address.is_multiple_of(size_of::<u64>() as u64);
        is_pointer
            .then(|| (name.to_owned(), found.address))
            .ok_or_else(|| BadLibrary::NoPointer(name.to_owned()))
    });
    Ok(((function.to_owned(), found.address), begins, pointer.transpose()?))
}

/// Whether a loader can map them.
fn check_segments(
    segments: &[elf::ProgramHeader64<Endianness>],
    endian: Endianness,
    bytes: &[u8],
) -> Result<(), BadLibrary> {
    let mut stack = None;
    let mut is_any = false;
    for segment in segments {
        match segment.p_type(endian) {
            elf::PT_LOAD => {
                is_any = true;
                let (offset, size) = (segment.p_offset(endian), segment.p_filesz(endian));
                if offset.checked_add(size).is_none_or(|end| end > bytes.len() as u64) {
                    return Err(BadLibrary::Damaged("it ends before its segments do"));
                }
                if size > segment.p_memsz(endian)
                    || segment.p_vaddr(endian).checked_add(segment.p_memsz(endian)).is_none()
                {
                    return Err(BadLibrary::Damaged("the sizes of its segments"));
                }
            }
            elf::PT_GNU_STACK => stack = Some(segment.p_flags(endian)),
            _ => {}
        }
    }
    if !is_any {
        return Err(BadLibrary::OtherKind);
    }
    // Without a word about it, it asks for them.
    match stack {
        Some(flags) if flags & elf::PF_X == ProgramFlags(0) => Ok(()),
        _ => Err(BadLibrary::ExecutableStack),
    }
}

/// The dynamic symbols.
struct Symbols<'b> {
    symbols: &'b [elf::Sym64<Endianness>],
    strings: object::StringTable<'b>,
    endian: Endianness,
}

impl<'b> Symbols<'b> {
    fn read(header: &Header, endian: Endianness, bytes: &'b [u8]) -> Result<Self, BadLibrary> {
        let damaged = |_: object::Error| BadLibrary::Damaged("its dynamic symbols");
        let sections = header.section_headers(endian, bytes).map_err(damaged)?;
        let section = sections.iter().find(|section| section.sh_type(endian) == elf::SHT_DYNSYM);
        let section = section.ok_or(BadLibrary::Damaged("it has no table of dynamic symbols"))?;
        let symbols = section.data_as_array(endian, bytes).map_err(damaged)?;
        let link = SectionIndex(section.sh_link(endian) as usize);
        let strings = sections.get(link.0).ok_or(BadLibrary::Damaged("its dynamic symbols"))?;
        let strings = strings.strings(endian, bytes).map_err(damaged)?;
        Ok(Self { symbols, strings: strings.unwrap_or_default(), endian })
    }

    /// Those that others may find, with their names.
    fn all(&self) -> impl Iterator<Item = (&'b [u8], &'b elf::Sym64<Endianness>)> {
        let is_exported = |symbol: &&elf::Sym64<Endianness>| {
            !symbol.is_undefined(self.endian)
                && symbol.st_bind() != elf::STB_LOCAL
                && matches!(symbol.st_visibility(), elf::STV_DEFAULT | elf::STV_PROTECTED)
        };
        let named =
            |symbol: &'b elf::Sym64<Endianness>| Some((symbol.name(self.endian, self.strings).ok()?, symbol));
        self.symbols.iter().filter(is_exported).filter_map(named)
    }

    fn exported(&self, name: &str) -> Result<Exported, BadLibrary> {
        let found = self.all().find(|(other, _)| *other == name.as_bytes());
        let (_, symbol) = found.ok_or_else(|| BadLibrary::NoSymbol(name.to_owned(), self.nearest(name)))?;
        let (address, size) = (symbol.st_value(self.endian), symbol.st_size(self.endian));
        Ok(Exported { kind: symbol.st_type(), address, size })
    }

    fn nearest(&self, name: &str) -> Nearest {
        /// Names that are less alike are no misspellings.
        const ALIKE: f64 = 0.7;
        let names = self.all().filter_map(|(other, _)| std::str::from_utf8(other).ok());
        let mut near: Vec<(f64, &str)> = names
            .map(|other| (strsim::normalized_damerau_levenshtein(name, other), other))
            .filter(|(alike, _)| *alike >= ALIKE)
            .collect();
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        Nearest(near.into_iter().take(3).map(|(_, name)| name.to_owned()).collect())
    }
}

/// The machine of programs whose functions are replaced: the host's, in 64-bit mode.
fn wanted() -> (&'static str, elf::Machine) {
    let machine = Machine::beside(false);
    let number = match machine {
        Machine::X86_64 | Machine::I386 => elf::EM_X86_64,
        Machine::AArch64 => elf::EM_AARCH64,
        Machine::PowerPc64Le => elf::EM_PPC64,
    };
    (machine.name(), number)
}

fn machine_name(class: u8, data: u8, machine: u16) -> String {
    let is_little = data == elf::ELFDATA2LSB.0;
    let name = match elf::Machine(machine) {
        elf::EM_X86_64 if class == elf::ELFCLASS32.0 => "x32",
        elf::EM_X86_64 => "x86-64",
        elf::EM_386 => "32-bit x86",
        elf::EM_AARCH64 if class == elf::ELFCLASS32.0 => "arm64 with 32-bit pointers",
        elf::EM_AARCH64 if !is_little => "big-endian arm64",
        elf::EM_AARCH64 => "arm64",
        elf::EM_ARM => "32-bit arm",
        elf::EM_PPC64 if is_little => "powerpc64le",
        elf::EM_PPC64 => "powerpc64",
        elf::EM_RISCV => "RISC-V",
        elf::EM_S390 => "s390",
        elf::Machine(other) => return format!("another machine (ELF number {other})"),
    };
    name.to_owned()
}
