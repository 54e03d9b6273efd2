// Makes children that share its memory, in the way that each line of input says, and calls `subject` in known numbers.
// Says how often the program itself has called it, and how often its children have, in words of one line.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static pid_t self;
static volatile int own, others;
static sigjmp_buf out;
static volatile int jumps;
static char *arguments[] = { "true", NULL };

__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }

static void calls(int n) { for (int i = 0; i < n; i++) subject(i); }

static void handle(int signal) {
    calls(1);
    // A child's children end, too.
    if (getpid() == self) __atomic_add_fetch(&own, 1, __ATOMIC_SEQ_CST);
    else __atomic_add_fetch(&others, 1, __ATOMIC_SEQ_CST);
    if (jumps && signal == SIGUSR1) { jumps = 0; siglongjmp(out, 1); }
}

static void of_own(int n) { calls(n); __atomic_add_fetch(&own, n, __ATOMIC_SEQ_CST); }

// A handler of signals may come between reading a number and writing it.
static void note_others(int n) { __atomic_add_fetch(&others, n, __ATOMIC_SEQ_CST); }

static void of_others(int n) { calls(n); note_others(n); }

static void wait_for(pid_t child) { if (waitpid(child, NULL, 0) != child) exit(1); }

static int in_clone(void *unused) { (void)unused; of_others(5); return 0; }

// `execve` counts as a call of the child's.
static void runs_another(void) { note_others(1); execve("/bin/true", arguments, environ); _exit(9); }

// The signal waits for `parent`, which is in vfork, and is handled before it comes back from there.
static void end_with_signal(pid_t parent) { syscall(SYS_tgkill, self, parent, SIGUSR1); _exit(0); }

static void vforks(int n) {
    pid_t me = syscall(SYS_gettid);
    for (int i = 0; i < n; i++) {
        of_own(1);
        pid_t child = vfork();
        if (child == 0) { of_others(3); end_with_signal(me); }
        of_own(2);
        wait_for(child);
    }
}

static void *vfork_on(void *unused) { (void)unused; vforks(20); of_own(10); return NULL; }

static void *calls_on(void *unused) { (void)unused; of_own(100); return NULL; }

static void do_as_told(const char *line) {
    pthread_t threads[4];
    if (!strncmp(line, "spawn", 5)) {
        for (int i = 0; i < 20; i++) {
            pid_t child;
            of_own(1);
            if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) exit(1);
            note_others(1);
            of_own(1);
            wait_for(child);
        }
    } else if (!strncmp(line, "exec", 4)) {
        for (int i = 0; i < 20; i++) {
            pid_t child = vfork();
            if (child == 0) { of_others(2); runs_another(); }
            of_own(1);
            wait_for(child);
        }
    } else if (!strncmp(line, "vfork", 5)) {
        vforks(20);
    } else if (!strncmp(line, "threads", 7)) {
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, vfork_on, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else if (!strncmp(line, "system", 6)) {
        for (int i = 0; i < 3; i++) { of_own(1); if (system("true")) exit(2); note_others(1); of_own(1); }
        for (int i = 0; i < 3; i++) {
            FILE *pipe = popen("echo hello", "r");
            char word[16] = "";
            note_others(1);
            of_own(1);
            if (!fgets(word, sizeof word, pipe) || strcmp(word, "hello\n")) exit(3);
            pclose(pipe);
        }
    } else if (!strncmp(line, "nested", 6)) {
        for (int i = 0; i < 10; i++) {
            pid_t child = vfork();
            if (child == 0) {
                of_others(1);
                pid_t grandchild = vfork();
                if (grandchild == 0) { of_others(2); _exit(0); }
                of_others(4);
                wait_for(grandchild);
                if (posix_spawn(&grandchild, "/bin/true", NULL, NULL, arguments, environ) == 0) note_others(1);
                of_others(8);
                wait_for(grandchild);
                _exit(0);
            }
            of_own(16);
            wait_for(child);
        }
    } else if (!strncmp(line, "clone", 5)) {
        static char stack[65536] __attribute__((aligned(16)));
        for (int i = 0; i < 10; i++) {
            pid_t child = clone(in_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
            of_own(2);
            wait_for(child);
            // Without shared memory a child counts for itself, and what it notes is lost.
            child = clone(in_clone, stack + sizeof stack, CLONE_VFORK | SIGCHLD, NULL);
            note_others(5);
            of_own(2);
            wait_for(child);
        }
    } else if (!strncmp(line, "killed", 6)) {
        for (int i = 0; i < 10; i++) {
            pid_t child = vfork();
            if (child == 0) { of_others(2); kill(getpid(), SIGKILL); }
            of_own(1);
            wait_for(child);
        }
    } else if (!strncmp(line, "jump", 4)) {
        // The handler runs before vfork has come back, and leaves it for good.
        for (int i = 0; i < 10; i++) {
            jumps = 1;
            if (!sigsetjmp(out, 1)) {
                if (vfork() == 0) { of_others(2); end_with_signal(self); }
                // Of some C libraries it is fork.
                for (int waited = 0; waited < 10000; waited++) usleep(1000);
                exit(4);
            }
            of_own(3);
            while (waitpid(-1, NULL, 0) > 0) { }
        }
        vforks(3);
    } else if (!strncmp(line, "forked", 6)) {
        pid_t child = fork();
        if (child == 0) {
            calls(1);
            pid_t grandchild = vfork();
            if (grandchild == 0) { calls(1); _exit(0); }
            calls(1);
            wait_for(grandchild);
            _exit(0);
        }
        of_own(1);
        wait_for(child);
        // And one handler of the child's.
        note_others(4);
    }
    // Threads that begin after all this are the program's own.
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, calls_on, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    char line[100];
    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    (void)argc, (void)argv;
    self = getpid();
    sigaction(SIGCHLD, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    puts("ready"); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        own = others = 0;
        do_as_told(line);
        printf("%d %d\n", own, others); fflush(stdout);
    }
    return 0;
}
