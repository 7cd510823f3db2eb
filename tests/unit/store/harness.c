// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- a store to work on -------------------------------------------------------------------- */

static void ring_open(struct bench *bench)
{
	struct error error;
	struct ring_options options = { .entries = 64 };

	if (ring_create(&options, &bench->ring, &error) < 0) {
		fail_msg("%s", error.text);
	}
}

void bench_share(struct bench *bench, struct store *store)
{
	struct error error;

	ring_open(bench);
	bench->store = store;
	bench->owns_store = false;
	if (store_queue_create(store, bench->ring, &bench->queue, &error) < 0) {
		fail_msg("%s", error.text);
	}
}

void bench_open(struct bench *bench, const struct store_options *options)
{
	struct error error;
	struct store *store;

	if (store_open(options, &store, &error) < 0) {
		fail_msg("%s", error.text);
	}
	bench_share(bench, store);
	bench->owns_store = true;
}

void bench_close(struct bench *bench)
{
	store_queue_destroy(bench->queue);
	if (bench->owns_store) {
		store_close(bench->store);
	}
	ring_destroy(bench->ring);
}

static void waited_done(struct store_part *part, int result)
{
	struct waited_part *waited = container_of(part, struct waited_part, part);

	assert_false(waited->is_done);
	waited->is_done = true;
	waited->result = result;
}

void bench_start(struct bench *bench, struct waited_part *waited, enum store_op op, uint32_t flags,
	uint64_t offset, uint64_t length, void *data)
{
	struct store_extent *extents = waited->part.extents;
	uint32_t extent_max = waited->part.extent_max;

	memset(waited, 0, sizeof(*waited));
	waited->part.op = op;
	waited->part.flags = flags;
	waited->part.offset = offset;
	waited->part.length = length;
	waited->part.memory = mem_of(data);
	waited->part.done = waited_done;
	waited->part.extents = extents;
	waited->part.extent_max = extent_max;
	store_submit(bench->queue, &waited->part);
	assert_false(waited->is_done);
}

int bench_wait(struct bench *bench, struct waited_part *waited)
{
	while (!waited->is_done) {
		ring_turn(bench->ring, true);
	}
	return waited->result;
}

int bench_do(struct bench *bench, enum store_op op, uint32_t flags, uint64_t offset,
	uint64_t length, void *data)
{
	struct waited_part waited = { 0 };

	bench_start(bench, &waited, op, flags, offset, length, data);
	return bench_wait(bench, &waited);
}

int bench_read(struct bench *bench, uint64_t offset, uint64_t length, void *data)
{
	return bench_do(bench, STORE_READ, 0, offset, length, data);
}

int bench_write(struct bench *bench, uint64_t offset, uint64_t length, const void *data)
{
	void *writable = NULL;

	memcpy(&writable, &data, sizeof(data)); /* the store only reads it */
	return bench_do(bench, STORE_WRITE, 0, offset, length, writable);
}

int bench_flush(struct bench *bench)
{
	return bench_do(bench, STORE_FLUSH, 0, 0, 0, NULL);
}

int bench_extents(struct bench *bench, uint64_t offset, uint64_t length,
	struct store_extent *extents, uint32_t extent_max)
{
	struct waited_part waited = { 0 };
	int result;

	waited.part.extents = extents;
	waited.part.extent_max = extent_max;
	bench_start(bench, &waited, STORE_EXTENTS, 0, offset, length, NULL);
	result = bench_wait(bench, &waited);
	return result < 0 ? result : (int)waited.part.extent_count;
}

/* --- files --------------------------------------------------------------------------------- */

static char scratch[256];

void scratch_create(void)
{
	const char *base = getenv("TMPDIR");

	snprintf(scratch, sizeof(scratch), "%s/gmblock-store-XXXXXX",
		base != NULL ? base : "/var/tmp");
	if (mkdtemp(scratch) == NULL) {
		fprintf(stderr, "skip: cannot make %s: %s\n", scratch, strerror(errno));
		exit(EXIT_SKIP);
	}
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *ftw)
{
	return remove(path);
}

void scratch_remove(void)
{
	nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

int scratch_skip(const char *reason)
{
	fprintf(stderr, "skip: %s\n", reason);
	scratch_remove();
	return EXIT_SKIP;
}

const char *scratch_path(const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/%s", scratch, name);
	return path;
}

const char *scratch_file(const char *name, uint64_t size)
{
	const char *path = scratch_path(name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	close(fd);
	return path;
}

bool scratch_has_direct(void)
{
	const char *path = scratch_file("direct-probe", 4096);
	int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);

	unlink(path);
	if (fd < 0) {
		return false;
	}
	close(fd);
	return true;
}

int loop_open_flags(
	const char *path, uint32_t block_bytes, bool read_only, char *device, size_t device_bytes)
{
	uint32_t flags = LO_FLAGS_AUTOCLEAR | (read_only ? LO_FLAGS_READ_ONLY : 0);
	/* The disks of the tests are described by sysfs, which some chroots lack. */
	bool has_sysfs = access("/sys/block", F_OK) == 0;
	int control = has_sysfs ? open("/dev/loop-control", O_RDWR | O_CLOEXEC) : -1;
	int backing = open(path, O_RDWR | O_CLOEXEC);
	int fd = -1;

	/* Others may take the free number that was found first, so several tries. */
	for (int attempt = 0; control >= 0 && backing >= 0 && fd < 0 && attempt < 16; attempt++) {
		struct loop_config config = {
			.fd = (uint32_t)backing,
			.block_size = block_bytes,
			.info = { .lo_flags = flags },
		};
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		if (number < 0) {
			break;
		}
		snprintf(device, device_bytes, "/dev/loop%d", number);
		fd = open(device, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && ioctl(fd, LOOP_CONFIGURE, &config) != 0) {
			close(fd);
			fd = -1;
		}
	}
	if (backing >= 0) {
		close(backing);
	}
	if (control >= 0) {
		close(control);
	}
	return fd;
}

int loop_open(const char *path, uint32_t block_bytes, char *device, size_t device_bytes)
{
	return loop_open_flags(path, block_bytes, false, device, device_bytes);
}

void loop_close(int fd)
{
	close(fd);
}

/* --- chance and memory --------------------------------------------------------------------- */

uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t random_below(uint64_t *state, uint64_t limit)
{
	return random_next(state) % limit;
}

void *aligned_bytes(size_t bytes)
{
	void *memory = NULL;

	assert_int_equal(posix_memalign(&memory, 4096, bytes), 0);
	return memory;
}
