// SPDX-License-Identifier: Apache-2.0
#include "nbd/dialogue.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

_Static_assert(NBD_OLD_REPLY_BYTES + NBD_OLD_REPLY_ZEROES <= NBD_REPLY_PAYLOAD_BYTES_MAX, "input");

static void expect(struct dialogue *dialogue, enum dialogue_state state, size_t bytes)
{
	dialogue->state = state;
	dialogue->input_wanted = bytes;
}

void dialogue_init(struct dialogue *dialogue, const struct dialogue_handler *handler)
{
	dialogue->handler = handler;
	dialogue->option = 0;
	dialogue->replies = 0;
	dialogue->input_bytes = 0;
	dialogue->output_bytes = 0;
	expect(dialogue, DIALOGUE_MAGIC, 8);
}

/* --- saying -------------------------------------------------------------------------------- */

void dialogue_append(struct dialogue *dialogue, const void *bytes, size_t len)
{
	GMB_ASSERT(len <= sizeof(dialogue->output) - dialogue->output_bytes);
	if (len > 0) {
		memcpy(dialogue->output + dialogue->output_bytes, bytes, len);
		dialogue->output_bytes += len;
	}
}

void dialogue_append_u32(struct dialogue *dialogue, uint32_t value)
{
	struct be32 wire = be32_make(value);

	dialogue_append(dialogue, &wire, sizeof(wire));
}

void dialogue_append_u16(struct dialogue *dialogue, uint16_t value)
{
	struct be16 wire = be16_make(value);

	dialogue_append(dialogue, &wire, sizeof(wire));
}

void dialogue_begin(struct dialogue *dialogue, uint32_t option, size_t data_bytes)
{
	struct nbd_wire_option header = {
		.magic = be64_make(NBD_OPTION_MAGIC),
		.option = be32_make(option),
		.length = be32_make((uint32_t)data_bytes),
	};

	dialogue->option = option;
	dialogue->replies = 0;
	dialogue_append(dialogue, &header, sizeof(header));
	expect(dialogue, DIALOGUE_REPLY, NBD_REPLY_HEADER_BYTES);
}

void dialogue_ask_info(struct dialogue *dialogue, uint32_t option, const char *name)
{
	size_t name_bytes = strlen(name);

	dialogue_begin(dialogue, option, 4 + name_bytes + 2 + 2 * DIALOGUE_INFO_REQUESTS);
	dialogue_append_u32(dialogue, (uint32_t)name_bytes);
	dialogue_append(dialogue, name, name_bytes);
	dialogue_append_u16(dialogue, DIALOGUE_INFO_REQUESTS);
	dialogue_append_u16(dialogue, NBD_INFO_NAME);
	dialogue_append_u16(dialogue, NBD_INFO_DESCRIPTION);
	dialogue_append_u16(dialogue, NBD_INFO_BLOCK_SIZE);
}

void dialogue_ask_contexts(struct dialogue *dialogue, uint32_t option, const char *name,
	uint32_t query_count, size_t queries_bytes)
{
	size_t name_bytes = strlen(name);

	dialogue_begin(dialogue, option, 4 + name_bytes + 4 + queries_bytes);
	dialogue_append_u32(dialogue, (uint32_t)name_bytes);
	dialogue_append(dialogue, name, name_bytes);
	dialogue_append_u32(dialogue, query_count);
}

void dialogue_ask_export_name(struct dialogue *dialogue, const char *name, bool no_zeroes)
{
	dialogue_begin(dialogue, NBD_OPT_EXPORT_NAME, strlen(name));
	dialogue_append(dialogue, name, strlen(name));
	expect(dialogue, DIALOGUE_OLD_REPLY,
		NBD_OLD_REPLY_BYTES + (no_zeroes ? 0 : NBD_OLD_REPLY_ZEROES));
}

void dialogue_finish(struct dialogue *dialogue)
{
	expect(dialogue, DIALOGUE_FINISHED, 0);
}

/* --- hearing ------------------------------------------------------------------------------- */

static int handle_greeting(struct dialogue *dialogue, struct error *error)
{
	uint16_t flags = nbd_parse_greeting(dialogue->input);

	/* Rule P5: only the flags we know, and only when they were offered. */
	dialogue_append_u32(dialogue, flags & (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES));
	return dialogue->handler->greeting(dialogue, flags, error);
}

/* A whole message is in the input buffer. */
static int handle_message(struct dialogue *dialogue, struct error *error)
{
	uint64_t size;
	uint16_t flags;
	int err;

	switch (dialogue->state) {
	case DIALOGUE_MAGIC:
		expect(dialogue, DIALOGUE_STYLE, 16);
		return nbd_parse_magic(dialogue->input, error);
	case DIALOGUE_STYLE:
		expect(dialogue, DIALOGUE_GREETING, NBD_GREETING_BYTES);
		return nbd_parse_style(dialogue->input, error);
	case DIALOGUE_GREETING:
		dialogue->input_bytes = 0;
		return handle_greeting(dialogue, error);
	case DIALOGUE_REPLY:
		dialogue->input_bytes = 0;
		err = nbd_parse_reply_header(
			dialogue->input, dialogue->option, &dialogue->reply, error);
		if (err != 0) {
			return err;
		}
		expect(dialogue, DIALOGUE_REPLY_PAYLOAD, dialogue->reply.length);
		return 0;
	case DIALOGUE_REPLY_PAYLOAD:
		dialogue->input_bytes = 0;
		dialogue->replies++;
		expect(dialogue, DIALOGUE_REPLY, NBD_REPLY_HEADER_BYTES);
		return dialogue->handler->reply(dialogue, dialogue->input, error);
	case DIALOGUE_OLD_REPLY:
		dialogue->input_bytes = 0;
		err = nbd_parse_old_reply(dialogue->input, &size, &flags, error);
		if (err != 0) {
			return err;
		}
		return dialogue->handler->old_reply(dialogue, size, flags, error);
	case DIALOGUE_FINISHED:
		break;
	}
	return 0;
}

