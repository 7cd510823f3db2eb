// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/upgrade.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/manager.h"
#include "control/control.h"
#include "server/change/jobs.h"
#include "server/fence/fencing.h"
#include "server/lease/leases.h"
#include "server/observe/scrape.h"
#include "server/upgrade/offer.h"
#include "server/upgrade/quiesce.h"
#include "server/upgrade/tell.h"

#define MS_NS	      UINT64_C(1000000)
#define PREPARE_NS    (10000 * MS_NS) /* limit for the time from the offer to READY */
#define FLUSH_NS      (10000 * MS_NS) /* limit for the first flush of disks; clients continue */
#define HANDSHAKES_NS (1000 * MS_NS)  /* limit for TLS handshakes; clients continue */
#define STOP_NS	      (4000 * MS_NS)  /* additional limit for the acceptor to stop */
#define PAUSE_NS      (5000 * MS_NS)  /* limit for requests in flight */
/* Limits for peers that do not receive their replies. A pause waits RECEIVE_NS for them. Then the
 * other sessions are served for at least SERVE_NS, before the next pause. WAIT_NS limits the time
 * of all pauses together. */
#define RECEIVE_NS (20 * MS_NS)
#define SERVE_NS   (50 * MS_NS)
#define WAIT_NS	   (20000 * MS_NS)
#define START_NS   (5000 * MS_NS) /* limit for the time from the last session to STARTED */

enum {
	TELL_LOOK_MS = 10,
	FLUSH_LOOK_MS = 5,
	HANDSHAKES_LOOK_MS = 2,
	PAUSE_LOOK_MS = 1,
};

/* States of an upgrade; see the diagram in upgrade.h. */
enum upgrade_state {
	UPGRADE_IDLE,
	UPGRADE_OFFERED,
	UPGRADE_TELLING,
	UPGRADE_PREPARING,
	UPGRADE_FLUSHING,
	UPGRADE_HANDSHAKING,
	UPGRADE_PAUSING,
	UPGRADE_SERVING,
	UPGRADE_HANDING_OVER,
	UPGRADE_HANDED_OVER,
	UPGRADE_REPLACED,
	UPGRADE_STATE_COUNT
};

static const uint32_t upgrade_edges[UPGRADE_STATE_COUNT] = {
	[UPGRADE_IDLE] = BIT(UPGRADE_OFFERED),
	[UPGRADE_OFFERED] = BIT(UPGRADE_TELLING) | BIT(UPGRADE_IDLE),
	[UPGRADE_TELLING] = BIT(UPGRADE_PREPARING) | BIT(UPGRADE_IDLE),
	[UPGRADE_PREPARING] = BIT(UPGRADE_FLUSHING) | BIT(UPGRADE_IDLE),
	[UPGRADE_FLUSHING] = BIT(UPGRADE_HANDSHAKING) | BIT(UPGRADE_IDLE),
	[UPGRADE_HANDSHAKING] = BIT(UPGRADE_PAUSING) | BIT(UPGRADE_IDLE),
	[UPGRADE_PAUSING] = BIT(UPGRADE_SERVING) | BIT(UPGRADE_HANDING_OVER) | BIT(UPGRADE_IDLE),
	[UPGRADE_SERVING] = BIT(UPGRADE_HANDSHAKING) | BIT(UPGRADE_IDLE),
	[UPGRADE_HANDING_OVER] = BIT(UPGRADE_HANDED_OVER) | BIT(UPGRADE_IDLE),
	[UPGRADE_HANDED_OVER] = BIT(UPGRADE_REPLACED) | BIT(UPGRADE_IDLE),
	[UPGRADE_REPLACED] = 0,
};

struct upgrade {
	struct upgrade_options options;
	struct acceptor *acceptor;	/* NULL: the server is not serving */
	struct server_control *control; /* or NULL */
	struct scrape *scrape;		/* or NULL */
	enum upgrade_state state;
	bool stopping; /* the server is stopping */
	/* the upgrade failed while the acceptor was stopping, so accepting must be restarted
	 * later */
	bool accepts_later;
	bool keeps_all;		       /* the upgrade must not end a connection */
	struct control_client *client; /* client to be answered; NULL: none */
	struct upgrade_tell tell;      /* includes the channel to the new process */
	uint64_t deadline_ns;	       /* deadline of the current state */
	uint64_t pause_begin_ns;
	uint64_t pause_longest_ns; /* longest completed pause */
	uint64_t serve_begin_ns;
	uint64_t wait_deadline_ns;  /* time limit for all pauses; 0: before the first pause */
	char peer[PEER_TEXT_BYTES]; /* name of the last peer that did not receive the sent data */
	uint32_t pid;
	struct quiesce *quiesce;
	bool flushes_last;	/* PAUSING: only the last flushes of disks are awaited */
	uint32_t paused_count;	/* the reactors before this index are paused */
	uint32_t drained_count; /* sessions that could not be handed over */
	uint32_t ended_count;	/* sessions whose peers stalled */
};

