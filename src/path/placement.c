// SPDX-License-Identifier: Apache-2.0
/*
 * The placement of a request: memory of the requester that contains the data of a write or receives
 * the data of a read. Most parts use this memory directly; such a part ends where a segment ends.
 *
 *   segments   |-------------------|-----------|-----------------------------|
 *   parts      [ in place      ][ copied ][ in place ][ copied ][ in place   ]
 *   blocks     |       |       |       |       |       |       |       |      |
 *
 * Direct I/O needs whole blocks at aligned addresses. If the CPU can access all segments, a block
 * that is not aligned in memory, or in which a segment ends, is staged in RAM and copied. Otherwise
 * the store uses the memory for this block through the page cache. If only MEM_PROMPT is missing,
 * all blocks are staged: this thread can wait for the memory, but not the thread of the store's
 * owner.
 */
#include <string.h>

#include "base/bytes.h"
#include "path/path.h"

const char *placement_name(const struct path_stream *stream, bool page_cache)
{
	if (stream->request->op != STORE_READ && stream->request->op != STORE_WRITE) {
		return NULL;
	}
	if (page_cache) {
		return PATH_PLACEMENT_PAGE_CACHE;
	}
	if (stream->in_device) {
		return PATH_PLACEMENT_DEVICE;
	}
	return stream->in_place ? PATH_PLACEMENT_REQUESTER : PATH_PLACEMENT_RAM;
}

void placement_check(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	bool read = request->op == STORE_READ;
	uint32_t needs = store_rights(request->export->store, request->op);
	uint32_t rights = UINT32_MAX;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < request->placement_count; i++) {
		rights &= request->placement[i].memory.rights;
		bytes += request->placement[i].bytes;
	}
	GMB_ASSERT(bytes == request->length);
	request->stages_all = (needs & ~rights) == MEM_PROMPT;
	if ((rights & needs) != needs && !request->stages_all) {
		request->placement = NULL;
	}
	request->stages = (read ? info->read_direct : info->write_direct) &&
			  (rights & (read ? MEM_CPU_WRITE : MEM_CPU_READ)) != 0;
	request->unstable = (rights & MEM_STABLE) == 0;
	request->segment = 0;
	request->segment_begin = 0;
}

struct mem_segment placement_at(struct path_request *request, uint64_t offset)
{
	const struct mem_segment *segment;
	uint64_t at = offset - request->offset;

	/* the parts of striped disks are not in ascending order */
	if (at < request->segment_begin) {
		request->segment = 0;
		request->segment_begin = 0;
	}
	segment = &request->placement[request->segment];
	while (at - request->segment_begin >= segment->bytes) {
		request->segment_begin += segment->bytes;
		request->segment++;
		GMB_ASSERT(request->segment < request->placement_count);
		segment++;
	}
	at -= request->segment_begin;
	return (struct mem_segment){ .memory = mem_add(segment->memory, at),
		.bytes = segment->bytes - at };
}

bool placement_run(struct path_request *request, const struct cut_range *range, uint64_t *bytes_out)
{
	const struct store_info *info = store_info(request->export->store);
	/* Size of the blocks: a multiple of both alignments, so that if one block of a segment is
	 * aligned in memory, the following ones also are. */
	uint32_t align = MAX(info->offset_align, info->memory_align);
	uint32_t part_size = MIN(request->part_size, (uint32_t)PATH_PART_SIZE_MAX);
	uint64_t step = MAX((uint64_t)align, align_down(part_size, align));
	uint64_t end = range->offset + MIN(range->bytes, step);
	uint64_t at = range->offset;
	struct mem_segment here = placement_at(request, at);
	bool direct = false;

	if (unlikely(request->stages_all)) {
		*bytes_out = end - range->offset;
		return false;
	}
	*bytes_out = MIN(here.bytes, range->bytes);
	/* A range that does not consist of whole blocks of the export is transferred through the
	 * page cache anyway, so its memory need not be aligned. */
	if (!request->stages || !is_aligned(range->offset | range->bytes, align)) {
		return true;
	}
	if (*bytes_out >= align && mem_is_aligned(here.memory, info->memory_align)) {
		*bytes_out = align_down(*bytes_out, align);
		return true;
	}
	/* Extends the copied part to the next block that can be transferred without a copy. */
	for (at += align; at < end && !direct; at += direct ? 0 : align) {
		here = placement_at(request, at);
		if (!mem_is_aligned(here.memory, info->memory_align) && here.bytes > align) {
			/* no further block of this segment is aligned */
			at += align_down(here.bytes - 1, align);
		} else {
			direct = here.bytes >= align &&
				 mem_is_aligned(here.memory, info->memory_align);
		}
	}
	*bytes_out = MIN(at, end) - range->offset;
	return false;
}

void placement_copy(struct path_stream *stream)
{
	struct path_request *request = stream->request;
	uint64_t done = 0;

	while (done < stream->length) {
		struct mem_segment place = placement_at(request, stream->offset + done);
		struct mem_ref staged = mem_add(stream->buf.memory, done);
		uint64_t bytes = MIN(place.bytes, stream->length - done);

		if (request->op == STORE_READ) {
			memcpy(mem_cpu_write(place.memory), mem_cpu_read(staged), bytes);
		} else {
			memcpy(mem_cpu_write(staged), mem_cpu_read(place.memory), bytes);
		}
		done += bytes;
	}
}
