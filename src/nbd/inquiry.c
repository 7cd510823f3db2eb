// SPDX-License-Identifier: Apache-2.0
#include "nbd/inquiry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
	QUOTE_BYTES = 256,
	REFUSAL_BYTES = 384,
	INFO_REPLIES_MAX = 64, /* information about one export */
	INFO_REQUESTS = 3,     /* NAME, DESCRIPTION, BLOCK_SIZE; EXPORT comes unasked */
	ZERO_QUERIES_BYTES = 4,
	OPTION_DATA_BYTES_MAX = 4 + NBD_STRING_BYTES_MAX + 2 + 2 * INFO_REQUESTS,
	OUTPUT_BYTES_MAX = 4 + sizeof(struct nbd_wire_option) + OPTION_DATA_BYTES_MAX,
};

/* What the server's next bytes are. */
enum inquiry_state {
	INQUIRY_MAGIC,	       /* the first 8 bytes of the greeting */
	INQUIRY_STYLE,	       /* the next 8: newstyle or oldstyle */
	INQUIRY_GREETING,      /* the whole greeting */
	INQUIRY_REPLY,	       /* header of an option reply */
	INQUIRY_REPLY_PAYLOAD, /* its payload */
	INQUIRY_OLD_REPLY,     /* size and flags after EXPORT_NAME, and the zeroes after them */
	INQUIRY_FINISHED,
};

struct inquiry {
	enum inquiry_state state;
	uint32_t option;   /* the one in progress */
	bool list;	   /* all exports */
	bool listing_rest; /* asked only because the export is missing */
	bool got_export;   /* INFO_EXPORT came for the option in progress */
	uint32_t current;  /* index of the offer in progress */
	uint32_t replies;  /* to the option in progress */
	struct nbd_reply_header reply;
	struct nbd_offers offers;
	struct error outcome; /* code 0 = nothing refused */
	size_t input_bytes;   /* collected in input */
	size_t input_wanted;
	size_t output_bytes;
	uint8_t output[OUTPUT_BYTES_MAX];
	uint8_t input[NBD_REPLY_PAYLOAD_BYTES_MAX];
};
_Static_assert(NBD_OLD_REPLY_BYTES + NBD_OLD_REPLY_ZEROES <= NBD_REPLY_PAYLOAD_BYTES_MAX, "input");

/* --- sending ------------------------------------------------------------------------------- */

static void expect(struct inquiry *inquiry, enum inquiry_state state, size_t bytes)
{
	inquiry->state = state;
	inquiry->input_wanted = bytes;
}

static void output_append(struct inquiry *inquiry, const void *bytes, size_t len)
{
	GMB_ASSERT(len <= sizeof(inquiry->output) - inquiry->output_bytes);
	if (len > 0) {
		memcpy(inquiry->output + inquiry->output_bytes, bytes, len);
		inquiry->output_bytes += len;
	}
}

static void output_u32(struct inquiry *inquiry, uint32_t value)
{
	struct be32 wire = be32_make(value);

	output_append(inquiry, &wire, sizeof(wire));
}

static void output_u16(struct inquiry *inquiry, uint16_t value)
{
	struct be16 wire = be16_make(value);

	output_append(inquiry, &wire, sizeof(wire));
}

static void option_begin(struct inquiry *inquiry, uint32_t option, size_t data_bytes)
{
	struct nbd_wire_option header = {
		.magic = be64_make(NBD_OPTION_MAGIC),
		.option = be32_make(option),
		.length = be32_make((uint32_t)data_bytes),
	};

	inquiry->option = option;
	inquiry->replies = 0;
	inquiry->got_export = false;
	output_append(inquiry, &header, sizeof(header));
	expect(inquiry, INQUIRY_REPLY, NBD_REPLY_HEADER_BYTES);
}

static struct nbd_offer *current_offer(struct inquiry *inquiry)
{
	GMB_ASSERT(inquiry->current < inquiry->offers.count);
	return &inquiry->offers.list[inquiry->current];
}

