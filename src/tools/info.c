// SPDX-License-Identifier: Apache-2.0
#include "tools/show.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <gmblock/gmblock.h>

#include "base/clock.h"
#include "base/log.h"
#include "disk/disk.h"
#ifdef GMBLOCK_CLAN
#include "gmb/probe.h"
#endif
#include "nbd/wire.h"
#include "ring/ring.h"
#include "sandbox/sandbox.h"
#include "stream/stream.h"
#include "tls/kernel.h"

enum { LABEL_COLUMNS = 20, TEXT_BYTES = 256 };

struct local_machine {
	struct ring_features ring;
	struct utsname kernel;
	uint64_t locked_bytes; /* UINT64_MAX = no limit */
	long cpus_online;
	int cpus_usable; /* by this process */
	uint64_t huge_page_bytes;
	uint64_t huge_pages_total;
	uint64_t huge_pages_free;
	char transparent[32]; /* the mode in force: always, madvise, never; "" unknown */
	char io_uring_error[ERROR_TEXT_BYTES]; /* what to do about it, "" when it works */
};

struct local_path {
	const char *path;
	struct disk_info info;
	bool direct; /* an O_DIRECT open worked and has an alignment */
	char direct_error[ERROR_TEXT_BYTES];
};

/* One probed feature of the kernel: what it is, whether it is there, what follows. */
struct local_feature {
	const char *key;
	const char *words;
	bool available;
	bool used;
	char consequence[TEXT_BYTES];
};

enum { FEATURES_COUNT = 11 };

/* --- looking ------------------------------------------------------------------------------- */

static uint64_t meminfo_value(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at != NULL ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Reads a small file of /proc or /sys whole; "" when it is not there. */
static void file_read(const char *path, char *out, size_t out_bytes)
{
	FILE *file = fopen(path, "re");
	size_t got = 0;

	if (file != NULL) {
		got = fread(out, 1, out_bytes - 1, file);
		fclose(file);
	}
	out[got] = '\0';
}

static void look_huge_pages(struct local_machine *machine)
{
	char text[8192];
	char *begin;
	char *end;

	file_read("/proc/meminfo", text, sizeof(text));
	machine->huge_page_bytes = meminfo_value(text, "Hugepagesize:") << 10;
	machine->huge_pages_total = meminfo_value(text, "HugePages_Total:");
	machine->huge_pages_free = meminfo_value(text, "HugePages_Free:");
	/* "always [madvise] never" */
	file_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text));
	begin = strchr(text, '[');
	end = begin != NULL ? strchr(begin, ']') : NULL;
	if (end != NULL) {
		snprintf(machine->transparent, sizeof(machine->transparent), "%.*s",
			(int)(end - begin - 1), begin + 1);
	}
}

static void look_machine(struct local_machine *machine)
{
	struct error error = { 0 };
	struct ring *ring;
	struct rlimit limit;
	cpu_set_t cpus;

	*machine = (struct local_machine){ .locked_bytes = UINT64_MAX };
	ring_probe(&machine->ring);
	if (!machine->ring.available) {
		/* Creating one for real gives the sentence that says what to do. */
		if (ring_create(&(struct ring_options){ 0 }, &ring, &error) == 0) {
			ring_destroy(ring);
		}
		memcpy(machine->io_uring_error, error.text, sizeof(error.text));
	}
	(void)uname(&machine->kernel);
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
		machine->locked_bytes = limit.rlim_cur;
	}
	machine->cpus_online = sysconf(_SC_NPROCESSORS_ONLN);
	machine->cpus_usable = sched_getaffinity(0, sizeof(cpus), &cpus) == 0
				       ? CPU_COUNT(&cpus)
				       : (int)machine->cpus_online;
	look_huge_pages(machine);
}

static int look_path(const char *path, struct local_path *look, struct error *error)
{
	struct error direct_error = { 0 };
	int fd;
	int err = disk_open(path, true, false, &fd, error);

	*look = (struct local_path){ .path = path };
	if (err != 0) {
		return err;
	}
	err = disk_info(fd, &look->info);
	disk_close(fd);
	if (err != 0) {
		return error_set(
			error, err, "%s: cannot find out about it: %s", path, strerror(-err));
	}
	err = disk_open(path, true, true, &fd, &direct_error);
	if (err != 0) {
		snprintf(look->direct_error, sizeof(look->direct_error), "%s", direct_error.text);
		return 0;
	}
	/* The alignment may be told only for a descriptor that was opened like this. */
	err = disk_info(fd, &look->info);
	disk_close(fd);
	look->direct = err == 0 && look->info.direct_offset_align != 0;
	if (!look->direct) {
		snprintf(look->direct_error, sizeof(look->direct_error), "%s",
			"the file system tells no alignment for it");
	}
	return 0;
}

