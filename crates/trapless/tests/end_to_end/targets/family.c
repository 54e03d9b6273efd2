/* A family of processes. Each says on standard output how often it has called what is probed: "calls PID NUMBER". A process that
   runs another program says it before, and again for that one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *self;

__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }

static void say(long calls) {
    char line[64];
    int length = snprintf(line, sizeof line, "calls %d %ld\n", (int)getpid(), calls);
    if (write(1, line, length) != length) _exit(99);
}

static void call(long times) {
    for (long n = 0; n < times; n++) subject(n);
}

static void leaf(long times, int code) {
    call(times);
    say(times);
    _exit(code);
}

/* Whether a child has ended as it should. */
static int ended(pid_t child, int code) {
    int status;
    while (waitpid(child, &status, __WALL) != child) {}
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

static void must(int what) {
    if (!what) { dprintf(2, "not as it should be\n"); _exit(98); }
}

static void forks(int depth) {
    pid_t child = fork();
    if (child == 0) {
        call(10 + depth);
        if (depth > 1) forks(depth - 1);
        say(10 + depth);
        _exit(depth);
    }
    must(ended(child, depth));
}

static void vforks(void) {
    pid_t child = vfork();
    if (child == 0) { call(5); say(5); _exit(3); }
    must(ended(child, 3));
    child = vfork();
    if (child == 0) {
        call(6);
        say(6);
        execl(self, self, "leaf", "7", "4", (char *)0);
        _exit(97);
    }
    must(ended(child, 4));
}

static void clones(void) {
    pid_t child = syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (child == 0) leaf(8, 5);
    must(ended(child, 5));
    child = syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID, 0, &child, 0, 0);
    if (child == 0) leaf(9, 6);
    must(ended(child, 6));
}

static void spawns(void) {
    pid_t child;
    char *argv[] = {(char *)self, "leaf", "11", "7", 0};
    must(posix_spawn(&child, self, 0, 0, argv, environ) == 0);
    must(ended(child, 7));
    char line[4096];
    snprintf(line, sizeof line, "%s leaf 12 8", self);
    must(WEXITSTATUS(system(line)) == 8);
    snprintf(line, sizeof line, "%s leaf 13 9", self);
    FILE *pipe = popen(line, "r");
    while (fgets(line, sizeof line, pipe)) must(write(1, line, strlen(line)) > 0);
    must(WEXITSTATUS(pclose(pipe)) == 9);
}

static void *forking(void *number) {
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        if (child == 0) leaf(20 + (long)number, 1);
        must(ended(child, 1));
    }
    return 0;
}

static void threads(void) {
    pthread_t all[4];
    for (long n = 0; n < 4; n++) pthread_create(&all[n], 0, forking, (void *)n);
    for (int n = 0; n < 4; n++) pthread_join(all[n], 0);
}

static void *executing(void *unused) {
    (void)unused;
    execl(self, self, "leaf", "14", "10", (char *)0);
    return 0;
}

/* A thread that is not the first one runs another program. */
static void thread_execs(void) {
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        call(3);
        say(3);
        pthread_create(&thread, 0, executing, 0);
        for (;;) pause();
    }
    must(ended(child, 10));
}

/* Its child's child is nobody's; a pipe tells its end. */
static void daemons(void) {
    int ends[2];
    must(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (fork() == 0) leaf(15, 0);
        leaf(16, 2);
    }
    close(ends[1]);
    must(ended(child, 2));
    char byte;
    must(read(ends[0], &byte, 1) == 0);
}

static void many(int number) {
    for (int n = 0; n < number; n += 10) {
        pid_t children[10];
        for (int m = 0; m < 10; m++) {
            children[m] = fork();
            if (children[m] == 0) leaf(n + m, (n + m) % 100);
        }
        for (int m = 0; m < 10; m++) must(ended(children[m], (n + m) % 100));
    }
}

/* Children that end only when all of them live. */
static void together(int number) {
    int ends[2];
    pid_t children[number];
    must(pipe(ends) == 0);
    for (int n = 0; n < number; n++) {
        children[n] = fork();
        if (children[n] == 0) {
            char nothing;
            must(close(ends[1]) == 0 && read(ends[0], &nothing, 1) == 0);
            leaf(n, n % 100);
        }
    }
    must(close(ends[1]) == 0 && close(ends[0]) == 0);
    for (int n = 0; n < number; n++) must(ended(children[n], n % 100));
}

static void killed(void) {
    pid_t child = fork();
    if (child == 0) { call(17); say(17); raise(SIGKILL); }
    int status;
    must(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* A process that hides from tracers, and says so by a pipe. */
static void hides(void) {
    int ends[2];
    must(pipe(ends) == 0);
    pid_t child = syscall(SYS_clone, SIGCHLD | CLONE_UNTRACED, 0, 0, 0, 0);
    if (child == 0) {
        call(18);
        must(write(ends[1], "x", 1) == 1);
        pause();
        _exit(0);
    }
    char byte;
    must(read(ends[0], &byte, 1) == 1);
}

static int run(const char *way) {
    call(100);
    if (strcmp(way, "fork") == 0) forks(4);
    else if (strcmp(way, "vfork") == 0) vforks();
    else if (strcmp(way, "clone") == 0) clones();
    else if (strcmp(way, "spawn") == 0) spawns();
    else if (strcmp(way, "threads") == 0) threads();
    else if (strcmp(way, "exec") == 0) thread_execs();
    else if (strcmp(way, "daemon") == 0) daemons();
    else if (strcmp(way, "many") == 0) many(200);
    else if (strcmp(way, "together") == 0) together(20);
    else if (strcmp(way, "killed") == 0) killed();
    else if (strcmp(way, "hidden") == 0) hides();
    else return 0;
    call(100);
    say(200);
    return 1;
}

int main(int argc, char **argv) {
    self = argv[0];
    const char *way = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (strcmp(way, "leaf") == 0) leaf(number, atoi(argv[3]));
    if (strcmp(way, "chain") == 0) {
        /* The same process, again and again. */
        call(number);
        say(number);
        if (number == 0) return 21;
        char less[16];
        snprintf(less, sizeof less, "%d", number - 1);
        execl(self, self, "chain", less, (char *)0);
        return 97;
    }
    if (strcmp(way, "wait") == 0) {
        /* A way for each line. */
        char line[64];
        puts("ready");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin)) {
            line[strcspn(line, "\n")] = 0;
            must(run(line));
            puts("done");
            fflush(stdout);
        }
        return 0;
    }
    return run(way) ? 17 : 96;
}
