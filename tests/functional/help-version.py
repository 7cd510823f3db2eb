#!/usr/bin/python3
"""The program explains itself: usage, help of each command, version."""
import support


class HelpAndVersion(support.Case):
    def test_no_arguments_is_wrong_usage(self):
        self.check_refused([], 2, "Usage: gmblock COMMAND", "serve", "info")

    def test_version(self):
        code, output, errors = self.run_gmblock("--version")
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(output, r"^gmblock \d+\.\d+\.\d+\n$")

    def test_help(self):
        for arguments in (["--help"], ["-h"], ["help"]):
            code, output, errors = self.run_gmblock(*arguments)
            self.assertEqual((code, errors), (0, ""))
            self.assertIn("Usage: gmblock COMMAND", output)

    def test_help_of_commands(self):
        for command in ("serve", "list", "info", "bench"):
            for arguments in ([command, "--help"], ["help", command]):
                code, output, errors = self.run_gmblock(*arguments)
                self.assertEqual((code, errors), (0, ""))
                self.assertIn(f"gmblock {command}", output)

    def test_unknown_command(self):
        self.check_refused(["sevre"], 2, "no command 'sevre'", "gmblock --help")
        self.check_refused(["--sevre"], 2, "no option '--sevre'", "gmblock --help")
        self.check_refused(["help", "sevre"], 2, "no command 'sevre'")

    def test_output_that_cannot_be_written_is_a_failure(self):
        for arguments in (["--version"], ["--help"], ["serve", "--help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = support.subprocess.run(
                    [support.program(), *arguments], stdout=full, check=False,
                    stderr=support.subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn("standard output", done.stderr)


if __name__ == "__main__":
    support.main()
