// SPDX-License-Identifier: Apache-2.0
#include "ring/ring.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rights.h"
#include "base/spin.h"
#include "ring/calls.h"
#include "ring/guard.h"
#include "ring/news.h"
#include "ring/source.h"

enum {
	ENTRIES_DEFAULT = 1024,
	FILES_DEFAULT = 4096,
	BUFFERS_DEFAULT = 256,
	/* Maximum length of one send. The caller resumes after short sends anyway. */
	SEND_BYTES_MAX = 1 << 30,
	/* Maximum number of consecutive turns without a system call. */
	ENTERS_SKIPPED_MAX = 4,
	TASK_WORK_CALLS_MAX = 32, /* maximum number in one turn */
};

/* The kernel reads a timer's argument, two 64-bit numbers, directly from the op. */
_Static_assert(
	offsetof(struct ring_op, time_ns) ==
		offsetof(struct ring_op, time_s) + offsetof(struct __kernel_timespec, tv_nsec),
	"ring_op must hold a __kernel_timespec");
_Static_assert(sizeof(((struct __kernel_timespec *)0)->tv_sec) == sizeof(int64_t), "64-bit time");

struct ring {
	struct io_uring uring;
	struct ring_features features;
	struct ring_counters counters;
	struct ring_op_queue deferred; /* operations that complete in the next batch */
	struct list_node batch_ends;
	struct ring_sources sources;
	/* number of events handled while spinning, which the next turn returns */
	int source_events;
	uint64_t batch_ns;
	uint64_t random_state;
	uint64_t spin_ns;
	uint32_t skipped;     /* consecutive turns without entering the kernel */
	uint32_t batch_count; /* see ring_set_batch(); 0 = off */
	uint32_t batch_us;
	bool stopping;
	bool is_restricted;
	struct ring_news news; /* of ring_poll_fd() */

	struct ring_guard *guards; /* free list */
	int *file_slots_free;	   /* stack of free indices of the file table */
	uint32_t file_slots_free_count;
	int *buffer_slots_free;
	uint32_t buffer_slots_free_count;

	struct ring_mailbox mailbox;
	uint64_t wake_value;
	struct ring_op wake_op;
};

/* --- creation ------------------------------------------------------------------------------ */

static int *slots_create(uint32_t count)
{
	int *slots = malloc(count * sizeof(*slots));

	if (slots != NULL) {
		for (uint32_t i = 0; i < count; i++) {
			slots[i] = (int)(count - 1 - i);
		}
	}
	return slots;
}

static void wake_done(struct ring_op *op, int result);
static bool guarded_is_over(struct ring *ring, struct ring_op *op);

static void wake_arm(struct ring *ring)
{
	ring_read(ring, &ring->wake_op,
		(struct ring_file){ .fd = ring->mailbox.wake_fd, .slot = -1 },
		mem_of(&ring->wake_value), sizeof(ring->wake_value), 0, wake_done);
}

static struct ring_options uring_complete(const struct ring_options *options)
{
	struct ring_options out = *options;

	out.entries = out.entries != 0 ? out.entries : ENTRIES_DEFAULT;
	out.files_max = out.files_max != 0 ? out.files_max : FILES_DEFAULT;
	out.buffers_max = out.buffers_max != 0 ? out.buffers_max : BUFFERS_DEFAULT;
	return out;
}

static int ring_init(struct ring *ring, const struct ring_options *given, struct error *error)
{
	const struct ring_options options = uring_complete(given);
	int result = ring_setup(&ring->uring, &options, &ring->features);

	if (result < 0) {
		ring->uring.ring_fd = -1;
		return ring_setup_explain(result, error);
	}
	ring->is_restricted = options.is_restricted;
	ring->file_slots_free = slots_create(options.files_max);
	ring->buffer_slots_free = slots_create(options.buffers_max);
	if (ring->file_slots_free == NULL || ring->buffer_slots_free == NULL) {
		return error_set(error, -ENOMEM, "out of memory for the ring's tables");
	}
	ring->file_slots_free_count = ring->features.registered_files ? options.files_max : 0;
	ring->buffer_slots_free_count = ring->features.registered_buffers ? options.buffers_max : 0;
	wake_arm(ring);
	return 0;
}

