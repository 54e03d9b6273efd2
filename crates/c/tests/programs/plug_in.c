/* What a program loads that knows nothing of probes: it counts allocations, whichever thread does them. */
#include "check.h"
#include <stdatomic.h>

/* By which the host knows it. */
int start(void);
long stop(long *returned);

static atomic_long entered, left, dropped;
static trapless_probe *probe;

static void enter(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)data;
    kept[0] = trapless_call_arg(call, 0);
    atomic_fetch_add(&entered, 1);
}

static void leave(trapless_return *returned, void *data, const uint64_t kept[2])
{
    (void)data;
    CHECK(trapless_return_value(returned) || !kept[0], "there is memory");
    atomic_fetch_add(&left, 1);
}

static void drop(void *data)
{
    atomic_fetch_add((atomic_long *)data, 1);
}

int start(void)
{
    CHECK_IS(trapless_allow_seccomp(), TRAPLESS_OK);
    probe = trapless_on("libc.so*:malloc", enter, leave, &dropped, drop);
    CHECK(probe, "%s", trapless_last_error_message());
    return 0;
}

long stop(long *returned)
{
    CHECK_IS(trapless_probe_missed(probe), 0);
    trapless_remove(probe);
    while (trapless_reclaim())
        ;
    CHECK_IS(dropped, 1);
    *returned = left;
    return entered;
}
