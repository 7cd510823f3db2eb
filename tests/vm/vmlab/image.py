"""The guest's root: a tree of files in memory, written as an initramfs (cpio, newc).

A program brings the shared libraries that ldd names. Paths are those of a merged /usr: /bin, /sbin
and /lib* are links, and a file meant for them goes below /usr.
"""
import os
import re
import shutil
import stat
import subprocess

from .archive import Unavailable
from .kernel import modinfo

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
NOT_NEEDED = re.compile(r"usr/share/(doc|man|locale|lintian|bash-completion|info)(/|$)"
                        r"|.*(/__pycache__)(/|$)")
SYSTEM = ("/lib", "/usr/lib")
LIBRARY = re.compile(r"(?:=>\s*)?(/\S+)\s+\(0x")


class Tree:
    """Files, folders and links by path (relative, no leading slash)."""

    def __init__(self):
        self._entries = {}
        self._packages = []
        for name in MERGED:
            self._entries[name] = (stat.S_IFLNK | 0o777, "usr/" + name)

    def __contains__(self, path):
        return self._place(path) in self._entries

    def _place(self, path):
        path = os.path.normpath(path).lstrip("/")
        first, _, rest = path.partition("/")
        return f"usr/{path}" if first in MERGED and rest else path

    def _put(self, path, mode, what):
        path = self._place(path)
        if not path:
            return
        folder = os.path.dirname(path)
        if folder and folder not in self._entries:
            self._put(folder, stat.S_IFDIR | 0o755, b"")
        self._entries[path] = (mode, what)

    def folder(self, path, mode=0o755):
        self._put(path, stat.S_IFDIR | mode, b"")

    def text(self, path, text, mode=0o644):
        self._put(path, stat.S_IFREG | mode, text.encode() if isinstance(text, str) else text)

    def link(self, path, target):
        self._put(path, stat.S_IFLNK | 0o777, target)

    def file(self, source, path):
        """A file or folder of the host, with the libraries of every program in it."""
        if os.path.isdir(source):
            self._folder_of_host(source, path)
            return
        try:
            with open(source, "rb") as file:
                content = file.read()
        except OSError as error:
            raise FileNotFoundError(f"cannot put into the guest: {error}") from error
        mode = stat.S_IMODE(os.stat(source).st_mode)
        self._put(path, stat.S_IFREG | mode, content)
        if content[:4] == b"\x7fELF" and (mode & 0o111 or ".so" in os.path.basename(source)):
            self._libraries(source, bool(mode & 0o111))

    def _folder_of_host(self, source, path):
        self.folder(path)
        for folder, names, entries in os.walk(source):
            below = os.path.relpath(folder, source)
            for name in names + entries:
                here = os.path.join(folder, name)
                there = os.path.normpath(os.path.join(path, below, name))
                if NOT_NEEDED.match(there.lstrip("/")):
                    continue
                if os.path.islink(here):
                    self.link(there, os.readlink(here))
                elif os.path.isdir(here):
                    if self._place(there) not in self._entries:
                        self.folder(there)
                elif os.path.isfile(here):
                    self.file(here, there)

    def program(self, name):
        """A program of the host, found by its name, at the same place."""
        found = shutil.which(name, path="/usr/sbin:/usr/bin:" + os.environ.get("PATH", ""))
        if not found:
            raise Unavailable(f"{name} is not installed")
        self.file(os.path.realpath(found), found)

    def package(self, root):
        """An unpacked Debian package. Its libraries serve the programs that are added later."""
        self._packages.append(root)
        self.file(root, "/")

    def _libraries(self, program, required):
        run = subprocess.run(["ldd", program], stdin=subprocess.DEVNULL, capture_output=True,
                             env={**os.environ, "LD_LIBRARY_PATH": self._library_path()},
                             text=True, check=False)
        missing = re.findall(r"(\S+) => not found", run.stdout)
        if required and missing:
            raise Unavailable(f"{program} needs {', '.join(missing)}: that package is missing")
        for source in LIBRARY.findall(run.stdout):
            if any(source.startswith(root + "/") for root in self._packages):
                continue
            # A library out of a build folder goes where the loader looks without being told.
            path = source if source.startswith(SYSTEM) else f"/usr/lib/{os.path.basename(source)}"
            if path not in self:
                self._put(path, stat.S_IFREG | 0o755, _bytes(source))
            # The C library opens this one when a thread ends by pthread_exit().
            unwinder = os.path.join(os.path.dirname(source), "libgcc_s.so.1")
            if source.endswith("/libc.so.6") and unwinder not in self \
                    and os.path.exists(unwinder):
                self._put(unwinder, stat.S_IFREG | 0o755, _bytes(unwinder))

    def _library_path(self):
        names = ("lib", "usr/lib", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")
        return ":".join(os.path.join(root, name) for root in self._packages for name in names)

    def modules(self, kernel, names):
        """The named modules and all they need, and the lists that modprobe reads."""
        base = f"lib/modules/{kernel.release}"
        closed = kernel.closure(names)
        depends, aliases = [], []
        for name in closed:
            content = kernel.read(name)
            path = f"kernel/{name}.ko"
            self.text(f"{base}/{path}", content)
            below = _below(kernel, name)
            depends.append(f"{path}: {' '.join(f'kernel/{n}.ko' for n in below)}".rstrip())
            aliases += [f"alias {alias} {name}" for alias in modinfo(content)["aliases"]]
        self.text(f"{base}/modules.dep", "\n".join(depends) + "\n")
        self.text(f"{base}/modules.alias", "\n".join(aliases) + "\n")
        self.text(f"{base}/modules.builtin",
                  "".join(f"kernel/{name}.ko\n" for name in sorted(kernel.builtin)))

    def busybox(self, archive):
        """A shell and the usual commands: busybox under every name that is not taken."""
        root = archive.package("busybox-static")
        path = next((os.path.join(root, p) for p in ("usr/bin/busybox", "bin/busybox")
                     if os.path.exists(os.path.join(root, p))), None)
        if not path:
            raise Unavailable("the package busybox-static holds no busybox")
        self.text("usr/bin/busybox", _bytes(path), 0o755)
        applets = subprocess.run([path, "--list"], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, check=True).stdout.split()
        for applet in applets:
            if f"usr/bin/{applet}" not in self and f"usr/sbin/{applet}" not in self:
                self.link(f"usr/bin/{applet}", "busybox")
        if "usr/sbin/modprobe" not in self:
            self.link("usr/sbin/modprobe", "../bin/busybox")

    def write(self, target):
        """Write the tree as an initramfs."""
        with open(target, "wb") as out:
            for number, path in enumerate(sorted(self._entries), start=1):
                mode, what = self._entries[path]
                _cpio(out, path, number, mode, what.encode() if isinstance(what, str) else what)
            _cpio(out, "TRAILER!!!", 0, 0, b"")


def _bytes(path):
    with open(path, "rb") as file:
        return file.read()


def _below(kernel, name):
    """All modules that one needs by its symbols, in the order modules.dep has them: what is
    needed last comes first."""
    found = []
    wanted = list(kernel.modules[name]["depends"])
    while wanted:
        need = wanted.pop(0)
        if need not in kernel.modules:
            continue
        if need in found:
            found.remove(need)
        found.append(need)
        wanted += kernel.modules[need]["depends"]
    return found


def _cpio(out, path, number, mode, content):
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    out.write(header + bytes(-len(header) % 4))
    out.write(content + bytes(-len(content) % 4))
