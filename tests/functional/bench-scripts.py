#!/usr/bin/python3
"""The scripts in bench/ tell what is wrong with their command lines in one line, and run nothing."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import subprocess
import sys

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
from harness import clients, measure, samples  # noqa: E402 (the path has to be set first)

BENCH = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench")


SCRIPTS = ["access", "attach", "clan-paper", "client", "cluster", "connections", "copy", "depth", "guest-disk", "idle", "neighbour", "ocfs2", "overlap", "page-cache-send", "paper", "peers", "streams", "tls", "walk"]


def load(script):
    """A script as a module, which does not run anything."""
    path = os.path.join(BENCH, script)
    loader = importlib.machinery.SourceFileLoader("bench_" + script.replace("-", "_"), path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Scripts(support.Case):
    @classmethod
    def setUpClass(cls):
        cls.modules = {script: load(script) for script in SCRIPTS}

    def refuse(self, script, *arguments):
        """The script's parser must end the program with status 2 and one line that has the last
        argument in it."""
        *options, fragment = arguments
        output, errors = io.StringIO(), io.StringIO()
        argv, sys.argv = sys.argv, [os.path.join(BENCH, script), *options]
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), \
                    self.assertRaises(SystemExit) as ended:
                self.modules[script].arguments()
        finally:
            sys.argv = argv
        self.check(script, ended.exception.code, output.getvalue(), errors.getvalue(), fragment)

    def check(self, script, status, output, errors, fragment):
        self.assertEqual((status, output), (2, ""), errors)
        self.assertRegex(errors, rf"\A{script}: .*\n\Z")
        self.assertIn(fragment, errors)

    def test_numbers_that_are_none(self):
        for script, options in (
                ("access", ["--count", "--rounds"]),
                ("attach", ["--count", "--time-limit"]),
                ("clan-paper", ["--rounds", "--seconds", "--scale"]),
                ("client", ["--rounds", "--seconds", "--size"]),
                ("cluster", ["--rounds", "--seconds"]),
                ("connections", ["--rounds", "--seconds"]),
                ("copy", ["--rounds", "--size"]),
                ("depth", ["--rounds", "--seconds", "--size", "--depths", "--neighbours"]),
                ("guest-disk", ["--count", "--time-limit"]),
                ("idle", ["--connections", "--seconds"]),
                ("neighbour", ["--rounds", "--seconds", "--settle", "--size", "--set", "--rate"]),
                ("ocfs2", ["--rounds", "--small", "--client-cache", "--time-limit"]),
                ("page-cache-send", ["--rounds", "--seconds", "--size"]),
                ("paper", ["--minutes"]),
                ("peers", ["--rounds", "--seconds", "--count-seconds", "--size"]),
                ("streams", ["--rounds", "--seconds", "--warmup", "--pairs"]),
                ("tls", ["--rounds", "--seconds", "--size"]),
                ("overlap", ["--sizes", "--rounds", "--again", "--seconds", "--rate", "--size",
                             "--pairs"]),
                ("walk", ["--warmup", "--reads"])):
            for option in options:
                for value in ("x", "", "-1", "4,x", "nan", "a\x1bb"):
                    with self.subTest(script=script, option=option, value=value):
                        self.refuse(script, f"{option}={value}", f"{option}: {ascii(value)[:-1]}"
                                    if value != "4,x" else option)

    def test_numbers_that_are_too_small_or_too_large(self):
        self.refuse("attach", "--count", "0", "at least 1")
        self.refuse("client", "--size", "7", "at least 8")
        self.refuse("copy", "--rounds", "0", "at least 1")
        self.refuse("copy", "--pairs", "0", "at least 1")
        self.refuse("copy", "--size", "15M", "at least 16M")
        self.refuse("idle", "--connections", "0", "at least 1")
        self.refuse("peers", "--seconds", "0", "not a time")
        self.refuse("peers", "--size", "K", "not a size")
        self.refuse("overlap", "--sizes", "4,0", "'0' is not a whole number of at least 1")
        self.refuse("overlap", "--sizes", "4,40000", "--size", "32", "40000 KiB are more than")
        self.refuse("overlap", "--seconds", "inf", "not a time")
        self.refuse("overlap", "--rate", "7", "at least 8")

    def test_a_walk_has_a_limit(self):
        for fewest, is_above in ((1, False), (10 ** 6, True)):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                walk = {"range": {"functions": [fewest, 10 ** 6]}}
                self.assertEqual(self.modules["walk"].is_above_limit(walk), is_above)
            self.assertEqual("limits.txt" in output.getvalue(), is_above)

    def test_samples_compressed_or_not(self):
        record = {"facts": {}, "rows": [{"row": "one", "samples": [{"iops": 1.5}]}]}
        for name in ("plain.json", "small.json.xz"):
            path = os.path.join(self.folder, name)
            samples.write(path, record)
            self.assertEqual(samples.read(path), record)
        with open(path, "wb") as out:
            out.write(b"{}")
        self.assertRaisesRegex(ValueError, "small.json.xz: ", samples.read, path)

    def test_medians(self):
        found = samples.medians({"facts": {"load": 7.0}, "alone": [4, 1, 2], "rows": [
            {"row": "read", "ratio": 1.25, "samples": {"new": [{"s": 3, "cpu": {"user": 1}}, {"s": 9}], "old": []}},
            {"bytes": 4096, "samples": [{"s": 5.0}, {"s": 6.0}, {"s": 70.0}]}]})
        self.assertEqual(found.splitlines(), [
            "median of,samples,value,ratio,s,cpu.user", "alone,3,2,,,", "read,1,,1.25,,", "read / new,2,,,6,1",
            "bytes=4096,3,,,6,"])

    def test_results_have_their_medians(self):
        names = os.listdir(os.path.join(BENCH, "results", "raw"))
        self.assertGreater(len(names), 20)
        for name in names:
            stem = name.removesuffix(".json.xz")
            with open(os.path.join(BENCH, "results", stem + ".csv"), encoding="utf-8") as file:
                self.assertEqual(file.read(), samples.medians(samples.read(os.path.join(BENCH, "results/raw", name))),
                                 stem)

    def test_a_time_in_which_no_request_completes(self):
        """A busy machine makes most times too short: the client runs again, for longer."""
        server = self.start_unix("--export", "=memory:1M,delay=read:20ms")
        clients.Gmblock.program = support.program()
        row = measure.Row("row", "", "randread", 4096, 1, "unix")
        sample = clients.CLIENTS["gmblock/1"].run(row, server.uri, 0.001, 1 << 20, 1)
        self.assertGreater(sample["requests"], 0)

    def test_options_that_are_none(self):
        for script in SCRIPTS:
            done = subprocess.run([sys.executable, os.path.join(BENCH, script), "--colour"],
                                  capture_output=True, text=True, check=False)
            self.check(script, done.returncode, done.stdout, done.stderr, "--colour")


if __name__ == "__main__":
    support.main()
