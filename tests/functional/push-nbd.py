#!/usr/bin/python3
"""gmblock push to servers that speak only NBD: what arrives, what is refused, and what is left when one of the
three is killed.

    push-nbd.py GMBLOCK ROUNDS
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import push_tool
import support
from push_tool import MIB, digest

SERVERS = ("nbdkit", "qemu-nbd", "gmblock")


class PushNbd(push_tool.Case):
    def nbdkit(self, *arguments):
        self.count += 1
        path, ready = self.path(f"k{self.count}"), self.path(f"pid{self.count}")
        self.background(ready, "nbdkit", "--foreground", "--unix", path, "--pidfile", ready, *arguments)
        return f"nbd+unix:///?socket={path}"

    def start_server(self, kind, path, file):
        """A server of the file at that socket; returns how to kill it."""
        ready = path + ".pid"
        for left in (path, ready):
            if os.path.exists(left):
                os.unlink(left)
        if kind == "gmblock":
            return self.start_unix("--export", f"disk={file}", "--listen", f"nbd+unix:///?socket={path}",
                                   uri_count=2).kill
        if kind == "nbdkit":
            process = self.background(ready, "nbdkit", "-f", "-e", "disk", "-U", path, "-P", ready, "file", file)
        else:
            process = self.background(ready, "qemu-nbd", "--persistent", "--export-name=disk", "--format=raw",
                                      "--discard=unmap", "--detect-zeroes=off", f"--socket={path}",
                                      f"--pid-file={ready}", file)

        def kill():
            process.kill()
            process.wait()
        return kill

    def check_server(self, kind):
        size = 24 * MIB + 5 * 512
        source = self.image("source", size, (0, 3 * MIB), (5 * MIB + 4096, 4 * MIB), (20 * MIB, size - 20 * MIB))
        target = self.image("target", size, (0, size))
        first = self.serve(f"disk={source}")
        self.start_server(kind, self.path("t"), target)
        uris = first.push("disk"), f"nbd+unix:///disk?socket={self.path('t')}"
        job = self.push(*uris, "--verify=read")
        self.assertEqual(digest(source), digest(target))
        self.assertEqual((job["state"], job["bytes_done"], job["bytes_durable"]), ("done", size, size))
        self.assertGreaterEqual(job["bytes_zeroed"], 11 * MIB)
        self.assertLess(os.stat(target).st_blocks * 512, 16 * MIB)  # holes stay holes
        self.assertEqual([(entry["role"], entry["digest"]) for entry in self.jobs(uris[0])],
                         [("source", job["digest"])])
        again = self.push(*uris, "--resume")
        self.assertEqual(again["bytes_skipped"] + again["bytes_zeroed"], size)
        self.assertEqual(again["digest"], job["digest"])
        before = digest(target, 0, 512), digest(target, 512 + 3 * MIB + 1024)
        self.push(*uris, "--range", f"4096+{3 * MIB + 1024}", "--to-offset", "512", "--connections", "4")
        self.assertEqual(digest(target, 512, 3 * MIB + 1024), digest(source, 4096, 3 * MIB + 1024))
        self.assertEqual((digest(target, 0, 512), digest(target, 512 + 3 * MIB + 1024)), before)
        self.assertEqual(self.counters(first)["pushes_done"], 3)
        code, errors = first.stop()
        self.assertEqual((code, errors), (0, ""))

    def test_nbdkit(self):
        self.check_server("nbdkit")

    def test_qemu(self):
        self.check_server("qemu-nbd")

    def test_gmblock(self):
        self.check_server("gmblock")

    def test_without_zeroes(self):
        """Where none can be asked for they are written, and read back."""
        size = 6 * MIB
        source = self.image("source", size, (MIB, MIB))
        target = self.image("target", size, (0, size))
        uri = self.nbdkit("--filter=nozero", "file", target)
        job = self.push(self.serve(f"disk={source}").push("disk"), uri, "--verify=read")
        self.assertEqual((digest(source), job["bytes_zeroed"]), (digest(target), 0))

    def test_one_disk_under_two_names(self):
        """The destination is the source's own server."""
        source = self.image("source", 4 * MIB, (0, 4 * MIB))
        link = self.path("link")
        os.link(source, link)
        before = digest(source)
        uris = self.start("--listen", self.socket_uri("p").replace("nbd", "push", 1), "--listen", self.socket_uri("n"),
                          "--listen", "nbd://127.0.0.1:0", "--push-to", "nbd:127.0.0.1,port=any",
                          "--export", f"disk={source},readonly", "--export", f"same={link}", "--export", "more=memory:4M",
                          uri_count=9).uris
        disk, same, more = uris[:3]
        for target in uris[4], uris[7]:
            for uri in disk, same:
                for arguments in ([], ["--range", "0+2M", "--to-offset", "1M"]):
                    self.check_refused(["push", *arguments, uri, target], 1, "are the same disk, and the ranges overlap")
            self.assertEqual(digest(source), before)
            self.push(disk, target, "--range", "0+1M", "--to-offset", "2M")
            self.assertEqual(digest(source, 0, MIB), digest(source, 2 * MIB, MIB))
            before = digest(source)
        self.check_refused(["push", more, uris[5]], 1, "are the same disk, and the ranges overlap")
        self.push(disk, uris[5])

    def test_network(self):
        """The destination is found by its name, the sandbox lets the source go there and nowhere else, and the
        coordinator carries nothing."""
        size = 32 * MIB
        source, target = self.image("source", size, (0, size)), self.image("target", size)
        far = self.start("--listen", "nbd://127.0.0.1:0", "--export", f"disk={target}")
        port = re.search(":([0-9]+)/", far.uri).group(1)
        uri = far.uri.replace("127.0.0.1", "localhost")
        for place in ("nbd:127.0.0.1", "nbd:10.0.0.0/8,port=any", "127.0.0.1,port=any", f"nbd:{self.path('s')}"):
            first = self.serve(f"disk={source}", arguments=("--push-to", place))
            self.check_refused(["push", first.push("disk"), uri], 1, "start the server with --push-to nbd:PLACE")
            first.stop()
        first = self.serve(f"disk={source}", arguments=("--push-to", f"nbd:127.0.0.1,port={port}"))
        push = self.start_push("--rate", "4M", first.push("disk"), uri)
        self.wait_for_bytes(first.push("disk"), 3 * MIB)
        with open(f"/proc/{push.pid}/io") as file:
            counts = dict(line.split(": ") for line in file)
        self.assertLess(int(counts["rchar"]) + int(counts["wchar"]), MIB)  # what it read of its own libraries
        opened = [os.readlink(f"/proc/{push.pid}/fd/{number}") for number in os.listdir(f"/proc/{push.pid}/fd")]
        with open(f"/proc/{push.pid}/net/tcp") as file:
            tcp = {f"socket:[{line.split()[9]}]" for line in file.readlines()[1:]}
        self.assertFalse(tcp & set(opened))  # the way to the destination is not the coordinator's
        _, errors = push.communicate()
        self.assertEqual((push.returncode, errors), (0, ""))
        self.assertEqual(digest(source), digest(target))

    def test_several_hosts(self):
        source, target = self.image("source", MIB, (0, MIB)), self.image("target", MIB)
        far = self.start("--listen", "nbd://127.0.0.1:0", "--export", f"disk={target}")
        first = self.serve(f"disk={source}", arguments=("--push-to", "nbd:127.0.0.1,port=any"))
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            self.push(first.push("disk"), far.uri.replace("//", f"//127.0.0.1:{deaf.getsockname()[1]},"))
        self.assertEqual(digest(source), digest(target))

    def test_names(self):
        """A host with several addresses: the server is at one of them, or only one may be pushed to."""
        if os.geteuid() != 0:
            self.skipTest("only root has names of its own")
        hosts = self.make_file("hosts", b"127.0.0.9 far\n127.0.0.1 far\n127.0.0.8 far\n")
        target = self.image("target", MIB)
        far = self.start("--listen", "nbd://127.0.0.1:0", "--export", f"disk={target}")
        for place in ("nbd:127.0.0.0/8,port=any", "nbd:127.0.0.1,port=any"):
            source = self.image("source", MIB, (0, MIB))
            first = self.serve(f"disk={source}", arguments=("--push-to", place))
            subprocess.run(["unshare", "-m", "sh", "-ec", 'mount --bind "$1" /etc/hosts; shift; exec "$@"', "sh", hosts,
                            support.program(), "push", first.push("disk"), far.uri.replace("127.0.0.1", "far")], check=True,
                           stdout=subprocess.DEVNULL)
            self.assertEqual(digest(source), digest(target))
            first.stop()

    def test_refused(self):
        source = self.image("source", 4 * MIB, (0, 4 * MIB))
        first = self.serve(f"disk={source}", arguments=("--handshake-timeout", "2s"))
        disk = first.push("disk")
        far = self.start_unix("--export", "small=memory:1M", "--export", f"ro={source},readonly=yes",
                              "--export", "disk=memory:8M", uri_count=3)
        gone = self.path("gone")
        silent = socket.socket(socket.AF_UNIX)
        self.addCleanup(silent.close)
        silent.bind(self.path("silent"))
        silent.listen()
        for target, *fragments in (
                (far.uris[0], "too small: it has 1048576 bytes, but the push ends at 4194304"),
                (far.uris[1], "is served read-only"),
                (far.uris[2].replace("/disk", "/none"), 'export "none": no such export'),
                (f"nbd+unix:///?socket={gone}", "the destination: ", "No such file"),
                (f"nbd+unix:///?socket={self.path('silent')}", "the destination: ", "timed out after"),
                ("nbd://no-such-host.invalid/disk", "cannot resolve the host")):
            errors = self.check_refused(["push", disk, target], 1, *fragments)
            self.assertNotRegex(errors, r"ends at \d+[a-z]")
            self.check_refused(["push", "--detach", disk, target], 1, *fragments)
        self.assertEqual({job["state"] for job in self.jobs(disk)}, {"failed"})
        self.assertEqual(first.stop()[0], 0)
        # With the usual limits: on a busy machine nbdkit's scripts take long.
        first = self.serve(f"disk={source}")
        disk = first.push("disk")
        if shutil.which("nbdkit") is not None:
            never = self.nbdkit("eval", "get_size=echo 8M", "pread=exit 1", "pwrite=cat >/dev/null", "can_flush=exit 3")
            self.check_refused(["push", disk, never], 1, "does not offer NBD_CMD_FLUSH")
            liar = self.nbdkit("eval", "get_size=echo 8M", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null",
                               "can_flush=exit 0", "flush=:")
            self.check_refused(["push", "--verify=read", disk, liar], 1, "the destination has a different digest")
            self.push(disk, liar)  # nobody looks
            blocks = self.nbdkit("--filter=blocksize-policy", "memory", "8M", "blocksize-minimum=4096")
            self.check_refused(["push", "--range", "0+512", disk, blocks], 1, "whole blocks of 4096 bytes")
            self.push(disk, blocks)
            self.assertEqual({job["state"] for job in self.jobs(disk)}, {"failed", "done"})
        self.assertEqual(first.stop()[0], 0)

    def test_disks_that_fail(self):
        data = self.image("data", 4 * MIB, (0, 4 * MIB))
        first = self.serve(f"bad={data},fault=read:EIO", f"good={data}")
        far = self.start_unix("--export", "full=memory:4M,fault=write:ENOSPC", "--export", "good=memory:4M",
                              "--export", "flush=memory:4M,fault=flush:EIO", "--export", "read=memory:4M,fault=read:EIO",
                              uri_count=4)
        full, good, flush, read = far.uris
        for source, target, text, *options in (
                ("good", full, "cannot write the destination: No space left on device"),
                ("bad", good, "cannot read the source"),
                ("good", flush, "cannot make the destination durable"),
                ("good", read, "cannot read back the destination", "--verify=read"),
                ("good", read, "cannot read the destination for comparison", "--resume")):
            self.check_refused(["push", *options, first.push(source), target], 1, text, "with --resume")
        self.assertEqual(self.counters(first)["pushes_failed"], 5)

    def test_detached(self):
        first = self.serve(f"disk={self.image('source', 8 * MIB, (0, 8 * MIB))}")
        far = self.start_unix("--export", "disk=memory:8M")
        uris = first.push("disk"), far.uri
        number = self.run_gmblock("push", "--detach", *uris)[1].strip()
        self.wait_for(lambda: self.jobs(uris[0], "--status", number)[0]["state"] == "done")
        code, number, errors = self.run_gmblock("push", "--detach", "--rate", "1", *uris)
        self.assertEqual((code, errors), (0, ""))
        number = number.strip()
        self.wait_for(lambda: self.jobs(uris[0], "--status", number)[0]["state"] == "moves")
        self.assertEqual(self.run_gmblock("push", "--cancel", number, uris[0]), (0, "", ""))
        self.wait_for(lambda: self.jobs(uris[0], "--status", number)[0]["state"] == "failed")
        job = self.push(*uris, "--rate", str(16 * MIB))
        self.assertGreaterEqual(job["seconds"], 0.5 - 0.001)
        self.assertEqual(first.stop()[0], 0)

    def test_many(self):
        """Each takes a part of the staging memory that is left, and one that compares two slots at least."""
        first = self.serve(f"disk={self.image('source', MIB, (0, MIB))}")
        uris = first.push("disk"), self.start_unix("--export", "disk=memory:8M").uri
        for _ in range(11):
            self.assertEqual(self.run_gmblock("push", "--detach", "--resume", "--rate", "1", *uris)[0], 0)
        self.check_refused(["push", "--resume", *uris], 1, "other pushes use all of the server's staging memory")
        self.push(*uris)  # the last slot
        self.assertEqual(first.stop()[0], 0)

    def test_stopped(self):
        """A source that is stopped ends its jobs, whatever their destination does."""
        source = self.image("source", 8 * MIB, (0, 8 * MIB))
        first, far = self.serve(f"disk={source}"), self.start_unix("--export", "disk=memory:8M")
        push = self.start_push("--rate", "1M", first.push("disk"), far.uri)
        self.wait_for_bytes(first.push("disk"), MIB)
        far.freeze()
        self.wait_for(lambda: self.counters(first)["bytes_read"] >= 2 * MIB)
        self.assertEqual(first.stop()[0], 0)
        _, errors = push.communicate()
        self.assertEqual(push.returncode, 1)
        self.assertIn("with --resume", errors)
        far.signal(signal.SIGCONT)

    def test_killed(self):
        """Each of the three, in turn; what is there already is not moved again."""
        size = 16 * MIB
        source, target = self.image("source", size, (0, size)), self.image("target", size)
        first = self.serve(f"disk={source}")
        path = self.path("t")
        uris = first.push("disk"), f"nbd+unix:///disk?socket={path}"
        kinds = [kind for kind in SERVERS if kind == "gmblock" or shutil.which(kind) is not None]
        for number in range(ROUNDS):
            victim = ("destination", "source", "coordinator")[number % 3]
            kind = kinds[(number + number // 3) % len(kinds)]
            kill = self.start_server(kind, path, target)
            with open(target, "r+b") as file:
                file.write(self.random.randbytes(size))
            push = self.start_push("--rate", "2M", *uris)
            least = self.random.randrange(1, 4) * MIB
            self.wait_for_bytes(uris[0], least)
            if victim == "coordinator":
                push.kill()
            elif victim == "destination":
                kill()
                kill = self.start_server(kind, path, target)
            else:
                first.kill()
                first = self.start("--listen", uris[0].replace("/disk", "/"), "--export", f"disk={source}")
            _, errors = push.communicate()
            if victim != "coordinator":
                self.assertEqual(push.returncode, 1, errors)
                self.assertIn("with --resume" if victim == "destination" else "", errors)
            self.wait_for(lambda: all(job["state"] in ("done", "failed") for job in self.jobs(uris[0])))
            job = self.push(*uris, "--resume")
            self.assertEqual(digest(source), digest(target))
            self.assertGreaterEqual(job["bytes_skipped"], least)
            self.assertLess(job["bytes_skipped"], size)
            kill()

    def test_a_flash_store(self):
        """As it was at one moment, by a snapshot that is gone afterwards."""
        store, image = self.path("store"), self.image("image", 24 * MIB, (MIB, 20 * MIB))
        self.assertEqual(self.run_gmblock("create", "--size=64M", "--segment=256K", "flash:" + store)[0], 0)
        size = json.loads(self.run_gmblock("check", "--json", store)[1])["size"]
        target = self.image("target", size, (0, size))
        plain, flash = self.serve("image=" + image), self.serve("disk=flash:" + store)
        self.push(plain.push("image"), flash.push("disk"))
        self.start_server("gmblock", self.path("t"), target)
        job = self.push(flash.push("disk"), f"nbd+unix:///disk?socket={self.path('t')}", "--verify=read")
        self.assertEqual(job["bytes_done"], size)
        self.assertEqual(digest(target, 0, 24 * MIB), digest(image))
        self.assertNotIn("push-", self.run_gmblock("snapshot", "list", "disk", "--server", flash.control)[1])
        self.assertEqual(flash.stop()[0], 0)

    def test_rights(self):
        """The right to read the source is that of who runs the command."""
        uid = os.getuid()
        first = self.serve("disk=memory:1M", arguments=("--access", f"uid={uid + 1} rights=ro"))
        far = self.start_unix("--export", "disk=memory:1M")
        self.check_refused(["push", first.push("disk"), far.uri], 1, "no such export")


def main():
    global ROUNDS
    ROUNDS = int(sys.argv.pop(2))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    support.main()


if __name__ == "__main__":
    main()
