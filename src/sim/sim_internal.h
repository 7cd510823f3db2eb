// SPDX-License-Identifier: Apache-2.0
/*
 * State shared by the files of the simulation: the world, its event heap, and the record of each
 * operation in flight.
 *
 *   ring_xxx() ─▶ sim_op_begin ─▶ net, disk or timer ─ events ─▶ sim_op_complete ─▶ ring.ready
 *                                                                   ring_turn ─▶ op->done
 *
 * Threading: one thread. Ownership: the world owns every record. An operation's record exists until
 * done was called and its last event has run. Errors: none.
 */
#pragma once

#include <sys/uio.h>

#include "base/list.h"
#include "sim/sim.h"

enum { SIM_FD_BASE = 1000000, SIM_FDS_MAX = 4096, SIM_ALIASES_MAX = 8, SIM_IOV_MAX = 1024 };

struct sim_socket;
struct sim_file;
struct sim_listener;

enum sim_fd_kind { SIM_FD_FREE, SIM_FD_SOCKET, SIM_FD_FILE, SIM_FD_LISTENER, SIM_FD_RING };

struct sim_fd {
	enum sim_fd_kind kind;
	/* the test has opened the descriptor, which is not counted by sim_open_count() */
	bool test_owned;
	uint32_t inflight; /* number of operations in flight on the descriptor */
	union {
		struct sim_socket *socket;
		struct sim_file *file;
		struct sim_listener *listener;
		struct ring *ring; /* the ring whose ring_poll_fd() is this descriptor */
		void *object;
	};
};

/* The record of an operation in flight. */
struct sim_op {
	struct list_node node;		  /* in world.operations, in the order of submission */
	struct list_node ready;		  /* in ring.ready when the operation is complete */
	struct list_node poll;		  /* in the socket's polls, or in disk.parked */
	void (*step)(struct sim_op *sop); /* next step of a parked operation */
	struct ring *ring;
	struct ring_op *op;
	ring_done_fn *done; /* a copy, to detect if the owner changes the operation */
	int (*call)(struct ring_op *op);
	uint8_t code;
	bool writes_memory;
	bool is_fixed; /* the memory is registered with the ring */
	bool wait_all;
	bool direct_sync;
	bool begun; /* direct I/O: sim_cache_direct_begin() was called */
	bool cancelled;
	bool complete;
	bool released;	   /* done was called, but events still refer to the record */
	uint32_t events;   /* number of scheduled events that refer to this record */
	int fd;		   /* -1: none */
	int mode;	   /* fallocate: mode; poll: events */
	int planned_error; /* negative errno chosen at submission; 0: none */
	int result;
	uint32_t pieces; /* number of remaining steps of a disk transfer */
	size_t len;
	size_t planned; /* number of bytes that will be transferred */
	size_t moved;
	uint64_t offset;
	uint64_t range; /* allocate and advise: length of the range */
	uint64_t ticket;
	const struct msghdr *message;
	uint32_t iov_count;
	struct iovec *iov; /* memory of the operation; one entry for plain buffers */
	struct iovec iov_inline[2];
};

struct sim_event {
	uint64_t time_ns;
	uint64_t order; /* events at the same time run in this order */
	void (*run)(void *arg, uint64_t value);
	void *arg;
	uint64_t value;
};

struct sim_alias {
	const uint8_t *base;
	size_t bytes; /* 0: this entry is free */
	uint8_t *real;
};

struct sim_world {
	bool running;
	struct sim_options options;
	uint64_t now_ns;
	uint64_t random[4];
	uint64_t trace;
	uint64_t ticket; /* number of completed writes and submitted flushes */
	bool in_batch;	 /* completion callbacks are running */
	bool in_call;	 /* a function of ring_call() is running */
	uint64_t event_count;
	uint64_t event_order;
	uint64_t identity_last; /* identity of the disk created last */
	uint64_t send_faults;	/* number of sends that have failed with -EFAULT */
	struct sim_event *heap;
	size_t heap_count;
	size_t heap_max;
	struct list_node rings;
	struct list_node operations;
	struct list_node disks;
	struct list_node sockets;
	struct list_node listeners;
	struct list_node files;
	struct sim_fd fds[SIM_FDS_MAX];
	struct sim_alias aliases[SIM_ALIASES_MAX];
};

/* The only world. It is global, because the functions of disk.h have no argument for a world. */
extern struct sim_world sim_world;

/* --- events and operations ------------------------------------------------------------------ */

void sim_event_add(
	uint64_t delay_ns, void (*run)(void *arg, uint64_t value), void *arg, uint64_t value);
/* Runs the next event if its time is not after until_ns. Returns false if there is none. */
bool sim_event_run(uint64_t until_ns);
void sim_trace(const char *what, uint64_t a, uint64_t b, int64_t c);
/* Return the random delay of a step of a disk operation, of a transfer over the network, and of a
 * completion. */
uint64_t sim_delay_disk(void);
uint64_t sim_delay_network(void);
uint64_t sim_delay_short(void);
/* Returns how many bytes to transfer now: len, or by chance fewer, but at least one. */
size_t sim_partial(size_t len);

