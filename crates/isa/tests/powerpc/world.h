/* Code that runs from given registers, and the registers afterwards.
 *
 * No general register is free for the harness: it finds its state at addresses below 0x8000, which a load or store
 * without a base register reaches. Every place where control may go after the code carries a pad that says which it is. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { FAULTED = 100 };
#define STATE 0x4000

struct state {
    uint64_t gpr[32], cr, xer, ctr, lr, tar;
    uint64_t exit, prologue, common, stack;
};

static struct state *const state = (struct state *)STATE;

void enter(void);
void common(void);
asm(".text\n"
    ".macro each insn, from, to\n .set n, \\from\n .rept \\to - \\from + 1\n \\insn n, 0x4000 + 8 * n(0)\n .set n, n + 1\n .endr\n.endm\n"
    ".macro kept insn\n .set n, 13\n .rept 19\n \\insn n, 8 * n(1)\n .set n, n + 1\n .endr\n.endm\n"
    ".globl enter\n.type enter, @function\nenter:\n"
    " mflr 0\n std 0, 16(1)\n mfcr 0\n stw 0, 8(1)\n stdu 1, -512(1)\n std 2, 24(1)\n kept std\n std 1, 0x4140(0)\n"
    " ld 0, 0x4100(0)\n mtcr 0\n ld 0, 0x4108(0)\n mtxer 0\n ld 0, 0x4118(0)\n mtlr 0\n ld 0, 0x4120(0)\n mtspr 815, 0\n"
    " ld 0, 0x4130(0)\n mtctr 0\n each ld, 1, 31\n bctr\n"
    ".globl common\n.type common, @function\ncommon:\n"
    " std 0, 0x4128(0)\n each std, 1, 31\n mfcr 0\n std 0, 0x4100(0)\n mfxer 0\n std 0, 0x4108(0)\n"
    " mflr 0\n std 0, 0x4118(0)\n mfspr 0, 815\n std 0, 0x4120(0)\n ld 1, 0x4140(0)\n kept ld\n ld 2, 24(1)\n addi 1, 1, 512\n"
    " lwz 0, 8(1)\n mtcr 0\n ld 0, 16(1)\n mtlr 0\n blr\n");

static void flush(void *at, size_t size) {
    for (uintptr_t line = (uintptr_t)at & ~127ul; line < (uintptr_t)at + size; line += 128)
        asm volatile("dcbst 0,%0; sync; icbi 0,%0" ::"r"(line) : "memory");
    asm volatile("sync; isync" ::: "memory");
}

static void put(uint64_t at, const uint32_t *words, size_t count) {
    memcpy((void *)at, words, 4 * count);
    flush((void *)at, 4 * count);
}

/* std r0,gpr[0]; mfctr r0; std r0,ctr; ld r0,common; mtctr r0; li r0,number; bctr */
static void put_pad(uint64_t at, uint32_t number) {
    const uint32_t words[] = {0xf8004000, 0x7c0902a6, 0xf8004110, 0xe8004138, 0x7c0903a6, 0x38000000 | number, 0x4e800420};
    put(at, words, 7);
}

/* Runs without a valid thread pointer, so without the C library. */
static void faulted(int signal, siginfo_t *info, void *context) {
    unsigned long *regs = ((ucontext_t *)context)->uc_mcontext.gp_regs;
    (void)info;
    state->gpr[0] = regs[0];
    state->ctr = regs[35];
    regs[0] = FAULTED + signal;
    regs[32] = (unsigned long)common;
}

static void map(uint64_t at, size_t size, int protection) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap((void *)at, size, protection, flags, -1, 0) != (void *)at) {
        fprintf(stderr, "no memory at %lx\n", at);
        exit(2);
    }
}

/* What leads to the instruction 12 bytes behind: ld r0,ctr; mtctr r0; ld r0,gpr[0] */
static void put_prologue(uint64_t at) { put(at, (uint32_t[]){0xe8004110, 0x7c0903a6, 0xe8004000}, 3); }

static void enter_at(uint64_t prologue) {
    state->prologue = prologue;
    state->common = (uint64_t)common;
    enter();
}

static void set_up(void) {
    static char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    map(0x1000, 0x7000, PROT_READ | PROT_WRITE | PROT_EXEC);
    sigaltstack(&other, 0);
    for (const int *signal = (int[]){SIGILL, SIGTRAP, SIGSEGV, SIGBUS, 0}; *signal; signal++) sigaction(*signal, &action, 0);
}
