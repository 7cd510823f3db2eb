"""How gmblock programs of different ages spell the keys of an export.

What: spelled(program, keys) gives keys as that program knows them. SPELLINGS has what changed its
name; which name a program knows is found out by asking it to serve such an export.
Errors: OSError if there is no such program. Keys that it does not know in any spelling stay as they
are: the program itself says what is wrong with them.
"""

import functools
import os
import subprocess
import tempfile

# Today's spelling of a key, or of the beginning of one with its value, and the older one.
SPELLINGS = [
    ("mode=direct", "mode=ram"),
    ("write-mode=direct", "write-mode=ram"),
    ("overlap=", "synchro="),
    ("parts=", "overlap="),
    ("parts=", "synchro="),
    ("page-cache-send=", "mmap="),
]


@functools.lru_cache(maxsize=None)
def knows(program, key):
    """Whether the program serves an export with that key."""
    with tempfile.TemporaryDirectory(prefix="gmblock-bench-") as folder:
        done = subprocess.run(
            [program, "serve", "--threads", "1", "--control", "none",
             "--listen", "nbd+unix:///?socket=" + os.path.join(folder, "sock"),
             "--export", "=memory:64K," + key, "--run", "true"],
            stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def spelled(program, keys):
    """Keys and values, separated by commas, in the program's own words."""
    return ",".join(_spelled(program, key) for key in keys.split(","))


def _spelled(program, key):
    for today, older in SPELLINGS:
        if key.startswith(today):
            former = older + key[len(today):]
            if not knows(program, key) and knows(program, former):
                return former
    return key
