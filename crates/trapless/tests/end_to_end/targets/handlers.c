// Does as it is told, line by line, in functions that fault at their first instructions, and says what its handlers saw.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

__asm__(".text\n"
        // The first instruction faults, the second one, and a division.
        ".globl loads\n.type loads, @function\nloads: .cfi_startproc\n movq (%rdi), %rax\n addq $1, %rax\n addq $2, %rax\n ret\n.cfi_endproc\n.size loads, .-loads\n"
        ".globl stores\n.type stores, @function\nstores: .cfi_startproc\n xchgq %rsi, %rax\n movq %rax, (%rdi)\n ret\n nop\n.cfi_endproc\n.size stores, .-stores\n"
        ".globl divides\n.type divides, @function\ndivides: .cfi_startproc\n idivq %rdi\n movq %rax, %rax\n ret\n.cfi_endproc\n.size divides, .-divides\n"
        // The same, and nobody computes places in it.
        ".globl remains\n.type remains, @function\nremains: .cfi_startproc\n idivq %rdi\n movq %rdx, %rax\n ret\n.cfi_endproc\n.size remains, .-remains\n"
        ".globl elsewhere\n.type elsewhere, @function\nelsewhere: .cfi_startproc\n movl $77, %eax\n ret\n.cfi_endproc\n.size elsewhere, .-elsewhere\n.globl elsewhere_end\nelsewhere_end:\n"
        // Reads every register and all flags, as far as anybody can tell; and one more instruction, behind all that is displaced. Jumps back to its
        // entry once, by two bytes. The carry flag stays.
        ".globl plain\n.type plain, @function\nplain: .cfi_startproc\n nop\n nop\n nop\n nop\n nop\n nop\n decl left(%rip)\n .byte 0x79, plain - . - 1\n"
        " nop\n nop\n nop\n movl $1, left(%rip)\n jmpq *plainly(%rip)\n.cfi_endproc\n.size plain, .-plain\n"
        ".globl plain_end\nplain_end:\n"
        // Calls a function with every register set to a number of its own; rdi and rsi as they are given. What rdx is matters to divisions.
        ".globl with_all\n.type with_all, @function\nwith_all: .cfi_startproc\n"
        " pushq %rbx\n .cfi_adjust_cfa_offset 8\n .cfi_offset %rbx, -16\n"
        " pushq %rbp\n .cfi_adjust_cfa_offset 8\n .cfi_offset %rbp, -24\n"
        " pushq %r12\n .cfi_adjust_cfa_offset 8\n .cfi_offset %r12, -32\n"
        " pushq %r13\n .cfi_adjust_cfa_offset 8\n .cfi_offset %r13, -40\n"
        " pushq %r14\n .cfi_adjust_cfa_offset 8\n .cfi_offset %r14, -48\n"
        " pushq %r15\n .cfi_adjust_cfa_offset 8\n .cfi_offset %r15, -56\n"
        " subq $8, %rsp\n .cfi_adjust_cfa_offset 8\n"
        " movq %rdx, %rax\n movl $0, %edx\n movl $103, %ebx\n movl $101, %ecx\n movl $105, %ebp\n movl $108, %r8d\n movl $109, %r9d\n"
        " movl $110, %r10d\n movl $111, %r11d\n movl $112, %r12d\n movl $113, %r13d\n movl $114, %r14d\n movl $115, %r15d\n"
        " stc\n call *calls_now(%rip)\n.globl behind_call\nbehind_call:\n"
        " addq $8, %rsp\n .cfi_adjust_cfa_offset -8\n"
        " popq %r15\n .cfi_adjust_cfa_offset -8\n popq %r14\n .cfi_adjust_cfa_offset -8\n popq %r13\n .cfi_adjust_cfa_offset -8\n"
        " popq %r12\n .cfi_adjust_cfa_offset -8\n popq %rbp\n .cfi_adjust_cfa_offset -8\n popq %rbx\n .cfi_adjust_cfa_offset -8\n ret\n"
        ".cfi_endproc\n.size with_all, .-with_all\n");
long loads(long *from), stores(long *to, long value), divides(long by), elsewhere(void);
long with_all(long rdi, long rsi, long rax);
long (*calls_now)(long, long);
extern char behind_call[], plain[], plain_end[], elsewhere_end[];
long (*plainly)(void) = elsewhere;
int left = 1;

static char *page;
static sigjmp_buf back;
static volatile sig_atomic_t seen, at_offset, frames;
static greg_t *expected_ip;
enum deed { RETRY, SKIP, AWAY, LEAVE, MEND } deed;
static long good = 41;

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *found) {
    (void)found;
    int before = 0;
    char *ip = (char *)_Unwind_GetIPInfo(context, &before);
    if (ip == (char *)expected_ip || ip == behind_call) frames++;
    return _URC_NO_REASON;
}

