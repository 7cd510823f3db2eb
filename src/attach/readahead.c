// SPDX-License-Identifier: Apache-2.0
#include "attach/readahead.h"

#include <errno.h>
#include <fcntl.h>
#include <gmblock/gmblock.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/export_uri.h"
#include "base/log.h"

enum {
	TRIP_READS = 4,
	PIECE_BYTES = 256 << 10, /* one of the reads of a burst */
	BURST_BYTES_MAX = 4 << 20,
	/* A burst that takes this many round trips was limited by the rate. A shorter one can have
	 * been limited by the congestion window of a new TCP connection. */
	BURST_TRIPS = 8,
	JUMP_BYTES = 1 << 20,
	PAGE_BYTES = 4096,
};

struct readahead {
	const struct attach_options *options;
	char file[64]; /* of sysfs: the readahead in KiB */
	char disk[64];
	pthread_mutex_t lock; /* held during a resize */
	uint64_t kept_kib;    /* value during a resize */
	pthread_t thread;
	bool has_thread;
	atomic_bool stop;
};

/* A connection that measures. */
struct probe {
	struct readahead *readahead;
	struct gmb_queue *queue;
	struct gmb_client *client;
	struct gmb_info info;
	uint8_t *buffer; /* BURST_BYTES_MAX long */
};

/* --- the kernel's value ------------------------------------------------------------------------
 */

/* Returns the readahead in KiB; 0 if it cannot be read. */
static uint64_t read_kib(const struct readahead *readahead)
{
	char text[32] = "";
	int fd = open(readahead->file, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) < 0) {
			text[0] = '\0';
		}
		close(fd);
	}
	return strtoull(text, NULL, 10);
}

static int write_kib(const struct readahead *readahead, uint64_t kib)
{
	int fd = open(readahead->file, O_WRONLY | O_CLOEXEC);
	int rc = fd < 0 ? -errno : 0;

	if (rc == 0) {
		rc = dprintf(fd, "%llu", (unsigned long long)kib) < 0 ? -errno : 0;
		close(fd);
	}
	return rc;
}

/* Sets at least this readahead. The kernel's own value is larger if the server prefers long
 * requests. */
static void raise_to(struct readahead *readahead, uint64_t bytes)
{
	pthread_mutex_lock(&readahead->lock);
	if (read_kib(readahead) < bytes / 1024) {
		(void)!write_kib(readahead, bytes / 1024);
	}
	pthread_mutex_unlock(&readahead->lock);
}

/* --- measuring ---------------------------------------------------------------------------------
 */

