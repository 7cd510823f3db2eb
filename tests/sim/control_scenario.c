// SPDX-License-Identifier: Apache-2.0
/*
 * One seed of a control server and its clients: more of them than there are places, who drip,
 * stall, send half a line, garbage or without end, read slowly or not at all, hang up at any
 * moment, or stay after their answer. The thread of the server waits in poll(), as main threads do,
 * answers some commands later, and is busy elsewhere now and then. At the end the server stops
 * among them.
 *
 * The rules: a command begins once, and only when all of it has come from a user who may; it is
 * answered once, or ended once when its client wants no more; what is answered arrives whole with
 * those who read; nobody is closed before the time limit that applies, nor stays longer; everybody
 * else is served meanwhile; no more connections are open than there are places, and all places can
 * be taken again; after a stop nothing begins, and the end waits only for clients that may read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/control.h"
#include "runner.h"
#include "sim/sim.h"

#define SECOND_NS     UINT64_C(1000000000)
#define MS_NS	      UINT64_C(1000000)
#define SILENCE_NS    (2 * SECOND_NS)  /* what docs/protocol/control.md allows */
#define WAIT_NS	      (10 * SECOND_NS) /* the same */
#define FLUSH_NS      (2 * SECOND_NS)
#define SLACK_NS      (5 * SECOND_NS) /* behind a limit: busy threads, slow operations */
#define QUEUE_NS      (300 * SECOND_NS)
#define BUSY_MAX_NS   (SECOND_NS / 2)
#define READ_GAP_NS   (3 * SECOND_NS) /* of those who read slowly */
#define COMMAND_MS    8000	      /* of those who send slowly, and end */
#define PLACES	      32	      /* the same document */
#define COMMAND_BYTES (32 << 10)      /* the same */

enum {
	CLIENTS_MAX = 300,
	ALIVE_MAX = 70, /* at once */
	HELD_MAX = 12,
	LAST_COUNT = 12,
	HELLO_BYTES = 256,
	STEPS_MAX = 2000000,
};

enum habit {
	HABIT_PROMPT,
	HABIT_SLOW_SENDER,
	HABIT_SLOW_READER,
	HABIT_FINISHES, /* ends its side after the command */
	HABIT_FLOODS,	/* sends more after the command */
	HABIT_LEAVES,	/* at any moment */
	HABIT_SILENT,
	HABIT_DRIPS,  /* a command without end, byte by byte */
	HABIT_HALF,   /* of a command */
	HABIT_LONG,   /* a command that is too long */
	HABIT_WRONG,  /* no command */
	HABIT_OTHER,  /* another user */
	HABIT_NOBODY, /* the system does not know who it is */
	HABIT_DEAF,   /* reads the hello, and no more */
	HABIT_COUNT
};

static const char *const names[] = { "now", "refuse", "later", "hold" };
enum verb { VERB_NOW, VERB_REFUSE, VERB_LATER, VERB_HOLD, VERB_COUNT };

struct client {
	int fd;
	enum habit habit;
	enum verb verb;
	bool gone;     /* closed its socket */
	bool over;     /* found that the server has */
	bool finished; /* ended its side */
	bool answered; /* read all of its answer */

	char text[128];
	size_t text_bytes;
	size_t send_bytes; /* will be sent, beyond text as fillers */
	size_t sent;
	size_t piece_bytes;
	uint64_t send_gap_ns;
	uint64_t send_ns; /* the next piece */
	uint64_t leave_ns;
	char *line; /* being read */
	size_t line_bytes;
	size_t line_room;
	uint32_t line_count;
	uint64_t read_ns; /* reads nothing before */

	/* When that was: 0 = not yet. */
	uint64_t connected_ns;
	uint64_t hello_ns;
	uint64_t first_sent_ns;
	uint64_t all_sent_ns;
	uint64_t progress_ns; /* it read something */
	uint64_t left_ns;     /* closed or finished */

	/* Of the server's side. */
	struct control_client *peer;
	uint64_t begun_ns;
	uint64_t due_ns; /* will be answered */
	uint64_t replied_ns;
	uint32_t answer_bytes;
};

