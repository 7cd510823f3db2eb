#!/usr/bin/python3
"""The scripts behind make and CI: what they count, find, install and leave behind.

    scripts.py SOURCE_ROOT
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = ""


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


class Scratch(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="gmblock-scripts-")
        self.addCleanup(shutil.rmtree, self.folder)

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path


class CountTests(Scratch):
    """count-tests adds up the runs and never calls a broken one a success."""

    def log(self, name, results, **more):
        path = os.path.join(self.folder, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            for number, result in enumerate(results):
                json.dump({"name": f"test {number}", "result": result, "stdout": "why\n", **more}, file)
                file.write("\n")
        return path

    def count(self, *arguments):
        done = run("/usr/bin/python3", f"{SCRIPTS}/count-tests", *arguments)
        return done.returncode, done.stdout.splitlines()

    def test_adds_up_the_runs(self):
        one = self.log("one", ["OK", "OK", "EXPECTEDFAIL"])
        two = self.log("two", ["OK", "SKIP"])
        status, lines = self.count(f"one:0:{one}", f"two:0:{two}", "--")
        self.assertEqual((status, lines[-1]), (0, "4 passed, 0 failed"))
        self.assertIn("skipped: two: test 1: why", lines)

    def test_every_bad_result_is_a_failure(self):
        bad = self.log("bad", ["OK", "FAIL", "TIMEOUT", "ERROR", "UNEXPECTEDPASS"])
        status, lines = self.count(f"bad:1:{bad}", "--")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 4 failed"))
        self.assertIn("FAILED: bad: test 2: TIMEOUT", lines)

    def test_what_failed_tests_have_said_comes_last(self):
        """Where the output is cut, its end is kept."""
        said = "".join(f"line {number}\n" for number in range(100))
        bad = self.log("bad", ["OK", "SKIP", "FAIL"], stderr=said + "x" * 1000 + "\n")
        _, lines = self.count(f"bad:1:{bad}", "--")
        self.assertEqual(lines[-4:], ["", f"skipped: bad: test 1: {'x' * 1000}", "FAILED: bad: test 2: FAIL",
                                      "1 passed, 1 failed"])
        self.assertEqual(lines[:-4], ["-- the end of the output of bad: test 2",
                                      *(f"line {number}" for number in range(61, 100)), "x" * 300 + " [...]"])

    def test_a_broken_build_is_a_failure(self):
        good = self.log("good", ["OK"])
        status, lines = self.count(f"good:0:{good}", f"gone:1:{self.folder}/gone", "--")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_bad_status_without_a_failed_test_is_a_failure(self):
        status, lines = self.count(f"cut:124:{self.log('cut', ['OK'])}", "--")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_a_run_without_tests_is_a_failure(self):
        for results in ([], ["SKIP"]):
            log = self.log(f"empty{len(results)}", results)
            status, lines = self.count(f"empty:0:{log}", "--")
            self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))

    def test_a_failed_step_is_a_failure(self):
        good = self.log("good", ["OK"])
        status, lines = self.count(f"good:0:{good}", "--", "processes left behind")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))


class RunTests(Scratch):
    """run-tests builds what the selected tests need, and refuses to run none."""

    PROJECT = """
        project('sample')
        add_test_setup('normal', is_default : true, exclude_suites : ['guests'])
        foreach name : ['one', 'two', 'three', 'tool']
          program = custom_target(name, input : 'program', output : name,
            command : ['cp', '@INPUT@', '@OUTPUT@'], build_by_default : true)
          if name != 'tool'
            test(name, find_program('true'), depends : program, suite : 'fast')
          endif
        endforeach
        test('alone', find_program('true'), suite : 'slow', is_parallel : false)
        test('guest', find_program('false'), suite : 'guests')
        test('neighbours', find_program('neighbours'), suite : 'guests')
    """
    TABLE = "# comment\none 300 900\ntwo 100 0\nthree 80 0\nalone 60 0\nguest 900 0\n"

    def setUp(self):
        super().setUp()
        self.build = os.path.join(self.folder, "build")
        shutil.copy(f"{SCRIPTS}/run-tests", self.folder)
        self.program("program", "#!/bin/sh\n")
        # The parent of the test's parent is run-tests.
        self.program("neighbours", "#!/bin/sh\n"
                     f"pgrep -c -P $(ps -o ppid= -p $PPID) -f 'while :' > {self.folder}/count; true\n")
        for name, text in (("meson.build", self.PROJECT), ("test-seconds.txt", self.TABLE)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = run("meson", "setup", self.folder, self.build)
        self.assertEqual(done.returncode, 0, done.stdout)

    def run_tests(self, *arguments):
        done = run(f"{self.folder}/run-tests", "-C", self.build, "-j", "2", *arguments)
        built = {name for name in ("one", "two", "three", "tool")
                 if os.path.exists(os.path.join(self.build, name))}
        return done, built

    def test_one_test_builds_only_what_it_needs(self):
        done, built = self.run_tests("two", "--suite", "fast")
        self.assertEqual((done.returncode, built), (0, {"two"}), done.stdout)
        self.assertIn("1 test: about 2 minutes, after 1 build step\n", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^Ok: +1 *$")

    def test_without_arguments_everything_is_built(self):
        done, built = self.run_tests()
        self.assertEqual((done.returncode, built), (0, {"one", "two", "three", "tool"}))
        # The longest test, and the one that runs alone.
        self.assertIn("4 tests: about 6 minutes, after 4 build steps\n", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^ *4/4 ")

    def test_what_selects_no_test_is_an_error(self):
        for arguments, said in (
                (["four"], "there is no test 'four'"),
                (["one", "four"], "there is no test 'four'"),
                (["--suite", "quick"], "there is no suite 'quick'; the suites are fast, guests"),
                (["guest"], "test 'guest' is in none of the selected suites; "
                            "it belongs to suite 'guests'"),
                (["alone", "--suite", "fast"], "it belongs to suite 'slow'"),
                (["--suite", "fast", "--no-suite", "fast"], "these arguments select no test")):
            done, built = self.run_tests(*arguments)
            self.assertEqual((done.returncode, built), (2, set()), done.stdout)
            self.assertIn(said, done.stderr)

    def test_a_suite_that_is_left_out_can_be_asked_for(self):
        done, built = self.run_tests("--suite", "guests")
        self.assertEqual((done.returncode, built), (1, set()), done.stdout)
        self.assertRegex(done.stdout, r"(?m)^Fail: +1 *$")

    def test_a_broken_build_runs_nothing(self):
        os.remove(os.path.join(self.folder, "program"))
        done, built = self.run_tests("one")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(built, set())
        self.assertNotIn("Fail:", done.stdout)

    def test_a_busy_machine(self):
        for arguments, expected in (([], 0), (["--busy"], os.cpu_count())):
            done, _ = self.run_tests("neighbours", "--suite", "guests", *arguments)
            with open(os.path.join(self.folder, "count"), encoding="ascii") as file:
                self.assertEqual(file.read(), f"{expected}\n", done.stdout + done.stderr)

    def test_the_longest_begin_first(self):
        done, _ = self.run_tests("alone", "three", "one", "two", "--suite", "fast", "--suite=slow", "--no-suite",
                                 "guests", "--no-suite=none", "-j1", "--logbase", "mine")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(re.findall(r"(?m)^ *\d/4 sample:\w+ / (\w+)", done.stdout), ["one", "two", "three", "alone"])
        self.assertTrue(os.path.exists(f"{self.build}/meson-logs/mine.json"))

    def log(self, name, *tests):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            for test, seconds, result in tests:
                json.dump({"name": test, "duration": seconds, "result": result}, file)
                file.write("\n")
        return path

    def test_durations_are_recorded(self):
        plain = self.log("testlog.json", ("two", 1.4, "OK"), ("sample:fast / one", 12.6, "OK"),
                         ("three", 600, "TIMEOUT"))
        other = self.log("other.json", ("one", 3.1, "FAIL"))
        sanitized = self.log("testlog-sanitize.json", ("one", 30.2, "OK"), ("alone", 5.1, "OK"))
        self.assertEqual(run(f"{self.folder}/run-tests", "--record", plain, other, sanitized).returncode, 0)
        with open(os.path.join(self.folder, "test-seconds.txt"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "# comment\nalone 0 5\none 13 30\n")

    def test_what_takes_twice_as_long_is_told(self):
        plain = self.log("testlog.json", ("one", 600, "OK"), ("two", 201, "OK"), ("new", 6, "OK"), ("other", 7, "OK"))
        sanitized = self.log("testlog-sanitize.json", ("one", 1801, "FAIL"), ("two", 6, "OK"))
        done = run(f"{self.folder}/run-tests", "--slower", f"a:{plain}", f"b:{sanitized}", "c:/nowhere")
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (0, ["a: two: 201 s, recorded 100 s", "a: other: 7 s, recorded as below 3 s",
                              "b: one: 1801 s, recorded 900 s"]), done.stderr)


class SoakShareTests(unittest.TestCase):
    """soak-share gives the long tests their share of rounds and seconds."""

    def share(self, *arguments, **variables):
        done = run(f"{SCRIPTS}/../tests/soak-share", *arguments, env={**os.environ, **variables})
        return done.returncode, done.stdout + done.stderr

    def test_arguments(self):
        for percent, expected in (("10", "50 1 500 7 90x%\n"), ("250", "1250 12 500 7 90x%\n")):
            self.assertEqual(self.share("echo", "500%", "5%", "500", "7", "90x%", SOAK_PERCENT=percent), (0, expected))

    def test_all_of_it(self):
        self.assertEqual(self.share("sh", "-c", "echo $0 $SOAK_ROUNDS $OTHER", "500%", SOAK_ROUNDS="20%", OTHER="20%"),
                         (0, "500 20 20%\n"))

    def test_the_status_is_that_of_the_command(self):
        self.assertEqual(self.share("false", SOAK_PERCENT="10"), (1, ""))

    def test_what_is_no_percentage(self):
        for percent in ("0", "-1", "1.5", "ten", ""):
            status, said = self.share("true", SOAK_PERCENT=percent)
            self.assertEqual(status, 0 if percent == "" else 2, percent)
            self.assertIn("not a percentage" if percent else "", said)


class CiTests(Scratch):
    """ci-tests leaves out only what passed before with the same sources, or has its turn in the next commit."""

    PROJECT = """
        project('sample', 'c')
        test('everywhere', find_program('true'), suite : ['unit', 'threads'])
        test('sanitized', find_program('true'), suite : 'functional')
        test('long', find_program('true'), suite : 'soak')
        if get_option('b_sanitize') == 'none'
          test('unmarked', find_program('true'), suite : SUITE)
        endif
    """
    PARTS = {"guests-6.12", "guests-7.2", "mutants-and-models", "sanitized-sockets"}

    def setUp(self):
        super().setUp()
        self.tree = os.path.join(self.folder, "tree")
        for folder in ("scripts", ".ci", "build-ci-gcc/meson-logs", "src/attach", "src/store"):
            os.makedirs(f"{self.tree}/{folder}")
        shutil.copy(f"{SCRIPTS}/ci-tests", self.tree + "/scripts")
        self.write("src/attach/one.c", "one\n")
        self.write(".gitignore", "build*\n")

    def write(self, name, text):
        with open(f"{self.tree}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

    def call(self, *arguments, **more):
        return run(f"{self.tree}/scripts/ci-tests", *arguments,
                   env={**os.environ, "GIT_CEILING_DIRECTORIES": self.folder}, **more)

    def plan(self):
        """The parts that are due, and what each step gets."""
        done = self.call("plan")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        covered = [rest.split(" ", 1)[1] for step, rest in lines if step == "covered"]
        return {line.split()[0] for line in covered}, dict(lines), covered

    def commit(self):
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "one"]):
            done = run("git", "-c", "user.name=A", "-c", "user.email=a@example.net", *arguments, cwd=self.tree)
            self.assertEqual(done.returncode, 0, done.stderr)

    def record(self, covered, *results):
        """As after a run that passed, in whose log these tests are."""
        self.write("build-ci-gcc/covered", "\n".join(covered) + "\n")
        for log, entries in (("testlog.json", results), ("testlog-vm.json", ())):
            self.write("build-ci-gcc/meson-logs/" + log, "".join(
                json.dumps({"name": name, "result": result}) + "\n" for name, result in entries))
        done = self.call("record")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_everything_is_due_when_nothing_is_known(self):
        due, steps, covered = self.plan()
        self.assertEqual(due, self.PARTS)
        self.assertNotIn("--no-suite", steps["gcc"] + steps["guests"])
        self.record(covered)
        # Without git nobody knows whose turn it is.
        self.assertEqual(self.plan()[0], {"guests-6.12", "guests-7.2"})

    def test_kernels_take_turns(self):
        self.record(self.plan()[2])
        turns = []
        for _ in range(3):
            self.commit()
            due, steps, _ = self.plan()
            turns.append(due)
            self.assertIn("--no-suite mutants --no-suite models", steps["gcc"])
            self.assertNotIn("sockets", steps["gcc"])
            self.assertIn("--no-suite sockets", steps["asan"])
            self.assertIn("--no-suite kernel-" + ("7.2" if due == {"guests-6.12"} else "6.12"), steps["guests"])
        self.assertEqual(turns, [{"guests-7.2"}, {"guests-6.12"}, {"guests-7.2"}])

    def test_a_change_makes_its_parts_due(self):
        self.commit()
        self.record(self.plan()[2])
        self.write("src/store/new.c", "new\n")
        self.assertEqual(self.plan()[0], {"guests-7.2", "mutants-and-models"})
        os.remove(self.tree + "/src/store/new.c")
        self.write("src/attach/one.c", "two\n")
        self.assertEqual(self.plan()[0], {"guests-6.12", "guests-7.2"})

    def test_a_comment_makes_nothing_due(self):
        self.commit()
        self.write("src/attach/one.c", "/* one */ char *a = \"/* text */\";\n")
        self.record(self.plan()[2])
        self.write("src/attach/one.c", "// another\nchar *a =\n\t\"/* text */\"; /* one\n * \" more */\n")
        self.assertEqual(self.plan()[0], {"guests-7.2"})
        self.write("src/attach/one.c", "char *a = \"/* words */\";\n")
        self.assertEqual(self.plan()[0], {"guests-6.12", "guests-7.2"})

    def test_both_kernels_where_history_is_cut(self):
        self.record(self.plan()[2])
        self.commit()
        self.commit()
        copy = os.path.join(self.folder, "copy")
        self.assertEqual(run("git", "clone", "-q", "--depth=1", "file://" + self.tree, copy).returncode, 0)
        self.tree = copy
        self.assertEqual(self.plan()[0], {"guests-6.12", "guests-7.2"})

    def test_what_was_skipped_is_not_recorded(self):
        said = self.record(self.plan()[2], ("sample:models / model-one", "SKIP"), ("sample:models / model-two", "OK"))
        self.assertIn("mutants-and-models is not recorded: the run skipped model-one\n", said)
        self.assertIn("mutants-and-models", self.plan()[0])

    def test_nothing_is_recorded_without_a_run(self):
        done = self.call("record")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is none: .ci/run leaves it", done.stderr)

    def check(self, suite):
        self.write("meson_options.txt", "option('tests', type : 'boolean')\n")
        self.write("meson.build", self.PROJECT.replace("SUITE", suite))
        self.assertEqual(run("meson", "setup", self.tree, self.folder + "/plain").returncode, 0)
        return self.call("check", self.folder + "/plain")

    def test_each_test_runs_somewhere(self):
        done = self.check("['functional', 'plain']")
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (0, ["everywhere: gcc, clang, asan", "long: test-long", "sanitized: asan",
                               "unmarked: gcc"]),
                         done.stderr)

    def test_a_test_that_runs_nowhere_is_an_error(self):
        done = self.check("'functional'")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unmarked: NOWHERE\n", done.stdout)
        self.assertIn("neither .ci/run nor `make test-long` runs unmarked", done.stderr)


# A program that stays until it is ended.
WAITS = ("tail", "-f", "/dev/null")
# Says so when it is the only thread of its process.
ONE_THREAD = """
import ctypes, threading
main = threading.main_thread()
def alone():
    with open(f"/proc/self/task/{main.native_id}/stat") as file:
        while ") Z " not in file.read():
            file.seek(0)
    print("alone", flush=True)
    threading.Event().wait()
