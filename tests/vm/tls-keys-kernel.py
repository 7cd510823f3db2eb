#!/usr/bin/python3
"""tls-keys-kernel.py GMBLOCK LIBRARY_DRIVER: new keys while 64 requests are in flight, as in
tests/functional/tls-keys.py, where the kernel makes our records."""
import os
import sys

import testing

GMBLOCK, DRIVER = sys.argv[1:3]
FUNCTIONAL = os.path.join(testing.HERE, "..", "functional")
MODULES = ("tls-keys", "fake_export", "fake_server", "nbdmini", "support", "tls_peers", "tls_tool")

SCRIPT = r"""
count() # NAME
{
	sed -n "s/^$1[[:space:]]*//p" /proc/net/tls_stat
}
python3 -B tls-keys.py /lab/gmblock /lab/library_driver Server.test_over_tcp Client.test_over_tcp
cat /proc/net/tls_stat
# 12 ways, 8 keys of the peer each time, on two connections to the server and one of the client. Ours,
# for those who ask: at least one for each connection. The trials of each process count, too.
test "$(count TlsRxRekeyOk)" -ge $((3 * 12 * 8))
test "$(count TlsTxRekeyOk)" -ge $((3 * 6))
test "$(count TlsDecryptError)" = 0
"""


def test_new_keys_in_the_kernel():
    files = [(GMBLOCK, "/lab/gmblock"), (DRIVER, "/lab/library_driver"),
             ("/usr/lib/python3.11", "/usr/lib/python3.11")]
    files += [(os.path.join(FUNCTIONAL, f"{name}.py"), f"/lab/{name}.py") for name in MODULES]
    with testing.laboratory() as lab:
        lab.guest("guest", "7.2", SCRIPT, files=files, programs=["python3", "certtool"],
                  load=["tls"], modules=["gcm", "ctr"], memory=1024)
        lab.start()
        testing.finish(lab)


testing.main(test_new_keys_in_the_kernel)
