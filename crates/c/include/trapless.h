/*
 * Probes in a program's own process, put in and taken out while all its threads run: handlers at functions, and functions that replace others.
 * Nobody is stopped and nobody is traced. Link with libtrapless_c.so, or load what is linked with it.
 *
 *     static void opened(trapless_call *call, void *data, uint64_t kept[2])
 *     {
 *         (void)data, (void)kept;
 *         fprintf(stderr, "%s\n", (const char *)trapless_call_arg(call, 0));
 *     }
 *
 *     trapless_probe *probe = trapless_on("libc.so.6:open*", opened, NULL, NULL, NULL);
 *     if (!probe)
 *         errx(1, "%s", trapless_last_error_message());
 *     ...
 *     trapless_remove(probe);
 *
 * Where: on x86-64 Linux. Elsewhere functions fail with TRAPLESS_MACHINE.
 *
 * Threads: all functions can be called by all threads at any time, several at once, and by handlers, too; not by handlers of signals, which may have interrupted
 * just that. What a handler was called with (trapless_call, trapless_return, kept) is for that thread and until the handler is over.
 *
 * Errors: a function that gives a pointer has failed where that is NULL. trapless_last_error and trapless_last_error_message say why, on the same thread.
 *
 * Null pointers: where a call, a return, a probe or a replacement is NULL, functions do nothing and give 0, NULL or false. One that is no longer there
 * must not be used, as after free().
 *
 * Handlers:
 * - A handler runs on the thread that calls the function, and several threads may be in it at once, with the same data.
 * - What a handler calls calls no handlers, whichever functions are probed; so it may call what it is at.
 * - errno is the program's again when a handler is over, whatever it has called. trapless_call_set_errno changes it.
 * - A handler comes back. It must not leave by longjmp, pthread_exit or cancellation. An exception that leaves it ends the process (abort).
 * - A handler at a function that is called with a lock held (malloc, ...) must not wait for that lock: it can use what the program could use there.
 *
 * A thread or a handler of a signal that blocks SIGTRAP stands in the way of putting probes in: it would be ended by a breakpoint that stands for a
 * moment meanwhile.
 *
 * fork: the child has the same probes, and its own copies of data. What was removed in one is still there in the other. dropped is called in each.
 * Children of vfork and clone call no handlers.
 *
 * dlclose: libtrapless_c.so stays loaded once it is. A library with handlers can be unloaded when dropped was called for all of them, one with
 * a function that is called instead of another when no thread can be in it.
 */
#ifndef TRAPLESS_H
#define TRAPLESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What has failed. A number never changes its meaning; new ones may be added. */
enum trapless_error {
    TRAPLESS_OK = 0,
    TRAPLESS_ARGUMENT = 1,     /* a NULL that must not be, no handler, a pattern that is not UTF-8, a function that is to replace itself */
    TRAPLESS_MACHINE = 2,      /* not on this machine */
    TRAPLESS_SECCOMP = 3,      /* there is a filter of system calls: see trapless_allow_seccomp */
    TRAPLESS_TRAP_BLOCKED = 4, /* a thread, or a handler of a signal, blocks SIGTRAP */
    TRAPLESS_PATTERN = 5,      /* a malformed pattern, or one that names something other than functions */
    TRAPLESS_NOT_FOUND = 6,    /* no function is there */
    TRAPLESS_REFUSED = 7,      /* it is there, and cannot be probed */
    TRAPLESS_MODIFIED = 8,     /* its code is not what its file has: another tool is there */
    TRAPLESS_REPLACED = 9,     /* it is replaced already */
    TRAPLESS_FULL = 10,        /* four probes follow its calls to their return already, or a script's and a handler would have to, or there are no counters left (32752 functions), or no room for timers */
    TRAPLESS_UNWINDER = 11,    /* calls cannot be followed: exceptions could not pass, as there is another unwinder than the system's */
    TRAPLESS_SYSTEM = 12,      /* the kernel refused something, or a file could not be read */
    TRAPLESS_INTERNAL = 13,    /* a bug of trapless */
    TRAPLESS_SCRIPT = 14,      /* a script is wrong: the message shows its lines */
    TRAPLESS_NOT_INSIDE = 15,  /* a script asks for what there is only from outside */
    TRAPLESS_WITHIN = 16       /* a script is waited for where it cannot be: in the function that it prints to, or in a forked child */
};

