// A probed function that a signal handler calls, too, while it may itself be in the middle of a hit.
// Prints how often it was called.
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile long handled;

__attribute__((noinline)) long with_signals(long x) {
    __asm__ volatile("");
    return x + 1;
}

/* One at a time: where hits take longer than this, signals at fixed times would leave no time for anything else. */
static const struct itimerval soon = {{0, 0}, {0, 300}};

static void on_alarm(int signal) {
    handled += with_signals(signal) - signal;
    setitimer(ITIMER_REAL, &soon, NULL);
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    long calls = 0;
    for (int i = 0; i < 5000; i++)
        calls += with_signals(i) - i;
    /* Blocked, and not just disarmed: a signal that comes meanwhile would set the timer again, and calls after the sum. */
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarms, NULL);
    printf("%ld\n", calls + handled);
    return 0;
}