struct sim_op *sim_op_begin(
	struct ring *ring, struct ring_op *op, enum ring_code code, int fd, ring_done_fn *done);
/* Sets the memory that the operation uses (iov is copied), and asserts that no other operation
 * conflicts with it. */
void sim_op_memory(struct sim_op *sop, const struct iovec *iov, size_t count, bool writes_memory);
/* Schedules run(sop). The record exists at least until then. */
void sim_op_event(struct sim_op *sop, uint64_t delay_ns, void (*run)(struct sim_op *sop));
/* Frees the record of a released operation, unless events still refer to it. */
void sim_op_free(struct sim_op *sop);
/* Called when the world ends, for an event that will not run. */
void sim_op_drop_event(const struct sim_event *event);
/* Completes the operation: done is called in a batch, delay_ns from now at the earliest. */
void sim_op_complete(struct sim_op *sop, int result, uint64_t delay_ns);
/* Copy between buf and the operation's memory, starting at position in the memory. */
void sim_op_gather(const struct sim_op *sop, size_t position, void *buf, size_t len);
void sim_op_scatter(const struct sim_op *sop, size_t position, const void *buf, size_t len);
/* Returns the memory that the simulated kernel accesses in place of this memory, see
 * sim_memory_alias(). */
void *sim_memory(const void *at);
/* Asserts that the owner has not changed the operation. */
void sim_op_check(const struct sim_op *sop);

int sim_fd_add(enum sim_fd_kind kind, void *object, bool test_owned);
struct sim_fd *sim_fd_get(int fd, enum sim_fd_kind kind);
void sim_fd_remove(int fd);

/* --- sockets (sim/net.c) -------------------------------------------------------------------- */

void sim_net_recv(struct sim_op *sop);
void sim_net_send(struct sim_op *sop);
/* Transfer immediately, or return -EAGAIN: by chance also if a transfer is possible. */
ssize_t sim_net_recv_now(int fd, const struct msghdr *message);
ssize_t sim_net_send_now(int fd, const struct msghdr *message);
void sim_net_accept(struct sim_op *sop);
void sim_net_poll(struct sim_op *sop);
void sim_net_cancel(struct sim_op *sop);
void sim_net_shutdown(int fd, bool receive_too);
/* Disconnects like ring_socket_abort(): data that has not left is lost. */
void sim_net_abort(int fd);
/* Returns the number of bytes that the peer has not received yet. */
uint64_t sim_net_unacked(int fd);
void sim_net_close(int fd);
void sim_net_stop(void);

/* --- disks (sim/disk.c, sim/disk_io.c) ------------------------------------------------------ */

enum { SIM_PAGE_BYTES = 4096, SIM_LEAF_PAGES = 512, SIM_SECTORS_PER_PAGE = 8 };

struct sim_page {
	struct list_node node; /* in disk.pages */
	uint64_t index;
	bool hole;     /* the page reads as zeroes and is reported as a hole */
	uint8_t dirty; /* one bit per 512 bytes that a crash can lose */
	/* by sector: ticket of the first completed write; 0: none */
	uint64_t since[SIM_SECTORS_PER_PAGE];
	uint8_t current[SIM_PAGE_BYTES]; /* contents as the device returns them */
	uint8_t durable[SIM_PAGE_BYTES]; /* contents that survive a crash */
	struct list_node cache_node;	 /* in disk.cached */
	uint8_t *cache;			 /* contents in the page cache; NULL: not in the cache */
	bool cache_dirty;
	/* ticket of the first completed write that is not written back; 0: none */
	uint64_t cache_since;
};

struct sim_leaf {
	struct sim_page *pages[SIM_LEAF_PAGES];
};

struct sim_zone {
	uint64_t written;     /* number of bytes from the beginning of the zone */
	uint64_t reset;	      /* ticket of a reset that is not durable yet; 0: none */
	uint64_t reset_bytes; /* number of durable bytes before the reset */
	bool is_full;	      /* full or finished */
};

struct sim_disk {
	struct list_node node; /* in world.disks */
	char *name;
	struct sim_disk_options options;
	uint64_t identity;
	uint32_t process; /* number of the process whose descriptors are opened now */
	uint64_t size;
	uint64_t leaf_count;
	struct sim_leaf **leaves;
	struct list_node pages;
	struct list_node parked; /* operations that wait until the disk is no longer stalled */
	struct list_node cached; /* pages in the page cache, oldest first */
	uint64_t bad_offset;
	uint64_t bad_length;
	bool bad_reads;
	bool bad_writes;
	uint64_t bad_flush_offset;
	uint64_t bad_flush_length;
	bool stalled;
	uint64_t flush_errors; /* number of errors; each descriptor reports each error once */
	struct sim_zone *zones;
	uint32_t zone_count;
};

struct sim_file {
	struct list_node node;
	struct sim_disk *disk;
	int fd;
	bool direct;
	bool read_only;
	bool marked; /* disk_mark_writer() was called */
	bool used;   /* disk_mark_use() was called */
	bool killed; /* the process that opened the file was killed */
	uint64_t flush_errors_seen;
};

