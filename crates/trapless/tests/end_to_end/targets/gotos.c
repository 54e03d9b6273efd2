/* Interpreters in the ways in which GNU C lets one compute where to go on. Prints what they have computed. */
#include <stdio.h>
#include <stdlib.h>

#define OPS(X)                                                                                      \
    X(inc, acc++) X(dec, acc--) X(dbl, acc *= 2) X(neg, acc = -acc) X(mul, acc = acc * 3 + 1)       \
    X(xr, acc ^= 0x55) X(sh, acc = acc >> 1) X(ad, acc += pc - code)
#define CODE(n, e) l_##n: e; NEXT;
#define FROM_FIRST(n, e) &&l_##n - &&l_inc,
#define FROM_LAST(n, e) &&l_##n - &&l_end,
#define PLACE(n, e) &&l_##n,
/* The program at `code`, of operations by number, run from its start on. NEXT goes to the next one. */
#define RUN(first) const unsigned char *pc = code; long acc = 1; first; NEXT; OPS(CODE)

/* By the distance from a label. */
__attribute__((noinline)) long rel(const unsigned char *code)
{
#define NEXT goto *(&&l_inc + off[*pc++])
    static const int off[] = {OPS(FROM_FIRST) &&l_end - &&l_inc};
    RUN((void)0)
l_end: return acc;
#undef NEXT
}

/* From one of two labels. */
__attribute__((noinline)) long two(const unsigned char *code, int which)
{
#define NEXT goto *(void *)(base + off[*pc++])
    static const int first[] = {OPS(FROM_FIRST) &&l_end - &&l_inc};
    static const int last[] = {OPS(FROM_LAST) &&l_end - &&l_end};
    const int *off = which ? first : last;
    char *base = which ? (char *)&&l_inc : (char *)&&l_end;
    RUN(if (which == 7) puts("seven"))
l_end: return acc;
#undef NEXT
}

__attribute__((noinline)) void other(volatile int *x) { *x += 1; }

/* The place is kept in memory while something is called. */
__attribute__((noinline)) long kept(const unsigned char *code)
{
#define NEXT at = &&l_inc + off[*pc++]; other(&x); goto *at
    static const int off[] = {OPS(FROM_FIRST) &&l_end - &&l_inc};
    volatile int x = 0;
    void *volatile at;
    RUN((void)0)
l_end: return acc + x;
#undef NEXT
}

/* The table of places is made when it is first needed. */
__attribute__((noinline)) long made(const unsigned char *code)
{
#define NEXT goto *tab[*pc++]
    static const int off[] = {OPS(FROM_FIRST) &&l_end - &&l_inc};
    static void *tab[9];
    RUN(if (!tab[0]) for (int i = 0; i < 9; i++) tab[i] = &&l_inc + off[i])
l_end: return acc;
#undef NEXT
}

/* Places themselves, in a table on the stack. */
__attribute__((noinline)) long exact(const unsigned char *code)
{
#define NEXT goto *tab[*pc++]
    void *tab[] = {OPS(PLACE) &&l_end};
    __asm__ volatile("" ::"r"(tab) : "memory");
    RUN((void)0)
l_end: return acc;
#undef NEXT
}

/* Distances of 16 bits. */
__attribute__((noinline)) long narrow(const unsigned char *code)
{
#define NEXT goto *(&&l_inc + off[*pc++])
    static const int wide[] = {OPS(FROM_FIRST) &&l_end - &&l_inc};
    static short off[9];
    RUN(if (!off[8]) for (int i = 0; i < 9; i++) off[i] = wide[i])
l_end: return acc;
#undef NEXT
}

/* A switch, and calls through a table of functions. */
__attribute__((noinline)) long sw(const unsigned char *code)
{
    const unsigned char *pc = code;
    long acc = 1;
    long (*called[2])(const unsigned char *) = {rel, made};
    for (;;)
        switch (*pc++) {
        case 0: acc++; break;
        case 1: acc--; break;
        case 2: acc *= 2; break;
        case 3: acc = -acc; break;
        case 4: acc = acc * 3 + 1; break;
        case 5: acc ^= 0x55; break;
        case 6: acc >>= 1; break;
        case 7: acc += called[acc & 1](pc); break;
        default: return acc;
        }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 300;
    unsigned seed = 1;
    unsigned long sum = 0;
    for (int i = 0; i < rounds; i++) {
        unsigned char code[40];
        int length = 1 + i % 38;
        for (int k = 0; k < length; k++) {
            seed = seed * 1103515245 + 12345;
            code[k] = (seed >> 16) % 8;
        }
        code[length] = 8;
        long results[] = {rel(code), two(code, i & 1), kept(code), made(code), exact(code), narrow(code), sw(code)};
        for (int k = 0; k < 7; k++) sum = sum * 31 + results[k];
    }
    printf("%lx\n", sum);
    return 0;
}
