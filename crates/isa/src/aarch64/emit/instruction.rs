//! Encodings, one function per instruction. `x` registers unless the name says `w`; 31 is sp or zero, as the
//! manual says.

use crate::{Reason, detour::Emitted};

/// `nop`
pub const NOP: u32 = 0xd503_201f;
/// `ret`
pub const RET: u32 = 0xd65f_03c0;
/// `udf #0`
pub const UDF: u32 = 0;

/// `offset` as a field of `width` bits at bit `low`, in units of 4 bytes.
pub(crate) fn branch_field(offset: i64, low: u32, width: u32) -> Emitted<u32> {
    let limit = 1i64 << (width + 1);
    if offset & 3 != 0 || offset < -limit || offset >= limit {
        return Err(Reason::OutOfReach);
    }
    Ok((((offset >> 2) as u32) & ((1 << width) - 1)) << low)
}

/// `b`, ±128 MB.
pub fn b(offset: i64) -> Emitted<u32> {
    Ok(0x1400_0000 | branch_field(offset, 0, 26)?)
}

/// `bl`, ±128 MB.
pub fn bl(offset: i64) -> Emitted<u32> {
    Ok(0x9400_0000 | branch_field(offset, 0, 26)?)
}

/// `cbz x`
pub const fn cbz(rt: u32) -> u32 {
    0xb400_0000 | rt
}

/// `cbnz x`
pub const fn cbnz(rt: u32) -> u32 {
    0xb500_0000 | rt
}

/// `cbnz w`
pub const fn cbnz_w(rt: u32) -> u32 {
    0x3500_0000 | rt
}

/// `tbz` on the sign bit.
pub const fn tbz_sign(rt: u32) -> u32 {
    0xb6f8_0000 | rt
}

/// `tbnz` on a bit.
pub const fn tbnz(rt: u32, bit: u32) -> u32 {
    0x3700_0000 | (bit >> 5) << 31 | (bit & 31) << 19 | rt
}

/// `tbz` on a bit.
pub const fn tbz(rt: u32, bit: u32) -> u32 {
    tbnz(rt, bit) & !(1 << 24)
}

/// `adr`, to be completed by a label.
pub const fn adr(rd: u32) -> u32 {
    0x1000_0000 | rd
}

/// `hint #number`
pub const fn hint(number: u8) -> u32 {
    0xd503_201f | (number as u32) << 5
}

/// `svc #0`
pub const SVC: u32 = 0xd400_0001;

/// `brk #immediate`
pub const fn brk(immediate: u16) -> u32 {
    0xd420_0000 | (immediate as u32) << 5
}

/// `mov xd, xm`
pub const fn mov(rd: u32, rm: u32) -> u32 {
    0xaa00_03e0 | rm << 16 | rd
}

/// `movz xd, #immediate, lsl #(16 * quarter)`
pub const fn movz(rd: u32, immediate: u16, quarter: u32) -> u32 {
    0xd280_0000 | quarter << 21 | (immediate as u32) << 5 | rd
}

/// `movk xd, #immediate, lsl #(16 * quarter)`
pub const fn movk(rd: u32, immediate: u16, quarter: u32) -> u32 {
    0xf280_0000 | quarter << 21 | (immediate as u32) << 5 | rd
}

/// `add xd, xn, #immediate`, 12 bits; 31 is sp.
pub const fn add_immediate(rd: u32, rn: u32, immediate: u32) -> u32 {
    0x9100_0000 | (immediate & 0xfff) << 10 | rn << 5 | rd
}

/// `add xd, xn, #immediate, lsl #12`
pub const fn add_immediate_high(rd: u32, rn: u32, immediate: u32) -> u32 {
    0x9140_0000 | (immediate & 0xfff) << 10 | rn << 5 | rd
}

/// `sub xd, xn, #immediate`
pub const fn sub_immediate(rd: u32, rn: u32, immediate: u32) -> u32 {
    0xd100_0000 | (immediate & 0xfff) << 10 | rn << 5 | rd
}

/// `add xd, xn, xm, lsl #shift`
pub const fn add(rd: u32, rn: u32, rm: u32, shift: u32) -> u32 {
    0x8b00_0000 | rm << 16 | shift << 10 | rn << 5 | rd
}

