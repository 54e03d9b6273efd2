// Prints what has run, and how the signals stand: a constructor, main, and the exit status its argument asks for.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void constructor(void) { puts("constructor"); }

int main(int argc, char **argv) {
    struct sigaction action;
    sigset_t blocked;
    sigaction(SIGPIPE, 0, &action);
    sigprocmask(SIG_BLOCK, 0, &blocked);
    int ignored = action.sa_handler == SIG_IGN, held = 0;
    for (int s = 1; s < 32; s++) held += sigismember(&blocked, s) == 1;
    printf("main %s: SIGPIPE %s, %d blocked\n", argc > 1 ? argv[1] : "-", ignored ? "ignored" : "default", held);
    return argc > 1 ? atoi(argv[1]) : 0;
}