/* --- judging ------------------------------------------------------------------------------- */

static void feature_set(struct local_feature *feature, const char *key, const char *words,
	bool available, bool used, const char *with, const char *without)
{
	*feature = (struct local_feature){
		.key = key, .words = words, .available = available, .used = available && used
	};
	snprintf(feature->consequence, sizeof(feature->consequence), "%s",
		available ? with : without);
}

static void judge(const struct ring_features *ring, struct local_feature out[FEATURES_COUNT])
{
	const struct tls_kernel_features *tls = tls_kernel_features();
	char without_buffers[TEXT_BYTES];
	struct sandbox_support sandbox;
	char without_tls[TEXT_BYTES];

	snprintf(without_buffers, sizeof(without_buffers),
		"each transfer maps its memory anew%s%s%s",
		ring->buffer_error != 0 ? "; the kernel said: " : "",
		ring->buffer_error != 0 ? strerror((int)ring->buffer_error) : "",
		ring->buffer_error == ENOMEM
			? " (raise the locked-memory limit: ulimit -l, LimitMEMLOCK=)"
			: "");
	feature_set(&out[0], "io_uring", "io_uring", ring->available, true, "the event loop",
		"gmblock serve cannot run");
	feature_set(&out[1], "single_issuer", "single issuer (6.0)", ring->single_issuer, true,
		"the kernel skips locks, as one thread submits", "a little more work a request");
	feature_set(&out[2], "defer_taskrun", "deferred task work (6.1)", ring->defer_taskrun, true,
		"completions run in batches and interrupt nothing",
		"completions interrupt the server: more context switches");
	feature_set(&out[3], "registered_ring", "registered ring (5.18)", ring->registered_ring,
		true, "system calls find the ring without a lookup",
		"one file lookup more a system call");
	feature_set(&out[4], "registered_files", "registered files (5.19)", ring->registered_files,
		true, "requests find their socket and disk without reference counting",
		"each operation looks its file up");
	feature_set(&out[5], "registered_buffers", "registered memory (5.19)",
		ring->registered_buffers, true, "payload memory is mapped for the disk once",
		without_buffers);
	feature_set(&out[6], "min_timeout", "minimum wait (6.12)", ring->min_timeout, true,
		"the loop waits for several requests at once where that pays",
		"the loop wakes up for each completion");
	feature_set(&out[7], "send_zero_copy", "zero-copy send (6.0)", ring->send_zero_copy,
		stream_sends_zero_copy(), "payloads are copied to the socket",
		"nothing: payloads are copied to the socket");
	sandbox_probe(&sandbox);
	feature_set(&out[8], "landlock", "Landlock (5.13)", sandbox.landlock > 0, true,
		"a server gives up all files but those that it serves",
		"a server that is broken into can open what its user can");
	feature_set(&out[9], "seccomp", "system call filter", sandbox.seccomp, true,
		"a server gives up the system calls that serving does not need",
		"a server that is broken into can make every system call");
	snprintf(without_tls, sizeof(without_tls), "TLS is done in user space: %.200s",
		tls->why_not.text);
	feature_set(&out[10], "kernel_tls", "TLS with new keys (6.14)", tls->why_not.code == 0,
		true, "the kernel encrypts what TLS connections over TCP carry", without_tls);
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_label(const char *label)
{
	printf("%-*s", LABEL_COLUMNS, label);
}

static void print_features(const struct local_feature features[FEATURES_COUNT])
{
	printf("\nKernel features\n");
	for (size_t i = 0; i < FEATURES_COUNT; i++) {
		const struct local_feature *feature = &features[i];

		printf("  %-26s %-8s %-6s %s\n", feature->words,
			feature->available ? "present" : "absent",
			feature->used ? "used" : "unused", feature->consequence);
	}
}

static void print_path(const struct local_path *look)
{
	char human[PRINT_SIZE_BYTES];
	char quoted[TEXT_BYTES];

	putchar('\n');
	print_label("Path");
	printf("\"%s\"\n", log_escape(quoted, sizeof(quoted), look->path, strlen(look->path)));
	print_label("Kind");
	printf("%s%s%s\n", look->info.is_block ? "block device" : "regular file",
		look->info.rotational ? ", rotating" : "",
		look->info.read_only ? ", read-only" : "");
	print_label("Size");
	printf("%s (%llu bytes)\n", print_size(human, look->info.size),
		(unsigned long long)look->info.size);
	print_label("O_DIRECT");
	if (look->direct) {
		printf("works: offsets and lengths in %u, memory in %u bytes; "
		       "mode=direct is possible\n",
			look->info.direct_offset_align, look->info.direct_memory_align);
	} else {
		printf("does not work, so mode=direct is refused: %s\n", look->direct_error);
	}
	print_label("Gives space back");
	printf("%s\n", look->info.punches_holes ? "can be tried (trim, fast zeroing)" : "no");
	if (look->info.stripe_members > 0) {
		print_label("Stripes");
		printf("%u members, %u bytes on each in turn\n", look->info.stripe_members,
			look->info.stripe_chunk);
	}
}

static int show_text(const struct local_machine *machine, const struct local_path *look,
	const struct local_feature features[FEATURES_COUNT], struct error *error)
{
	char human[PRINT_SIZE_BYTES];
	json_t *devices;

	print_label("gmblock");
	printf("%s\n", GMBLOCK_VERSION);
	print_label("Kernel");
	printf("%s %s\n", machine->kernel.sysname, machine->kernel.release);
	print_label("CPUs");
	printf("%d usable of %ld\n", machine->cpus_usable, machine->cpus_online);
	print_label("Locked memory");
	if (machine->locked_bytes == UINT64_MAX) {
		printf("no limit\n");
	} else {
		printf("at most %s (%llu bytes); only CAP_IPC_LOCK lets more be registered\n",
			print_size(human, machine->locked_bytes),
			(unsigned long long)machine->locked_bytes);
	}
	print_label("Huge pages");
	printf("%llu of %llu free, %s each; transparent: %s\n",
		(unsigned long long)machine->huge_pages_free,
		(unsigned long long)machine->huge_pages_total,
		print_size(human, machine->huge_page_bytes),
		machine->transparent[0] != '\0' ? machine->transparent : "not in this kernel");
	print_features(features);
	if (machine->io_uring_error[0] != '\0') {
		printf("  %s\n", machine->io_uring_error);
	}
	devices = info_devices();
	info_devices_print(devices);
	json_decref(devices);
	if (look != NULL) {
		print_path(look);
	}
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_features(const struct local_feature features[FEATURES_COUNT])
{
	json_t *object = json_object();

	for (size_t i = 0; i < FEATURES_COUNT; i++) {
		json_t *feature = json_object();

		json_object_set_new(feature, "available", json_boolean(features[i].available));
		json_object_set_new(feature, "used", json_boolean(features[i].used));
		json_object_set_new(feature, "consequence", json_string(features[i].consequence));
		json_object_set_new(object, features[i].key, feature);
	}
	return object;
}

static json_t *json_huge_pages(const struct local_machine *machine)
{
	json_t *object = json_object();

	json_object_set_new(
		object, "page_bytes", json_integer((json_int_t)machine->huge_page_bytes));
	json_object_set_new(object, "total", json_integer((json_int_t)machine->huge_pages_total));
	json_object_set_new(object, "free", json_integer((json_int_t)machine->huge_pages_free));
	json_object_set_new(object, "transparent",
		machine->transparent[0] != '\0' ? json_string(machine->transparent) : json_null());
	return object;
}

static json_t *json_path(const struct local_path *look)
{
	json_t *object = json_object();
	json_t *direct = json_object();

	json_object_set_new(object, "path", print_json_text(look->path));
	json_object_set_new(
		object, "kind", json_string(look->info.is_block ? "block device" : "file"));
	json_object_set_new(object, "size", json_integer((json_int_t)look->info.size));
	json_object_set_new(object, "read_only", json_boolean(look->info.read_only));
	json_object_set_new(object, "rotational", json_boolean(look->info.rotational));
	json_object_set_new(object, "punches_holes", json_boolean(look->info.punches_holes));
	json_object_set_new(direct, "works", json_boolean(look->direct));
	json_object_set_new(direct, "offset_align", json_integer(look->info.direct_offset_align));
	json_object_set_new(direct, "memory_align", json_integer(look->info.direct_memory_align));
	json_object_set_new(
		direct, "reason", look->direct ? json_null() : json_string(look->direct_error));
	json_object_set_new(object, "direct", direct);
	return object;
}

static int show_json(const struct local_machine *machine, const struct local_path *look,
	const struct local_feature features[FEATURES_COUNT], struct error *error)
{
	json_t *root = json_object();

	json_object_set_new(root, "version", json_string(GMBLOCK_VERSION));
	json_object_set_new(root, "kernel", json_string(machine->kernel.release));
	json_object_set_new(root, "cpus_usable", json_integer(machine->cpus_usable));
	json_object_set_new(root, "cpus_online", json_integer(machine->cpus_online));
	json_object_set_new(root, "locked_memory_bytes_max",
		machine->locked_bytes == UINT64_MAX
			? json_null()
			: json_integer((json_int_t)machine->locked_bytes));
	json_object_set_new(root, "huge_pages", json_huge_pages(machine));
	json_object_set_new(root, "features", json_features(features));
	json_object_set_new(root, "io_uring_error",
		machine->io_uring_error[0] != '\0' ? json_string(machine->io_uring_error)
						   : json_null());
	json_object_set_new(root, "device_memory", info_devices());
	if (look != NULL) {
		json_object_set_new(root, "path", json_path(look));
	}
	return print_json(root, error);
}

int info_local(const char *path, bool json, struct error *error)
{
	struct local_feature features[FEATURES_COUNT];
	struct local_machine machine;
	struct local_path look;

	if (path != NULL) {
		int err = look_path(path, &look, error);

		if (err != 0) {
			return err;
		}
	}
	look_machine(&machine);
	judge(&machine.ring, features);
	return (json ? show_json : show_text)(
		&machine, path != NULL ? &look : NULL, features, error);
}

/* Extents in one answer. */
enum { EXTENTS_MAX = 4096, KINDS = 4 };

/* How much is asked for at first. A server may walk through all of it before it says a word, so the
 * step only grows while the answers are short. */
#define STEP_FIRST_BYTES (UINT64_C(4) << 30)

/* By enum gmb_extent_flags. */
static const char *const kind_names[KINDS] = { "data", "hole", "zero", "hole,zero" };

struct map {
	struct gmb_client *client;
	struct gmb_extent *extents;
	struct gmb_extent last; /* not shown yet: the next may continue it */
	uint64_t size;
	uint64_t bytes[KINDS];
	uint64_t counts[KINDS];
	bool json;
	bool first;
};

static uint32_t kind_of(const struct gmb_extent *extent)
{
	return extent->flags & (GMB_EXTENT_HOLE | GMB_EXTENT_ZERO);
}

static void show_extent(struct map *map, const struct gmb_extent *extent)
{
	uint32_t kind = kind_of(extent);

	map->bytes[kind] += extent->bytes;
	map->counts[kind]++;
	if (!map->json) {
		printf("%20" PRIu64 " %20" PRIu64 "  %s\n", extent->offset, extent->bytes,
			kind_names[kind]);
		return;
	}
	/* A line each, written as they come: a map may have millions. */
	printf("%s    { \"offset\": %" PRIu64 ", \"length\": %" PRIu64
	       ", \"type\": \"%s\", \"hole\": %s, \"zero\": %s }",
		map->first ? "\n" : ",\n", extent->offset, extent->bytes, kind_names[kind],
		(kind & GMB_EXTENT_HOLE) != 0 ? "true" : "false",
		(kind & GMB_EXTENT_ZERO) != 0 ? "true" : "false");
	map->first = false;
}

static void take_extent(struct map *map, const struct gmb_extent *extent)
{
	if (map->last.bytes > 0 && kind_of(&map->last) == kind_of(extent)) {
		map->last.bytes += extent->bytes;
		return;
	}
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	map->last = *extent;
}

static int ask(
	struct map *map, uint64_t offset, uint64_t bytes, uint32_t *count, struct error *error)
{
	struct gmb_request request = { 0 };
	char text[ERROR_TEXT_BYTES];
	int err;

	gmb_prepare_status(&request, map->extents, EXTENTS_MAX, offset, bytes);
	err = gmb_run(map->client, &request);
	if (err != 0) {
		return error_set(
			error, err, "%s", gmb_explain(map->client, &request, text, sizeof(text)));
	}
	*count = request.extent_count;
	return 0;
}

static int walk(struct map *map, struct error *error)
{
	uint64_t step = STEP_FIRST_BYTES;
	uint64_t offset = 0;

	while (offset < map->size) {
		uint64_t bytes = MIN(step, map->size - offset);
		uint32_t count = 0;
		int err = ask(map, offset, bytes, &count, error);

		if (err != 0) {
			return err;
		}
		for (uint32_t i = 0; i < count; i++) {
			take_extent(map, &map->extents[i]);
			offset += map->extents[i].bytes;
		}
		if (count <= 2 && step <= UINT64_MAX / 4) {
			step *= 2;
		} else if (count > 2) {
			step = STEP_FIRST_BYTES;
		}
		if (ferror(stdout)) {
			return print_end(error);
		}
	}
	return 0;
}

/* --- beginning and end --------------------------------------------------------------------- */

/* A string as JSON writes it, in quotes, or null. */
static void dump_text(const char *text)
{
	json_t *value = print_json_text(text);

	if (value == NULL || json_dumpf(value, stdout, JSON_ENCODE_ANY) != 0) {
		fputs("null", stdout);
	}
	json_decref(value);
}

static void print_head(const struct map *map, const char *uri)
{
	if (!map->json) {
		printf("%20s %20s  type\n", "offset", "length");
		return;
	}
	fputs("{\n  \"uri\": ", stdout);
	dump_text(uri);
	printf(",\n  \"size\": %" PRIu64 ",\n  \"extents\": [", map->size);
}

static void print_totals_text(const struct map *map)
{
	char human[PRINT_SIZE_BYTES];

	putchar('\n');
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		if (map->counts[kind] == 0) {
			continue;
		}
		printf("%-9s  %9s  %5.1f %%  %" PRIu64 " bytes in %" PRIu64 " extent%s\n",
			kind_names[kind], print_size(human, map->bytes[kind]),
			100.0 * (double)map->bytes[kind] / (double)map->size, map->bytes[kind],
			map->counts[kind], map->counts[kind] == 1 ? "" : "s");
	}
}

static void print_totals_json(const struct map *map, const char *failure)
{
	fputs(map->first ? "],\n  \"totals\": {\n" : "\n  ],\n  \"totals\": {\n", stdout);
	for (uint32_t kind = 0; kind < KINDS; kind++) {
		printf("    \"%s\": { \"bytes\": %" PRIu64 ", \"extents\": %" PRIu64 " }%s\n",
			kind_names[kind], map->bytes[kind], map->counts[kind],
			kind + 1 < KINDS ? "," : "");
	}
	fputs("  },\n  \"error\": ", stdout);
	dump_text(failure);
	fputs("\n}\n", stdout);
}

static int map_show(struct map *map, const char *uri, struct error *error)
{
	int err;

	print_head(map, uri);
	err = walk(map, error);
	if (map->last.bytes > 0) {
		show_extent(map, &map->last);
	}
	/* After a failure the totals say what there was until then, so that the JSON is whole. */
	if (map->json) {
		print_totals_json(map, err != 0 ? error->text : NULL);
	} else if (err == 0 && map->size > 0) {
		print_totals_text(map);
	}
	if (err != 0) {
		fflush(stdout);
		return err;
	}
	return print_end(error);
}

static int map_check(const struct gmb_info *info, struct error *error)
{
	if ((info->capabilities & GMB_CAN_STATUS) != 0) {
		return 0;
	}
	return error_set(error, -EOPNOTSUPP,
		info->replies == GMB_REPLIES_SIMPLE
			? "the server does not tell what is allocated: it has no structured "
			  "replies, which base:allocation needs"
			: "the server does not tell what is allocated: it has no base:allocation "
			  "for this export");
}

/* The library's error as the commands report theirs. */
static int foreign_error(struct error *error, const struct gmb_error *theirs)
{
	return error_set(error, theirs->code, "%s", theirs->text);
}

int info_map(const char *uri, uint64_t timeout_ns, bool json, struct error *error)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.flags = GMB_OPEN_READ_ONLY | GMB_OPEN_URI_FILES,
		.connections = 1,
		.connect_timeout_ms = clock_milliseconds(timeout_ns),
	};
	struct gmb_info info = { .size = sizeof(info) };
	struct map map = { .json = json, .first = true };
	struct gmb_queue *queue = NULL;
	struct gmb_error theirs;
	int err = gmb_queue_create(NULL, &queue, &theirs);

	if (err != 0) {
		return foreign_error(error, &theirs);
	}
	err = gmb_open(queue, uri, &options, &map.client, &theirs);
	if (err != 0) {
		foreign_error(error, &theirs);
		goto out;
	}
	gmb_get_info(map.client, &info);
	map.size = info.bytes;
	err = map_check(&info, error);
	if (err != 0) {
		goto out;
	}
	map.extents = calloc(EXTENTS_MAX, sizeof(*map.extents));
	if (map.extents == NULL) {
		err = error_set(error, -ENOMEM, "out of memory");
		goto out;
	}
	err = map_show(&map, uri, error);
