/* Does what a script says to memory, runs code from the registers that it gives, and answers what it asks for.
 *
 *     machine SCRIPT ANSWERS */
#include "world.h"

enum { MAP, WRITE, PAD, RUN, READ };
struct step { uint64_t what, at, size; };

int main(int argc, char **argv) {
    FILE *script = fopen(argv[1], "rb"), *answers = fopen(argv[2], "wb");
    struct step step;
    if (argc != 3 || !script || !answers) return 2;
    set_up();
    while (fread(&step, sizeof step, 1, script) == 1) {
        size_t done = 1;
        if (step.what == MAP) map(step.at, step.size, PROT_READ | PROT_WRITE | PROT_EXEC);
        if (step.what == PAD) put_pad(step.at, step.size);
        if (step.what == WRITE) done = fread((void *)step.at, step.size, 1, script), flush((void *)step.at, step.size);
        if (step.what == READ) done = fwrite((void *)step.at, step.size, 1, answers);
        if (step.what == RUN) {
            /* A branch reaches it from the state's page. */
            const uint32_t branch = 0x48000000 | ((step.at - 0x300c) & 0x3fffffc);
            done = fread(state, 37 * 8, 1, script);
            put_prologue(0x3000);
            put(0x300c, &branch, 1);
            enter_at(0x3000);
            done &= fwrite(state, 38 * 8, 1, answers);
        }
        if (done != 1) return 3;
    }
    return fclose(answers) != 0;
}
