// SPDX-License-Identifier: Apache-2.0
/*
 * A source of push that does not keep the rules: shows tickets that are not good, and does what a
 * destination has not allowed. Each line tells what became of one attempt.
 *
 *     push_driver URI         of an export of at least 4 MiB, over a Unix socket
 *     push_driver URI PATH    says nothing for as long as it may, as a source, and as a destination
 *                             that listens at PATH
 *     push_driver URI holes   of an export of at least 8 MiB, over a Unix socket: empties the
 *                             memory that it was lent before it puts its pieces there, and waits
 *                             for a line of standard input before and after that
 *     push_driver URI PATH holes
 *                             the same as a destination that listens at PATH: empties the memory
 *                             that it has lent before the pieces are put there
 *     push_driver says PATH TEXT
 *                             a server that listens at PATH, until it is killed: all that it tells
 *                             coordinators, also names, is TEXT
 *     push_driver URI joins   adds connections to a job of its own, and to jobs that it may not add
 *                             connections to
 *     push_driver URI         of a network, and of an export of zeroes: a piece that is not what it
 *                             is said to be, and all that may be under way, whose answers are taken
 *                             late
 */
#include <errno.h>
#include <gmblock/clan_memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "push/ask.h"

enum {
	RANGE_BYTES = 64 << 10,
	MANY_BYTES = (PUSH_SLOTS + PUSH_ZEROES_MAX) * PUSH_PIECE_BYTES,
	EVENTS_MAX = 8,
};

#define TIMEOUT_NS UINT64_C(60000000000)

/* What it does once its ticket was shown. */
enum deed {
	NOTHING,
	EARLY_FLUSH,
	LONG_ZERO,
	CHECK,
	NO_SLOT,
	BAD_HEAD,
	TWICE,
	CHANGED,
	MANY,
	HOLES,
	SILENCE
};

static struct export_uri uri;
static struct push_ask *ask;
static bool refuses_memory; /* the slots of the destination, on new connections */
static struct push_wire_use good;
static uint64_t next_offset;

struct source {
	struct clan_queue *queue;
	struct clan_conn *conn;
	bool connected, lost, closed;
	struct clan_event region; /* that was lent, or has been accepted; of type 0: none */
	uint8_t message[PUSH_MESSAGE_BYTES_MAX];
};

/* Where we are the destination: they end with the process, and are kept where a search for leaks
 * sees them. */
static struct source target; /* the connection from our server */
static struct clan_listener *listener;
static struct clan_region *lent;
static struct push_ask *coordinator;

static void stop(const char *what)
{
	fprintf(stderr, "push_driver: %s\n", what);
	exit(1);
}

static void get_ticket(uint32_t uid, uint32_t length, uint32_t flags)
{
	struct push_wire_grant head = {
		.offset = next_offset,
		.length = length,
		.flags = flags,
		.binding = uri.is_unix ? PUSH_BOUND_UID : PUSH_BOUND_ASKER,
		.uid = uri.is_unix ? uid : 0,
		.name_bytes = (uint16_t)strlen(uri.export_name),
		.instance = "a server of ours",
	};
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ uri.export_name, head.name_bytes },
	};
	struct push_answer answer;
	struct error error;

	next_offset += length; /* jobs that are just ending are not in the way */
	if (push_ask(ask, PUSH_GRANT, parts, 2, &answer, &error) != 0) {
		stop(error.text);
	}
	good.ticket = answer.ticket;
	memcpy(good.instance, head.instance, sizeof(good.instance));
}

static void turn(struct source *source)
{
	struct clan_event events[EVENTS_MAX];
	int count = clan_queue_wait(source->queue, events, EVENTS_MAX, 10000);

	if (count == 0) {
		stop("the server does nothing for 10 s");
	}
	for (int i = 0; i < count; i++) {
		source->connected |= events[i].type == CLAN_EVENT_CONNECTED;
		source->lost |= events[i].type == CLAN_EVENT_LOST;
		if (events[i].type == CLAN_EVENT_REGION || events[i].type == CLAN_EVENT_SHARED) {
			source->region = events[i];
		}
		source->closed |= events[i].type == CLAN_EVENT_CLOSED;
	}
}

