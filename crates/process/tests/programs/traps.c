// Traps once when a byte comes, as its argument says, and ends well if its handler finds it where it should be, once.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __x86_64__
#define STACK "%rsp"
#define IP REG_RIP
#else
#define STACK "%esp"
#define IP REG_EIP
#endif

void int_3(void), step(void);
extern char behind_int_3[], behind_step[];
__asm__("int_3: .byte 0xcd, 0x03\nbehind_int_3: nop\n ret\n"
        "step: pushf\n orl $0x100, (" STACK ")\n popf\n nop\nbehind_step: nop\n ret\n");

static volatile int count;
static void *volatile at;
static void on_trap(int signal, siginfo_t *info, void *context) {
    ucontext_t *user = context;
    (void)signal, (void)info;
    at = (void *)user->uc_mcontext.gregs[IP];
    user->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
    count++;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    const char *how = argc > 1 ? argv[1] : "";
    puts("ready");
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 1) return 9;
    void *expected = behind_step;
    if (!strcmp(how, "int_3")) { expected = behind_int_3; int_3(); }
    else step();
    return count == 1 && at == expected ? 5 : 8;
}
