"""Compilers that the guest asks for and the host runs. compile.c is the other side, and says what a request is made of."""
import concurrent.futures, os, shutil, subprocess, threading, time

# What of the guest's environment means something to a compiler.
VARIABLES = ("HOME", "LANG", "SOURCE_DATE_EPOCH", "RUSTFLAGS")


def contents(paths):
    """The files at and below the paths, with what tells that one has changed."""
    files = {}
    for path in paths:
        found = [path] if os.path.isfile(path) else []
        for folder, _, names in os.walk(path):
            found += [os.path.join(folder, name) for name in names]
        for file in found:
            status = os.lstat(file)
            files[file] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return files


class Compilers:
    """Answers requests in the folder `requests` until it is stopped. `files` is what vm-setup has fetched, `state` where compilers may
    keep things between runs."""

    def __init__(self, machine, files, requests, state):
        self.requests, self.ended = requests, threading.Event()
        self.commands = {name: command for name, command in machine.compilers(os.path.join(files, machine.name)).items() if shutil.which(command[0])}
        self.own = {"GOARCH": machine.go, "GOCACHE": os.path.join(state, "go")}
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def start(self):
        self.thread.start()

    def stop(self):
        self.ended.set()
        self.thread.join()

    def serve(self):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            while not self.ended.wait(0.004):
                for name in os.listdir(self.requests):
                    identity, kind = os.path.splitext(os.path.join(self.requests, name))
                    if kind == ".request":
                        os.rename(f"{identity}.request", f"{identity}.taken")
                        pool.submit(self.answer, identity)

    def answer(self, identity):
        with open(f"{identity}.taken", "rb") as file:
            words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        os.unlink(f"{identity}.taken")
        tool, folder, *rest = words
        end = rest.index("")
        variables, rest = dict(entry.split("=", 1) for entry in rest[:end]), rest[end + 1:]
        end = rest.index("")
        copied, arguments = rest[:end], rest[end + 1:]
        kept = {name: value for name, value in variables.items() if name in VARIABLES or name.startswith(("GO", "CGO_"))}
        before = contents(copied)
        given = f"{identity}.in" if os.path.exists(f"{identity}.in") else os.devnull
        with open(given, "rb") as read, open(f"{identity}.out", "wb") as out, open(f"{identity}.err", "wb") as err:
            try:
                status = subprocess.run([*self.commands[tool], *arguments], cwd=folder if os.path.isdir(folder) else "/",
                                        env=os.environ | kept | self.own, stdin=read, stdout=out, stderr=err,
                                        timeout=600).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                err.write(f"{error}\n".encode())
                status = 125
        if given != os.devnull:
            os.unlink(given)
        changed = [path for path, known in contents(copied).items() if before.get(path) != known]
        with open(f"{identity}.part", "w", errors="surrogateescape") as reply:
            reply.write("".join(f"{line}\n" for line in [status, *changed]))
        os.rename(f"{identity}.part", f"{identity}.reply")
