// SPDX-License-Identifier: Apache-2.0
/*
 * What a client reads from an NBD server during the handshake, one message at a time: bytes in, a
 * struct or the broken rule out. The numbers in the sentences ("rule P23") are the rows of the
 * conformance list.
 *
 * Threading: pure functions. Ownership: results point into the caller's bytes and live as long.
 * Errors: -EPROTO and a sentence that names the rule when the server broke one; what the server
 * wrote is escaped in it. The caller hands over exactly the bytes of one message: lengths are
 * checked by nbd_parse_reply_header() before a payload is read.
 */
#pragma once

#include "base/bytes.h"
#include "base/error.h"
#include "nbd/wire.h"

enum {
	NBD_GREETING_BYTES = sizeof(struct nbd_wire_greeting),
	NBD_REPLY_HEADER_BYTES = sizeof(struct nbd_wire_option_reply),
	NBD_OLD_REPLY_BYTES = sizeof(struct nbd_wire_old_reply),
	/* The longest lawful reply: REP_SERVER with a name and a description of 4096 bytes each. */
	NBD_REPLY_PAYLOAD_BYTES_MAX = 4 + NBD_STRING_BYTES_MAX + NBD_STRING_BYTES_MAX,
};

/* Text as the server wrote it: no zero byte inside, at most 4096 bytes, not terminated. */
struct nbd_text {
	const char *bytes;
	uint32_t length;
};

/* The first 8 bytes: says as early as possible that the peer is no NBD server. */
GMB_MUST_CHECK int nbd_parse_magic(const uint8_t bytes[8], struct error *error);

/* The first 16 bytes. An oldstyle server is named as such with -EPROTONOSUPPORT (rule P8). */
GMB_MUST_CHECK int nbd_parse_style(const uint8_t bytes[16], struct error *error);

/* The whole greeting, whose first 16 bytes are good: the handshake flags. */
uint16_t nbd_parse_greeting(const uint8_t bytes[NBD_GREETING_BYTES]);

struct nbd_reply_header {
	uint32_t option;
	uint32_t type;	 /* NBD_REP_ */
	uint32_t length; /* payload that follows, <= NBD_REPLY_PAYLOAD_BYTES_MAX */
};

/* Checks the magic, that the reply is to the option that was asked, and the length. */
GMB_MUST_CHECK int nbd_parse_reply_header(const uint8_t bytes[NBD_REPLY_HEADER_BYTES],
	uint32_t option_asked, struct nbd_reply_header *header, struct error *error);

/* Payload of NBD_REP_SERVER. The description is empty when there is none. */
GMB_MUST_CHECK int nbd_parse_server(const uint8_t *payload, uint32_t length, struct nbd_text *name,
	struct nbd_text *description, struct error *error);

/* Payload of NBD_REP_META_CONTEXT. The id is opaque. */
GMB_MUST_CHECK int nbd_parse_context(const uint8_t *payload, uint32_t length, uint32_t *id,
	struct nbd_text *name, struct error *error);

struct nbd_block_sizes {
	uint32_t minimum;     /* power of two, 1 to 65536 */
	uint32_t preferred;   /* power of two, >= max(512, minimum) */
	uint32_t payload_max; /* >= preferred; UINT32_MAX = no fixed limit */
};

struct nbd_info_item {
	uint16_t type;	/* NBD_INFO_; other values than the four known ones are to be ignored */
	uint64_t size;	/* EXPORT: < 2^63 */
	uint16_t flags; /* EXPORT: transmission flags */
	struct nbd_text text;	      /* NAME, DESCRIPTION */
	struct nbd_block_sizes sizes; /* BLOCK_SIZE */
};

/* Payload of NBD_REP_INFO. */
GMB_MUST_CHECK int nbd_parse_info(
	const uint8_t *payload, uint32_t length, struct nbd_info_item *item, struct error *error);

/* The answer to NBD_OPT_EXPORT_NAME, without the zeroes that may follow. */
GMB_MUST_CHECK int nbd_parse_old_reply(const uint8_t bytes[NBD_OLD_REPLY_BYTES], uint64_t *size,
	uint16_t *flags, struct error *error);

/* Payload of an error reply or of NBD_REP_ACK (which must be empty): the text, maybe empty. */
GMB_MUST_CHECK int nbd_parse_error_text(
	const uint8_t *payload, uint32_t length, struct nbd_text *text, struct error *error);

/* A reply type as a person reads it: "not supported", "refused by policy", ... */
const char *nbd_reply_error_name(uint32_t type);
