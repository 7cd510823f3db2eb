"""A relay between clients and a server: a test sees, holds and ends the connections through it."""
import contextlib
import socket
import threading

PIECE = 1 << 16
UP, DOWN = True, False  # to the server, and to the client


def _address(place):
    """The family and address of a port of loopback, or of the path of a Unix socket."""
    return (socket.AF_INET, ("127.0.0.1", place)) if isinstance(place, int) else (socket.AF_UNIX, place)


class Link:
    """A connection through the relay."""

    def __init__(self, number, client, server):
        self.number = number
        self.ends = client, server  # ends[direction] is where a direction leads
        self.passed = {UP: 0, DOWN: 0}  # bytes
        self.going = {UP, DOWN}

    def cut(self):
        for end in self.ends:
            with contextlib.suppress(OSError):  # it has ended
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        for end in self.ends:
            end.close()


class Relay:
    """server: a port of loopback, or a path. place: the path of the relay; without it, it has a free port."""

    def __init__(self, server, place=0):
        self.server = server
        self.links = []
        self.held = set()  # (number, direction)
        self.change = threading.Condition()
        self.threads = []
        family, address = _address(place)
        self.listener = socket.socket(family)
        self.listener.bind(address)
        self.listener.listen(64)
        self.place = self.listener.getsockname()[1] if place == 0 else place
        self.acceptor = threading.Thread(target=self._accept, daemon=True)
        self.acceptor.start()

    # --- for subclasses, which are called on the threads of the relay

    def passes(self, _client):
        """Whether a new connection goes to the server. Otherwise the subclass has taken it."""
        return True

    def room(self, _link, _direction):
        """How many bytes are read at most; 0: no more in this direction, as at its end."""
        return PIECE

    def seen(self, link, direction, data):
        """The bytes to pass on in place of the ones that were read; none: as at the end."""
        link.passed[direction] += len(data)
        return data

    def ended(self, link, _direction):
        """One direction has ended."""
        link.cut()

    # --- for tests

    def hold(self, number, *directions):
        """Passes on nothing more of a connection, not even its end."""
        with self.change:
            self.held.update((number, direction) for direction in directions)

    def release(self, number):
        with self.change:
            self.held -= {(number, UP), (number, DOWN)}
            self.change.notify_all()

    def cut(self, number):
        self.links[number].cut()
        self.release(number)

    def cut_all(self):
        for number in range(len(self.links)):
            self.cut(number)

    def refuse(self):
        """Refuses new connections from now on."""
        with contextlib.suppress(OSError):  # it is closed
            self.listener.shutdown(socket.SHUT_RDWR)
        self.acceptor.join()
        self.listener.close()

    def run(self, function, *arguments):
        """Runs a function on a thread that close() waits for."""
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def close(self):
        self.refuse()
        self.cut_all()
        for thread in self.threads:
            thread.join()
        for link in self.links:
            link.close()

    # --- its threads

    def _accept(self):
        family, address = _address(self.server)
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.passes(client):
                continue
            server = socket.socket(family)
            try:
                server.connect(address)
            except OSError:
                client.close()
                server.close()
                continue
            with self.change:
                link = Link(len(self.links), client, server)
                self.links.append(link)
            self.run(self._pump, link, UP)
            self.run(self._pump, link, DOWN)

    def _wait(self, link, direction):
        with self.change:
            self.change.wait_for(lambda: (link.number, direction) not in self.held)

    def _pump(self, link, direction):
        source, target = link.ends[not direction], link.ends[direction]
        try:
            self._wait(link, direction)
            while room := self.room(link, direction):
                data = source.recv(room)
                self._wait(link, direction)
                if not (data and (data := self.seen(link, direction, data))):
                    break
                target.sendall(data)
        except OSError:
            pass
        self.ended(link, direction)
        with self.change:
            link.going.remove(direction)
            if not link.going:
                link.close()
