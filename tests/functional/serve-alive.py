#!/usr/bin/python3
"""A client that asked for it hears that the server lives while its requests wait."""
import struct

import nbdmini
import support

OPT_LIST_META = 9
BLOCK_STATUS = 5
ALIVE = 0xFFFFFFFF


def ask(client, query):
    """What the server lists for one query."""
    client.send_option(OPT_LIST_META, struct.pack(">III", 0, 1, len(query)) + query)
    return [payload for _, payload in client.option_replies(OPT_LIST_META)]


class Alive(support.Case):
    def patient(self, uri, query=b"x-gmblock:alive=10"):
        client = nbdmini.Client(uri)
        self.addCleanup(client.close)
        client.hello()
        client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
        client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
        self.assertEqual(ask(client, query), [bytes(4) + b"x-gmblock:alive"])
        return client.go()

    def hear(self, client, cookie):
        """One sign of life, in the reply to that request."""
        magic, flags, kind, echoed, length = struct.unpack(">IHHQI", client.receive(20))
        self.assertEqual((magic, flags, kind, echoed),
                         (nbdmini.STRUCTURED_REPLY_MAGIC, 0, BLOCK_STATUS, cookie))
        self.assertEqual(client.receive(length), struct.pack(">III", ALIVE, 1, 0))

    def test_a_store_that_hangs(self):
        server = self.start_unix("--export", "=memory:1M,delay=flush:3600s,delay=read:3600s")
        client = self.patient(server.uri)
        client.send_request(nbdmini.CMD_FLUSH, 7)
        for _ in range(3):
            self.hear(client, 7)
        # Of several requests it is the oldest that tells; answers come between.
        client.send_request(nbdmini.CMD_READ, 8, 0, 4096)
        client.send_request(nbdmini.CMD_WRITE, 9, 0, 4, b"data")
        while True:
            magic, flags, kind, cookie, length = struct.unpack(">IHHQI", client.receive(20))
            self.assertEqual(magic, nbdmini.STRUCTURED_REPLY_MAGIC)
            client.receive(length)
            if cookie == 9:
                break
            self.assertEqual((flags, kind, cookie), (0, BLOCK_STATUS, 7))
        self.assertEqual((flags, kind, length), (1, nbdmini.CHUNK_NONE, 0))
        self.hear(client, 7)

    def test_no_places_left(self):
        """What the server has no place for it does not read, and lives all the same."""
        server = self.start_unix("--export", "=memory:1M,delay=write:3600s", "--max-inflight", "1")
        client = self.patient(server.uri)
        client.sock.setblocking(False)
        try:
            for number in range(100000):
                client.send_request(nbdmini.CMD_WRITE, number, 0, 4096, bytes(4096))
        except BlockingIOError:
            pass
        client.sock.setblocking(True)
        for _ in range(3):
            self.hear(client, 0)

    def test_silence_when_nothing_waits(self):
        server = self.start_unix("memory:1M")
        client = self.patient(server.uri)
        for number in range(20):
            client.send_request(nbdmini.CMD_READ, number, 0, 4)
            self.assertEqual([chunk.cookie for chunk in client.chunks(number)], [number])
        client.send_request(nbdmini.CMD_DISC, 99)
        self.assertTrue(client.at_end())

    def test_what_is_no_number(self):
        server = self.start_unix("memory:1M")
        with nbdmini.Client(server.uri) as client:
            client.hello()
            # Simple replies have no chunks to say it with.
            self.assertEqual(ask(client, b"x-gmblock:alive=1000"), [])
            client.send_option(nbdmini.OPT_STRUCTURED_REPLY)
            client.option_replies(nbdmini.OPT_STRUCTURED_REPLY)
            for query in (b"", b"=", b"=x", b"=-1", b"=1s", b"=1000000000", b"1000", b"=1 "):
                self.assertEqual(ask(client, b"x-gmblock:alive" + query), [])
            for query in (b"=0", b"=00000001", b"=999999999"):
                self.assertEqual(len(ask(client, b"x-gmblock:alive" + query)), 1)


if __name__ == "__main__":
    support.main()