static void send(struct source *source, uint32_t type, const void *bytes, uint32_t len)
{
	if (clan_send(source->conn, CLAN_BULK, type, bytes, len) != 0) {
		stop("cannot send");
	}
}

/* What comes next, but for signs of life: its type, or 0 when the connection is over. */
static uint32_t hear(struct source *source, uint32_t *len_out)
{
	struct clan_message head;
	uint32_t signs = 0;
	int result;

	do {
		result = clan_recv(
			source->conn, CLAN_ANY, &head, source->message, sizeof(source->message));
		if (result == -EAGAIN) {
			turn(source);
		}
		if (result == 0 && head.type == PUSH_ALIVE && ++signs == 10) {
			stop("the server only gives signs of life");
		}
	} while (result == -EAGAIN || (result == 0 && head.type == PUSH_ALIVE));
	*len_out = result == 0 ? head.bytes : 0;
	return result == 0 ? head.type : 0;
}

static void tell_end(struct source *source, uint32_t type, uint32_t len)
{
	struct push_failed failed;
	struct push_wire_used used;

	if (type == PUSH_FAILED && push_parse(PUSH_FAILED, source->message, len, &failed) == NULL) {
		printf("%.*s\n", (int)failed.text.length, (const char *)failed.text.bytes);
	} else if (type == PUSH_USED &&
		   push_parse(PUSH_USED, source->message, len, &used) == NULL) {
		printf("slots %u\n", used.slots);
	} else {
		printf(type == 0 ? "closed\n" : "message %u\n", type);
	}
}

/* Waits for a slot of the destination that is free. */
static void take_slot(struct source *source, struct clan_cookie *cookie)
{
	while (clan_cookie_queue_pop(source->conn, 0, cookie) == -EAGAIN) {
		turn(source);
	}
}

/* A piece of zeroes, as the memory is; summed with one byte more, if it is to be found out. */
static void put_at(struct source *source, uint32_t slot, const struct clan_cookie *cookie,
	uint64_t offset, uint32_t length, uint32_t summed)
{
	static const uint8_t zeroes[PUSH_PIECE_BYTES + 1];
	static struct push_wire_piece head; /* until it has gone */
	const struct iovec from = { &head, sizeof(head) };
	int result;

	head = (struct push_wire_piece){
		.magic = PUSH_PIECE_MAGIC,
		.offset = offset,
		.length = length,
		.crc = crc32c(0, zeroes, summed),
	};
	result = clan_put(source->conn, &from, 1, cookie, PUSH_SLOT_HEAD_BYTES - sizeof(head),
		CLAN_NOTIFY, PUSH_NOTIFY_PIECE << PUSH_NOTIFY_SHIFT | slot, NULL);
	if (result != 0) {
		stop("cannot put");
	}
}

static void put(struct source *source, uint32_t slot, uint32_t length, uint32_t summed)
{
	struct clan_cookie cookie;

	take_slot(source, &cookie);
	put_at(source, slot, &cookie, 0, length, summed);
}

/* Says where it is, and waits for a line. */
static void wait_for_line(const char *place)
{
	char line[16];

	printf("%s\n", place);
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) == NULL) {
		stop("no line");
	}
}

/* A piece in each slot, of pages that nobody has touched. All were written when all slots are free
 * again. */
