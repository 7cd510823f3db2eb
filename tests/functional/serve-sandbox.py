#!/usr/bin/python3
"""What a server gives up when it starts: root (--user), other files and system calls (--sandbox)."""
import ctypes
import json
import os
import pwd
import re
import shutil
import stat
import struct
import tempfile
import unittest

import nbdmini
import support
import tls_tool

SIZE = 1 << 20
# CAP_DAC_OVERRIDE, _DAC_READ_SEARCH, _IPC_LOCK
CAPABILITIES = (1, 2, 14)
NOBODY = pwd.getpwnam("nobody")


def status_lines(pid, *names):
    """The values of these lines of every thread, as a set of tuples."""
    found = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as file:
            lines = dict(line.rstrip("\n").split(":", 1) for line in file)
        found.add(tuple(lines[name].split()[0] if lines[name].split() else "" for name in names))
    return found


def filter_of(pid, number):
    """A program by which seccomp judges the calls of a process, 0: the first; b"" when nobody may see it."""
    seize, interrupt, detach, get_filter, any_child = 0x4206, 0x4207, 17, 0x420c, 0x40000000
    call = ctypes.CDLL(None).ptrace
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    if call(seize, pid, 0, None) != 0:
        return b""
    call(interrupt, pid, 0, None)
    os.waitpid(pid, any_child)
    count = max(call(get_filter, pid, number, None), 0)
    program = ctypes.create_string_buffer(count * 8)
    call(get_filter, pid, number, program)
    call(detach, pid, 0, None)
    return program.raw.replace(struct.pack("=I", pid), b"self")


