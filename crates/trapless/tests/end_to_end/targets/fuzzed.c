/* Calls what random scripts probe, under storms. Each call of `exact` and of what it calls takes a ticket, which says what its arguments
   are: so whoever knows how many tickets were taken knows all calls, whichever threads, handlers and coroutines made them. What is left
   halfway, runs in a child or reads memory that comes and goes has functions of its own, and no tickets.

   A line of input is a bit for each storm and how many calls the threads make; the answer is how many results were wrong, and how many
   tickets there are. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

enum { SIGNALS = 1, ALTERNATE = 2, FORKS = 4, VFORKS = 8, COROUTINES = 16, MEMORY = 32, JUMPS = 64, ENDS = 128 };

static atomic_long wrong, tickets;

/* Memory like any other, and places where there is none: those of `script_fuzz/main.rs`. */
struct node {
    long value;
    struct node *next;
    char *text;
};
static const char *const texts[8] = {"", "a", "alpha", "beta", "a longer text", "with \"quotes\"", "tab\there", "0123456789abcdef"};
static void *places[8];
static _Atomic(void *) coming;

/* ---- what is probed with tickets ---- */

KEPT long inner(long a, long b) {
    asm volatile("" : "+r"(a), "+r"(b));
    return a * 3 + b;
}
KEPT long exact(long a, long b, const char *text) {
    long inside = inner(a, b);
    asm volatile("" : "+r"(inside), "+r"(text));
    return inside - 7;
}