static void put_into_holes(struct source *source)
{
	const uint64_t bytes = (uint64_t)PUSH_SLOTS * PUSH_SLOT_BYTES;
	struct clan_cookie cookies[PUSH_SLOTS];
	void *memory;

	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		take_slot(source, &cookies[i]);
	}
	if (clan_peer_region_get(source->conn, source->region.number, source->region.generation,
		    CLAN_WRITE, 0, bytes, &memory) != 0) {
		stop("cannot map the memory");
	}
	wait_for_line("lent");
	if (madvise(memory, bytes, MADV_REMOVE) != 0) {
		stop("cannot empty the memory");
	}
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		put_at(source, i, &cookies[i], (uint64_t)i * PUSH_PIECE_BYTES, PUSH_PIECE_BYTES,
			PUSH_PIECE_BYTES);
	}
	clan_flush(source->conn);
	for (uint32_t i = 0; i < PUSH_SLOTS; i++) {
		take_slot(source, &cookies[i]);
	}
	wait_for_line("written");
	clan_peer_region_put(source->conn, source->region.number);
}

/* Waits until the job has moved so many bytes, or is over. Returns its state. */
static uint32_t wait_for_bytes(uint64_t bytes)
{
	struct push_job_message job = { 0 };
	struct error error;

	do {
		if (push_ask_job(ask, job.head.state == 0 ? 0 : job.head.cursor - 1, &job, &error) <
			0) {
			stop(error.text);
		}
	} while (job.head.state < PUSH_JOB_DONE &&
		 (job.head.job != good.ticket.job || job.head.done < bytes));
	return job.head.state;
}

/* All that may be under way, each with an answer. They are not taken before the last is there. */
static void send_many(struct source *source)
{
	static const uint8_t zeroes[PUSH_PIECE_BYTES];
	const struct push_wire_flush flush = { .mark = 0 };
	uint32_t len;

	for (uint64_t i = 0; i < PUSH_SLOTS; i++) {
		const struct push_wire_check check = {
			.offset = i * PUSH_PIECE_BYTES,
			.length = PUSH_PIECE_BYTES,
			.crc = crc32c(0, zeroes, PUSH_PIECE_BYTES),
		};

		send(source, PUSH_CHECK, &check, sizeof(check));
	}
	for (uint64_t i = PUSH_SLOTS; i < PUSH_SLOTS + PUSH_ZEROES_MAX; i++) {
		const struct push_wire_range zero = { i * PUSH_PIECE_BYTES, PUSH_PIECE_BYTES };

		send(source, PUSH_ZERO, &zero, sizeof(zero));
	}
	send(source, PUSH_FLUSH, &flush, sizeof(flush));
	clan_flush(source->conn);
	(void)wait_for_bytes(MANY_BYTES);
	for (uint32_t i = 0; i < PUSH_SLOTS + PUSH_ZEROES_MAX; i++) {
		if (hear(source, &len) == 0) {
			printf("after %u answers ", i);
			return;
		}
	}
}

static void do_deed(struct source *source, enum deed deed)
{
	const struct push_wire_flush flush = { .mark = 0 };
	const struct push_wire_range zero = { 0, 4U << 20 };
	const struct push_wire_check check = { .length = RANGE_BYTES };

	switch (deed) {
	case EARLY_FLUSH:
		send(source, PUSH_FLUSH, &flush, sizeof(flush));
		break;
	case LONG_ZERO:
		send(source, PUSH_ZERO, &zero, sizeof(zero));
		break;
	case CHECK:
		send(source, PUSH_CHECK, &check, sizeof(check));
		break;
	case NO_SLOT:
		put(source, PUSH_SLOTS, RANGE_BYTES, RANGE_BYTES);
		break;
	case BAD_HEAD:
		put(source, 0, RANGE_BYTES + 1, RANGE_BYTES + 1);
		break;
	case TWICE:
		put(source, 0, PUSH_PIECE_BYTES, PUSH_PIECE_BYTES);
		put(source, 1, PUSH_PIECE_BYTES, PUSH_PIECE_BYTES);
		break;
	case CHANGED:
		put(source, 0, RANGE_BYTES, RANGE_BYTES + 1);
		break;
	case MANY:
		send_many(source);
		break;
	case HOLES:
		put_into_holes(source);
		break;
	case SILENCE:
	case NOTHING:
		break;
	}
}

