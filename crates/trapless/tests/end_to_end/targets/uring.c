/* Has the kernel make threads of its own in this process: one that polls a queue of io_uring's, and some that wait for what comes by a pipe. Says
   "ready", or "none" where that is not to be had. At each line it is told, "calls N wrong N". */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/io_uring.h>

static volatile long calls, wrong;

__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }

static void *works(void *unused) {
    (void)unused;
    for (long n = 0;; n++) {
        if (subject(n) != n * 3 + 7) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
        __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

enum { READS = 4 };

/* A ring with some reads that only a thread of the kernel's can wait in. */
static int ring(unsigned flags) {
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    params.flags = flags;
    params.sq_thread_idle = 100000;
    int fd = syscall(__NR_io_uring_setup, 8, &params), ends[2];
    if (fd < 0 || pipe(ends)) return 0;
    size_t size = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    char *queue = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries =
        mmap(0, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    if (queue == MAP_FAILED || entries == MAP_FAILED) return 0;
    static char bytes[READS];
    for (int n = 0; n < READS; n++) {
        memset(&entries[n], 0, sizeof *entries);
        entries[n].opcode = IORING_OP_READ;
        entries[n].flags = IOSQE_ASYNC;
        entries[n].fd = ends[0];
        entries[n].addr = (unsigned long)&bytes[n];
        entries[n].len = 1;
        ((unsigned *)(queue + params.sq_off.array))[n] = n;
    }
    __atomic_store_n((unsigned *)(queue + params.sq_off.tail), READS, __ATOMIC_RELEASE);
    unsigned enter = flags ? IORING_ENTER_SQ_WAKEUP : 0;
    return syscall(__NR_io_uring_enter, fd, READS, 0, enter, 0, 0) >= 0;
}

int main(void) {
    pthread_t thread;
    int made = ring(0) && ring(IORING_SETUP_SQPOLL);
    pthread_create(&thread, 0, works, 0);
    usleep(10000);
    puts(made ? "ready" : "none");
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        printf("calls %ld wrong %ld\n", calls, wrong);
        fflush(stdout);
    }
    return wrong != 0;
}
