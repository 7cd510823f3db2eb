// SPDX-License-Identifier: Apache-2.0
/*
 * Puts a client on trial: a list of commands and a stream of bytes from the server, cut into pieces
 * in some way, compared with the model of nbd_client_model.h. What must hold whatever the bytes
 * are:
 *
 *   - the client finds fault exactly when the model does, with -EPROTO and a sentence naming a rule
 *   - each call is done once, or can be taken back; with the model's result, data and extents
 *   - nothing is written outside the scatter lists, into a list that is done, or into a payload to
 *     be sent; memory is right at the moment of done
 *   - what is sent is the requests, in order; last the client's own question about the size
 *
 * Threading: one thread. Ownership: the trial and its stream are the caller's. Errors: aborts with
 * the broken promise (GMB_ASSERT), for unit tests and fuzzers alike.
 */
#pragma once

#include "nbd/client/client.h"
#include "nbd_client_model.h"

enum {
	TRIAL_CALLS_MAX = 64,
	TRIAL_BYTES_MAX = 512 << 10, /* of one READ or WRITE */
	TRIAL_ALLOCATION_ID = 0x00c0ffee,
};

/* What the export has when the question about its size is asked. */
#define TRIAL_SIZE INT64_MAX

struct trial_call {
	uint16_t type;
	uint16_t flags;
	uint64_t offset;
	uint64_t length;
	uint16_t cut; /* chooses how the memory is scattered; 0: in one piece */
};

struct trial {
	enum nbd_reply_style style;
	bool allocation;
	bool says_size;	 /* x-gmblock:size was listed; without effect on simple replies */
	bool says_alive; /* x-gmblock:alive was */
	/* One more than call_count with says_size: trial_run() adds the question. */
	struct trial_call calls[TRIAL_CALLS_MAX + 1];
	uint32_t call_count;
	const uint8_t *stream;
	size_t stream_bytes;
};

enum trial_split {
	TRIAL_WHOLE,  /* as much as the client lays out */
	TRIAL_BYTES,  /* one at a time */
	TRIAL_RANDOM, /* anything */
	TRIAL_CHUNKY, /* about as TCP segments come */
};

struct trial_way {
	enum trial_split split;
	bool send_slowly; /* the requests go out in pieces while answers arrive */
	bool is_lent; /* the calls' memory is lent: nothing is predicted, and holes are zeroed here
		       */
	uint64_t seed;
};

struct trial_outcome {
	int code;	    /* of the client: 0 or a negative errno */
	struct error error; /* its sentence */
	uint32_t done_count;
	int results[TRIAL_CALLS_MAX];			   /* of those that are done; else 1 */
	char said[TRIAL_CALLS_MAX][NBD_CLIENT_TEXT_BYTES]; /* client->text when it was done */
	uint64_t moved_bytes;
};

/* The cookie that the client will give to call i: those of one client are known in advance here.
 * call_count is the question about the size. */
uint64_t trial_cookie(const struct trial *trial, uint32_t i);

/* What a READ of the trial's export gives at an offset, where a stream is honest. */
uint8_t trial_content(uint64_t offset);

/* Runs the trial. *model: the calls' answers as they should be (violation says which rule); may be
 * NULL. */
void trial_run(const struct trial *trial, const struct trial_way *way,
	struct trial_outcome *outcome, const char **violation_out);

/* Runs it in many ways; returns the outcome of the first, in which all is sent and everything
 * comes at once. */
struct trial_outcome trial_run_all(const struct trial *trial, const char **violation_out);
