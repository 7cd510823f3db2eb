// SPDX-License-Identifier: Apache-2.0
#include "attach/nbd_dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/keep_alive.h"
#include "base/log.h"

/* A connection that is being made. */
struct dial {
	const struct wait_limit *limit;
	struct nbd_handshake *handshake;
	char label[CONNECT_LABEL_BYTES];
	int fd;
};

static int send_all(struct dial *dial, struct error *error)
{
	size_t bytes;
	const uint8_t *output = nbd_handshake_output(dial->handshake, &bytes);
	int rc = connect_send(dial->limit, dial->label, dial->fd, output, bytes, error);

	nbd_handshake_sent(dial->handshake);
	return rc;
}

/* What was received, which may be several messages. */
static int take_input(struct dial *dial, const uint8_t *bytes, size_t len, struct error *error)
{
	int rc = 0;

	while (rc == 0 && len > 0 && !nbd_handshake_is_finished(dial->handshake)) {
		int taken = nbd_handshake_input(dial->handshake, bytes, len, error);

		if (taken < 0) {
			error_prefix(error, "%s", dial->label);
			return taken;
		}
		bytes += taken;
		len -= (size_t)taken;
		rc = send_all(dial, error);
	}
	if (rc == 0 && len > 0) {
		/* Not ours to read any more, and nothing that the kernel could use. */
		return error_set(
			error, -EPROTO, "%s: the server speaks before it was asked", dial->label);
	}
	return rc;
}

static int receive(struct dial *dial, struct error *error)
{
	uint8_t bytes[4096];
	ssize_t got = connect_receive(dial->limit, dial->label, dial->fd, bytes, sizeof(bytes),
		nbd_handshake_awaits(dial->handshake), error);
	int rc;

	if (got < 0) {
		return (int)got;
	}
	if (got > 0) {
		return take_input(dial, bytes, (size_t)got, error);
	}
	rc = nbd_handshake_end_of_stream(dial->handshake, error);
	if (rc != 0) {
		error_prefix(error, "%s", dial->label);
	}
	return rc;
}

static int negotiate(struct dial *dial, struct error *error)
{
	int rc = send_all(dial, error);

	while (rc == 0 && !nbd_handshake_is_finished(dial->handshake)) {
		rc = receive(dial, error);
	}
	if (rc == 0) {
		rc = nbd_handshake_outcome(dial->handshake, error);
		if (rc != 0) {
			error_prefix(error, "%s", dial->label);
		}
	}
	return rc;
}

/*
 * For the kernel: a dead peer is noticed on an idle connection as well as on a busy one. Refusals
 * only cost time.
 */
static void prepare_socket(int fd, uint64_t silence_ns)
{
	unsigned silence_ms = (unsigned)MIN(silence_ns / 1000000, (uint64_t)INT32_MAX);
	int seconds = MAX((int)(silence_ms / 1000 / 4), 1);
	int flags = fcntl(fd, F_GETFL);

	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
	keep_alive(fd, seconds, seconds, 3);
	(void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

int nbd_dial(const struct nbd_uri *uri, const struct nbd_introduction *who,
	const struct wait_limit *limit, uint64_t silence_ns, int *fd_out, struct nbd_facts *facts,
	struct error *error)
{
	struct nbd_handshake_options options = {
		.export_name = uri->export_name,
		.style_max = NBD_REPLIES_SIMPLE,
		.token = who->token,
		.replaces = who->replaces,
		.replaces_count = who->replaces_count,
	};
	struct dial dial = { .limit = limit, .fd = -1 };
	int rc = nbd_handshake_create(&options, &dial.handshake, error);

	if (rc != 0) {
		return rc;
	}
	connect_label(dial.label, uri);
	rc = connect_uri(uri, limit, &dial.fd, error);
	if (rc == 0) {
		rc = negotiate(&dial, error);
		if (rc == 0) {
			*facts = *nbd_handshake_facts(dial.handshake);
			prepare_socket(dial.fd, silence_ns);
			*fd_out = dial.fd;
		} else {
			close(dial.fd);
		}
	}
	nbd_handshake_destroy(dial.handshake);
	return rc;
}

int nbd_facts_check(const struct nbd_facts *first, const struct nbd_facts *other, uint16_t promised,
	struct error *error)
{
	char name[256];

	if (other->size != first->size) {
		return error_set(error, -ESTALE,
			"the server has another disk now, of %llu bytes instead of %llu (rule "
			"P137)",
			(unsigned long long)other->size, (unsigned long long)first->size);
	}
	if (other->epoch != first->epoch && (other->is_volatile || first->is_volatile)) {
		return error_set(error, -ESTALE,
			"the server has started anew and kept this export in memory only: what was "
			"written is gone");
	}
	if (strcmp(other->name, first->name) != 0) {
		return error_set(error, -ESTALE,
			"the server calls the export \"%s\" now (rule P137)",
			log_escape(name, sizeof(name), other->name, strlen(other->name)));
	}
	/* That the disk is read-only may be the user's wish; a server that allows more is fine. */
	if ((promised & ~other->flags & ~NBD_FLAG_READ_ONLY) != 0 ||
		((other->flags & ~first->flags) & NBD_FLAG_READ_ONLY) != 0) {
		return error_set(error, -ESTALE,
			"the server offers less than before: flags 0x%x instead of 0x%x (rule "
			"P137)",
			other->flags, first->flags);
	}
	if (other->sizes.minimum > first->sizes.minimum) {
		return error_set(error, -ESTALE,
			"the server takes blocks of %u bytes now instead of %u (rule P137)",
			other->sizes.minimum, first->sizes.minimum);
	}
	return 0;
}
