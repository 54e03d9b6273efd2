/* Calls each of 10,000 functions as often as its first argument says, and tells the result; with a second argument it says "ready" first,
   and does so for each line that it reads. */
#include <stdio.h>
#include <stdlib.h>

__asm__(
    ".altmacro\n"
    ".macro part n\n"
    "    .type part_\\n, @function\n"
    "part_\\n:\n"
#if defined __x86_64__
    "    lea \\n(%rdi, %rdi, 2), %rax\n"
    "    rol $7, %rax\n"
    "    ret\n"
#elif defined __aarch64__
    "    add x0, x0, x0, lsl #1\n"
    "    add x0, x0, #(\\n) & 0xfff\n"
    "    ror x0, x0, #57\n"
    "    ret\n"
#else
    "    mulli 3, 3, 3\n"
    "    addi 3, 3, \\n\n"
    "    rotldi 3, 3, 7\n"
    "    blr\n"
#endif
    "    .size part_\\n, . - part_\\n\n"
    "    .p2align 4\n"
    ".endm\n"
    ".macro address n\n"
    "    .quad part_\\n\n"
    ".endm\n"
    ".text\n"
    ".set i, 0\n"
    ".rept 10000\n"
    "    part %i\n"
    "    .set i, i + 1\n"
    ".endr\n"
    ".data\n"
    "parts:\n"
    ".set i, 0\n"
    ".rept 10000\n"
    "    address %i\n"
    "    .set i, i + 1\n"
    ".endr\n");

extern unsigned long (*parts[10000])(unsigned long);

static void call(int rounds) {
    unsigned long x = 1;
    while (rounds-- > 0) for (int n = 0; n < 10000; n++) x = parts[n](x);
    printf("%lu\n", x);
    fflush(stdout);
}

int main(int count, char **arguments) {
    int rounds = atoi(arguments[1]);
    char line[16];
    if (count == 2) {
        call(rounds);
        return 0;
    }
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) call(rounds);
}