/* INFO or GO for the current export (rules P22, P24). */
static void ask_info(struct inquiry *inquiry, uint32_t option)
{
	const char *name = current_offer(inquiry)->name;
	size_t name_bytes = strlen(name);

	option_begin(inquiry, option, 4 + name_bytes + 2 + 2 * INFO_REQUESTS);
	output_u32(inquiry, (uint32_t)name_bytes);
	output_append(inquiry, name, name_bytes);
	output_u16(inquiry, INFO_REQUESTS);
	output_u16(inquiry, NBD_INFO_NAME);
	output_u16(inquiry, NBD_INFO_DESCRIPTION);
	output_u16(inquiry, NBD_INFO_BLOCK_SIZE);
}

static void ask_contexts(struct inquiry *inquiry)
{
	const char *name = current_offer(inquiry)->name;
	size_t name_bytes = strlen(name);

	option_begin(inquiry, NBD_OPT_LIST_META_CONTEXT, 4 + name_bytes + ZERO_QUERIES_BYTES);
	output_u32(inquiry, (uint32_t)name_bytes);
	output_append(inquiry, name, name_bytes);
	output_u32(inquiry, 0);
}

static void ask_export_name(struct inquiry *inquiry)
{
	const char *name = current_offer(inquiry)->name;
	size_t zeroes = inquiry->offers.no_zeroes ? 0 : NBD_OLD_REPLY_ZEROES;

	option_begin(inquiry, NBD_OPT_EXPORT_NAME, strlen(name));
	output_append(inquiry, name, strlen(name));
	expect(inquiry, INQUIRY_OLD_REPLY, NBD_OLD_REPLY_BYTES + zeroes);
}

static void finish(struct inquiry *inquiry)
{
	expect(inquiry, INQUIRY_FINISHED, 0);
}

/* Leaves the transmission phase that GO or EXPORT_NAME began: DISC has no reply (rule P80). */
static void disconnect(struct inquiry *inquiry)
{
	if (inquiry->offers.style == NBD_REPLIES_EXTENDED) {
		struct nbd_wire_extended_request request = {
			.magic = be32_make(NBD_EXTENDED_REQUEST_MAGIC),
			.type = be16_make(NBD_CMD_DISC),
		};

		output_append(inquiry, &request, sizeof(request));
	} else {
		struct nbd_wire_request request = {
			.magic = be32_make(NBD_REQUEST_MAGIC),
			.type = be16_make(NBD_CMD_DISC),
		};

		output_append(inquiry, &request, sizeof(request));
	}
	finish(inquiry);
}

static void leave(struct inquiry *inquiry)
{
	option_begin(inquiry, NBD_OPT_ABORT, 0);
}

/* --- what comes next ----------------------------------------------------------------------- */

/* In a list each export is asked with INFO, which keeps the connection free for the next. A single
 * one is asked with GO, because some servers open an export, and know its size, only then. Contexts
 * exist only beside structured or extended replies. */
static void ask_export(struct inquiry *inquiry)
{
	if (inquiry->list) {
		ask_info(inquiry, NBD_OPT_INFO);
	} else if (inquiry->offers.style != NBD_REPLIES_SIMPLE) {
		ask_contexts(inquiry);
	} else {
		ask_info(inquiry, NBD_OPT_GO);
	}
}

static void next_export(struct inquiry *inquiry)
{
	inquiry->current++;
	if (inquiry->current >= inquiry->offers.count) {
		leave(inquiry);
	} else {
		ask_export(inquiry);
	}
}

static void after_style(struct inquiry *inquiry, enum nbd_reply_style style)
{
	inquiry->offers.style = style;
	if (inquiry->list) {
		option_begin(inquiry, NBD_OPT_LIST, 0);
	} else {
		ask_export(inquiry);
	}
}

static void after_contexts(struct inquiry *inquiry)
{
	if (inquiry->list) {
		next_export(inquiry);
	} else {
		ask_info(inquiry, NBD_OPT_GO);
	}
}

