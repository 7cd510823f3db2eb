// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sockets/real.h"
#include "sockets/sockets.h"

static struct stats unshared; /* used if there is no memfd */
struct stats *stats = &unshared;

static char program_name[STATS_PROGRAM_BYTES];
static char *file_name;
static bool verbose;
static int stats_fd = -1;

/* The memfd is shared with clan-run, which finds it in /proc/PID/fd. */
static void sockets_stats_make(void)
{
	void *base = MAP_FAILED;
	int fd = REAL(memfd_create)("clan-sockets", MFD_CLOEXEC);

	if (fd >= 0) {
		fd = core_own(fd);
		if (ftruncate(fd, sizeof(*stats)) == 0) {
			base = mmap(
				NULL, sizeof(*stats), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		}
	}
	if (base == MAP_FAILED) {
		if (fd >= 0) {
			core_disown(fd);
			REAL(close)(fd);
		}
		fd = -1;
		base = &unshared;
	}
	stats_fd = fd;
	stats = base;
	stats->magic = STATS_MAGIC;
	memcpy(stats->program, program_name, sizeof(program_name));
}

void stats_init(const char *program)
{
	const char *file = getenv("CLAN_SOCKETS_STATS");

	snprintf(program_name, sizeof(program_name), "%s", program);
	for (char *at = program_name; *at != '\0'; at++) {
		if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\') {
			*at = '?'; /* the name is printed in JSON and on terminals */
		}
	}
	verbose = getenv("CLAN_SOCKETS_VERBOSE") != NULL;
	file_name = file != NULL && file[0] != '\0' ? strdup(file) : NULL;
}

void stats_start(void)
{
	if (stats->magic == 0) {
		sockets_stats_make();
	}
}

void stats_after_fork(void)
{
	if (stats != &unshared) {
		munmap(stats, sizeof(*stats));
		core_disown(stats_fd);
		REAL(close)(stats_fd);
		stats = &unshared;
	}
	memset(&unshared, 0, sizeof(unshared));
}

void stats_write(void)
{
	char line[2048];
	int length;
	int fd;

	if (file_name == NULL || (stats->tracked == 0 && stats->carried == 0)) {
		return;
	}
	length = snprintf(line, sizeof(line),
		"{\"pid\": %d, \"program\": \"%s\", \"tracked\": %llu, \"carried\": %llu, "
		"\"in_bytes\": %llu, \"out_bytes\": %llu, \"back\": %llu",
		(int)getpid(), stats->program, (unsigned long long)stats->tracked,
		(unsigned long long)stats->carried, (unsigned long long)stats->in_bytes,
		(unsigned long long)stats->out_bytes, (unsigned long long)stats->back);
	for (int i = 0; i < REASON_COUNT; i++) {
		length += snprintf(line + length, sizeof(line) - (size_t)length, ", \"%s\": %llu",
			stats_reason_names[i], (unsigned long long)stats->reasons[i]);
	}
	length += snprintf(line + length, sizeof(line) - (size_t)length, "}\n");
	fd = open(file_name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0) {
		ssize_t written = REAL(write)(fd, line, (size_t)length);

		GMB_UNUSED(written); /* there is no way to report a failure */
		REAL(close)(fd);
	}
}

/* See sockets.h. Writes the line with one write(), so that lines of several processes do not
 * mix. */
void stats_log(bool grave, const char *format, ...)
{
	char line[512];
	va_list arguments;
	ssize_t written;
	int length;

	if (!grave && !verbose) {
		return;
	}
	length = snprintf(line, sizeof(line), "clan-sockets[%d]: ", (int)getpid());
	va_start(arguments, format);
	vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
	va_end(arguments);
	length = (int)strlen(line);
	line[length] = '\n';
	written = REAL(write)(STDERR_FILENO, line, (size_t)length + 1);
	GMB_UNUSED(written);
}