out:
	gmb_close(map.client);
	GMB_ASSERT(gmb_queue_destroy(queue) == 0);
	free(map.extents);
	return err;
}

enum {
	/* A string of 4096 bytes, each as \xNN. */
	ESCAPED_BYTES = 4 * NBD_STRING_BYTES_MAX + 8,
};

/* The transmission flags as capabilities; the keys are those of the JSON output. */
static const struct capability {
	uint16_t flag;
	const char *key;
	const char *words;
	const char *meaning;
} capabilities[] = {
	{ NBD_FLAG_READ_ONLY, "read_only", "read-only", "writing is refused" },
	{ NBD_FLAG_SEND_FLUSH, "flush", "flush", "earlier writes can be made durable" },
	{ NBD_FLAG_SEND_FUA, "fua", "FUA", "single writes can be made durable" },
	{ NBD_FLAG_SEND_TRIM, "trim", "trim", "unused ranges can be given back" },
	{ NBD_FLAG_SEND_WRITE_ZEROES, "write_zeroes", "write zeroes",
		"ranges can be zeroed without sending zeroes" },
	{ NBD_FLAG_SEND_FAST_ZERO, "fast_zero", "fast zero",
		"zeroing can be asked to be quick or fail" },
	{ NBD_FLAG_SEND_DF, "df", "do not fragment", "a read can be asked to come in one piece" },
	{ NBD_FLAG_CAN_MULTI_CONN, "multi_conn", "multi-conn",
		"several connections see the same data" },
	{ NBD_FLAG_SEND_CACHE, "cache", "cache", "ranges can be read ahead" },
	{ NBD_FLAG_ROTATIONAL, "rotational", "rotational", "the disk turns: prefer long accesses" },
	{ NBD_FLAG_SEND_RESIZE, "resize", "resize", "the size can be changed (experimental)" },
	{ NBD_FLAG_BLOCK_STATUS_PAYLOAD, "block_status_payload", "status payload",
		"block status can be asked for chosen contexts" },
};

