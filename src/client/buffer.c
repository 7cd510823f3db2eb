// SPDX-License-Identifier: Apache-2.0
/* Buffers where no server can reach them, since there is no clan on this processor. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "client/client_private.h"

int gmb_buffer_alloc(struct gmb_queue *queue, size_t bytes, uint32_t flags, void **base_out,
	struct gmb_error *error_out)
{
	size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct error error = { 0 };

	GMB_UNUSED(queue);
	if (bytes == 0 || bytes > SIZE_MAX - page_bytes ||
		(flags & ~(uint32_t)GMB_BUFFER_HUGE) != 0) {
		error_set(&error, -EINVAL, "a buffer of no bytes, or with unknown flags");
	} else if (posix_memalign(base_out, page_bytes, align_up(bytes, page_bytes)) != 0) {
		error_set(&error, -ENOMEM, "no memory for a buffer of %zu bytes", bytes);
	} else {
		memset(*base_out, 0, bytes);
		return 0;
	}
	error_export(error_out, &error);
	return error.code;
}

void gmb_buffer_free(struct gmb_queue *queue, void *base)
{
	GMB_UNUSED(queue);
	free(base);
}
