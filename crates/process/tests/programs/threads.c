// Runs N threads and does what its first argument says when a byte comes on standard input:
//   sleep   threads sleep; ends with 5          churn   threads are created and end all the time
//   spin    threads count                        orphan  the leader exits, the others live on
//   exec    becomes another program              storm   execs and forks without end
//   abort   threads spin, killed by itself       vfork   waits for a child made by vfork
//   heir    the leader exits, a thread becomes another program
//   filter  under a seccomp filter that kills for memfd_create
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *mode;
static volatile int over;
static int is(const char *name) { return strcmp(mode, name) == 0; }

static void *nothing(void *unused) { return unused; }

static void *work(void *unused) {
    unsigned long n = 0;
    while (!over) {
        if (is("churn")) {
            pthread_t thread;
            if (pthread_create(&thread, 0, nothing, 0) == 0) pthread_join(thread, 0);
        } else if (is("spin") || is("abort")) {
            for (int k = 0; k < 100000; k++) __asm__ volatile("" : "+r"(n));
            n++;
        } else {
            pause();
        }
    }
    return unused;
}

static void *wait_for_poke(void *unused) {
    char byte;
    if (read(0, &byte, 1) != 1) _exit(9);
    if (is("orphan")) _exit(6);
    if (is("heir")) { execlp("sh", "sh", "-c", "echo execed; read x; exit 5", (char *)0); _exit(9); }
    return unused;
}

int main(int argc, char **argv) {
    mode = argv[1];
    int count = argc > 2 ? atoi(argv[2]) : 0;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 65536);
    if (is("filter")) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {4, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 8;
    }
    for (int n = 0; n < count; n++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, work, 0)) { perror("pthread_create"); return 8; }
    }
    if (is("vfork")) {
        puts("ready");
        fflush(stdout);
        pid_t child = vfork();
        if (child == 0) { char byte; read(0, &byte, 1); _exit(3); }
        int status;
        return waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3 ? 5 : 9;
    }
    if (is("orphan") || is("heir")) {
        pthread_t thread;
        pthread_create(&thread, &attr, wait_for_poke, 0);
        puts("ready");
        fflush(stdout);
        pthread_exit(0);
    }
    if (is("storm")) {
        if (argc < 4) { puts("ready"); fflush(stdout); }
        char next[16];
        int n = argc < 4 ? 0 : atoi(argv[3]);
        if (n > 3000) return 5;
        snprintf(next, sizeof next, "%d", n + 1);
        execl("/proc/self/exe", argv[0], "storm", argv[2], next, (char *)0);
        return 9;
    }
    puts("ready");
    fflush(stdout);
    wait_for_poke(0);
    if (is("exec")) { execlp("sh", "sh", "-c", "echo execed; read x; exit 5", (char *)0); return 9; }
    if (is("abort")) abort();
    over = 1;
    return 5;
}
