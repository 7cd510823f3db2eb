#!/usr/bin/python3
"""bench/walk's recorder and what is made of its file, with a small program instead of the server."""
import os
import shutil
import subprocess
import sys
import unittest

import support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "bench"))
from harness import measure, steps  # noqa: E402 (the path has to be set first)

RECORDER = os.path.realpath(sys.argv.pop(2))
FLAGS = ["-O1", "-gdwarf-4", "-fno-inline", "-finstrument-functions"]
HEADER = """
static inline int twice(int value)
{
	return 2 * value;
}
"""
OTHER = """
#include "twice.h"
int other(int value);
int other(int value)
{
	return twice(value) + 1;
}
"""
MAIN = """
#include "twice.h"
int other(int value);
int main(int argc, char **argv)
{
	(void)argv;
	return twice(argc) + other(argc) + other(argc) - 8;
}
"""


def file_of(*entries, count=None):
    """A recorder's file with these entries."""
    return steps.HEADER.pack(0, len(entries) if count is None else count, 1) + \
        b"".join(steps.ENTRY.pack(*entry) for entry in entries)


class Figures(support.Case):
    NAMES = {1: ("a", "x.c"), 2: ("b", "y.c"), 3: ("b", "y.c"), 4: ("c", "y.c")}

    def test_a_read_is_counted_from_its_own_thread(self):
        entries = steps.entries_of(file_of((1, 1, 7), (9, 1, 7), (2, 1, 7), (1, 1, 8), (3, 1, 7),
                                           (1, 1, 7), (4, 2, 7)))
        found = steps.walks(entries, self.NAMES)
        self.assertEqual(sorted(found), [1, 2])
        # 2 and 3 are copies of one function, 9 belongs to a system header.
        self.assertEqual({key: found[1][key] for key in steps.FIGURES},
                         {"functions": 2, "calls": 4, "files": 2, "moves": 2})
        self.assertEqual(found[1]["entered"], [{"file": "x.c", "function": "a", "calls": 2},
                                               {"file": "y.c", "function": "b", "calls": 2}])
        self.assertEqual(found[2]["moves"], 0)

    def test_the_typical_read_is_the_one_in_the_middle(self):
        found = [dict.fromkeys(steps.FIGURES, value) for value in (9, 1, 5, 7, 100)]
        self.assertEqual(steps.typical(found)["calls"], 7)

    def test_a_full_file_is_an_error(self):
        with self.assertRaisesRegex(measure.ClientFailed, "too small"):
            steps.entries_of(file_of(count=steps.ENTRIES_MAX + 1))


@unittest.skipUnless(shutil.which("gcc") and shutil.which("addr2line"), "needs gcc and binutils")
class Recorder(support.Case):
    def record(self, mark):
        """What a run of the program leaves behind, and the program."""
        os.mkdir(self.path("src"))
        for name, text in (("twice.h", HEADER), ("other.c", OTHER), ("main.c", MAIN)):
            self.make_file("src/" + name, text)
        program = self.path("program")
        subprocess.run(["gcc", *FLAGS, "-o", program, self.path("src/main.c"),
                        self.path("src/other.c")], check=True)
        file = self.path("record")
        with open(file, "wb") as out:
            out.write(steps.HEADER.pack(mark, 0, 0))
            out.truncate(steps.FILE_BYTES)
        done = subprocess.run([program], check=False,
                              env={"WALK_FILE": file, "LD_PRELOAD": RECORDER})
        self.assertEqual(done.returncode, 0)
        with open(file, "rb") as data:
            return data.read(), program

    def test_functions_of_source_and_header_have_their_files(self):
        data, program = self.record(mark=1)
        entries = steps.entries_of(data)
        names = steps.named(program, [entry[0] for entry in entries], self.folder, self.folder)
        found = steps.walks(entries, names)[1]
        self.assertEqual(
            [(step["file"], step["function"], step["calls"]) for step in found["entered"]],
            [("src/main.c", "main", 1), ("src/other.c", "other", 2), ("src/twice.h", "twice", 3)])
        self.assertEqual(found["moves"], 5)

    def test_nothing_is_recorded_without_a_mark(self):
        data, _ = self.record(mark=0)
        self.assertEqual(steps.HEADER.unpack_from(data), (0, 0, 1))


if __name__ == "__main__":
    support.main()
