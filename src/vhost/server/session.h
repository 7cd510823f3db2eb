// SPDX-License-Identifier: Apache-2.0
/*
 * Private to the server's side of src/vhost: the connection of one front end, which is a virtual
 * machine monitor with one virtio-blk device. docs/design/0027 explains the decisions.
 *
 *   socket ─▶ message.c: messages with descriptors ─▶ device.c: features, memory, queues
 *   kick eventfd ─▶ event.c ─▶ queue.c: avail ring ─▶ request.c: chain, request ─▶ path
 *                                 └ used ring, call eventfd ◀── flush, at the end of a batch
 *
 * The guest and the front end can be hostile. They write to the rings, the requests and the record
 * of requests in flight at any time: each value is copied once with shared_copy(), and the copy is
 * checked. The memory itself is protected by memory/mapping.h. A guest that breaks a rule stops its
 * queue until the front end restarts the queue; a front end that breaks a rule is disconnected.
 *
 * Threading: the ring's thread. A lane (lane.c) serves some of a session's queues on another
 * reactor. Ownership: the service owns requests; a session owns its socket, events and memory.
 * Requests hold the memory table with which they were read, so that a front end can replace the
 * table while requests are in flight.
 */
#pragma once

#include <stdatomic.h>
#include <string.h>

#include "memory/mapping.h"
#include "vhost/server/server.h"
#include "vhost/wire.h"

enum {
	VHOST_SERVER_QUEUES = 64,
	VHOST_SLOTS = 32, /* regions of guest memory of one session */
	/* Mapped regions of one session, with those of earlier tables that requests in flight still
	 * use. Without this limit, a front end that replaces its table while a disk hangs could use
	 * all mappings of the process (MAPPINGS_MAX). QEMU has at most VHOST_SLOTS, and shares
	 * regions between tables; after a change of its memory map it may replace up to 8. */
	VHOST_REGIONS_MAX = 8 * VHOST_SLOTS,
	/* Regions of one session if half of the mappings of the process are in use: its current
	 * ones, and those that one message replaces. So sessions with more cannot use up the
	 * mappings of the others. */
	VHOST_REGIONS_SHARE = VHOST_SLOTS + VHOST_REGIONS_TABLE_MAX,
	VHOST_ENTRIES_MAX = 1024,
	/* eventfds of one session: three for each queue, and some that were dropped while a signal
	 * was under way */
	VHOST_EVENTS_MAX = 4 * VHOST_SERVER_QUEUES,
	/* Descriptors of a request: header, payload and status, with room for a payload that
	 * crosses the borders of regions. */
	VHOST_PAYLOAD_SEGMENTS_MAX = 254,
	VHOST_SEGMENTS_MAX = VHOST_PAYLOAD_SEGMENTS_MAX + 2 + 8,
};

/* Limit on the memory of one guest. */
#define VHOST_MEMORY_BYTES_MAX (UINT64_C(1) << 43)

/* Copies memory that the peer can change at any time, exactly once. */
static inline void shared_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
	/* keeps the compiler from reading `from` again in place of the copy */
	atomic_signal_fence(memory_order_seq_cst);
}

/* --- guest memory ----------------------------------------------------------------------------- */

struct vhost_session;

struct vhost_guest_region {
	struct vhost_session *session;
	uint32_t users; /* tables that contain the region */
	struct mapping mapping;
	struct mem_region memory;
	struct vhost_region about; /* as the front end has sent it */
	int fd;			   /* kept for a process that takes over the session */
};

/* An immutable table of regions; a change creates another table. */
struct vhost_memory {
	uint32_t users; /* the session, its queues, and requests in flight */
	uint32_t count;
	struct vhost_guest_region *regions[VHOST_SLOTS];
};

/* memory.c */
/* Creates the region that the descriptor contains. Takes ownership of the descriptor. Errors: see
 * mapping_create(); -EINVAL: its addresses overflow; -E2BIG: it exceeds VHOST_MEMORY_BYTES_MAX;
 * -EMFILE: the session has too many regions, see VHOST_REGIONS_MAX. */
GMB_MUST_CHECK int vhost_region_create(struct vhost_session *session,
	const struct vhost_region *about, int fd, struct vhost_guest_region **region_out);
