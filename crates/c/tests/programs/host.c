/* A program that loads plug-ins while its threads run, and unloads them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define CALLS 1000

static pthread_barrier_t barrier;
static atomic_bool over;

/* Some were there before the plug-in was, and have never called it; in between they allocate without being asked. */
static void *allocate(void *unused)
{
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (atomic_load(&over))
            return unused;
        for (int n = 0; n < CALLS; n++) {
            void *volatile memory = malloc(100 + n);
            free(memory);
        }
        pthread_barrier_wait(&barrier);
    }
}

static void *storm(void *unused)
{
    while (!atomic_load(&over)) {
        void *volatile memory = malloc(10);
        free(memory);
    }
    return unused;
}

static void once(const char *path)
{
    void *plug_in = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plug_in) {
        puts(dlerror());
        exit(1);
    }
    int (*start)(void) = (int (*)(void))dlsym(plug_in, "start");
    long (*stop)(long *) = (long (*)(long *))dlsym(plug_in, "stop");
    if (start())
        exit(2);
    /* Counted. */
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    long left, entered = stop(&left);
    /* Not counted. */
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    if (entered < THREADS * CALLS || left > entered || left < THREADS * CALLS) {
        printf("%ld entered, %ld left\n", entered, left);
        exit(3);
    }
    puts("loaded");
    dlclose(plug_in);
    if (dlopen(path, RTLD_NOW | RTLD_NOLOAD)) {
        puts("it is still there");
        exit(4);
    }
    puts("unloaded");
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 5;
    pthread_t threads[THREADS + 2];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int n = 0; n < THREADS + 2; n++)
        pthread_create(&threads[n], NULL, n < THREADS ? allocate : storm, NULL);
    once(arguments[1]);
    once(arguments[1]);
    atomic_store(&over, true);
    pthread_barrier_wait(&barrier);
    for (int n = 0; n < THREADS + 2; n++)
        pthread_join(threads[n], NULL);
    return 0;
}
