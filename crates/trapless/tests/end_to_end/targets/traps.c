// Functions that start with one instruction each, called `count` times by each of `threads` threads.
//
// Usage: traps THREADS COUNT [wait]. With `wait` it prints a line when it is ready and starts when it can read one.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "assembly.h"

#ifdef __i386__
// The argument is in eax: `long f(long)` is then as short as in 64 bits.
#define CALLED __attribute__((regparm(1)))
#define IP_OF(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_EIP])
#define ARGUMENT_OF(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_EAX])
#else
#define CALLED
#endif

#define FUNCTION(name, code)                                                                       \
    __asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", %function\n" #name ":\n" code  \
            "\n.size " #name ", .-" #name "\n");                                                   \
    CALLED long name(long);

#ifdef __i386__
FUNCTION(with_nop, "nop; lea 1(%eax), %eax; ret")
FUNCTION(with_push, "push %ebp; lea 1(%eax), %eax; pop %ebp; ret")
FUNCTION(with_ret, "ret")
FUNCTION(with_nop5, ".byte 0x0f,0x1f,0x44,0,0; lea 1(%eax), %eax; ret")
FUNCTION(with_endbr, "endbr32; lea 1(%eax), %eax; ret")
FUNCTION(with_sub, "sub $24, %esp; lea 1(%eax), %eax; add $24, %esp; ret")
FUNCTION(with_jcc, "jecxz 1f; je 1f; 1: lea 1(%eax), %eax; ret")
FUNCTION(with_call, "call with_nop; ret")
FUNCTION(with_jump, "jmp with_push")
FUNCTION(with_rip, "call 1f; 1: pop %edx; add one-1b(%edx), %eax; ret; .p2align 3; one: .long 1")
FUNCTION(with_pushf, "pushf; pop %edx; lea 1(%eax), %eax; and $0x100, %edx; add %edx, %eax; ret")
FUNCTION(with_fault, "mov (%eax), %eax; ret")
#elif defined __aarch64__
FUNCTION(with_nop, "nop; add x0, x0, #1; ret")
FUNCTION(with_push, "stp x29, x30, [sp, #-16]!; add x0, x0, #1; ldp x29, x30, [sp], #16; ret")
FUNCTION(with_ret, "ret")
FUNCTION(with_nop5, "yield; add x0, x0, #1; ret")
FUNCTION(with_endbr, "bti c; add x0, x0, #1; ret")
FUNCTION(with_sub, "sub sp, sp, #32; add x0, x0, #1; add sp, sp, #32; ret")
FUNCTION(with_jcc, "tbz x0, #0, 1f; nop; 1: add x0, x0, #1; ret")
FUNCTION(with_call, "mov x9, x30; bl with_nop; ret x9")
FUNCTION(with_jump, "b with_push")
FUNCTION(with_rip, "ldr x1, one; add x0, x0, x1; ret; .p2align 3; one: .quad 1")
FUNCTION(with_pushf, "mrs x1, nzcv; add x0, x0, #1; ret")
FUNCTION(with_fault, "ldr x0, [x0]; ret")
#elif defined __powerpc64__
FUNCTION(with_nop, "nop; addi 3, 3, 1; blr")
FUNCTION(with_push, "stdu 1, -48(1); addi 3, 3, 1; addi 1, 1, 48; blr")
FUNCTION(with_ret, "blr")
FUNCTION(with_nop5, "or 31, 31, 31; addi 3, 3, 1; blr")
FUNCTION(with_endbr, "addis 2, 12, .TOC.-with_endbr@ha; addi 2, 2, .TOC.-with_endbr@l; .localentry with_endbr, .-with_endbr; addi 3, 3, 1; blr")
FUNCTION(with_sub, "addi 1, 1, -48; addi 3, 3, 1; addi 1, 1, 48; blr")
FUNCTION(with_jcc, "bdnzt 2, 1f; nop; 1: addi 3, 3, 1; blr")
FUNCTION(with_call, "mflr 0; bl with_nop; mtlr 0; blr")
FUNCTION(with_jump, "b with_push")
FUNCTION(with_rip, "li 4, 1; add 3, 3, 4; blr")
FUNCTION(with_pushf, "mfcr 4; addi 3, 3, 1; blr")
FUNCTION(with_fault, "ld 3, 0(3); blr")
#else
FUNCTION(with_nop, "nop; lea 1(%rdi), %rax; ret")
FUNCTION(with_push, "push %rbp; lea 1(%rdi), %rax; pop %rbp; ret")
FUNCTION(with_ret, "ret")
FUNCTION(with_nop5, ".byte 0x0f,0x1f,0x44,0,0; lea 1(%rdi), %rax; ret")
FUNCTION(with_endbr, "endbr64; lea 1(%rdi), %rax; ret")
FUNCTION(with_sub, "sub $24, %rsp; lea 1(%rdi), %rax; add $24, %rsp; ret")
FUNCTION(with_jcc, "jrcxz 1f; je 1f; 1: lea 1(%rdi), %rax; ret")
FUNCTION(with_call, "call with_nop; ret")
FUNCTION(with_jump, "jmp with_push")
FUNCTION(with_rip, "mov one(%rip), %rax; add %rdi, %rax; ret; .p2align 3; one: .quad 1")
FUNCTION(with_pushf, "pushf; pop %rdx; lea 1(%rdi), %rax; and $0x100, %edx; add %rdx, %rax; ret")
FUNCTION(with_fault, "mov (%rdi), %rax; ret")
#endif

