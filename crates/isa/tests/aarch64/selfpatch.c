// A program that patches its own functions with detours that the test has generated, while threads run them.
//
// selfpatch PLAN OUT: PLAN is a list of records {kind, address, length, bytes padded to 8}: 0 maps zeroed
// memory, 1 maps code, 2 replaces one instruction word (these are applied while the threads run), 3 names
// memory to dump to OUT. OUT gets the dumped memory twice: when all is patched and the threads stand still,
// and after ITERATIONS more rounds of every thread.
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
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define ARENA 0x8000000ul

enum { THREADS = 4, ITERATIONS = 1000 };

#define FUNCTION(name, body) \
    asm(".text\n.balign 16\n.globl " #name "\n.type " #name ",%function\n" #name ":\n" body "\n.size " #name ",.-" #name "\n")

// One function per kind of first instruction. Those that call keep a frame, as the ABI demands.
FUNCTION(leaf, "add x0, x0, x1\n ret");
FUNCTION(leaf_signal, "add x0, x0, #1\n ret");
FUNCTION(bare, "ret");
FUNCTION(fib, "stp x29, x30, [sp, #-32]!\n mov x29, sp\n cmp x0, #2\n b.lo 1f\n stp x19, x20, [sp, #16]\n mov x19, x0\n"
              "sub x0, x19, #1\n bl fib\n mov x20, x0\n sub x0, x19, #2\n bl fib\n add x0, x0, x20\n ldp x19, x20, [sp, #16]\n"
              "1: ldp x29, x30, [sp], #32\n ret");
FUNCTION(starts_cbz, "cbz x0, 1f\n mov x0, #10\n ret\n1: mov x0, #20\n ret");
FUNCTION(starts_cbnz, "cbnz w0, 1f\n mov x0, #10\n ret\n1: mov x0, #20\n ret");
FUNCTION(starts_tbz, "tbz x0, #33, 1f\n mov x0, #10\n ret\n1: mov x0, #20\n ret");
FUNCTION(starts_tbnz, "tbnz x0, #0, 1f\n mov x0, #10\n ret\n1: mov x0, #20\n ret");
FUNCTION(starts_bcond, "b.hi 1f\n mov x0, #10\n ret\n1: mov x0, #20\n ret");
FUNCTION(starts_adr, "adr x0, 1f\n ldr x0, [x0]\n ret\n.balign 8\n1: .quad 0x123456789abcdef");
FUNCTION(starts_adrp, "adrp x0, shared_value\n add x0, x0, :lo12:shared_value\n ldr x0, [x0]\n ret");
FUNCTION(starts_literal, "ldr x0, 1f\n ret\n.balign 8\n1: .quad 0xfedcba9876543210");
FUNCTION(starts_literal_w, "ldr w0, 1f\n ret\n1: .word 0x89abcdef");
FUNCTION(starts_literal_sw, "ldrsw x0, 1f\n ret\n1: .word 0x89abcdef");
FUNCTION(starts_literal_q, "ldr q0, 1f\n mov x0, v0.d[1]\n mov x1, v0.d[0]\n add x0, x0, x1\n ret\n.balign 16\n1: .quad 3, 4");
FUNCTION(starts_b, "b 1f\n nop\n1: mov x0, #7\n ret");
FUNCTION(starts_bti, "hint #34\n add x0, x0, #3\n ret");
FUNCTION(starts_pacia, "hint #25\n stp x29, x30, [sp, #-16]!\n bl bare\n ldp x29, x30, [sp], #16\n hint #29\n ret");
FUNCTION(starts_pacib, "hint #27\n stp x29, x30, [sp, #-16]!\n bl bare\n ldp x29, x30, [sp], #16\n hint #31\n ret");
FUNCTION(bti_pacia, "hint #34\n hint #25\n stp x29, x30, [sp, #-16]!\n bl bare\n ldp x29, x30, [sp], #16\n hint #29\n ret");
#ifdef ARMV8_0
FUNCTION(returns_authenticated, "hint #25\n add x0, x0, #5\n hint #29\n ret");
#else
FUNCTION(returns_authenticated, ".arch armv8.3-a\n paciasp\n add x0, x0, #5\n retaa");
#endif
FUNCTION(tail_from, "add x0, x0, #1\n b tail_to");
FUNCTION(tail_to, "add x0, x0, #2\n ret");
FUNCTION(tail_signed, "hint #25\n stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n hint #29\n b tail_signed_to");
FUNCTION(tail_signed_to, "hint #25\n add x0, x0, #9\n hint #29\n ret");
FUNCTION(spares, "mov x9, #1\n mov x10, #2\n mov x11, #3\n add x0, x0, x11\n ret");
FUNCTION(keeps_link, "mov x15, x30\n bl leaf\n ret x15");
FUNCTION(tail_to_keeper, "add x0, x0, #1\n b keeps_link");
FUNCTION(loops_to_entry, "sub x0, x0, #1\n cbnz x0, loops_to_entry\n ret");
FUNCTION(starts_bl, "bl bare\n ret x20");
FUNCTION(starts_blr, "blr x21\n ret x20");
FUNCTION(call_with_condition, "stp x29, x30, [sp, #-16]!\n cmp x0, x1\n bl starts_bcond\n ldp x29, x30, [sp], #16\n ret");
FUNCTION(call_starts_bl, "stp x29, x30, [sp, #-32]!\n stp x20, x21, [sp, #16]\n adr x20, 1f\n adr x21, bare\n bl starts_bl\n1: adr x20, 2f\n"
                         "bl starts_blr\n2: ldp x20, x21, [sp, #16]\n ldp x29, x30, [sp], #32\n ret");
FUNCTION(walks_signed_a, "hint #25\n stp x29, x30, [sp, #-16]!\n mov x29, sp\n bl walk\n ldp x29, x30, [sp], #16\n hint #29\n ret");
FUNCTION(walks_signed_b, "hint #27\n stp x29, x30, [sp, #-16]!\n mov x29, sp\n bl walk\n ldp x29, x30, [sp], #16\n hint #31\n ret");
FUNCTION(walks_by_tail, "mov x1, #0\n b walk");
FUNCTION(walks_after_tail, "mov x1, #0\n b walks_signed_a");
// Calls `bare` with every register but x30 and sp, and the flags, set to known values, and stores x0 to x29,
// d0 to d29 and NZCV.
FUNCTION(call_with_registers,
         "stp x29, x30, [sp, #-112]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n"
         "stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n str x0, [sp, #96]\n"
         ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n"
         "movz x\\n, #(0x100 + \\n)\n movk x\\n, #(0xab00 + \\n), lsl #48\n fmov d\\n, x\\n\n .endr\n"
         "movz x30, #0xa000, lsl #16\n msr nzcv, x30\n bl bare\n ldr x30, [sp, #96]\n"
         ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n"
         "str x\\n, [x30, #(8 * \\n)]\n str d\\n, [x30, #(240 + 8 * \\n)]\n .endr\n"
         "mrs x0, nzcv\n str x0, [x30, #480]\n"
         "ldp x27, x28, [sp, #80]\n ldp x25, x26, [sp, #64]\n ldp x23, x24, [sp, #48]\n ldp x21, x22, [sp, #32]\n"
         "ldp x19, x20, [sp, #16]\n ldp x29, x30, [sp], #112\n ret");

long shared_value = 4711;
long leaf(long, long), leaf_signal(long), bare(long), fib(long), starts_cbz(long), starts_cbnz(long), starts_tbz(long), starts_tbnz(long);
long starts_adr(void), starts_adrp(void), starts_literal(void), starts_literal_w(void), starts_literal_sw(void), starts_literal_q(void);
long starts_b(void), starts_bti(long), starts_pacia(long), starts_pacib(long), bti_pacia(long), returns_authenticated(long);
long tail_to_keeper(long, long), tail_from(long), tail_to(long), tail_signed(long), loops_to_entry(long), call_with_condition(long, long), call_starts_bl(long);
long spares(long), walks_signed_a(void), walks_signed_b(void), walks_by_tail(void), walks_after_tail(void);
void call_with_registers(uint64_t *registers);

static _Atomic long handled;

static void check(const char *what, long got, long expected) {
    if (got != expected) {
        fprintf(stderr, "%s: %#lx, not %#lx\n", what, got, expected);
        abort();
    }
}

static void keeps_registers(void) {
    uint64_t registers[61];
    call_with_registers(registers);
    for (uint64_t i = 0; i < 60; i++) check("register", registers[i], 0x100 + i % 30 + (0xab00 + i % 30 << 48));
    check("flags", registers[60], 0xa0000000);
}

// Leaves through longjmp, so its return is never seen.
__attribute__((noinline)) void jumper(jmp_buf *to) { longjmp(*to, 1); }

// Many arguments, some on the stack.
__attribute__((noinline, noclone)) long ten(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j) {
    asm volatile("");
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j;
}

static void round_of_calls(void) {
    check("leaf", leaf(2, 3), 5);
    check("fib", fib(7), 13);
    check("cbz", starts_cbz(0) + starts_cbz(1), 30);
    check("cbnz", starts_cbnz(1L << 32) + starts_cbnz(1), 30);
    check("tbz", starts_tbz(0) + starts_tbz(1L << 33), 30);
    check("tbnz", starts_tbnz(6) + starts_tbnz(7), 30);
    check("bcond", call_with_condition(1, 2) + call_with_condition(2, 1), 30);
    check("adr", starts_adr(), 0x123456789abcdef);
    check("adrp", starts_adrp(), 4711);
    check("literal", starts_literal(), (long)0xfedcba9876543210);
    check("literal w", starts_literal_w(), 0x89abcdef);
    check("literal sw", starts_literal_sw(), (int)0x89abcdef);
    check("literal q", starts_literal_q(), 7);
    check("b", starts_b(), 7);
    check("bti", starts_bti(4), 7);
    check("pacia", starts_pacia(8), 8);
    check("pacib", starts_pacib(9), 9);
    check("bti pacia", bti_pacia(9), 9);
    check("retaa", returns_authenticated(1), 6);
    check("tail", tail_from(1) + tail_to(1), 7);
    check("signed tail", tail_signed(1), 10);
    check("tail to keeper", tail_to_keeper(1, 5), 7);
    check("loop", loops_to_entry(5), 0);
    check("deep loop", loops_to_entry(20), 0);
    check("spares", spares(1) + spares(2), 9);
    check("bl", call_starts_bl(3), 3);
    keeps_registers();
    check("ten", ten(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 385);
    for (int i = 0; i < 3; i++) {
        jmp_buf here;
        if (!setjmp(here)) jumper(&here);
    }
}

// A coroutine that stops inside a followed call, to be finished by another thread.
struct coroutine {
    ucontext_t inside, outside;
    long result;
    char stack[65536] __attribute__((aligned(16)));
};

__attribute__((noinline, noclone)) long yields(struct coroutine *c, long value) {
    swapcontext(&c->inside, &c->outside);
    return value + 1;
}

static void coroutine(unsigned high, unsigned low) {
    struct coroutine *c = (void *)((unsigned long)high << 32 | low);
    c->result = yields(c, 41);
    swapcontext(&c->inside, &c->outside);
}

static void start(struct coroutine *c) {
    getcontext(&c->inside);
    c->inside.uc_stack.ss_sp = c->stack;
    c->inside.uc_stack.ss_size = sizeof c->stack;
    makecontext(&c->inside, (void (*)(void))coroutine, 2, (unsigned)((unsigned long)c >> 32), (unsigned)(unsigned long)c);
    swapcontext(&c->outside, &c->inside);
}

static void *finish(void *argument) {
    struct coroutine *c = argument;
    swapcontext(&c->outside, &c->inside);
    check("coroutine", c->result, 42);
    return 0;
}

// How numbers are rounded: to zero, by all threads of the program.
#define TO_ZERO 0xc00000ul

static unsigned long float_control(void) {
    unsigned long control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}

static _Atomic int stop_warming;
static pthread_barrier_t barrier;

static void *thread(void *unused) {
    do round_of_calls();
    while (!stop_warming);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ITERATIONS; i++) round_of_calls();
    check("how numbers are rounded", float_control(), TO_ZERO);
    pthread_barrier_wait(&barrier);
    return unused;
}

static void handler(int signal) {
    (void)signal;
    check("signal", leaf_signal(1), 2);
    handled++;
}

// What an unwinder does: counts the return addresses on the stack that are not the program's.
__attribute__((noinline, noclone)) long walk(void) {
    long foreign = 0;
    unsigned long *frame = __builtin_frame_address(0);
    for (int i = 0; i < 16 && frame; i++, frame = (unsigned long *)frame[0])
        foreign += (frame[1] & 0xffffffffffff) >= ARENA && (frame[1] & 0xffffffffffff) < ARENA + (1 << 20);
    return foreign;
}

__attribute__((noinline, noclone)) long walks(long depth) {
    long foreign = depth ? walks(depth - 1) : walk();
    asm volatile("");
    return foreign;
}

// Bodies of scripts, as detours call them: they look at all that they are told, count at the offset that is the number of the site, and
// leave nothing as it was that they may lose.
struct kept {
    unsigned long x[18], v[32][2], x29, x30;
};

enum { SITE, TIME, ENTERED, TID, STACK_POINTER, INSTRUCTION_POINTER, REGISTERS, FLOATS };

// What bodies were told wrongly: one bit for each kind of thing.
static _Atomic long odd;

static void look(struct kept *k, unsigned long *extras, char *block, int is_return) {
    unsigned long *registers = (void *)extras[REGISTERS], *floats = (void *)extras[FLOATS];
    int is_code = extras[INSTRUCTION_POINTER] >= 0x400000 && extras[INSTRUCTION_POINTER] < ARENA;
    long wrong = !extras[TIME] | !!extras[TID] << 1 | !is_code << 2 | (extras[STACK_POINTER] != registers[31]) << 3;
    wrong |= (registers[29] != k->x29) << 4;
    for (int i = 0; i < 8; i++) wrong |= (floats[i] != k->v[i][0]) << 5;
    if (is_return) {
        wrong |= (k->x[0] != registers[0]) << 6 | (k->x[1] != registers[1]) << 7 | (k->x[2] != extras[STACK_POINTER]) << 8;
        wrong |= (k->x[3] != k->v[0][0]) << 9 | (k->x[4] != registers[30]) << 10;
        wrong |= (!extras[ENTERED] || extras[ENTERED] > extras[TIME]) << 11;
    } else {
        for (int i = 0; i < 8; i++) wrong |= (k->x[i] != registers[i]) << 12;
        wrong |= !!extras[ENTERED] << 13;
    }
    odd |= wrong | !!float_control() << 14;
    ++*(_Atomic long *)(block + extras[SITE]);
}

__attribute__((used)) static void look_at_entry(struct kept *k, unsigned long *extras, char *block) {
    look(k, extras, block, 0);
}

__attribute__((used)) static void look_at_return(struct kept *k, unsigned long *extras, char *block) {
    look(k, extras, block, 1);
}

asm(".macro BODY name, look\n"
    "    .global \\name\n"
    "    .type \\name, %function\n"
    "\\name:\n"
    "    stp x29, x30, [sp, #-16]!\n"
    "    sub sp, sp, #656\n"
    "    stp x0, x1, [sp, #0]\n"
    "    stp x2, x3, [sp, #16]\n"
    "    stp x4, x5, [sp, #32]\n"
    "    stp x6, x7, [sp, #48]\n"
    "    stp x8, x9, [sp, #64]\n"
    "    stp x10, x11, [sp, #80]\n"
    "    stp x12, x13, [sp, #96]\n"
    "    stp x14, x15, [sp, #112]\n"
    "    stp x16, x17, [sp, #128]\n"
    "    stp q0, q1, [sp, #144]\n"
    "    stp q2, q3, [sp, #176]\n"
    "    stp q4, q5, [sp, #208]\n"
    "    stp q6, q7, [sp, #240]\n"
    "    stp q8, q9, [sp, #272]\n"
    "    stp q10, q11, [sp, #304]\n"
    "    stp q12, q13, [sp, #336]\n"
    "    stp q14, q15, [sp, #368]\n"
    "    stp q16, q17, [sp, #400]\n"
    "    stp q18, q19, [sp, #432]\n"
    "    stp q20, q21, [sp, #464]\n"
    "    stp q22, q23, [sp, #496]\n"
    "    stp q24, q25, [sp, #528]\n"
    "    stp q26, q27, [sp, #560]\n"
    "    stp q28, q29, [sp, #592]\n"
    "    stp q30, q31, [sp, #624]\n"
    "    mov x0, sp\n"
    "    add x1, sp, #672\n"
    "    mov x2, x21\n"
    "    bl \\look\n"
    "    ldp q0, q1, [sp, #144]\n"
    "    ldp q2, q3, [sp, #176]\n"
    "    ldp q4, q5, [sp, #208]\n"
    "    ldp q6, q7, [sp, #240]\n"
    "    ldp q8, q9, [sp, #272]\n"
    "    ldp q10, q11, [sp, #304]\n"
    "    ldp q12, q13, [sp, #336]\n"
    "    ldp q14, q15, [sp, #368]\n"
    "    ldp q16, q17, [sp, #400]\n"
    "    ldp q18, q19, [sp, #432]\n"
    "    ldp q20, q21, [sp, #464]\n"
    "    ldp q22, q23, [sp, #496]\n"
    "    ldp q24, q25, [sp, #528]\n"
    "    ldp q26, q27, [sp, #560]\n"
    "    ldp q28, q29, [sp, #592]\n"
    "    ldp q30, q31, [sp, #624]\n"
    "    ldp x0, x1, [sp, #0]\n"
    "    ldp x2, x3, [sp, #16]\n"
    "    ldp x4, x5, [sp, #32]\n"
    "    ldp x6, x7, [sp, #48]\n"
    "    ldp x8, x9, [sp, #64]\n"
    "    ldp x10, x11, [sp, #80]\n"
    "    ldp x12, x13, [sp, #96]\n"
    "    ldp x14, x15, [sp, #112]\n"
    "    ldp x16, x17, [sp, #128]\n"
    "    add sp, sp, #656\n"
    "    mov x16, #0x1f\n"
    "    msr fpsr, x16\n"
    "    mov x17, #-1\n"
    "    cmp x16, x17\n"
    "    ldp x29, x30, [sp], #16\n"
    "    ret\n"
    "    .size \\name, . - \\name\n"
    ".endm\n"
    "BODY body_at_entry, look_at_entry\n"
    "BODY body_at_return, look_at_return\n");

struct record {
    uint64_t kind, address, length;
};

static void for_each(char *plan, size_t size, uint64_t kind, void (*visit)(struct record *, char *)) {
    for (char *at = plan; at < plan + size;) {
        struct record *r = (void *)at;
        if (r->kind == kind) visit(r, at + sizeof *r);
        at += sizeof *r + (r->kind == 1 || r->kind == 2 || r->kind == 4 ? (r->length + 7) / 8 * 8 : 0);
    }
}

static void map(struct record *r, char *bytes) {
    void *want = (void *)r->address;
    if (mmap(want, r->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != want) {
        perror("mmap");
        exit(1);
    }
    if (r->kind == 1) {
        memcpy(want, bytes, r->length);
        __builtin___clear_cache(want, (char *)want + r->length);
        mprotect(want, r->length, PROT_READ | PROT_EXEC);
    }
}

static void fill(struct record *r, char *bytes) {
    memcpy((void *)r->address, bytes, r->length);
}

static void patch(struct record *r, char *bytes) {
    char *page = (char *)(r->address & -4096L);
    mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
    atomic_store((_Atomic uint32_t *)r->address, *(uint32_t *)bytes);
    __builtin___clear_cache((char *)r->address, (char *)r->address + 4);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    usleep(200);
}

static FILE *out;
static void dump(struct record *r, char *bytes) {
    (void)bytes;
    fwrite((void *)r->address, 1, r->length, out);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    FILE *in = fopen(arguments[1], "r");
    static char plan[1 << 20] __attribute__((aligned(16)));
    size_t size = fread(plan, 1, sizeof plan, in);
    for_each(plan, size, 0, map);
    for_each(plan, size, 4, fill);
    for_each(plan, size, 1, map);

    asm volatile("msr fpcr, %0" ::"r"(TO_ZERO));
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, thread, 0);
    usleep(20000);
    for_each(plan, size, 2, patch);
    stop_warming = 1;
    pthread_barrier_wait(&barrier);
    out = fopen(arguments[2], "w");
    for_each(plan, size, 3, dump);

    static struct coroutine routines[2];
    start(&routines[0]);
    start(&routines[1]);
    finish(&routines[0]);
    pthread_t other;
    pthread_create(&other, 0, finish, &routines[1]);
    pthread_join(other, 0);

    signal(SIGALRM, handler);
    struct itimerval every = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, 0);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    long foreign = walks(3) + walks_signed_a() + walks_signed_b() + walks_by_tail() + walks_after_tail();
    for_each(plan, size, 3, dump);
    check("what bodies were told", odd, 0);
    printf("%d %d %ld %ld\n", THREADS, ITERATIONS, handled, foreign);
    return 0;
}
