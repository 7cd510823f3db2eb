// SPDX-License-Identifier: Apache-2.0
/* Reports what this machine offers, and the properties of one file or device. */
#include <errno.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "disk/disk.h"
#include "ring/ring.h"
#include "sandbox/sandbox.h"
#include "tls/kernel.h"
#include "tools/show.h"

enum { TEXT_BYTES = 256 };

struct local_machine {
	struct ring_features ring;
	struct utsname kernel;
	uint64_t locked_bytes; /* UINT64_MAX = no limit */
	long cpus_online;
	int cpus_usable; /* number of CPUs usable by this process */
	uint64_t huge_page_bytes;
	uint64_t huge_pages_total;
	uint64_t huge_pages_free;
	char transparent[32]; /* the active mode: always, madvise, never; "" unknown */
	char io_uring_error[ERROR_TEXT_BYTES]; /* the remedy; "" if io_uring works */
};

struct local_path {
	const char *path;
	struct disk_info info;
	bool direct; /* an open with O_DIRECT succeeded and reported an alignment */
	char direct_error[ERROR_TEXT_BYTES];
	json_t *overlay; /* contents, from check_file(); NULL: not an overlay */
};

/* A feature of the kernel, whether it is available, and what depends on it. */
struct local_feature {
	const char *key;
	const char *words;
	bool available;
	char consequence[TEXT_BYTES];
};

enum { FEATURES_COUNT = 8 };

/* --- probing ------------------------------------------------------------------------------- */

static uint64_t meminfo_value(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at != NULL ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Reads a small file of /proc or /sys; "" if it does not exist. */
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
	/* The text is like "always [madvise] never". */
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
		/* If a ring cannot be created, the error has the remedy. */
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
		return error_set(error, err, "%s: cannot examine it: %s", path, strerror(-err));
	}
	if (look->info.format != NULL && strcmp(look->info.format, DISK_FORMAT_OVERLAY) == 0) {
		look->overlay = check_file(path, NULL, error);
		if (look->overlay == NULL) {
			return error->code;
		}
	}
	err = disk_open(path, true, true, &fd, &direct_error);
	if (err != 0) {
		snprintf(look->direct_error, sizeof(look->direct_error), "%s", direct_error.text);
		return 0;
	}
	/* Some file systems report the alignment only for a descriptor opened with O_DIRECT. */
	err = disk_info(fd, &look->info);
	disk_close(fd);
	look->direct = err == 0 && look->info.direct_offset_align != 0;
	if (!look->direct) {
		snprintf(look->direct_error, sizeof(look->direct_error), "%s",
			"the filesystem does not report its alignment");
	}
	return 0;
}

/* --- consequences -------------------------------------------------------------------------- */

static void feature_set(struct local_feature *feature, const char *key, const char *words,
	bool available, const char *with, const char *without)
{
	*feature = (struct local_feature){ .key = key, .words = words, .available = available };
	snprintf(feature->consequence, sizeof(feature->consequence), "%s",
		available ? with : without);
}

static void info_local_judge(
	const struct ring_features *ring, struct local_feature out[FEATURES_COUNT])
{
	const struct tls_kernel_features *tls = tls_kernel_features();
	char without_buffers[TEXT_BYTES];
	struct sandbox_support sandbox;
	char without_tls[TEXT_BYTES];

	snprintf(without_buffers, sizeof(without_buffers),
		"the kernel maps payload memory again for each transfer of a disk%s%s%s",
		ring->buffer_error != 0 ? "; kernel error: " : "",
		ring->buffer_error != 0 ? strerror((int)ring->buffer_error) : "",
		ring->buffer_error == ENOMEM
			? " (raise the locked-memory limit: ulimit -l, LimitMEMLOCK=)"
			: "");
	feature_set(&out[0], "io_uring", "io_uring", ring->available,
		"gmblock performs its I/O through io_uring", "gmblock serve cannot run");
	feature_set(&out[1], "registered_ring", "registered ring", ring->registered_ring,
		"system calls need no file lookup to find the io_uring ring",
		"each system call looks up the io_uring ring as a file");
	feature_set(&out[2], "registered_files", "registered files", ring->registered_files,
		"requests need no file lookup to find their socket or disk",
		"each request looks up the file of its socket or disk");
	feature_set(&out[3], "registered_buffers", "registered memory", ring->registered_buffers,
		"the kernel maps payload memory only once for all transfers of disks",
		without_buffers);
	feature_set(&out[4], "min_timeout", "minimum wait (6.12)", ring->min_timeout,
		"the event loop can wait until several requests have arrived",
		"the event loop wakes up for each completion");
	sandbox_probe(&sandbox);
	feature_set(&out[5], "landlock", "Landlock", sandbox.landlock > 0,
		"a server can open only the files that it needs",
		"a compromised server can open any file that its user can open");
	feature_set(&out[6], "seccomp", "system call filter", sandbox.seccomp,
		"a server can make only the system calls that it needs",
		"a compromised server can make any system call");
	snprintf(without_tls, sizeof(without_tls), "TLS runs in user space: %.200s",
		tls->why_not.text);
	feature_set(&out[7], "kernel_tls", "TLS with new keys (6.14)", tls->why_not.code == 0,
		"the kernel encrypts the data of TLS connections over TCP", without_tls);
}

