// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/take.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "base/trust.h"
#include "server/control.h"
#include "server/lease/leases.h"
#include "server/upgrade/added.h"

enum {
	ANSWER_MS = 60000, /* limit for an answer; longer than any limit of the old process */
	/* time for the old process to report this one's process ID to the service manager */
	GOODBYE_MS = 2000,
	/* Limit on listening sockets for clients and for metrics. */
	SOCKETS_MAX = (SERVER_LISTENS_MAX + 1) * LISTENER_SOCKETS_MAX,
};

static const char variable[] = "GMBLOCK_UPGRADE_FD";
static const char errors_variable[] = "GMBLOCK_UPGRADE_STDERR";
static const char journal_variable[] = "GMBLOCK_UPGRADE_JOURNAL";
static const char all_variable[] = "GMBLOCK_UPGRADE_ALL";

/* An export of the old process. */
struct before {
	char *name;
	uint32_t name_bytes;
	uint32_t session_count;
	/* For a disk in memory, fd is the disk's memory, and is closed with this entry. For other
	 * disks, fd is -1: store_adopt() has taken the claim. */
	struct store_claim inherited;
	uint64_t epoch;
	struct export *same; /* this process's export on the same disk, or NULL */
};

/* A connection to a snapshot. It is adopted after the others, because the snapshot can be served
 * only when the disk's contents were read. */
struct deferred_session {
	const struct session_kind *kind;
	struct session_record record; /* the record's strings are stored in `bytes` */
	int fd;			      /* -1: the descriptor was adopted already */
	size_t byte_count;
	uint8_t *bytes;
};

struct upgrade_take {
	int channel;
	bool keeps_all; /* fail if this process refuses a connection */
	/* state folder of the old process; -1: it uses none, or this process has taken it */
	int state_fd;
	/* fd -1: the socket was returned by upgrade_take_socket() already */
	struct upgrade_socket *sockets;
	uint32_t socket_count;
	/* fd -1: there is no control socket, or it was returned already */
	struct upgrade_socket control;
	struct before *exports;
	uint32_t export_count;
	struct deferred_session *deferred;
	uint32_t deferred_count;
	uint8_t *received; /* received data that belongs to the next session, or NULL */
	uint32_t received_count;
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX]; /* bytes of the last message */
};

/* --- received resources ---------------------------------------------------------------------- */

/* Closes the descriptors that the session has besides its socket. */
static void close_fds(struct session_record *record)
{
	for (uint32_t i = 0; i < record->fd_count; i++) {
		close(record->fds[i]);
	}
	record->fd_count = 0;
}

static void take_free(struct upgrade_take *take)
{
	for (uint32_t i = 0; i < take->socket_count; i++) {
		if (take->sockets[i].fd >= 0) {
			close(take->sockets[i].fd);
		}
	}
	if (take->control.fd >= 0) {
		close(take->control.fd);
	}
	if (take->state_fd >= 0) {
		close(take->state_fd);
	}
	for (uint32_t i = 0; i < take->export_count; i++) {
		if (take->exports[i].inherited.fd >= 0) {
			close(take->exports[i].inherited.fd);
		}
		free(take->exports[i].name);
	}
	for (uint32_t i = 0; i < take->deferred_count; i++) {
		struct deferred_session *deferred = &take->deferred[i];

		if (deferred->fd >= 0) {
			close(deferred->fd);
			close_fds(&deferred->record);
		}
		explicit_bzero(deferred->bytes, deferred->byte_count);
		free(deferred->bytes);
	}
	if (take->channel >= 0) {
		close(take->channel);
	}
	free(take->sockets);
	free(take->exports);
	free(take->deferred);
	free(take->received);
	explicit_bzero(take->bytes, sizeof(take->bytes));
	free(take);
}

