#!/usr/bin/python3
"""The Debian packages: built, checked by lintian, installed in a fresh root, used and purged there.

    packages.py SOURCE_ROOT WORK_FOLDER [RELEASE...]

Without a release the packages are built here, without optimisation, for the release of this machine.
With releases (bookworm, trixie) each is built in a root of its own, from nothing but its
Build-Depends. Roots are made by mmdebstrap from the mirror of this machine's own sources, and kept as
archives in WORK_FOLDER.
"""
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# The mounts of the roots end with the process that imports this, even if it is killed. Otherwise whoever removes
# WORK_FOLDER afterwards removes the devices of the machine.
if os.geteuid() == 0 and os.readlink("/proc/self/ns/mnt") == os.readlink(f"/proc/{os.getppid()}/ns/mnt"):
    os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])

sys.path.append(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "functional"))
import ports  # noqa: E402

ROOT = ""
WORK = ""
RELEASES = []
PACKAGES = ["gmblock", "gmblock-cluster", "libgmblock0", "libgmblock-dev", "libclan0", "libclan-dev", "clan-run",
            "clan-fi", "clan-omniorb", "python3-gmblock"]
TOOLS = ("mmdebstrap", "dpkg-buildpackage", "lintian", "dh", "setpriv", "nbdcopy", "umoci")
CONFIG = "/etc/gmblock/gmblock.conf"
BUILDER = {"DEBFULLNAME": "gmblock test", "DEBEMAIL": "test@example.org"}
QUIET = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def own_release():
    with open("/etc/os-release", encoding="utf-8") as file:
        return re.search(r"^VERSION_CODENAME=(\w+)", file.read(), re.M).group(1)


def mirror():
    """Where this machine gets Debian from."""
    lines = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)",
                "Identifier: Packages", "Origin: Debian").splitlines()
    found = [line.split()[0] for line in lines if line.endswith(" " + own_release())]
    return found[0] if found else None


