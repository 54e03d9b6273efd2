//! Hard case S2 in Go's assembly, which keeps to no convention about flags: whose callers read some that it returns with is found by reading them all.

use crate::support::tool::{finish, run};
use std::path::PathBuf;
use std::process::Command;

const MAIN: &str = "package main\n\nimport \"fmt\"\n\nfunc Less(x, y uint64) uint64\nfunc Known(x, y uint64) uint64\n\n\
    func main() { fmt.Println(Less(1, 2), Less(2, 1), Known(1, 2), Known(2, 1)) }\n";

/// Functions that compare for others. One of them is called behind a byte that is no instruction, where HOLE stands.
const ASSEMBLY: &str = r#"
#include "textflag.h"
TEXT compare<>(SB), NOSPLIT|NOFRAME, $0-0
    CMPQ AX, BX
    MOVQ CX, DX
    MOVQ DX, CX
    MOVQ CX, DX
    RET
TEXT plain<>(SB), NOSPLIT|NOFRAME, $0-0
    CMPQ AX, BX
    MOVQ CX, DX
    MOVQ DX, CX
    MOVQ CX, DX
    RET
TEXT ·Less(SB), NOSPLIT, $8-24
    MOVQ x+0(FP), AX
    MOVQ y+8(FP), BX
    JMP  over
    HOLE
over:
    CALL compare<>(SB)
    MOVQ $0, CX
    JLT  below
    MOVQ $7, CX
below:
    ADDQ $1, CX
    MOVQ CX, ret+16(FP)
    RET
TEXT ·Known(SB), NOSPLIT, $8-24
    MOVQ x+0(FP), AX
    MOVQ y+8(FP), BX
    CALL plain<>(SB)
    CMPQ AX, BX
    MOVQ $0, CX
    JLT  below
    MOVQ $7, CX
below:
    ADDQ $1, CX
    MOVQ CX, ret+16(FP)
    RET
"#;

/// Builds it; `None` where there is no Go.
fn built(dir: &tempfile::TempDir, hole: &str) -> Option<PathBuf> {
    let path = dir.path().join("compares");
    std::fs::write(dir.path().join("main.go"), MAIN).unwrap();
    std::fs::write(dir.path().join("compares_amd64.s"), ASSEMBLY.replace("HOLE", hole)).unwrap();
    let mut build = trapless_testing::go();
    let Ok(output) = build.current_dir(dir.path()).args(["build", "-o"]).arg(&path).output() else {
        trapless_testing::skip!("no go");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(path)
}

#[test]
fn s2_flags_that_callers_of_assembly_read_are_left_alone_wherever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    for (hole, knows_callers) in [("NOP", true), ("BYTE $0x06", false)] {
        let Some(path) = built(&dir, hole) else { return };
        let path = path.to_str().unwrap();
        let bare = finish(&mut Command::new(path));
        assert_eq!(bare.out, "1 8 1 8\n");
        // Behind the comparison.
        for (function, reads_flags) in [("compare", true), ("plain", false)] {
            let site = format!("compares:{function}+3");
            let ran = run(&["count", &site, "-o", "/dev/null", "--", path]);
            if reads_flags || !knows_callers {
                ran.assert_refused(1, &["nosplit"]);
            } else {
                assert_eq!((ran.code, &ran.out), (Some(0), &bare.out), "{ran:?}");
            }
        }
        let all = run(&["count", "compares:*", "--max-probes", "100000", "-o", "/dev/null", "--", path]);
        assert_eq!((all.code, &all.out), (Some(0), &bare.out), "{all:?}");
    }
}
