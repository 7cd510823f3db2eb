"""The machine protocol (QMP) of a QEMU process, for guests of the laboratory and for other tests.

    monitor = connect(path, process)    # QEMU was started with -qmp unix:path,server=on,wait=off
    monitor.do("query-status")["status"]
    monitor.migrate(channel)            # to a QEMU that was started with -incoming unix:channel
    monitor.close()

Threading: a monitor belongs to one thread. Errors: Refused with QEMU's own words; OSError if QEMU does not answer within
SECONDS_MAX, or has ended.
"""
import json
import os
import socket
import time

SECONDS_MAX = 120  # for a machine that is busy


class Refused(Exception):
    """QEMU did not execute a command."""


class Monitor:
    def __init__(self, path):
        """Raises FileNotFoundError or ConnectionRefusedError if QEMU does not listen yet."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS_MAX)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("r", encoding="utf-8")
        self._receive()  # the greeting
        self.do("qmp_capabilities")

    def _receive(self):
        line = self.file.readline()
        if not line:
            raise ConnectionResetError("QEMU has closed its monitor")
        return json.loads(line)

    def do(self, command, **arguments):
        """Executes a command; returns what QEMU returned. Events are ignored."""
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._receive()
            if "error" in answer:
                raise Refused(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def migrate(self, channel, downtime_ms=1000):
        """Moves the guest to the QEMU that listens at the socket of that path. Returns once the guest runs there; this QEMU
        has then released its disks, and can be ended."""
        _until(lambda: os.path.exists(channel), channel)
        self.do("migrate-set-parameters", **{"downtime-limit": downtime_ms})
        self.do("migrate", uri=f"unix:{channel}")
        _until(lambda: self.do("query-migrate").get("status") in ("completed", "failed"), "the migration")
        result = self.do("query-migrate")
        if result["status"] != "completed":
            raise Refused(f"migrate: {result.get('error-desc', result['status'])}")

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def connect(path, process):
    """The monitor of a QEMU process (subprocess.Popen) that is just starting."""
    found = []

    def connects():
        if process.poll() is not None:
            raise ConnectionRefusedError(f"QEMU has ended with status {process.returncode}")
        try:
            found.append(Monitor(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    _until(connects, path)
    return found[0]


def _until(condition, name):
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"QEMU: {name} took more than {SECONDS_MAX} s")
        time.sleep(0.02)
