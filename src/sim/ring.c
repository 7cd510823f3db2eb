// SPDX-License-Identifier: Apache-2.0
/* The ring interface over the simulated world. See sim.h for the fault model. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "ring/ring.h"
#include "sim/sim_internal.h"

enum { SIM_MEMORY_MAX = 1024, SIM_POISON_BYTES = 4096, SIM_BATCH_MAX = 64 };

struct ring {
	struct list_node node; /* world.rings */
	struct list_node ready;
	struct ring_message *messages; /* posted, oldest first */
	struct ring_message **messages_tail;
	bool messages_due;
	bool stop;
	bool running;
	bool frozen;
	uint64_t batch_ns;
	struct list_node batch_ends;
	struct ring_features features;
	struct ring_counters counters;
	uint32_t files_max;
	int *files;				 /* fd by slot, -1 = free */
	struct mem_region fixed[SIM_MEMORY_MAX]; /* registered memory; base NULL = free */
	uint32_t fixed_max;
	uint32_t inflight;
};

/* --- life ----------------------------------------------------------------------------------- */

int ring_create(const struct ring_options *options, struct ring **ring_out, struct error *error)
{
	struct ring *ring;

	if (!sim_world.running) {
		sim_start(&(struct sim_options){ .seed = options->seed });
	}
	ring = calloc(1, sizeof(*ring));
	GMB_ASSERT(ring != NULL);
	ring->files_max = options->files_max != 0 ? options->files_max : 4096;
	ring->fixed_max = options->buffers_max != 0 ? options->buffers_max : 256;
	ring->fixed_max = MIN(ring->fixed_max, (uint32_t)SIM_MEMORY_MAX);
	ring->files = malloc(ring->files_max * sizeof(ring->files[0]));
	GMB_ASSERT(ring->files != NULL);
	for (uint32_t i = 0; i < ring->files_max; i++) {
		ring->files[i] = -1;
	}
	list_init(&ring->ready);
	list_init(&ring->batch_ends);
	ring->messages_tail = &ring->messages;
	ring->batch_ns = sim_world.now_ns;
	ring_probe(&ring->features);
	list_push_back(&sim_world.rings, &ring->node);
	*ring_out = ring;
	GMB_UNUSED(error);
	return 0;
}

void ring_destroy(struct ring *ring)
{
	if (ring == NULL) {
		return;
	}
	GMB_ASSERT(ring->inflight == 0);
	GMB_ASSERT(ring->messages == NULL);
	for (uint32_t i = 0; i < ring->files_max; i++) {
		GMB_ASSERT(ring->files[i] == -1); /* a file was not removed from the table */
	}
	list_remove(&ring->node);
	free(ring->files);
	free(ring);
}

void ring_probe(struct ring_features *features)
{
	*features = (struct ring_features){
		.available = true,
		.single_issuer = true,
		.defer_taskrun = true,
		.registered_ring = true,
		.registered_files = true,
		.registered_buffers = true,
	};
}

const struct ring_features *ring_features(const struct ring *ring)
{
	return &ring->features;
}

const struct ring_counters *ring_counters(const struct ring *ring)
{
	return &ring->counters;
}

void ring_flush(struct ring *ring)
{
	GMB_UNUSED(ring); /* everything is handed over at once here */
}

void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns)
{
	/* The simulated clock decides how much gathers before a turn. */
	GMB_UNUSED(ring);
	GMB_UNUSED(count);
	GMB_UNUSED(max_wait_ns);
}

void ring_set_spin(struct ring *ring, uint64_t spin_ns)
{
	GMB_UNUSED(ring); /* nothing sleeps here */
	GMB_UNUSED(spin_ns);
}

void ring_batch_end_add(struct ring *ring, struct ring_batch_end *end)
{
	list_push_back(&ring->batch_ends, &end->node);
}

/* Time passes while code runs: two readings differ, as on a real machine. */
uint64_t ring_now_ns(const struct ring *ring)
{
	GMB_UNUSED(ring);
	sim_world.now_ns += 40;
	return sim_world.now_ns;
}

uint64_t ring_batch_ns(const struct ring *ring)
{
	return ring->batch_ns;
}

uint64_t ring_random(struct ring *ring)
{
	GMB_UNUSED(ring);
	return sim_random();
}

void ring_stop(struct ring *ring)
{
	ring->stop = true;
}

/* --- running -------------------------------------------------------------------------------- */