static void open_source(struct source *source)
{
	const struct clan_conn_options options = {
		.size = sizeof(options),
		.peer_region_bytes_max =
			refuses_memory ? 1 : (uint64_t)PUSH_SLOTS * PUSH_SLOT_BYTES,
	};
	char *address = export_uri_clan_address(&uri);

	if (clan_queue_create(NULL, &source->queue, NULL) != 0 ||
		clan_connect(source->queue, address, &options, &push_hello, sizeof(push_hello),
			&source->conn, NULL) != 0) {
		stop("cannot connect");
	}
	free(address);
	while (!source->connected) {
		turn(source);
	}
}

static void close_source(struct source *source)
{
	clan_close(source->conn);
	while (!source->closed) {
		turn(source);
	}
	if (clan_queue_destroy(source->queue) != 0) {
		stop("the queue does not end");
	}
}

static void show(const char *name, const struct push_wire_use *use, enum deed deed)
{
	struct source source = { 0 };
	uint32_t len;
	uint32_t type;

	open_source(&source);
	if (deed != HOLES) {
		printf("%s: ", name);
	}
	send(&source, PUSH_USE, use, sizeof(*use));
	if (deed == EARLY_FLUSH) {
		do_deed(&source, deed);
	}
	type = hear(&source, &len);
	if (type == PUSH_USED && deed != NOTHING) {
		do_deed(&source, deed);
		type = deed != HOLES ? hear(&source, &len) : type;
	}
	tell_end(&source, type, len);
	close_source(&source);
}

/* Adds a connection to a job, and tells the answer; with a deed, what becomes of the deed. */
static void join_with(
	struct source *source, const char *name, const struct push_wire_join *join, enum deed deed)
{
	uint32_t len;
	uint32_t type;

	open_source(source);
	printf("%s: ", name);
	send(source, PUSH_JOIN, join, sizeof(*join));
	type = hear(source, &len);
	if (type == PUSH_USED && deed != NOTHING) {
		do_deed(source, deed);
		type = hear(source, &len);
	}
	tell_end(source, type, len);
}

static void show_join(const char *name, const struct push_wire_join *join, enum deed deed)
{
	struct source source = { 0 };

	join_with(&source, name, join, deed);
	close_source(&source);
}

static void wait_for_the_end(uint64_t id)
{
	struct push_job_message job = { 0 };
	struct error error;
	uint64_t cursor = 0;

	for (;;) {
		if (push_ask_job(ask, cursor, &job, &error) < 0) {
			stop(error.text);
		}
		if (job.head.job != id) {
			cursor = job.head.cursor;
		} else if (job.head.state >= PUSH_JOB_DONE) {
			return;
		}
	}
}

static void try_joins(void)
{
	struct source first = { 0 };
	struct source second = { 0 };
	struct push_wire_join join = { .number = 1 };
	struct push_wire_join other;
	uint32_t len;

	get_ticket(geteuid(), RANGE_BYTES, 0);
	memcpy(join.instance, good.instance, sizeof(join.instance));
	join.ticket = good.ticket;
	show_join("no job", &join, NOTHING);
	open_source(&first);
	send(&first, PUSH_USE, &good, sizeof(good));
	if (hear(&first, &len) != PUSH_USED) {
		stop("the ticket is not good");
	}
	other = join;
	other.ticket.mac[31] ^= 1;
	show_join("forged", &other, NOTHING);
	other = join;
	other.instance[0] ^= 1;
	show_join("foreign instance", &other, NOTHING);
	join_with(&second, "joined", &join, NOTHING);
	show_join("joined twice", &join, NOTHING);
	other = join;
	other.number = 3;
	refuses_memory = true;
	show_join("no memory", &other, NOTHING);
	refuses_memory = false;
	put(&first, 0, RANGE_BYTES, RANGE_BYTES);
	clan_flush(first.conn);
	printf("job: %s\n", wait_for_bytes(RANGE_BYTES) < PUSH_JOB_DONE ? "runs" : "over");
	other.number = 2;
	show_join("zeroes", &other, LONG_ZERO);
	other.number = 0;
	show_join("no number", &other, NOTHING);
	close_source(&second);
	close_source(&first);
	wait_for_the_end(join.ticket.job);
	show_join("job is over", &join, NOTHING);
}

