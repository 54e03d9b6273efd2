//! What tests say in assembly, for each architecture: what begins functions, and instructions that are written over theirs.
//!
//! Bodies of functions are in `assembly.h`, which C sources include.

/// Whether this is x86, of 64 or of 32 bits.
pub const X86: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

/// What lies beside each program's source.
pub const HEADER: &str = include_str!("assembly.h");

/// What stays at a function's entry, ahead of a probe: its assembly, which names the function NAME, and its size.
#[cfg(target_arch = "x86_64")]
pub const LANDING_PAD: (&str, usize) = ("endbr64; ", 4);
#[cfg(target_arch = "x86")]
pub const LANDING_PAD: (&str, usize) = ("endbr32; ", 4);
#[cfg(target_arch = "aarch64")]
pub const LANDING_PAD: (&str, usize) = ("bti c; ", 4);
#[cfg(target_arch = "powerpc64")]
pub const LANDING_PAD: (&str, usize) =
    ("addis 2, 12, .TOC.-NAME@ha; addi 2, 2, .TOC.-NAME@l; .localentry NAME, . - NAME; ", 8);

/// A breakpoint.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub const BREAKPOINT: &[u8] = &[0xcc];
#[cfg(target_arch = "aarch64")]
pub const BREAKPOINT: &[u8] = &0xd420_0000_u32.to_le_bytes();
#[cfg(target_arch = "powerpc64")]
pub const BREAKPOINT: &[u8] = &0x7fe0_0008_u32.to_le_bytes();

/// What has the compiler guard functions against being entered elsewhere, and what has it not.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub const GUARDED: [&str; 2] = ["-fcf-protection=full", "-fcf-protection=none"];
#[cfg(target_arch = "aarch64")]
pub const GUARDED: [&str; 2] = ["-mbranch-protection=standard", "-mbranch-protection=none"];
/// There is no such thing.
#[cfg(target_arch = "powerpc64")]
pub const GUARDED: [&str; 2] = ["-fno-plt", "-fno-plt"];

/// Registers as scripts call them: the first four of a function's arguments, another that is free, the stack pointer. What `scripted.c` has in them is told there.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
pub const REGISTERS: [(&str, &str); 6] =
    [("ARG0", "di"), ("ARG1", "si"), ("ARG2", "dx"), ("ARG3", "cx"), ("FREE", "ax"), ("STACK", "sp")];
#[cfg(target_arch = "aarch64")]
pub const REGISTERS: [(&str, &str); 6] =
    [("ARG0", "x0"), ("ARG1", "x1"), ("ARG2", "r2"), ("ARG3", "r3"), ("FREE", "x9"), ("STACK", "sp")];
#[cfg(target_arch = "powerpc64")]
pub const REGISTERS: [(&str, &str); 6] =
    [("ARG0", "r3"), ("ARG1", "r4"), ("ARG2", "r5"), ("ARG3", "r6"), ("FREE", "r9"), ("STACK", "r1")];

/// A script with the names of [`REGISTERS`] in the place of what stands for them.
pub fn with_registers(script: &str) -> String {
    REGISTERS.iter().fold(script.to_owned(), |script, (word, name)| {
        script.replace(&format!("reg(\"{word}\")"), &format!("reg(\"{name}\")"))
    })
}
