// SPDX-License-Identifier: Apache-2.0
#include "nbd/negotiation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/takeover.h"

enum {
	/* Rule P62: what a client assumes of a server that tells no block sizes. */
	BLOCK_MINIMUM_UNTOLD = 512,
	BLOCK_PREFERRED_UNTOLD = 4096,
	PAYLOAD_MAX_UNTOLD = 32 << 20,
	CONTEXT_REPLIES_MAX = 16,
	LIST_REPLIES_MAX = 1024, /* of contexts that nobody asked for */
};

/* The queries of ask_takeover(), of which NBD_CONTEXT_CONNECTION begins the longest: they must fit
 * here, and our own server must take them. */
enum { FENCE_QUERIES_MAX = 2 + NEGOTIATION_INSTEAD_MAX };
_Static_assert(FENCE_QUERIES_MAX *(4 + sizeof(NBD_CONTEXT_CONNECTION) +
				   NEGOTIATION_TOKEN_BYTES_MAX) <= DIALOGUE_QUERIES_BYTES_MAX,
	"output");
_Static_assert(FENCE_QUERIES_MAX <= (int)NBD_CONTEXT_QUERIES_MAX, "number of queries");
_Static_assert(DIALOGUE_DATA_BYTES_MAX <= (int)NBD_OPTION_BYTES_MAX, "length of an option");
_Static_assert(NEGOTIATION_TOKEN_BYTES_MAX <= (int)TAKEOVER_TOKEN_BYTES_MAX, "length of a token");

struct negotiation {
	struct dialogue talk;
	enum nbd_reply_style style_max;
	bool no_zeroes;
	bool got_export; /* INFO_EXPORT came */
	char token[NEGOTIATION_TOKEN_BYTES_MAX];
	char instead[NEGOTIATION_INSTEAD_MAX][NEGOTIATION_TOKEN_BYTES_MAX];
	uint32_t instead_count;
	struct error outcome;
	struct negotiation_facts facts;
};

static struct negotiation *negotiation_of(struct dialogue *talk)
{
	return container_of(talk, struct negotiation, talk);
}

/* --- what comes next ----------------------------------------------------------------------- */

static void leave(struct negotiation *negotiation)
{
	dialogue_begin(&negotiation->talk, NBD_OPT_ABORT, 0);
}

static void ask_go(struct negotiation *negotiation)
{
	negotiation->got_export = false;
	dialogue_ask_info(&negotiation->talk, NBD_OPT_GO, negotiation->facts.name);
}

static size_t query_bytes(const char *kind, const char *token)
{
	return 4 + strlen(kind) + strlen(token);
}

static void append_query(struct dialogue *talk, const char *kind, const char *token)
{
	dialogue_append_u32(talk, (uint32_t)(strlen(kind) + strlen(token)));
	dialogue_append(talk, kind, strlen(kind));
	dialogue_append(talk, token, strlen(token));
}

/* The context must be selected for the name that GO will use (rule P40). */
static void ask_allocation(struct negotiation *negotiation)
{
	struct dialogue *talk = &negotiation->talk;

	dialogue_ask_contexts(talk, NBD_OPT_SET_META_CONTEXT, negotiation->facts.name, 1,
		query_bytes(NBD_CONTEXT_ALLOCATION, ""));
	append_query(talk, NBD_CONTEXT_ALLOCATION, "");
}

/* Says who we are and instead of whom we come, and asks for the epoch. A server that does not know
 * these contexts has none of them to list. */
static void ask_takeover(struct negotiation *negotiation)
{
	struct dialogue *talk = &negotiation->talk;
	size_t bytes = query_bytes(NBD_CONTEXT_EPOCH, "") +
		       query_bytes(NBD_CONTEXT_CONNECTION, negotiation->token);

	for (uint32_t i = 0; i < negotiation->instead_count; i++) {
		bytes += query_bytes(NBD_CONTEXT_REPLACES, negotiation->instead[i]);
	}
	dialogue_ask_contexts(talk, NBD_OPT_LIST_META_CONTEXT, negotiation->facts.name,
		2 + negotiation->instead_count, bytes);
	append_query(talk, NBD_CONTEXT_EPOCH, "");
	append_query(talk, NBD_CONTEXT_CONNECTION, negotiation->token);
	for (uint32_t i = 0; i < negotiation->instead_count; i++) {
		append_query(talk, NBD_CONTEXT_REPLACES, negotiation->instead[i]);
	}
}

