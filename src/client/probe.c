// SPDX-License-Identifier: Apache-2.0
#include "client/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/connect.h"
#include "nbd/inquiry.h"

enum { RECEIVE_BYTES = 16384 };

struct probe {
	struct inquiry *inquiry;
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

/* Sends what the inquiry has to say. */
static int send_all(struct probe *probe, struct error *error)
{
	size_t bytes;
	const uint8_t *output = inquiry_output(probe->inquiry, &bytes);
	int err = connect_send(&probe->limit, probe->label, probe->fd, output, bytes, error);

	inquiry_sent(probe->inquiry);
	return err;
}

/* Hands received bytes over, answering whenever the inquiry has something to say. */
static int take_input(struct probe *probe, const uint8_t *bytes, size_t len, struct error *error)
{
	size_t taken = 0;

	while (taken < len && !inquiry_is_finished(probe->inquiry)) {
		int count = inquiry_input(probe->inquiry, bytes + taken, len - taken, error);
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

	while (!inquiry_is_finished(probe->inquiry)) {
		ssize_t got = connect_receive(&probe->limit, probe->label, probe->fd, bytes,
			sizeof(bytes), inquiry_awaits(probe->inquiry), error);
		int err;

		if (got == -ETIMEDOUT && inquiry_end_of_stream(probe->inquiry, NULL) == 0) {
			/* A server that does not answer our farewell has told everything before. */
			return 0;
		}
		if (got < 0) {
			return (int)got;
		}
		if (got > 0) {
			err = take_input(probe, bytes, (size_t)got, error);
		} else {
			err = inquiry_end_of_stream(probe->inquiry, error);
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
	struct inquiry_options inquiry_options = {
		.export_name = uri->export_name,
		.list = options->list,
	};
	int err;

	err = inquiry_create(&inquiry_options, &probe->inquiry, error);
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
	err = inquiry_outcome(probe->inquiry, error);
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
	if (err != 0 && (probe->inquiry == NULL || !probe_offers(probe)->listed)) {
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
		inquiry_destroy(probe->inquiry);
		free(probe);
	}
}

const struct nbd_offers *probe_offers(const struct probe *probe)
{
	return inquiry_offers(probe->inquiry);
}