static int probe_open(struct probe *probe)
{
	const struct attach_options *options = probe->readahead->options;
	const struct gmb_options client_options = {
		.size = sizeof(client_options),
		.flags = GMB_OPEN_URI_FILES | GMB_OPEN_READ_ONLY,
		.connections = 1,
		.connect_timeout_ms = clock_milliseconds(options->connect_timeout_ns),
		.request_timeout_ms = clock_milliseconds(options->request_timeout_ns),
		.reconnect_timeout_ms = 1, /* a measurement that fails is not repeated */
	};
	int rc = gmb_queue_create(NULL, &probe->queue, NULL);
	void *memory;

	if (rc == 0) {
		rc = gmb_open(probe->queue, options->uri, &client_options, &probe->client, NULL);
	}
	if (rc == 0) {
		probe->info.size = sizeof(probe->info);
		gmb_get_info(probe->client, &probe->info);
		memory = mmap(NULL, BURST_BYTES_MAX, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		rc = memory != MAP_FAILED ? 0 : -ENOMEM;
		probe->buffer = rc == 0 ? memory : NULL;
	}
	return rc;
}

static void probe_close(struct probe *probe)
{
	if (probe->client != NULL) {
		gmb_close(probe->client);
	}
	gmb_queue_destroy(probe->queue);
	if (probe->buffer != NULL) {
		munmap(probe->buffer, BURST_BYTES_MAX);
	}
}

/* Returns the shortest time of a small read; 0: it failed. */
static uint64_t round_trip_ns(struct probe *probe)
{
	size_t bytes = MAX(probe->info.block_minimum, (uint32_t)PAGE_BYTES);
	uint64_t best_ns = UINT64_MAX;

	for (int i = 0; i < TRIP_READS; i++) {
		uint64_t start_ns = clock_now_ns();

		if (gmb_pread(probe->client, probe->buffer, bytes, 0) != 0) {
			return 0;
		}
		best_ns = MIN(best_ns, clock_now_ns() - start_ns);
	}
	return MAX(best_ns, UINT64_C(1));
}

/* Reads this range with all pieces in flight together. Returns the time it took; 0: it failed. */
static uint64_t burst_ns(struct probe *probe, uint64_t offset, size_t bytes)
{
	struct gmb_request requests[BURST_BYTES_MAX / PIECE_BYTES] = { 0 };
	size_t count = bytes / PIECE_BYTES;
	uint64_t start_ns = clock_now_ns();
	bool failed = false;

	for (size_t i = 0; i < count; i++) {
		size_t at = i * PIECE_BYTES;

		gmb_prepare_read(&requests[i], probe->buffer + at, PIECE_BYTES, offset + at);
		gmb_submit(probe->client, &requests[i]);
	}
	for (size_t i = 0; i < count; i++) {
		while (requests[i].in_flight != 0) {
			gmb_queue_wait(probe->queue, -1);
		}
		failed |= requests[i].result != 0;
	}
	return failed ? 0 : MAX(clock_now_ns() - start_ns, UINT64_C(1));
}

/* Returns the bytes in pages that are not zero. The server can have sent the others as holes,
 * whose bytes do not use the network. */
static uint64_t nonzero_bytes(const struct probe *probe, size_t bytes)
{
	uint64_t sum = 0;

	for (size_t at = 0; at < bytes; at += PAGE_BYTES) {
		const uint8_t *page = probe->buffer + at;

		if (page[0] != 0 || memcmp(page, page + 1, PAGE_BYTES - 1) != 0) {
			sum += PAGE_BYTES;
		}
	}
	return sum;
}

/* Returns twice the product of rate and round trip; 0: unknown. Reads longer and longer bursts of
 * data, at most 8 MiB in total. Holes are skipped in steps that double. */
static uint64_t readahead_measure(struct probe *probe)
{
	uint64_t trip_ns = round_trip_ns(probe);
	size_t bytes = PIECE_BYTES;
	uint64_t offset = 0;

	while (trip_ns != 0 && offset + bytes <= probe->info.bytes &&
		!atomic_load(&probe->readahead->stop)) {
		uint64_t ns = burst_ns(probe, offset, bytes);
		uint64_t data = nonzero_bytes(probe, bytes);

		if (ns == 0) {
			return 0;
		}
		if (data < bytes / 2) {
			offset = MAX(2 * offset, (uint64_t)JUMP_BYTES);
		} else if (bytes == BURST_BYTES_MAX || ns > BURST_TRIPS * trip_ns) {
			ns = MAX(ns, trip_ns + 1);
			log_debug("%s: a read of %llu bytes takes %llu us, a round trip %llu us",
				probe->readahead->disk, (unsigned long long)bytes,
				(unsigned long long)(ns / 1000),
				(unsigned long long)(trip_ns / 1000));
			return (uint64_t)(2.0 * (double)data * (double)trip_ns /
					  (double)(ns - trip_ns));
		} else {
			offset += bytes;
			bytes *= 2;
		}
	}
	return 0;
}

static void *measuring_thread(void *argument)
{
	struct readahead *readahead = argument;
	struct probe probe = { .readahead = readahead };
	uint64_t bytes = probe_open(&probe) == 0 ? readahead_measure(&probe) : 0;

	probe_close(&probe);
	if (bytes != 0 && !atomic_load(&readahead->stop)) {
		raise_to(readahead,
			align_down(MIN(bytes, (uint64_t)READAHEAD_MAX_BYTES), PAGE_BYTES));
	}
	return NULL;
}

/* Returns whether the server is on another machine. Another program on this machine is so close
 * that READAHEAD_MIN_BYTES suffices. */
static bool is_remote(const char *text)
{
	struct export_uri uri;
	bool remote = export_uri_parse(text, &uri, NULL) == 0;

	if (remote) {
		remote = !uri.is_unix;
		export_uri_fini(&uri);
	}
	return remote;
}

/* --- the device --------------------------------------------------------------------------------
 */

/* Finds the file of sysfs. */
static void find_file(struct readahead *readahead, const struct device *device)
{
	struct stat status = { 0 };

	if (device->number >= 0) {
		snprintf(readahead->file, sizeof(readahead->file),
			"/sys/block/%.20s/queue/read_ahead_kb", device->name);
	} else if (stat(device->path, &status) == 0) {
		snprintf(readahead->file, sizeof(readahead->file),
			"/sys/class/bdi/%u:%u/read_ahead_kb", major(status.st_dev),
			minor(status.st_dev));
	}
	snprintf(readahead->disk, sizeof(readahead->disk), "%s", device->name);
}

static void set_wanted(struct readahead *readahead, const struct device *device)
{
	const struct attach_options *options = readahead->options;
	struct error error = { 0 };
	int rc;

	if (options->readahead_bytes != READAHEAD_AUTO) {
		rc = write_kib(readahead, options->readahead_bytes / 1024);
		if (rc != 0) {
			log_warning(
				"cannot set the readahead of %s: %s", device->path, strerror(-rc));
		}
		return;
	}
	raise_to(readahead, READAHEAD_MIN_BYTES);
	if (is_remote(options->uri)) {
		readahead->has_thread =
			thread_start(&readahead->thread, measuring_thread, readahead, &error) == 0;
	}
}

struct readahead *readahead_start(const struct attach_options *options, struct device *device)
{
	struct readahead *readahead = calloc(1, sizeof(*readahead));

	if (readahead == NULL) {
		return NULL;
	}
	readahead->options = options;
	pthread_mutex_init(&readahead->lock, NULL);
	find_file(readahead, device);
	if (access(readahead->file, W_OK) != 0) {
		/* Only root can change the readahead of a FUSE file. */
		log_line(options->readahead_bytes != READAHEAD_AUTO ? LOG_LEVEL_WARNING
								    : LOG_LEVEL_DEBUG,
			"cannot set the readahead of %s: %s", device->path, strerror(errno));
		readahead_end(readahead);
		return NULL;
	}
	set_wanted(readahead, device);
	return readahead;
}

void readahead_resize_begin(struct readahead *readahead)
{
	if (readahead != NULL) {
		pthread_mutex_lock(&readahead->lock);
		readahead->kept_kib = read_kib(readahead);
	}
}

void readahead_resize_end(struct readahead *readahead)
{
	if (readahead != NULL) {
		if (read_kib(readahead) != readahead->kept_kib) {
			(void)!write_kib(readahead, readahead->kept_kib);
		}
		pthread_mutex_unlock(&readahead->lock);
	}
}

void readahead_end(struct readahead *readahead)
{
	if (readahead == NULL) {
		return;
	}
	atomic_store(&readahead->stop, true);
	if (readahead->has_thread && !thread_join_soon(readahead->thread)) {
		return; /* the thread waits for the server, and keeps its memory until the end */
	}
	pthread_mutex_destroy(&readahead->lock);
	free(readahead);
}