struct scenario {
	int listen_fd;
	struct control_server *server;
	struct client clients[CLIENTS_MAX];
	uint32_t client_count;
	bool stopped;
	bool destroyed;
	uint64_t answers;
	uint64_t errors;
};

/* The hello says it, and a seed must give the same run in every process. */
pid_t getpid(void)
{
	return 4711;
}

static uint64_t latest(uint64_t a, uint64_t b)
{
	return MAX(a, b);
}

/* --- the server's side ----------------------------------------------------------------------- */

static json_t *make_answer(const struct scenario *scenario, const struct client *client)
{
	char *filler = malloc(client->answer_bytes + 1U);
	json_t *answer;

	GMB_ASSERT(filler != NULL);
	memset(filler, 'a', client->answer_bytes);
	filler[client->answer_bytes] = '\0';
	answer = json_pack("{s:i, s:s}", "id", (int)(client - scenario->clients), "a", filler);
	free(filler);
	return answer;
}

static void reply(const struct scenario *scenario, struct client *client)
{
	struct control_client *peer = client->peer;

	if (client->replied_ns != 0) {
		model_fail("the test answers twice");
	}
	client->replied_ns = sim_now_ns();
	client->peer = NULL;
	if (client->verb == VERB_REFUSE) {
		control_fail(peer, -EBUSY, "not now");
	} else {
		control_reply(peer, make_answer(scenario, client));
	}
}

static void begin(void *context, struct control_client *peer, const json_t *arguments)
{
	struct scenario *scenario = context;
	json_int_t id = json_integer_value(json_object_get(arguments, "id"));
	struct client *client = &scenario->clients[id];

	if (scenario->stopped) {
		model_fail("a command begins after the stop");
	}
	if (client->begun_ns != 0 || client->sent < client->text_bytes ||
		client->habit == HABIT_OTHER) {
		model_fail("command %d begins twice, too early or without a right", (int)id);
	}
	client->begun_ns = sim_now_ns();
	client->peer = peer;
	client->due_ns = sim_now_ns();
	if (client->verb == VERB_NOW || client->verb == VERB_REFUSE) {
		reply(scenario, client);
	} else {
		client->due_ns += sim_between(0, 5 * SECOND_NS);
	}
}

static void end(void *context, struct control_client *peer)
{
	struct scenario *scenario = context;
	uint32_t i = 0;

	while (i < scenario->client_count && scenario->clients[i].peer != peer) {
		i++;
	}
	if (i == scenario->client_count || scenario->clients[i].left_ns == 0) {
		model_fail("a command is ended for nobody, or for a client that waits");
	}
	reply(scenario, &scenario->clients[i]);
}

static const struct control_command commands[] = {
	{ .name = "now", .right = CONTROL_READ, .begin = begin },
	{ .name = "refuse", .right = CONTROL_CHANGE, .begin = begin },
	{ .name = "later", .right = CONTROL_READ, .begin = begin, .end = end },
	{ .name = "hold", .right = CONTROL_CHANGE, .stays_open = true, .begin = begin, .end = end },
};

/* What the thread does between two of the server's turns. */
static void work(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		struct client *client = &scenario->clients[i];

		if (client->peer == NULL) {
			continue;
		}
		if (client->due_ns <= sim_now_ns()) {
			reply(scenario, client);
		} else if (client->left_ns != 0 &&
			   sim_now_ns() > latest(client->left_ns, client->begun_ns) + SLACK_NS) {
			model_fail("the command of client %u goes on without it", i);
		} else if (percent(2)) {
			control_note(client->peer, make_answer(scenario, client));
		}
	}
}

/* --- clients: sending ------------------------------------------------------------------------- */

