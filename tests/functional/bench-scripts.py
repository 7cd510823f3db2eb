#!/usr/bin/python3
"""The scripts in bench/ tell what is wrong with their command lines in one line, and run nothing."""
import os
import subprocess
import sys

import support

BENCH = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench")


class Scripts(support.Case):
    def refuse(self, script, *arguments):
        *options, fragment = arguments
        done = subprocess.run([sys.executable, os.path.join(BENCH, script), *options],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertRegex(done.stderr, rf"\A{script}: .*\n\Z")
        self.assertIn(fragment, done.stderr)

    def test_numbers_that_are_none(self):
        for script, options in (
                ("attach", ["--count", "--time-limit"]),
                ("client", ["--rounds", "--seconds", "--size"]),
                ("copy", ["--rounds", "--size"]),
                ("idle", ["--connections", "--seconds"]),
                ("page-cache-send", ["--rounds", "--seconds", "--size"]),
                ("peers", ["--rounds", "--seconds", "--count-seconds", "--size"]),
                ("overlap", ["--sizes", "--rounds", "--again", "--seconds", "--rate", "--size"])):
            for option in options:
                for value in ("x", "", "-1", "4,x", "nan", "a\x1bb"):
                    with self.subTest(script=script, option=option, value=value):
                        self.refuse(script, f"{option}={value}", f"{option}: {ascii(value)[:-1]}"
                                    if value != "4,x" else option)

    def test_numbers_that_are_too_small_or_too_large(self):
        self.refuse("attach", "--count", "0", "at least 1")
        self.refuse("client", "--size", "7", "at least 8")
        self.refuse("copy", "--rounds", "0", "at least 1")
        self.refuse("copy", "--size", "15M", "at least 16M")
        self.refuse("idle", "--connections", "0", "at least 1")
        self.refuse("peers", "--seconds", "0", "not a time")
        self.refuse("peers", "--size", "K", "not a size")
        self.refuse("overlap", "--sizes", "4,0", "'0' is not a whole number of at least 1")
        self.refuse("overlap", "--sizes", "4,40000", "--size", "32", "40000 KiB are more than")
        self.refuse("overlap", "--seconds", "inf", "not a time")
        self.refuse("overlap", "--rate", "7", "at least 8")

    def test_options_that_are_none(self):
        for script in ("attach", "client", "copy", "idle", "page-cache-send", "peers", "overlap"):
            self.refuse(script, "--colour", "--colour")


if __name__ == "__main__":
    support.main()
