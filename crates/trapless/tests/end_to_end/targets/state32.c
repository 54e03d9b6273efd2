/* Every function twice: once probed, once not. Both are called with the same registers, flags, x87 and SSE state, and must leave the
   same behind. 32-bit, not position independent. Prints the number of calls of each function. */
#include <stdio.h>
#include <string.h>

#define FUNCTION(name, code)                                                                       \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" code  \
            "\n.size " #name ", .-" #name "\n");                                                   \
    void name(void);
#define TWINS(name, code) FUNCTION(probed_##name, code) FUNCTION(twin_##name, code)
#define BRANCH(name, instruction)                                                                  \
    TWINS(name, instruction " 1f; mov $5, %eax; mov $6, %edx; ret; 1: mov $7, %eax; ret")

#define BRANCHES(X)                                                                                \
    X(jo) X(jno) X(jb) X(jae) X(je) X(jne) X(jbe) X(ja) X(js) X(jns) X(jp) X(jnp) X(jl) X(jge)     \
    X(jle) X(jg) X(loop) X(loope) X(loopne) X(jecxz) X(jcxz)
#define OTHERS(X)                                                                                  \
    X(nop, ".byte 0x0f, 0x1f, 0x44, 0, 0; ret")                                                    \
    X(nops, "nop; nop; nop; nop; nop; ret")                                                        \
    X(endbr, "endbr32; lea 3(%ecx), %eax; lea 4(%eax), %edx; ret")                                 \
    X(frame, "push %ebp; mov %esp, %ebp; leave; nop; ret")                                         \
    X(push, "push %ebx; push %esi; push %edi; pop %esi; pop %edi; pop %eax; ret")                  \
    X(push_esp, "push %esp; pop %eax; sub %esp, %eax; nop; nop; ret")                              \
    X(pusha, "pusha; nop; nop; nop; nop; popa; ret")                                               \
    X(pushf, "pushf; pop %eax; nop; nop; nop; ret")                                                \
    X(popf, "push $0x8d5; popf; nop; nop; ret")                                                    \
    X(enter, "enter $8, $0; leave; ret")                                                           \
    X(adc, "adc $1, %eax; sbb %edx, %edx; nop; ret")                                               \
    X(inc, "inc %eax; dec %ecx; neg %edx; nop; nop; ret")                                          \
    X(set, "sete %al; setl %dl; ret")                                                              \
    X(cmov, "cmovb %ecx, %eax; cmovs %edx, %ecx; ret")                                             \
    X(shift, "shl %cl, %eax; rcr %edx; nop; ret")                                                  \
    X(string, "movsb; lodsb; cmpsb; stosb; nop; ret")                                              \
    X(rep, "rep movsb; nop; nop; nop; ret")                                                        \
    X(repne, "repne scasb; nop; nop; nop; ret")                                                    \
    X(absolute, "mov value, %eax; add value, %edx; ret")                                           \
    X(lock, "lock incl value; lock decl value; ret")                                               \
    X(segment, "mov %gs:0, %eax; sub %gs:0, %eax; ret")                                            \
    X(data_segment, ".byte 0x3e; mov (%esi), %eax; .byte 0x26; mov (%edi), %edx; ret")             \
    X(get_pc, "call 1f; 1: pop %eax; sub $1b, %eax; ret")                                          \
    X(thunk, "call thunk; sub $1f, %ecx; 1: ret")                                                  \
    X(call, "call same; call same; ret")                                                           \
    X(indirect, "call *pointer; nop; ret")                                                         \
    X(tail, "jmp same")                                                                            \
    X(short, "jmp 1f; .byte 0x0f, 0x0b; 1: xor %eax, %eax; ret")                                   \
    X(x87, "fadd %st(1), %st; fxch; nop; ret")                                                     \
    X(sse, "addps %xmm1, %xmm2; movaps %xmm2, %xmm7; ret")                                         \
    X(ret, "ret")

#define EACH_BRANCH(name) BRANCH(name, #name)
BRANCHES(EACH_BRANCH)
OTHERS(TWINS)
FUNCTION(same, "lea 1(%eax), %eax; ret")
FUNCTION(thunk, "mov (%esp), %ecx; ret")

