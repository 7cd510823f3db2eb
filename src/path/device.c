// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "path/path.h"

struct arena *device_choose(struct path_request *request)
{
	const struct store_info *info = store_info(request->export->store);
	const struct path_admission *admission = request->client->admission;
	struct path_export *export = request->export;
	const struct arena_info *memory;

	if (admission->device == NULL || arena_info(admission->device)->condemned != 0 ||
		export->device_error != 0) {
		export->ram_for_trouble++;
		return admission->ram;
	}
	memory = arena_info(admission->device);
	request->device_rights =
		memory->rights & (info->device_cpu ? UINT32_MAX : ~(uint32_t)MEM_SOCKET);
	if ((info->memory_rights & ~request->device_rights) != 0 ||
		!is_aligned(request->offset | request->length, info->offset_align)) {
		export->ram_for_store++;
		return admission->ram;
	}
	return admission->device;
}

static void device_failed(struct arena *device, int error)
{
	const struct arena_info *info = arena_info(device);

	if (info->condemned == 0) {
		log_error("the memory of %s can no longer be used: %s; payload goes through the "
			  "server's RAM from now on",
			info->kind, strerror(-error));
		arena_condemn(device, error);
	}
}

void path_memory_failed(const struct path_stream *stream)
{
	if (stream->in_device) {
		device_failed(stream->request->client->admission->device, -ENODEV);
	}
}

void device_see_error(struct path_request *request, int error)
{
	struct arena *device = request->client->admission->device;
	struct path_export *export = request->export;

	if (error == -ENODEV) {
		device_failed(device, error);
	} else if (export->device_error == 0) {
		log_warning("export \"%s\": the disk cannot reach the memory of %s: %s; the "
			    "payload of the export goes through the server's RAM from now on",
			quote_bytes(export->name, export->name_bytes), arena_info(device)->kind,
			strerror(-error));
		export->device_error = error;
	}
}