static void after_takeover(struct negotiation *negotiation)
{
	if (negotiation->facts.style != NBD_REPLIES_SIMPLE) {
		ask_allocation(negotiation);
	} else {
		ask_go(negotiation);
	}
}

static void after_style(struct negotiation *negotiation, enum nbd_reply_style style)
{
	negotiation->facts.style = style;
	if (negotiation->token[0] != '\0') {
		ask_takeover(negotiation);
	} else {
		after_takeover(negotiation);
	}
}

/* From the greeting, or down from extended headers. */
static void ask_style(struct negotiation *negotiation, enum nbd_reply_style style)
{
	switch (style) {
	case NBD_REPLIES_EXTENDED:
		dialogue_begin(&negotiation->talk, NBD_OPT_EXTENDED_HEADERS, 0);
		break;
	case NBD_REPLIES_STRUCTURED:
		dialogue_begin(&negotiation->talk, NBD_OPT_STRUCTURED_REPLY, 0);
		break;
	case NBD_REPLIES_SIMPLE:
		after_style(negotiation, NBD_REPLIES_SIMPLE);
		break;
	}
}

/* --- refusals ------------------------------------------------------------------------------ */

static int go_refused(
	struct negotiation *negotiation, uint32_t type, const char *refusal, struct error *error)
{
	char label[DIALOGUE_LABEL_BYTES];

	if (type == NBD_REP_ERR_UNSUP && negotiation->facts.style == NBD_REPLIES_EXTENDED) {
		return error_set(error, -EPROTO,
			"the server accepted extended headers and does not know GO (rule P108)");
	}
	if (type == NBD_REP_ERR_UNSUP) {
		dialogue_ask_export_name(
			&negotiation->talk, negotiation->facts.name, negotiation->no_zeroes);
		return 0;
	}
	error_set(&negotiation->outcome, dialogue_refusal_code(type), "%s: %s",
		dialogue_export_label(label, negotiation->facts.name), refusal);
	leave(negotiation);
	return 0;
}

static int handle_error(
	struct negotiation *negotiation, const uint8_t *payload, struct error *error)
{
	const struct nbd_reply_header *reply = &negotiation->talk.reply;
	uint32_t option = negotiation->talk.option;
	char refusal[DIALOGUE_REFUSAL_BYTES];
	struct nbd_text text;
	int err = nbd_parse_error_text(payload, reply->length, &text, error);

	if (err != 0) {
		return err;
	}
	dialogue_refusal(refusal, reply->type, text);
	if (option == NBD_OPT_ABORT) {
		dialogue_finish(&negotiation->talk);
		return 0;
	}
	if (reply->type == NBD_REP_ERR_SHUTDOWN) {
		error_set(&negotiation->outcome, -ESHUTDOWN, "%s", refusal);
		leave(negotiation);
		return 0;
	}
	if (reply->type == NBD_REP_ERR_TLS_REQD) {
		error_set(&negotiation->outcome, -EPROTONOSUPPORT,
			"%s, and this version of gmblock does not speak TLS", refusal);
		leave(negotiation);
		return 0;
	}
	switch (option) {
	case NBD_OPT_EXTENDED_HEADERS:
		ask_style(negotiation, NBD_REPLIES_STRUCTURED);
		return 0;
	case NBD_OPT_STRUCTURED_REPLY:
		ask_style(negotiation, NBD_REPLIES_SIMPLE);
		return 0;
	case NBD_OPT_LIST_META_CONTEXT:
		after_takeover(negotiation);
		return 0;
	case NBD_OPT_SET_META_CONTEXT:
		/* A selection that ended in an error does not count (rule P42). */
		negotiation->facts.allocation = false;
		ask_go(negotiation);
		return 0;
	default:
		GMB_ASSERT(option == NBD_OPT_GO);
		return go_refused(negotiation, reply->type, refusal, error);
	}
}

/* --- acceptance ---------------------------------------------------------------------------- */

static int handle_ack(struct negotiation *negotiation, struct error *error)
{
	switch (negotiation->talk.option) {
	case NBD_OPT_EXTENDED_HEADERS:
		after_style(negotiation, NBD_REPLIES_EXTENDED);
		return 0;
	case NBD_OPT_STRUCTURED_REPLY:
		after_style(negotiation, NBD_REPLIES_STRUCTURED);
		return 0;
	case NBD_OPT_LIST_META_CONTEXT:
		after_takeover(negotiation);
		return 0;
	case NBD_OPT_SET_META_CONTEXT:
		ask_go(negotiation);
		return 0;
	case NBD_OPT_GO:
		if (!negotiation->got_export) {
			return error_set(error, -EPROTO,
				"the server ended GO without telling the export's size (rule P23)");
		}
		dialogue_finish(&negotiation->talk);
		return 0;
	default:
		GMB_ASSERT(negotiation->talk.option == NBD_OPT_ABORT);
		dialogue_finish(&negotiation->talk);
		return 0;
	}
}

