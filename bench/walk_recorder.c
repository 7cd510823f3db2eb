// SPDX-License-Identifier: Apache-2.0
/*
 * Records which functions a program enters, for bench/walk: preloaded into a program that was
 * compiled with -finstrument-functions.
 *
 * What: writes into the file that WALK_FILE names (struct walk). The process that starts the
 * program has made the file and maps it, too. Nothing is recorded while mark is 0; otherwise each
 * entry carries the current mark, which distinguishes the requests. Threading: any thread may enter
 * functions; mark belongs to the other process. Errors: without such a file nothing is recorded.
 */
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ENTRIES = 1 << 20 };

struct walk_entry {
	uint64_t address; /* of the function, from where the program is loaded */
	uint32_t mark;
	uint32_t thread;
};

struct walk {
	_Atomic uint32_t mark;
	_Atomic uint32_t count; /* may go beyond ENTRIES: those are lost */
	uint64_t ready;		/* 1 once the program has started with the recorder in it */
	struct walk_entry entries[ENTRIES];
};

static struct walk *walk;
static uint64_t base;
static _Thread_local uint32_t thread;

static int base_find(struct dl_phdr_info *info, size_t size, void *context)
{
	base = info->dlpi_addr;
	return 1; /* the first one is the program */
}

__attribute__((constructor)) static void walk_open(void)
{
	const char *path = getenv("WALK_FILE");
	int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
	void *map;

	if (fd < 0) {
		return;
	}
	map = mmap(NULL, sizeof(struct walk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED) {
		dl_iterate_phdr(base_find, NULL);
		walk = map;
		walk->ready = 1;
	}
}

/* Not instrumented, where the whole build is: they would call themselves. */
#pragma GCC visibility push(default)
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *site);
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *site);
#pragma GCC visibility pop

void __cyg_profile_func_enter(void *function, void *site)
{
	uint32_t mark = walk == NULL ? 0 : atomic_load_explicit(&walk->mark, memory_order_relaxed);
	uint32_t at;

	if (mark == 0) {
		return;
	}
	if (thread == 0) {
		thread = (uint32_t)gettid();
	}
	at = atomic_fetch_add_explicit(&walk->count, 1, memory_order_relaxed);
	if (at < ENTRIES) {
		walk->entries[at] = (struct walk_entry){
			.address = (uint64_t)function - base, .mark = mark, .thread = thread
		};
	}
}

void __cyg_profile_func_exit(void *function, void *site)
{
}
