#!/usr/bin/python3
"""The systemd units: how exposed systemd-analyze finds them, that each point that it counts is
explained in the unit, and that the server works under the restrictions of its unit, as far as these
can be had without systemd."""
import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.realpath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(SOURCE, "tests/functional"))
import nbdmini  # pylint: disable=wrong-import-position

GMBLOCK = os.path.realpath(sys.argv.pop(1))
PACKAGING = os.path.join(SOURCE, "packaging")
SECONDS = 240  # it only ends what hangs
OPT_LIST_META_CONTEXT = 9
NOBODY = pwd.getpwnam("nobody")


def epoch_of(uri):
    """What a server says of the machine's boot."""
    query = b"x-gmblock:epoch"
    with nbdmini.Client(uri) as client:
        client.hello()
        client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
        list(client.option_replies(nbdmini.OPT_STRUCTURED_REPLY))
        client.send_option(OPT_LIST_META_CONTEXT, struct.pack(">III", 0, 1, len(query)) + query)
        return [data[4:] for _, data in client.option_replies(OPT_LIST_META_CONTEXT) if data]


def boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip().replace("-", "")


def read(name):
    with open(os.path.join(PACKAGING, name), encoding="utf-8") as file:
        return file.read()


def analyze(*arguments):
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, check=False,
        timeout=SECONDS)
    return done


def end(pid, number=signal.SIGTERM):
    """The one that serves: the last of the chain of wrappers."""
    while True:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
        if not children:
            break
        pid = int(children[0])
    os.kill(pid, number)


@contextlib.contextmanager
def killed_by_failure(server):
    """For `with Popen`, which would wait for the server's end when a check in it fails."""
    try:
        yield
    except BaseException:
        if server.poll() is None:
            end(server.pid, signal.SIGKILL)
        raise


