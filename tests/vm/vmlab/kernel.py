"""A guest's kernel: found by its version, unpacked in the cache, its modules indexed.

Debian's packages come without modules.dep, which depmod would make at installation. The little
that is needed of it is read from the modules themselves: each tells in its .modinfo section what
it depends on.
"""
import concurrent.futures
import json
import lzma
import os
import re
import shutil

from .archive import Unavailable

IMAGE = re.compile(r"linux-(image|modules)-([0-9][0-9.]*\+[^-]+-amd64)(-unsigned)?$")
MODINFO = re.compile(rb"\0(name|depends|softdep|alias)=([^\0]*)")
SUFFIX = ".ko.xz"


def normal(name):
    return name.replace("-", "_")


def find_kernel(archive, version):
    """The newest kernel the archive has of a version ("6.12", or "6.12.95"). It is looked up once
    and then stays as it is: remove its folder from the cache to have it looked up again."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", version):
        raise Unavailable(f"not a kernel version: '{version}'")
    folder = archive.provide(os.path.join("kernels", version),
                             lambda making: fill(archive, version, making))
    return Kernel(folder)


def fill(archive, version, folder):
    packages = choose(archive.names(), version)
    root = os.path.join(folder, "root")
    os.mkdir(root)
    archive.unpack(packages, root)
    arrange(root, folder)
    with open(os.path.join(folder, "index.json"), "w", encoding="utf-8") as file:
        json.dump(index(os.path.join(folder, "modules")), file)


def choose(names, version):
    """The packages that make up the newest kernel of a version. Older ones are one package; later
    ones keep the kernel, its modules and the lists of what is built in apart."""
    there = set(names)
    found = {}
    for name in names:
        match = IMAGE.match(name)
        if not match:
            continue
        kind, release, unsigned = match.groups()
        number = release.partition("+")[0]
        if number != version and not number.startswith(version + "."):
            continue
        if kind == "modules":
            kernels = [n for n in (f"linux-binary-{release}", f"linux-binary-unsigned-{release}")
                       if n in there]
            base = [n for n in (f"linux-base-{release}",) if n in there]
            if kernels:
                found[release] = [name, kernels[0], *base]
        elif f"linux-modules-{release}" not in there and (release not in found or not unsigned):
            found[release] = [name]
    if not found:
        raise Unavailable(f"the archive has no kernel {version}")
    newest = max(found, key=lambda release: [int(n) for n in re.findall(r"\d+", release)])
    return found[newest]


def arrange(root, folder):
    """Move what is needed to fixed places, and forget the rest."""
    for modules in ("lib/modules", "usr/lib/modules"):
        if os.path.isdir(os.path.join(root, modules)):
            release, = os.listdir(os.path.join(root, modules))
            os.rename(os.path.join(root, modules, release), os.path.join(folder, "modules"))
    kernel = os.path.join(folder, "modules")
    for image in (os.path.join(root, "boot", "vmlinuz-" + release),
                  os.path.join(kernel, "vmlinuz"), os.path.join(kernel, "vmlinuz.unsigned")):
        if os.path.exists(image):
            os.rename(image, os.path.join(folder, "vmlinuz"))
    config = os.path.join(root, "boot", "config-" + release)
    if not os.path.exists(config):
        config = os.path.join(kernel, "config")
    os.rename(config, os.path.join(folder, "config"))
    with open(os.path.join(folder, "release"), "w", encoding="ascii") as file:
        file.write(release)
    shutil.rmtree(root)


def index(modules):
    """What every module needs, by its name. Unpacking them takes some seconds, so it is kept."""
    paths = [os.path.join(folder, name)
             for folder, _, names in os.walk(os.path.join(modules, "kernel"))
             for name in names if name.endswith(SUFFIX)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return {normal(os.path.basename(path)[:-len(SUFFIX)]): entry
                for path, entry in zip(paths, pool.map(lambda p: index_entry(modules, p), paths))}


def index_entry(modules, path):
    info = modinfo(read_module(path))
    return {
        "path": os.path.relpath(path, modules),
        "depends": [normal(name) for name in info["depends"]],
        "before": info["before"],
        "aliases": [alias for alias in info["aliases"] if "*" not in alias],
    }


def read_module(path):
    with lzma.open(path) as file:
        return file.read()


def modinfo(module):
    info = {"depends": [], "before": [], "aliases": []}
    for key, value in MODINFO.findall(module):
        text = value.decode("utf-8", "replace")
        if key == b"depends":
            info["depends"] = [n for n in text.split(",") if n]
        elif key == b"alias":
            info["aliases"].append(text)
        elif key == b"softdep":
            before = text.partition("pre:")[2].partition("post:")[0]
            info["before"] += before.split()
    return info


class Kernel:
    """One kernel in the cache. Read only."""

    def __init__(self, folder):
        self.folder = folder
        self.image = os.path.join(folder, "vmlinuz")
        with open(os.path.join(folder, "release"), encoding="ascii") as file:
            self.release = file.read().strip()
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
            self.modules = json.load(file)
        self._aliases = {}
        for name, entry in self.modules.items():
            for alias in entry["aliases"]:
                self._aliases.setdefault(alias, []).append(name)
        with open(os.path.join(folder, "modules", "modules.builtin"), encoding="utf-8") as file:
            self.builtin = {normal(os.path.basename(line.strip())[:-len(".ko")]) for line in file}

    def config(self, option):
        """What the kernel was configured with: "y", "m", another value, or None."""
        with open(os.path.join(self.folder, "config"), encoding="utf-8") as file:
            found = re.search(rf"^CONFIG_{re.escape(option)}=(.*)$", file.read(), re.M)
        return found.group(1) if found else None

    def find(self, name):
        """The modules behind a name: one, or those that carry it as an alias. None when it is
        built in. KeyError when the kernel has no such thing."""
        if normal(name) in self.modules:
            return [normal(name)]
        if normal(name) in self.builtin:
            return []
        found = self._aliases.get(name) or self._aliases.get("crypto-" + name)
        if not found:
            raise KeyError(f"kernel {self.release} has no module {name}")
        return found

    def closure(self, names):
        """Names of the modules that these need, with themselves. A module's soft dependencies are
        among them as far as the kernel has them."""
        wanted = [found for name in names for found in self.find(name)]
        closed = set()
        while wanted:
            name = wanted.pop()
            if name in closed:
                continue
            closed.add(name)
            wanted += [n for n in self.modules[name]["depends"] if n in self.modules]
            for soft in self.modules[name]["before"]:
                try:
                    wanted += self.find(soft)
                except KeyError:
                    pass
        return sorted(closed)

    def read(self, name):
        return read_module(os.path.join(self.folder, "modules", self.modules[name]["path"]))