static void take_allocation(struct negotiation_facts *facts, uint32_t id, struct nbd_text name)
{
	if (name.length == strlen(NBD_CONTEXT_ALLOCATION) &&
		memcmp(name.bytes, NBD_CONTEXT_ALLOCATION, name.length) == 0) {
		facts->allocation = true;
		facts->allocation_id = id;
	}
}

/* "x-gmblock:epoch=0123456789abcdef", perhaps with ",volatile" after it. */
static void take_epoch(struct negotiation_facts *facts, struct nbd_text name)
{
	char text[64];
	char *end;

	if (name.length >= sizeof(text) || name.length <= strlen(NBD_CONTEXT_EPOCH "=") ||
		memcmp(name.bytes, NBD_CONTEXT_EPOCH "=", strlen(NBD_CONTEXT_EPOCH "=")) != 0) {
		return;
	}
	memcpy(text, name.bytes, name.length);
	text[name.length] = '\0';
	facts->epoch = strtoull(text + strlen(NBD_CONTEXT_EPOCH "="), &end, 16);
	facts->is_volatile = strcmp(end, ",volatile") == 0;
	facts->can_take_over = facts->epoch != 0;
}

/* One that was selected, or one that is listed. */
static int handle_context(
	struct negotiation *negotiation, const uint8_t *payload, struct error *error)
{
	const struct dialogue *talk = &negotiation->talk;
	bool selected = talk->option == NBD_OPT_SET_META_CONTEXT;
	struct nbd_text name;
	uint32_t id;
	int err = nbd_parse_context(payload, talk->reply.length, &id, &name, error);

	if (err != 0) {
		return err;
	}
	if (selected && talk->replies > CONTEXT_REPLIES_MAX) {
		return error_set(error, -EPROTO,
			"the server selects more contexts than were asked for (rule P41)");
	}
	if (talk->replies > LIST_REPLIES_MAX) {
		return error_set(
			error, -EPROTO, "the server lists contexts without end (rule P11)");
	}
	if (selected) {
		take_allocation(&negotiation->facts, id, name);
	} else {
		take_epoch(&negotiation->facts, name);
	}
	return 0;
}

static void text_copy(char out[NBD_STRING_BYTES_MAX + 1], struct nbd_text text)
{
	GMB_ASSERT(text.length <= NBD_STRING_BYTES_MAX);
	memcpy(out, text.bytes, text.length);
	out[text.length] = '\0';
}

static int handle_info(struct negotiation *negotiation, const uint8_t *payload, struct error *error)
{
	struct negotiation_facts *facts = &negotiation->facts;
	struct nbd_info_item item;
	int err = dialogue_take_info(&negotiation->talk, payload, &item, error);

	if (err != 0) {
		return err;
	}
	switch (item.type) {
	case NBD_INFO_EXPORT:
		negotiation->got_export = true;
		facts->size = item.size;
		facts->flags = item.flags;
		return 0;
	case NBD_INFO_NAME:
		text_copy(facts->name, item.text);
		return 0;
	case NBD_INFO_DESCRIPTION:
		text_copy(facts->description, item.text);
		return 0;
	case NBD_INFO_BLOCK_SIZE:
		facts->sizes_told = true;
		facts->sizes = item.sizes;
		return 0;
	default:
		return 0;
	}
}

/* --- the dialogue's owner ------------------------------------------------------------------ */

static int handle_reply(struct dialogue *talk, const uint8_t *payload, struct error *error)
{
	struct negotiation *negotiation = negotiation_of(talk);
	uint32_t type = talk->reply.type;

	if ((type & NBD_REP_ERROR_BIT) != 0) {
		return handle_error(negotiation, payload, error);
	}
	if (type == NBD_REP_ACK) {
		return handle_ack(negotiation, error);
	}
	if (type == NBD_REP_INFO && talk->option == NBD_OPT_GO) {
		return handle_info(negotiation, payload, error);
	}
	if (type == NBD_REP_META_CONTEXT && (talk->option == NBD_OPT_LIST_META_CONTEXT ||
						    talk->option == NBD_OPT_SET_META_CONTEXT)) {
		return handle_context(negotiation, payload, error);
	}
	return dialogue_misplaced(talk, error);
}

