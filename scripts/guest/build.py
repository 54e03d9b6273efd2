"""The workspace's test programs and the tool, built for a machine by cargo."""
import json, os, re, subprocess, sys
from dataclasses import dataclass

# Packages whose tests need a system of the machine's own. The others' run under qemu-user, or anywhere.
END_TO_END = ["trapless-process", "trapless-engine", "trapless-session", "trapless-bench", "trapless"]


@dataclass(frozen=True)
class Target:
    """What cargo can test. `name` is that of its file without the ending, or its crate's for what is tested within. Where the tests of many files
    are one program, each file is a target, and `module` its name."""
    package: str
    name: str
    kind: str
    module: str = ""

    @property
    def file(self):
        return self.module or self.name

    @property
    def prefix(self):
        """What the names of its tests begin with in the program."""
        return f"{self.module}::" if self.module else ""

    @property
    def meant_by(self):
        """PACKAGE, PROGRAM, or PACKAGE/PROGRAM."""
        programs = {self.name, self.file}
        return {self.package, *programs, *(f"{self.package}/{program}" for program in programs)}

    @property
    def built_as(self):
        return self.package, self.name, self.kind

    def __str__(self):
        return f"{self.package}/{self.file}"


@dataclass(frozen=True)
class TestProgram:
    target: Target
    path: str
    folder: str

    def whole_name(self, test):
        return f"{self}::{test.removeprefix(self.target.prefix)}"

    def left_out(self, compiled):
        """The tests of a module that are written for other machines, by the names that they would have in the program, and what they are written
        for; `compiled` are those that it has."""
        source = os.path.join(self.folder, "tests", self.target.name, f"{self.target.module}.rs")
        if not self.target.module or not os.path.exists(source):
            return {}
        with open(source) as file:
            text = file.read()
        whole = re.search(r"^#!\[cfg\((.*)\)\]$", text, re.MULTILINE)
        reason = f"not compiled here{': it is for ' + whole[1] if whole else ''}"
        written = re.findall(r"^#\[test\]\n(?:#\[.*\]\n)*fn (\w+)", text, re.MULTILINE)
        return {name: reason for name in (self.target.prefix + test for test in written) if name not in compiled}

    def __str__(self):
        return str(self.target)


def modules(source):
    """The files whose tests are one program, by the one that names them; [""] where a file is a program."""
    if not source.endswith("/end_to_end/main.rs"):
        return [""]
    with open(source) as file:
        return [name for name in re.findall(r"^mod (\w+);$", file.read(), re.MULTILINE) if name != "support"]


def environment(prefix):
    """This process's, with what cross-setup has written: linkers, and a compiler where rustup has none."""
    env = os.path.join(prefix, "env")
    shown = subprocess.run(["bash", "-c", '. "$1" && env -0', "-", env], check=True, capture_output=True, text=True)
    return dict(entry.split("=", 1) for entry in shown.stdout.split("\0") if entry)


class Workspace:
    def __init__(self, root, machine, prefix):
        self.root, self.machine, self.env = root, machine, environment(prefix)
        # One for each machine: tests keep files in its `tmp`, which are named alike on all of them.
        self.target = os.path.join(root, "target", "vm", machine.like or machine.name)
        # Names by manifest.
        self.packages = {}

    def cargo(self, *arguments):
        """What cargo says of what it has built, and whether that is all."""
        command = ["cargo", *arguments, "--locked", "--message-format", "json-render-diagnostics",
                   "--target", self.machine.target, "--target-dir", self.target]
        done = subprocess.run(command, cwd=self.root, env=self.env, stdout=subprocess.PIPE, text=True)
        messages = map(json.loads, done.stdout.splitlines())
        built = [message for message in messages if message["reason"] == "compiler-artifact" and message["executable"]]
        return built, done.returncode == 0

    def targets(self):
        """All that can be tested."""
        shown = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
                               cwd=self.root, env=self.env, check=True, capture_output=True, text=True)
        for package in json.loads(shown.stdout)["packages"]:
            self.packages[package["manifest_path"]] = package["name"]
            for target in package["targets"]:
                if target["test"]:
                    for module in modules(target["src_path"]):
                        yield Target(package["name"], target["name"], target["kind"][0], module)

    def choose(self, names):
        """Those that names mean."""
        targets = list(self.targets())
        if not names:
            return [target for target in targets if target.package in END_TO_END]
        chosen = []
        for name in names:
            meant = [target for target in targets if name in target.meant_by]
            if not meant:
                sys.exit(f"vm: no test program is called {name}")
            chosen += [target for target in meant if target not in chosen]
        return chosen

    def build_tests(self, names):
        """The test programs that names mean, and the names of those that could not be built."""
        chosen = self.choose(names)
        arguments, kinds = [], {target.kind for target in chosen}
        for package in sorted({target.package for target in chosen}):
            arguments += ["-p", package]
        for name in sorted({target.name for target in chosen if target.kind == "test"}):
            arguments += ["--test", name]
        arguments += [option for kind, option in {"lib": "--lib", "bin": "--bins"}.items() if kind in kinds]
        # Tests of that name look for them beside themselves.
        if any(target.file == "examples" for target in chosen):
            self.cargo("build", "-p", "trapless", "--examples")
        programs = {}
        # What does not compile keeps nothing else from being tested.
        artifacts, whole = self.cargo("test", "--no-run", "--no-fail-fast", *arguments)
        for artifact in artifacts:
            target, manifest = artifact["target"], artifact["manifest_path"]
            if artifact["profile"]["test"]:
                built_as = self.packages[manifest], target["name"], target["kind"][0]
                programs[built_as] = artifact["executable"], os.path.dirname(manifest)
        missing = [str(target) for target in chosen if not whole and target.built_as not in programs]
        return [TestProgram(target, *programs[target.built_as]) for target in chosen if target.built_as in programs], missing

    def build_tool(self):
        """The folder with the tool in it."""
        built, whole = self.cargo("build", "-p", "trapless")
        if not whole:
            sys.exit("vm: trapless could not be built")
        return os.path.dirname(built[0]["executable"])