/* A coordinator, which asks our server to push so many bytes to that address, where it has seen a
 * process of that user. Nobody looks at the ticket. */
static struct push_ask *start(const char *text, uint32_t uid, uint64_t length)
{
	struct push_wire_start head = {
		.length = length,
		.name_bytes = (uint16_t)strlen(uri.export_name),
		.uri_bytes = (uint16_t)strlen(text),
		.uid = uid,
	};
	struct push_wire_ticket ticket = { .length = length };
	const struct iovec parts[] = {
		{ &head, sizeof(head) },
		{ uri.export_name, head.name_bytes },
		{ (void *)(uintptr_t)text, head.uri_bytes },
		{ &ticket, sizeof(ticket) },
	};
	struct push_ask *asks;
	struct push_answer answer;
	struct error error;

	if (push_ask_open(&uri, TIMEOUT_NS, &asks, &error) != 0 ||
		push_ask(asks, PUSH_START, parts, 4, &answer, &error) != 0) {
		stop(error.text);
	}
	return asks;
}

/* Waits so long for the end of a job; true: it came, and is told. */
static bool tell_job(const char *name, struct push_ask *asks, int timeout_ms)
{
	struct push_job_message job = { 0 };
	struct error error;
	int result;

	do {
		result = push_ask_hear(asks, timeout_ms, &job, &error);
	} while (result == 1 && job.head.state < PUSH_JOB_DONE);
	if (result < 0) {
		stop(error.text);
	}
	if (result == 1) {
		printf("%s: %.*s\n", name, (int)job.text.length, (const char *)job.text.bytes);
		push_ask_close(asks);
	}
	return result == 1;
}

static void listen_at(const char *path, uint32_t access)
{
	const struct clan_conn_options options = { .size = sizeof(options), .access = access };
	char address[256];

	snprintf(address, sizeof(address), "shm:%s", path);
	if (clan_queue_create(NULL, &target.queue, NULL) != 0 ||
		clan_listen(target.queue, address, &options, &listener, NULL) != 0) {
		stop("cannot listen");
	}
}

static void accept_one(struct clan_conn *conn)
{
	static const struct push_wire_welcome welcome = { .magic = PUSH_MAGIC,
		.version = PUSH_VERSION };

	if (clan_accept(conn, &welcome, sizeof(welcome)) != 0) {
		stop("cannot accept");
	}
}

/* The answer to a message of a coordinator: a list of one job, or a refusal. */
static void say(struct clan_conn *conn, uint32_t type, uint64_t cursor, char *text)
{
	uint16_t bytes = (uint16_t)strlen(text);
	struct push_wire_job job = {
		.job = 1,
		.cursor = 1,
		.status = EPERM,
		.role = PUSH_SOURCE,
		.state = PUSH_JOB_FAILED,
		.name_bytes = bytes,
		.peer_bytes = bytes,
		.text_bytes = bytes,
	};
	struct push_wire_answer answer = {
		.status = type == PUSH_JOBS ? ENOENT : EPERM,
		.text_bytes = bytes,
	};
	bool lists = type == PUSH_JOBS && cursor == 0;
	const struct iovec parts[] = {
		{ lists ? (void *)&job : &answer, lists ? sizeof(job) : sizeof(answer) },
		{ text, bytes },
		{ text, bytes },
		{ text, bytes },
	};

	if (clan_sendv(conn, CLAN_BULK, lists ? PUSH_JOB : PUSH_ANSWER, parts, lists ? 4 : 2) !=
		0) {
		stop("cannot answer");
	}
}

