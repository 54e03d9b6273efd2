/* All that the header offers, once. Ends with 0, or says which line was wrong. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTION(name) ((trapless_function)(name))
/* As other files' functions are called. */
#define APART __attribute__((noipa))

APART long sum(long a, long b)
{
    __asm__ volatile("" : "+r"(a));
    return a + b;
}

APART double product(double a, float b)
{
    __asm__ volatile("" : "+x"(a));
    return a * (double)b;
}

APART long eight(long a, long b, long c, long d, long e, long f, long g, long h)
{
    __asm__ volatile("" : "+r"(a));
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h;
}

/* As large as callers on other threads need it. */
struct data {
    atomic_long entered, left, dropped;
    trapless_probe *probe;
    long first, second;
    const void *function, *from;
    int error;
};

static void count(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)call, (void)kept;
    atomic_fetch_add(&((struct data *)data)->entered, 1);
}

static void count_return(trapless_return *returned, void *data, const uint64_t kept[2])
{
    (void)returned, (void)kept;
    atomic_fetch_add(&((struct data *)data)->left, 1);
}

static void dropped(void *data)
{
    atomic_fetch_add(&((struct data *)data)->dropped, 1);
}

static void counts_a_function_of_the_c_library(void)
{
    struct data data = {0};
    trapless_probe *probe = trapless_on("libc.so*:getppid", count, NULL, &data, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    CHECK_IS(trapless_probe_functions(probe), 1);
    CHECK_IS(trapless_probe_skipped(probe), 0);
    CHECK(!trapless_probe_skipped_text(probe, 0), "there is none");
    CHECK_IS(trapless_probe_missed(probe), 0);
    for (int n = 0; n < 1000; n++)
        getppid();
    CHECK_IS(data.entered, 1000);
    CHECK_IS(data.dropped, 0);
    trapless_remove(probe);
    CHECK_IS(data.dropped, 1);
    getppid();
    CHECK_IS(data.entered, 1000);
}

static void look(trapless_call *call, void *data, uint64_t kept[2])
{
    struct data *seen = data;
    (void)kept;
    seen->function = trapless_call_function(call);
    seen->from = trapless_call_return_address(call);
    seen->first = trapless_call_arg(call, 0);
    seen->second = trapless_call_arg(call, 1);
    CHECK(*(const void **)trapless_call_stack_pointer(call) == seen->from, "it lies there");
    CHECK(!trapless_call_is_skipped(call), "nobody has");
    trapless_call_set_arg(call, 1, 100);
}

static void sees_and_changes_arguments(void)
{
    struct data data = {0};
    trapless_probe *probe = trapless_on_function(FUNCTION(sum), look, NULL, &data, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    CHECK_IS(sum(7, 8), 107);
    CHECK_IS(data.first, 7);
    CHECK_IS(data.second, 8);
    CHECK(data.function == *(void **)&(trapless_function){FUNCTION(sum)}, "it is the function");
    CHECK(data.from, "it comes from somewhere");
    trapless_remove(probe);
    CHECK_IS(sum(7, 8), 15);
}

static void beyond(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)data, (void)kept;
    for (size_t number = 0; number < 8; number++)
        CHECK_IS(trapless_call_arg(call, number), number + 1);
    CHECK(trapless_call_set_arg(call, 7, 100), "there is one");
    const size_t many[] = {TRAPLESS_ARGUMENTS, 1000, SIZE_MAX / 8, SIZE_MAX};
    for (size_t n = 0; n < sizeof many / sizeof *many; n++) {
        CHECK_IS(trapless_call_arg(call, many[n]), 0);
        CHECK(trapless_call_arg_double(call, many[n]) == 0, "there is none");
        CHECK(trapless_call_arg_float(call, many[n]) == 0, "there is none");
        CHECK(!trapless_call_set_arg(call, many[n], 1), "there is none");
        CHECK(!trapless_call_set_arg_double(call, many[n], 1), "there is none");
        CHECK(!trapless_call_set_arg_float(call, many[n], 1), "there is none");
    }
    CHECK(!trapless_call_set_arg_double(call, TRAPLESS_FLOATS, 1), "there is none");
}

static void arguments_on_the_stack_and_beyond(void)
{
    trapless_probe *probe = trapless_on_function(FUNCTION(eight), beyond, NULL, NULL, NULL);
    CHECK(probe, "%s", trapless_last_error_message());
    CHECK_IS(eight(1, 2, 3, 4, 5, 6, 7, 8), 1 + 4 + 9 + 16 + 25 + 36 + 49 + 800);
    trapless_remove(probe);
}

static void change_floats(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)data, (void)kept;
    CHECK(trapless_call_arg_double(call, 0) == 1.5, "%f", trapless_call_arg_double(call, 0));
    CHECK(trapless_call_arg_float(call, 1) == 4.0f, "%f", (double)trapless_call_arg_float(call, 1));
    trapless_call_set_arg_float(call, 1, 8.0f);
}

