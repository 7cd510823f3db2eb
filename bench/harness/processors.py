"""Where servers and clients run, and what else uses the processors meanwhile.

What: beginning_on() starts what is inside on one processor; beside() runs other processes for a while.
Ownership: both undo what they did at the end of their block.
Errors: OSError.
"""

import contextlib
import os
import subprocess
import sys

from . import servers

COMPUTES = "while True: pass"
POLLS = "import os\nwhile True: os.sched_yield()"


@contextlib.contextmanager
def beginning_on(number):
    """What starts inside runs on that one of this process's processors; None: on any of them."""
    before = os.sched_getaffinity(0)
    if number is not None:
        os.sched_setaffinity(0, {sorted(before)[number]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def beside(count, work):
    """Processes that only compute or poll, which end with this one."""
    running = [subprocess.Popen([sys.executable, "-c", work], preexec_fn=servers.child_setup)
               for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