static void choose_text(struct client *client, uint32_t id)
{
	static const char *const wrong[] = { "{}\n", "\n", "[7]\n", "{\"command\": \"?\"}\n",
		"{\"command\": \"now\", \"arguments\": 1}\n", "now\n" };
	int bytes = snprintf(client->text, sizeof(client->text), "%s",
		wrong[sim_between(0, ARRAY_COUNT(wrong) - 1)]);

	if (client->habit != HABIT_WRONG) {
		bytes = snprintf(client->text, sizeof(client->text),
			"{\"command\": \"%s\", \"arguments\": {\"id\": %u}}\n", names[client->verb],
			id);
	}
	client->text_bytes = (size_t)bytes;
	client->send_bytes = client->text_bytes;
	client->piece_bytes =
		percent(50) ? sim_between(1, client->text_bytes) : sizeof(client->text);
}

static void choose_habit(struct client *client)
{
	switch (client->habit) {
	case HABIT_SLOW_SENDER:
		client->send_gap_ns = sim_between(0, COMMAND_MS) * MS_NS / client->text_bytes;
		client->piece_bytes = 1;
		break;
	case HABIT_SILENT:
		client->send_bytes = 0;
		break;
	case HABIT_DRIPS:
	case HABIT_LONG: /* its text is never ended */
		client->send_bytes = COMMAND_BYTES + sim_between(1, COMMAND_BYTES);
		client->text_bytes--;
		client->piece_bytes = client->habit == HABIT_LONG ? 8192 : 1;
		client->send_gap_ns = client->habit == HABIT_LONG ? 0 : sim_between(1, 900) * MS_NS;
		break;
	case HABIT_HALF:
		client->send_bytes = sim_between(1, client->text_bytes - 1);
		break;
	case HABIT_FLOODS:
		client->send_bytes += sim_between(1, 300000);
		client->piece_bytes = 8192;
		break;
	case HABIT_LEAVES:
		client->leave_ns = sim_now_ns() + sim_between(0, 4 * SECOND_NS);
		break;
	case HABIT_PROMPT:
	case HABIT_SLOW_READER:
	case HABIT_FINISHES:
	case HABIT_WRONG:
	case HABIT_OTHER:
	case HABIT_NOBODY:
	case HABIT_DEAF:
	case HABIT_COUNT:
	default:
		break;
	}
}

static struct client *client_connect(struct scenario *scenario, enum habit habit)
{
	struct client *client = &scenario->clients[scenario->client_count];
	struct ucred user = { .pid = 1, .uid = geteuid() };
	uint32_t held = 0;

	for (uint32_t i = 0; i < scenario->client_count; i++) {
		const struct client *other = &scenario->clients[i];

		held += other->verb == VERB_HOLD && !other->gone && !other->over;
	}
	*client = (struct client){
		.fd = sim_connect(scenario->listen_fd),
		.habit = habit,
		.verb = (enum verb)sim_between(
			0, held < HELD_MAX && habit != HABIT_DEAF ? VERB_COUNT - 1 : VERB_LATER),
		.connected_ns = sim_now_ns(),
		.answer_bytes = (uint32_t)sim_between(0, percent(30) ? 300000 : 2000),
	};
	user.uid += habit == HABIT_OTHER;
	if (habit != HABIT_NOBODY) {
		sim_socket_set_credentials(client->fd, &user);
	}
	choose_text(client, scenario->client_count++);
	choose_habit(client);
	/* Some before they are accepted. */
	client->send_ns = percent(50) ? sim_now_ns() : UINT64_MAX;
	return client;
}

static void client_send(struct client *client)
{
	uint64_t now_ns = sim_now_ns();
	char piece[8192];
	size_t bytes = MIN(client->piece_bytes, client->send_bytes - client->sent);

	if (client->send_ns > now_ns || bytes == 0) {
		return;
	}
	bytes = MIN(bytes, sizeof(piece));
	for (size_t i = 0; i < bytes; i++) {
		size_t at = client->sent + i;

		piece[i] = ' ';
		if (at < client->text_bytes) {
			piece[i] = client->text[at];
		}
	}
	sim_socket_write(client->fd, piece, bytes);
	client->sent += bytes;
	client->first_sent_ns = client->first_sent_ns != 0 ? client->first_sent_ns : now_ns;
	client->send_ns = now_ns + client->send_gap_ns;
	if (client->sent == client->send_bytes) {
		client->all_sent_ns = now_ns;
		if (client->habit == HABIT_FINISHES) {
			client->leave_ns = now_ns + sim_between(0, 2 * SECOND_NS);
		}
	}
}