static void op_free(struct sim_op *sop)
{
	GMB_ASSERT(sop->released);
	if (sop->events != 0) {
		return;
	}
	if (sop->iov != sop->iov_inline) {
		free(sop->iov);
	}
	free(sop);
}

static void op_release(struct sim_op *sop)
{
	struct ring_op *op = sop->op;

	sim_op_check(sop);
	list_remove(&sop->node);
	sop->released = true;
	sop->ring->inflight--;
	if (sop->fd >= 0) {
		sim_world.fds[sop->fd - SIM_FD_BASE].inflight--;
	}
	op->in_flight = false;
	op->result = sop->result;
}

static bool ring_has_work(const struct ring *ring)
{
	return !ring->frozen && (!list_is_empty(&ring->ready) || ring->messages_due);
}

static int run_messages(struct ring *ring)
{
	struct ring_message *message = ring->messages;
	int count = 0;

	if (!ring->messages_due) {
		return 0;
	}
	ring->messages_due = false;
	ring->messages = NULL;
	ring->messages_tail = &ring->messages;
	while (message != NULL) {
		struct ring_message *next = message->next;

		message->deliver(ring, message);
		ring->counters.messages++;
		message = next;
		count++;
	}
	return count;
}

/* Collects what is complete now, then runs it: what completes meanwhile waits for the next batch.
 */
static int ring_batch(struct ring *ring)
{
	struct list_node batch;
	int count = 0;
	int batch_max = sim_world.options.faults.jitter ? (int)sim_between(1, SIM_BATCH_MAX)
							: SIM_BATCH_MAX;

	GMB_ASSERT(!sim_world.in_batch);
	sim_world.in_batch = true;
	list_init(&batch);
	while (count < batch_max && !list_is_empty(&ring->ready)) {
		list_push_back(&batch, list_pop_front(&ring->ready));
		count++;
	}
	ring->batch_ns = sim_world.now_ns;
	while (!list_is_empty(&batch)) {
		struct sim_op *sop = list_entry(list_pop_front(&batch), struct sim_op, ready);
		struct ring_op *op = sop->op;
		ring_done_fn *done = sop->done;
		int result = sop->result;

		sim_trace("done", sop->code, (uint64_t)sop->fd, result);
		op_release(sop);
		op_free(sop);
		ring->counters.completions++;
		done(op, result);
	}
	count += run_messages(ring);
	list_for_each(node, &ring->batch_ends)
	{
		struct ring_batch_end *end = list_entry(node, struct ring_batch_end, node);

		if (count > 0) {
			end->call(end);
		}
	}
	sim_world.in_batch = false;
	return count;
}

/* While one ring waits, the others run: they stand for other threads and machines. */
static bool run_others(const struct ring *waiting)
{
	bool worked = false;

	list_for_each(node, &sim_world.rings)
	{
		struct ring *ring = list_entry(node, struct ring, node);

		if (ring != waiting && ring_has_work(ring)) {
			ring->counters.enters++;
			worked = ring_batch(ring) > 0 || worked;
		}
	}
	return worked;
}

/* Moves the clock until the ring has something to do. False when nothing is left to happen by
 * then. */
static bool ring_advance(struct ring *ring, uint64_t until_ns)
{
	while (!ring_has_work(ring)) {
		if (!run_others(ring) && !sim_event_run(until_ns)) {
			return false;
		}
	}
	return true;
}

/* Whatever happens within a few microseconds is reaped together. */
static void ring_linger(void)
{
	uint64_t until = sim_world.now_ns;

	if (sim_world.options.faults.jitter && sim_random() % 2 == 0) {
		until += sim_between(0, 20000);
	}
	while (sim_event_run(until)) {
	}
}

int ring_turn(struct ring *ring, bool wait)
{
	ring->counters.enters++;
	if (wait) {
		ring->counters.waits++;
		/* A ring that nothing can ever wake: the code under test has lost something. */
		GMB_ASSERT(ring_advance(ring, UINT64_MAX));
	} else {
		sim_world.now_ns += 1000;
	}
	ring_linger();
	return ring_batch(ring);
}

static void limit_passed(void *arg, uint64_t value)
{
	GMB_UNUSED(arg);
	GMB_UNUSED(value);
}

