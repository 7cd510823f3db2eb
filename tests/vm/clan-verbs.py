#!/usr/bin/python3
"""clan-verbs.py CLAN-ECHO TEST-CLAN KERNEL: libclan over RDMA, which the guests have in software
(rxe). Two guests exchange messages and put into each other's memory; in one of them some of what
<gmblock/clan.h> promises is asked of the provider verbs."""
import os
import sys

import testing

CLAN_ECHO, TEST_CLAN, KERNEL = sys.argv[1:4]
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# What libfabric and libibverbs load by name.
LOADED = [f"{LIBRARIES}/libfabric.so.1", f"{LIBRARIES}/libibverbs/librxe-rdmav34.so",
          "/etc/libibverbs.d/rxe.driver"]
CASES = ["hello_and_credentials", "messages_of_all_lengths", "streams_have_no_boundaries"]

ADAPTER = """
rdma link add rxe0 type rxe netdev eth0
"""

SERVER = ADAPTER + """
clan-echo 'ofi:10.77.0.1:7000?provider=verbs' >said &
server=$!
until grep -q ready said; do kill -0 $server; sleep 0.1; done
lab-signal listening
lab-wait exit.client >/dev/null
kill $server
wait $server
""" + "".join(f"test_clan 'ofi:10.77.0.1:0?provider=verbs' 'ofi: {case}'\n" for case in CASES)

CLIENT = ADAPTER + """
lab-wait listening >/dev/null
clan-echo 'ofi:10.77.0.1:7000?provider=verbs' 'words over verbs' >/results/heard
"""


def test_messages_puts_and_the_contract_over_verbs():
    for path in LOADED:
        if not os.path.exists(path):
            raise testing.Unavailable(f"{path} is not installed")
    # The first is needed by the kernel's rxe, which does not say so.
    modules = ["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
    with testing.laboratory() as lab:
        options = {"load": modules, "programs": ["rdma"],
                   "files": [CLAN_ECHO, TEST_CLAN] + [(path, path) for path in LOADED]}
        lab.guest("server", KERNEL, SERVER, **options)
        client = lab.guest("client", KERNEL, CLIENT, **options)
        lab.start()
        testing.finish(lab)
        with open(f"{client.results}/heard") as file:
            assert file.read() == "words over verbs\nput by the server\n", lab.story()


testing.main(test_messages_puts_and_the_contract_over_verbs)