static bool offer_can(const struct nbd_offer *offer, const struct capability *capability)
{
	return (offer->flags & NBD_FLAG_HAS_FLAGS) != 0 && (offer->flags & capability->flag) != 0;
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_line(const char *label, const char *value)
{
	print_label(label);
	printf("%s\n", value);
}

/* Text from the server, in quotes because it may begin or end with anything. */
static void print_quoted(const char *label, const char *text)
{
	char escaped[ESCAPED_BYTES];

	print_label(label);
	printf("\"%s\"\n", log_escape(escaped, sizeof(escaped), text, strlen(text)));
}

static void show_size(const char *label, uint64_t bytes)
{
	char human[PRINT_SIZE_BYTES];

	print_label(label);
	if (bytes < 1024) {
		printf("%llu bytes\n", (unsigned long long)bytes);
	} else {
		printf("%s (%llu bytes)\n", print_size(human, bytes), (unsigned long long)bytes);
	}
}

static void print_block_sizes(const struct nbd_offer *offer)
{
	char human[PRINT_SIZE_BYTES];

	print_label("Block sizes");
	if (!offer->sizes_known) {
		printf("not told: clients keep to 512-byte blocks and 32 MiB a request\n");
		return;
	}
	printf("minimum %u, preferred %u, largest payload ", offer->sizes.minimum,
		offer->sizes.preferred);
	if (offer->sizes.payload_max == UINT32_MAX) {
		printf("unlimited\n");
	} else {
		printf("%s (%u)\n", print_size(human, offer->sizes.payload_max),
			offer->sizes.payload_max);
	}
}

static void print_contexts(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	if (offer->contexts_refusal != NULL) {
		print_label("Contexts");
		printf("not told: %s\n", offer->contexts_refusal);
		return;
	}
	if (!offer->contexts_known || offer->context_count == 0) {
		print_line("Contexts", offers->style == NBD_REPLIES_SIMPLE
					       ? "none (they need structured replies)"
					       : "none");
		return;
	}
	for (uint32_t i = 0; i < offer->context_count; i++) {
		print_quoted(i == 0 ? "Contexts" : "", offer->contexts[i]);
	}
}

static void print_offer(const struct nbd_offers *offers, const struct nbd_offer *offer)
{
	if (offer->name[0] == '\0') {
		print_line("Export", "\"\" (the default export)");
	} else {
		print_quoted("Export", offer->name);
	}
	if (offer->canonical_name != NULL && strcmp(offer->canonical_name, offer->name) != 0) {
		print_quoted("Canonical name", offer->canonical_name);
	}
	if (offer->description != NULL) {
		print_quoted("Description", offer->description);
	}
	if (offer->refusal != NULL) {
		print_line("Not usable", offer->refusal);
	}
	if (!offer->known) {
		return;
	}
	show_size("Size", offer->size);
	print_block_sizes(offer);
	print_contexts(offers, offer);
	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		print_label(i == 0 ? "Capabilities" : "");
		printf("%-3s  %-*s %s\n", offer_can(offer, &capabilities[i]) ? "yes" : "no",
			LABEL_COLUMNS, capabilities[i].words, capabilities[i].meaning);
	}
}

