// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated world behind ring.h and disk.h: a seeded, single-threaded replacement of the kernel
 * for tests. The code under test is linked with the files of sim/ in place of ring/uring.c and the
 * files of disk/ except sysfs.c, and cannot detect the difference.
 *
 * The world has one virtual clock, any number of rings, simulated sockets and simulated disks.
 * Everything that happens is an event at a virtual time chosen by a generator with the seed. The
 * same seed and the same calls yield the same run; sim_trace_hash() verifies this.
 *
 *   test ──▶ sim_start(seed, faults) ──▶ sim_disk_create ──▶ sim_socket_pair ──▶ code under test
 *     └────▶ sim_step() ... advances the clock, runs the rings' completions ... ──▶ sim_stop()
 *
 * Fault model:
 * - Independent operations complete in any order after random delays, some very long.
 * - Reads, writes, sends and receives may transfer fewer bytes than requested (direct disk I/O in
 *   whole sectors).
 * - Memory is accessed at random times between submission and completion: a send or write reads its
 *   buffer late and in pieces; a receive or read overwrites its buffer with garbage when it is
 *   submitted.
 * - Operations fail by chance with -EINTR, -EAGAIN, -EIO or -ENOSPC. A range of sectors can be made
 *   permanently bad.
 * - Connections break (reset, close, half-close) after a chosen byte.
 * - Disks keep written sectors in a volatile cache until a flush or a durable write has completed.
 *   sim_disk_crash() keeps or drops each unflushed sector by chance. A failed flush makes some of
 *   them durable and marks all pages clean, as page caches do.
 * - Zones of host-managed devices must be written in order, and only the written part can be read.
 *   A crash keeps a prefix of each zone, or undoes a reset.
 * - Not modelled: processor time, memory pressure, bit rot.
 *
 * Misuse aborts with the broken rule: two operations use a buffer and one writes it; an
 * operation is submitted twice, or changed or freed while in flight; I/O on a closed descriptor;
 * closing with I/O in flight; a fixed-buffer index whose region does not contain the buffer;
 * blocking disk calls from a completion.
 *
 * Threading: one thread, and one world at a time, because the functions of disk.h have no argument
 * for a world. Ownership: the world owns sockets, disks and their contents until sim_stop().
 * Errors: a mistake of the test aborts.
 */
#pragma once

#include "base/compiler.h"
#include "disk/disk.h"
#include "ring/ring.h"

/* Probabilities in parts per million, with one decision per operation. All 0: no faults. */
struct sim_faults {
	uint32_t partial_ppm;	 /* fewer bytes than requested */
	uint32_t interrupt_ppm;	 /* -EINTR: disk operations and receives */
	uint32_t again_ppm;	 /* -EAGAIN: disk reads and writes */
	uint32_t send_short_ppm; /* a send that stops early, or with -EINTR before its first byte */
	uint32_t read_error_ppm; /* -EIO */
	uint32_t write_error_ppm;  /* -EIO, some sectors can have been written */
	uint32_t no_space_ppm;	   /* -ENOSPC for writes, zeroing and allocation */
	uint32_t flush_error_ppm;  /* -EIO from fsync; each unflushed sector is lost or kept */
	uint32_t range_error_ppm;  /* -EIO from discard, zero, allocate, extent */
	uint32_t memory_error_ppm; /* -ENOMEM from ring_memory_add() */
	uint32_t file_table_ppm;   /* ring_file_add() finds the table full */
	uint32_t accept_error_ppm; /* -ECONNABORTED or -EMFILE from accept */
	uint32_t slow_ppm;	   /* an operation takes 20 to 500 ms instead of less */
	/* random delays; otherwise every operation takes 1 us */
	bool jitter;
};

struct sim_disk;

enum sim_fault_kind { SIM_FAULT_READ, SIM_FAULT_WRITE, SIM_FAULT_FLUSH, SIM_FAULT_RANGE };