int ring_create(const struct ring_options *options, struct ring **ring_out, struct error *error)
{
	struct ring *ring = calloc(1, sizeof(*ring));
	int result;

	if (ring == NULL) {
		return error_set(error, -ENOMEM, "out of memory for a ring");
	}
	ring->uring.ring_fd = -1;
	ring_news_init(&ring->news);
	ring_op_queue_init(&ring->deferred);
	list_init(&ring->batch_ends);
	list_init(&ring->sources.list);
	result = ring_mailbox_init(&ring->mailbox);
	if (result < 0) {
		ring_destroy(ring);
		return error_set(error, result, "cannot create an eventfd: %s", strerror(-result));
	}
	ring->random_state = options->seed;
	if (options->seed == 0 &&
		!ring_secret(ring, &ring->random_state, sizeof(ring->random_state))) {
		ring->random_state = ring_now_ns(ring);
	}
	result = ring_init(ring, options, error);
	if (result < 0) {
		ring_destroy(ring);
		return result;
	}
	ring->batch_ns = ring_now_ns(ring);
	*ring_out = ring;
	return 0;
}

void ring_destroy(struct ring *ring)
{
	if (ring == NULL) {
		return;
	}
	GMB_ASSERT(list_is_empty(&ring->sources.list));
	if (ring->uring.ring_fd >= 0) {
		io_uring_queue_exit(&ring->uring); /* also cancels the read on wake_fd */
	}
	ring_news_fini(&ring->news);
	ring_mailbox_fini(&ring->mailbox);
	ring_guards_free(ring->guards);
	free(ring->file_slots_free);
	free(ring->buffer_slots_free);
	free(ring);
}

const struct ring_features *ring_features(const struct ring *ring)
{
	return &ring->features;
}

const struct ring_counters *ring_counters(const struct ring *ring)
{
	return &ring->counters;
}

void ring_count_direct(struct ring *ring, uint32_t calls)
{
	ring->counters.direct += calls;
}

/* --- time and random numbers ----------------------------------------------------------------- */

uint64_t ring_batch_ns(const struct ring *ring)
{
	return ring->batch_ns;
}

uint64_t ring_random(struct ring *ring)
{
	return random_next(&ring->random_state);
}

void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns)
{
	bool patient = ring->features.min_timeout && count > 1 && max_wait_ns >= 1000;

	ring->batch_count = patient ? count : 0;
	ring->batch_us = (uint32_t)MIN(max_wait_ns / 1000, UINT64_C(1000000));
}

void ring_set_spin(struct ring *ring, uint64_t spin_ns)
{
	ring->spin_ns = spin_ns;
}

void ring_batch_end_add(struct ring *ring, struct ring_batch_end *end)
{
	list_push_back(&ring->batch_ends, &end->node);
}

void ring_source_add(struct ring *ring, struct ring_source *source)
{
	source->removed = NULL;
	list_push_back(&ring->sources.list, &source->node);
	ring_news_watch(&ring->news, source->fd);
}

void ring_source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source))
{
	ring_news_ignore(&ring->news, source->fd);
	source_remove(ring, source, removed);
}

/* --- messages and calls -------------------------------------------------------------------- */

void ring_post(struct ring *ring, struct ring_message *message)
{
	ring_mailbox_post(&ring->mailbox, message);
}

static void deliver_messages(struct ring *ring)
{
	struct ring_message *message = ring_mailbox_take(&ring->mailbox);

	while (message != NULL) {
		struct ring_message *next = message->next;

		ring->counters.messages++;
		message->deliver(ring, message);
		message = next;
	}
}

static void wake_done(struct ring_op *op, int result)
{
	struct ring *ring = container_of(op, struct ring, wake_op);

	GMB_ASSERT(result == (int)sizeof(ring->wake_value) || result == -EINTR ||
		   result == -EAGAIN || result == -ECANCELED);
	wake_arm(ring);
	ring_mailbox_collect(&ring->mailbox, &ring->deferred);
	deliver_messages(ring);
}

static void op_start(struct ring_op *op, enum ring_code code, ring_done_fn *done)
{
	GMB_ASSERT(!op->in_flight);
	GMB_ASSERT(done != NULL);
	op->in_flight = true;
	op->code = (uint8_t)code;
	op->done = done;
}

