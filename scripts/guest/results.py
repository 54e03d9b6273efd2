"""What test programs say, read while they say it: libtest's lines, and those of crates/testing."""
import re
from dataclasses import dataclass, field

RESULT = re.compile(r"test (\S+)(?: - .*?)? \.\.\. (ok|FAILED|ignored)(?:, (.*))?$")
LEFT_OUT = re.compile(r"((?:SKIPPED|NOT HERE): )(.+?): (.*)$")


@dataclass
class Results:
    """Of all programs. Names are PROGRAM::TEST; `skipped` has a reason for each, `failed` too where the test did not say itself."""
    passed: list = field(default_factory=list)
    failed: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)

    def summary(self):
        lines = [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [f"failed  {name}" + (f": {reason}" if reason else "") for name, reason in self.failed.items()]
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "\n".join([*lines, counts])


class Listener:
    """Takes what one test program says, passes it on to `show` line by line, and remembers how its tests ended."""

    def __init__(self, show):
        self.show, self.rest = show, {1: b"", 2: b""}
        # How each test ended, and why tests, or parts of them, were left out.
        self.ended, self.left_out = {}, {}

    def __call__(self, stream, text):
        *lines, self.rest[stream] = (self.rest[stream] + text).split(b"\n")
        for line in lines:
            self.line(stream, line.decode(errors="replace"))

    def line(self, stream, line):
        self.show(line)
        if stream == 1 and (found := RESULT.match(line)):
            self.ended[found[1]] = (found[2], found[3])
        if stream == 2 and (found := LEFT_OUT.match(line)):
            self.left_out.setdefault(found[2], found[1] + found[3])

    def finish(self):
        for stream, line in self.rest.items():
            if line:
                self.line(stream, line.decode(errors="replace"))
        self.rest = {1: b"", 2: b""}

    def count(self, program, asked, results, fault):
        """Adds how the tests that were `asked` to run have ended. `fault` is what happened to those that have not; None if nothing."""
        for test in asked:
            name = program.whole_name(test)
            end, why = self.ended.get(test, (None, None))
            if end == "ok" and test not in self.left_out:
                results.passed.append(name)
            elif end == "ok":
                results.skipped[name] = self.left_out[test]
            elif end == "ignored":
                results.skipped[name] = f"ignored{': ' if why else ''}{why or ''}"
            else:
                results.failed[name] = why or ("" if end else fault or "it did not end")
