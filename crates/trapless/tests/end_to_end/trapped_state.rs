//! Hard case S5 under traps: what a program does with SIGTRAP and its signal masks stays as it is, or it gets no breakpoints.

use crate::support::Program;
use crate::support::tool::{KINDS_BY_TRAP, RETURN_BY_TRAP, Tool, detach, run};

const SOURCE: &str = include_str!("targets/masks.c");
const MECHANISMS: [&str; 3] = ["step", "emulate", "boost"];

#[test]
fn s5_a_program_that_ignores_or_blocks_sigtrap_gets_no_breakpoints() {
    for program in Program::in_both_widths("masks", SOURCE, &[]) {
        for (what, why) in [
            ("ignored", "ignores SIGTRAP"),
            ("blocked", "blocks SIGTRAP"),
            ("guarded", "blocks SIGTRAP"),
            ("sigwait", "blocks SIGTRAP"),
            ("signalfd", "blocks SIGTRAP"),
            ("ppoll", "blocks SIGTRAP"),
        ] {
            let mut target = program.start(&[what]);
            let (pid, before) = (target.pid().to_string(), target.text());
            let ran = run(&["count", "--mechanism", "step", "-p", &pid, "masks:subject"]);
            ran.assert_refused(1, &[why, "probes that trap"]);
            before.assert_restored(target.pid());
            // What does not trap is still possible.
            let tool = Tool::armed(&["count", "-p", &pid, "masks:subject"]);
            target.tell("");
            assert_eq!(target.line(), "good", "{what}");
            assert_eq!(tool.interrupt().hits("subject", "entry"), 1);
            target.tell("");
            assert_eq!(target.line(), "good", "{what}");
        }
    }
}

#[test]
fn s5_handlers_and_masks_are_kept_under_traps() {
    for program in Program::in_both_widths("masks", SOURCE, &[]) {
        for (what, hits) in [("handler", 1), ("thread", 1), ("altstack", 2), ("moment", 4), ("open", 3)] {
            for mechanism in MECHANISMS {
                let name = format!("{what} {mechanism}, 32 bits: {}", program.is_32bit());
                let mut target = program.start(&[what]);
                let (pid, before) = (target.pid().to_string(), target.text());
                let probe = ["--mechanism", mechanism, "-p", &pid, "masks:subject"];
                let tool = Tool::armed(&[&["count"], RETURN_BY_TRAP, &probe].concat());
                for _ in 0..3 {
                    target.tell("");
                    assert_eq!(target.line(), "good", "{name}");
                }
                let summary = tool.interrupt();
                for kind in KINDS_BY_TRAP {
                    assert_eq!(summary.hits("subject", kind), 3 * hits, "{name}");
                }
                target.tell("");
                assert_eq!(target.line(), "good", "{name}");
                // What a return left on the stack may keep the memory for a while.
                detach(target.pid());
                before.assert_restored(target.pid());
            }
        }
    }
}