static int keep_socket(
	struct upgrade_take *take, const struct upgrade_message *message, struct error *error)
{
	const struct upgrade_socket found = {
		.fd = message->fd,
		.of_manager = (message->flags & UPGRADE_OF_MANAGER) != 0,
		.of_metrics = (message->flags & UPGRADE_IS_METRICS) != 0,
		.has_path = (message->flags & UPGRADE_HAS_PATH) != 0,
		.device = message->device,
		.inode = message->inode,
	};
	bool is_control = (message->flags & UPGRADE_IS_CONTROL) != 0;

	if (is_control ? take->control.fd >= 0
		       : take->socket_count == SOCKETS_MAX ||
				 array_grow(&take->sockets, take->socket_count,
					 sizeof(*take->sockets)) < 0) {
		close(message->fd);
		return error_set(error, -ENOMEM, "too many listening sockets");
	}
	*(is_control ? &take->control : &take->sockets[take->socket_count++]) = found;
	return 0;
}

static int keep_export(
	struct upgrade_take *take, const struct upgrade_message *message, struct error *error)
{
	struct store_claim claim = {
		.identity = { message->identity[0], message->identity[1] },
		.fd = message->fd,
		.hold = message->hold,
	};
	int rc = claim.hold == STORE_HOLD_CLAIM ? store_adopt(&claim) : 0;
	struct before *entry = NULL;

	if (rc < 0) {
		return error_set(
			error, rc, "cannot take over a disk of the old process: %s", strerror(-rc));
	}
	if (take->export_count < SERVER_EXPORTS_MAX &&
		array_grow(&take->exports, take->export_count, sizeof(*take->exports)) == 0) {
		entry = &take->exports[take->export_count++];
		*entry = (struct before){ .name = strndup(message->record.export,
						  message->record.export_bytes) };
	}
	/* store_adopt() has taken ownership of the descriptor, unless it is the memory of a
	 * disk. */
	if (claim.hold != STORE_HOLD_MEMORY) {
		claim.fd = -1;
	}
	if (entry != NULL) {
		entry->inherited = claim;
	} else if (claim.fd >= 0) {
		close(claim.fd);
	}
	if (entry == NULL || entry->name == NULL) {
		return error_oom_for(error, "the exports of the old process");
	}
	entry->name_bytes = message->record.export_bytes;
	entry->session_count = message->session_count;
	entry->epoch = message->epoch;
	return 0;
}

/* Receives the next message. If it is FAILED, its text is returned as an error. */
static int take_receive(
	struct upgrade_take *take, struct upgrade_message *message, struct error *error)
{
	int rc = upgrade_receive(take->channel, ANSWER_MS, take->bytes, message, error);

	if (rc == 0 && message->type == UPGRADE_FAILED) {
		rc = error_set(error, -ECANCELED, "%.*s", (int)message->text_bytes, message->text);
	}
	if (rc < 0) {
		error_prefix(error, "the running server did not complete the handover");
	}
	return rc;
}

static int out_of_turn(struct upgrade_message *message, struct error *error)
{
	upgrade_message_close(message);
	return error_set(error, -EPROTO, "unexpected message %s from the old process",
		upgrade_type_name(message->type));
}

static int keep_added(
	struct server_config *config, const struct upgrade_message *message, struct error *error)
{
	struct server_export about;
	int rc = upgrade_added_read(message, &about, error);

	if (rc < 0) {
		return rc;
	}
	return message->type == UPGRADE_ADDED ? upgrade_added_keep(config, &about, error)
					      : upgrade_added_keep_snapshot(config, &about, error);
}

static int keep_state(
	struct upgrade_take *take, struct upgrade_message *message, struct error *error)
{
	if (take->state_fd >= 0) {
		return out_of_turn(message, error);
	}
	take->state_fd = message->fd;
	return 0;
}

