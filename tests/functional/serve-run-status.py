#!/usr/bin/python3
"""--run: the exit status of the shell command is that of the server; several run in turn until one
fails."""
import os
import sys

import support

HERE = os.path.dirname(os.path.realpath(__file__))


class RunStatus(support.Case):
    def run_commands(self, *commands):
        arguments = ["serve", "memory:1M", "--listen", self.socket_uri()]
        for command in commands:
            arguments += ["--run", command]
        return self.run_gmblock(*arguments)

    def test_the_exit_status_is_the_commands(self):
        for command, status in (("true", 0), ("exit 3", 3), ("exit 255", 255),
                                ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9),
                                ("/no/such/program", 127)):
            code, output, _ = self.run_commands(command)
            self.assertEqual((code, output), (status, ""), command)
            self.assertEqual(os.listdir(self.folder), [], "the socket is removed")

    def test_standard_output_belongs_to_the_command(self):
        code, output, _ = self.run_commands("echo $((6 * 7))", "echo $uri")
        self.assertEqual((code, output), (0, f"42\n{self.socket_uri()}\n"))

    def test_commands_run_in_order_until_one_fails(self):
        code, output, _ = self.run_commands("echo 1", "echo 2", "exit 5", "echo 4")
        self.assertEqual((code, output), (5, "1\n2\n"))

    def test_the_server_serves_every_command(self):
        client = (f"{sys.executable} -c 'import os, sys; sys.path.insert(0, \"{HERE}\"); "
                  "import nbdmini; client = nbdmini.open_export(os.environ[\"uri\"]); %s'")
        code, output, errors = self.run_commands(
            client % "client.write(0, b\"kept\")", client % "print(client.read(0, 4).decode())")
        self.assertEqual((code, output), (0, "kept\n"), errors)

    def test_nothing_runs_when_the_start_fails(self):
        code, output, errors = self.run_gmblock(
            "serve", self.path("missing"), "--listen", self.socket_uri(), "--run", "echo ran")
        self.assertEqual((code, output), (1, ""), errors)

    def test_a_signal_is_passed_on_to_the_command(self):
        ready = self.path("ready")
        os.mkfifo(ready)
        script = f"trap 'exit 9' TERM; echo > {ready}; while :; do read line < {ready}; done"
        process = support.subprocess.Popen(
            [support.program(), "serve", "null:1M", "--listen", self.socket_uri(), "--run", script],
            stdin=support.subprocess.DEVNULL, stderr=support.subprocess.DEVNULL)
        self.addCleanup(process.kill)
        with open(ready, encoding="ascii") as fifo:
            fifo.readline()
        process.terminate()
        self.assertEqual(process.wait(), 9)


if __name__ == "__main__":
    support.main()
