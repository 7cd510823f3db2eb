// SPDX-License-Identifier: Apache-2.0
/* Files of a simulated tmpfs. A file remains when its store is destroyed, as a real file remains
 * when its process is killed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/compiler.h"
#include "disk/disk.h"
#include "sim/sim_internal.h"

struct shared_file {
	struct list_node node;
	char *name;
	uint8_t *bytes;
	uint64_t size;
	bool is_open;
	bool is_foreign;
};

static struct list_node files = { .next = &files, .prev = &files };
static uint8_t boot = 1;

static struct shared_file *find(const char *name)
{
	list_for_each(node, &files)
	{
		struct shared_file *file = list_entry(node, struct shared_file, node);

		if (strcmp(file->name, name) == 0) {
			return file;
		}
	}
	return NULL;
}

/* Fails as if the file belonged to another user. */
static int sim_shared_refuse(const char *path, struct error *error)
{
	return error_set(error, -EPERM, "'%s' belongs to another user", path);
}

static struct shared_file *sim_shared_make(const char *name)
{
	struct shared_file *file = calloc(1, sizeof(*file));

	GMB_ASSERT(file != NULL);
	file->name = strdup(name);
	GMB_ASSERT(file->name != NULL);
	list_push_back(&files, &file->node);
	return file;
}

/* Allocates separate pages, which a test can protect. */
static void resize(struct shared_file *file, uint64_t size)
{
	if (file->bytes != NULL) {
		(void)munmap(file->bytes, file->size);
	}
	file->bytes = size == 0 ? NULL
				: mmap(NULL, size, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	GMB_ASSERT(file->bytes != MAP_FAILED);
	file->size = size;
}

static void destroy(struct shared_file *file)
{
	list_remove(&file->node);
	resize(file, 0);
	free(file->name);
	free(file);
}

static struct shared_file *sim_shared_find_in(const char *folder)
{
	list_for_each(node, &files)
	{
		struct shared_file *file = list_entry(node, struct shared_file, node);

		if (strncmp(file->name, folder, strlen(folder)) == 0) {
			return file;
		}
	}
	return NULL;
}

void sim_shared_copy(const char *from, const char *to)
{
	const struct shared_file *source = sim_shared_find_in(from);
	struct shared_file *file;
	char name[256];

	GMB_ASSERT(sim_shared_find_in(to) == NULL);
	if (source == NULL) {
		return;
	}
	snprintf(name, sizeof(name), "%s%s", to, source->name + strlen(from));
	file = sim_shared_make(name);
	resize(file, source->size);
	if (source->size > 0) {
		memcpy(file->bytes, source->bytes, source->size);
	}
}

uint8_t *sim_shared_find(const char *folder, uint64_t *size_out)
{
	const struct shared_file *file = sim_shared_find_in(folder);

	*size_out = file == NULL ? 0 : file->size;
	return file == NULL ? NULL : file->bytes;
}

void sim_shared_remove(const char *folder)
{
	destroy(sim_shared_find_in(folder));
}

bool sim_shared_is_open(const char *folder)
{
	return sim_shared_find_in(folder)->is_open;
}

void sim_shared_give_away(const char *folder)
{
	sim_shared_find_in(folder)->is_foreign = true;
}

void sim_shared_reboot(void)
{
	boot++;
}

void sim_shared_stop(void)
{
	while (!list_is_empty(&files)) {
		destroy(list_entry(list_first(&files), struct shared_file, node));
	}
	boot = 1;
}

int disk_shared_look(const char *folder, struct error *error)
{
	return 0;
}

int disk_shared_open(
	const char *path, uint32_t flags, struct disk_shared *shared, struct error *error)
{
	struct shared_file *file = find(path);

	if ((file == NULL) != ((flags & DISK_SHARED_CREATE) != 0)) {
		int result = file == NULL ? -ENOENT : -EEXIST;

		return error_set(error, result, "cannot open '%s': %s", path, strerror(-result));
	}
	if (file == NULL) {
		file = sim_shared_make(path);
	}
	if (file->is_foreign) {
		return sim_shared_refuse(path, error);
	}
	if (file->is_open) {
		return error_set(error, -EBUSY, "another process uses '%s'", path);
	}
	file->is_open = true;
	*shared = (struct disk_shared){
		.bytes = file->bytes, .size = file->size, .fd = -1, .path = file->name
	};
	return 0;
}

int disk_shared_peek(
	const char *path, void *bytes, size_t count, uint64_t *size_out, struct error *error)
{
	const struct shared_file *file = find(path);

	memset(bytes, 0, count);
	if (file == NULL) {
		return error_set(error, -ENOENT, "cannot open '%s': %s", path, strerror(ENOENT));
	}
	if (file->is_foreign) {
		return sim_shared_refuse(path, error);
	}
	if (file->bytes != NULL) {
		memcpy(bytes, file->bytes, MIN((uint64_t)count, file->size));
	}
	*size_out = file->size;
	return 0;
}

void disk_shared_list(const char *folder, const char *prefix,
	void (*found)(void *context, const char *path), void *context)
{
	struct list_node *node = files.next;
	char start[256];

	snprintf(start, sizeof(start), "%s/%s", folder, prefix);
	while (node != &files) {
		const struct shared_file *file = list_entry(node, struct shared_file, node);

		node = node->next;
		if (strncmp(file->name, start, strlen(start)) == 0) {
			found(context, file->name);
		}
	}
}

int disk_shared_resize(struct disk_shared *shared, uint64_t size, struct error *error)
{
	struct shared_file *file = find(shared->path);

	resize(file, size);
	shared->bytes = file->bytes;
	shared->size = size;
	return 0;
}

void disk_shared_close(struct disk_shared *shared, bool remove)
{
	struct shared_file *file = shared->path == NULL ? NULL : find(shared->path);

	if (file != NULL && remove) {
		destroy(file);
	} else if (file != NULL) {
		file->is_open = false;
	}
	*shared = (struct disk_shared){ .fd = -1 };
}

int disk_boot_id(uint8_t id[DISK_BOOT_ID_BYTES])
{
	memset(id, boot, DISK_BOOT_ID_BYTES);
	return 0;
}
