#!/usr/bin/python3
"""What a connection has left in the store when it ended, or a server that was killed, is not overtaken
by what comes later."""
import fcntl
import json
import os
import struct

import nbdmini
import support

BLOCK = 4096

class LateWrites(support.Case):
    def exports(self):
        code, output, errors = self.run_gmblock("stats", "--json", self.path("control"))
        self.assertEqual(code, 0, errors)
        return json.loads(output)["exports"]

    def export(self):
        return self.exports()[0]

    def test_a_change_waits_for_that_of_an_ended_connection(self):
        """A slow write is in the store when its connection ends. Zeroing is fast: without a wait it
        would be done first, and the write would land over it."""
        disk = self.make_file("disk.img", b"old!" * BLOCK)
        server = self.start_unix("--threads", "1", "--control", self.path("control"),
                                 "--export", f"={disk},delay=write:6s")
        with nbdmini.open_export(server.uri) as stays:
            with nbdmini.open_export(server.uri) as leaves:
                leaves.send_request(nbdmini.CMD_WRITE, 1, BLOCK, BLOCK, b"late" * (BLOCK // 4))
                leaves.send_request(nbdmini.CMD_FLUSH, 2)
                self.assertEqual(leaves.reply(), (2, 0))  # so the write is in the store
            # What ended before this is asked is known when it is answered.
            stays.flush()
            stays.send_request(nbdmini.CMD_WRITE_ZEROES, 3, 0, 2 * BLOCK)
            self.assertEqual(stays.reply(), (3, 0))
            while self.export()["connections"] > 1:
                pass
            self.assertEqual(stays.read(0, 3 * BLOCK), bytes(2 * BLOCK) + b"old!" * (BLOCK // 4))
            self.assertEqual(self.export()["late_waits"], 1)

    def start_behind_a_killed_server(self, patience="60s"):
        """A server of a disk on which operations of an earlier one are still under way: what is left
        of that is the lock on its descriptor. Gives the descriptor, too."""
        disk = self.make_file("disk.img", b"old!" * BLOCK)
        operations = os.open(disk, os.O_RDWR)
        support.ask_writer_mark(operations, support.F_OFD_SETLK, fcntl.F_RDLCK)
        server = self.start_unix("--control", self.path("control"), "--handshake-timeout",
                                 patience, "--threads", "1", "--log-level", "info", disk)
        return server, operations

    def test_an_export_waits_for_operations_of_a_killed_server(self):
        server, operations = self.start_behind_a_killed_server()
        with nbdmini.Client(server.uri) as goes, nbdmini.Client(server.uri) as names, \
                nbdmini.Client(server.uri) as looks:
            for client in (goes, names, looks):
                client.hello()
            goes.send_option(nbdmini.OPT_GO, bytes(6))
            names.send_option(nbdmini.OPT_EXPORT_NAME)
            # The server answers, and has seen the other two when it does.
            self.assertEqual(list(looks.list()), [b""])
            for client in (goes, names):
                client.sock.setblocking(False)
                self.assertRaises(BlockingIOError, client.sock.recv, 1)
                client.sock.settimeout(nbdmini.TIMEOUT_S)
            self.assertEqual(self.export()["barrier"], "closed")
            os.close(operations)
            self.assertNotEqual(goes.option_replies(nbdmini.OPT_GO), [])
            names.receive(10)
            self.assertEqual(self.export()["barrier"], "open")
            for client in (goes, names):
                client.write(0, b"new!")
        code, errors = server.stop()
        self.assertEqual(code, 0)
        self.assertIn("operations of a process that has exited are still in flight", errors)
        self.assertIn("completed after", errors)

    def test_reads_of_a_killed_server_are_waited_for(self):
        """By exports that only read the disk, too, also as the base of an overlay; not by exports of other disks."""
        disk = self.make_file("disk.img", b"old!" * BLOCK)
        with open(disk, "rb") as operations:
            support.ask_writer_mark(operations, support.F_OFD_SETLK, fcntl.F_RDLCK, support.USE_OFFSET + 33)
            server = self.start_unix("--control", self.path("control"), "--handshake-timeout", "60s",
                                     "--export", f"read={disk},readonly", "--export", f"over={disk},overlay=discard",
                                     "--export", f"other={self.make_file('other.img', bytes(BLOCK))},readonly", uri_count=3)
            waiting = []
            for name in b"read", b"over":
                client = nbdmini.Client(server.uri)
                self.addCleanup(client.close)
                client.hello()
                client.send_option(nbdmini.OPT_GO, struct.pack(">I", len(name)) + name + bytes(2))
                waiting.append(client)
            with nbdmini.open_export(server.uri, b"other") as client:
                client.read(0, BLOCK)
            self.assertEqual([entry["barrier"] for entry in self.exports()], ["closed", "closed", "open"])
            for client in waiting:
                client.sock.setblocking(False)
                self.assertRaises(BlockingIOError, client.sock.recv, 1)
                client.sock.settimeout(nbdmini.TIMEOUT_S)
        for client in waiting:
            self.assertNotEqual(client.option_replies(nbdmini.OPT_GO), [])
            self.assertEqual(client.read(0, 4), b"old!")
        self.assertEqual([entry["barrier"] for entry in self.exports()], ["open"] * 3)
        # servers that read the same disk do not wait for each other
        other = self.start("--listen", self.socket_uri("second"), "--export", f"={disk},readonly")
        with nbdmini.open_export(other.uri) as client:
            self.assertEqual(client.read(0, 4), b"old!")

    def test_a_client_is_told_in_time_that_it_waits_in_vain(self):
        server, operations = self.start_behind_a_killed_server("3s")
        self.addCleanup(os.close, operations)
        with nbdmini.Client(server.uri) as client:
            client.hello()
            with self.assertRaises(nbdmini.OptionRefused) as refusal:
                client.go()
        self.assertIn("still in progress", str(refusal.exception))
        server.stop()

    def test_a_server_marks_what_it_writes_through(self):
        disk = self.make_file("disk.img", bytes(BLOCK))
        with open(disk, "rb+") as file:
            for mode, kind in (("mode=direct", fcntl.F_RDLCK), ("mode=cached", fcntl.F_RDLCK),
                               ("readonly", fcntl.F_UNLCK)):
                server = self.start_unix("--export", f"={disk},{mode}")
                self.assertEqual(support.ask_writer_mark(file, support.F_OFD_GETLK, fcntl.F_WRLCK), kind)
                server.stop()
                self.assertEqual(support.ask_writer_mark(file, support.F_OFD_GETLK, fcntl.F_WRLCK), fcntl.F_UNLCK)

    def test_several_exports_of_one_disk_do_not_wait_for_each_other(self):
        disk = self.make_file("disk.img", bytes(BLOCK))
        server = self.start_unix("--control", self.path("control"), "--export", f"a={disk}",
                                 "--export", f"b={disk}", uri_count=2)
        for name in (b"a", b"b"):
            with nbdmini.open_export(server.uri, name) as client:
                client.write(0, b"new!")
        self.assertEqual(self.export()["barrier"], "open")
        server.stop()


if __name__ == "__main__":
    support.main()