class Sandbox(support.Case):
    def setUp(self):
        super().setUp()
        features = json.loads(self.run_gmblock("info", "--local", "--json")[1])["features"]
        self.has_landlock = features["landlock"]["available"]
        self.has_seccomp = features["seccomp"]["available"]

    def image(self, name="disk.img", folder=None):
        path = os.path.join(folder or self.folder, name)
        with open(path, "wb") as file:
            file.truncate(SIZE)
        return path

    def log(self):
        return dict(os.environ, GMBLOCK_LOG="info")

    @unittest.skipUnless(support.has_libfabric(), "no libfabric")
    def test_code_is_loaded_for_libfabric_only(self):
        def rules(*listen):
            server = self.start("--listen", "nbd://127.0.0.1:0", *listen, "--sandbox", "on", "null:1M",
                                uri_count=1 + len(listen) // 2)
            for uri in server.uris:
                if not uri.startswith("push:"):
                    self.assertEqual(self.run_gmblock("info", uri)[0], 0)
            # Who is answered knows that the second filter is there.
            programs = [filter_of(server.process.pid, number) for number in (0, 1)]
            self.assertEqual(server.stop()[0], 0)
            return programs

        calls, seal = rules()
        if not self.has_landlock or not calls:
            self.skipTest("filters cannot be seen here")
        self.assertEqual(rules("--listen", "gmb://127.0.0.1:0"), [calls, seal])
        push = rules("--listen", "push://127.0.0.1:0")
        self.assertEqual(push[0], calls)
        self.assertLess(len(push[1]), len(seal))  # it may connect
        self.assertNotEqual(rules("--listen", "gmb://127.0.0.1:0?provider=ofi-tcp")[0], calls)

    def test_every_thread_is_bound_and_the_disk_works(self):
        server = self.start_unix(self.image(), "--threads", "2", env=self.log())
        nbdmini.open_export(server.uri).close() # only then it is sealed for certain
        expected = ("1", "2") if self.has_seccomp else ("1", "0")
        self.assertEqual(
            status_lines(server.process.pid, "NoNewPrivs", "Seccomp"), {expected})
        if self.has_seccomp:  # the list, and what is taken away once everything listens
            self.assertEqual(status_lines(server.process.pid, "Seccomp_filters"), {("2",)})
        ((capabilities,),) = status_lines(server.process.pid, "CapPrm")
        self.assertEqual(int(capabilities, 16) & ~sum(1 << bit for bit in CAPABILITIES), 0)
        with nbdmini.open_export(server.uri) as client:
            client.write(4096, b"x" * 4096)
            self.assertEqual(client.read(4096, 4096), b"x" * 4096)
        code, errors = server.stop()
        self.assertEqual(code, 0, errors)
        words = [word for word, there in (("Landlock", self.has_landlock),
                                          ("seccomp", self.has_seccomp)) if there]
        self.assertIn("sandbox: " + " and ".join(words), errors)
        self.assertEqual(os.listdir(self.folder), ["disk.img"])

    def test_a_disk_without_a_name(self):
        image = os.open(self.image(), os.O_RDWR)
        self.addCleanup(os.close, image)
        os.unlink(self.path("disk.img"))
        server = self.start_unix(f"/dev/fd/{image}", "--threads", "2", pass_fds=[image])
        with nbdmini.open_export(server.uri) as client:
            client.write(4096, b"x" * 4096)
            self.assertEqual(client.read(4096, 4096), b"x" * 4096)
        self.assertEqual(server.stop()[0], 0)

    def test_credentials(self):
        """Workers of handshakes are bound, and files elsewhere are refused with the reason."""
        certificates = self.path("credentials")
        tls_tool.make(certificates)
        link, control = self.path("pki"), self.path("control")
        os.symlink(os.path.join(certificates, "good"), link)
        server = self.start_unix(
            "null:1M", "--tls", "require", f"--tls-certificates={link}", "--control", control)
        uri = (f"nbds+unix:///?socket={self.path('s')}&tls-certificates={certificates}/good"
               "&tls-hostname=localhost")
        self.assertEqual(self.run_gmblock("info", uri)[0], 0)
        self.assertEqual(len(status_lines(server.process.pid, "NoNewPrivs", "Seccomp")), 1)
        self.assertEqual(self.run_gmblock("reload", control)[0], 0)
        os.unlink(link)
        shutil.copytree(os.path.join(certificates, "good"), self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), link)
        code, _, errors = self.run_gmblock("reload", control)
        if self.has_landlock:
            self.assertEqual(code, 1)
            self.assertIn("the sandbox allows only files in use", errors)
        self.assertEqual(self.run_gmblock("info", uri)[0], 0)

    def test_credentials_among_other_files(self):
        """Only they are allowed, and the operator learns that they cannot be replaced."""
        certificates = self.path("credentials")
        tls_tool.make(certificates)
        pki, keys, control = self.path("pki"), self.path("keys"), self.path("control")
        shutil.copytree(os.path.join(certificates, "good"), pki)
        os.mkdir(keys)
        psk = os.path.join(keys, "keys.psk")
        with open(psk, "w", encoding="ascii") as file:
            file.write("alice:" + 64 * "1" + "\n")
        os.chmod(psk, 0o600)
        os.chmod(pki, 0o1777)
        server = self.start_unix("null:1M", "--tls", "require", "--tls-certificates", pki,
                                 "--tls-psk", psk, "--control", control)
        uri = f"nbds+unix:///?socket={self.path('s')}&tls-certificates={pki}&tls-hostname=localhost"
        self.assertEqual(self.run_gmblock("info", uri)[0], 0)
        self.assertEqual(self.run_gmblock("reload", control)[0], 0)
        for name, folder_is_allowed in ((psk, True), (os.path.join(pki, "server-cert.pem"), False)):
            shutil.copy(name, self.path("new"))
            os.rename(self.path("new"), name)
            code, _, errors = self.run_gmblock("reload", control)
            refused = self.has_landlock and not folder_is_allowed
            self.assertEqual((code, "the sandbox allows only files in use" in errors), (int(refused), refused), errors)
        errors = server.stop()[1]
        self.assertEqual(errors.count("cannot be read, because the sandbox does not allow all of "
                                      f"{pki}; put the file into a separate folder"), int(self.has_landlock), errors)
        self.assertEqual("--tls-certificates: a later replacement of" in errors, self.has_landlock)

    def test_a_folder_around_one_that_was_warned_of(self):
        certificates = self.path("credentials")
        tls_tool.make(certificates)
        outer, pki = self.path("outer"), self.path("outer/pki")
        shutil.copytree(os.path.join(certificates, "good"), pki)
        config = self.make_file("outer/conf", "exports: [{name: '', path: 'null:1M'}]\n")
        for folder in (outer, pki):
            os.chmod(folder, 0o1777)
        server = self.start_unix("--config", config, "--tls", "on", "--tls-certificates", pki)
        errors = server.stop()[1]
        for option, folder in (("--tls-certificates", pki), ("--config", outer)):
            self.assertEqual(len(re.findall(
                f"{option}: a later replacement of .* does not allow all of {re.escape(folder)};", errors)),
                int(self.has_landlock), errors)

    def test_off(self):
        server = self.start_unix(self.image(), "--sandbox", "off", env=self.log())
        self.assertEqual(status_lines(server.process.pid, "NoNewPrivs", "Seccomp"), {("0", "0")})
        self.assertIn("sandbox: off", server.stop()[1])

    def test_commands_are_not_bound(self):
        script = "grep Seccomp: /proc/self/status; nbdinfo --size \"$uri\""
        done = self.run_gmblock("serve", "--listen", self.socket_uri(), "--run", script, "null:1M")
        self.assertEqual((done[0], done[1].split()), (0, ["Seccomp:", "0", str(SIZE)]), done[2])
        self.check_refused(
            ["serve", "--sandbox", "on", "--run", "true", "null:1M"], 2, "--sandbox=on", "--run")

    def test_wrong_values(self):
        self.check_refused(
            ["serve", "--sandbox", "maybe", "null:1M"], 2, "--sandbox", "'maybe'", "auto")
        self.check_refused(["serve", "--user", "a", "--user", "b", "null:1M"], 2, "--user")
        self.check_refused(["serve", "--user", "", "null:1M"], 2, "--user: the value is empty")
        for user, words in (("no-such-user", "no user"), ("nobody:no-such-group", "no group"),
                            ("root", "choose another user")):
            self.check_refused(
                ["serve", "--listen", self.socket_uri(), "--user", user, "null:1M"], 1, words)


