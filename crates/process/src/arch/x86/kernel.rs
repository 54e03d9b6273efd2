//! What is the kernel's, of as many bits as the program or of more: where the addresses of programs end, and which segment
//! `set_thread_area` gives to who asks first.

/// Of a program with 64 bits, but for what it asks for by address.
pub(crate) const fn addresses_end(_page: u64) -> u64 {
    0x7fff_ffff_f000
}

/// Of a program with 32 bits: all of them are its own under a kernel with 64 (`IA32_PAGE_OFFSET`).
#[cfg(target_arch = "x86_64")]
pub(crate) fn narrow_end() -> u64 {
    0xffff_e000
}

/// The smallest that can be mapped.
#[cfg(target_arch = "x86")]
const PAGE: u64 = 4096;

/// Of a program with 32 bits. A kernel with as many keeps a part for itself, mostly the last of four gigabytes, and says nowhere which.
#[cfg(target_arch = "x86")]
pub(crate) fn narrow_end() -> u64 {
    static END: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *END.get_or_init(|| {
        let taken = |errno: Option<i32>| errno != Some(libc::ENOMEM);
        // Whether there may be any mapping at all: a limit is no end.
        if !map(0).is_none_or(taken) {
            return 0xc000_0000;
        }
        let (mut below, mut end) = (0x10_0000 / PAGE, (1 << 32) / PAGE);
        while end - below > 1 {
            let middle = below + (end - below) / 2;
            match map((middle * PAGE) as usize).is_none_or(taken) {
                true => below = middle,
                false => end = middle,
            }
        }
        end * PAGE
    })
}

/// Maps a page here, for a moment, or anywhere at 0: why that is not possible.
#[cfg(target_arch = "x86")]
fn map(at: usize) -> Option<Option<i32>> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: nothing that is there is replaced, and nobody knows of what is new before it is gone.
    unsafe {
        let mapped =
            libc::mmap(std::ptr::without_provenance_mut(at), PAGE as usize, libc::PROT_NONE, flags, -1, 0);
        if mapped == libc::MAP_FAILED {
            return Some(std::io::Error::last_os_error().raw_os_error());
        }
        libc::munmap(mapped, PAGE as usize);
    }
    None
}

/// What selects the segment of a thread's control block in a 32-bit program, whose C library is the first that asks for one: the table of a
/// kernel of 64 bits has those from 12 on (`GDT_ENTRY_TLS_MIN`).
#[cfg(target_arch = "x86_64")]
pub fn thread_selector() -> u16 {
    12 << 3 | 3
}

/// What selects the segment of a thread's control block. Our own C library has asked as every other does.
#[cfg(target_arch = "x86")]
pub fn thread_selector() -> u16 {
    let selector: u16;
    // SAFETY: reading a segment register changes nothing.
    unsafe { core::arch::asm!("mov {0:x}, gs", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    selector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selector_is_of_a_user_segment() {
        // Of the global table, for privilege level 3, and one of the three entries for threads of either kernel.
        let selector = thread_selector();
        assert_eq!(selector & 7, 3);
        assert!((6..=8).contains(&(selector >> 3)) || (12..=14).contains(&(selector >> 3)), "{selector:#x}");
    }

    #[test]
    fn a_program_lies_below_its_end() {
        let end = if cfg!(target_arch = "x86") { narrow_end() } else { addresses_end(4096) };
        let on_stack = (&raw const end).addr() as u64;
        assert!(end.is_multiple_of(4096) && on_stack < end, "{on_stack:#x} {end:#x}");
        // The stack begins near it, but for what is drawn by lot and what lies above in 64 bits.
        assert!(cfg!(target_arch = "x86_64") || end - on_stack < 1 << 30, "{on_stack:#x} {end:#x}");
    }
}
