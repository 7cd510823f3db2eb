#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reads 16 bytes at each offset, all at once, and prints them.

    read-async.py URI [OFFSET...]
"""
import asyncio
import sys

import gmblock


async def peek(queue, client, offsets):
    queue.attach(asyncio.get_running_loop())
    blocks = await asyncio.gather(*(client.apread(16, offset) for offset in offsets))
    for offset, block in zip(offsets, blocks):
        print(f"{offset}: {block.hex(' ')}")


def main():
    if len(sys.argv) < 2:
        print("usage: read-async.py URI [OFFSET...]", file=sys.stderr)
        return 2
    try:
        with gmblock.Queue() as queue, queue.open(
                sys.argv[1], flags=gmblock.OPEN_READ_ONLY) as client:
            print(f"{client.info().bytes} bytes, {', '.join(sorted(client.capabilities()))}")
            asyncio.run(peek(queue, client, [int(text, 0) for text in sys.argv[2:]]))
    except gmblock.Error as error:
        print(error.strerror, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
