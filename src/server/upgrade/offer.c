// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/offer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "server/upgrade/added.h"
#include "server/upgrade/tell.h"

enum {
	SEND_SECONDS = 2, /* limit for each send of the new process to this one */
	/* number of offered descriptors: the socket, standard error and the working directory */
	OFFER_FILES = 3,
	LIST_BYTES = 200,
};

_Static_assert((int)OFFER_FILES <= (int)CONTROL_FILES_MAX, "the offer fits into one note");

/* --- the effect on connections --------------------------------------------------------------- */

static void fate_foresee(struct engine *engine, void *context)
{
	engine_foresee(engine, context);
}

int upgrade_foresee(struct reactor *const *reactors, uint32_t reactor_count,
	struct engine_fate *fate, struct error *error)
{
	*fate = (struct engine_fate){ 0 };
	return reactors_call(reactors, reactor_count, fate_foresee, fate, error);
}

uint32_t upgrade_fate_ends(const struct engine_fate *fate, bool in_handshake)
{
	uint32_t count = in_handshake ? fate->handshakes : 0;

	for (int i = 0; i < ENGINE_KINDS_MAX; i++) {
		count += fate->end[i].count;
	}
	return count;
}

static void fate_add(char list[LIST_BYTES], const char *what, uint32_t count)
{
	size_t used = strlen(list);

	if (count > 0) {
		snprintf(list + used, LIST_BYTES - used, "%s%s: %u", used > 0 ? ", " : "", what,
			count);
	}
}

/* Lists the connections that end, by reason. */
static void list_ends(const struct engine_fate *fate, bool in_handshake, char list[LIST_BYTES])
{
	list[0] = '\0';
	for (int i = 0; i < ENGINE_KINDS_MAX && fate->end[i].kind != NULL; i++) {
		const struct session_kind *kind = fate->end[i].kind;

		/* Sessions of a kind with can_hand_over end only because of their TLS layer. */
		fate_add(list,
			kind->can_hand_over != NULL ? "TLS not handled by the kernel" : kind->name,
			fate->end[i].count);
	}
	fate_add(list, "no export chosen yet", in_handshake ? fate->handshakes : 0);
}

json_t *upgrade_fate_json(const struct engine_fate *fate)
{
	char list[LIST_BYTES];

	list_ends(fate, false, list);
	return json_pack("{s:I, s:I, s:s, s:I}", "connections", (json_int_t)fate->handed_over,
		"connections_ended", (json_int_t)upgrade_fate_ends(fate, false), "ended", list,
		"handshakes", (json_int_t)fate->handshakes);
}

int upgrade_fate_refuse(const struct engine_fate *fate, bool in_handshake, struct error *error)
{
	char list[LIST_BYTES];

	list_ends(fate, in_handshake, list);
	return error_set(error, -ECONNABORTED,
		"connections would be closed (%s); close them first, or upgrade without "
		"--all-or-nothing",
		list);
}

/* --- the offer ------------------------------------------------------------------------------- */

int upgrade_offer_check(const struct upgrade_options *options, struct error *error)
{
	char strings[UPGRADE_STRINGS_BYTES_MAX];
	struct store_claim claim;

	if (options->config->command_count > 0) {
		return error_set(error, -EOPNOTSUPP,
			"a server with --run commands ends with them and cannot be upgraded");
	}
	if (options->config->arena.given) {
		return error_set(error, -EOPNOTSUPP,
			"device memory (--arena) cannot be passed to another process; restart the "
			"server");
	}
	for (uint32_t i = 0; i < *options->view->listener_count; i++) {
		if (options->view->listeners[i].fd_count == 0 &&
			options->view->listeners[i].folder == 0) {
			return error_set(error, -EOPNOTSUPP,
				"the network address of %s:// cannot be passed to another process; "
				"restart the server",
				options->view->listeners[i].uri.protocol);
		}
	}
	for (uint32_t i = 0; i < options->view->exports->count; i++) {
		const struct served_export *served = options->view->exports->list[i];
		const struct export *export = served->export;
		const char *reason = store_handover(export->store, &claim);

		if (served->is_added && upgrade_added_write(&served->about, strings) < 0) {
			return error_set(error, -EOPNOTSUPP,
				"the keys of export \"%s\", added by 'gmblock export add', are too "
				"long to pass to another process; move the export to the "
				"configuration file, or remove it",
				quote_bytes(export->name, export->name_bytes));
		}
		if (reason != NULL) {
			return error_set(error, -EOPNOTSUPP, "the disk of export \"%s\" %s",
				quote_bytes(export->name, export->name_bytes), reason);
		}
	}
	return 0;
}

static int make_channel(int pair[2])
{
	const struct timeval limit = { .tv_sec = SEND_SECONDS };

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		return -errno;
	}
	(void)setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return 0;
}

int upgrade_offer(struct control_client *client, int *channel_out)
{
	int folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int pair[2] = { -1, -1 };
	int rc = folder < 0 ? -errno : make_channel(pair);
	const int files[OFFER_FILES] = { pair[1], STDERR_FILENO, folder };
	uint32_t tries = 0;

	if (rc == 0) {
		do {
			rc = control_note_files(client,
				json_pack("{s:s, s:s*}", "offer", "upgrade", "journal",
					getenv("JOURNAL_STREAM")),
				files, OFFER_FILES);
		} while (upgrade_wait_for_descriptors(rc, &tries));
	}
	if (folder >= 0) {
		close(folder);
	}
	if (pair[1] >= 0) {
		close(pair[1]);
	}
	if (rc < 0 && pair[0] >= 0) {
		close(pair[0]);
	}
	*channel_out = rc == 0 ? pair[0] : -1;
	return rc;
}
