// A hostile target: a process that shares its descriptors, but not its memory, meddles with the memory that the tool makes.
//   replace FILE [path]: puts another descriptor of FILE at the new memfd's number; `path`: one that only names it (O_PATH)
//   truncate:            keeps the newest memfd and tries to shrink, to grow and to seal it, for ever; at once, or later each time,
//                        since who seals it before the tool does is refused, and must not be the quicker one for ever
// A last word `leaderless` ends the first thread.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }

static void replace(int number, int other) {
    for (;;) {
        while (fcntl(number, F_GETFD) < 0) continue;
        dup3(other, number, O_CLOEXEC);
        // Until the target has closed it for the tool. If it was closed before, we came too late.
        for (long i = 0; i < 200000 && fcntl(number, F_GETFD) >= 0; i++) continue;
        close(number);
    }
}

static void truncate_it(int number) {
    struct stat newest = {0};
    useconds_t delay = 0;
    for (int kept = -1;;) {
        struct stat status;
        int found = fcntl(number, F_DUPFD_CLOEXEC, 500);
        if (found >= 0) {
            if (kept >= 0) close(kept);
            kept = found;
            fstat(kept, &status);
            if (status.st_ino != newest.st_ino) {
                newest = status;
                usleep(delay);
                delay = delay > 100000 ? 0 : delay * 4 + 1000;
            }
        }
        ftruncate(kept, 0);
        ftruncate(kept, 1L << 40);
        fcntl(kept, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
    }
}

static int number, other = -1;

static void *work(void *unused) {
    if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) == 0) {
        // With this thread, which made it.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (other >= 0) replace(number, other);
        truncate_it(number);
    }
    puts("ready");
    fflush(stdout);
    for (long i = 0;; i++) {
        subject(i);
        usleep(1000);
    }
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "replace")) {
        int flags = !strcmp(argv[3], "path") ? O_PATH : O_RDWR;
        other = open(argv[2], flags | O_CLOEXEC);
        if (other < 0) { perror(argv[2]); return 1; }
        dup3(other, 400, O_CLOEXEC);
        close(other);
        other = 400;
    }
    // The next descriptor will get this number.
    number = dup(0);
    close(number);
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    // Not by pthread_exit, which would open a library while descriptors are replaced.
    if (!strcmp(argv[argc - 1], "leaderless")) syscall(SYS_exit, 0);
    pthread_join(thread, 0);
}