/* Why the last function that has failed on this thread did so; TRAPLESS_OK: none has. One that succeeds changes nothing. */
int trapless_last_error(void);

/* The same as a text in UTF-8, in English: what, where, and often what to do about it. Never NULL. It stays until the next function fails on this thread. */
const char *trapless_last_error_message(void);

/* The version of the library, such as "0.1.0". */
const char *trapless_version(void);

/* Whether there can be probes on this machine. */
bool trapless_is_possible(void);

/*
 * Says that the seccomp filter of this process lets pass what is called for probes: membarrier, mmap, writing to /proc/self/mem, and for handlers
 * at returns memfd_create, process_vm_readv and mincore, for counters madvise, for timers that, mprotect, munlock and prctl. Without that, a process with a filter is refused (TRAPLESS_SECCOMP), since a filter might end
 * it. Harmless where there is none. TRAPLESS_OK, or the error by which probes are not possible all the same.
 */
int trapless_allow_seccomp(void);

/* A call of a probed function, ahead of its first instruction. */
typedef struct trapless_call trapless_call;
/* A call of a probed function that has returned, and whose caller is about to go on. */
typedef struct trapless_return trapless_return;
/* Handlers at functions. */
typedef struct trapless_probe trapless_probe;
/* Calls that are counted. */
typedef struct trapless_counter trapless_counter;
/* Calls that are timed. */
typedef struct trapless_timer trapless_timer;
/* A script that runs. */
typedef struct trapless_script_run trapless_script_run;
/* A function that is called instead of another one. */
typedef struct trapless_replacement trapless_replacement;

/* A function of any kind. Convert to it, and call nothing by it. */
typedef void (*trapless_function)(void);

/*
 * Called at a function's entry. What it writes into kept (two words that are 0 before) is what the handler at that call's return finds there.
 * Without such a handler nobody does.
 */
typedef void (*trapless_enter)(trapless_call *call, void *data, uint64_t kept[2]);

/*
 * Called where a call returns, ahead of its caller. Of calls that began before the probe was in, that a handler has skipped, that an exception or longjmp leaves,
 * or that return after the probe was removed, it is not called. The thread may be another one than at the entry, if the program moves stacks between threads.
 */
typedef void (*trapless_leave)(trapless_return *returned, void *data, const uint64_t kept[2]);

/*
 * Called once, when no thread is in a probe's handlers any more and none can come there: data can be freed now. No handler and no thread waits
 * for it, and it may call all functions here. See trapless_remove.
 */
typedef void (*trapless_dropped)(void *data);

/*
 * Calls enter at the entries of all functions that a pattern means, and leave at their returns. One of the two may be NULL.
 *
 * pattern: "MODULE:FUNCTION", with globs on both sides: "libc.so.6:open*", "libfoo.so*:foo_*". Functions that match and cannot be probed
 * are left alone (trapless_probe_skipped). A pattern means what is loaded now.
 * data: given to the handlers as it is.
 * dropped: called for data once, or NULL. Also where this function fails, as behind trapless_remove: data is given away in any case.
 *
 * Handlers may be called before this function is back. At one function, the probe that came first enters first and leaves last.
 *
 * NULL where it fails: TRAPLESS_ARGUMENT, TRAPLESS_PATTERN, TRAPLESS_NOT_FOUND, TRAPLESS_REFUSED (nothing that matches can be probed),
 * TRAPLESS_FULL and TRAPLESS_UNWINDER (with leave alone), TRAPLESS_TRAP_BLOCKED, TRAPLESS_MODIFIED, and what is always possible: TRAPLESS_MACHINE,
 * TRAPLESS_SECCOMP, TRAPLESS_SYSTEM, TRAPLESS_INTERNAL.
 */
trapless_probe *trapless_on(const char *pattern, trapless_enter enter, trapless_leave leave, void *data, trapless_dropped dropped);

/*
 * The same at one function, by its address. A program that is not position-independent may have an entry of its PLT as the address of a library's function:
 * that is TRAPLESS_NOT_FOUND. dlsym has the real one.
 */
