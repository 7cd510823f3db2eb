#!/usr/bin/python3
"""tls-kernel.py TEST-TLS-KERNEL KERNEL: the layer of kernel TLS against GnuTLS, on a kernel that
takes a key only once (6.12) or can change it (7.2). Before that, what it says without the module."""
import sys

import testing

PROGRAM, KERNEL = sys.argv[1:3]
# Ciphers, which the kernel loads by the names of their algorithms.
CIPHERS = {"6.12": ["gcm", "ghash_generic", "ctr", "chacha20poly1305", "chacha_generic",
                    "poly1305_generic"],
           "7.2": ["gcm", "ctr", "chacha20poly1305", "chacha"]}[KERNEL]
CAN = "no-rekeying" if KERNEL == "6.12" else "rekeying"

SCRIPT = f"""
test_tls_kernel {CAN}
cat /proc/net/tls_stat
# One record was forged.
grep -q "^TlsDecryptError[[:space:]]*1$" /proc/net/tls_stat
grep -q "^TlsTxSw[[:space:]]*[1-9]" /proc/net/tls_stat
grep -q "^TlsRxSw[[:space:]]*[1-9]" /proc/net/tls_stat
"""


def test_the_layer_on_this_kernel():
    with testing.laboratory() as lab:
        lab.guest("guest", KERNEL, SCRIPT, files=[(PROGRAM, "/lab/test_tls_kernel")],
                  load=["tls"], modules=CIPHERS)
        lab.start()
        testing.finish(lab)


testing.main(test_the_layer_on_this_kernel)