struct sim_options {
	uint64_t seed;
	struct sim_faults faults;
	bool verbose; /* one line per event on standard error */
	/* If not 0: both replace the arguments of ring_set_batch(), for every ring. */
	uint32_t batch_count;
	uint64_t batch_wait_ns;
	/* Called for each disk error that the world generates, except -EINTR and -EAGAIN; can be
	 * NULL. */
	void (*fault)(void *context, struct sim_disk *disk, enum sim_fault_kind kind,
		uint64_t offset, uint64_t length, int error);
	void *context;
};

/* --- the world ------------------------------------------------------------------------------ */

/* Starts an empty world at time 1 s. No world may exist. Without this call, ring_create() starts a
 * world without faults, with ring_options.seed. */
void sim_start(const struct sim_options *options);
/* Ends the world. All rings must be destroyed, and all descriptors closed except the test's own. */
void sim_stop(void);
/* Changes the probabilities from now on, for example to zero while a test cleans up. */
void sim_set_faults(const struct sim_faults *faults);

uint64_t sim_now_ns(void);
uint64_t sim_random(void);
/* Returns a random number from low to high. */
uint64_t sim_between(uint64_t low, uint64_t high);
bool sim_chance(uint32_t ppm);
/* Returns a digest of all events so far, which is equal for equal runs. */
uint64_t sim_trace_hash(void);
uint64_t sim_event_count(void);
/* Returns how many sends have found memory of a disk that had shrunk, see disk/disk.h. */
uint64_t sim_send_faults(void);
/* Adds a value to the digest of sim_trace_hash(). */
void sim_trace_mix(uint64_t value);

/* Advances the world: moves the clock to the next event, then runs one batch of every ring that has
 * completions. Returns false if no event is left. */
bool sim_step(void);
/* Calls sim_step() until no event is left. Returns false if events_max events have run before. */
bool sim_run_until_idle(uint64_t events_max);

/* Calls fn(arg) once, delay_ns from now, outside any batch. */
void sim_after(uint64_t delay_ns, void (*fn)(void *arg), void *arg);

/* Acts like poll(2) in a thread that polls this ring_poll_fd(): moves the clock and runs the other
 * rings until the descriptor is readable. Returns false if limit_ns have passed, or if no event is
 * left. After ring_poll_fd(), a ring runs only in its own turns, not together with the other
 * rings. */
bool sim_poll(int poll_fd, uint64_t limit_ns);

/* Stops a ring, as if its thread were stopped, or continues it. */
void sim_freeze(struct ring *ring, bool frozen);

/* Simulates killing the process of the ring: its disk operations continue, but the ring no longer
 * runs. After sim_freeze(ring, false) it can be destroyed; new disk operations and worker thread
 * calls then fail without effect. */
void sim_ring_kill(struct ring *ring);

/* Starts a world without faults and creates a ring in it, for feeding bytes to a session. It ends
 * with ring_destroy() and sim_stop(). */
struct ring *sim_ring_create_for_fuzz(uint64_t seed);

/* Redirects access to memory that the program must not access: simulated disks and sockets use the
 * bytes at real, not at base. */
void sim_memory_alias(const void *base, size_t bytes, void *real);
void sim_memory_unalias(const void *base);

/* Returns the number of descriptors that the code under test has open (disks, accepted and paired
 * server sockets). */
uint32_t sim_open_count(void);

/* --- sockets -------------------------------------------------------------------------------- */

/* Creates a connected pair. The first descriptor is for the code under test. The second belongs to
 * the test, which uses it with the ring operations or with the functions below. */
void sim_socket_pair(int *server_fd, int *client_fd);
/* Returns a listening socket for ring_accept(). */
int sim_listener_create(void);
void sim_listener_close(int listener_fd);
int sim_connect(int listener_fd);
/* Returns the number of connections that are not accepted yet, at most SIM_LISTENER_QUEUE_MAX. */
uint32_t sim_listener_queue(int listener_fd);
enum { SIM_LISTENER_QUEUE_MAX = 64 };

