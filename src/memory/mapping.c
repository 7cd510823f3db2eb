// SPDX-License-Identifier: Apache-2.0
#include "memory/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/work.h"

/* A mapping, for the signal handler. start is published last and cleared first. */
struct mapping_slot {
	_Atomic uintptr_t start; /* 0: the slot is free */
	_Atomic uint64_t bytes;
	_Atomic bool is_broken;
};

static struct mapping_slot slots[MAPPINGS_MAX];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER; /* for changes of slots */
static _Atomic uint32_t slots_used;
static uint64_t slots_bytes; /* of all mappings, also of those being created */
static struct sigaction action_before;

/* Replaces the mapping that contains the address. A signal handler may call mmap(), which is only a
 * system call here. Returns false if the address is in no mapping. */
static bool mapping_replace(uintptr_t address)
{
	for (uint32_t i = 0; i < MAPPINGS_MAX; i++) {
		/* Acquire pairs with the release in slot_take(): bytes belongs to start. */
		uintptr_t start = atomic_load_explicit(&slots[i].start, memory_order_acquire);
		uint64_t bytes = atomic_load_explicit(&slots[i].bytes, memory_order_acquire);
		/* If another thread has given the slot to another mapping, and bytes are the
		 * new ones, the acquire shows that start has changed. */
		bool is_same = atomic_load_explicit(&slots[i].start, memory_order_relaxed) == start;

		if (start != 0 && is_same && address >= start && address - start < bytes) {
			atomic_store_explicit(&slots[i].is_broken, true, memory_order_relaxed);
			return mmap((void *)start, bytes, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
				       0) != MAP_FAILED;
		}
	}
	return false;
}

static void mapping_fault(int number, siginfo_t *info, void *context)
{
	int error = errno;

	if (info->si_code <= 0 || !mapping_replace((uintptr_t)info->si_addr)) {
		/* not ours: the access is repeated and has its usual consequence */
		(void)sigaction(number, &action_before, NULL);
	}
	errno = error;
}

static void mapping_handle_faults(void)
{
	struct sigaction action = { .sa_sigaction = mapping_fault, .sa_flags = SA_SIGINFO };

	(void)sigaction(SIGBUS, &action, &action_before);
}

/* Reserves addresses for a mapping. Returns false if all mappings would exceed the limit. */
static bool bytes_take(uint64_t bytes)
{
	bool fits;

	pthread_mutex_lock(&slots_lock);
	fits = bytes <= MAPPINGS_BYTES_MAX - slots_bytes;
	slots_bytes += fits ? bytes : 0;
	pthread_mutex_unlock(&slots_lock);
	return fits;
}

static void bytes_give(uint64_t bytes)
{
	pthread_mutex_lock(&slots_lock);
	slots_bytes -= bytes;
	pthread_mutex_unlock(&slots_lock);
}

static int slot_take(struct mapping *mapping)
{
	static bool is_handled;
	int rc = -ENOSPC;

	pthread_mutex_lock(&slots_lock);
	if (!is_handled) {
		is_handled = true;
		mapping_handle_faults();
	}
	for (uint32_t i = 0; i < MAPPINGS_MAX; i++) {
		if (atomic_load_explicit(&slots[i].start, memory_order_relaxed) == 0) {
			atomic_store_explicit(&slots[i].is_broken, false, memory_order_relaxed);
			/* Release: start is 0 for those who see the new value. */
			atomic_store_explicit(
				&slots[i].bytes, mapping->start_bytes, memory_order_release);
			atomic_store_explicit(
				&slots[i].start, (uintptr_t)mapping->start, memory_order_release);
			mapping->slot = i;
			/* Relaxed order: the number publishes no other data. */
			atomic_fetch_add_explicit(&slots_used, 1, memory_order_relaxed);
			rc = 0;
			break;
		}
	}
	pthread_mutex_unlock(&slots_lock);
	return rc;
}

/* Checks the file and the range. Only files in memory have seals; of all other files even fstat()
 * can block. */
static int mapping_check(int fd, uint64_t offset, uint64_t bytes, uint64_t *page_bytes_out)
{
	struct stat status;

	if (fcntl(fd, F_GET_SEALS) < 0 || fstat(fd, &status) != 0) {
		return -EPERM;
	}
	*page_bytes_out = (uint64_t)status.st_blksize; /* hugetlbfs: the size of a huge page */
	return bytes > 0 && range_inside(offset, bytes, (uint64_t)status.st_size) ? 0 : -ERANGE;
}

int mapping_create(int fd, uint64_t offset, uint64_t bytes, struct mapping *mapping_out)
{
	struct mapping mapping = { .bytes = bytes };
	uint64_t page_bytes;
	uint64_t skipped;
	void *start;
	int rc = mapping_check(fd, offset, bytes, &page_bytes);

	if (rc < 0) {
		return rc;
	}
	skipped = offset & (page_bytes - 1);
	mapping.start_bytes = align_up(skipped + bytes, page_bytes);
	if (!bytes_take(mapping.start_bytes)) {
		return -ENOSPC;
	}
	start = mmap(NULL, mapping.start_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		(off_t)(offset - skipped));
	if (start == MAP_FAILED) {
		rc = -errno;
		bytes_give(mapping.start_bytes);
		return rc;
	}
	mapping.start = start;
	mapping.base = mapping.start + skipped;
	(void)madvise(start, mapping.start_bytes, MADV_DONTDUMP);
	if (madvise(start, mapping.start_bytes, MADV_DONTFORK) != 0) {
		rc = -errno;
	}
	rc = rc ?: slot_take(&mapping);
	if (rc < 0) {
		(void)munmap(start, mapping.start_bytes);
		bytes_give(mapping.start_bytes);
		return rc;
	}
	*mapping_out = mapping;
	return 0;
}

void mapping_destroy(struct mapping *mapping)
{
	if (mapping->base == NULL) {
		return;
	}
	pthread_mutex_lock(&slots_lock);
	atomic_store_explicit(&slots[mapping->slot].start, 0, memory_order_relaxed);
	atomic_fetch_sub_explicit(&slots_used, 1, memory_order_relaxed);
	slots_bytes -= mapping->start_bytes;
	pthread_mutex_unlock(&slots_lock);
	dispose(&(struct disposal){ .base = mapping->start, .bytes = mapping->start_bytes });
	*mapping = (struct mapping){ 0 };
}

uint32_t mapping_count(void)
{
	return atomic_load_explicit(&slots_used, memory_order_relaxed);
}

bool mapping_is_broken(const struct mapping *mapping)
{
	return mapping->base != NULL &&
	       atomic_load_explicit(&slots[mapping->slot].is_broken, memory_order_relaxed);
}
