//! Code for probes in one's own process ([`crate::inside`]), in 64-bit mode.
//!
//! A handler may use all registers that the C convention lets a function use, and a caller may know that the probed function leaves some of
//! those alone (`-fipa-ra`); so all are kept. Of vector registers the low 128 bits always are, and what is longer where it is in use.

pub(super) mod loader;
mod points;

use super::{
    JUMP_LENGTH, SHORT_JUMP_LENGTH,
    emit::{Assembler, GPR64, jump_to, number::*, unencodable},
    relocate,
};
use crate::inside::{Copies, Ends, Handling, Inside, Points, RETURNS, Saved, VECTOR_STRIDE, Vectors};
use crate::{Displaced, Reason};
use alloc::vec::Vec;
use core::mem::{offset_of, size_of};
use iced_x86::{IcedError, code_asm::*};

/// 64-bit mode.
pub(super) struct Wide;

/// `int3`
const TRAP: u8 = 0xcc;

/// `jmp [rip + disp32]`
const PAD_LENGTH: usize = 6;

/// `jmp [rip]` over the address that follows it.
pub(super) const FAR_JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

/// `mov dword ptr [rsp+disp8], imm32`
const STORE_LENGTH: usize = 8;

/// What is saved, below the stack pointer of the probe. The word at its end is that which an entry says, and later where it goes on: where handlers of signals
/// leave alone what a function may keep there, and nobody keeps anything at an entry.
const FRAME: i32 = (size_of::<Saved>() + 8).next_multiple_of(16) as i32;
const WORD: i32 = FRAME - 8;

/// Components of XCR0, as XGETBV tells which are in use: the x87, halves of the registers up to 256 bits, masks, what is up to 512, and the sixteen others.
const X87_IN_USE: i32 = 1 << 0;
const YMM_HIGH: u32 = 1 << 2;
const MASKS: u32 = 1 << 5;
const ZMM_HIGH: u32 = 1 << 6;
const ZMM_MORE: u32 = 1 << 7;

/// Masks lie behind all vector registers.
const MASKS_AT: i32 = 32 * VECTOR_STRIDE as i32;

/// What all of it takes.
const VECTORS_LENGTH: i32 = MASKS_AT + 64;

const XMM: [AsmRegisterXmm; 16] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15];
const YMM: [AsmRegisterYmm; 16] =
    [ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14, ymm15];
const ZMM: [AsmRegisterZmm; 32] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14, zmm15,
    zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27, zmm28, zmm29, zmm30,
    zmm31,
];
const K: [AsmRegisterK; 8] = [k0, k1, k2, k3, k4, k5, k6, k7];

impl Inside for Wide {
    fn jump_length(&self) -> usize {
        JUMP_LENGTH.into()
    }

    fn ahead_of_jump(&self) -> &'static [u8] {
        // REX.W: such a jump has 64 bits anyway.
        &[0x48]
    }

    fn pad_length(&self) -> usize {
        PAD_LENGTH
    }

    fn copies(&self, displaced: &Displaced, original: &[u8], at: u64) -> Result<Copies, Reason> {
        let relocate::Relocated { mut code, places } = relocate::relocate(64, displaced, original, at)?;
        code.extend(FAR_JUMP);
        code.extend(displaced.end().to_le_bytes());
        Ok(Copies { code, places })
    }

    fn handling(&self, handling: &Handling, at: u64) -> Result<Vec<u8>, Reason> {
        let mut assembler = Assembler::new(64, at)?;
        handle(&mut assembler.a, handling).map_err(unencodable)?;
        Ok(assembler.finish()?.code().to_vec())
    }

    fn entry_length(&self) -> usize {
        2 * STORE_LENGTH + FAR_JUMP.len() + size_of::<u64>()
    }

    fn entry(&self, data: u64, handling: u64) -> Vec<u8> {
        let half = |below: u8, shift: u32| {
            [&[0xc7, 0x44, 0x24, below][..], &(((data >> shift) as u32).to_le_bytes())].concat()
        };
        // `mov dword ptr [rsp-8], …` and the other half.
        [half(0xf8, 0), half(0xfc, 32), FAR_JUMP.to_vec(), handling.to_le_bytes().to_vec()].concat()
    }

    fn points(&self, ends: &Ends, at: u64, table: u64) -> Result<Points, Reason> {
        points::make(ends, at, table)
    }

    fn pad(&self, at: u64, slot: u64) -> Result<Vec<u8>, Reason> {
        Ok([&FAR_JUMP[..2], &distance(at.wrapping_add(PAD_LENGTH as u64), slot)?].concat())
    }

    fn jump(&self, site: u64, pad: u64) -> Result<Vec<u8>, Reason> {
        Ok(jump_to(64, site, pad)?.to_vec())
    }

    fn short_jump(&self, site: u64, to: u64) -> Result<Vec<u8>, Reason> {
        const JMP_REL8: u8 = 0xeb;
        let distance = to.wrapping_sub(site).wrapping_sub(SHORT_JUMP_LENGTH.into()).cast_signed();
        let distance = i8::try_from(distance).map_err(|_| Reason::OutOfReach)?;
        Ok([JMP_REL8, distance.cast_unsigned()].to_vec())
    }

    fn trap(&self) -> u8 {
        TRAP
    }
}

