/* Patches its own functions by a plan that the test made, while threads run them, and counts its calls by itself.
 *
 *     selfpatch PLAN BLOCKS
 *
 * Prints "name calls followed" for each function, and leaves the blocks of probe memory in the file BLOCKS. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

enum { THREADS = 5, ROUNDS = 300, COUNTERS = 128 };
#define CHECK(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))

static void failed(int line, const char *what) {
    fprintf(stderr, "line %d: %s\n", line, what);
    exit(3);
}

#define FUNCTIONS(F) \
    F(leaf) F(fib) F(with_toc) F(tail_a) F(tail_b) F(even) F(odd) F(jumper) F(floats) F(large) F(branch_first) \
    F(count_first) F(call_first) F(call_first_site) F(return_address) F(keep_plain) F(keep_followed) F(red_zone_site) \
    F(recorded) F(timed) F(in_handler) F(yields) F(alloca_user) F(unwound) F(unwinder) F(forks) F(keep_recorded) \
    F(deep) F(cleaned) F(forces) F(spares) F(spares_site)
#define NUMBER(name) N_##name,
#define NAME(name) #name,
enum { FUNCTIONS(NUMBER) N };
static const char *const names[] = {FUNCTIONS(NAME)};

static uint64_t calls[N], not_returned[N];
static __thread uint64_t mine[N], mine_not_returned[N];
#define CALLED(name) mine[N_##name]++
#define NEW __attribute__((noipa, noinline)) 

struct large { long values[8]; };

NEW long leaf(long a, long b) { return a * 3 + (b ^ 5); }
/* Each result passes through memory, or the compiler makes a loop of one of the calls. */
NEW long fib(long n) { volatile long a, b; return n < 2 ? n : (a = fib(n - 1), b = fib(n - 2), a + b); }
static long table[4] = {1, 2, 3, 4};
NEW long with_toc(long i) { return table[i & 3]++; }
NEW long tail_b(long a) { return a + 1; }
NEW long tail_a(long a) { return tail_b(a * 2); }
NEW long odd(long n);
NEW long even(long n) { return n == 0 ? 1 : odd(n - 1); }
NEW long odd(long n) { return n == 0 ? 0 : even(n - 1); }
NEW long jumper(jmp_buf *where, long jump) { if (jump) longjmp(*where, 1); return leaf(jump, 2); }
NEW double floats(double a, float b, double c) { return a * b + c; }
NEW struct large large(long a) { struct large l; for (int i = 0; i < 8; i++) l.values[i] = a + i; return l; }
NEW long recorded(long a, long b, long c, long d, long e, long f, long g, long h) { return a + b + c + d + e + f + g + h; }
NEW long timed(long n) { volatile long x = 0; for (long i = 0; i < n; i++) x += i; return x; }
NEW long in_handler(long n) { return n + 1; }
NEW long alloca_user(long n) { volatile char *p = __builtin_alloca(n); p[0] = 1; p[n - 1] = 2; return leaf(p[0], p[n - 1]); }

/* An unwinder finds the calls of unwound, and the caller's r2 in its frame, as if no call were followed. */
static int in_arena(uint64_t address);
extern char saves_toc_returned[];
long saves_toc(long n);
struct walk { long depth, calls, modules; uint64_t first, last; };
static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *walk) {
    struct walk *w = walk;
    uint64_t address = _Unwind_GetIP(context);
    CHECK(!in_arena(address));
    if (address == (uint64_t)saves_toc_returned) w->modules += _Unwind_GetGR(context, 2) == 0x1234;
    if (address >= w->first && address < w->last) w->calls++;
    w->depth++;
    return _URC_NO_REASON;
}
NEW long unwinder(uint64_t first, uint64_t last) {
    struct walk walk = {.first = first, .last = last};
    _Unwind_Backtrace(step, &walk);
    /* Up to the function that the thread started with, at the least. */
    CHECK(walk.depth > walk.calls + 3 && walk.modules == 1);
    return walk.calls;
}
/* Of the calls of unwound all but the last are in the middle of unwound itself. */
NEW long unwound(long n) {
    volatile long calls = n ? unwound(n - 1) : unwinder((uint64_t)unwound, (uint64_t)unwound + 256);
    return calls;
}

