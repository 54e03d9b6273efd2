//! Code for machines that are not this one: that there is some, whatever the program. It is the same wherever it is made.

use crate::machine::RING_BITS;
use crate::random;
use trapless_isa::Machine;
use trapless_script::ir::BodyId;
use trapless_script::native::{Abi, Moment, Target, compile};

const MACHINES: [Machine; 2] = [Machine::AArch64, Machine::PowerPc64Le];

#[test]
fn random_programs_are_compiled_for_every_machine_that_runs_bodies() {
    let (_memory, addresses) = random::memory();
    let options = random::options(addresses);
    let mut longest = 0;
    for seed in 1..=random::seeds().min(60) {
        let program = random::told(seed, &options);
        for machine in MACHINES {
            let target = Target { machine, ring_bits: RING_BITS, abis: &[Abi::C] };
            let native = compile(&program, &[(BodyId(0), Moment::Entry)], &target);
            let native = native.unwrap_or_else(|error| panic!("seed {seed}, {}: {error}", machine.name()));
            for code in native.code.bodies.iter().chain(&native.code.routines) {
                assert!(code.is_sound(native.code.routines.len()), "seed {seed}, {}", machine.name());
                longest = longest.max(code.bytes.len());
            }
        }
    }
    assert!(longest > 4096, "{longest} bytes");
}