static void upgrade_set_state(struct upgrade *upgrade, enum upgrade_state state, uint64_t limit_ns)
{
	GMB_ASSERT((upgrade_edges[upgrade->state] & BIT(state)) != 0);
	upgrade->state = state;
	upgrade->deadline_ns = clock_now_ns() + limit_ns;
}

/* Changes the state but keeps its deadline. */
static void set_state_only(struct upgrade *upgrade, enum upgrade_state state)
{
	uint64_t deadline_ns = upgrade->deadline_ns;

	upgrade_set_state(upgrade, state, 0);
	upgrade->deadline_ns = deadline_ns;
}

static bool upgrade_is_overdue(const struct upgrade *upgrade)
{
	return clock_now_ns() >= upgrade->deadline_ns;
}

/* --- the acceptor ---------------------------------------------------------------------------- */

/* Returns whether the acceptor accepts connections, or was ordered to start. */
static bool accepts(const struct upgrade *upgrade)
{
	return upgrade->state <= UPGRADE_FLUSHING || upgrade->state == UPGRADE_SERVING;
}

/* Acquire pairs with the release in acceptor_has_stopped(): all accepted connections were handed
 * over before. */
static bool has_stopped_accepting(const struct upgrade *upgrade)
{
	return atomic_load_explicit(upgrade->options.acceptor_stopped, memory_order_acquire);
}

/* Restarts the acceptor. It must have stopped, because it cannot process a stop and a start at the
 * same time. */
static void accept_again(const struct upgrade *upgrade)
{
	GMB_ASSERT(has_stopped_accepting(upgrade));
	atomic_store_explicit(upgrade->options.acceptor_stopped, false, memory_order_relaxed);
	acceptor_start(upgrade->acceptor);
}

/* Restarts the acceptor after a failed upgrade as soon as it has stopped. If its reactor hangs,
 * the acceptor can stop long after the failure. */
static void accept_when_stopped(struct upgrade *upgrade)
{
	if (upgrade->accepts_later && !upgrade->stopping && has_stopped_accepting(upgrade)) {
		upgrade->accepts_later = false;
		accept_again(upgrade);
	}
}

static void stop_accepting(struct upgrade *upgrade)
{
	acceptor_stop(upgrade->acceptor);
	upgrade_set_state(upgrade, UPGRADE_HANDSHAKING, HANDSHAKES_NS);
}

/* --- giving up ------------------------------------------------------------------------------- */

/* Withdraws the offer, so that the new process can no longer take over. Returns false if it has
 * already sent STARTED. */
static bool revoke_offer(struct upgrade *upgrade)
{
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX];
	struct upgrade_message message;
	struct error error;

	/* From here on the new process cannot send STARTED. It could have sent STARTED before: in
	 * state HANDED_OVER, that means that it has taken over. */
	(void)shutdown(upgrade->tell.channel, SHUT_RD);
	while (upgrade_receive(upgrade->tell.channel, 0, bytes, &message, &error) == 0) {
		upgrade_message_close(&message);
		if (upgrade->state == UPGRADE_HANDED_OVER && message.type == UPGRADE_STARTED) {
			return false;
		}
	}
	return true;
}

static void upgrade_forget(struct upgrade *upgrade)
{
	close(upgrade->tell.channel);
	upgrade_tell_init(&upgrade->tell, -1);
	upgrade->pid = 0;
	upgrade->flushes_last = false;
	upgrade->paused_count = 0;
	upgrade->drained_count = 0;
	upgrade->ended_count = 0;
	upgrade->pause_longest_ns = 0;
	upgrade->wait_deadline_ns = 0;
	upgrade->peer[0] = '\0';
}

/* Returns the control listener if the new process takes over its path, else NULL. */
static struct listener *own_control(const struct upgrade *upgrade)
{
	return upgrade->options.config->control_path != NULL
		       ? server_control_listener(upgrade->control)
		       : NULL;
}

