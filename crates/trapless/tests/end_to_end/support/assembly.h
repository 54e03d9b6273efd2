// What test programs say in assembly, for each architecture. It lies beside each program's source.
#ifndef ASSEMBLY_H
#define ASSEMBLY_H

// A breakpoint of the program's own. Where it is an instruction like another, its handler has to go past it; whoever raises the signal
// needs nothing.
#if defined __x86_64__ || defined __i386__
#define BREAKPOINT() __asm__ volatile("int3")
#define GO_PAST_BREAKPOINT(info, context) ((void)(info), (void)(context))
#else
#define GO_PAST_BREAKPOINT(info, context) ((info)->si_code > 0 ? (void)(IP_OF(context) += 4) : (void)0)
#endif

// The same, to be written over an instruction, and how far behind its start the handler of one finds the program.
#if defined __x86_64__ || defined __i386__
typedef unsigned char breakpoint;
#define BREAKPOINT_BYTES 0xcc
#define BEHIND_BREAKPOINT 1
#else
typedef unsigned breakpoint;
#define BEHIND_BREAKPOINT 0
#endif
#if defined __aarch64__
#define BREAKPOINT_BYTES 0xd4200000
#elif defined __powerpc64__
#define BREAKPOINT_BYTES 0x7fe00008
#endif

// Where a signal's handler returns to, and the first argument of a function that has just begun.
#if defined __x86_64__
#define IP_OF(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RIP])
#define ARGUMENT_OF(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_RDI])
#elif defined __i386__
#define IP_OF(context) (((ucontext_t *)(context))->uc_mcontext.gregs[REG_EIP])
#define ARGUMENT_OF(context) (((long *)((ucontext_t *)(context))->uc_mcontext.gregs[REG_ESP])[1])
#elif defined __aarch64__
#define BREAKPOINT() __asm__ volatile("brk #0")
#define IP_OF(context) (((ucontext_t *)(context))->uc_mcontext.pc)
#define ARGUMENT_OF(context) (((ucontext_t *)(context))->uc_mcontext.regs[0])
#elif defined __powerpc64__
#define BREAKPOINT() __asm__ volatile("trap")
#define IP_OF(context) (((ucontext_t *)(context))->uc_mcontext.gp_regs[32])
#define ARGUMENT_OF(context) (((ucontext_t *)(context))->uc_mcontext.gp_regs[3])
#endif

// Bodies of functions. Of x they return: TWICE_AND_ONE 2 x + 1, by registers that it keeps on the stack; TWICE_AND_ONE_AT_ONCE the same, on
// x86-64 by one instruction of the size of a jump; THRICE_AND_SEVEN 3 x + 7;
// PLUS_FIVE x + 5, with something behind its first instruction; COUNTS x + 3, by three equal instructions behind the first. LOADS reads a
// long at its argument in its first instruction and adds 3, LOADS_INT an int. RETURN_ADDRESS tells its own, RETURNS a number.
#if defined __x86_64__
#define TWICE_AND_ONE "push %rbx; push %r12; mov %rdi, %rbx; lea 1(%rbx,%rbx), %rax; pop %r12; pop %rbx; ret"
#define TWICE_AND_ONE_AT_ONCE "lea 1(%rdi,%rdi), %rax; nop; nop; nop; nop; ret"
#define THRICE_AND_SEVEN "push %rbx; mov %rdi, %rbx; lea 7(%rbx,%rbx,2), %rax; pop %rbx; ret"
#define PLUS_FIVE "lea 5(%rdi), %rax; nop; nop; ret"
#define LOADS "movq (%rdi), %rax; addq $1, %rax; addq $2, %rax; ret"
#define LOADS_INT "mov (%rdi), %eax; ret"
#define RETURN_ADDRESS "movq (%rsp), %rax; ret"
#define RETURNS(number) "mov $" #number ", %eax; ret"
#elif defined __i386__
#define TWICE_AND_ONE "push %ebx; push %esi; mov 12(%esp), %ebx; lea 1(%ebx,%ebx), %eax; pop %esi; pop %ebx; ret"
#define TWICE_AND_ONE_AT_ONCE "mov 4(%esp), %eax; lea 1(%eax,%eax), %eax; nop; ret"
#define THRICE_AND_SEVEN "push %ebx; mov 8(%esp), %ebx; lea 7(%ebx,%ebx,2), %eax; pop %ebx; ret"
#define PLUS_FIVE "mov 4(%esp), %eax; add $5, %eax; nop; nop; ret"
#define LOADS "mov 4(%esp), %eax; movl (%eax), %eax; addl $1, %eax; addl $2, %eax; ret"
#define LOADS_INT "mov 4(%esp), %eax; movl (%eax), %eax; ret"
#define RETURN_ADDRESS "movl (%esp), %eax; ret"
#define RETURNS(number) "mov $" #number ", %eax; ret"
#elif defined __aarch64__
#define TWICE_AND_ONE "stp x19, x20, [sp, #-16]!; mov x19, x0; add x0, x19, x19; add x0, x0, #1; ldp x19, x20, [sp], #16; ret"
#define TWICE_AND_ONE_AT_ONCE "add x0, x0, x0; add x0, x0, #1; ret"
#define THRICE_AND_SEVEN "str x19, [sp, #-16]!; mov x19, x0; add x0, x19, x19, lsl #1; add x0, x0, #7; ldr x19, [sp], #16; ret"
#define PLUS_FIVE "add x0, x0, #5; nop; nop; ret"
#define COUNTS "nop; add x0, x0, #1; add x0, x0, #1; add x0, x0, #1; ret"
#define LOADS "ldr x0, [x0]; add x0, x0, #1; add x0, x0, #2; ret"
#define LOADS_INT "ldr w0, [x0]; ret"
#define RETURN_ADDRESS "mov x0, x30; ret"
#define RETURNS(number) "mov w0, #" #number "; ret"
#elif defined __powerpc64__
// Below the stack pointer is what a function without a frame may use.
#define TWICE_AND_ONE "std 30, -16(1); mr 30, 3; add 3, 30, 30; addi 3, 3, 1; ld 30, -16(1); blr"
#define TWICE_AND_ONE_AT_ONCE "add 3, 3, 3; addi 3, 3, 1; blr"
#define THRICE_AND_SEVEN "std 30, -16(1); mulli 30, 3, 3; addi 3, 30, 7; ld 30, -16(1); blr"
#define PLUS_FIVE "addi 3, 3, 5; nop; nop; blr"
#define COUNTS "nop; addi 3, 3, 1; addi 3, 3, 1; addi 3, 3, 1; blr"
#define LOADS "ld 3, 0(3); addi 3, 3, 1; addi 3, 3, 2; blr"
#define LOADS_INT "lwz 3, 0(3); blr"
#define RETURN_ADDRESS "mflr 3; blr"
#define RETURNS(number) "li 3, " #number "; blr"
#endif

// Where pages begin, for `.p2align`: those of powerpc64le and arm64 may have up to 64 KiB.
#if defined __x86_64__ || defined __i386__
#define PAGE "12"
#else
#define PAGE "16"
#endif

// A function in assembly.
#define ASSEMBLED(name, body) \
    __asm__(".text; .p2align 4; .globl " #name "; .type " #name ", %function; " #name ": " body "; .size " #name ", . - " #name);

#endif