int ring_turn_limited(struct ring *ring, uint64_t limit_ns)
{
	uint64_t end_ns = sim_world.now_ns + limit_ns;

	ring->counters.enters++;
	if (limit_ns == 0) {
		sim_world.now_ns += 1000;
	} else {
		ring->counters.waits++;
		sim_event_add(limit_ns, limit_passed, NULL, 0); /* the clock gets there at least */
		(void)ring_advance(ring, end_ns);
	}
	ring_linger();
	return ring_batch(ring);
}

int ring_poll_fd(struct ring *ring)
{
	GMB_UNUSED(ring);
	return -1;
}

void ring_poll_again(struct ring *ring)
{
	GMB_UNUSED(ring);
}

void ring_run(struct ring *ring)
{
	GMB_ASSERT(!ring->running);
	ring->running = true;
	while (!ring->stop) {
		ring->counters.enters++;
		GMB_ASSERT(ring_advance(ring, UINT64_MAX)); /* as in ring_turn() */
		ring_linger();
		ring_batch(ring);
	}
	ring->stop = false;
	ring->running = false;
}

bool sim_step(void)
{
	bool worked = false;
	bool more;

	GMB_ASSERT(!sim_world.in_batch);
	list_for_each(node, &sim_world.rings)
	{
		worked = worked || ring_has_work(list_entry(node, struct ring, node));
	}
	if (!worked && !sim_event_run(UINT64_MAX)) {
		return false;
	}
	ring_linger();
	do {
		more = false;
		list_for_each(node, &sim_world.rings)
		{
			struct ring *ring = list_entry(node, struct ring, node);

			if (ring_has_work(ring)) {
				ring->counters.enters++;
				ring_batch(ring);
			}
		}
	} while (more);
	return true;
}

void sim_freeze(struct ring *ring, bool frozen)
{
	ring->frozen = frozen;
}

bool sim_run_until_idle(uint64_t events_max)
{
	uint64_t limit = sim_world.event_count + events_max;

	while (sim_step()) {
		if (sim_world.event_count >= limit) {
			return false;
		}
	}
	return true;
}

struct ring *sim_ring_create_for_fuzz(uint64_t seed)
{
	struct ring *ring = NULL;
	struct error error;

	sim_start(&(struct sim_options){ .seed = seed });
	GMB_ASSERT(ring_create(&(struct ring_options){ .seed = seed }, &ring, &error) == 0);
	return ring;
}

/* --- messages ------------------------------------------------------------------------------- */

static void messages_arrive(void *arg, uint64_t value)
{
	struct ring *ring = arg;

	GMB_UNUSED(value);
	/* The ring may be gone or the message may have come with an earlier batch. */
	list_for_each(node, &sim_world.rings)
	{
		if (node == &ring->node) {
			ring->messages_due = ring->messages != NULL;
		}
	}
}

void ring_post(struct ring *ring, struct ring_message *message)
{
	message->next = NULL;
	*ring->messages_tail = message;
	ring->messages_tail = &message->next;
	sim_event_add(sim_delay_short(), messages_arrive, ring, 0);
}

/* --- files and memory ----------------------------------------------------------------------- */

struct ring_file ring_file_add(struct ring *ring, int fd)
{
	uint32_t start;

	GMB_ASSERT(fd >= SIM_FD_BASE);
	for (uint32_t i = 0; i < ring->files_max; i++) {
		GMB_ASSERT(ring->files[i] != fd); /* entered twice */
	}
	if (sim_chance(sim_world.options.faults.file_table_ppm)) {
		return (struct ring_file){ .fd = fd, .slot = -1 };
	}
	start = (uint32_t)(sim_random() % ring->files_max);
	for (uint32_t i = 0; i < ring->files_max; i++) {
		uint32_t slot = (start + i) % ring->files_max;

		if (ring->files[slot] == -1) {
			ring->files[slot] = fd;
			return (struct ring_file){ .fd = fd, .slot = (int)slot };
		}
	}
	return (struct ring_file){ .fd = fd, .slot = -1 };
}

void ring_file_remove(struct ring *ring, struct ring_file *file)
{
	list_for_each(node, &sim_world.operations)
	{
		const struct sim_op *sop = list_entry(node, struct sim_op, node);

		/* Nothing of this ring's may be in flight on it. */
		GMB_ASSERT(sop->ring != ring || sop->fd != file->fd);
	}
	if (file->slot >= 0) {
		GMB_ASSERT((uint32_t)file->slot < ring->files_max);
		GMB_ASSERT(ring->files[file->slot] == file->fd);
		ring->files[file->slot] = -1;
		file->slot = -1;
	}
}