static void take_back_listeners(const struct upgrade *upgrade)
{
	struct listener *control = own_control(upgrade);

	for (uint32_t i = 0; i < *upgrade->options.view->listener_count; i++) {
		listener_take_back(&upgrade->options.view->listeners[i]);
	}
	if (control != NULL) {
		listener_take_back(control);
	}
}

/* Gives up the upgrade, and continues to serve. Returns false if that is impossible because the new
 * process serves already. */
static bool upgrade_give_up(struct upgrade *upgrade, int code, const char *reason)
{
	bool accepted = accepts(upgrade);
	struct error error;

	if (!revoke_offer(upgrade)) {
		return false;
	}
	upgrade_send_failure(upgrade->tell.channel, reason);
	fencing_release(upgrade->options.view->fencing);
	lease_book_go_on(leases_book(upgrade->options.view->leases));
	for (uint32_t i = 0; i < upgrade->paused_count; i++) {
		reactor_resume(upgrade->options.view->reactors[i]);
	}
	upgrade_set_state(upgrade, UPGRADE_IDLE, 0);
	upgrade->accepts_later = !accepted;
	accept_when_stopped(upgrade);
	take_back_listeners(upgrade);
	upgrade_forget(upgrade);
	jobs_begin(upgrade->options.view->jobs);
	error_set(&error, code, "the upgrade failed, and this server keeps running: %s", reason);
	log_error("%s", error.text);
	if (upgrade->client != NULL) {
		control_fail(upgrade->client, code, error.text);
		upgrade->client = NULL;
	}
	return true;
}

/* --- sessions -------------------------------------------------------------------------------- */

struct look {
	struct upgrade *upgrade;
	uint64_t count;
	struct engine_rest rest;
	int rc;
};

static void count_handshakes(struct engine *engine, void *context)
{
	struct look *look = context;

	look->count += engine->counters.handshakes;
}

/* Pauses the engine, unless this would end a connection that must not end. The check and the pause
 * happen in one call, so that no connection can be accepted in between. */
static void upgrade_pause_engine(struct engine *engine, void *context)
{
	struct look *look = context;
	struct engine_fate fate = { 0 };

	engine_foresee(engine, &fate);
	if (look->upgrade->keeps_all && upgrade_fate_ends(&fate, true) > 0) {
		look->rc = -ECONNABORTED;
	} else {
		look->upgrade->drained_count += engine_pause(engine);
	}
}

/* Checks whether sessions are ready to be handed over. Ends sessions of stalled peers only in state
 * SERVING, and only if connections may end. */
static void look_at_rest(struct engine *engine, void *context)
{
	struct look *look = context;

	engine_look(engine, &look->rest,
		look->upgrade->state == UPGRADE_SERVING && !look->upgrade->keeps_all);
}

static void serve_engine(struct engine *engine, void *context)
{
	engine_serve(engine);
}

static void hand_over_engine(struct engine *engine, void *context)
{
	struct look *look = context;

	look->rc = engine_hand_over(engine, upgrade_tell_session, &look->upgrade->tell);
}

static void let_engine_go(struct engine *engine, void *context)
{
	engine_let_go(engine);
}

/* Calls ask() on all reactors, one after the other; each call adds its numbers to *look. Returns 0
 * or a negative errno. */
static int look_at_all(struct upgrade *upgrade, void (*ask)(struct engine *engine, void *context),
	struct look *look)
{
	int rc = 0;

	*look = (struct look){ .upgrade = upgrade };
	for (uint32_t i = 0; rc == 0 && i < upgrade->options.view->reactor_count; i++) {
		rc = reactor_call(upgrade->options.view->reactors[i], ask, look);
		rc = rc ?: look->rc;
	}
	return rc;
}

/* Calls ask() on all reactors. Returns the sum of their counts, or a negative errno. */
static int64_t ask_all(struct upgrade *upgrade, void (*ask)(struct engine *engine, void *context))
{
	struct look look;
	int rc = look_at_all(upgrade, ask, &look);

	return rc < 0 ? rc : (int64_t)look.count;
}

/* Gives up because the upgrade would end a connection, although it must not end any. Returns true
 * if the new process already serves. */
static bool give_up_ending(struct upgrade *upgrade)
{
	const struct upgrade_options *options = &upgrade->options;
	struct engine_fate fate;
	struct error error;
	int rc = upgrade_foresee(
		options->view->reactors, options->view->reactor_count, &fate, &error);

	rc = rc ?: upgrade_fate_refuse(&fate, true, &error);
	return !upgrade_give_up(upgrade, rc, error.text);
}