void ring_call(
	struct ring *ring, struct ring_op *op, int (*call)(struct ring_op *op), ring_done_fn *done)
{
	op_start(op, RING_CALL, done);
	op->call = call;
	if (!ring_mailbox_call(&ring->mailbox, op)) { /* no thread: run here, which is slower */
		op->result = call(op);
		ring_op_queue_push(&ring->deferred, op);
	}
}

void ring_op_begin(struct ring_op *op, ring_done_fn *done)
{
	op_start(op, RING_DEFER, done);
}

void ring_op_complete(struct ring *ring, struct ring_op *op, int result)
{
	GMB_ASSERT(op->in_flight && op->code == RING_DEFER);
	op->result = result;
	ring_op_queue_push(&ring->deferred, op);
}

void ring_defer(struct ring *ring, struct ring_op *op, int result, ring_done_fn *done)
{
	op_start(op, RING_DEFER, done);
	op->result = result;
	ring_op_queue_push(&ring->deferred, op);
}

/* --- the loop ------------------------------------------------------------------------------ */

/* Moves completions from the kernel's queue to ours, so that callbacks can submit operations. */
static void collect_completions(struct ring *ring)
{
	struct io_uring_cqe *cqe;
	unsigned head;
	unsigned count = 0;

	io_uring_for_each_cqe(&ring->uring, head, cqe)
	{
		struct ring_op *op = io_uring_cqe_get_data(cqe);

		count++;
		if (op == NULL) { /* result of a request to cancel an operation; not needed */
			continue;
		}
		op->result = op->code == RING_TIMER && cqe->res == -ETIME ? 0 : cqe->res;
		ring_op_queue_push(&ring->deferred, op);
	}
	io_uring_cq_advance(&ring->uring, count);
}

/* Returns whether there is a completion, or deferred kernel work that produces one when we enter
 * the kernel. Makes no system call. */