class User(support.Case):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        super().setUp()
        os.chmod(self.folder, 0o755)

    def image(self, owner, mode=0o600):
        path = self.make_file("disk.img", bytes(SIZE))
        os.chown(path, owner.pw_uid, owner.pw_gid)
        os.chmod(path, mode)
        return path

    def test_nothing_of_root_is_left(self):
        server = self.start_unix(self.image(NOBODY), "--user", "nobody")
        pid = server.process.pid
        self.assertEqual(
            status_lines(pid, "Uid", "Gid", "CapEff", "CapPrm", "CapAmb"),
            {(str(NOBODY.pw_uid), str(NOBODY.pw_gid)) + ("0" * 16,) * 3})
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            lines = dict(line.rstrip("\n").split(":", 1) for line in file)
        self.assertEqual(lines["Uid"].split(), [str(NOBODY.pw_uid)] * 4)
        self.assertEqual(
            sorted(map(int, lines["Groups"].split())),
            sorted(os.getgrouplist("nobody", NOBODY.pw_gid)))
        with nbdmini.open_export(server.uri) as client:
            client.write(0, b"y" * 4096)
            self.assertEqual(client.read(0, 4096), b"y" * 4096)
        self.assertEqual(os.stat(self.path("s")).st_uid, NOBODY.pw_uid)
        self.assertTrue(stat.S_ISSOCK(os.stat(self.path("s")).st_mode))
        server.signal()
        self.assertEqual(server.wait()[0], 0)

    def test_the_disk_is_opened_by_the_user(self):
        image = self.image(pwd.getpwuid(0))
        self.check_refused(
            ["serve", "--listen", self.socket_uri(), "--user", "nobody", image], 1,
            image, "Permission denied")

    def test_a_port_of_root(self):
        """Listened on before root is given up."""
        server = self.start(
            "null:1M", "--user", "nobody", "--listen", "nbd://127.0.0.1:0", "--control",
            self.path("control"))
        self.assertEqual(os.stat(self.path("control")).st_uid, NOBODY.pw_uid)
        with nbdmini.open_export(server.uri) as client:
            self.assertEqual(client.size, SIZE)
        self.assertEqual(self.run_gmblock("stats", self.path("control"))[0], 0)

    def test_somebody_else_cannot(self):
        program = self.program_for_all()
        uri = "nbd+unix:///?socket=" + os.path.join(os.path.dirname(program), "s")
        user = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": []}
        done = self.run_program(program, "daemon", uri, user)
        self.assertEqual(done[0], 1)
        self.assertIn("only root", done[2])

    def program_for_all(self):
        """A copy that everybody can run."""
        folder = tempfile.mkdtemp(prefix="gmblock-sandbox-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        os.chmod(folder, 0o777)
        return shutil.copy(support.program(), folder)

    def run_program(self, program, name, uri, user):
        saved, support.GMBLOCK = support.GMBLOCK, program
        try:
            return self.run_gmblock("serve", "--listen", uri, "--user", name, "null:1M", **user)
        finally:
            support.GMBLOCK = saved


if __name__ == "__main__":
    support.main()
