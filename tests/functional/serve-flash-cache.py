#!/usr/bin/python3
"""The cache file of a flash store, whose server was killed, and which disk and which of its states it is for."""
import fcntl
import glob
import json
import os
import shutil
import signal
import tempfile

import nbdmini
import support

MIB = 1 << 20
BLOCK = 4096


class FlashCache(support.Case):
    def setUp(self):
        super().setUp()
        self.file = self.path("disk.flash")
        self.check_run("create", f"--size={64 * MIB}", "--segment=256K", f"flash:{self.file}")
        self.uuid = self.check(self.file)["uuid"]

    def check_run(self, *arguments):
        status, output, errors = self.run_gmblock(*arguments)
        self.assertEqual(status, 0, errors)
        return output

    def check(self, path):
        return json.loads(self.check_run("check", "--json", path))

    def caches(self, folder="/dev/shm"):
        return sorted(glob.glob(f"{folder}/gmblock-{self.uuid}*.cache"))

    def serve(self, path, *keys, **options):
        return self.start_unix("--export", ",".join([f"=flash:{path},cache=1M", *keys]), **options)

    def refused(self, path, *told, keys=()):
        self.check_refused(["serve", "--export", ",".join([f"=flash:{path},cache=1M", *keys]), "--listen",
                            self.socket_uri("refused")], 1, *told)

    def expect(self, uri, *blocks):
        with nbdmini.open_export(uri, b"") as client:
            for number, value in enumerate(blocks):
                self.assertEqual(client.read(number * BLOCK, BLOCK), bytes([value]) * BLOCK)

    def write(self, uri, block, value, fua=False):
        with nbdmini.open_export(uri, b"") as client:
            client.write(block * BLOCK, bytes([value]) * BLOCK)
            if fua:
                client.flush()

    def kill(self, server):
        server.signal(signal.SIGKILL)
        server.wait()

    def leave_changes(self, *keys, value=1):
        """In the cache of a server that is killed. Returns the path of the file."""
        before = self.caches()
        server = self.serve(self.file, *keys)
        self.write(server.uri, 0, value)
        self.kill(server)
        path, = [name for name in self.caches() if name not in before]
        return path

    def stop(self, server, *told):
        status, errors = server.stop()
        self.assertEqual(status, 0)
        for text in told:
            self.assertIn(text, errors)
        if not told:
            self.assertEqual(errors, "")

    def test_an_earlier_copy_is_not_given_later_pages(self):
        server = self.serve(self.file)
        self.write(server.uri, 0, 1)
        self.write(server.uri, 1, 1, fua=True)
        earlier = shutil.copyfile(self.file, self.path("earlier"))
        self.write(server.uri, 1, 2, fua=True)
        self.write(server.uri, 0, 2)
        self.kill(server)
        newer = shutil.copyfile(self.file, self.path("newer"))
        cache, = self.caches()
        shutil.copyfile(earlier, self.file)  # the same inode: as an LVM snapshot that is merged
        self.refused(self.file, "the store was replaced by an earlier copy", cache, "restore the newer copy, or remove the cache file")
        # Both remedies.
        shutil.copyfile(newer, self.file)
        server = self.serve(self.file)
        self.expect(server.uri, 2, 2)
        self.kill(server)
        shutil.copyfile(earlier, self.file)
        for name in self.caches():
            os.remove(name)
        server = self.serve(self.file)
        self.expect(server.uri, 1, 1)
        self.stop(server, "are lost: no cache file")

    def test_a_copy_neither_takes_nor_loses_the_changes(self):
        cache = self.leave_changes()
        copy = shutil.copyfile(self.file, self.path("copy"))
        with open(cache, "rb") as file:
            before = file.read()
        self.refused(copy, "was copied or moved", cache, f"1 changed block of '{self.file}'", "cache-file=leave")
        self.refused(copy, "was copied or moved", "without 'readonly'", keys=["readonly"])
        self.assertEqual(self.check(copy)["cache-of"], self.file)
        copied = self.serve(copy, "cache-file=leave")
        self.write(copied.uri, 0, 3)
        self.assertEqual(len(self.caches()), 2)
        with open(cache, "rb") as file:
            self.assertEqual(file.read(), before)
        # The original is served beside it, and after it.
        server = self.start("--export", f"=flash:{self.file},cache=1M", "--listen", self.socket_uri("original"))
        self.expect(server.uri, 1)
        self.expect(copied.uri, 3)
        self.stop(copied, "leaves the writes in '" + cache)
        self.expect(server.uri, 1)
        self.stop(server)
        self.assertEqual(self.caches(), [])

    def test_an_empty_file_is_left_to_its_disk(self):
        server = self.serve(self.file)
        self.write(server.uri, 0, 1, fua=True)
        self.kill(server)
        cache, = self.caches()
        copied = self.serve(shutil.copyfile(self.file, self.path("copy")))
        self.write(copied.uri, 0, 2)
        server = self.start("--export", f"=flash:{self.file},cache=1M", "--listen", self.socket_uri("original"))
        self.expect(server.uri, 1)
        self.assertIn(cache, self.caches())
        self.stop(server)
        self.expect(copied.uri, 2)
        self.stop(copied)
        self.assertEqual(self.caches(), [])

    def test_a_copy_of_a_disk_that_is_served_loses_what_was_not_flushed(self):
        server = self.serve(self.file)
        self.write(server.uri, 0, 1, fua=True)
        self.write(server.uri, 0, 2)
        copied = self.start("--export", f"=flash:{shutil.copyfile(self.file, self.path('copy'))},cache=1M", "--listen",
                            self.socket_uri("copied"))
        self.expect(copied.uri, 1)
        self.stop(copied, "the store was copied while a server held the changes")
        self.expect(server.uri, 2)
        self.stop(server)

    def test_a_disk_that_was_moved_takes_its_changes_when_told(self):
        cache = self.leave_changes()
        moved = shutil.copyfile(self.file, self.path("moved"))
        os.remove(self.file)
        self.refused(moved, "if the store was moved here, serve it here once with cache-file=take")
        server = self.serve(moved, "cache-file=take")
        self.expect(server.uri, 1)
        self.write(server.uri, 0, 2)
        self.kill(server)
        self.assertEqual(self.caches(), [cache])
        server = self.serve(moved)  # it is its own now
        self.expect(server.uri, 2)
        self.stop(server)
        self.assertEqual(self.caches(), [])
        self.check_refused(["serve", "--export", f"=flash:{moved},cache-file=steal"], 2, "'steal' is not one of refuse, take")

    def test_files_of_other_users_stop_nothing(self):
        """Their names could be guessed once."""
        os.remove(self.leave_changes())
        guessed = [f"/dev/shm/gmblock-{self.uuid}{number}.cache" for number in ("", "-2", "-3", "-4", "-0")]
        for path in guessed:
            with open(path, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o644)
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), 65534, -1)
        server = self.serve(self.file)
        self.write(server.uri, 0, 2)
        self.assertEqual(len(self.caches()), len(guessed) + 1)
        self.kill(server)
        server = self.serve(self.file)
        self.expect(server.uri, 2)
        self.stop(server)
        self.assertEqual(self.caches(), sorted(guessed))

    def test_a_file_that_is_read_is_not_lost(self):
        """Neither to a start at that moment nor to one that looks in another folder."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            cache = self.leave_changes()
            for kind, told in ((fcntl.LOCK_SH, "is being read by another process; try again"),
                               (fcntl.LOCK_EX, "is used by another process")):
                for keys in ([], ["cache-dir=" + other]):
                    with open(cache, "rb") as file:
                        fcntl.flock(file, kind)
                        self.refused(self.file, told, keys=keys)
            server = self.serve(self.file)
            self.expect(server.uri, 1)
            self.stop(server)

    def test_a_folder_of_the_service(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            environment = {**os.environ, "GMBLOCK_CACHE_DIR": folder}
            server = self.serve(self.file, env=environment)
            self.write(server.uri, 0, 1)
            self.kill(server)
            cache, = self.caches(folder)
            self.assertEqual(self.check(self.file)["cache"], cache)
            server = self.serve(self.file)  # by hand, where another folder is the default
            self.expect(server.uri, 1)
            self.stop(server)
            self.assertEqual(self.caches(), [])
            self.assertEqual(os.listdir(folder), [])

    def test_what_is_left_of_a_takeover_is_removed(self):
        """A file that no anchor refers to, of a process that was killed before it was needed."""
        cache = self.leave_changes()
        left = f"/dev/shm/gmblock-{self.uuid}-0123456789abcdef.cache"
        for contents in (b"", b"GMB"):
            with open(left, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(contents)
            server = self.serve(self.file)
            self.expect(server.uri, 1)
            self.stop(server)
            self.assertEqual(self.caches(), [])
        self.assertFalse(os.path.exists(cache))


if __name__ == "__main__":
    support.main()
