//! Vector, mask and x87 state as XSAVE lays it out.

use crate::processor::Random;
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes of an XSAVE area.
pub const SIZE: usize = 0x3000;

/// Where [`compared`] has the vector registers: behind the control words and ST.
pub const PACKED_XMM: usize = 2 + 1 + 4 + 8 * 10;

/// State components that are set and compared: x87, SSE, AVX, and what there is of AVX-512. The processor must have
/// xsave.
pub fn components() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: xgetbv of register 0 is there with xsave, and only reads.
    unsafe { core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high) };
    (u64::from(low) | u64::from(high) << 32) & 0xe7
}

/// Where the compared state lies in an area (Intel SDM 1, 13.4): control words, ST, XMM, then the components beyond,
/// whose places CPUID tells. Asked once: under a hypervisor that takes long.
fn places() -> &'static [(usize, usize)] {
    static PLACES: OnceLock<Vec<(usize, usize)>> = OnceLock::new();
    PLACES.get_or_init(|| {
        let mut places = vec![(0, 2), (4, 5), (24, 28)];
        places.extend((0..8).map(|st| (32 + 16 * st, 42 + 16 * st)));
        places.push((160, 416));
        for component in (2..8).filter(|c| components() >> c & 1 != 0) {
            let found = core::arch::x86_64::__cpuid_count(0xd, component);
            places.push((found.ebx as usize, (found.ebx + found.eax) as usize));
        }
        places
    })
}

/// Where an area has the lower half of a vector register.
pub fn xmm(number: usize) -> Range<usize> {
    let at = 160 + 16 * number;
    at..at + 16
}

/// An area of random state: x87 and SSE without unmasked exceptions, with random rounding and precision.
pub fn random(random: &mut Random) -> Vec<u8> {
    let mut area = vec![0; SIZE];
    for &(at, end) in places() {
        area[at..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
    }
    let control = 0x7f | (random.next() as u16 & 3) << 10 | 0x200;
    area[..8].copy_from_slice(&[control as u8, (control >> 8) as u8, 0, 0, 0xff, 0, 0, 0]);
    area[24..28].copy_from_slice(&(0x1f80 | (random.next() as u32 & 3) << 13).to_le_bytes());
    area[512..520].copy_from_slice(&components().to_le_bytes());
    area
}

/// The compared state of an area, packed.
pub fn compared(area: &[u8]) -> Vec<u8> {
    places().iter().map(|&(at, end)| &area[at..end]).collect::<Vec<_>>().concat()
}
