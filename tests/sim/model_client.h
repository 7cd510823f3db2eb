// SPDX-License-Identifier: Apache-2.0
/*
 * A model NBD client, written from the protocol text and sharing no code with the server: it
 * negotiates in every way a client may, sends requests (also wrong ones) and checks that every
 * reply obeys the protocol (rows P1-P44, P69-P118 of the conformance checklist, client's view).
 *
 * Threading: the ring's thread. Ownership: the client owns its socket and its requests; a request
 * is lent to the callbacks. Errors: a server that breaks the protocol is reported by
 * model_fail(), which the test program supplies and which does not return.
 */
#pragma once

#include "base/compiler.h"
#include "ring/ring.h"
#include "runner.h"

enum model_style { MODEL_SIMPLE, MODEL_STRUCTURED, MODEL_EXTENDED };

enum {
	MODEL_READ = 0,
	MODEL_WRITE = 1,
	MODEL_DISC = 2,
	MODEL_FLUSH = 3,
	MODEL_TRIM = 4,
	MODEL_CACHE = 5,
	MODEL_ZERO = 6,
	MODEL_STATUS = 7,
	MODEL_FUA = 1 << 0,
	MODEL_NO_HOLE = 1 << 1,
	MODEL_DF = 1 << 2,
	MODEL_REQ_ONE = 1 << 3,
	MODEL_FAST_ZERO = 1 << 4,
	MODEL_PAYLOAD_LEN = 1 << 5,
	MODEL_EPERM = 1,
	MODEL_EIO = 5,
	MODEL_ENOMEM = 12,
	MODEL_EINVAL = 22,
	MODEL_ENOSPC = 28,
	MODEL_EOVERFLOW = 75,
	MODEL_ENOTSUP = 95,
	MODEL_ESHUTDOWN = 108,
	MODEL_FLAG_READ_ONLY = 1 << 1,
	MODEL_FLAG_FLUSH = 1 << 2,
	MODEL_FLAG_FUA = 1 << 3,
	MODEL_FLAG_TRIM = 1 << 5,
	MODEL_FLAG_ZERO = 1 << 6,
	MODEL_FLAG_DF = 1 << 7,
	MODEL_FLAG_MULTI_CONN = 1 << 8,
	MODEL_FLAG_CACHE = 1 << 10,
	MODEL_FLAG_FAST_ZERO = 1 << 11,
	MODEL_INFLIGHT_MAX = 64,
	MODEL_STEPS_MAX = 16,
	MODEL_EXTENTS_MAX = 64,
};

struct model_extent {
	uint64_t length;
	uint64_t flags;
};

struct model_request {
	bool used;
	uint16_t command;
	uint16_t flags;
	uint64_t cookie;
	uint64_t offset;
	uint64_t length;
	uint8_t *payload; /* what to send after the header, or NULL; freed by the client */
	uint8_t *data;	  /* READ: what came */
	uint8_t *covered; /* READ: bytes that content chunks have given */
	uint64_t covered_bytes;
	uint32_t content_chunks;
	uint32_t status_chunks;
	uint32_t extent_count; /* of the status chunk, capped */
	struct model_extent extents[MODEL_EXTENTS_MAX];
	uint32_t error; /* NBD error, 0 = success */
	bool has_error;
	/* For the program. */
	uint64_t begin;
	uint32_t record;
	bool invalid;
	uint32_t allowed_error; /* of an invalid request, besides EINVAL */
	uint32_t blamed;	/* disk faults that may be this request's */
};

struct model_client;

struct model_ops {
	void (*ready)(struct model_client *client);
	void (*replied)(struct model_client *client, struct model_request *request);
	/* Some replies were passed on; there may be room for new requests. */
	void (*progress)(struct model_client *client);
	/* Once; every request still in flight was passed to lost() before. The socket is to be
	 * closed by the callee. */
	void (*closed)(struct model_client *client);
	void (*lost)(struct model_client *client, struct model_request *request);
};

/* The pre-shared key of clients with TLS. */
#define MODEL_TLS_USER "alice"
#define MODEL_TLS_KEY  "0123456789abcdef0123456789abcdef"

