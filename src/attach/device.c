// SPDX-License-Identifier: Apache-2.0
#include "attach/attach.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "control/control.h"

enum { SECTOR_BYTES = 512 };

int device_init(struct device *device, const struct device_ops *ops, struct error *error)
{
	device->ops = ops;
	device->number = -1;
	atomic_store(&device->staged_bytes, -1);
	pthread_mutex_init(&device->health.lock, NULL);
	device->health.connected = true;
	device->ended_fd = eventfd(0, EFD_CLOEXEC);
	device->resized_fd = eventfd(0, EFD_CLOEXEC);
	return device->ended_fd >= 0 && device->resized_fd >= 0
		       ? 0
		       : error_set(error, -errno, "cannot create an event descriptor");
}

void device_fini(struct device *device)
{
	if (device->ended_fd >= 0) {
		close(device->ended_fd);
	}
	if (device->resized_fd >= 0) {
		close(device->resized_fd);
	}
}

/* The size is stored before the event is signalled, so that the daemon reads this size or a later
 * one. */
void device_export_resized(struct device *device, uint64_t bytes)
{
	atomic_store(&device->export_bytes, bytes);
	eventfd_write(device->resized_fd, 1);
}

int device_fit(
	struct device *device, uint64_t export_bytes, uint32_t block_minimum, struct error *error)
{
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
	uint32_t block = MAX(block_minimum, (uint32_t)SECTOR_BYTES);

	if (block > page) {
		return error_set(error, -EINVAL,
			"the server requires blocks of at least %u bytes, but the kernel supports "
			"at most %u; use --fuse FILE",
			block_minimum, page);
	}
	device->bytes = align_down(export_bytes, block);
	if (device->bytes == 0) {
		return error_set(
			error, -EINVAL, "the export is smaller than one block of %u bytes", block);
	}
	if (device->bytes != export_bytes) {
		log_warning("the last %u bytes of the export are not part of the disk, whose block "
			    "size is %u bytes",
			(unsigned)(export_bytes - device->bytes), block);
	}
	device->block_bytes = block;
	return 0;
}

enum { THREAD_STACK_BYTES = 256 << 10, JOIN_SECONDS = 5 };

int thread_start(pthread_t *thread, void *(*run)(void *), void *argument, struct error *error)
{
	pthread_attr_t attributes;
	sigset_t all;
	sigset_t before;
	int err;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(thread, &attributes, run, argument);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return err == 0 ? 0 : error_set(error, -err, "cannot start a thread: %s", strerror(err));
}

bool thread_join_soon(pthread_t thread)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += JOIN_SECONDS;
	return pthread_timedjoin_np(thread, NULL, &end) == 0;
}

static const char *const names[TIMINGS_STEPS] = {
	[TIMINGS_START] = "start",
	[TIMINGS_ARGUMENTS] = "arguments",
	[TIMINGS_FORK] = "fork",
	[TIMINGS_PROTECT] = "protect",
	[TIMINGS_DRIVER] = "driver",
	[TIMINGS_FILE] = "file",
	[TIMINGS_CONNECT] = "connect",
	[TIMINGS_LOOK] = "look",
	[TIMINGS_ADD] = "add",
	[TIMINGS_PARAMS] = "params",
	[TIMINGS_NODE] = "node",
	[TIMINGS_QUEUES] = "queues",
	[TIMINGS_DISK] = "disk",
	[TIMINGS_LIMITS] = "limits",
	[TIMINGS_WATCH] = "watch",
	[TIMINGS_STATE] = "state",
	[TIMINGS_TELL] = "tell",
};

static void attach_device_keep(struct timings *timings, enum timings_step step, uint64_t ns)
{
	if (timings->count < TIMINGS_MAX) {
		timings->steps[timings->count].step = step;
		timings->steps[timings->count].ns = ns;
		timings->count++;
	}
}

void timings_begin(struct timings *timings)
{
	struct timespec used;

	*timings = (struct timings){ .last_ns = clock_now_ns() };
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	attach_device_keep(timings, TIMINGS_START,
		(uint64_t)used.tv_sec * UINT64_C(1000000000) + (uint64_t)used.tv_nsec);
}