unsigned value = 0x01020304;
void (*pointer)(void) = same;
static char bytes[64], kept[64];

static struct pair { const char *name; void (*function[2])(void); } pairs[] = {
#define ROW_BRANCH(name) {#name, {probed_##name, twin_##name}},
#define ROW(name, code) ROW_BRANCH(name)
    BRANCHES(ROW_BRANCH) OTHERS(ROW)
};

struct state { unsigned eax, ecx, edx, ebx, esi, edi, flags; };
struct state in, out[2];
unsigned char fx[512] __attribute__((aligned(16))), fx_out[512] __attribute__((aligned(16))), fx_own[512] __attribute__((aligned(16)));
void (*subject)(void);

/* Calls `subject` with the state of `in` and `fx`, and leaves its own in `out[0]` and `fx_out`. */
void run(void);
__asm__(".text\nrun: push %ebp; push %ebx; push %esi; push %edi\n"
        "fxsave fx_own; fxrstor fx\n"
        "mov in+4, %ecx; mov in+8, %edx; mov in+12, %ebx; mov in+16, %esi; mov in+20, %edi; mov $0x5a5a5a5a, %ebp\n"
        "mov in, %eax; pushl in+24; popf\n"
        "call *subject\n"
        "pushf; popl out+24; cld\n"
        "mov %eax, out; mov %ecx, out+4; mov %edx, out+8; mov %ebx, out+12; mov %esi, out+16; mov %edi, out+20\n"
        "cmp $0x5a5a5a5a, %ebp; je 1f; ud2; 1:\n"
        "fxsave fx_out; fxrstor fx_own\n"
        "pop %edi; pop %esi; pop %ebx; pop %ebp; ret\n");

int main(void) {
    /* Carry, parity, adjust, zero, sign, overflow, and direction. */
    static const unsigned bits[] = {1, 4, 0x10, 0x40, 0x80, 0x800, 0x400};
    static const unsigned counts[] = {0, 1, 2, 0x10000};
    unsigned calls = 0, bad = 0;
    for (int i = 0; i < 64; i++) kept[i] = (char)(7 * i);
    __asm__ volatile("fninit; fldpi; fld1; fldl2e; fxsave fx" ::: "memory");
    /* All exceptions masked, rounding up, flush to zero; x87 rounds down. */
    *(unsigned *)(fx + 24) = 0xdf80, *(unsigned short *)fx = 0x077f;
    for (int i = 160; i < 160 + 128; i++) fx[i] = (unsigned char)(3 * i) & 0x3f;
    for (unsigned n = 0; n < 1 << 7; n++, calls++) {
        unsigned flags = 0x202;
        for (int bit = 0; bit < 7; bit++) flags |= n >> bit & 1 ? bits[bit] : 0;
        for (unsigned p = 0; p < sizeof pairs / sizeof *pairs; p++) {
            unsigned char other[512];
            char left[64];
            for (int twin = 1; twin >= 0; twin--) {
                unsigned count = counts[n % 4];
                /* A string of 64 KiB is none of ours. */
                if (count > 2 && strncmp(pairs[p].name, "rep", 3) == 0) count = 3;
                memcpy(bytes, kept, sizeof bytes);
                in = (struct state){0x11111111 * (n % 16), count, 0x80000001, 0x33333333, (unsigned)bytes + 20, (unsigned)bytes + 40, flags};
                subject = pairs[p].function[twin];
                run();
                memset(fx_out + 6, 0, 18); /* where the last x87 instruction stood */
                if (twin) out[1] = out[0], memcpy(other, fx_out, 512), memcpy(left, bytes, 64);
            }
            /* out[0] is the probed one's: it ran last. */
            if (memcmp(&out[0], &out[1], sizeof out[0]) || memcmp(other, fx_out, 512) || memcmp(left, bytes, 64)) {
                if (bad++ < 10)
                    printf("%s, flags %x: eax %x/%x ecx %x/%x edx %x/%x flags %x/%x\n", pairs[p].name, flags, out[0].eax, out[1].eax,
                           out[0].ecx, out[1].ecx, out[0].edx, out[1].edx, out[0].flags, out[1].flags);
            }
        }
    }
    printf("calls %u bad %u\n", calls, bad);
    return bad != 0;
}
