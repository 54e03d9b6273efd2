//! The instruction as assembly text, for `explain`.
//!
//! The words are formatted by the `powerpc` crate; what it does not know (prefixed instructions, most of VSX) is added
//! here or shown as data. Branches show absolute targets.

use super::decode::{Branch, Destination, Fields, Form, displacement_34, form, word_at};
use alloc::{format, string::String};
use core::fmt::Write;
use powerpc::{Argument, Extension, Extensions, Ins, Opcode};

pub(super) fn disassemble(code: &[u8], address: u64) -> String {
    let Some(word) = word_at(code, 0) else { return String::from("(incomplete)") };
    match form(code, address) {
        Err(_) => data(word),
        Ok((Form::Branch(Branch { to: Destination::Address(target), .. }), _)) => direct_branch(word, target),
        Ok((Form::AddPcIs { register, value }, _)) => format!("addpcis r{register}, {value:#x}"),
        Ok((Form::Prefixed { relative }, _)) => {
            prefixed(word, word_at(code, 4).unwrap_or_default(), address, relative)
        }
        Ok(_) if word.primary() == 19 && word.xo() == 560 => {
            format!("bctar{} {}, {}", if word.last() { "l" } else { "" }, word.rt(), word.ra())
        }
        Ok(_) => match Ins::new(word, extensions()) {
            Ins { op: Opcode::Illegal, .. } => data(word),
            instruction => format!("{}", instruction.simplified()),
        },
    }
}

fn extensions() -> Extensions {
    Extensions::from(Extension::Ppc64) | Extension::AltiVec
}

fn data(word: u32) -> String {
    format!(".long {word:#010x}")
}

/// The crate shows distances; show where the branch goes.
fn direct_branch(word: u32, target: u64) -> String {
    let parsed = Ins::new(word, extensions()).simplified();
    let mut text = String::from(parsed.mnemonic);
    let mut separator = " ";
    for argument in &parsed.args {
        let written = match argument {
            Argument::None => continue,
            Argument::BranchDest(_) => write!(text, "{separator}{target:#x}"),
            other => write!(text, "{separator}{other}"),
        };
        debug_assert!(written.is_ok(), "writing to a string");
        separator = ", ";
    }
    text
}

/// Prefixed loads, stores and additions.
fn prefixed(prefix: u32, suffix: u32, address: u64, relative: bool) -> String {
    let name = match (prefix >> 24 & 3, suffix.primary()) {
        (2, 14) => "paddi",
        (2, 32) => "plwz",
        (2, 34) => "plbz",
        (2, 36) => "pstw",
        (2, 38) => "pstb",
        (2, 40) => "plhz",
        (2, 42) => "plha",
        (2, 44) => "psth",
        (0, 41) => "plwa",
        (0, 57) => "pld",
        (0, 61) => "pstd",
        (3, 0) => return String::from("pnop"),
        _ => return format!(".quad {:#018x}", u64::from(suffix) << 32 | u64::from(prefix)),
    };
    let (rt, ra, displacement) = (suffix.rt(), suffix.ra(), displacement_34(prefix, suffix));
    match (relative, name) {
        (true, _) => format!("{name} r{rt}, {:#x}(pc)", address.wrapping_add_signed(displacement)),
        (false, "paddi") => format!("{name} r{rt}, r{ra}, {displacement}"),
        (false, _) => format!("{name} r{rt}, {displacement}(r{ra})"),
    }
}
