"""Debian packages, without touching the system: a cache folder with an apt state of its own.

The mirror is the one the machine is configured with: apt tells which targets it reads, and the
same address is asked for the suites that hold the kernels. Nothing is installed; packages are
unpacked into the cache. Errors: Unavailable, with the reason, where packages cannot be had.
"""
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile

KERNEL_SUITES = ("bookworm-backports", "trixie-backports")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT_SECONDS = 600


class Unavailable(Exception):
    """The laboratory cannot run on this machine; the text says what is missing."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "gmblock-vm")


class Archive:
    """What has been downloaded and unpacked, and the way to more of it.

    Several processes may use one cache: whoever changes it holds its lock, and a folder appears
    in it complete or not at all.
    """

    def __init__(self, folder=None):
        self.folder = os.path.abspath(folder or cache_folder())
        self._names = None
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"no cache folder: {error}") from error

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    @contextlib.contextmanager
    def lock(self):
        with open(self.path("lock"), "w", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def provide(self, folder, fill):
        """The path of a cache folder. When it is not there yet, fill(temporary folder) makes its
        contents."""
        target = self.path(folder)
        if os.path.isdir(target):
            return target
        with self.lock():
            if os.path.isdir(target):
                return target
            os.makedirs(os.path.dirname(target), exist_ok=True)
            making = tempfile.mkdtemp(prefix="making-", dir=self.folder)
            try:
                fill(making)
                os.chmod(making, 0o755)
                os.rename(making, target)
            finally:
                shutil.rmtree(making, ignore_errors=True)
        return target

    def package(self, name):
        """The folder with a package of the machine's own release, unpacked."""
        return self.provide(os.path.join("packages", name),
                            lambda folder: self.unpack([name], folder))

    def unpack(self, names, folder):
        """Download the packages and unpack them into the folder. The caller holds the lock."""
        self.update()
        with tempfile.TemporaryDirectory(prefix="making-", dir=self.folder) as download:
            self._apt("apt-get", "download", *names, cwd=download)
            archives = sorted(os.listdir(download))
            if len(archives) != len(names):
                raise Unavailable(f"apt-get brought {archives} when asked for {names}")
            for archive in archives:
                run = subprocess.run(["dpkg", "-x", os.path.join(download, archive), folder],
                                     stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                     check=False)
                if run.returncode != 0:
                    raise Unavailable(f"cannot unpack {archive}: {run.stderr.strip()}")

    def names(self):
        """Every package name there is. The caller holds the lock."""
        self.update()
        if self._names is None:
            self._names = self._apt("apt-cache", "pkgnames").split()
        return self._names

    def update(self):
        """Read the package lists, once for each Archive. The caller holds the lock."""
        if self._names is not None:
            return
        for tool in ("apt-get", "apt-cache", "dpkg"):
            if not shutil.which(tool):
                raise Unavailable(f"no Debian packages to be had here: there is no {tool}")
        if subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True,
                          check=False).stdout.strip() != "amd64":
            raise Unavailable("the guests need Debian packages for amd64")
        for folder in ("apt/lists/partial", "apt/archives/partial", "apt/none"):
            os.makedirs(self.path(folder), exist_ok=True)
        for name, lines in (("status", []), ("sources.list", sources()),
                            ("apt.conf", self._configuration())):
            with open(self.path("apt", name), "w", encoding="utf-8") as file:
                file.write("".join(line + "\n" for line in lines))
        self._apt("apt-get", "update")
        self._names = self._apt("apt-cache", "pkgnames").split()
        if not self._names:
            raise Unavailable("apt-get update brought no package lists")

    def _apt(self, *command, cwd=None):
        try:
            run = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
                                 env={**os.environ, "APT_CONFIG": self.path("apt", "apt.conf")},
                                 text=True, timeout=APT_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} {command[1]} took over {APT_SECONDS} s") from error
        if run.returncode != 0:
            raise Unavailable(f"{' '.join(command)}: {run.stderr.strip()[-400:]}")
        return run.stdout

    def _configuration(self):
        """An apt.conf that leaves the system's alone, its hooks included. Only how the machine
        reaches a mirror (proxies and the like) is taken over."""
        settings = {
            "Dir::State": self.path("apt"),
            "Dir::State::status": self.path("apt", "status"),
            "Dir::Cache": self.path("apt"),
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": self.path("apt", "none"),
            "Dir::Etc::sourcelist": self.path("apt", "sources.list"),
            "Dir::Etc::sourceparts": self.path("apt", "none"),
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": self.path("apt", "none"),
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": "1",
            "Acquire::http::Timeout": "15",
            "Acquire::https::Timeout": "15",
        }
        system = subprocess.run(["apt-config", "dump"], stdin=subprocess.DEVNULL,
                                capture_output=True, text=True, check=False).stdout
        lines = re.findall(r"^Acquire::https?::.*;$", system, re.M)
        return lines + [f'{key} "{value}";' for key, value in settings.items()]


def sources():
    """Lines for a sources.list: the machine's own release, and beside it the kernels' suites."""
    release = own_release()
    uri = mirror(release)
    keys = f"[signed-by={KEYRING}] " if os.path.exists(KEYRING) else ""
    return [f"deb {keys}{uri} {suite} main"
            for suite in dict.fromkeys((release, *KERNEL_SUITES))]


def own_release():
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            found = re.search(r'^VERSION_CODENAME="?([a-z]+)', file.read(), re.M)
    except OSError:
        found = None
    if not found:
        raise Unavailable("no Debian packages to be had here: /etc/os-release names no release")
    return found.group(1)


def mirror(release):
    """The address of the machine's Debian mirror."""
    run = subprocess.run(["apt-get", "indextargets", "--no-release-info", "--format",
                          "$(RELEASE)|$(COMPONENT)|$(REPO_URI)", "Created-By: Packages"],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in run.stdout.splitlines():
        suite, component, uri = (line.split("|") + ["", ""])[:3]
        if component == "main" and suite in (release, "stable", "oldstable"):
            return uri
    raise Unavailable(f"apt is not configured with a Debian mirror that has {release} main")
