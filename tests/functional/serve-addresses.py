#!/usr/bin/python3
"""TCP addresses: IPv4, IPv6, names, wildcards, and ports that the kernel picks."""
import re
import socket

import nbdmini
import ports
import support


def have_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class Addresses(support.Case):
    def start_tcp(self, *uris):
        arguments = []
        for uri in uris:
            arguments += ["--listen", uri]
        return self.start("null:1M", *arguments, uri_count=len(uris))

    def check_served(self, uri):
        with nbdmini.open_export(uri) as client:
            self.assertEqual(client.size, 1 << 20)

    def port(self, uri):
        return int(re.search(r":(\d+)$", uri).group(1))

    def test_ipv4(self):
        server = self.start_tcp("nbd://127.0.0.1:0")
        self.assertRegex(server.uri, r"^nbd://127\.0\.0\.1:[1-9]\d*$")
        self.check_served(server.uri)

    @support.unittest.skipUnless(have_ipv6(), "no IPv6 on loopback")
    def test_ipv6(self):
        server = self.start_tcp("nbd://[::1]:0")
        self.assertRegex(server.uri, r"^nbd://\[::1\]:[1-9]\d*$")
        self.check_served(server.uri)

    def test_several_addresses(self):
        server = self.start_tcp("nbd://127.0.0.1:0", "nbd://127.0.0.2:0", self.socket_uri())
        self.assertEqual(len(set(server.uris)), 3)
        for uri in server.uris:
            self.check_served(uri)

    def test_a_name_with_several_addresses_has_one_port(self):
        server = self.start_tcp("nbd://localhost:0")
        self.assertRegex(server.uri, r"^nbd://localhost:[1-9]\d*$")
        addresses = {entry[4][0] for entry in socket.getaddrinfo(
            "localhost", None, type=socket.SOCK_STREAM)}
        for address in addresses:
            if ":" in address and not have_ipv6():
                continue
            host = f"[{address}]" if ":" in address else address
            self.check_served(f"nbd://{host}:{self.port(server.uri)}")

    def test_a_wildcard_is_printed_as_an_address_that_works(self):
        server = self.start_tcp("nbd://0.0.0.0:0")
        self.assertRegex(server.uri, r"^nbd://127\.0\.0\.1:[1-9]\d*$")
        self.check_served(server.uri)
        self.check_served(f"nbd://127.0.0.2:{self.port(server.uri)}")

    def start_in_both_families(self, host):
        """A server at the wildcards of both families, with the port of one at host that has ended."""
        port = ports.free()
        self.check_warned(self.start_tcp(f"nbd://{host}:{port}"), port)
        return self.start_tcp(f"nbd://0.0.0.0:{port}", f"nbd://[::]:{port}"), port

    @support.unittest.skipUnless(have_ipv6(), "no IPv6 on loopback")
    def test_wildcards_of_both_families_share_a_port(self):
        server, port = self.start_in_both_families("0.0.0.0")
        self.assertEqual(server.uris, [f"nbd://127.0.0.1:{port}", f"nbd://[::1]:{port}"])
        for uri in server.uris:
            self.check_served(uri)

    def check_warned(self, server, *numbers):
        """One line for each port says what may happen; nothing else is said."""
        status, errors = server.stop()
        self.assertEqual(status, 0, errors)
        self.assertEqual(errors.splitlines(), [
            f"gmblock: warning: port {port} is open to the whole network and has no TLS: "
            "any host that can reach this machine can use the disks; see --tls" for port in numbers])

    def test_an_open_port_is_warned_of(self):
        server = self.start_tcp("nbd://0.0.0.0:0", "nbd://127.0.0.1:0", "nbd://0.0.0.0:0",
                                self.socket_uri())
        self.check_warned(server, self.port(server.uris[0]), self.port(server.uris[2]))

    def test_rules_say_who_uses_the_disks(self):
        """Then the warning is of what is sent in clear. An export without rules is enough for the
        other one."""
        for exports, warning in ((["a", "b"], "traffic can be read and modified"),
                                 (["a"], "any host that can reach this machine can use the disks")):
            rules = [word for name in exports for word in ("--access", f"{name}: rights=rw")]
            server = self.start("--export", "a=null:1M", "--export", "b=null:1M", "--listen",
                                "nbd://0.0.0.0:0", *rules, uri_count=2)
            errors = server.stop()[1]
            self.assertIn(f"has no TLS: {warning}", errors)
            self.assertEqual(errors.count("\n"), 1)

    @support.unittest.skipUnless(have_ipv6(), "no IPv6 on loopback")
    def test_a_port_open_in_both_families_is_warned_of_once(self):
        self.check_warned(*self.start_in_both_families("[::]"))

    def test_other_addresses_are_not_warned_of(self):
        self.check_warned(self.start_tcp("nbd://127.0.0.1:0", "nbd://localhost:0",
                                         self.socket_uri()))


if __name__ == "__main__":
    support.main()
