/* Calls `subject` as often as its first argument says, and ends; then, by its second:
     wait     says "ready", and calls it once for each line that it reads
     slowly   sleeps for a second, and calls it as often again
     forks    creates 300 children, one after the other, of which each calls it twice
     thread   a thread that is not the first one runs this program anew, with a call less
   A line that begins with f also makes it try to run this program anew, which the kernel refuses only after it has opened the file. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noipa)) long subject(long x) { __asm__ volatile("" ::: "memory"); return x * 3 + 7; }

static void call(long calls) {
    for (long n = 0; n < calls; n++) if (subject(n) != n * 3 + 7) _exit(99);
}

static char **own;

static void *run_anew(void *unused) {
    char calls[16];
    (void)unused;
    snprintf(calls, sizeof calls, "%ld", atol(own[1]) - 1);
    execl(own[0], own[0], calls, (char *)0);
    _exit(98);
}

static void fail(void) {
    size_t size = 64 << 20;
    char *long_one = malloc(size);
    memset(long_one, 'x', size - 1);
    long_one[size - 1] = 0;
    execl(own[0], own[0], long_one, (char *)0);
    if (errno != E2BIG) _exit(97);
    free(long_one);
}

int main(int argc, char **argv) {
    const char *how = argc > 2 ? argv[2] : "";
    char line[64];
    own = argv;
    call(atol(argv[1]));
    if (strcmp(how, "slowly") == 0) {
        sleep(1);
        call(atol(argv[1]));
    } else if (strcmp(how, "forks") == 0) {
        for (int n = 0; n < 300; n++) {
            int status = 0;
            pid_t child = fork();
            if (child == 0) { call(2); _exit(5); }
            if (waitpid(child, &status, 0) != child || status != 5 << 8) _exit(96);
        }
    } else if (strcmp(how, "thread") == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, run_anew, 0);
        pthread_join(thread, 0);
    }
    if (strcmp(how, "wait")) return 0;
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (line[0] == 'f') fail();
        call(1);
        printf("called\n");
        fflush(stdout);
    }
    return 0;
}
