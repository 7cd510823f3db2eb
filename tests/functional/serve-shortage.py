#!/usr/bin/python3
"""When memory or places for requests run out: everybody waits a moment, nobody for ever, and every
answer is complete."""
import socket
import struct
import threading

import nbdmini
import support

MIB = 1 << 20
OPT_STRUCTURED_REPLY = 8
CMD_FLAG_DF = 1 << 2
STRUCTURED_REPLY_MAGIC = 0x668E33EF
FLAG_DONE, TYPE_NONE, TYPE_OFFSET_DATA = 1, 0, 1


class Shortage(support.Case):
    def receive_all(self, clients, count):
        """All clients at once receive count replies, each with as many bytes as its cookie says."""
        failures = []

        def receive(client):
            try:
                for _ in range(count):
                    left, error = client.reply()
                    self.assertEqual(error, 0)
                    while left > 0:
                        left -= len(client.receive(min(left, 64 << 10)))
            except (OSError, AssertionError) as failure:
                failures.append(failure)

        readers = [threading.Thread(target=receive, args=(client,)) for client in clients]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self.assertEqual(failures, [])

    def test_places_of_a_client_that_went(self):
        server = self.start_unix("memory:64M", "--threads", "1", "--max-inflight", "3")
        with nbdmini.open_export(server.uri) as going, nbdmini.open_export(server.uri) as waiting:
            for cookie in range(4):  # more than a socket holds, and never received
                going.send_request(nbdmini.CMD_READ, cookie, 0, 4 * MIB)
            going.sock.recv(16, socket.MSG_PEEK | socket.MSG_WAITALL)
            waiting.send_request(nbdmini.CMD_READ, 77, 0, 512)
            with nbdmini.open_export(server.uri):  # by now the server has seen the request
                going.close()
                self.assertEqual(waiting.reply(), (77, 0))
                self.assertEqual(waiting.receive(512), bytes(512))

    def test_one_piece_that_begins_early_is_ended(self):
        """P89: a chunk that begins before all of it is read cannot carry DONE; something must."""
        server = self.start_unix("memory:64M", "--threads", "1", "--memory", "4M")
        with nbdmini.Client(server.uri) as client:
            client.hello()
            client.send_option(OPT_STRUCTURED_REPLY)
            client.option_replies(OPT_STRUCTURED_REPLY)
            client.go()
            # One more piece than there is memory, as it starts in the middle of a block.
            client.send_request(nbdmini.CMD_READ, 5, 100, 4 * MIB, flags=CMD_FLAG_DF)
            content = 0
            flags = 0
            while not flags & FLAG_DONE:
                magic, flags, kind, cookie, length = struct.unpack(">IHHQI", client.receive(20))
                self.assertEqual((magic, cookie), (STRUCTURED_REPLY_MAGIC, 5))
                self.assertIn(kind, (TYPE_NONE, TYPE_OFFSET_DATA))
                client.receive(length)
                if kind == TYPE_OFFSET_DATA:
                    content += length - 8
            self.assertEqual(content, 4 * MIB)

    def test_writes_half_received_leave_memory_for_reads(self):
        """Receive buffers, kept while requests in them wait for others to end, could take all the
        memory that those others wait for."""
        server = self.start_unix("memory:64M", "--threads", "1", "--memory", "4M")
        clients = [nbdmini.open_export(server.uri) for _ in range(16)]
        for client in clients:
            self.addCleanup(client.close)
            client.send_request(nbdmini.CMD_WRITE, 0, 0, 64 << 10, bytes(10000))
        with nbdmini.open_export(server.uri):  # by now the server has seen what there is
            for client in clients:
                client.sock.sendall(bytes((64 << 10) - 10000) + 300 * struct.pack(
                    ">IHHQQI", nbdmini.REQUEST_MAGIC, 0, nbdmini.CMD_READ, 32 << 10, 0, 32 << 10))
        self.receive_all(clients, 301)

    def test_held_answers_do_not_starve_the_one_before_them(self):
        """A long simple reply needs memory to go on, while shorter ones wait behind it."""
        server = self.start_unix("memory:64M", "--threads", "1", "--memory", "16M")
        clients = [nbdmini.open_export(server.uri) for _ in range(8)]
        for client in clients:
            self.addCleanup(client.close)
            client.send_request(nbdmini.CMD_READ, 64 * MIB, 0, 64 * MIB)
            for _ in range(8):
                client.send_request(nbdmini.CMD_READ, 4 * MIB, 0, 4 * MIB)
        self.receive_all(clients, 9)


if __name__ == "__main__":
    support.main()