static void add_one(trapless_return *returned, void *data, const uint64_t kept[2])
{
    (void)data, (void)kept;
    CHECK(trapless_return_set_double(returned, trapless_return_double(returned) + 1), "it is a return");
}

static void skip_with_float(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)data, (void)kept;
    trapless_call_return_with_double(call, 0.25);
}

static void floats_are_seen_and_changed(void)
{
    trapless_probe *probe = trapless_on_function(FUNCTION(product), change_floats, add_one, NULL, NULL);
    CHECK(probe, "%s", trapless_last_error_message());
    CHECK(product(1.5, 4) == 13, "it is changed");
    trapless_remove(probe);
    CHECK(product(1.5, 4) == 6, "it is as it was");
    probe = trapless_on_function(FUNCTION(product), skip_with_float, NULL, NULL, NULL);
    CHECK(product(1.5, 4) == 0.25, "it is skipped");
    trapless_remove(probe);
}

static void skip(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)kept;
    if (strcmp((const char *)trapless_call_arg(call, 0), "/skipped"))
        return;
    trapless_call_set_errno(call, EXDEV);
    trapless_call_return_with(call, (uint64_t)-1);
    CHECK(trapless_call_is_skipped(call), "it is");
    CHECK_IS(trapless_call_errno(call), EXDEV);
    /* Not what the program sees. */
    errno = ENOENT;
    atomic_fetch_add(&((struct data *)data)->entered, 1);
}

static void a_call_is_skipped_with_errno(void)
{
    struct data data = {0};
    trapless_probe *probe = trapless_on("libc.so*:rmdir", skip, NULL, &data, NULL);
    CHECK(probe, "%s", trapless_last_error_message());
    errno = 0;
    CHECK_IS(rmdir("/skipped"), -1);
    CHECK_IS(errno, EXDEV);
    CHECK_IS(rmdir("/nowhere/at all"), -1);
    CHECK_IS(errno, ENOENT);
    CHECK_IS(data.entered, 1);
    trapless_remove(probe);
    CHECK_IS(rmdir("/skipped"), -1);
    CHECK_IS(errno, ENOENT);
}

static void keep(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)data;
    CHECK_IS(kept[0], 0);
    CHECK_IS(kept[1], 0);
    kept[0] = trapless_call_arg(call, 0);
    kept[1] = ~trapless_call_arg(call, 1);
}

static void change_result(trapless_return *returned, void *data, const uint64_t kept[2])
{
    struct data *seen = data;
    CHECK_IS(trapless_return_value(returned), kept[0] + ~kept[1]);
    CHECK(trapless_return_function(returned) && trapless_return_return_address(returned), "they are there");
    CHECK_IS(trapless_return_errno(returned), 77);
    trapless_return_set_errno(returned, 78);
    trapless_return_set_value(returned, kept[0] * 1000 + ~kept[1]);
    atomic_fetch_add(&seen->left, 1);
}

