// SPDX-License-Identifier: Apache-2.0
/*
 * nbody PARTICLES STEPS: all-pairs gravity, each rank with its share of the particles, which
 * exchanges positions with the others in each step. Prints microseconds per step. bench/clan-paper
 * compiles it with mpicc.
 *
 * Checks what it gets: forces between pairs cancel, so that the momentum stays what it was; if it
 * does not, the ranks had different positions, and the job fails.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { DIMENSIONS = 3, PARTICLES_MAX = 65536 };
static double at[PARTICLES_MAX][DIMENSIONS], speed[PARTICLES_MAX][DIMENSIONS];

/* Of the particles from first to end. The sum of the squares keeps close pairs from flying apart.
 */
static void step(int first, int end, int count)
{
	for (int i = first; i < end; i++) {
		for (int j = 0; j < count; j++) {
			double away[DIMENSIONS], squares = 0.01;

			for (int k = 0; k < DIMENSIONS; k++) {
				away[k] = at[j][k] - at[i][k];
				squares += away[k] * away[k];
			}
			for (int k = 0; k < DIMENSIONS; k++) {
				speed[i][k] += 1e-6 * away[k] / (squares * sqrt(squares));
			}
		}
	}
}

/* 0: this is no number. */
static int number_of(int argc, char **argv, int idx)
{
	char *end;
	long value = idx < argc ? strtol(argv[idx], &end, 10) : 0;

	return idx < argc && *end == '\0' && value <= 10000000 ? (int)value : 0;
}

int main(int argc, char **argv)
{
	int rank, ranks, count = number_of(argc, argv, 1), steps = number_of(argc, argv, 2);
	double momentum[DIMENSIONS] = { 0 }, total[DIMENSIONS], start;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (count <= 0 || count > PARTICLES_MAX || count % ranks != 0 || steps <= 0) {
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (int i = 0; i < count * DIMENSIONS; i++) {
		at[i / DIMENSIONS][i % DIMENSIONS] = drand48(); /* the same for all */
	}
	int own = count / ranks, first = rank * own;
	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (int round = 0; round < steps; round++) {
		step(first, first + own, count);
		for (int i = first; i < first + own; i++) {
			for (int k = 0; k < DIMENSIONS; k++) {
				at[i][k] += speed[i][k];
			}
		}
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, at, own * DIMENSIONS, MPI_DOUBLE,
			MPI_COMM_WORLD);
	}
	double time = MPI_Wtime() - start;
	for (int i = first; i < first + own; i++) {
		for (int k = 0; k < DIMENSIONS; k++) {
			momentum[k] += speed[i][k];
		}
	}
	MPI_Allreduce(momentum, total, DIMENSIONS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	if (fabs(total[0]) + fabs(total[1]) + fabs(total[2]) > 1e-9 * count * steps) {
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	if (rank == 0) {
		printf("%.3f us\n", time * 1e6 / steps);
	}
	MPI_Finalize();
	return 0;
}
