//! What was found of functions before, so that a probe at one of them need not look for its file again.
//!
//! It holds as long as the same part of the same file is mapped there, which the kernel tells for one address in no time (`PROCMAP_QUERY`, since Linux
//! 6.11), and for whoever follows calls as long as the loader has the same modules. Elsewhere nothing is known.

use crate::find::{Found, Purpose};
use crate::patch;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// A mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    device: (u32, u32),
}

/// How often the loader has added and removed modules.
type Loads = (u64, u64);

struct Known {
    mapped: Mapped,
    loads: Loads,
    found: Found,
}

static KNOWN: Mutex<BTreeMap<(u64, Purpose), Known>> = Mutex::new(BTreeMap::new());

/// What stands at an entry: what was found there before for the same purpose, or what `find` finds now.
///
/// # Errors
/// Those of `find`.
pub(crate) fn or_find<E>(
    entry: u64,
    purpose: Purpose,
    find: impl FnOnce() -> Result<Found, E>,
) -> Result<Found, E> {
    // Of a filter it is only known that it lets pass what is said to be called, and this call is not.
    let before = if patch::is_filtered() { None } else { mapped_at(entry).zip(loads()) };
    let Some((mapped, loads)) = before else { return find() };
    let all = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let holds = |known: &&Known| known.mapped == mapped && (!purpose.follows() || known.loads == loads);
    if let Some(known) = all().get(&(entry, purpose)).filter(holds) {
        return Ok(known.found.clone());
    }
    let found = find()?;
    all().insert((entry, purpose), Known { mapped, loads, found: found.clone() });
    Ok(found)
}

/// `struct procmap_query` (`include/uapi/linux/fs.h`).
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: (u32, u32),
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: libc::Ioctl =
    (3u32 << 30 | (size_of::<Query>() as u32) << 16 | (b'f' as u32) << 8 | 17) as libc::Ioctl;

/// The mapping of a file that an address is in; `None` where the kernel does not tell, or it is in none.
fn mapped_at(address: u64) -> Option<Mapped> {
    let maps = File::open("/proc/self/maps").ok()?;
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the call reads and writes what has this layout, and no more than its size says; no name is asked for.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
        return None;
    }
    let Query { start, end, offset, inode, device, .. } = query;
    (inode != 0).then_some(Mapped { start, end, offset, inode, device })
}

/// `None` where the C library does not count.
fn loads() -> Option<Loads> {
    /// Takes what is told of the first module.
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, size: usize, told: *mut c_void) -> i32 {
        if size >= size_of::<libc::dl_phdr_info>() {
            // SAFETY: the C library gives so much, and what it was given, for as long as this runs.
            unsafe { *told.cast::<Option<Loads>>() = Some(((*info).dlpi_adds, (*info).dlpi_subs)) };
        }
        1
    }
    let mut told = None::<Loads>;
    // SAFETY: the function takes what it is given as what this is.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut told).cast()) };
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_isa::Displaced;

    fn found(function: u64) -> Found {
        let displaced = Displaced { start: function, length: 5, instructions: 1 };
        Found {
            function,
            displaced,
            original: Vec::new(),
            code: (0, Vec::new()),
            name: Default::default(),
            told: Default::default(),
        }
    }

    #[test]
    fn what_is_mapped_elsewhere_or_otherwise_is_looked_for_again() {
        let own = what_is_mapped_elsewhere_or_otherwise_is_looked_for_again as *const () as u64;
        let Some(mapped) = mapped_at(own) else {
            return trapless_testing::inapplicable!("the kernel tells no mapping by an address");
        };
        assert!((mapped.start..mapped.end).contains(&own));
        let nowhere = Box::new(0u8);
        assert!(mapped_at(std::ptr::from_ref(&*nowhere) as u64).is_none(), "it is of no file");
        let ask = |name: u64| or_find::<()>(own, Purpose::Count, || Ok(found(name))).unwrap().function;
        assert_eq!([ask(1), ask(2)], [1, 1]);
        let change = |change: fn(&mut Known)| {
            let mut all = KNOWN.lock().unwrap();
            all.get_mut(&(own, Purpose::Count)).map(change).unwrap();
        };
        for (number, one) in [
            (3, (|known| known.mapped.start += 1) as fn(&mut Known)),
            (4, |known| known.mapped.end += 1),
            (5, |known| known.mapped.offset += 1),
            (6, |known| known.mapped.inode += 1),
            (7, |known| known.mapped.device.1 += 1),
        ] {
            change(one);
            assert_eq!([ask(number), ask(0)], [number; 2]);
        }
        // Modules that come and go matter to those that follow calls.
        change(|known| known.loads.0 += 1);
        assert_eq!(ask(8), 7);
        let follow = |name: u64| or_find::<()>(own, Purpose::Follow, || Ok(found(name))).unwrap().function;
        assert_eq!([follow(9), follow(10)], [9, 9]);
        KNOWN.lock().unwrap().get_mut(&(own, Purpose::Follow)).unwrap().loads.1 += 1;
        assert_eq!(follow(11), 11);
        // What is an error is asked again.
        assert_eq!(or_find(own + 1, Purpose::Count, || Err::<Found, _>(1)).unwrap_err(), 1);
        assert_eq!(or_find::<()>(own + 1, Purpose::Count, || Ok(found(12))).unwrap().function, 12);
    }
}