void vhost_region_put(struct vhost_guest_region *region);
/* Returns a table with count regions, and takes over the caller's uses of them, even if there is no
 * memory for the table (NULL). */
struct vhost_memory *vhost_memory_create(struct vhost_guest_region *const *regions, uint32_t count);
struct vhost_memory *vhost_memory_get(struct vhost_memory *memory);
/* Ends one use. NULL is a no-op. */
void vhost_memory_put(struct vhost_memory *memory);
/* Returns another table of the same regions, for another thread; NULL: no memory. The last
 * vhost_memory_put() for it must be on the thread of the regions' session. */
struct vhost_memory *vhost_memory_copy(const struct vhost_memory *memory);
/* Returns the memory at a guest address, and in *bytes_out how many bytes follow in its region;
 * MEM_NONE if the address is in no region. */
struct mem_ref vhost_memory_at(
	const struct vhost_memory *memory, uint64_t guest_address, uint64_t *bytes_out);
/* Returns the address of a range in the front end's address space that is in one region and
 * aligned; NULL if there is none. */
void *vhost_memory_of_user(const struct vhost_memory *memory, uint64_t user_address, uint64_t bytes,
	uint32_t alignment);
/* Returns the guest address of memory in a region. */
static inline uint64_t vhost_guest_address(struct mem_ref memory)
{
	const struct vhost_guest_region *region =
		container_of(memory.region, struct vhost_guest_region, memory);

	return region->about.guest_address + mem_offset(memory);
}
bool vhost_memory_is_broken(const struct vhost_memory *memory);
/* Marks the pages of a range in the log of dirty pages. Pages outside the log are ignored. */
void vhost_log_mark(const struct mapping *log, uint64_t guest_address, uint64_t bytes);

/* --- events ----------------------------------------------------------------------------------- */

struct blk_request;
struct vhost_queue;

/* An eventfd of the front end, read (kick) or written (call, error) through the ring, because its
 * other side determines whether these calls block. */
struct vhost_event {
	struct list_node node; /* in session->events */
	struct ring_op op;
	struct ring_file file;
	struct vhost_session *session;
	struct vhost_queue *queue; /* NULL: the event was dropped, and is freed when op is done */
	uint64_t value;
	bool is_kick;
	bool is_due; /* call: signal again when op is done */
};

/* event.c */
/* Takes over the descriptor, except for a lane. A kick event then calls vhost_queue_take() after
 * each kick. -EINVAL: it is not an eventfd; -ENOMEM; -EMFILE: the session has VHOST_EVENTS_MAX
 * events. */
GMB_MUST_CHECK int vhost_event_create(
	struct vhost_queue *queue, int fd, bool is_kick, struct vhost_event **event_out);
/* Signals the event soon. NULL is a no-op. */
void vhost_event_signal(struct vhost_event *event);
/* Ends the use of the event and sets the pointer to NULL. No-op if it is NULL. signals: a signal
 * that is due still reaches the front end; otherwise it is cancelled. */
void vhost_event_drop(struct vhost_event **event, bool signals);
/* Cancels the pending operations of all events of a session that ends. */
void vhost_events_cancel(struct vhost_session *session);
/* Of a session that another process takes over: stops reading kick events. */
void vhost_events_pause(struct vhost_session *session);
/* Returns whether no operation of an event is in flight. Signals still reach the front end, except
 * those that wait until it reads its counter. */
bool vhost_events_rest(struct vhost_session *session);
/* Continues after vhost_events_pause(), in one of both processes. */
void vhost_events_continue(struct vhost_session *session);

/* --- queues ----------------------------------------------------------------------------------- */