static void say_for_ever(const char *path, char *text)
{
	_Alignas(8) uint8_t message[PUSH_MESSAGE_BYTES_MAX];
	struct push_wire_job_number number;
	struct clan_message head;
	struct clan_event event;

	listen_at(path, CLAN_ACCESS_OWNER);
	printf("listens\n");
	fflush(stdout);
	for (;;) {
		(void)clan_queue_wait(target.queue, &event, 1, -1);
		if (event.type == CLAN_EVENT_CONNECT) {
			accept_one(event.conn);
		} else if (event.type == CLAN_EVENT_LOST) {
			clan_close(event.conn);
		} else if (event.type == CLAN_EVENT_READY) {
			while (clan_recv(event.conn, CLAN_ANY, &head, message, sizeof(message)) ==
				0) {
				memcpy(&number, message, sizeof(number));
				say(event.conn, head.type, number.job, text);
			}
		}
	}
}

/* A destination that listens at PATH, and takes the connection of our server, which is to push so
 * many bytes to it. */
static void begin_target(const char *path, uint32_t access, uint64_t length)
{
	struct clan_event event;
	char text[256];

	snprintf(text, sizeof(text), "push+unix:///x?socket=%s", path);
	listen_at(path, access);
	coordinator = start(text, geteuid(), length);
	while (target.conn == NULL) {
		if (clan_queue_wait(target.queue, &event, 1, 10000) == 0) {
			stop("the source does not connect");
		}
		if (event.type == CLAN_EVENT_CONNECT) {
			target.conn = event.conn;
			accept_one(target.conn);
		}
	}
}

/* A destination that says nothing to the source. */
static void begin_mute(const char *path)
{
	struct clan_event events[EVENTS_MAX];

	begin_target(path, CLAN_ACCESS_OWNER, RANGE_BYTES);
	for (int i = 0; !tell_job("no answer", coordinator, 100); i++) {
		if (i == 100) {
			stop("the source waits for ever");
		}
		(void)clan_queue_wait(target.queue, events, EVENTS_MAX, 0);
	}
}

/* Lends the slots from first to end - 1, and waits until each has a piece. */
static void lend(uint32_t first, uint32_t end)
{
	uint32_t len;

	for (uint32_t i = first; i < end; i++) {
		struct clan_cookie cookie;

		if (clan_cookie_grant(target.conn, lent, (uint64_t)i * PUSH_SLOT_BYTES,
			    PUSH_SLOT_BYTES, CLAN_WRITE, 0, &cookie) != 0 ||
			clan_cookie_queue_push(target.conn, 0, &cookie) != 0) {
			stop("cannot lend a slot");
		}
	}
	clan_flush(target.conn);
	for (uint32_t i = first; i < end; i++) {
		uint32_t type;

		do {
			type = hear(&target, &len);
		} while (type == PUSH_FLUSH); /* of what it has sent so far; not answered */
		if (type != CLAN_TYPE_NOTIFY) {
			stop("there is no piece");
		}
	}
}

/* The first piece shows that the source has all that it needs. The pages that the others are for
 * are taken away before. */
