/* A process, its child and its grandchild, each of which says by its calls who it is, and has a name of its own. So has a thread. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noclone)) int told(int own, int parent) {
    __asm__ volatile("" : "+r"(own), "+r"(parent));
    return own + parent;
}

/* The kernel says it each time, whatever a C library remembers. */
static void tell(void) { told((int)syscall(SYS_getpid), (int)syscall(SYS_getppid)); }

static void child(int below) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, below ? "child" : "grandchild");
        tell();
        if (below) child(below - 1);
        tell();
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

static void *thread(void *unused) {
    prctl(PR_SET_NAME, "thread");
    tell();
    return unused;
}

int main(void) {
    pthread_t other;
    prctl(PR_SET_NAME, "eldest");
    tell();
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    for (int i = 0; i < 10; i++) child(1);
    tell();
    /* The lowest that is free: whoever leaves one open changes it. */
    printf("free %d\n", open("/dev/null", O_RDONLY));
    return 0;
}
