// Forks whenever a signal interrupts it, and traps: whoever traces it knows then. The child goes on where the signal came, makes ten
// more calls and ends. A byte begins it.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "assembly.h"
#define APART __attribute__((noipa))
static volatile long wrong, calls, children, left;
APART long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
static void handler(int signal) {
    (void)signal;
    pid_t child = fork();
    if (child == 0) { left = 10; return; }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7) wrong++;
    children++;
    BREAKPOINT();
}
static void end(int signal) {
    (void)signal;
    printf("wrong %ld calls %ld children %ld\n", wrong, calls, children);
    fflush(stdout);
    _exit(0);
}
int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    signal(SIGUSR2, end);
    printf("ready %p\n", (void *)subject);
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 1) return 9;
    for (long x = 0;; x++) {
        if (subject(x) != x * 3 + 7) wrong++;
        calls++;
        if (left && !--left) _exit(wrong ? 1 : 7);
    }
}
