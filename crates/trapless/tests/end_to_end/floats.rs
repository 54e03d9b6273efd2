//! Scripts that calculate with floating-point numbers: as everywhere, whatever the program has told its processor, and the program finds that as it was.
// Scripts of 32-bit programs run at traps, and read no such numbers.
#![cfg(not(target_arch = "x86"))]

use crate::support::Program;
use crate::support::live::{Live, does};

/// Rounds to zero, has its exceptions raise signals where the processor can, and looks for both, and for what calculations of others leave.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
__attribute__((noipa)) double subject(double number, float small) {
    __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop");
    return number;
}
int main(void) {
    char line[32];
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_TOWARDZERO);
    feenableexcept(FE_ALL_EXCEPT);
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long wrong = 0;
        for (int i = 0; i < 1000; i++) {
            subject(0.1, 0.25f);
            wrong += fetestexcept(FE_ALL_EXCEPT) != 0 || fegetround() != FE_TOWARDZERO;
        }
        printf("done %ld\n", wrong);
        fflush(stdout);
    }
}
"#;

#[test]
fn s1_numbers_are_calculated_as_ever_and_the_program_keeps_its_rules() {
    let program = Program::build("floats", PROGRAM, &["-O1", "-lm"]);
    let mut target = program.start(&[]);
    let live = Live::run(
        &target,
        "uprobe:floats:subject {
            @rounded[farg0 + 0.2 > 0.3] = count(); @whole = sum((uint64)(farg0 * 100.7)); @half = sum((uint64)(farg1 * 2 + farg0 * 7));
        }
        uretprobe:floats:subject { @returned[(int64)(fretval * 1000)] = count(); }",
    );
    does(&mut target, "call");
    let told = live.end();
    told.assert_whole();
    assert_eq!(told.value("@rounded[true]"), 1000);
    assert_eq!(told.value("@whole"), 10_000);
    assert_eq!(told.value("@returned[100]"), 1000);
}
