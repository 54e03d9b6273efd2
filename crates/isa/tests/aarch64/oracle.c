// Executes instructions from given registers and reports what they did.
//
// oracle CASES RESULTS. The world is REGION, 258 MB full of numbered brk instructions, so that wherever an
// instruction leads, a trap tells; and DATA, a page that a generator fills. Each case costs one signal: the
// handler of the trap that ends one case starts the next by changing the context it returns to. Run with SVE
// off, so that the vector registers are where this looks.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <asm/sigcontext.h>

#define REGION 0x1000000000ul
#define REGION_SIZE (258ul << 20)
#define TILE (1ul << 20)
#define DATA 0x2000000000ul
#define HASHED 1024

enum { WORDS = 12 };

struct input {
    uint64_t address, count, seed;
    uint32_t words[WORDS];
    uint64_t x[31], sp, nzcv;
};

struct output {
    uint64_t x[31], sp, pc, nzcv, signal, vectors, memory;
};

static FILE *in, *out;
static struct input current;
static uint32_t replaced[WORDS];
static int running;

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t hash(const void *bytes, size_t length) {
    uint64_t h = 0xcbf29ce484222325;
    for (const uint64_t *w = bytes; length; length -= 8) h = (h ^ *w++) * 0x100000001b3;
    return h;
}

static struct fpsimd_context *vectors(ucontext_t *context) {
    struct fpsimd_context *v = (void *)context->uc_mcontext.__reserved;
    while (v->head.magic != FPSIMD_MAGIC) v = (void *)((char *)v + v->head.size);
    return v;
}

// Makes the pages around the code private and writable, once.
static void own(uint64_t address) {
    static uint8_t owned[REGION_SIZE >> 12];
    for (uint64_t page = address & -4096ul; page < address + 4 * WORDS; page += 4096) {
        uint8_t *flag = &owned[(page - REGION) >> 12];
        if (*flag) continue;
        *flag = 1;
        char copy[4096];
        memcpy(copy, (void *)page, 4096);
        mmap((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memcpy((void *)page, copy, 4096);
    }
}

static void place(uint32_t *words, uint32_t *old) {
    uint32_t *at = (void *)current.address;
    for (uint64_t i = 0; i < current.count; i++) {
        if (old) old[i] = at[i];
        at[i] = words[i];
    }
    __builtin___clear_cache((char *)at, (char *)(at + current.count));
}

static void handler(int signal, siginfo_t *info, void *argument) {
    (void)info;
    ucontext_t *context = argument;
    mcontext_t *m = &context->uc_mcontext;
    if (running) {
        struct output o = {.sp = m->sp, .pc = m->pc, .nzcv = m->pstate & 0xf0000000, .signal = signal};
        memcpy(o.x, m->regs, sizeof o.x);
        o.vectors = hash(vectors(context)->vregs, 512);
        o.memory = hash((void *)DATA, HASHED);
        fwrite(&o, sizeof o, 1, out);
        place(replaced, 0);
    }
    if (fread(&current, sizeof current, 1, in) != 1) {
        fclose(out);
        _exit(0);
    }
    running = 1;
    own(current.address);
    place(current.words, replaced);
    uint64_t seed = current.seed;
    for (int i = 0; i < HASHED / 8; i++) ((uint64_t *)DATA)[i] = next(&seed);
    for (int i = 0; i < 64; i++) ((uint64_t *)vectors(context)->vregs)[i] = next(&seed);
    memcpy(m->regs, current.x, sizeof current.x);
    m->sp = current.sp;
    m->pc = current.address;
    m->pstate = current.nzcv;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    in = fopen(arguments[1], "r");
    out = fopen(arguments[2], "w");
    static uint32_t tile[TILE / 4];
    for (uint32_t i = 0; i < TILE / 4; i++) tile[i] = 0xd4200000 | (i & 0xffff) << 5;
    int file = memfd_create("brk", 0);
    if (write(file, tile, TILE) != TILE) return 3;
    for (uint64_t at = REGION; at < REGION + REGION_SIZE; at += TILE)
        if (mmap((void *)at, TILE, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) != (void *)at) return 4;
    if (mmap((void *)DATA, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)DATA)
        return 5;
    static char stack[1 << 16];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    int signals[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL};
    for (int i = 0; i < 4; i++) sigaction(signals[i], &action, 0);
    asm volatile("brk #0");
    return 1;
}