static bool upgrade_pause_all(struct upgrade *upgrade)
{
	struct look look = { .upgrade = upgrade };

	upgrade->pause_begin_ns = clock_now_ns();
	if (upgrade->wait_deadline_ns == 0) {
		upgrade->wait_deadline_ns = upgrade->pause_begin_ns + WAIT_NS;
	}
	upgrade_set_state(upgrade, UPGRADE_PAUSING, PAUSE_NS);
	for (uint32_t i = 0; i < upgrade->options.view->reactor_count; i++) {
		int rc = reactor_call(
			upgrade->options.view->reactors[i], upgrade_pause_engine, &look);

		if (rc < 0) {
			return !upgrade_give_up(upgrade, rc, reactor_call_text(rc));
		}
		if (look.rc < 0) {
			return give_up_ending(upgrade);
		}
		upgrade->paused_count = MAX(upgrade->paused_count, i + 1);
	}
	return false;
}

static uint64_t longest_pause_ns(const struct upgrade *upgrade)
{
	uint64_t pause_ns = clock_now_ns() - upgrade->pause_begin_ns;

	return MAX(pause_ns, upgrade->pause_longest_ns);
}

/* Serves the other sessions while a peer does not receive. The peer's process may be waiting for an
 * answer on another connection, perhaps a new one. */
static bool serve_others(struct upgrade *upgrade)
{
	int64_t rc = ask_all(upgrade, serve_engine);

	upgrade->pause_longest_ns = longest_pause_ns(upgrade);
	upgrade->serve_begin_ns = clock_now_ns();
	upgrade_set_state(upgrade, UPGRADE_SERVING, 0);
	accept_again(upgrade);
	return rc < 0 && !upgrade_give_up(upgrade, (int)rc, reactor_call_text((int)rc));
}

/* --- the new process serves ----------------------------------------------------------------- */

static void upgrade_leave(struct upgrade *upgrade)
{
	const struct upgrade_options *options = &upgrade->options;
	uint64_t pause_ns = longest_pause_ns(upgrade);
	struct listener *control = own_control(upgrade);
	struct listener *metrics = scrape_listener(upgrade->scrape);

	upgrade_set_state(upgrade, UPGRADE_REPLACED, 0);
	manager_tell("MAINPID=%u", upgrade->pid);
	for (uint32_t i = 0; i < options->view->exports->count; i++) {
		store_let_go(options->view->exports->exports[i]->store);
	}
	for (uint32_t i = 0; i < *options->view->listener_count; i++) {
		listener_forget_path(&options->view->listeners[i]);
	}
	if (control != NULL) {
		listener_forget_path(control);
	}
	if (metrics != NULL) {
		listener_forget_path(metrics);
	}
	/* Done before the client is answered: after the answer, clients may connect to the control
	 * socket, and must reach the new process. */
	server_control_let_go(upgrade->control);
	log_info("process %u is now serving: connections passed within %.1f ms: %u, closed: %u",
		upgrade->pid, (double)pause_ns / 1e6, upgrade->tell.handed_over_count,
		upgrade->drained_count + upgrade->ended_count);
	if (upgrade->client != NULL) {
		control_reply(upgrade->client,
			json_pack("{s:I, s:I, s:I, s:I}", "pid", (json_int_t)upgrade->pid,
				"connections", (json_int_t)upgrade->tell.handed_over_count,
				"connections_ended",
				(json_int_t)(upgrade->drained_count + upgrade->ended_count),
				"pause_us", (json_int_t)(pause_ns / 1000)));
		upgrade->client = NULL;
	}
	if (ask_all(upgrade, let_engine_go) < 0) {
		/* This reactor has not released its sessions, and would close connections that
		 * belong to the new process. */
		log_error("a server thread does not respond: this process exits immediately");
		_exit(1);
	}
}

void upgrade_goodbye(struct upgrade *upgrade)
{
	if (upgrade->state == UPGRADE_REPLACED && upgrade->tell.channel >= 0) {
		upgrade_forget(upgrade);
	}
}

/* --- steps ----------------------------------------------------------------------------------- */

static bool server_upgrade_receive(struct upgrade *upgrade);

/* Checks whether the new process has ended or reported a failure; no other message is expected.
 * Returns false if the upgrade is over. */
static bool is_there(struct upgrade *upgrade)
{
	return !server_upgrade_receive(upgrade) && upgrade->state != UPGRADE_IDLE;
}

