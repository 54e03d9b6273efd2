/* Interpreters whose labels come from elsewhere than the code that jumps. All operations but the last fall through to the next one by way of
   short instructions, so that a patch of any of them would reach over a label. Prints what they have computed. */
#include <stdio.h>
#include <stdlib.h>

#if defined __x86_64__ || defined __i386__
#define SHORT __asm__ volatile("inc %0; dec %0; inc %0; dec %0" : "+r"(acc));
#else
#define SHORT
#endif
#define OPS(X)                                                                                      \
    X(inc, acc++) X(dec, acc--) X(dbl, acc *= 2) X(neg, acc = -acc) X(mul, acc = acc * 3 + 1)       \
    X(xr, acc ^= 0x55) X(sh, acc = acc >> 1) X(ad, acc += 7)
#define CODE(n, e) l_##n: SHORT e; if (acc & 1) { NEXT; }
#define FROM(n, e) &&l_##n - &&l_inc,
#define PLAIN __attribute__((noinline, noclone))
#define OFFSETS static const int off[] = {OPS(FROM) &&l_end - &&l_inc}
/* The program at `code`, of operations by number, run from its start on. NEXT goes to the next one. */
#define RUN const unsigned char *pc = code; long acc = 1; { NEXT; } OPS(CODE) { NEXT; } l_end: return acc

/* Data has the label. */
PLAIN long data(const unsigned char *code)
{
#define NEXT goto *(void *)(base + off[*pc++])
    OFFSETS;
    static char *volatile base = (char *)&&l_inc;
    RUN;
#undef NEXT
}

/* Data has it in many places, with the distance. */
PLAIN long pairs(const unsigned char *code)
{
    struct pair { char *base; long off; };
#define PAIR(n, e) {(char *)&&l_inc, &&l_##n - &&l_inc},
#define NEXT const struct pair *next = &all[*pc++]; goto *(void *)(next->base + next->off)
    static const struct pair all[] = {OPS(PAIR) {(char *)&&l_inc, &&l_end - &&l_inc}};
    RUN;
#undef NEXT
}

/* Labels are copied from data to the stack. */
PLAIN long copied(const unsigned char *code)
{
#define NEXT int op = *pc++; goto *(void *)(base[op & 1] + off[op & 1][op])
#define FROM_END(n, e) &&l_##n - &&l_end,
    static const int first[] = {OPS(FROM) &&l_end - &&l_inc};
    static const int last[] = {OPS(FROM_END) 0};
    static const int *const off[] = {first, last};
    char *base[2] = {(char *)&&l_inc, (char *)&&l_end};
    __asm__ volatile("" ::"r"(base) : "memory");
    RUN;
#undef NEXT
}

/* Somebody else computes the place. */
PLAIN void *plus(char *base, int off) { return base + off; }

PLAIN long asked(const unsigned char *code)
{
#define NEXT goto *plus((char *)&&l_inc, off[*pc++])
    OFFSETS;
    RUN;
#undef NEXT
}

/* Somebody else has made places of the program. */
PLAIN long threaded(void **code, char **base, const int **offsets)
{
#define NEXT goto **pc++
    OFFSETS;
    if (!code) {
        *base = (char *)&&l_inc;
        *offsets = off;
        return 0;
    }
    void **pc = code;
    long acc = 1;
    { NEXT; }
    OPS(CODE)
    { NEXT; }
l_end: return acc;
#undef NEXT
}

PLAIN long translated(const unsigned char *code)
{
    static char *base;
    static const int *off;
    void *places[64];
    if (!base) threaded(0, &base, &off);
    int i = 0;
    do places[i] = base + off[code[i]]; while (code[i++] != 8);
    return threaded(places, 0, 0);
}

/* The label is given back, and in again. */
PLAIN long given(const unsigned char *code, char *base)
{
#define NEXT goto *(void *)(base + off[*pc++])
    OFFSETS;
    if (!code) return (long)&&l_inc;
    RUN;
#undef NEXT
}

/* Places are kept in another form. */
PLAIN long masked(const unsigned char *code)
{
#define NEXT goto *(void *)(places[*pc++] ^ key)
    OFFSETS;
    unsigned long key = (unsigned long)code | 1, places[9];
    for (int i = 0; i < 9; i++) places[i] = (unsigned long)((char *)&&l_inc + off[i]) ^ key;
    __asm__ volatile("" ::"r"(places) : "memory");
    RUN;
#undef NEXT
}

/* In memory of its own. */
PLAIN long heap(const unsigned char *code)
{
#define NEXT int op = *pc++; goto *(void *)(base[op & 3] + off[op])
    OFFSETS;
    char **base = malloc(4 * sizeof *base);
    for (int i = 0; i < 4; i++) base[i] = (char *)&&l_inc;
    __asm__ volatile("" ::"r"(base) : "memory");
    RUN;
#undef NEXT
}

/* Among more addresses of code than anybody tells apart. */
#define TEN(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define ALL(X) TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5) TEN(X, 6) TEN(X, 7)
#define FUNCTION(n) PLAIN long f##n(long at) { return at + n; }
ALL(FUNCTION)

PLAIN long crowded(const unsigned char *code)
{
#define STORED(n) functions[n] = f##n;
#define NEXT goto *(void *)(base + off[*pc++])
    OFFSETS;
    long (*volatile functions[80])(long);
    ALL(STORED)
    char *volatile base = (char *)&&l_inc;
    RUN + (long)functions[11](0);
#undef NEXT
}

/* Jumps to them as they are. */
PLAIN long plain(const unsigned char *code)
{
#define PLACE(n, e) &&l_##n,
#define NEXT goto *places[*pc++]
    static void *const places[] = {OPS(PLACE) &&l_end};
    RUN;
#undef NEXT
}

int main(void)
{
    unsigned seed = 1;
    unsigned long sum = 0;
    for (int i = 0; i < 300; i++) {
        unsigned char code[48];
        int length = 1 + i % 38;
        for (int k = 0; k < length; k++) {
            seed = seed * 1103515245 + 12345;
            code[k] = (seed >> 16) % 8;
        }
        for (int k = length; k < 48; k++) code[k] = 8;
        long results[] = {data(code), pairs(code), copied(code), asked(code), translated(code),
                          given(code, (char *)given(0, 0)), masked(code), heap(code), crowded(code),
                          plain(code)};
        for (int k = 0; k < 10; k++) sum = sum * 31 + results[k];
    }
    printf("%lx\n", sum);
    return 0;
}
