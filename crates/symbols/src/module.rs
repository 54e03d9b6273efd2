//! One ELF file that a process runs: what it is, and what is where in it.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

use object::elf;

use crate::{
    DebugSearch, Function, Functions, Machine, ModuleError, ModuleKind, NotesError, Origin, Segment,
    SourceLine, UsdtProbe,
    debug_file::{self, DebugFile},
    dwarf::DebugSections,
    dynamic::Dynamic,
    frames,
    go_table::{self, GoFunction, GoTable},
    image::{CodeSection, Completeness, Image, section_at},
    lines::{Lines, SourceFrame},
    notes, pointers,
    source::Source,
    symtab::{self, Symbol, Table, for_each_symbol},
    table::Builder,
    typed::UnitTable,
    usdt,
};

/// An address, and how many bytes are there.
type Extent = (u64, u64);

/// An executable or shared library on disk.
///
/// Opening reads the headers; everything else is worked out when it is first asked for, and kept.
pub struct Module {
    path: PathBuf,
    pub(crate) source: Source,
    pub(crate) image: Image,
    pub(crate) code: Vec<CodeSection>,
    dynamic: Dynamic,
    pub(crate) search: DebugSearch,
    frames: OnceLock<frames::Told>,
    landing_pads: OnceLock<(Vec<u64>, Vec<Range<u64>>)>,
    pointers: OnceLock<(Vec<u64>, Option<String>)>,
    functions: OnceLock<Functions>,
    // addr2line fills its own caches behind a shared reference, on one thread at a time.
    lines: OnceLock<Option<Mutex<Lines>>>,
    /// Of symbols that are not thread-local, with their sizes.
    addresses: OnceLock<HashMap<Box<[u8]>, Option<Extent>>>,
    debug: OnceLock<Option<DebugSections>>,
    pub(crate) units: OnceLock<UnitTable>,
    usdt: OnceLock<Result<Vec<UsdtProbe>, NotesError>>,
    pub(crate) go_table: OnceLock<GoTable>,
}

impl Module {
    /// Reads the file at `path` and checks its headers. Debug files are looked for in the usual place.
    pub fn open(path: impl AsRef<Path>) -> Result<Module, ModuleError> {
        Module::open_with(path, DebugSearch::default())
    }

    /// Like [`Module::open`], with another place for debug files: below `/proc/PID/root`, say.
    pub fn open_with(path: impl AsRef<Path>, search: DebugSearch) -> Result<Module, ModuleError> {
        let path = path.as_ref();
        Module::from_source(path.into(), Source::open(path)?, search)
    }

    /// Like [`Module::open_with`], of a file that is open and stands at its beginning. It need not be found at `path` any more: symbols that
    /// lie outside of it are looked for from there, and messages name it.
    pub fn of_file(
        file: &File,
        path: impl Into<PathBuf>,
        search: DebugSearch,
    ) -> Result<Module, ModuleError> {
        let path = path.into();
        let source = Source::of_file(file, &path)?;
        Module::from_source(path, source, search)
    }