static int handle_greeting(struct dialogue *talk, uint16_t flags, struct error *error)
{
	struct negotiation *negotiation = negotiation_of(talk);

	GMB_UNUSED(error);
	negotiation->no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	if ((flags & NBD_FLAG_FIXED_NEWSTYLE) != 0) {
		ask_style(negotiation, negotiation->style_max);
	} else {
		dialogue_ask_export_name(talk, negotiation->facts.name, negotiation->no_zeroes);
	}
	return 0;
}

static int handle_old_reply(
	struct dialogue *talk, uint64_t size, uint16_t flags, struct error *error)
{
	struct negotiation *negotiation = negotiation_of(talk);

	GMB_UNUSED(error);
	negotiation->facts.size = size;
	negotiation->facts.flags = flags;
	dialogue_finish(talk);
	return 0;
}

static const struct dialogue_handler negotiation_handler = {
	.greeting = handle_greeting,
	.reply = handle_reply,
	.old_reply = handle_old_reply,
};

/* --- life ---------------------------------------------------------------------------------- */

static void copy_token(char out[NEGOTIATION_TOKEN_BYTES_MAX], const char *token)
{
	GMB_ASSERT(strlen(token) < NEGOTIATION_TOKEN_BYTES_MAX);
	memcpy(out, token, strlen(token) + 1);
}

static void copy_tokens(struct negotiation *negotiation, const struct negotiation_options *options)
{
	GMB_ASSERT(options->instead_count <= NEGOTIATION_INSTEAD_MAX);
	copy_token(negotiation->token, options->token);
	negotiation->instead_count = options->instead_count;
	for (uint32_t i = 0; i < options->instead_count; i++) {
		copy_token(negotiation->instead[i], options->instead[i]);
	}
}

int negotiation_create(const struct negotiation_options *options,
	struct negotiation **negotiation_out, struct error *error)
{
	struct negotiation *negotiation;
	int err = dialogue_check_name(options->export_name, error);

	if (err != 0) {
		return err;
	}
	negotiation = calloc(1, sizeof(*negotiation));
	if (negotiation == NULL) {
		return error_set(error, -ENOMEM, "out of memory");
	}
	negotiation->style_max = options->style_max;
	memcpy(negotiation->facts.name, options->export_name, strlen(options->export_name) + 1);
	if (options->token != NULL) {
		copy_tokens(negotiation, options);
	}
	negotiation->facts.sizes = (struct nbd_block_sizes){
		.minimum = BLOCK_MINIMUM_UNTOLD,
		.preferred = BLOCK_PREFERRED_UNTOLD,
		.payload_max = PAYLOAD_MAX_UNTOLD,
	};
	dialogue_init(&negotiation->talk, &negotiation_handler);
	*negotiation_out = negotiation;
	return 0;
}

void negotiation_destroy(struct negotiation *negotiation)
{
	free(negotiation);
}

const uint8_t *negotiation_output(const struct negotiation *negotiation, size_t *bytes)
{
	*bytes = negotiation->talk.output_bytes;
	return negotiation->talk.output;
}

void negotiation_sent(struct negotiation *negotiation)
{
	negotiation->talk.output_bytes = 0;
}

int negotiation_input(
	struct negotiation *negotiation, const void *bytes, size_t len, struct error *error)
{
	return dialogue_input(&negotiation->talk, bytes, len, error);
}

int negotiation_end_of_stream(struct negotiation *negotiation, struct error *error)
{
	if (negotiation->talk.option == NBD_OPT_ABORT) {
		dialogue_finish(&negotiation->talk);
		return 0;
	}
	return dialogue_cut_off(&negotiation->talk, negotiation->facts.name, error);
}

bool negotiation_is_finished(const struct negotiation *negotiation)
{
	return dialogue_is_finished(&negotiation->talk);
}

int negotiation_outcome(const struct negotiation *negotiation, struct error *error)
{
	GMB_ASSERT(negotiation_is_finished(negotiation));
	if (negotiation->outcome.code != 0 && error != NULL) {
		*error = negotiation->outcome;
	}
	return negotiation->outcome.code;
}

const char *negotiation_awaits(const struct negotiation *negotiation)
{
	return dialogue_awaits(&negotiation->talk);
}

const struct negotiation_facts *negotiation_facts(const struct negotiation *negotiation)
{
	return &negotiation->facts;
}
