// SPDX-License-Identifier: Apache-2.0
/* The value of --export. */
#include "base/text.h"
#include "fuzz.h"
#include "server/config/config.h"
#include "stores.h"

static void check_export(const struct server_export *entry)
{
	GMB_ASSERT(entry->name != NULL && strlen(entry->name) <= SERVER_NAME_BYTES_MAX);
	GMB_ASSERT(utf8_valid(entry->name, strlen(entry->name)));
	GMB_ASSERT(entry->path != NULL && entry->path[0] != '\0');
	GMB_ASSERT(
		entry->description == NULL || strlen(entry->description) <= SERVER_NAME_BYTES_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct server_export entry;
	struct error error = { 0 };

	server_export_init(&entry);
	if (server_export_parse(&entry, text, &error) == 0) {
		check_export(&entry);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	server_export_fini(&entry);
	free(text);
	return 0;
}
