"""The VM laboratory: Linux guests under QEMU, for tests that need a kernel of their own.

    from vmlab import Lab, Unavailable

    with Lab(time_limit=60) as lab:
        guest = lab.guest("one", kernel="6.12", script="modprobe nbd && ls /dev/nbd0",
                          load=["nbd"])
        lab.start()
        lab.wait()
        assert guest.status == 0, guest.story()

README.md, next to this folder, tells the whole use. Threading: one thread; everything happens
inside Lab.start(), Lab.wait(), Lab.wait_signal() and Lab.send().
"""
from .archive import Unavailable
from .guest import Guest
from .image import Tree
from .kernel import Kernel, find_kernel
from .laboratory import Lab, LabError

__all__ = ["Guest", "Kernel", "Lab", "LabError", "Tree", "Unavailable", "find_kernel"]
