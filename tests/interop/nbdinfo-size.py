#!/usr/bin/python3
"""nbdinfo tells the exact size and what the export can do."""

import json
import os

from captive import ODD_BYTES, Gmblock, main, make_file, require_program, run


def test_size_of_odd_image(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), ODD_BYTES)
    with Gmblock(folder, {"": image}) as server:
        assert run("nbdinfo", "--size", server.uri()).strip() == str(ODD_BYTES)


def test_json_tells_what_the_export_can_do(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 1 << 20)
    with Gmblock(folder, {"": image + ",description=the first disk"}) as server:
        told = json.loads(run("nbdinfo", "--json", server.uri()))
    assert told["protocol"] == "newstyle-fixed", told
    assert told["structured"] is True, told
    export = told["exports"][0]
    assert export["export-name"] == "", export
    assert export["description"] == "the first disk", export
    assert export["export-size"] == 1 << 20, export
    assert export["is_read_only"] is False, export
    for what in ("can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn",
                 "can_trim", "can_zero"):
        assert export[what] is True, (what, export)
    assert "base:allocation" in export["contexts"], export
    smallest, preferred = export["block_size_minimum"], export["block_size_preferred"]
    assert smallest & (smallest - 1) == 0 and smallest <= 65536, export
    assert preferred & (preferred - 1) == 0 and preferred >= max(smallest, 512), export
    assert export["block_size_maximum"] >= 1 << 20, export


def test_text_for_people(folder):
    require_program("nbdinfo")
    image = make_file(os.path.join(folder, "disk"), 1 << 20)
    with Gmblock(folder, {"": image}, listen="tcp") as server:
        text = run("nbdinfo", server.uri())
    assert "export-size: 1048576" in text, text
    assert "can_multi_conn: true" in text, text


if __name__ == "__main__":
    main()
