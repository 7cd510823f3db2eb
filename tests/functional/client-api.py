#!/usr/bin/python3
"""The interface of libgmblock: cases in C, each against a server that suits it.

    client-api.py GMBLOCK PROGRAM...
"""
import os
import subprocess
import sys

import support
from fake_export import READ, ExportServer

PROGRAMS = []
IMAGE_BYTES = 64 << 20
CASE_SECONDS = 200  # far more than any takes


class Api(support.Case):
    def case(self, server, name, *arguments):
        """Runs a case to its end; returns what it printed."""
        uri = server if isinstance(server, str) else server.uri
        for program in PROGRAMS:
            names = subprocess.run([program], capture_output=True, text=True, check=True).stdout
            if name in names.split():
                done = subprocess.run([program, name, uri, *map(str, arguments)],
                                      capture_output=True, check=False, timeout=CASE_SECONDS)
                if done.returncode == 77:
                    self.skipTest(done.stderr.decode())
                self.assertEqual((done.returncode, done.stderr), (0, b""))
                return done.stdout
        raise AssertionError(f"no such case: {name}")

    def serve(self, *export):
        path = self.path("image")
        with open(path, "wb") as file:
            file.truncate(IMAGE_BYTES)
        return self.start_unix("--export", "=" + ",".join([path, *export]))

    def test_requests_that_cannot_be(self):
        self.case(self.serve(), "wrong-requests")

    def test_requests_of_no_length(self):
        self.case(self.serve(), "nothing-to-do")

    def test_read_only_export(self):
        self.case(self.serve("readonly"), "read-only")

    def test_read_only_by_option(self):
        self.case(self.serve(), "read-only-by-option")

    def test_failures_are_told_and_explained(self):
        self.case(self.serve("fault=read:EIO:range=4096+1", "fault=write:ENOSPC",
                             "fault=zero:EIO:range=4096+1"), "failures")

    def test_tiny_scatter_lists(self):
        self.case(self.serve(), "tiny-scatter-lists")

    def test_many_scatter_lists_at_once(self):
        self.case(self.serve(), "scattered-crowd")

    def test_resubmitting_from_done(self):
        self.case(self.serve(), "resubmit-from-done")

    def test_far_more_requests_than_depth(self):
        self.case(self.serve(), "flood")

    def test_closing_with_requests_in_flight(self):
        self.case(self.serve(), "close-with-requests")

    def test_requests_without_callback(self):
        self.case(self.serve(), "no-callback")

    def test_prepared_requests(self):
        self.case(self.serve(), "prepared")

    def test_opening_without_waiting(self):
        server = self.serve()
        for name in ("success", "polled", "wrong-at-once", "queued-before", "blocking-before",
                     "inside-a-callback", "many"):
            with self.subTest(name):
                self.case(server, f"open-{name}")

    def test_openings_that_fail(self):
        server = self.serve()
        for name in ("failures", "unreachable", "resolved-by-name", "lookup-times-out",
                     "hostile-servers"):
            with self.subTest(name):
                self.case(server, f"open-{name}")

    def test_closing_in_the_middle_of_an_opening(self):
        server = self.serve()
        for name in ("close-while-resolving", "close-while-connecting",
                     "close-while-negotiating", "close-while-encrypting", "close-at-once"):
            with self.subTest(name):
                self.case(server, f"open-{name}")

    def test_queue_rules(self):
        self.case(self.serve(), "queue-rules")

    def test_what_cannot_be_opened(self):
        self.case(self.serve(), "open-errors")

    def test_what_must_not_be_called_inside_a_callback(self):
        self.case(self.serve(), "inside-callbacks")

    def test_sizes_of_structs(self):
        self.case(self.serve(), "struct-sizes")

    def test_waking_from_a_thread(self):
        self.case(self.serve(), "wake-from-thread")

    def test_waking_from_a_signal_handler(self):
        self.case(self.serve(), "wake-from-signal-handler")

    def test_an_event_loop(self):
        self.case(self.serve(), "event-loop")

    def test_a_wait_of_no_time_ends(self):
        server = self.serve()
        self.case(server, "endless-chain")
        self.case(server, "endless-failures")

    def test_several_clients_on_a_queue(self):
        self.case(self.serve(), "several-clients")

    def test_queues_in_threads(self):
        self.case(self.serve(), "queues-in-threads")

    def test_cancelling(self):
        def silent(export):
            while export.request():
                pass

        with ExportServer(silent) as server:
            self.case(server.uri(), "cancel")
        self.assertEqual(server.failures, [])

    def test_cancelling_the_rest_of_a_request(self):
        part = 1 << 16
        with ExportServer(lambda export: export.serve(), size=16 * part, sizes=(1, 4096, part)) as server:
            self.case(server.uri(), "cancel-partly", part)
        self.assertEqual(server.failures, [])

    def test_cancelling_ranges(self):
        path = self.make_file("image", b"")
        os.truncate(path, 256 << 20)
        # The first command is not answered before the rest is cancelled.
        self.case(self.start_unix("--export", f"={path},delay=any:1s"), "cancel-range")

    def test_cancelling_a_copy(self):
        server = self.start("--export", "a=memory:512M", "--export", "b=memory:512M", "--listen",
                            f"gmb+unix:///?socket={self.path('gmb')}", uri_count=2)
        self.case(server.uris[0], "cancel-copy", server.uris[1])

    def test_cancelling_while_a_client_opens(self):
        self.case(self.serve(), "cancel-while-it-opens")

    def test_listing_exports(self):
        path = self.make_file("image", bytes(1 << 20))
        server = self.start_unix("--export", f"a={path},readonly,description=first",
                                 "--export", f"b={path},readonly", uri_count=2)
        self.assertEqual(self.case(server.uri, "list-exports").decode().splitlines(), ["a|first", "b|"])

    def test_messages_to_a_function(self):
        self.case(self.serve(), "messages")

    def test_queues_that_move(self):
        self.case(self.serve(), "queue-moves")

    def test_a_queue_is_woken_while_it_moves(self):
        self.case(self.serve(), "queue-woken-while-it-moves")

    def test_four_connections(self):
        self.case(self.serve(), "four-connections", 4)

    def test_fua(self):
        self.case(self.serve(), "fua", 1)

    def test_styles_of_replies(self):
        server = self.serve()
        for flags, style in ((0, b"extended"), (4, b"structured"), (8, b"simple"),
                             (12, b"simple")):
            self.assertEqual(self.case(server, "exercise", flags).split()[0], style)

    def make_sparse(self, bytes_total, pieces):
        path = self.path("sparse")
        content = bytearray(bytes_total)
        with open(path, "wb") as file:
            file.truncate(bytes_total)
            for offset, length in pieces:
                content[offset:offset + length] = os.urandom(length - 1) + b"\1"
                file.seek(offset)
                file.write(content[offset:offset + length])
        return path, bytes(content)

    def test_reads_across_holes(self):
        path, content = self.make_sparse(8 << 20, [(0, 65536), (3 << 20, 65536)])
        server = self.start_unix(path)
        self.assertEqual(self.case(server, "read-holes", (8 << 20) - 131072), content)

    def test_holes_of_a_read_that_is_sent_again(self):
        half = 65536

        def cut_off(export):
            first, second = export.request(READ), export.request(READ)
            export.send(export.hole(first) + export.hole(second, length=half // 2, flags=0))

        def whole(export):
            again = export.request(READ)
            self.assertEqual((again.offset, again.length), (half, half))
            export.send(export.hole(again))
            export.serve()

        with ExportServer(cut_off, whole, size=2 * half, sizes=(1, 4096, half)) as server:
            self.assertEqual(self.case(server.uri(), "read-holes", 2 * half), bytes(2 * half))
        self.assertEqual(server.failures, [])

    def test_block_status(self):
        path, _ = self.make_sparse(8 << 20, [(65536 * i, 4096) for i in range(100)])
        self.case(self.start_unix(path), "block-status", 100 * 4096)

    def test_block_status_of_a_big_export(self):
        # More than 32 bits, so that replies without extended headers come in parts.
        path = self.path("big")
        with open(path, "wb") as file:
            file.truncate((9 << 40) + 512)
            file.seek(5 << 40)
            file.write(b"x" * 8192)
        self.case(self.start_unix(path), "block-status", 8192)


if __name__ == "__main__":
    PROGRAMS = [os.path.realpath(path) for path in sys.argv[2:]]
    del sys.argv[2:]
    support.main()