static int receive_all(struct upgrade_take *take, struct server_config *config, struct error *error)
{
	struct upgrade_message message;
	int rc;

	for (;;) {
		rc = take_receive(take, &message, error);
		if (rc < 0 || message.type == UPGRADE_PREPARE) {
			return rc;
		}
		if (message.type == UPGRADE_LISTENER) {
			rc = keep_socket(take, &message, error);
		} else if (message.type == UPGRADE_EXPORT) {
			rc = keep_export(take, &message, error);
		} else if (message.type == UPGRADE_ADDED || message.type == UPGRADE_SNAPSHOT) {
			rc = keep_added(config, &message, error);
		} else if (message.type == UPGRADE_STATE) {
			rc = keep_state(take, &message, error);
		} else {
			rc = out_of_turn(&message, error);
		}
		if (rc < 0) {
			return rc;
		}
	}
}

/* Returns the descriptor of the channel to the old process, or -1 if the environment does not name
 * one. */
static int channel_of_environment(struct error *error)
{
	const char *text = getenv(variable);
	uint32_t fd = 0;
	int type = 0;
	socklen_t bytes = sizeof(type);

	if (text == NULL) {
		return -1;
	}
	if (units_parse_count(text, 1, INT_MAX, &fd, NULL) < 0 ||
		getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &bytes) < 0 ||
		type != SOCK_SEQPACKET || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0) {
		return error_set(error, -EINVAL,
			"$%s is not a connection to a running server; only \"gmblock upgrade\" "
			"sets it",
			variable);
	}
	(void)unsetenv(variable);
	return (int)fd;
}

/* Replaces the caller's standard error by the old process's. */
static void take_standard_error(void)
{
	const char *text = getenv(errors_variable);
	const char *journal = getenv(journal_variable);
	uint32_t fd = 0;

	if (text != NULL && units_parse_count(text, STDERR_FILENO + 1, INT_MAX, &fd, NULL) == 0 &&
		dup2((int)fd, STDERR_FILENO) == STDERR_FILENO) {
		close((int)fd);
		if (journal != NULL && setenv("JOURNAL_STREAM", journal, 1) == 0) {
			log_open_journal();
		}
	}
	(void)unsetenv(errors_variable);
	(void)unsetenv(journal_variable);
	(void)unsetenv(all_variable);
}

int upgrade_take_find(
	const struct server_config *config, struct upgrade_take **take_out, struct error *error)
{
	struct upgrade_take *take;
	int channel = channel_of_environment(error);

	*take_out = NULL;
	if (channel < 0) {
		return channel == -1 ? 0 : channel;
	}
	take = calloc(1, sizeof(*take));
	if (take == NULL) {
		close(channel);
		return error_set(error, -ENOMEM, "out of memory to take over from another process");
	}
	take->channel = channel;
	take->control.fd = -1;
	take->state_fd = -1;
	take->keeps_all = getenv(all_variable) != NULL;
	*take_out = take;
	return config->file_path != NULL ? trust_path(config->file_path, error) : 0;
}

/* Checks that both processes have the same user. With another user, the new process could have
 * rights that the old one lacks, and read its data with them. */
