#!/usr/bin/python3
"""`gmblock copy` from and to nbdkit, qemu-nbd and nbd-server."""

import contextlib
import os
import signal
import socket
import subprocess

from captive import MIB, ODD_BYTES, Gmblock, Skip, main, make_file, pattern, refused, \
    require_program, run
import ports

SMALL_BYTES = 24 * MIB + 512 * 3


def copy(*arguments):
    return run(os.environ["GMBLOCK"], "copy", "--verify", *arguments)


def disk(folder, name, size, full=False):
    """Data, holes, and data again at the very end; full: old data everywhere."""
    path = os.path.join(folder, name)
    if full:
        return make_file(path, size, (b"old data" * (size // 8 + 1))[:size])
    make_file(path, size, pattern(0, 3 * MIB + 5), offset=4096)
    with open(path, "r+b") as out:
        out.seek(size - MIB - 77)
        out.write(pattern(0, MIB + 77, seed=2))
    return path


def same(one, other, size):
    result = subprocess.run(["cmp", "--bytes=%d" % size, one, other], check=False,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def answers(path, process):
    """Until the server greets at its socket; it ends the test when it ends itself."""
    while process is None or process.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
                if probe.recv(8) == b"NBDMAGIC":
                    return
            except OSError:
                pass
    raise AssertionError("the server ended: " + process.stderr.read())


@contextlib.contextmanager
def peer(folder, name, *command):
    """A server in the foreground at a Unix socket of this name."""
    path = os.path.join(folder, name)
    process = subprocess.Popen([word.replace("SOCKET", path) for word in command],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        answers(path, process)
        yield "nbd+unix:///?socket=" + path
    finally:
        process.terminate()
        process.communicate()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def nbdkit(folder, image, *options, name="nbdkit.sock"):
    require_program("nbdkit")
    return peer(folder, name, "nbdkit", "--foreground", "--exit-with-parent", "--unix", "SOCKET",
                *options, "file", image)


def require_filter(name):
    require_program("nbdkit")
    if subprocess.run(["nbdkit", "--filter=" + name, "null", "--dump-plugin"], check=False,
                      capture_output=True).returncode != 0:
        raise Skip("nbdkit has no filter " + name)


def qemu_nbd(folder, image, name="qemu.sock"):
    require_program("qemu-nbd")
    return peer(folder, name, "qemu-nbd", "--persistent", "--shared=8", "--format=raw",
                "--discard=unmap", "--socket=SOCKET", image)


@contextlib.contextmanager
def nbd_server(folder, image):
    """It wants a configuration, and has no default export."""
    require_program("nbd-server")
    port = ports.free()  # it opens a TCP port in any case
    config = os.path.join(folder, "nbd-server.conf")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "server.sock"))
    with open(config, "w", encoding="ascii") as out:
        out.write("[generic]\nlistenaddr = 127.0.0.1\nport = %d\nunixsock = %s\n"
                  "[disk]\nexportname = %s\nflush = true\nfua = true\ntrim = true\n"
                  % (port, os.path.join(folder, "server.sock"), image))
    pid_path = os.path.join(folder, "nbd-server.pid")
    # It makes itself a daemon; once its parent process has ended the file is there.
    run("nbd-server", "-C", config, "-p", pid_path)
    try:
        answers(os.path.join(folder, "server.sock"), None)
        yield "nbd+unix:///disk?socket=" + os.path.join(folder, "server.sock")
    finally:
        with open(pid_path, encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGTERM)


def both_ways(folder, serve, size):
    """Down from the peer into a file, up to the peer over old data."""
    source = disk(folder, "source", size)
    with serve(folder, source) as uri:
        down = os.path.join(folder, "down")
        copy(uri, down)
    same(source, down, size)
    assert os.path.getsize(down) == size
    assert os.stat(down).st_blocks * 512 < 8 * MIB, "holes were lost"
    target = disk(folder, "target", size, full=True)
    with serve(folder, target) as uri:
        copy(source, uri)
    same(source, target, size)


def test_nbdkit(folder):
    both_ways(folder, nbdkit, ODD_BYTES)


def test_qemu_nbd(folder):
    both_ways(folder, qemu_nbd, SMALL_BYTES)


def test_nbd_server(folder):
    both_ways(folder, nbd_server, SMALL_BYTES)


def test_from_peer_to_gmblock_and_back(folder):
    source = disk(folder, "source", SMALL_BYTES)
    middle = disk(folder, "middle", SMALL_BYTES, full=True)
    back = disk(folder, "back", SMALL_BYTES, full=True)
    with Gmblock(folder, {"": middle}) as server:
        with qemu_nbd(folder, source) as uri:
            copy(uri, server.uri())
        same(source, middle, SMALL_BYTES)
        with nbdkit(folder, back) as uri:
            copy(server.uri(), uri)
    same(source, back, SMALL_BYTES)


def test_target_that_takes_whole_blocks_only(folder):
    """The image ends in the middle of a block of the target, whose rest has to stay."""
    size = 5 * MIB + 1234
    source = disk(folder, "source", size)
    target = disk(folder, "target", 6 * MIB, full=True)
    before = disk(folder, "before", 6 * MIB, full=True)
    require_filter("blocksize-policy")
    with peer(folder, "blocks.sock", "nbdkit", "--foreground", "--unix", "SOCKET",
              "--filter=blocksize-policy", "file", target, "blocksize-minimum=4096", "blocksize-preferred=4096",
              "blocksize-maximum=1M", "blocksize-error-policy=error") as uri:
        copy(source, uri)
    same(source, target, size)
    with open(target, "rb") as now, open(before, "rb") as then:
        now.seek(size)
        then.seek(size)
        assert now.read() == then.read(), "bytes behind the copy were changed"


def test_target_without_zeroes_and_trim(folder):
    """Zeroes have to be written where the server has no command for them."""
    source = disk(folder, "source", SMALL_BYTES)
    target = disk(folder, "target", SMALL_BYTES, full=True)
    require_filter("nozero")
    with nbdkit(folder, target, "--filter=nozero", "--filter=noextents") as uri:
        copy(source, uri)
    same(source, target, SMALL_BYTES)


def test_source_that_tells_no_holes(folder):
    source = disk(folder, "source", SMALL_BYTES)
    down = os.path.join(folder, "down")
    with nbdkit(folder, source, "--filter=noextents") as uri:
        copy(uri, down)
    same(source, down, SMALL_BYTES)
    assert os.stat(down).st_blocks * 512 < 8 * MIB, "zeroes in the data were not found"


def test_errors_of_a_peer(folder):
    source = disk(folder, "source", SMALL_BYTES, full=True)
    require_filter("error")
    with peer(folder, "error.sock", "nbdkit", "--foreground", "--unix", "SOCKET",
              "--filter=error", "file", source, "error-pread=EIO", "error-pread-rate=20%") as uri:
        said = refused(os.environ["GMBLOCK"], "copy", uri, os.path.join(folder, "down"))
        assert "the source" in said and "Input/output error" in said, said
        assert "holds a partial copy" in said, said


def test_read_only_peer(folder):
    source = disk(folder, "source", SMALL_BYTES)
    with nbdkit(folder, disk(folder, "target", SMALL_BYTES), "--readonly") as uri:
        said = refused(os.environ["GMBLOCK"], "copy", source, uri)
        assert "the target" in said and "read-only" in said and "was not changed" in said, said


def test_resume_needs_a_flush(folder):
    """Nothing is known to be durable at a server that cannot flush."""
    source = disk(folder, "source", MIB * 8)
    target = disk(folder, "target", MIB * 8)
    script = "\n".join(["case $1 in", "get_size) echo %d;;" % (8 * MIB),
                        "can_write) exit 0;;", "can_flush) exit 3;;",
                        "pread) dd iflag=skip_bytes,count_bytes if=%s skip=$4 count=$3;;" % target,
                        "pwrite) dd oflag=seek_bytes conv=notrunc of=%s seek=$4;;" % target,
                        "*) exit 2;;", "esac"])
    path = os.path.join(folder, "plugin.sh")
    with open(path, "w", encoding="ascii") as out:
        out.write("#!/bin/sh\n" + script + "\n")
    os.chmod(path, 0o755)
    require_program("nbdkit", "dd")
    with peer(folder, "sh.sock", "nbdkit", "--foreground", "--unix", "SOCKET", "sh", path) as uri:
        said = refused(os.environ["GMBLOCK"], "copy", "--resume", os.path.join(folder, "journal"),
                       source, uri)
        assert "does not support flush" in said, said
        copy(source, uri)
    same(source, target, 8 * MIB)


if __name__ == "__main__":
    main()
