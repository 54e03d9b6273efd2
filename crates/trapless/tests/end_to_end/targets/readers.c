// Functions that look at their return addresses, so that nothing may be changed on the stack, and that are left in every way there is. Each
// checks that it sees the caller's own address. At the end they tell how often each was entered, and how often it returned or went on.

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
enum { LEAF, BRANCHES, FRAMED, TAIL, INDIRECT, RECURSES, LEAVES, SWITCHES, COLD, KINDS };
static const char *const names[KINDS] = { "leaf", "branches", "framed", "tail", "indirect", "recurses", "leaves", "switches", "parts" };
static atomic_long entered[KINDS], left[KINDS];
static atomic_long wrong;
extern const char text_start[] __asm__("__executable_start"), text_end[] __asm__("etext");

// The address that a function was called from, as it stands on its stack.
#define LOOK(kind)                                                                                     \
    do {                                                                                               \
        const char *caller = __builtin_extract_return_addr(__builtin_return_address(0));              \
        if (caller < text_start || caller >= text_end) atomic_fetch_add(&wrong, 1);                    \
        atomic_fetch_add(&entered[kind], 1);                                                           \
    } while (0)
#define DONE(kind) atomic_fetch_add(&left[kind], 1)

#if defined __x86_64__
__asm__(".text; .globl leaf; .type leaf, @function; leaf: mov (%rsp), %rax; lea 1(%rdi), %rax; ret; .size leaf, . - leaf; .balign 16, 0xcc");
#elif defined __aarch64__
__asm__(".text; .globl leaf; .type leaf, %function; leaf: mov x1, x30; add x0, x0, #1; ret; .size leaf, . - leaf");
#else
__asm__(".text; .globl leaf; .type leaf, @function; leaf: mflr 4; addi 3, 3, 1; blr; .size leaf, . - leaf");
#endif
extern long leaf(long);
NOINLINE long last(long n) { __asm__ volatile("" : "+r"(n)); return n + 2; }
NOINLINE long branches(long n) {
    LOOK(BRANCHES);
    DONE(BRANCHES);
    if (n % 3 == 0) return n;
    if (n % 3 == 1) return leaf(n) + 1;
    __asm__ volatile("" : "+r"(n));
    return n * 2;
}
NOINLINE long framed(long n) {
    volatile char frame[4096];
    LOOK(FRAMED);
    frame[n % 4096] = n;
    long sum = 0;
    for (long i = 0; i < n % 7; i++) sum += leaf(i) + frame[i];
    DONE(FRAMED);
    return sum;
}
NOINLINE long tail(long n) { LOOK(TAIL); DONE(TAIL); return last(n); }
static long (*volatile through)(long) = last;
NOINLINE long indirect(long n) { LOOK(INDIRECT); DONE(INDIRECT); return through(n); }
NOINLINE long recurses(long n) {
    LOOK(RECURSES);
    long sum = n ? recurses(n - 1) + 1 : 0;
    __asm__ volatile("" : "+r"(sum));
    DONE(RECURSES);
    return sum;
}
static _Thread_local jmp_buf back;
NOINLINE long leaves(long n) {
    LOOK(LEAVES);
    if (n % 4 == 0) longjmp(back, 1);
    DONE(LEAVES);
    return n;
}
NOINLINE long switches(long n) {
    volatile long own = n;
    LOOK(SWITCHES);
    long result = 0;
    switch (n % 8) {
    case 0: result = leaf(own) * 3; break;
    case 1: result = own + 5; break;
    case 2: result = leaf(own) ^ 7; break;
    case 3: result = own - leaf(2); break;
    case 4: result = own << 2; break;
    case 5: result = leaf(leaf(own)); break;
    case 6: result = own | 64; break;
    }
    DONE(SWITCHES);
    return result;
}
__attribute__((noinline, noclone, cold)) long rarely(long n) { __asm__ volatile("" : "+r"(n)); return n + 40; }
NOINLINE long parts(long n) {
    LOOK(COLD);
    if (__builtin_expect(n % 16 == 3, 0)) {
        long sum = rarely(n);
        for (long i = 0; i < 3; i++) sum += rarely(i);
        DONE(COLD);
        return sum;
    }
    DONE(COLD);
    return leaf(n);
}
static long round_of(long n) {
    long sum = leaf(n) + branches(n) + framed(n) + tail(n) + indirect(n) + recurses(n % 20) + switches(n) + parts(n);
    atomic_fetch_add(&entered[LEAF], 1), atomic_fetch_add(&left[LEAF], 1);
    if (!setjmp(back)) sum += leaves(n);
    return sum;
}
static long rounds;
static atomic_long done;
static void *worker(void *first) {
    long sum = 0;
    for (long i = 0; i != rounds; i++) {
        sum += round_of((long)first + i);
        atomic_fetch_add(&done, 1);
    }
    return (void *)sum;
}
int main(int argc, char **argv) {
    (void)argc;
    rounds = atol(argv[1]);
    pthread_t threads[4];
    long sum = 0;
    printf("ready %lx\n", (long)&done);
    fflush(stdout);
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, worker, (void *)(i * 1000));
    for (int i = 0; i < 4; i++) {
        void *own;
        pthread_join(threads[i], &own);
        sum += (long)own;
    }
    printf("sum %ld wrong %ld\n", sum, wrong);
    for (int i = 1; i < KINDS; i++) printf("%s %ld %ld\n", names[i], entered[i], left[i]);
    return wrong != 0;
}