static int take_check_user(const struct upgrade_take *take, struct error *error)
{
	struct ucred peer;
	socklen_t bytes = sizeof(peer);

	if (getsockopt(take->channel, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0) {
		return error_set(error, -errno, "cannot determine the user of the old process: %s",
			strerror(errno));
	}
	return peer.uid == geteuid()
		       ? 0
		       : error_set(error, -EPERM,
				 "the server runs as user %u, but the new process would run as "
				 "user %u; restart the server to change its user",
				 (unsigned int)peer.uid, (unsigned int)geteuid());
}

int upgrade_take_begin(struct upgrade_take *take, struct server_config *config, struct error *error)
{
	const struct upgrade_message hello = {
		.type = UPGRADE_HELLO, .fd = -1, .pid = (uint32_t)getpid()
	};
	int rc = take_check_user(take, error);

	if (rc < 0) {
		return rc;
	}
	take_standard_error();
	rc = upgrade_send(take->channel, &hello);
	return rc < 0 ? error_set(error, rc, "the running server has exited: %s", strerror(-rc))
		      : receive_all(take, config, error);
}

int upgrade_take_state(struct upgrade_take *take, struct state_folder *folder, struct error *error)
{
	int fd;

	if (take == NULL) {
		return 0;
	}
	fd = take->state_fd;
	take->state_fd = -1;
	return state_folder_inherit(folder, fd, error);
}

/* --- sockets --------------------------------------------------------------------------------- */

bool upgrade_take_socket(struct upgrade_take *take, bool of_metrics, struct upgrade_socket *out)
{
	for (uint32_t i = 0; take != NULL && i < take->socket_count; i++) {
		if (take->sockets[i].fd >= 0 && take->sockets[i].of_metrics == of_metrics) {
			*out = take->sockets[i];
			take->sockets[i].fd = -1;
			return true;
		}
	}
	return false;
}

bool upgrade_take_control(struct upgrade_take *take, const char *path, struct upgrade_socket *out)
{
	struct stat st;

	if (take == NULL || take->control.fd < 0 || stat(path, &st) < 0 ||
		st.st_dev != take->control.device || st.st_ino != take->control.inode) {
		return false;
	}
	*out = take->control;
	take->control.fd = -1;
	return true;
}

uint32_t upgrade_take_socket_count(const struct upgrade_take *take)
{
	return take != NULL ? take->socket_count : 0;
}

/* --- exports --------------------------------------------------------------------------------- */

/* The search starts at index, because both processes nearly always have the same exports in the
 * same order. */
const struct store_claim *upgrade_take_disk(
	const struct upgrade_take *take, const char *name, uint32_t index)
{
	uint32_t count = take != NULL ? take->export_count : 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct before *before = &take->exports[(index + i) % count];

		if (strcmp(before->name, name) == 0) {
			return &before->inherited;
		}
	}
	return NULL;
}

static const struct served_export *take_find(
	const struct upgrade_taker *taker, const char *name, uint32_t name_bytes, uint32_t index)
{
	uint32_t count = taker->exports->count;

	for (uint32_t i = 0; i < count; i++) {
		const struct served_export *served = taker->exports->list[(index + i) % count];

		if (served->export->name_bytes == name_bytes &&
			memcmp(served->export->name, name, name_bytes) == 0) {
			return served;
		}
	}
	return NULL;
}

static bool take_is_same_disk(const struct export *export, const struct before *before)
{
	struct store_claim claim;

	return store_handover(export->store, &claim) == NULL &&
	       memcmp(claim.identity, before->inherited.identity, sizeof(claim.identity)) == 0;
}

/* Reports the number of connections that would lose their disk or continue on another one. */
static int refuse_disk(const struct upgrade_taker *taker, const char *name, uint32_t name_bytes,
	uint32_t session_count, struct error *error)
{
	return error_set(error, -EBUSY,
		"the export \"%s\" has connections (%u), but the new process %s",
		quote_bytes(name, name_bytes), session_count,
		take_find(taker, name, name_bytes, 0) == NULL
			? "does not serve it"
			: "serves another disk under this name");
}

static int check_exports(
	struct upgrade_take *take, const struct upgrade_taker *taker, struct error *error)
{
	for (uint32_t i = 0; i < take->export_count; i++) {
		struct before *before = &take->exports[i];
		const struct served_export *served =
			take_find(taker, before->name, before->name_bytes, i);

		before->same = served != NULL && take_is_same_disk(served->export, before)
				       ? served->export
				       : NULL;
		if (before->same == NULL && before->session_count > 0) {
			return refuse_disk(taker, before->name, before->name_bytes,
				before->session_count, error);
		}
	}
	return 0;
}

