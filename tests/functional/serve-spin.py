#!/usr/bin/python3
"""--spin of the server and of gmblock bench: a thread that must not poll never looks for an event without sleeping."""
import json

import bench_tool
import support

# Enough for the windows of a trial up to the first one that polls (src/base/wait_policy.h).
REQUESTS = 3000
# In a machine that is so busy that every window has a pause, no trial polls.
TRIES = 20


class Spin(bench_tool.BenchCase):
    def polls(self, server_spin, client_spin, protocol):
        """The looks of the server and of the client during a run at depth 1, where polling is tried."""
        control = self.path(f"control-{server_spin}-{client_spin}-{protocol}")
        server = self.start("--threads", "1", "--control", control, "--spin", server_spin, "memory:1M",
                            "--listen", f"{protocol}+unix:///?socket={self.path('socket-' + protocol)}")
        result = self.measured("--spin", client_spin, "--depth", "1", "--requests", str(REQUESTS), server.uri)
        self.assertEqual(result["requests"], REQUESTS)
        code, output, errors = self.run_gmblock("stats", "--json", control)
        self.assertEqual(code, 0, errors)
        server.stop()
        return json.loads(output)["counters"]["polls"], result["process"]["polls"]

    def test_nobody_polls_who_must_not(self):
        for protocol in ("nbd", "gmb"):
            self.assertEqual(self.polls("off", "off", protocol), (0, 0))

    def test_the_others_try_it(self):
        for server_spin, client_spin, side in (("auto", "off", 0), ("off", "auto", 1)):
            for _ in range(TRIES):
                polls = self.polls(server_spin, client_spin, "nbd")
                self.assertEqual(polls[1 - side], 0, polls)
                if polls[side] > 0:
                    break
            self.assertGreater(polls[side], 0)


if __name__ == "__main__":
    support.main()
