"""Reads a part of a file several times, and prints the seconds of each pass. Runs in the guests of bench/ocfs2.

    reader_guest.py FILE OFFSET BYTES REQUEST PASSES

Errors: an exception.
"""

import json
import os
import sys
import time


def read_once(path, offset, end, buffer):
    file = os.open(path, os.O_RDONLY)
    try:
        began = time.monotonic()
        for at in range(offset, end, len(buffer)):
            if os.preadv(file, [buffer], at) != len(buffer):
                raise OSError("%s ends before %d" % (path, end))
        return time.monotonic() - began
    finally:
        os.close(file)


def main():
    path, (offset, size, request, passes) = sys.argv[1], map(int, sys.argv[2:])
    buffer = bytearray(request)
    print(json.dumps([read_once(path, offset, offset + size, buffer) for _ in range(passes)]))


if __name__ == "__main__":
    main()
