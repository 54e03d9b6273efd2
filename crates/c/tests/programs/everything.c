/* Counts and follows calls of all that a pattern means, and goes on with its work. Says what of the library itself was left alone. */
#define _GNU_SOURCE
#include "check.h"
#include <stdatomic.h>
#include <string.h>

static atomic_long entered;

static void enter(trapless_call *call, void *data, uint64_t kept[2])
{
    (void)call, (void)data, (void)kept;
    atomic_fetch_add(&entered, 1);
}

static void leave(trapless_return *returned, void *data, const uint64_t kept[2])
{
    (void)returned, (void)data, (void)kept;
}

static void work(void)
{
    for (int n = 0; n < 1000; n++) {
        char text[100], *copy = strdup("a text");
        CHECK(copy, "there is memory");
        snprintf(text, sizeof text, "%s %d", copy, n);
        CHECK_IS(atoi(text + strlen(copy)), n);
        free(copy);
    }
}

int main(int count, char **arguments)
{
    CHECK_IS(count, 2);
    CHECK_IS(trapless_allow_seccomp(), TRAPLESS_OK);
    const trapless_leave leaves[] = {NULL, leave};
    for (int n = 0; n < 2; n++) {
        trapless_probe *probe = trapless_on(arguments[1], enter, leaves[n], NULL, NULL);
        /* All of a library may be what is left alone. */
        if (!probe) {
            CHECK_IS(trapless_last_error(), TRAPLESS_REFUSED);
            puts(trapless_last_error_message());
            continue;
        }
        work();
        for (size_t number = 0; number < trapless_probe_skipped(probe); number++) {
            const char *text = trapless_probe_skipped_text(probe, number);
            if (strstr(text, "libtrapless_c"))
                puts(text);
        }
        CHECK(entered, "something is called");
        trapless_remove(probe);
        work();
    }
    return 0;
}
