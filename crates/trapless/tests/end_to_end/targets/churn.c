// Threads that call `subject` ten times each and end, eight at a time, in so many rounds.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
static void *worker(void *unused) {
    for (long x = 0; x < 10; x++) if (subject(x) != x * 3 + 7) abort();
    return NULL;
}
int main(int argc, char **argv) {
    long rounds = atol(argv[1]);
    puts("ready"); fflush(stdout);
    if (argc > 2) getchar();
    for (long round = 0; round != rounds; round++) {
        pthread_t ids[8];
        for (int i = 0; i < 8; i++) if (pthread_create(&ids[i], NULL, worker, NULL)) abort();
        for (int i = 0; i < 8; i++) pthread_join(ids[i], NULL);
    }
    return 0;
}