    /// Takes `bytes` as the contents of a file, as for the vDSO. `path` is for messages; no debug file is looked for.
    pub fn parse(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Module, ModuleError> {
        Module::from_source(path.into(), Source::Read(bytes), DebugSearch::nowhere())
    }

    fn from_source(path: PathBuf, source: Source, search: DebugSearch) -> Result<Module, ModuleError> {
        let image = Image::read(&path, &source, Completeness::Whole)?;
        Ok(Module {
            code: image.code_sections(),
            dynamic: Dynamic::read(&image, &source),
            path,
            source,
            image,
            search,
            frames: OnceLock::new(),
            landing_pads: OnceLock::new(),
            pointers: OnceLock::new(),
            functions: OnceLock::new(),
            lines: OnceLock::new(),
            addresses: OnceLock::new(),
            debug: OnceLock::new(),
            units: OnceLock::new(),
            usdt: OnceLock::new(),
            go_table: OnceLock::new(),
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The instruction set.
    pub fn machine(&self) -> Machine {
        self.image.machine
    }

    /// How it is linked.
    pub fn kind(&self) -> ModuleKind {
        match self.image.is_fixed {
            true => ModuleKind::FixedExecutable,
            false if self.dynamic.is_pie => ModuleKind::PieExecutable,
            false => ModuleKind::SharedLibrary,
        }
    }

    /// The build id, 2 to 64 bytes.
    pub fn build_id(&self) -> Option<&[u8]> {
        notes::build_id(&self.image, &self.source)
    }

    /// The name other modules link it by: `libc.so.6`.
    pub fn soname(&self) -> Option<&str> {
        self.dynamic.soname.as_deref()
    }

    /// The sonames of the libraries it needs, in the order the loader searches them.
    pub fn needed(&self) -> &[String] {
        &self.dynamic.needed
    }

    /// Whether the loader changes its code when it has mapped it (`DT_TEXTREL`).
    pub fn relocates_code(&self) -> bool {
        self.dynamic.relocates_code
    }

    /// Whether it uses a function or variable of this name that another module defines. A file without section headers says no.
    pub fn imports(&self, name: &str) -> bool {
        symtab::imports(&self.image, &self.source, name)
    }

    /// Address of the variable of this name, if the file has its full symbol table.
    pub fn variable(&self, name: &str) -> Option<u64> {
        symtab::defined(&self.image, &self.source, name)
    }

    /// The dynamic loader it asks for.
    pub fn interpreter(&self) -> Option<&str> {
        self.image.interpreter.as_deref()
    }

    /// Virtual address of the entry point; 0 for most libraries.
    pub fn entry(&self) -> u64 {
        self.image.entry
    }

    /// What is mapped, in the file's order, which is by address in a sound file.
    pub fn segments(&self) -> &[Segment] {
        &self.image.segments
    }

    /// The virtual address of the byte at `offset` in the file. Where two segments map it, the executable one's.
    pub fn address_of_offset(&self, offset: u64) -> Option<u64> {
        let maps =
            |segment: &&Segment| segment.offset <= offset && offset - segment.offset < segment.file_size;
        let segments = &self.image.segments;
        let found = segments.iter().filter(|segment| segment.executable).find(maps);
        found
            .or_else(|| segments.iter().find(maps))
            .map(|segment| segment.address + (offset - segment.offset))
    }

    /// Where in the file the byte at `address` is; `None` if it does not come from the file.
    pub fn offset_of_address(&self, address: u64) -> Option<u64> {
        let segment = self.image.segments.iter().find(|segment| segment.file_backed().contains(&address))?;
        Some(segment.offset + (address - segment.address))
    }

    /// The bytes from `address` to the end of its segment's file part; empty if there are none.
    pub fn bytes_at(&self, address: u64) -> &[u8] {
        self.image.bytes_at(&self.source, address)
    }

    /// The bytes of `range`, if all of it is in one code section.
    pub fn code(&self, range: Range<u64>) -> Option<&[u8]> {
        let section = section_at(&self.code, range.start)?;
        if range.end > section.range.end {
            return None;
        }
        self.bytes_at(range.start).get(..range.end.checked_sub(range.start)? as usize)
    }

    /// The code from `address` to the end of its section; empty where there is none.
    pub fn code_at(&self, address: u64) -> &[u8] {
        let end = section_at(&self.code, address).map_or(address, |section| section.range.end);
        self.code(address..end).unwrap_or_default()
    }

    /// The bytes from `address` to the end of its section, if the section is constant once the program runs: neither
    /// code nor writable, or `.data.rel.ro`. Empty otherwise. Compilers put jump tables there.
    pub fn read_only_data_at(&self, address: u64) -> &[u8] {
        let bytes = self.bytes_at(address);
        let end = if self.image.sections.is_empty() {
            let constant = |segment: &&Segment| !segment.writable && !segment.executable;
            let segments = self.image.segments.iter().filter(constant).map(Segment::file_backed);
            segments.into_iter().find(|range| range.contains(&address)).map(|range| range.end)
        } else {
            let constant = self.image.sections.iter().filter(|section| {
                let is_relro = section.name.starts_with(".data.rel.ro");
                section.has(elf::SHF_ALLOC)
                    && !section.is_code()
                    && (is_relro || !section.has(elf::SHF_WRITE))
            });
            let mut ranges =
                constant.filter(|section| !section.file.is_empty()).map(|section| section.addresses());
            ranges.find(|range| range.contains(&address)).map(|range| range.end)
        };
        let Some(end) = end else { return &[] };
        bytes.get(..(end - address) as usize).unwrap_or(bytes)
    }

    /// The addresses that hold instructions, by section, or by segment if there are no section headers.
    pub fn executable_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.code.iter().map(|section| section.range.clone())
    }

    /// What code finds its data by on x86, `_GLOBAL_OFFSET_TABLE_`: where the linker put it, if the file has sections.
    pub fn got(&self) -> Option<u64> {
        [".got.plt", ".got"].iter().find_map(|name| Some(self.image.section(name)?.address))
    }

    /// Its functions. Worked out on the first call.
    pub fn functions(&self) -> &Functions {
        self.functions.get_or_init(|| self.build_functions())
    }

    /// The function whose code `address` is in.
    pub fn function_containing(&self, address: u64) -> Option<Function<'_>> {
        self.functions().containing(address)
    }

    /// The best of the functions with this mangled name: see [`Functions::named`].
    pub fn function_named(&self, name: &str) -> Option<Function<'_>> {
        self.functions().named(name).into_iter().next()
    }

    /// The bytes from a function's end to whatever comes next: see [`Function::padding`].
    pub fn padding_after(&self, function: Function<'_>) -> &[u8] {
        self.code(function.padding()).unwrap_or(&[])
    }

    /// Where exceptions land, sorted: the landing pads of `.gcc_except_table`. The unwinder jumps there.
    pub fn landing_pads(&self) -> &[u64] {
        &self.read_landing_pads().0
    }

    pub(crate) fn read_landing_pads(&self) -> &(Vec<u64>, Vec<Range<u64>>) {
        self.landing_pads.get_or_init(|| {
            let (mut pads, unread) = frames::landing_pads(&self.image, &self.source, &self.frames().frames);
            pads.retain(|&pad| section_at(&self.code, pad).is_some());
            (pads, unread)
        })
    }

    /// The code addresses that pointers in data lead to, the entry point, and local symbols in code that are no
    /// functions; sorted. Indirect branches can go there.
    ///
    /// A position-independent file lists its pointers as relocations. In a fixed executable every aligned word that
    /// may be a code address counts as one.
    pub fn code_pointers(&self) -> Vec<u64> {
        let mut pointers = self.read_pointers().0.clone();
        pointers.extend_from_slice(&self.functions().labels);
        pointers.sort_unstable();
        pointers.dedup();
        pointers
    }

    pub(crate) fn read_pointers(&self) -> &(Vec<u64>, Option<String>) {
        self.pointers.get_or_init(|| pointers::code_pointers(&self.image, &self.source, &self.code))
    }

    /// The address of a symbol of any kind but thread-local ones, as the file's own tables have it. Of variables that are there by one
    /// name at several addresses, as static ones of several sources, nobody can tell which is meant: that is none.
    pub fn symbol_address(&self, name: &str) -> Option<u64> {
        self.symbol(name).map(|(address, _)| address)
    }

    /// How many bytes such a symbol says that it has.
    pub fn symbol_size(&self, name: &str) -> Option<u64> {
        self.symbol(name).map(|(_, size)| size)
    }

    fn symbol(&self, name: &str) -> Option<Extent> {
        let addresses = self.addresses.get_or_init(|| {
            let mut addresses: HashMap<Box<[u8]>, Option<Extent>> = HashMap::new();
            for table in [Table::Static, Table::Dynamic] {
                // What cannot be read is not there.
                let _ = for_each_symbol(&self.image, &self.source, table, &mut |symbol| {
                    if symbol.kind == elf::STT_TLS {
                        return;
                    }
                    let own = Some((symbol.address, symbol.size));
                    let known = addresses.entry(symbol.name.into()).or_insert(own);
                    let is_data = matches!(symbol.kind, elf::STT_OBJECT | elf::STT_NOTYPE | elf::STT_COMMON);
                    if is_data && known.is_some_and(|known| known.0 != symbol.address) {
                        *known = None;
                    }
                });
            }
            addresses
        });
        addresses.get(name.as_bytes()).copied().flatten()
    }

    /// Its USDT probes, in the order of their notes; none is no error.
    ///
    /// # Errors
    /// Notes are there and make no sense.
    pub fn usdt(&self) -> Result<&[UsdtProbe], NotesError> {
        let probes = self.usdt.get_or_init(|| usdt::probes(&self.image, &self.source));
        probes.as_deref().map_err(|error| *error)
    }

    /// The source line of the instruction at `address`, if there is DWARF here or in the debug file. The first call
    /// reads it, which can take a while for a large program.
    pub fn source_line(&self, address: u64) -> Option<SourceLine> {
        self.with_lines(address, |lines| lines.find(address))?
    }

    /// The functions that the instruction at `address` belongs to: those inlined there, the innermost first, and last the one that has the
    /// code. Empty where there is no DWARF that tells of it. The first call reads it.
    pub fn source_frames(&self, address: u64) -> Vec<SourceFrame> {
        self.with_lines(address, |lines| lines.frames(address)).unwrap_or_default()
    }

    fn with_lines<T>(&self, address: u64, ask: impl FnOnce(&Lines) -> T) -> Option<T> {
        // addr2line adds to addresses without looking, so it gets only those that can have a line.
        section_at(&self.code, address).filter(|_| address < u64::MAX)?;
        let lines = self.lines.get_or_init(|| {
            let own = Lines::read(&self.image, &self.source);
            own.or_else(|| self.debug_file().and_then(|file| Lines::read(&file.image, &file.source)))
                .map(Mutex::new)
        });
        // A thread that panicked while reading DWARF has left nothing half written that matters.
        Some(ask(&lines.as_ref()?.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    /// The path of the separate debug file, if there is one that belongs.
    pub fn debug_file_path(&self) -> Option<PathBuf> {
        self.debug_file().map(|file| file.path)
    }

    /// Where its DWARF is. Looked for on the first call.
    pub(crate) fn debug_sections(&self) -> Option<&DebugSections> {
        let find = || DebugSections::find(&self.path, &self.image, &self.source, &self.search);
        self.debug.get_or_init(find).as_ref()
    }

    pub(crate) fn debug_file(&self) -> Option<DebugFile> {
        debug_file::find(&self.path, &self.image, &self.source, &self.search)
    }

    pub(crate) fn frames(&self) -> &frames::Told {
        self.frames.get_or_init(|| frames::read(&self.image, &self.source))
    }

    /// Whether the unwind table says that handlers of signals return to the code at `address`.
    pub fn is_signal_trampoline(&self, address: u64) -> bool {
        self.frames().trampolines.iter().any(|range| range.contains(&address))
    }

    fn build_functions(&self) -> Functions {
        std::thread::scope(|scope| {
            if self.source.len() >= LARGE {
                // Meanwhile, if there may be another thread. A defect of it shows where the frames are asked for.
                let _ = std::thread::Builder::new().spawn_scoped(scope, || self.frames());
            }
            self.functions_of_symbols().finish(&self.frames().frames)
        })
    }

    fn functions_of_symbols(&self) -> Builder<'_> {
        let mut builder = Builder::new(self.image.machine, &self.code, self.source.len());
        let mut add = |image: &Image, bytes: &[u8], table: Table, origin: Origin| {
            let result = for_each_symbol(image, bytes, table, &mut |symbol| builder.add(&symbol, origin));
            if let Err(error) = result {
                builder.defect(origin, &error.to_string());
            }
        };
        let mut has_symbols = true;
        if self.has_symtab() {
            add(&self.image, &self.source, Table::Static, Origin::SymbolTable);
        } else if let Some(file) = self.debug_file() {
            add(&file.image, &file.source, Table::Static, Origin::DebugFile);
        } else if let Some((bytes, image)) = debug_file::mini_debug_info(&self.image, &self.source) {
            add(&image, &bytes, Table::Static, Origin::MiniDebugInfo);
        } else {
            has_symbols = false;
        }
        add(&self.image, &self.source, Table::Dynamic, Origin::DynamicSymbols);
        // A symbol table of which only a part was left does not have Go's own names.
        if !has_symbols || self.has_symtab() && self.variable("runtime.text").is_none() {
            for function in go_table::called(self.go_functions()) {
                let GoFunction { address, size, name, .. } = function;
                let (kind, binding) = (elf::STT_FUNC, elf::STB_GLOBAL);
                let symbol = Symbol { name, version: None, address, size, kind, binding, other: 0 };
                builder.add(&symbol, Origin::GoTable);
            }
        }
        if let Some(error) = &self.frames().defect {
            builder.defect(Origin::UnwindTable, error);
        }
        builder
    }

    pub(crate) fn has_symtab(&self) -> bool {
        self.image.sections.iter().any(|section| section.kind == elf::SHT_SYMTAB)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("path", &self.path)
            .field("machine", &self.machine())
            .finish_non_exhaustive()
    }
}

/// Files from this size on are worth a thread of their own for a table, in bytes.
const LARGE: usize = 1 << 20;
