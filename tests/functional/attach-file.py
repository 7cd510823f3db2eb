#!/usr/bin/python3
"""An export as a file through FUSE: bytes, holes, refusals, and its end."""
import json
import mmap
import os
import queue
import random
import re
import select
import signal
import socket
import subprocess
import threading

import attach_tool
import support
from fake_export import STATUS, ExportServer

MIB = 1 << 20


class Way:
    """A way over TCP to a server on a Unix socket. While it is cut, connections end at once, and
    each puts something into refused."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_open = True
        self.ends = []
        self.refused = queue.SimpleQueue()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.is_open:
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.path)
                self.ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()
            else:
                near.close()
                self.refused.put(None)

    def pump(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # cut

    def cut(self):
        self.is_open = False
        for end in self.ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its peer is gone

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
        for end in self.ends:
            end.close()


class File(attach_tool.Case):
    def test_any_bytes_arrive_in_the_image(self):
        image = self.image()
        self.serve(image)
        disk = self.attach()
        chance = random.Random(1)
        self.assertEqual(os.stat(disk).st_size, attach_tool.SIZE)
        model = bytearray(4 * MIB)
        fd = os.open(disk, os.O_RDWR)
        for turn in range(400):
            offset = chance.randrange(len(model))
            data = chance.randbytes(min(chance.choice([1, 511, 4096, 70001, MIB]),
                                        len(model) - offset))
            self.assertEqual(os.pwrite(fd, data, offset), len(data))
            model[offset:offset + len(data)] = data
            if turn % 9 == 0:
                self.assertEqual(os.pread(fd, 5000, offset), model[offset:offset + 5000], turn)
        os.fsync(fd)
        os.close(fd)
        self.detach()
        with open(image, "rb") as file:
            self.assertEqual(file.read(len(model)), model)
        self.assertFalse(os.path.exists(disk), "the file was made by attach")

    def test_a_path_of_any_bytes(self):
        """What is no UTF-8, and what looks as if it were escaped already: shown, found and
        removed, also when the daemon was killed."""
        self.serve(self.image())
        self.addCleanup(self.detach_all)
        names = {b"disk-\xff\xfe": "disk-\\xff\\xfe", b"disk-\\xff": "disk-\\xff",
                 b"disk \x01\"\\": "disk \x01\"\\"}
        for name, shown in names.items():
            path = os.path.join(os.fsencode(self.folder), name)
            for given in (os.fsdecode(path), self.path(shown)):
                code, output, errors = self.gmblock("attach", "--fuse", os.fsdecode(path),
                                                    self.socket_uri())
                self.assertEqual((code, os.fsencode(output)), (0, path + b"\n"), errors)
                entry, = self.attachments()
                self.assertEqual(entry["device"], self.path(shown))
                self.assertTrue(os.path.exists(path))
                code, table, errors = self.gmblock("attach", "--list")
                self.assertEqual((code, errors), (0, ""))
                self.assertNotIn("\x01", table)
                self.detach(given)
                self.assertEqual(self.attachments(), [])
                self.assertFalse(os.path.exists(path))
            code, _, errors = self.gmblock("attach", "--fuse", os.fsdecode(path),
                                           self.socket_uri())
            self.assertEqual(code, 0, errors)
            os.kill(self.attachments()[0]["pid"], signal.SIGKILL)
            while self.attachments()[0]["alive"]:
                pass
            self.detach(self.path(shown))
            self.assertEqual(self.attachments(), [])

    def test_holes_are_seen_and_made(self):
        self.serve(self.image())
        disk = self.attach()
        fd = os.open(disk, os.O_RDWR)
        os.pwrite(fd, b"x" * MIB, 8 * MIB)
        os.fsync(fd)
        self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 8 * MIB)
        self.assertEqual(os.lseek(fd, 8 * MIB, os.SEEK_HOLE), 9 * MIB)
        self.call("fallocate", "--punch-hole", "--offset", str(8 * MIB), "--length", str(MIB), disk)
        self.assertEqual(os.pread(fd, 4096, 8 * MIB), bytes(4096))
        self.assertEqual(os.lseek(fd, 0, os.SEEK_HOLE), 0)
        os.pwrite(fd, b"y" * MIB, MIB)
        self.call("fallocate", "--zero-range", "--offset", str(MIB), "--length", str(MIB), disk)
        self.assertEqual(os.pread(fd, MIB, MIB), bytes(MIB))
        os.close(fd)

    def test_the_size_stays(self):
        self.serve(self.image())
        disk = self.attach()
        with open(disk, "wb"):
            pass
        self.assertEqual(os.stat(disk).st_size, attach_tool.SIZE)
        with self.assertRaises(OSError):
            os.truncate(disk, 5)
        fd = os.open(disk, os.O_RDWR)
        with self.assertRaises(OSError):
            os.pwrite(fd, b"x", attach_tool.SIZE)
        os.close(fd)

    def test_the_disk_grows(self):
        control = self.path("control")
        image = self.image()
        self.serve(image, "--control", control)
        disk = self.attach()
        fd = os.open(disk, os.O_RDWR)
        end = attach_tool.SIZE
        for size in (end + 512, end + MIB):
            with open(image, "r+b") as file:
                file.truncate(size)
                file.seek(size - 100)
                file.write(b"of the server")
            code, _, errors = self.gmblock("export", "set", "", "size=auto", "--server", control)
            self.assertEqual(code, 0, errors)
            self.wait_for(lambda size=size: os.fstat(fd).st_size == size)
            self.assertEqual(os.pread(fd, 200, size - 100), b"of the server" + bytes(87))
            os.pwrite(fd, b"end", size - 3)
            os.fsync(fd)
            with open(image, "rb") as file:
                file.seek(size - 3)
                self.assertEqual(file.read(), b"end")
            self.wait_for(lambda size=size: self.attachments()[0]["size"] == size)
        os.close(fd)

    def test_read_only(self):
        self.serve("--export", f"={self.image()},readonly")
        disk = self.attach()
        with self.assertRaises(OSError):
            os.open(disk, os.O_RDWR)
        self.assertTrue(self.attachments()[0]["read_only"])

    def test_an_error_of_the_disk_is_an_error_of_the_file(self):
        self.serve("--export", f"={self.image()},fault=write:ENOSPC:range=1M+64K")
        disk = self.attach()
        fd = os.open(disk, os.O_RDWR)
        with self.assertRaises(OSError) as failure:
            os.pwrite(fd, b"x" * 4096, MIB)
        self.assertEqual(failure.exception.errno, 28)
        self.assertEqual(os.pwrite(fd, b"x" * 4096, 0), 4096)
        os.close(fd)

    def test_list_and_detach(self):
        self.serve(self.image())
        disk = self.attach()
        entry = self.attachments()[0]
        self.assertEqual(
            (entry["device"], entry["kind"], entry["uri"], entry["size"], entry["alive"],
             entry["state"]),
            (disk, "fuse", self.socket_uri(), attach_tool.SIZE, True, "connected"))
        with open(disk, "rb"):
            code, _, errors = self.gmblock("detach", disk)
            self.assertEqual(code, 1)
            self.assertIn("is open in process", errors)
        self.detach(self.socket_uri())
        self.assertEqual(self.attachments(), [])
        self.assertEqual(os.listdir(self.path("state")), [])

    def test_a_file_behind_a_loop_device_names_the_last_user(self):
        """The remedy works: of a mounted loop device it is `umount`, of another one `losetup`."""
        self.serve(self.image())
        disk = self.attach()
        loop = self.command("losetup", "--find", "--show", disk)
        try:
            self.assertIn(f"detach that with: losetup --detach {loop}", self.refused_detach(disk))
            self.command("mkfs.ext4", "-q", loop)
            folder = self.path("mounted")
            os.mkdir(folder)
            self.command("mount", loop, folder)
            try:
                told = self.refused_detach(disk)
                self.assertIn(f"{disk} backs {loop}: {loop} is mounted on {folder}; "
                              f"unmount it with: umount {folder}", told)
                self.assertNotIn("losetup", told)
            finally:
                self.command("umount", folder)
        finally:
            self.command("losetup", "--detach", loop)
        self.detach(disk)

    def test_a_file_is_in_use_by_another_path(self):
        """Who uses a file by the path of a bind mount is named."""
        self.serve(self.image())
        disk = self.attach()
        other = self.bind(disk, "other name")
        with open(other, "rb"):
            self.assertIn(f"{disk} is open in process", self.refused_detach(disk, "--timeout", "10s"))
        loop = self.command("losetup", "--find", "--show", other)
        try:
            self.assertIn(f"detach that with: losetup --detach {loop}",
                          self.refused_detach(disk, "--timeout", "10s"))
        finally:
            self.command("losetup", "--detach", loop)
        self.command("umount", other)
        self.detach(disk)

    def test_a_bind_mount_that_nobody_uses(self):
        """It does not refuse the detach, which lasts until the kernel has given up the file."""
        self.serve(self.image())
        other = self.bind(self.attach(), "other name")
        waits, told = self.begin_detach()
        self.assertIn("waiting", told)
        self.command("umount", other)
        self.assertEqual(waits.wait(), 0)
        self.assertEqual(self.attachments(), [])

    def bind(self, disk, name):
        path = self.path(name)
        with open(path, "wb"):
            pass
        self.command("mount", "--bind", disk, path)
        self.addCleanup(subprocess.run, ["umount", "--lazy", path], stderr=subprocess.DEVNULL, check=False)
        return path

    @staticmethod
    def command(*words):
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def refused_detach(self, disk, *arguments):
        code, _, errors = self.gmblock("detach", *arguments, disk)
        self.assertEqual(code, 1, errors)
        return errors

    def test_a_uri_of_several_disks_is_refused(self):
        self.serve(self.image())
        self.addCleanup(self.detach_all)
        disks = [self.path("disk-1"), self.path("disk-2")]
        for disk in disks:
            code, _, errors = self.gmblock("attach", "--fuse", disk, self.socket_uri())
            self.assertEqual(code, 0, errors)
        for force in ([], ["--force"]):
            code, output, errors = self.gmblock("detach", *force, self.socket_uri())
            self.assertEqual((code, output), (1, ""), errors)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn("2 disks have this URI, so none was detached", errors)
            for disk in disks:
                self.assertIn(disk, errors)
            self.assertEqual(sorted(entry["device"] for entry in self.attachments()), disks)
        self.detach(disks[0])
        self.detach(self.socket_uri())
        self.assertEqual(self.attachments(), [])

    def test_sigterm_detaches(self):
        self.serve(self.image())
        disk = self.attach()
        pid = self.attachments()[0]["pid"]
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.assertEqual(file.read(1), b"@", "systemd spares those who begin so")
        daemon = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        select.select([daemon], [], [])
        os.close(daemon)
        self.assertFalse(os.path.exists(disk))

    def begin_detach(self):
        """A gentle detach that has to wait; returns it and what it says about that."""
        waits = subprocess.Popen(
            [support.program(), "detach", self.path("disk")], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)
        self.addCleanup(waits.communicate)
        self.addCleanup(waits.kill)
        return waits, waits.stderr.readline()

    def lose_server(self):
        self.server.kill()
        while not self.attachments()[0]["state"].startswith("not connected: "):
            pass

    def test_why_the_server_was_lost_is_listed(self):
        image = self.image()
        self.serve(image)
        self.attach("--reconnect-timeout", "3600s")
        self.assertIsNone(self.attachments()[0]["last_reason"])
        self.lose_server()
        # Not only what was lost, but also why it does not come back.
        while "refused" not in self.attachments()[0]["state"]:
            pass
        self.serve(image)
        while self.attachments()[0]["state"] != "connected":
            pass
        # The socket of the dead server refuses; it is replaced when there is a new one.
        self.assertRegex(self.attachments()[0]["last_reason"], "refused|No such file")
        table = self.gmblock("attach", "--list")[1]
        self.assertRegex(table, r" connected \(last lost: .*(refused|No such file).*\)\n$")

    def test_several_hosts(self):
        """The list shows the host in use. The disk continues at the other one, where it was added when the first one
        was killed."""
        image, control = self.image(), self.path("control")
        listen = ("--listen", "nbd://127.0.0.1:0")
        servers = (self.start("--export", f"disk={image}", *listen),
                   self.start("--export", "spare=memory:1M", "--control", control, "--export-folder", self.folder, *listen))
        hosts = [server.uri.split("/")[2] for server in servers]
        disk = self.attach("--reconnect-timeout", "3600s", uri=f"nbd://{hosts[0]},{hosts[1]}/disk")
        self.assertEqual(self.attachments()[0]["server"], hosts[0])
        self.assertRegex(self.gmblock("attach", "--list")[1], f" connected to {hosts[0]}\n$")
        data = random.Random(8).randbytes(MIB)
        with open(disk, "r+b", buffering=0) as file:
            self.assertEqual(file.write(data), MIB)
            servers[0].kill()
            self.wait_for(lambda: self.gmblock("export", "add", "disk", image, "--server", control)[0] == 0)
            file.seek(0)
            self.assertEqual(file.read(MIB), data)
            os.fsync(file.fileno())
        self.assertEqual(self.attachments()[0]["server"], hosts[1])
        self.assertRegex(self.gmblock("attach", "--list")[1], f" connected to {hosts[1]} \\(last lost: .*\\)\n$")

    def test_the_reasons_of_all_hosts_are_listed(self):
        """None is cut off, although each has its own advice."""
        images = self.image(), self.make_file("other", bytes(attach_tool.SIZE))
        servers = [self.start("--export", f"disk={image}", "--listen", "nbd://127.0.0.1:0") for image in images]
        hosts = ",".join(server.uri.split("/")[2] for server in servers)
        self.attach("--reconnect-timeout", "3600s", uri=f"nbd://{hosts}/disk")
        servers[0].kill()
        listed = re.compile("not connected: .*: cannot connect: .*; .*different disks.* of one of the servers")
        self.wait_for(lambda: listed.fullmatch(self.attachments()[0]["state"]))

    def test_requests_of_a_fenced_node_fail_at_once(self):
        """Another node may use the disk already, so nobody waits for the end of the fence."""
        os.mkdir(self.path("fences"))
        conf = self.make_file("conf", "nodes: [{name: a, uid: 0}]\n"
                              f"exports: [{{name: '', path: '{self.image()}'}}]\n")
        self.serve("--config", conf, "--state-folder", self.path("fences"), "--control", self.path("control"))
        disk = self.attach("--reconnect-timeout", "36000s")
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"x" * 4096)
            self.assertEqual(self.gmblock("fence", "a", "--server", self.path("control"))[0], 0)
            for _ in range(3):
                self.assertRaises(OSError, os.pwrite, file.fileno(), b"y" * 4096, 0)
                self.assertRaises(OSError, os.pread, file.fileno(), 4096, 8 << 20)
        fenced = "fenced: this node may not use the server until it is unfenced"
        self.assertIn(fenced, self.attachments()[0]["state"])
        listed = self.gmblock("attach", "--list")[1]
        self.assertIn(fenced, listed)
        self.assertNotIn("gave up", listed)
        # The end of the fence does not bring the disk back: it may have changed.
        self.assertEqual(self.gmblock("unfence", "a", "--server", self.path("control"))[0], 0)
        self.assertIn(fenced, self.attachments()[0]["state"])
        self.assertRaises(OSError, self.read_one, disk)
        with open(self.path("image"), "rb") as file:
            self.assertEqual(file.read(4096), b"x" * 4096)
        self.detach_by_force()

    @staticmethod
    def read_one(path):
        with open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), 4096, 4 << 20)

    def test_force_overtakes_a_detach_that_waits(self):
        self.serve(self.image())
        disk = self.attach("--reconnect-timeout", "3600s")
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"x" * 4096)
        self.lose_server()
        first, note = self.begin_detach()
        self.assertIn("waiting for the server to flush (not connected: ", note)
        self.assertIn("at most 3600 s", note)
        self.assertIn("gmblock detach --force does not wait", note)
        second, note = self.begin_detach()
        self.assertIn("at most 3600 s", note)
        entry, = self.attachments()
        self.assertTrue(entry["state"].startswith("being detached, not connected: "), entry)
        self.assertEqual((first.poll(), second.poll()), (None, None))
        self.detach_by_force()
        for waits in (first, second):
            output, errors = waits.communicate()
            self.assertEqual((waits.returncode, output), (1, ""), errors)
            self.assertIn(f"{disk} was removed by another gmblock detach --force", errors)
        self.assertEqual(self.attachments(), [])
        self.assertFalse(os.path.exists(disk))

    def test_a_flush_slower_than_the_time_limit(self):
        self.serve("--export", f"={self.image()},delay=flush:3s,delay=zero:3s")
        disk = self.attach("--request-timeout", "1s", "--reconnect-timeout", "5s")
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"x" * 4096)
            os.fsync(file)
        self.assertEqual([entry["state"] for entry in self.attachments()], ["connected"])

    def attach_and_write(self, *options):
        """A disk that was written, from a server that never ends a flush."""
        self.serve("--export", f"={self.image()},delay=flush:3600s")
        disk = self.attach(*options)
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"x" * 4096)
        return disk

    def test_force_overtakes_a_detach_from_a_silent_server(self):
        disk = self.attach_and_write("--reconnect-timeout", "3000s", "--request-timeout", "600s")
        waits, note = self.begin_detach()
        self.assertIn("flush (connected), at most 3600 s", note)
        daemon = os.pidfd_open(self.attachments()[0]["pid"])
        self.addCleanup(os.close, daemon)
        self.detach_by_force()
        _, errors = waits.communicate()
        self.assertEqual(waits.returncode, 1)
        self.assertIn("was removed by another gmblock detach --force", errors)
        self.assertFalse(os.path.exists(disk))
        select.select([daemon], [], [])  # no thread of it is left

    def test_a_detach_has_a_limit_and_the_disk_stays(self):
        """The server flushes nothing: the disk is as it was, and can be detached when it does again."""
        disk = self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        code, output, errors = self.gmblock("detach", "--timeout", "1s", disk)
        self.assertEqual((code, output), (1, ""), errors)
        self.assertIn("flush (connected), at most 1 s;", errors)
        self.assertIn(f"{disk} is still attached: the server did not flush within 1 s (connected); "
                      "try again when the server responds, or discard unflushed data with "
                      "gmblock detach --force\n", errors)
        self.assertEqual([entry["state"] for entry in self.attachments()], ["connected"])
        with open(disk, "rb", buffering=0) as file:
            self.assertEqual(file.read(4096), b"x" * 4096)
        self.serve(self.path("image"))
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"y" * 4096)  # waits for the flush, which the new server ends
        self.detach()
        with open(self.path("image"), "rb") as file:
            self.assertEqual(file.read(4096), b"y" * 4096)

    def test_the_usual_limit_is_that_of_the_attachment(self):
        disk = self.attach_and_write("--reconnect-timeout", "3s", "--slow-timeout", "3s", "--request-timeout", "3s")
        code, _, errors = self.gmblock("detach", disk)
        self.assertEqual(code, 1)
        self.assertRegex(errors, "is still attached: the server did not flush within [36] s")
        self.detach_by_force()

    def test_a_detach_that_is_ended_leaves_the_disk(self):
        disk = self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        waits, _ = self.begin_detach()
        waits.kill()
        waits.communicate()
        while [entry["state"] for entry in self.attachments()] != ["connected"]:
            pass
        with open(disk, "rb", buffering=0) as file:
            self.assertEqual(file.read(4096), b"x" * 4096)
        self.detach_by_force()

    def test_a_daemon_that_does_not_answer(self):
        """Nothing waits for it, and what it was asked is not done later. When it is killed, the rest goes."""
        self.serve(self.image())
        disk = self.attach()
        pid = self.attachments()[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            code, output, errors = self.gmblock("detach", disk)
            self.assertEqual((code, output), (1, ""), errors)
            self.assertIn(f"{disk}: its daemon (process {pid}) did not respond in time", errors)
            self.assertIn(f"end it with kill -KILL {pid}", errors)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual([entry["state"] for entry in self.attachments()], ["connected"])
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: not self.attachments()[0]["alive"])
        self.detach()
        self.assertEqual(self.attachments(), [])

    def test_a_daemon_that_stops_answering_while_it_flushes(self):
        self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        pid = self.attachments()[0]["pid"]
        waits, _ = self.begin_detach()
        os.kill(pid, signal.SIGSTOP)
        try:
            errors = waits.communicate()[1]
        finally:
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(waits.returncode, 1)
        self.assertIn(f"its daemon (process {pid}) did not respond in time", errors)
        self.detach_by_force()

    def test_signals_do_not_end_the_flush(self):
        """A second Ctrl-C reaches the process that flushes, too."""
        self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        daemon = self.attachments()[0]["pid"]
        self.begin_detach()
        wanted = sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))

        def ignores_them():
            found = subprocess.run(["pgrep", "--parent", str(daemon), "--full", "--", "--flush-attached"],
                                   stdout=subprocess.PIPE, text=True, check=False).stdout.split()
            if not found:
                return False
            with open(f"/proc/{found[0]}/status", encoding="ascii") as status:
                ignored, = [int(line.split()[1], 16) for line in status if line.startswith("SigIgn:")]
            return ignored & wanted == wanted
        self.wait_for(ignores_them)
        self.detach_by_force()

    def test_a_daemon_that_is_killed_while_it_flushes(self):
        """It ends, although nobody answers the flush any more; so does everybody's wait for the disk."""
        self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        pid = self.attachments()[0]["pid"]
        waits, _ = self.begin_detach()
        os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
        waits.communicate()
        self.detach()
        self.assertEqual(self.attachments(), [])

    def test_a_client_that_was_ended_does_not_count(self):
        self.attach_and_write("--reconnect-timeout", "3600s", "--request-timeout", "3600s")
        name, = [name for name in os.listdir(self.path("state")) if name.endswith(".sock")]
        for _ in range(40):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(self.path(f"state/{name}"))
                client.sendall(b'{"command": "detach"}\n')
        waits, _ = self.begin_detach()
        self.detach_by_force()
        _, errors = waits.communicate()
        self.assertEqual(waits.returncode, 1)
        self.assertIn("was removed by another gmblock detach --force", errors)

    def test_a_detach_waits_for_the_server(self):
        image = self.image()
        self.serve(image)
        disk = self.attach()
        with open(disk, "r+b", buffering=0) as file:
            file.write(b"x" * 4096)
        self.lose_server()
        waits, note = self.begin_detach()
        self.assertIn("at most 600 s", note)
        self.serve(image)
        output, errors = waits.communicate()
        self.assertEqual((waits.returncode, output, errors), (0, "", ""))
        self.assertEqual(self.attachments(), [])
        with open(image, "rb") as file:
            self.assertEqual(file.read(4096), b"x" * 4096)

    def detach_by_force(self):
        code, output, errors = self.gmblock("detach", "--force", self.path("disk"))
        self.assertEqual((code, output, errors), (0, "", ""))

    def test_what_a_dead_daemon_left_is_removed(self):
        self.serve(self.image())
        disk = self.attach()
        pid = self.attachments()[0]["pid"]
        daemon = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([daemon], [], [])
        os.close(daemon)
        self.assertFalse(self.attachments()[0]["alive"])
        code, _, errors = self.gmblock("attach", "--fuse", disk, self.socket_uri())
        self.assertEqual(code, 1)
        self.assertIn("gmblock detach", errors)
        self.detach()
        self.assertEqual(self.attachments(), [])
        self.attach()

    def test_a_file_with_contents_is_not_hidden_silently(self):
        self.serve(self.image())
        path = self.make_file("disk", b"precious")
        code, output, errors = self.gmblock("attach", "--fuse", path, self.socket_uri())
        self.assertEqual((code, output), (1, ""))
        self.assertIn(f"{path} is not empty (8 bytes)", errors)
        self.assertIn("--force", errors)
        self.assertEqual(self.attachments(), [])
        code, output, errors = self.gmblock("attach", "--force", self.socket_uri())
        self.assertEqual((code, output), (2, ""))
        self.assertIn("--force needs --fuse", errors)
        code, _, errors = self.gmblock("attach", "--fuse", self.path("missing/disk"), self.socket_uri())
        self.assertEqual(code, 1)
        self.assertIn("its folder does not exist; create the folder first", errors)

        self.assertEqual(self.attach("--force"), path)
        self.assertEqual(os.path.getsize(path), attach_tool.SIZE)
        self.detach()
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"precious")
        # An empty one has nothing to hide.
        os.truncate(path, 0)
        self.attach()
        self.detach()
        self.assertEqual(os.path.getsize(path), 0)

    def test_a_path_that_cannot_be_printed(self):
        """The disk is there: who wants to know where it is reads it from the message."""
        self.serve(self.image())
        self.addCleanup(self.detach_all)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [support.program(), "attach", "--fuse", self.path("disk"), self.socket_uri()],
                stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=self.environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{self.path('disk')} is attached, but", done.stderr)
        self.detach()

    def test_only_files_need_libfuse(self):
        linked = subprocess.run(["ldd", support.program()], capture_output=True, text=True,
                                check=False).stdout
        if "libfuse" in linked:
            self.skipTest("libfuse is linked")
        self.serve(self.image())
        folder = self.path("libraries")
        os.mkdir(folder)
        self.make_file("libraries/libfuse3.so.3", "no library")
        self.environment["LD_LIBRARY_PATH"] = folder
        code, output, errors = self.gmblock("attach", "--fuse", self.path("d"), self.socket_uri())
        self.assertEqual((code, output), (1, ""), errors)
        self.assertIn("cannot load libfuse 3, which --fuse needs: ", errors)
        self.assertIn(folder, errors)
        self.assertFalse(os.path.exists(self.path("d")))
        self.assertEqual(self.attachments(), [])


