// SPDX-License-Identifier: Apache-2.0
/* Calls beside the path of a request: cancelling, listing exports, messages, and queues that move
 * to another thread. */
#include "cases.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

/* --- cancelling ------------------------------------------------------------------------------- */

static void wait_until_sent(struct run *run, uint64_t commands)
{
	while (stats_of(run->client).commands < commands) {
		CHECK(gmb_queue_wait(run->queue, 0) >= 0);
	}
}

/* Until the descriptor of the queue is silent. */
static void settle(struct gmb_queue *queue)
{
	struct pollfd fd = { .fd = gmb_queue_fd(queue), .events = POLLIN };

	do {
		CHECK_EQUAL(gmb_queue_wait(queue, 0), 0);
	} while (poll(&fd, 1, 0) > 0);
}

/* The server of this case answers nothing. */
CASE(cancel)
{
	uint8_t bytes[4096];
	struct counted sent;
	struct counted waiting;
	struct counted wrong;
	struct gmb_client *other;
	char text[512];

	reopen(run, (struct gmb_options){ .flags = GMB_OPEN_NO_RECONNECT,
			    .connections = 1,
			    .depth = 1,
			    .request_timeout_ms = 3000 });
	counted_init(run, &sent);
	counted_init(run, &waiting);
	counted_init(run, &wrong);
	gmb_prepare_read(&sent.request, bytes, sizeof(bytes), 0);
	gmb_prepare_read(&waiting.request, bytes, sizeof(bytes), 0);
	gmb_prepare_read(&wrong.request, bytes, sizeof(bytes), run->info.bytes);
	gmb_submit(run->client, &sent.request);
	gmb_submit(run->client, &waiting.request);
	other = open_or_die(run->queue, run->uri, NULL);
	wait_until_sent(run, 1);
	CHECK_EQUAL(gmb_cancel(run->client, &sent.request), -EALREADY);
	CHECK_EQUAL(gmb_cancel(other, &waiting.request), -EINVAL);
	settle(run->queue);
	CHECK_EQUAL(gmb_cancel(run->client, &waiting.request), 0);
	/* A program with its own event loop learns of it. */
	CHECK_EQUAL(poll(&(struct pollfd){ .fd = gmb_queue_fd(run->queue), .events = POLLIN }, 1,
			    60000),
		1);
	CHECK_EQUAL(gmb_cancel(run->client, &waiting.request), -EALREADY);
	CHECK_EQUAL(waiting.done_count, 0);
	gmb_submit(run->client, &wrong.request); /* rejected, and its end is not told yet */
	CHECK_EQUAL(gmb_cancel(run->client, &wrong.request), -EALREADY);
	while (waiting.done_count == 0 || wrong.done_count == 0) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(waiting.request.result, -ECANCELED);
	CHECK_EQUAL(gmb_cancel(run->client, &waiting.request), -EALREADY); /* it has ended */
	CHECK(strstr(gmb_explain(run->client, &waiting.request, text, sizeof(text)), "cancelled"));
	CHECK_EQUAL(wrong.request.result, -EINVAL);
	CHECK_EQUAL(sent.done_count, 0);
	while (sent.done_count == 0) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(sent.request.result, -ENOTCONN);
	CHECK_EQUAL(gmb_close(other), 0);
}

/* The argument: bytes of one command. A part of the request was sent, and is waited for. */
CASE(cancel_partly)
{
	uint64_t part = strtoull(run->argument, NULL, 10);
	uint8_t *bytes = malloc(3 * part);
	struct counted counted;

	CHECK(bytes != NULL);
	reopen(run, (struct gmb_options){ .connections = 1, .depth = 1 });
	counted_init(run, &counted);
	gmb_prepare_read(&counted.request, bytes, 3 * part, 0);
	gmb_submit(run->client, &counted.request);
	wait_until_sent(run, 1);
	CHECK_EQUAL(gmb_cancel(run->client, &counted.request), 0);
	while (counted.done_count == 0) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(counted.request.result, -ECANCELED);
	CHECK_EQUAL(stats_of(run->client).commands, 1);
	CHECK_EQUAL(counted_run(&counted), 0); /* it can be used again */
	free(bytes);
}

/* A long range is sent as several commands, one at a time here. */
CASE(cancel_range)
{
	static const enum gmb_operation operations[] = { GMB_TRIM, GMB_ZERO, GMB_CACHE };
	struct counted counted;

	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		reopen(run, (struct gmb_options){ .connections = 1, .depth = 1 });
		counted_init(run, &counted);
		gmb_prepare(&counted.request, operations[i], 0, run->info.bytes);
		gmb_submit(run->client, &counted.request);
		wait_until_sent(run, 1);
		CHECK_EQUAL(gmb_cancel(run->client, &counted.request), 0);
		while (counted.done_count == 0) {
			CHECK(gmb_queue_wait(run->queue, -1) > 0);
		}
		CHECK_EQUAL(counted.request.result, -ECANCELED);
		CHECK_EQUAL(stats_of(run->client).commands, 1);
	}
}