static int ring_fd(const struct ring *ring, struct ring_file file)
{
	if (file.slot >= 0) {
		GMB_ASSERT((uint32_t)file.slot < ring->files_max);
		GMB_ASSERT(ring->files[file.slot] == file.fd); /* a stale slot */
	}
	return file.fd;
}

int ring_memory_add(struct ring *ring, struct mem_region *region)
{
	if (sim_chance(sim_world.options.faults.memory_error_ppm)) {
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < ring->fixed_max; i++) {
		if (ring->fixed[i].base == NULL) {
			ring->fixed[i] = *region;
			region->fixed_idx = (int32_t)i;
			region->rights |= MEM_FIXED;
			return 0;
		}
	}
	return -ENOSPC;
}

void ring_memory_remove(struct ring *ring, struct mem_region *region)
{
	if ((region->rights & MEM_FIXED) == 0) {
		return;
	}
	GMB_ASSERT((uint32_t)region->fixed_idx < ring->fixed_max);
	GMB_ASSERT(ring->fixed[region->fixed_idx].base == region->base);
	ring->fixed[region->fixed_idx] = (struct mem_region){ 0 };
	region->rights &= ~(uint32_t)MEM_FIXED;
}

/* The memory of a file operation. What is said to be registered is, and with this ring. */
static struct iovec file_memory(const struct ring *ring, struct mem_ref memory, size_t len)
{
	struct iovec iov = { .iov_base = mem_address(memory), .iov_len = len };
	const struct mem_region *fixed;

	GMB_ASSERT(
		memory.region == NULL || (mem_offset(memory) <= memory.region->bytes &&
						 len <= memory.region->bytes - mem_offset(memory)));
	if (mem_may(memory, MEM_FIXED)) {
		GMB_ASSERT((uint32_t)memory.region->fixed_idx < ring->fixed_max);
		fixed = &ring->fixed[memory.region->fixed_idx];
		GMB_ASSERT(fixed->base == memory.region->base);
		GMB_ASSERT(fixed->bytes == memory.region->bytes);
	}
	return iov;
}

void ring_socket_shutdown(struct ring *ring, struct ring_file file)
{
	sim_net_shutdown(ring_fd(ring, file), true);
}

void ring_socket_abort(struct ring *ring, struct ring_file file)
{
	sim_net_abort(ring_fd(ring, file));
}

bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic)
{
	GMB_UNUSED(ring);
	GMB_UNUSED(file);
	GMB_UNUSED(traffic);
	return false;
}

void ring_socket_shutdown_send(struct ring *ring, struct ring_file file)
{
	sim_net_shutdown(ring_fd(ring, file), false);
}

void ring_socket_close(struct ring *ring, int fd)
{
	for (uint32_t i = 0; i < ring->files_max; i++) {
		GMB_ASSERT(ring->files[i] != fd); /* still in the file table */
	}
	sim_net_close(fd);
}

/* --- records of operations ------------------------------------------------------------------ */

struct sim_op *sim_op_begin(
	struct ring *ring, struct ring_op *op, enum ring_code code, int fd, ring_done_fn *done)
{
	struct sim_op *sop = calloc(1, sizeof(*sop));

	GMB_ASSERT(sop != NULL);
	GMB_ASSERT(done != NULL);
	list_for_each(node, &sim_world.operations)
	{
		GMB_ASSERT(list_entry(node, struct sim_op, node)->op != op); /* submitted twice */
	}
	list_init(&sop->ready);
	list_init(&sop->poll);
	sop->ring = ring;
	sop->op = op;
	sop->done = done;
	sop->code = (uint8_t)code;
	sop->fd = fd;
	sop->iov = sop->iov_inline;
	op->done = done;
	op->code = (uint8_t)code;
	op->in_flight = true;
	ring->inflight++;
	ring->counters.submissions++;
	if (fd >= 0) {
		sim_world.fds[fd - SIM_FD_BASE].inflight++;
	}
	list_push_back(&sim_world.operations, &sop->node);
	return sop;
}

void sim_op_check(const struct sim_op *sop)
{
	/* Under AddressSanitizer these reads also find an owner that was freed. */
	GMB_ASSERT(sop->op->in_flight);
	GMB_ASSERT(sop->op->done == sop->done);
	GMB_ASSERT(sop->op->code == sop->code);
}

