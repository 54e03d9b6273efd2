/* Threads that fault all the time, are interrupted by timers and by each other, on two stacks, and install their handlers again and
   again. Everything that they see is checked: "ROUNDS TICKS ELSEWHERE WRONG" is said again and again, and what was wrong. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define THREADS 3

extern char **environ;
static volatile unsigned long rounds, ticks, elsewhere, wrongs;
static void *page;
static __thread sigjmp_buf out;

/* Code of the program and its libraries, before anybody else's is there. */
static struct { unsigned long start, end; } code[64];
static int ranges;

static void wrong(int line)
{
	char text[32];
	int length = snprintf(text, sizeof text, "wrong: line %d\n", line);
	__atomic_fetch_add(&wrongs, 1, __ATOMIC_RELAXED);
	if (write(1, text, length) < 0)
		_exit(1);
}
#define CHECK(holds) do { if (!(holds)) wrong(__LINE__); } while (0)

__attribute__((noipa)) long loads(long *p, long y) { return *p + y; }
__attribute__((noipa)) long stores(long *p, long y) { *p = y; return y + 1; }
__attribute__((noipa)) long divides(long a, long b) { return a / b + a % b; }
__attribute__((noipa)) long deep(int n) { return n ? deep(n - 1) + 1 : 0; }
__attribute__((noipa)) double sums(const double *a, int n)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += a[i] * a[i];
	return sum;
}

static void find_code(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof line, maps)) {
		char rights[8];
		if (ranges < 64 && sscanf(line, "%lx-%lx %7s", &code[ranges].start, &code[ranges].end, rights) == 3)
			ranges += rights[2] == 'x';
	}
	fclose(maps);
}

static int is_code(unsigned long ip)
{
	for (int i = 0; i < ranges; i++)
		if (ip - code[i].start < code[i].end - code[i].start)
			return 1;
	return 0;
}

static unsigned long ip_of(void *context)
{
	return ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

static int is_of(unsigned long ip, void *function)
{
	return ip - (unsigned long)function < 32;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	unsigned long ip = ip_of(context);
	if (signal == SIGFPE) {
		CHECK(is_of(ip, divides) && (unsigned long)info->si_addr == ip);
		siglongjmp(out, 2);
	}
	CHECK((is_of(ip, loads) || is_of(ip, stores)) && info->si_addr == page && info->si_code == SEGV_ACCERR);
	siglongjmp(out, 1);
}

static void on_tick(int signal, siginfo_t *info, void *context)
{
	/* A stub that is itself interrupted is no code of the program's. Nobody but the program is seen otherwise. */
	if (!is_code(ip_of(context)))
		__atomic_fetch_add(&elsewhere, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&ticks, 1, __ATOMIC_RELAXED);
}

static void *worker(void *unused)
{
	stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	double squares[16];
	sigaltstack(&stack, NULL);
	for (int i = 0; i < 16; i++)
		squares[i] = i;
	for (;;) {
		for (volatile int i = 0; i < 30; i++) {
			int from = sigsetjmp(out, 1);
			if (!from) {
				switch (i % 10) {
				case 0: loads(page, 1); break;
				case 1: stores(page, 1); break;
				case 2: divides(i, 0); break;
				}
			}
			CHECK(from == (i % 10 < 2 ? 1 : i % 10 == 2 ? 2 : 0));
			long value = 7;
			CHECK(loads(&value, 3) == 10 && stores(&value, 9) == 10 && value == 9 && divides(17, 5) == 5);
			CHECK(sums(squares, 16) == 1240 && deep(20) == 20);
		}
		__atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void install(int flags)
{
	struct sigaction fault = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | flags };
	struct sigaction tick = { .sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART | flags };
	static int again;
	struct { int number; struct sigaction *action; } all[] = { { SIGSEGV, &fault }, { SIGFPE, &fault }, { SIGPROF, &tick }, { SIGUSR1, &tick } };
	for (int i = 0; i < 4; i++) {
		struct sigaction old;
		sigaction(all[i].number, all[i].action, &old);
		CHECK(!again || old.sa_sigaction == all[i].action->sa_sigaction);
	}
	again = 1;
}

static void child(void)
{
	int status;
	pid_t pid = fork();
	if (!pid) {
		long value = 1;
		int from = sigsetjmp(out, 1);
		if (!from)
			loads(page, 1);
		_exit(from != 1 || loads(&value, 1) != 2);
	}
	waitpid(pid, &status, 0);
	CHECK(status == 0);
	char *arguments[] = { "true", NULL };
	CHECK(posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) == 0);
	waitpid(pid, &status, 0);
	CHECK(status == 0);
}

int main(void)
{
	pthread_t threads[THREADS];
	struct itimerval often = { { 0, 700 }, { 0, 700 } };
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	find_code();
	install(0);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, NULL);
	setitimer(ITIMER_PROF, &often, NULL);
	puts("ready");
	for (unsigned turn = 1;; turn++) {
		usleep(5000);
		install(turn & 1 ? SA_ONSTACK : 0);
		for (int i = 0; i < THREADS; i++)
			pthread_kill(threads[i], SIGUSR1);
		if (turn % 20 == 0)
			child();
		printf("%lu %lu %lu %lu\n", rounds, ticks, elsewhere, wrongs);
		fflush(stdout);
	}
}
