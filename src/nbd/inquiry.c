// SPDX-License-Identifier: Apache-2.0
#include "nbd/inquiry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/dialogue.h"

struct inquiry {
	struct dialogue talk;
	bool list;	   /* all exports */
	bool listing_rest; /* asked only because the export is missing */
	bool got_export;   /* INFO_EXPORT came for the option in progress */
	uint32_t current;  /* index of the offer in progress */
	struct nbd_offers offers;
	struct error outcome; /* code 0 = nothing refused */
};

/* --- sending ------------------------------------------------------------------------------- */

static struct inquiry *inquiry_of(struct dialogue *talk)
{
	return container_of(talk, struct inquiry, talk);
}

static struct nbd_offer *current_offer(struct inquiry *inquiry)
{
	GMB_ASSERT(inquiry->current < inquiry->offers.count);
	return &inquiry->offers.list[inquiry->current];
}

static void ask_info(struct inquiry *inquiry, uint32_t option)
{
	inquiry->got_export = false;
	dialogue_ask_info(&inquiry->talk, option, current_offer(inquiry)->name);
}

static void ask_contexts(struct inquiry *inquiry)
{
	dialogue_ask_contexts(
		&inquiry->talk, NBD_OPT_LIST_META_CONTEXT, current_offer(inquiry)->name, 0, 0);
}

/* Leaves the transmission phase that GO or EXPORT_NAME began: DISC has no reply (rule P80). */
static void disconnect(struct inquiry *inquiry)
{
	if (inquiry->offers.style == NBD_REPLIES_EXTENDED) {
		struct nbd_wire_extended_request request = {
			.magic = be32_make(NBD_EXTENDED_REQUEST_MAGIC),
			.type = be16_make(NBD_CMD_DISC),
		};

		dialogue_append(&inquiry->talk, &request, sizeof(request));
	} else {
		struct nbd_wire_request request = {
			.magic = be32_make(NBD_REQUEST_MAGIC),
			.type = be16_make(NBD_CMD_DISC),
		};

		dialogue_append(&inquiry->talk, &request, sizeof(request));
	}
	dialogue_finish(&inquiry->talk);
}

static void leave(struct inquiry *inquiry)
{
	dialogue_begin(&inquiry->talk, NBD_OPT_ABORT, 0);
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
		dialogue_begin(&inquiry->talk, NBD_OPT_LIST, 0);
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

static int keep_refusal(
	struct inquiry *inquiry, char **slot, const char *refusal, struct error *error)
{
	struct nbd_text text = { .bytes = refusal, .length = (uint32_t)strlen(refusal) };

	return nbd_offers_set_text(&inquiry->offers, slot, text, error);
}

/* Errors that end any conversation, whatever was asked (rules P19, P47). True when it was one. A
 * demand for TLS may also be about one export only (rule P48). */
static bool refusal_is_final(struct inquiry *inquiry, uint32_t type, const char *refusal)
{
	bool about_export = inquiry->talk.option == NBD_OPT_INFO ||
			    inquiry->talk.option == NBD_OPT_GO ||
			    inquiry->talk.option == NBD_OPT_LIST_META_CONTEXT;

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
			&inquiry->offers, "%s: %s", nbd_option_name(inquiry->talk.option), refusal);
	}
	if (inquiry->talk.option == NBD_OPT_EXTENDED_HEADERS) {
		dialogue_begin(&inquiry->talk, NBD_OPT_STRUCTURED_REPLY, 0);
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
		error_set(&inquiry->outcome, dialogue_refusal_code(type),
			"the server does not list its exports: %s", refusal);
	}
	leave(inquiry);
	return 0;
}