trapless_probe *trapless_on_function(trapless_function function, trapless_enter enter, trapless_leave leave, void *data,
                                     trapless_dropped dropped);

/*
 * Takes a probe out, and frees it: calls that begin when this is back call no handlers. NULL is none. As with free(), once.
 *
 * A thread that is in a handler by now stays there until it comes back, so data may still be in use. dropped is called when that is over: before this function is back,
 * mostly; otherwise by a later function that puts in or takes out a probe, or by trapless_reclaim, on whichever thread calls that.
 * A handler can remove its own probe; it is in it, so dropped waits. Where the kernel no longer tells who is in a handler (a new seccomp filter), dropped is never
 * called.
 */
void trapless_remove(trapless_probe *probe);

/*
 * Calls dropped for what was removed, as far as no thread is in it any more. How many still wait for a thread, are in dropped on another one, or can never be dropped (a new seccomp filter); 0: all was dropped. For who waits for it, ahead of
 * dlclose. While any thread is in any handler, what was removed meanwhile waits, so in a handler itself this may never come to 0. SIZE_MAX where it fails.
 */
size_t trapless_reclaim(void);

/* How many functions a probe is at. */
size_t trapless_probe_functions(const trapless_probe *probe);

/* How many functions match, and were left alone. */
size_t trapless_probe_skipped(const trapless_probe *probe);

/* The one with this number, from 0 on, and why: "MODULE:FUNCTION: REASON". NULL: there are not so many. It stays until the probe is removed. */
const char *trapless_probe_skipped_text(const trapless_probe *probe, size_t number);

/* How many calls that were to be followed to their return were left by an exception or the end of their thread. */
uint64_t trapless_probe_unwound(const trapless_probe *probe);

/*
 * How many calls of functions with handlers were let go without, in the whole process so far: more than 4096 threads had handlers called, or more than 32768 calls
 * were to be followed at a time, or 64 that go on in each other by jumps; or children were made without fork().
 */
uint64_t trapless_probe_missed(const trapless_probe *probe);

/* ---- Counters ---- */

/*
 * Counts the calls of all functions that a pattern means, as trapless_on understands it, from now until trapless_counter_remove. No handler is called, so this costs a
 * nanosecond or two, and all calls are counted, those that handlers make among them. In a forked child numbers go on from what they were.
 *
 * NULL where it fails: as trapless_on; TRAPLESS_FULL if no counters are left for any of them.
 */
trapless_counter *trapless_count(const char *pattern);

/* The same for one function. */
trapless_counter *trapless_count_function(trapless_function function);

/* How many calls there were so far, of all functions together. */
uint64_t trapless_counter_calls(const trapless_counter *counter);

/* How many functions' calls are counted. */
size_t trapless_counter_functions(const trapless_counter *counter);

/*
 * The function with this number, from 0 on, as "MODULE:FUNCTION", and, if calls is not NULL, how many calls of it there were. NULL: there are not so many. The name
 * stays until the counter is removed.
 */
const char *trapless_counter_function(const trapless_counter *counter, size_t number, uint64_t *calls);

/* Counts no longer, and frees the counter. NULL is none. As with free(), once. */
void trapless_counter_remove(trapless_counter *counter);

/* ---- Timers ---- */

/* What is known of calls that were timed. Times are in nanoseconds; p50 is the median, and p999 what 99.9 % of the calls are not above. */
typedef struct trapless_times {
    uint64_t calls;            /* that have returned */
    uint64_t lost;             /* that were not followed to their return */
    uint64_t average;
    uint64_t p50, p90, p99, p999;
    uint64_t longest;
} trapless_times;

/* So many calls took so long: from low on, and less than high, in nanoseconds. */
typedef struct trapless_bucket {
    uint64_t low, high, calls;
} trapless_bucket;

/*
 * Times the calls of all functions that a pattern means, as trapless_on understands it, from their entries to their returns, from now until trapless_timer_remove. No handler
 * is called, so this costs some nanoseconds, most of them for reading the clock. A call counts when it returns. One that is left by an exception or longjmp, that never
 * returns, or that a handler has skipped does not; nor does one that was under way when its function was timed for the first time.
 *
 * Lost are calls of more than 1023 threads with different thread pointers over all the time, calls on more than 128 MiB of stacks, and those that go to a replacement.
 * From the first time on dl_iterate_phdr and _dl_find_object of the C library have a jump in them, for good: unwinders are told real return addresses there. In a forked
 * child numbers go on from what they were.
 *
 * NULL where it fails: as trapless_on; TRAPLESS_REFUSED also where the thread must not read the clock; TRAPLESS_FULL if there is no room for any of them;
 * TRAPLESS_UNWINDER if unwinders cannot be told.
 */