/* Sends what the new process has not received yet, as far as there is room. */
static void server_upgrade_tell_all(struct upgrade *upgrade)
{
	struct error error;
	const struct upgrade_sockets sockets = {
		.listeners = upgrade->options.view->listeners,
		.listener_count = *upgrade->options.view->listener_count,
		.control = own_control(upgrade),
		.metrics = scrape_listener(upgrade->scrape),
	};
	int rc = upgrade_tell_all(
		&upgrade->tell, &sockets, upgrade->options.view->exports, upgrade->options.state);

	if (upgrade_tell_waits(&upgrade->tell, rc)) {
		return;
	}
	if (rc < 0) {
		if (is_there(upgrade)) {
			(void)upgrade_give_up(upgrade, rc, "cannot pass the sockets and disks");
		}
		return;
	}
	/* Starts to flush while clients continue and the new process opens everything, so that
	 * little is left to flush during the pause. */
	rc = quiesce_begin(upgrade->quiesce, upgrade->options.view->exports, false, &error);
	if (rc < 0) {
		(void)upgrade_give_up(upgrade, rc, error.text);
	} else {
		set_state_only(upgrade, UPGRADE_PREPARING);
	}
}

/* Returns the type of the next expected message; UPGRADE_TYPE_END: none. */
static enum upgrade_type expected(const struct upgrade *upgrade)
{
	return upgrade->state == UPGRADE_OFFERED       ? UPGRADE_HELLO
	       : upgrade->state == UPGRADE_PREPARING   ? UPGRADE_READY
	       : upgrade->state == UPGRADE_HANDED_OVER ? UPGRADE_STARTED
						       : UPGRADE_TYPE_END;
}

/* Processes a message. Returns true if the new process serves. */
static bool upgrade_take_message(struct upgrade *upgrade, const struct upgrade_message *message)
{
	char text[ERROR_TEXT_BYTES];
	char reason[ERROR_TEXT_BYTES];

	if (message->type == UPGRADE_FAILED) {
		snprintf(text, sizeof(text), "%.*s", (int)message->text_bytes, message->text);
		log_escape_sentence(reason, sizeof(reason), text);
		return !upgrade_give_up(upgrade, -ECANCELED, reason);
	}
	if (message->type != expected(upgrade)) {
		return !upgrade_give_up(
			upgrade, -EPROTO, "unexpected upgrade message from the new process");
	}
	if (message->type == UPGRADE_HELLO) {
		upgrade->pid = message->pid;
		set_state_only(upgrade, UPGRADE_TELLING);
		server_upgrade_tell_all(upgrade);
	} else if (message->type == UPGRADE_READY) {
		upgrade_set_state(upgrade, UPGRADE_FLUSHING, FLUSH_NS);
	}
	return message->type == UPGRADE_STARTED;
}

/* Receives and processes a message, if there is one. Returns true if the new process serves. */
static bool server_upgrade_receive(struct upgrade *upgrade)
{
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX];
	struct upgrade_message message;
	struct error error;
	int rc = upgrade_receive(upgrade->tell.channel, 0, bytes, &message, &error);

	if (rc == -EAGAIN) {
		return false;
	}
	if (rc < 0) {
		return !upgrade_give_up(upgrade, rc,
			rc == -ECONNRESET ? "the new process exited before it could serve"
					  : error.text);
	}
	upgrade_message_close(&message); /* the new process sends no descriptors */
	return upgrade_take_message(upgrade, &message);
}

static bool give_up_overdue(struct upgrade *upgrade)
{
	static const char *const reasons[UPGRADE_STATE_COUNT] = {
		[UPGRADE_OFFERED] = "the new process did not connect within 10 seconds",
		[UPGRADE_TELLING] = "the new process does not read the messages of this process",
		[UPGRADE_PREPARING] = "the new process was not ready within 10 seconds",
		[UPGRADE_FLUSHING] = "the disks were not flushed within 10 seconds",
		[UPGRADE_HANDSHAKING] =
			"the first thread of the server does not respond: a disk may hang",
		[UPGRADE_PAUSING] = "requests in flight did not complete within 5 seconds",
		[UPGRADE_HANDING_OVER] =
			"the new process does not read the messages of this process",
		[UPGRADE_HANDED_OVER] = "the new process did not start serving within 5 seconds",
	};

	return !upgrade_give_up(upgrade, -ETIMEDOUT,
		upgrade->state == UPGRADE_PAUSING && upgrade->flushes_last
			? "the disks were not flushed within 5 seconds"
			: reasons[upgrade->state]);
}

/* Returns whether the flushes are complete. If they failed, gives up and sets *serves_out to
 * whether the new process already serves. */
