// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated world behind ring.h and disk.h: a seeded, single-threaded replacement of the kernel
 * for tests. The code under test is linked with the files of sim/ in place of ring/uring.c and the
 * files of disk/ except sysfs.c, and cannot detect the difference.
 *
 * The world has one virtual clock, any number of rings, simulated sockets and simulated disks.
 * Everything that happens is an event at a virtual time drawn from the seed. The same seed and the
 * same calls yield the same run, which sim_trace_hash() proves.
 *
 *   test ──▶ sim_start(seed, faults) ──▶ sim_disk_create ──▶ sim_socket_pair ──▶ code under test
 *     └────▶ sim_step() ... advances the clock, runs the rings' completions ... ──▶ sim_stop()
 *
 * Fault model:
 * - Independent operations complete in any order after random delays, some of them very long.
 * - Reads, writes, sends and receives may transfer fewer bytes than requested (direct disk I/O in
 *   whole sectors).
 * - Memory is accessed at random times between submission and completion: a send or write reads its
 *   buffer late and in pieces; a receive or read overwrites its buffer with garbage on submission.
 * - Operations fail with -EINTR, -EAGAIN, -EIO or -ENOSPC by chance. A sector range can be made
 *   permanently bad.
 * - Connections break (reset, close, half-close) after a chosen byte.
 * - Disks keep written sectors in a volatile cache until a flush or a durable write has completed.
 *   sim_disk_crash() keeps or drops each unflushed sector by chance. A failed flush makes some of
 *   them durable and marks all of them clean, as page caches do.
 * - Zones of host-managed devices must be written in order, and only the written part can be read.
 *   A crash keeps a prefix of each zone, or undoes a reset.
 * - Not modelled: processor time, memory pressure, bit rot.
 *
 * Misuse aborts with the broken rule: a buffer used by two operations of which one writes it; an
 * operation submitted twice, or changed or freed while in flight; I/O on a closed descriptor;
 * closing with I/O in flight; a registered-memory index that does not contain the buffer; blocking
 * disk calls from a completion.
 *
 * Threading: one thread, and one world at a time, because disk.h has no context argument to find it
 * by. Ownership: the world owns sockets, disks and their contents until sim_stop(). Errors: a
 * mistake of the test aborts.
 */
#pragma once

#include "base/compiler.h"
#include "disk/disk.h"
#include "ring/ring.h"

/* Probabilities in parts per million, each decided once per operation. All 0 = a perfect
 * machine. */
struct sim_faults {
	uint32_t partial_ppm;	 /* fewer bytes than requested */
	uint32_t interrupt_ppm;	 /* -EINTR: disk operations and receives */
	uint32_t again_ppm;	 /* -EAGAIN: disk reads and writes */
	uint32_t send_short_ppm; /* a send that stops early, or with -EINTR before its first byte */
	uint32_t read_error_ppm; /* -EIO */
	uint32_t write_error_ppm;  /* -EIO, some sectors may have been written */
	uint32_t no_space_ppm;	   /* -ENOSPC for writes, zeroing and allocation */
	uint32_t flush_error_ppm;  /* -EIO from fsync; each unflushed sector is lost or kept */
	uint32_t range_error_ppm;  /* -EIO from discard, zero, allocate, extent */
	uint32_t memory_error_ppm; /* -ENOMEM from ring_memory_add() */
	uint32_t file_table_ppm;   /* ring_file_add() finds the table full */
	uint32_t accept_error_ppm; /* -ECONNABORTED or -EMFILE */
	uint32_t slow_ppm;	   /* an operation takes 20 to 500 ms instead of less */
	bool jitter;		   /* random delays; otherwise every operation takes 1 us */
};

struct sim_disk;

enum sim_fault_kind { SIM_FAULT_READ, SIM_FAULT_WRITE, SIM_FAULT_FLUSH, SIM_FAULT_RANGE };

struct sim_options {
	uint64_t seed;
	struct sim_faults faults;
	bool verbose; /* one line per event on standard error */
	/* Overrides ring_set_batch() of every ring. 0 = no override. */
	uint32_t batch_count;
	uint64_t batch_wait_ns;
	/* Called for each disk error that the world generates, except -EINTR and -EAGAIN. May be
	 * NULL. */
	void (*fault)(void *context, struct sim_disk *disk, enum sim_fault_kind kind,
		uint64_t offset, uint64_t length, int error);
	void *context;
};

/* --- the world ------------------------------------------------------------------------------ */

/* Starts an empty world at time 1 s. No world may exist. If there is none, ring_create() starts a
 * perfect machine with ring_options.seed. */
void sim_start(const struct sim_options *options);
/* Ends the world. All rings must be destroyed, and all descriptors closed except the test's own. */
void sim_stop(void);
/* Changes the probabilities from now on, for example to zero while a test cleans up. */
void sim_set_faults(const struct sim_faults *faults);

