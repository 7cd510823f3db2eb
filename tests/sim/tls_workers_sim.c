// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated twin of src/tls/workers.c, chosen at link time: a job is a worker call of the
 * simulated ring. There is no priority, because no time passes while code runs.
 */

#include "tls/pool.h"

int tls_workers_create(uint32_t threads, struct tls_workers **workers_out, struct error *error)
{
	*workers_out = NULL;
	return 0;
}

void tls_workers_destroy(struct tls_workers *workers)
{
	GMB_ASSERT(workers == NULL);
}

void tls_workers_synchronize(struct tls_workers *workers)
{
	GMB_ASSERT(workers == NULL);
}

static int call(struct ring_op *op)
{
	struct tls_job *job = container_of(op, struct tls_job, op);

	job->run(job);
	return 0;
}

static void call_done(struct ring_op *op, int result)
{
	struct tls_job *job = container_of(op, struct tls_job, op);

	GMB_ASSERT(result == 0);
	job->done(job);
}

int tls_workers_submit(struct tls_workers *workers, struct tls_job *job)
{
	GMB_ASSERT(workers == NULL);
	ring_call(job->ring, &job->op, call, call_done);
	return 0;
}