static void after_info(struct inquiry *inquiry)
{
	if (!inquiry->list) {
		disconnect(inquiry);
	} else if (inquiry->offers.style != NBD_REPLIES_SIMPLE) {
		ask_contexts(inquiry);
	} else {
		next_export(inquiry);
	}
}

/* --- refusals ------------------------------------------------------------------------------ */

/* The reason in words, with the server's own text (rule P20). */
static const char *refusal_text(char out[REFUSAL_BYTES], uint32_t type, struct nbd_text text)
{
	char quoted[QUOTE_BYTES];

	if (text.length == 0) {
		snprintf(out, REFUSAL_BYTES, "%s", nbd_reply_error_name(type));
	} else {
		snprintf(out, REFUSAL_BYTES, "%s (it says: \"%s\")", nbd_reply_error_name(type),
			log_escape(quoted, sizeof(quoted), text.bytes, text.length));
	}
	return out;
}

static int keep_refusal(
	struct inquiry *inquiry, char **slot, const char *refusal, struct error *error)
{
	struct nbd_text text = { .bytes = refusal, .length = (uint32_t)strlen(refusal) };

	return nbd_offers_set_text(&inquiry->offers, slot, text, error);
}

static const char *export_label(char out[QUOTE_BYTES], const struct nbd_offer *offer)
{
	char quoted[QUOTE_BYTES - 16];

	if (offer->name[0] == '\0') {
		snprintf(out, QUOTE_BYTES, "the default export");
	} else {
		snprintf(out, QUOTE_BYTES, "export \"%s\"",
			log_escape(quoted, sizeof(quoted), offer->name, strlen(offer->name)));
	}
	return out;
}

static int refusal_code(uint32_t type)
{
	switch (type) {
	case NBD_REP_ERR_UNKNOWN:
		return -ENOENT;
	case NBD_REP_ERR_POLICY:
		return -EACCES;
	case NBD_REP_ERR_SHUTDOWN:
		return -ESHUTDOWN;
	default:
		return -EPROTONOSUPPORT;
	}
}

/* Errors that end any conversation, whatever was asked (rules P19, P47). True when it was one. A
 * demand for TLS may also be about one export only (rule P48). */
static bool refusal_is_final(struct inquiry *inquiry, uint32_t type, const char *refusal)
{
	bool about_export = inquiry->option == NBD_OPT_INFO || inquiry->option == NBD_OPT_GO ||
			    inquiry->option == NBD_OPT_LIST_META_CONTEXT;

	if (type == NBD_REP_ERR_SHUTDOWN) {
		error_set(&inquiry->outcome, -ESHUTDOWN, "%s", refusal);
		leave(inquiry);
		return true;
	}
	if (type == NBD_REP_ERR_TLS_REQD && !about_export) {
		error_set(&inquiry->outcome, -EPROTONOSUPPORT,
			"%s, and this version of gmblock does not speak TLS", refusal);
		leave(inquiry);
		return true;
	}
	return false;
}

static int style_refused(
	struct inquiry *inquiry, uint32_t type, const char *refusal, struct error *error)
{
	GMB_UNUSED(error);
	if (type != NBD_REP_ERR_UNSUP) {
		nbd_offers_note(
			&inquiry->offers, "%s: %s", nbd_option_name(inquiry->option), refusal);
	}
	if (inquiry->option == NBD_OPT_EXTENDED_HEADERS) {
		option_begin(inquiry, NBD_OPT_STRUCTURED_REPLY, 0);
	} else {
		after_style(inquiry, NBD_REPLIES_SIMPLE);
	}
	return 0;
}

static int list_refused(
	struct inquiry *inquiry, uint32_t type, const char *refusal, struct error *error)
{
	GMB_UNUSED(error);
	if (inquiry->listing_rest) {
		nbd_offers_note(&inquiry->offers, "LIST: %s", refusal);
	} else {
		error_set(&inquiry->outcome, refusal_code(type),
			"the server does not list its exports: %s", refusal);
	}
	leave(inquiry);
	return 0;
}

