// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated world behind ring.h and disk.h: a seeded, single-threaded twin of the kernel for
 * tests. The code under test is linked with sim/ring.c, sim/net.c and sim/disk.c in place of
 * ring/uring.c and disk/linux.c and cannot tell the difference.
 *
 * What: one virtual clock, any number of rings, simulated sockets and simulated disks. Everything
 * that happens is an event at a virtual time drawn from the seed; the same seed and the same calls
 * give the same run (sim_trace_hash() proves it).
 *
 *   test ──▶ sim_start(seed, faults) ──▶ sim_disk_create ──▶ sim_socket_pair ──▶ code under test
 *     └────▶ sim_step() ... advances the clock, runs the rings' completions ... ──▶ sim_stop()
 *
 * Fault model. Completions of independent operations come in any order after random delays; a
 * delay is now and then very long. Reads, writes, sends and receives move fewer bytes than asked
 * (direct disk I/O in whole sectors). Memory is touched at random moments between submission and
 * completion: a send or write reads its buffer late, in pieces; a receive or read scribbles on its
 * buffer at once. Operations fail with -EINTR, -EAGAIN, -EIO, -ENOSPC by chance; a sector range can
 * be made bad for good. Connections break (reset, close, half-close) after a chosen byte. Disks
 * keep written sectors in a volatile cache until a flush or a durable write has completed;
 * sim_disk_crash() keeps or drops each unflushed sector by chance; a failed flush drops them and
 * forgets, as page caches do. Zones of host-managed devices are written in order and read where
 * they were written; a crash keeps a prefix of each, or undoes a reset. Not modelled: processor
 * time, memory pressure, bit rot.
 *
 * Misuse aborts with the broken rule: a buffer used by two operations of which one writes it, an
 * operation submitted twice, changed or freed while in flight, I/O on a closed descriptor, closing
 * with I/O in flight, a registered-memory index that does not hold the buffer, blocking disk calls
 * from a completion.
 *
 * Threading: one thread; one world at a time, because disk.h has no context argument to find it by.
 * Ownership: the world owns sockets, disks and their contents until sim_stop(). Errors: a mistake
 * of the test aborts.
 */
#pragma once

#include "base/compiler.h"
#include "disk/disk.h"
#include "ring/ring.h"

/* Chances in parts per million, each decided once per operation. All 0 = a perfect machine. */
struct sim_faults {
	uint32_t partial_ppm;	 /* fewer bytes than asked */
	uint32_t interrupt_ppm;	 /* -EINTR: disk operations and receives */
	uint32_t again_ppm;	 /* -EAGAIN: disk reads and writes */
	uint32_t send_short_ppm; /* a send that stops early, or with -EINTR before its first byte */
	uint32_t read_error_ppm; /* -EIO */
	uint32_t write_error_ppm;  /* -EIO, some sectors may have been written */
	uint32_t no_space_ppm;	   /* -ENOSPC for writes, zeroing and allocation */
	uint32_t flush_error_ppm;  /* -EIO from fsync; unflushed sectors are lost or kept */
	uint32_t range_error_ppm;  /* -EIO from discard, zero, allocate, extent */
	uint32_t memory_error_ppm; /* -ENOMEM from ring_memory_add() */
	uint32_t file_table_ppm;   /* ring_file_add() finds the table full */
	uint32_t accept_error_ppm; /* -ECONNABORTED or -EMFILE */
	uint32_t slow_ppm;	   /* an operation takes 20 to 500 ms instead of less */
	bool jitter;		   /* random delays at all; else everything takes 1 us */
};

struct sim_disk;

enum sim_fault_kind { SIM_FAULT_READ, SIM_FAULT_WRITE, SIM_FAULT_FLUSH, SIM_FAULT_RANGE };

struct sim_options {
	uint64_t seed;
	struct sim_faults faults;
	bool verbose; /* one line per event on standard error */
	/* Every ring waits as if ring_set_batch() had asked for this, whatever it was told. 0 =
	 * as it was told. */
	uint32_t batch_count;
	uint64_t batch_wait_ns;
	/* Told about every disk error the world makes up (not about -EINTR and -EAGAIN). May be
	 * NULL. */
	void (*fault)(void *context, struct sim_disk *disk, enum sim_fault_kind kind,
		uint64_t offset, uint64_t length, int error);
	void *context;
};

/* --- the world ------------------------------------------------------------------------------ */

/* Starts an empty world at time 1 s. No world may exist. ring_create() without one starts a perfect
 * machine with ring_options.seed. */
void sim_start(const struct sim_options *options);
/* Ends it. All rings must be destroyed and all descriptors closed but the test's own. */
void sim_stop(void);
/* Changes the chances from now on, for example to none while a test cleans up. */
void sim_set_faults(const struct sim_faults *faults);

