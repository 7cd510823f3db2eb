#!/usr/bin/python3
"""Unix sockets: a stale file is reused, a live one or anything else is left alone, ours is removed at
the end."""
import fcntl
import grp
import os
import pwd
import select
import shutil
import signal
import socket
import stat
import subprocess
import unittest

import nbdmini
import support


class UnixSockets(support.Case):
    def check_served(self, uri):
        with nbdmini.open_export(uri) as client:
            self.assertEqual(client.size, 1 << 20)

    def test_removed_at_the_end(self):
        server = self.start_unix("null:1M")
        self.assertTrue(stat.S_ISSOCK(os.stat(self.path("s")).st_mode))
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_umask_decides_who_may_connect(self):
        self.start_unix("null:1M", umask=0o077)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("s")).st_mode), 0o700)

    def test_the_mode_and_group_that_are_asked_for(self):
        group = grp.getgrgid(os.getgid()).gr_name
        mode = lambda name: stat.S_IMODE(os.stat(self.path(name)).st_mode)
        self.start("null:1M", "--listen", self.socket_uri("a"), "--listen",
                   self.socket_uri("b") + f"&socket-mode=666&socket-group={group}", "--socket-mode",
                   "0660", uri_count=2, umask=0o077)
        self.assertEqual((mode("a"), mode("b")), (0o660, 0o666))
        self.assertEqual(os.stat(self.path("b")).st_gid, os.getgid())
        for uri, fragment in ((self.socket_uri("c") + "&socket-mode=0400", "from 0600 to 0777"),
                              (self.socket_uri("c") + "&socket-mode=rw", "is not a socket mode"),
                              ("nbd://localhost:0?socket-mode=0660", "unknown parameter")):
            self.check_refused(["serve", "null:1M", "--listen", uri], 2, fragment)
        for uri, fragment in ((self.socket_uri("c") + "&socket-group=no-such-group", "there is no group"),
                              (f"nbd+unix:///?socket=%00{self.path('d')}&socket-mode=0660",
                               "an abstract socket has neither")):
            self.check_refused(["serve", "null:1M", "--listen", uri], 1, fragment)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "b"])

    def test_a_group_stays_with_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become somebody else")
        os.chmod(self.folder, 0o777)
        self.start_unix("null:1M", "--user", "nobody", "--socket-group", "daemon", "--socket-mode", "0660")
        status = os.stat(self.path("s"))
        self.assertEqual((status.st_uid, status.st_gid), (pwd.getpwnam("nobody").pw_uid,
                                                         grp.getgrnam("daemon").gr_gid))

    def test_what_a_killed_server_left_is_reused(self):
        server = self.start_unix("null:1M")
        server.signal(signal.SIGKILL)
        server.wait()
        self.assertEqual(os.listdir(self.folder), ["s"])
        self.start_unix("null:1M")
        self.check_served(self.socket_uri())

    def has_open(self, pid, path):
        descriptors = f"/proc/{pid}/fd"
        for name in os.listdir(descriptors):
            try:
                if os.readlink(os.path.join(descriptors, name)) == path:
                    return True
            except FileNotFoundError:
                pass  # closed meanwhile
        return False

    def test_a_server_that_is_just_starting_is_left_alone(self):
        """Between bind and listen nobody listens: a server has its folder locked meanwhile."""
        folder = os.path.realpath(self.folder)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path("s"))
            second = subprocess.Popen(
                [support.program(), "serve", "null:1M", "--listen", self.socket_uri()],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(second.kill)
            while not self.has_open(second.pid, folder):  # until it waits, or serves
                self.assertEqual(select.select([second.stdout], [], [], 0.01)[0], [])
            other.listen()
            os.close(lock)
            output, errors = second.communicate()
            self.assertEqual((second.returncode, output), (1, ""))
            self.assertIn("another program listens", errors)
            self.assertEqual(os.listdir(self.folder), ["s"])

    def test_a_live_server_is_left_alone(self):
        server = self.start_unix("null:1M")
        self.check_refused(["serve", "null:1M", "--listen", self.socket_uri()], 1,
                           self.socket_uri(), "another program listens")
        self.check_served(server.uri)

    def test_a_listener_that_has_ended(self):
        """Its socket is open all the same: here somebody else has it."""
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path("s"))
            for reaped in (False, True):
                pid = os.fork()
                if pid == 0:
                    other.listen()
                    os._exit(0)
                os.waitid(os.P_PID, pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
                self.check_refused(["serve", "null:1M", "--listen", self.socket_uri()], 1,
                                   f"the socket of process {pid}, which has exited, is still open")
                self.assertEqual(os.listdir(self.folder), ["s"])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare") and shutil.which("setpriv"),
                         "needs to hide processes")
    def test_a_listener_that_is_hidden(self):
        """As in our unit, with ProtectProc=invisible: it cannot be seen, and has not ended."""
        os.chmod(self.folder, 0o755)
        shutil.copy(support.program(), self.path("gmblock"))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(self.path("s"))
            other.listen()
            os.chmod(self.path("s"), 0o777)
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c",
                 f"mount -t proc -o hidepid=invisible proc /proc && test -e /proc/{os.getpid()} && "
                 "exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '"
                 f"test ! -e /proc/{os.getpid()} && exec {self.path('gmblock')} serve null:1M --listen "
                 f"{self.socket_uri()}'"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("another program listens", done.stderr)

    def test_a_full_backlog_counts_as_live(self):
        with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
            other.bind(self.path("s"))
            other.listen(0)
            waiting.connect(self.path("s"))
            self.check_refused(["serve", "null:1M", "--listen", self.socket_uri()], 1,
                               "another program listens")
            self.assertEqual(os.listdir(self.folder), ["s"])

    def test_other_files_are_left_alone(self):
        self.make_file("s", "precious")
        self.check_refused(["serve", "null:1M", "--listen", self.socket_uri()], 1,
                           self.socket_uri(), "is not a socket; choose another path")
        with open(self.path("s"), encoding="ascii") as file:
            self.assertEqual(file.read(), "precious")

    def test_a_file_that_replaced_ours_is_left_alone(self):
        server = self.start_unix("null:1M")
        os.unlink(self.path("s"))
        self.make_file("s", "precious")
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(os.listdir(self.folder), ["s"])

    def test_paths_that_cannot_be(self):
        self.check_refused(
            ["serve", "null:1M", "--listen", "nbd+unix:///?socket=/tmp/" + "x" * 103], 1,
            "has 108 bytes", "the limit is 107")
        self.check_refused(["serve", "null:1M", "--listen", self.socket_uri("no/s")], 1,
                           "the folder of the socket does not exist; create it")

    def test_the_longest_path(self):
        name = "x" * (107 - len(self.folder) - 1)
        server = self.start("null:1M", "--listen", self.socket_uri(name))
        self.check_served(server.uri)

    def test_paths_with_strange_characters(self):
        name = "a b&c=d?e%#\u00e9"
        quoted = "a%20b%26c%3Dd%3Fe%25%23%C3%A9"
        server = self.start("null:1M", "--listen", self.socket_uri(quoted))
        self.assertEqual(server.uri, self.socket_uri(quoted))
        self.assertEqual(os.listdir(self.folder), [name])
        self.check_served(server.uri)

    def test_abstract_names(self):
        name = f"gmblock-test-{os.getpid()}"
        uri = f"nbd+unix:///?socket=%00{name}"
        server = self.start("null:1M", "--listen", uri)
        self.assertEqual(server.uri, uri)
        self.check_served(uri)
        self.check_refused(["serve", "null:1M", "--listen", uri], 1, "another program listens")
        self.check_refused(["serve", "null:1M", "--listen", "nbd+unix:///?socket=%00"], 1,
                           "needs a name")


if __name__ == "__main__":
    support.main()