static int export_refused(
	struct inquiry *inquiry, uint32_t type, const char *refusal, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	char label[QUOTE_BYTES];
	int err;

	if (type == NBD_REP_ERR_UNSUP && inquiry->offers.style == NBD_REPLIES_EXTENDED) {
		return error_set(error, -EPROTO,
			"the server accepted extended headers and does not know %s (rule P108)",
			nbd_option_name(inquiry->option));
	}
	if (type == NBD_REP_ERR_UNSUP && inquiry->list) {
		nbd_offers_note(&inquiry->offers,
			"the server does not know INFO, so that only names can be listed");
		leave(inquiry);
		return 0;
	}
	if (type == NBD_REP_ERR_UNSUP) {
		ask_export_name(inquiry);
		return 0;
	}
	err = keep_refusal(inquiry, &offer->refusal, refusal, error);
	if (err != 0) {
		return err;
	}
	offer->known = false;
	nbd_offers_review(&inquiry->offers, offer);
	if (inquiry->list) {
		next_export(inquiry);
		return 0;
	}
	error_set(&inquiry->outcome, refusal_code(type), "%s: %s", export_label(label, offer),
		refusal);
	if (type == NBD_REP_ERR_UNKNOWN) {
		inquiry->listing_rest = true;
		option_begin(inquiry, NBD_OPT_LIST, 0);
	} else {
		leave(inquiry);
	}
	return 0;
}

static int contexts_refused(
	struct inquiry *inquiry, uint32_t type, const char *refusal, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	int err = keep_refusal(inquiry, &offer->contexts_refusal, refusal, error);

	GMB_UNUSED(type);
	if (err != 0) {
		return err;
	}
	nbd_offers_drop_contexts(&inquiry->offers, offer);
	after_contexts(inquiry);
	return 0;
}

static int handle_error(struct inquiry *inquiry, uint32_t type, const uint8_t *payload,
	uint32_t length, struct error *error)
{
	char refusal[REFUSAL_BYTES];
	struct nbd_text text;
	int err = nbd_parse_error_text(payload, length, &text, error);

	if (err != 0) {
		return err;
	}
	refusal_text(refusal, type, text);
	if (inquiry->option == NBD_OPT_ABORT) {
		finish(inquiry);
		return 0;
	}
	if (refusal_is_final(inquiry, type, refusal)) {
		return 0;
	}
	switch (inquiry->option) {
	case NBD_OPT_EXTENDED_HEADERS:
	case NBD_OPT_STRUCTURED_REPLY:
		return style_refused(inquiry, type, refusal, error);
	case NBD_OPT_LIST:
		return list_refused(inquiry, type, refusal, error);
	case NBD_OPT_LIST_META_CONTEXT:
		return contexts_refused(inquiry, type, refusal, error);
	default:
		GMB_ASSERT(inquiry->option == NBD_OPT_INFO || inquiry->option == NBD_OPT_GO);
		return export_refused(inquiry, type, refusal, error);
	}
}

/* --- acceptance ---------------------------------------------------------------------------- */

/* nbd-server, for one, opens the export only for GO and answers INFO with a size of 0. */
static void note_empty(struct inquiry *inquiry)
{
	char label[QUOTE_BYTES];

	nbd_offers_note(&inquiry->offers,
		"%s: some servers say 0 bytes in a list; to be sure, ask for it alone",
		export_label(label, current_offer(inquiry)));
}

