"""The command: lab run, lab fetch, lab modules. README.md has examples."""
import argparse
import os
import shutil
import signal
import sys

from .archive import Archive, Unavailable
from .guest import TOLD_LINES
from .kernel import find_kernel
from .laboratory import NAME, Lab, LabError

EXIT_LAB = 125
EXIT_SKIP = 77


def main(words):
    options = parser().parse_args(words)
    # meson ends a test that takes too long with SIGTERM: leave nothing behind then either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return options.command(options)
    except Unavailable as reason:
        print(f"lab: skipped: {reason}", file=sys.stderr)
        return EXIT_SKIP
    except (LabError, OSError, KeyError, ValueError) as error:
        print(f"lab: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return EXIT_LAB


def parser():
    top = argparse.ArgumentParser(prog="lab", description="Linux guests under QEMU, for tests")
    top.add_argument("--cache", metavar="DIR", help="where downloads are kept "
                     "(default: gmblock-vm in the user's cache folder)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="boot guests and run a script in each")
    run.set_defaults(command=command_run)
    run.add_argument("--kernel", default="6.12", metavar="VERSION")
    run.add_argument("--script", action="append", required=True, metavar="[NAME=]FILE",
                     help="one guest for each; '-' reads standard input")
    run.add_argument("--module", action="append", default=[], metavar="'NAME [PARAMETER]...'",
                     help="load this module at the start")
    run.add_argument("--have-module", action="append", default=[], metavar="NAME",
                     help="have this module at hand for modprobe")
    run.add_argument("--file", action="append", default=[], metavar="PATH[:GUEST-PATH]",
                     help="a file or folder for the guests, by default in /lab")
    run.add_argument("--program", action="append", default=[], metavar="NAME",
                     help="a program of the host")
    run.add_argument("--package", action="append", default=[], metavar="NAME",
                     help="a Debian package, unpacked into the guests")
    run.add_argument("--disk", action="append", default=[], type=int, metavar="MIB",
                     help="an empty disk for each guest, /dev/vda and so on")
    run.add_argument("--memory", type=int, default=512, metavar="MIB")
    run.add_argument("--cpus", type=int, default=1, metavar="N")
    run.add_argument("--append", default="", metavar="WORDS", help="for the kernel's command line")
    run.add_argument("--qemu", action="append", default=[], metavar="ARGUMENT",
                     help="a further argument for QEMU (--qemu=-device --qemu=nvme,...)")
    run.add_argument("--time-limit", type=float, default=120, metavar="SECONDS")
    run.add_argument("--results", metavar="DIR",
                     help="keep each guest's logs and results in DIR/NAME")
    fetch = commands.add_parser("fetch", help="download and unpack kernels")
    fetch.set_defaults(command=command_fetch)
    fetch.add_argument("version", nargs="+")
    modules = commands.add_parser("modules", help="tell whether a kernel has these modules")
    modules.set_defaults(command=command_modules)
    modules.add_argument("version")
    modules.add_argument("module", nargs="*")
    return top


def command_run(options):
    with Lab(time_limit=options.time_limit, cache=options.cache) as lab:
        for item in options.script:
            name, path = script_of(item)
            lab.guest(name, options.kernel, read(path),
                      load=options.module, modules=options.have_module,
                      files=[pair(item) for item in options.file], programs=options.program,
                      packages=options.package, disks=[mib << 20 for mib in options.disk],
                      memory=options.memory, cpus=options.cpus, append=options.append,
                      qemu=options.qemu)
        printer = Printer(lab)
        try:
            lab.start()
            lab.wait(tick=printer)
        except LabError:
            pass  # each guest's failure tells it
        printer()
        for guest in lab.guests.values():
            conclude(guest, options.results)
        return outcome(lab.guests.values())


def conclude(guest, results):
    seconds = f"{guest.seconds or 0:.1f} s"
    if guest.boot_seconds is not None:
        seconds += f", booted in {guest.boot_seconds:.1f} s"
    print(f"lab: {guest.name} ({guest.kernel.release}): "
          f"{guest.failure or f'status {guest.status}'} after {seconds}", file=sys.stderr)
    if guest.failure and guest.failure != "killed":
        print(*guest.console.splitlines()[-TOLD_LINES:], sep="\n", file=sys.stderr)
    if not results:
        return
    target = os.path.join(results, guest.name)
    os.makedirs(target, exist_ok=True)
    for name in ("console.log", "output.log", "qemu.log"):
        if os.path.exists(guest.path(name)):
            shutil.copy(guest.path(name), target)
    if os.path.isdir(guest.results):
        shutil.copytree(guest.results, target, dirs_exist_ok=True)


def outcome(guests):
    """The status of the first guest that reported a bad one; EXIT_LAB when one did not report."""
    bad = [guest.status for guest in guests if guest.status]
    if bad:
        return bad[0]
    return EXIT_LAB if any(guest.failure for guest in guests) else 0


def script_of(item):
    name, found, path = item.partition("=")
    return (name, path) if found and NAME.fullmatch(name) else ("guest", item)


def pair(item):
    source, found, path = item.rpartition(":")
    return (source, path) if found else (item, f"/lab/{os.path.basename(os.path.normpath(item))}")


def read(path):
    if path == "-":
        return sys.stdin.read()
    with open(path, encoding="utf-8") as file:
        return file.read()


class Printer:
    """Shows what the scripts print while they run, whole lines, with the guest's name if there
    are several."""

    def __init__(self, lab):
        self.lab = lab
        self.shown = dict.fromkeys(lab.guests, 0)

    def __call__(self):
        for name, guest in self.lab.guests.items():
            text = guest.output
            end = len(text) if not guest.running else text.rfind("\n") + 1
            new = text[self.shown[name]:end]
            self.shown[name] = max(end, self.shown[name])
            prefix = f"{name}: " if len(self.lab.guests) > 1 else ""
            for line in new.splitlines():
                print(prefix + line, flush=True)


def command_fetch(options):
    archive = Archive(options.cache)
    for version in options.version:
        kernel = find_kernel(archive, version)
        print(f"{version}: {kernel.release}, {len(kernel.modules)} modules, in {kernel.folder}")
    return 0


def command_modules(options):
    kernel = find_kernel(Archive(options.cache), options.version)
    missing = 0
    for name in options.module or sorted(kernel.modules):
        try:
            found = kernel.find(name)
            print(f"{name}: {'module ' + ' '.join(found) if found else 'built in'}")
        except KeyError:
            print(f"{name}: missing")
            missing = 1
    return missing