/* Unwound for good: each frame's cleanup runs, and the next step starts from there. */
struct target { struct _Unwind_Exception exception; uint64_t frame; jmp_buf where; };
static __thread long cleanups;
static void clean_up(volatile long *depth) { cleanups += *depth + 1; }
static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                struct _Unwind_Exception *exception, struct _Unwind_Context *context, void *target) {
    struct target *t = target;
    (void)version, (void)class, (void)exception;
    CHECK(!in_arena(_Unwind_GetIP(context)) && !(actions & _UA_END_OF_STACK));
    if (_Unwind_GetCFA(context) >= t->frame) longjmp(t->where, 1);
    return _URC_NO_REASON;
}
NEW void forces(struct target *target) { _Unwind_ForcedUnwind(&target->exception, stop, target); }
NEW long cleaned(struct target *target, long n) {
    __attribute__((cleanup(clean_up))) volatile long depth = n;
    if (n) cleaned(target, n - 1); else forces(target);
    return depth;
}
NEW long deep(long n) { volatile long below = n ? deep(n - 1) : 0; return below + 1; }

/* The child returns through the return point of a call that its parent entered, then makes calls of its own. */
static void forget_threads(void);
NEW long forks(long n) {
    volatile pid_t child = fork();
    if (child == 0) forget_threads();
    return child == 0 ? n : child;
}

long spares(long), branch_first(long), count_first(long), call_first(void), return_address(void), red_zone(void);
void call_keep(void (*function)(void), const uint64_t *in, uint64_t *out);
void keep_plain(void), keep_followed(void), keep_recorded(void);
extern char call_first_site[];
asm(".text\n"
    ".macro function name\n .globl \\name\n .type \\name, @function\n\\name:\n.endm\n"
    ".macro ended name\n .size \\name, . - \\name\n.endm\n"
    /* A conditional branch as the first instruction, and one that counts. */
    "function branch_on_zero\n cmpdi 3, 0\n b branch_first\n ended branch_on_zero\n"
    "function branch_first\n beq 1f\n addi 3, 3, 1\n blr\n1: li 3, -7\n blr\n ended branch_first\n"
    "function count_down\n mtctr 3\n b count_first\n ended count_down\n"
    "function count_first\n bdnz 1f\n li 3, 500\n blr\n1: mfctr 3\n blr\n ended count_first\n"
    /* Registers and cr0 are free at its entry; cr0 is not at its second instruction. */
    "function spares\n cmpdi 3, 5\n"
    "function spares_site\n li 11, 1\n li 12, 2\n li 0, 3\n bgt 1f\n add 3, 3, 11\n blr\n1: add 3, 3, 12\n blr\n"
    " ended spares\n ended spares_site\n"
    /* A call that is displaced: its callee must see the original return address. */
    "function return_address\n mflr 3\n blr\n ended return_address\n"
    "function call_first\n mflr 0\n std 0, 16(1)\n stdu 1, -32(1)\n"
    "function call_first_site\n bl return_address\n nop\n addi 1, 1, 32\n ld 0, 16(1)\n mtlr 0\n blr\n"
    " ended call_first\n ended call_first_site\n"
    /* The red zone is full while the probe is hit. */
    "function red_zone\n .set n, 8\n .rept 36\n li 4, n\n std 4, -n(1)\n .set n, n + 8\n .endr\n"
    "function red_zone_site\n nop\n li 3, 0\n .set n, 8\n .rept 36\n ld 4, -n(1)\n add 3, 3, 4\n .set n, n + 8\n .endr\n blr\n"
    " ended red_zone\n ended red_zone_site\n"
    /* A call that may lead to another module, with something for r2 in the frame. */
    "function saves_toc\n .cfi_startproc\n mflr 0\n std 0, 16(1)\n stdu 1, -48(1)\n .cfi_def_cfa_offset 48\n"
    " .cfi_offset 65, 16\n std 2, 40(1)\n li 0, 0x1234\n std 0, 24(1)\n bl unwound\n"
    "saves_toc_returned:\n ld 2, 24(1)\n ld 2, 40(1)\n addi 1, 1, 48\n .cfi_def_cfa_offset 0\n ld 0, 16(1)\n"
    " mtlr 0\n .cfi_restore 65\n blr\n .cfi_endproc\n ended saves_toc\n"
    "function keep_plain\n nop\n blr\n ended keep_plain\n"
    "function keep_followed\n nop\n blr\n ended keep_followed\n"
    "function keep_recorded\n nop\n blr\n ended keep_recorded\n"
    /* Every register that a call may change, and cr, xer and ctr. r12 holds the function's address at its entry. */
    "function call_keep\n mflr 0\n std 0, 16(1)\n mfcr 0\n stw 0, 8(1)\n std 31, -8(1)\n std 30, -16(1)\n stdu 1, -64(1)\n"
    " mr 31, 5\n mr 12, 3\n mr 30, 4\n ld 0, 104(30)\n mtcr 0\n ld 0, 112(30)\n mtxer 0\n mtctr 12\n"
    " ld 0, 0(30)\n .irp r, 3, 4, 5, 6, 7, 8, 9, 10, 11\n ld \\r, 8 * \\r(30)\n .endr\n"
    " bctrl\n"
    " std 0, 0(31)\n .irp r, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12\n std \\r, 8 * \\r(31)\n .endr\n"
    " mfcr 0\n std 0, 104(31)\n mfxer 0\n std 0, 112(31)\n mfctr 0\n std 0, 120(31)\n"
    " addi 1, 1, 64\n ld 31, -8(1)\n ld 30, -16(1)\n lwz 0, 8(1)\n mtcr 0\n ld 0, 16(1)\n mtlr 0\n blr\n ended call_keep\n");
