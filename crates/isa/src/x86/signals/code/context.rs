//! Offsets in a context (`struct ucontext` and `struct sigcontext_64`, `arch/x86/include/uapi/asm`).

/// Of each register, by its hardware number.
pub const REGISTERS: [i32; 16] = [144, 152, 136, 128, 160, 120, 112, 104, 40, 48, 56, 64, 72, 80, 88, 96];
pub const SP: i32 = REGISTERS[4];
pub const IP: i32 = 168;
pub const FLAGS: i32 = 176;
/// The address of the other registers, as `fxsave` writes them; 0: there are none.
pub const EXTENDED: i32 = 224;
/// There, the lower half of xmm15.
pub const XMM15: i32 = 160 + 15 * 16;
/// Words that the kernel does not use: our note. The first one says that there is one.
pub const NOTE: i32 = crate::detour::signals::NOTE_IN_CONTEXT as i32;
/// Where the thread really is.
pub const NOTE_IP: i32 = NOTE + 8;
pub const NOTE_SP: i32 = NOTE + 16;
/// Its flags, if others were shown; else 0.
pub const NOTE_FLAGS: i32 = NOTE + 24;
/// What was shown.
pub const NOTE_SHOWN_IP: i32 = NOTE + 32;
pub const NOTE_SHOWN_SP: i32 = NOTE + 40;

/// OF, SF, ZF, AF, PF, CF.
pub const ARITHMETIC_FLAGS: i32 = 0x8d5;
/// Those that `lahf` knows.
pub const LAHF_FLAGS: i32 = 0xd5;
pub const OVERFLOW_FLAG: i32 = 0x800;