/// `sub xd, xn, xm, lsl #shift`
pub const fn sub(rd: u32, rn: u32, rm: u32, shift: u32) -> u32 {
    0xcb00_0000 | rm << 16 | shift << 10 | rn << 5 | rd
}

/// `eor xd, xn, xm`
pub const fn eor(rd: u32, rn: u32, rm: u32) -> u32 {
    0xca00_0000 | rm << 16 | rn << 5 | rd
}

/// `eor xd, xn, xm, lsr #shift`
pub const fn eor_shifted_right(rd: u32, rn: u32, rm: u32, shift: u32) -> u32 {
    0xca40_0000 | rm << 16 | shift << 10 | rn << 5 | rd
}

/// `eon xd, xn, xm`
pub const fn eon(rd: u32, rn: u32, rm: u32) -> u32 {
    0xca20_0000 | rm << 16 | rn << 5 | rd
}

/// `mvn xd, xm`
pub const fn mvn(rd: u32, rm: u32) -> u32 {
    0xaa20_03e0 | rm << 16 | rd
}

/// `orr xd, xn, xm`
pub const fn orr(rd: u32, rn: u32, rm: u32) -> u32 {
    0xaa00_0000 | rm << 16 | rn << 5 | rd
}

/// `orr xd, xn, #(1 << bit)`
pub const fn orr_bit(rd: u32, rn: u32, bit: u32) -> u32 {
    0xb240_0000 | ((64 - bit) & 63) << 16 | rn << 5 | rd
}

/// `mov xd, #((1 << ones) - 1)`
pub const fn mov_ones(rd: u32, ones: u32) -> u32 {
    0xb240_0000 | (ones - 1) << 10 | 31 << 5 | rd
}

/// `ubfx xd, xn, #low, #width`
pub const fn ubfx(rd: u32, rn: u32, low: u32, width: u32) -> u32 {
    0xd340_0000 | low << 16 | (low + width - 1) << 10 | rn << 5 | rd
}

/// `sbfx xd, xn, #low, #width`
pub const fn sbfx(rd: u32, rn: u32, low: u32, width: u32) -> u32 {
    ubfx(rd, rn, low, width) & !(1 << 30)
}

/// `ubfiz xd, xn, #low, #width`
pub const fn ubfiz(rd: u32, rn: u32, low: u32, width: u32) -> u32 {
    0xd340_0000 | ((64 - low) & 63) << 16 | (width - 1) << 10 | rn << 5 | rd
}

/// `lsr xd, xn, #shift`
pub const fn lsr(rd: u32, rn: u32, shift: u32) -> u32 {
    ubfx(rd, rn, shift, 64 - shift)
}

/// `lsl xd, xn, #shift`
pub const fn lsl(rd: u32, rn: u32, shift: u32) -> u32 {
    ubfiz(rd, rn, shift, 64 - shift)
}

/// `lsr xd, xn, xm`
pub const fn lsrv(rd: u32, rn: u32, rm: u32) -> u32 {
    0x9ac0_2400 | rm << 16 | rn << 5 | rd
}

/// `lsl xd, xn, xm`
pub const fn lslv(rd: u32, rn: u32, rm: u32) -> u32 {
    0x9ac0_2000 | rm << 16 | rn << 5 | rd
}

/// `clz xd, xn`
pub const fn clz(rd: u32, rn: u32) -> u32 {
    0xdac0_1000 | rn << 5 | rd
}

/// `madd xd, xn, xm, xa`
pub const fn madd(rd: u32, rn: u32, rm: u32, ra: u32) -> u32 {
    0x9b00_0000 | rm << 16 | ra << 10 | rn << 5 | rd
}

/// `ldr xt, [xn, #offset]`, a multiple of 8 below 32 KB.
pub const fn ldr(rt: u32, rn: u32, offset: u32) -> u32 {
    0xf940_0000 | ((offset / 8) & 0xfff) << 10 | rn << 5 | rt
}

/// `str xt, [xn, #offset]`
pub const fn str(rt: u32, rn: u32, offset: u32) -> u32 {
    0xf900_0000 | ((offset / 8) & 0xfff) << 10 | rn << 5 | rt
}

