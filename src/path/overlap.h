// SPDX-License-Identifier: Apache-2.0
/*
 * How large the parts of a read or write should be, so that disk and network work at the same time.
 *
 * A transfer of l bytes in parts of c takes  t1 + t2 + t3 = c/d + (l - c)/min(d, n) + c/n  with a
 * disk of d and a network of n bytes a second: the first part is read, then both work, then the
 * last part is sent. Each part also costs some time of the processor, k. The sum of both is least
 * for
 *
 *   c = sqrt(l k max(d, n)),
 *
 * where l stands for all bytes in flight: with several requests there is always something to
 * overlap with, and larger parts are cheaper. Both rates are measured; while n is unknown d stands
 * for it. The m members of a striped disk work on m parts at the same time, each with a share of d:
 * they get parts of c / m, so that together they have as much unfinished as one disk has.
 *
 * Some disks complete all parts of a request together, whatever their size (one command behind the
 * scenes): then parts are only a cost. On others each part pays a latency, and many take longer
 * than one. So it is also measured how early parts come, and how long requests take with and
 * without them; a disk that is better asked for whole requests is, with a try now and then.
 *
 * Threading: the path's thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

enum {
	OVERLAP_BYTES_MIN = 16 << 10,
	OVERLAP_BYTES_MAX = 1 << 20,
	OVERLAP_EARLY_ONE = 1024,
};

struct overlap {
	uint64_t disk_rate;    /* bytes a second while it had something to do; 0 = unknown */
	uint64_t network_rate; /* the same; 0 = unknown */
	/* How early parts come: 0 all at the end, OVERLAP_EARLY_ONE / 2 evenly, which is what is
	 * assumed before it was measured. */
	uint32_t early;
	bool early_measured;
	uint32_t chosen;	/* the last answer that said to cut */
	uint64_t request_bytes; /* of the requests under way; the path adds and subtracts */

	/* Bytes a second of single reads or writes as a whole, from request to last byte sent: of
	 * those that were cut, and of those that were not; 0 = unknown. */
	uint64_t cut_rate;
	uint64_t whole_rate;

	/* Private. */
	uint32_t since_try;
	uint32_t cuts; /* how often it was said to cut */
	uint32_t inflight;
	uint64_t busy_since_ns;
	uint64_t busy_bytes;
};

void overlap_init(struct overlap *overlap);

/* How many bytes a part should have, for a request of length bytes that is among those under way;
 * chunk: on one of members before the next one's turn, 0 = not striped. OVERLAP_BYTES_MIN to
 * OVERLAP_BYTES_MAX, a power of two or chunk; OVERLAP_BYTES_MAX also says: do not split. */
uint32_t overlap_choose(struct overlap *overlap, uint64_t length, uint32_t chunk, uint32_t members);

/* A transfer with the disk begins, and has ended. */
void overlap_disk_begin(struct overlap *overlap, uint64_t now_ns);
void overlap_disk_end(struct overlap *overlap, uint64_t bytes, uint64_t now_ns);

/* A request in parts is complete. Its parts, weighted by their size, took mean_ns from its
 * beginning, and the last one whole_ns. */
void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns);

/* A request that was alone has taken so long (> 0) in all. */
void overlap_learn_request(struct overlap *overlap, uint64_t bytes, uint64_t took_ns, bool cut);

/* So many bytes were sent while the network was busy for so long (> 0). Where the disk is slower it
 * is busy with what there is: then it only shows that it is not slower than the disk. */
void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns);
