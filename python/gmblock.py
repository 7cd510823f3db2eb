# SPDX-License-Identifier: Apache-2.0
"""libgmblock in Python: remote blocks, by ctypes and without anything beside the standard library.

    import gmblock

    with gmblock.open("nbd://localhost/disk") as client:    # blocking
        data = client.pread(4096, 0)
        client.pwrite(data, 8192, flags=gmblock.FUA)
        for offset, length, flags in client.extents():
            ...

    async def peek(uri):                                    # in an asyncio loop
        queue = gmblock.Queue()
        queue.attach(asyncio.get_running_loop())
        with queue, queue.open(uri) as client:
            return await asyncio.gather(client.apread(512, 0), client.apread(512, 1 << 20))

gmblock-python(3) describes it. The structs below are those of <gmblock/gmblock.h>. GMBLOCK_LIBRARY
names the shared library where it is not in the system's place.
"""
import ctypes
import errno
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32,
                    c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, pointer, sizeof)

READ, WRITE, FLUSH, TRIM, ZERO, CACHE, STATUS, COPY = range(8)
FUA, NO_HOLE, DF, STATUS_ONE, FAST_ZERO = (1 << bit for bit in range(5))
EXTENT_HOLE, EXTENT_ZERO = 1, 2
OPEN_READ_ONLY, OPEN_NO_RECONNECT, OPEN_NO_EXTENDED, OPEN_SIMPLE, OPEN_URI_FILES, OPEN_PREEMPT = (
    1 << bit for bit in range(6))
LEASE_NONE, LEASE_SHARED, LEASE_EXCLUSIVE = range(3)
TLS_NO_VERIFY = 1
EVENTS = ("lost", "reconnected", "gave-up", "resized", "retrying", "silent")
REPLIES = ("simple", "structured", "extended", "placed")
CAPABILITIES = ("write", "flush", "fua", "trim", "zero", "fast-zero", "cache", "status", "df",
                "multi-conn", "rotational", "copy")


class _Error(Structure):
    _fields_ = [("code", c_int), ("text", c_char * 508)]


EVENT_FUNCTION = CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class _Members(Structure):
    """A struct that a program fills in by the names of its members."""

    def __init__(self, **members):
        unknown = members.keys() - {name for name, _ in self._fields_}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no member '{min(unknown)}'")
        super().__init__(size=sizeof(self), **members)


class TlsSettings(_Members):
    """struct gmb_tls_settings; text may be str."""
    _fields_ = [("size", c_size_t), ("certificates", c_char_p), ("psk_file", c_char_p),
                ("username", c_char_p), ("hostname", c_char_p), ("flags", c_uint32),
                ("reserved", c_uint32)]

    def __init__(self, **members):
        super().__init__(**{
            name: os.fsencode(value) if isinstance(value, str) else value
            for name, value in members.items()})


class Options(_Members):
    """struct gmb_options."""
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("connections", c_uint32),
                ("connect_timeout_ms", c_uint32), ("request_timeout_ms", c_uint32),
                ("reconnect_timeout_ms", c_uint32), ("depth", c_uint32),
                ("event", EVENT_FUNCTION), ("context", c_void_p), ("opened", c_void_p),
                ("slow_timeout_ms", c_uint32), ("reserved", c_uint32),
                ("tls", POINTER(TlsSettings)), ("lease", c_uint32), ("lease_ms", c_uint32),
                ("lease_id", c_uint8 * 16)]

    def __init__(self, tls=None, **members):
        super().__init__(tls=None if tls is None else pointer(tls), **members)


class Info(Structure):
    """struct gmb_info."""
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("capabilities", c_uint32),
                ("block_minimum", c_uint32), ("block_preferred", c_uint32),
                ("payload_max", c_uint32), ("connections", c_uint32), ("depth", c_uint32),
                ("replies", c_int), ("atomic_bytes", c_uint32)]