static bool has_flushed(struct upgrade *upgrade, bool *serves_out)
{
	struct error error;
	int rc;

	if (!quiesce_is_over(upgrade->quiesce)) {
		*serves_out = upgrade_is_overdue(upgrade) && give_up_overdue(upgrade);
		return false;
	}
	rc = quiesce_result(upgrade->quiesce, &error);
	*serves_out = rc < 0 && !upgrade_give_up(upgrade, rc, error.text);
	return rc == 0;
}

static bool upgrade_flush(struct upgrade *upgrade)
{
	bool serves;

	if (has_flushed(upgrade, &serves)) {
		stop_accepting(upgrade);
	}
	return serves;
}

static bool quiesce(struct upgrade *upgrade)
{
	int64_t handshakes = ask_all(upgrade, count_handshakes);

	if (handshakes < 0) {
		return !upgrade_give_up(
			upgrade, (int)handshakes, reactor_call_text((int)handshakes));
	}
	return (handshakes == 0 || upgrade_is_overdue(upgrade)) && upgrade_pause_all(upgrade);
}

/* Sends all sessions. If the channel is full, a later call sends the rest. */
static bool hand_over_all(struct upgrade *upgrade)
{
	int rc = upgrade_tell_leases(&upgrade->tell, upgrade->options.view->leases)
			 ?: (int)ask_all(upgrade, hand_over_engine);

	rc = rc ?: upgrade_tell_end(&upgrade->tell, upgrade->drained_count + upgrade->ended_count);
	if (upgrade_tell_waits(&upgrade->tell, rc)) {
		return upgrade_is_overdue(upgrade) && give_up_overdue(upgrade);
	}
	if (rc < 0) {
		return is_there(upgrade) &&
		       !upgrade_give_up(
			       upgrade, rc, "cannot send the connections to the new process");
	}
	set_state_only(upgrade, UPGRADE_HANDED_OVER);
	return false;
}

/* Gives up because a peer does not receive. Returns true if the new process already serves. */
static bool give_up_waiting(struct upgrade *upgrade)
{
	char reason[ERROR_TEXT_BYTES];

	snprintf(reason, sizeof(reason),
		"client %s has not received its replies within 20 seconds; close its connection, "
		"or try again",
		upgrade->peer);
	return !upgrade_give_up(upgrade, -ETIMEDOUT, reason);
}

/* Records the name of a peer that does not receive its replies. If the time limit passes, the error
 * names this peer, even if it has received its replies in the meantime. */
static void note_peer(struct upgrade *upgrade, const struct engine_rest *rest)
{
	if (rest->waiting > 0 && rest->peer[0] != '\0') {
		memcpy(upgrade->peer, rest->peer, sizeof(upgrade->peer));
	}
}

/* Ends state SERVING when every peer that was waited for has received its replies, but not before
 * SERVE_NS have passed. Returns true if the new process already serves. */
static bool upgrade_serve(struct upgrade *upgrade)
{
	uint64_t now_ns = clock_now_ns();
	struct look look;
	int rc = look_at_all(upgrade, look_at_rest, &look);

	if (rc < 0) {
		return !upgrade_give_up(upgrade, rc, reactor_call_text(rc));
	}
	note_peer(upgrade, &look.rest);
	upgrade->ended_count += look.rest.ended;
	if (look.rest.busy == 0 && look.rest.waiting == 0 &&
		now_ns - upgrade->serve_begin_ns >= SERVE_NS) {
		stop_accepting(upgrade);
		return false;
	}
	return now_ns >= upgrade->wait_deadline_ns && give_up_waiting(upgrade);
}

static bool wait_for_rest(struct upgrade *upgrade)
{
	struct look look = { 0 };
	int rc = upgrade->flushes_last ? 0 : look_at_all(upgrade, look_at_rest, &look);
	struct error error;
	bool serves;

	if (rc < 0) {
		return !upgrade_give_up(upgrade, rc, reactor_call_text(rc));
	}
	note_peer(upgrade, &look.rest);
	if (look.rest.waiting > 0 && clock_now_ns() - upgrade->pause_begin_ns >= RECEIVE_NS) {
		return serve_others(upgrade);
	}
	if (look.rest.busy > 0 || look.rest.waiting > 0) {
		return upgrade_is_overdue(upgrade) && give_up_overdue(upgrade);
	}
	if (!upgrade->flushes_last) {
		rc = quiesce_begin(upgrade->quiesce, upgrade->options.view->exports, true, &error);
		if (rc < 0) {
			return !upgrade_give_up(upgrade, rc, error.text);
		}
		upgrade->flushes_last = true;
	}
	if (!has_flushed(upgrade, &serves)) {
		return serves;
	}
	/* From here on the list of fenced nodes does not change, and no session of a fenced node is
	 * left to be passed on. */
	rc = fencing_hold(upgrade->options.view->fencing, &error);
	if (rc < 0) {
		return !upgrade_give_up(upgrade, rc, error.text);
	}
	lease_book_hold(leases_book(upgrade->options.view->leases));
	upgrade_set_state(upgrade, UPGRADE_HANDING_OVER, START_NS);
	return hand_over_all(upgrade);
}