static int handle_ack(struct inquiry *inquiry, struct error *error)
{
	switch (inquiry->option) {
	case NBD_OPT_EXTENDED_HEADERS:
		after_style(inquiry, NBD_REPLIES_EXTENDED);
		return 0;
	case NBD_OPT_STRUCTURED_REPLY:
		after_style(inquiry, NBD_REPLIES_STRUCTURED);
		return 0;
	case NBD_OPT_LIST:
		inquiry->offers.listed = true;
		if (inquiry->listing_rest || inquiry->offers.count == 0) {
			leave(inquiry);
		} else {
			ask_export(inquiry);
		}
		return 0;
	case NBD_OPT_LIST_META_CONTEXT:
		current_offer(inquiry)->contexts_known = true;
		after_contexts(inquiry);
		return 0;
	case NBD_OPT_INFO:
	case NBD_OPT_GO:
		if (!inquiry->got_export) {
			return error_set(error, -EPROTO,
				"the server ended %s without telling the export's size (rule P23)",
				nbd_option_name(inquiry->option));
		}
		nbd_offers_review(&inquiry->offers, current_offer(inquiry));
		if (inquiry->list && current_offer(inquiry)->size == 0) {
			note_empty(inquiry);
		}
		after_info(inquiry);
		return 0;
	default:
		GMB_ASSERT(inquiry->option == NBD_OPT_ABORT);
		finish(inquiry);
		return 0;
	}
}

static int handle_server(
	struct inquiry *inquiry, const uint8_t *payload, uint32_t length, struct error *error)
{
	struct nbd_text name;
	struct nbd_text description;
	int err = nbd_parse_server(payload, length, &name, &description, error);

	if (err != 0) {
		return err;
	}
	return nbd_offers_add(&inquiry->offers, name, description, error);
}

static int handle_context(
	struct inquiry *inquiry, const uint8_t *payload, uint32_t length, struct error *error)
{
	struct nbd_text name;
	uint32_t id;
	int err = nbd_parse_context(payload, length, &id, &name, error);

	if (err != 0) {
		return err;
	}
	return nbd_offers_add_context(&inquiry->offers, current_offer(inquiry), name, error);
}

static int handle_info(
	struct inquiry *inquiry, const uint8_t *payload, uint32_t length, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	struct nbd_info_item item;
	int err = nbd_parse_info(payload, length, &item, error);

	if (err != 0) {
		return err;
	}
	if (inquiry->replies > INFO_REPLIES_MAX) {
		return error_set(error, -EPROTO,
			"the server sends information without end: more than %d replies to one %s "
			"(rule P11)",
			INFO_REPLIES_MAX, nbd_option_name(inquiry->option));
	}
	switch (item.type) {
	case NBD_INFO_EXPORT:
		inquiry->got_export = true;
		offer->known = true;
		offer->size = item.size;
		offer->flags = item.flags;
		return 0;
	case NBD_INFO_NAME:
		return nbd_offers_set_text(
			&inquiry->offers, &offer->canonical_name, item.text, error);
	case NBD_INFO_DESCRIPTION:
		return nbd_offers_set_text(&inquiry->offers, &offer->description, item.text, error);
	case NBD_INFO_BLOCK_SIZE:
		offer->sizes_known = true;
		offer->sizes = item.sizes;
		return 0;
	default:
		return 0;
	}
}

/* --- receiving ----------------------------------------------------------------------------- */

static int handle_reply(struct inquiry *inquiry, struct error *error)
{
	const uint8_t *payload = inquiry->input;
	uint32_t length = inquiry->reply.length;
	uint32_t type = inquiry->reply.type;
	uint32_t option = inquiry->option;

	expect(inquiry, INQUIRY_REPLY, NBD_REPLY_HEADER_BYTES);
	inquiry->replies++;
	if ((type & NBD_REP_ERROR_BIT) != 0) {
		return handle_error(inquiry, type, payload, length, error);
	}
	if (type == NBD_REP_ACK) {
		return handle_ack(inquiry, error);
	}
	if (type == NBD_REP_SERVER && option == NBD_OPT_LIST) {
		return handle_server(inquiry, payload, length, error);
	}
	if (type == NBD_REP_INFO && (option == NBD_OPT_INFO || option == NBD_OPT_GO)) {
		return handle_info(inquiry, payload, length, error);
	}
	if (type == NBD_REP_META_CONTEXT && option == NBD_OPT_LIST_META_CONTEXT) {
		return handle_context(inquiry, payload, length, error);
	}
	return error_set(error, -EPROTO,
		"the server answered %s with a reply of type %u, which does not belong there (rule "
		"P11)",
		nbd_option_name(option), type);
}

