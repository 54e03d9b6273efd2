//! What the processor has beyond the low halves of vector registers, as far as the kernel saves it.

use crate::arch::Vectors;

/// That of this machine. It is asked once: a virtual machine leaves the processor for CPUID, which takes microseconds.
#[cfg(target_arch = "x86_64")]
pub fn vectors() -> Vectors {
    static VECTORS: std::sync::OnceLock<Vectors> = std::sync::OnceLock::new();
    *VECTORS.get_or_init(asked)
}

#[cfg(target_arch = "x86_64")]
fn asked() -> Vectors {
    use crate::arch::LongVectors;
    use std::arch::x86_64::{__cpuid_count, _xgetbv};
    /// x87 and tiles are not a C function's to change; protection keys are the program's own.
    const COMPONENTS: u32 = 0b1110_0100;
    const STATE: u32 = 0xd;
    // Processors with long ones and short masks are gone.
    if std::is_x86_feature_detected!("avx512f") && !std::is_x86_feature_detected!("avx512bw") {
        return Vectors::Unknown;
    }
    if !std::is_x86_feature_detected!("avx") || !std::is_x86_feature_detected!("xsave") {
        return Vectors::Short;
    }
    // SAFETY: the processor has XSAVE, and the kernel lets it be used: it has AVX.
    let components = unsafe { _xgetbv(0) } as u32 & COMPONENTS;
    let tells_use = __cpuid_count(STATE, 1).eax & 1 << 2 != 0;
    Vectors::Long(LongVectors { components, tells_use })
}

/// A tool of 32 bits makes no code that would have to know.
#[cfg(target_arch = "x86")]
pub fn vectors() -> Vectors {
    Vectors::Unknown
}