uint64_t sim_now_ns(void);
uint64_t sim_random(void);
/* low <= result <= high. */
uint64_t sim_between(uint64_t low, uint64_t high);
bool sim_chance(uint32_t ppm);
/* A digest of all events so far: equal for equal runs. */
uint64_t sim_trace_hash(void);
uint64_t sim_event_count(void);
/* Number of sends that found memory of a disk that had shrunk, see disk/disk.h. */
uint64_t sim_send_faults(void);
/* Adds a value chosen by the test to the digest. */
void sim_trace_mix(uint64_t value);

/* Advances the world: moves the clock to the next event, then runs one batch of every ring that has
 * completions. False if no event is left. */
bool sim_step(void);
/* Calls sim_step() until no event is left, or until events_max events have run (then false). */
bool sim_run_until_idle(uint64_t events_max);

/* Calls fn(arg) once, delay_ns from now, outside any batch. */
void sim_after(uint64_t delay_ns, void (*fn)(void *arg), void *arg);

/* Acts as poll(2) in the thread whose ring has this ring_poll_fd(): moves the clock and runs the
 * other rings until it is readable. False if limit_ns have passed, or no event is left. A ring
 * whose descriptor was requested runs only in its own turns, not together with the other rings. */
bool sim_poll(int poll_fd, uint64_t limit_ns);

/* A frozen ring does not run, as if its thread were stopped. */
void sim_freeze(struct ring *ring, bool frozen);

/* Simulates killing the process of the ring: its disk operations continue, but the ring does not
 * run. After sim_freeze(ring, false) the ring can be shut down; its later disk operations and
 * worker thread calls fail without effect. */
void sim_ring_kill(struct ring *ring);

/* ring_cancel() for callers that do not know the ring of the operation. */
void sim_cancel(struct ring_op *op);

/* Starts a perfect machine and creates a ring on it, for feeding bytes to a session. Ends with
 * ring_destroy() and sim_stop(). */
struct ring *sim_ring_create_for_fuzz(uint64_t seed);

/* Redirects memory that the program must not access: simulated disks and sockets access the bytes
 * from real on instead of those from base on. */
void sim_memory_alias(const void *base, size_t bytes, void *real);
void sim_memory_unalias(const void *base);

/* Number of descriptors that the code under test still has open (disks, accepted and paired server
 * sockets). */
uint32_t sim_open_count(void);

/* --- sockets -------------------------------------------------------------------------------- */

/* Creates a connected pair. The first descriptor is for the code under test. The second belongs to
 * the test, which uses it with the ring operations or with the functions below. */
void sim_socket_pair(int *server_fd, int *client_fd);
/* A listening socket for ring_accept(), and a connection to it. */
int sim_listener_create(void);
void sim_listener_close(int listener_fd);
int sim_connect(int listener_fd);
/* Number of connections that have not been accepted yet, at most SIM_LISTENER_QUEUE_MAX. */
uint32_t sim_listener_queue(int listener_fd);
enum { SIM_LISTENER_QUEUE_MAX = 64 };

/* Puts bytes into the stream immediately, ignoring buffer limits. */
void sim_socket_write(int client_fd, const void *bytes, size_t len);
/* Takes up to len bytes that have arrived: a count, 0 if none are available now, -ECONNRESET after
 * a reset, -ENODATA at the end of the stream. */
int sim_socket_read(int client_fd, void *buf, size_t len);
/* Half-close: the other side reads the end of the stream; receiving continues. */
void sim_socket_finish(int client_fd);
/* Reset: data in flight in both directions is lost. The descriptor must still be closed. */
void sim_socket_reset(int client_fd);
/* Closes the test's own descriptor. Server sockets are closed by ring_socket_close(). */
void sim_socket_close(int client_fd);
/* Closes like a socket that keeps message boundaries: written data still arrives, and unread data
 * is discarded. */
void sim_socket_leave(int fd);
/* Calls watch(arg) whenever fd might have become readable or writable, until it is closed. For
 * simulated kernels or libraries, not for code under test. */
void sim_socket_watch(int fd, void (*watch)(void *arg), void *arg);

enum sim_cut { SIM_CUT_RESET, SIM_CUT_CLOSE, SIM_CUT_HALF_CLOSE };
/* Breaks the connection when `bytes` more bytes have arrived in the given direction: by a reset; by
 * ending both directions; or by ending the test's direction while replies still arrive. */
void sim_socket_cut(int client_fd, bool to_server, uint64_t bytes, enum sim_cut cut);
/* While held, neither bytes nor the end of the stream arrive in either direction, and no side is
 * notified, as on a link that is down. */
void sim_socket_hold(int fd, bool held);
/* Simulates the death of the process behind the descriptor: it neither sends nor receives any more.
 * Its peer sees this after the data in flight. The descriptor must still be closed. */
void sim_socket_kill(int fd);
/* From now on the code under test must close the descriptor (it counts in sim_open_count()). */
void sim_socket_give(int client_fd);
/* Sets the credentials that ring_socket_credentials() reports for the server's socket; unknown
 * until then. */
