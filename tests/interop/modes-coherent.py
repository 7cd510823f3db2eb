#!/usr/bin/python3
"""One disk served in several modes at once shows each write to every mode."""

import os
import random

from captive import MIB, Gmblock, connect, main, make_random_file, pattern, require_libnbd

SIZE = 8 * MIB
MODES = {
    "cached": "mode=cached",
    "direct": "mode=direct",
    "cached-direct": "mode=cached,write-mode=direct",
    "direct-cached": "mode=direct,write-mode=cached",
}


def test_what_one_mode_writes_every_mode_reads(folder):
    require_libnbd()
    image = make_random_file(os.path.join(folder, "disk"), SIZE)
    chance = random.Random(20261)
    with open(image, "rb") as data:
        model = bytearray(data.read())
    exports = {name: "%s,%s" % (image, keys) for name, keys in MODES.items()}
    with Gmblock(folder, exports) as server:
        handles = {name: connect(server.uri(name)) for name in MODES}
        for turn in range(200):
            count = chance.choice((1, 512, 4096, 5000, 65536, 300001))
            offset = chance.randrange(SIZE - count + 1)
            if chance.random() < 0.5:
                offset -= offset % 4096
            writer = chance.choice(sorted(MODES))
            if chance.random() < 0.2:
                handles[writer].zero(count, offset)
                model[offset:offset + count] = bytes(count)
            else:
                data = pattern(offset, count, seed=turn)
                handles[writer].pwrite(data, offset)
                model[offset:offset + count] = data
            start = max(0, offset - 5000)
            span = min(SIZE, offset + count + 5000) - start
            for name, handle in handles.items():
                assert handle.pread(span, start) == model[start:start + span], \
                    (turn, writer, name, offset, count)
        for name, handle in handles.items():
            assert handle.pread(SIZE, 0) == model, name
            handle.shutdown()
    with open(image, "rb") as data:
        assert data.read() == model


if __name__ == "__main__":
    main()
