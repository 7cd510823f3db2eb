// SPDX-License-Identifier: Apache-2.0
/* The ring interface over the simulated world. See sim.h for the fault model. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "ring/ring.h"
#include "ring/source.h"
#include "sim/sim_internal.h"

enum { SIM_MEMORY_MAX = 1024, SIM_BATCH_MAX = 64 };

struct ring {
	struct list_node node; /* in world.rings */
	struct list_node ready;
	struct list_node polls; /* operations that wait for poll_fd */
	uint32_t ready_count;
	uint32_t urgent_count; /* ready operations that end a wait for a batch */
	uint32_t batch_count;  /* see ring_set_batch(); 1: each completion wakes up the thread */
	uint64_t batch_wait_ns;
	uint64_t spin_ns;
	uint64_t idle_ns; /* time at which the ring's thread began to wait */
	bool limited; /* the thread is in ring_turn_limited(), which does not wait for a batch */
	bool in_turn; /* the thread is in ring_turn(), which checks for work itself */
	bool woken;   /* ring_poll_again() was called */
	int poll_fd;  /* -1 until requested */
	struct ring_message *messages; /* posted, oldest first */
	struct ring_message **messages_tail;
	bool messages_due;
	bool stop;
	bool running;
	bool frozen;
	bool killed;
	uint64_t batch_ns;
	struct list_node batch_ends;
	struct ring_sources sources;
	bool armed;	   /* the ring's sources are armed, because its thread sleeps */
	int source_events; /* events handled while spinning; the next turn returns them */
	struct ring_features features;
	struct ring_counters counters;
	uint32_t files_max;
	int *files;				 /* descriptor by slot; -1: free */
	struct mem_region fixed[SIM_MEMORY_MAX]; /* registered memory; base NULL: free */
	uint32_t fixed_max;
	uint32_t inflight;
};

/* --- creating and destroying ---------------------------------------------------------------- */

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
	list_init(&ring->sources.list);
	list_init(&ring->polls);
	ring_set_batch(ring, 1, 0);
	ring->idle_ns = sim_world.now_ns;
	ring->poll_fd = -1;
	ring->messages_tail = &ring->messages;
	ring->batch_ns = sim_world.now_ns;
	ring_probe(&ring->features);
	list_push_back(&sim_world.rings, &ring->node);
	*ring_out = ring;
	return 0;
}

void ring_destroy(struct ring *ring)
{
	if (ring == NULL) {
		return;
	}
	GMB_ASSERT(ring->inflight == 0);
	GMB_ASSERT(list_is_empty(&ring->sources.list));
	GMB_ASSERT(ring->messages == NULL);
	for (uint32_t i = 0; i < ring->files_max; i++) {
		GMB_ASSERT(ring->files[i] == -1); /* the file must have been removed */
	}
	GMB_ASSERT(list_is_empty(&ring->polls));
	if (ring->poll_fd >= 0) {
		sim_fd_remove(ring->poll_fd);
	}
	list_remove(&ring->node);
	free(ring->files);
	free(ring);
}

