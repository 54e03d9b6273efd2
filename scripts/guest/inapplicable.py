"""Tests that have nothing to test on a machine, and why. A test that can tell by itself says so with `inapplicable!` instead."""
import fnmatch

# (machine, program, test, reason), the first three as the shell's patterns.
X86 = "only x86-64 has this yet"
ASSEMBLY = "its programs are written in assembly of x86-64"
TESTS = [
    # Functions that look at their return addresses are followed to their exits there.
    ("*", "exits", "*", X86),
    # It steps through our code and a handler's, and a step takes exclusive accesses apart: their loops come to no end.
    ("arm64*", "forked_inside", "*", "threads cannot be stepped through exclusive accesses"),
    ("powerpc64le*", "forked_inside", "*", "threads cannot be stepped through reservations"),
    # Calls of Go are followed there, and handlers of its signals shown the program.
    ("*", "goroutines", "*", X86),
    ("*", "go_handlers", "*", X86),
    # Its programs are in assembly.
    ("*", "go_assembly", "*", ASSEMBLY),
    # Stacks are not walked past what calls a replacement there, so the replacement is not where another library can be loaded.
    ("powerpc64le*", "replace_refused", "calls_are_not_led_round_in_a_circle", "nothing is loaded in calls of what replaces a function"),
    ("powerpc64le*", "recipes", "*_redis_*", "redis handles faults, so fewer of its functions can be probed than the page shows"),
    # Most of its functions look whether there is stack for them ahead of where a probe would stand.
    ("powerpc64le*", "refused", "r4_go_*", "functions of Go have no stack for probes there"),
]


def inapplicable(machine, program, tests):
    """Those of a program's tests that are not to be run, and why."""
    return {test: reason for *patterns, reason in TESTS for test in tests
            if all(map(fnmatch.fnmatchcase, (machine, program, test), patterns))}