long branch_on_zero(long), count_down(long);

static long fib_calls(long n) { return n < 2 ? 1 : 1 + fib_calls(n - 1) + fib_calls(n - 2); }

static void keep(void (*function)(void), uint64_t random) {
    uint64_t in[16], out[16] = {0};
    for (int i = 0; i < 16; i++) in[i] = random *= 6364136223846793005ul, in[i] ^= in[i] >> 31;
    in[13] &= 0xffffffff;
    in[14] &= 0xe0000000;
    call_keep(function, in, out);
    in[1] = in[2] = 0;
    in[12] = in[15] = (uint64_t)function;
    CHECK(memcmp(in, out, sizeof in) == 0);
}

/* A coroutine that is resumed by another thread than the one that started it. */
static ucontext_t resumer, coroutine;
NEW long yields(long n) { swapcontext(&coroutine, &resumer); return n + 1; }
static long yielded;
static void body(void) { yielded = yields(41); }
static void *resume(void *unused) { CHECK(swapcontext(&resumer, &coroutine) == 0); return unused; }
static void migrate(void) {
    static char stack[1 << 17];
    pthread_t other;
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack, coroutine.uc_stack.ss_size = sizeof stack, coroutine.uc_link = &resumer;
    makecontext(&coroutine, body, 0);
    CALLED(yields);
    resume(0);
    CHECK(pthread_create(&other, 0, resume, 0) == 0 && pthread_join(other, 0) == 0);
    CHECK(yielded == 42);
}

static void fork_in_followed_call(void) {
    int status = 0;
    CALLED(forks);
    long child = forks(-5);
    if (child == -5) _exit(leaf(1, 4) == 4 && fib(6) == 8 && even(4) && tail_a(3) == 7 ? 17 : 18);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
}

static uint64_t handled;
static void handler(int signal) {
    (void)signal;
    CHECK(in_handler(1) == 2);
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
}