class Units(unittest.TestCase):
    def setUp(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not installed")
        self.root = tempfile.mkdtemp(prefix="gmblock-units-")
        self.addCleanup(shutil.rmtree, self.root)
        self.units = os.path.join(self.root, "etc/systemd/system")
        os.makedirs(self.units)

    def install(self, name, *dropins):
        with open(os.path.join(self.units, name), "w", encoding="utf-8") as file:
            file.write(read(name + ".in").replace("@bindir@", "/usr/bin"))
        for dropin in dropins:
            os.makedirs(os.path.join(self.units, name + ".d"), exist_ok=True)
            shutil.copy(os.path.join(PACKAGING, dropin), os.path.join(self.units, name + ".d"))

    def check(self, name, limit, texts):
        """limit: of the exposure, in tenths."""
        unit = name.replace("@.", "@disk.")
        options = ["security", "--offline=true", f"--root={self.root}"]
        done = analyze(*options, f"--threshold={limit}", unit)
        self.assertEqual(done.returncode, 0, done.stdout[-300:] + done.stderr)
        self.assertNotIn("ignoring", done.stderr)
        comments = "\n".join(
            line for text in texts for line in text.splitlines() if line.startswith("#"))
        for point in json.loads(analyze(*options, "--json=short", unit).stdout):
            if point["exposure"] is None:
                continue
            with self.subTest(unit=unit, point=point["name"]):
                for word in self.words(point["name"]):
                    self.assertIn(word, comments)

    @staticmethod
    def words(point):
        """What a comment must name: the setting, and capabilities and families by themselves."""
        setting, _, value = point.partition("=")
        found = re.findall(r"CAP_[A-Z_]+|AF_[A-Z]+|@[a-z-]+", value)
        inner = re.match(r"~(CAP|AF)_.*?\((.*)\)", value)
        if inner and setting == "CapabilityBoundingSet":
            return []  # one of a group; the unit's list names the one that is left
        return found or [setting + "="]

    def test_images(self):
        self.install("gmblock.service")
        self.check("gmblock.service", 13, [read("gmblock.service.in")])

    def test_block_devices(self):
        self.install("gmblock.service", "block-devices.conf")
        self.check(
            "gmblock.service", 17, [read("gmblock.service.in"), read("block-devices.conf")])

    def test_reservations(self):
        files = ["block-devices.conf", "reservations.conf"]
        self.install("gmblock.service", *files)
        self.check("gmblock.service", 24, [read("gmblock.service.in"), *[read(file) for file in files]])

    def test_attach(self):
        name = "gmblock-attach@.service"
        self.install(name)
        text = read(name + ".in")
        self.check(name, 50, [text])
        comments = "".join(line for line in text.splitlines() if line.startswith("#"))
        kept = re.search(r"^CapabilityBoundingSet=(.*)$", text, re.M).group(1)
        for capability in kept.split():
            self.assertIn(capability, comments)


def filter_of(text):
    """The system calls that a unit allows, by the names of systemd's sets."""
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", text, re.M):
        names = set()
        for word in line.lstrip("~").split():
            names |= expand(word)
        allowed = allowed - names if line.startswith("~") else allowed | names
    # Every list has these.
    return allowed | expand("@default")


def expand(word):
    if not word.startswith("@"):
        return {word}
    found = set()
    for line in analyze("syscall-filter", word).stdout.splitlines()[1:]:
        entry = line.strip()
        if entry and not entry.startswith("#"):
            found |= expand(entry)
    return found


# As User=, StateDirectory=, RuntimeDirectory=, ProtectSystem=strict, ProtectHome=, PrivateTmp=, PrivateDevices=,
# ProcSubset=, CapabilityBoundingSet= and NoNewPrivileges= do it. $1: the state, $2...: the program.
CONFINED = """
set -e
state=$1; shift
mount --make-rprivate /
mount --bind "$state" "$state"
mount --bind "$RUNTIME_DIRECTORY" "$RUNTIME_DIRECTORY"
mount -o remount,bind,ro /
for folder in /home /root /run; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
mkdir /run/dev
for device in null zero random urandom; do
    touch "/run/dev/$device"; mount --bind "/dev/$device" "/run/dev/$device"
done
mount --rbind /run/dev /dev
mount -t proc -o subset=pid,hidepid=invisible proc /proc
exec setpriv --reuid "$OWNER" --regid "$GROUP" --clear-groups --bounding-set=-all \\
    --inh-caps=-all --no-new-privs "$@"
"""


class Folders(unittest.TestCase):
    def test_the_runtime_folder_is_the_service_s_alone(self):
        """systemd removes it with the service: nobody else has sockets there."""
        text = read("gmblock.service.in")
        folder = "/run/" + re.search(r"^RuntimeDirectory=(.*)$", text, re.M).group(1) + "/"
        if os.geteuid() != 0:
            self.skipTest("only root has /run")
        with tempfile.TemporaryDirectory() as place, subprocess.Popen(
                [GMBLOCK, "serve", "memory:1M", "--listen", f"nbd+unix:///?socket={place}/s"],
                stdout=subprocess.PIPE) as server:
            server.stdout.readline()
            controls = [path for path in subprocess.run(
                ["find", "/run", "-name", f"{server.pid}.sock"], capture_output=True, text=True,
                check=False).stdout.splitlines()]
            server.terminate()
            server.wait()
        self.assertEqual(len(controls), 1)
        self.assertFalse(controls[0].startswith(folder), controls)

    def test_the_user_is_made(self):
        user = re.search(r"^User=(.*)$", read("gmblock.service.in"), re.M).group(1)
        self.assertRegex(read("gmblock.sysusers"), rf"(?m)^u {user} ")
        if shutil.which("systemd-sysusers") is None:
            self.skipTest("systemd-sysusers is not installed")
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(f"{root}/etc")
            subprocess.run(["systemd-sysusers", f"--root={root}",
                            os.path.join(PACKAGING, "gmblock.sysusers")], check=True)
            with open(f"{root}/etc/passwd", encoding="ascii") as file:
                self.assertIn(f"{user}:", file.read())


class Service(unittest.TestCase):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can make mounts")
        self.folder = tempfile.mkdtemp(prefix="gmblock-service-", dir="/var/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        # The program lies where the service sees it, like /usr/bin.
        self.program = shutil.copy(GMBLOCK, self.folder)
        self.state = os.path.join(self.folder, "state")
        os.mkdir(self.state)
        with open(os.path.join(self.state, "disk.img"), "wb") as image:
            image.truncate(1 << 20)
        self.config = os.path.join(self.folder, "gmblock.conf")
        with open(self.config, "w", encoding="ascii") as config:
            config.write(f"listen:\n  - nbd+unix:///?socket={self.state}/s\n"
                         f"exports:\n  - name: ''\n    path: {self.state}/disk.img\n")
        self.data = os.path.join(self.folder, "data")
        with open(self.data, "wb") as data:
            data.write(os.urandom(1 << 20))
        self.runtime = os.path.join(self.folder, "runtime")
        os.mkdir(self.runtime)
        for path in (self.state, self.runtime, os.path.join(self.state, "disk.img")):
            os.chown(path, NOBODY.pw_uid, NOBODY.pw_gid)
        os.chmod(self.folder, 0o755)

    def serve(self, *wrapper):
        """Starts the server, writes and reads, and ends it; what it logged."""
        environment = dict(
            os.environ, OWNER=str(NOBODY.pw_uid), GROUP=str(NOBODY.pw_gid), GMBLOCK_LOG="info",
            GMBLOCK_BOOT_ID=boot_id(), RUNTIME_DIRECTORY=self.runtime,
            # A server that is traced cannot look for its leaks.
            ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
        with subprocess.Popen(
                [*wrapper, self.program, "serve", "--config", self.config],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as server:
            with killed_by_failure(server):
                uri = server.stdout.readline().strip()
                if not uri:
                    self.fail(server.stderr.read())
                epoch = epoch_of(uri)
                if wrapper:
                    self.check_control(uri, environment)
                written = subprocess.run(
                    ["nbdcopy", self.data, uri], capture_output=True, check=False, timeout=SECONDS)
                back = subprocess.run(
                    ["nbdcopy", uri, "-"], capture_output=True, check=False, timeout=SECONDS)
                # strace passes it on to nobody: its child is the server.
                end(server.pid)
                _, errors = server.communicate(timeout=SECONDS)
        self.assertEqual((written.returncode, written.stderr), (0, b""))
        with open(self.data, "rb") as data:
            self.assertEqual(back.stdout, data.read())
        self.assertEqual(server.returncode, 0, errors)
        return errors, epoch

    def check_control(self, uri, environment):
        """As ExecReload= does, and as root finds it."""
        folder = os.path.join(self.runtime, "serve")
        control, = (name for name in os.listdir(folder) if name.endswith(".sock"))
        pid = control.removesuffix(".sock")
        for arguments, user in ((["upgrade", "--if-replaced", pid], NOBODY.pw_uid),
                                (["reload", pid], NOBODY.pw_uid),
                                (["export", "add", "more", f"{self.state}/disk.img", "--server",
                                  os.path.join(folder, control)], None),
                                (["export", "remove", "more", "--server",
                                  os.path.join(folder, control)], None)):
            done = subprocess.run([self.program, *arguments], env=environment, user=user,
                                  group=None if user is None else NOBODY.pw_gid,
                                  capture_output=True, text=True, check=False, timeout=SECONDS)
            self.assertEqual(done.returncode, 0, (uri, done.stderr))

    def test_with_the_restrictions_of_the_unit(self):
        probe = subprocess.run(["unshare", "-m", "true"], check=False)
        if probe.returncode != 0:
            self.skipTest("mount namespaces are not allowed here")
        _, free = self.serve()
        errors, confined = self.serve("unshare", "-m", "sh", "-c", CONFINED, "sh", self.state)
        self.assertNotIn("cannot", errors)
        self.assertEqual(free, [f"x-gmblock:epoch={boot_id()[:16]}".encode()])
        self.assertEqual(confined, free)

    def test_the_filter_allows_what_is_called(self):
        for tool in ("systemd-analyze", "strace"):
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        allowed = filter_of(read("gmblock.service.in"))
        trace = os.path.join(self.folder, "trace")
        self.serve("strace", "-f", "-qq", "-u", "nobody", "-o", trace)
        with open(trace, encoding="utf-8", errors="replace") as lines:
            called = {match.group(1) for match in (
                re.match(r"\d+ +(\w+)\(", line) for line in lines) if match}
        self.assertIn("io_uring_enter", called)
        self.assertEqual(called - allowed, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
