// SPDX-License-Identifier: Apache-2.0
#include "client/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/connect.h"
#include "nbd/client_handshake.h"

enum { RECEIVE_BYTES = 16384 };

struct probe {
	struct nbd_handshake *handshake;
	int fd;
	struct wait_limit limit;
	char label[CONNECT_LABEL_BYTES];
};

static void probe_close(struct probe *probe)
{
	if (probe->fd >= 0) {
		close(probe->fd);
		probe->fd = -1;
	}
}

/* --- talking ------------------------------------------------------------------------------- */

/* Sends what the handshake has to say. */
static int send_all(struct probe *probe, struct error *error)
{
	size_t bytes;
	const uint8_t *output = nbd_handshake_output(probe->handshake, &bytes);
	int err = connect_send(&probe->limit, probe->label, probe->fd, output, bytes, error);

	nbd_handshake_sent(probe->handshake);
	return err;
}

/* Hands received bytes over, answering whenever the handshake has something to say. */
static int take_input(struct probe *probe, const uint8_t *bytes, size_t len, struct error *error)
{
	size_t taken = 0;

	while (taken < len && !nbd_handshake_is_finished(probe->handshake)) {
		int count =
			nbd_handshake_input(probe->handshake, bytes + taken, len - taken, error);
		int err;

		if (count < 0) {
			error_prefix(error, "%s", probe->label);
			return count;
		}
		taken += (size_t)count;
		err = send_all(probe, error);
		if (err != 0) {
			return err;
		}
	}
	return 0;
}

static int converse(struct probe *probe, struct error *error)
{
	uint8_t bytes[RECEIVE_BYTES];

	while (!nbd_handshake_is_finished(probe->handshake)) {
		ssize_t got = connect_receive(&probe->limit, probe->label, probe->fd, bytes,
			sizeof(bytes), nbd_handshake_awaits(probe->handshake), error);
		int err;

		if (got == -ETIMEDOUT && nbd_handshake_end_of_stream(probe->handshake, NULL) == 0) {
			/* A server that does not answer our farewell has told everything before. */
			return 0;
		}
		if (got < 0) {
			return (int)got;
		}
		if (got > 0) {
			err = take_input(probe, bytes, (size_t)got, error);
		} else {
			err = nbd_handshake_end_of_stream(probe->handshake, error);
			if (err != 0) {
				error_prefix(error, "%s", probe->label);
			}
		}
		if (err != 0) {
			return err;
		}
	}
	return 0;
}

/* --- the whole ----------------------------------------------------------------------------- */

static int probe_run(struct probe *probe, const struct nbd_uri *uri,
	const struct probe_options *options, struct error *error)
{
	struct nbd_handshake_options handshake_options = {
		.export_name = uri->export_name,
		.goal = options->list ? NBD_GOAL_LIST : NBD_GOAL_INFO,
	};
	int err;

	err = nbd_handshake_create(&handshake_options, &probe->handshake, error);
	if (err != 0) {
		return err;
	}
	err = connect_uri(uri, &probe->limit, &probe->fd, error);
	if (err != 0) {
		return err;
	}
	err = converse(probe, error);
	probe_close(probe);
	if (err != 0) {
		return err;
	}
	err = nbd_handshake_outcome(probe->handshake, error);
	if (err != 0) {
		error_prefix(error, "%s", probe->label);
	}
	return err;
}

int probe_server(const struct nbd_uri *uri, const struct probe_options *options,
	struct probe **probe_out, struct error *error)
{
	struct probe *probe = calloc(1, sizeof(*probe));
	int err;

	*probe_out = NULL;
	if (probe == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	probe->fd = -1;
	probe->limit = wait_limit_start(options->timeout_ns, -1);
	connect_label(probe->label, uri);
	err = probe_run(probe, uri, options, error);
	if (err != 0 && (probe->handshake == NULL || !probe_offers(probe)->listed)) {
		probe_destroy(probe);
		return err;
	}
	*probe_out = probe;
	return err;
}

void probe_destroy(struct probe *probe)
{
	if (probe != NULL) {
		probe_close(probe);
		nbd_handshake_destroy(probe->handshake);
		free(probe);
	}
}

const struct nbd_offers *probe_offers(const struct probe *probe)
{
	return nbd_handshake_offers(probe->handshake);
}