static void client_close(struct client *client)
{
	if (client->gone) {
		return;
	}
	client->gone = true;
	client->left_ns = client->left_ns != 0 ? client->left_ns : sim_now_ns();
	if (percent(30)) {
		sim_socket_reset(client->fd);
	}
	sim_socket_close(client->fd);
	free(client->line);
	client->line = NULL;
}

static void client_leave(struct client *client)
{
	if (client->leave_ns == 0 || sim_now_ns() < client->leave_ns) {
		return;
	}
	client->leave_ns = 0;
	if (client->habit != HABIT_FINISHES || client->finished) {
		client_close(client);
		return;
	}
	client->finished = true;
	client->left_ns = sim_now_ns();
	sim_socket_finish(client->fd);
}

/* --- clients: reading ------------------------------------------------------------------------- */

static void check_error(struct scenario *scenario, const struct client *client, const json_t *error)
{
	const char *code = json_string_value(json_object_get(error, "code"));
	const char *expected = "EBUSY";

	if (client->habit == HABIT_OTHER) {
		expected = "EPERM";
	} else if (client->habit == HABIT_WRONG) {
		expected = "EINVAL";
	} else if (client->habit == HABIT_LONG) {
		expected = "EMSGSIZE";
	} else if (client->verb != VERB_REFUSE || client->begun_ns == 0) {
		expected = "none";
	}
	if (code == NULL || strcmp(code, expected) != 0) {
		model_fail("the error %s instead of %s", code, expected);
	}
	scenario->errors++;
}

static void check_line(struct scenario *scenario, struct client *client)
{
	json_error_t where;
	json_t *line = json_loadb(client->line, client->line_bytes, 0, &where);
	const json_t *error = json_object_get(line, "error");
	const json_t *value = json_object_get(line, "result");

	if (line == NULL || client->answered) {
		model_fail("no JSON, or a line after the answer: %.*s", (int)client->line_bytes,
			client->line);
	}
	if (client->line_count++ == 0) {
		client->hello_ns = sim_now_ns();
		if (json_integer_value(json_object_get(line, "protocol")) != CONTROL_PROTOCOL) {
			model_fail("no hello");
		}
		if (client->send_ns == UINT64_MAX) {
			client->send_ns = sim_now_ns() + sim_between(0, SECOND_NS / 2);
		}
	} else if (error != NULL) {
		check_error(scenario, client, error);
		client->answered = true;
	} else {
		if (value == NULL) {
			value = json_object_get(line, "note");
		} else if (client->replied_ns == 0) {
			model_fail("an answer that nobody gave");
		} else {
			client->answered = true;
		}
		if (client->begun_ns == 0 ||
			json_integer_value(json_object_get(value, "id")) !=
				client - scenario->clients ||
			json_string_length(json_object_get(value, "a")) != client->answer_bytes) {
			model_fail("an answer for another client, or not whole");
		}
	}
	if (client->answered && client->verb == VERB_HOLD) {
		client->leave_ns = sim_now_ns() + sim_between(0, 30 * SECOND_NS);
	}
	scenario->answers += client->answered;
	json_decref(line);
}

static void take_bytes(
	struct scenario *scenario, struct client *client, const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (client->line_bytes == client->line_room) {
			client->line_room = client->line_room * 2 + 512;
			client->line = realloc(client->line, client->line_room);
			GMB_ASSERT(client->line != NULL);
		}
		if (bytes[i] != '\n') {
			client->line[client->line_bytes++] = bytes[i];
			continue;
		}
		check_line(scenario, client);
		client->line_bytes = 0;
	}
}

