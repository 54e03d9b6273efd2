/* Functions with names of a kind, calls of a known depth, and a loop that begins with a USDT probe. */
#include <stdio.h>

#define KEPT __attribute__((noinline, noclone))

KEPT int handle_get(int value) { __asm__ volatile("" : "+r"(value)); return value + 1; }
KEPT int handle_put(int value) { __asm__ volatile("" : "+r"(value)); return value + 2; }
KEPT int handle_putter(int value) { __asm__ volatile("" : "+r"(value)); return value + 3; }

KEPT int deep(int left) {
    int below = left ? deep(left - 1) : handle_get(0);
    __asm__ volatile("" : "+r"(below));
    return below + 1;
}

/* The place of a probe as sys/sdt.h notes it. */
#define NOTE(name) \
    "990: nop\n" \
    ".pushsection .note.stapsdt,\"\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: .8byte 990b\n.8byte 0\n.8byte 0\n" \
    ".asciz \"app\"\n.asciz \"" name "\"\n.asciz \"\"\n" \
    "994: .balign 4\n" \
    ".popsection\n"

#ifdef __x86_64__
#define EIGHT ".nops 8\n"
#define COUNT_DOWN "dec %0\n jnz 990b\n"
#elif defined __powerpc64__
#define EIGHT "nop\n nop\n"
#define COUNT_DOWN "addic. %0, %0, -1\n bne 990b\n"
#else
#define EIGHT "nop\n nop\n"
#define COUNT_DOWN "subs %0, %0, #1\n b.ne 990b\n"
#endif

/* On x86-64 the jump back is one of the instructions that a probe displaces. */
KEPT void rounds(unsigned long count) {
    __asm__ volatile(EIGHT NOTE("round") COUNT_DOWN : "+r"(count) :: "cc");
}

/* One probe at two places. */
KEPT void places(void) {
    __asm__ volatile(NOTE("place") EIGHT NOTE("place") EIGHT);
}

int main(void) {
    int sum = 0;
    for (int i = 0; i < 5; i++) sum += handle_get(i);
    for (int i = 0; i < 7; i++) sum += handle_put(i);
    for (int i = 0; i < 11; i++) sum += handle_putter(i);
    sum += deep(20);
    rounds(1000);
    places();
    printf("sum %d\n", sum);
    return 0;
}
