// SPDX-License-Identifier: Apache-2.0
/* Configuration files: the YAML reader, the schema, the setters and the final check. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "fuzz.h"
#include "server/config/config.h"
#include "stores.h"

static void load(const char *path)
{
	struct server_config config;
	struct error error = { 0 };

	server_config_init(&config);
	if (server_config_load(&config, path, &error) == 0 &&
		server_config_finish(&config, &error) == 0) {
		GMB_ASSERT(config.export_count > 0 && config.export_count <= SERVER_EXPORTS_MAX);
		GMB_ASSERT(config.listen_count <= SERVER_LISTENS_MAX);
		GMB_ASSERT(config.limits.threads > 0 && config.limits.memory_bytes > 0);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	server_config_fini(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* A file without a place on any disk. */
	int fd = memfd_create("config", MFD_CLOEXEC);
	char path[64];

	log_set_level(LOG_LEVEL_ERROR);
	GMB_ASSERT(fd >= 0);
	GMB_ASSERT(write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	load(path);
	close(fd);
	return 0;
}