/* Adds bytes to the stream immediately, ignoring buffer limits. */
void sim_socket_write(int client_fd, const void *bytes, size_t len);
/* Reads up to len bytes that have arrived. Returns their number, 0 if none have arrived,
 * -ECONNRESET after a reset, or -ENODATA at the end of the stream. */
int sim_socket_read(int client_fd, void *buf, size_t len);
/* Closes the sending direction: the other side reads the end of the stream, and receiving
 * continues. */
void sim_socket_finish(int client_fd);
/* Resets the connection: data in flight in both directions is lost. The descriptor must still be
 * closed. */
void sim_socket_reset(int client_fd);
/* Closes the test's own descriptor. Server sockets are closed by ring_socket_close(). */
void sim_socket_close(int client_fd);
/* Closes a socket that keeps message boundaries: written data still arrives, and unread data is
 * discarded. */
void sim_socket_leave(int fd);
/* Calls watch(arg) whenever fd might have become readable or writable, until it is closed. For
 * simulated parts of the kernel and libraries, not for code under test. */
void sim_socket_watch(int fd, void (*watch)(void *arg), void *arg);

enum sim_cut { SIM_CUT_RESET, SIM_CUT_CLOSE, SIM_CUT_HALF_CLOSE };
/* Plans a break of the connection after `bytes` more bytes in the given direction: a reset, the end
 * of both directions, or the end of the test's direction while replies still arrive. */
void sim_socket_cut(int client_fd, bool to_server, uint64_t bytes, enum sim_cut cut);
/* Simulates a link that is down while held is true: neither data nor the end of the stream arrives
 * in either direction. */
void sim_socket_hold(int fd, bool held);
/* Simulates the death of the process that has the descriptor: it neither sends nor receives any
 * more. Its peer detects this after it has received the data in flight. The descriptor must still
 * be closed. */
void sim_socket_kill(int fd);
/* Passes the descriptor to the code under test, which must close it (it counts in
 * sim_open_count()). */
void sim_socket_give(int client_fd);
/* Sets the credentials that ring_socket_credentials() returns for the server's socket. Before this
 * call they are unknown. */
void sim_socket_set_credentials(int client_fd, const struct ucred *credentials);
/* Limits how many bytes the direction towards fd can contain (socket buffers). */
void sim_socket_set_buffer(int fd, size_t bytes);
/* Returns whether the descriptor is open. */
bool sim_is_open(int fd);
/* Returns the descriptor of the other side, which may be closed. */
int sim_socket_peer(int fd);
/* Returns whether the other side has closed its descriptor. */
bool sim_socket_peer_closed(int client_fd);

/* --- disks ---------------------------------------------------------------------------------- */

struct sim_disk_options {
	uint64_t size;	       /* in bytes, any number */
	uint32_t sector_bytes; /* unit that survives a crash as a whole: 512 or 4096; 0 = 512 */
	uint32_t direct_offset_align; /* 0: no O_DIRECT */
	uint32_t direct_memory_align; /* 0: direct_offset_align */
	bool direct_uses_cache;	      /* disk_read() with O_DIRECT reads the page cache */
	bool is_block;
	bool read_only;
	bool zoned;
	uint64_t zone_bytes;	/* size of a zone; the disk's size is a multiple of it */
	uint64_t zone_capacity; /* writable bytes of each zone; 0: all */
	/* number of zones at the beginning that can be written in any order */
	uint32_t conventional_zones;
	uint32_t active_zones_max; /* 0 = no limit */
	bool no_discard;	   /* discard and unmap are not supported */
	bool no_fast_zero;
	/* ignores RWF_DSYNC of direct writes; the page cache then also keeps stale pages, as FUSE
	 * does */
	bool ignores_dsync;
	/* the page cache keeps clean pages: they are not evicted, and disk_drop_cache() has no
	 * effect */
	bool keeps_cache;
	uint64_t discard_granularity; /* 0: a page */
	uint32_t stripe_chunk;
	uint32_t stripe_members;
	uint64_t io_max;
};