/// `ldr wt, [xn, #offset]`, a multiple of 4.
pub const fn ldr_w(rt: u32, rn: u32, offset: u32) -> u32 {
    0xb940_0000 | ((offset / 4) & 0xfff) << 10 | rn << 5 | rt
}

/// `ldur xt, [xn, #offset]`, from -256 to 255.
pub const fn ldur(rt: u32, rn: u32, offset: i32) -> u32 {
    0xf840_0000 | (offset as u32 & 0x1ff) << 12 | rn << 5 | rt
}

/// `ldr xt`, to be completed by a label.
pub const fn ldr_literal(rt: u32) -> u32 {
    0x5800_0000 | rt
}

/// `ldrh wt, [xn]`
pub const fn ldrh(rt: u32, rn: u32) -> u32 {
    0x7940_0000 | rn << 5 | rt
}

/// `ldrb wt, [xn]`
pub const fn ldrb(rt: u32, rn: u32) -> u32 {
    0x3940_0000 | rn << 5 | rt
}

/// `ldrsw xt, [xn, #offset]`, a multiple of 4.
pub const fn ldrsw(rt: u32, rn: u32, offset: u32) -> u32 {
    0xb980_0000 | ((offset / 4) & 0xfff) << 10 | rn << 5 | rt
}

/// `str wt, [xn, #offset]`
pub const fn str_w(rt: u32, rn: u32, offset: u32) -> u32 {
    0xb900_0000 | ((offset / 4) & 0xfff) << 10 | rn << 5 | rt
}

/// `ldr xt, [xn, xm, lsl #3]`
pub const fn ldr_indexed(rt: u32, rn: u32, rm: u32) -> u32 {
    0xf860_7800 | rm << 16 | rn << 5 | rt
}

const fn pair(opcode: u32, rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    opcode | ((offset / 8) as u32 & 0x7f) << 15 | rt2 << 10 | rn << 5 | rt
}

/// `stp xt, xt2, [xn, #offset]`, a multiple of 8 from -512 to 504.
pub const fn stp(rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    pair(0xa900_0000, rt, rt2, rn, offset)
}

/// `ldp xt, xt2, [xn, #offset]`
pub const fn ldp(rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    pair(0xa940_0000, rt, rt2, rn, offset)
}

/// `stp xt, xt2, [xn, #offset]!`
pub const fn stp_pre(rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    pair(0xa980_0000, rt, rt2, rn, offset)
}

/// `ldp xt, xt2, [xn], #offset`
pub const fn ldp_post(rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    pair(0xa8c0_0000, rt, rt2, rn, offset)
}

/// `stp dt, dt2, [xn, #offset]`, a multiple of 8.
pub const fn stp_d(rt: u32, rt2: u32, rn: u32, offset: i32) -> u32 {
    0x6d00_0000 | ((offset as u32 / 8) & 0x7f) << 15 | rt2 << 10 | rn << 5 | rt
}

/// `fmov xd, dn`
pub const fn fmov_from_d(rd: u32, rn: u32) -> u32 {
    0x9e66_0000 | rn << 5 | rd
}

/// `blr xn`
pub const fn blr(rn: u32) -> u32 {
    0xd63f_0000 | rn << 5
}

/// `br xn`
pub const fn br(rn: u32) -> u32 {
    0xd61f_0000 | rn << 5
}

/// `strb wt, [xn, #offset]`
pub const fn strb(rt: u32, rn: u32, offset: u32) -> u32 {
    0x3900_0000 | (offset & 0xfff) << 10 | rn << 5 | rt
}

const fn vector_pair(opcode: u32, rt: u32, rt2: u32, rn: u32, offset: u32) -> u32 {
    opcode | ((offset / 16) & 0x7f) << 15 | rt2 << 10 | rn << 5 | rt
}

/// `stp qt, qt2, [xn, #offset]`, a multiple of 16 up to 1008.
pub const fn stp_q(rt: u32, rt2: u32, rn: u32, offset: u32) -> u32 {
    vector_pair(0xad00_0000, rt, rt2, rn, offset)
}

/// `ldp qt, qt2, [xn, #offset]`
pub const fn ldp_q(rt: u32, rt2: u32, rn: u32, offset: u32) -> u32 {
    vector_pair(0xad40_0000, rt, rt2, rn, offset)
}

