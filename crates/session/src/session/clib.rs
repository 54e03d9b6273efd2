//! Where the C library keeps what detours read.

use trapless_process::Process;

/// Where a thread's id is, from its thread pointer on: `tid` in the C library's `struct pthread`.
///
/// glibc exports the place as `_thread_db_pthread_tid`, and it has not moved since 2.3.4 on x86; musl's has not since 1.1.
pub(super) fn tid_offset(process: &Process) -> Option<i32> {
    let maps = process.maps().ok()?;
    maps.iter().find_map(|mapping| {
        let name = mapping.path()?.file_name()?.to_str()?;
        match name {
            "libc.so.6" => Some(if process.is_32bit() { 0x68 } else { 0x2d0 }),
            _ if name.starts_with("ld-musl-i386") => Some(0x18),
            _ if name.starts_with("ld-musl-x86_64") => Some(0x30),
            _ => None,
        }
    })
}
