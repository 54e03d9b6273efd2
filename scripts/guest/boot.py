"""A running guest: Debian's kernel under qemu, with an agent in it that runs one command at a time."""
import fcntl, os, re, select, shutil, socket, subprocess, sys, tempfile, time
from compilers import Compilers

# What the kernel says when it or the machine is in trouble.
COMPLAINT = re.compile(r"Kernel panic|Oops|\bBUG:|WARNING: CPU|rcu.*stall|Unable to handle kernel|Internal error|^init: |^agent: ")
# Seconds; it takes five where nothing else runs.
BOOT_LIMIT = 300


class Died(Exception):
    """The guest does not answer. `known` is what it and its emulator said last, and where there is more."""

    def __init__(self, what, said, console):
        super().__init__(": ".join([what, *said[:1]]))
        self.known = [*said, f"its console is in {console}"]


class Hung(Exception):
    """A command that took too long, and was killed."""


def archive(entries):
    """An initial file system: (path, mode, bytes or device) in the format of cpio's newc."""
    whole = bytearray()
    for number, (path, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        name, device = path.encode() + b"\0", (0, 0)
        if isinstance(content, tuple):
            device, content = content, b""
        fields = [number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0]
        whole += b"070701" + b"".join(b"%08X" % value for value in fields) + name
        whole += b"\0" * (-len(whole) % 4) + content
        whole += b"\0" * (-len(whole) % 4)
    return bytes(whole)


class Guest:
    """`shares` are folders that the guest sees, read-only, at the same path; `scratch` those that are in its memory and are known to
    compilers of the host. Both are the host's paths. `state` is a folder for what a guest leaves behind: what its kernel said."""

    def __init__(self, machine, prefix, state, shares, scratch, cpus=2, memory=2048):
        self.machine, self.files, self.state = machine, os.path.join(prefix, "vm"), state
        self.shares, self.cpus, self.memory = shares, cpus, memory
        # Short: sockets have room for 107 bytes of path.
        self.folder = tempfile.mkdtemp(prefix="vm-")
        self.temporary = os.path.join(self.folder, "t")
        self.scratch = [self.temporary, *scratch]
        self.console = os.path.join(state, "console.log")
        self.emulator = self.compilers = self.port = None
        # How much of it was looked through. One file for all boots.
        self.read_console = 0
        # What a command is to read comes from this file.
        self.input = None
        for folder in [self.state, *self.scratch, os.path.join(self.folder, "requests")]:
            os.makedirs(folder, exist_ok=True)
        self.lock = open(os.path.join(state, "lock"), "w")

    def __enter__(self):
        # Another guest of that name has the same files.
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"vm: waiting for another run on {self.machine.name}", file=sys.stderr)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        open(self.console, "w").close()
        self.boot()
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def initial_file_system(self, tools):
        """Our own programs, the kernel's modules and what `init.c` is to do with the real root."""
        source = os.path.dirname(os.path.abspath(__file__))
        built = {}
        for name, sources in {"init": ["init.c", "agent.c"], "compile": ["compile.c"]}.items():
            built[name] = os.path.join(self.state, name)
            paths = [os.path.join(source, file) for file in sources]
            subprocess.run([f"{self.machine.tuple}-gcc", "-O2", "-static", "-w", "-o", built[name], *paths], check=True)
        lines = [f"share share{index} {path}" for index, path in enumerate(self.shares)]
        lines += [f"scratch scratch{index} {path}" for index, path in enumerate(self.scratch)]
        lines += ["requests requests"]
        lines += [f"tool {name}" for name in tools]
        entries = [("dev", 0o40755, b""), ("dev/console", 0o20600, (5, 1)), ("new", 0o40755, b""), ("modules", 0o40755, b"")]
        entries.append(("config", 0o100644, "".join(f"{line}\n" for line in lines).encode()))
        modules = os.path.join(self.files, self.machine.name, "modules")
        files = [(name, path) for name, path in built.items()]
        files += [(f"modules/{name}", os.path.join(modules, name)) for name in sorted(os.listdir(modules))]
        for name, path in files:
            with open(path, "rb") as file:
                entries.append((name, 0o100755, file.read()))
        path = os.path.join(self.state, "initrd")
        with open(path, "wb") as file:
            file.write(archive(entries))
        return path

    def command(self, initrd, port):
        """How the emulator is run."""
        own = os.path.join(self.files, self.machine.name)
        program, *board = self.machine.emulator
        # One thread for all processors: with a thread for each, a changed instruction may be executed as it was.
        command = [os.path.join(self.files, "bin", program), *board, "-accel", "tcg,thread=single", "-smp", str(self.cpus)]
        command += ["-m", str(self.memory), "-nodefaults", "-display", "none", "-no-reboot"]
        command += ["-chardev", f"file,id=console,path={self.console},append=on", "-serial", "chardev:console"]
        command += ["-kernel", os.path.join(own, "kernel"), "-initrd", initrd, "-append"]
        command += [" ".join([f"console={self.machine.console}", "loglevel=5", "panic=-1", *self.machine.kernel])]
        command += ["-drive", f"file={own}/root.ext4,format=raw,if=none,id=root,snapshot=on"]
        command += ["-device", "virtio-blk-pci,drive=root"]
        command += ["-chardev", f"socket,id=port,fd={port}", "-device", "virtio-serial-pci"]
        command += ["-device", "virtserialport,chardev=port,name=agent"]
        shared = [(f"share{index}", path, ",readonly=on") for index, path in enumerate(self.shares)]
        shared += [(f"scratch{index}", path, "") for index, path in enumerate(self.scratch)]
        shared += [("requests", os.path.join(self.folder, "requests"), "")]
        for tag, path, rights in shared:
            command += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{rights}"]
        return command

    def boot(self):
        self.compilers = Compilers(self.machine, self.files, os.path.join(self.folder, "requests"), self.state)
        initrd = self.initial_file_system(self.compilers.commands)
        ours, its = socket.socketpair()
        self.port, self.received = ours, b""
        with its, open(os.path.join(self.state, "emulator.log"), "w") as log:
            self.emulator = subprocess.Popen(self.command(initrd, its.fileno()), pass_fds=[its.fileno()],
                                             stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.compilers.start()
        self.ready(BOOT_LIMIT)

    def stop(self):
        """Without ceremony: what it has written is gone anyway."""
        if self.compilers:
            self.compilers.stop()
        if self.emulator:
            self.emulator.kill()
            self.emulator.wait()
            self.port.close()
        self.emulator = self.compilers = None

    def complaints(self):
        """What the kernel has said about itself since it was asked last."""
        with open(self.console, errors="replace") as file:
            file.seek(self.read_console)
            text = file.read()
            self.read_console = file.tell()
        return [line for line in text.splitlines() if COMPLAINT.search(line)]

    def died(self, what):
        # The last words come after the end of the connection.
        try:
            self.emulator.wait(5)
        except subprocess.TimeoutExpired:
            pass
        with open(os.path.join(self.state, "emulator.log"), errors="replace") as log:
            said = self.complaints() + log.read().splitlines()[-5:]
        return Died(what, said, self.console)

    # ---- the agent's protocol, which agent.c tells of

    def send(self, verb, words):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        self.port.sendall(b"%s %d\n" % (verb, len(text)) + text)

    def message(self, until):
        """The next message, as its words and the bytes after it; None when it is not there in time."""
        while True:
            line, end, rest = self.received.partition(b"\n")
            if end:
                words = line.split()
                length = int(words[1]) if words[0] in (b"1", b"2") else 0
                if len(rest) >= length:
                    self.received = rest[length:]
                    return words, rest[:length]
            wait = until - time.monotonic()
            files = [self.port] if self.input is None else [self.port, self.input]
            able = select.select(files, [], [], max(wait, 0))[0]
            if not able:
                return None
            if self.input in able:
                self.pass_input()
            if self.port not in able:
                continue
            try:
                more = self.port.recv(1 << 18)
            except ConnectionError:
                more = b""
            if not more:
                raise self.died("the machine stopped")
            self.received += more

    def pass_input(self):
        text = os.read(self.input, 1 << 14)
        self.port.sendall(b"input %d\n" % len(text) + text)
        if not text:
            self.input = None

    def ready(self, limit):
        until = time.monotonic() + limit
        while message := self.message(until):
            if message[0] == [b"ready"]:
                return
        raise self.died(f"nothing heard for {limit} seconds")

    def run(self, arguments, folder, variables, said, patience, limit, standard_input=None):
        """Runs a command and calls `said` with 1 or 2 and bytes for what it says; what comes from the file `standard_input` is for it
        to read. Its wait status.

        Raises Hung when it has said nothing for `patience` seconds or runs for more than `limit`, Died with the machine."""
        self.send(b"run", [folder, *(f"{name}={value}" for name, value in variables.items()), "", *arguments])
        self.input = standard_input
        if standard_input is None:
            self.port.sendall(b"input 0\n")
        end = time.monotonic() + limit
        while message := self.message(min(end, time.monotonic() + patience)):
            (what, *value), text = message
            if what == b"exit":
                self.input = None
                self.ready(BOOT_LIMIT)
                return int(value[0])
            said(int(what), text)
        self.input = None
        self.end_hung(folder, variables, said)
        raise Hung("hung, and was killed")

    def end_hung(self, folder, variables, said):
        """Shows what runs, threads with their tests' names, and kills it."""
        # Without --sort, which leaves out threads.
        show = "ps -eLww -o pid,ppid,lwp,stat,wchan:24,comm,args | grep -v ' \\['; kill -9 -1"
        self.send(b"aside", [folder, *(f"{name}={value}" for name, value in variables.items()), "", "sh", "-c", show])
        until, killed = time.monotonic() + 30, False
        while True:
            message = self.message(until)
            if not message and killed:
                raise self.died("nothing ends what hangs")
            if not message:
                self.port.sendall(b"kill\n")
                until, killed = time.monotonic() + 30, True
            elif message[0] == [b"ready"]:
                return
            elif message[0][0] in (b"1", b"2"):
                said(int(message[0][0]), message[1])