static bool memory_overlaps(const struct sim_op *a, const struct iovec *iov)
{
	const uint8_t *start = iov->iov_base;

	for (uint32_t i = 0; i < a->iov_count; i++) {
		const uint8_t *other = a->iov[i].iov_base;

		if (start < other + a->iov[i].iov_len && other < start + iov->iov_len) {
			return true;
		}
	}
	return false;
}

void sim_op_memory(struct sim_op *sop, const struct iovec *iov, size_t count, bool writes_memory)
{
	sop->writes_memory = writes_memory;
	if (count > ARRAY_COUNT(sop->iov_inline)) {
		sop->iov = calloc(count, sizeof(sop->iov[0]));
		GMB_ASSERT(sop->iov != NULL);
	}
	for (size_t i = 0; i < count; i++) {
		list_for_each(node, &sim_world.operations)
		{
			const struct sim_op *other = list_entry(node, struct sim_op, node);

			if (other != sop && (writes_memory || other->writes_memory)) {
				/* Two operations use this memory and one of them writes it. */
				GMB_ASSERT(!memory_overlaps(other, &iov[i]));
			}
		}
	}
	for (size_t i = 0; i < count; i++) {
		sop->iov[i] = iov[i];
		sop->len += iov[i].iov_len;
		if (writes_memory) {
			size_t bytes = MIN(iov[i].iov_len, (size_t)SIM_POISON_BYTES);

			uint8_t *memory = sim_memory(iov[i].iov_base);

			memset(memory, 0xd5, bytes);
			memset(memory + iov[i].iov_len - bytes, 0xd5, bytes);
		}
	}
	sop->iov_count = (uint32_t)count;
}

static void op_event_run(void *arg, uint64_t value)
{
	struct sim_op *sop = arg;
	void (*run)(struct sim_op *) = (void (*)(struct sim_op *))(uintptr_t)value;

	sop->events--;
	if (sop->released) {
		op_free(sop);
		return;
	}
	if (!sop->complete) {
		run(sop);
	}
}

void sim_op_event(struct sim_op *sop, uint64_t delay_ns, void (*run)(struct sim_op *sop))
{
	sop->events++;
	sim_event_add(delay_ns, op_event_run, sop, (uint64_t)(uintptr_t)run);
}

void sim_op_drop_event(const struct sim_event *event)
{
	if (event->run == op_event_run) {
		struct sim_op *sop = event->arg;

		sop->events--;
		op_free(sop);
	}
}

static void op_ready(void *arg, uint64_t value)
{
	struct sim_op *sop = arg;

	GMB_UNUSED(value);
	sop->events--;
	list_push_back(&sop->ring->ready, &sop->ready);
}

void sim_op_complete(struct sim_op *sop, int result, uint64_t delay_ns)
{
	GMB_ASSERT(!sop->complete);
	sim_op_check(sop);
	sop->complete = true;
	sop->result = result;
	sop->events++;
	sim_event_add(delay_ns, op_ready, sop, 0);
}

/* Walks the operation's memory from position and copies len bytes one way or the other. */
static void op_copy(const struct sim_op *sop, size_t position, uint8_t *buf, size_t len, bool in)
{
	for (uint32_t i = 0; i < sop->iov_count && len > 0; i++) {
		size_t bytes;
		uint8_t *memory;

		if (position >= sop->iov[i].iov_len) {
			position -= sop->iov[i].iov_len;
			continue;
		}
		memory = (uint8_t *)sim_memory(sop->iov[i].iov_base) + position;
		bytes = MIN(sop->iov[i].iov_len - position, len);
		if (in) {
			memcpy(memory, buf, bytes);
		} else {
			memcpy(buf, memory, bytes);
		}
		buf += bytes;
		len -= bytes;
		position = 0;
	}
	GMB_ASSERT(len == 0);
}

/* The message header and its vector belong to the ring until done: they must not have changed. */
static void op_check_message(const struct sim_op *sop)
{
	if (sop->message != NULL) {
		GMB_ASSERT(sop->message->msg_iovlen == sop->iov_count);
		for (uint32_t i = 0; i < sop->iov_count; i++) {
			GMB_ASSERT(sop->message->msg_iov[i].iov_base == sop->iov[i].iov_base);
			GMB_ASSERT(sop->message->msg_iov[i].iov_len == sop->iov[i].iov_len);
		}
	}
}

