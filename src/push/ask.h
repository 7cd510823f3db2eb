// SPDX-License-Identifier: Apache-2.0
/*
 * A coordinator's connection to a server, which waits for the answers.
 *
 * Threading: one thread; it blocks. Ownership: push_ask_open() gives, push_ask_close() frees.
 * Messages are borrowed until the next call. Errors: a negative errno and a sentence.
 */
#pragma once

#include <sys/uio.h>

#include "base/error.h"
#include "base/export_uri.h"
#include "push/wire.h"

struct push_ask;

GMB_MUST_CHECK int push_ask_open(const struct export_uri *uri, uint64_t timeout_ns,
	struct push_ask **ask_out, struct error *error);
/* NULL is a no-op. */
void push_ask_close(struct push_ask *ask);

/* Who the server is: its instance, and as the kernel or the network knows it. */
const uint8_t *push_ask_instance(const struct push_ask *ask);
void push_ask_peer(const struct push_ask *ask, struct clan_peer *peer);

/* Sends a message, and waits for its ANSWER. What the server refuses is an error, with its text. */
GMB_MUST_CHECK int push_ask(struct push_ask *ask, uint32_t type, const struct iovec *parts,
	uint32_t part_count, struct push_answer *answer, struct error *error);
/* A sentence of the server as a terminal may show it, cut to what fits. Returns out. */
const char *push_ask_show(char out[ERROR_TEXT_BYTES], const struct message_text *text);
/* Waits for the next JOB: 1. 0: there was none within timeout_ms. */
GMB_MUST_CHECK int push_ask_hear(
	struct push_ask *ask, int timeout_ms, struct push_job_message *job, struct error *error);
/* JOBS: the next job after the cursor: 1, 0: there is none. */
GMB_MUST_CHECK int push_ask_job(
	struct push_ask *ask, uint64_t cursor, struct push_job_message *job, struct error *error);