void ring_probe(struct ring_features *features)
{
	*features = (struct ring_features){
		.available = true,
		.registered_ring = true,
		.registered_files = true,
		.registered_buffers = true,
		.min_timeout = true,
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
	if (ring->poll_fd >= 0 && !list_is_empty(&ring->sources.list) &&
		!sources_arm(ring, &ring->sources)) {
		ring_poll_again(ring);
	}
}

void ring_set_batch(struct ring *ring, uint32_t count, uint64_t max_wait_ns)
{
	if (sim_world.options.batch_count > 0) {
		count = sim_world.options.batch_count;
		max_wait_ns = sim_world.options.batch_wait_ns;
	}
	ring->batch_count = max_wait_ns >= 1000 ? MAX(count, 1U) : 1;
	ring->batch_wait_ns = max_wait_ns;
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
}

void ring_source_remove(
	struct ring *ring, struct ring_source *source, void (*removed)(struct ring_source *source))
{
	source_remove(ring, source, removed);
}

/* The clock advances with each call, so two calls return different times, as on a real machine. */
uint64_t ring_now_ns(const struct ring *ring)
{
	sim_world.now_ns += 40;
	return sim_world.now_ns;
}

uint64_t ring_batch_ns(const struct ring *ring)
{
	return ring->batch_ns;
}

void ring_stop(struct ring *ring)
{
	ring->stop = true;
}

/* --- running -------------------------------------------------------------------------------- */

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

static bool ring_has_news(const struct ring *ring)
{
	return !list_is_empty(&ring->ready) || ring->messages_due;
}

/* Returns whether the ring's thread polls for work instead of sleeping. */
static bool is_spinning(const struct ring *ring)
{
	return !ring->limited && sim_world.now_ns - ring->idle_ns < ring->spin_ns;
}

/* Polls the sources while spinning; otherwise arms them. Returns whether they have work. */
static bool sources_have_work(struct ring *ring)
{
	if (list_is_empty(&ring->sources.list)) {
		return false;
	}
	if (is_spinning(ring)) {
		ring->batch_ns = sim_world.now_ns;
		ring->armed = false; /* still true if spinning was enabled after arming */
		ring->source_events += sources_poll(&ring->sources);
	} else if (!ring->armed) {
		ring->armed = sources_arm(ring, &ring->sources);
		return !ring->armed;
	}
	return ring->source_events > 0;
}

/* Returns whether the ring's thread is awake or would be woken by the completed operations. */
static bool ring_has_work(struct ring *ring)
{
	if (ring->frozen) {
		return false;
	}
	if (sources_have_work(ring)) {
		return true;
	}
	if (!ring_has_news(ring)) {
		return false;
	}
	return ring->limited || ring->urgent_count > 0 || ring->spin_ns > 0 ||
	       ring->ready_count + ring->messages_due >= ring->batch_count ||
	       sim_world.now_ns - ring->idle_ns >= ring->batch_wait_ns;
}

/* Returns whether the ring's thread waits in ring_run(), not in a loop of its owner. */
static bool ring_runs(struct ring *ring)
{
	return ring->poll_fd < 0 && ring_has_work(ring);
}

static void time_passed(void *arg, uint64_t value)
{
}

static bool is_readable(const struct ring *ring)
{
	return ring->woken || ring_has_news(ring);
}

/* Called when the ring has work: wakes pollers, and limits how long the thread waits for a
 * batch. */
static void ring_kick(struct ring *ring)
{
	uint64_t waited_ns = sim_world.now_ns - ring->idle_ns;

	if (ring->batch_count > 1 && waited_ns < ring->batch_wait_ns) {
		sim_event_add(ring->batch_wait_ns - waited_ns, time_passed, NULL, 0);
	}
	list_for_each(node, &ring->polls)
	{
		struct sim_op *sop = list_entry(node, struct sim_op, poll);

		if (sop->cancelled || is_readable(ring)) {
			list_remove(&sop->poll);
			sim_op_complete(
				sop, sop->cancelled ? -ECANCELED : POLLIN, sim_delay_short());
		}
	}
}

/* Called when the ring's thread begins to wait. Work that remains counts as new. */
static void ring_idle(struct ring *ring)
{
	ring->idle_ns = sim_world.now_ns;
	if (ring->spin_ns > 0 && !list_is_empty(&ring->sources.list)) {
		sim_event_add(ring->spin_ns, time_passed, NULL, 0); /* spinning ends */
	}
	if (ring_has_news(ring)) {
		ring_kick(ring);
	}
}

/* Returns whether the operation ends a wait for a batch, as expired timers do in the kernel. */
static bool is_urgent(const struct sim_op *sop)
{
	return sop->code == RING_DEFER || (sop->code == RING_TIMER && sop->result == 0);
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

static int ring_run_sources(struct ring *ring)
{
	int count = ring->source_events + sources_poll(&ring->sources);

	ring->source_events = 0;
	ring->counters.events += (uint64_t)count;
	return count;
}

/* Takes all operations that are complete now, then runs them in one batch. */
static int ring_batch(struct ring *ring)
{
	struct list_node batch;
	int count = 0;
	int batch_max = sim_world.options.faults.jitter ? (int)sim_between(1, SIM_BATCH_MAX)
							: SIM_BATCH_MAX;

	GMB_ASSERT(!sim_world.in_batch);
	sim_world.in_batch = true;
	ring->woken = false;
	ring->armed = false;
	list_init(&batch);
	while (count < batch_max && !list_is_empty(&ring->ready)) {
		struct sim_op *sop = list_entry(list_pop_front(&ring->ready), struct sim_op, ready);

		ring->ready_count--;
		ring->urgent_count -= is_urgent(sop);
		list_push_back(&batch, &sop->ready);
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
		sim_op_free(sop);
		done(op, result);
	}
	count += run_messages(ring);
	if (ring->source_events > 0 || !list_is_empty(&ring->sources.list)) {
		count += ring_run_sources(ring);
	}
	list_for_each(node, &ring->batch_ends)
	{
		struct ring_batch_end *end = list_entry(node, struct ring_batch_end, node);

		if (count > 0) {
			end->call(end);
		}
	}
	sim_world.in_batch = false;
	ring_idle(ring);
	return count;
}

/* Runs a batch of a ring whose thread was waiting. */
static int ring_wake(struct ring *ring)
{
	ring->counters.enters++;
	ring->counters.waits += !is_spinning(ring) && sim_world.now_ns > ring->idle_ns;
	return ring_batch(ring);
}

/* Runs the other rings while one waits, because they represent other threads and machines. */
static bool run_others(const struct ring *waiting)
{
	bool worked = false;

	list_for_each(node, &sim_world.rings)
	{
		struct ring *ring = list_entry(node, struct ring, node);

		if (ring != waiting && !ring->in_turn && ring_runs(ring)) {
			worked = ring_wake(ring) > 0 || worked;
		}
	}
	return worked;
}

/* Moves the clock until the ring has work. Returns false if no event is left before until_ns. */
static bool ring_advance(struct ring *ring, uint64_t until_ns)
{
	bool more = true;

	ring->in_turn = true;
	while (more && !ring_has_work(ring)) {
		more = run_others(ring) || sim_event_run(until_ns);
	}
	ring->in_turn = false;
	return more;
}

/* Runs events of the next few microseconds, by chance: waking up takes a while, so that a thread
 * finds more than one completion. */
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
	ring_idle(ring);
	if (!wait) {
		sim_world.now_ns += 1000;
		ring->counters.enters++;
		ring_linger();
		return ring_batch(ring);
	}
	/* If no event is left that can wake the ring, the code under test has lost one. */
	GMB_ASSERT(ring_advance(ring, UINT64_MAX));
	if (!is_spinning(ring)) {
		ring_linger();
	}
	return ring_wake(ring);
}

int ring_turn_limited(struct ring *ring, uint64_t limit_ns)
{
	int count;

	if (limit_ns == 0) {
		return ring_turn(ring, false);
	}
	ring->limited = true;
	sim_event_add(limit_ns, time_passed, NULL, 0); /* advances the clock to the limit */
	(void)ring_advance(ring, sim_world.now_ns + limit_ns);
	ring_linger();
	count = ring_wake(ring);
	ring->limited = false;
	return count;
}

int ring_poll_fd(struct ring *ring)
{
	if (ring->poll_fd < 0) {
		ring->poll_fd = sim_fd_add(SIM_FD_RING, ring, true);
		ring->woken = true; /* initially readable, because there may already be work */
	}
	return ring->poll_fd;
}

void ring_poll_again(struct ring *ring)
{
	if (ring->poll_fd >= 0) {
		ring->woken = true;
		ring_kick(ring);
	}
}

bool sim_poll(int poll_fd, uint64_t limit_ns)
{
	struct ring *ring = sim_fd_get(poll_fd, SIM_FD_RING)->ring;
	uint64_t end_ns =
		limit_ns > UINT64_MAX - sim_world.now_ns ? UINT64_MAX : sim_world.now_ns + limit_ns;

	GMB_ASSERT(!sim_world.in_batch);
	while (!is_readable(ring)) {
		if (!run_others(ring) && !sim_event_run(end_ns)) {
			sim_world.now_ns = end_ns != UINT64_MAX ? end_ns : sim_world.now_ns;
			return false;
		}
	}
	return true;
}

void ring_run(struct ring *ring)
{
	GMB_ASSERT(!ring->running);
	ring->running = true;
	while (!ring->stop) {
		(void)ring_turn(ring, true);
	}
	ring->stop = false;
	ring->running = false;
}

/* Runs a batch of every ring that has work, or only of rings whose threads are spinning. */
static bool run_rings(bool spinning_only)
{
	bool worked = false;

	list_for_each(node, &sim_world.rings)
	{
		struct ring *ring = list_entry(node, struct ring, node);

		if (ring_runs(ring) && (!spinning_only || is_spinning(ring))) {
			(void)ring_wake(ring);
			worked = true;
		}
	}
	return worked;
}

bool sim_step(void)
{
	bool worked = false;

	GMB_ASSERT(!sim_world.in_batch);
	list_for_each(node, &sim_world.rings)
	{
		worked = worked || ring_runs(list_entry(node, struct ring, node));
	}
	if (!worked && !sim_event_run(UINT64_MAX)) {
		return false;
	}
	(void)run_rings(true);
	ring_linger();
	while (run_rings(false)) {
	}
	return true;
}

void sim_freeze(struct ring *ring, bool frozen)
{
	ring->frozen = frozen;
}

void sim_ring_kill(struct ring *ring)
{
	ring->frozen = true;
	ring->killed = true;
}

bool sim_ring_is_killed(const struct ring *ring)
{
	return ring->killed;
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

	/* The ring may be destroyed, or an earlier batch might have delivered the message. */
	list_for_each(node, &sim_world.rings)
	{
		if (node == &ring->node) {
			ring->messages_due = ring->messages != NULL;
			if (ring->messages_due) {
				ring_kick(ring);
			}
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
		GMB_ASSERT(ring->files[i] != fd); /* the file must not be registered yet */
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

		/* Asserts that no operation of this ring is in flight on the file. */
		GMB_ASSERT(sop->ring != ring || sop->fd != file->fd);
	}
	if (file->slot >= 0) {
		GMB_ASSERT((uint32_t)file->slot < ring->files_max);
		GMB_ASSERT(ring->files[file->slot] == file->fd);
		ring->files[file->slot] = -1;
		file->slot = -1;
	}
}

int sim_ring_fd(const struct ring *ring, struct ring_file file)
{
	if (file.slot >= 0) {
		GMB_ASSERT((uint32_t)file.slot < ring->files_max);
		GMB_ASSERT(ring->files[file.slot] == file.fd); /* the slot must not be stale */
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

/* Returns the memory of a file operation. MEM_FIXED memory must be registered with this ring. */
struct iovec sim_ring_memory(const struct ring *ring, struct mem_ref memory, size_t len)
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
	sim_net_shutdown(sim_ring_fd(ring, file), true);
}

void ring_socket_abort(struct ring *ring, struct ring_file file)
{
	sim_net_abort(sim_ring_fd(ring, file));
}

bool ring_socket_traffic(struct ring *ring, struct ring_file file, struct ring_traffic *traffic)
{
	return false;
}

bool ring_socket_unacked(struct ring *ring, struct ring_file file, uint64_t *bytes_out)
{
	*bytes_out = sim_net_unacked(sim_ring_fd(ring, file));
	return true;
}

void ring_socket_shutdown_send(struct ring *ring, struct ring_file file)
{
	sim_net_shutdown(sim_ring_fd(ring, file), false);
}

void ring_socket_close(struct ring *ring, int fd)
{
	for (uint32_t i = 0; i < ring->files_max; i++) {
		GMB_ASSERT(ring->files[i] != fd); /* the file must have been removed */
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
		GMB_ASSERT(list_entry(node, struct sim_op, node)->op != op); /* not yet submitted */
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
	if (fd >= 0) {
		sim_world.fds[fd - SIM_FD_BASE].inflight++;
	}
	list_push_back(&sim_world.operations, &sop->node);
	return sop;
}

static void ring_ready(struct sim_op *sop)
{
	struct ring *ring = sop->ring;

	list_push_back(&ring->ready, &sop->ready);
	ring->ready_count++;
	ring->urgent_count += is_urgent(sop);
	ring_kick(ring);
}

static void op_ready(void *arg, uint64_t value)
{
	struct sim_op *sop = arg;

	sop->events--;
	ring_ready(sop);
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

/* --- operations on sockets ------------------------------------------------------------------ */

void ring_accept(struct ring *ring, struct ring_op *op, struct ring_file file, ring_done_fn *done)
{
	sim_fd_get(file.fd, SIM_FD_LISTENER);
	sim_net_accept(sim_op_begin(ring, op, RING_ACCEPT, sim_ring_fd(ring, file), done));
}

void ring_recv(struct ring *ring, struct ring_op *op, struct ring_file file, void *buf, size_t len,
	bool wait_all, ring_done_fn *done)
{
	struct sim_op *sop;

	GMB_ASSERT(len > 0);
	sim_fd_get(file.fd, SIM_FD_SOCKET);
	sop = sim_op_begin(ring, op, RING_RECV, sim_ring_fd(ring, file), done);
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
	sop = sim_op_begin(ring, op, RING_SEND, sim_ring_fd(ring, file), done);
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
	sop = sim_op_begin(ring, op, RING_SENDMSG, sim_ring_fd(ring, file), done);
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
	sop = sim_op_begin(ring, op, RING_RECVMSG, sim_ring_fd(ring, file), done);
	sop->wait_all = wait_all;
	sop->message = message;
	sim_op_memory(sop, message->msg_iov, message->msg_iovlen, true);
	GMB_ASSERT(sop->len > 0);
	sim_net_recv(sop);
}

ssize_t ring_recvmsg_now(struct ring *ring, struct ring_file file, struct msghdr *message)
{
	ring->counters.direct++;
	return sim_net_recv_now(sim_ring_fd(ring, file), message);
}

ssize_t ring_sendmsg_now(struct ring *ring, struct ring_file file, const struct msghdr *message)
{
	ring->counters.direct++;
	return sim_net_send_now(sim_ring_fd(ring, file), message);
}

void ring_poll(struct ring *ring, struct ring_op *op, int fd, uint32_t events, ring_done_fn *done)
{
	struct sim_op *sop = sim_op_begin(ring, op, RING_POLL, fd, done);
	struct sim_fd *polled = &sim_world.fds[fd - SIM_FD_BASE];

	sop->mode = (int)events;
	if (polled->kind == SIM_FD_RING) {
		list_push_back(&polled->ring->polls, &sop->poll);
		ring_kick(polled->ring);
	} else {
		sim_net_poll(sop);
	}
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
	result = sop->ring->killed ? -EIO : sop->call(sop->op);
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

/* Only ring_defer() creates the operation's record (struct sim_op), not ring_op_begin(). */
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
	ring_ready(sop);
}

void ring_cancel(struct ring *ring, struct ring_op *op)
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
			   sop->code == RING_RECVMSG || sop->code == RING_POLL ||
			   sop->code == RING_TIMER);
		if (sop->complete || sop->cancelled) {
			return;
		}
		sop->cancelled = true;
		if (sop->code == RING_TIMER) {
			sim_op_complete(sop, -ECANCELED, sim_delay_short());
		} else if (sim_world.fds[sop->fd - SIM_FD_BASE].kind == SIM_FD_RING) {
			ring_kick(sim_world.fds[sop->fd - SIM_FD_BASE].ring);
		} else {
			sim_net_cancel(sop);
		}
		return;
	}
	GMB_ASSERT(!"an operation in flight is known to its ring");
}
