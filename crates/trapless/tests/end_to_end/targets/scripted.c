/* What scripts look at: calls within calls, pointers that lead nowhere, children, and what a body must not change. A line of input is a
   deed and how often; the answer is how many results were wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

static volatile long wrong;

KEPT void nothing(void) { asm volatile("" ::: "memory"); }
KEPT long look(const void *at, long which) {
    asm volatile("" : "+r"(at), "+r"(which));
    return which + 1;
}
KEPT long nested(long depth) {
    long below = depth ? nested(depth - 1) : 0;
    asm volatile("" : "+r"(below));
    return below + 1;
}
KEPT long called(long x, long times) {
    asm volatile("" : "+r"(x), "+r"(times));
    return x ^ 5;
}

/* One instruction each, which an offset names. */
long steps(long x);
asm(".text\n.globl steps\n.type steps,@function\n.p2align 4\n"
    "steps: .cfi_startproc\n"
    "lea 1(%rdi), %rax\n" /* 0, of 4 bytes */
    "lea 2(%rdi), %rdi\n" /* 4 */
    "lea (%rax,%rdi), %rsi\n" /* 8 */
    "cmp $7, %rsi\n" /* 12 */
    "lea 5(%rsi), %rax\n" /* 16 */
    "jne 1f\n" /* 20 */
    "xor %eax, %eax\n" /* 22 */
    "1: ret\n" /* 24 */
    ".cfi_endproc\n.size steps, .-steps\n");

/* Calls `look` with known values in all that a call does not keep, and in flags; whether they were there afterwards tells `bare`. */
long bare(long x);
long around(long x, long *vectors);
asm(".text\n.globl bare\n.type bare,@function\n.p2align 4\n"
    "bare: .cfi_startproc\nlea (%rdi,%rdi), %rdi\nnop\nnop\nret\n.cfi_endproc\n.size bare, .-bare\n"
    ".globl around\n.type around,@function\n.p2align 4\n"
    "around: .cfi_startproc\n"
    "push %rbx\n.cfi_adjust_cfa_offset 8\n"
    "mov %rsi, %rbx\n"
    "movups (%rsi), %xmm0\nmovups 16(%rsi), %xmm7\nmovups 32(%rsi), %xmm15\n"
    "mov $101, %eax\nmov $102, %ecx\nmov $103, %edx\nmov $104, %esi\nmov $108, %r8d\nmov $109, %r9d\nmov $110, %r10d\nmov $111, %r11d\n"
    "stc\n"
    "call bare\n"
    "jnc 2f\n"
    "cmp $101, %rax\njne 2f\ncmp $102, %rcx\njne 2f\ncmp $103, %rdx\njne 2f\ncmp $104, %rsi\njne 2f\n"
    "cmp $108, %r8\njne 2f\ncmp $109, %r9\njne 2f\ncmp $110, %r10\njne 2f\ncmp $111, %r11\njne 2f\n"
    "movups %xmm0, 48(%rbx)\nmovups %xmm7, 64(%rbx)\nmovups %xmm15, 80(%rbx)\n"
    "mov %rdi, %rax\npop %rbx\n.cfi_adjust_cfa_offset -8\nret\n"
    ".cfi_adjust_cfa_offset 8\n"
    "2: mov $-1, %rax\npop %rbx\n.cfi_adjust_cfa_offset -8\nret\n"
    ".cfi_endproc\n.size around, .-around\n");

static void *caller(void *times) {
    for (long i = 0; i < (long)times; i++)
        if (called(i, (long)times) != (i ^ 5)) wrong++;
    return NULL;
}

/* 0: null, 1: unmapped, 2: not to be read, 3: not canonical, 4: the last byte there is, 5: text up to a hole, 6: text over two pages,
   7: text, 8: within the kernel, 9: the end of all addresses. */
static const void *places[10];

static void map_places(void) {
    long page = sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(map + page, page);
    mprotect(map + 3 * page, page, PROT_NONE);
    places[1] = map + page + 16;
    places[2] = map + 3 * page + 8;
    places[3] = (void *)0x8000000000000010;
    map[page - 1] = 'Z';
    places[4] = map + page - 1;
    memcpy(map + page - 5, "edge", 4);
    places[5] = map + page - 5;
    strcpy(map + 5 * page - 3, "across pages");
    places[6] = map + 5 * page - 3;
    places[7] = strcpy(map + 6 * page, "plain");
    places[8] = (void *)0xffffffff81000000;
    places[9] = (void *)-4L;
}

int main(int argc, char **argv) {
    char line[64], deed[32];
    long count;
    if (argc > 2) {
        /* Executed: calls as often as it is told, and ends. */
        caller((void *)atol(argv[2]));
        return wrong != 0;
    }
    map_places();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %ld", deed, &count) != 2) break;
        if (!strcmp(deed, "call")) caller((void *)count);
        if (!strcmp(deed, "threads")) {
            pthread_t all[8];
            for (int i = 0; i < 8; i++) pthread_create(&all[i], NULL, caller, (void *)count);
            for (int i = 0; i < 8; i++) pthread_join(all[i], NULL);
        }
        if (!strcmp(deed, "look"))
            for (long i = 0; i < count; i++)
                for (long which = 0; which < 10; which++)
                    if (look(places[which], which) != which + 1) wrong++;
        if (!strcmp(deed, "nested"))
            if (nested(count) != count + 1) wrong++;
        if (!strcmp(deed, "steps"))
            for (long i = 0; i < count; i++)
                if (steps(i) != (2 * i + 3 == 7 ? 0 : 2 * i + 8)) wrong++;
        if (!strcmp(deed, "around"))
            for (long i = 0; i < count; i++) {
                long vectors[12] = {i, -i, 3 * i, ~i, i << 32, 7};
                errno = 4321;
                if (around(i, vectors) != 2 * i || memcmp(vectors, vectors + 6, 48) || errno != 4321) wrong++;
            }
        if (!strcmp(deed, "fork") || !strcmp(deed, "vfork") || !strcmp(deed, "exec"))
            for (long i = 0; i < count; i++) {
                int status;
                char *arguments[] = {argv[0], "call", "10", NULL};
                pid_t child = deed[0] == 'v' ? vfork() : fork();
                if (!child) {
                    if (deed[0] == 'f') {
                        caller((void *)10);
                        _exit(wrong != 0);
                    }
                    if (deed[0] == 'v') called(1, 1);
                    execv("/proc/self/exe", arguments);
                    _exit(9);
                }
                if (waitpid(child, &status, 0) != child || status) wrong++;
            }
        if (!strcmp(deed, "become")) {
            char *arguments[] = {argv[0], NULL};
            execv("/proc/self/exe", arguments);
        }
        if (!strcmp(deed, "spin")) {
            pthread_t one;
            for (long i = 0; i < count; i++) pthread_create(&one, NULL, caller, (void *)(1L << 60));
        }
        printf("done %ld\n", wrong);
        fflush(stdout);
    }
}
