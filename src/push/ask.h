// SPDX-License-Identifier: Apache-2.0
/*
 * A coordinator's connection to a server, with blocking calls. Used by `gmblock push`.
 *
 * Threading: one thread; the calls block. Ownership: push_ask_open() allocates, push_ask_close()
 * frees. Received messages are borrowed until the next call. Errors: a negative errno and an error
 * message.
 */
#pragma once

#include <sys/uio.h>

#include "base/error.h"
#include "base/export_uri.h"
#include "push/wire.h"

struct push_ask;

/* The functions that wait for the server log a warning if it does not respond, once for each
 * connection; see export_uri_silent(). */
GMB_MUST_CHECK int push_ask_open(const struct export_uri *uri, uint64_t timeout_ns,
	struct push_ask **ask_out, struct error *error);
/* Closes the connection. NULL is a no-op. */
void push_ask_close(struct push_ask *ask);

/* Return the server's instance, and its identity as reported by the kernel or the network. */
const uint8_t *push_ask_instance(const struct push_ask *ask);
void push_ask_peer(const struct push_ask *ask, struct clan_peer *peer);

/* Sends a message and waits for its ANSWER. A status other than 0 is returned as an error, with the
 * server's text. */
GMB_MUST_CHECK int push_ask(struct push_ask *ask, uint32_t type, const struct iovec *parts,
	uint32_t part_count, struct push_answer *answer, struct error *error);
/* Copies an error text from the server to out, escaped for a terminal and truncated if necessary.
 * Returns out. */
const char *push_ask_show(char out[ERROR_TEXT_BYTES], const struct message_text *text);
/* Waits for the next JOB. Returns 1, or 0 if none arrived within timeout_ms. */
GMB_MUST_CHECK int push_ask_hear(
	struct push_ask *ask, int timeout_ms, struct push_job_message *job, struct error *error);
/* JOBS: requests the next job after the cursor. Returns 1, or 0 if there is none. */
GMB_MUST_CHECK int push_ask_job(
	struct push_ask *ask, uint64_t cursor, struct push_job_message *job, struct error *error);
