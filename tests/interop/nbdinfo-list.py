#!/usr/bin/python3
"""nbdinfo --list shows every export of a server, with its size and description."""

import json
import os

from captive import Gmblock, main, make_file, require_program, run

NAMES = ["", "alpha", "with space", "slash/in/name", "ünïcödé", "a,b", "percent%41"]


def test_list_shows_every_export(folder):
    require_program("nbdinfo")
    exports = {}
    for index, name in enumerate(NAMES):
        image = make_file(os.path.join(folder, "disk%d" % index), (index + 1) << 20)
        exports[name] = "%s,description=number %d" % (image, index)
    with Gmblock(folder, exports) as server:
        told = json.loads(run("nbdinfo", "--json", "--list", server.uri()))
    listed = {export["export-name"]: export for export in told["exports"]}
    assert sorted(listed) == sorted(NAMES), listed.keys()
    for index, name in enumerate(NAMES):
        assert listed[name]["export-size"] == (index + 1) << 20, listed[name]
        assert listed[name]["description"] == "number %d" % index, listed[name]


def test_every_printed_uri_reaches_its_export(folder):
    require_program("nbdinfo")
    exports = {name: make_file(os.path.join(folder, "disk%d" % index), (index + 1) << 20)
               for index, name in enumerate(NAMES)}
    with Gmblock(folder, exports, listen="tcp") as server:
        assert len(set(server.uris)) == len(NAMES), server.uris
        sizes = sorted(int(run("nbdinfo", "--size", uri)) for uri in server.uris)
    assert sizes == [(index + 1) << 20 for index in range(len(NAMES))], sizes


def test_two_hundred_exports(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 1 << 20)
    exports = {"disk-%03d" % number: image for number in range(200)}
    with Gmblock(folder, exports) as server:
        told = json.loads(run("nbdinfo", "--json", "--list", server.uris[0]))
        assert run("nbdinfo", "--size", server.uri("disk-199")).strip() == str(1 << 20)
    assert sorted(export["export-name"] for export in told["exports"]) == sorted(exports)


def test_unknown_export_is_refused(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 1 << 20)
    with Gmblock(folder, {"here": image}) as server:
        run("nbdinfo", "--size", server.uri("here").replace("here", "not-there"), status=1)
        assert run("nbdinfo", "--size", server.uri("here")).strip() == str(1 << 20)


if __name__ == "__main__":
    main()
