//! The library that the points are: made in memory, and loaded as any other, so that unwinders find their table as they find others'. Were it told to
//! them in another way (`__register_frame`), older ones would take a lock for each look-up of the process from then on, also in handlers of signals.

use crate::Error;
use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use trapless_isa::inside::Points;
use trapless_session::library_file::{eh_frame_header, halves, longs, words};

const PAGE: u64 = 4096;

/// Where its parts lie, in the file and in memory: headers and tables, the code, and what can be written, of which the file has the first page.
const HEADER: u64 = 0x200;
pub(crate) const TABLE: u64 = 0x240;
const SYMBOLS: u64 = 0x600;
const STRINGS: u64 = 0x620;
const HASH: u64 = 0x630;
pub(crate) const CODE: u64 = PAGE;

/// Sizes of it.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Of the code, at most.
    pub code: u64,
    /// Of the memory that can be written.
    pub known: u64,
}

impl Sizes {
    /// Where what can be written begins.
    pub fn known_at(self) -> u64 {
        self.tables() + PAGE
    }

    /// What the loader writes to comes ahead of it.
    fn tables(self) -> u64 {
        CODE + self.code.next_multiple_of(PAGE)
    }
}

/// Loads it; where it begins.
///
/// # Errors
/// The kernel has no such files, or lets none be run; there is no loader.
pub(crate) fn load(points: &Points, sizes: Sizes) -> Result<u64, Error> {
    // SAFETY: the name is a string of C, and the descriptor is nobody else's.
    let mut file = unsafe {
        match libc::memfd_create(c"trapless".as_ptr(), libc::MFD_CLOEXEC) {
            fd if fd >= 0 => File::from_raw_fd(fd),
            _ => return Err(Error::last("memfd_create")),
        }
    };
    let failed = |source| Error::System { what: "memfd", source };
    file.write_all(&bytes(points, sizes)).map_err(failed)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    // SAFETY: nothing of it runs when it is loaded, and it stays.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE);
        if handle.is_null() {
            return Err(Error::Unwinder("the points of calls could not be loaded as a library".to_owned()));
        }
        base(handle)
    }
}

/// Where it begins. It gets a name that is no file's: that of a descriptor may soon be something else's, which whoever resolves addresses would read.
///
/// # Safety
/// It is a handle of a library that nobody else has.
unsafe fn base(handle: *mut c_void) -> Result<u64, Error> {
    /// The beginning of `link_map` (`link.h`).
    #[repr(C)]
    struct Known {
        base: u64,
        name: *const c_char,
    }
    let mut known: *mut Known = std::ptr::null_mut();
    // SAFETY: the call writes an address of what the loader has of the library.
    unsafe {
        if libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut known).cast()) != 0 || known.is_null() {
            return Err(Error::Unwinder("the loader does not tell where the points of calls are".to_owned()));
        }
        (*known).name = c"/memfd:trapless".as_ptr();
        Ok((*known).base)
    }
}

/// The file.
fn bytes(points: &Points, sizes: Sizes) -> Vec<u8> {
    let mut file = vec![0; sizes.known_at() as usize];
    let mut put = |at: u64, bytes: &[u8]| file[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(0, &header());
    let rest = sizes.known + PAGE;
    let (tables, dynamic) = (sizes.tables(), dynamic());
    let programs = [
        program(libc::PT_LOAD, libc::PF_R, 0, PAGE, PAGE),
        program(libc::PT_LOAD, libc::PF_R | libc::PF_X, CODE, sizes.code, sizes.code),
        program(libc::PT_LOAD, libc::PF_R | libc::PF_W, tables, PAGE, rest),
        program(
            libc::PT_DYNAMIC,
            libc::PF_R | libc::PF_W,
            tables,
            dynamic.len() as u64,
            dynamic.len() as u64,
        ),
        program(libc::PT_GNU_EH_FRAME, libc::PF_R, HEADER, 20, 20),
        // Without it stacks would be made such that they can be run.
        program(libc::PT_GNU_STACK, libc::PF_R | libc::PF_W, 0, 0, 0),
    ];
    put(64, &programs.concat());
    put(HEADER, &eh_frame_header(HEADER, TABLE, points.entry, CODE));
    put(TABLE, &points.unwind);
    // A hash table with one place and one symbol, which is none.
    put(HASH, &words(&[1, 1, 0, 0]));
    put(CODE, &points.code);
    put(tables, &dynamic);
    file
}

/// `Elf64_Ehdr`: of 64 bits, little-endian; a library; six program headers behind it.
fn header() -> Vec<u8> {
    let mut identity = [0; 16];
    identity[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let machine = if cfg!(target_arch = "x86_64") { libc::EM_X86_64 } else { libc::EM_NONE };
    [
        identity.to_vec(),
        halves(&[libc::ET_DYN, machine]),
        words(&[1]),
        longs(&[0, 64, 0]),
        words(&[0]),
        halves(&[64, 56, 6, 0, 0, 0]),
    ]
    .concat()
}

/// `Elf64_Phdr`
fn program(kind: u32, flags: u32, at: u64, in_file: u64, in_memory: u64) -> Vec<u8> {
    [words(&[kind, flags]), longs(&[at, at, at, in_file, in_memory, PAGE])].concat()
}

/// `Elf64_Dyn`
fn dynamic() -> Vec<u8> {
    const DT_HASH: u64 = 4;
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_STRSZ: u64 = 10;
    const DT_SYMENT: u64 = 11;
    const DT_NULL: u64 = 0;
    let entries = [
        [DT_HASH, HASH],
        [DT_STRTAB, STRINGS],
        [DT_SYMTAB, SYMBOLS],
        [DT_STRSZ, 1],
        [DT_SYMENT, 24],
        [DT_NULL, 0],
    ];
    longs(entries.as_flattened())
}
