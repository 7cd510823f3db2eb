"""What the tests of this folder have in common.

main(test, ...) runs the functions in turn. Results: exit status 0 passed, 1 failed, 77 skipped with
the reason: no QEMU, or no packages. TIME_LIMIT only ends what hangs, on a busy machine too.
"""
import os
import signal
import sys
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from vmlab import Lab, LabError, Unavailable  # noqa: E402

HERE = os.path.dirname(os.path.realpath(__file__))
LAB = os.path.join(HERE, "lab")
TIME_LIMIT = 600


def laboratory(time_limit=TIME_LIMIT):
    return Lab(time_limit=time_limit)


def finish(lab):
    """Let the guests come to their end, and see that each did well."""
    lab.wait()
    for guest in lab.guests.values():
        if guest.failure or guest.status != 0:
            raise LabError(lab.story())


def main(*tests):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = 0
    for test in tests:
        try:
            test()
            print(f"{test.__name__}: passed", flush=True)
        except Unavailable as reason:
            print(f"{test.__name__}: skipped: {reason}")
            sys.exit(77)
        except Exception:  # the other tests of the file go on
            traceback.print_exc()
            print(f"{test.__name__}: failed", flush=True)
            failed += 1
    sys.exit(1 if failed else 0)
