// SPDX-License-Identifier: Apache-2.0
/* gmb_open_start(): opening without waiting, and closing in the middle of it. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"

/* HANG_MS: openings that a close must not wait for have twice that time. */
enum { HANG_MS = 60000, FILLERS = 8, CLIENTS = 48, QUEUED = 16 };

/* --- a resolver that is slow when asked ---------------------------------------------------- */

static sem_t lookup_begun;
static sem_t lookup_may_end;
static size_t lookup_stack_bytes;

/* The library finds this one before the C library's. */
__attribute__((visibility("default"))) int getaddrinfo(
	const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (strcmp(node, "slow.test") == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0) {
		pthread_attr_t attributes;

		pthread_getattr_np(pthread_self(), &attributes);
		pthread_attr_getstacksize(&attributes, &lookup_stack_bytes);
		pthread_attr_destroy(&attributes);
		sem_post(&lookup_begun);
		sem_wait(&lookup_may_end);
		return real("127.0.0.1", service, hints, out);
	}
	return real(node, service, hints, out);
}

/* --- what the tests share ------------------------------------------------------------------ */

struct opening {
	struct run *run;
	struct gmb_client *client;
	int opened_count;
	int code;
	char text[512];
	int done_count; /* of requests, when it was opened */
	int *done_counter;
};

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

static void opened(void *context, struct gmb_client *client, const struct gmb_error *error)
{
	struct opening *opening = context;

	CHECK(client == opening->client);
	opening->opened_count++;
	opening->code = error->code;
	snprintf(opening->text, sizeof(opening->text), "%s", error->text);
	opening->done_count = opening->done_counter != NULL ? *opening->done_counter : 0;
	/* The same rules as in every callback. */
	CHECK_EQUAL(gmb_queue_wait(opening->run->queue, 0), -EDEADLK);
	CHECK_EQUAL(gmb_close(client), -EDEADLK);
	CHECK_EQUAL(gmb_flush(client), -EDEADLK);
}

static void open_start(
	struct run *run, struct opening *opening, const char *uri, uint32_t timeout_ms)
{
	struct gmb_options options = {
		.size = sizeof(options),
		.connect_timeout_ms = timeout_ms,
		.connections = 1,
		.opened = opened,
		.context = opening,
	};
	struct gmb_error error = { 0 };

	memset(opening, 0, sizeof(*opening));
	opening->run = run;
	CHECK_EQUAL(gmb_open_start(run->queue, uri, &options, &opening->client, &error), 0);
	CHECK_EQUAL(opening->opened_count, 0);
	CHECK_EQUAL(gmb_open_result(opening->client, &error), -EINPROGRESS);
}

static void wait_opened(struct opening *opening)
{
	int completed = 0;

	while (opening->opened_count == 0) {
		int count = gmb_queue_wait(opening->run->queue, -1);

		CHECK(count >= 0);
		completed += count;
	}
	CHECK(completed >= 1); /* it is a completion */
	CHECK_EQUAL(opening->opened_count, 1);
	CHECK_EQUAL(gmb_open_result(opening->client, NULL), opening->code);
}

static void close_promptly(struct opening *opening)
{
	int64_t begin_ms = now_ms();

	CHECK_EQUAL(gmb_close(opening->client), 0);
	CHECK(now_ms() - begin_ms < HANG_MS);
	CHECK_EQUAL(opening->opened_count, 1);
}

