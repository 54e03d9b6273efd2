"""The machines that can be emulated: what makes them different, and nothing else of what is done with them."""
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Machine:
    """`tuple` is what names GNU's cross tools, `target` is Rust's name. `emulator` is a program of qemu with its options for the
    board and the processor, `console` the serial port's name in the kernel. `go` is Go's name."""
    name: str
    target: str
    tuple: str
    emulator: list
    console: str
    go: str
    # Options for the kernel.
    kernel: list = field(default_factory=list)
    # The machine whose programs it runs, if that is another.
    like: str = ""

    def compilers(self, files):
        """What the guest finds as a program and the host runs: its name in the guest, and the host's command. `files` is what vm-setup
        has fetched for the machine: what compilers of the host do not have."""
        gcc, gxx, headers = f"{self.tuple}-gcc", f"{self.tuple}-g++", ["-idirafter", f"{files}/include"]
        return {
            "gcc": [gcc, *headers], "cc": [gcc, *headers], "g++": [gxx, *headers], "c++": [gxx, *headers],
            "musl-gcc": [gcc, "-specs", f"{files}/musl/musl-gcc.specs"],
            "clang": ["clang", f"--target={self.tuple}", *headers],
            "clang++": ["clang++", f"--target={self.tuple}", *headers],
            "rustc": ["rustc", "--target", self.target, "-C", f"linker={gcc}"],
            "go": ["go"],
        }


ARM64 = Machine(
    name="arm64", target="aarch64-unknown-linux-gnu", tuple="aarch64-linux-gnu", go="arm64",
    # Pointer authentication by its own algorithm takes most of the time of code that has it. Where there is a streaming mode, scripts that read
    # memory are refused.
    emulator=["qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth-impdef=on,sme=off"],
    console="ttyAMA0",
)
POWERPC64LE = Machine(
    name="powerpc64le", target="powerpc64le-unknown-linux-gnu", tuple="powerpc64le-linux-gnu", go="ppc64le",
    # Without the firmware, which takes seconds; the capabilities are those that the emulator cannot give.
    emulator=["qemu-system-ppc64", "-machine",
              "pseries,x-vof=on,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken,cap-ccf-assist=off", "-cpu", "power9"],
    console="hvc0",
)
# 32 bits, kernel and all.
I686 = Machine(
    name="i686", target="i686-unknown-linux-gnu", tuple="i686-linux-gnu", go="386",
    emulator=["qemu-system-i386", "-machine", "pc", "-cpu", "max"],
    console="ttyS0",
)
MACHINES = {machine.name: machine for machine in [
    ARM64,
    POWERPC64LE,
    I686,
    # Pages of 16 and of 64 KiB, as other distributions have them.
    replace(ARM64, name="arm64-16k", like="arm64"),
    replace(POWERPC64LE, name="powerpc64le-64k", like="powerpc64le"),
]}