/* Creates a disk of zeroes (holes) that disk_open(name) opens. The name is copied. */
struct sim_disk *sim_disk_create(const char *name, const struct sim_disk_options *options);
/* Destroys a disk that is not open. sim_stop() destroys all other disks. */
void sim_disk_destroy(struct sim_disk *disk);
/* Returns the disk with that name, or NULL. */
struct sim_disk *sim_disk_find(const char *name);
/* Access the contents as programs see them, without faults. Written bytes are durable. */
void sim_disk_peek(struct sim_disk *disk, uint64_t offset, void *buf, size_t len);
void sim_disk_poke(struct sim_disk *disk, uint64_t offset, const void *buf, size_t len);
/* Reads all of the disk into the page cache. */
void sim_disk_warm(struct sim_disk *disk);
uint64_t sim_disk_size(const struct sim_disk *disk);
/* Grows or shrinks the disk while it is in use. */
void sim_disk_resize(struct sim_disk *disk, uint64_t size);
/* Simulates a power loss: each unflushed sector is kept or lost by chance. Descriptors stay open,
 * but no operation may be in flight. */
void sim_disk_crash(struct sim_disk *disk);
/* Returns a new disk with the contents that the medium would have after a power loss at this
 * moment. Operations may be in flight on the old disk, which continues. */
struct sim_disk *sim_disk_crash_copy(struct sim_disk *disk, const char *name);
/* Returns a copy of the disk as it is after the program was killed: the copy has everything that
 * programs can read now, and an empty page cache. Sectors that the old disk could lose in a power
 * loss can also be lost from the copy. If a copy with this name exists, it is updated, and must
 * only have been read before. Tests need an update if a new process opens the disk before the old
 * one has ended. */
struct sim_disk *sim_disk_kill_copy(struct sim_disk *disk, const char *name);
/* Returns the number of bytes in sectors of dirty pages that could be lost in a crash now. */
uint64_t sim_disk_unflushed_bytes(const struct sim_disk *disk, uint64_t offset, uint64_t length);
/* Makes reads and/or writes that overlap the range fail with -EIO. length 0: no range. */
void sim_disk_set_bad(
	struct sim_disk *disk, uint64_t offset, uint64_t length, bool reads, bool writes);
/* Makes flushes fail while the pages of this range have unflushed sectors. length 0: no range. */
void sim_disk_set_bad_flushes(struct sim_disk *disk, uint64_t offset, uint64_t length);
/* Simulates killing the process that has the disk open. The process's marks and claims end with the
 * last operation in flight on each open file. Later openers of the disk belong to another
 * process. */
void sim_disk_kill_users(struct sim_disk *disk);
/* Returns whether operations of a killed process are in flight. */
bool sim_disk_has_late_operations(const struct sim_disk *disk);
/* While stalled is true, no operation on the disk completes. */
void sim_disk_set_stalled(struct sim_disk *disk, bool stalled);

/* --- memory that outlives a process ---------------------------------------------------------- */

/* Copies the file whose name begins with the string `from`, in its current state. In the name of
 * the copy, `to` replaces `from`. No effect if there is no such file. For tests that simulate a
 * kill, after which the file still exists. */
void sim_shared_copy(const char *from, const char *to);
/* Returns the contents of the file whose name begins with the string `folder`, for tests to read
 * and change, and stores their size. NULL: there is no such file. */
uint8_t *sim_shared_find(const char *folder, uint64_t *size_out);
void sim_shared_remove(const char *folder);
/* Returns whether the file is open, so that no other process can open it. */
bool sim_shared_is_open(const char *folder);
/* Makes the file in the folder belong to another user. */
void sim_shared_give_away(const char *folder);

/* Simulates a reboot: disk_boot_id() returns a new identifier. */
void sim_shared_reboot(void);
