#!/usr/bin/python3
"""The Debian packages, as far as can be said without building them: their version is the
program's, every installed file is in exactly one package, and the symbols are those of the libraries.

    package-files.py SOURCE_ROOT BUILD_ROOT
"""
import glob
import json
import os
import re
import subprocess
import sys
import unittest

SOURCE, BUILD = (os.path.realpath(path) for path in sys.argv[1:3])
DEBIAN = os.path.join(SOURCE, "packaging/debian")
# Left to debhelper, which knows in which folder they belong.
BY_RULES = {"/usr/lib/systemd/system/gmblock.service", "/usr/lib/systemd/system/gmblock.socket",
            "/usr/lib/systemd/system/gmblock-attach@.service", "/usr/lib/sysusers.d/gmblock.conf"}


def read(name):
    with open(os.path.join(DEBIAN, name), encoding="utf-8") as file:
        return file.read()


def introspect(what):
    done = subprocess.run(["meson", "introspect", what, BUILD], capture_output=True, text=True,
                          check=True)
    return json.loads(done.stdout)


def installed():
    """Where Debian would have them: the prefix is /usr, and libraries lie in a folder of their
    architecture."""
    options = {option["name"]: option["value"] for option in introspect("--buildoptions")}
    prefix = options["prefix"]
    libdir = os.path.join(prefix, options["libdir"])
    found = set()
    for path in introspect("--installed").values():
        if path.endswith("/gmblock.py"):
            path = "/python/gmblock.py"  # taken from the source
        elif path.startswith(libdir + "/"):
            path = "/usr/lib/TRIPLET" + path[len(libdir):]
        found.add(re.sub("^" + re.escape(prefix) + "/", "/usr/", path))
    return found


def patterns(suffix):
    """(package, pattern) of every line of the files with that ending."""
    for path in glob.glob(f"{DEBIAN}/*.{suffix}"):
        package = os.path.basename(path)[:-len(suffix) - 1]
        for line in read(os.path.basename(path)).splitlines():
            words = line.split()
            if words and not line.startswith("#"):
                yield package, "/" + words[0].removeprefix("debian/tmp/")


def covers(pattern, path):
    """A star stands for no slash; the name of a folder for all in it."""
    text = re.escape(pattern).replace(r"\*", "[^/]*")
    return re.fullmatch(text + "(/.*)?", path) is not None


class PackageFiles(unittest.TestCase):
    def test_the_version(self):
        version = introspect("--projectinfo")["version"]
        self.assertEqual(re.match(r"gmblock \((.*?)\)", read("changelog")).group(1), version)

    def test_every_file_is_in_one_package(self):
        lines = [*patterns("install"), *patterns("manpages")]
        files = installed() - BY_RULES
        used = set()
        self.assertGreater(len(files), 30)
        for path in sorted(files):
            owners = [line for line in lines if covers(line[1], path)]
            with self.subTest(path):
                self.assertEqual(len(owners), 1)
            used.update(owners)
        self.assertEqual(set(lines) - used, set())

    def test_symbols(self):
        for library, package in (("libgmblock", "libgmblock0"), ("libclan", "libclan0")):
            path = f"{BUILD}/src/{library}.so.0"
            if not os.path.exists(path):
                self.skipTest("libclan is not built for this processor")
            done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True,
                                  text=True, check=True)
            built = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
            listed = set(re.findall(r"^ (\w+)@", read(package + ".symbols"), re.M))
            self.assertEqual(listed, built, package)

    def test_control_names_what_the_build_needs(self):
        """Those libraries that scripts/install-deps installs for a build."""
        needed = set()
        with open(f"{SOURCE}/scripts/packages-run.txt", encoding="utf-8") as file:
            needed = {line.strip() for line in file if re.match(r"lib.*-dev$", line.strip())}
        text = read("control").split("\n\n")[0]
        self.assertEqual(needed - {"libc6-dev"} - set(re.findall(r"^ ([\w.+-]+)", text, re.M)),
                         set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