static int numbers_are_kept(const greg_t *all) {
    static const int WHICH[] = {REG_RBX, REG_RCX, REG_RBP, REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    static const int NUMBER[] = {103, 101, 105, 108, 109, 110, 111, 112, 113, 114, 115};
    for (int i = 0; i < 11; i++)
        if (all[WHICH[i]] != NUMBER[i]) return 0;
    return 1;
}

static void see(int number, siginfo_t *info, void *context) {
    greg_t *all = ((ucontext_t *)context)->uc_mcontext.gregs;
    int told = number == SIGFPE ? info->si_addr == (void *)all[REG_RIP] : info->si_addr == page;
    seen = all[REG_RIP] == (greg_t)expected_ip && told && numbers_are_kept(all);
    frames = 0;
    _Unwind_Backtrace(step, 0);
    switch (deed) {
    case RETRY: mprotect(page, 4096, PROT_READ | PROT_WRITE); break;
    case SKIP: all[REG_RIP] += 3; break;
    case AWAY: all[REG_RIP] = (greg_t)elsewhere; break;
    case LEAVE: siglongjmp(back, 1);
    case MEND: all[REG_RDI] = number == SIGFPE ? 2 : (greg_t)&good; break;
    }
}
static void earlier(int number, siginfo_t *info, void *context) { see(number, info, context); }
static void later(int number, siginfo_t *info, void *context) { see(number, info, context); }

// Says whether what it interrupts is the program, with its registers, and traps: whoever traces it knows then.
static void look(int number, siginfo_t *info, void *context) {
    (void)info;
    const greg_t *all = ((ucontext_t *)context)->uc_mcontext.gregs;
    const char *ip = (char *)all[REG_RIP], *said = "elsewhere";
    if (ip >= plain && ip < plain_end)
        said = !numbers_are_kept(all)            ? "registers"
               : all[REG_RDI] != 1 || all[REG_RSI] != 2 || all[REG_RAX] != 3 || all[REG_RDX] != 0 ? "arguments"
               : !(all[REG_EFL] & 1)             ? "flags"
               : *(char **)all[REG_RSP] != behind_call && number == SIGUSR1 ? "stack"
                                                 : "plain";
    else if (ip == behind_call) said = all[REG_RAX] == 77 && all[REG_RBX] == 103 ? "behind" : "result";
    else if (ip >= (char *)elsewhere && ip < elsewhere_end) said = "other";
    char line[32];
    int length = snprintf(line, sizeof line, "%s\n", said);
    if (write(1, line, length) != length) abort();
    __asm__ volatile("int3");
}

static void handle(int number, void (*handler)(int, siginfo_t *, void *)) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER}, old;
    sigaction(number, 0, &old);
    printf("%s", old.sa_sigaction == earlier ? "earlier" : old.sa_sigaction == later ? "later" : old.sa_handler == SIG_DFL ? "none" : "unknown");
    if (handler) {
        sigaction(number, &action, &old);
        printf(" %s", old.sa_sigaction == earlier ? "earlier" : old.sa_sigaction == later ? "later" : old.sa_handler == SIG_DFL ? "none" : "unknown");
        printf(" %s", action.sa_sigaction == handler ? "kept" : "changed");
    }
    printf("\n");
}

static void attempt(const char *name, const char *what) {
    long rdi = (long)page, rsi = 5, rax = 100;
    deed = !strcmp(what, "retry") ? RETRY : !strcmp(what, "skip") ? SKIP : !strcmp(what, "away") ? AWAY : !strcmp(what, "leave") ? LEAVE : MEND;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
    memset(page, 0, 8);
    mprotect(page, 4096, PROT_NONE);
    void *function = !strcmp(name, "loads") ? (void *)loads : !strcmp(name, "stores") ? (void *)stores : (void *)divides;
    calls_now = (long (*)(long, long))function;
    expected_ip = (greg_t *)((char *)calls_now + (!strcmp(name, "stores") ? 2 : 0));
    if (!strcmp(name, "divides")) rdi = 0;
    seen = 0;
    if (sigsetjmp(back, 1)) printf("left");
    else printf("%ld", with_all(rdi, rsi, rax));
    printf(" %s %d\n", seen ? "seen" : "unseen", frames);
}

int main(int argc, char **argv) {
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (argc > 1 && !strcmp(argv[1], "early")) {
        struct sigaction action = {.sa_sigaction = earlier, .sa_flags = SA_SIGINFO | SA_NODEFER};
        sigaction(SIGSEGV, &action, 0);
        sigaction(SIGFPE, &action, 0);
    }
    printf("ready %p\n", (void *)plain);
    fflush(stdout);
    if (argc > 1 && strstr(argv[1], "spin")) {
        // The signal is another one where return addresses are not the program's.
        struct sigaction action = {.sa_sigaction = look, .sa_flags = SA_SIGINFO};
        sigaction(SIGUSR1, &action, 0);
        sigaction(SIGUSR2, &action, 0);
        calls_now = (long (*)(long, long))(void *)plain;
        for (;;)
            if (with_all(1, 2, 3) != 77) return 3;
    }
    char line[64], name[16], what[16];
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "later\n")) handle(SIGSEGV, later), handle(SIGFPE, later);
        else if (!strcmp(line, "ask\n")) handle(SIGSEGV, 0), handle(SIGFPE, 0);
        else if (!strcmp(line, "fork\n")) {
            fflush(stdout);
            if (fork()) exit(0);
        } else if (sscanf(line, "%15s %15s", name, what) == 2) attempt(name, what);
        fflush(stdout);
    }
    return 0;
}
