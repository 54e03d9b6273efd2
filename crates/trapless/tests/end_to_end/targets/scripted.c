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

/* One instruction each, which an offset names: x + 1, x + 2, the sum of both (2 x + 3) in the register of the second argument, which is compared with 7;
   that and 5, or 0 if it was 7. */
long steps(long x);
/* `around` calls `bare`, which doubles x, with known values in all that a call does not keep, and in flags; whether they were there afterwards, tells what it
   returns: 2 x, or -1. It keeps the vectors that it finds then behind those that it was given. */
long bare(long x);
long around(long x, long *vectors);
#if defined __x86_64__
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
#elif defined __aarch64__
asm(".text\n.globl steps\n.type steps,@function\n.p2align 4\n"
    "steps: .cfi_startproc\n"
    "add x9, x0, #1\n"
    "add x0, x0, #2\n"
    "add x1, x9, x0\n"
    "cmp x1, #7\n"
    "add x0, x1, #5\n"
    "b.ne 1f\n"
    "mov x0, #0\n"
    "1: ret\n"
    ".cfi_endproc\n.size steps, .-steps\n");
#define IS(register, value) "cmp " #register ", #" #value "\nb.ne 2f\n"
asm(".text\n.globl bare\n.type bare,@function\n.p2align 4\n"
    "bare: .cfi_startproc\nadd x0, x0, x0\nnop\nnop\nret\n.cfi_endproc\n.size bare, .-bare\n"
    ".globl around\n.type around,@function\n.p2align 4\n"
    "around: .cfi_startproc\n"
    "stp x29, x30, [sp, #-32]!\n.cfi_def_cfa_offset 32\n.cfi_offset 29, -32\n.cfi_offset 30, -24\n"
    "str x19, [sp, #16]\n.cfi_offset 19, -16\n"
    "mov x19, x1\n"
    "ldr q0, [x1]\nldr q7, [x1, #16]\nldr q31, [x1, #32]\n"
    "mov x1, #104\nmov x2, #103\nmov x3, #102\nmov x4, #108\nmov x5, #109\nmov x6, #106\nmov x7, #107\nmov x8, #98\nmov x9, #101\n"
    "mov x10, #110\nmov x11, #111\nmov x12, #112\nmov x13, #113\nmov x14, #114\nmov x15, #115\nmov x16, #116\nmov x17, #117\n"
    /* Less: N, and not C. */
    "cmp x2, x1\n"
    "bl bare\n"
    "b.pl 2f\nb.cs 2f\n"
    IS(x1, 104) IS(x2, 103) IS(x3, 102) IS(x4, 108) IS(x5, 109) IS(x6, 106) IS(x7, 107) IS(x8, 98) IS(x9, 101)
    IS(x10, 110) IS(x11, 111) IS(x12, 112) IS(x13, 113) IS(x14, 114) IS(x15, 115) IS(x16, 116) IS(x17, 117)
    "str q0, [x19, #48]\nstr q7, [x19, #64]\nstr q31, [x19, #80]\n"
    "1: ldr x19, [sp, #16]\nldp x29, x30, [sp], #32\nret\n"
    "2: mov x0, #-1\nb 1b\n"
    ".cfi_endproc\n.size around, .-around\n");
#elif defined __powerpc64__
asm(".text\n.globl steps\n.type steps,@function\n.p2align 4\n"
    "steps: .cfi_startproc\n"
    "addi 9, 3, 1\n"
    "addi 3, 3, 2\n"
    "add 4, 9, 3\n"
    "cmpdi 4, 7\n"
    "addi 3, 4, 5\n"
    "bne 1f\n"
    "li 3, 0\n"
    "1: blr\n"
    ".cfi_endproc\n.size steps, .-steps\n");
#define IS(register, value) "cmpdi " #register ", " #value "\nbne 2f\n"
asm(".text\n.globl bare\n.type bare,@function\n.p2align 4\n"
    "bare: .cfi_startproc\nadd 3, 3, 3\nnop\nnop\nblr\n.cfi_endproc\n.size bare, .-bare\n"
    ".globl around\n.type around,@function\n.p2align 4\n"
    "around: .cfi_startproc\n"
    "mflr 0\nstd 0, 16(1)\nstd 31, -8(1)\nstdu 1, -48(1)\n.cfi_def_cfa_offset 48\n.cfi_offset 65, 16\n.cfi_offset 31, -8\n"
    "mr 31, 4\n"
    /* vs0, which has f0, vs13, which has f13, and v19. */
    "addi 5, 4, 16\naddi 6, 4, 32\nlxvd2x 0, 0, 4\nlxvd2x 13, 0, 5\nlxvd2x 51, 0, 6\n"
    "li 0, 99\nmtctr 0\n"
    /* CA, and fields 0, 1, 5, 6 and 7 of the condition register. */
    "li 0, -1\naddic 0, 0, 1\nlis 0, 0x5a00\nori 0, 0, 0x0a5a\nmtcrf 0xc7, 0\n"
    "li 4, 104\nli 5, 103\nli 6, 102\nli 7, 108\nli 8, 109\nli 9, 101\nli 10, 110\nli 11, 111\nli 12, 112\nli 0, 100\n"
    "bl bare\n"
    /* No register is free yet. */
    "std 0, 32(1)\nmfcr 0\nstd 0, 24(1)\nld 0, 32(1)\n"
    IS(0, 100) IS(4, 104) IS(5, 103) IS(6, 102) IS(7, 108) IS(8, 109) IS(9, 101) IS(10, 110) IS(11, 111) IS(12, 112)
    "mfctr 4\n" IS(4, 99)
    "addi 4, 31, 48\naddi 5, 31, 64\naddi 6, 31, 80\nstxvd2x 0, 0, 4\nstxvd2x 13, 0, 5\nstxvd2x 51, 0, 6\n"
    "li 4, 0\naddze 4, 4\n" IS(4, 1)
    "ld 4, 24(1)\nrlwinm 4, 4, 0, 20, 7\nlis 5, 0x5a00\nori 5, 5, 0x0a5a\ncmplw 4, 5\nbne 2f\n"
    "1: addi 1, 1, 48\nld 31, -8(1)\nld 0, 16(1)\nmtlr 0\nblr\n"
    "2: li 3, -1\nb 1b\n"
    ".cfi_endproc\n.size around, .-around\n");
#endif

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