static int handle_greeting(struct inquiry *inquiry, struct error *error)
{
	uint16_t flags = nbd_parse_greeting(inquiry->input);

	inquiry->offers.fixed = (flags & NBD_FLAG_FIXED_NEWSTYLE) != 0;
	inquiry->offers.no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	if (!inquiry->offers.fixed && inquiry->list) {
		return error_set(error, -EPROTONOSUPPORT,
			"the server speaks the first newstyle protocol, not the fixed one: it has "
			"no list of exports (rule P3)");
	}
	/* Rule P5: only the flags we know, and only when they were offered. */
	output_u32(inquiry, flags & (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES));
	if (inquiry->offers.fixed) {
		option_begin(inquiry, NBD_OPT_EXTENDED_HEADERS, 0);
	} else {
		ask_export_name(inquiry);
	}
	return 0;
}

static int handle_old_reply(struct inquiry *inquiry, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	int err = nbd_parse_old_reply(inquiry->input, &offer->size, &offer->flags, error);

	if (err != 0) {
		return err;
	}
	offer->known = true;
	nbd_offers_review(&inquiry->offers, offer);
	disconnect(inquiry);
	return 0;
}

/* A whole message is in the input buffer. */
static int handle_message(struct inquiry *inquiry, struct error *error)
{
	int err;

	switch (inquiry->state) {
	case INQUIRY_MAGIC:
		expect(inquiry, INQUIRY_STYLE, 16);
		return nbd_parse_magic(inquiry->input, error);
	case INQUIRY_STYLE:
		expect(inquiry, INQUIRY_GREETING, NBD_GREETING_BYTES);
		return nbd_parse_style(inquiry->input, error);
	case INQUIRY_GREETING:
		inquiry->input_bytes = 0;
		return handle_greeting(inquiry, error);
	case INQUIRY_REPLY:
		inquiry->input_bytes = 0;
		err = nbd_parse_reply_header(
			inquiry->input, inquiry->option, &inquiry->reply, error);
		if (err != 0) {
			return err;
		}
		expect(inquiry, INQUIRY_REPLY_PAYLOAD, inquiry->reply.length);
		return 0;
	case INQUIRY_REPLY_PAYLOAD:
		inquiry->input_bytes = 0;
		return handle_reply(inquiry, error);
	case INQUIRY_OLD_REPLY:
		inquiry->input_bytes = 0;
		return handle_old_reply(inquiry, error);
	case INQUIRY_FINISHED:
		break;
	}
	return 0;
}

int inquiry_input(struct inquiry *inquiry, const void *bytes, size_t len, struct error *error)
{
	const uint8_t *from = bytes;
	size_t taken = 0;

	while (inquiry->output_bytes == 0 && inquiry->state != INQUIRY_FINISHED) {
		size_t step = MIN(inquiry->input_wanted - inquiry->input_bytes, len - taken);
		int err;

		if (step > 0) {
			memcpy(inquiry->input + inquiry->input_bytes, from + taken, step);
		}
		inquiry->input_bytes += step;
		taken += step;
		if (inquiry->input_bytes < inquiry->input_wanted) {
			break;
		}
		err = handle_message(inquiry, error);
		if (err != 0) {
			return err;
		}
	}
	return (int)taken;
}

