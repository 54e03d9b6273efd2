// Calls subject as often as each line of input says, and says that it has.
#include <stdio.h>
#include <stdlib.h>

__attribute__((noipa)) long subject(long x) { return x * 3 + 7; }

int main(void) {
    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long times = atol(line);
        for (long i = 0; i < times; i++) subject(i);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
