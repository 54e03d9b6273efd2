/*
 * A module of Redis that probes the server which loads it. Of Redis's interface for modules it declares what it needs: the function that gives all others by
 * their names is the first word of what a module is called with.
 */
#include "check.h"
#include <stdatomic.h>

enum { REDIS_OK = 0, REDIS_ERR = 1, API_VERSION = 1 };

typedef struct context context;
typedef struct string string;
typedef int command(context *context, string **arguments, int count);

static int (*create_command)(context *, const char *name, command *, const char *flags, int first, int last, int step);
static int (*reply_with_number)(context *, long long);
static int (*reply_with_text)(context *, const char *);
static int (*reply_with_array)(context *, long);

/* What Redis looks for. */
int RedisModule_OnLoad(context *context, string **arguments, int count);
int RedisModule_OnUnload(context *context);

static int get(context *context, const char *name, void *function)
{
    int (*get_api)(const char *, void *) = *(int (**)(const char *, void *))context;
    return get_api(name, function);
}

/* What is counted at each of them: calls, returns, and returns that had another order than their calls. */
struct counts {
    const char *pattern;
    trapless_probe *probe;
    atomic_llong entered, left, wrong, dropped;
};

static struct counts all[] = {
    {.pattern = "redis-server:getCommand"},
    {.pattern = "redis-server:setCommand"},
    {.pattern = "redis-server:lookupKey*"},
    {.pattern = "libc.so.6:write"},
    {.pattern = "libjemalloc.so*:malloc"},
};
enum { PROBES = sizeof all / sizeof *all };

static void enter(trapless_call *call, void *data, uint64_t kept[2])
{
    struct counts *counts = data;
    kept[0] = (uint64_t)trapless_call_function(call);
    kept[1] = (uint64_t)trapless_call_return_address(call);
    atomic_fetch_add(&counts->entered, 1);
}

static void leave(trapless_return *returned, void *data, const uint64_t kept[2])
{
    struct counts *counts = data;
    bool is_same = kept[0] == (uint64_t)trapless_return_function(returned) &&
                   kept[1] == (uint64_t)trapless_return_return_address(returned);
    atomic_fetch_add(is_same ? &counts->left : &counts->wrong, 1);
}

static void drop(void *data)
{
    atomic_fetch_add(&((struct counts *)data)->dropped, 1);
}

/* PROBES.PUT: "OK", or what is in the way. */
static int put(context *context, string **arguments, int count)
{
    (void)arguments, (void)count;
    for (int n = 0; n < PROBES; n++) {
        if (all[n].probe)
            continue;
        all[n].probe = trapless_on(all[n].pattern, enter, leave, &all[n], drop);
        if (!all[n].probe)
            return reply_with_text(context, trapless_last_error_message());
    }
    return reply_with_text(context, "OK");
}

/* PROBES.COUNTS: five numbers for each. */
static int counts(context *context, string **arguments, int count)
{
    (void)arguments, (void)count;
    reply_with_array(context, 5 * PROBES);
    for (int n = 0; n < PROBES; n++) {
        reply_with_number(context, (long long)trapless_probe_functions(all[n].probe));
        reply_with_number(context, all[n].entered);
        reply_with_number(context, all[n].left);
        reply_with_number(context, all[n].wrong);
        reply_with_number(context, all[n].dropped);
    }
    return REDIS_OK;
}

/* Whether no thread is in a handler any more. */
static bool remove_all(void)
{
    for (int n = 0; n < PROBES; n++) {
        trapless_remove(all[n].probe);
        all[n].probe = NULL;
    }
    /* They come back soon. */
    for (int n = 0; n < 1000000; n++)
        if (!trapless_reclaim())
            return true;
    return false;
}

/* PROBES.REMOVE */
static int take_out(context *context, string **arguments, int count)
{
    (void)arguments, (void)count;
    return reply_with_text(context, remove_all() ? "OK" : "a thread does not come back");
}

int RedisModule_OnLoad(context *context, string **arguments, int count)
{
    (void)arguments, (void)count;
    void (*set_attributes)(struct context *, const char *, int version, int api_version);
    if (get(context, "RedisModule_SetModuleAttribs", &set_attributes) ||
        get(context, "RedisModule_CreateCommand", &create_command) ||
        get(context, "RedisModule_ReplyWithLongLong", &reply_with_number) ||
        get(context, "RedisModule_ReplyWithSimpleString", &reply_with_text) ||
        get(context, "RedisModule_ReplyWithArray", &reply_with_array))
        return REDIS_ERR;
    set_attributes(context, "probes", 1, API_VERSION);
    trapless_allow_seccomp();
    return create_command(context, "probes.put", put, "readonly", 0, 0, 0) ||
           create_command(context, "probes.counts", counts, "readonly", 0, 0, 0) ||
           create_command(context, "probes.remove", take_out, "readonly", 0, 0, 0);
}

int RedisModule_OnUnload(context *context)
{
    (void)context;
    return remove_all() ? REDIS_OK : REDIS_ERR;
}
