// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/work.h"
#include "vhost/server/session.h"

/* Returns whether an address range ends behind the last address. */
static bool wraps(uint64_t address, uint64_t bytes)
{
	uint64_t end;

	return __builtin_add_overflow(address, bytes, &end);
}

static bool has_room(const struct vhost_session *session)
{
	bool is_scarce = mapping_count() >= MAPPINGS_MAX / 2;

	return session->region_count < (is_scarce ? VHOST_REGIONS_SHARE : VHOST_REGIONS_MAX);
}

int vhost_region_create(struct vhost_session *session, const struct vhost_region *about, int fd,
	struct vhost_guest_region **region_out)
{
	struct vhost_guest_region *region;
	int rc;

	rc = wraps(about->guest_address, about->bytes) || wraps(about->user_address, about->bytes)
		     ? -EINVAL
	     : about->bytes > VHOST_MEMORY_BYTES_MAX ? -E2BIG
	     : !has_room(session)		     ? -EMFILE
						     : 0;
	region = rc == 0 ? calloc(1, sizeof(*region)) : NULL;
	if (rc == 0) {
		rc = region == NULL ? -ENOMEM
				    : mapping_create(fd, about->file_offset, about->bytes,
					      &region->mapping);
	}
	if (rc < 0) {
		free(region);
		dispose_fd(fd, session->base.peer.credentials.uid, false);
		return rc;
	}
	session->region_count++;
	region->session = session;
	region->users = 1;
	region->about = *about;
	region->fd = fd;
	region->memory = (struct mem_region){
		.base = region->mapping.base,
		.bytes = about->bytes,
		.rights = peer_is_trusted(&session->base.peer)
				  ? MEM_RAM & ~MEM_STABLE
				  : MEM_RAM & ~(MEM_STABLE | MEM_PROMPT),
	};
	*region_out = region;
	return 0;
}

void vhost_region_put(struct vhost_guest_region *region)
{
	if (--region->users == 0) {
		region->session->region_count--;
		mapping_destroy(&region->mapping);
		/* the last descriptor of a file in memory frees the memory, which takes time */
		dispose(&(struct disposal){ .fds = &region->fd, .fd_count = 1 });
		free(region);
	}
}

struct vhost_memory *vhost_memory_create(struct vhost_guest_region *const *regions, uint32_t count)
{
	struct vhost_memory *memory = calloc(1, sizeof(*memory));

	GMB_ASSERT(count <= VHOST_SLOTS);
	if (memory == NULL) {
		for (uint32_t i = 0; i < count; i++) {
			vhost_region_put(regions[i]);
		}
		return NULL;
	}
	memory->users = 1;
	memory->count = count;
	memcpy(memory->regions, regions, count * sizeof(regions[0]));
	return memory;
}

struct vhost_memory *vhost_memory_get(struct vhost_memory *memory)
{
	memory->users++;
	return memory;
}

void vhost_memory_put(struct vhost_memory *memory)
{
	if (memory == NULL || --memory->users > 0) {
		return;
	}
	for (uint32_t i = 0; i < memory->count; i++) {
		vhost_region_put(memory->regions[i]);
	}
	free(memory);
}

struct vhost_memory *vhost_memory_copy(const struct vhost_memory *memory)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		memory->regions[i]->users++;
	}
	return vhost_memory_create(memory->regions, memory->count);
}

struct mem_ref vhost_memory_at(
	const struct vhost_memory *memory, uint64_t guest_address, uint64_t *bytes_out)
{
	for (uint32_t i = 0; memory != NULL && i < memory->count; i++) {
		struct vhost_guest_region *region = memory->regions[i];
		/* wraps around, and is then too large, if the address is below the region */
		uint64_t offset = guest_address - region->about.guest_address;

		if (offset < region->about.bytes) {
			*bytes_out = region->about.bytes - offset;
			return mem_at(&region->memory, offset);
		}
	}
	return MEM_NONE;
}

void *vhost_memory_of_user(const struct vhost_memory *memory, uint64_t user_address, uint64_t bytes,
	uint32_t alignment)
{
	for (uint32_t i = 0; memory != NULL && i < memory->count; i++) {
		struct vhost_guest_region *region = memory->regions[i];
		uint64_t offset = user_address - region->about.user_address;

		if (offset < region->about.bytes) {
			uint8_t *address = region->memory.base + offset;

			return bytes <= region->about.bytes - offset &&
					       is_aligned((uintptr_t)address, alignment)
				       ? address
				       : NULL;
		}
	}
	return NULL;
}

bool vhost_memory_is_broken(const struct vhost_memory *memory)
{
	for (uint32_t i = 0; memory != NULL && i < memory->count; i++) {
		if (mapping_is_broken(&memory->regions[i]->mapping)) {
			return true;
		}
	}
	return false;
}

void vhost_log_mark(const struct mapping *log, uint64_t guest_address, uint64_t bytes)
{
	uint64_t last = (guest_address + bytes - 1) / VHOST_LOG_PAGE_BYTES;

	if (bytes == 0 || wraps(guest_address, bytes - 1)) {
		return;
	}
	last = MIN(last, log->bytes * 8 - 1);
	for (uint64_t page = guest_address / VHOST_LOG_PAGE_BYTES; page <= last; page++) {
		_Atomic uint8_t *byte = (_Atomic uint8_t *)&log->base[page / 8];

		/* The front end takes bits out of the log with an atomic exchange. Release: it then
		 * reads the page. */
		atomic_fetch_or_explicit(byte, (uint8_t)(1U << page % 8), memory_order_release);
	}
}
