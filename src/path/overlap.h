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
 * many parts take longer than one. If the disk and the network are much faster than the CPU, parts
 * cost more time than they save. So the path compares the throughput of whole requests and of
 * requests in parts (base/trial.h), beginning with whole ones. Requests are cut only if this
 * clearly increases the throughput. Pauses of the clients do not count, but when a request has
 * ended, the network can still have bytes of its reply. The time to send these bytes counts,
 * because it is what parts save.
 *
 * Threading: the path's thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/trial.h"
#include "ring/ring.h"

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

	/* Bytes of replies that the network still has, from overlap_replied(); used once, when the
	 * request ends. */
	uint64_t undelivered_bytes;

	/* Private members. */
	struct trial trial; /* way 0: whole requests, way 1: in parts */
	uint64_t window_start_ns;
	uint64_t window_bytes;	  /* their bytes */
	uint32_t window_requests; /* requests that have ended in the window */
	/* Number of requests that had begun before the window and have not ended. The window starts
	 * after them. */
	uint32_t window_skips;
	uint32_t inflight; /* number of compared requests in flight */
	uint64_t last_end_ns;
	uint64_t last_drain_ns; /* of the request that has ended last, see overlap_end() */
};

/* What a session has measured of the network of its connection. Initialized to zero. */
struct overlap_network {
	struct ring_traffic traffic; /* at the last measurement */
	uint64_t look_ns;	     /* time of the last measurement */
	uint64_t hole_bytes; /* set by the session: bytes sent as holes since that measurement */
};

void overlap_init(struct overlap *overlap);

/*
 * Returns the best part size for a request of length bytes: a power of two or chunk, from
 * OVERLAP_BYTES_MIN to OVERLAP_BYTES_MAX. OVERLAP_BYTES_MAX means that parts would cost more than
 * they save. The request must already be counted in request_bytes. disk_rate: bytes per second; 0 =
 * unknown. chunk: on a striped disk, bytes on one member before the data continues on the next one;
 * 0 = not striped. members: number of members of a striped disk.
 */
uint32_t overlap_choose(const struct overlap *overlap, uint64_t disk_rate, uint64_t length,
	uint32_t chunk, uint32_t members);

/* Called when a request begins for which overlap_choose() has returned a part size. Returns whether
 * the request is cut. */
bool overlap_begin(struct overlap *overlap, uint64_t now_ns);

/* Called once for each overlap_begin(), when the request has ended. bytes: its length; 0 if it has
 * failed. drain_ns: time that the network still needs for the reply. */
void overlap_end(struct overlap *overlap, uint64_t bytes, uint64_t drain_ns, uint64_t now_ns);

/*
 * Called by a session that has sent all bytes of a read with request->measured, before
 * path_finish(). Records how many bytes the network still has to deliver, because the socket
 * accepts them earlier, and from time to time measures the network's rate. file: the connected
 * socket that carries the bytes. Its fd is -1 if a send ends only when the bytes have been
 * delivered (shared memory, RDMA).
 */
void overlap_replied(struct path_request *request, struct overlap_network *network,
	struct ring *ring, struct ring_file file);

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

/* --- placement.c: where payload is; private to src/path -------------------------------------- */

struct mem_segment;
struct path_stream;

/* Returns the place of the part's payload, PATH_PLACEMENT_*; NULL if it has none. */
const char *placement_name(const struct path_stream *stream, bool page_cache);
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