/// What leads `to` an address from behind an instruction, or from where it stands in a table.
fn distance(from: u64, to: u64) -> Result<[u8; 4], Reason> {
    let distance = to.wrapping_sub(from).cast_signed();
    i32::try_from(distance).map(i32::to_le_bytes).map_err(|_| Reason::OutOfReach)
}

/// Where a general register is saved, from the start on.
fn general(register: usize) -> i32 {
    (offset_of!(Saved, general) + 8 * register) as i32
}

/// Where a vector register is saved, above the stack pointer.
fn vector(number: usize) -> i32 {
    (VECTOR_STRIDE * number) as i32
}

fn handle(a: &mut CodeAssembler, handling: &Handling) -> Result<(), IcedError> {
    let [mut returns, mut by_point] = [(); 2].map(|()| a.create_label());
    save(a, handling.vectors)?;
    a.mov(qword_ptr(rbp + offset_of!(Saved, by_point) as i32), 0)?;
    a.mov(rdi, rbp)?;
    a.mov(rsi, qword_ptr(rbp + WORD))?;
    a.mov(rax, handling.dispatcher)?;
    a.call(rax)?;
    put_back_vectors(a, handling.vectors)?;
    a.mov(rax, qword_ptr(rbp + offset_of!(Saved, way) as i32))?;
    a.cmp(rax, RETURNS as i32)?;
    a.je(returns)?;
    a.mov(qword_ptr(rbp + WORD), rax)?;
    a.cmp(qword_ptr(rbp + offset_of!(Saved, by_point) as i32), 0)?;
    a.jne(by_point)?;
    put_back(a)?;
    a.jmp(qword_ptr(rsp - (FRAME - WORD)))?;
    a.set_label(&mut by_point)?;
    put_back(a)?;
    // The return address comes off the stack.
    a.lea(rsp, qword_ptr(rsp + 8))?;
    a.jmp(qword_ptr(rsp - 8 - (FRAME - WORD)))?;
    a.set_label(&mut returns)?;
    put_back(a)?;
    a.ret()
}

/// Saves everything, with rbp at it.
fn save(a: &mut CodeAssembler, longer: Option<Vectors>) -> Result<(), IcedError> {
    let at = |offset: usize| qword_ptr(rbp + offset as i32);
    a.lea(rsp, qword_ptr(rsp - FRAME))?;
    a.mov(qword_ptr(rsp + general(RBP)), rbp)?;
    a.mov(rbp, rsp)?;
    for register in (0..16).filter(|register| ![RSP, RBP].contains(register)) {
        a.mov(qword_ptr(rbp + general(register)), GPR64[register])?;
    }
    a.lahf()?;
    a.seto(al)?;
    a.mov(at(offset_of!(Saved, flags)), rax)?;
    a.lea(rax, qword_ptr(rbp + FRAME))?;
    a.mov(qword_ptr(rbp + general(RSP)), rax)?;
    a.and(rsp, -64)?;
    a.sub(rsp, VECTORS_LENGTH)?;
    a.mov(at(offset_of!(Saved, vectors)), rsp)?;
    if let Some(Vectors { components, tells_use }) = longer {
        if tells_use {
            a.mov(ecx, 1)?;
            a.xgetbv()?;
            a.and(eax, components as i32 | X87_IN_USE)?;
        } else {
            a.mov(eax, components)?;
        }
        a.mov(at(offset_of!(Saved, in_use)), rax)?;
    }
    for (n, register) in XMM.into_iter().enumerate() {
        a.movaps(xmmword_ptr(rsp + vector(n)), register)?;
    }
    if let Some(Vectors { components, .. }) = longer {
        save_longer(a, components)?;
    }
    a.stmxcsr(environment(0))
}

fn environment(index: usize) -> AsmMemoryOperand {
    dword_ptr(rbp + (offset_of!(Saved, environment) + 4 * index) as i32)
}

/// Puts back all but the general registers and the flags.
fn put_back_vectors(a: &mut CodeAssembler, longer: Option<Vectors>) -> Result<(), IcedError> {
    // Nothing is loaded where a handler has raised nothing, which is less work.
    let mut same = a.create_label();
    a.stmxcsr(environment(1))?;
    a.mov(eax, environment(0))?;
    a.cmp(eax, environment(1))?;
    a.je(same)?;
    a.ldmxcsr(environment(0))?;
    a.set_label(&mut same)?;
    a.zero_bytes()?;
    if let Some(Vectors { components, .. }) = longer {
        a.mov(rax, qword_ptr(rbp + offset_of!(Saved, in_use) as i32))?;
        put_back_longer(a, components)?;
    }
    for (n, register) in XMM.into_iter().enumerate() {
        // Without a prefix of AVX's, which leaves the rest of it as it is.
        a.movaps(register, xmmword_ptr(rsp + vector(n)))?;
    }
    a.mov(rsp, rbp)
}

