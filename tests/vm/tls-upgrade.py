#!/usr/bin/python3
"""tls-upgrade.py GMBLOCK KERNEL: connections whose records the kernel makes, over upgrades of the
server, as in tests/functional/upgrade-tls.py; on a kernel that takes a key only once (6.12) or can
change it (7.2)."""
import os
import sys

import testing

GMBLOCK, KERNEL = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
MODULES = ("upgrade-tls", "fake_server", "nbdmini", "support", "tls_peers", "tls_tool")
CIPHERS = {"6.12": ["gcm", "ghash_generic", "ctr"], "7.2": ["gcm", "ctr"]}[KERNEL]

SCRIPT = r"""
python3 -B upgrade-tls.py /lab/gmblock KernelUpgrade
cat /proc/net/tls_stat
grep -q "^TlsDecryptError[[:space:]]*0$" /proc/net/tls_stat
"""


def test_connections_over_upgrades():
    files = [(GMBLOCK, "/lab/gmblock"), ("/usr/lib/python3.11", "/usr/lib/python3.11")]
    files += [(os.path.join(FUNCTIONAL, f"{name}.py"), f"/lab/{name}.py") for name in MODULES]
    with testing.laboratory() as lab:
        lab.guest("guest", KERNEL, SCRIPT, files=files, programs=["python3", "certtool"],
                  load=["tls"], modules=CIPHERS, memory=1024)
        lab.start()
        testing.finish(lab)


testing.main(test_connections_over_upgrades)