static void print_negotiated(const struct nbd_offers *offers)
{
	static const char *const styles[] = {
		[NBD_REPLIES_SIMPLE] = "simple replies",
		[NBD_REPLIES_STRUCTURED] = "structured replies",
		[NBD_REPLIES_EXTENDED] = "extended headers (64-bit lengths)",
	};

	printf("%s, %s, %s\n", offers->fixed ? "fixed newstyle" : "first newstyle (not fixed)",
		styles[offers->style], offers->protection.version != NULL ? "under TLS" : "no TLS");
	if (offers->protection.version != NULL) {
		print_label("TLS");
		printf("%s, %s, %s\n", offers->protection.version, offers->protection.cipher,
			offers->protection.verified ? "the server is verified"
						    : "the server is not verified");
	}
}

int info_show_text(const char *uri, const struct nbd_offers *offers, bool list, struct error *error)
{
	print_quoted("Server", uri);
	print_label("Protocol");
	if (offers->protocol != NULL) {
		puts(offers->protocol);
	} else {
		print_negotiated(offers);
	}
	if (list) {
		print_label("Exports");
		printf("%u\n", offers->count);
	}
	for (uint32_t i = 0; i < offers->count; i++) {
		if (list) {
			putchar('\n');
		}
		print_offer(offers, &offers->list[i]);
	}
	for (uint32_t i = 0; i < offers->note_count; i++) {
		if (i == 0) {
			putchar('\n');
		}
		print_line("Note", offers->notes[i]);
	}
	return print_end(error);
}

