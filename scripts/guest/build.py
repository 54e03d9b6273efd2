"""The workspace's test programs and the tool, built for a machine by cargo."""
import json, os, subprocess, sys
from dataclasses import dataclass

# Packages whose tests need a system of the machine's own. The others' run under qemu-user, or anywhere.
END_TO_END = ["trapless-process", "trapless-engine", "trapless-session", "trapless-bench", "trapless"]


@dataclass(frozen=True)
class TestProgram:
    """`name` is that of its file without the ending, or its crate's for what is tested within."""
    package: str
    name: str
    path: str
    folder: str

    def __str__(self):
        return f"{self.package}/{self.name}"


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
        """All that can be tested: (package, name, kind)."""
        shown = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"],
                               cwd=self.root, env=self.env, check=True, capture_output=True, text=True)
        for package in json.loads(shown.stdout)["packages"]:
            self.packages[package["manifest_path"]] = package["name"]
            for target in package["targets"]:
                if target["test"]:
                    yield package["name"], target["name"], target["kind"][0]

    def choose(self, names):
        """Those that names mean: PACKAGE, TEST or PACKAGE/TEST."""
        targets = list(self.targets())
        if not names:
            return [target for target in targets if target[0] in END_TO_END]
        chosen = []
        for name in names:
            meant = [target for target in targets if name in (target[0], target[1], f"{target[0]}/{target[1]}")]
            if not meant:
                sys.exit(f"vm: no test program is called {name}")
            chosen += [target for target in meant if target not in chosen]
        return chosen

    def build_tests(self, names):
        """The test programs that names mean, and the names of those that could not be built."""
        chosen = self.choose(names)
        arguments, kinds = [], {kind for _, _, kind in chosen}
        for package in sorted({package for package, _, _ in chosen}):
            arguments += ["-p", package]
        for name in sorted({name for _, name, kind in chosen if kind == "test"}):
            arguments += ["--test", name]
        arguments += [option for kind, option in {"lib": "--lib", "bin": "--bins"}.items() if kind in kinds]
        # Tests of that name look for them beside themselves.
        if any(name == "examples" for _, name, _ in chosen):
            self.cargo("build", "-p", "trapless", "--examples")
        programs = {}
        # What does not compile keeps nothing else from being tested.
        artifacts, whole = self.cargo("test", "--no-run", "--no-fail-fast", *arguments)
        for built in artifacts:
            target, manifest = built["target"], built["manifest_path"]
            identity = (self.packages[manifest], target["name"], target["kind"][0])
            if built["profile"]["test"]:
                programs[identity] = TestProgram(*identity[:2], built["executable"], os.path.dirname(manifest))
        missing = [f"{package}/{name}" for package, name, kind in chosen if not whole and (package, name, kind) not in programs]
        return [programs[identity] for identity in chosen if identity in programs], missing

    def build_tool(self):
        """The folder with the tool in it."""
        built, whole = self.cargo("build", "-p", "trapless")
        if not whole:
            sys.exit("vm: trapless could not be built")
        return os.path.dirname(built[0]["executable"])
