/* What the programs of the tests check with. */
#include "trapless.h"
#include <stdio.h>
#include <stdlib.h>

#define CHECK(is, ...)                                               \
    do {                                                             \
        if (!(is)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #is); \
            fprintf(stderr, __VA_ARGS__);                            \
            fputc('\n', stderr);                                     \
            abort();                                                 \
        }                                                            \
    } while (0)

#define CHECK_IS(is, expected)                                     \
    do {                                                           \
        long long is_so = (long long)(is);                         \
        CHECK(is_so == (long long)(expected), "it is %lld", is_so); \
    } while (0)
