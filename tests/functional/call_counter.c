// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into a program under test (LD_PRELOAD): counts the calls of the C library that a
 * request must not make, in a file that the test maps (CALL_COUNTER_FILE; three 64-bit counters:
 * allocations and frees, mutex locks, bytes asked for). Allocation itself is left to the library's
 * own functions.
 *
 * Threading: any. Errors: without the file nothing is counted, and the test notices.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

enum { COUNT_ALLOCATIONS, COUNT_LOCKS, COUNT_BYTES, COUNT_COUNT };

/* glibc's own names for what is replaced here. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

static _Atomic uint64_t nowhere[COUNT_COUNT];
static _Atomic uint64_t *counters = nowhere;

__attribute__((constructor)) static void open_counters(void)
{
	const char *path = getenv("CALL_COUNTER_FILE");
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map;

	if (fd < 0) {
		return;
	}
	map = mmap(NULL, sizeof(nowhere), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED) {
		counters = map;
	}
}

static void count(int which, uint64_t number)
{
	atomic_fetch_add_explicit(&counters[which], number, memory_order_relaxed);
}

static void count_allocation(size_t bytes)
{
	count(COUNT_ALLOCATIONS, 1);
	count(COUNT_BYTES, bytes);
}

EXPORTED void *malloc(size_t bytes)
{
	count_allocation(bytes);
	return __libc_malloc(bytes);
}

EXPORTED void *calloc(size_t number, size_t bytes)
{
	count_allocation(number * bytes);
	return __libc_calloc(number, bytes);
}

EXPORTED void *realloc(void *memory, size_t bytes)
{
	count_allocation(bytes);
	return __libc_realloc(memory, bytes);
}

EXPORTED void free(void *memory)
{
	count(COUNT_ALLOCATIONS, 1);
	__libc_free(memory);
}

EXPORTED int pthread_mutex_lock(pthread_mutex_t *mutex)
{
	static int (*_Atomic next)(pthread_mutex_t *);
	int (*lock)(pthread_mutex_t *) = atomic_load_explicit(&next, memory_order_relaxed);

	if (lock == NULL) {
		lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
		atomic_store_explicit(&next, lock, memory_order_relaxed);
	}
	count(COUNT_LOCKS, 1);
	return lock(mutex);
}
