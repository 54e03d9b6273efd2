/* Runs single instructions, or their relocated copies, from given registers and memory, and reports both afterwards.
 *
 *     oracle CASES RESULTS */
#include "world.h"

enum { WINDOW_SIZE = 1024, PADS = 4, WORDS = 24 };
#define WINDOW 0x20001000ul

struct test {
    uint64_t gpr[32], cr, xer, ctr, lr, tar;
    uint64_t seed, address, words, pads[PADS];
    uint32_t code[WORDS];
};

struct result {
    uint64_t gpr[32], cr, xer, ctr, lr, tar, exit;
    uint8_t window[WINDOW_SIZE];
};

int main(int argc, char **argv) {
    FILE *tests = fopen(argv[1], "rb"), *results = fopen(argv[2], "wb");
    static struct test test;
    static struct result result;
    if (argc != 3 || !tests || !results) return 2;
    map(0x200000, 0x3e00000, PROT_READ | PROT_WRITE | PROT_EXEC);
    map(0x20000000, 0x20000, PROT_READ | PROT_WRITE);
    map(0x2fff0000, 0x8200000, PROT_READ | PROT_WRITE | PROT_EXEC);
    set_up();

    while (fread(&test, sizeof test, 1, tests) == 1) {
        uint64_t random = test.seed | 1;
        for (int i = 0; i < WINDOW_SIZE / 8; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            ((uint64_t *)WINDOW)[i] = random;
        }
        for (int i = 0; i < PADS; i++)
            if (test.pads[i]) put_pad(test.pads[i], i);
        put_prologue(test.address - 12);
        put(test.address, test.code, test.words);
        memcpy(state, &test, 37 * 8);
        enter_at(test.address - 12);
        memcpy(&result, state, 38 * 8);
        memcpy(result.window, (void *)WINDOW, WINDOW_SIZE);
        if (fwrite(&result, sizeof result, 1, results) != 1) return 3;
    }
    return fclose(results) != 0;
}
