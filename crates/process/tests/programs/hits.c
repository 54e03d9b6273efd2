// Says where `hit` is, and when a byte comes calls it: N times on each of T threads, once more in a forked child.
// With a third argument the child is one that ends without a signal, which the kernel calls a clone.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void hit(void);
#ifdef __powerpc64__
#define RETURN "blr"
#else
#define RETURN "ret"
#endif
__asm__(".globl hit\n.type hit,@function\nhit: nop\n " RETURN "\n");

static int count;
static void *work(void *unused) {
    for (int n = 0; n < count; n++) hit();
    return unused;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    count = argc > 2 ? atoi(argv[2]) : 1;
    printf("ready\n%lx\n", (unsigned long)hit);
    fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 1) return 9;
    pthread_t thread[64];
    for (int t = 0; t < threads; t++) pthread_create(&thread[t], 0, work, 0);
    for (int t = 0; t < threads; t++) pthread_join(thread[t], 0);
    pid_t child = argc > 3 ? syscall(SYS_clone, 0, 0, 0, 0, 0) : fork();
    if (child == 0) { hit(); _exit(4); }
    int status;
    if (waitpid(child, &status, __WALL) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 4) return 8;
    puts("done");
    fflush(stdout);
    if (read(0, &byte, 1) != 1) return 9;
    hit();
    return 5;
}
