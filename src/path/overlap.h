// SPDX-License-Identifier: Apache-2.0
/*
 * Choice of the part size of reads and writes, so that disk and network work at the same time.
 *
 * A transfer of l bytes in parts of c takes t1 + t2 + t3 = c/d + (l - c)/min(d, n) + c/n with a
 * disk of d and a network of n bytes per second: the first part is read, then both work, then the
 * last part is sent. Each part also costs CPU time k. The total time is shortest for
 *
 *   c = sqrt(l k max(d, n)),
 *
 * where l is the total length of the requests in flight (request_bytes below): with several
 * requests, disk and network overlap anyway, and larger parts are cheaper. Both rates are measured,
 * the disk's rate in store_submit(). While n is unknown, d is used instead. The m members of a
 * striped disk work on m parts at the same time, each at a share of d. So their parts have c / m
 * bytes, and the members together have as much unfinished data as a single disk.
 *
 * Some disks complete all parts of a request together, whatever their size, because they process
 * one command internally. Parts then only cost time. Other disks add latency to each part, so that
 * many parts take longer than one. So the path also measures how early parts arrive, and how long
 * requests take with and without parts. If a disk is faster with whole requests, they are not cut,
 * except for an occasional trial.
 *
 * Threading: the path's thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

struct path_request;

enum {
	OVERLAP_BYTES_MIN = 16 << 10,
	OVERLAP_BYTES_MAX = 1 << 20,
	/* Shorter requests are not measured, and are one part unless a part size is configured. */
	OVERLAP_REQUEST_BYTES_MIN = 2 * OVERLAP_BYTES_MIN,
	OVERLAP_EARLY_ONE = 1024,
};

struct overlap {
	uint64_t network_rate; /* bytes per second while the network was busy; 0 = unknown */
	/* How early parts arrive. 0: all at the end of the request. OVERLAP_EARLY_ONE / 2: at
	 * regular intervals, which is the assumption before the first measurement. */
	uint32_t early;
	bool early_measured;
	uint32_t chosen; /* the last part size chosen for a request that is cut */
	/* Total length of the requests in flight, without those that cut_begin() does not measure,
	 * such as short requests and durable writes. A read is counted until the session has all of
	 * its bytes. */
	uint64_t request_bytes;

	/* Bytes per second of requests that ran alone, from their start to the last byte sent: of
	 * requests that were cut, and of whole ones. 0 = unknown. */
	uint64_t cut_rate;
	uint64_t whole_rate;

	/* Private members. */
	uint32_t since_try;
	uint32_t cuts; /* number of requests for which cutting was chosen */
};

void overlap_init(struct overlap *overlap);

/*
 * Returns the best part size for a request of length bytes: a power of two or chunk, from
 * OVERLAP_BYTES_MIN to OVERLAP_BYTES_MAX. OVERLAP_BYTES_MAX means that the request is not cut. The
 * request must already be counted in request_bytes. disk_rate: bytes per second; 0 = unknown.
 * chunk: on a striped disk, bytes on one member before the data continues on the next one; 0 = not
 * striped. members: number of members of a striped disk.
 */
uint32_t overlap_choose(struct overlap *overlap, uint64_t disk_rate, uint64_t length,
	uint32_t chunk, uint32_t members);

/* Records a completed request that was cut into parts. mean_ns: time from the start of the request
 * to the completion of a part, averaged over all parts and weighted by size; whole_ns: time until
 * the last part was complete. */
void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns);

/* Records a request that ran alone. took_ns: its duration, > 0. */
void overlap_learn_request(struct overlap *overlap, uint64_t bytes, uint64_t took_ns, bool cut);

/* Records that the network sent these bytes and was busy for busy_ns (>= 1024). If the disk is
 * slower than the network, this is only a lower bound of the network's rate. */
void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns);

/* --- position of the parts; private to src/path ---------------------------------------------- */

/*
 * The parts of a request are in ascending order. On a striped disk, the parts of each row of chunks
 * are ordered so that all members are busy: first one part of each member, then a second part of
 * each member, and so on:
 *
 *        member 0        member 1        member 2
 *   row  [0  3     6   ] [1    4     7 ] [2      5     8]
 *
 * The first parts have different lengths, so that the members complete their parts at different
 * times. On average, this halves the amount of data that is in incomplete parts. No part crosses
 * the end of a chunk. All state is in the request.
 */

/* Parts end at multiples of this number in the export, so that only the first and the last part of
 * a request can be unaligned. */
enum { SPLIT_ALIGN = 4096 };

/* Range of a part, and the number of bytes after which its first progress is reported. */
struct cut_range {
	uint64_t offset;
	uint64_t bytes;
	uint64_t progress_first;
};

/* Called when a read or write starts: decides how it is cut. A request shorter than
 * OVERLAP_REQUEST_BYTES_MIN on an export without a configured part size is always one part and does
 * not need this call. */
void cut_begin(struct path_request *request);
/* Returns the expected time from one part or progress report to the next; 0 = unknown. */
uint64_t cut_step_ns(const struct path_request *request);
/*
 * Called when all bytes of the request were given to the session: from now on, the request does not
 * count as using the disk. This and the next two functions are called only if request->measured.
 */
void cut_handed(struct path_request *request);
/* Called when the request has ended. */
void cut_end(struct path_request *request, uint64_t now_ns);
/* Called when the store has completed a part. */
void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns);

/* Returns the next part. Called only if more bytes are left than the part size, or if the request
 * is striped. */
struct cut_range cut_next(struct path_request *request);
/* Called if only the first bytes of the range were started. The next cut_next() returns the
 * rest. */
void cut_return(struct path_request *request, const struct cut_range *range, uint64_t bytes);

/* --- placement.c: the requester's own memory; private to src/path ---------------------------- */

struct mem_segment;
struct path_stream;

/* Called when a request with a placement starts. Removes the placement if the store cannot use its
 * memory. */
void placement_check(struct path_request *request);
/* Returns the placement's memory for the byte at this offset of the export, and the number of bytes
 * to the end of its segment. */
struct mem_segment placement_at(struct path_request *request, uint64_t offset);
/* Stores in *bytes_out the length of the next part, which starts at the beginning of the range.
 * Returns true if the part uses the placement directly, false if it is copied. */
bool placement_run(
	struct path_request *request, const struct cut_range *range, uint64_t *bytes_out);
/* Copies data between a part's buffer and the placement: after a read, or before a write. */
void placement_copy(struct path_stream *stream);