class FileOverGmb(File):
    """The same, from a server that reads and writes the daemon's memory."""

    SCHEME = "gmb+unix"
    # Ten seconds each, and no matter of the transport.
    test_a_daemon_that_does_not_answer = None
    test_a_daemon_that_stops_answering_while_it_flushes = None


class NbdFile(attach_tool.Case):
    """What only other servers do, and what does not depend on the server."""

    def test_a_server_with_a_name_is_found_again(self):
        """Its name is looked up by a thread, for each attempt to connect."""
        image = self.image()
        self.serve(image)
        way = Way(self.path("s"))
        self.addCleanup(way.close)
        disk = self.attach("--reconnect-timeout", "3600s", "--connections", "1",
                           uri=f"nbd://localhost:{way.port}")
        way.cut()
        for _ in range(6):
            way.refused.get(timeout=60)
        way.is_open = True
        # A process can be killed if it is never answered.
        subprocess.run(["dd", "of=" + disk, "bs=4000", "count=1", "conv=notrunc,fsync",
                        "status=none"], input=b"again" * 800, check=True, timeout=60)
        with open(image, "rb") as file:
            self.assertEqual(file.read(4000), b"again" * 800)

    def test_blocks_of_a_strict_server_are_completed(self):
        """A server that takes whole blocks of 4096 bytes only, and writers of 512 bytes at once
        in the same blocks: nobody undoes another's bytes."""
        try:
            server = subprocess.Popen(
                ["nbdkit", "--exit-with-parent", "--foreground", "--unix", self.path("strict"),
                 "--filter=blocksize-policy", "memory", "1M", "blocksize-minimum=4096",
                 "blocksize-preferred=4096", "blocksize-maximum=1M",
                 "blocksize-error-policy=error"], stderr=subprocess.PIPE)
        except OSError:
            self.skipTest("there is no nbdkit")
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        while not os.path.exists(self.path("strict")):
            if server.poll() is not None:
                self.skipTest(f"nbdkit does not start: {server.stderr.read()}")
        disk = self.attach(uri=f"nbd+unix:///?socket={self.path('strict')}")

        def write(number):
            fd = os.open(disk, os.O_RDWR | os.O_DIRECT)
            page = mmap.mmap(-1, 4096)
            page.write(bytes([number + 1]) * 4096)
            for block in range(64):
                os.pwritev(fd, [memoryview(page)[:512]], block * 4096 + number * 512)
            os.close(fd)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        with open(disk, "rb") as file:
            block = b"".join(bytes([number + 1]) * 512 for number in range(8))
            self.assertEqual(file.read(64 * 4096), block * 64)
        fd = os.open(disk, os.O_RDWR)
        os.pwrite(fd, b"end", MIB - 3)
        self.assertEqual(os.pread(fd, 9, MIB - 5), b"\0\0end")
        os.close(fd)

    def test_extents_shorter_than_a_block(self):
        """A server that does not keep to its own blocks is not asked for ever."""
        def server(export):
            while True:
                request = export.request()
                flags = 3 if request.offset < 8192 else 0
                export.send(export.extents(request, [(512, flags)]) if request.kind == STATUS
                            else export.honest(request))

        with ExportServer(server, size=1 << 16, sizes=(4096, 4096, 1 << 16)) as export:
            path = self.attach(uri=export.uri())
            with open(path, "rb") as file:
                # The rest of a block of which a hole was told may be data.
                self.assertEqual(os.lseek(file.fileno(), 0, os.SEEK_DATA), 512)
                self.assertEqual(os.lseek(file.fileno(), 8192, os.SEEK_HOLE), 1 << 16)
            self.detach(path)
        self.assertEqual(export.failures, [])

    def test_columns_of_the_list_fit_their_contents(self):
        """One line is much longer than another, and not all of it is ASCII."""
        self.addCleanup(self.detach_all)
        self.start_unix("--export", "=memory:1M", "--export", f"{'n' * 60}=memory:123456789",
                        uri_count=2)
        names = ["d", "\u00fcml\u00e4ut-" + "x" * 60]
        for index, name in enumerate(names):
            uri = f"nbd+unix:///{'n' * 60 * index}?socket={self.path('s')}"
            code, _, errors = self.gmblock("attach", "--fuse", self.path(name), uri)
            self.assertEqual(code, 0, errors)
        code, output, errors = self.gmblock("attach", "--list")
        self.assertEqual((code, errors), (0, ""))
        lines = output.splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[0].split(), ["DEVICE", "KIND", "SIZE", "RO", "PID", "URI", "STATE"])
        for heading in ("KIND", "RO", "PID", "URI", "STATE"):
            at = lines[0].index(heading)
            for line in lines[1:]:
                self.assertEqual(line[at - 1], " ", output)
                self.assertNotEqual(line[at], " ", output)
        end = lines[0].index("SIZE") + len("SIZE")
        self.assertEqual(sorted(line[:end].split()[-1] for line in lines[1:]), ["123456789", "1M"])
        for line in lines[1:]:
            self.assertTrue(line.endswith(" connected"), output)

    def test_a_daemon_that_does_not_answer_does_not_hold_up_the_list(self):
        self.serve(self.image())
        disk = self.attach()
        daemon = self.attachments()[0]["pid"]
        os.kill(daemon, signal.SIGSTOP)
        try:
            code, output, errors = self.gmblock("attach", "--list")
        finally:
            os.kill(daemon, signal.SIGCONT)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn(disk, output)
        self.assertTrue(output.endswith(" the daemon does not respond\n"), output)
        self.detach(disk)

    def test_timings_are_told_step_by_step(self):
        self.serve(self.image())
        self.addCleanup(self.detach_all)
        steps = ["start", "arguments", "fork", "protect", "file", "connect", "disk", "watch",
                 "state", "tell"]
        command = ("attach", "--timings", "--fuse", self.path("disk"), self.socket_uri())
        code, output, errors = self.gmblock(*command)
        self.assertEqual((code, output), (0, self.path("disk") + "\n"), errors)
        lines = [line.split() for line in errors.splitlines()]
        self.assertEqual([line[0] for line in lines], [*steps, "all"])
        self.assertEqual({line[2] for line in lines}, {"us"})
        shares = [float(line[1]) for line in lines]
        self.assertAlmostEqual(sum(shares[:-1]), shares[-1], delta=1)
        self.detach()
        code, output, errors = self.gmblock(*command, "--json")
        self.assertEqual((code, errors), (0, ""))
        told = json.loads(output)
        self.assertEqual(set(told), {"device", "us", "steps"})
        self.assertEqual(told["device"], self.path("disk"))
        self.assertEqual([step["step"] for step in told["steps"]], steps)
        for step in told["steps"]:
            self.assertEqual(set(step), {"step", "us"})
            self.assertGreater(step["us"], 0, step)
        self.assertAlmostEqual(sum(step["us"] for step in told["steps"]), told["us"], delta=0.1)
        self.detach()

    def test_refusals(self):
        self.serve(self.image())
        folder = self.path("folder")
        os.mkdir(folder)
        for arguments, status, words in [
                (["attach"], 2, "give one URI"),
                (["attach", "--list", "x"], 2, "takes no URI"),
                (["attach", "--list", "--fuse", "x"], 2, "--fuse cannot be combined with --list"),
                (["attach", "--list", "--read-only"], 2, "--read-only cannot be combined with --list"),
                (["attach", "--list", "--connect-timeout", "1s"], 2, "--connect-timeout cannot be combined with --list"),
                (["attach", "--fuse", self.path("no/d"), self.socket_uri()], 1,
                 f"'{self.path('no/d')}'"),
                (["attach", "--ublk", "--nbd", "nbd://x"], 2, "only one of"),
                (["attach", "--nbd", f"gmb+unix:///?socket={self.path('s')}"], 1,
                 "the kernel's nbd driver does not support gmb URIs"),
                (["attach", "--json", "nbd://x"], 2, "--json needs"),
                (["attach", "--timings", "--list"], 2, "cannot be combined with --list"),
                (["attach", "--timings", "--foreground", "nbd://x"], 2,
                 "cannot be combined with --foreground"),
                (["attach", "--timings", "--fuse", self.path("d"), self.socket_uri("nobody")], 1,
                 "cannot connect"),
                (["attach", "--reconnect-timeout", "0", "nbd://x"], 2, "the value must not be 0"),
                (["attach", "--device", "3", "--fuse", "x", "nbd://x"], 2, "not with --fuse"),
                (["attach", "--fuse", folder, self.socket_uri()], 1, "is not a regular file; name an empty file"),
                (["attach", "--fuse", self.path("d"), "bad"], 2, "invalid URI 'bad'"),
                (["attach", "--fuse", self.path("d"), self.socket_uri("nobody")], 1,
                 "cannot connect"),
                (["attach", "--fuse", self.path("d"),
                  f"nbd+unix:///nothing?socket={self.path('s')}"], 1, "nothing"),
                (["detach", "/dev/nothing"], 1, "is not attached"),
                (["detach"], 2, "give one device"),
                (["detach", "\x1b"], 1, r"\x1b is not attached"),
                (["attach", "--fuse", self.path("\x1b/d"), self.socket_uri()], 1, r"\x1b/d"),
        ]:
            code, output, errors = self.gmblock(*arguments)
            self.assertEqual((code, output), (status, ""), errors)
            self.assertIn(words, errors)
        self.assertFalse(os.path.exists(self.path("d")), "nothing is left of a failure")


class OverVhost(attach_tool.Case):
    """The daemon sleeps on gmb_queue_fd(), whose kernel part loses signals of eventfds (src/ring/news.h)."""

    def socket_uri(self, name="s"):
        return f"vhost-user-blk+unix:///disk?socket={self.path(name)}"

    def test_requests_before_and_after_a_restart(self):
        image = self.image()
        self.serve("--export", f"disk={image}")
        disk = self.attach()
        chance = random.Random(33)
        model = bytearray(4 * MIB)
        fd = os.open(disk, os.O_RDWR)
        self.addCleanup(os.close, fd)

        def run(count):
            for _ in range(count):
                offset = chance.randrange(len(model))
                data = chance.randbytes(min(chance.choice([1, 511, 4096, 70001, MIB]), len(model) - offset))
                self.assertEqual(os.pwrite(fd, data, offset), len(data))
                model[offset:offset + len(data)] = data
                wanted = model[offset:offset + 5000]
                self.assertEqual(os.pread(fd, len(wanted), offset), wanted)
        run(200)
        self.serve("--export", f"disk={image}")
        run(200)
        os.fsync(fd)
        with open(image, "rb") as file:
            self.assertEqual(file.read(len(model)), model)


if __name__ == "__main__":
    attach_tool.main()