static void lend_holes(const char *path)
{
	const uint64_t bytes = (uint64_t)PUSH_SLOTS * PUSH_SLOT_BYTES;
	struct push_wire_used used = {
		.length = (uint64_t)PUSH_SLOTS * PUSH_PIECE_BYTES,
		.slots = PUSH_SLOTS,
		.silence_ms = PUSH_SILENCE_MS_MAX,
	};
	uint32_t len;
	void *memory;

	begin_target(path, CLAN_ACCESS_ANY, used.length);
	if (hear(&target, &len) != PUSH_USE ||
		clan_region_create(target.queue, bytes, 0, &lent, &memory) != 0 ||
		clan_region_share(target.conn, lent, CLAN_READ | CLAN_WRITE) != 0) {
		stop("cannot lend memory");
	}
	while (target.region.type != CLAN_EVENT_SHARED) {
		turn(&target);
	}
	used.region = (uint16_t)target.region.number;
	used.generation = target.region.generation;
	send(&target, PUSH_USED, &used, sizeof(used));
	lend(0, 1);
	wait_for_line("lent");
	if (madvise(memory, bytes, MADV_REMOVE) != 0) {
		stop("cannot empty the memory");
	}
	lend(1, PUSH_SLOTS);
	wait_for_line("written");
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		enum deed deed;
	} deeds[] = {
		{ "early flush", EARLY_FLUSH },
		{ "long zero", LONG_ZERO },
		{ "check without compare", CHECK },
		{ "no slot", NO_SLOT },
		{ "bad head", BAD_HEAD },
		{ "piece twice", TWICE },
	};
	struct push_wire_use use;
	struct error error;

	if (argc == 4 && strcmp(argv[1], "says") == 0) {
		say_for_ever(argv[2], argv[3]);
	}
	if (argc < 2 || export_uri_parse(argv[1], &uri, &error) != 0 ||
		push_ask_open(&uri, TIMEOUT_NS, &ask, &error) != 0) {
		stop(argc >= 2 ? error.text : "push_driver URI [PATH]");
	}
	if (!uri.is_unix) {
		get_ticket(0, MANY_BYTES, PUSH_COMPARE);
		show("many", &good, MANY);
		get_ticket(0, RANGE_BYTES, 0);
		show("changed", &good, CHANGED);
		push_ask_close(ask);
		export_uri_fini(&uri);
		return 0;
	}
	if (argc == 3 && strcmp(argv[2], "holes") == 0) {
		get_ticket(geteuid(), PUSH_SLOTS * PUSH_PIECE_BYTES, 0);
		show("holes", &good, HOLES);
		push_ask_close(ask);
		export_uri_fini(&uri);
		return 0;
	}
	if (argc == 3 && strcmp(argv[2], "joins") == 0) {
		try_joins();
		push_ask_close(ask);
		export_uri_fini(&uri);
		return 0;
	}
	if (argc == 4) {
		lend_holes(argv[2]);
		return 0;
	}
	if (argc == 3) {
		get_ticket(geteuid(), RANGE_BYTES, 0);
		show("silent", &good, SILENCE);
		begin_mute(argv[2]);
		return 0;
	}
	get_ticket(geteuid() + 1, RANGE_BYTES, 0);
	show("foreign uid", &good, NOTHING);
	get_ticket(geteuid(), RANGE_BYTES, 0);
	use = good;
	use.instance[0] ^= 1;
	show("foreign instance", &use, NOTHING);
	use = good;
	use.ticket.length++;
	show("forged range", &use, NOTHING);
	use = good;
	use.ticket.mac[31] ^= 1;
	show("forged mac", &use, NOTHING);
	use = good;
	use.ticket.expires_s++;
	show("forged expiry", &use, NOTHING);
	show("good", &good, NOTHING);
	show("replayed", &good, NOTHING);
	for (size_t i = 0; i < ARRAY_COUNT(deeds); i++) {
		get_ticket(geteuid(),
			deeds[i].deed == TWICE ? 2U * PUSH_PIECE_BYTES : (uint32_t)RANGE_BYTES, 0);
		show(deeds[i].name, &good, deeds[i].deed);
	}
	push_ask_close(ask);
	if (!tell_job("another listens", start(argv[1], geteuid() + 1, RANGE_BYTES), 10000)) {
		stop("the source tells nothing");
	}
	export_uri_fini(&uri);
	return 0;
}