static bool uring_has_news(const struct ring *ring)
{
	unsigned flags = __atomic_load_n(ring->uring.sq.kflags, __ATOMIC_RELAXED);

	return io_uring_cq_ready(&ring->uring) > 0 ||
	       (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

void ring_flush(struct ring *ring)
{
	bool pending = ring_news_exist(&ring->news) && !list_is_empty(&ring->sources.list) &&
		       (!sources_arm(ring, &ring->sources) || ring->news.is_incomplete);
	int result = io_uring_submit(&ring->uring);

	ring->counters.enters++;
	GMB_ASSERT(result >= 0 || result == -EINTR || result == -EBUSY || result == -EAGAIN);
	/* The kernel makes the descriptor readable for new completions only, but the next turn can
	 * have other work: events, deferred operations, and task work left over by a system call.
	 */
	if (pending || ring->deferred.head != NULL || uring_has_news(ring)) {
		ring_poll_again(ring);
	}
}

/* Waits for batch_count completions, or, after batch_us, for one. Calls io_uring_enter2() directly
 * because liburing 2.3 does not support min_wait_usec. Makes two system calls if it submits
 * operations that do not complete immediately. */
static int enter_batch(struct ring *ring)
{
	/* Without a limit for the whole wait, the kernel ends it after batch_us even without any
	 * completion. */
	static const struct __kernel_timespec limit = { .tv_sec = 3600 };
	/* Initialized by position, because min_wait_usec is called pad in older headers. */
	struct io_uring_getevents_arg argument = { 0, 0, ring->batch_us,
		(uint64_t)(uintptr_t)&limit };
	unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
	int result = 0;

	/* Submits and runs deferred task work in every turn. If turns only submitted, operations
	 * that complete immediately could delay all other completions for as long as there is
	 * something to submit. */
	if (io_uring_sq_ready(&ring->uring) > 0) {
		result = io_uring_submit_and_get_events(&ring->uring);
	}
	if (result < 0 || io_uring_cq_ready(&ring->uring) > 0) {
		return result;
	}
	ring->counters.enters++;
	if (ring->features.registered_ring) {
		flags |= IORING_ENTER_REGISTERED_RING;
	}
	return io_uring_enter2(ring->uring.enter_ring_fd, 0, ring->batch_count, flags,
		(sigset_t *)(void *)&argument, sizeof(argument));
}

/* Submits, and waits for one completion, at most for limit_ns. */
static int enter_one(struct ring *ring, uint64_t limit_ns)
{
	struct __kernel_timespec limit = {
		.tv_sec = (int64_t)(limit_ns / UINT64_C(1000000000)),
		.tv_nsec = (long long)(limit_ns % UINT64_C(1000000000)),
	};
	struct io_uring_cqe *cqe;

	return limit_ns == UINT64_MAX
		       ? io_uring_submit_and_wait(&ring->uring, 1)
		       : io_uring_submit_and_wait_timeout(&ring->uring, &cqe, 1, &limit, NULL);
}

/* Polls the sources. Returns true if they handled events or deferred an operation. */
static bool sources_had_news(struct ring *ring)
{
	if (!list_is_empty(&ring->sources.list)) {
		ring->source_events += sources_poll(&ring->sources);
	}
	return ring->source_events > 0 || ring->deferred.head != NULL;
}

/* Looks for completions and events. Returns true if there are any. */
static bool uring_look(struct ring *ring)
{
	if (!uring_has_news(ring)) {
		return sources_had_news(ring);
	}
	if (io_uring_cq_ready(&ring->uring) == 0) {
		ring->counters.enters++;
		(void)io_uring_get_events(&ring->uring);
	}
	return io_uring_cq_ready(&ring->uring) > 0;
}

/* Polls for completions and events for up to spin_ns. Returns true if there were any. */
static bool uring_spin(struct ring *ring, uint64_t spin_ns)
{
	struct spin spin;
	bool found;

	spin_begin(&spin, spin_ns, SPIN_LOOKS);
	do {
		ring->batch_ns = spin.now_ns; /* the current time for event handlers */
		found = uring_look(ring);
	} while (!found && spin_goes_on(&spin));
	ring->counters.looks += spin.looks;
	ring->counters.crowded += spin.was_crowded;
	return found;
}

static int enter_spinning(struct ring *ring, uint64_t limit_ns)
{
	int result = 0;

	if (io_uring_sq_ready(&ring->uring) > 0 || uring_has_news(ring)) {
		ring->counters.enters++;
		result = io_uring_submit_and_get_events(&ring->uring);
	}
	if (result < 0 || io_uring_cq_ready(&ring->uring) > 0 ||
		uring_spin(ring, MIN(ring->spin_ns, limit_ns))) {
		return result;
	}
	if (!list_is_empty(&ring->sources.list) && !sources_arm(ring, &ring->sources)) {
		return 0;
	}
	ring->counters.enters++;
	ring->counters.waits++;
	return enter_one(
		ring, limit_ns == UINT64_MAX ? limit_ns : limit_ns - MIN(ring->spin_ns, limit_ns));
}

static void uring_enter(struct ring *ring, bool wait, uint64_t limit_ns)
{
	bool spins = wait && ring->spin_ns > 0;
	int result;

	/* before the kernel is entered, so that later events make the descriptor readable again */
	if (ring->news.poll_fd >= 0) {
		ring_news_clear(&ring->news);
	}
	ring->counters.enters += !spins;
	if (wait && !spins && !list_is_empty(&ring->sources.list)) {
		wait = sources_arm(ring, &ring->sources);
	}
	if (!wait) {
		result = io_uring_submit_and_get_events(&ring->uring);
	} else if (spins) {
		result = enter_spinning(ring, limit_ns);
	} else {
		ring->counters.waits++;
		result = ring->batch_count > 1 && limit_ns == UINT64_MAX
				 ? enter_batch(ring)
				 : enter_one(ring, limit_ns);
	}
	/* The next turn tries again after -EINTR (a signal) and -EBUSY, -EAGAIN (completions). */
	GMB_ASSERT(result >= 0 || result == -EINTR || result == -EBUSY || result == -EAGAIN ||
		   result == -ETIME);
	/* A system call runs only about 20 items of deferred kernel work. */
	for (int i = 0; i < TASK_WORK_CALLS_MAX &&
			(IO_URING_READ_ONCE(*ring->uring.sq.kflags) & IORING_SQ_TASKRUN) != 0;
		i++) {
		ring->counters.enters++;
		(void)io_uring_get_events(&ring->uring);
	}
}

static int uring_run_sources(struct ring *ring)
{
	int count = ring->source_events + sources_poll(&ring->sources);

	ring->source_events = 0;
	ring->counters.events += (uint64_t)count;
	return count;
}

static int uring_turn(struct ring *ring, bool wait, uint64_t limit_ns)
{
	struct ring_op *op;
	int count = 0;

	/* Skips the system call only a few times in a row: the kernel's deferred work must run. */
	if (ring->deferred.head != NULL && ring->skipped < ENTERS_SKIPPED_MAX) {
		ring->skipped++;
	} else {
		ring->skipped = 0;
		uring_enter(ring, wait && ring->deferred.head == NULL, limit_ns);
	}
	collect_completions(ring);
	ring->batch_ns = ring_now_ns(ring);
	op = ring->deferred.head;
	/* operations deferred from here on run in the next turn */
	ring_op_queue_init(&ring->deferred);
	while (op != NULL) {
		struct ring_op *next = op->next;

		GMB_ASSERT(op->in_flight);
		count++;
		if (likely(op->code != RING_RECV_GUARDED) || guarded_is_over(ring, op)) {
			op->in_flight = false;
			op->done(op, op->result);
		}
		op = next;
	}
	if (ring->source_events > 0 || !list_is_empty(&ring->sources.list)) {
		count += uring_run_sources(ring);
	}
	list_for_each(node, &ring->batch_ends)
	{
		struct ring_batch_end *end = list_entry(node, struct ring_batch_end, node);

		end->call(end);
	}
	return count;
}

int ring_turn(struct ring *ring, bool wait)
{
	return uring_turn(ring, wait, UINT64_MAX);
}
int ring_turn_limited(struct ring *ring, uint64_t limit_ns)
{
	return uring_turn(ring, limit_ns > 0, limit_ns);
}

int ring_poll_fd(struct ring *ring)
{
	int result = 0;

	if (!ring_news_exist(&ring->news)) {
		result = ring_news_create(&ring->news, &ring->uring, ring->mailbox.wake_fd);
		list_for_each(node, &ring->sources.list)
		{
			struct ring_source *source = list_entry(node, struct ring_source, node);

			if (result == 0 && source->removed == NULL) {
				ring_news_watch(&ring->news, source->fd);
			}
		}
	}
	return result < 0 ? result : ring->news.poll_fd;
}

void ring_poll_again(struct ring *ring)
{
	ring_news_tell(&ring->news);
}

void ring_run(struct ring *ring)
{
	ring->stopping = false;
	while (!ring->stopping) {
		(void)uring_turn(ring, true, UINT64_MAX);
	}
}

void ring_stop(struct ring *ring)
{
	ring->stopping = true;
}

/* --- files and memory ---------------------------------------------------------------------- */

struct ring_file ring_file_add(struct ring *ring, int fd)
{
	struct ring_file file = { .fd = fd, .slot = -1, .is_guarded = rights_guard(fd) };

	if (ring->file_slots_free_count > 0) {
		int slot = ring->file_slots_free[ring->file_slots_free_count - 1];

		if (io_uring_register_files_update(&ring->uring, (unsigned)slot, &fd, 1) == 1) {
			ring->file_slots_free_count--;
			file.slot = slot;
		}
	}
	return file;
}

void ring_file_remove(struct ring *ring, struct ring_file *file)
{
	int none = -1;

	if (file->slot >= 0) {
		int result = io_uring_register_files_update(
			&ring->uring, (unsigned)file->slot, &none, 1);

		GMB_ASSERT(result == 1);
		ring->file_slots_free[ring->file_slots_free_count++] = file->slot;
		file->slot = -1;
	}
}

int ring_memory_add(struct ring *ring, struct mem_region *region)
{
	struct iovec iov = { .iov_base = region->base, .iov_len = region->bytes };
	int slot;
	int result;

	if (ring->buffer_slots_free_count == 0) {
		return ring->features.registered_buffers ? -ENOSPC : -EOPNOTSUPP;
	}
	slot = ring->buffer_slots_free[ring->buffer_slots_free_count - 1];
	result = io_uring_register_buffers_update_tag(&ring->uring, (unsigned)slot, &iov, NULL, 1);
	if (result < 0) {
		return result;
	}
	ring->buffer_slots_free_count--;
	region->fixed_idx = slot;
	region->rights |= MEM_FIXED;
	return 0;
}

void ring_memory_remove(struct ring *ring, struct mem_region *region)
{
	struct iovec iov = { 0 };
	int result;

	if ((region->rights & MEM_FIXED) == 0) {
		return;
	}
	result = io_uring_register_buffers_update_tag(
		&ring->uring, (unsigned)region->fixed_idx, &iov, NULL, 1);
	GMB_ASSERT(result == 1);
	ring->buffer_slots_free[ring->buffer_slots_free_count++] = region->fixed_idx;
	region->rights &= ~(uint32_t)MEM_FIXED;
}

/* --- operations ---------------------------------------------------------------------------- */

static struct io_uring_sqe *sqe_get(struct ring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);

	while (unlikely(sqe == NULL)) { /* the submission queue is full: submit it and retry */
		int result = io_uring_submit(&ring->uring);

		ring->counters.enters++;
		GMB_ASSERT(
			result >= 0 || result == -EINTR || result == -EBUSY || result == -EAGAIN);
		sqe = io_uring_get_sqe(&ring->uring);
	}
	return sqe;
}

struct io_uring_sqe *ring_sqe(
	struct ring *ring, struct ring_op *op, enum ring_code code, ring_done_fn *done)
{
	op_start(op, code, done);
	return sqe_get(ring);
}

static void sqe_set_file(struct io_uring_sqe *sqe, struct ring_file file)
{
	if (file.slot >= 0) {
		sqe->fd = file.slot;
		sqe->flags |= IOSQE_FIXED_FILE;
	}
}

void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_ACCEPT, done);

	io_uring_prep_accept(sqe, file.fd, NULL, NULL, SOCK_CLOEXEC);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