/* Returns the export of the old process, or NULL for a snapshot. */
static const struct before *find_before(
	const struct upgrade_take *take, const struct session_record *record)
{
	for (uint32_t i = 0; i < take->export_count; i++) {
		const struct before *before = &take->exports[i];

		if (before->name_bytes == record->export_bytes &&
			memcmp(before->name, record->export, record->export_bytes) == 0) {
			return before;
		}
	}
	return NULL;
}

/* Keeps the epochs of the old process. A different epoch would tell clients that written data may
 * be lost. */
static void keep_epochs(const struct upgrade_take *take)
{
	for (uint32_t i = 0; i < take->export_count; i++) {
		const struct before *before = &take->exports[i];

		if (before->epoch != 0 && before->same != NULL) {
			before->same->epoch = before->epoch;
		}
	}
}

/* --- sessions -------------------------------------------------------------------------------- */

static void take_pause_engine(struct engine *engine, void *context)
{
	(void)engine_pause(engine);
}

static const struct session_kind *take_find_kind(
	const struct upgrade_taker *taker, const struct session_record *record)
{
	for (uint32_t i = 0; i < taker->kind_count; i++) {
		const struct session_kind *kind = taker->kinds[i];

		if (kind->adopt != NULL && strlen(kind->name) == record->kind_bytes &&
			memcmp(kind->name, record->kind, record->kind_bytes) == 0) {
			return kind;
		}
	}
	return NULL;
}

static void *take_append(uint8_t **at, const void *bytes, size_t count)
{
	void *copy = *at;

	if (count > 0) {
		memcpy(copy, bytes, count);
	}
	*at += count;
	return copy;
}

/* Stores a session until adopt_deferred() adopts it. Takes ownership of the descriptors on
 * success. */
static int keep_deferred(struct upgrade_take *take, const struct session_kind *kind,
	struct upgrade_message *message, struct error *error)
{
	const struct session_record *record = &message->record;
	const struct session_piece *later = &record->later[0];
	size_t byte_count = (size_t)record->export_bytes + record->token_bytes +
			    record->byte_count + later->count;
	uint8_t *bytes = malloc(MAX(byte_count, (size_t)1));
	struct deferred_session *deferred;

	if (bytes == NULL ||
		array_grow(&take->deferred, take->deferred_count, sizeof(*take->deferred)) < 0) {
		free(bytes);
		return error_oom_for(error, "a connection");
	}
	deferred = &take->deferred[take->deferred_count++];
	*deferred = (struct deferred_session){ .kind = kind,
		.record = *record,
		.fd = message->fd,
		.byte_count = byte_count,
		.bytes = bytes };
	deferred->record.export = take_append(&bytes, record->export, record->export_bytes);
	deferred->record.token = take_append(&bytes, record->token, record->token_bytes);
	deferred->record.bytes = take_append(&bytes, record->bytes, record->byte_count);
	deferred->record.later[0].bytes = take_append(&bytes, later->bytes, later->count);
	message->record.fd_count = 0; /* the copy has the descriptors */
	return 0;
}

/* Returns whether `served` is a snapshot of a disk that the old process also served. */
static bool is_same_snapshot(const struct upgrade_take *take, const struct served_export *served)
{
	for (uint32_t i = 0; i < take->export_count; i++) {
		if (served->parent != NULL && take->exports[i].same == served->parent) {
			return true;
		}
	}
	return false;
}

/* Returns whether both processes serve the disk of the session's snapshot. The session's export is
 * named DISK@SNAPSHOT, and DISK is the name of the disk's export. */
static bool has_disk_of(const struct upgrade_take *take, const struct session_record *record)
{
	const char *end = memrchr(record->export, '@', record->export_bytes);
	struct session_record disk = { .export = record->export };
	const struct before *before = NULL;

	if (end != NULL) {
		disk.export_bytes = (uint32_t)(end - record->export);
		before = find_before(take, &disk);
	}
	return before != NULL && before->same != NULL;
}

/* Adopts the connections to snapshots. Called after the disks were read. If a snapshot is no longer
 * on its disk, its store has deleted it for lack of space, and its connections are closed. */
