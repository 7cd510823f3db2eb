#!/usr/bin/python3
"""The Debian packages, as far as can be said without building them: their version is the
program's, every installed file is in exactly one package, and the symbols are those of the libraries.

    package-files.py SOURCE_ROOT BUILD_ROOT
"""
import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (os.path.realpath(path) for path in sys.argv[1:3])
DEBIAN = os.path.join(SOURCE, "packaging/debian")
# Left to debhelper, which knows in which folder they belong.
BY_RULES = {"/usr/lib/systemd/system/gmblock.service", "/usr/lib/systemd/system/gmblock.socket",
            "/usr/lib/systemd/system/gmblock-attach@.service", "/usr/lib/sysusers.d/gmblock.conf"}


def read(name):
    with open(os.path.join(DEBIAN, name), encoding="utf-8") as file:
        return file.read()


@functools.cache
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

    def test_documents(self):
        """The protocols, the examples and what has changed are in a package."""
        listed = {path for suffix in ("docs", "examples") for _, pattern in patterns(suffix)
                  for path in glob.glob(SOURCE + pattern)}
        wanted = {path for path in glob.glob(f"{SOURCE}/examples/*.*")
                  if os.path.basename(path) not in ("check.py", "meson.build")}
        self.assertGreater(len(wanted), 5)
        self.assertEqual(wanted | {f"{SOURCE}/docs/protocol", f"{SOURCE}/README.md"}, listed)
        self.assertIn("\tdh_installchangelogs CHANGELOG.md\n", read("rules"))

    def test_no_address_is_made_up(self):
        self.assertNotIn("Homepage:", read("control"))
        for name in ("control", "changelog"):
            self.assertEqual(re.findall(r"[\w.]+@[\w.]*", read(name)), ["maintainer@"], name)

    def test_removal_stops_the_service(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/deb-systemd-invoke", "w", encoding="ascii") as file:
                file.write(f'#!/bin/sh\necho "$@" >>{folder}/calls\n')
            os.chmod(folder + "/deb-systemd-invoke", 0o755)
            script = read("gmblock.prerm").replace("/run/systemd/system", folder)
            for action, calls in (("upgrade", None), ("remove", "stop gmblock.socket gmblock.service\n")):
                subprocess.run(["sh", "-c", script, "prerm", action], check=True,
                               env={"PATH": f"{folder}:/usr/bin:/bin"})
                self.assertEqual(os.path.exists(folder + "/calls"), calls is not None, action)
            with open(folder + "/calls", encoding="ascii") as file:
                self.assertEqual(file.read(), calls)

    def test_the_folder_of_images(self):
        """It is installed, and given to the user once that is there."""
        self.assertEqual(read("gmblock.dirs").split(), ["var/lib/gmblock"])
        script = read("gmblock.postinst")
        self.assertLess(script.index("#DEBHELPER#"), script.index("chown gmblock:gmblock /var/lib/gmblock"))

    def test_an_image_listens_where_its_port_is_published(self):
        """make-oci replaces the address in the installed file; the loopback one is the container's own."""
        with open(f"{SOURCE}/scripts/make-oci", encoding="utf-8") as file:
            order, = re.findall(r"sed -i '(s\|.*?)' ", file.read())
        with open(f"{SOURCE}/packaging/gmblock.conf", encoding="utf-8") as file:
            done = subprocess.run(["sed", order], stdin=file, capture_output=True, text=True, check=True)
        self.assertEqual(re.findall(r"nbd://\S+", done.stdout), ["nbd://0.0.0.0:10809"])

    def test_symbols(self):
        for place, package in (("libgmblock", "libgmblock0"), ("clan/libclan", "libclan0")):
            path = f"{BUILD}/src/{place}.so.0"
            if not os.path.exists(path):
                self.skipTest("libclan is not built for this processor")
            done = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True,
                                  text=True, check=True)
            built = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
            listed = set(re.findall(r"^ ([\w.]+)@", read(package + ".symbols"), re.M))
            self.assertEqual(listed, built, package)

    def test_control_names_what_the_build_needs(self):
        """Those libraries that scripts/install-deps installs for a build; and it installs for `make deb` whatever
        is named."""
        def listed(what):
            return set(subprocess.run([f"{SOURCE}/scripts/install-deps", "--list", what], capture_output=True,
                                      text=True, check=True).stdout.split())

        named = set(re.findall(r"^ ([\w.+-]+)", read("control").split("\n\n")[0], re.M))
        libraries = {name for name in listed("run") if re.match(r"lib.*-dev$", name)}
        self.assertEqual(libraries - {"libc6-dev"} - named, set())
        # Debian demands the first of every build; the others are in packages of other names.
        named.add("build-essential")
        inside = {"debhelper-compat": "debhelper", "dh-sequence-installsysusers": "debhelper",
                  "dh-sequence-python3": "dh-python", "pkgconf": "pkg-config"}
        self.assertEqual({inside.get(name, name) for name in named} - listed("deb"), set())

    def test_tests_are_run(self):
        """Unless the builder asks for none."""
        for options, value in (("noopt", "true"), ("noopt nocheck", "false")):
            done = subprocess.run(["make", "-n", "-f", f"{DEBIAN}/rules", "override_dh_auto_configure",
                                   "override_dh_auto_test"], capture_output=True, text=True, check=True,
                                  env={**os.environ, "DEB_BUILD_OPTIONS": options})
            self.assertEqual(done.stdout, f"dh_auto_configure -- -Dtests={value}\n"
                             "dh_auto_test -- --suite unit --no-suite mutants --no-suite models\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