struct vhost_queue {
	struct vhost_session *session;
	uint32_t index;
	uint32_t entries; /* 0: not set */
	bool is_enabled;
	bool is_away;	    /* a lane serves the queue, and has the current state of the queue */
	bool is_running;    /* the rings are in use */
	bool is_broken;	    /* the guest has broken a rule; until the queue stops */
	bool misses_memory; /* with is_broken: the next chain is outside of guest memory */
	bool has_address;
	bool signalled; /* signalled_index is valid */
	struct vhost_vring_address address;
	bool is_mapped; /* the memory of the session contains the rings */
	/* the memory that contains desc, avail and used: the session's if is_mapped,
	 * otherwise an earlier one, if the queue runs */
	struct vhost_memory *memory;
	const struct vring_desc *desc;
	const struct vring_avail *avail;
	struct vring_used *used;
	uint16_t avail_index;	      /* next entry of the avail ring to take */
	uint16_t avail_seen;	      /* entries before it can be taken; read from the ring */
	uint16_t prefetched;	      /* chains before this entry were prefetched */
	struct list_node polled_node; /* in service->polled */
	bool hushed;		      /* the guest was asked not to kick */
	uint16_t used_index;	      /* next entry of the used ring to fill */
	uint16_t signalled_index;
	uint32_t inflight_count;    /* requests that are not in the used ring yet */
	struct list_node done;	    /* requests to be put into the used ring */
	struct list_node done_node; /* in session->finished */
	struct vhost_event *kick;
	struct vhost_event *call;
	struct vhost_event *error;
	struct inflight_queue *record; /* NULL: no record of requests in flight */
	uint64_t record_counter;
	/* heads of chains that an earlier server has left in flight, in order */
	uint16_t *again;
	uint32_t again_count;
	uint32_t again_next;
};

/* queue.c */
/* Returns whether only a restart lets the queue continue. Chains that were taken before it began to
 * wait for memory are still answered. */
static inline bool vhost_queue_has_failed(const struct vhost_queue *queue)
{
	return queue->is_broken && !queue->misses_memory;
}
/* Returns whether chains can be read. */
bool vhost_queue_is_usable(const struct vhost_queue *queue);
/* Translates the addresses of the rings, after the memory or the addresses have changed. */
void vhost_queue_locate(struct vhost_queue *queue);
/* Starts the queue if everything that it needs is set, and processes its requests. */
void vhost_queue_start(struct vhost_queue *queue);
/* Returns whether all chains that were taken have been finished, including chains of an earlier
 * server.
 */
bool vhost_queue_is_drained(const struct vhost_queue *queue);
/* Makes the queue take a chain again. No other one was taken from the queue since. is_again: an
 * earlier server has taken it. */
void vhost_queue_put_back(struct vhost_queue *queue, uint16_t head, bool is_again);
/* Lets a queue continue that has failed because of missing memory, after the memory has changed. */
void vhost_queue_try_again(struct vhost_queue *queue);
/* Asks the guest to kick if it was asked not to, for another back end that might not do it. */
void vhost_queue_leave(struct vhost_queue *queue);
/* Stops the queue, and forgets the descriptors of its events. */
void vhost_queue_stop(struct vhost_queue *queue);
/* Starts requests from the avail ring, up to the engine's limits. When the ring is empty, the
 * service polls it. Returns the number of requests. */
uint32_t vhost_queue_take(struct vhost_queue *queue);
/* Ends the polling of a queue before the reactor sleeps: asks the guest to kick for the next
 * request. Returns false if there already is one, and polling continues. */
GMB_MUST_CHECK bool vhost_queue_arm(struct vhost_queue *queue);
/* Puts finished requests into the used ring and notifies the guest. If shared memory has become
 * inaccessible, ends the session instead, and the requests stay in the record. */
void vhost_queue_publish(struct vhost_queue *queue);
/* Stops the queue because the guest broke a rule. */
void vhost_queue_fail(struct vhost_queue *queue, const char *rule);

/* inflight.c */
/* Uses the record of the queue: finishes a batch that was interrupted, and collects the chains that
 * are still in flight (queue->again). Returns a rule that the record breaks, or NULL. */
GMB_MUST_CHECK const char *vhost_inflight_begin(struct vhost_queue *queue);
/* Uses the record of a queue that another process has handed over. */
GMB_MUST_CHECK const char *vhost_inflight_continue(struct vhost_queue *queue);
void vhost_inflight_taken(struct vhost_queue *queue, uint16_t head);
/* Called before the chains in queue->done are put into the used ring, and after. */
void vhost_inflight_link(struct vhost_queue *queue);
void vhost_inflight_clear(struct vhost_queue *queue);

/* --- requests --------------------------------------------------------------------------------- */

