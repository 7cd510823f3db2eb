#!/usr/bin/python3
"""--run: the command gets $uri and $unixsocket, default signals and none of the server's files."""
import os
import resource

import support


class RunEnvironment(support.Case):
    def run_command(self, command, *arguments, **options):
        code, output, errors = self.run_gmblock("serve", *arguments, "--run", command, **options)
        self.assertEqual(code, 0, errors)
        return output

    def test_only_the_command_is_heard(self):
        """The server has nothing to say about it, unless it is asked to."""
        quiet = {name: value for name, value in os.environ.items() if name != "GMBLOCK_LOG"}
        arguments = ["serve", "null:1M", "--listen", self.socket_uri(), "--run", "nbdinfo --size $uri"]
        self.assertEqual(self.run_gmblock(*arguments, env=quiet), (0, "1048576\n", ""))
        errors = self.run_gmblock(*arguments, "--log-level=info", env=quiet)[2]
        self.assertIn("sandbox: off, because it would also confine the commands", errors)

    def test_the_default_export_is_chosen(self):
        self.assertEqual(
            self.run_command("echo \"$uri\"", "--export", "a=null:1M", "--export", "=null:1M",
                             "--listen", self.socket_uri("one"), "--listen",
                             self.socket_uri("two")),
            f"{self.socket_uri('one')}\n")

    def test_the_first_export_without_a_default(self):
        self.assertEqual(
            self.run_command("echo \"$uri\"", "--export", "a b=null:1M", "--export", "c=null:1M",
                             "--listen", self.socket_uri()),
            f"nbd+unix:///a%20b?socket={self.path('s')}\n")

    def test_tcp_has_the_real_port_and_no_socket(self):
        environment = {**os.environ, "unixsocket": "stale", "uri": "stale"}
        output = self.run_command("echo $uri/${unixsocket-none}; nbdinfo --size $uri", "null:7M",
                                  "--listen", "nbd://127.0.0.1:0", env=environment)
        self.assertRegex(output, rf"^nbd://127\.0\.0\.1:[1-9]\d*/none\n{7 << 20}\n$")

    def test_the_socket_path_is_absolute(self):
        output = self.run_command("echo $unixsocket; test -S $unixsocket && cd / && "
                                  "test -S $unixsocket", "null:1M", "--listen",
                                  "nbd+unix:///?socket=relative", cwd=self.folder)
        self.assertEqual(output, f"{os.path.realpath(self.path('relative'))}\n")

    def test_files_are_not_inherited(self):
        disk = self.make_file("disk.img", bytes(4096))
        output = self.run_command("ls -l /proc/self/fd", disk, "--listen", self.socket_uri())
        for ours in ("disk.img", "socket:", "io_uring", "signalfd", "eventfd"):
            self.assertNotIn(ours, output)

    def test_the_limit_on_open_files_is_as_it_was(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        for soft in (hard, 200):
            output = self.run_command(
                "ulimit -S -n; ulimit -H -n; echo \"$0 $#\"; exit 0", "null:1M", "--listen",
                self.socket_uri(),
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))
            self.assertEqual(output, f"{soft}\n{hard}\nsh 0\n")

    def test_signals_are_as_they_were(self):
        output = self.run_command("grep -E '^Sig(Blk|Ign)' /proc/self/status", "null:1M",
                                  "--listen", self.socket_uri())
        masks = [int(line.split()[1], 16) for line in output.splitlines()]
        # Signals from 32 on belong to the C library.
        self.assertEqual([mask & 0x7fffffff for mask in masks], [0, 0])

    def test_the_service_manager_is_the_servers_alone(self):
        notify = support.NotifySocket(self.path("notify"))
        self.addCleanup(notify.close)
        output = self.run_command(
            "env", "null:1M", "--listen", self.socket_uri(),
            env={**os.environ, "NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "1000000"})
        self.assertNotIn("NOTIFY_SOCKET", output)
        self.assertNotIn("WATCHDOG", output)
        self.assertEqual(notify.wait_for("READY"), "1")


if __name__ == "__main__":
    support.main()
