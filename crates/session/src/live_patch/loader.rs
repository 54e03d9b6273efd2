//! The loader of a process: by which functions is a library loaded, and in which code may a thread not be meanwhile?

use super::caller;
use super::error::LivePatchError;
use super::library::Library;
use crate::error::Error;
use crate::target::Image;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use trapless_engine::{Apart, Load, Passed, vectors};
use trapless_isa::Machine;
use trapless_process::Process;
use trapless_symbols::{Kind, Module};

/// Functions of the loader's interface that are a C library's: where one of them is under way, the loader is.
const OF_LOADER: [&str; 15] = [
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "dlclose",
    "dladdr",
    "dladdr1",
    "dlinfo",
    "dlerror",
    "dl_iterate_phdr",
    "_dl_find_object",
    "__tls_get_addr",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlclose",
];

/// Functions of allocators. With glibc's, they are all of one object file, and what it keeps for itself lies between them.
const OF_ALLOCATOR: [&str; 19] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "cfree",
    "malloc_trim",
    "malloc_stats",
    "malloc_info",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "malloc_usable_size",
    "__libc_memalign",
    "__libc_freeres",
];

/// The most that glibc's object file of the allocator has between its functions.
const MOST_OF_ALLOCATOR: u64 = 64 << 10;

/// An image with its file, and what to add to addresses in it.
struct Loaded<'i> {
    image: &'i Image,
    module: &'i Module,
    bias: u64,
}

impl<'i> Loaded<'i> {
    fn of(process: &Process, image: &'i Image) -> Result<Self, Error> {
        Ok(Self { image, module: image.module(Some(process))?, bias: image.bias(Some(process))? })
    }

    /// Addresses in the process of the functions with this name, with their ends.
    fn functions(&self, name: &str) -> impl Iterator<Item = Range<u64>> + use<'i> {
        let bias = self.bias;
        let named = self.module.functions().named(name).into_iter();
        let called = named.filter(|function| function.kind() != Kind::IfuncResolver);
        called.map(move |function| {
            let range = function.range();
            range.start.wrapping_add(bias)..range.end.wrapping_add(bias)
        })
    }

    fn function(&self, name: &str) -> Option<u64> {
        let found = self.functions(name).map(|range| range.start).next()?;
        self.image.code().iter().any(|code| code.contains(&found)).then_some(found)
    }
}

/// The C libraries that have the loader's interface: musl's is the loader itself.
fn has_interface(name: &str) -> bool {
    ["libc.so.6", "libdl.so.2", "libc.so"].contains(&name) || is_musl(name)
}

fn is_musl(name: &str) -> bool {
    name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
}

/// glibc's loader, which is nothing else.
fn is_loader(name: &str) -> bool {
    let names = ["ld-linux", "ld64.so.", "ld-2."];
    !is_musl(name) && (name == "ld.so.1" || names.iter().any(|known| name.starts_with(known)))
}

/// The library's path for the process's loader, which takes what it has loaded by the very same one for it (glibc), though the file may have been built
/// anew since. So it is spelled in another way each time: whatever was loaded by the others stays.
fn spelled(process: &Process, images: &[Image], path: &Path, library: &Library) -> Vec<u8> {
    let is_another =
        |image: &&Image| Path::new(&image.path) == path && !image.is_of(process, library.metadata());
    let others = images.iter().filter(is_another).count();
    [b"/.".repeat(others), path.as_os_str().as_bytes().to_vec()].concat()
}