static int adopt_deferred(
	struct upgrade_take *take, const struct upgrade_taker *taker, struct error *error)
{
	for (uint32_t i = 0; i < take->deferred_count; i++) {
		struct deferred_session *deferred = &take->deferred[i];
		const struct session_record *record = &deferred->record;
		const struct served_export *served =
			take_find(taker, record->export, record->export_bytes, 0);

		if (served != NULL ? !is_same_snapshot(take, served) : !has_disk_of(take, record)) {
			return refuse_disk(taker, record->export, record->export_bytes, 1, error);
		}
		acceptor_adopt(taker->acceptor, deferred->kind, record, deferred->fd);
		deferred->fd = -1;
		close_fds(&deferred->record);
	}
	return 0;
}

/* Adopts a session, or stores it for adopt_deferred(). Fails if this process does not serve the
 * session's disk. check_exports() does not detect this if the client has connected later: the old
 * process accepts clients until it pauses. Takes ownership of the descriptor on success. */
static int take_session(struct upgrade_take *take, const struct upgrade_taker *taker,
	struct upgrade_message *message, struct error *error)
{
	const struct session_record *record = &message->record;
	const struct before *before = find_before(take, record);
	const struct session_kind *kind = take_find_kind(taker, record);

	if (before != NULL && before->same == NULL) {
		return refuse_disk(taker, before->name, before->name_bytes, 1, error);
	}
	if (kind == NULL) {
		return error_set(error, -EPROTONOSUPPORT,
			"a connection uses a protocol that cannot be taken over");
	}
	if (before == NULL) {
		return keep_deferred(take, kind, message, error);
	}
	acceptor_adopt(taker->acceptor, kind, record, message->fd);
	close_fds(&message->record); /* the session has its own duplicates */
	return 0;
}

/* Stores received data that belongs to the next session. */
static int keep_received(
	struct upgrade_take *take, struct upgrade_message *message, struct error *error)
{
	if (take->received == NULL) {
		take->received = malloc(ENGINE_HANDOVER_LATER_BYTES_MAX);
	}
	if (take->received == NULL) {
		return error_oom_for(error, "received data of a connection");
	}
	if (message->offset == 0) {
		take->received_count = 0;
	}
	if (message->offset != take->received_count ||
		message->received.count > ENGINE_HANDOVER_LATER_BYTES_MAX - take->received_count) {
		return out_of_turn(message, error);
	}
	memcpy(take->received + take->received_count, message->received.bytes,
		message->received.count);
	take->received_count += message->received.count;
	return 0;
}

/* Receives sessions until SESSIONS_END, whose count must match. */
static int receive_sessions(struct upgrade_take *take, const struct upgrade_taker *taker,
	struct upgrade_message *message, struct error *error)
{
	uint32_t count = 0;
	int rc;

	for (;;) {
		rc = take_receive(take, message, error);
		if (rc < 0) {
			return rc;
		}
		if (message->type == UPGRADE_RECEIVED) {
			rc = keep_received(take, message, error);
			if (rc < 0) {
				return rc;
			}
			continue;
		}
		if (message->type == UPGRADE_LEASE) {
			rc = leases_take(taker->leases, message->text, message->text_bytes, error);
			if (rc < 0) {
				return rc;
			}
			continue;
		}
		if (message->type == UPGRADE_SESSIONS_END && message->handed_over_count == count) {
			return 0;
		}
		if (message->type != UPGRADE_SESSION) {
			return out_of_turn(message, error);
		}
		message->record.later[0] =
			(struct session_piece){ take->received, take->received_count };
		rc = take_session(take, taker, message, error);
		if (rc < 0) {
			upgrade_message_close(message);
			return rc;
		}
		take->received_count = 0;
		count++;
	}
}

