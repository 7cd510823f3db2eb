"""vhost-user-blk exports of gmblock and qemu-storage-daemon, and a disk that moves no data.

What: recipes for servers.start(); NullDisk() stands in the place of a rig.Disk for both of them.
Ownership: plain values.
Errors: as in servers.
"""

from . import servers


class Gmblock(servers.Gmblock):
    def uri(self, address, export=servers.EXPORT):
        # The socket has one export, which the listener names, too.
        return super().uri(address, servers.EXPORT)


class StorageDaemon(servers.Recipe):
    """With an I/O thread, which polls for up to 32 µs before it sleeps, as QEMU chooses."""

    program = "qemu-storage-daemon"

    def command(self, disk_path, address, folder):
        node = ("driver=null-co,read-zeroes=on,size=%s" % disk_path.removeprefix("null:")
                if disk_path.startswith("null:") else
                "driver=host_device,filename=%s,aio=io_uring,cache.direct=on" % disk_path)
        return [self.program_path(), "--object", "iothread,id=thread", "--blockdev", node + ",node-name=disk",
                "--export", "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path=%s"
                ",writable=on,iothread=thread" % address]


class NullDisk:
    """Reads return zeroes, and the disk of the machine is not in use."""

    def __init__(self, size_bytes):
        self.path = "null:%d" % size_bytes
        self.size_bytes = size_bytes

    def device_bytes_read(self):
        return 0

    def settle(self):
        pass