static void guard_submit(struct ring *ring, struct ring_op *op)
{
	struct io_uring_sqe *sqe = sqe_get(ring);

	io_uring_prep_recvmsg(sqe, op->guard->file.fd, &op->guard->message, MSG_CMSG_CLOEXEC);
	sqe_set_file(sqe, op->guard->file);
	io_uring_sqe_set_data(sqe, op);
}

/* Starts a receive that closes file descriptors which the peer sends (ring/guard.h). guard: NULL if
 * there was no memory for one. */
static void recv_guarded(
	struct ring *ring, struct ring_op *op, struct ring_guard *guard, ring_done_fn *done)
{
	if (guard == NULL) {
		ring_defer(ring, op, -ENOMEM, done);
		return;
	}
	op_start(op, RING_RECV_GUARDED, done);
	op->guard = guard;
	guard_submit(ring, op);
}

/* Processes a part that a guarded receive has received. Returns false if the rest is still to be
 * received; the operation for the rest is then submitted. */
static bool guarded_is_over(struct ring *ring, struct ring_op *op)
{
	if (!ring_guard_take(op->guard, &op->result)) {
		guard_submit(ring, op);
		return false;
	}
	ring_guard_put(&ring->guards, op->guard);
	return true;
}

void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done)
{
	struct io_uring_sqe *sqe;

	if (unlikely(file.is_guarded)) {
		recv_guarded(
			ring, op, ring_guard_get(&ring->guards, file, buf, len, wait_all), done);
		return;
	}
	sqe = sqe_get(ring);
	op_start(op, RING_RECV, done);
	io_uring_prep_recv(sqe, file.fd, buf, len, wait_all ? MSG_WAITALL : 0);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_send(struct ring *ring, struct ring_op *op, struct ring_file file, const void *buf,
	size_t len, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = sqe_get(ring);

	op_start(op, RING_SEND, done);
	if (ring->is_restricted) {
		io_uring_prep_write(
			sqe, file.fd, buf, (unsigned)MIN(len, (size_t)SEND_BYTES_MAX), 0);
	} else {
		io_uring_prep_send(sqe, file.fd, buf, len, MSG_NOSIGNAL);
	}
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_sendmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct msghdr *message, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_SENDMSG, done);

	if (ring->is_restricted) {
		GMB_ASSERT(message->msg_name == NULL && message->msg_controllen == 0);
		io_uring_prep_writev(
			sqe, file.fd, message->msg_iov, (unsigned)message->msg_iovlen, 0);
	} else {
		io_uring_prep_sendmsg(sqe, file.fd, message, MSG_NOSIGNAL);
	}
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_recvmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct msghdr *message, bool wait_all, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_RECVMSG, done);

	io_uring_prep_recvmsg(
		sqe, file.fd, message, MSG_CMSG_CLOEXEC | (wait_all ? MSG_WAITALL : 0));
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done)
{
	void *buf = mem_address(memory);
	struct io_uring_sqe *sqe = sqe_get(ring);

	op_start(op, RING_READ, done);
	if ((memory.rights & MEM_FIXED) != 0) {
		io_uring_prep_read_fixed(
			sqe, file.fd, buf, (unsigned)len, offset, memory.region->fixed_idx);
	} else {
		io_uring_prep_read(sqe, file.fd, buf, (unsigned)len, offset);
	}
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done)
{
	const void *buf = mem_address(memory);
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_WRITE, done);

	if ((memory.rights & MEM_FIXED) != 0) {
		io_uring_prep_write_fixed(
			sqe, file.fd, buf, (unsigned)len, offset, memory.region->fixed_idx);
	} else {
		io_uring_prep_write(sqe, file.fd, buf, (unsigned)len, offset);
	}
	if (dsync) {
		sqe->rw_flags = RWF_DSYNC;
	}
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_writev(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct iovec *vector, uint32_t count, uint64_t offset, bool dsync, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_WRITE, done);

	io_uring_prep_writev2(sqe, file.fd, vector, count, offset, dsync ? RWF_DSYNC : 0);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_transfer_inline(struct ring *ring, struct ring_op *op, bool writes, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done)
{
	ssize_t moved = writes ? pwrite(file.fd, mem_address(memory), len, (off_t)offset)
			       : pread(file.fd, mem_address(memory), len, (off_t)offset);

	ring_defer(ring, op, moved < 0 ? -errno : (int)moved, done);
}