static uint64_t bytes_copied(struct run *run)
{
	struct gmb_stats stats = stats_of(run->client);

	return stats.bytes_copied_reflink + stats.bytes_copied_range + stats.bytes_copied_device +
	       stats.bytes_copied_ram + stats.bytes_copied_zeroes;
}

/* The argument: the source. What was copied before counts. */
CASE(cancel_copy)
{
	struct gmb_client *source;
	struct counted counted;
	uint64_t copied;

	reopen(run, (struct gmb_options){ .connections = 1, .depth = 1 });
	source = open_or_die(run->queue, run->argument, NULL);
	counted_init(run, &counted);
	gmb_prepare_copy(&counted.request, 0, source, 0, run->info.bytes);
	gmb_submit(run->client, &counted.request);
	while ((copied = bytes_copied(run)) == 0) {
		CHECK(gmb_queue_wait(run->queue, 0) >= 0);
	}
	CHECK_EQUAL(counted.done_count, 0);
	CHECK_EQUAL(gmb_cancel(run->client, &counted.request), 0);
	while (counted.done_count == 0) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(counted.request.result, -ECANCELED);
	CHECK(counted.request.copied >= copied && counted.request.copied < run->info.bytes);
	CHECK_EQUAL(gmb_close(source), 0);
}

CASE(cancel_while_it_opens)
{
	struct gmb_options options = { .size = sizeof(options) };
	uint8_t bytes[4096];
	struct gmb_client *client;
	struct counted counted;
	struct gmb_error error;

	counted_init(run, &counted);
	CHECK_EQUAL(gmb_open_start(run->queue, run->uri, &options, &client, &error), 0);
	gmb_prepare_read(&counted.request, bytes, sizeof(bytes), 0);
	gmb_submit(client, &counted.request);
	CHECK_EQUAL(gmb_cancel(client, &counted.request), 0);
	CHECK_EQUAL(counted.done_count, 0);
	while (counted.done_count == 0 || gmb_open_result(client, &error) == -EINPROGRESS) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(counted.request.result, -ECANCELED);
	CHECK_EQUAL(gmb_pread(client, bytes, sizeof(bytes), 0), 0);
	CHECK_EQUAL(gmb_close(client), 0);
}

/* --- listing ---------------------------------------------------------------------------------- */

/* Prints it, and counts those with the name of the open one. */
struct listing {
	const char *name;
	int count;
};

static void print_export(void *context, const struct gmb_export *exported)
{
	struct listing *listing = context;

	CHECK_EQUAL(exported->size, sizeof(*exported));
	printf("%s|%s\n", exported->name, exported->description);
	listing->count += strcmp(exported->name, listing->name) == 0;
}

CASE(list_exports)
{
	struct gmb_options options = { .size = sizeof(options), .connect_timeout_ms = 10000 };
	struct gmb_error error = { 0 };
	struct listing listing = { gmb_export_name(run->client), 0 };

	CHECK_EQUAL(gmb_list_exports(run->uri, &options, print_export, &listing, &error), 0);
	CHECK_EQUAL(listing.count, 1);
	CHECK_EQUAL(gmb_list_exports("nbd+unix:///?socket=/nonexistent/s", NULL, print_export,
			    &listing, &error),
		-ENOENT);
	CHECK(strstr(error.text, "/nonexistent/s") != NULL);
	CHECK_EQUAL(gmb_list_exports("nbd:oops", NULL, print_export, &listing, NULL), -EINVAL);
}

/* --- messages --------------------------------------------------------------------------------- */

struct heard {
	int count;
	bool debug;
};

static void hear(void *context, enum gmb_log_level level, const char *text)
{
	struct heard *heard = context;

	CHECK(text[0] != '\0' && strchr(text, '\n') == NULL);
	CHECK(strncmp(text, "gmblock", 7) != 0); /* no prefix */
	heard->count++;
	heard->debug |= level == GMB_LOG_DEBUG;
}

