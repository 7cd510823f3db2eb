#!/usr/bin/python3
"""How the laboratory ends: scripts and guests that fail, hang or crash, power failures, and a
laboratory that is killed itself. Nothing is left behind by any of them."""
import ctypes
import glob
import os
import select
import signal
import subprocess
import sys
import tempfile

import testing
from vmlab import LabError

KERNEL = sys.argv[1]
PR_SET_CHILD_SUBREAPER = 36


def lab_run(scripts, *options):
    """Status, output and errors of the command, with these scripts in guests of these names."""
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for name, script in scripts.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            words += ["--script", f"{name}={path}"]
        run = subprocess.run([sys.executable, testing.LAB, "run", "--kernel", KERNEL, *words,
                              "--time-limit", str(testing.TIME_LIMIT), *options],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             check=False)
    return run.returncode, run.stdout, run.stderr


def test_failing_script_ends_its_partner_and_the_command():
    with tempfile.TemporaryDirectory() as results:
        status, output, errors = lab_run(
            {"good": "echo waiting\nlab-signal here\nlab-wait never",
             "bad": "lab-wait here\necho kept >/results/evidence\nexit 3"}, "--results", results)
        assert status == 3, (status, output, errors)
        assert "good: waiting" in output, output
        assert "lab: bad" in errors and "status 3" in errors and "killed" in errors, errors
        with open(os.path.join(results, "bad", "evidence"), encoding="ascii") as file:
            assert file.read() == "kept\n"
        assert os.path.exists(os.path.join(results, "good", "console.log"))


def test_crash_is_told_with_the_console():
    status, output, errors = lab_run({"one": "lab-signal x\necho c >/proc/sysrq-trigger"})
    assert status == 125, (status, output, errors)
    assert "went down without a status" in errors, errors
    assert "sysrq triggered crash" in errors, errors


def test_guest_that_hangs_meets_the_time_limit():
    with testing.Lab(time_limit=0.2) as lab:
        guest = lab.guest("one", KERNEL, "lab-wait never")
        lab.start()
        try:
            lab.wait()
        except LabError as error:
            assert "time limit" in str(error), error
        else:
            raise AssertionError("the wait has ended without an error")
        assert not guest.running and guest.status is None


def test_disk_outlives_a_power_failure():
    script = """
if grep -q kept /dev/vda; then exit 0; fi
echo kept | dd of=/dev/vda conv=fsync
lab-signal written
lab-wait never
"""
    with testing.laboratory() as lab:
        guest = lab.guest("one", KERNEL, script, disks=[1 << 20])
        lab.start()
        lab.wait_signal("written")
        guest.kill()
        assert guest.failure == "killed" and not guest.running
        guest.start()
        testing.finish(lab)


def test_killed_laboratory_leaves_nothing():
    # The orphan becomes a child of this process, which takes its end.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "script")
        with open(script, "w", encoding="ascii") as file:
            file.write("echo up\nlab-wait never\n")
        with subprocess.Popen([sys.executable, testing.LAB, "run", "--kernel", KERNEL,
                               "--script", script], env={**os.environ, "TMPDIR": folder},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True) as lab:
            assert lab.stdout.readline() == "up\n"
            with open(f"/proc/{lab.pid}/task/{lab.pid}/children", encoding="ascii") as file:
                guest = os.pidfd_open(int(file.read()))
            lab.send_signal(signal.SIGKILL)
        ended, _, _ = select.select([guest], [], [], testing.TIME_LIMIT)
        assert ended, "QEMU has outlived the laboratory"
        os.waitid(os.P_PIDFD, guest, os.WEXITED)
        os.close(guest)
        assert glob.glob(os.path.join(folder, "gmblock-vm-*"))
        tempfile.tempdir = folder
        try:
            with testing.laboratory() as lab:
                assert sorted(os.listdir(folder)) == sorted(["script",
                                                             os.path.basename(lab.folder)])
        finally:
            tempfile.tempdir = None
        assert os.listdir(folder) == ["script"]


testing.main(test_failing_script_ends_its_partner_and_the_command,
             test_crash_is_told_with_the_console,
             test_guest_that_hangs_meets_the_time_limit,
             test_disk_outlives_a_power_failure,
             test_killed_laboratory_leaves_nothing)
