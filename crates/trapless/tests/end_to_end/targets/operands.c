/* USDT probes as sys/sdt.h leaves them, with operands that the compiler chooses: at each place of a probe others.
 *
 * A line of input says how often everything is done; the answer is the sum of what was computed, which nobody may change. */
#include <stdio.h>
#include <stdlib.h>

/* As sys/sdt.h has it: the size is negative if the type is signed, and %n negates. */
#define SIZE(x) ((__typeof__(x))-1 < (__typeof__(x))1 ? (int)sizeof(x) : -(int)sizeof(x))
#ifdef __x86_64__
/* Of five bytes, so that a jump has room at each place, however close they are. */
#define NOP ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define PLACE "rdi"
#define VECTOR "x"
#define IN_PLACE "8@%%rdi"
#define CONSTANT "8@$1"
#define ANYWHERE "8@(%%rdi) -4@-2(%%rsp,%%rdi,8)"
#define UNKNOWN "8@%%fs:16"
#elif defined(__aarch64__)
#define NOP "nop\n"
#define PLACE "x0"
#define VECTOR "w"
#define IN_PLACE "8@x0"
#define CONSTANT "8@1"
#define ANYWHERE "8@[x0] -4@[sp, x0, lsl 3]"
#define UNKNOWN "8@[x0, w0, sxtw]"
#elif defined(__powerpc64__)
#define NOP "nop\n"
#define PLACE "r3"
#define IN_PLACE "8@3"
#define CONSTANT "8@i1"
#define ANYWHERE "8@0(3) -4@3,1"
#define UNKNOWN "8@0(3"
#else
#error "scripts have no native code here"
#endif
/* Numbers of registers and constants look alike there, and notes have no registers of floating-point numbers. */
#ifdef __powerpc64__
#define OPERAND(name) "%I[" name "]%[" name "]"
#define VECTOR "m"
#else
#define OPERAND(name) "%[" name "]"
#endif
#define NOTE(name, arguments) \
    "990: " NOP \
    ".pushsection .note.stapsdt,\"\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n" \
    ".asciz \"app\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n" \
    "994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n" \
    ".popsection\n.endif\n"
#define PROBE(name, a, b) \
    __asm__ volatile(NOTE(name, "%n[sa]@" OPERAND("va") " %n[sb]@" OPERAND("vb")) \
                     :: [sa] "n"(SIZE(a)), [va] "nor"(a), [sb] "n"(SIZE(b)), [vb] "nor"(b))
/* In memory, wherever the compiler finds it best, and with an index. */
#define PROBE_MEMORY(name, a, b) \
    __asm__ volatile(NOTE(name, "%n[sa]@" OPERAND("va") " %n[sb]@" OPERAND("vb")) \
                     :: [sa] "n"(SIZE(a)), [va] "n"(a), [sb] "n"(SIZE(b)), [vb] "m"(b))
#define PROBE_FLOATS(name, a, b) \
    __asm__ volatile(NOTE(name, "8f@%[va] 4f@%[vb]") :: [va] VECTOR(a), [vb] VECTOR(b))
#define PROBE_FLOATS_IN_MEMORY(name, a, b) \
    __asm__ volatile(NOTE(name, "8f@%[va] 4f@%[vb]") :: [va] "m"(a), [vb] "m"(b))

/* With a number where all notes of the kind say that it is. */
#define PROBE_IN_PLACE(name, operands, number) \
    do { \
        register unsigned long place __asm__(PLACE) = (number); \
        __asm__ volatile(NOTE(name, operands) :: "r"(place)); \
    } while (0)

static short table[8] = {11, -12, 13, -14};
static unsigned long global = 1ul << 40;

static inline __attribute__((always_inline)) long inlined(int place, long value) {
    PROBE("mixed", place, value);
    return value;
}

__attribute__((noinline)) static long everything(long x) {
    long sum = 0;
    signed char byte = (signed char)-x;
    unsigned short two = (unsigned short)(65530 + x);
    int four = (int)(-7 * x);
    unsigned int wide = 4000000000u + (unsigned)x;
    double half = x / 2.0;
    float quarter = x / 4.0f;
    PROBE("mixed", 1, byte);
    PROBE("mixed", 2, two);
    PROBE("mixed", 3, four);
    PROBE("mixed", (signed char)4, wide);
    PROBE("mixed", (short)5, -9);
    PROBE_MEMORY("mixed", 6, global);
    PROBE_MEMORY("mixed", 7, table[x & 3]);
    sum += inlined(8, x * 1000000007);
    sum += inlined(9, 77);
    PROBE_FLOATS("floats", half, quarter);
    PROBE_FLOATS_IN_MEMORY("floats", half, quarter);
    PROBE("odd", 1, x);
    PROBE_IN_PLACE("odd", IN_PLACE, x);
    /* Whoever wrote this note was wrong. */
    PROBE_IN_PLACE("wild", ANYWHERE " " IN_PLACE, x & 1 ? 8ul : 0x7000000000000000ul);
    /* Not understood, and of another kind than elsewhere. */
    PROBE_IN_PLACE("strange", UNKNOWN " " CONSTANT, x);
    PROBE_IN_PLACE("floats", IN_PLACE " " CONSTANT, x);
    return sum + byte + two + four + wide + (long)half + (long)quarter;
}

int main(void) {
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0, calls = atol(line);
        for (long x = 0; x < calls; x++) sum += everything(x % 100);
        printf("sum %ld\n", sum);
        fflush(stdout);
    }
    return 0;
}