struct blk_request {
	struct path_request path;
	struct vhost_session *session;
	struct vhost_queue *queue;
	struct vhost_memory *memory;
	struct list_node node;	    /* in session->requests, or in the service's free list */
	struct list_node done_node; /* in queue->done */
	uint16_t head;
	bool is_started; /* the path has the request */
	bool is_again;	 /* an earlier server has taken the request */
	uint8_t status;	 /* enum blk_status of a request that the path does not have */
	uint32_t type;
	uint32_t written_bytes; /* size of the chain's writable part */
	struct mem_ref status_memory;
	struct mem_segment *payload; /* in segments */
	uint32_t payload_count;
	uint64_t payload_bytes;
	struct mem_segment segments[VHOST_SEGMENTS_MAX];
};

/* request.c */
/* Reads the chain with this head. is_again: an earlier server has taken it. Returns NULL if the
 * guest has broken a rule: the queue then has failed. */
struct blk_request *vhost_request_read(struct vhost_queue *queue, uint16_t head, bool is_again);
/* Returns the operation of a request; STORE_OP_COUNT if it will fail. */
enum store_op vhost_request_op(const struct blk_request *request);
/* See engine_request_bytes(). */
uint64_t vhost_request_bytes(const struct blk_request *request);
/* Starts a request that the engine has admitted. */
void vhost_request_start(struct blk_request *request);
/* Writes the status of a finished request into guest memory. */
void vhost_request_answer(struct blk_request *request);
/* Returns a request that was started, and is finished or idle, to the pool. */
void vhost_request_end(struct blk_request *request);
/* Returns a request that was not started. */
void vhost_request_forget(struct blk_request *request);

/* --- sessions --------------------------------------------------------------------------------- */

enum { VHOST_FDS_MAX = VHOST_REGIONS_TABLE_MAX };

struct vhost_message {
	struct vhost_head head;
	uint32_t got; /* bytes of head and payload received */
	uint32_t fd_count;
	int fds[VHOST_FDS_MAX]; /* -1: was used */
	_Alignas(8) uint8_t payload[VHOST_PAYLOAD_BYTES_MAX];
};

struct vhost_reply {
	uint32_t bytes; /* 0: no reply is pending */
	uint32_t sent;
	int fd; /* -1: none; borrowed */
	uint8_t data[VHOST_HEAD_BYTES + VHOST_PAYLOAD_BYTES_MAX];
};

/* A file of the front end that is mapped. */
struct vhost_file {
	struct mapping mapping;
	int fd; /* kept for a process that takes over the session; -1: none */
	uint64_t offset;
};

/* Reason why the next message has to wait. */
enum vhost_wait {
	VHOST_WAITS_NOT,
	VHOST_WAITS_FOR_QUEUE, /* GET_VRING_BASE: requests of `draining` are in flight */
	VHOST_WAITS_FOR_ALL,   /* device reset: requests are in flight */
	/* SET_INFLIGHT_FD: an earlier session with this record has not ended */
	VHOST_WAITS_FOR_EARLIER,
};

/* The place of the queues that belong to other reactors, see lane.c. */
enum vhost_lanes {
	VHOST_LANES_HOME,      /* served by the session */
	VHOST_LANES_LEAVING,   /* not served: they leave, or stay, as soon as they are quiet */
	VHOST_LANES_AWAY,      /* served by lanes */
	VHOST_LANES_RETURNING, /* the lanes finish their requests */
};

struct vhost_session {
	struct session base;
	struct vhost_service *service;
	struct ring_file file;
	struct ring_op poll_op;
	uint32_t poll_events; /* of poll_op in flight */
	char *export_name;
	struct vhost_message message;
	struct vhost_reply reply;
	enum vhost_wait waits;
	struct vhost_queue *draining;
	bool wants_ack; /* the message that waits has to be acknowledged */
	uint64_t features;
	uint64_t protocol_features;
	uint8_t device_status;
	bool is_writethrough; /* set by the guest in the configuration space */
	int back_fd;	      /* channel for messages to the front end, or -1 */
	bool config_due;      /* the front end has to be notified of a changed configuration */
	bool rests;	      /* was paused, or comes from another process: kicks are not read */
	struct ring_op back_op;
	struct vhost_memory *memory;
	uint32_t region_count;	    /* mapped, also by earlier tables */
	struct vhost_file log;	    /* of dirty pages */
	struct vhost_file inflight; /* record of requests in flight */
	int inflight_fd;	    /* -1: not created by this session */
	uint16_t inflight_queues;
	uint16_t inflight_entries;
	uint32_t event_count;
	struct list_node events;   /* also those that were dropped and are not freed yet */
	struct list_node requests; /* all requests in flight */
	struct list_node finished; /* queues with requests to be put into the used ring */
	/* a request that waits for its rate limit; the session takes no other one */
	struct blk_request *held;
	uint32_t next_queue; /* the queue that starts the next round */
	/* number of reactors for the queues: queue i belongs to number i % places; 0 is the
	 * session's own */
	uint32_t places;
	enum vhost_lanes lanes;
	bool lanes_due;		    /* lanes start when they can, see vhost_lanes_go_on() */
	struct list_node lane_list; /* struct vhost_lane */
	const atomic_bool *is_cut;  /* of a lane: its session has ended; otherwise NULL */
	struct vhost_queue queues[VHOST_SERVER_QUEUES];
};

