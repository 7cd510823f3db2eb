#!/usr/bin/python3
"""The Python module: every call, errors, completion queues and asyncio.

    client-python.py GMBLOCK LIBRARY SOURCE_ROOT
"""
import asyncio
import ctypes
import errno
import os
import re
import select
import subprocess
import sys
import traceback
import unittest

import fake_server
import support

BYTES = 4 << 20
NOBODY = 65534
SOURCE = ""


class Module(support.Case):
    def setUp(self):
        super().setUp()
        self.image = self.make_file("disk.img", b"")
        os.truncate(self.image, BYTES)
        self.uri = self.start_unix(self.image).uri

    def test_blocking_calls(self):
        with gmblock.open(self.uri) as client:
            client.pwrite(b"abc" * 1000, 5000, flags=gmblock.FUA)
            self.assertEqual(client.pread(3000, 5000), b"abc" * 1000)
            client.zero(5000, 1000)
            self.assertEqual(client.pread(1003, 5000), bytes(1000) + b"bca")
            client.flush()
            client.cache(0, BYTES)
            client.trim(0, BYTES)
            self.assertEqual(client.info().bytes, BYTES)
            self.assertLessEqual({"write", "flush", "status"}, client.capabilities())
            self.assertGreater(client.stats().bytes_written, 0)

    def test_extents_go_to_the_end(self):
        with gmblock.open(self.uri) as client:
            for number in range(0, 200, 2):  # more than one answer holds
                client.pwrite(b"x" * 8192, number * 8192)
            found = list(client.extents())
            self.assertEqual(found[0][0], 0)
            for one, other in zip(found, found[1:]):
                self.assertEqual(one[0] + one[1], other[0])
            self.assertEqual(found[-1][0] + found[-1][1], BYTES)
            data = [entry for entry in found if not entry[2] & gmblock.EXTENT_ZERO]
            self.assertEqual(len(data), 100)
            self.assertEqual([entry[:2] for entry in client.extents(8192, 16384)],
                             [(8192, 8192), (16384, 8192)])

    def test_copies_by_the_server(self):
        path = self.path("gmb")
        server = self.start("--export", "a=memory:1M", "--export", "b=memory:1M", "--listen",
                            f"gmb+unix:///?socket={path}", uri_count=2)
        with gmblock.Queue() as queue, queue.open(server.uris[0]) as one, \
                queue.open(server.uris[1]) as other:
            one.pwrite(b"x" * 70000, 1000)
            other.copy(0, one, 1000, 70000)
            self.assertEqual(other.pread(70001, 0), b"x" * 70000 + b"\0")

    @staticmethod
    def read_as_nobody(uri, told, tells):
        """Reads all of an export, twice, into memory that it has shared and emptied."""
        libc = ctypes.CDLL(None, use_errno=True)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        with gmblock.Queue() as queue, queue.open(uri) as client:
            base, error = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
            alloc = gmblock.LIBRARY.gmb_buffer_alloc
            assert alloc(queue.handle, ctypes.c_size_t(BYTES), 0, ctypes.byref(base), error) == 0
            for _ in range(2):
                os.read(told, 1)
                assert libc.madvise(base, ctypes.c_size_t(BYTES), 9) == 0  # MADV_REMOVE
                for at in range(0, BYTES, 1 << 18):
                    request = gmblock.Request()
                    gmblock.LIBRARY.gmb_prepare_read(ctypes.byref(request), base.value + at, 1 << 18, at)
                    client.run(request)
                assert ctypes.string_at(base, BYTES) == b"x" * BYTES
                os.write(tells, b"x")

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_memory_of_another_user_is_not_touched_by_reactors(self):
        """Whoever touches it waits while holes are punched into it. Who touches a page shows in page faults."""
        os.chmod(self.folder, 0o755)
        path = self.path("gmb")
        server = self.start("memory:4M", "--threads", "1", "--access", "rights=rw", "--listen",
                            f"gmb+unix:///?socket={path}")
        os.chmod(path, 0o777)
        with gmblock.open(server.uri) as client:
            client.pwrite(b"x" * BYTES, 0)
        told, tell = os.pipe()
        tells, tells_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(tell)
                self.read_as_nobody(server.uri, told, tells_end)
                os._exit(0)
            except BaseException:  # the case goes on in the other process
                traceback.print_exc()
            os._exit(1)
        os.close(told)
        os.close(tells_end)
        self.addCleanup(os.close, tells)
        counts = []
        for _ in range(2):
            os.write(tell, b"x")
            self.assertEqual(os.read(tells, 1), b"x")
            counts.append(server.faults_of_reactors())
        os.close(tell)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertLess(counts[1] - counts[0], BYTES // 4096 // 2)
        self.assertEqual(server.stop()[0], 0)

    def test_an_unknown_host_is_the_same_error_over_all_protocols(self):
        name = "x" * 64 + ".invalid"  # its label is too long for a question to the network
        for scheme in ("nbd", "gmb"):
            with self.subTest(scheme), self.assertRaises(gmblock.Error) as caught:
                gmblock.open(scheme + "://" + name)
            self.assertEqual(caught.exception.errno, errno.EHOSTUNREACH, caught.exception)

    def test_errors_are_those_of_the_library(self):
        with self.assertRaises(gmblock.Error) as caught:
            gmblock.open(self.uri.replace("///", "///none"))
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        self.assertIn("none", caught.exception.strerror)
        with gmblock.open(self.uri, flags=gmblock.OPEN_READ_ONLY) as client:
            with self.assertRaises(gmblock.Error) as caught:
                client.pwrite(b"x", 0)
            self.assertEqual(caught.exception.errno, errno.EPERM)
            with self.assertRaises(gmblock.Error) as caught:
                client.pread(10, BYTES)
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn(str(BYTES), caught.exception.strerror)

    def test_what_is_closed_is_not_used(self):
        with gmblock.Queue() as queue, queue.open(self.uri) as client:
            client.close()
            for use in (client.info, client.flush, lambda: client.pread(1, 0)):
                with self.assertRaises(gmblock.Error) as caught:
                    use()
                self.assertEqual((caught.exception.errno, caught.exception.strerror),
                                 (errno.EBADF, "this client is closed"))
        queue.destroy()
        with self.assertRaisesRegex(gmblock.Error, "this queue is closed"):
            queue.wait(0)

    def test_options_that_do_not_exist(self):
        for call in (gmblock.open, gmblock.list_exports):
            with self.assertRaisesRegex(TypeError, "Options has no member 'flag'"):
                call(self.uri, flag=gmblock.OPEN_READ_ONLY)
        with self.assertRaisesRegex(TypeError, "TlsSettings has no member 'user'"):
            gmblock.TlsSettings(user="a")

    def test_a_queue_with_its_descriptor(self):
        done = []
        with gmblock.Queue() as queue, queue.open(self.uri) as client:
            for number in range(8):
                client.submit(client.new_write(bytes([number]) * 512, number * 512), done.append)
            queue.wait(0)
            while len(done) < 8:
                select.select([queue.fd()], [], [])
                queue.wait(0)
            self.assertEqual([request.result for request in done], [0] * 8)
            self.assertEqual(client.pread(4096, 0)[::512], bytes(range(8)))

    def test_listing_and_cancelling(self):
        self.assertEqual(gmblock.list_exports(self.uri), [("", "")])
        with self.assertRaises(gmblock.Error) as caught:
            gmblock.list_exports("nbd+unix:///?socket=/nonexistent/s")
        self.assertEqual(caught.exception.errno, errno.ENOENT)
        with gmblock.Queue() as queue, queue.open(self.uri) as client:
            done = []
            request = client.new_read(512, 0)
            client.submit(request, done.append)
            self.assertTrue(client.cancel(request))  # nothing is sent before the wait
            self.assertFalse(client.cancel(request))
            queue.wait()
            self.assertEqual([request.result for request in done], [-errno.ECANCELED])
            self.assertFalse(client.cancel(request))  # it has ended

    def test_names_of_any_bytes(self):
        with fake_server.FakeServer(fake_server.lists(b"\xff\xc0", b"disk")) as server:
            self.assertEqual(gmblock.list_exports(server.uri()),
                             [("\udcff\udcc0", ""), ("disk", "")])
        self.assertEqual(server.failures, [])

    def test_servers_that_do_not_list(self):
        for kind, expected in ((fake_server.UNSUP, errno.EOPNOTSUPP), (fake_server.PLATFORM, errno.EOPNOTSUPP),
                               (fake_server.POLICY, errno.EACCES)):
            with fake_server.FakeServer(fake_server.refuses_list(kind)) as server:
                with self.assertRaises(gmblock.Error) as caught:
                    gmblock.list_exports(server.uri())
            self.assertEqual(caught.exception.errno, expected)

    def test_settings_for_tls_know_their_size(self):
        settings = gmblock.TlsSettings(certificates="/nonexistent", flags=gmblock.TLS_NO_VERIFY)
        self.assertEqual((settings.size, settings.certificates),
                         (ctypes.sizeof(settings), b"/nonexistent"))
        with self.assertRaises(gmblock.Error) as caught:
            gmblock.list_exports(self.uri, tls=settings)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertIn("credentials for TLS", str(caught.exception))

    def test_asyncio(self):
        async def work():
            queue = gmblock.Queue()
            queue.attach(asyncio.get_running_loop())
            with queue, queue.open(self.uri) as client:
                await asyncio.gather(*(client.apwrite(bytes([at]) * 4096, at * 4096)
                                       for at in range(16)))
                blocks = await asyncio.gather(*(client.apread(1, at * 4096) for at in range(16)))
                with self.assertRaises(gmblock.Error):
                    await client.apread(1, BYTES)
                return b"".join(blocks)
        self.assertEqual(asyncio.run(work()), bytes(range(16)))

    def test_a_queue_that_is_in_use_stays_attached(self):
        async def work():
            queue = gmblock.Queue()
            queue.attach(asyncio.get_running_loop())
            with queue, queue.open(self.uri) as client:
                with self.assertRaises(gmblock.Error) as caught:
                    queue.destroy()
                self.assertEqual(caught.exception.errno, errno.EBUSY)
                for at in range(16):
                    await asyncio.wait_for(client.apwrite(b"x", at), 60)
        asyncio.run(work())

    def test_the_structs_are_those_of_the_header(self):
        """A compiler says how large they are, and where their members lie."""
        pairs = {"gmb_options": gmblock.Options, "gmb_tls_settings": gmblock.TlsSettings,
                 "gmb_info": gmblock.Info,
                 "gmb_stats": gmblock.Stats, "gmb_extent": gmblock.Extent,
                 "gmb_request": gmblock.Request}
        lines = ["#include <stdio.h>", "#include <gmblock/gmblock.h>", "int main(void) {"]
        expected = []
        for name, struct in pairs.items():
            lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
            expected.append(ctypes.sizeof(struct))
            for field in (field[0] for field in struct._fields_ if field[0] != "reserved"):
                lines.append(f'printf("%zu\\n", offsetof(struct {name}, {field}));')
                expected.append(getattr(struct, field).offset)
        source = self.make_file("sizes.c", "\n".join(lines + ["}"]).encode())
        program = self.path("sizes")
        subprocess.run(["cc", "-I", os.path.join(SOURCE, "include"), "-o", program, source],
                       check=True)
        told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        self.assertEqual([int(line) for line in told.split()], expected)

    def test_the_example_of_the_manual_page(self):
        with open(os.path.join(SOURCE, "docs/man/gmblock-python.3"), encoding="utf-8") as file:
            text = file.read()
        example = re.search(r"\.Sh EXAMPLES.*?\.Bd [^\n]*\n(.*?)\.Ed", text, re.S).group(1)
        with gmblock.open(self.uri) as client:
            client.pwrite(b"x" * 65536, 1 << 20)
        done = subprocess.run(
            [sys.executable, "-c", example, self.uri], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.path.join(SOURCE, "python")})
        self.assertEqual(done.stdout, f"65536 of {BYTES} bytes are data\n")

    def test_every_public_call_is_documented(self):
        with open(os.path.join(SOURCE, "docs/man/gmblock-python.3"), encoding="utf-8") as file:
            text = file.read()
        for owner in (gmblock.Client, gmblock.Queue):
            for name in vars(owner):
                if not name.startswith("_") and callable(getattr(owner, name)) and \
                        name not in ("destroy", "open"):
                    self.assertRegex(text, rf"\bFn (Queue\.)?{name}\b", name)


if __name__ == "__main__":
    os.environ["GMBLOCK_LIBRARY"] = os.path.realpath(sys.argv.pop(2))
    SOURCE = os.path.realpath(sys.argv.pop(2))
    sys.path.insert(0, os.path.join(SOURCE, "python"))
    import gmblock
    support.main()
