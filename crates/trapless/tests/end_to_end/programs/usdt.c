/* USDT probes without any header: notes as sys/sdt.h and libbpf's usdt.h leave them, at places of every form.
 *
 * A line of input says how often everything is called; the answer is how many results were wrong, and the semaphore. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if __SIZEOF_POINTER__ == 8
#define WORD ".8byte "
#else
#define WORD ".4byte "
#endif

/* A note about the label `place`. */
#define NOTE(place, provider, name, semaphore, arguments) \
    ".pushsection .note.stapsdt,\"\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n" \
    "992: .balign 4\n" \
    "993: " WORD place "\n" WORD "_.stapsdt.base\n" WORD semaphore "\n" \
    ".asciz \"" provider "\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n" \
    "994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n" \
    ".popsection\n.endif\n"

#define NOP1 "nop\n"
#if defined(__x86_64__) || defined(__i386__)
#define NOP5 ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define NOP10 ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00\n"
#define CONSTANT(number) "$" #number
#else
/* All are alike. */
#define NOP5 NOP1
#define NOP10 NOP1
#ifdef __aarch64__
#define CONSTANT(number) #number
#else
#define CONSTANT(number) "i" #number
#endif
#endif

/* sys/sdt.h puts them there, too. */
unsigned short app_guarded_semaphore __attribute__((section(".probes"), used));
unsigned short app_other_semaphore __attribute__((section(".probes"), used));
volatile long beside[2] __attribute__((used)) = {7, 7};

#define LEAF(function, before, nop, notes) \
    __asm__(".text\n.globl " function "\n.type " function ",@function\n.p2align 4\n" \
            function ": .cfi_startproc\n" \
            BEGIN before "\n" \
            "990: " nop notes \
            END ".cfi_endproc\n.size " function ", .-" function "\n")

/* Leaves: f(x) is 2x + 3. They keep their data below the stack pointer over the probe, all that may be kept there. */
#ifdef __x86_64__
#define BEGIN "mov %rdi, -8(%rsp)\n" "lea 3(%rdi), %rax\n" "mov %rax, -128(%rsp)\n" "mov $77, %esi\n"
#define END "mov -8(%rsp), %rax\n" "add -128(%rsp), %rax\n" "ret\n"
#define PLACES "8@%rdi -4@%esi 8@-8(%rsp) 8@-128(%rsp) -4@$-5 1@%dil"
#elif defined(__i386__)
#define BEGIN "mov 4(%esp), %eax\n" "mov $77, %edx\n"
#define END "lea 3(%eax,%eax), %eax\n" "ret\n"
#define PLACES "4@%eax -4@%edx 4@4(%esp) 4@4(%esp) -4@$-5 1@%al"
#elif defined(__aarch64__)
/* Nothing may be kept there: the first is as high as the second is low. */
#define BEGIN "sub sp, sp, #128\n" "str x0, [sp, #120]\n" "add x8, x0, #3\n" "str x8, [sp]\n" "mov w1, #77\n"
#define END "ldr x0, [sp, #120]\n" "ldr x8, [sp]\n" "add x0, x0, x8\n" "add sp, sp, #128\n" "ret\n"
#define PLACES "8@x0 -4@w1 8@[sp, 120] 8@[sp] -4@-5 1@w0"
#else
#define BEGIN "std 3, -8(1)\n" "addi 9, 3, 3\n" "std 9, -288(1)\n" "li 4, 77\n"
#define END "ld 3, -8(1)\n" "ld 9, -288(1)\n" "add 3, 3, 9\n" "blr\n"
#define PLACES "8@3 -4@4 8@-8(1) 8@-288(1) -4@i-5 1@3"
#endif

LEAF("leaf1", "", NOP1, NOTE("990b", "app", "one", "0", PLACES));
LEAF("leaf5", "", NOP5, NOTE("990b", "app", "five", "0", PLACES));
LEAF("leaf10", "", NOP10, NOTE("990b", "app", "ten", "0", PLACES));
/* As libbpf's usdt.h has it: the note is about the first of two. */
LEAF("leaf11", "", NOP1 NOP10, NOTE("990b", "app", "eleven", "0", PLACES));
/* Three sites of one name, of which one has a name more. */
LEAF("many1", "", NOP1, NOTE("990b", "app", "many", "0", ""));
LEAF("many2", "", NOP5, NOTE("990b", "app", "many", "0", "8@" CONSTANT(2)));
LEAF("many3", "", NOP5, NOTE("990b", "app", "many", "0", "8@" CONSTANT(3)) NOTE("990b", "lib", "single", "0", "-1@" CONSTANT(-1) " 8@" CONSTANT(4)));
LEAF("guarded", "", NOP5, NOTE("990b", "app", "guarded", "app_guarded_semaphore", "8@" CONSTANT(1)));
LEAF("guarded_too", "", NOP1, NOTE("990b", "app", "guarded_too", "app_guarded_semaphore", ""));
LEAF("other", "", NOP5, NOTE("990b", "app", "other", "app_other_semaphore", ""));

/*FORMS*/

long leaf1(long), leaf5(long), leaf10(long), leaf11(long), many1(long), many2(long), many3(long);
long guarded(long), guarded_too(long), other(long);

static long (*const all[])(long) = {leaf1, leaf5, leaf10, leaf11, many1, many2, many3, guarded_too, other};

static unsigned semaphore(void) { return *(volatile unsigned short *)&app_guarded_semaphore; }

int main(void) {
    printf("ready %lx %lx\n", (unsigned long)&app_guarded_semaphore, (unsigned long)&beside);
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long calls = atol(line), wrong = 0;
        if (line[0] == 'f') {
            /* A child that says what its semaphore is, waits for the parent to be told something, and says it again. */
            int to_child[2];
            if (pipe(to_child)) return 1;
            pid_t child = fork();
            if (child == 0) {
                char byte;
                close(to_child[1]);
                printf("child %d %u\n", getpid(), semaphore());
                fflush(stdout);
                if (read(to_child[0], &byte, 1) < 0) _exit(1);
                printf("child %u\n", semaphore());
                fflush(stdout);
                _exit(0);
            }
            close(to_child[0]);
            if (!fgets(line, sizeof line, stdin)) return 0;
            close(to_child[1]);
            waitpid(child, 0, 0);
            continue;
        }
        for (long x = 0; x < calls; x++) {
            for (unsigned i = 0; i < sizeof all / sizeof *all; i++) wrong += all[i](x) != 2 * x + 3;
            if (semaphore()) wrong += guarded(x) != 2 * x + 3;
        }
        printf("wrong %ld semaphore %u\n", wrong, semaphore());
        fflush(stdout);
    }
    return 0;
}