int inquiry_end_of_stream(struct inquiry *inquiry, struct error *error)
{
	if (inquiry->state == INQUIRY_FINISHED) {
		return 0;
	}
	if (inquiry->option == NBD_OPT_ABORT) {
		finish(inquiry);
		return 0;
	}
	if (inquiry->state == INQUIRY_OLD_REPLY && inquiry->input_bytes == 0) {
		char label[QUOTE_BYTES];

		return error_set(error, -ENOENT,
			"%s: the server closed the connection, the only way the option EXPORT_NAME "
			"has to refuse an export (rule P31)",
			export_label(label, current_offer(inquiry)));
	}
	if (inquiry->state <= INQUIRY_GREETING && inquiry->input_bytes == 0) {
		return error_set(error, -EPROTO,
			"the server closed the connection without a word: it may be at its limit "
			"of clients, or refuse this address (rule P4)");
	}
	return error_set(error, -EPROTO,
		"the server closed the connection in the middle of %s (rule P129)",
		inquiry_awaits(inquiry));
}

/* --- life ---------------------------------------------------------------------------------- */

int inquiry_create(
	const struct inquiry_options *options, struct inquiry **inquiry_out, struct error *error)
{
	struct inquiry *inquiry = calloc(1, sizeof(*inquiry));
	size_t name_bytes = strlen(options->export_name);
	int err = 0;

	if (inquiry == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	nbd_offers_init(&inquiry->offers);
	inquiry->list = options->list;
	expect(inquiry, INQUIRY_MAGIC, 8);
	if (name_bytes > NBD_STRING_BYTES_MAX) {
		err = error_set(error, -EINVAL,
			"the export name has %zu bytes; NBD allows at most %d (rule P1)",
			name_bytes, NBD_STRING_BYTES_MAX);
	} else if (!options->list) {
		struct nbd_text name = { .bytes = options->export_name,
			.length = (uint32_t)name_bytes };

		err = nbd_offers_add(&inquiry->offers, name, (struct nbd_text){ 0 }, error);
	}
	if (err != 0) {
		inquiry_destroy(inquiry);
		return err;
	}
	*inquiry_out = inquiry;
	return 0;
}

void inquiry_destroy(struct inquiry *inquiry)
{
	if (inquiry != NULL) {
		nbd_offers_fini(&inquiry->offers);
		free(inquiry);
	}
}

const uint8_t *inquiry_output(const struct inquiry *inquiry, size_t *bytes)
{
	*bytes = inquiry->output_bytes;
	return inquiry->output;
}

void inquiry_sent(struct inquiry *inquiry)
{
	inquiry->output_bytes = 0;
}

bool inquiry_is_finished(const struct inquiry *inquiry)
{
	return inquiry->state == INQUIRY_FINISHED && inquiry->output_bytes == 0;
}

int inquiry_outcome(const struct inquiry *inquiry, struct error *error)
{
	GMB_ASSERT(inquiry_is_finished(inquiry));
	if (inquiry->outcome.code != 0 && error != NULL) {
		*error = inquiry->outcome;
	}
	return inquiry->outcome.code;
}

const char *inquiry_awaits(const struct inquiry *inquiry)
{
	static const char *const replies[] = {
		[NBD_OPT_EXPORT_NAME] = "its answer to EXPORT_NAME",
		[NBD_OPT_ABORT] = "its answer to ABORT",
		[NBD_OPT_LIST] = "its answer to LIST",
		[NBD_OPT_INFO] = "its answer to INFO",
		[NBD_OPT_GO] = "its answer to GO",
		[NBD_OPT_STRUCTURED_REPLY] = "its answer to STRUCTURED_REPLY",
		[NBD_OPT_LIST_META_CONTEXT] = "its answer to LIST_META_CONTEXT",
		[NBD_OPT_EXTENDED_HEADERS] = "its answer to EXTENDED_HEADERS",
	};

	if (inquiry->state <= INQUIRY_GREETING) {
		return "its greeting";
	}
	GMB_ASSERT(inquiry->option < ARRAY_COUNT(replies) && replies[inquiry->option] != NULL);
	return replies[inquiry->option];
}

const struct nbd_offers *inquiry_offers(const struct inquiry *inquiry)
{
	return &inquiry->offers;
}