uint64_t sim_now_ns(void);
uint64_t sim_random(void);
/* low <= result <= high. */
uint64_t sim_between(uint64_t low, uint64_t high);
bool sim_chance(uint32_t ppm);
/* A digest of everything that happened so far: equal for equal runs. */
uint64_t sim_trace_hash(void);
uint64_t sim_event_count(void);
/* How many sends have met memory of a disk that was no longer there, see disk/disk.h. */
uint64_t sim_send_faults(void);
/* Mixes a value of the test's own into the digest. */
void sim_trace_mix(uint64_t value);

/* Runs what is next: moves the clock to the next event, then one batch of every ring that has
 * completions. False when nothing is left to happen. */
bool sim_step(void);
/* sim_step() until nothing is left or events_max events have run (then false). */
bool sim_run_until_idle(uint64_t events_max);

/* Calls fn(arg) once, delay_ns from now, outside any batch. */
void sim_after(uint64_t delay_ns, void (*fn)(void *arg), void *arg);

/* As poll(2) by the thread whose ring has this ring_poll_fd(): moves the clock, and runs the other
 * rings, until it is readable. False when limit_ns have passed, or nothing is left to happen. A
 * ring that was asked for its descriptor runs in its own turns only, not beside those of others. */
bool sim_poll(int poll_fd, uint64_t limit_ns);

/* While frozen, a ring runs nothing: its thread was stopped. */
void sim_freeze(struct ring *ring, bool frozen);

/* The process of the ring is killed: its operations on disks go on, but the ring runs nothing.
 * After sim_freeze(ring, false) it can be wound up, and whatever it then asks of a disk or a worker
 * thread fails without effect. */
void sim_ring_kill(struct ring *ring);

/* ring_cancel() for a twin that was not told which ring it is. */
void sim_cancel(struct ring_op *op);

/* Starts a perfect machine and creates a ring on it: for feeding bytes to a session. Ends with
 * ring_destroy() and sim_stop(). */
struct ring *sim_ring_create_for_fuzz(uint64_t seed);

/* Memory that the program must not touch: what the simulated disks and sockets do with bytes from
 * base on, they do with those from real on instead. */
void sim_memory_alias(const void *base, size_t bytes, void *real);
void sim_memory_unalias(const void *base);

/* Descriptors the code under test still has open (disks, accepted and paired server sockets). */
uint32_t sim_open_count(void);

/* --- sockets -------------------------------------------------------------------------------- */

/* A connected pair: the first is for the code under test, the second is the test's own, usable with
 * the ring operations or with the calls below. */
void sim_socket_pair(int *server_fd, int *client_fd);
/* A listening socket for ring_accept(), and a connection to it. */
int sim_listener_create(void);
void sim_listener_close(int listener_fd);
int sim_connect(int listener_fd);
/* Connections to it that nobody has accepted yet; it holds SIM_LISTENER_QUEUE_MAX. */
uint32_t sim_listener_queue(int listener_fd);
enum { SIM_LISTENER_QUEUE_MAX = 64 };

/* Puts bytes into the stream at once, past any buffer limit. */
void sim_socket_write(int client_fd, const void *bytes, size_t len);
/* Takes up to len bytes that have arrived: a count, 0 when none are there now, -ECONNRESET after a
 * reset, -ENODATA at the end of the stream. */
int sim_socket_read(int client_fd, void *buf, size_t len);
/* Half-close: the other side reads the end of the stream; reading goes on. */
void sim_socket_finish(int client_fd);
/* Reset: what is on its way in both directions is lost. The descriptor still has to be closed. */
void sim_socket_reset(int client_fd);
/* The test's own descriptor. Server sockets are closed by ring_socket_close(). */
void sim_socket_close(int client_fd);
/* As closing a socket that keeps the boundaries of messages: what was written still arrives, and
 * what was not read is forgotten. */
void sim_socket_leave(int fd);
/* Calls watch(arg) whenever something may have changed for who reads fd or writes to it, until it
 * is closed: for a kernel's or a library's twin, not for code under test. */
void sim_socket_watch(int fd, void (*watch)(void *arg), void *arg);

enum sim_cut { SIM_CUT_RESET, SIM_CUT_CLOSE, SIM_CUT_HALF_CLOSE };
/* Breaks the connection when `bytes` more bytes have arrived in the given direction: reset; both
 * directions end; or the test's direction ends while replies still come. */
void sim_socket_cut(int client_fd, bool to_server, uint64_t bytes, enum sim_cut cut);
/* While held, nothing arrives in either direction of the connection, neither bytes nor its end, and
 * nobody is told: a link that is down. */
void sim_socket_hold(int fd, bool held);
/* The process behind the descriptor dies: it gets and gives nothing any more, and its peer hears of
 * that after what is on its way. The descriptor still has to be closed. */
