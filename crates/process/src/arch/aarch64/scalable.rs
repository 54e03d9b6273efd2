//! What a thread loses by a system call: of scalable vectors (SVE) all that is beyond 128 bits, with the predicates, and streaming mode (SME).
//!
//! A program that makes a call knows that (`Documentation/arch/arm64/sve.rst`, section 3, and `sme.rst`, section 3). One that we have make it, in the
//! middle of a copy of memory, does not, and is given back what it had.
//!
//! A vector length that it has asked for its next program alone (`PR_SVE_SET_VL_ONEXEC`) is not kept: the kernel tells nobody.

use crate::arch::Vectors;
use crate::ptrace;
use crate::{Errno, Tid};

/// That of this machine: the kernel lets all programs use it or none.
pub fn vectors() -> Vectors {
    if std::arch::is_aarch64_feature_detected!("sve") { Vectors::Scalable } else { Vectors::Short }
}

/// `NT_ARM_SVE` and `NT_ARM_SSVE` of `include/uapi/linux/elf.h`. A thread has at most one of them.
const SETS: [usize; 2] = [0x405, 0x40b];
/// `struct user_sve_header` of `arch/arm64/include/uapi/asm/ptrace.h`: the size of all in its first four bytes, and flags.
const HEADER: usize = 16;
const FLAGS: usize = 12;
/// `SVE_PT_REGS_SVE`: what follows are whole vectors. Without it, there is nothing that a call loses.
const WHOLE: u8 = 1;

/// `NT_ARM_ZA`: a header like that, and the matrix behind it where that is on.
const MATRIX: usize = 0x40c;

/// Whether a stopped thread has streaming mode or the matrix on: what it calls then is compiled for that.
pub(crate) fn is_streaming(tid: Tid) -> bool {
    let header = |set| {
        let mut header = [0; HEADER];
        matches!(ptrace::get_regset_bytes(tid, set, &mut header), Ok(HEADER)).then_some(header)
    };
    let is_on = header(SETS[1]).is_some_and(|header| header[FLAGS] & WHOLE != 0);
    let has_matrix = |header: [u8; HEADER]| {
        u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize > HEADER
    };
    is_on || header(MATRIX).is_some_and(has_matrix)
}

/// The sets of registers that the next system call clears, with their numbers.
#[derive(Debug)]
pub(crate) struct LostByCalls(Vec<(usize, Vec<u8>)>);

impl LostByCalls {
    /// Those of a stopped thread.
    pub fn of(tid: Tid) -> Result<Self, Errno> {
        let mut sets = Vec::new();
        for set in SETS {
            let mut header = [0; HEADER];
            // Processors and kernels without them have no such set.
            let Ok(HEADER) = ptrace::get_regset_bytes(tid, set, &mut header) else { continue };
            if header[FLAGS] & WHOLE == 0 {
                continue;
            }
            let size = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let mut all = vec![0; size.next_multiple_of(HEADER)];
            ptrace::get_regset_bytes(tid, set, &mut all)?;
            sets.push((set, all));
        }
        Ok(Self(sets))
    }

    /// Gives them back to the thread, which stands where no call follows.
    pub fn put_back(&self, tid: Tid) -> Result<(), Errno> {
        self.0.iter().try_for_each(|(set, all)| ptrace::set_regset_bytes(tid, *set, all))
    }
}