/// `addvl xd, xn, #count`: so many lengths of a scalable vector, from -32 to 31.
pub const fn addvl(rd: u32, rn: u32, count: i32) -> u32 {
    0x0420_5000 | rn << 16 | (count as u32 & 0x3f) << 5 | rd
}

const fn scalable(opcode: u32, t: u32, rn: u32, place: u32) -> u32 {
    opcode | (place >> 3 & 0x3f) << 16 | (place & 7) << 10 | rn << 5 | t
}

/// `str zt, [xn, #place, mul vl]`, a place up to 255.
pub const fn str_z(zt: u32, rn: u32, place: u32) -> u32 {
    scalable(0xe580_4000, zt, rn, place)
}

/// `ldr zt, [xn, #place, mul vl]`
pub const fn ldr_z(zt: u32, rn: u32, place: u32) -> u32 {
    scalable(0x8580_4000, zt, rn, place)
}

/// `str pt, [xn, #place, mul vl]`, in lengths of a predicate.
pub const fn str_p(pt: u32, rn: u32, place: u32) -> u32 {
    scalable(0xe580_0000, pt, rn, place)
}

/// `ldr pt, [xn, #place, mul vl]`
pub const fn ldr_p(pt: u32, rn: u32, place: u32) -> u32 {
    scalable(0x8580_0000, pt, rn, place)
}

/// `rdffr pd.b`
pub const fn rdffr(pd: u32) -> u32 {
    0x2519_f000 | pd
}

/// `wrffr pn.b`
pub const fn wrffr(pn: u32) -> u32 {
    0x2528_9000 | pn << 5
}

/// `mrs xt, nzcv`
pub const fn mrs_flags(rt: u32) -> u32 {
    0xd53b_4200 | rt
}

/// `msr nzcv, xt`
pub const fn msr_flags(rt: u32) -> u32 {
    mrs_flags(rt) & !(1 << 21)
}

/// `mrs xt, fpsr`
pub const fn mrs_float_flags(rt: u32) -> u32 {
    0xd53b_4420 | rt
}

/// `msr fpsr, xt`
pub const fn msr_float_flags(rt: u32) -> u32 {
    mrs_float_flags(rt) & !(1 << 21)
}

/// `mrs xt, fpcr`
pub const fn mrs_float_control(rt: u32) -> u32 {
    0xd53b_4400 | rt
}

/// `msr fpcr, xt`
pub const fn msr_float_control(rt: u32) -> u32 {
    mrs_float_control(rt) & !(1 << 21)
}

/// `ldxr xt, [xn]`
pub const fn ldxr(rt: u32, rn: u32) -> u32 {
    0xc85f_7c00 | rn << 5 | rt
}

/// `stxr ws, xt, [xn]`
pub const fn stxr(rs: u32, rt: u32, rn: u32) -> u32 {
    0xc800_7c00 | rs << 16 | rn << 5 | rt
}

/// `stadd xs, [xn]`
pub const fn stadd(rs: u32, rn: u32) -> u32 {
    0xf820_001f | rs << 16 | rn << 5
}

/// `ldxr wt, [xn]`
pub const fn ldxr_w(rt: u32, rn: u32) -> u32 {
    0x885f_7c00 | rn << 5 | rt
}

/// `stlxr ws, wt, [xn]`
pub const fn stlxr_w(rs: u32, rt: u32, rn: u32) -> u32 {
    0x8800_fc00 | rs << 16 | rn << 5 | rt
}

/// `ldar wt, [xn]`
pub const fn ldar_w(rt: u32, rn: u32) -> u32 {
    0x88df_fc00 | rn << 5 | rt
}

/// `ldar xt, [xn]`
pub const fn ldar(rt: u32, rn: u32) -> u32 {
    0xc8df_fc00 | rn << 5 | rt
}

/// `stlr xt, [xn]`
pub const fn stlr(rt: u32, rn: u32) -> u32 {
    0xc89f_fc00 | rn << 5 | rt
}

/// `isb`
pub const ISB: u32 = 0xd503_3fdf;

/// `mrs xt, tpidr_el0`
pub const fn mrs_thread_pointer(rt: u32) -> u32 {
    0xd53b_d040 | rt
}

/// `mrs xt, cntvct_el0`
pub const fn mrs_time(rt: u32) -> u32 {
    0xd53b_e040 | rt
}
