/* Many processes that create others without a pause, each in its own ways, and check what becomes of them. A terminal's signals are
   ignored. It says "ready". After SIGUSR1 there are some more, and then it says "done FAILURES". */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *self;
static struct { volatile int end; volatile long failures, children; } *all;

__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }

static void check(int right, const char *what) {
    if (right) return;
    dprintf(2, "storm: %s (errno %d)\n", what, errno);
    __atomic_add_fetch(&all->failures, 1, __ATOMIC_RELAXED);
}

static void is_right(pid_t child, int code, int way) {
    int status = 0;
    pid_t waited;
    char what[64];
    /* No handler is there that could interrupt it. */
    waited = waitpid(child, &status, 0);
    check(waited == child, "waitpid");
    snprintf(what, sizeof what, "the end of a child of way %d, status %#x", way, status);
    check(WIFEXITED(status) && WEXITSTATUS(status) == code, what);
    __atomic_add_fetch(&all->children, 1, __ATOMIC_RELAXED);
}

static void work(int code) {
    for (long n = 0; n < 50; n++) if (subject(n) != n * 3 + 7) _exit(99);
    _exit(code);
}

static void *idle(void *unused) { (void)unused; for (long n = 0;; n++) subject(n); return 0; }

static void round_of(int number) {
    char code[16];
    snprintf(code, sizeof code, "%d", number % 90);
    char *leaf[] = {(char *)self, "leaf", code, 0};
    pid_t child;
    switch (number % 6) {
    case 0:
        if ((child = fork()) == 0) work(number % 90);
        is_right(child, number % 90, number % 6);
        break;
    case 1:
        if ((child = vfork()) == 0) { execv(self, leaf); _exit(98); }
        is_right(child, number % 90, number % 6);
        break;
    case 2:
        check(posix_spawn(&child, self, 0, 0, leaf, environ) == 0, "posix_spawn");
        is_right(child, number % 90, number % 6);
        break;
    case 3:
        if ((child = fork()) == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) work(3);
            int status;
            check(waitpid(grandchild, &status, 0) == grandchild && WEXITSTATUS(status) == 3, "a grandchild");
            execv(self, leaf);
            _exit(97);
        }
        is_right(child, number % 90, number % 6);
        break;
    case 4:
        if ((child = fork()) == 0) {
            pthread_t thread;
            pthread_create(&thread, 0, idle, 0);
            subject(1);
            execv(self, leaf);
            _exit(96);
        }
        is_right(child, number % 90, number % 6);
        break;
    case 5: {
        /* The child's end is a signal that is ignored by default, and interrupts nothing. */
        int epoll = epoll_create1(0);
        struct epoll_event event;
        if ((child = fork()) == 0) work(number % 90);
        check(epoll_wait(epoll, &event, 1, 3) == 0, "epoll_wait");
        close(epoll);
        is_right(child, number % 90, number % 6);
    }
    }
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 2 && strcmp(argv[1], "leaf") == 0) {
        subject(5);
        return atoi(argv[2]);
    }
    int workers = argc > 1 ? atoi(argv[1]) : 8;
    all = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[256];
    check(write(1, "ready\n", 6) == 6, "ready");
    sigset_t end;
    int signal_number;
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    sigemptyset(&end);
    sigaddset(&end, SIGUSR1);
    sigprocmask(SIG_BLOCK, &end, 0);
    for (int n = 0; n < workers; n++) {
        if ((pids[n] = fork()) == 0) {
            for (int round = n; !all->end; round++) round_of(round);
            _exit(0);
        }
    }
    sigwait(&end, &signal_number);
    long before = all->children;
    while (all->children < before + 50) usleep(1000);
    all->end = 1;
    for (int n = 0; n < workers; n++) {
        int status;
        check(waitpid(pids[n], &status, 0) == pids[n] && status == 0, "a worker's end");
    }
    printf("done %ld\n", all->failures);
    return all->failures != 0;
}
