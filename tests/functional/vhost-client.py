#!/usr/bin/python3
"""The front end of vhost-user-blk: with qemu-storage-daemon, and with a server that breaks rules.

    vhost-client.py GMBLOCK PROGRAM DRIVER
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import unittest

import support
import vhost_server as vhost

PROGRAM = DRIVER = ""
NO_RECONNECT = 2
IMAGE_BYTES = 64 << 20
QSD = "qemu-storage-daemon"


class Case(support.Case):
    def uri(self, queues=1):
        return f"vhost-user-blk+unix:///disk?socket={self.path('s')}&queues={queues}"

    def run_case(self, *arguments):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def drive(self, *lines, options="", meanwhile=None):
        """What the driver prints for these lines; after meanwhile, if it is given, for the rest."""
        with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            driver.stdin.write(f"open c {self.uri()} {options}\n")
            driver.stdin.flush()
            opened = driver.stdout.readline()
            if meanwhile is not None:
                opened += meanwhile(driver) or ""
            output, _ = driver.communicate("\n".join([*lines, "wait", ""]))
            self.assertIn(driver.returncode, (0, 2))
            return opened + output


@unittest.skipUnless(shutil.which(QSD), "qemu-storage-daemon is not installed (Debian package qemu-system-common)")
class Qemu(Case):
    def setUp(self):
        super().setUp()
        self.image = self.make_file("image", b"")
        os.truncate(self.image, IMAGE_BYTES)
        self.process = None
        self.addCleanup(self.kill)

    def serve(self, *options, queues=4):
        pid_file = self.path("pid")
        for name in ("pid", "s"):
            if os.path.exists(self.path(name)):
                os.unlink(self.path(name))
        self.process = subprocess.Popen(
            [QSD, "--blockdev", f"driver=file,node-name=disk,filename={self.image},discard=unmap", "--export",
             ",".join(["type=vhost-user-blk,id=e,node-name=disk,addr.type=unix", f"addr.path={self.path('s')}",
                       "writable=on", f"num-queues={queues}", *options]),
             "--pidfile", pid_file], stderr=subprocess.DEVNULL)
        self.wait_for(lambda: os.path.exists(pid_file) and os.path.getsize(pid_file) > 0)

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def test_buffers_are_reached_and_other_memory_is_copied(self):
        for queues in (1, 4):
            self.serve()
            self.run_case("placed", self.uri(queues), "placed")
            self.run_case("imported", self.uri(queues), "moved")
            self.kill()

    def test_copies_are_equal(self):
        content = b"".join(os.urandom(1 << 20) + bytes(1 << 20) for _ in range(IMAGE_BYTES >> 21))
        source = self.make_file("source", content)
        self.serve()
        self.assertEqual(self.run_gmblock("copy", source, self.uri(4)), (0, "", ""))
        self.assertEqual(self.run_gmblock("copy", self.uri(), self.path("back")), (0, "", ""))
        for name in ("image", "back"):
            with open(self.path(name), "rb") as file:
                self.assertEqual(file.read(), content)

    def test_what_a_server_offers(self):
        self.serve("logical-block-size=4096")
        code, output, errors = self.run_gmblock("info", self.uri())
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("vhost-user-blk", output)
        self.assertRegex(output, "minimum 4096, preferred 4096, largest payload 1.0 MiB")
        self.assertRegex(output, r"no   read-only")
        self.assertRegex(output, r"yes  flush")
        self.assertRegex(output, r"yes  write zeroes")
        for missing in ("Export", "Contexts", "fast zero", "multi-conn", "cache", "rotational", "status payload"):
            self.assertNotIn(missing, output) # what the protocol cannot say
        self.check_refused(["info", "--map", self.uri()], 1, "the protocol of this URI does not report allocation")
        export, = json.loads(self.run_gmblock("info", "--json", self.uri())[1])["exports"]
        self.assertEqual((export["name"], export["transmission_flags"], export["contexts"]), (None, None, None))
        self.assertEqual({key: value for key, value in export["capabilities"].items() if value is not None},
                         {"read_only": False, "flush": True, "trim": True, "write_zeroes": True})
        self.assertEqual(self.run_gmblock("list", self.uri()), (0, "disk\n", ""))
        self.assertIn("done c 0 write -22", self.drive("write c 512 512 0"))

    def test_changes_of_all_kinds(self):
        self.serve()
        output = self.drive("write c 0 65536 1", "wait", "zero c 4096 8192 0", "trim c 20480 4096 0", "flush c 0 0 0")
        for number, operation in enumerate(("write", "zero", "trim", "flush")):
            self.assertIn(f"done c {number} {operation} 0 ", output)
        with open(self.image, "rb") as file:
            data = file.read(65536)
        self.assertEqual(data[:4096], bytes(i % 251 for i in range(4096)))
        self.assertEqual(data[4096:12288], bytes(8192))

    def test_servers_that_are_killed(self):
        self.serve()
        storm = subprocess.Popen([PROGRAM, "storm", self.uri(2), "300"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.assertEqual(storm.stdout.readline(), "begun\n")
        for _ in range(6):
            written = os.stat(self.image).st_mtime_ns
            # Not before it works again: something must be in flight.
            self.wait_for(lambda: storm.poll() is not None or os.stat(self.image).st_mtime_ns > written)
            self.kill()
            self.serve()
        output, errors = storm.communicate()
        self.assertEqual(storm.returncode, 0, errors)
        self.assertGreaterEqual(int(output.split()[0]), 1)

    def test_a_frozen_server_is_noticed(self):
        self.serve()

        def freeze(_):
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        output = self.drive("read c 0 4096 0", options=f"flags={NO_RECONNECT} request_timeout_ms=300",
                            meanwhile=freeze)
        self.assertIn("the server did not respond in time", output)


class Rules(Case):
    def server(self, **options):
        server = vhost.Server(self.path("s"), **options)
        self.addCleanup(server.stop)
        return server

    def restart(self, server, **options):
        server.stop()
        os.unlink(self.path("s"))
        return self.server(**options)

    def check_works(self, server):
        """Writes and reads what is in memory that the server reaches, and in other memory."""
        output = self.drive("write c 0 4096 0", "wait", "read c 0 4096 0", "zero c 512 512 0",
                            *(f"read c {512 * i} 512 0" for i in range(300)))
        self.assertEqual(output.count(" read 0 "), 301, output)
        self.assertEqual(server.disk[:512], bytes(i % 251 for i in range(512)))
        self.run_case("placed", self.uri())
        self.assertEqual(server.connections[0].said.count(vhost.SET_OWNER), 1)

    def test_servers_with_fewer_features(self):
        features, protocol = vhost.FEATURES, vhost.PROTOCOL_FEATURES
        server = self.server()
        for without, without_protocol, options in (
                ([], [], {"queues": 4}),
                ([vhost.EVENT_IDX], [], {}),
                ([vhost.INDIRECT], [], {}),
                ([vhost.INDIRECT, vhost.EVENT_IDX, vhost.MQ], [vhost.P_MQ, vhost.P_STATUS], {}),
                ([], [vhost.P_SLOTS], {}),
                ([], [vhost.P_REPLY_ACK], {}),
                ([], [vhost.P_INFLIGHT, vhost.P_BACK_REQ, vhost.P_SLOTS, vhost.P_REPLY_ACK], {}),
                ([], [], {"slots": 3}),
                ([], [], {"config": vhost.config(8192, size_max=4096, seg_max=16)})):
            with self.subTest(without=without, without_protocol=without_protocol, options=options):
                server = self.restart(server, features=features & ~vhost.bits(*without),
                                      protocol=protocol & ~vhost.bits(*without_protocol), **options)
                self.check_works(server)

    def test_a_flush_follows_a_durable_write(self):
        server = self.server()
        self.drive("write c 0 4096 1")
        self.assertEqual(server.kinds, [1, 4])
        server = self.restart(server, features=vhost.FEATURES & ~vhost.bits(vhost.FLUSH))
        self.drive("write c 0 4096 1")
        self.assertEqual(server.kinds, [1])

    def test_ranges(self):
        server = self.server(sectors=1 << 15, config=vhost.config(1 << 15))
        output = self.drive("zero c 0 4096 0", "wait", "zero c 0 4096 2", "wait", "trim c 0 4194304 0")
        self.assertEqual(output.count(": success"), 3, output)
        self.assertEqual(server.ranges[:2], [(13, 0, 8, 1), (13, 0, 8, 0)])
        # The limit of a request is 1 MiB.
        self.assertEqual(sorted(server.ranges[2:]), [(11, 2048 * i, 2048, 0) for i in range(4)])

    def test_failures_of_requests(self):
        server = self.server(status=lambda kind, status: {0: 1, 4: 2}.get(kind, status))
        output = self.drive("read c 0 4096 0", "flush c 0 0 0", "write c 0 512 0")
        self.assertRegex(output, "done c 0 read -5 ")
        self.assertRegex(output, "done c 1 flush -95 ")
        self.assertRegex(output, "done c 2 write 0 ")
        server = self.restart(server, features=vhost.FEATURES | vhost.bits(vhost.RO))
        self.assertIn("done c 0 write -1 ", self.drive("write c 0 512 0"))

    def test_a_disk_that_grows(self):
        """V18: the front end reads the configuration again"""
        server = self.server(features=vhost.FEATURES | vhost.bits(vhost.SIZE_MAX))

        def grow(driver):
            # only the size changes, not the limits
            teller = threading.Thread(target=server.connections[0].tell_config, args=(16384, True),
                                      kwargs={"size_max": 512, "seg_max": 1})
            teller.start()
            said = ""
            while "event" not in said:
                driver.stdin.write("turn 10\n")
                driver.stdin.flush()
                said += driver.stdout.readline()
            teller.join()
            return said
        output = self.drive("read c 4193792 1024 0", "write c 0 65536 0", meanwhile=grow)
        self.assertRegex(output, "opened c 4194304 ")
        self.assertIn("event c resized the export now has 8388608 bytes", output)
        self.assertIn("done c 0 read 0 ", output)
        self.assertIn("done c 1 write 0 ", output)

    def test_descriptors_that_nobody_needs_are_closed(self):
        server = self.server()
        count = 0

        def check(driver):
            nonlocal count
            folder = f"/proc/{driver.pid}/fd"
            count = count or len(os.listdir(folder))
            self.wait_for(lambda: len(os.listdir(folder)) == count)
        for more_files in (0, 1, 2):
            server = self.restart(server, more_files=more_files)
            self.drive("read c 0 4096 0", meanwhile=check)

    def test_a_connection_that_ends_in_the_handshake(self):
        server = self.server()
        self.drive()
        said = server.connections[0].said
        for request in sorted(set(said)):
            server = self.restart(server, hang_up_at=(request,))
            self.assertRegex(self.drive(), "refused c -104 .*: the server closed the connection", request)

    def test_messages_that_the_server_rejects(self):
        server = self.server()
        self.drive()
        replies = {vhost.GET_FEATURES, vhost.GET_PROTOCOL_FEATURES, vhost.SET_PROTOCOL_FEATURES, vhost.GET_CONFIG,
                   vhost.GET_MAX_MEM_SLOTS, vhost.GET_STATUS, vhost.GET_INFLIGHT_FD}
        for request in sorted(set(server.connections[0].said) - replies):
            server = self.restart(server, refuses=(request,))
            self.assertRegex(self.drive(), "refused c -(71|12) ", request)

    def test_replies_that_break_rules(self):
        """V1, V4, V5, V7, V8: they end the connection"""
        server = self.server()
        for request, reply, text in (
                (vhost.GET_FEATURES, bytes(4), "V4: a reply of another length"),
                (vhost.GET_FEATURES, bytes(300), "V1: a message is too long"),
                (vhost.GET_FEATURES, bytes(8), "V5: "),
                (vhost.GET_PROTOCOL_FEATURES, bytes(8), "V5: "),
                (vhost.GET_STATUS, bytes(8), "V8: "),
                (vhost.GET_CONFIG, bytes(12), "V4: GET_CONFIG"),
                (vhost.GET_CONFIG, bytes(72), "V4: GET_CONFIG"),
                (vhost.GET_INFLIGHT_FD, bytes(8), "V4: GET_INFLIGHT_FD"),
                (vhost.GET_CONFIG, b"\0\0\0\0\x3c\0\0\0\0\0\0\0" + vhost.config(1 << 60), "V7: "),
                (vhost.GET_CONFIG, b"\0\0\0\0\x3c\0\0\0\0\0\0\0" + vhost.config(8, block=500), "V7: "),
                (vhost.GET_CONFIG, b"\0\0\0\0\x3c\0\0\0\0\0\0\0" + vhost.config(8, zeroes=0), "V7: ")):
            with self.subTest(request=request, text=text):
                server = self.restart(server, answers={request: lambda _, reply=reply: reply})
                self.assertIn(text, self.drive())

    def test_rings_that_break_rules(self):
        """V24, V25: used elements and statuses that break rules end the connection"""
        server = self.server()
        for options, text in (({"used": lambda head: (head + 1, 1)}, "V24: a used chain that is not in flight"),
                              ({"used": lambda head: (1 << 31, 1)}, "V24: a used chain that is not in flight"),
                              ({"used": lambda head: (head, 300)}, "V24: more used chains than there are chains"),
                              ({"status": lambda kind, status: 3}, "V25: "),
                              ({"status": lambda kind, status: None}, "V25: ")):
            with self.subTest(text=text):
                server = self.restart(server, **options)
                output = self.drive("read c 0 4096 0", options=f"flags={NO_RECONNECT}")
                self.assertIn(text, output)
                self.assertIn("done c 0 read -107 ", output)

    def test_addresses_that_cannot_be_used(self):
        for rest, text in (("?socket=/s&queues=0", "'queues' must be from 1 to 16"),
                           ("?socket=/s&queues=1x", "'queues' must be from 1 to 16"),
                           ("?socket=/s&folder=/", "both 'socket' and 'folder'"),
                           ("?socket=" + "/s" * 60, "too long"),
                           ("?socket=" + self.path("none"), "check that the server is running"),
                           ("", "no socket path")):
            code, output, errors = self.run_gmblock("info", "vhost-user-blk+unix:///" + rest)
            self.assertNotEqual(code, 0)
            self.assertEqual(output, "")
            self.assertIn(text, errors)

    def test_a_socket_of_an_nbd_server(self):
        self.start("memory:1M", "--listen", self.socket_uri())
        code, _, errors = self.run_gmblock("info", f"vhost-user-blk+unix:///?socket={self.path('s')}")
        self.assertEqual(code, 1)
        self.assertIn("this is the socket of an NBD server; use nbd+unix://", errors)


if __name__ == "__main__":
    PROGRAM, DRIVER = (os.path.realpath(path) for path in sys.argv[2:4])
    del sys.argv[2:4]
    support.main()