void sim_op_gather(const struct sim_op *sop, size_t position, void *buf, size_t len)
{
	sim_op_check(sop);
	op_check_message(sop);
	op_copy(sop, position, buf, len, false);
}

void sim_op_scatter(const struct sim_op *sop, size_t position, const void *buf, size_t len)
{
	sim_op_check(sop);
	op_copy(sop, position, (uint8_t *)(uintptr_t)buf, len, true);
}

/* --- operations on sockets ------------------------------------------------------------------ */

void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	sim_fd_get(file.fd, SIM_FD_LISTENER);
	sim_net_accept(sim_op_begin(ring, op, RING_ACCEPT, ring_fd(ring, file), done));
}

void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done)
{
	struct sim_op *sop;

	GMB_ASSERT(len > 0);
	sim_fd_get(file.fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_RECV, ring_fd(ring, file), done);
	sop->wait_all = wait_all;
	sim_op_memory(sop, &(struct iovec){ .iov_base = buf, .iov_len = len }, 1, true);
	sim_net_recv(sop);
}

void ring_send(struct ring *ring, struct ring_op *op, struct ring_file file, const void *buf,
	size_t len, ring_done_fn *done)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)buf, .iov_len = len };
	struct sim_op *sop;

	GMB_ASSERT(len > 0);
	sim_fd_get(file.fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_SEND, ring_fd(ring, file), done);
	sim_op_memory(sop, &iov, 1, false);
	sim_net_send(sop);
}

void ring_sendmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	const struct msghdr *message, ring_done_fn *done)
{
	struct sim_op *sop;

	GMB_ASSERT(message->msg_iovlen > 0);
	GMB_ASSERT(message->msg_iovlen <= SIM_IOV_MAX);
	GMB_ASSERT(message->msg_controllen == 0);
	sim_fd_get(file.fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_SENDMSG, ring_fd(ring, file), done);
	sop->message = message;
	sim_op_memory(sop, message->msg_iov, message->msg_iovlen, false);
	GMB_ASSERT(sop->len > 0);
	sim_net_send(sop);
}

void ring_recvmsg(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct msghdr *message, bool wait_all, ring_done_fn *done)
{
	struct sim_op *sop;

	GMB_ASSERT(message->msg_iovlen > 0);
	GMB_ASSERT(message->msg_iovlen <= SIM_IOV_MAX);
	GMB_ASSERT(message->msg_controllen == 0);
	sim_fd_get(file.fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_RECVMSG, ring_fd(ring, file), done);
	sop->wait_all = wait_all;
	sop->message = message;
	sim_op_memory(sop, message->msg_iov, message->msg_iovlen, true);
	GMB_ASSERT(sop->len > 0);
	sim_net_recv(sop);
}

ssize_t ring_recvmsg_now(struct ring *ring, struct ring_file file, struct msghdr *message)
{
	ring->counters.direct++;
	return sim_net_recv_now(ring_fd(ring, file), message);
}

ssize_t ring_sendmsg_now(struct ring *ring, struct ring_file file, const struct msghdr *message)
{
	ring->counters.direct++;
	return sim_net_send_now(ring_fd(ring, file), message);
}

void ring_poll(struct ring *ring, struct ring_op *op, int fd, uint32_t events, ring_done_fn *done)
{
	struct sim_op *sop;

	sim_fd_get(fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_POLL, fd, done);
	sop->mode = (int)events;
	sim_net_poll(sop);
}

/* --- operations on disks -------------------------------------------------------------------- */

void ring_read(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, ring_done_fn *done)
{
	struct iovec iov = file_memory(ring, memory, len);
	struct sim_op *sop;

	GMB_ASSERT(len > 0);
	GMB_ASSERT(len <= (size_t)1 << 30);
	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_READ, ring_fd(ring, file), done);
	sop->offset = offset;
	sim_op_memory(sop, &iov, 1, true);
	sim_disk_submit(sop);
}

void ring_write(struct ring *ring, struct ring_op *op, struct ring_file file, struct mem_ref memory,
	size_t len, uint64_t offset, bool dsync, ring_done_fn *done)
{
	struct iovec iov = file_memory(ring, memory, len);
	struct sim_op *sop;

	GMB_ASSERT(len > 0);
	GMB_ASSERT(len <= (size_t)1 << 30);
	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_WRITE, ring_fd(ring, file), done);
	sop->offset = offset;
	sop->direct_sync = dsync;
	sim_op_memory(sop, &iov, 1, false);
	sim_disk_submit(sop);
}