bool sim_ring_is_killed(const struct ring *ring);
void sim_disk_stop(void);
void sim_shared_stop(void);

/* The medium (sim/disk.c). */
struct sim_page *sim_page_find(const struct sim_disk *disk, uint64_t index);
struct sim_page *sim_page_make(struct sim_disk *disk, uint64_t index);
/* Returns the dirty bits for the bytes [from, to) of a page, rounded to whole sectors. */
uint8_t sim_sector_bits(const struct sim_disk *disk, uint32_t from, uint32_t to);
/* Extends a file that is written beyond its end. */
void sim_disk_extend(struct sim_disk *disk, uint64_t end);
void sim_disk_get(struct sim_disk *disk, uint64_t offset, void *buf, size_t len);
void sim_disk_put(struct sim_disk *disk, uint64_t offset, const void *bytes, size_t len);
void sim_disk_fill(
	struct sim_disk *disk, uint64_t offset, uint64_t length, uint8_t byte, bool hole);
/* Records that a write has completed, which the next flush will make durable. */
void sim_disk_written(struct sim_disk *disk, uint64_t offset, uint64_t length);
/* Makes writes in the range durable that were completed with this ticket or a lower one. */
void sim_disk_harden(struct sim_disk *disk, uint64_t offset, uint64_t length, uint64_t ticket);
/* Simulates a failed flush: marks all sectors clean, and loses some. */
void sim_disk_lose(struct sim_disk *disk);
/* Like sim_disk_get(), but returns what the device has. If sim_disk_lose() has lost a write, this
 * is the older data. sim_disk_get() still returns the write, because the page cache keeps data that
 * a flush has failed to write. The range consists of whole sectors. */
void sim_disk_get_kept(const struct sim_disk *disk, uint64_t offset, uint8_t *buf, size_t len);
/* Drops pages of the page cache; no effect if the disk has keeps_cache. Where sim_disk_lose() has
 * lost a write, reads return the contents from before the write from now on. */
void sim_disk_drop_cache(struct sim_disk *disk, uint64_t offset, uint64_t length);
struct sim_file *sim_disk_file(int fd);
/* Returns the error for an operation on the range, because of a bad range or by chance; 0: none. */
int sim_disk_fault(struct sim_disk *disk, enum sim_fault_kind kind, uint64_t offset,
	uint64_t length, uint32_t error_ppm, uint32_t no_space_ppm);
/* Return the descriptor and the memory of a file operation, after checking that the ring knows them
 * (sim/ring.c). */
int sim_ring_fd(const struct ring *ring, struct ring_file file);
struct iovec sim_ring_memory(const struct ring *ring, struct mem_ref memory, size_t len);

/* Zones (sim/zones.c). These functions have no effect on disks without zones. */
void sim_zones_init(struct sim_disk *disk);
/* Returns -EIO if the zone cannot be written there now, or if the range to read was not written. */
int sim_zones_check(const struct sim_disk *disk, uint64_t offset, uint64_t length, bool write);
void sim_zones_wrote(struct sim_disk *disk, uint64_t offset, uint64_t length);
/* Called when all writes in the range that completed with this ticket or a lower one have become
 * durable. */
void sim_zones_hardened(struct sim_disk *disk, uint64_t offset, uint64_t length, uint64_t ticket);
/* Sets the zones of a copy after a crash. */
void sim_zones_crash_copy(const struct sim_disk *disk, struct sim_disk *copy);
/* Sets the zones of a copy of the disk after a kill. Resets that are not durable yet get this
 * ticket, as if they had just been done. */
void sim_zones_kill_copy(const struct sim_disk *disk, struct sim_disk *copy, uint64_t ticket);

/* The page cache (sim/cache.c). */
void sim_cache_read(struct sim_disk *disk, uint64_t offset, void *buf, size_t len);
void sim_cache_write(struct sim_disk *disk, uint64_t offset, const void *bytes, size_t len);
/* Removes a page from the cache. keep_contents: writes it back before. */
void sim_cache_page_leave(struct sim_page *page, bool keep_contents);
/* Writes the page back if it contains a write that was completed with this ticket or a lower
 * one. */
void sim_cache_page_sync(struct sim_page *page, uint64_t ticket);
void sim_cache_page_written(struct sim_page *page, uint64_t ticket);
/* Returns the contents of the page as programs see them. */
const uint8_t *sim_cache_page_bytes(const struct sim_page *page);
void sim_cache_write_back_all(struct sim_disk *disk);
void sim_cache_drop_all(struct sim_disk *disk);
void sim_cache_direct_begin(struct sim_disk *disk, uint64_t offset, uint64_t length, bool write);
void sim_cache_direct_end(struct sim_disk *disk, uint64_t offset, uint64_t length);
/* By chance, writes back or evicts the page that is longest in the cache. */
void sim_cache_tick(struct sim_disk *disk);

bool sim_disk_is_bad(const struct sim_disk *disk, uint64_t offset, uint64_t length, bool write);