struct model_tls;

/* How to negotiate. */
struct model_plan {
	enum model_style style;
	bool export_name; /* the old way to choose an export; not with extended headers */
	bool no_zeroes;
	bool want_status; /* select base:allocation */
	bool ask_block_size;
	bool noise; /* options that are unknown, wrong or only informative */
	const char *name;
	uint64_t size; /* what the export must have */
	bool size_may_change;
	bool end_in_abort; /* leave by ABORT instead of choosing the export */
	bool tls;	   /* which the server demands */
};

enum model_step_kind {
	STEP_UNKNOWN,
	STEP_LIST,
	STEP_LIST_DATA,
	STEP_STRUCTURED,
	STEP_STRUCTURED_DATA,
	STEP_EXTENDED,
	STEP_LIST_META,
	STEP_SET_META,
	STEP_INFO,
	STEP_GO_MISSING,
	STEP_BAD_INFO,
	STEP_STARTTLS, /* where it must be refused */
	STEP_TLS,
	STEP_ABORT,
	STEP_GO,
	STEP_EXPORT_NAME,
};

enum model_state {
	MODEL_GREETING,	    /* the server's first 18 bytes */
	MODEL_OPTION,	    /* replies to the option sent last */
	MODEL_NAME_REPLY,   /* the answer to EXPORT_NAME */
	MODEL_TRANSMISSION, /* replies to requests */
	MODEL_CLOSED,
};

struct model_client {
	struct ring *ring;
	struct ring_file file;
	const struct model_ops *ops;
	void *context; /* the program's */
	struct model_plan plan;
	enum model_state state;
	struct model_tls *tls; /* NULL: in clear */

	enum model_step_kind steps[MODEL_STEPS_MAX];
	uint32_t step_count;
	uint32_t step;
	uint32_t option;  /* the number sent last */
	uint32_t replies; /* to it, before the final one */
	bool structured;
	bool extended;
	bool got_export;
	bool info_seen;
	uint64_t info_size;
	uint16_t info_flags;
	uint32_t context_id;
	bool has_context;

	uint64_t size;
	uint16_t flags;
	uint32_t payload_max;
	uint32_t block_min;

	struct ring_op recv;
	struct ring_op send;
	bool stalled;	     /* do not receive for now */
	uint32_t drip_bytes; /* so many more are received and sent one by one */
	uint64_t drip_ns;    /* before each of them */
	uint8_t chunk[65536];
	uint8_t *in; /* received, not parsed */
	size_t in_len;
	size_t in_max;
	uint8_t *out; /* to be sent */
	size_t out_len;
	size_t out_max;
	uint8_t *sending;
	size_t sending_len;
	size_t sending_at;
	bool ended;	    /* the stream has ended or failed */
	bool send_ended;    /* sending has failed */
	bool disconnecting; /* DISC or ABORT was sent */
	bool half_closing;
	bool closed_told;
	bool forgive; /* the connection may break at any point */

	uint64_t replies_total;
	uint32_t inflight;
	uint32_t id;
	struct model_request requests[MODEL_INFLIGHT_MAX];
};

/* Starts on a connected socket. The client must stay where it is until closed. */
void model_start(struct model_client *client, struct ring *ring, int fd,
	const struct model_plan *plan, const struct model_ops *ops, void *context);
/* A free request slot, zeroed but for cookie; NULL when all are in flight. */
struct model_request *model_request(struct model_client *client);
/* Sends it. */
void model_submit(struct model_client *client, struct model_request *request);
/* Says good-bye; what is in flight is still to be answered. */
void model_disconnect(struct model_client *client);
/* Ends our direction once everything is sent; what is in flight is still to be answered. */
void model_half_close(struct model_client *client);
/* Raw bytes, to misbehave. */
void model_send(struct model_client *client, const void *bytes, size_t len);
/* Stops or resumes reading from the socket. */
void model_stall(struct model_client *client, bool stalled);
/* Receives and sends the next bytes one by one, with a pause before each. */
void model_drip(struct model_client *client, uint32_t bytes, uint64_t pause_ns);
/* Releases memory; after closed. */
void model_finish(struct model_client *client);