bool upgrade_run(struct upgrade *upgrade)
{
	bool serves = false;

	switch (upgrade->state) {
	case UPGRADE_IDLE:
		accept_when_stopped(upgrade);
		break;
	case UPGRADE_REPLACED:
	case UPGRADE_STATE_COUNT:
		break;
	case UPGRADE_TELLING:
		server_upgrade_tell_all(upgrade);
		if (upgrade->state == UPGRADE_TELLING && upgrade_is_overdue(upgrade)) {
			serves = give_up_overdue(upgrade);
		}
		break;
	case UPGRADE_OFFERED:
	case UPGRADE_PREPARING:
	case UPGRADE_HANDED_OVER:
		serves = server_upgrade_receive(upgrade);
		if (!serves && upgrade->state != UPGRADE_IDLE && upgrade_is_overdue(upgrade)) {
			serves = give_up_overdue(upgrade);
		}
		break;
	case UPGRADE_FLUSHING:
		serves = is_there(upgrade) && upgrade_flush(upgrade);
		break;
	case UPGRADE_HANDSHAKING:
		serves = is_there(upgrade) &&
			 (has_stopped_accepting(upgrade)
					 ? quiesce(upgrade)
					 : clock_now_ns() >= upgrade->deadline_ns + STOP_NS &&
						   give_up_overdue(upgrade));
		break;
	case UPGRADE_PAUSING:
		serves = is_there(upgrade) && wait_for_rest(upgrade);
		break;
	case UPGRADE_SERVING:
		serves = is_there(upgrade) && upgrade_serve(upgrade);
		break;
	case UPGRADE_HANDING_OVER:
		serves = hand_over_all(upgrade);
		break;
	}
	if (serves) {
		upgrade_leave(upgrade);
	}
	return serves;
}

int upgrade_fd(const struct upgrade *upgrade)
{
	return upgrade->tell.needs_room || expected(upgrade) != UPGRADE_TYPE_END
		       ? upgrade->tell.channel
		       : -1;
}

short upgrade_events(const struct upgrade *upgrade)
{
	return upgrade->tell.needs_room ? POLLOUT : POLLIN;
}

int upgrade_timeout_ms(const struct upgrade *upgrade)
{
	uint64_t now_ns = clock_now_ns();

	switch (upgrade->state) {
	case UPGRADE_TELLING:
	case UPGRADE_HANDING_OVER:
		/* Polls, because there is no event when descriptors in flight (ETOOMANYREFS) have
		 * arrived. */
		return TELL_LOOK_MS;
	case UPGRADE_FLUSHING:
		return FLUSH_LOOK_MS;
	case UPGRADE_HANDSHAKING:
		return HANDSHAKES_LOOK_MS;
	case UPGRADE_PAUSING:
	case UPGRADE_SERVING:
		return PAUSE_LOOK_MS;
	case UPGRADE_OFFERED:
	case UPGRADE_PREPARING:
	case UPGRADE_HANDED_OVER:
		return (int)((MAX(upgrade->deadline_ns, now_ns) - now_ns) / MS_NS + 1);
	case UPGRADE_IDLE:
		return upgrade->accepts_later ? HANDSHAKES_LOOK_MS : -1;
	case UPGRADE_REPLACED:
	case UPGRADE_STATE_COUNT:
		break;
	}
	return -1;
}

/* --- the command ----------------------------------------------------------------------------- */

/* Sets the error message if an upgrade is not possible. */
static int check_possible(const struct upgrade *upgrade, struct error *error)
{
	if (upgrade->state != UPGRADE_IDLE) {
		return error_set(error, -EBUSY, "an upgrade is already in progress");
	}
	if (upgrade->accepts_later) {
		return error_set(error, -EBUSY,
			"the first thread of the server has not responded since the previous "
			"upgrade: a disk may hang");
	}
	if (upgrade->acceptor == NULL) {
		return error_set(error, -EAGAIN, "the server is still starting; try again");
	}
	if (!quiesce_is_over(upgrade->quiesce)) {
		return error_set(error, -EBUSY,
			"the disks are still being flushed for the previous upgrade; try again");
	}
	return upgrade_offer_check(&upgrade->options, error);
}