/* --- JSON ---------------------------------------------------------------------------------- */

static json_t *json_texts(char *const *texts, uint32_t count)
{
	json_t *array = json_array();

	for (uint32_t i = 0; i < count; i++) {
		json_array_append_new(array, print_json_text(texts[i]));
	}
	return array;
}

static json_t *json_capabilities(const struct nbd_offer *offer)
{
	json_t *object = json_object();

	for (size_t i = 0; i < ARRAY_COUNT(capabilities); i++) {
		json_object_set_new(object, capabilities[i].key,
			json_boolean(offer_can(offer, &capabilities[i])));
	}
	return object;
}

static json_t *json_block_sizes(const struct nbd_offer *offer)
{
	json_t *object;

	if (!offer->sizes_known) {
		return json_null();
	}
	object = json_object();
	json_object_set_new(object, "minimum", json_integer(offer->sizes.minimum));
	json_object_set_new(object, "preferred", json_integer(offer->sizes.preferred));
	json_object_set_new(object, "maximum_payload",
		offer->sizes.payload_max == UINT32_MAX ? json_null()
						       : json_integer(offer->sizes.payload_max));
	return object;
}

static json_t *json_offer(const struct nbd_offer *offer)
{
	json_t *object = json_object();

	json_object_set_new(object, "name", print_json_text(offer->name));
	json_object_set_new(object, "canonical_name", print_json_text(offer->canonical_name));
	json_object_set_new(object, "description", print_json_text(offer->description));
	json_object_set_new(object, "refusal", print_json_text(offer->refusal));
	json_object_set_new(
		object, "size", offer->known ? json_integer((json_int_t)offer->size) : json_null());
	json_object_set_new(object, "block_sizes", json_block_sizes(offer));
	json_object_set_new(object, "transmission_flags",
		offer->known ? json_integer(offer->flags) : json_null());
	json_object_set_new(
		object, "capabilities", offer->known ? json_capabilities(offer) : json_null());
	json_object_set_new(object, "contexts",
		offer->contexts_known ? json_texts(offer->contexts, offer->context_count)
				      : json_null());
	json_object_set_new(object, "contexts_refusal", print_json_text(offer->contexts_refusal));
	return object;
}