threading.Thread(target=alone).start()
ctypes.CDLL(None).syscall(60, 0)
"""


class LeftBehind(Scratch):
    """left-behind finds exactly the processes of a run, and ends them."""

    def mark(self):
        return f"GMBLOCK_TEST_RUN={os.path.basename(self.folder)}"

    def start(self, *command, **more):
        environment = dict(os.environ, GMBLOCK_TEST_RUN=os.path.basename(self.folder))
        process = subprocess.Popen(command, env=environment, start_new_session=True, **more)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_nothing_left_is_fine(self):
        done = run(f"{SCRIPTS}/left-behind", self.mark())
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_process_is_named_and_ended(self):
        process = self.start(*WAITS)
        done = run(f"{SCRIPTS}/left-behind", self.mark())
        self.assertEqual((done.returncode, done.stdout), (1, f"{process.pid} {' '.join(WAITS)} \n"))
        self.assertEqual(process.wait(), -signal.SIGKILL)

    def test_a_daemon_is_found(self):
        shell = self.start("sh", "-c", f"setsid {' '.join(WAITS)} >/dev/null & echo $!",
                           stdout=subprocess.PIPE, text=True)
        self.addCleanup(shell.stdout.close)
        daemon = int(shell.stdout.readline())
        shell.wait()
        done = run(f"{SCRIPTS}/left-behind", self.mark())
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.startswith(f"{daemon} "), done.stdout)

    def test_a_thread_that_outlives_the_main_thread_is_found(self):
        process = self.start(sys.executable, "-c", ONE_THREAD, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "alone\n")
        done = run(f"{SCRIPTS}/left-behind", self.mark())
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.startswith(f"{process.pid} {sys.executable} "), done.stdout)
        self.assertEqual(process.wait(), -signal.SIGKILL)

    def test_others_are_left_alone(self):
        process = self.start(*WAITS)
        done = run(f"{SCRIPTS}/left-behind", self.mark() + "0")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIsNone(process.poll())


class MakeDeb(Scratch):
    """make-deb names who builds, and with --if-changed builds only what has changed. Only Debian's own
    tool is replaced."""

    def setUp(self):
        super().setUp()
        self.tree = os.path.join(self.folder, "tree")
        os.makedirs(self.tree + "/scripts")
        shutil.copy(f"{SCRIPTS}/make-deb", self.tree + "/scripts")
        shutil.copytree(f"{SCRIPTS}/../packaging/debian", self.tree + "/packaging/debian")
        os.mkdir(self.folder + "/bin")
        self.program("bin/dpkg-buildpackage", "#!/bin/sh\necho built >>../../calls\n"
                     "cat debian/control debian/changelog >../gmblock_1.deb\n")

    def make(self, *arguments, **more):
        done = run(f"{self.tree}/scripts/make-deb", *arguments, self.folder + "/out", env={
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "DEBFULLNAME": "A. & B. /C",
            "DEBEMAIL": "builder@example.net", "GIT_CEILING_DIRECTORIES": self.folder, **more})
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:]),
                         (0, [self.folder + "/out/gmblock_1.deb"]), done.stderr)
        with open(self.folder + "/calls", encoding="ascii") as file:
            return len(file.readlines())

    def test_the_maintainer_is_who_builds(self):
        self.make()
        with open(self.folder + "/out/gmblock_1.deb", encoding="utf-8") as file:
            text = file.read()
        self.assertIn("\nMaintainer: A. & B. /C <builder@example.net>\n", text)
        self.assertIn("\n -- A. & B. /C <builder@example.net>  ", text)
        self.assertNotIn("@maintainer@", text)

    def test_nothing_is_built_twice(self):
        self.assertEqual(self.make(), 1)
        self.assertEqual(self.make("--if-changed"), 1)
        self.assertEqual(self.make("--if-changed", DEB_BUILD_OPTIONS="noopt"), 2)
        with open(self.tree + "/packaging/debian/rules", "a", encoding="ascii") as file:
            file.write("\n")
        self.assertEqual(self.make("--if-changed"), 3)
        self.assertEqual(self.make(), 4)

    def test_an_image_is_made_of_the_packages_that_are_there(self):
        done = run("make", "-n", "oci", cwd=f"{SCRIPTS}/..")
        self.assertEqual([line.split("scripts/")[1] for line in done.stdout.splitlines() if "make-" in line],
                         ["make-deb --if-changed", "make-oci"], done.stderr)


class InstallDeps(Scratch):
    """install-deps calls apt-get only for what is missing, and sudo only where it must."""

    def install(self, there, uid, which="run", with_sudo=True):
        """Run it among stand-ins for the system's tools; returns status, output and the calls."""
        calls = os.path.join(self.folder, "calls")
        status = "".join(f"installed {name} \\n" for name in there)
        self.program("dpkg-query", f"#!/bin/sh\nprintf '{status}config-files gcc \\n'\n")
        self.program("apt-get", f"#!/bin/sh\necho apt-get \"$@\" >>{calls}\n")
        self.program("id", f"#!/bin/sh\necho {uid}\n")
        if with_sudo:
            self.program("sudo", f"#!/bin/sh\necho sudo >>{calls}\nexec \"$@\"\n")
        for tool in ("bash", "sh", "sed", "sort", "env", "dirname", "readlink"):
            link = os.path.join(self.folder, tool)
            if not os.path.exists(link):
                os.symlink(shutil.which(tool), link)
        done = run(os.path.join(self.folder, "bash"), f"{SCRIPTS}/install-deps", which,
                   env={"PATH": self.folder})
        lines = []
        if os.path.exists(calls):
            with open(calls, encoding="utf-8") as file:
                lines = file.read().splitlines()
        return done.returncode, done.stdout + done.stderr, lines

    def wanted(self, which):
        return run(f"{SCRIPTS}/install-deps", "--list", which).stdout.split()

    def test_the_lists_are_sane(self):
        self.assertIn("liburing-dev", self.wanted("run"))
        self.assertLess(set(self.wanted("run")), set(self.wanted("test")))

    def test_everything_there_calls_nothing(self):
        status, output, calls = self.install(self.wanted("test"), 0, "test")
        self.assertEqual((status, output, calls), (0, "", []))

    def test_root_installs_only_what_is_missing(self):
        there = [name for name in self.wanted("run") if name not in ("meson", "gcc")]
        status, output, calls = self.install(there, 0)
        self.assertEqual(status, 0, output)
        self.assertEqual(len(calls), 2, calls)
        self.assertTrue(calls[0].endswith(" update"), calls)
        self.assertTrue(calls[1].endswith(" gcc meson"), calls)

    def test_others_use_sudo(self):
        status, output, calls = self.install([], 1000)
        self.assertEqual(status, 0, output)
        self.assertEqual(calls[0], "sudo")

    def test_without_sudo_it_says_what_to_type(self):
        status, output, calls = self.install([], 1000, with_sudo=False)
        self.assertEqual((status, calls), (1, []))
        self.assertIn("apt-get install", output)