/* One instruction each, which offsets name, and a USDT probe. It takes a and b, and is 2a + b. */
long stepped(long a, long b);
asm(".text\n.globl stepped\n.type stepped,@function\n.p2align 4\n"
    "stepped: .cfi_startproc\n"
    "mov %rdi, -8(%rsp)\n" /* 0, of 5 bytes */
    "lea (%rdi,%rdi), %rax\n" /* 5, of 4 */
    "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n" /* 9 */
    "mov %rsi, -16(%rsp)\n" /* 14, of 5 */
    "add -16(%rsp), %rax\n" /* 19, of 5 */
    "lea (%rax), %rax\n"
    "ret\n"
    ".cfi_endproc\n.size stepped, .-stepped\n"
    ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"
    "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n"
    ".asciz \"fuzzed\"\n.asciz \"step\"\n.asciz \"-8@%rdi -8@%rsi 8@-8(%rsp)\"\n994: .balign 4\n.popsection\n"
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");

static long a_of(long ticket) { return ticket * 7919 % 1009 - 300; }
static long b_of(long ticket) { return ticket * 31 % 97; }

/* Suspended between its entry and its return, where it runs in a coroutine. */
static __thread ucontext_t *suspended, *resumer;
KEPT long held(long a, long b) {
    if (suspended) {
        ucontext_t *own = suspended;
        swapcontext(own, resumer);
        suspended = own;
    }
    asm volatile("" : "+r"(a), "+r"(b));
    return a - b;
}

static void call(void) {
    long ticket = atomic_fetch_add(&tickets, 1), a = a_of(ticket), b = b_of(ticket);
    if (exact(a, b, texts[ticket % 8]) != a * 3 + b - 7) wrong++;
    if (stepped(a, b) != 2 * a + b) wrong++;
    if (held(a, b) != a - b) wrong++;
}

/* ---- what is probed without ---- */

KEPT long wild(const void *at, long number) {
    asm volatile("" : "+r"(at), "+r"(number));
    return number + 1;
}
static sigjmp_buf *out;
KEPT long left(long number) {
    asm volatile("" : "+r"(number));
    if (out && number % 3 == 0) siglongjmp(*out, 1);
    return number;
}

static void call_wild(long number) {
    const void *at = number % 9 == 8 ? coming : places[number % 9];
    if (wild(at, number) != number + 1) wrong++;
}

/* ---- storms ---- */

static atomic_int going;

static void *caller(void *times) {
    for (long i = 0; i < (long)times; i++) {
        call();
        call_wild(i);
    }
    return NULL;
}

static void in_handler(int signal) {
    ucontext_t *before = suspended;
    suspended = NULL;
    call();
    call_wild(signal);
    suspended = before;
}

static void alternate(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
}

struct caller {
    long times;
    pthread_t thread;
    atomic_int over;
};

static void *stormed(void *data) {
    struct caller *own = data;
    alternate();
    caller((void *)own->times);
    own->over = 1;
    /* Until nobody sends it signals any more. */
    while (going) usleep(200);
    stack_t stack = {.ss_flags = SS_DISABLE}, old;
    sigaltstack(&stack, &old);
    free(old.ss_sp);
    return NULL;
}

static void coroutine(void) {
    for (;;) {
        call();
        swapcontext(suspended, resumer);
    }
}

static void *coroutines(void *unused) {
    static char stacks[4][1 << 16];
    static ucontext_t all[4], home;
    resumer = &home;
    for (int i = 0; i < 4; i++) {
        getcontext(&all[i]);
        all[i].uc_stack.ss_sp = stacks[i];
        all[i].uc_stack.ss_size = sizeof stacks[i];
        makecontext(&all[i], coroutine, 0);
    }
    /* Between two rounds each has returned from all that it was in. */
    for (int i = 0; i < 400; i++) {
        suspended = &all[i % 4];
        swapcontext(&home, &all[i % 4]);
        suspended = NULL;
    }
    return NULL;
}

static void *memory(void *unused) {
    long page = sysconf(_SC_PAGESIZE);
    while (going) {
        char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        strcpy(map + page - 8, "over the border of pages");
        struct node *node = (struct node *)(map + 64);
        *node = (struct node){5, node, map + page - 8};
        coming = node;
        for (int i = 0; i < 20; i++) call_wild(8);
        mprotect(map, page, PROT_NONE);
        call_wild(8);
        munmap(map, page);
        call_wild(8);
        mremap(map + page, page, page, MREMAP_MAYMOVE);
        munmap(map + page, page);
        usleep(50);
    }
    return NULL;
}

static __thread sigjmp_buf own_out;
static __thread volatile int may_leave;
static void leave(int signal) {
    if (may_leave) siglongjmp(own_out, 1);
}

static void *jumps(void *unused) {
    volatile long number = 0;
    sigjmp_buf here;
    for (volatile int i = 0; i < 60; i++) {
        if (!sigsetjmp(own_out, 1)) {
            may_leave = 1;
            for (int sent = 0;; sent++) {
                call_wild(number++);
                if (sent == 30 + i) pthread_kill(pthread_self(), SIGVTALRM);
            }
        }
        may_leave = 0;
        if (!sigsetjmp(here, 0)) {
            out = &here;
            left(number++);
            left(number++);
            left(number++);
        }
        out = NULL;
    }
    return NULL;
}

/* From outside: wherever the thread is. */
static pthread_t jumper;
static atomic_int jumping, landed;
static void *kicks(void *unused) {
    while (jumping) {
        pthread_kill(jumper, SIGVTALRM);
        usleep(150);
    }
    return NULL;
}
static void *kicked(void *unused) {
    volatile long number = 0;
    for (volatile int i = 0; i < 100; i++) {
        if (!sigsetjmp(own_out, 1)) {
            may_leave = 1;
            for (;;) call_wild(number++);
        }
        may_leave = 0;
    }
    landed = 1;
    return NULL;
}

static void child(int how) {
    int status;
    pid_t child = how == VFORKS ? vfork() : fork();
    if (!child) {
        /* Its tickets are its own, as far as its memory is. */
        for (int i = 0; i < 3; i++) {
            call_wild(i);
            if (how != VFORKS) call();
        }
        _exit(how != VFORKS && wrong);
    }
    if (waitpid(child, &status, 0) != child || status) wrong++;
}

static void storm(long kinds, long times) {
    enum { CALLERS = 4 };
    struct caller callers[CALLERS] = {{0}};
    pthread_t others[4];
    int count = 0;
    going = 1;
    for (int i = 0; i < CALLERS; i++) {
        callers[i].times = times;
        pthread_create(&callers[i].thread, NULL, stormed, &callers[i]);
    }
    if (kinds & COROUTINES) pthread_create(&others[count++], NULL, coroutines, NULL);
    if (kinds & MEMORY) pthread_create(&others[count++], NULL, memory, NULL);
    if (kinds & JUMPS) {
        pthread_t kicker;
        pthread_create(&others[count++], NULL, jumps, NULL);
        jumping = 1;
        landed = 0;
        pthread_create(&jumper, NULL, kicked, NULL);
        pthread_create(&kicker, NULL, kicks, NULL);
        while (!landed) {
            for (int i = 0; kinds & SIGNALS && i < CALLERS; i++) pthread_kill(callers[i].thread, SIGUSR1);
            usleep(300);
            if (kinds & FORKS) child(FORKS);
        }
        jumping = 0;
        pthread_join(kicker, NULL);
        pthread_join(jumper, NULL);
    }
    for (int turn = 0; turn < 60; turn++) {
        for (int i = 0; i < CALLERS; i++) {
            if (kinds & SIGNALS) pthread_kill(callers[i].thread, SIGUSR1);
            if (kinds & ALTERNATE) pthread_kill(callers[i].thread, SIGUSR2);
        }
        if (kinds & FORKS && turn % 8 == 0) child(FORKS);
        if (kinds & VFORKS && turn % 8 == 4) child(VFORKS);
        if (kinds & ENDS) {
            pthread_t one;
            pthread_create(&one, NULL, caller, (void *)3);
            pthread_join(one, NULL);
        }
        usleep(20);
    }
    for (int i = 0; i < CALLERS; i++)
        while (!callers[i].over) usleep(100);
    going = 0;
    for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
    for (int i = 0; i < count; i++) pthread_join(others[i], NULL);
}

static void map_places(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(map + page, page);
    mprotect(map + 3 * page, page, PROT_NONE);
    struct node *node = (struct node *)(map + 6 * page), *other = node + 1;
    *node = (struct node){11, other, strcpy(map + 7 * page, "first")};
    *other = (struct node){22, (struct node *)(map + page), map + page - 3};
    memcpy(map + page - 3, "end", 3);
    places[1] = map + page + 16;
    places[2] = map + 3 * page + 8;
    places[3] = (void *)0x8000000000000010;
    places[4] = map + page - 1;
    places[5] = node;
    places[6] = (void *)0xffffffff81000000;
    places[7] = (void *)-4L;
}

int main(void) {
    char line[64];
    long kinds, times;
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_RESTART};
    map_places();
    coming = places[5];
    alternate();
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR2, &action, NULL);
    action.sa_handler = leave;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGVTALRM, &action, NULL);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%ld %ld", &kinds, &times) != 2) break;
        wrong = tickets = 0;
        storm(kinds, times);
        printf("wrong %ld tickets %ld\n", (long)wrong, (long)tickets);
        fflush(stdout);
    }
}
