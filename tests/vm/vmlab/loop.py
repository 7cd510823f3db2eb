"""The laboratory's event loop: one background thread that watches sockets and processes.

Callbacks run in that thread, one at a time, with Loop.changed held; it is a condition, on which
the caller's thread waits for what it wants to see. call() has a function run in the thread.
"""
import collections
import selectors
import socket
import threading


class Loop:
    def __init__(self):
        self.changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._calls = collections.deque()
        self._inside, self._outside = socket.socketpair()
        self._inside.setblocking(False)
        self._selector.register(self._inside, selectors.EVENT_READ, self._woken)
        self._thread = None
        self._ending = False
        self.error = None

    def start(self):
        if not self._thread:
            self._thread = threading.Thread(target=self._run, name="vmlab", daemon=True)
            self._thread.start()

    def stop(self):
        """End the thread. Callbacks no longer run after this."""
        if self._thread:
            self._ending = True
            self._outside.send(b"x")
            self._thread.join()
        self._selector.close()
        self._inside.close()
        self._outside.close()

    def call(self, function, *arguments):
        self._calls.append((function, arguments))
        self._outside.send(b"x")

    def watch(self, file, callback, write=False):
        """Have callback() run whenever the file is readable, or writable if so wished. In the
        thread only, or before start()."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        try:
            self._selector.modify(file, events, callback)
        except KeyError:
            self._selector.register(file, events, callback)

    def forget(self, file):
        try:
            self._selector.unregister(file)
        except KeyError:
            pass

    def _woken(self):
        self._inside.recv(4096)

    def _run(self):
        try:
            while not self._ending:
                ready = self._selector.select()
                with self.changed:
                    while self._calls:
                        function, arguments = self._calls.popleft()
                        function(*arguments)
                    for key, _ in ready:
                        if key.fileobj in self._selector.get_map():
                            key.data()
                    self.changed.notify_all()
        except Exception as error:  # the waiting thread raises it
            with self.changed:
                self.error = error
                self.changed.notify_all()
