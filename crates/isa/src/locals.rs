//! Where a variable of each thread's own is, by a function that returns its address.
//!
//! The function is emulated for two threads that differ in their thread pointer alone: what it returns for both is as far from there, or depends on
//! something else.

use crate::{Machine, Thread};
use core::cell::RefCell;

/// The most instructions of such a function. The C library's have up to seven.
const MOST: usize = 16;

/// Two thread pointers, far from what addresses may be met.
const THREADS: [u64; 2] = [0x1234_5678_9000, 0x5fff_0000_1000];
/// The stack, and where the function returns to.
const STACK: u64 = 0x7ffe_0000_0000;
const HOME: u64 = 0x7ffe_1000_0000;
/// Bytes about a thread pointer of which nothing is known.
const NEAR: u64 = 1 << 32;

/// Numbers of registers, as [`Thread`] has them.
struct Convention {
    result: u8,
    /// The one that holds the thread pointer, where a general register does.
    thread_pointer: Option<u8>,
    /// The one that holds the address at which a function is entered.
    entry: Option<u8>,
}

impl Convention {
    fn of(machine: Machine) -> Option<Self> {
        match machine {
            Machine::X86_64 | Machine::AArch64 => Some(Self { result: 0, thread_pointer: None, entry: None }),
            Machine::PowerPc64Le => Some(Self { result: 3, thread_pointer: Some(13), entry: Some(12) }),
            Machine::I386 => None,
        }
    }
}

/// A thread that runs it.
struct Runs<'a> {
    registers: [u64; 64],
    flags: u64,
    ip: u64,
    thread_pointer: u64,
    read: RefCell<&'a mut dyn FnMut(u64) -> Option<u64>>,
}

impl Thread for Runs<'_> {
    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number) % self.registers.len()]
    }

    fn set_register(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number) % self.registers.len()] = value;
    }

    fn flags(&self) -> u64 {
        self.flags
    }

    fn set_flags(&mut self, flags: u64) {
        self.flags = flags;
    }

    fn set_ip(&mut self, address: u64) {
        self.ip = address;
    }

    fn segment_base(&self, gs: bool) -> Option<u64> {
        (!gs).then_some(self.thread_pointer)
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        match address {
            _ if size != 8 => None,
            // The first word of its control block, by which x86's functions find that.
            _ if address == self.thread_pointer => Some(address),
            STACK => Some(HOME),
            _ if address.abs_diff(self.thread_pointer) < NEAR => None,
            _ => (self.read.borrow_mut())(address),
        }
    }

    fn write(&mut self, _address: u64, _size: u8, _value: u64) -> Option<()> {
        None
    }
}