static int listen_local(char uri[64], int backlog)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK_EQUAL(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQUAL(listen(fd, backlog), 0);
	CHECK_EQUAL(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	snprintf(uri, 64, "nbd://127.0.0.1:%u/", ntohs(address.sin_port));
	return fd;
}

/* A listener whose queue is full: the system ignores further connections. */
static int listen_full(char uri[64], int fillers[FILLERS])
{
	int listener = listen_local(uri, 0);
	struct sockaddr_in address;
	socklen_t bytes = sizeof(address);

	CHECK_EQUAL(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
	for (int i = 0; i < FILLERS; i++) {
		fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		(void)!connect(fillers[i], (struct sockaddr *)&address, sizeof(address));
	}
	return listener;
}

static void close_full(int listener, const int fillers[FILLERS])
{
	for (int i = 0; i < FILLERS; i++) {
		close(fillers[i]);
	}
	close(listener);
}

/* --- cases --------------------------------------------------------------------------------- */

CASE(open_success)
{
	struct gmb_info info = { .size = sizeof(info) };
	struct opening opening;
	char byte;

	open_start(run, &opening, run->uri, 0);
	CHECK(strcmp(gmb_uri(opening.client), run->uri) == 0);
	CHECK(gmb_export_name(opening.client)[0] == '\0');
	gmb_get_info(opening.client, &info);
	CHECK_EQUAL(info.bytes, 0);
	wait_opened(&opening);
	CHECK_EQUAL(opening.code, 0);
	CHECK(opening.text[0] == '\0');
	gmb_get_info(opening.client, &info);
	CHECK(info.bytes > 0 && info.connections == 1);
	CHECK_EQUAL(gmb_pread(opening.client, &byte, 1, 0), 0);
	close_promptly(&opening);
}

/* Without a callback the result is polled; the completion is counted all the same. */
CASE(open_polled)
{
	struct gmb_client *client = NULL;
	struct gmb_error error = { 0 };
	int completed = 0;

	CHECK_EQUAL(gmb_open_start(run->queue, run->uri, NULL, &client, NULL), 0);
	while (gmb_open_result(client, &error) == -EINPROGRESS) {
		completed += gmb_queue_wait(run->queue, -1);
	}
	CHECK_EQUAL(completed, 1);
	CHECK_EQUAL(gmb_open_result(client, &error), 0);
	CHECK_EQUAL(gmb_close(client), 0);
}

/* What is wrong at once is said at once, and there is nothing to close. */
CASE(open_wrong_at_once)
{
	struct gmb_options options = { .size = sizeof(options), .connections = 17 };
	struct gmb_client *client = NULL;
	struct gmb_error error = { 0 };

	CHECK_EQUAL(gmb_open_start(run->queue, "http://x/", NULL, &client, &error), -EINVAL);
	CHECK_EQUAL(error.code, -EINVAL);
	CHECK_EQUAL(gmb_open_start(run->queue, run->uri, &options, &client, &error), -EINVAL);
	CHECK(client == NULL);
}

static int queued_done_count;

static void queued_done(struct gmb_request *request)
{
	CHECK_EQUAL(request->in_flight, 0);
	queued_done_count++;
}

/* Requests wait for the opening, and are checked when the export is known. */
CASE(open_queued_before)
{
	struct gmb_request requests[QUEUED];
	struct gmb_request beyond = { .done = queued_done };
	struct gmb_request nothing = { .done = queued_done };
	uint8_t bytes[QUEUED][512];
	struct opening opening;

	open_start(run, &opening, run->uri, 0);
	opening.done_counter = &queued_done_count;
	memset(requests, 0, sizeof(requests));
	for (int i = 0; i < QUEUED; i++) {
		fill(bytes[i], sizeof(bytes[i]), (uint64_t)i << 32);
		gmb_prepare_write(
			&requests[i], bytes[i], sizeof(bytes[i]), (uint64_t)i * sizeof(bytes[i]));
		requests[i].done = queued_done;
		gmb_submit(opening.client, &requests[i]);
	}
	gmb_prepare_read(&beyond, bytes[0], 1, UINT64_MAX / 2);
	gmb_submit(opening.client, &beyond);
	gmb_prepare_read(&nothing, bytes[0], 0, 0);
	gmb_submit(opening.client, &nothing);
	CHECK_EQUAL(queued_done_count, 0);
	while (queued_done_count < QUEUED + 2) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(opening.opened_count, 1);
	CHECK_EQUAL(opening.done_count, 0); /* it came first */
	CHECK_EQUAL(beyond.result, -EINVAL);
	CHECK_EQUAL(nothing.result, 0);
	for (int i = 0; i < QUEUED; i++) {
		uint8_t back[512];

		CHECK_EQUAL(requests[i].result, 0);
		CHECK_EQUAL(
			gmb_pread(opening.client, back, sizeof(back), (uint64_t)i * sizeof(back)),
			0);
		CHECK(memcmp(back, bytes[i], sizeof(back)) == 0);
	}
	close_promptly(&opening);
}

/* A blocking call waits for the opening. */
CASE(open_blocking_before)
{
	struct opening opening;
	char byte;

	open_start(run, &opening, run->uri, 0);
	CHECK_EQUAL(gmb_pread(opening.client, &byte, 1, 0), 0);
	CHECK_EQUAL(opening.opened_count, 1);
	close_promptly(&opening);
}

/* Opens, which must fail with this errno and this word in the sentence. The client stays and can be
 * closed. Returns false for one that was out of time before it came to the step with the word. */
static bool fails_with(
	struct run *run, const char *uri, uint32_t timeout_ms, int code, const char *word)
{
	struct gmb_request request = { .done = queued_done };
	struct opening opening;
	struct gmb_error error = { 0 };
	char text[1024];
	char byte;
	int before = queued_done_count;

	open_start(run, &opening, uri, timeout_ms);
	gmb_prepare_read(&request, &byte, 1, 0);
	gmb_submit(opening.client, &request);
	wait_opened(&opening);
	while (queued_done_count == before) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	CHECK_EQUAL(opening.code, code);
	CHECK_EQUAL(request.result, -ENOTCONN);
	if (strstr(opening.text, word) == NULL && code == -ETIMEDOUT) {
		close_promptly(&opening);
		return false;
	}
	if (strstr(opening.text, word) == NULL) {
		fprintf(stderr, "\"%s\" is not in: %s\n", word, opening.text);
		exit(1);
	}
	CHECK(strstr(gmb_explain(opening.client, &request, text, sizeof(text)), word) != NULL);
	CHECK_EQUAL(gmb_open_result(opening.client, &error), code);
	CHECK(strcmp(error.text, opening.text) == 0);
	CHECK_EQUAL(gmb_pread(opening.client, &byte, 1, 0), -ENOTCONN);
	close_promptly(&opening);
	return true;
}

static void failure_of(struct run *run, const char *uri, int code, const char *word)
{
	CHECK(fails_with(run, uri, 0, code, word));
}

CASE(open_failures)
{
	char missing[512];
	char uri[64];

	close(listen_local(uri, 1));
	failure_of(run, uri, -ECONNREFUSED, "cannot connect");
	failure_of(run, "nbd+unix:///?socket=/nonexistent/socket", -ENOENT, "cannot connect");
	snprintf(missing, sizeof(missing), "nbds%s&tls-hostname=x", run->uri + strlen("nbd"));
	failure_of(run, missing, -EPROTONOSUPPORT, "TLS");
	snprintf(missing, sizeof(missing), "nbd+unix:///none%s", strchr(run->uri, '?'));
	failure_of(run, missing, -ENOENT, "none");
}

/* An address that does not answer costs only its own client time. */
CASE(open_unreachable)
{
	struct opening slow;
	struct opening quick;
	int fillers[FILLERS];
	char uri[64];
	int listener = listen_full(uri, fillers);
	int64_t begin_ms;
	char byte;

	open_start(run, &slow, uri, 2 * HANG_MS);
	open_start(run, &quick, run->uri, 0);
	wait_opened(&quick);
	CHECK_EQUAL(quick.code, 0);
	CHECK_EQUAL(gmb_pread(quick.client, &byte, 1, 0), 0);
	CHECK_EQUAL(slow.opened_count, 0);
	close_promptly(&slow);
	begin_ms = now_ms();
	open_start(run, &slow, uri, 300);
	wait_opened(&slow);
	CHECK_EQUAL(slow.code, -ETIMEDOUT);
	CHECK(now_ms() - begin_ms >= 290);
	CHECK(strstr(slow.text, "while connecting") != NULL);
	close_promptly(&slow);
	close_promptly(&quick);
	close_full(listener, fillers);
}

/* Closes after a few turns of the queue, in the middle of the opening. */
static void close_in_the_middle(struct run *run, const char *uri)
{
	struct gmb_request request = { .done = queued_done };
	struct opening opening;
	int before = queued_done_count;
	char byte;

	open_start(run, &opening, uri, 2 * HANG_MS);
	gmb_prepare_read(&request, &byte, 1, 0);
	gmb_submit(opening.client, &request);
	for (int i = 0; i < 5; i++) {
		CHECK_EQUAL(gmb_queue_wait(run->queue, 10), 0);
	}
	CHECK_EQUAL(opening.opened_count, 0);
	close_promptly(&opening);
	CHECK_EQUAL(opening.code, -ECANCELED);
	CHECK_EQUAL(queued_done_count, before + 1);
	CHECK_EQUAL(request.result, -ENOTCONN);
}

CASE(open_close_while_resolving)
{
	close_in_the_middle(run, "nbd://slow.test/");
	sem_wait(&lookup_begun);	     /* it had begun, and is going on */
	CHECK(lookup_stack_bytes < 1 << 20); /* programs that lock their memory lock all of it */
	sem_post(&lookup_may_end);
}

CASE(open_resolved_by_name)
{
	struct opening opening;
	char uri[64];
	char named[64];
	int listener = listen_local(uri, 1);

	close(listener);
	snprintf(named, sizeof(named), "nbd://slow.test%s", strrchr(uri, ':'));
	open_start(run, &opening, named, 0);
	while (sem_trywait(&lookup_begun) != 0) {
		CHECK_EQUAL(gmb_queue_wait(run->queue, 10), 0);
	}
	CHECK_EQUAL(opening.opened_count, 0);
	sem_post(&lookup_may_end);
	wait_opened(&opening);
	CHECK_EQUAL(opening.code, -ECONNREFUSED);
	close_promptly(&opening);
}

CASE(open_lookup_times_out)
{
	struct opening opening;

	open_start(run, &opening, "nbd://slow.test/", 200);
	wait_opened(&opening);
	CHECK_EQUAL(opening.code, -ETIMEDOUT);
	CHECK(strstr(opening.text, "looking up the host name") != NULL);
	close_promptly(&opening);
	sem_post(&lookup_may_end);
}

CASE(open_close_while_connecting)
{
	int fillers[FILLERS];
	char uri[64];
	int listener = listen_full(uri, fillers);

	close_in_the_middle(run, uri);
	close_full(listener, fillers);
}

CASE(open_close_while_negotiating)
{
	char uri[64];
	int listener = listen_local(uri, 8);

	close_in_the_middle(run, uri);
	close(listener);
}

/* Before anything has happened. */
CASE(open_close_at_once)
{
	struct opening opening;

	open_start(run, &opening, run->uri, 0);
	close_promptly(&opening);
	CHECK_EQUAL(opening.code, -ECANCELED);
}

CASE(open_many)
{
	static struct opening openings[CLIENTS];
	char byte;

	for (int i = 0; i < CLIENTS; i++) {
		open_start(run, &openings[i], run->uri, 0);
	}
	for (int i = 0; i < CLIENTS; i++) {
		while (openings[i].opened_count == 0) {
			CHECK(gmb_queue_wait(run->queue, -1) > 0);
		}
		CHECK_EQUAL(openings[i].code, 0);
		CHECK_EQUAL(gmb_pread(openings[i].client, &byte, 1, 0), 0);
	}
	for (int i = 0; i < CLIENTS; i++) {
		close_promptly(&openings[i]);
	}
}

static struct opening from_inside;

static void start_inside(struct gmb_request *request)
{
	open_start(request->context, &from_inside, ((struct run *)request->context)->uri, 0);
}

/* Unlike gmb_open() it may be called from a callback. */
CASE(open_inside_a_callback)
{
	struct gmb_client *client = open_or_die(run->queue, run->uri, NULL);
	struct gmb_request request = { .done = start_inside, .context = run };
	char byte;

	gmb_prepare_read(&request, &byte, 1, 0);
	gmb_submit(client, &request);
	while (from_inside.client == NULL) {
		CHECK(gmb_queue_wait(run->queue, -1) > 0);
	}
	wait_opened(&from_inside);
	CHECK_EQUAL(from_inside.code, 0);
	close_promptly(&from_inside);
	CHECK_EQUAL(gmb_close(client), 0);
}

/* --- servers that are none, and TLS that does not come about --------------------------------- */

#define GREETING "NBDMAGICIHAVEOPT\0\3"
#define TLS_ACK	 "\0\3\xe8\x89\4\x55\x65\xa9\0\0\0\5\0\0\0\1\0\0\0\0"

enum { FLAGS_AND_STARTTLS_BYTES = 20 };

static sem_t hello_heard; /* the client has said more than FLAGS_AND_STARTTLS_BYTES */

struct hostile {
	int listener;
	const char *bytes;
	size_t len;
	bool stays;
};

static void *hostile_run(void *argument)
{
	struct hostile *hostile = argument;
	int fd = accept(hostile->listener, NULL, NULL);
	int heard = 0;
	char byte;

	(void)!write(fd, hostile->bytes, hostile->len);
	if (!hostile->stays) {
		shutdown(fd, SHUT_WR);
	}
	while (read(fd, &byte, 1) > 0) {
		if (++heard == FLAGS_AND_STARTTLS_BYTES + 1) {
			sem_post(&hello_heard);
		}
	}
	close(fd);
	return NULL;
}

static void as_tls(char out[72], const char *uri)
{
	snprintf(out, 72, "nbds%s", uri + strlen("nbd"));
}

/* Before the credentials are read, and when the server owes its part of the handshake. */
CASE(open_close_while_encrypting)
{
	struct hostile hostile = { .bytes = GREETING TLS_ACK, .len = 38, .stays = true };
	struct opening opening;
	pthread_t thread;
	char uri[64];
	char tls_uri[72];

	hostile.listener = listen_local(uri, 8);
	as_tls(tls_uri, uri);
	open_start(run, &opening, tls_uri, 2 * HANG_MS);
	close_promptly(&opening);
	CHECK_EQUAL(opening.code, -ECANCELED);
	CHECK_EQUAL(pthread_create(&thread, NULL, hostile_run, &hostile), 0);
	open_start(run, &opening, tls_uri, 2 * HANG_MS);
	while (sem_trywait(&hello_heard) != 0) {
		CHECK_EQUAL(gmb_queue_wait(run->queue, 10), 0);
	}
	CHECK_EQUAL(opening.opened_count, 0);
	close_promptly(&opening);
	CHECK_EQUAL(opening.code, -ECANCELED);
	pthread_join(thread, NULL);
	close(hostile.listener);
}

CASE(open_hostile_servers)
{
	static const struct {
		const char *bytes;
		size_t len;
		bool stays;
		int code;
		const char *word;
		bool tls;
	} rows[] = {
		{ "", 0, false, -EPROTO, "without a greeting" },
		{ "HTTP/1.1 400 Bad\r\n", 18, true, -EPROTO, "not an NBD server" },
		{ "NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53", 16, true, -EPROTONOSUPPORT, "oldstyle" },
		{ "NBDMAGICIHAVEOPT\0\3", 18, false, -EPROTO, "EXTENDED_HEADERS" },
		{ "NBDMAGICIHAVEOPT\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 38, true, -EPROTO,
			"P120" },
		{ "NBDMAGIC", 8, true, -ETIMEDOUT, "the server's greeting" },
		{ GREETING, 18, true, -ETIMEDOUT, "the answer to STARTTLS", true },
		{ GREETING TLS_ACK, 38, true, -ETIMEDOUT, "the server's part of the TLS handshake",
			true },
		{ GREETING TLS_ACK "\x16", 39, true, -EPROTO, "P56", true },
		{ GREETING TLS_ACK, 38, false, -ECONNRESET, "client-cert.pem", true },
	};

	uint32_t timeout_ms = 400;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]);) {
		struct hostile hostile = {
			.bytes = rows[i].bytes, .len = rows[i].len, .stays = rows[i].stays
		};
		pthread_t thread;
		char uri[64];
		char tls_uri[72];
		bool failed;

		hostile.listener = listen_local(uri, 1);
		as_tls(tls_uri, uri);
		CHECK_EQUAL(pthread_create(&thread, NULL, hostile_run, &hostile), 0);
		failed = fails_with(run, rows[i].tls ? tls_uri : uri,
			rows[i].code == -ETIMEDOUT ? timeout_ms : HANG_MS, rows[i].code,
			rows[i].word);
		shutdown(hostile.listener, SHUT_RDWR); /* nobody connects any more */
		pthread_join(thread, NULL);
		close(hostile.listener);
		if (failed) {
			i++;
		} else { /* the machine is busy */
			timeout_ms *= 2;
			CHECK(timeout_ms < HANG_MS);
		}
	}
}

int main(int argc, char **argv)
{
	sem_init(&lookup_begun, 0, 0);
	sem_init(&lookup_may_end, 0, 0);
	sem_init(&hello_heard, 0, 0);
	return run_cases(argc, argv);
}