static void round_of_calls(long i) {
    long (*volatile through_pointer)(long) = with_toc;
    jmp_buf here;
    CALLED(leaf), CHECK(leaf(i, 4) == i * 3 + 1);
    mine[N_fib] += fib_calls(i % 9), fib(i % 9);
    CALLED(with_toc), with_toc(i);
    CALLED(with_toc), through_pointer(i);
    CALLED(tail_a), CALLED(tail_b), CHECK(tail_a(i) == 2 * i + 1);
    for (long n = 0; n <= i % 50; n++) n % 2 ? CALLED(odd) : CALLED(even);
    CHECK(even(i % 50) == !(i % 2));
    if (setjmp(here) == 0) {
        CALLED(jumper);
        if (i % 2) mine_not_returned[N_jumper]++; else CALLED(leaf);
        jumper(&here, i % 2);
    }
    CALLED(floats), CHECK(floats(i, 2, 0.5) == 2 * i + 0.5);
    CALLED(large), CHECK(large(i).values[7] == i + 7);
    CALLED(branch_first), CHECK(branch_on_zero(i % 3) == (i % 3 ? i % 3 + 1 : -7));
    CALLED(count_first), CHECK(count_down(1 + i % 3) == (i % 3 ? i % 3 : 500));
    CALLED(spares), CALLED(spares_site), CHECK(spares(i % 9) == i % 9 + (i % 9 > 5 ? 2 : 1));
    CALLED(call_first), CALLED(call_first_site), CALLED(return_address);
    CHECK(call_first() == (long)call_first_site + 4);
    CALLED(keep_plain), keep(keep_plain, 2 * i + 1);
    CALLED(keep_followed), keep(keep_followed, 2 * i + 1);
    CALLED(keep_recorded), keep(keep_recorded, 2 * i + 1);
    CALLED(red_zone_site), CHECK(red_zone() == 8 * 36 * 37 / 2);
    CALLED(recorded), CHECK(recorded(i, 1, 2, 3, 4, 5, 6, 7) == i + 28);
    CALLED(timed), timed(i);
    for (long n = 0; n <= i % 4; n++) CALLED(unwound);
    CALLED(unwinder), CHECK(saves_toc(i % 4) == i % 4 + 1);
    struct target target = {.frame = (uint64_t)__builtin_frame_address(0)};
    cleanups = 0;
    for (long n = 0; n <= i % 5; n++) CALLED(cleaned), mine_not_returned[N_cleaned]++;
    CALLED(forces), mine_not_returned[N_forces]++;
    if (setjmp(target.where) == 0) cleaned(&target, i % 5);
    CHECK(cleanups == (i % 5 + 1) * (i % 5 + 2) / 2);
    /* Over many pages of stack, now and then. */
    long depth = i % 16 ? 0 : i % 128 * 16;
    for (long n = 0; n <= depth; n++) CALLED(deep);
    CHECK(deep(depth) == depth + 1);
    CALLED(alloca_user), CALLED(leaf), CHECK(alloca_user(100 + 8 * i) == 3 + (2 ^ 5));
}

static pthread_barrier_t barrier;
static int running = 1;
static void *worker(void *number) {
    /* While patches come … */
    pthread_barrier_wait(&barrier);
    for (long i = 0; __atomic_load_n(&running, __ATOMIC_ACQUIRE) == 1; i++) {
        long (*volatile through_pointer)(long) = with_toc;
        leaf(i, i), fib(5), through_pointer(i), tail_a(1), even(4), branch_on_zero(i % 2), count_down(1 + i % 2), call_first();
        keep(keep_followed, i + 1);
        CHECK(spares(i % 9) == i % 9 + (i % 9 > 5 ? 2 : 1));
    }
    pthread_barrier_wait(&barrier);
    /* … exactly, in between … */
    pthread_barrier_wait(&barrier);
    memset(mine, 0, sizeof mine);
    memset(mine_not_returned, 0, sizeof mine_not_returned);
    for (long i = 0; i < ROUNDS; i++) round_of_calls(i);
    if (!number) migrate(), fork_in_followed_call();
    for (int i = 0; i < N; i++) {
        __atomic_fetch_add(&calls[i], mine[i], __ATOMIC_RELAXED);
        __atomic_fetch_add(&not_returned[i], mine_not_returned[i], __ATOMIC_RELAXED);
    }
    /* What was handled is read behind the barrier, and no handler may be under way then. */
    sigset_t timer;
    sigemptyset(&timer), sigaddset(&timer, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &timer, 0) == 0);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    /* … and while they go. */
    for (long i = 0; __atomic_load_n(&running, __ATOMIC_ACQUIRE) == 2; i++)
        leaf(i, i), fib(5), tail_a(1), even(4), branch_on_zero(i % 2), count_down(1 + i % 2), keep(keep_followed, i + 1);
    return 0;
}

