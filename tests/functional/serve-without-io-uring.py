#!/usr/bin/python3
"""Where io_uring cannot be had, the message names what stands in the way: a container may answer as
if the system call did not exist."""
import ctypes
import errno
import os
import subprocess
import sys

import support

IO_URING_SETUP = 425
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
ANSWER, ALLOW = 0x00050000, 0x7FFF0000


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("if_true", ctypes.c_uint8),
                ("if_false", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("code", ctypes.POINTER(Instruction))]


def forbid(number):
    """For the child: io_uring_setup() answers with this errno."""
    code = (Instruction * 4)(
        Instruction(LOAD_NUMBER, 0, 0, 0), Instruction(JUMP_EQUAL, 0, 1, IO_URING_SETUP),
        Instruction(RETURN, 0, 0, ANSWER | number), Instruction(RETURN, 0, 0, ALLOW))
    program = Program(4, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or \
            libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        os._exit(99)


class WithoutIoUring(support.Case):
    def message(self, number, *command):
        command = command or ("serve", "memory:1M", "--listen", self.socket_uri())
        status, output, errors = self.run_gmblock(*command, preexec_fn=lambda: forbid(number))
        self.assertEqual((status, output), (1, ""), errors)
        self.assertIn("io_uring", errors)
        return errors

    def test_forbidden(self):
        for number in (errno.EPERM, errno.EACCES):
            errors = self.message(number)
            self.assertIn("kernel.io_uring_disabled", errors)
            self.assertIn("seccomp", errors)

    def test_as_if_it_did_not_exist(self):
        errors = self.message(errno.ENOSYS)
        self.assertIn("Linux 6.1", errors)
        self.assertIn("seccomp", errors)

    def test_commands_that_ask_a_server(self):
        for command in ("info", "list"):
            errors = self.message(errno.EPERM, command, self.socket_uri())
            self.assertIn("kernel.io_uring_disabled", errors)

    def test_no_memory(self):
        self.assertIn("LimitMEMLOCK", self.message(errno.ENOMEM))

    def test_a_unit_test_is_skipped(self):
        for number, reason in ((errno.EPERM, "kernel.io_uring_disabled"), (errno.ENOSYS, "Linux 6.1")):
            done = subprocess.run([UNIT_TEST], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                                  check=False, preexec_fn=lambda number=number: forbid(number))
            self.assertEqual((done.returncode, done.stdout), (77, ""), done.stderr)
            self.assertIn("skip: ", done.stderr)
            self.assertIn(reason, done.stderr)


if __name__ == "__main__":
    UNIT_TEST = os.path.realpath(sys.argv.pop(2))
    support.main()