json_t *info_json_tls(const struct nbd_protection *protection)
{
	json_t *object;

	if (protection->version == NULL) {
		return json_false();
	}
	object = json_object();
	json_object_set_new(object, "version", json_string(protection->version));
	json_object_set_new(object, "cipher", json_string(protection->cipher));
	json_object_set_new(object, "verified", json_boolean(protection->verified));
	return object;
}

static json_t *json_protocol(const struct nbd_offers *offers)
{
	json_t *object = json_object();

	if (offers->protocol != NULL) {
		json_object_set_new(object, "handshake", json_string(offers->protocol));
		json_object_set_new(object, "replies", json_string("placed"));
	} else {
		json_object_set_new(object, "handshake",
			json_string(offers->fixed ? "fixed-newstyle" : "newstyle"));
		json_object_set_new(
			object, "replies", json_string(nbd_reply_style_name(offers->style)));
	}
	json_object_set_new(object, "tls", info_json_tls(&offers->protection));
	return object;
}

int info_show_json(const char *uri, const struct nbd_offers *offers, bool list, const char *refusal,
	struct error *error)
{
	json_t *root = json_object();
	json_t *exports = json_array();
	uint32_t first = !list && refusal != NULL ? 1 : 0;

	for (uint32_t i = first; i < offers->count; i++) {
		json_array_append_new(exports, json_offer(&offers->list[i]));
	}
	json_object_set_new(root, "uri", print_json_text(uri));
	json_object_set_new(root, "error", print_json_text(refusal));
	json_object_set_new(root, "protocol", json_protocol(offers));
	json_object_set_new(root, "exports", exports);
	json_object_set_new(
		root, "notes", json_texts((char *const *)offers->notes, offers->note_count));
	return print_json(root, error);
}