static inline struct vhost_session *vhost_session_of(struct session *base)
{
	return container_of(base, struct vhost_session, base);
}

/* Returns whether this is a lane whose session has ended, so that the front end can already have
 * connected again. */
static inline bool vhost_session_is_cut(const struct vhost_session *session)
{
	/* Relaxed order: the message that ends the lane follows. */
	return session->is_cut != NULL &&
	       atomic_load_explicit(session->is_cut, memory_order_relaxed);
}

/* Returns the number of the reactor to which the queue belongs; 0: the session's own. */
static inline uint32_t vhost_queue_place(const struct vhost_queue *queue)
{
	return queue->index % queue->session->places;
}

/* Returns whether this session serves the queue. */
static inline bool vhost_queue_is_here(const struct vhost_queue *queue)
{
	return queue->session->lanes == VHOST_LANES_HOME || vhost_queue_place(queue) == 0;
}

/*
 * While the reactor is awake, it polls the avail rings of the queues that had requests since it
 * slept, and their guests need not kick. Before it sleeps, it asks them to kick.
 *
 *   kick ──▶ vhost_queue_take ──▶ polled ──▶ vhost_queue_arm ──▶ the reactor sleeps
 *                  ▲ requests ──────┘
 */
struct vhost_service {
	struct engine *engine;
	struct ring_source source; /* polls; has no descriptor, because kicks are read */
	bool has_source;
	struct list_node polled; /* queues */
	struct blk_request *requests;
	uint32_t request_max;
	uint32_t request_count; /* number used so far; the others occupy no memory yet */
	struct list_node requests_free;
};

/* service.c */
/* Allocates what the first session needs. Returns 0 or -ENOMEM. */
GMB_MUST_CHECK int vhost_service_start(struct vhost_service *service);

/* lane.c */
/* Starts the lanes if they are due, and the session is ready and has no message, pause or stop to
 * process. Called after each change of these conditions. */
void vhost_lanes_go_on(struct vhost_session *session);
/* Calls the queues back from the lanes, after their requests have been finished. Returns whether
 * all queues are here; otherwise vhost_message_run() is called when they are. The lanes start again
 * as soon as possible. */
bool vhost_lanes_return(struct vhost_session *session);
/* Ends the lanes and abandons their requests, because the session ends. */
void vhost_lanes_abort(struct vhost_session *session);
static inline bool vhost_lanes_are_out(const struct vhost_session *session)
{
	return !list_is_empty(&session->lane_list);
}

/* handover.c: callbacks of struct session_kind */
bool vhost_session_can_hand_over(const struct session *base);
void vhost_session_pause(struct session *base);
enum session_rest vhost_session_rest(struct session *base);
void vhost_session_hand_over(struct session *base, uint8_t *bytes, struct session_record *record);
int vhost_session_adopt(
	void *service, const struct endpoint *endpoint, const struct session_record *record);

/* session.c: callbacks of struct session_kind, and: */
/* Creates a session without an export. NULL: no memory. */
struct vhost_session *vhost_session_create(
	struct vhost_service *service, const struct endpoint *endpoint);
