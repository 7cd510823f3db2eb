#!/usr/bin/python3
"""Credentials for tests of TLS, made by certtool: quick, because all keys but one are ECDSA.

    tls_tool.make(FOLDER)          or: tls_tool.py FOLDER

Below FOLDER, each a folder of certificates as gmblock, QEMU, nbdkit and libnbd name the files
(ca-cert.pem, server-*.pem, client-*.pem), all of one authority unless said otherwise:

    good            server: localhost, server.example, 127.0.0.1, ::1; client: CN=host-a,O=Example
                    with the names host-a.example, host-a@example.com, urn:host:a, 192.0.2.7
    host-b          another client: CN=host-b,O=Example with the name host-b.example
    no-client       a client without a certificate of its own
    other-ca        everything of another authority; with the authority of good: stranger
    expired, not-yet, wrong-purpose, rsa-1024, rsa
    revoked         its client is in the list of crl; that of crl-old and crl-soon, too
    crl             good with ca-crl.pem; crl-old: which has expired; crl-soon: in 3 days
    crl-good        its list has the client of good, too
    ip-only         server: only the address 127.0.0.1; cn-only: only CN=localhost; cn-email: that,
                    and an address of e-mail; cn-uri: and a URI
    wrong-host      server: other.example
    chain           server and client of an authority below that of good, with its certificate
    mismatch        keys of other certificates

and keys.psk with alice and bob, other.psk with another key of alice and one of mallory, bob.psk
with bob alone; see PSK and OTHER_PSK.
"""
import os
import shutil
import subprocess
import sys

YEARS = 3650
PSK = {"alice": "5c0d6d3b0fb1a6e4d8a1f9a27e51c8b0", "bob": "9e" * 32}
OTHER_PSK = {"alice": "77" * 16, "mallory": "88" * 16}
SERVER_NAMES = ['dns_name = "localhost"', 'dns_name = "server.example"',
                'ip_address = "127.0.0.1"', 'ip_address = "::1"']
CLIENT_NAMES = ['dns_name = "host-a.example"', 'email = "host-a@example.com"',
                'uri = "urn:host:a"', 'ip_address = "192.0.2.7"']
PURPOSE = {"server": "tls_www_server", "client": "tls_www_client"}


def certtool(*arguments):
    subprocess.run(["certtool", *arguments], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120)


def template(folder, lines):
    path = os.path.join(folder, "template")
    with open(path, "w", encoding="ascii") as out:
        out.write("\n".join(lines) + "\n")
    return path


def make_key(path, bits=None):
    kind = ["--key-type", "rsa", "--bits", str(bits)] if bits else ["--key-type", "ecdsa"]
    certtool("--generate-privkey", *kind, "--no-text", "--outfile", path)
    os.chmod(path, 0o600)


class Authority:
    """ca-cert.pem and ca-key.pem in a folder of its own."""

    def __init__(self, folder, name, parent=None):
        self.folder = folder
        os.makedirs(folder)
        self.cert, self.key = (os.path.join(folder, f"ca-{part}.pem") for part in ("cert", "key"))
        make_key(self.key)
        lines = [f'cn = "{name}"', "ca", "cert_signing_key", "crl_signing_key",
                 f"expiration_days = {YEARS}"]
        ways = ["--generate-certificate", *parent.signer()] if parent else ["--generate-self-signed"]
        certtool(*ways, "--load-privkey", self.key, "--template", template(folder, lines),
                 "--no-text", "--outfile", self.cert)

    def signer(self):
        return ["--load-ca-certificate", self.cert, "--load-ca-privkey", self.key]

    def give(self, folder, role, lines, bits=None):
        """ROLE-cert.pem and ROLE-key.pem. What lines do not say is good."""
        os.makedirs(folder, exist_ok=True)
        shutil.copy(self.cert, os.path.join(folder, "ca-cert.pem"))
        key = os.path.join(folder, f"{role}-key.pem")
        make_key(key, bits)
        lines = [*lines, "signing_key"]
        if not any("expiration" in line for line in lines):
            lines.append(f"expiration_days = {YEARS}")
        if not any("tls_www" in line for line in lines):
            lines.append(PURPOSE[role])
        certtool("--generate-certificate", *self.signer(), "--load-privkey", key,
                 "--template", template(self.folder, lines), "--no-text",
                 "--outfile", os.path.join(folder, f"{role}-cert.pem"))

    def revoke(self, certs, path, *lines):
        certtool("--generate-crl", *self.signer(), "--load-certificate", certs,
                 "--template", template(self.folder, ["crl_number = 1", *lines]), "--no-text",
                 "--outfile", path)