class Root:
    """A root file system of a release, in a temporary folder."""

    def __init__(self, release, case):
        self.folder = tempfile.mkdtemp(prefix="gmblock-root-", dir=WORK)
        case.addCleanup(self.remove)
        archive = os.path.join(WORK, release + ".tar")
        if not os.path.exists(archive):
            run("mmdebstrap", "--format=tar", "--variant=minbase",
                "--aptopt=Acquire::Languages \"none\"", release, archive + ".part", mirror(),
                env={**os.environ, **QUIET})
            os.rename(archive + ".part", archive)
        self.fill(archive)
        shutil.copy("/etc/resolv.conf", self.path("etc/resolv.conf"))
        # Nothing is started, whatever is installed.
        with open(self.path("usr/sbin/policy-rc.d"), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexit 101\n")
        os.chmod(self.path("usr/sbin/policy-rc.d"), 0o755)
        self.run("apt-get", "-q", "update")

    def fill(self, archive):
        run("tar", "-xf", archive, "-C", self.folder, "--exclude=./dev/*")
        run("mount", "--bind", "/dev", self.path("dev"))
        run("mount", "-t", "proc", "proc", self.path("proc"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def remove(self):
        # What is still mounted would be removed as well, so an error ends this.
        for name in ("proc", "dev"):
            if os.path.ismount(self.path(name)):
                run("umount", "--lazy", self.path(name))
        shutil.rmtree(self.folder)

    def run(self, *command):
        return run("chroot", self.folder, *command,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **QUIET})

    def install(self, *packages):
        self.run("apt-get", "-q", "-y", "install", "--no-install-recommends", *packages)

    def files(self):
        """What is there beside the records of apt and dpkg, caches and logs."""
        found = set()
        for folder, folders, names in os.walk(self.folder):
            inner = os.path.relpath(folder, self.folder)
            folders[:] = [name for name in folders if os.path.join(inner, name) not in (
                "proc", "dev", "sys", "tmp", "./proc", "./dev", "./sys", "./tmp", "var/cache",
                "var/log", "var/lib/apt", "var/lib/dpkg")]
            found |= {os.path.join(inner, name) for name in [*folders, *names]}
        return found


class Image(Root):
    """The root file system of an OCI image, read without the tool that has made it."""

    def __init__(self, layout, case):  # pylint: disable=super-init-not-called
        self.folder = tempfile.mkdtemp(prefix="gmblock-image-", dir=WORK)
        case.addCleanup(self.remove)
        with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
            tag, = json.load(file)["manifests"]
        manifest = json.loads(self.blob(layout, tag))
        self.config = json.loads(self.blob(layout, manifest["config"]))["config"]
        layer, = manifest["layers"]
        self.blob(layout, layer)
        self.fill(self.blob_path(layout, layer))

    @staticmethod
    def blob_path(layout, entry):
        return os.path.join(layout, "blobs", *entry["digest"].split(":"))

    def blob(self, layout, entry):
        with open(self.blob_path(layout, entry), "rb") as file:
            data = file.read()
        assert entry["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
        assert entry["size"] == len(data)
        return data


class Packages(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make a root file system")
        for tool in TOOLS:
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        if shutil.which("apt-get") is None or mirror() is None:
            self.skipTest("this machine's sources have no mirror of Debian")
        os.makedirs(WORK, exist_ok=True)

    def build_here(self):
        folder = os.path.join(WORK, "packages")
        run(os.path.join(ROOT, "scripts/make-deb"), folder, env={
            **os.environ, **QUIET, **BUILDER, "DEB_BUILD_OPTIONS": "noopt",
            "PATH": "/usr/lib/ccache:" + os.environ["PATH"]})
        return folder

    def build_in_root(self, release):
        root = Root(release, self)
        shutil.copytree(ROOT, root.path("gmblock"), symlinks=True,
                        ignore=shutil.ignore_patterns("build*", ".git"))
        os.symlink("packaging/debian", root.path("gmblock/debian"))
        root.install("build-essential")
        root.run("apt-get", "-q", "-y", "build-dep", "--no-install-recommends", "/gmblock")
        os.unlink(root.path("gmblock/debian"))
        root.run("env", *(f"{key}={value}" for key, value in BUILDER.items()),
                 "/gmblock/scripts/make-deb", "/packages")
        folder = os.path.join(WORK, "packages-" + release)
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(root.path("packages"), folder)

    def check_lintian(self, folder):
        changes = glob.glob(os.path.join(folder, "*.changes"))
        run("lintian", "--allow-root", "--fail-on", "error,warning", *changes)

    def check_use(self, root, command=("/usr/bin/gmblock", "serve", "--config", CONFIG)):
        """The installed program serves as the installed user, by the installed file; a stock client
        writes and reads."""
        user = root.run("getent", "passwd", "gmblock").split(":")
        self.assertLess(int(user[2]), 1000)
        port = ports.free()
        with open(root.path(CONFIG[1:]), encoding="utf-8") as file:
            text = file.read()
        with open(root.path("tmp/test.conf"), "w", encoding="utf-8") as file:
            file.write(text.replace(":10809", f":{port}"))
        state = os.stat(root.path("var/lib/gmblock"))
        self.assertEqual((str(state.st_uid), str(state.st_gid)), (user[2], user[3]))
        with subprocess.Popen(
                ["chroot", root.folder, "setpriv", "--reuid", user[2], "--regid", user[3],
                 "--clear-groups", *("/tmp/test.conf" if word == CONFIG else word for word in command),
                 "--control", "none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True) as server:
            try:
                uri = server.stdout.readline().strip()
                if not uri:
                    self.fail(server.stderr.read())
                data = os.path.join(root.folder, "tmp/data")
                with open(data, "wb") as file:
                    file.write(os.urandom(1 << 20))
                run("nbdcopy", data, uri)
                run("nbdcopy", uri, data + ".back")
                with open(data, "rb") as one, open(data + ".back", "rb") as other:
                    self.assertEqual(one.read(), other.read(1 << 20))
                self.assertIn("64 MiB", root.run("gmblock", "info", uri))
            finally:
                server.terminate()
                server.communicate()
        self.assertEqual(server.returncode, 0)

    def check_files(self, root):
        root.run("gmblock", "--version")
        # What is loaded by its path, as the manual pages say.
        for command, library in (
                (("clan-run", "--rules", "listen 127.0.0.1:6379"), "libclan-sockets.so"),
                (("env", "LD_PRELOAD=/usr/$LIB/gmblock/libclan-omniorb.so"), "libclan-omniorb.so")):
            self.assertIn(f"/gmblock/{library}\n", root.run(*command, "cat", "/proc/self/maps"))
        found = root.files()
        for suffix in ("lib/systemd/system/gmblock.service", "lib/systemd/system/gmblock.socket",
                       "lib/systemd/system/gmblock-attach@.service", "libgmblock.so.0",
                       "libclan.so.0", "libfabric/libclan-fi.so", "gmblock/libclan-sockets.so",
                       "gmblock/libclan-omniorb.so", "include/gmblock/clan.h", "include/gmblock/gmblock.h",
                       "pkgconfig/gmblock.pc", "bash-completion/completions/gmblock",
                       "doc/gmblock/protocol/nbd.md.gz", "doc/gmblock/changelog.gz",
                       "doc/libgmblock-dev/examples/read-async.c", "doc/python3-gmblock/examples/read-async.py",
                       "python3/dist-packages/gmblock.py", "vendor-completions/_gmblock", "vendor_completions.d/gmblock.fish"):
            self.assertTrue(any(name.endswith(suffix) for name in found), suffix)

    def check_image(self, release, folder):
        """The image serves as it says: its command, its user, its file."""
        layout = os.path.join(WORK, "oci-" + release)
        run(os.path.join(ROOT, "scripts/make-oci"), layout, folder,
            env={**os.environ, **QUIET, "RELEASE": release, "MIRROR": mirror()})
        image = Image(layout, self)
        self.assertEqual(image.config["User"], "gmblock")
        self.assertEqual(set(image.config["ExposedPorts"]), {"10809/tcp"})
        with open(image.path(CONFIG[1:]), encoding="utf-8") as file:
            self.assertEqual(re.findall(r"nbd://\S+", file.read()), ["nbd://0.0.0.0:10809"])
        self.assertEqual(set(image.config["Volumes"]), {"/var/lib/gmblock"})
        self.check_use(image, [*image.config["Entrypoint"], *image.config["Cmd"]])

    def check_release(self, release, folder):
        self.check_lintian(folder)
        root = Root(release, self)
        # Their dependencies stay when they are purged: they are there before.
        needed = set()
        for package in PACKAGES:
            for deb in glob.glob(f"{folder}/{package}_*.deb"):
                shutil.copy(deb, root.path("root"))
                depends = run("dpkg-deb", "-f", deb, "Depends")
                needed |= {part.split("(")[0].split("|")[0].strip() for part in depends.split(",")}
        root.install(*sorted(name for name in needed if name.split(":")[0] not in PACKAGES))
        before = root.files()
        root.install(*(f"/root/{os.path.basename(deb)}"
                       for deb in glob.glob(root.path("root/*.deb"))))
        self.check_files(root)
        self.check_use(root)
        self.check_image(release, folder)
        root.run("dpkg", "--purge", *PACKAGES)
        left = {name for name in root.files() - before if not name.startswith("root/")}
        # The user stays, as Debian's do: files of its number may be somewhere.
        self.assertEqual({name for name in left if not re.fullmatch(
            r"etc/(passwd|group|shadow|gshadow)-", name)}, set())

    def test_of_this_machine(self):
        if RELEASES:
            self.skipTest("only the named releases")
        self.check_release(own_release(), self.build_here())

    def test_of_the_named_releases(self):
        if not RELEASES:
            self.skipTest("no release is named")
        for release in RELEASES:
            with self.subTest(release):
                self.check_release(release, self.build_in_root(release))


if __name__ == "__main__":
    ROOT, WORK, *RELEASES = sys.argv[1:]
    ROOT, WORK = os.path.realpath(ROOT), os.path.abspath(WORK)
    unittest.main(argv=sys.argv[:1], verbosity=2)