CASE(messages)
{
	struct heard heard = { 0 };
	struct heard none = { 0 };

	CHECK_EQUAL(gmb_close(run->client), 0);
	CHECK_EQUAL(gmb_queue_destroy(run->queue), 0);
	gmb_set_log(hear, &heard, GMB_LOG_DEBUG);
	run->queue = queue_or_die();
	CHECK_EQUAL(gmb_close(open_or_die(run->queue, run->uri, NULL)), 0);
	CHECK_EQUAL(gmb_queue_destroy(run->queue), 0);
	CHECK(heard.count > 0 && heard.debug);
	gmb_set_log(hear, &none, GMB_LOG_ERROR);
	run->queue = queue_or_die();
	CHECK_EQUAL(gmb_close(open_or_die(run->queue, run->uri, NULL)), 0);
	CHECK_EQUAL(gmb_queue_destroy(run->queue), 0);
	CHECK_EQUAL(none.count, 0);
	gmb_set_log(NULL, NULL, GMB_LOG_ERROR);
	run->queue = queue_or_die();
	run->client = open_or_die(run->queue, run->uri, NULL);
}

/* --- queues that move ------------------------------------------------------------------------- */

struct mover {
	struct gmb_queue *queue;
	const char *uri;
};

/* Takes the queue, uses it, and gives it back. */
static void *move_and_read(void *context)
{
	struct mover *mover = context;
	uint8_t bytes[4096];
	struct gmb_client *client;
	void *buffer;

	CHECK_EQUAL(gmb_queue_acquire(mover->queue, NULL), 0);
	CHECK_EQUAL(gmb_queue_wait(mover->queue, -1), 0); /* it was woken before it moved */
	client = open_or_die(mover->queue, mover->uri, NULL);
	CHECK_EQUAL(gmb_queue_release(mover->queue), -EBUSY);
	CHECK_EQUAL(gmb_buffer_alloc(mover->queue, 8192, 0, &buffer, NULL), 0);
	CHECK_EQUAL(gmb_pread(client, bytes, sizeof(bytes), 0), 0);
	CHECK_EQUAL(gmb_pread(client, buffer, 8192, 0), 0);
	CHECK_EQUAL(gmb_close(client), 0);
	CHECK_EQUAL(gmb_queue_release(mover->queue), 0);
	return NULL;
}

/* --- queues that are woken while they move --------------------------------------------------- */

struct waker {
	struct gmb_queue *queue;
	atomic_bool stop;
};

static void *wake_all_the_time(void *context)
{
	struct waker *waker = context;

	while (!atomic_load(&waker->stop)) {
		gmb_queue_wake(waker->queue);
	}
	return NULL;
}

static void *take_and_wait(void *queue)
{
	CHECK_EQUAL(gmb_queue_acquire(queue, NULL), 0);
	CHECK_EQUAL(gmb_queue_wait(queue, -1), 0); /* no wake-up is lost */
	CHECK_EQUAL(gmb_queue_release(queue), 0);
	return NULL;
}

CASE(queue_woken_while_it_moves)
{
	struct waker waker = { .queue = queue_or_die() };
	pthread_t threads[2];

	CHECK_EQUAL(gmb_queue_release(waker.queue), 0);
	CHECK_EQUAL(pthread_create(&threads[0], NULL, wake_all_the_time, &waker), 0);
	for (int i = 0; i < 100; i++) {
		CHECK_EQUAL(pthread_create(&threads[1], NULL, take_and_wait, waker.queue), 0);
		CHECK_EQUAL(pthread_join(threads[1], NULL), 0);
	}
	atomic_store(&waker.stop, true);
	CHECK_EQUAL(pthread_join(threads[0], NULL), 0);
	/* One wake-up between the two is kept. */
	gmb_queue_wake(waker.queue);
	CHECK_EQUAL(gmb_queue_acquire(waker.queue, NULL), 0);
	CHECK_EQUAL(gmb_queue_wait(waker.queue, -1), 0);
	CHECK_EQUAL(gmb_queue_destroy(waker.queue), 0);
}

CASE(queue_moves)
{
	struct mover mover = { queue_or_die(), run->uri };
	struct gmb_error error = { 0 };
	pthread_t thread;

	CHECK_EQUAL(gmb_queue_acquire(mover.queue, &error), -EBUSY);
	CHECK(strstr(error.text, "gmb_queue_release") != NULL);
	for (int i = 0; i < 3; i++) {
		gmb_queue_wake(mover.queue);
		CHECK_EQUAL(gmb_queue_release(mover.queue), 0);
		CHECK_EQUAL(pthread_create(&thread, NULL, move_and_read, &mover), 0);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
		CHECK_EQUAL(gmb_queue_acquire(mover.queue, NULL), 0);
		CHECK_EQUAL(gmb_close(open_or_die(mover.queue, run->uri, NULL)), 0);
	}
	CHECK_EQUAL(gmb_queue_release(mover.queue), 0);
	CHECK_EQUAL(gmb_queue_destroy(mover.queue), 0);
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