/* The server may close those whose answer is not theirs yet. */
static bool may_be_closed(const struct scenario *scenario, const struct client *client, int result)
{
	uint64_t now_ns = sim_now_ns();
	bool replied = client->replied_ns != 0;

	switch (client->habit) {
	case HABIT_SILENT:
		return now_ns >= client->connected_ns + SILENCE_NS || scenario->stopped;
	case HABIT_DRIPS:
	case HABIT_HALF:
		return scenario->stopped ||
		       (client->first_sent_ns != 0 && now_ns >= client->first_sent_ns + WAIT_NS);
	case HABIT_DEAF:
		return scenario->stopped || (replied && now_ns >= client->replied_ns + WAIT_NS);
	case HABIT_NOBODY:
		return true;
	case HABIT_LONG:
	case HABIT_FLOODS: /* the simulated sockets drop answers on closing with unread input */
		return scenario->stopped || result == -ECONNRESET;
	case HABIT_SLOW_READER:
		return scenario->stopped;
	case HABIT_PROMPT:
	case HABIT_SLOW_SENDER:
	case HABIT_FINISHES:
	case HABIT_LEAVES:
	case HABIT_WRONG:
	case HABIT_OTHER:
	case HABIT_COUNT:
	default:
		return scenario->stopped && !replied;
	}
}

static void client_ended(const struct scenario *scenario, struct client *client, int result)
{
	client->over = true;
	if (!client->answered && !may_be_closed(scenario, client, result)) {
		model_fail("client %d (habit %d) was closed without its answer",
			(int)(client - scenario->clients), client->habit);
	}
	if (client->answered && client->begun_ns != 0 && client->verb == VERB_HOLD &&
		!client->finished && !scenario->stopped && client->habit != HABIT_FLOODS) {
		model_fail("a client that stays was closed");
	}
}

static void client_read(struct scenario *scenario, struct client *client)
{
	bool slow = client->habit == HABIT_SLOW_READER && client->hello_ns != 0;
	bool deaf = client->habit == HABIT_DEAF && !sim_socket_peer_closed(client->fd);
	char bytes[16384];
	size_t room = sizeof(bytes);
	int got;

	if (sim_now_ns() < client->read_ns || (deaf && client->hello_ns != 0)) {
		return;
	}
	room = deaf ? 1 : room;
	room = slow ? client->answer_bytes / 20 + 100 : room;
	do {
		got = sim_socket_read(client->fd, bytes, MIN(room, sizeof(bytes)));
		if (got < 0) {
			client_ended(scenario, client, got);
			return;
		}
		if (got > 0) {
			client->progress_ns = sim_now_ns();
		}
		take_bytes(scenario, client, bytes, (size_t)got);
	} while (got > 0 && !slow && !(deaf && client->hello_ns != 0));
	if (slow && got > 0) {
		client->read_ns = sim_now_ns() + sim_between(1, READ_GAP_NS);
	}
}

/* --- clients: time limits --------------------------------------------------------------------- */

/* Until when something must happen to a client that has got its hello. */
static uint64_t client_limit(const struct client *client)
{
	uint64_t since_ns = latest(client->hello_ns, client->progress_ns);

	switch (client->habit) {
	case HABIT_SILENT:
		return client->hello_ns + SILENCE_NS;
	case HABIT_DRIPS:
	case HABIT_HALF:
		return latest(client->hello_ns, client->first_sent_ns) + WAIT_NS;
	case HABIT_DEAF:
		return latest(latest(client->hello_ns, client->all_sent_ns),
			       latest(client->due_ns, client->replied_ns)) +
		       WAIT_NS;
	case HABIT_SLOW_READER:
		since_ns += READ_GAP_NS;
		break;
	case HABIT_PROMPT:
	case HABIT_SLOW_SENDER:
	case HABIT_FINISHES:
	case HABIT_FLOODS:
	case HABIT_LEAVES:
	case HABIT_LONG:
	case HABIT_WRONG:
	case HABIT_OTHER:
	case HABIT_NOBODY:
	case HABIT_COUNT:
	default:
		break;
	}
	if (client->answered && client->verb == VERB_HOLD && client->begun_ns != 0 &&
		!client->finished) {
		return UINT64_MAX - SLACK_NS; /* stays until it leaves */
	}
	if (client->sent < client->send_bytes) {
		return sim_now_ns();
	}
	return latest(latest(since_ns, client->all_sent_ns),
		latest(client->left_ns, latest(client->due_ns, client->replied_ns)));
}

