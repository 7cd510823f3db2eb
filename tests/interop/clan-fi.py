#!/usr/bin/python3
"""Programs over libclan-fi: libfabric's own ping-pong, and Open MPI. All check their data, and the
provider's statistics tell that clan has carried it."""

import os
import re
import subprocess
import time

from captive import Skip, main, require_program
import ports

PROVIDER_DIR = os.environ["CLAN_FI_DIR"]
HERE = os.path.dirname(os.path.realpath(__file__))
TUNE = os.path.join(HERE, "..", "..", "packaging", "openmpi-clan.conf")
SECONDS_MAX = 240
SOAK_JOBS = int(os.environ.get("SOAK_CLAN_FI_JOBS", "0"))
ROUNDS = 5  # both poll, and may have to share a processor: a round can take a time slice
ENDED = re.compile(r"a connection was closed: (\d+) bytes sent, (\d+) received")


def environment(**more):
    env = dict(os.environ, FI_PROVIDER_PATH=PROVIDER_DIR, FI_LOG_LEVEL="info", FI_LOG_PROV="clan",
               OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)
    env.pop("MALLOC_PERTURB_", None)  # of the test suite: mpirun itself does not stand it
    return env


def carried(text):
    """Connections that have ended, and the bytes that they sent."""
    ends = ENDED.findall(text)
    return len(ends), sum(int(sent) for sent, _ in ends)


def skip_if_sanitized():
    """The programs are not built with the sanitizers that the library then needs."""
    library = os.path.join(PROVIDER_DIR, "libclan-fi.so")
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    if "libasan" in needed or "libtsan" in needed:
        raise Skip("the library has sanitizers, and the programs have none")


def start_server(base):
    """A ping-pong server that listens, and its port."""
    port = ports.free()
    server = subprocess.Popen([*base, "-B", str(port)], env=environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + SECONDS_MAX
    while server.poll() is None and not listens(port) and time.monotonic() < deadline:
        time.sleep(0.01)
    if server.poll() is not None or not listens(port):
        server.kill()
        raise AssertionError(server.communicate()[0])
    return server, port


def ping_pong(provider, endpoint):
    """Messages of up to 1 MiB, checked at both ends. The port is its own, for control."""
    require_program("fi_pingpong")
    skip_if_sanitized()
    base = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", str(ROUNDS)]
    server, port = start_server(base)
    with server:
        try:
            client = subprocess.run([*base, "-P", str(port), "127.0.0.1"], env=environment(),
                                    capture_output=True, text=True, timeout=SECONDS_MAX,
                                    check=False)
            output, _ = server.communicate(timeout=SECONDS_MAX)
        finally:
            server.kill()
    both = client.stdout + client.stderr + output
    assert client.returncode == 0 and server.returncode == 0, both
    ends, sent = carried(both)
    assert ends >= 2, both
    assert sent > 2 * ROUNDS * (1 << 20), (sent, both)


def listens(port):
    """Looks into the kernel's table: a connection would be taken for the client."""
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    with open("/proc/net/tcp6", encoding="ascii") as table:
        rows += [line.split() for line in table][1:]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def test_ping_pong_of_connected_endpoints(_folder):
    ping_pong("clan", "msg")


def test_ping_pong_of_datagrams_that_are_reliable(_folder):
    ping_pong("clan;ofi_rxm", "rdm")


def mpi_program(folder):
    require_program("mpicc", "mpirun")
    skip_if_sanitized()
    program = os.path.join(folder, "mpi_exchange")
    subprocess.run(["mpicc", "-O1", "-o", program, os.environ["MPI_EXCHANGE"]],
                   check=True)
    return program


def mpirun(program, ranks, *arguments):
    """The ranks poll, and there may be more of them than processors: each yields."""
    with subprocess.Popen(
        ["mpirun", "--tune", TUNE, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1",
         "-n", str(ranks), program, *arguments],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            output, errors = job.communicate(timeout=SECONDS_MAX)
        finally:
            job.terminate()  # mpirun ends the ranks
    return job.returncode, output, errors


def exchange(folder, ranks):
    status, output, errors = mpirun(mpi_program(folder), ranks, "all")
    assert status == 0, output + errors
    assert f"{ranks} ranks: all data correct" in output, output
    ends, sent = carried(errors)
    # Everybody with everybody and itself; the largest message alone has 5 MiB.
    assert ends >= ranks * ranks, errors
    assert sent > ranks * ranks * (5 << 20), (sent, errors)


def test_two_ranks(folder):
    exchange(folder, 2)


def test_four_ranks(folder):
    exchange(folder, 4)


def test_a_rank_that_is_killed_ends_the_job(folder):
    die(mpi_program(folder), 3, 1, 20)


def die(program, ranks, victim, turn):
    status, output, errors = mpirun(program, ranks, "die", str(victim), str(turn))
    assert status != 0, output + errors
    assert "signal 9" in output + errors, output + errors


if SOAK_JOBS:
    def test_ranks_that_are_killed_at_many_places(folder):
        """Each of four; the next job finds nothing of the last one in its way."""
        program = mpi_program(folder)
        for number in range(SOAK_JOBS):
            die(program, 4, number % 4, number // 4 * 3)
            if number % 10 == 9:
                status, output, errors = mpirun(program, 4, "all")
                assert status == 0 and "4 ranks: all data correct" in output, output + errors


if __name__ == "__main__":
    main()