static int export_refused(
	struct inquiry *inquiry, uint32_t type, const char *refusal, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	char label[DIALOGUE_LABEL_BYTES];
	int err;

	if (type == NBD_REP_ERR_UNSUP && inquiry->offers.style == NBD_REPLIES_EXTENDED) {
		return error_set(error, -EPROTO,
			"the server accepted extended headers and does not know %s (rule P108)",
			nbd_option_name(inquiry->talk.option));
	}
	if (type == NBD_REP_ERR_UNSUP && inquiry->list) {
		nbd_offers_note(&inquiry->offers,
			"the server does not know INFO, so that only names can be listed");
		leave(inquiry);
		return 0;
	}
	if (type == NBD_REP_ERR_UNSUP) {
		dialogue_ask_export_name(
			&inquiry->talk, current_offer(inquiry)->name, inquiry->offers.no_zeroes);
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
	error_set(&inquiry->outcome, dialogue_refusal_code(type), "%s: %s",
		dialogue_export_label(label, offer->name), refusal);
	if (type == NBD_REP_ERR_UNKNOWN) {
		inquiry->listing_rest = true;
		dialogue_begin(&inquiry->talk, NBD_OPT_LIST, 0);
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
	char refusal[DIALOGUE_REFUSAL_BYTES];
	struct nbd_text text;
	int err = nbd_parse_error_text(payload, length, &text, error);

	if (err != 0) {
		return err;
	}
	dialogue_refusal(refusal, type, text);
	if (inquiry->talk.option == NBD_OPT_ABORT) {
		dialogue_finish(&inquiry->talk);
		return 0;
	}
	if (refusal_is_final(inquiry, type, refusal)) {
		return 0;
	}
	switch (inquiry->talk.option) {
	case NBD_OPT_EXTENDED_HEADERS:
	case NBD_OPT_STRUCTURED_REPLY:
		return style_refused(inquiry, type, refusal, error);
	case NBD_OPT_LIST:
		return list_refused(inquiry, type, refusal, error);
	case NBD_OPT_LIST_META_CONTEXT:
		return contexts_refused(inquiry, type, refusal, error);
	default:
		GMB_ASSERT(
			inquiry->talk.option == NBD_OPT_INFO || inquiry->talk.option == NBD_OPT_GO);
		return export_refused(inquiry, type, refusal, error);
	}
}

/* --- acceptance ---------------------------------------------------------------------------- */

/* nbd-server, for one, opens the export only for GO and answers INFO with a size of 0. */
static void note_empty(struct inquiry *inquiry)
{
	char label[DIALOGUE_LABEL_BYTES];

	nbd_offers_note(&inquiry->offers,
		"%s: some servers say 0 bytes in a list; to be sure, ask for it alone",
		dialogue_export_label(label, current_offer(inquiry)->name));
}

static int handle_ack(struct inquiry *inquiry, struct error *error)
{
	switch (inquiry->talk.option) {
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
				nbd_option_name(inquiry->talk.option));
		}
		nbd_offers_review(&inquiry->offers, current_offer(inquiry));
		if (inquiry->list && current_offer(inquiry)->size == 0) {
			note_empty(inquiry);
		}
		after_info(inquiry);
		return 0;
	default:
		GMB_ASSERT(inquiry->talk.option == NBD_OPT_ABORT);
		dialogue_finish(&inquiry->talk);
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

static int handle_info(struct inquiry *inquiry, const uint8_t *payload, struct error *error)
{
	struct nbd_offer *offer = current_offer(inquiry);
	struct nbd_info_item item;
	int err = dialogue_take_info(&inquiry->talk, payload, &item, error);

	if (err != 0) {
		return err;
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

static int handle_reply(struct dialogue *talk, const uint8_t *payload, struct error *error)
{
	struct inquiry *inquiry = inquiry_of(talk);
	uint32_t length = talk->reply.length;
	uint32_t type = talk->reply.type;
	uint32_t option = talk->option;

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
		return handle_info(inquiry, payload, error);
	}
	if (type == NBD_REP_META_CONTEXT && option == NBD_OPT_LIST_META_CONTEXT) {
		return handle_context(inquiry, payload, length, error);
	}
	return dialogue_misplaced(talk, error);
}

static int handle_greeting(struct dialogue *talk, uint16_t flags, struct error *error)
{
	struct inquiry *inquiry = inquiry_of(talk);

	inquiry->offers.fixed = (flags & NBD_FLAG_FIXED_NEWSTYLE) != 0;
	inquiry->offers.no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	if (!inquiry->offers.fixed && inquiry->list) {
		return error_set(error, -EPROTONOSUPPORT,
			"the server speaks the first newstyle protocol, not the fixed one: it has "
			"no list of exports (rule P3)");
	}
	if (inquiry->offers.fixed) {
		dialogue_begin(talk, NBD_OPT_EXTENDED_HEADERS, 0);
	} else {
		dialogue_ask_export_name(
			talk, current_offer(inquiry)->name, inquiry->offers.no_zeroes);
	}
	return 0;
}

static int handle_old_reply(
	struct dialogue *talk, uint64_t size, uint16_t flags, struct error *error)
{
	struct inquiry *inquiry = inquiry_of(talk);
	struct nbd_offer *offer = current_offer(inquiry);

	GMB_UNUSED(error);
	offer->size = size;
	offer->flags = flags;
	offer->known = true;
	nbd_offers_review(&inquiry->offers, offer);
	disconnect(inquiry);
	return 0;
}

static const struct dialogue_handler inquiry_handler = {
	.greeting = handle_greeting,
	.reply = handle_reply,
	.old_reply = handle_old_reply,
};

int inquiry_input(struct inquiry *inquiry, const void *bytes, size_t len, struct error *error)
{
	return dialogue_input(&inquiry->talk, bytes, len, error);
}

int inquiry_end_of_stream(struct inquiry *inquiry, struct error *error)
{
	if (inquiry->talk.state == DIALOGUE_FINISHED) {
		return 0;
	}
	if (inquiry->talk.option == NBD_OPT_ABORT) {
		dialogue_finish(&inquiry->talk);
		return 0;
	}
	return dialogue_cut_off(
		&inquiry->talk, inquiry->list ? "" : inquiry->offers.list[0].name, error);
}

/* --- life ---------------------------------------------------------------------------------- */

int inquiry_create(
	const struct inquiry_options *options, struct inquiry **inquiry_out, struct error *error)
{
	struct inquiry *inquiry = calloc(1, sizeof(*inquiry));
	int err;

	if (inquiry == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	nbd_offers_init(&inquiry->offers);
	inquiry->list = options->list;
	dialogue_init(&inquiry->talk, &inquiry_handler);
	err = dialogue_check_name(options->export_name, error);
	if (err == 0 && !options->list) {
		struct nbd_text name = { .bytes = options->export_name,
			.length = (uint32_t)strlen(options->export_name) };

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
	*bytes = inquiry->talk.output_bytes;
	return inquiry->talk.output;
}

void inquiry_sent(struct inquiry *inquiry)
{
	inquiry->talk.output_bytes = 0;
}

bool inquiry_is_finished(const struct inquiry *inquiry)
{
	return dialogue_is_finished(&inquiry->talk);
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
	return dialogue_awaits(&inquiry->talk);
}

const struct nbd_offers *inquiry_offers(const struct inquiry *inquiry)
{
	return &inquiry->offers;
}