void sim_socket_set_credentials(int client_fd, const struct ucred *credentials);
/* Limits the bytes that the direction towards fd can hold (socket buffers). */
void sim_socket_set_buffer(int fd, size_t bytes);
/* True while the descriptor is open. */
bool sim_is_open(int fd);
/* The descriptor of the other side, possibly closed. */
int sim_socket_peer(int fd);
/* True if the other side has closed its descriptor. */
bool sim_socket_peer_closed(int client_fd);

/* --- disks ---------------------------------------------------------------------------------- */

struct sim_disk_options {
	uint64_t size;		      /* bytes, any */
	uint32_t sector_bytes;	      /* crash unit: 512 or 4096; 0 = 512 */
	uint32_t direct_offset_align; /* 0 = no O_DIRECT */
	uint32_t direct_memory_align; /* 0 = as offset_align */
	bool is_block;
	bool read_only;
	bool zoned;
	uint64_t zone_bytes;	     /* for host-managed devices; size is a multiple of it */
	uint64_t zone_capacity;	     /* writable bytes of each zone; 0 = all */
	uint32_t conventional_zones; /* number of conventional zones at the beginning */
	uint32_t active_zones_max;   /* 0 = no limit */
	bool no_discard;	     /* discard and unmap are not supported */
	bool no_fast_zero;
	bool ignores_dsync; /* in direct writes; the cache also keeps stale pages, as in FUSE */
	bool keeps_cache;   /* memory is plentiful: no page is evicted from the page cache */
	uint64_t discard_granularity; /* 0 = a page */
	uint32_t stripe_chunk;
	uint32_t stripe_members;
	uint64_t io_max;
};

/* Creates a disk of zeroes (holes) that disk_open(name) finds. The name is copied. */
struct sim_disk *sim_disk_create(const char *name, const struct sim_disk_options *options);
/* Destroys a disk that is not open. The others are destroyed by sim_stop(). */
void sim_disk_destroy(struct sim_disk *disk);
/* NULL if no disk has this name. */
struct sim_disk *sim_disk_find(const char *name);
/* Raw access without faults: contents as programs see them. Written bytes are durable. */
void sim_disk_peek(struct sim_disk *disk, uint64_t offset, void *buf, size_t len);
void sim_disk_poke(struct sim_disk *disk, uint64_t offset, const void *buf, size_t len);
/* Reads all of the disk into the page cache. */
void sim_disk_warm(struct sim_disk *disk);
uint64_t sim_disk_size(const struct sim_disk *disk);
/* Grows or shrinks the disk while it is in use. */
void sim_disk_resize(struct sim_disk *disk, uint64_t size);
/* Power loss: each unflushed sector is kept or dropped by chance. Descriptors stay open, but no
 * operation may be in flight. */
void sim_disk_crash(struct sim_disk *disk);
/* Returns a new disk with the contents that the medium would have after a power loss at this
 * moment. Operations may be in flight on the old disk, which continues. */
struct sim_disk *sim_disk_crash_copy(struct sim_disk *disk, const char *name);
/* Returns a disk with the contents after killing the program: everything that programs see now.
 * Sectors that a power loss could take from the old disk can also be lost from the new one. Its
 * page cache is empty. If the name belongs to an earlier copy that has only been read since, that
 * copy is updated. This is for a process that opens a disk before another process has ended. */
struct sim_disk *sim_disk_kill_copy(struct sim_disk *disk, const char *name);
/* Number of bytes in sectors that a crash now could drop. */
uint64_t sim_disk_unflushed_bytes(const struct sim_disk *disk);
/* From now on, reads and/or writes that overlap the range fail with -EIO. length 0 clears. */
void sim_disk_set_bad(
	struct sim_disk *disk, uint64_t offset, uint64_t length, bool reads, bool writes);
/* Simulates killing the process that has the disk open. Its marks and claims end with the last
 * operation in flight on each open file. Later openers of the disk belong to another process. */
void sim_disk_kill_users(struct sim_disk *disk);
/* True while operations of a killed process are in flight. */
bool sim_disk_has_late_operations(const struct sim_disk *disk);
/* While set, operations on the disk are held; they complete only after it is cleared. */
void sim_disk_set_stalled(struct sim_disk *disk, bool stalled);

/* --- memory that outlives a process ---------------------------------------------------------- */

/* Copies the file whose name begins with from, in its current state, to a name that begins with to.
 * No effect if there is no such file. For tests of a kill: after a power loss the file would be
 * gone. */
void sim_shared_copy(const char *from, const char *to);
/* The bytes of the file whose name begins with folder, to examine and change, and their number;
 * NULL: no such file. */
uint8_t *sim_shared_find(const char *folder, uint64_t *size_out);
void sim_shared_remove(const char *folder);
/* True while the file is open, so that no other process can open it. */
bool sim_shared_is_open(const char *folder);
/* Makes the file in the folder belong to another user. */
void sim_shared_give_away(const char *folder);

/* Simulates a reboot: disk_boot_id() returns a new identifier. */
void sim_shared_reboot(void);