trapless_timer *trapless_latency(const char *pattern);

/* The same for one function. */
trapless_timer *trapless_latency_function(trapless_function function);

/* How many functions' calls are timed. */
size_t trapless_timer_functions(const trapless_timer *timer);

/* What is known of all functions together. Within 20 ms of the first timer of the process, it waits until then. False: something is NULL. */
bool trapless_timer_times(const trapless_timer *timer, trapless_times *times);

/*
 * The function with this number, from 0 on, as "MODULE:FUNCTION", and, if times is not NULL, what is known of it. NULL: there are not so many. The name stays until the
 * timer is removed.
 */
const char *trapless_timer_function(const trapless_timer *timer, size_t number, trapless_times *times);

/*
 * The histogram of all functions together: how many buckets are not empty, of which the first ones, in rising order, are written to buckets, which has room for so many. With
 * NULL and 0 it only says how many there are. There are never more than 624.
 */
size_t trapless_timer_buckets(const trapless_timer *timer, trapless_bucket *buckets, size_t room);

/* How many calls were left by an exception since then, of all functions that are timed in the process, as far as the unwinder is gcc's. */
uint64_t trapless_timer_unwound(const trapless_timer *timer);

/* Times no longer, and frees the timer. Calls that are under way return as ever. NULL is none. As with free(), once. */
void trapless_timer_remove(trapless_timer *timer);

/* ---- Scripts ---- */

/*
 * What a script prints: length bytes of text, without a final 0. It is called on a thread of trapless's own, one call at a time, and comes back. What it calls is counted by no
 * script and calls no handlers. It must not wait for scripts: functions for them fail there with TRAPLESS_WITHIN, but for trapless_script_functions and trapless_script_is_over.
 */
typedef void (*trapless_output)(const char *text, size_t length, void *data);

/*
 * Runs a script of the probe language, as the command `trapless script` takes it, on this process, from now until trapless_script_stop: uprobe and uretprobe at functions, begin, end,
 * interval and profile. It is compiled to native code, which functions that are probed call without a handler. output is called with what it prints; where that is NULL it goes
 * to standard output. What is wrong at hits goes to standard error. dropped is called with data once when output is called no more, also where this fails.
 *
 *     trapless_script_run *run = trapless_script("uprobe:libc:malloc { @[arg0] = count(); }", NULL, NULL, NULL);
 *
 * In a forked child nothing of it runs. Calls of the thread of trapless's own are not counted.
 *
 * NULL where it fails: TRAPLESS_SCRIPT, TRAPLESS_NOT_INSIDE, TRAPLESS_WITHIN, and as trapless_latency.
 */
trapless_script_run *trapless_script(const char *source, trapless_output output, void *data, trapless_dropped dropped);

/* How many functions it probes. */
size_t trapless_script_functions(const trapless_script_run *script);

/* Whether it has ended itself, by exit(): its probes are out, and its end has run. It has to be stopped nevertheless. */
bool trapless_script_is_over(const trapless_script_run *script);

/*
 * What its maps hold now, as the command prints them at the end: how many bytes that has, of which the first ones are written to text, which has room for so many, with a final 0. With NULL
 * and 0 it only says how many there are. SIZE_MAX where it fails: TRAPLESS_WITHIN.
 */
size_t trapless_script_text(const trapless_script_run *script, char *text, size_t room);

/* The same as JSON, an object a line. */
size_t trapless_script_json(const trapless_script_run *script, char *text, size_t room);

/*
 * Takes its probes out, runs its end, prints its maps, and frees it. False: NULL is none; or in a forked child, or within what it prints to (it is stopped nevertheless, a bit later); or what it has
 * printed could not be written. As with free(), once.
 */
bool trapless_script_stop(trapless_script_run *script);

