// What programs do with SIGTRAP themselves, and signals during hits.
//
// Usage: masks WHAT. Says `ready`, and for each line of input calls `subject` and says whether everything is as it should be.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <ucontext.h>
#include <unistd.h>
#include "assembly.h"

__attribute__((noipa)) long subject(long x) {
    __asm__ volatile("" ::: "memory");
    return x * 3 + 7;
}

static void *idle(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void *wait_for_trap(void *set) {
    int signal;
    for (;;)
        sigwait(set, &signal);
    return NULL;
}

static volatile sig_atomic_t trapped;
static void on_trap(int signal, siginfo_t *info, void *context) {
    trapped += signal == SIGTRAP;
    GO_PAST_BREAKPOINT(info, context);
}
static void handle_trap(void) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGTRAP, &action, NULL);
}

static volatile sig_atomic_t handled;
static char stack[1 << 16];
static void on_stack(int signal) {
    char here;
    handled += &here >= stack && &here < stack + sizeof stack && subject(signal) == signal * 3 + 7;
}

static int blocks_trap(void) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, SIGTRAP);
}

int main(int argc, char **argv) {
    const char *what = argv[argc > 1];
    sigset_t trap, all, none;
    sigemptyset(&trap);
    sigemptyset(&none);
    sigfillset(&all);
    sigaddset(&trap, SIGTRAP);
    pthread_t thread;
    if (argc < 2)
        return 0;
    if (!strcmp(what, "ignored"))
        signal(SIGTRAP, SIG_IGN);
    if (!strcmp(what, "blocked"))
        pthread_sigmask(SIG_BLOCK, &trap, NULL);
    if (!strcmp(what, "guarded"))
        handle_trap();
    if (!strcmp(what, "thread") || !strcmp(what, "guarded")) {
        // Threads begin with their creator's mask.
        pthread_sigmask(SIG_BLOCK, &all, NULL);
        pthread_create(&thread, NULL, idle, NULL);
        pthread_sigmask(SIG_SETMASK, &none, NULL);
    }
    if (!strcmp(what, "sigwait")) {
        pthread_sigmask(SIG_BLOCK, &trap, NULL);
        pthread_create(&thread, NULL, wait_for_trap, &trap);
        pthread_sigmask(SIG_SETMASK, &none, NULL);
    }
    int fd = -1;
    if (!strcmp(what, "signalfd")) {
        pthread_sigmask(SIG_BLOCK, &trap, NULL);
        fd = signalfd(-1, &trap, 0);
    }
    if (!strcmp(what, "handler"))
        handle_trap();
    if (!strcmp(what, "altstack")) {
        stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
        sigaltstack(&alternate, NULL);
        struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
        sigfillset(&action.sa_mask);
        sigaction(SIGUSR1, &action, NULL);
    }
    if (!strcmp(what, "ppoll")) {
        // Its mask while it waits is another.
        handle_trap();
        pthread_sigmask(SIG_BLOCK, &trap, NULL);
    }
    if (!strcmp(what, "open"))
        handle_trap();
    puts("ready");
    fflush(stdout);
    char line[64];
    for (;;) {
        if (!strcmp(what, "ppoll")) {
            struct pollfd input = {.fd = 0, .events = POLLIN};
            ppoll(&input, 1, NULL, &none);
        }
        if (!fgets(line, sizeof line, stdin))
            break;
        int good = subject(5) == 22;
        if (!strcmp(what, "ignored")) {
            struct sigaction action;
            sigaction(SIGTRAP, NULL, &action);
            good &= action.sa_handler == SIG_IGN && raise(SIGTRAP) == 0;
        }
        if (!strcmp(what, "blocked"))
            good &= blocks_trap();
        if (!strcmp(what, "ppoll")) {
            struct sigaction action;
            sigaction(SIGTRAP, NULL, &action);
            good &= blocks_trap() && action.sa_sigaction == on_trap;
        }
        if (!strcmp(what, "open")) {
            // Of all signals, this one it wants.
            sigset_t others = all;
            sigdelset(&others, SIGTRAP);
            pthread_sigmask(SIG_SETMASK, &others, NULL);
            int before = trapped;
            good &= subject(1) == 10 && !blocks_trap() && subject(2) == 13 && !blocks_trap();
            raise(SIGTRAP);
            good &= trapped == before + 1;
            pthread_sigmask(SIG_SETMASK, &none, NULL);
        }
        if (!strcmp(what, "signalfd")) {
            struct signalfd_siginfo info;
            raise(SIGTRAP);
            good &= blocks_trap() && read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTRAP;
        }
        if (!strcmp(what, "handler")) {
            int before = trapped;
            BREAKPOINT();
            raise(SIGTRAP);
            good &= trapped == before + 2;
        }
        if (!strcmp(what, "altstack")) {
            int before = handled;
            raise(SIGUSR1);
            good &= handled == before + 1 && !blocks_trap();
        }
        if (!strcmp(what, "moment")) {
            // As the C library does around clone.
            pthread_sigmask(SIG_BLOCK, &all, NULL);
            good &= subject(1) == 10 && blocks_trap();
            good &= subject(2) == 13 && blocks_trap();
            pthread_sigmask(SIG_SETMASK, &none, NULL);
            good &= !blocks_trap() && subject(3) == 16 && !blocks_trap();
        }
        puts(good ? "good" : "bad");
        fflush(stdout);
    }
    return 0;
}