/// How a process loads the library that it sees at `path`, to find its function there.
///
/// # Errors
/// It cannot, or its files cannot be read.
pub(super) fn load(
    process: &Process,
    images: &[Image],
    path: &Path,
    library: &Library,
) -> Result<Load, Error> {
    let pid = process.pid().0;
    let isa = Machine::beside(process.is_32bit()).isa();
    let is_interface = |image: &&Image| has_interface(image.name()) || is_old_glibc(image.name());
    let interfaces = images.iter().filter(is_interface).map(|image| Loaded::of(process, image));
    let interfaces: Vec<Loaded<'_>> = interfaces.collect::<Result<_, _>>()?;
    if interfaces.is_empty() && !images.iter().any(|image| is_loader(image.name())) {
        return Err(LivePatchError::Static(pid).into());
    }
    let missing = |function| LivePatchError::NoLoader { pid, function };
    let find = |name: &'static str| {
        interfaces.iter().find_map(|loaded| loaded.function(name)).ok_or_else(|| missing(name))
    };
    // One library has all three: a stub of one may lie beside it.
    let owner = interfaces.iter().find(|loaded| loaded.function("dlopen").is_some());
    let owner = owner.ok_or_else(|| missing("dlopen"))?;
    let of_owner = |name: &'static str| owner.function(name).ok_or_else(|| missing(name));
    let [open, symbol_by, error] = [of_owner("dlopen")?, of_owner("dlsym")?, of_owner("dlerror")?];
    let threads = images.iter().find(|image| image.name() == "libpthread.so.0");
    let threads = threads.map(|image| Loaded::of(process, image)).transpose()?;
    let cancel =
        interfaces.iter().chain(&threads).find_map(|loaded| loaded.function("pthread_setcancelstate"));
    Ok(Load {
        open,
        find: symbol_by,
        error,
        errno: find("__errno_location")?,
        cancel,
        beyond: vectors().map_err(Error::other)?,
        path: spelled(process, images, path, library),
        symbol: library.function().as_bytes().to_vec(),
        caller: match caller::find(process, isa, None)? {
            Some(_) => None,
            None => caller::file(isa),
        },
        apart: apart(process, images, &interfaces)?,
        unwind: None,
    })
}

/// glibc up to 2.33 has files of its version's name.
fn is_old_glibc(name: &str) -> bool {
    name.starts_with("libc-2.") || name.starts_with("libdl-2.")
}

/// Code in which a thread may not be.
fn apart(process: &Process, images: &[Image], interfaces: &[Loaded<'_>]) -> Result<Vec<Apart>, Error> {
    let mut apart = Vec::new();
    let mut add = |code: Range<u64>, why: Passed| apart.push(Apart { code, why });
    for image in images.iter().filter(|image| is_loader(image.name())) {
        image.code().iter().for_each(|code| add(code.clone(), Passed::Loader));
    }
    for loaded in interfaces {
        OF_LOADER.iter().flat_map(|name| loaded.functions(name)).for_each(|code| add(code, Passed::Loader));
    }
    let program = process.exe().ok();
    for image in images {
        // What is no ELF file has no allocator.
        let Ok(module) = image.module(Some(process)) else { continue };
        if module.symbol_address("malloc").is_none() || is_loader(image.name()) {
            continue;
        }
        let loaded = Loaded::of(process, image)?;
        let own: Vec<Range<u64>> = OF_ALLOCATOR.iter().flat_map(|name| loaded.functions(name)).collect();
        let is_program = program.as_deref() == Some(Path::new(&image.path));
        if is_program || is_musl(image.name()) || image.name() == "libc.so" {
            own.into_iter().for_each(|code| add(code, Passed::Allocator));
        } else if has_interface(image.name()) || is_old_glibc(image.name()) {
            let start = own.iter().map(|code| code.start).min();
            let end = own.iter().map(|code| code.end).max();
            let all = start.zip(end).filter(|(start, end)| end - start <= MOST_OF_ALLOCATOR);
            match all {
                Some((start, end)) => add(start..end, Passed::Allocator),
                None => own.into_iter().for_each(|code| add(code, Passed::Allocator)),
            }
        } else if !own.is_empty() {
            // A library that has an allocator is one.
            image.code().iter().for_each(|code| add(code.clone(), Passed::Allocator));
        }
    }
    Ok(apart)
}
