//! Hard cases I: input that is wrong gets one line that says what, where and what to do, and an exit code.

mod support;

use support::tool::run;
use support::{Program, text};

const LOOP: &str = r#"
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int subject(int x, int *p) { *p += x; asm volatile("" ::: "memory"); return x + *p; }
int main(void) { int n = 0; puts("ready"); fflush(stdout); for (;;) { subject(1, &n); usleep(1000); } }
"#;

#[test]
fn i1_wrong_names_are_code_5_with_the_nearest() {
    let program = Program::build("looper", LOOP, &[]);
    let target = program.start(&[]);
    let pid = target.pid().to_string();
    let before = text::Text::of(target.pid());
    for (probe, nearest) in
        [("looper:subjct", "subject"), ("loper:subject", "looper"), ("looper:zz*", "list")]
    {
        run(&["count", "-p", &pid, probe]).assert_refused(5, &[nearest]);
    }
    before.assert_restored(target.pid());
}
