// What calls that are followed may meet in programs that are not Rust's: exceptions, jumps, ends of threads, stacks that move.
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define PLAIN extern "C" __attribute__((noinline, noclone, noipa))

static int destroyed;
struct Guard {
    ~Guard() { destroyed++; }
};

PLAIN long thrower(long x) {
    if (x < 0) throw x;
    return x + 1;
}

// What it has in registers that callees keep is there where it catches.
PLAIN long catches(long a, long b, long c, long d, long x) {
    long sum = a * 3 + b * 5, other = c * 7 + d * 11;
    try {
        sum += thrower(x);
    } catch (long thrown) {
        return sum * 1000 + other + thrown;
    }
    return sum + other;
}

PLAIN long passes(long x) {
    Guard guard;
    return thrower(x) + 1;
}

PLAIN long catches_outer(long x) {
    try {
        return passes(x);
    } catch (long thrown) {
        return thrown * 10 + destroyed;
    }
}

// It goes on in the other by a jump.
PLAIN long tails(long x) { return thrower(x); }

PLAIN long catches_tail(long x) {
    try {
        return tails(x) + 1;
    } catch (long thrown) {
        return thrown - 7;
    }
}

PLAIN long double doubles(long double x) { return x + x; }

PLAIN long doubles_well(long n) {
    long right = 0;
    for (long i = 0; i < n; i++) right += doubles(i + 0.5L) == 2.0L * i + 1;
    return right;
}

PLAIN long plain(long x) { return x + 1; }

// Its child has the memory of its parent, and of the thread.
PLAIN long vforks(void) {
    int status = 0;
    pid_t child = vfork();
    if (child == 0) _exit(plain(4) == 5 ? 3 : 4);
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static jmp_buf env;

PLAIN void leaps(long x) {
    longjmp(env, (int)x + 1);
}

PLAIN long jumps(long n) {
    static volatile long done, all;
    all = n;
    for (done = 0; done < all;) {
        if (setjmp(env)) done++;
        else leaps(done);
    }
    return done;
}

PLAIN void ends_here(void) { pthread_exit((void *)7); }

static void *ends(void *) {
    Guard guard;
    ends_here();
    return 0;
}

PLAIN long ends_a_thread(void) {
    pthread_t thread;
    void *result = 0;
    destroyed = 0;
    pthread_create(&thread, 0, ends, 0);
    pthread_join(thread, &result);
    return (long)result * 10 + destroyed;
}

static ucontext_t outer, inner;
static long yielded;

PLAIN long yields(long x) {
    swapcontext(&inner, &outer);
    return x + 1;
}

static void body() { yielded = yields(41); }

PLAIN void begins(void) {
    static char stack[1 << 16];
    getcontext(&inner);
    inner.uc_stack.ss_sp = stack;
    inner.uc_stack.ss_size = sizeof stack;
    inner.uc_link = &outer;
    makecontext(&inner, body, 0);
    swapcontext(&outer, &inner);
}

// On whatever thread.
PLAIN long goes_on(void) {
    swapcontext(&outer, &inner);
    return yielded;
}

static int less(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

PLAIN long sorts(long n) {
    int *numbers = (int *)malloc(n * sizeof *numbers);
    for (long i = 0; i < n; i++) numbers[i] = (int)(i * 7919 % n);
    qsort(numbers, n, sizeof *numbers, less);
    long wrong = 0;
    for (long i = 1; i < n; i++) wrong += numbers[i - 1] > numbers[i];
    free(numbers);
    return wrong;
}
