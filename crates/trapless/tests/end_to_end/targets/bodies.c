/* Calls `probed` in all ways in which a body may be called: by many threads, in handlers of signals, in children, left by longjmp. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#if defined __x86_64__
#define VECTOR "+x"
#elif defined __aarch64__
#define VECTOR "+w"
#else
#define VECTOR "+d"
#endif

__attribute__((noinline, noclone)) long probed(long x, double y) {
    asm volatile("" : "+r"(x), VECTOR(y));
    return 3 * x + (long)y;
}
__attribute__((noinline, noclone)) double half(double y) {
    asm volatile("" : VECTOR(y));
    return y / 2;
}

static volatile long wrong;

static void call(long x) {
    if (probed(x, 2.0) != 3 * x + 2) wrong++;
}

static void *caller(void *count) {
    for (long i = 0; i < (long)count; i++) call(i);
    return NULL;
}

static void in_handler(int signal) { call(signal); }

static volatile int storming;
static void *storm(void *thread) {
    while (storming) {
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        usleep(20);
    }
    return NULL;
}

static sigjmp_buf out;
static void leave(int signal) { siglongjmp(out, 1); }

static ucontext_t home, routine;
static void coroutine(void) {
    for (;;) {
        call(7);
        swapcontext(&routine, &home);
    }
}

int main(void) {
    char line[64], deed[32];
    long count;
    extern char **environ;
    signal(SIGUSR1, in_handler);
    signal(SIGALRM, leave);
    printf("ready %lx %lx\n", (long)probed, (long)half);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %ld", deed, &count) != 2) break;
        if (!strcmp(deed, "call")) caller((void *)count);
        if (!strcmp(deed, "half"))
            for (long i = 0; i < count; i++)
                if (half((double)i) != (double)i / 2) wrong++;
        if (!strcmp(deed, "threads")) {
            pthread_t all[16];
            for (int i = 0; i < 16; i++) pthread_create(&all[i], NULL, caller, (void *)count);
            for (int i = 0; i < 16; i++) pthread_join(all[i], NULL);
        }
        if (!strcmp(deed, "ends"))
            for (long i = 0; i < count; i++) {
                pthread_t one;
                pthread_create(&one, NULL, caller, (void *)3);
                pthread_join(one, NULL);
            }
        if (!strcmp(deed, "storm")) {
            pthread_t self = pthread_self(), other;
            storming = 1;
            pthread_create(&other, NULL, storm, &self);
            caller((void *)count);
            storming = 0;
            pthread_join(other, NULL);
        }
        if (!strcmp(deed, "leave"))
            /* A timer interrupts what runs, which is left for good. */
            for (volatile long i = 0; i < count; i++)
                if (!sigsetjmp(out, 1)) {
                    ualarm(300, 0);
                    for (;;) call(5);
                }
        if (!strcmp(deed, "fork"))
            for (long i = 0; i < count; i++) {
                pid_t child = fork();
                if (!child) {
                    caller((void *)5);
                    _exit(wrong != 0);
                }
                int status;
                waitpid(child, &status, 0);
                if (status) wrong++;
            }
        if (!strcmp(deed, "spawn"))
            for (long i = 0; i < count; i++) {
                char *arguments[] = {"true", NULL};
                pid_t child;
                if (posix_spawnp(&child, "true", NULL, NULL, arguments, environ)) wrong++;
                else waitpid(child, NULL, 0);
            }
        if (!strcmp(deed, "coroutine")) {
            static char stack[1 << 16];
            getcontext(&routine);
            routine.uc_stack.ss_sp = stack;
            routine.uc_stack.ss_size = sizeof stack;
            makecontext(&routine, coroutine, 0);
            for (long i = 0; i < count; i++) swapcontext(&home, &routine);
        }
        if (!strcmp(deed, "spin")) {
            pthread_t one;
            for (long i = 0; i < count; i++) pthread_create(&one, NULL, caller, (void *)(1L << 60));
        }
        printf("done %ld\n", wrong);
        fflush(stdout);
    }
}