class Stats(Structure):
    """struct gmb_stats."""
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "requests", "commands", "bytes_read", "bytes_written", "bytes_moved", "system_calls",
        "connections_lost", "commands_replayed", "bytes_copied_reflink", "bytes_copied_range",
        "bytes_copied_device", "bytes_copied_ram", "bytes_copied_zeroes", "polls")]


class Extent(Structure):
    """struct gmb_extent."""
    _fields_ = [("offset", c_uint64), ("bytes", c_uint64), ("flags", c_uint32),
                ("reserved", c_uint32)]


class Iovec(Structure):
    """struct iovec."""
    _fields_ = [("base", c_void_p), ("len", c_size_t)]


class Request(Structure):
    """struct gmb_request."""


class _Export(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("description", c_char_p)]


FOUND_FUNCTION = CFUNCTYPE(None, c_void_p, POINTER(_Export))

DONE_FUNCTION = CFUNCTYPE(None, POINTER(Request))
Request._fields_ = [
    ("operation", c_uint8), ("reserved", c_uint8 * 3), ("flags", c_uint32), ("offset", c_uint64),
    ("length", c_uint64), ("iov", POINTER(Iovec)), ("iov_count", c_uint32),
    ("extents_max", c_uint32), ("extents", POINTER(Extent)), ("done", DONE_FUNCTION),
    ("context", c_void_p), ("result", c_int32), ("extent_count", c_uint32),
    ("in_flight", c_uint32), ("private_number", c_uint32), ("single", Iovec),
    ("source", c_void_p), ("source_offset", c_uint64), ("copied", c_uint64),
    ("private_space", c_uint64 * 9)]


def _load():
    library = ctypes.CDLL(os.environ.get("GMBLOCK_LIBRARY", "libgmblock.so.0"))
    queue, client, request = c_void_p, c_void_p, POINTER(Request)
    for name, result, *arguments in (
            ("version", c_char_p),
            ("queue_create", c_int, c_void_p, POINTER(queue), POINTER(_Error)),
            ("queue_destroy", c_int, queue),
            ("queue_wait", c_int, queue, c_int),
            ("queue_wake", None, queue),
            ("queue_fd", c_int, queue),
            ("open", c_int, queue, c_char_p, POINTER(Options), POINTER(client), POINTER(_Error)),
            ("close", c_int, client),
            ("get_info", None, client, POINTER(Info)),
            ("get_stats", None, client, POINTER(Stats)),
            ("export_name", c_char_p, client),
            ("export_description", c_char_p, client),
            ("uri", c_char_p, client),
            ("server", c_char_p, client),
            ("prepare", None, request, c_int, c_uint64, c_uint64),
            ("prepare_read", None, request, c_void_p, c_size_t, c_uint64),
            ("prepare_write", None, request, c_void_p, c_size_t, c_uint64),
            ("prepare_readv", None, request, POINTER(Iovec), c_uint32, c_uint64),
            ("prepare_writev", None, request, POINTER(Iovec), c_uint32, c_uint64),
            ("prepare_status", None, request, POINTER(Extent), c_uint32, c_uint64, c_uint64),
            ("prepare_copy", None, request, c_uint64, client, c_uint64, c_uint64),
            ("submit_sized", None, client, request, c_size_t),
            ("run_sized", c_int, client, request, c_size_t),
            ("cancel", c_int, client, request),
            ("list_exports", c_int, c_char_p, POINTER(Options), FOUND_FUNCTION, c_void_p,
             POINTER(_Error)),
            ("explain", c_char_p, client, request, c_char_p, c_size_t)):
        function = getattr(library, "gmb_" + name)
        function.restype = result
        function.argtypes = arguments
    return library


LIBRARY = _load()


class Error(OSError):
    """What the library says went wrong; errno as always."""

    def __init__(self, code, text):
        super().__init__(-code, text)


def version():
    return LIBRARY.gmb_version().decode()