static void flush(uint64_t at, size_t size) {
    for (uint64_t line = at & ~127ul; line < at + size; line += 128)
        asm volatile("dcbst 0,%0; sync; icbi 0,%0" ::"r"(line) : "memory");
    asm volatile("sync; isync" ::: "memory");
}

static void map(uint64_t at, size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    CHECK(mmap((void *)at, size, PROT_READ | PROT_WRITE, flags, -1, 0) == (void *)at);
}

static void protect(uint64_t at, size_t size, int protection) {
    uint64_t page = at & ~0xfffful;
    CHECK(mprotect((void *)page, at + size - page, protection) == 0);
}

struct item { uint64_t kind, address, size; };
static struct { uint64_t address; uint32_t before, after; } patches[N + 1];
static int patch_count;
static struct item blocks, arena, threads;

static void write_patch(int i, uint32_t word) {
    uint64_t at = patches[i].address;
    protect(at, 4, PROT_READ | PROT_WRITE | PROT_EXEC);
    __atomic_store_n((uint32_t *)at, word, __ATOMIC_RELEASE);
    flush(at, 4);
    protect(at, 4, PROT_READ | PROT_EXEC);
}

static int in_arena(uint64_t address) { return address - arena.address < arena.size; }
/* What MADV_WIPEONFORK does where it exists. */
static void forget_threads(void) { memset((void *)threads.address, 0, threads.size); }

/* Kind 0: memory. 1: the blocks. 2: code. 3: a patch. 4: data. The first memory is the thread table. */
static void read_plan(const char *name) {
    FILE *plan = fopen(name, "rb");
    struct item item;
    CHECK(plan);
    while (fread(&item, sizeof item, 1, plan) == 1) {
        if (item.kind == 0 || item.kind == 1) map(item.address, item.size);
        if (item.kind == 0 && !threads.size) threads = item;
        if (item.kind == 1) blocks = item;
        if (item.kind == 2) arena = item;
        if (item.kind == 2) {
            map(item.address, item.size);
            CHECK(fread((void *)item.address, item.size, 1, plan) == 1);
            protect(item.address, item.size, PROT_READ | PROT_EXEC);
            flush(item.address, item.size);
        }
        if (item.kind == 3) {
            CHECK(item.size == 4 && fread(&patches[patch_count].after, 4, 1, plan) == 1);
            patches[patch_count].address = item.address;
            patches[patch_count++].before = *(uint32_t *)item.address;
        }
        if (item.kind == 4) CHECK(fread((void *)item.address, item.size, 1, plan) == 1);
    }
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    CHECK(argc == 3);
    read_plan(argv[1]);
    pthread_barrier_init(&barrier, 0, THREADS + 1);
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], 0, worker, (void *)i) == 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < patch_count; i++) write_patch(i, patches[i].after);
    __atomic_store_n(&running, 2, __ATOMIC_RELEASE);
    pthread_barrier_wait(&barrier);
    /* Nobody is in a function now: start from zero, but leave the blocks' heads. */
    for (uint64_t at = blocks.address; at < blocks.address + blocks.size; at += 0x10000)
        memset((void *)(at + COUNTERS), 0, 0x10000 - COUNTERS), memset((void *)(at + 16), 0, 24);
    /* On a busy machine the timer's signal may come to a thread that waits for its child. */
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 3000}, {0, 3000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    setitimer(ITIMER_REAL, &never, 0);
    signal(SIGALRM, SIG_IGN);
    calls[N_in_handler] = handled;
    for (int i = 0; i < N; i++) printf("%s %lu %lu\n", names[i], calls[i], calls[i] - not_returned[i]);
    FILE *out = fopen(argv[2], "wb");
    CHECK(out && fwrite((void *)blocks.address, blocks.size, 1, out) == 1 && fclose(out) == 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < patch_count; i++) write_patch(i, patches[i].before);
    __atomic_store_n(&running, 3, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    for (int i = 0; i < patch_count; i++) CHECK(*(uint32_t *)patches[i].address == patches[i].before);
    return 0;
}