/* --- text ---------------------------------------------------------------------------------- */

static void print_features(const struct local_feature features[FEATURES_COUNT])
{
	printf("\nKernel features\n");
	for (size_t i = 0; i < FEATURES_COUNT; i++) {
		const struct local_feature *feature = &features[i];

		printf("  %-26s %-8s %s\n", feature->words,
			feature->available ? "present" : "absent", feature->consequence);
	}
}

static void print_path(const struct local_path *look)
{
	char human[UNITS_TEXT_BYTES];
	char quoted[TEXT_BYTES];

	putchar('\n');
	info_label("Path");
	printf("\"%s\"\n", log_escape(quoted, sizeof(quoted), look->path, strlen(look->path)));
	info_label("Kind");
	printf("%s%s%s\n", look->info.is_block ? "block device" : "regular file",
		look->info.rotational ? ", rotating" : "",
		look->info.read_only ? ", read-only" : "");
	info_label("Size");
	printf("%s (%llu bytes)\n", units_human_bytes(human, look->info.size),
		(unsigned long long)look->info.size);
	info_label("O_DIRECT");
	if (look->direct) {
		printf("works: offsets and lengths must be multiples of %u bytes, memory addresses "
		       "of %u bytes; mode=direct is possible\n",
			look->info.direct_offset_align, look->info.direct_memory_align);
	} else {
		printf("does not work, so mode=direct is rejected: %s\n", look->direct_error);
	}
	if (look->overlay != NULL) {
		info_label("Overlay");
		printf("changes to a base disk:\n");
		check_print(look->overlay, INFO_LABEL_COLUMNS);
	}
	info_label("Gives space back");
	printf("%s\n", look->info.punches_holes ? "possibly, with trim and fast zeroing" : "no");
	if (look->info.stripe_members > 0) {
		info_label("Stripes");
		printf("%u members, in stripes of %u bytes\n", look->info.stripe_members,
			look->info.stripe_chunk);
	}
}

static int info_local_show_text(const struct local_machine *machine, const struct local_path *look,
	const struct local_feature features[FEATURES_COUNT], struct error *error)
{
	char human[UNITS_TEXT_BYTES];
	json_t *devices;

	info_label("gmblock");
	printf("%s\n", GMBLOCK_VERSION);
	info_label("Kernel");
	printf("%s %s\n", machine->kernel.sysname, machine->kernel.release);
	info_label("CPUs");
	printf("%d usable of %ld\n", machine->cpus_usable, machine->cpus_online);
	info_label("Locked memory");
	if (machine->locked_bytes == UINT64_MAX) {
		printf("no limit\n");
	} else {
		printf("at most %s (%llu bytes); registering more needs CAP_IPC_LOCK\n",
			units_human_bytes(human, machine->locked_bytes),
			(unsigned long long)machine->locked_bytes);
	}
	info_label("Huge pages");
	printf("%llu of %llu free, %s each; transparent: %s\n",
		(unsigned long long)machine->huge_pages_free,
		(unsigned long long)machine->huge_pages_total,
		units_human_bytes(human, machine->huge_page_bytes),
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
	json_object_set(object, "overlay", look->overlay != NULL ? look->overlay : json_null());
	return object;
}

static int info_local_show_json(const struct local_machine *machine, const struct local_path *look,
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
	struct local_path look = { .path = path };
	int err = path != NULL ? look_path(path, &look, error) : 0;

	if (err == 0) {
		look_machine(&machine);
		info_local_judge(&machine.ring, features);
		err = (json ? info_local_show_json : info_local_show_text)(
			&machine, path != NULL ? &look : NULL, features, error);
	}
	json_decref(look.overlay);
	return err;
}
