/* Threads whose system calls the kernel makes into signals of their own (PR_SET_SYSCALL_USER_DISPATCH): in one that says so by a byte, as Wine's do,
   and in one by the place of the call. Says "ready", or "none" where the kernel has no such thing; at each line it is told, how many such calls there have
   been, and "wrong N". */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

enum { DISPATCH = 59, ON = 1, INCLUSIVE_ON = 2, ALLOW = 0, BLOCK = 1, ANSWER = 77 };

/* A call that no kernel has. */
long foreign_call(void);
extern char foreign_call_end[];
#if defined __x86_64__
__asm__(".text; .globl foreign_call; foreign_call: movl $1000, %eax; syscall; ret; foreign_call_end: ret");
#define RESULT(context) (context)->uc_mcontext.gregs[REG_RAX]
#elif defined __i386__
__asm__(".text; .globl foreign_call; foreign_call: movl $1000, %eax; int $0x80; ret; foreign_call_end: ret");
#define RESULT(context) (context)->uc_mcontext.gregs[REG_EAX]
#elif defined __aarch64__
__asm__(".text; .globl foreign_call; foreign_call: mov x8, #1000; svc #0; ret; foreign_call_end: ret");
#define RESULT(context) (context)->uc_mcontext.regs[0]
#elif defined __powerpc64__
__asm__(".text; .globl foreign_call; foreign_call: li 0, 1000; sc; blr; foreign_call_end: blr");
#define RESULT(context) (context)->uc_mcontext.gp_regs[3]
#endif

static __thread volatile char selector;
static volatile long signals, wrong;
static volatile int ready, refused, by_place;

__attribute__((noipa)) long subject(const char *text) { return text[0] + 1; }

/* Whatever it does is allowed; so is its return. */
static void foreign(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    selector = ALLOW;
    __atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
    RESULT((ucontext_t *)context) = ANSWER;
}

static void some(void) {
    for (int n = 0; n < 1000; n++) {
        if (subject("a") != 'a' + 1) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        if (n % 100) continue;
        selector = BLOCK;
        if (foreign_call() != ANSWER) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        selector = BLOCK;
    }
}

static void *others(void *unused) {
    unsigned long length = (unsigned long)(foreign_call_end - (char *)foreign_call);
    by_place = prctl(DISPATCH, INCLUSIVE_ON, foreign_call, length, 0) == 0;
    if (!by_place) refused |= prctl(DISPATCH, ON, 0, 0, &selector) != 0;
    ready = 1;
    while (!refused) some();
    return unused;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = foreign;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, 0);
    pthread_t thread;
    pthread_create(&thread, 0, others, 0);
    while (!ready) usleep(1000);
    refused |= prctl(DISPATCH, ON, 0, 0, &selector) != 0;
    puts(refused ? "none" : "ready");
    fflush(stdout);
    char line[16];
    for (;;) {
        some();
        selector = ALLOW;
        struct pollfd input = {0, POLLIN, 0};
        if (poll(&input, 1, 0) <= 0) continue;
        if (!fgets(line, sizeof line, stdin)) return wrong != 0;
        printf("%ld wrong %ld\n", signals, wrong);
        fflush(stdout);
    }
}
