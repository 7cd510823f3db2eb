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
 * overlap with, and larger parts are cheaper. Both rates are measured, that of the disk where parts
 * are dispatched (store/store.h); while n is unknown d stands
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

struct path_request;

enum {
	OVERLAP_BYTES_MIN = 16 << 10,
	OVERLAP_BYTES_MAX = 1 << 20,
	/* The smallest request whose parts are worth measuring. */
	OVERLAP_REQUEST_BYTES_MIN = 2 * OVERLAP_BYTES_MIN,
	OVERLAP_EARLY_ONE = 1024,
};

struct overlap {
	uint64_t network_rate; /* bytes a second while it had something to do; 0 = unknown */
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
};

void overlap_init(struct overlap *overlap);

/* The best part size for a request of length bytes that is already counted in request_bytes, of a
 * disk of disk_rate bytes a second (0 = unknown). chunk: bytes on one of members before the next
 * member follows, 0 = not striped. Returns OVERLAP_BYTES_MIN to OVERLAP_BYTES_MAX, a power of two
 * or chunk; OVERLAP_BYTES_MAX also means: do not split. */
uint32_t overlap_choose(struct overlap *overlap, uint64_t disk_rate, uint64_t length,
	uint32_t chunk, uint32_t members);

/* A request in parts is complete. Its parts, weighted by size, completed mean_ns after its
 * beginning on average, the last one after whole_ns. */
void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns);

/* A request that ran alone took took_ns (> 0) in total. */
void overlap_learn_request(struct overlap *overlap, uint64_t bytes, uint64_t took_ns, bool cut);

/* The network sent these bytes and was busy for busy_ns (> 0) with them. If the disk is the slower
 * one, this is only a lower bound of the network's rate. */
void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns);

/* --- where the parts lie; private to src/path ----------------------------------------------- */

/*
 * A disk is read in ascending order. On a striped one each row of chunks begins with the first part
 * of every member, then follows the second part of every member, and so on, so that all members
 * are busy:
 *
 *        member 0        member 1        member 2
 *   row  [0  3     6   ] [1    4     7 ] [2      5     8]
 *
 * The first parts have different lengths, so that the members do not complete at the same moments:
 * on average half as much data waits to be complete. No part crosses a chunk. All state is kept in
 * the request.
 */

/* Parts end on this boundary of the export, so that only the first and the last part of a request
 * can be unaligned. */
enum { SPLIT_ALIGN = 4096 };

/* Where a part lies, and how many bytes of it the first report of progress covers. */
struct cut_range {
	uint64_t offset;
	uint64_t bytes;
	uint64_t progress_first;
};

/* A read or write begins: decides how it is cut. Not needed for a request shorter than
 * OVERLAP_REQUEST_BYTES_MIN on an export without a part size of its own: it is one part. */
void cut_begin(struct path_request *request);
/* The expected time from one part, or one report of progress, to the next; 0 = unknown. */
uint64_t cut_step_ns(const struct path_request *request);
/* The next three are for requests with request->measured.
 *
 * All its bytes were handed to the session: it no longer takes rate from other requests. */
void cut_handed(struct path_request *request);
/* It has ended. */
void cut_end(struct path_request *request, uint64_t now_ns);
/* The store has completed a part. */
void cut_part_end(struct path_request *request, uint64_t bytes, uint64_t now_ns);

/* The next part of a striped request, or of one with more bytes left than a part has. */
struct cut_range cut_next(struct path_request *request);
/* Only so many bytes of that range were started; the rest of it comes next. */
void cut_return(struct path_request *request, const struct cut_range *range, uint64_t bytes);

/* --- placement.c: the requester's own memory; private to src/path --------------------------- */

struct mem_segment;
struct path_stream;

/* A request with a placement begins. Removes the placement when the store cannot use its memory. */
void placement_check(struct path_request *request);
/* Where the byte at this offset of the export belongs, and how many bytes from there on lie in the
 * same segment. */
struct mem_segment placement_at(struct path_request *request, uint64_t offset);
/* How many bytes of the range, from its beginning, are the next part. True: they are in place;
 * false: they are copied. */
bool placement_run(
	struct path_request *request, const struct cut_range *range, uint64_t *bytes_out);
/* Copies between a part's buffer and the placement: a read that has come, or a write that begins.
 */
void placement_copy(struct path_stream *stream);
