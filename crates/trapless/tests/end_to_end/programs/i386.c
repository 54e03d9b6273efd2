/* A 32-bit program with known numbers of calls: THREADS threads, each CALLS times. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4
#define CALLS 50000

static int values[16] = {1, 2, 3};

/* Position independent: starts with a call of a get-PC thunk. */
__attribute__((noinline)) int leaf(int a, int b)
{
    __asm__ volatile("");
    return values[a & 15] + b;
}

__attribute__((noinline, noipa, optimize("no-optimize-sibling-calls"))) int recurse(int depth)
{
    volatile int one = 1;
    return depth == 0 ? leaf(1, 1) : recurse(depth - one) + one;
}

__attribute__((noinline)) long long wide(long long a, int b)
{
    __asm__ volatile("");
    return a * b;
}

__attribute__((noinline)) double floating(double a)
{
    __asm__ volatile("");
    return a + 0.5;
}

/* A segment prefix and a get-PC thunk among the first instructions; kept flags are looked at by the caller. */
int thread_word(void);
int get_pc(void);
int raw_system_call(void);
int fast_system_call(void);
int keeps_everything(void);
int check_everything(int times);
__asm__(".text\n"
        ".type thread_word, @function\n"
        "thread_word: mov %gs:0x8, %eax\n"
        "  xor %gs:0x0, %eax\n"
        "  ret\n"
        ".size thread_word, . - thread_word\n"
        ".type get_pc, @function\n"
        "get_pc: call 1f\n"
        "1: pop %eax\n"
        "  nop\n"
        "  ret\n"
        ".size get_pc, . - get_pc\n"
        ".globl raw_system_call\n"
        ".type raw_system_call, @function\n"
        "raw_system_call: int $0x80\n"
        "  nop\n nop\n nop\n nop\n nop\n"
        "  ret\n"
        ".size raw_system_call, . - raw_system_call\n"
        ".globl fast_system_call\n"
        ".type fast_system_call, @function\n"
        "fast_system_call: sysenter\n"
        "  nop\n nop\n nop\n nop\n nop\n"
        "  ret\n"
        ".size fast_system_call, . - fast_system_call\n"
        ".globl keeps_everything\n"
        ".type keeps_everything, @function\n"
        "keeps_everything: nop\n nop\n nop\n nop\n nop\n"
        "  ret\n"
        ".size keeps_everything, . - keeps_everything\n"
        /* Calls it with every register and all flags set, and gives the number of calls after which any differs. */
        ".type check_everything, @function\n"
        "check_everything: push %ebx\n push %esi\n push %edi\n push %ebp\n"
        "  pushl $0\n"           /* failures */
        "  pushl 24(%esp)\n"     /* times left */
        "2: mov $0x11111111, %eax\n mov $0x22222222, %ecx\n mov $0x33333333, %edx\n mov $0x44444444, %ebx\n"
        "  mov $0x55555555, %esi\n mov $0x66666666, %edi\n mov $0x77777777, %ebp\n"
        "  pushl (%esp)\n andl $0x8d5, (%esp)\n popfl\n"
        "  call keeps_everything\n"
        "  pushfl\n"
        "  cmp $0x11111111, %eax\n jne 3f\n cmp $0x22222222, %ecx\n jne 3f\n cmp $0x33333333, %edx\n jne 3f\n"
        "  cmp $0x44444444, %ebx\n jne 3f\n cmp $0x55555555, %esi\n jne 3f\n cmp $0x66666666, %edi\n jne 3f\n"
        "  cmp $0x77777777, %ebp\n jne 3f\n"
        "  mov (%esp), %eax\n xor 4(%esp), %eax\n and $0x8d5, %eax\n jz 4f\n"
        "3: incl 8(%esp)\n"
        "4: add $4, %esp\n"
        "  decl (%esp)\n"
        "  jnz 2b\n"
        "  add $4, %esp\n pop %eax\n"
        "  pop %ebp\n pop %edi\n pop %esi\n pop %ebx\n"
        "  ret\n"
        ".size check_everything, . - check_everything\n");

static void *work(void *argument)
{
    long long sum = 0;
    for (int i = 0; i < CALLS; i++)
        sum += leaf(i, i) + wide(i, 3) + (long long)floating(i);
    for (int i = 0; i < 100; i++)
        sum += recurse(200);
    *(long long *)argument = sum;
    return NULL;
}

static int compare(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    long long sums[THREADS];
    (void)arguments;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &sums[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        printf("%lld\n", sums[i]);
    printf("%d %d %d\n", thread_word() == 0, get_pc() - (int)get_pc, check_everything(5000));
    int numbers[] = {5, 3, 9, 1};
    qsort(numbers, 4, sizeof numbers[0], compare);
    char text[64];
    snprintf(text, sizeof text, "%d %d %s %.3f", numbers[0], atoi("17"), strstr("haystack", "st"), 2.5);
    puts(text);
    /* To be looked at from outside, before and after. */
    fflush(stdout);
    while (count > 1 && getchar() != EOF)
        printf("%d\n", leaf(2, 2)), fflush(stdout);
    if (count > 1000) { raw_system_call(); fast_system_call(); }
    return 0;
}
