#!/usr/bin/python3
"""guests-meet.py KERNEL: two guests of that kernel boot, load modules, talk to each other over the
private network, and their results come back."""
import sys

import testing

KERNEL = sys.argv[1]

LISTENER = """
uname -r >/results/release
test -b /dev/nbd0
test -c /dev/ublk-control
test -e /sys/module/fuse
nc -l -p 7000 >/results/heard &
until netstat -ltn | grep -q :7000; do sleep 0.1; done
lab-signal listening
wait
lab-wait broken >/dev/null
if ping -c 1 -W 1 speaker; then echo 'a broken link carries pings'; exit 1; fi
lab-signal cut
lab-wait mended >/dev/null
until ping -c 1 -W 1 speaker; do :; done
lab-signal reached
lab-wait exit.speaker >/results/partner
"""

SPEAKER = """
lab-wait listening >/dev/null
ping -c 2 listener
echo 'a word from the speaker' | nc listener 7000
mkdir /results/deep
head -c 3000000 /dev/zero >/results/deep/zeroes
lab-signal spoken 'two words'
lab-wait reached >/dev/null
"""


def read(guest, name):
    with open(f"{guest.results}/{name}", "rb") as file:
        return file.read()


def test_two_guests_boot_load_modules_and_meet():
    with testing.laboratory() as lab:
        listener = lab.guest("listener", KERNEL, LISTENER, load=["nbd nbds_max=2", "ublk_drv"])
        speaker = lab.guest("speaker", KERNEL, SPEAKER)
        lab.start()
        assert lab.wait_signal("spoken") == "two words"
        speaker.link(False)
        lab.send("broken")
        lab.wait_signal("cut")
        speaker.link(True)
        lab.send("mended")
        testing.finish(lab)
        assert read(listener, "heard") == b"a word from the speaker\n", lab.story()
        assert read(listener, "release").decode().strip() == listener.kernel.release
        assert listener.kernel.release.startswith(KERNEL + ".")
        assert read(listener, "partner") == b"0\n"
        assert read(speaker, "deep/zeroes") == bytes(3000000)
        print(f"{listener.kernel.release}: booted in {listener.boot_seconds:.1f} and "
              f"{speaker.boot_seconds:.1f} s")


testing.main(test_two_guests_boot_load_modules_and_meet)