void sim_socket_kill(int fd);
/* From now on the code under test must close it (it counts in sim_open_count()). */
void sim_socket_give(int client_fd);
/* Who ring_socket_credentials() of the server's socket says has connected; nobody until then. */
void sim_socket_set_credentials(int client_fd, const struct ucred *credentials);
/* Limits how many bytes the direction towards fd can hold (socket buffers). */
void sim_socket_set_buffer(int fd, size_t bytes);
/* True while the descriptor is open. */
bool sim_is_open(int fd);
/* The descriptor of the other side, which may be closed. */
int sim_socket_peer(int fd);
/* True when the other side has closed its descriptor. */
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
	uint64_t zone_bytes;	     /* a host-managed device; size is a multiple of it */
	uint64_t zone_capacity;	     /* that can be written of each; 0 = all */
	uint32_t conventional_zones; /* the first ones */
	uint32_t active_zones_max;   /* 0 = any number */
	bool no_discard;	     /* discard and unmap are not supported */
	bool no_fast_zero;
	bool ignores_dsync; /* of direct writes, and its cache keeps stale pages, as FUSE's */
	bool keeps_cache;   /* there is memory enough: nothing leaves the page cache by itself */
	uint64_t discard_granularity; /* 0 = a page */
	uint32_t stripe_chunk;
	uint32_t stripe_members;
	uint64_t io_max;
};

/* Creates a disk of zeroes (holes) that disk_open(name) finds. The name is copied. */
struct sim_disk *sim_disk_create(const char *name, const struct sim_disk_options *options);
/* Frees one that nobody has open; the rest go with sim_stop(). */
void sim_disk_destroy(struct sim_disk *disk);
/* NULL when there is none of that name. */
struct sim_disk *sim_disk_find(const char *name);
/* Raw access around every fault: what programs see now (write: durable as well). */
void sim_disk_peek(struct sim_disk *disk, uint64_t offset, void *buf, size_t len);
void sim_disk_poke(struct sim_disk *disk, uint64_t offset, const void *buf, size_t len);
/* Brings all of it into the page cache. */
void sim_disk_warm(struct sim_disk *disk);
uint64_t sim_disk_size(const struct sim_disk *disk);
/* Grows or shrinks it under the feet of its users. */
void sim_disk_resize(struct sim_disk *disk, uint64_t size);
/* Power loss: each unflushed sector is kept or dropped by chance. The users' descriptors stay open
 * but everything that was in flight must have ended. */
void sim_disk_crash(struct sim_disk *disk);
/* What the medium would hold if the power failed at this moment, as a new disk: operations may be
 * in flight on the old one, which goes on. */
struct sim_disk *sim_disk_crash_copy(struct sim_disk *disk, const char *name);
/* The same if the program were killed: all that programs see now is in it, and what the power could
 * take from the old one it could take from this one. The page cache is empty. A disk of that name
 * that was such a copy before, and has only been read since, becomes one again: for who opens a
 * disk before another process has ended. */
struct sim_disk *sim_disk_kill_copy(struct sim_disk *disk, const char *name);
/* Bytes in sectors that a crash now could drop. */
uint64_t sim_disk_unflushed_bytes(const struct sim_disk *disk);
/* From now on reads and/or writes that touch the range fail with -EIO. length 0 clears. */
void sim_disk_set_bad(
	struct sim_disk *disk, uint64_t offset, uint64_t length, bool reads, bool writes);
/* The process that has the disk open is killed: what its open files hold against others ends with
 * the last operation that is in flight on each. Who opens the disk from now on is another process.
 */
void sim_disk_kill_users(struct sim_disk *disk);
/* True while such operations are in flight. */
bool sim_disk_has_late_operations(const struct sim_disk *disk);
/* While set, operations on the disk are kept and complete only after it was cleared. */
void sim_disk_set_stalled(struct sim_disk *disk, bool stalled);

/* --- memory that outlives a process ---------------------------------------------------------- */

/* The file whose name begins with from, as it is now, is there with a name that begins with to as
 * well; nothing when there is none. For a kill: after a loss of power there is no such file. */
void sim_shared_copy(const char *from, const char *to);
/* The bytes and their number of the file whose name begins so, to look at and to change; NULL:
 * there is none. */
uint8_t *sim_shared_find(const char *folder, uint64_t *size_out);
void sim_shared_remove(const char *folder);
/* Somebody has opened it and not closed it: nobody else can. */
bool sim_shared_is_open(const char *folder);
/* The file in the folder belongs to another user from now on. */
void sim_shared_give_away(const char *folder);

/* The machine has started anew: disk_boot_id() gives another one. */
void sim_shared_reboot(void);