void ring_fsync(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_FSYNC, done);

	io_uring_prep_fsync(sqe, file.fd, IORING_FSYNC_DATASYNC);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_allocate(struct ring *ring, struct ring_op *op, struct ring_file file, int mode,
	uint64_t offset, uint64_t length, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_ALLOCATE, done);

	io_uring_prep_fallocate(sqe, file.fd, mode, (off_t)offset, (off_t)length);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_advise(struct ring *ring, struct ring_op *op, struct ring_file file, uint64_t offset,
	uint64_t length, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_ADVISE, done);

	io_uring_prep_fadvise(
		sqe, file.fd, offset, (off_t)MIN(length, UINT64_C(1) << 30), POSIX_FADV_WILLNEED);
	sqe_set_file(sqe, file);
	io_uring_sqe_set_data(sqe, op);
}

void ring_poll(struct ring *ring, struct ring_op *op, int fd, uint32_t events, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_POLL, done);

	io_uring_prep_poll_add(sqe, fd, events);
	io_uring_sqe_set_data(sqe, op);
}

void ring_timer(struct ring *ring, struct ring_op *op, uint64_t delay_ns, ring_done_fn *done)
{
	struct io_uring_sqe *sqe = ring_sqe(ring, op, RING_TIMER, done);

	op->time_s = (int64_t)(delay_ns / UINT64_C(1000000000));
	op->time_ns = (int64_t)(delay_ns % UINT64_C(1000000000));
	io_uring_prep_timeout(sqe, (struct __kernel_timespec *)&op->time_s, 0, 0);
	io_uring_sqe_set_data(sqe, op);
}