def list_exports(uri, **options):
    """(name, description) of each export that the server of a URI lists. Bytes that are not UTF-8
    are decoded with surrogateescape."""
    found = []

    def add(_, export):
        found.append((export[0].name, export[0].description))

    error = _Error()
    full = Options(**options)
    code = LIBRARY.gmb_list_exports(
        uri.encode(), byref(full), FOUND_FUNCTION(add), None, byref(error))
    if code != 0:
        raise Error(code, error.text.decode())
    return [tuple(text.decode(errors="surrogateescape") for text in texts) for texts in found]


class _Open:
    """What the library has opened. The library does not detect the use of a closed handle."""

    def __init__(self):
        self._handle = c_void_p()

    @property
    def handle(self):
        if self._handle is None:
            raise Error(-errno.EBADF, f"this {type(self).__name__.lower()} is closed")
        return self._handle


class Queue(_Open):
    """A completion queue, for the thread that makes it."""

    def __init__(self):
        super().__init__()
        self.loop = None
        error = _Error()
        code = LIBRARY.gmb_queue_create(None, byref(self.handle), byref(error))
        if code != 0:
            raise Error(code, error.text.decode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def destroy(self):
        if self._handle is None:
            return
        attached = self.loop is not None and self.loop.remove_reader(self.fd())
        code = LIBRARY.gmb_queue_destroy(self.handle)
        if code != 0:
            if attached:
                self.attach(self.loop)
            raise Error(code, "a client on the queue is open")
        self._handle = None

    def open(self, uri, **options):
        return Client(self, uri, **options)

    def wait(self, timeout_ms=-1):
        """Sends, receives, calls back. Returns how many requests were completed."""
        count = LIBRARY.gmb_queue_wait(self.handle, timeout_ms)
        if count < 0:
            raise Error(count, "cannot wait inside a callback")
        return count

    def wake(self):
        LIBRARY.gmb_queue_wake(self.handle)

    def fd(self):
        return LIBRARY.gmb_queue_fd(self.handle)

    def attach(self, loop):
        """Lets an asyncio loop do the waiting."""
        self.loop = loop
        loop.add_reader(self.fd(), self.wait, 0)


def open(uri, **options):  # pylint: disable=redefined-builtin
    """An export on a queue of its own, which ends with it."""
    queue = Queue()
    try:
        client = queue.open(uri, **options)
    except BaseException:
        queue.destroy()
        raise
    client.owns_queue = True
    return client


class Client(_Open):
    """An export that is open."""

    def __init__(self, queue, uri, event=None, **options):
        super().__init__()
        self.queue = queue
        self.owns_queue = False
        self.pending = {}  # keeps requests in flight, and their memory, where they are
        error = _Error()
        # The library holds the function as long as the client lives.
        self.event = EVENT_FUNCTION(
            lambda _, number, text: event(EVENTS[number], text.decode()) if event else None)
        full = Options(event=self.event, **options)
        code = LIBRARY.gmb_open(
            queue.handle, uri.encode(), byref(full), byref(self.handle), byref(error))
        if code != 0:
            raise Error(code, error.text.decode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._handle is None:
            return
        code = LIBRARY.gmb_close(self.handle)
        if code != 0:
            raise Error(code, "cannot close inside a callback")
        self._handle = None
        if self.owns_queue:
            self.queue.destroy()

    def info(self):
        info = Info(size=sizeof(Info))
        LIBRARY.gmb_get_info(self.handle, byref(info))
        return info

    def capabilities(self):
        bits = self.info().capabilities
        return {name for bit, name in enumerate(CAPABILITIES) if bits & 1 << bit}

    def stats(self):
        stats = Stats(size=sizeof(Stats))
        LIBRARY.gmb_get_stats(self.handle, byref(stats))
        return stats

    def server(self):
        """The address of the server in use."""
        return LIBRARY.gmb_server(self.handle).decode(errors="surrogateescape")

    def explain(self, request):
        text = ctypes.create_string_buffer(1024)
        return LIBRARY.gmb_explain(self.handle, byref(request), text, sizeof(text)).decode()

    # Requests of all kinds; what they refer to is kept with them.

    def new_read(self, length, offset, flags=0, extents_max=0):
        buffer = ctypes.create_string_buffer(max(length, 1))
        request = Request()
        LIBRARY.gmb_prepare_read(byref(request), buffer, length, offset)
        request.flags = flags
        request.buffer = buffer
        if extents_max:
            request.extents = (Extent * extents_max)()
            request.extents_max = extents_max
        return request

    def new_write(self, data, offset, flags=0):
        buffer = ctypes.create_string_buffer(bytes(data), max(len(data), 1))
        request = Request()
        LIBRARY.gmb_prepare_write(byref(request), buffer, len(data), offset)
        request.flags = flags
        request.buffer = buffer
        return request

    def new(self, operation, offset=0, length=0, flags=0):
        request = Request()
        LIBRARY.gmb_prepare(byref(request), operation, offset, length)
        request.flags = flags
        return request

    def new_status(self, offset, length, extents_max=64, flags=0):
        room = (Extent * extents_max)()
        request = Request()
        LIBRARY.gmb_prepare_status(byref(request), room, extents_max, offset, length)
        request.room = room
        request.flags = flags
        return request

    def submit(self, request, done=None):
        """done(request) is called from Queue.wait()."""
        def called(_):
            del self.pending[id(request)]
            if done is not None:
                done(request)

        request.done = DONE_FUNCTION(called)
        self.pending[id(request)] = (request, request.done)
        LIBRARY.gmb_submit_sized(self.handle, byref(request), sizeof(Request))

    def cancel(self, request):
        """Whether a request ends early, with -ECANCELED."""
        return LIBRARY.gmb_cancel(self.handle, byref(request)) == 0

    def run(self, request):
        code = LIBRARY.gmb_run_sized(self.handle, byref(request), sizeof(Request))
        if code != 0:
            raise Error(code, self.explain(request))
        return request

    # Blocking.

    def pread(self, length, offset, flags=0):
        return self.run(self.new_read(length, offset, flags)).buffer.raw[:length]

    def pwrite(self, data, offset, flags=0):
        self.run(self.new_write(data, offset, flags))

    def flush(self):
        self.run(self.new(FLUSH))

    def trim(self, offset, length, flags=0):
        self.run(self.new(TRIM, offset, length, flags))

    def zero(self, offset, length, flags=0):
        self.run(self.new(ZERO, offset, length, flags))

    def cache(self, offset, length):
        self.run(self.new(CACHE, offset, length))

    def copy(self, offset, source, source_offset, length, flags=0):
        """The server copies from another client of the queue; the bytes do not come here."""
        request = Request()
        LIBRARY.gmb_prepare_copy(byref(request), offset, source.handle, source_offset, length)
        request.flags = flags
        self.run(request)

    def extents(self, offset=0, length=None):
        """(offset, bytes, flags) of the range, to its end, each as the server tells it."""
        end = self.info().bytes if length is None else offset + length
        while offset < end:
            for extent in extents(self.run(self.new_status(offset, end - offset))):
                yield extent
                offset = extent[0] + extent[1]

    # In an asyncio loop that the queue is attached to.

    def arun(self, request):
        """A future of the request."""
        future = self.queue.loop.create_future()

        def done(request):
            if future.cancelled():
                return
            if request.result == 0:
                future.set_result(request)
            else:
                future.set_exception(Error(request.result, self.explain(request)))

        self.submit(request, done)
        # Sends it, together with what else is submitted before the loop turns.
        self.queue.loop.call_soon(self.queue.wait, 0)
        return future

    async def apread(self, length, offset, flags=0):
        request = await self.arun(self.new_read(length, offset, flags))
        return request.buffer.raw[:length]

    async def apwrite(self, data, offset, flags=0):
        await self.arun(self.new_write(data, offset, flags))


def extents(request):
    """What a request tells about holes and zeroes."""
    return [(extent.offset, extent.bytes, extent.flags)
            for extent in request.extents[:request.extent_count]]


def scatter(*buffers):
    """A scatter list of ctypes buffers."""
    return (Iovec * len(buffers))(
        *(Iovec(ctypes.cast(buffer, c_void_p), sizeof(buffer)) for buffer in buffers))
