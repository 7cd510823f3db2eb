// SPDX-License-Identifier: Apache-2.0
/*
 * An MPI program that checks every byte it gets:
 *
 *   mpi_exchange all         messages of all sizes, everybody with everybody, windows, collectives
 *   mpi_exchange die RANK ROUND        that rank is killed in the middle of it
 *   mpi_exchange rate BYTES ROUNDS     microseconds of a round trip between ranks 0 and 1
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES_MAX = 5 << 20, BLOCK = 3000 };

static int rank;
static int ranks;

static void wrong(const char *what)
{
	printf("rank %d: %s: wrong data\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned char value(size_t at, int from, int to)
{
	return (unsigned char)(at * 31 + (unsigned int)from * 7 + (unsigned int)to * 3 +
			       (at >> 12));
}

static void fill(unsigned char *bytes, size_t count, int from, int to)
{
	for (size_t i = 0; i < count; i++) {
		bytes[i] = value(i, from, to);
	}
}

static void check(const unsigned char *bytes, size_t count, int from, int to, const char *what)
{
	for (size_t i = 0; i < count; i++) {
		if (bytes[i] != value(i, from, to)) {
			wrong(what);
		}
	}
}

/* Everybody sends to everybody at once: all first connections cross. */
static void everybody(size_t count)
{
	unsigned char *out = malloc((size_t)ranks * count);
	unsigned char *in = malloc((size_t)ranks * count);
	MPI_Request *requests = malloc((size_t)ranks * 2 * sizeof(MPI_Request));

	for (int peer = 0; peer < ranks; peer++) {
		fill(out + (size_t)peer * count, count, rank, peer);
		MPI_Irecv(in + (size_t)peer * count, (int)count, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
			&requests[peer]);
		MPI_Isend(out + (size_t)peer * count, (int)count, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
			&requests[ranks + peer]);
	}
	MPI_Waitall(2 * ranks, requests, MPI_STATUSES_IGNORE);
	for (int peer = 0; peer < ranks; peer++) {
		check(in + (size_t)peer * count, count, peer, rank, "exchange");
	}
	free(out);
	free(in);
	free(requests);
}

/* Receives are posted after the messages have come, in another order. */
static void unexpected(void)
{
	enum { COUNT = 300 };
	int to = (rank + 1) % ranks;
	int from = (rank + ranks - 1) % ranks;
	static unsigned char out[COUNT][64];
	unsigned char in[64];
	MPI_Request requests[COUNT];

	for (int i = 0; i < COUNT; i++) {
		fill(out[i], 64, rank, i);
		MPI_Isend(out[i], 64, MPI_BYTE, to, 100 + i, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = COUNT - 1; i >= 0; i--) {
		MPI_Recv(in, 64, MPI_BYTE, from, 100 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check(in, 64, from, i, "unexpected messages");
	}
	MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
}

static void windows(void)
{
	int to = (rank + 1) % ranks;
	int from = (rank + ranks - 1) % ranks;
	unsigned char *memory;
	unsigned char *own = malloc(BLOCK);
	MPI_Win window;

	MPI_Win_allocate(2 * BLOCK, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	fill(memory, BLOCK, rank, 99);
	MPI_Win_fence(0, window);
	fill(own, BLOCK, rank, to);
	MPI_Put(own, BLOCK, MPI_BYTE, to, BLOCK, BLOCK, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	check(memory + BLOCK, BLOCK, from, rank, "put");
	memset(own, 0, BLOCK);
	MPI_Get(own, BLOCK, MPI_BYTE, to, 0, BLOCK, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	check(own, BLOCK, to, 99, "get");
	MPI_Win_free(&window);
	free(own);
}

static void collectives(void)
{
	unsigned char *bytes = malloc(BYTES_MAX);
	long sum = rank + 1;
	long total = 0;

	MPI_Allreduce(&sum, &total, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (total != (long)ranks * (ranks + 1) / 2) {
		wrong("sum");
	}
	for (int root = 0; root < ranks; root++) {
		memset(bytes, 0, BYTES_MAX);
		if (rank == root) {
			fill(bytes, BYTES_MAX, root, 0);
		}
		MPI_Bcast(bytes, BYTES_MAX, MPI_BYTE, root, MPI_COMM_WORLD);
		check(bytes, BYTES_MAX, root, 0, "broadcast");
	}
	free(bytes);
}

static void everything(void)
{
	static const size_t sizes[] = { 1, 64, 8184, 16000, 16384, 16385, 65536, 1 << 20,
		BYTES_MAX };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		everybody(sizes[i]);
	}
	unexpected();
	windows();
	collectives();
}

static void die(int victim, int round)
{
	/* Sizes that are sent at once, and that are asked for. */
	static const size_t sizes[] = { 40000, 300, 1 << 20 };

	for (int i = 0;; i++) {
		if (i == round && rank == victim) {
			kill(getpid(), SIGKILL);
		}
		everybody(sizes[i % 3]);
	}
}

static void rate(size_t bytes, int rounds)
{
	unsigned char *out = malloc(bytes);
	unsigned char *in = malloc(bytes);
	double start = 0;

	fill(out, bytes, rank, 0);
	for (int i = -rounds / 10; i < rounds; i++) {
		if (i == 0) {
			start = MPI_Wtime();
		}
		if (rank == 0) {
			MPI_Send(out, (int)bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		}
		MPI_Recv(in, (int)bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1) {
			MPI_Send(out, (int)bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		}
	}
	start = MPI_Wtime() - start;
	check(in, bytes, 1 - rank, 0, "round trip");
	if (rank == 0) {
		printf("%.3f us\n", start / rounds * 1e6);
	}
	free(out);
	free(in);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc == 4 && strcmp(argv[1], "rate") == 0) {
		rate(strtoul(argv[2], NULL, 10), (int)strtoul(argv[3], NULL, 10));
	} else if (argc == 4 && strcmp(argv[1], "die") == 0) {
		die((int)strtoul(argv[2], NULL, 10), (int)strtoul(argv[3], NULL, 10));
	} else {
		everything();
		if (rank == 0) {
			printf("%d ranks: all data correct\n", ranks);
		}
	}
	MPI_Finalize();
	return 0;
}
