// Does what each line of input says, and calls `subject` around it.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
static void calls(int n) { for (int i = 0; i < n; i++) if (subject(i) != i * 3 + 7) abort(); }
static _Atomic long called;
static void *call_on(void *unused) {
    for (;;) { calls(1); called++; }
    return unused;
}
static void *live(void *unused) {
    puts("ready"); fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        char *arguments[] = { "echo", "spawned", NULL };
        int status = 0;
        pid_t pid = 0;
        calls(100);
        if (!strncmp(line, "fork", 4)) {
            if ((pid = fork()) == 0) { calls(50); puts("child"); fflush(stdout); _exit(7); }
        } else if (!strncmp(line, "clone", 5)) {
            // Ends without a signal.
            if ((pid = syscall(SYS_clone, 0, 0, 0, 0, 0)) == 0) { calls(50); puts("child"); fflush(stdout); _exit(7); }
        } else if (!strncmp(line, "vfork", 5)) {
            if ((pid = vfork()) == 0) { subject(1); subject(2); execvp("echo", arguments); _exit(9); }
        } else if (!strncmp(line, "spawn", 5)) {
            posix_spawnp(&pid, "echo", NULL, NULL, arguments, environ);
        } else if (!strncmp(line, "usurp", 5)) {
            // An exec that ends threads at every point of a call.
            pthread_t thread;
            for (int n = 0; n < 4; n++) pthread_create(&thread, NULL, call_on, NULL);
            while (called < 200) usleep(100);
            execvp("echo", arguments);
        } else if (!strncmp(line, "exec", 4)) {
            execvp("echo", arguments);
        } else if (!strncmp(line, "exit", 4)) {
            exit(3);
        } else if (!strncmp(line, "kill", 4)) {
            raise(SIGKILL);
        }
        if (pid) waitpid(pid, &status, __WALL);
        calls(10);
        printf("%d\n", WEXITSTATUS(status)); fflush(stdout);
    }
    return NULL;
}
// With an argument, the leader ends before the thread that lives.
int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 2) return live(NULL) != NULL;
    pthread_create(&thread, NULL, live, NULL);
    pthread_exit(NULL);
}