void timings_mark(struct timings *timings, enum timings_step step)
{
	uint64_t now;

	if (timings != NULL) {
		now = clock_now_ns();
		attach_device_keep(timings, step, now - timings->last_ns);
		timings->last_ns = now;
	}
}

static const char *name_of(uint32_t step)
{
	/* The number came through a pipe from our own process, so it is valid. */
	GMB_ASSERT(step < TIMINGS_STEPS);
	return names[step];
}

static uint64_t sum_ns(const struct timings *timings)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < timings->count; i++) {
		sum += timings->steps[i].ns;
	}
	return sum;
}

static int attach_device_print_lines(const struct timings *timings)
{
	for (uint32_t i = 0; i < timings->count; i++) {
		fprintf(stderr, "%-10s %10.1f us\n", name_of(timings->steps[i].step),
			(double)timings->steps[i].ns / 1e3);
	}
	return fprintf(stderr, "%-10s %10.1f us\n", "all", (double)sum_ns(timings) / 1e3) < 0 ? -EIO
											      : 0;
}

static int attach_device_print_json(const struct timings *timings, const char *path)
{
	json_t *steps = json_array();
	json_t *root = json_pack("{s:s, s:f, s:o}", "device", path, "us",
		(double)sum_ns(timings) / 1e3, "steps", steps);
	int rc = root == NULL ? -ENOMEM : 0;

	for (uint32_t i = 0; rc == 0 && i < timings->count; i++) {
		rc = json_array_append_new(
			     steps, json_pack("{s:s, s:f}", "step", name_of(timings->steps[i].step),
					    "us", (double)timings->steps[i].ns / 1e3)) == 0
			     ? 0
			     : -ENOMEM;
	}
	rc = rc ?: control_print_json(root, JSON_INDENT(2));
	if (rc == 0 && putchar('\n') == EOF) {
		rc = -EIO;
	}
	json_decref(root);
	return rc;
}

int timings_print(const struct timings *timings, const char *path, bool json, struct error *error)
{
	int rc =
		json ? attach_device_print_json(timings, path) : attach_device_print_lines(timings);

	if (rc == -ENOMEM) {
		return error_oom(error);
	}
	return rc == 0 ? 0 : error_set(error, rc, "cannot print the timings");
}

void health_set(struct health *health, bool connected, const char *text)
{
	pthread_mutex_lock(&health->lock);
	health->connected = connected;
	if (text != NULL) {
		snprintf(health->text, sizeof(health->text), "%s", text);
	}
	pthread_mutex_unlock(&health->lock);
}

void health_set_server(struct health *health, const char *server)
{
	pthread_mutex_lock(&health->lock);
	snprintf(health->server, sizeof(health->server), "%s", server);
	pthread_mutex_unlock(&health->lock);
}

bool health_server(struct health *health, char out[HEALTH_TEXT_BYTES])
{
	pthread_mutex_lock(&health->lock);
	memcpy(out, health->server, HEALTH_TEXT_BYTES);
	pthread_mutex_unlock(&health->lock);
	return out[0] != '\0';
}

const char *health_describe(struct health *health, char *out, size_t out_bytes)
{
	pthread_mutex_lock(&health->lock);
	if (health->connected) {
		snprintf(out, out_bytes, "connected");
	} else {
		snprintf(out, out_bytes, "not connected: %s", health->text);
	}
	pthread_mutex_unlock(&health->lock);
	return out;
}

bool health_last_reason(struct health *health, char out[HEALTH_TEXT_BYTES])
{
	pthread_mutex_lock(&health->lock);
	memcpy(out, health->text, HEALTH_TEXT_BYTES);
	pthread_mutex_unlock(&health->lock);
	return out[0] != '\0';
}

bool health_is_connected(struct health *health)
{
	bool connected;

	pthread_mutex_lock(&health->lock);
	connected = health->connected;
	pthread_mutex_unlock(&health->lock);
	return connected;
}