static void returns_are_followed_with_what_was_kept(void)
{
    struct data data = {0};
    trapless_probe *probe = trapless_on_function(FUNCTION(sum), keep, change_result, &data, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    for (long n = 0; n < 100; n++) {
        errno = 77;
        CHECK_IS(sum(n, 5), n * 1000 + 5);
        CHECK_IS(errno, 78);
    }
    CHECK_IS(data.left, 100);
    CHECK_IS(trapless_probe_unwound(probe), 0);
    trapless_remove(probe);
    CHECK_IS(data.dropped, 1);
    CHECK_IS(sum(2, 5), 7);
    /* Without a handler at the entry. */
    probe = trapless_on_function(FUNCTION(sum), NULL, count_return, &data, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    CHECK_IS(sum(2, 5), 7);
    CHECK_IS(data.left, 101);
    trapless_remove(probe);
    CHECK_IS(data.dropped, 2);
}

static trapless_function original;

static long instead(long a, long b)
{
    return 10 * ((long (*)(long, long))original)(a, b);
}

static void a_function_is_replaced_and_calls_the_original(void)
{
    trapless_replacement *replacement = trapless_replace(FUNCTION(sum), FUNCTION(instead), &original);
    CHECK(replacement, "%s", trapless_last_error_message());
    CHECK(trapless_original(replacement) == original, "it is the same");
    CHECK_IS(sum(3, 4), 70);
    CHECK(!trapless_replace(FUNCTION(sum), FUNCTION(instead), NULL), "there is one");
    CHECK_IS(trapless_last_error(), TRAPLESS_REPLACED);
    trapless_put_back(replacement);
    CHECK_IS(sum(3, 4), 7);
    CHECK_IS(((long (*)(long, long))original)(3, 4), 7);
}

#define FAILS(number, failing, data, times)                                                                  \
    do {                                                                                                     \
        CHECK(!(failing), "it should fail");                                                                 \
        CHECK(trapless_last_error() == (number), "%d: %s", trapless_last_error(), trapless_last_error_message()); \
        CHECK(*trapless_last_error_message(), "it has a text");                                              \
        CHECK_IS((data).dropped, times);                                                                     \
    } while (0)

static void *sum_often(void *unused)
{
    (void)unused;
    for (long n = 0; n < 10000; n++)
        CHECK_IS(sum(n, 1), n + 1);
    return NULL;
}

static void calls_are_counted_without_a_handler(void)
{
    trapless_counter *counter = trapless_count_function(FUNCTION(sum));
    CHECK(counter, "%s", trapless_last_error_message());
    CHECK_IS(trapless_counter_functions(counter), 1);
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_create(&threads[n], NULL, sum_often, NULL), 0);
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_join(threads[n], NULL), 0);
    uint64_t calls = 0;
    const char *name = trapless_counter_function(counter, 0, &calls);
    CHECK(name && strstr(name, ":sum"), "%s", name);
    CHECK_IS(calls, 40000);
    CHECK_IS(trapless_counter_calls(counter), 40000);
    CHECK(!trapless_counter_function(counter, 1, &calls), "there is one");
    CHECK_IS(calls, 40000);
    trapless_counter_remove(counter);
    counter = trapless_count("libc.so.6:getpp*");
    CHECK(counter, "%s", trapless_last_error_message());
    getppid();
    CHECK_IS(trapless_counter_calls(counter), 1);
    trapless_counter_remove(counter);
    CHECK(!trapless_count(NULL) && !trapless_count_function(NULL), "NULL is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_ARGUMENT);
    CHECK(!trapless_count("libc.so.6:no_such_function"), "there is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_NOT_FOUND);
}

static void calls_are_timed_without_a_handler(void)
{
    trapless_timer *timer = trapless_latency_function(FUNCTION(sum));
    CHECK(timer, "%s", trapless_last_error_message());
    CHECK_IS(trapless_timer_functions(timer), 1);
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_create(&threads[n], NULL, sum_often, NULL), 0);
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_join(threads[n], NULL), 0);
    trapless_times times = {0}, all = {0};
    const char *name = trapless_timer_function(timer, 0, &times);
    CHECK(name && strstr(name, ":sum"), "%s", name);
    CHECK_IS(times.calls, 40000);
    CHECK_IS(times.lost, 0);
    CHECK(trapless_timer_times(timer, &all), "it is the only one");
    CHECK_IS(all.calls, 40000);
    CHECK_IS(all.lost, 0);
    CHECK(times.p50 <= times.p99 && times.p99 <= times.p999 && times.p999 <= times.longest, "%ld", (long)times.p99);
    trapless_bucket buckets[624];
    size_t count = trapless_timer_buckets(timer, NULL, 0);
    CHECK_IS(trapless_timer_buckets(timer, buckets, 624), count);
    uint64_t calls = 0;
    for (size_t n = 0; n < count; n++)
        calls += buckets[n].calls;
    CHECK_IS(calls, 40000);
    CHECK(!trapless_timer_function(timer, 1, &times) && trapless_timer_function(timer, 0, NULL), "there is one");
    CHECK_IS(trapless_timer_unwound(timer), 0);
    trapless_timer_remove(timer);
    timer = trapless_latency("libc.so.6:getpp*");
    CHECK(timer, "%s", trapless_last_error_message());
    getppid();
    CHECK(trapless_timer_times(timer, &times), "there are some");
    CHECK_IS(times.calls, 1);
    CHECK(!trapless_timer_times(timer, NULL), "NULL is none");
    trapless_timer_remove(timer);
    CHECK(!trapless_latency(NULL) && !trapless_latency_function(NULL), "NULL is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_ARGUMENT);
    CHECK(!trapless_latency("libc.so.6:no_such_function"), "there is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_NOT_FOUND);
    CHECK(!trapless_latency_function(FUNCTION(setjmp)), "it returns twice");
    CHECK_IS(trapless_last_error(), TRAPLESS_REFUSED);
}

struct said {
    char text[1024];
    size_t length;
    _Atomic(trapless_script_run *) run;
    atomic_size_t within;
    atomic_long dropped;
};

static void print(const char *text, size_t length, void *data)
{
    struct said *said = data;
    if (said->length + length < sizeof said->text) {
        memcpy(said->text + said->length, text, length);
        said->length += length;
    }
    /* It would wait for itself. */
    trapless_script_run *run = said->run;
    if (run)
        said->within = trapless_script_text(run, NULL, 0);
}

static void said_all(void *data)
{
    atomic_fetch_add(&((struct said *)data)->dropped, 1);
}

static void a_script_runs_until_it_is_stopped(void)
{
    struct said said = {0};
    char text[256];
    trapless_script_run *run = trapless_script(
        "uprobe:libc:getppid { @calls = count(); printf(\"one\\n\"); } end { printf(\"end\\n\"); }", print, &said, said_all);
    CHECK(run, "%s", trapless_last_error_message());
    CHECK_IS(trapless_script_functions(run), 1);
    for (int n = 0; n < 3; n++)
        getppid();
    CHECK_IS(trapless_script_text(run, NULL, 0), strlen("@calls: 3\n"));
    CHECK_IS(trapless_script_text(run, text, sizeof text), strlen("@calls: 3\n"));
    CHECK(!strcmp(text, "@calls: 3\n"), "%s", text);
    CHECK_IS(trapless_script_text(run, text, 4), strlen("@calls: 3\n"));
    CHECK(!strcmp(text, "@ca"), "%s", text);
    trapless_script_json(run, text, sizeof text);
    CHECK(!strcmp(text, "{\"type\": \"map\", \"data\": {\"@calls\": 3}}\n"), "%s", text);
    CHECK(!trapless_script_is_over(run), "it runs");
    CHECK_IS(said.dropped, 0);
    CHECK(trapless_script_stop(run), "%s", trapless_last_error_message());
    CHECK_IS(said.dropped, 1);
    CHECK(!strncmp(said.text, "one\none\none\nend\n\n\n@calls: 3\n", sizeof said.text), "%s", said.text);

    struct said once = {0};
    run = trapless_script("uprobe:libc:getppid { print(7); exit(); }", print, &once, said_all);
    CHECK(run, "%s", trapless_last_error_message());
    getppid();
    while (!trapless_script_is_over(run))
        usleep(1000);
    getppid();
    CHECK(trapless_script_stop(run), "%s", trapless_last_error_message());
    CHECK(!strcmp(once.text, "7\n\n\n"), "%s", once.text);

    struct said asks = {0};
    run = trapless_script("uprobe:libc:getppid { print(1); }", print, &asks, NULL);
    CHECK(run, "%s", trapless_last_error_message());
    asks.run = run;
    getppid();
    while (!asks.within)
        usleep(1000);
    asks.run = NULL;
    CHECK_IS(asks.within, SIZE_MAX);
    CHECK(trapless_script_stop(run), "%s", trapless_last_error_message());

    CHECK(!trapless_script(NULL, print, &said, said_all), "NULL is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_ARGUMENT);
    CHECK(!trapless_script("uprobe:libc:getppid { print(nothing); }", NULL, &said, said_all), "it is wrong");
    CHECK_IS(trapless_last_error(), TRAPLESS_SCRIPT);
    CHECK(strstr(trapless_last_error_message(), "script:1:"), "%s", trapless_last_error_message());
    CHECK(!trapless_script("uprobe:libc:getppid { @[ustack] = count(); }", print, &said, said_all), "there is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_NOT_INSIDE);
    CHECK(!trapless_script("uprobe:libc:no_such_function { }", print, &said, said_all), "there is none");
    CHECK_IS(trapless_last_error(), TRAPLESS_NOT_FOUND);
    CHECK_IS(said.dropped, 5);
}

static void *in_another_thread(void *unused)
{
    (void)unused;
    CHECK_IS(trapless_last_error(), TRAPLESS_OK);
    CHECK(!*trapless_last_error_message(), "nothing has failed here");
    return NULL;
}

static void errors_have_numbers(void)
{
    struct data data = {0};
    CHECK_IS(trapless_last_error(), TRAPLESS_OK);
    CHECK(!*trapless_last_error_message(), "nothing has failed yet");
    FAILS(TRAPLESS_ARGUMENT, trapless_on(NULL, count, NULL, &data, dropped), data, 1);
    FAILS(TRAPLESS_ARGUMENT, trapless_on("libc.so*:getppid", NULL, NULL, &data, dropped), data, 2);
    FAILS(TRAPLESS_ARGUMENT, trapless_on("libc.so*:\xff", count, NULL, &data, dropped), data, 3);
    FAILS(TRAPLESS_ARGUMENT, trapless_on_function(NULL, count, NULL, &data, dropped), data, 4);
    FAILS(TRAPLESS_ARGUMENT, trapless_on_function(FUNCTION(sum), NULL, NULL, &data, dropped), data, 5);
    FAILS(TRAPLESS_PATTERN, trapless_on("", count, NULL, &data, dropped), data, 6);
    FAILS(TRAPLESS_PATTERN, trapless_on("libc.so*:getppid+4", count, NULL, &data, dropped), data, 7);
    FAILS(TRAPLESS_NOT_FOUND, trapless_on("libc.so*:nothing_like_it", count, NULL, &data, dropped), data, 8);
    FAILS(TRAPLESS_NOT_FOUND, trapless_on("nothing.so:like_it", count, NULL, &data, dropped), data, 9);
    FAILS(TRAPLESS_NOT_FOUND, trapless_on_function((trapless_function)(uintptr_t)1, count, NULL, &data, dropped), data, 10);
    /* Not a constant, which would look as if somebody jumped there. */
    volatile uintptr_t midst = (uintptr_t)FUNCTION(sum);
    midst++;
    FAILS(TRAPLESS_NOT_FOUND, trapless_on_function((trapless_function)midst, count, NULL, &data, dropped), data, 11);
    FAILS(TRAPLESS_REFUSED, trapless_on("*:trapless_on", count, NULL, &data, dropped), data, 12);
    FAILS(TRAPLESS_REFUSED, trapless_on_function(FUNCTION(setjmp), NULL, count_return, &data, dropped), data, 13);
    FAILS(TRAPLESS_ARGUMENT, trapless_replace(NULL, FUNCTION(sum), NULL), data, 13);
    FAILS(TRAPLESS_ARGUMENT, trapless_replace(FUNCTION(sum), NULL, NULL), data, 13);
    FAILS(TRAPLESS_ARGUMENT, trapless_replace(FUNCTION(sum), FUNCTION(sum), &original), data, 13);
    trapless_probe *probes[5];
    for (int n = 0; n < 4; n++) {
        probes[n] = trapless_on_function(FUNCTION(sum), NULL, count_return, &data, NULL);
        CHECK(probes[n], "%s", trapless_last_error_message());
    }
    FAILS(TRAPLESS_FULL, trapless_on_function(FUNCTION(sum), NULL, count_return, &data, dropped), data, 14);
    CHECK_IS(sum(1, 2), 3);
    CHECK_IS(data.left, 4);
    for (int n = 0; n < 4; n++)
        trapless_remove(probes[n]);
    sigset_t trap, before;
    sigemptyset(&trap);
    sigaddset(&trap, SIGTRAP);
    CHECK_IS(pthread_sigmask(SIG_BLOCK, &trap, &before), 0);
    FAILS(TRAPLESS_TRAP_BLOCKED, trapless_on_function(FUNCTION(sum), count, NULL, &data, dropped), data, 15);
    CHECK_IS(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    pthread_t thread;
    CHECK_IS(pthread_create(&thread, NULL, in_another_thread, NULL), 0);
    CHECK_IS(pthread_join(thread, NULL), 0);
    CHECK_IS(trapless_last_error(), TRAPLESS_TRAP_BLOCKED);
    CHECK_IS(data.entered, 0);
}

static void nothing_is_asked_of_null(void)
{
    trapless_remove(NULL);
    trapless_put_back(NULL);
    CHECK(!trapless_original(NULL), "there is none");
    CHECK_IS(trapless_probe_functions(NULL) + trapless_probe_skipped(NULL), 0);
    CHECK_IS(trapless_probe_unwound(NULL) + trapless_probe_missed(NULL), 0);
    CHECK_IS(trapless_counter_calls(NULL) + trapless_counter_functions(NULL), 0);
    CHECK(!trapless_counter_function(NULL, 0, NULL), "of nothing");
    trapless_counter_remove(NULL);
    trapless_times times;
    CHECK_IS(trapless_timer_functions(NULL) + trapless_timer_buckets(NULL, NULL, 0) + trapless_timer_unwound(NULL), 0);
    CHECK(!trapless_timer_times(NULL, &times) && !trapless_timer_function(NULL, 0, &times), "of nothing");
    trapless_timer_remove(NULL);
    CHECK(!trapless_script_stop(NULL) && !trapless_script_is_over(NULL), "of nothing");
    CHECK_IS(trapless_script_functions(NULL) + trapless_script_text(NULL, NULL, 0) + trapless_script_json(NULL, NULL, 0), 0);
    CHECK(!trapless_probe_skipped_text(NULL, 0), "there is none");
    CHECK(!trapless_call_function(NULL) && !trapless_call_return_address(NULL), "there is none");
    CHECK_IS(trapless_call_stack_pointer(NULL) + trapless_call_arg(NULL, 0), 0);
    CHECK(trapless_call_arg_double(NULL, 0) == 0 && trapless_call_arg_float(NULL, 0) == 0, "there is none");
    CHECK(!trapless_call_is_skipped(NULL) && !trapless_call_errno(NULL), "there is none");
    CHECK(!trapless_call_set_arg(NULL, 0, 1) && !trapless_call_set_arg_double(NULL, 0, 1), "there is none");
    CHECK(!trapless_call_set_arg_float(NULL, 0, 1) && !trapless_call_return_with(NULL, 1), "there is none");
    CHECK(!trapless_call_return_with_double(NULL, 1) && !trapless_call_return_with_float(NULL, 1), "there is none");
    CHECK(!trapless_call_set_errno(NULL, 1), "there is none");
    CHECK(!trapless_return_function(NULL) && !trapless_return_return_address(NULL), "there is none");
    CHECK_IS(trapless_return_value(NULL) + trapless_return_second(NULL), 0);
    CHECK(trapless_return_double(NULL) == 0 && trapless_return_float(NULL) == 0, "there is none");
    CHECK(!trapless_return_errno(NULL) && !trapless_return_set_value(NULL, 1), "there is none");
    CHECK(!trapless_return_set_double(NULL, 1) && !trapless_return_set_float(NULL, 1), "there is none");
    CHECK(!trapless_return_set_errno(NULL, 1), "there is none");
}

static void remove_own(trapless_call *call, void *data, uint64_t kept[2])
{
    struct data *own = data;
    (void)call, (void)kept;
    trapless_remove(own->probe);
    CHECK_IS(own->dropped, 0);
    CHECK(trapless_reclaim(), "this thread is in it");
    CHECK_IS(own->dropped, 0);
    atomic_fetch_add(&own->entered, 1);
}

static void a_handler_removes_its_own_probe(void)
{
    struct data data = {0};
    data.probe = trapless_on_function(FUNCTION(sum), remove_own, count_return, &data, dropped);
    CHECK(data.probe, "%s", trapless_last_error_message());
    CHECK_IS(sum(1, 2), 3);
    CHECK_IS(sum(1, 2), 3);
    CHECK_IS(data.entered, 1);
    CHECK_IS(data.left, 0);
    CHECK_IS(trapless_reclaim(), 0);
    CHECK_IS(data.dropped, 1);
    CHECK_IS(trapless_reclaim(), 0);
    CHECK_IS(data.dropped, 1);
}

static atomic_long frees;

/* It puts in and takes out another probe, too. */
static void free_data(void *data)
{
    struct data other = {0};
    trapless_probe *probe = trapless_on_function(FUNCTION(eight), count, NULL, &other, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    trapless_remove(probe);
    CHECK_IS(other.dropped, 1);
    free(data);
    atomic_fetch_add(&frees, 1);
}

static void data_is_freed_when_it_is_dropped(void)
{
    for (int n = 0; n < 10; n++) {
        struct data *data = calloc(1, sizeof *data);
        trapless_probe *probe = trapless_on_function(FUNCTION(sum), count, NULL, data, free_data);
        CHECK(probe, "%s", trapless_last_error_message());
        CHECK_IS(sum(1, 2), 3);
        CHECK_IS(data->entered, 1);
        trapless_remove(probe);
        /* And where nothing is put in. */
        data = calloc(1, sizeof *data);
        CHECK(!trapless_on("libc.so*:nothing_like_it", count, NULL, data, free_data), "it is not there");
        CHECK_IS(trapless_last_error(), TRAPLESS_NOT_FOUND);
        CHECK_IS(frees, 2 * (n + 1));
    }
}

static void a_forked_child_has_probes_of_its_own(void)
{
    struct data data = {0};
    trapless_probe *probe = trapless_on_function(FUNCTION(sum), count, count_return, &data, dropped);
    CHECK(probe, "%s", trapless_last_error_message());
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        CHECK_IS(sum(1, 2), 3);
        CHECK_IS(data.entered + data.left, 2);
        trapless_remove(probe);
        CHECK_IS(data.dropped, 1);
        CHECK_IS(sum(1, 2), 3);
        CHECK_IS(data.entered + data.left, 2);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    CHECK_IS(status, 0);
    CHECK_IS(data.entered, 0);
    CHECK_IS(sum(1, 2), 3);
    CHECK_IS(data.entered + data.left, 2);
    trapless_remove(probe);
    CHECK_IS(data.dropped, 1);
}

static atomic_bool over;
static atomic_long calls;

static void *call_all_the_time(void *wrong)
{
    long n = 0;
    for (; !atomic_load(&over); n++)
        if (sum(n, 3) != n + 3)
            atomic_fetch_add((atomic_long *)wrong, 1);
    atomic_fetch_add(&calls, n);
    return NULL;
}

/* Data of one toggle, which is freed when nobody is in its handlers. */
struct toggle {
    atomic_long alive;
    struct data *all;
};

static void count_alive(trapless_call *call, void *data, uint64_t kept[2])
{
    struct toggle *toggle = data;
    CHECK_IS(toggle->alive, 1);
    count(call, toggle->all, kept);
    CHECK_IS(toggle->alive, 1);
}

static void count_return_alive(trapless_return *returned, void *data, const uint64_t kept[2])
{
    struct toggle *toggle = data;
    CHECK_IS(toggle->alive, 1);
    count_return(returned, toggle->all, kept);
    CHECK_IS(toggle->alive, 1);
}

static void free_toggle(void *data)
{
    struct toggle *toggle = data;
    CHECK_IS(atomic_exchange(&toggle->alive, 0), 1);
    dropped(toggle->all);
    free(toggle);
}

static void threads_call_while_probes_come_and_go(void)
{
    struct data data = {0}, all = {0};
    atomic_long wrong = 0;
    pthread_t threads[4];
    trapless_probe *whole = trapless_on_function(FUNCTION(sum), count, count_return, &all, dropped);
    CHECK(whole, "%s", trapless_last_error_message());
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_create(&threads[n], NULL, call_all_the_time, &wrong), 0);
    int toggles = 200;
    for (int n = 0; n < toggles; n++) {
        struct toggle *toggle = malloc(sizeof *toggle);
        *toggle = (struct toggle){1, &data};
        trapless_probe *probe = trapless_on_function(FUNCTION(sum), count_alive, n % 2 ? count_return_alive : NULL, toggle, free_toggle);
        CHECK(probe, "%s", trapless_last_error_message());
        /* Some of both kinds stay until others have surely run. */
        if (n % 16 < 2)
            usleep(5000);
        trapless_remove(probe);
    }
    atomic_store(&over, true);
    for (int n = 0; n < 4; n++)
        CHECK_IS(pthread_join(threads[n], NULL), 0);
    CHECK_IS(wrong, 0);
    CHECK_IS(trapless_reclaim(), 0);
    CHECK_IS(data.dropped, toggles);
    CHECK_IS(all.entered, calls);
    CHECK_IS(all.left, calls);
    CHECK(data.entered > 0 && data.left > 0, "%ld, %ld", (long)data.entered, (long)data.left);
    CHECK_IS(trapless_probe_missed(whole), 0);
    trapless_remove(whole);
    CHECK_IS(all.dropped, 1);
}

int main(void)
{
    CHECK(*trapless_version() >= '0' && *trapless_version() <= '9', "%s", trapless_version());
    nothing_is_asked_of_null();
    if (!trapless_is_possible()) {
        struct data data = {0};
        CHECK_IS(trapless_allow_seccomp(), TRAPLESS_MACHINE);
        FAILS(TRAPLESS_MACHINE, trapless_on("libc.so*:getppid", count, NULL, &data, dropped), data, 1);
        FAILS(TRAPLESS_MACHINE, trapless_replace(FUNCTION(sum), FUNCTION(instead), &original), data, 1);
        return 0;
    }
    /* Tests may run under a filter: of containers it is known that it lets pass what is called. */
    CHECK_IS(trapless_allow_seccomp(), TRAPLESS_OK);
    errors_have_numbers();
    counts_a_function_of_the_c_library();
    sees_and_changes_arguments();
    arguments_on_the_stack_and_beyond();
    floats_are_seen_and_changed();
    a_call_is_skipped_with_errno();
    returns_are_followed_with_what_was_kept();
    calls_are_counted_without_a_handler();
    calls_are_timed_without_a_handler();
    a_script_runs_until_it_is_stopped();
    a_function_is_replaced_and_calls_the_original();
    a_handler_removes_its_own_probe();
    data_is_freed_when_it_is_dropped();
    a_forked_child_has_probes_of_its_own();
    threads_call_while_probes_come_and_go();
    return 0;
}
