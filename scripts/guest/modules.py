#!/usr/bin/env python3
"""Finds the modules that a virtual machine needs in an unpacked kernel package, and writes them in the order in which they
are to be loaded: 00-name.ko, 01-name.ko and so on. What the kernel has built in is not there to be found.

usage: modules.py KERNEL OUTPUT

The package has no modules.dep, which is made when it is installed: each module names what it depends on."""
import lzma, os, re, sys

WANTED = ["virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "ext4", "crc32c_generic", "overlay"]


def main(kernel, output):
    found = {}
    for folder, _, files in os.walk(kernel):
        for file in files:
            if name := re.fullmatch(r"(.*)\.ko(\.xz)?", file):
                found[name[1].replace("-", "_")] = os.path.join(folder, file)
    order = {}

    def load(name):
        if name in order or name not in found:
            return
        with (lzma.open if found[name].endswith(".xz") else open)(found[name], "rb") as file:
            module = file.read()
        depends = re.search(rb"\0depends=([^\0]*)\0", module)
        for other in depends[1].decode().split(",") if depends else []:
            load(other.replace("-", "_"))
        order[name] = module

    for name in WANTED:
        load(name)
    os.makedirs(output)
    for index, (name, module) in enumerate(order.items()):
        with open(os.path.join(output, f"{index:02}-{name}.ko"), "wb") as file:
            file.write(module)


main(*sys.argv[1:])