/// Saves what is longer than 128 bits and in use, as eax says.
fn save_longer(a: &mut CodeAssembler, components: u32) -> Result<(), IcedError> {
    for (component, store) in [
        (YMM_HIGH, store_ymm as fn(&mut CodeAssembler) -> Result<(), IcedError>),
        (ZMM_HIGH, |a| store_zmm(a, 0)),
        (ZMM_MORE, |a| store_zmm(a, 16)),
        (MASKS, store_masks),
    ] {
        if components & component != 0 {
            let mut unused = a.create_label();
            a.test(eax, component as i32)?;
            a.je(unused)?;
            store(a)?;
            a.set_label(&mut unused)?;
            a.zero_bytes()?;
        }
    }
    Ok(())
}

/// Puts it back; what was not in use was 0, and is so again. Of the first sixteen registers the low halves come behind this.
fn put_back_longer(a: &mut CodeAssembler, components: u32) -> Result<(), IcedError> {
    // All that is longer of the first sixteen.
    a.vzeroupper()?;
    type Part = fn(&mut CodeAssembler) -> Result<(), IcedError>;
    let parts: [(u32, Part, Part); 4] = [
        (YMM_HIGH, load_ymm, |a| a.zero_bytes()),
        (ZMM_HIGH, |a| load_zmm(a, 0), |a| a.zero_bytes()),
        (ZMM_MORE, |a| load_zmm(a, 16), clear_more),
        (MASKS, load_masks, clear_masks),
    ];
    for (component, load, clear) in parts {
        if components & component != 0 {
            let [mut unused, mut done] = [(); 2].map(|()| a.create_label());
            a.test(eax, component as i32)?;
            a.je(unused)?;
            load(a)?;
            a.jmp(done)?;
            a.set_label(&mut unused)?;
            clear(a)?;
            a.set_label(&mut done)?;
            a.zero_bytes()?;
        }
    }
    Ok(())
}

fn store_ymm(a: &mut CodeAssembler) -> Result<(), IcedError> {
    YMM.into_iter()
        .enumerate()
        .try_for_each(|(n, register)| a.vmovups(ymmword_ptr(rsp + vector(n)), register))
}

fn load_ymm(a: &mut CodeAssembler) -> Result<(), IcedError> {
    YMM.into_iter()
        .enumerate()
        .try_for_each(|(n, register)| a.vmovups(register, ymmword_ptr(rsp + vector(n))))
}

fn store_zmm(a: &mut CodeAssembler, first: usize) -> Result<(), IcedError> {
    let all = ZMM.into_iter().enumerate().skip(first).take(16);
    all.into_iter().try_for_each(|(n, register)| a.vmovups(zmmword_ptr(rsp + vector(n)), register))
}

fn load_zmm(a: &mut CodeAssembler, first: usize) -> Result<(), IcedError> {
    let all = ZMM.into_iter().enumerate().skip(first).take(16);
    all.into_iter().try_for_each(|(n, register)| a.vmovups(register, zmmword_ptr(rsp + vector(n))))
}

/// The last sixteen, which nothing else clears.
fn clear_more(a: &mut CodeAssembler) -> Result<(), IcedError> {
    ZMM.into_iter().skip(16).try_for_each(|register| a.vpxord(register, register, register))
}

fn store_masks(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let all = (MASKS_AT..).step_by(8).zip(K);
    all.into_iter().try_for_each(|(at, register)| a.kmovq(qword_ptr(rsp + at), register))
}

fn load_masks(a: &mut CodeAssembler) -> Result<(), IcedError> {
    let all = (MASKS_AT..).step_by(8).zip(K);
    all.into_iter().try_for_each(|(at, register)| a.kmovq(register, qword_ptr(rsp + at)))
}

fn clear_masks(a: &mut CodeAssembler) -> Result<(), IcedError> {
    K.into_iter().try_for_each(|register| a.kxorq(register, register, register))
}

/// All registers, with the stack pointer at what was saved.
fn put_back(a: &mut CodeAssembler) -> Result<(), IcedError> {
    a.mov(rax, qword_ptr(rbp + offset_of!(Saved, flags) as i32))?;
    // Makes the overflow flag what it was; the others come from ah.
    a.add(al, 127)?;
    a.sahf()?;
    for register in (0..16).filter(|register| ![RSP, RBP].contains(register)) {
        a.mov(GPR64[register], qword_ptr(rbp + general(register)))?;
    }
    a.mov(rbp, qword_ptr(rsp + general(RBP)))?;
    a.lea(rsp, qword_ptr(rsp + FRAME))
}