class PortTests(unittest.TestCase):
    """Ports of tests/functional/ports.py: neither a connection nor another test has them."""

    def ask(self, text):
        """A process that has imported the module and executes the text; it lives until its input ends."""
        process = subprocess.Popen(
            ["/usr/bin/python3", "-B", "-c", f"import ports, socket, sys\n{text}\nsys.stdin.read()"], text=True,
            cwd=os.path.join(SCRIPTS, "../tests/functional"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        return process.stdout.readline().strip()

    def only(self, port):
        """What a process gets that may have this port only."""
        return self.ask(f"ports.FIRST = {port}\ntry: print(ports.free({port}), flush=True)\n"
                        "except OSError: print(None, flush=True)")

    def test_outside_the_range_of_the_kernel(self):
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = map(int, file.read().split())
        if last - first > 50000:
            self.skipTest("the kernel chooses among all ports")
        for _ in range(5):
            self.assertFalse(first <= int(self.ask("print(ports.free(), flush=True)")) <= last)

    def test_one_test_each(self):
        port = self.ask("print(ports.free(), flush=True)")
        self.assertEqual(self.only(port), "None")

    def test_not_one_that_is_bound(self):
        for family, address in (("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")):
            port = self.ask(f"listener = socket.create_server(('{address}', 0), family=socket.{family})\n"
                            "print(listener.getsockname()[1], flush=True)")
            if port:  # without IPv6 there is none
                self.assertEqual(self.only(port), "None")


if __name__ == "__main__":
    SCRIPTS = os.path.join(os.path.realpath(sys.argv.pop(1)), "scripts")
    unittest.main(verbosity=2)
