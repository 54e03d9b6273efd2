// Exceptions: through calls that are followed, and out of handlers, which must not be.
#include "trapless.h"
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <stdexcept>

__attribute__((noipa)) int half(int number)
{
    if (number % 2)
        throw std::runtime_error("it is odd");
    return number / 2;
}

static void nothing(trapless_call *, void *, uint64_t *) {}
static void enter(trapless_call *, void *, uint64_t *) { throw std::runtime_error("enter"); }
static void leave(trapless_return *, void *, const uint64_t *) { throw std::runtime_error("leave"); }
static void dropped(void *) { throw std::runtime_error("dropped"); }
static void exit_thread(trapless_call *, void *, uint64_t *) { pthread_exit(nullptr); }
static void count(trapless_return *, void *data, const uint64_t *) { ++*static_cast<int *>(data); }

static int through()
{
    int returned = 0, odd = 0;
    trapless_probe *probe = trapless_on_function(reinterpret_cast<trapless_function>(half), nothing, count, &returned, nullptr);
    if (!probe) {
        std::puts(trapless_last_error_message());
        return 1;
    }
    for (int number : {4, 5}) {
        try {
            half(number);
        } catch (const std::runtime_error &) {
            odd++;
        }
    }
    std::printf("%d was left, %d has returned\n", int(trapless_probe_unwound(probe)), returned);
    trapless_remove(probe);
    return odd != 1;
}

int main(int, char **arguments)
{
    trapless_allow_seccomp();
    const char *what = arguments[1];
    if (!std::strcmp(what, "through"))
        return through();
    auto is = [what](const char *other) { return !std::strcmp(what, other); };
    std::puts("goes in");
    std::fflush(stdout);
    trapless_probe *probe =
        trapless_on_function(reinterpret_cast<trapless_function>(half), is("enter") ? enter : is("exit") ? exit_thread : nothing,
                             is("leave") ? leave : nullptr, nullptr, is("dropped") ? dropped : nullptr);
    if (!probe) {
        std::puts(trapless_last_error_message());
        return 1;
    }
    try {
        half(4);
        trapless_remove(probe);
    } catch (...) {
    }
    std::puts("goes on");
}
