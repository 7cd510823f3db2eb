"""Guests that run what the test says, command by command.

SCRIPT is the script of such a guest, after whatever prepares it. Shell(lab, guest) is the test's end: it sends text that
"sh -e" runs in the guest, and gets the end of its output. Each text has a process of its own: what later ones need, such
as functions, is in the file /tmp/common, which is read before each.
"""
import base64

from vmlab import LabError

SCRIPT = r"""
. /lab/settings # for NAME
session=$(cat /proc/sys/kernel/random/uuid)
: >>/tmp/common
echo "answer session $session" >/run/lab/outbox
count=0
while lab-wait $session.$count >/tmp/received && ! grep -qx end /tmp/received; do
	{ echo ". /tmp/common"; base64 -d /tmp/received; } >/tmp/text
	sed '1d; s/^/$ /' /tmp/text
	status=0
	sh -e /tmp/text >/tmp/output 2>&1 || status=$?
	cat /tmp/output
	# One line must fit into a pipe at once.
	echo "answer $session.$count $status $(tail -c 2800 /tmp/output | base64 -w 0)" >/run/lab/outbox
	count=$((count + 1))
done
"""


class Shell:
    """One guest that was started, also again: then it needs another Shell. A text is begun and ended, or both by run();
    one at a time."""

    def __init__(self, lab, guest):
        self.guest = guest
        self._lab = lab
        self._session = None
        self._count = 0

    def _name(self):
        if not self._session:
            self._lab.wait_for(lambda: "session" in self.guest.answers, self.guest)
            self._session = self.guest.answers["session"]
        return f"{self._session}.{self._count}"

    def _send(self, text):
        self._lab.loop.call(self.guest.tell, f"signal {self._name()} {text}")

    def begin(self, text):
        self._send(base64.b64encode(text.rstrip("\n").encode() + b"\n").decode())

    def end(self):
        """The exit status and the output of what was begun."""
        name = self._name()
        self._lab.wait_for(lambda: name in self.guest.answers, self.guest)
        self._count += 1
        status, _, output = self.guest.answers[name].partition(" ")
        return int(status), base64.b64decode(output).decode("utf-8", "replace").replace("\r", "")

    def finish(self):
        """As end(), of what must have succeeded. Returns its output."""
        status, output = self.end()
        if status != 0:
            raise LabError(f"status {status} in guest {self.guest.name}\n{self._lab.story()}")
        return output

    def run(self, text):
        self.begin(text)
        return self.finish()

    def leave(self):
        """Let the guest's script go on behind SCRIPT."""
        self._send("end")