void ring_cancel(struct ring *ring, struct ring_op *op)
{
	struct io_uring_sqe *sqe;

	if (!op->in_flight) {
		return;
	}
	/* a receive that already has some data must complete with it and not continue in the next
	 * turn */
	if (op->code == RING_RECV_GUARDED) {
		ring_guard_cancel(op->guard);
	}
	sqe = sqe_get(ring);
	if (op->code == RING_TIMER) {
		io_uring_prep_timeout_remove(sqe, (uint64_t)(uintptr_t)op, 0);
	} else {
		io_uring_prep_cancel(sqe, op, 0);
	}
	io_uring_sqe_set_data(sqe, NULL);
}

struct check {
	struct ring_op op;
	int result;
};

static void nop_done(struct ring_op *op, int result)
{
	container_of(op, struct check, op)->result = result;
}

int ring_check_restricted(struct ring *ring, struct error *error)
{
	struct io_uring_sqe *sqe = sqe_get(ring);
	struct check check = { .result = 0 };

	op_start(&check.op, RING_CHECK, nop_done);
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data(sqe, &check.op);
	while (check.op.in_flight) {
		(void)ring_turn(ring, true);
	}
	return check.result == -EACCES || check.result == -EINVAL
		       ? 0
		       : error_set(error, -EPERM,
				 "the kernel has not restricted a ring to the operations of a "
				 "server");
}