static void check_time(const struct scenario *scenario, const struct client *client)
{
	uint64_t limit_ns = client->hello_ns == 0 ? client->connected_ns + QUEUE_NS
						  : client_limit(client) + SLACK_NS;

	if (sim_now_ns() > limit_ns) {
		model_fail("client %d (habit %d, %s) is forgotten, or stays too long: %u lines",
			(int)(client - scenario->clients), client->habit, names[client->verb],
			client->line_count);
	}
}

static void look(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		struct client *client = &scenario->clients[i];

		if (!client->gone && !client->over) {
			client_send(client);
			client_read(scenario, client);
		}
		if (!client->gone && !client->over) {
			check_time(scenario, client);
			client_leave(client);
		}
		if (client->over) {
			client_close(client);
		}
	}
	if (sim_open_count() > PLACES) {
		model_fail("%u connections are open", sim_open_count());
	}
}

static uint32_t alive_count(const struct scenario *scenario)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < scenario->client_count; i++) {
		count += !scenario->clients[i].gone;
	}
	return count;
}

/* --- time passes ------------------------------------------------------------------------------ */

static void step(struct scenario *scenario)
{
	if (sim_poll(control_server_fd(scenario->server), sim_between(1, 40 * MS_NS))) {
		control_server_run(scenario->server);
	}
	work(scenario);
	look(scenario);
}

static void set_flag(void *flag)
{
	*(bool *)flag = true;
}

/* The thread does something else. */
static void be_busy(struct scenario *scenario)
{
	bool over = false;

	sim_after(sim_between(0, BUSY_MAX_NS), set_flag, &over);
	while (!over) {
		(void)sim_step();
	}
	look(scenario);
}

static void pass(struct scenario *scenario, uint64_t ns)
{
	uint64_t end_ns = sim_now_ns() + ns;

	while (sim_now_ns() < end_ns) {
		step(scenario);
	}
}

static void traffic(struct scenario *scenario)
{
	uint32_t rounds = (uint32_t)sim_between(10, 60);

	for (uint32_t i = 0; i < rounds; i++) {
		/* Some are kept for the end. */
		while (percent(70) && alive_count(scenario) < ALIVE_MAX &&
			sim_listener_queue(scenario->listen_fd) < SIM_LISTENER_QUEUE_MAX - 3 &&
			scenario->client_count < CLIENTS_MAX - 2 * PLACES) {
			(void)client_connect(scenario, (enum habit)sim_between(0, HABIT_COUNT - 1));
		}
		pass(scenario, sim_between(0, percent(10) ? 12 * SECOND_NS : SECOND_NS));
		if (percent(10)) {
			be_busy(scenario);
		}
	}
}

/* --- the end ---------------------------------------------------------------------------------- */

static void everybody_leaves(struct scenario *scenario)
{
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		client_close(&scenario->clients[i]);
	}
	pass(scenario, 2 * SLACK_NS);
	if (sim_open_count() != 0) {
		model_fail("%u places are lost", sim_open_count());
	}
}

/* No other client's time limit wakes the server for it. */
static void nobody_else_is_there(struct scenario *scenario)
{
	struct client *client = client_connect(scenario, HABIT_DEAF);

	client->answer_bytes = 600000; /* more than a socket holds */
	pass(scenario, 3 * WAIT_NS);
}

static void all_places_are_there(struct scenario *scenario)
{
	struct client *last = NULL;
	uint64_t begin_ns = sim_now_ns();
	uint32_t served = 0;

	for (uint32_t i = 0; i <= PLACES; i++) {
		last = client_connect(scenario, HABIT_DRIPS);
		last->send_ns = sim_now_ns();
	}
	while (served < PLACES) {
		step(scenario);
		served = 0;
		for (uint32_t i = 0; i <= PLACES; i++) {
			served += last[-(int)i].hello_ns != 0;
		}
		if (sim_now_ns() - begin_ns > SLACK_NS) {
			model_fail("only %u places are there", served);
		}
	}
	client_close(last - PLACES);
	pass(scenario, SECOND_NS);
	if (last->hello_ns == 0) {
		model_fail("a place is not given to who waits for it");
	}
}

