// SPDX-License-Identifier: Apache-2.0
/* Buffers for builds without clan, in which no server can access them. The page before each buffer
 * contains the length of its mapping. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "client/client_private.h"

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* Maps zeroed memory and one page before it, which contains the length of the whole mapping.
 * Returns the address after that page, or NULL. */
static void *buffer_map(size_t bytes)
{
	size_t all = page_bytes() + bytes;
	uint8_t *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (base == MAP_FAILED) {
		return NULL;
	}
	memcpy(base, &all, sizeof(all));
	return base + page_bytes();
}

int gmb_buffer_alloc(struct gmb_queue *queue, size_t bytes, uint32_t flags, void **base_out,
	struct gmb_error *error_out)
{
	struct error error = { 0 };

	if (bytes == 0 || bytes > SIZE_MAX / 2 || (flags & ~(uint32_t)GMB_BUFFER_HUGE) != 0) {
		error_set(&error, -EINVAL,
			"a buffer needs at least one byte, and its flags must be 0 or "
			"GMB_BUFFER_HUGE");
	} else {
		*base_out = buffer_map(align_up(bytes, page_bytes()));
		if (*base_out != NULL) {
			return 0;
		}
		error_oom_for(&error, "a buffer of %zu bytes", bytes);
	}
	error_export(error_out, &error);
	return error.code;
}

int gmb_buffer_import(struct gmb_queue *queue, int memfd, uint64_t offset, size_t bytes,
	void **base_out, struct gmb_error *error_out)
{
	struct error error = { 0 };
	void *base = bytes <= SIZE_MAX / 2 ? buffer_map(bytes) : NULL;

	GMB_UNUSED(queue);
	if (base == NULL) {
		error_oom_for(&error, "a buffer of %zu bytes", bytes);
	} else if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memfd,
			   (off_t)offset) == MAP_FAILED) {
		error_set(&error, -errno, "cannot map the memory: %s", strerror(errno));
		gmb_buffer_free(queue, base);
	} else {
		*base_out = base;
		return 0;
	}
	error_export(error_out, &error);
	return error.code;
}

void gmb_buffer_free(struct gmb_queue *queue, void *base)
{
	size_t all;

	if (base != NULL) {
		memcpy(&all, (uint8_t *)base - page_bytes(), sizeof(all));
		munmap((uint8_t *)base - page_bytes(), all);
	}
}