/// How far from the thread pointer that is which the function with this code, at this address, returns the address of; `None` where that
/// cannot be told. `read`: a word of the program's memory.
pub fn returned_local(
    machine: Machine,
    code: &[u8],
    address: u64,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<i64> {
    let [first, second] = THREADS.map(|thread| {
        let result = returned(machine, code, address, thread, read)?;
        Some(result.wrapping_sub(thread) as i64)
    });
    first.filter(|_| first == second)
}

/// What it returns to a thread.
fn returned(
    machine: Machine,
    code: &[u8],
    address: u64,
    thread_pointer: u64,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    let (convention, isa) = (Convention::of(machine)?, machine.isa());
    let facts = isa.facts();
    let read = RefCell::new(read);
    let mut thread = Runs { registers: [0; 64], flags: 0, ip: address, thread_pointer, read };
    let known = [
        (Some(facts.stack_pointer), STACK),
        (Some(facts.link_register).filter(|_| facts.has_link_register()), HOME),
        (convention.thread_pointer, thread_pointer),
        (convention.entry, address),
    ];
    for (register, value) in known {
        if let Some(register) = register {
            thread.set_register(register, value);
        }
    }
    for _ in 0..MOST {
        let at = thread.ip;
        if at == HOME {
            return Some(thread.register(convention.result));
        }
        let rest = code.get(usize::try_from(at.checked_sub(address)?).ok()?..)?;
        let length = isa.decode(rest, at).ok()?.length;
        isa.emulate(rest.get(..usize::from(length))?, at, &mut thread).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const ADDRESS: u64 = 0x1000;
    /// Where the distance lies, for those that load it, and what it is.
    const PLACE: u64 = 0x2108;
    const FAR: i64 = -0x78;

    fn of(machine: Machine, code: &[u8]) -> Option<i64> {
        returned_local(machine, code, ADDRESS, &mut |address| (address == PLACE).then_some(FAR as u64))
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn functions_of_c_libraries_tell_where_a_variable_is_on_x86_64() {
        let cases: [(&[&[u8]], i64); 4] = [
            // glibc: mov rax,[rip+0x1101]; add rax,fs:0; ret
            (&[&[0x48, 0x8b, 0x05, 1, 0x11, 0, 0], &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0]], FAR),
            // A static glibc: mov rax,-0x40; add rax,fs:0; ret. With a landing pad ahead.
            (
                &[
                    &[0xf3, 0x0f, 0x1e, 0xfa],
                    &[0x48, 0xc7, 0xc0, 0xc0, 0xff, 0xff, 0xff],
                    &[0x64, 0x48, 0x03, 0x04, 0x25, 0, 0, 0, 0],
                ],
                -0x40,
            ),
            // musl: mov rax,fs:0; add rax,0x34; ret
            (&[&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], &[0x48, 0x83, 0xc0, 0x34]], 0x34),
            // lea rax,[rax-4] instead.
            (&[&[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], &[0x48, 0x8d, 0x40, 0xfc]], -4),
        ];
        for (code, expected) in cases {
            let code = [&code.concat()[..], &[0xc3]].concat();
            assert_eq!(of(Machine::X86_64, &code), Some(expected), "{code:x?}");
        }
    }

    #[test]
    fn functions_of_c_libraries_tell_where_a_variable_is_on_arm64() {
        const RET: u32 = 0xd65f_03c0;
        let cases: [(&[u32], i64); 3] = [
            // glibc: bti c; adrp x0,0x2000; ldr x0,[x0,#0x108]; mrs x1,tpidr_el0; add x0,x1,x0; ret
            (&[0xd503_245f, 0xb000_0000, 0xf940_8400, 0xd53b_d041, 0x8b00_0020, RET], FAR),
            // A static one: mrs x0,tpidr_el0; add x0,x0,#0,lsl #12; add x0,x0,#0x20; ret
            (&[0xd53b_d040, 0x9140_0000, 0x9100_8000, RET], 0x20),
            // musl: mrs x0,tpidr_el0; sub x0,x0,#0xa8; ret
            (&[0xd53b_d040, 0xd102_a000, RET], -0xa8),
        ];
        for (code, expected) in cases {
            assert_eq!(of(Machine::AArch64, &words(code)), Some(expected), "{code:x?}");
        }
    }

    #[test]
    fn functions_of_c_libraries_tell_where_a_variable_is_on_powerpc64le() {
        const BLR: u32 = 0x4e80_0020;
        let cases: [(&[u32], i64); 3] = [
            // glibc: addis r2,r12,1; addi r2,r2,0; addis r9,r2,-1; ld r3,0x1108(r9); add r3,r3,r13; blr
            (&[0x3c4c_0001, 0x3842_0000, 0x3d22_ffff, 0xe869_1108, 0x7c63_6a14, BLR], FAR),
            // A static one: addis r3,r13,0; addi r3,r3,-0x7000; blr
            (&[0x3c6d_0000, 0x3863_9000, BLR], -0x7000),
            // musl: addi r3,r13,-0x70a0; blr
            (&[0x386d_8f60, BLR], -0x70a0),
        ];
        for (code, expected) in cases {
            assert_eq!(of(Machine::PowerPc64Le, &words(code)), Some(expected), "{code:x?}");
        }
    }

    #[test]
    fn nothing_is_told_of_others() {
        let others: [&[u8]; 8] = [
            &[],
            &[0xc3],
            // mov rax,1; ret
            &[0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0xc3],
            // mov rax,fs:8; ret
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0, 0xc3],
            // mov rax,[rip+0x200], which cannot be read
            &[0x48, 0x8b, 0x05, 0, 2, 0, 0, 0xc3],
            // jmp elsewhere
            &[0xe9, 0, 0, 0, 0],
            // mov rax,fs:0; mov rax,rdi; ret
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x89, 0xf8, 0xc3],
            // jmp to itself
            &[0xeb, 0xfe],
        ];
        for code in others {
            assert_eq!(of(Machine::X86_64, code), None, "{code:x?}");
        }
        assert_eq!(of(Machine::I386, &[0xc3]), None);
        // bl away; ret
        assert_eq!(of(Machine::AArch64, &words(&[0x9400_1000, 0xd65f_03c0])), None);
        assert_eq!(of(Machine::PowerPc64Le, &words(&[0x6000_0000])), None);
    }
}
