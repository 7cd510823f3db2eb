#!/usr/bin/python3
"""Units of redis's own test suite, with and without libclan-sockets: the same results.

    sockets-redis.py CLAN_RUN

The suite is part of redis's source, which is no package of its own: it comes by apt-get source, and
is checked by it. Environment: REDIS_SOURCE, a folder with the source instead. Without a way to it,
without redis-server or tclsh the test says so.
"""
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import unittest

import sockets_tool
from sockets_tool import ports

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PROGRAMS = ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb")
# What is quick of data types, transactions, publishing, limits, and clients that come and go.
UNITS = """auth quit protocol multi pubsub pubsubshard scan keyspace querybuf pendingquerybuf tracking
    acl limits networking info introspection pause geo type/string type/incr type/hash
    type/set""".split()
# They publish on one connection without waiting for the answer to the UNSUBSCRIBE of another one.
RACES = ("PUBLISH/SUBSCRIBE after UNSUBSCRIBE without arguments",
         "PUBLISH/PSUBSCRIBE after PUNSUBSCRIBE without arguments",
         "SPUBLISH/SSUBSCRIBE after UNSUBSCRIBE without arguments")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RESULT = re.compile(r"^\[(ok|err|exception|ignore|skip|timeout)\]: (.*?)(?: \(\d+ ms\))?$")
PORTS = 500


def download(folder):
    """The name of redis's original source, or None."""
    release = platform.freedesktop_os_release()
    if release.get("ID") != "debian" or shutil.which("apt-get") is None:
        return None
    signed = f"[signed-by={KEYRING}] " if os.path.exists(KEYRING) else ""
    with open(os.path.join(folder, "sources.list"), "w", encoding="ascii") as file:
        file.write(f"deb-src {signed}http://deb.debian.org/debian {release['VERSION_CODENAME']} "
                   "main\n")
    for name in ("lists/partial", "cache/archives/partial"):
        os.makedirs(os.path.join(folder, name))
    options = [f"-oDir::Etc::sourcelist={folder}/sources.list", "-oDir::Etc::sourceparts=/dev/null",
               f"-oDir::State::lists={folder}/lists", f"-oDir::Cache={folder}/cache",
               f"-oAPT::Sandbox::User={'root' if os.geteuid() == 0 else ''}"]
    for words in (["update"], ["source", "--download-only", "redis"]):
        done = subprocess.run(["apt-get", *options, *words], cwd=folder, capture_output=True,
                              text=True, timeout=600, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return None
    found = glob.glob(os.path.join(folder, "redis_*.orig.tar.*"))
    return found[0] if found else None


class Redis(sockets_tool.Case):
    def source(self):
        """A folder with the source, which the suite may change."""
        for program in ("tclsh", *PROGRAMS):
            if shutil.which(program) is None:
                self.skipTest(f"{program} is not installed")
        target = self.path("source")
        if "REDIS_SOURCE" in os.environ:
            shutil.copytree(os.environ["REDIS_SOURCE"], target, symlinks=True)
        else:
            archive = download(self.folder)
            if archive is None:
                self.skipTest("cannot download the source of redis; set REDIS_SOURCE")
            with tarfile.open(archive) as file:
                file.extractall(target)
            target, = glob.glob(os.path.join(target, "redis-*"))
        for program in PROGRAMS:
            place = os.path.join(target, "src", program)
            if os.path.lexists(place):
                os.remove(place)
            os.symlink(shutil.which(program), place)
        return target

    def results(self, source, *prefix):
        """What the suite says of each test, sorted."""
        words = ["--clients", "1", "--tags", "-slow", "--portcount", str(PORTS),
                 # It looks for free ports from here on, and for their numbers + 10,000.
                 "--baseport", str(ports.free(20000))]
        for unit in UNITS:
            words += ["--single", "unit/" + unit]
        for race in RACES:
            words += ["--skiptest", race]
        done = subprocess.run([*prefix, "tclsh", "tests/test_helper.tcl", *words], cwd=source,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, errors="replace", text=True, check=False)
        lines = [COLOURS.sub("", line) for line in done.stdout.splitlines()]
        found = sorted(match.groups() for match in map(RESULT.match, lines) if match)
        self.assertEqual(done.returncode, 0, "\n".join(lines[-100:]))
        return found

    def test_units(self):
        source = self.source()
        plain = self.results(source)
        self.assertEqual(self.stats(), {})
        self.assertGreater(len(plain), 500)
        carried = self.results(source, *self.carried("connect *:*; listen *:*; after 2"))
        self.assertEqual(carried, plain)
        stats = self.stats("redis-server")
        print(f"{len(plain)} results; redis-server: {stats}")
        self.assertGreater(stats["carried"], 50)
        self.assertGreater(stats["in_bytes"] + stats["out_bytes"], 10 << 20)
        self.assertEqual((stats["broken"], self.stats("tclsh")["broken"]), (0, 0), self.stats())


if __name__ == "__main__":
    sockets_tool.RUN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