/* Predicts the effect on the connections. Returns an error if the upgrade would end a connection
 * that must not end. */
static int server_upgrade_foresee(
	struct upgrade *upgrade, bool keeps_all, struct engine_fate *fate, struct error *error)
{
	const struct upgrade_options *options = &upgrade->options;
	int rc =
		upgrade_foresee(options->view->reactors, options->view->reactor_count, fate, error);

	return rc == 0 && keeps_all && upgrade_fate_ends(fate, false) > 0
		       ? upgrade_fate_refuse(fate, false, error)
		       : rc;
}

static void begin_upgrade(void *context, struct control_client *client, const json_t *arguments)
{
	struct upgrade *upgrade = context;
	bool keeps_all = json_is_true(json_object_get(arguments, "all_or_nothing"));
	bool is_dry = json_is_true(json_object_get(arguments, "dry_run"));
	struct engine_fate fate;
	struct error error;
	int channel;
	int rc = check_possible(upgrade, &error);

	rc = rc ?: server_upgrade_foresee(upgrade, keeps_all, &fate, &error);
	if (rc == 0 && is_dry) {
		control_reply(client, upgrade_fate_json(&fate));
		return;
	}
	if (rc == 0 && !jobs_hold(upgrade->options.view->jobs)) {
		rc = error_set(&error, -EBUSY, "the configuration is being changed; try again");
	}
	if (rc == 0) {
		rc = upgrade_offer(client, &channel);
		upgrade_tell_init(&upgrade->tell, channel);
		if (rc < 0) {
			error_set(
				&error, rc, "cannot connect to the new process: %s", strerror(-rc));
			jobs_begin(upgrade->options.view->jobs);
		}
	}
	if (rc < 0) {
		control_fail(client, rc, error.text);
		return;
	}
	upgrade->client = client;
	upgrade->keeps_all = keeps_all;
	upgrade_set_state(upgrade, UPGRADE_OFFERED, PREPARE_NS);
}

/* Called when the client has disconnected. If it did not start the new process, the time limit ends
 * the upgrade. */
static void end_upgrade(void *context, struct control_client *client)
{
	struct upgrade *upgrade = context;

	GMB_ASSERT(upgrade->client == client);
	upgrade->client = NULL;
	control_fail(client, -ECANCELED, "the client has disconnected");
}

const struct control_command upgrade_command = {
	.name = "upgrade",
	.right = CONTROL_CHANGE,
	.begin = begin_upgrade,
	.end = end_upgrade,
};

/* --- life ------------------------------------------------------------------------------------ */

int upgrade_create(
	const struct upgrade_options *options, struct upgrade **upgrade_out, struct error *error)
{
	struct upgrade *upgrade = calloc(1, sizeof(*upgrade));

	if (upgrade != NULL) {
		upgrade->quiesce =
			quiesce_create(options->view->reactors, options->view->reactor_count);
	}
	if (upgrade == NULL || upgrade->quiesce == NULL) {
		free(upgrade);
		return error_oom_for(error, "upgrades");
	}
	upgrade->options = *options;
	upgrade_tell_init(&upgrade->tell, -1);
	*upgrade_out = upgrade;
	return 0;
}

void upgrade_destroy(struct upgrade *upgrade)
{
	if (upgrade != NULL) {
		GMB_ASSERT(upgrade->tell.channel < 0);
		quiesce_destroy(upgrade->quiesce);
		free(upgrade);
	}
}

void upgrade_enable(struct upgrade *upgrade, struct acceptor *acceptor,
	struct server_control *control, struct scrape *scrape)
{
	upgrade->acceptor = acceptor;
	upgrade->control = control;
	upgrade->scrape = scrape;
}

bool upgrade_stop(struct upgrade *upgrade)
{
	bool was_told = !accepts(upgrade) || upgrade->accepts_later;

	upgrade->stopping = true;
	upgrade->acceptor = NULL; /* without an acceptor, no other upgrade can begin */
	if (upgrade->state != UPGRADE_IDLE && upgrade->state != UPGRADE_REPLACED &&
		!upgrade_give_up(upgrade, -ESHUTDOWN, "the server is stopping")) {
		upgrade_leave(upgrade);
	}
	return was_told;
}