/* The server stops among clients that read, some of which would stay. */
static void others_come(struct scenario *scenario)
{
	for (uint32_t i = 0; i < LAST_COUNT; i++) {
		(void)client_connect(scenario, HABIT_PROMPT);
	}
	pass(scenario, SECOND_NS);
}

/* While the server waits for its clients. */
static void look_on(void *arg)
{
	struct scenario *scenario = arg;

	if (!scenario->destroyed) {
		look(scenario);
		sim_after(MS_NS, look_on, scenario);
	}
}

static bool somebody_reads_late(const struct scenario *scenario)
{
	bool late = false;

	for (uint32_t i = 0; i < scenario->client_count; i++) {
		const struct client *client = &scenario->clients[i];

		late = late || (!client->gone && (client->habit == HABIT_DEAF ||
							 client->habit == HABIT_SLOW_READER));
	}
	return late;
}

static void server_end(struct scenario *scenario)
{
	bool late = somebody_reads_late(scenario);
	uint64_t begin_ns;

	for (uint32_t i = 0; i < scenario->client_count; i++) {
		if (scenario->clients[i].peer != NULL && percent(50)) {
			reply(scenario, &scenario->clients[i]);
		}
		scenario->clients[i].peer = NULL;
	}
	for (uint64_t i = sim_between(0, 3); i > 0; i--) {
		(void)client_connect(scenario, HABIT_PROMPT);
	}
	scenario->stopped = true;
	control_server_stop(scenario->server);
	begin_ns = sim_now_ns();
	look_on(scenario);
	control_server_destroy(scenario->server);
	scenario->destroyed = true;
	if (sim_now_ns() - begin_ns > (late ? FLUSH_NS + SECOND_NS / 2 : SECOND_NS)) {
		model_fail("the end takes %.3f s", (double)(sim_now_ns() - begin_ns) / 1e9);
	}
	sim_listener_close(scenario->listen_fd);
	if (!sim_run_until_idle(STEPS_MAX) || sim_open_count() != 0) {
		model_fail("%u descriptors are left open", sim_open_count());
	}
	for (uint32_t i = 0; i < scenario->client_count; i++) {
		struct client *client = &scenario->clients[i];

		client->read_ns = 0;
		while (!client->gone && !client->over) {
			client_read(scenario, client);
			client->read_ns = 0;
		}
		client_close(client);
	}
}

struct scenario_result scenario_run(uint64_t seed, bool verbose)
{
	struct scenario *scenario = calloc(1, sizeof(*scenario));
	struct scenario_result result;
	struct error error;

	GMB_ASSERT(scenario != NULL);
	sim_start(&(struct sim_options){ .seed = seed, .verbose = verbose });
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	sim_set_faults(&(struct sim_faults){
		.jitter = true,
		.partial_ppm = percent(50) ? 100000 : 0,
		.accept_error_ppm = percent(20) ? 100000 : 0,
		.slow_ppm = percent(30) ? 2000 : 0,
	});
	scenario->listen_fd = sim_listener_create();
	if (control_server_create(scenario->listen_fd, &scenario->server, &error) < 0) {
		model_fail("no server: %s", error.text);
	}
	for (size_t i = 0; i < ARRAY_COUNT(commands); i++) {
		control_server_add(scenario->server, &commands[i], scenario);
	}
	control_server_begin(scenario->server);
	traffic(scenario);
	sim_set_faults(&(struct sim_faults){ .jitter = true });
	if (percent(50)) {
		everybody_leaves(scenario);
		nobody_else_is_there(scenario);
		all_places_are_there(scenario);
		everybody_leaves(scenario);
		others_come(scenario);
	}
	server_end(scenario);
	result = (struct scenario_result){
		.trace = sim_trace_hash(),
		.events = sim_event_count(),
		.requests = scenario->answers,
		.errors = scenario->errors,
	};
	sim_stop();
	free(scenario);
	return result;
}
