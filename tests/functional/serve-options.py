#!/usr/bin/python3
"""Wrong options of `gmblock serve` end with status 2 and a message that says what to write."""
import os
import re

import support

MANUALS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/man")


class Options(support.Case):
    def check(self, arguments, *fragments):
        self.check_refused(["serve", *arguments], 2, "gmblock serve: ",
                           "Try 'gmblock serve --help'", *fragments)

    def test_shape(self):
        self.check([], "nothing to serve", "--export NAME=PATH")
        self.check(["--colour"], "unknown option --colour")
        self.check(["-x"], "unknown option -x")
        self.check(["null:1M", "--max"], "the option --max is incomplete: write --max-connections, ")
        # Nor where only one option begins so: another one may tomorrow.
        self.check(["null:1M", "--read-onl"], "the option --read-onl is incomplete: write --read-only\n")
        self.check(["null:1M", "--tls-certificate=/x"], "the option --tls-certificate=/x is incomplete: write --tls-certificates\n")
        self.check(["null:1M", "--tls-certificate", "/x"], "the option --tls-certificate is incomplete: write --tls-certificates\n")
        self.check_refused(["bench", "--time", "1s", "nbd://localhost"], 2, "--time: write --seconds")
        self.check(["null:1M", "--listen"], "--listen needs a value")
        self.check(["null:1M", "--help=me"], "takes no value")
        self.check(["null:1M", "null:2M"], "only one PATH")
        self.check([""], "path is empty")
        self.check(["--config", "a", "--config", "b"], "--config", "once")

    def test_the_default_mode(self):
        self.assertRegex(self.run_gmblock("serve", "--help")[1],
                         r"mode=auto\|cached\|direct\|device\s+method of reading the disk: auto \(default; chosen")

    def test_exports(self):
        def export(text, *fragments):
            self.check(["--export", text], "--export: ", *fragments)

        export("disk.img", "'=' is missing", "=PATH for the default export")
        export("disk=", "path is empty")
        export("a=null:1M,mode=fast", "mode: 'fast' is not a mode", "cached", "direct")
        export("a=null:1M,write-mode=", "write-mode: '' is not a mode")
        export("a=null:1M,mode", "mode: ", "needs a value")
        export("a=null:1M,colour=red", "unknown key 'colour'", "max-connections", "written \\,)")
        export("a=null:1M,moed=direct", "unknown key 'moed'; did you mean 'mode'?")
        export("a=null:1M,max_connections=4", "unknown key 'max_connections'; did you mean 'max-connections'?")
        export("a=null:1M,", "\"a=null:1M,\": a key is missing after a comma")
        export("a=null:1M,mode=direct,mode=direct", "mode: ", "twice")
        export("a=null:1M,readonly=perhaps", "readonly: 'perhaps' is neither yes nor no")
        export("a=null:1M,max-connections=0", "max-connections: 0 is out of range")
        export("a=null:1M,max-connections=many", "max-connections: 'many'")
        for value in ("on", "64K", ""):
            export(f"a=null:1M,overlap={value}", "overlap: ", f"'{value}'", "auto", "off")
        for value in ("64K", "64K:", "64K:1", ":4", "63K:4", "2K:4", "64K:4:4", "2G:4", "64K:2000"):
            export(f"a=null:1M,stripe={value}", "stripe: ", f"'{value}'", "CHUNK:MEMBERS")
        for text, key, reason in (("null:1M,page-cache-send=off", "page-cache-send", "a null disk stores no data"),
                                  ("null:1M,mode=cached", "mode", "memory and null disks do not use the page cache"),
                                  ("memory:1M,mode=auto", "mode", "memory and null disks do not use the page cache"),
                                  ("memory:1M,write-mode=cached", "write-mode", "memory and null disks do not use the page cache")):
            self.check_refused(["serve", "--export", f"a={text}"], 1,
                               f"the key {key} has no effect here: {reason}; omit the key")
        export("a=null:1M,fault=read", "fault: ")
        for time in ("5", "1.5s", "1m", "1S"):
            export(f"a=null:1M,delay=read:{time}", f"'{time}' is not a time", "such as 10ms")
        export("a=null:1M,delay=read:2h", "at most 3600 s")
        export("a=null:1M,fault=read:EWHAT", "fault: ", "EWHAT")
        export("a=null:1M,delay=read:soon", "delay: ", "soon")
        export("a=null:1M," + ",".join(["fault=read:EIO"] * 17), "at most 16 faults")
        export("x" * 4097 + "=null:1M", "4097 bytes", "4096")

    def test_keys_are_in_the_manuals(self):
        code, output, _ = self.run_gmblock("serve", "--help")
        self.assertEqual(code, 0)
        keys = re.findall(r"^ {8}([a-z-]+)(?![a-z-])(?!\S*\s+lab: )", output, re.M)
        self.assertIn("delay", keys)
        for page in ("gmblock-serve.1", "gmblock.conf.5"):
            with open(os.path.join(MANUALS, page), encoding="utf-8") as file:
                text = file.read()
            for key in keys:
                self.assertRegex(text, rf"(?m)^\.(It|Ic) .*\b{key}\b", page)

    def test_names_are_utf8(self):
        for name in (b"\xff", b"caf\xe9", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
            self.check([b"--export", name + b"=null:1M"], "not valid UTF-8")

    def test_names_are_unique(self):
        self.check(["null:1M", "--export", "=null:2M"],
                   "null:1M: the export name \"\" is already used by "
                   "--export =null:2M")
        self.check(["--export", "a=null:1M", "--export", "b=null:1M", "--export", "a=null:2M"],
                   "--export a=null:2M", "already used by --export a=null:1M")

    def test_addresses(self):
        def listen(uri, *fragments):
            self.check(["null:1M", "--listen", uri], "--listen: ", *fragments)

        listen("127.0.0.1:10809", "no scheme; write nbd://127.0.0.1:10809 for a host")
        listen("http://127.0.0.1", "'http'")
        listen("nbd://127.0.0.1:70000", "larger than 65535")
        listen("nbd://::1", "brackets")
        listen("nbds://127.0.0.1:0?tls-type=psk", "tls- parameters are only for URIs of clients")
        listen("nbd+unix:///", "socket=PATH")
        listen("nbd://127.0.0.1:0/disk", "has no export name", "--export")
        listen("nbd://127.0.0.1:0/?colour=red", "unknown parameter 'colour'")

    def test_tls_without_an_address_for_it(self):
        for listen in "gmb+unix:///?socket=s", "push+unix:///?socket=s":
            for mode in "on", "require":
                self.check(["null:1M", "--listen", listen, "--tls", mode, "--run", "true"], "no address uses TLS", "nbd://")
        config = self.make_file("test.conf", f"listen: [{{uri: '{self.socket_uri()}', tls: off}}]\n")
        self.check(["null:1M", "--config", config, "--tls=require", "--run", "true"], "without tls: off")

    def test_a_port_alone(self):
        self.check(["null:1M", "--listen", "10900"], "--listen: ", "nbd://127.0.0.1:10900,")
        for option in ("--port", "-p"):
            self.check(["null:1M", option, "10900"], f"unknown option {option}",
                       "--listen nbd://127.0.0.1:10809\n")
        errors = self.check_refused(["serve", "null:1M", "--prot=1"], 2, "unknown option --prot=1")
        self.assertNotIn("--port", errors)

    def test_read_only_is_for_the_path(self):
        self.check(["--read-only"], "--read-only needs a PATH", "readonly")
        self.check(["--read-only", "--export", "a=null:1M"], "--read-only needs a PATH")

    def test_addresses_are_unique(self):
        self.check(["null:1M", "--listen", "nbd://LOCALHOST", "--listen", "nbd://localhost:10809"],
                   "nbd://localhost:10809 is already given")
        self.check(["null:1M", "--listen", "nbd+unix:///?socket=%2Ftmp/x", "--listen",
                    "nbd+unix://?socket=/tmp/x"], "is already given")

    def test_limits(self):
        def limit(option, value, *fragments):
            self.check(["null:1M", option, value], option, *fragments)

        limit("--memory", "lots", "'lots' is not a size", "64M")
        limit("--memory", "99999999999E", "too large")
        limit("--memory", "0", "cannot work without memory")
        limit("--threads", "0", "from 1 to 64")
        limit("--threads", "65", "from 1 to 64")
        limit("--threads", "two", "'two'")
        limit("--max-connections", "-1", "'-1'")
        limit("--max-connections", "0", "out of range")
        limit("--handshake-timeout", "10", "'10' is not a time", "10ms")
        limit("--handshake-timeout", "0", "cannot be turned off")
        limit("--idle-timeout", "0", "at least 100ms", '"off"')
        limit("--idle-timeout", "never", "'never' is not a time")
        limit("--max-inflight", "1000000", "from 1 to 65536")
        limit("--max-inflight", "1.5", "'1.5'")
        limit("--memory", "1E", "1E of memory is too much", "at most 8T")
        limit("--run", "", "the command is empty")
        limit("--spin", "on", "'on' is neither auto nor off")
        limit("--spin", "", "neither auto nor off")
        self.check(["null:1M", "--memory", "4M", "--threads", "2"],
                   "--memory: 4M of memory is too little for 2 threads: each")
        self.check(["null:1M", "--memory", "4M", "--threads", "1", "--access", "uid=1 rights=rw", "--listen",
                    f"vhost-user-blk+unix:///?socket={self.path('v')}"],
                   "too little for 2 threads, some of them for virtual machines of other users")
        missing = self.path("missing/control")
        self.check_refused(["serve", "null:1M", "--control", missing], 1,
                           f"--control: cannot listen on {missing}: the folder of the socket does not exist")
        self.check(["null:1M", "--memory", "4M", "--threads", "1", "--max-connections", "129"],
                   "129 connections are too many for 4M of memory", "32K")
        self.check(["null:1M", "--memory", "1"], "--memory: 1 byte of memory is too little")
        self.check(["null:1M", "--memory", "20"], "--memory: 20 bytes of memory is too little")


if __name__ == "__main__":
    support.main()
