// Walks its stack whenever a signal interrupts it, says which of its functions it has met, and traps: whoever traces it knows then.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>
#include "assembly.h"
#define APART __attribute__((noipa))
static volatile long wrong, calls;
struct walk { void *frames[64]; int count; };
static struct walk inner;
static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *walk) {
    struct walk *w = walk;
    w->frames[w->count++] = (void *)_Unwind_GetIP(context);
    return w->count < 64 ? _URC_NO_REASON : _URC_END_OF_STACK;
}
static int walk(struct walk *w) {
    w->count = 0;
    _Unwind_Backtrace(step, w);
    return w->count;
}
APART long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
APART long middle(long x) { return subject(x) + 1; }
APART long outer(long x) { return middle(x) + 1; }
APART long second(long x) { asm volatile("" ::: "memory"); return x * 5; }
APART long first(long x) { asm volatile("" ::: "memory"); return second(x + 1); }
APART long spin(long x) {
    if (outer(x) != x * 3 + 9) wrong++;
    if (first(x) != (x + 1) * 5) wrong++;
    calls++;
    // Walks by itself, too: what it asks may be interrupted.
    if (x % 2 && walk(&inner) < 3) wrong++;
    return x + 1;
}
APART void behind(void) { asm volatile("" ::: "memory"); }
static const struct { const char *name; long (*start)(long); } FUNCTIONS[] = {
    {"subject", subject}, {"middle", middle}, {"outer", outer}, {"second", second}, {"first", first}, {"spin", spin}, {0, (long (*)(long))behind}};
static void handler(int signal) {
    struct walk w;
    char line[256] = "";
    (void)signal;
    walk(&w);
    for (int i = 0; i < w.count; i++)
        for (int f = 0; FUNCTIONS[f].name; f++)
            if (w.frames[i] >= (void *)FUNCTIONS[f].start && w.frames[i] < (void *)FUNCTIONS[f + 1].start)
                strcat(strcat(line, line[0] ? " " : ""), FUNCTIONS[f].name);
    strcat(line, "\n");
    if (write(1, line, strlen(line)) < 0) wrong++;
    BREAKPOINT();
}
static void end(int signal) {
    (void)signal;
    printf("wrong %ld calls %ld\n", wrong, calls);
    fflush(stdout);
    _exit(0);
}
// What handlers have left behind of the instructions that they interrupted may be a context that somebody goes back to, for all that is known.
static char alternate[1 << 16];
static volatile sig_atomic_t forgets;
static void forget(int signal) { (void)signal; forgets = 1; }
APART void overwrite(void) {
    volatile char junk[1 << 15];
    for (unsigned long i = 0; i < sizeof junk; i++) junk[i] = 0;
    memset(alternate, 0, sizeof alternate);
}
int main(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | ASIDE};
    sigaltstack(&stack, 0);
    sigaction(SIGUSR1, &action, 0);
    signal(SIGUSR2, end);
    signal(SIGHUP, forget);
    walk(&inner);
    printf("ready %p\n", (void *)subject);
    fflush(stdout);
    for (long x = 0;; x = spin(x)) {
        if (!forgets) continue;
        overwrite();
        forgets = 0;
    }
}
