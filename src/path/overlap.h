// SPDX-License-Identifier: Apache-2.0
/*
 * Choice of the part size of reads and writes, so that disk and network work at the same time.
 *
 * A transfer of l bytes in parts of c takes t1 + t2 + t3 = c/d + (l - c)/min(d, n) + c/n with a
 * disk of d and a network of n bytes per second: the first part is read, then both work, then the
 * last part is sent. Each part also costs some CPU time, k. The total is least for
 *
 *   c = sqrt(l k max(d, n)),
 *
 * where l stands for all bytes in flight: with several requests there is always something to
 * overlap with, and larger parts are cheaper. Both rates are measured, the disk's where parts are
 * dispatched (store/store.h). While n is unknown, d is used instead. The m members of a striped
 * disk work on m parts at the same time, each at a share of d. So they get parts of c / m, and
 * together have as much unfinished data as one disk.
 *
 * Some disks complete all parts of a request together, whatever their size, because they process
 * one command internally. Parts then only cost time. Other disks add latency to each part, and
 * many parts take longer than one. So the path also measures how early parts arrive, and how long
 * requests take with and without parts. A disk that is faster with whole requests gets them, with
 * an occasional trial of parts.
 *
 * Threading: the path's thread. Ownership: plain data. Errors: none.
 */
#pragma once

#include "base/compiler.h"

struct path_request;

enum {
	OVERLAP_BYTES_MIN = 16 << 10,
	OVERLAP_BYTES_MAX = 1 << 20,
	/* Smallest request whose parts are worth measuring. */
	OVERLAP_REQUEST_BYTES_MIN = 2 * OVERLAP_BYTES_MIN,
	OVERLAP_EARLY_ONE = 1024,
};

struct overlap {
	uint64_t network_rate; /* bytes per second while it was busy; 0 = unknown */
	/* How early parts arrive. 0: all at the end. OVERLAP_EARLY_ONE / 2: evenly, which is
	 * assumed before it is measured. */
	uint32_t early;
	bool early_measured;
	uint32_t chosen;	/* the last part size returned for a cut */
	uint64_t request_bytes; /* of requests in flight; the path adds and subtracts */

	/* Bytes per second of single reads or writes, from the request to the last byte sent: of
	 * requests that were cut, and of those that were not. 0 = unknown. */
	uint64_t cut_rate;
	uint64_t whole_rate;

	/* Private. */
	uint32_t since_try;
	uint32_t cuts; /* number of decisions to cut */
};

void overlap_init(struct overlap *overlap);

/*
 * Returns the best part size for a request of length bytes that is already counted in
 * request_bytes, for a disk of disk_rate bytes per second (0 = unknown). chunk: bytes on one
 * member before the next member follows, 0 = not striped. The result is between OVERLAP_BYTES_MIN
 * and OVERLAP_BYTES_MAX, and is a power of two or chunk. OVERLAP_BYTES_MAX also means: do not cut.
 */
uint32_t overlap_choose(struct overlap *overlap, uint64_t disk_rate, uint64_t length,
	uint32_t chunk, uint32_t members);

/* A request in parts is complete. Weighted by size, its parts completed mean_ns after its start on
 * average, and the last one after whole_ns. */
void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns);

/* A request that ran alone took took_ns (> 0) in total. */
void overlap_learn_request(struct overlap *overlap, uint64_t bytes, uint64_t took_ns, bool cut);

/* The network sent these bytes and was busy with them for busy_ns (>= 1024). If the disk is slower,
 * this is only a lower bound of the network's rate. */
void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns);

/* --- position of the parts; private to src/path ---------------------------------------------- */

/*
 * A disk is read in ascending order. On a striped disk, each row of chunks starts with the first
 * part of every member, then the second part of every member follows, and so on. So all members
 * are busy:
 *
 *        member 0        member 1        member 2
 *   row  [0  3     6   ] [1    4     7 ] [2      5     8]
 *
 * The first parts have different lengths, so that the members do not complete at the same moments.
 * On average this halves the data that waits to be complete. No part crosses a chunk. All state is
 * kept in the request.
 */

/* Parts end on this boundary of the export, so that only the first and the last part of a request
 * can be unaligned. */
enum { SPLIT_ALIGN = 4096 };

/* Range of a part, and the number of bytes its first progress report covers. */
struct cut_range {
	uint64_t offset;
	uint64_t bytes;
	uint64_t progress_first;
};

/* Decides how a read or write is cut, at its start. A request shorter than
 * OVERLAP_REQUEST_BYTES_MIN on an export without a configured part size is always one part and
 * does not need this call. */
void cut_begin(struct path_request *request);
/* Returns the expected time from one part or progress report to the next; 0 = unknown. */
uint64_t cut_step_ns(const struct path_request *request);
/*
 * The next three are for requests with request->measured.
 *
 * All bytes of the request were given to the session: it no longer takes rate from other requests.
 */
void cut_handed(struct path_request *request);
/* The request has ended. */
void cut_end(struct path_request *request, uint64_t now_ns);
/* The store has completed a part. */
void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns);

/* Returns the next part of a striped request, or of one with more bytes left than the part
 * size. */
struct cut_range cut_next(struct path_request *request);
/* Only this many bytes of the range were started; the rest of it comes next. */
void cut_return(struct path_request *request, const struct cut_range *range, uint64_t bytes);

/* --- placement.c: the requester's own memory; private to src/path ---------------------------- */

struct mem_segment;
struct path_stream;

/* Called at the start of a request with a placement. Removes the placement if the store cannot use
 * its memory. */
void placement_check(struct path_request *request);
/* Returns the memory of the byte at this offset of the export, and the number of bytes from there
 * to the end of its segment. */
struct mem_segment placement_at(struct path_request *request, uint64_t offset);
/* Returns the length of the next part, from the beginning of the range, in *bytes_out. True: it is
 * transferred in place; false: it is copied. */
bool placement_run(
	struct path_request *request, const struct cut_range *range, uint64_t *bytes_out);
/* Copies between a part's buffer and the placement, after a read or before a write. */
void placement_copy(struct path_stream *stream);
