// SPDX-License-Identifier: Apache-2.0
/* The simulated world: clock, event heap, random numbers, operations' memory, descriptors. See
 * sim.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "ring/ring.h"
#include "sim/sim_internal.h"

#define SIM_START_NS UINT64_C(1000000000)

enum { SIM_POISON_BYTES = 4096 };

struct sim_world sim_world;

/* --- random numbers: xoshiro256**, seeded by random_next() ---------------------------------- */

static uint64_t rotate(uint64_t v, int bits)
{
	return (v << bits) | (v >> (64 - bits));
}

uint64_t sim_random(void)
{
	uint64_t *s = sim_world.random;
	uint64_t result = rotate(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate(s[3], 45);
	return result;
}

uint64_t sim_between(uint64_t low, uint64_t high)
{
	GMB_ASSERT(low <= high);
	return low + sim_random() % (high - low + 1);
}

bool sim_chance(uint32_t ppm)
{
	return ppm != 0 && sim_random() % 1000000 < ppm;
}

uint64_t ring_random(struct ring *ring)
{
	return sim_random();
}

bool ring_secret(struct ring *ring, void *bytes, size_t len)
{
	uint8_t *out = bytes;

	for (size_t i = 0; i < len; i++) {
		out[i] = (uint8_t)sim_random();
	}
	return true;
}

/* --- start and stop ------------------------------------------------------------------------- */

void sim_start(const struct sim_options *options)
{
	uint64_t seed = options->seed;

	GMB_ASSERT(!sim_world.running);
	memset(&sim_world, 0, sizeof(sim_world));
	sim_world.running = true;
	sim_world.options = *options;
	sim_world.now_ns = SIM_START_NS;
	sim_world.trace = UINT64_C(0xcbf29ce484222325);
	sim_world.ticket = 1;
	for (size_t i = 0; i < ARRAY_COUNT(sim_world.random); i++) {
		sim_world.random[i] = random_next(&seed);
	}
	list_init(&sim_world.rings);
	list_init(&sim_world.operations);
	list_init(&sim_world.disks);
	list_init(&sim_world.sockets);
	list_init(&sim_world.listeners);
	list_init(&sim_world.files);
}

void sim_set_faults(const struct sim_faults *faults)
{
	sim_world.options.faults = *faults;
}

/* Waiting costs no CPU time here. */
uint64_t ring_thread_cpu_ns(void)
{
	return 0;
}

uint64_t sim_now_ns(void)
{
	return sim_world.now_ns;
}

uint64_t sim_trace_hash(void)
{
	return sim_world.trace;
}

uint64_t sim_event_count(void)
{
	return sim_world.event_count;
}

uint64_t sim_send_faults(void)
{
	return sim_world.send_faults;
}

void sim_trace_mix(uint64_t value)
{
	for (int i = 0; i < 8; i++) {
		sim_world.trace ^= (value >> (8 * i)) & 0xff;
		sim_world.trace *= UINT64_C(0x100000001b3);
	}
}

void sim_trace(const char *what, uint64_t a, uint64_t b, int64_t c)
{
	sim_trace_mix(sim_world.now_ns);
	sim_trace_mix(a);
	sim_trace_mix(b);
	sim_trace_mix((uint64_t)c);
	if (sim_world.options.verbose) {
		fprintf(stderr, "%12.3f us  %-18s %" PRIu64 " %" PRIu64 " -> %" PRId64 "\n",
			(double)(sim_world.now_ns - SIM_START_NS) / 1e3, what, a, b, c);
	}
}

/* --- delays and partial transfers ----------------------------------------------------------- */

static uint64_t delay(uint64_t usual_ns, uint64_t long_ns)
{
	if (!sim_world.options.faults.jitter) {
		return 1000;
	}
	if (sim_chance(sim_world.options.faults.slow_ppm)) {
		return sim_between(20000000, 500000000);
	}
	switch (sim_random() % 8) {
	case 0:
		return sim_between(1, long_ns);
	case 1:
		return 0;
	default:
		return sim_between(1, usual_ns);
	}
}

uint64_t sim_delay_disk(void)
{
	return delay(100000, 3000000);
}

uint64_t sim_delay_network(void)
{
	return delay(30000, 1000000);
}

uint64_t sim_delay_short(void)
{
	return delay(3000, 20000);
}

size_t sim_partial(size_t len)
{
	if (len < 2 || !sim_chance(sim_world.options.faults.partial_ppm)) {
		return len;
	}
	if (sim_random() % 4 == 0) {
		return 1;
	}
	return (size_t)sim_between(1, len - 1);
}

/* --- the event heap: a binary heap ordered by time, then by submission ----------------------- */

static bool event_before(const struct sim_event *a, const struct sim_event *b)
{
	if (a->time_ns != b->time_ns) {
		return a->time_ns < b->time_ns;
	}
	return a->order < b->order;
}

void sim_event_add(
	uint64_t delay_ns, void (*run)(void *arg, uint64_t value), void *arg, uint64_t value)
{
	struct sim_event event = {
		.time_ns = sim_world.now_ns + delay_ns,
		.order = sim_world.event_order++,
		.run = run,
		.arg = arg,
		.value = value,
	};
	size_t at;

	if (event.time_ns < delay_ns) {
		event.time_ns = UINT64_MAX;
	}
	if (sim_world.heap_count == sim_world.heap_max) {
		sim_world.heap_max = sim_world.heap_max == 0 ? 256 : sim_world.heap_max * 2;
		sim_world.heap =
			realloc(sim_world.heap, sim_world.heap_max * sizeof(sim_world.heap[0]));
		GMB_ASSERT(sim_world.heap != NULL);
	}
	at = sim_world.heap_count++;
	while (at > 0 && event_before(&event, &sim_world.heap[(at - 1) / 2])) {
		sim_world.heap[at] = sim_world.heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	sim_world.heap[at] = event;
}

static struct sim_event event_pop(void)
{
	struct sim_event top = sim_world.heap[0];
	struct sim_event last = sim_world.heap[--sim_world.heap_count];
	size_t at = 0;

	for (;;) {
		size_t child = 2 * at + 1;

		if (child >= sim_world.heap_count) {
			break;
		}
		if (child + 1 < sim_world.heap_count &&
			event_before(&sim_world.heap[child + 1], &sim_world.heap[child])) {
			child++;
		}
		if (!event_before(&sim_world.heap[child], &last)) {
			break;
		}
		sim_world.heap[at] = sim_world.heap[child];
		at = child;
	}
	sim_world.heap[at] = last;
	return top;
}

bool sim_event_run(uint64_t until_ns)
{
	struct sim_event event;

	if (sim_world.heap_count == 0 || sim_world.heap[0].time_ns > until_ns) {
		return false;
	}
	event = event_pop();
	if (event.time_ns > sim_world.now_ns) {
		sim_world.now_ns = event.time_ns;
	}
	sim_world.event_count++;
	event.run(event.arg, event.value);
	return true;
}

struct after {
	void (*fn)(void *arg);
	void *arg;
};

static void after_run(void *arg, uint64_t value)
{
	struct after after = *(struct after *)arg;

	free(arg);
	after.fn(after.arg);
}

void sim_after(uint64_t delay_ns, void (*fn)(void *arg), void *arg)
{
	struct after *after = malloc(sizeof(*after));

	GMB_ASSERT(after != NULL);
	*after = (struct after){ .fn = fn, .arg = arg };
	sim_event_add(delay_ns, after_run, after, 0);
}

void sim_stop(void)
{
	GMB_ASSERT(sim_world.running);
	GMB_ASSERT(list_is_empty(&sim_world.rings));
	GMB_ASSERT(sim_open_count() == 0);
	while (sim_world.heap_count > 0) {
		struct sim_event event = event_pop();

		if (event.run == after_run) {
			free(event.arg);
		} else {
			sim_op_drop_event(&event);
		}
	}
	sim_net_stop();
	sim_disk_stop();
	sim_shared_stop();
	free(sim_world.heap);
	sim_world.heap = NULL;
	sim_world.running = false;
}

/* --- threads: a separate ring in the same world ----------------------------------------------- */

/* Time limit of a call, the same as in ring/thread.c. */
#define CALL_NS_MAX UINT64_C(2000000000)

struct ring_thread {
	struct ring_thread_options options;
	struct ring *ring;
	struct ring_message stop;
	bool stopped;
};

int ring_thread_start(const struct ring_thread_options *options, struct ring_thread **thread_out,
	struct error *error)
{
	struct ring_thread *thread = calloc(1, sizeof(*thread));
	int rc;

	GMB_ASSERT(thread != NULL);
	thread->options = *options;
	rc = options->begin(options->context, &thread->ring, error);
	if (rc < 0) {
		free(thread);
		return rc;
	}
	*thread_out = thread;
	return 0;
}

static void thread_stopped(struct ring *ring, struct ring_message *message)
{
	container_of(message, struct ring_thread, stop)->stopped = true;
}

void ring_thread_stop(struct ring_thread *thread)
{
	thread->stop.deliver = thread_stopped;
	ring_post(thread->ring, &thread->stop);
	while (!thread->stopped) {
		bool is_busy = sim_step();

		GMB_ASSERT(is_busy);
	}
	thread->options.end(thread->options.context);
	free(thread);
}

struct thread_call {
	struct ring_message message;
	void (*call)(void *context);
	void *context;
	bool decided; /* the call was made, or has timed out */
	bool over;
};

static void world_deliver_call(struct ring *ring, struct ring_message *message)
{
	struct thread_call *call = container_of(message, struct thread_call, message);

	if (call->decided) {
		free(call);
		return;
	}
	call->decided = true;
	call->call(call->context);
	call->over = true;
}

int ring_thread_call(struct ring_thread *thread, void (*call)(void *context), void *context)
{
	struct thread_call *posted = calloc(1, sizeof(*posted));
	uint64_t end_ns = sim_world.now_ns + CALL_NS_MAX;

	GMB_ASSERT(posted != NULL);
	*posted = (struct thread_call){
		.message.deliver = world_deliver_call, .call = call, .context = context
	};
	ring_post(thread->ring, &posted->message);
	while (!posted->over && sim_world.now_ns < end_ns && sim_step()) {
	}
	if (!posted->over) {
		posted->decided = true; /* the message is freed when it is delivered */
		return -ETIMEDOUT;
	}
	free(posted);
	return 0;
}

/* --- operations: their events and memory ---------------------------------------------------- */

void sim_op_free(struct sim_op *sop)
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

void sim_op_check(const struct sim_op *sop)
{
	/* Under AddressSanitizer, these reads also detect that the owner has freed the
	 * operation. */
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
				/* Two operations may use the same memory only if both only
				 * read it. */
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
		sim_op_free(sop);
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
		sim_op_free(sop);
	}
}

/* Copies len bytes between buf and the operation's memory, of which `position` is the first byte to
 * use. in: copies from buf to the memory; otherwise from the memory to buf. */
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

/* Asserts that the message header and its vector are unchanged: the ring uses them until done. */
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

/* --- descriptors ---------------------------------------------------------------------------- */

/* Returns a new descriptor. Its number is far above all real descriptors, so that a real system
 * call with it fails with EBADF. Numbers are not reused in a world, so that every use of a closed
 * descriptor is detected. */
int sim_fd_add(enum sim_fd_kind kind, void *object, bool test_owned)
{
	for (int i = 0; i < SIM_FDS_MAX; i++) {
		struct sim_fd *fd = &sim_world.fds[i];

		if (fd->kind == SIM_FD_FREE && fd->object == NULL) {
			fd->kind = kind;
			fd->test_owned = test_owned;
			fd->inflight = 0;
			fd->object = object;
			return SIM_FD_BASE + i;
		}
	}
	GMB_ASSERT(!"too many descriptors for one simulated world");
	return -EMFILE;
}

struct sim_fd *sim_fd_get(int fd, enum sim_fd_kind kind)
{
	struct sim_fd *entry;

	GMB_ASSERT(sim_world.running);
	GMB_ASSERT(fd >= SIM_FD_BASE);
	GMB_ASSERT(fd < SIM_FD_BASE + SIM_FDS_MAX);
	entry = &sim_world.fds[fd - SIM_FD_BASE];
	GMB_ASSERT(entry->kind != SIM_FD_FREE); /* the descriptor must be open */
	GMB_ASSERT(entry->kind == kind);
	return entry;
}

void sim_fd_remove(int fd)
{
	struct sim_fd *entry = &sim_world.fds[fd - SIM_FD_BASE];

	GMB_ASSERT(entry->kind != SIM_FD_FREE);
	GMB_ASSERT(entry->inflight == 0);
	entry->kind = SIM_FD_FREE;
}

bool sim_is_open(int fd)
{
	GMB_ASSERT(fd >= SIM_FD_BASE);
	GMB_ASSERT(fd < SIM_FD_BASE + SIM_FDS_MAX);
	return sim_world.fds[fd - SIM_FD_BASE].kind != SIM_FD_FREE;
}

uint32_t sim_open_count(void)
{
	uint32_t count = 0;

	for (int i = 0; i < SIM_FDS_MAX; i++) {
		const struct sim_fd *fd = &sim_world.fds[i];

		if (fd->kind != SIM_FD_FREE && !fd->test_owned) {
			count++;
		}
	}
	return count;
}

/* --- memory that the program must not access -------------------------------------------------- */

void sim_memory_alias(const void *base, size_t bytes, void *real)
{
	for (int i = 0; i < SIM_ALIASES_MAX; i++) {
		if (sim_world.aliases[i].bytes == 0) {
			sim_world.aliases[i] =
				(struct sim_alias){ .base = base, .bytes = bytes, .real = real };
			return;
		}
	}
	GMB_ASSERT(!"too many aliases for one simulated world");
}

void sim_memory_unalias(const void *base)
{
	for (int i = 0; i < SIM_ALIASES_MAX; i++) {
		if (sim_world.aliases[i].base == base) {
			sim_world.aliases[i] = (struct sim_alias){ 0 };
		}
	}
}

void *sim_memory(const void *at)
{
	for (int i = 0; i < SIM_ALIASES_MAX; i++) {
		const struct sim_alias *alias = &sim_world.aliases[i];
		uintptr_t offset = (uintptr_t)at - (uintptr_t)alias->base;

		if (offset < alias->bytes) { /* false if below base: offset wraps around */
			return alias->real + offset;
		}
	}
	return (void *)(uintptr_t)at;
}