int dialogue_input(struct dialogue *dialogue, const void *bytes, size_t len, struct error *error)
{
	const uint8_t *from = bytes;
	size_t taken = 0;

	while (dialogue->output_bytes == 0 && dialogue->state != DIALOGUE_FINISHED) {
		size_t step = MIN(dialogue->input_wanted - dialogue->input_bytes, len - taken);
		int err;

		if (step > 0) {
			memcpy(dialogue->input + dialogue->input_bytes, from + taken, step);
		}
		dialogue->input_bytes += step;
		taken += step;
		if (dialogue->input_bytes < dialogue->input_wanted) {
			break;
		}
		err = handle_message(dialogue, error);
		if (err != 0) {
			return err;
		}
	}
	return (int)taken;
}

int dialogue_cut_off(const struct dialogue *dialogue, const char *name, struct error *error)
{
	if (dialogue->state == DIALOGUE_OLD_REPLY && dialogue->input_bytes == 0) {
		char label[DIALOGUE_LABEL_BYTES];

		return error_set(error, -ENOENT,
			"%s: the server closed the connection, the only way the option EXPORT_NAME "
			"has to refuse an export (rule P31)",
			dialogue_export_label(label, name));
	}
	if (dialogue->state <= DIALOGUE_GREETING && dialogue->input_bytes == 0) {
		return error_set(error, -EPROTO,
			"the server closed the connection without a word: it may be at its limit "
			"of clients, or refuse this address (rule P4)");
	}
	return error_set(error, -EPROTO,
		"the server closed the connection in the middle of %s (rule P129)",
		dialogue_awaits(dialogue));
}

bool dialogue_is_finished(const struct dialogue *dialogue)
{
	return dialogue->state == DIALOGUE_FINISHED && dialogue->output_bytes == 0;
}

const char *dialogue_awaits(const struct dialogue *dialogue)
{
	static const char *const replies[] = {
		[NBD_OPT_EXPORT_NAME] = "its answer to EXPORT_NAME",
		[NBD_OPT_ABORT] = "its answer to ABORT",
		[NBD_OPT_LIST] = "its answer to LIST",
		[NBD_OPT_INFO] = "its answer to INFO",
		[NBD_OPT_GO] = "its answer to GO",
		[NBD_OPT_STRUCTURED_REPLY] = "its answer to STRUCTURED_REPLY",
		[NBD_OPT_LIST_META_CONTEXT] = "its answer to LIST_META_CONTEXT",
		[NBD_OPT_SET_META_CONTEXT] = "its answer to SET_META_CONTEXT",
		[NBD_OPT_EXTENDED_HEADERS] = "its answer to EXTENDED_HEADERS",
	};

	if (dialogue->state <= DIALOGUE_GREETING) {
		return "its greeting";
	}
	GMB_ASSERT(dialogue->option < ARRAY_COUNT(replies) && replies[dialogue->option] != NULL);
	return replies[dialogue->option];
}

int dialogue_misplaced(const struct dialogue *dialogue, struct error *error)
{
	return error_set(error, -EPROTO,
		"the server answered %s with a reply of type %u, which does not belong there (rule "
		"P11)",
		nbd_option_name(dialogue->option), dialogue->reply.type);
}

int dialogue_check_name(const char *name, struct error *error)
{
	size_t bytes = strlen(name);

	return bytes <= NBD_STRING_BYTES_MAX
		       ? 0
		       : error_set(error, -EINVAL,
				 "the export name has %zu bytes; NBD allows at most %d (rule P1)",
				 bytes, NBD_STRING_BYTES_MAX);
}

int dialogue_take_info(const struct dialogue *dialogue, const uint8_t *payload,
	struct nbd_info_item *item, struct error *error)
{
	int err = nbd_parse_info(payload, dialogue->reply.length, item, error);

	if (err == 0 && dialogue->replies > DIALOGUE_INFO_REPLIES_MAX) {
		err = error_set(error, -EPROTO,
			"the server sends information without end: more than %d replies to one %s "
			"(rule P11)",
			DIALOGUE_INFO_REPLIES_MAX, nbd_option_name(dialogue->option));
	}
	return err;
}

/* --- words --------------------------------------------------------------------------------- */

const char *dialogue_refusal(char out[DIALOGUE_REFUSAL_BYTES], uint32_t type, struct nbd_text text)
{
	char quoted[DIALOGUE_LABEL_BYTES];

	if (text.length == 0) {
		snprintf(out, DIALOGUE_REFUSAL_BYTES, "%s", nbd_reply_error_name(type));
	} else {
		snprintf(out, DIALOGUE_REFUSAL_BYTES, "%s (it says: \"%s\")",
			nbd_reply_error_name(type),
			log_escape(quoted, sizeof(quoted), text.bytes, text.length));
	}
	return out;
}

int dialogue_refusal_code(uint32_t type)
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

const char *dialogue_export_label(char out[DIALOGUE_LABEL_BYTES], const char *name)
{
	char quoted[DIALOGUE_LABEL_BYTES - 16];

	if (name[0] == '\0') {
		snprintf(out, DIALOGUE_LABEL_BYTES, "the default export");
	} else {
		snprintf(out, DIALOGUE_LABEL_BYTES, "export \"%s\"",
			log_escape(quoted, sizeof(quoted), name, strlen(name)));
	}
	return out;
}
