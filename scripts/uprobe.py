"""The kernel's own uprobes, by perf_event_open: a breakpoint that counts and does nothing else.

An event belongs to one process, unlike those of tracefs, which count (and slow) whoever runs the file. It is gone when
closed. See the kernel's Documentation/ABI/testing/sysfs-bus-event_source-devices-format and perf_event_open(2)."""
import ctypes, os, struct

PMU = "/sys/bus/event_source/devices/uprobe"
LIBC = ctypes.CDLL(None, use_errno=True)
PERF_EVENT_OPEN = {"x86_64": 298, "i686": 336, "aarch64": 241, "ppc64le": 319}.get(os.uname().machine)
CLOSE_ON_EXEC = 8
DISABLED, ENABLE_ON_EXEC = 1 << 0, 1 << 12


def why_not():
    """What keeps this user from having the kernel's probes; None if nothing does."""
    if PERF_EVENT_OPEN is None or not os.path.exists(PMU):
        return "the kernel has no uprobe events"
    # The right itself is only known by trying; without root it is hardly ever there.
    return None if os.geteuid() == 0 else "the kernel's uprobes need root"


def number(path):
    with open(path) as file:
        return int(file.read().strip().removeprefix("config:"))


class Uprobe:
    """A probe at `offset` in the file `path`, for the first thread of the process `pid`; `returns`: where the function that
    begins there returns. With `at_exec` it begins with the program that the process is about to start."""

    def __init__(self, path, offset, pid, returns=False, at_exec=False):
        name = ctypes.create_string_buffer(path.encode())
        flags = DISABLED | ENABLE_ON_EXEC if at_exec else 0
        config = returns << number(f"{PMU}/format/retprobe")
        # struct perf_event_attr, version 5: type, size, config, period, sample type, read format, flags, wake-up,
        # breakpoint type, config1: the path, config2: the offset, and what is zero.
        attributes = ctypes.create_string_buffer(struct.pack(
            "=IIQQQQQIIQQ", number(f"{PMU}/type"), 112, config, 0, 0, 0, flags, 0, 0, ctypes.addressof(name), offset), 112)
        self.event = LIBC.syscall(PERF_EVENT_OPEN, attributes, pid, -1, -1, ctypes.c_ulong(CLOSE_ON_EXEC))
        if self.event < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open", path)

    def hits(self):
        return struct.unpack("=Q", os.read(self.event, 8))[0]

    def close(self):
        os.close(self.event)


def file_offset(path, address):
    """Where in an ELF file the byte is that it has at a virtual address."""
    with open(path, "rb") as file:
        header = file.read(64)
        wide, order = header[4] == 2, "<" if header[5] == 1 else ">"
        start, = struct.unpack_from(order + ("Q" if wide else "I"), header, 32 if wide else 28)
        size, count = struct.unpack_from(order + "HH", header, 54 if wide else 42)
        file.seek(start)
        table = file.read(size * count)
    for at in range(0, size * count, size):
        if wide:
            kind, _, offset, virtual, _, length = struct.unpack_from(order + "IIQQQQ", table, at)
        else:
            kind, offset, virtual, _, length = struct.unpack_from(order + "IIIII", table, at)
        if kind == 1 and virtual <= address < virtual + length:
            return address - virtual + offset
    raise ValueError(f"{path}: {address:#x} is in no segment")