void ring_write_inline(struct ring *ring, struct ring_op *op, struct ring_file file,
	struct mem_ref memory, size_t len, uint64_t offset, ring_done_fn *done)
{
	/* Completing later than a real one would is the harder case for the caller. */
	ring_write(ring, op, file, memory, len, offset, false, done);
}

void ring_fsync(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	sim_fd_get(file.fd, SIM_FD_FILE);
	sim_disk_submit(sim_op_begin(ring, op, RING_FSYNC, ring_fd(ring, file), done));
}

void ring_allocate(struct ring *ring, struct ring_op *op, struct ring_file file, int mode,
	uint64_t offset, uint64_t length, ring_done_fn *done)
{
	struct sim_op *sop;

	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_ALLOCATE, ring_fd(ring, file), done);
	sop->mode = mode;
	sop->offset = offset;
	sop->range = length;
	sim_disk_submit(sop);
}

void ring_advise(struct ring *ring, struct ring_op *op, struct ring_file file, uint64_t offset,
	uint64_t length, ring_done_fn *done)
{
	struct sim_op *sop;

	sim_fd_get(file.fd, SIM_FD_FILE);
	sop = sim_op_begin(ring, op, RING_ADVISE, ring_fd(ring, file), done);
	sop->offset = offset;
	sop->range = length;
	sim_disk_submit(sop);
}

/* --- timers, worker threads, cancelling ----------------------------------------------------- */

static void timer_expire(struct sim_op *sop)
{
	sim_op_complete(sop, 0, 0);
}

void ring_timer(struct ring *ring, struct ring_op *op, uint64_t delay_ns, ring_done_fn *done)
{
	struct sim_op *sop = sim_op_begin(ring, op, RING_TIMER, -1, done);
	uint64_t late_ns = sim_world.options.faults.jitter ? sim_between(0, 60000) : 0;

	sim_op_event(
		sop, delay_ns + late_ns < delay_ns ? delay_ns : delay_ns + late_ns, timer_expire);
}

static void call_run(struct sim_op *sop)
{
	int result;

	GMB_ASSERT(!sim_world.in_batch);
	sim_op_check(sop);
	sim_world.in_call = true;
	result = sop->call(sop->op);
	sim_world.in_call = false;
	sim_op_complete(sop, result, sim_delay_short());
}

void ring_call(
	struct ring *ring, struct ring_op *op, int (*call)(struct ring_op *op), ring_done_fn *done)
{
	struct sim_op *sop = sim_op_begin(ring, op, RING_CALL, -1, done);

	sop->call = call;
	op->call = call;
	sim_op_event(sop, sim_delay_disk(), call_run);
}

void ring_op_begin(struct ring_op *op, ring_done_fn *done)
{
	GMB_ASSERT(!op->in_flight);
	op->in_flight = true;
	op->code = RING_DEFER;
	op->done = done;
}

/* Known to the world only from now on. */
void ring_op_complete(struct ring *ring, struct ring_op *op, int result)
{
	GMB_ASSERT(op->in_flight && op->code == RING_DEFER);
	op->in_flight = false;
	ring_defer(ring, op, result, op->done);
}

void ring_defer(struct ring *ring, struct ring_op *op, int result, ring_done_fn *done)
{
	struct sim_op *sop = sim_op_begin(ring, op, RING_DEFER, -1, done);

	sop->complete = true;
	sop->result = result;
	list_push_back(&ring->ready, &sop->ready);
}

void ring_cancel(struct ring *ring, struct ring_op *op)
{
	GMB_UNUSED(ring);
	sim_cancel(op);
}

void sim_cancel(struct ring_op *op)
{
	if (!op->in_flight) {
		return;
	}
	list_for_each(node, &sim_world.operations)
	{
		struct sim_op *sop = list_entry(node, struct sim_op, node);

		if (sop->op != op) {
			continue;
		}
		GMB_ASSERT(sop->code == RING_ACCEPT || sop->code == RING_RECV ||
			   sop->code == RING_POLL || sop->code == RING_TIMER);
		if (sop->complete || sop->cancelled) {
			return;
		}
		sop->cancelled = true;
		if (sop->code == RING_TIMER) {
			sim_op_complete(sop, -ECANCELED, sim_delay_short());
		} else {
			sim_net_cancel(sop);
		}
		return;
	}
	GMB_ASSERT(!"an operation in flight is known to its ring");
}