static void take_count_kept(struct engine *engine, void *context)
{
	uint64_t *count = context;

	*count += engine->counters.sessions_adopted - engine->counters.sessions_failed;
}

/* Checks that all sessions were adopted. Counting them suffices, because no other sessions exist
 * yet. */
static int check_kept(const struct upgrade_taker *taker, uint32_t count, struct error *error)
{
	uint64_t kept = 0;
	int rc =
		reactors_call(taker->reactors, taker->reactor_count, take_count_kept, &kept, error);

	return rc < 0 || kept == count
		       ? rc
		       : error_set(error, -ECONNABORTED,
				 "connections that the new process does not accept would be "
				 "closed: %llu (see its log); close them first, or upgrade "
				 "without --all-or-nothing",
				 (unsigned long long)(count - kept));
}

/* Receives and adopts the sessions. After an error the old process continues to serve. The reactors
 * are paused before READY, so that adopted sessions do not send before the old process has released
 * them. */
static int take_sessions(struct upgrade_take *take, const struct upgrade_taker *taker,
	struct upgrade_message *message, struct error *error)
{
	const struct upgrade_message ready = { .type = UPGRADE_READY, .fd = -1 };
	const struct upgrade_message started = { .type = UPGRADE_STARTED, .fd = -1 };
	int rc = reactors_call(
		taker->reactors, taker->reactor_count, take_pause_engine, NULL, error);

	if (rc < 0) {
		return rc;
	}
	rc = upgrade_send(take->channel, &ready);
	if (rc == 0) {
		rc = receive_sessions(take, taker, message, error);
		rc = rc ?: taker->quiesced(taker->context, error);
		rc = rc ?: adopt_deferred(take, taker, error);
		if (rc == 0 && take->keeps_all) {
			rc = check_kept(taker, message->handed_over_count, error);
		}
		if (rc < 0) {
			return rc;
		}
		keep_epochs(take);
		/* When the old process receives this message, it releases its resources. */
		rc = upgrade_send(take->channel, &started);
	}
	return rc == 0 ? 0
		       : error_set(error, rc,
				 "the running server no longer waits for this process: %s",
				 strerror(-rc));
}

int upgrade_take_over(
	struct upgrade_take *take, const struct upgrade_taker *taker, struct error *error)
{
	struct upgrade_message message;
	int rc = check_exports(take, taker, error);

	if (rc < 0) {
		return rc;
	}
	rc = take_sessions(take, taker, &message, error);
	if (rc < 0) {
		/* The process exits immediately, because a clean stop would send bytes on the
		 * connections of adopted sessions. These connections still belong to the old
		 * process. */
		log_error("%s", error->text);
		upgrade_send_failure(take->channel, error->text);
		taker->leave(taker->context);
		_exit(1);
	}
	for (uint32_t i = 0; i < taker->reactor_count; i++) {
		reactor_resume(taker->reactors[i]);
	}
	log_info(
		"took over from another process: %u connections taken over, %u could not be passed",
		message.handed_over_count, message.ended_count);
	return 0;
}

void upgrade_take_finish(struct upgrade_take *take)
{
	struct upgrade_message message;
	struct error error;

	/* Waits until the old process closes the channel. No message is expected. */
	(void)!upgrade_receive(take->channel, GOODBYE_MS, take->bytes, &message, &error);
	store_adopt_end();
	take_free(take);
}

void upgrade_take_abandon(struct upgrade_take *take, struct listener *listeners,
	uint32_t listener_count, struct listener *control, struct listener *metrics,
	const struct error *failure)
{
	for (uint32_t i = 0; i < listener_count; i++) {
		if (listeners[i].was_inherited) {
			listener_forget_path(&listeners[i]);
		}
	}
	if (control->was_inherited) {
		listener_forget_path(control);
	}
	if (metrics->was_inherited) {
		listener_forget_path(metrics);
	}
	upgrade_send_failure(take->channel, failure->text);
	store_adopt_end();
	take_free(take);
}
