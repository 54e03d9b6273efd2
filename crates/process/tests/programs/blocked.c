// Waits in the way its argument names until a byte comes on standard input, and checks that the wait gave what an undisturbed
// one gives. A helper thread or process turns the byte into what is waited for where it is not the input itself.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("bad: %s (errno %d)\n", #what, errno); fflush(stdout); _exit(1); } } while (0)

static atomic_int poked;
static atomic_int handled;
static pthread_t main_thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int pair[2];
static int semaphore;
static const char *mode;
static timer_t flood;
static volatile int is_ready;

static int is(const char *name) { return strcmp(mode, name) == 0; }

static void ready(void) { puts("ready"); fflush(stdout); }

static void on_signal(int sig, siginfo_t *info, void *context) {
    (void)context;
    CHECK(sig != SIGALRM || info->si_code == SI_KERNEL);
    CHECK(sig != SIGRTMIN || info->si_code == SI_QUEUE);
    // Queued signals must come in order, each once.
    if (sig == SIGRTMIN) CHECK(info->si_value.sival_int == handled);
    handled++;
}

static void *helper(void *unused) {
    (void)unused;
    char byte;
    if (is("flood")) {
        // The main thread gets a signal as soon as it has got one. It may do nothing else from then on,
        // so it has said before that it is ready.
        while (!is_ready) usleep(100);
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, 0);
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &flood) == 0);
        CHECK(timer_settime(flood, 0, &(struct itimerspec){{0, 1000}, {0, 1000}}, 0) == 0);
    }
    CHECK(read(0, &byte, 1) == 1);
    if (is("flood")) CHECK(timer_delete(flood) == 0);
    pthread_mutex_lock(&mutex);
    poked = 1;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
    if (is("socket")) CHECK(write(pair[1], "y", 1) == 1);
    if (is("semop")) CHECK(semop(semaphore, &(struct sembuf){0, 1, 0}, 1) == 0);
    if (is("pause") || is("sigtimedwait") || is("sigsuspend")) pthread_kill(main_thread, SIGUSR1);
    return (void *)42;
}

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec + ts.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    (void)argc;
    mode = argv[1];
    main_thread = pthread_self();
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGALRM, &action, 0);
    sigaction(SIGRTMIN, &action, 0);
    sigset_t usr1, none, rt;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigemptyset(&rt);
    sigaddset(&rt, SIGRTMIN);
    char byte = 0;

    if (is("wait4")) {
        pid_t child = fork();
        if (child == 0) { CHECK(read(0, &byte, 1) == 1); _exit(7); }
        int status;
        ready();
        CHECK(wait4(child, &status, 0, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    } else if (is("nanosleep")) {
        double start = now();
        ready();
        CHECK(nanosleep(&(struct timespec){0, 700000000}, 0) == 0);
        CHECK(now() - start >= 0.7);
        CHECK(read(0, &byte, 1) == 1);
    } else if (is("poll-timeout")) {
        // Nothing comes on this pipe: the time must run out, no earlier.
        CHECK(pipe(pair) == 0);
        double start = now();
        ready();
        CHECK(poll(&(struct pollfd){.fd = pair[0], .events = POLLIN}, 1, 700) == 0);
        CHECK(now() - start >= 0.7);
        CHECK(read(0, &byte, 1) == 1);
    } else if (is("read")) {
        ready();
        CHECK(read(0, &byte, 1) == 1 && byte == 'x');
    } else if (is("poll")) {
        ready();
        CHECK(poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 60000) == 1);
    } else if (is("ppoll")) {
        ready();
        CHECK(ppoll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, &(struct timespec){60, 0}, &none) == 1);
    } else if (is("select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(0, &set);
        ready();
        CHECK(select(1, &set, 0, 0, &(struct timeval){60, 0}) == 1);
    } else if (is("epoll")) {
        int epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 99};
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event) == 0);
        event.data.u64 = 0;
        ready();
        CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 99);
    } else if (is("alarm")) {
        // A handler runs a thousand times a second while we wait.
        struct itimerval every = {{0, 1000}, {0, 1000}};
        CHECK(setitimer(ITIMER_REAL, &every, 0) == 0);
        ready();
        CHECK(read(0, &byte, 1) == 1 && byte == 'x');
        CHECK(handled > 0);
    } else if (is("queue")) {
        // A child queues numbered signals as fast as they are taken.
        pid_t parent = getpid(), child = fork();
        if (child == 0) {
            for (int n = 0; n < 20000;) {
                if (sigqueue(parent, SIGRTMIN, (union sigval){.sival_int = n}) == 0) n++;
                else usleep(100);
                if (n % 16 == 0) usleep(50);
            }
            _exit(0);
        }
        ready();
        CHECK(read(0, &byte, 1) == 1 && byte == 'x');
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(handled == 20000);
    } else {
        if (is("sigtimedwait")) pthread_sigmask(SIG_BLOCK, &usr1, 0);
        if (is("sigsuspend")) pthread_sigmask(SIG_BLOCK, &usr1, 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        semaphore = semget(IPC_PRIVATE, 1, 0600);
        pthread_t thread;
        pthread_create(&thread, 0, helper, 0);
        ready();
        is_ready = 1;
        if (is("pause")) {
            CHECK(pause() == -1 && errno == EINTR && handled == 1);
        } else if (is("sigsuspend")) {
            CHECK(sigsuspend(&none) == -1 && errno == EINTR && handled == 1);
            sigset_t now_blocked;
            pthread_sigmask(SIG_BLOCK, 0, &now_blocked);
            CHECK(sigismember(&now_blocked, SIGUSR1) == 1);
        } else if (is("sigtimedwait")) {
            siginfo_t info;
            CHECK(sigtimedwait(&usr1, &info, &(struct timespec){60, 0}) == SIGUSR1);
            CHECK(handled == 0);
        } else if (is("cond")) {
            pthread_mutex_lock(&mutex);
            while (!poked) CHECK(pthread_cond_wait(&cond, &mutex) == 0);
            pthread_mutex_unlock(&mutex);
        } else if (is("socket")) {
            struct timeval timeout = {60, 0};
            CHECK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
            CHECK(recv(pair[0], &byte, 1, 0) == 1 && byte == 'y');
        } else if (is("semop")) {
            CHECK(semop(semaphore, &(struct sembuf){0, -1, 0}, 1) == 0);
        } else if (is("naps")) {
            // Many calls that end by themselves, so that somebody who steps through them comes to each end.
            while (!poked) CHECK(nanosleep(&(struct timespec){0, 3000000}, 0) == 0);
        } else if (is("spin") || is("flood")) {
            // Registers and flags carry the sum; any disturbance shows.
            unsigned long sum = 0, n = 0;
            while (!poked) for (unsigned long k = 0; k < 1000; k++) { sum += n++; __asm__ volatile("" : "+r"(sum), "+r"(n)); }
            // One of the two is even; the product may be more than 32 bits hold.
            CHECK(sum == (n % 2 ? n * ((n - 1) / 2) : n / 2 * (n - 1)));
        } else if (!is("join")) {
            CHECK(!"a known mode");
        }
        void *result;
        CHECK(pthread_join(thread, &result) == 0 && result == (void *)42);
        semctl(semaphore, 0, IPC_RMID);
    }
    puts("ok");
    return 0;
}