typedef CALLED long function(long);
static function *const functions[] = {
    with_nop, with_push, with_nop5, with_endbr, with_sub, with_jcc,
    with_call, with_jump, with_rip, with_pushf,
};

static int count;

static void *work(void *unused) {
    long sum = 0;
    for (int i = 0; i < count; i++) {
        // Zero, so that with_jcc takes its branch on one call of two.
#if defined __x86_64__ || defined __i386__
        __asm__ volatile("" : : "c"(i & 1));
#endif
        for (unsigned f = 0; f < sizeof functions / sizeof *functions; f++)
            sum += functions[f](i) - i;
        with_ret(i);
    }
    return (void *)sum;
}

// The program's own use of SIGTRAP.
static volatile sig_atomic_t trapped;
static void on_trap(int signal, siginfo_t *info, void *context) {
    trapped += signal == SIGTRAP;
    GO_PAST_BREAKPOINT(info, context);
}

// The function whose first instruction faults once.
static void *faulting;
static volatile sig_atomic_t faults;
static long there = 7;
static void on_fault(int signal, siginfo_t *info, void *context) {
    faults += (unsigned long)IP_OF(context) == (unsigned long)with_fault && info->si_addr == faulting;
    ARGUMENT_OF(context) = (unsigned long)&there;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    count = argc > 2 ? atoi(argv[2]) : 100;
    int forever = argc > 3 && !strcmp(argv[3], "forever");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 3) {
        puts("ready");
        if (!forever)
            getchar();
    }
    struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGTRAP, &trap, NULL);
    BREAKPOINT();
    raise(SIGTRAP);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    faulting = (void *)16;
    long read = with_fault((long)faulting);
    do {
        pthread_t ids[64];
        long sum = 0;
        for (int t = 0; t < threads; t++)
            pthread_create(&ids[t], NULL, work, NULL);
        for (int t = 0; t < threads; t++) {
            void *part;
            pthread_join(ids[t], &part);
            sum += (long)part;
        }
        long expected = (long)threads * count * (long)(sizeof functions / sizeof *functions);
        pid_t child = fork();
        if (child == 0) {
            // Probes that trap are gone here, or this would die.
            for (int f = 0; f < 9; f++)
                if (functions[f](1) != 2)
                    _exit(1);
            _exit(42);
        }
        int status;
        waitpid(child, &status, 0);
        int spawned = system("exit 3");
        if (sum != expected || WEXITSTATUS(status) != 42 || WEXITSTATUS(spawned) != 3) {
            printf("wrong: %ld for %ld, child %#x, system %#x\n", sum, expected, status, spawned);
            return 1;
        }
    } while (forever);
    printf("traps %d faults %d read %ld\n", (int)trapped, (int)faults, read);
    return 0;
}