def both(authority, folder, lines=(), bits=None, server_names=None):
    names = SERVER_NAMES if server_names is None else server_names
    cn = [] if any(line.startswith("cn ") for line in names) else ['cn = "server"']
    authority.give(folder, "server", [*cn, *names, *lines], bits)
    authority.give(folder, "client",
                   ['cn = "host-a"', 'organization = "Example"', *CLIENT_NAMES, *lines], bits)


def append(path, other):
    with open(path, "ab") as out, open(other, "rb") as more:
        out.write(more.read())


def write_psk(path, keys):
    with open(path, "w", encoding="ascii") as out:
        os.fchmod(out.fileno(), 0o600)
        out.write("# for tests\n" + "".join(f"{name}:{key}\n" for name, key in keys.items()))


def make(top):
    """Everything that the beginning of this file lists."""
    def path(*parts):
        return os.path.join(top, *parts)

    os.makedirs(top, exist_ok=True)
    ours = Authority(path("authority"), "Example CA")
    others = Authority(path("other-authority"), "Other CA")
    below = Authority(path("authority-below"), "Example Sub-CA", ours)

    both(ours, path("good"))
    ours.give(path("host-b"), "client", ['cn = "host-b"', 'organization = "Example"',
                                         'dns_name = "host-b.example"'])
    os.makedirs(path("no-client"))
    shutil.copy(ours.cert, path("no-client", "ca-cert.pem"))
    both(others, path("other-ca"))
    both(others, path("stranger"))
    shutil.copy(ours.cert, path("stranger", "ca-cert.pem"))
    both(ours, path("expired"), ['activation_date = "2020-01-01 00:00:00 UTC"',
                                 'expiration_date = "2021-01-01 00:00:00 UTC"'])
    both(ours, path("not-yet"), ['activation_date = "2090-01-01 00:00:00 UTC"',
                                 'expiration_date = "2091-01-01 00:00:00 UTC"'])
    for role, other in (("server", "client"), ("client", "server")):
        ours.give(path("wrong-purpose"), role, [f'cn = "{role}"', *SERVER_NAMES, PURPOSE[other]])
    both(ours, path("rsa-1024"), bits=1024)
    both(ours, path("rsa"), bits=2048)
    both(ours, path("revoked"))
    for name, lines in {
            "crl": [f"crl_next_update = {YEARS}"],
            "crl-soon": ["crl_next_update = 3"],
            "crl-old": ['crl_this_update_date = "2024-01-01 00:00:00 UTC"',
                        'crl_next_update_date = "2024-02-01 00:00:00 UTC"']}.items():
        shutil.copytree(path("good"), path(name))
        ours.revoke(path("revoked", "client-cert.pem"), path(name, "ca-crl.pem"), *lines)
    shutil.copytree(path("good"), path("crl-good"))
    both_clients = path("authority", "revoked.pem")
    for name in ("good", "revoked"):
        append(both_clients, path(name, "client-cert.pem"))
    ours.revoke(both_clients, path("crl-good", "ca-crl.pem"), f"crl_next_update = {YEARS}")
    both(ours, path("ip-only"), server_names=['ip_address = "127.0.0.1"'])
    both(ours, path("cn-only"), server_names=['cn = "localhost"'])
    # certtool has no address of e-mail for servers: GeneralNames with one rfc822Name.
    both(ours, path("cn-email"), server_names=[
        'cn = "localhost"', f'add_extension = "2.5.29.17 0x300d810b{b"a@localhost".hex()}"'])
    both(ours, path("cn-uri"), server_names=['cn = "localhost"', 'uri = "urn:x:localhost"'])
    both(ours, path("wrong-host"), server_names=['dns_name = "other.example"'])
    both(below, path("chain"))
    for role in PURPOSE:
        append(path("chain", f"{role}-cert.pem"), below.cert)
    shutil.copy(ours.cert, path("chain", "ca-cert.pem"))
    shutil.copytree(path("good"), path("mismatch"))
    for role in PURPOSE:
        shutil.copy(path("revoked", f"{role}-key.pem"), path("mismatch", f"{role}-key.pem"))
    write_psk(path("keys.psk"), PSK)
    write_psk(path("other.psk"), OTHER_PSK)
    write_psk(path("bob.psk"), {"bob": PSK["bob"]})


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    make(sys.argv[1])