/* Initializes lists, numbers and descriptors of a zeroed session. */
void vhost_session_prepare(struct vhost_session *session);
/* Takes requests from all queues, each time from another one first. */
void vhost_session_take_all(struct vhost_session *session);
/* Puts the request that waits for its rate limit back into the avail ring. */
void vhost_session_put_back(struct vhost_session *session);
int vhost_session_accept(void *service, const struct endpoint *endpoint);
void vhost_session_resume(struct session *base);
void vhost_session_flush(struct session *base, bool alone);
void vhost_session_drain(struct session *base);
void vhost_session_export_changed(struct session *base, enum export_change change);
bool vhost_session_is_away(struct session *base);
bool vhost_session_peer_receives(struct session *base);
void vhost_session_abort(struct session *base);
bool vhost_session_join(struct session *base);
void vhost_session_close(struct session *base);
/* Ends the session because the front end broke a rule. */
void vhost_session_fail(struct vhost_session *session, const char *rule);
/* Returns whether the session is ending. Ends a lane if its session has ended. Ends the session if
 * the front end or the guest has made shared memory inaccessible: earlier accesses may then have
 * been to zeroed memory of this process. rings: an earlier table that is examined as well; or
 * NULL. */
GMB_MUST_CHECK bool vhost_session_is_broken(
	struct vhost_session *session, const struct vhost_memory *rings);
/* Returns whether guest memory that is written has to be logged. */
static inline bool vhost_session_logs(const struct vhost_session *session)
{
	return session->log.mapping.base != NULL && (session->features & VHOST_LOG_ALL) != 0;
}

/* message.c */
/* Sends the pending reply and processes messages until the socket is empty or a message waits. */
void vhost_message_run(struct vhost_session *session);
/* Returns whether a message has been received completely, and waits to be processed. */
bool vhost_message_is_complete(const struct vhost_session *session);
/* Prepares the reply to the current message. */
void vhost_message_reply(struct vhost_session *session, const void *payload, uint32_t bytes);
/* Takes over descriptor number i of the current message; -1: there is none. */
int vhost_message_take_fd(struct vhost_session *session, uint32_t i);
/* Closes the descriptors of the current message that were not taken. */
void vhost_message_drop_fds(struct vhost_session *session);
/* Sends CONFIG_CHANGE, if session->config_due, as soon as the channel accepts it. */
void vhost_message_tell_config(struct vhost_session *session);

/* device.c */
/* All features that a session can have negotiated. */
#define VHOST_SERVER_FEATURES                                                                      \
	(VIRTIO_BLK_SIZE_MAX | VIRTIO_BLK_SEG_MAX | VIRTIO_BLK_BLK_SIZE | VIRTIO_BLK_FLUSH |       \
		VIRTIO_BLK_TOPOLOGY | VIRTIO_BLK_CONFIG_WCE | VIRTIO_BLK_MQ | VHOST_LOG_ALL |      \
		VIRTIO_RING_INDIRECT | VIRTIO_RING_EVENT_IDX | VHOST_PROTOCOL_FEATURES |           \
		VIRTIO_VERSION_1 | VIRTIO_BLK_WRITE_ZEROES | VIRTIO_BLK_DISCARD | VIRTIO_BLK_RO)
#define VHOST_SERVER_PROTOCOL_FEATURES                                                             \
	(VHOST_PROTOCOL_MQ | VHOST_PROTOCOL_LOG_SHMFD | VHOST_PROTOCOL_REPLY_ACK |                 \
		VHOST_PROTOCOL_BACK_REQ | VHOST_PROTOCOL_CONFIG | VHOST_PROTOCOL_INFLIGHT_SHMFD |  \
		VHOST_PROTOCOL_RESET_DEVICE | VHOST_PROTOCOL_MEM_SLOTS | VHOST_PROTOCOL_STATUS)
/* Maps a file instead of the current one. Takes ownership of the descriptor. Returns errors of
 * mapping_create(). */
GMB_MUST_CHECK int vhost_file_map(const struct vhost_session *session, struct vhost_file *file,
	int fd, uint64_t offset, uint64_t bytes);
void vhost_file_unmap(struct vhost_file *file);
/* Returns whether the current message can be processed while lanes serve queues. */
bool vhost_device_only_reads(const struct vhost_session *session);
/* Processes the current message. Returns NULL, or why the message is rejected. */
GMB_MUST_CHECK const char *vhost_device_take(struct vhost_session *session);
/* Completes a message that waited for requests in flight, if there are none any more. Returns
 * whether no message waits. */
bool vhost_device_drained(struct vhost_session *session);