/* --- over gmb ------------------------------------------------------------------------------ */

#ifdef GMBLOCK_CLAN
static struct nbd_text text_of(struct native_text text)
{
	return (struct nbd_text){ .bytes = (const char *)text.bytes, .length = text.length };
}

/* In NBD's words: it can do what NBD can. */
static int take_export(void *context, const struct native_export *export, struct error *error)
{
	static const char allocation[] = "base:allocation";
	const struct nbd_text base = { .bytes = allocation, .length = sizeof(allocation) - 1 };
	const uint32_t always = NBD_FLAG_HAS_FLAGS | NBD_FLAG_SEND_FLUSH | NBD_FLAG_SEND_FUA |
				NBD_FLAG_SEND_CACHE | NBD_FLAG_CAN_MULTI_CONN | NBD_FLAG_SEND_DF;
	const uint32_t changes =
		NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO;
	bool writable = (export->head.flags & NATIVE_EXPORT_WRITABLE) != 0;
	bool rotates = (export->head.flags & NATIVE_EXPORT_ROTATIONAL) != 0;
	struct nbd_offers *offers = context;
	struct nbd_offer *offer;
	int err = nbd_offers_add(offers, text_of(export->name), text_of(export->text), error);

	if (err != 0) {
		return err;
	}
	offer = &offers->list[offers->count - 1];
	offer->known = true;
	offer->size = export->head.bytes;
	offer->flags = (uint16_t)(always | (writable ? changes : (uint32_t)NBD_FLAG_READ_ONLY) |
				  (rotates ? (uint32_t)NBD_FLAG_ROTATIONAL : 0));
	offer->sizes_known = true;
	offer->sizes = (struct nbd_block_sizes){ .minimum = 1,
		.preferred = export->head.block_preferred,
		.payload_max = export->head.payload_max };
	offer->contexts_known = true;
	return nbd_offers_add_context(offers, offer, base, error);
}

int info_probe_gmb(const char *uri, bool list, uint64_t timeout_ns, struct nbd_offers *offers,
	struct error *error)
{
	*offers = (struct nbd_offers){ .protocol = "gmb, version 1", .listed = list };
	return native_probe(uri, list, timeout_ns, take_export, offers, error);
}
#else
int info_probe_gmb(const char *uri, bool list, uint64_t timeout_ns, struct nbd_offers *offers,
	struct error *error)
{
	GMB_UNUSED(list);
	GMB_UNUSED(timeout_ns);
	*offers = (struct nbd_offers){ 0 };
	return error_set(error, -EPROTONOSUPPORT, "%s: gmb needs an x86-64 processor", uri);
}
#endif
