// SPDX-License-Identifier: Apache-2.0
/*
 * The framing of a client's handshake: collects what the server sends until one message is whole,
 * hands it to its owner, and holds what the owner wants to say. Without a socket.
 *
 *   bytes ─▶ dialogue_input() ─▶ greeting() ─▶ reply() ... ─▶ dialogue_finish()
 *                                    └── dialogue_begin(), dialogue_append() ─▶ output
 *
 * Threading: the owner's object. Ownership: plain data, nothing to free; payloads handed to the
 * owner are the dialogue's and valid inside the call. Errors: -EPROTO with the broken rule; then
 * the dialogue must not be used any more.
 */
#pragma once

#include "nbd/client_parse.h"

enum {
	DIALOGUE_INFO_REQUESTS = 3,	/* NAME, DESCRIPTION, BLOCK_SIZE; EXPORT comes unasked */
	DIALOGUE_INFO_REPLIES_MAX = 64, /* information about one export */
	DIALOGUE_REFUSAL_BYTES = 384,
	DIALOGUE_LABEL_BYTES = 256,
	/* The longest option is an export name with context queries. */
	DIALOGUE_QUERIES_BYTES_MAX = 3072,
	DIALOGUE_DATA_BYTES_MAX = 4 + NBD_STRING_BYTES_MAX + 4 + DIALOGUE_QUERIES_BYTES_MAX,
	DIALOGUE_OUTPUT_BYTES_MAX = 4 + sizeof(struct nbd_wire_option) + DIALOGUE_DATA_BYTES_MAX,
};

/* What the server's next bytes are. */
enum dialogue_state {
	DIALOGUE_MAGIC,		/* the first 8 bytes of the greeting */
	DIALOGUE_STYLE,		/* the next 8: newstyle or oldstyle */
	DIALOGUE_GREETING,	/* the whole greeting */
	DIALOGUE_REPLY,		/* header of an option reply */
	DIALOGUE_REPLY_PAYLOAD, /* its payload */
	DIALOGUE_OLD_REPLY,	/* size and flags after EXPORT_NAME, and the zeroes after them */
	DIALOGUE_FINISHED,
};

struct dialogue;

/* The owner's part. Each returns 0 or a negative errno with a sentence. */
struct dialogue_handler {
	/* The client's flags are answered already. */
	int (*greeting)(struct dialogue *dialogue, uint16_t flags, struct error *error);
	/* dialogue->reply is the header, dialogue->option the one in progress. */
	int (*reply)(struct dialogue *dialogue, const uint8_t *payload, struct error *error);
	int (*old_reply)(
		struct dialogue *dialogue, uint64_t size, uint16_t flags, struct error *error);
};

struct dialogue {
	const struct dialogue_handler *handler;
	enum dialogue_state state;
	uint32_t option;  /* the one in progress */
	uint32_t replies; /* to the option in progress, this one included */
	struct nbd_reply_header reply;
	size_t input_bytes; /* collected in input */
	size_t input_wanted;
	size_t output_bytes;
	uint8_t output[DIALOGUE_OUTPUT_BYTES_MAX];
	uint8_t input[NBD_REPLY_PAYLOAD_BYTES_MAX];
};

void dialogue_init(struct dialogue *dialogue, const struct dialogue_handler *handler);

/* --- saying: appended to the output ---------------------------------------------------------- */

void dialogue_append(struct dialogue *dialogue, const void *bytes, size_t len);
void dialogue_append_u32(struct dialogue *dialogue, uint32_t value);
void dialogue_append_u16(struct dialogue *dialogue, uint16_t value);

/* Header of an option whose data_bytes are appended next; replies to it are awaited. */
void dialogue_begin(struct dialogue *dialogue, uint32_t option, size_t data_bytes);

/* INFO or GO for an export, asking for all we know (rules P22, P24). */
void dialogue_ask_info(struct dialogue *dialogue, uint32_t option, const char *name);

/* LIST_META_CONTEXT or SET_META_CONTEXT for an export; the queries, queries_bytes of them with
 * their lengths, are appended next. */
void dialogue_ask_contexts(struct dialogue *dialogue, uint32_t option, const char *name,
	uint32_t query_count, size_t queries_bytes);

/* EXPORT_NAME, to which the answer is no option reply (rule P31). */
void dialogue_ask_export_name(struct dialogue *dialogue, const char *name, bool no_zeroes);

/* Nothing more is awaited; what is in the output is still to be sent. */
void dialogue_finish(struct dialogue *dialogue);

/* --- hearing ---------------------------------------------------------------------------------- */

/* As inquiry_input(): takes bytes until it has something to say or is finished. */
GMB_MUST_CHECK int dialogue_input(
	struct dialogue *dialogue, const void *bytes, size_t len, struct error *error);

/* The server closed the connection before the end: says what that means. name: the export's. */
int dialogue_cut_off(const struct dialogue *dialogue, const char *name, struct error *error);

bool dialogue_is_finished(const struct dialogue *dialogue);

/* What the server is expected to send: "its greeting". */
const char *dialogue_awaits(const struct dialogue *dialogue);

/* A reply that does not belong to the option in progress (rule P11). */
int dialogue_misplaced(const struct dialogue *dialogue, struct error *error);

/* The export's name fits in an option (rule P1), or -EINVAL. */
GMB_MUST_CHECK int dialogue_check_name(const char *name, struct error *error);

/* The information in a reply to INFO or GO, of which there may not be too many (rule P11). */
GMB_MUST_CHECK int dialogue_take_info(const struct dialogue *dialogue, const uint8_t *payload,
	struct nbd_info_item *item, struct error *error);

/* --- words ------------------------------------------------------------------------------------ */

/* Why the server refused, in words, with its own text (rule P20). Returns out. */
const char *dialogue_refusal(char out[DIALOGUE_REFUSAL_BYTES], uint32_t type, struct nbd_text text);

/* The errno for an error reply about an export. */
int dialogue_refusal_code(uint32_t type);

/* "the default export" or 'export "NAME"', escaped. Returns out. */
const char *dialogue_export_label(char out[DIALOGUE_LABEL_BYTES], const char *name);