/* ---- Of a call ---- */

/* Arguments that can be asked for: numbers from 0 to 63, of those in floating-point registers from 0 to 7. Beyond that functions give 0 or false. */
#define TRAPLESS_ARGUMENTS 64
#define TRAPLESS_FLOATS 8

/* The address of the function. */
const void *trapless_call_function(const trapless_call *call);

/* Where the call came from: the address behind it. */
const void *trapless_call_return_address(const trapless_call *call);

/* The stack pointer, at which the return address lies. */
uint64_t trapless_call_stack_pointer(const trapless_call *call);

/*
 * An integer argument or pointer of the C convention, a whole word of 64 bits: the first six are in registers, others on the stack. The upper half of an int is
 * undefined: (int)trapless_call_arg(call, 0). What the function does not have is whatever lies there.
 */
uint64_t trapless_call_arg(const trapless_call *call, size_t number);

/* Floating-point arguments, which are counted apart from the others. */
double trapless_call_arg_double(const trapless_call *call, size_t number);
float trapless_call_arg_float(const trapless_call *call, size_t number);

/* What errno is for the program. */
int trapless_call_errno(const trapless_call *call);

/* Whether a handler has said that the call is skipped. */
bool trapless_call_is_skipped(const trapless_call *call);

/* Give the function another argument, which it has to have. False: there is no such number. */
bool trapless_call_set_arg(trapless_call *call, size_t number, uint64_t value);
bool trapless_call_set_arg_double(trapless_call *call, size_t number, double value);
bool trapless_call_set_arg_float(trapless_call *call, size_t number, float value);

/*
 * Skip the call: when all handlers at the entry are done, the caller goes on as if the function had returned this. A handler that comes later sees a skipped call, and may
 * give it another result. Handlers at the return are not called.
 */
bool trapless_call_return_with(trapless_call *call, uint64_t value);
bool trapless_call_return_with_double(trapless_call *call, double value);
bool trapless_call_return_with_float(trapless_call *call, float value);

/* Changes errno, as for a call that is skipped. */
bool trapless_call_set_errno(trapless_call *call, int value);

/* ---- Of a return ---- */

/* The address of the function. */
const void *trapless_return_function(const trapless_return *returned);

/* Where the caller goes on. */
const void *trapless_return_return_address(const trapless_return *returned);

/* The result, where it is an integer or a pointer; the second half of one of two words. The upper half of an int is undefined. */
uint64_t trapless_return_value(const trapless_return *returned);
uint64_t trapless_return_second(const trapless_return *returned);

/* The result, where it is a floating-point number. */
double trapless_return_double(const trapless_return *returned);
float trapless_return_float(const trapless_return *returned);

/* What the function has left in errno. */
int trapless_return_errno(const trapless_return *returned);

/* Give the caller another result. */
bool trapless_return_set_value(trapless_return *returned, uint64_t value);
bool trapless_return_set_double(trapless_return *returned, double value);
bool trapless_return_set_float(trapless_return *returned, float value);

/* Changes errno. */
bool trapless_return_set_errno(trapless_return *returned, int value);

/* ---- Functions instead of others ---- */

/*
 * Has all calls of function go to with instead, until trapless_put_back. with has the same convention, arguments and result, and does what
 * callers of function rely on. It is called directly: it is no handler, and nothing of the above holds for it.
 *
 * original: where the address is stored by which function can be called as it was, or NULL. It is there before with is called for the first time, and stays
 * callable for good, also when function is no longer replaced. Where this fails nobody needs it.
 *
 * NULL where it fails: TRAPLESS_ARGUMENT, TRAPLESS_NOT_FOUND, TRAPLESS_REFUSED, TRAPLESS_REPLACED, TRAPLESS_MODIFIED, TRAPLESS_TRAP_BLOCKED, and what is
 * always possible.
 */
trapless_replacement *trapless_replace(trapless_function function, trapless_function with, trapless_function *original);

/* The same address; NULL of NULL. */
trapless_function trapless_original(const trapless_replacement *replacement);

/* Has function called itself again, and frees the replacement. NULL is none. As with free(), once. Threads may be in the other function yet. */
void trapless_put_back(trapless_replacement *replacement);

#ifdef __cplusplus
}
#endif

#endif
