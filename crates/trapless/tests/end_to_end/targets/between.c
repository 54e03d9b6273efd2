/* Calls `probed` with texts everywhere: in its file, on stacks, and between its first thread's control block and a coroutine's stack, where
   something is mapped that goes away while the coroutine runs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define SIZE (1L << 16)
/* Whole pages, whether they have 4 KiB or, as on arm64 and powerpc64le, up to 64. */
#define PAGE 65536L

__attribute__((noinline, noclone)) long probed(const char *text) {
    asm volatile("" : "+r"(text) : : "memory");
    return text != NULL;
}

/* The same, with that address in the frame pointer. */
__attribute__((noinline, noclone)) void framed(const char *text) {
#ifdef __x86_64__
    asm volatile("push %%rbp\n mov %%rdi, %%rbp\n call probed\n pop %%rbp"
                 : "+D"(text) : : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
#elif defined __powerpc64__
    register const char *first asm("r3") = text;
    /* Below what a function without a frame may use. */
    asm volatile("stdu 1, -576(1)\n std 31, 568(1)\n mr 31, 3\n bl probed\n nop\n ld 31, 568(1)\n addi 1, 1, 576"
                 : "+r"(first) : : "r0", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "lr", "ctr", "cr0", "cr1", "cr5", "cr6",
                   "cr7", "xer", "memory");
#else
    register const char *first asm("x0") = text;
    asm volatile("stp x29, x30, [sp, #-16]!\n mov x29, x0\n bl probed\n ldp x29, x30, [sp], #16"
                 : "+r"(first) : : "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
                   "x17", "x30", "cc", "memory");
#endif
}

static ucontext_t home, routine;
static char *between, *below;
static const char *const unwritten[] = {"in its file", NULL};

static void coroutine(void) {
    for (int i = 0; i < 10; i++) probed(between), framed(between + 64);
    munmap(between, SIZE);
    for (int i = 0; i < 10; i++) probed(between), framed(between + 64);
    swapcontext(&routine, &home);
}

static void run_coroutine(void) {
    getcontext(&routine);
    routine.uc_stack.ss_sp = below;
    routine.uc_stack.ss_size = SIZE;
    makecontext(&routine, coroutine, 0);
    swapcontext(&home, &routine);
}

/* A stack has been this deep. */
static __attribute__((noinline)) char *deep(void) {
    char texts[4 * PAGE] = "deep", *left = texts;
    for (int i = 0; i < 10; i++) probed(texts);
    asm volatile("" : "+r"(left));
    return left;
}

/* Takes pages away below the stack pointer that could be read before, as run-time systems do with guards of their own. */
static void *guard(void *unused) {
    char *left = deep(), *page = (char *)((long)left & -PAGE);
    mprotect(page, 2 * PAGE, PROT_NONE);
    for (int i = 0; i < 10; i++) probed(left);
    mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE);
    return unused;
}

/* On a stack that nobody protects, with the coroutine's and what goes away below it in the same piece of memory. */
static void *guardless(void *area) {
    below = area;
    between = below + SIZE;
    strcpy(between, "between");
    run_coroutine();
    return NULL;
}

/* Nobody reads it. */
static const char constant[3 * PAGE] = {1};

static void *thread(void *unused) {
    char far[40000] = "far up", near[16] = "near by";
    for (int i = 0; i < 10; i++) probed(far), probed(near);
    return unused;
}

static char *map(char *at, long size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    return mmap(at, size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void *wait_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

int main(void) {
    char line[64];
    /* Right below what the control block is in: the first place with room for both, in two pieces. */
    char *block = (char *)((long)pthread_self() & -PAGE), *both;
    while ((both = map(block - 2 * SIZE, 2 * SIZE)) == MAP_FAILED) block -= PAGE;
    munmap(both, 2 * SIZE);
    between = map(block - SIZE, SIZE);
    below = map(block - 2 * SIZE, SIZE);
    if (between == MAP_FAILED || below == MAP_FAILED) return 2;
    strcpy(between, "between");
    /* By which it is seen where the C library notes where stacks lie. */
    pthread_t waiting;
    pthread_create(&waiting, NULL, wait_for_ever, NULL);
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "file", 4))
            for (int i = 0; i < 10; i++) probed(unwritten[0]);
        if (!strncmp(line, "heap", 4)) {
            char *text = strdup("in the heap");
            for (int i = 0; i < 10; i++) probed(text);
            free(text);
        }
        if (!strncmp(line, "stacks", 6)) {
            pthread_t one;
            pthread_create(&one, NULL, thread, NULL);
            pthread_join(one, NULL);
            thread(NULL);
        }
        int status = 0;
        if (!strncmp(line, "guard", 5)) {
            pthread_t one;
            pthread_create(&one, NULL, guard, NULL);
            pthread_join(one, NULL);
        }
        if (!strncmp(line, "bare", 4)) {
            pthread_t one;
            pthread_attr_t attributes;
            char *area = mmap(NULL, 8 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            pthread_attr_init(&attributes);
            pthread_attr_setstack(&attributes, area + 2 * SIZE, 6 * SIZE);
            pthread_create(&one, &attributes, guardless, area);
            pthread_join(one, NULL);
        }
        /* Its own constants, and its own stack. */
        if (!strncmp(line, "hide", 4)) {
            char local[3 * PAGE];
            char *pages[] = {(char *)((long)constant + PAGE - 1 & -PAGE), (char *)((long)local + PAGE - 1 & -PAGE)};
            for (int which = 0; which < 2; which++) {
                mprotect(pages[which], PAGE, PROT_NONE);
                for (int i = 0; i < 5; i++) probed(pages[which] + 16), framed(pages[which] + 64);
                mprotect(pages[which], PAGE, which ? PROT_READ | PROT_WRITE : PROT_READ);
            }
        }
        if (!strncmp(line, "coroutine", 9)) run_coroutine();
        /* The child's first thread has the control block of this one. */
        if (!strncmp(line, "forked", 6)) {
            pid_t child = fork();
            if (!child) run_coroutine(), _exit(0);
            waitpid(child, &status, 0);
        }
        printf("done %d\n", status);
        fflush(stdout);
    }
}
