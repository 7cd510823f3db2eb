// SPDX-License-Identifier: Apache-2.0
/*
 * States are named after the message that the server is expected to send. The answer to an option
 * is a sequence of replies, each a header and a payload; the last one is an ACK or an error.
 *
 *   MAGIC ─▶ STYLE ─▶ FLAGS ─▶ (TLS ─▶ ENCRYPT) ─▶ EXTENDED ...
 *
 *   EXTENDED ─▶ STRUCTURED ─┬▶ TAKEOVER ─▶ SELECT ─▶ GO ─▶ OLD_EXPORT
 *                           ├▶ CONTEXTS ─▶ GO
 *                           └▶ LIST ─▶ INFO ⇄ CONTEXTS
 *   FLAGS, ENCRYPT ─▶ FENCE
 *
 * ABORT follows any state after FLAGS except ENCRYPT. FINISHED follows GO, OLD_EXPORT and ABORT.
 */
#include "nbd/client/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nbd/client/client.h"
#include "nbd/client/refusal.h"

enum {
	CONTEXT_REPLIES_MAX = 16,    /* limit on replies to the selection of one context */
	TAKEOVER_REPLIES_MAX = 1024, /* unsolicited contexts */
	INFO_REPLIES_MAX = 64,
	LABEL_BYTES = 256,
	/* The longest valid reply: REP_SERVER with a name and a description. */
	REPLY_BYTES_MAX = 4 + NBD_STRING_BYTES_MAX + NBD_STRING_BYTES_MAX,
	TAKEOVER_QUERIES_MAX = 5 + NBD_HANDSHAKE_REPLACES_MAX,
};

/* The queries of ask_takeover() must fit in an option, and our own server must accept them. */
_Static_assert(
	TAKEOVER_QUERIES_MAX *(4 + sizeof(NBD_CONTEXT_CONNECTION) + NBD_HANDSHAKE_TOKEN_BYTES_MAX) +
			sizeof(NBD_CONTEXT_LEASE) + LEASE_WANT_BYTES <=
		NBD_HANDSHAKE_QUERIES_BYTES_MAX,
	"output");
_Static_assert(TAKEOVER_QUERIES_MAX <= (int)NBD_CONTEXT_QUERIES_MAX, "number of queries");
_Static_assert(NBD_HANDSHAKE_OPTION_BYTES_MAX <= (int)NBD_OPTION_BYTES_MAX, "length of an option");
_Static_assert(NBD_HANDSHAKE_TOKEN_BYTES_MAX <= (int)NBD_TOKEN_BYTES_MAX, "length of a token");
_Static_assert(
	sizeof(struct nbd_wire_old_reply) + NBD_OLD_REPLY_ZEROES <= REPLY_BYTES_MAX, "input");

enum handshake_state {
	STATE_MAGIC,	  /* first 8 bytes of the greeting */
	STATE_STYLE,	  /* next 8 bytes: newstyle or oldstyle */
	STATE_FLAGS,	  /* rest of the greeting */
	STATE_TLS,	  /* answer to STARTTLS */
	STATE_ENCRYPT,	  /* no message is expected: the owner has to encrypt */
	STATE_EXTENDED,	  /* answer to EXTENDED_HEADERS */
	STATE_STRUCTURED, /* answer to STRUCTURED_REPLY */
	STATE_TAKEOVER,	  /* answer to LIST_META_CONTEXT for the server's own contexts */
	STATE_SELECT,	  /* answer to SET_META_CONTEXT */
	STATE_FENCE,	  /* answer to FENCE */
	STATE_LIST,	  /* answer to LIST */
	STATE_CONTEXTS,	  /* answer to LIST_META_CONTEXT for all contexts of an export */
	STATE_INFO,	  /* answer to INFO */
	STATE_GO,	  /* answer to GO */
	STATE_OLD_EXPORT, /* answer to EXPORT_NAME: size, flags, and possibly zeroes */
	STATE_ABORT,	  /* answer to ABORT */
	STATE_FINISHED,	  /* no message is expected; output may still be unsent */
	STATE_COUNT
};

struct nbd_handshake {
	enum nbd_goal goal;
	enum handshake_state state;
	struct error *error;  /* where the call in progress stores its error */
	bool in_payload;      /* false: the header of a reply is expected */
	uint32_t replies;     /* replies to the current option, including the current one */
	uint32_t reply_type;  /* NBD_REP_ type of the current reply */
	uint32_t reply_bytes; /* payload size of the current reply */
	size_t input_bytes;   /* bytes collected in input */
	size_t input_wanted;
	size_t output_bytes;
	size_t option_at; /* where the data of an unfinished option begins in output, or 0 */
	bool tls;

	enum nbd_reply_style style_max;
	char token[NBD_HANDSHAKE_TOKEN_BYTES_MAX];
	char replaces[NBD_HANDSHAKE_REPLACES_MAX][NBD_HANDSHAKE_TOKEN_BYTES_MAX];
	uint32_t replaces_count;
	uint32_t alive_ms;
	char lease[LEASE_WANT_BYTES]; /* "": none */

	bool names_only;
	bool is_missing; /* INFO has reported that the export is missing, so LIST follows */
	uint32_t current;
	struct nbd_offers offers;
	struct nbd_facts facts;
	struct nbd_refusal refusal; /* why the server refused the current option */
	enum nbd_fence_action fence_action;
	char fence_node[NBD_HANDSHAKE_NODE_BYTES];
	struct error outcome; /* code 0: no refusal */
	uint8_t output[NBD_HANDSHAKE_OUTPUT_BYTES_MAX];
	uint8_t input[REPLY_BYTES_MAX];
};

/* A step of the dialogue. Returns 0, or a negative errno with an error message in *talk->error. */
typedef int step_fn(struct nbd_handshake *talk);

#define EDGE(state) (1u << STATE_##state)

struct state_rule {
	uint32_t option;
	const char *awaits;
	uint32_t edges;
	uint32_t content_type; /* type (NBD_REP_) of the replies before the last; 0: none */
	step_fn *content;
	step_fn *accepted; /* handler of NBD_REP_ACK */
	step_fn *refused;  /* handler of an error reply */
	step_fn *message;  /* handler of a message that is not an option reply */
};

static const struct state_rule states[STATE_COUNT];

/* --- state and output ---------------------------------------------------------------------- */

static void nbd_handshake_set_state(
	struct nbd_handshake *talk, enum handshake_state state, size_t wanted)
{
	GMB_ASSERT((states[talk->state].edges & 1u << state) != 0);
	talk->state = state;
	talk->input_wanted = wanted;
}

static void nbd_handshake_append(struct nbd_handshake *talk, const void *bytes, size_t len)
{
	GMB_ASSERT(len <= sizeof(talk->output) - talk->output_bytes);
	if (len > 0) {
		memcpy(talk->output + talk->output_bytes, bytes, len);
		talk->output_bytes += len;
	}
}

static void append_u32(struct nbd_handshake *talk, uint32_t value)
{
	struct be32 wire = be32_make(value);

	nbd_handshake_append(talk, &wire, sizeof(wire));
}

static void append_u16(struct nbd_handshake *talk, uint16_t value)
{
	struct be16 wire = be16_make(value);

	nbd_handshake_append(talk, &wire, sizeof(wire));
}

/* Appends a text preceded by its length. */
static void append_text(struct nbd_handshake *talk, const char *text)
{
	append_u32(talk, (uint32_t)strlen(text));
	nbd_handshake_append(talk, text, strlen(text));
}

/* Appends the header of the state's option; the caller appends the option's data. */
static int nbd_handshake_ask(struct nbd_handshake *talk, enum handshake_state state)
{
	struct nbd_wire_option header = {
		.magic = be64_make(NBD_OPTION_MAGIC),
		.option = be32_make(states[state].option),
	};

	nbd_handshake_set_state(talk, state, sizeof(struct nbd_wire_option_reply));
	talk->replies = 0;
	nbd_handshake_append(talk, &header, sizeof(header));
	talk->option_at = talk->output_bytes;
	return 0;
}

/* Stores the length of the option's data, which is known now. */
static void seal_option(struct nbd_handshake *talk)
{
	struct be32 length = be32_make((uint32_t)(talk->output_bytes - talk->option_at));

	if (talk->option_at > 0) {
		memcpy(talk->output + talk->option_at - sizeof(length), &length, sizeof(length));
		talk->option_at = 0;
	}
}

static int nbd_handshake_leave(struct nbd_handshake *talk)
{
	return nbd_handshake_ask(talk, STATE_ABORT);
}

static int nbd_handshake_finish(struct nbd_handshake *talk)
{
	nbd_handshake_set_state(talk, STATE_FINISHED, 0);
	return 0;
}

static struct nbd_offer *current_offer(struct nbd_handshake *talk)
{
	GMB_ASSERT(talk->current < talk->offers.count);
	return &talk->offers.list[talk->current];
}

/* Sends INFO or GO with all known information requests (rules P22, P24); EXPORT is sent without a
 * request. */
static int nbd_handshake_ask_export(struct nbd_handshake *talk, enum handshake_state state)
{
	static const uint16_t items[] = { NBD_INFO_NAME, NBD_INFO_DESCRIPTION,
		NBD_INFO_BLOCK_SIZE };
	const char *name = current_offer(talk)->name;

	nbd_handshake_ask(talk, state);
	append_text(talk, name);
	append_u16(talk, ARRAY_COUNT(items));
	for (size_t i = 0; i < ARRAY_COUNT(items); i++) {
		append_u16(talk, items[i]);
	}
	return 0;
}

/* The answer to EXPORT_NAME is not an option reply (rule P31). */
static int ask_old_export(struct nbd_handshake *talk)
{
	const char *name = current_offer(talk)->name;

	nbd_handshake_ask(talk, STATE_OLD_EXPORT);
	nbd_handshake_append(talk, name, strlen(name));
	talk->input_wanted = sizeof(struct nbd_wire_old_reply) +
			     (talk->offers.no_zeroes ? 0 : NBD_OLD_REPLY_ZEROES);
	return 0;
}

/* Starts a context option for the current export; the caller appends the queries. */
static int ask_contexts(
	struct nbd_handshake *talk, enum handshake_state state, uint32_t query_count)
{
	nbd_handshake_ask(talk, state);
	append_text(talk, current_offer(talk)->name);
	append_u32(talk, query_count);
	return 0;
}

static void append_query(struct nbd_handshake *talk, const char *kind, const char *token)
{
	append_u32(talk, (uint32_t)(strlen(kind) + strlen(token)));
	nbd_handshake_append(talk, kind, strlen(kind));
	nbd_handshake_append(talk, token, strlen(token));
}

/* Sends our name and the names of the connections to be replaced. Requests a lease, the epoch, the
 * disk and, if replies are chunks, signs of life and the size. Servers list what they know. */
static int ask_takeover(struct nbd_handshake *talk)
{
	bool chunks = talk->offers.style != NBD_REPLIES_SIMPLE;
	bool alive = talk->alive_ms > 0 && chunks;
	bool leases = talk->lease[0] != '\0';
	char ms[16];

	ask_contexts(talk, STATE_TAKEOVER, 3 + alive + chunks + leases + talk->replaces_count);
	if (leases) {
		append_query(talk, NBD_CONTEXT_LEASE "=", talk->lease);
	}
	if (alive) {
		snprintf(ms, sizeof(ms), "=%u", talk->alive_ms);
		append_query(talk, NBD_CONTEXT_ALIVE, ms);
	}
	if (chunks) {
		append_query(talk, NBD_CONTEXT_SIZE, "");
	}
	append_query(talk, NBD_CONTEXT_EPOCH, "");
	append_query(talk, NBD_CONTEXT_DISK, "");
	append_query(talk, NBD_CONTEXT_CONNECTION, talk->token);
	for (uint32_t i = 0; i < talk->replaces_count; i++) {
		append_query(talk, NBD_CONTEXT_REPLACES, talk->replaces[i]);
	}
	return 0;
}

/* --- next step -------------------------------------------------------------------------------- */

static bool has_contexts(const struct nbd_handshake *talk)
{
	return talk->offers.style != NBD_REPLIES_SIMPLE;
}

static int ask_go(struct nbd_handshake *talk)
{
	return nbd_handshake_ask_export(talk, STATE_GO);
}

/* In a list each export is queried with INFO, so that the negotiation continues. A single export is
 * queried with GO, because some servers know its size only then. Contexts need structured replies.
 */
static int after_style(struct nbd_handshake *talk, enum nbd_reply_style style)
{
	talk->offers.style = style;
	if (talk->goal == NBD_GOAL_LIST) {
		return nbd_handshake_ask(talk, STATE_LIST);
	}
	if (talk->token[0] != '\0') {
		return ask_takeover(talk);
	}
	if (!has_contexts(talk)) {
		return ask_go(talk);
	}
	if (talk->goal == NBD_GOAL_INFO) {
		return ask_contexts(talk, STATE_CONTEXTS, 0);
	}
	/* The context must be selected for the export name that GO will use (rule P40). */
	ask_contexts(talk, STATE_SELECT, 1);
	append_text(talk, NBD_CONTEXT_ALLOCATION);
	return 0;
}

static int after_takeover(struct nbd_handshake *talk)
{
	talk->token[0] = '\0'; /* sent only once */
	if (talk->lease[0] != '\0' && !talk->facts.has_leases) {
		error_set(&talk->outcome, -EOPNOTSUPP, "the server has no leases");
		return nbd_handshake_leave(talk);
	}
	return after_style(talk, talk->offers.style);
}

static int ask_about_node(struct nbd_handshake *talk)
{
	nbd_handshake_ask(talk, STATE_FENCE);
	append_u32(talk, talk->fence_action);
	nbd_handshake_append(talk, talk->fence_node, strlen(talk->fence_node));
	return 0;
}

/* Called after the greeting, and again after extended headers were refused. */
static int ask_style(struct nbd_handshake *talk, enum nbd_reply_style style)
{
	if (talk->goal == NBD_GOAL_FENCE) {
		return ask_about_node(talk);
	}
	if (style == NBD_REPLIES_SIMPLE) {
		return after_style(talk, style);
	}
	return nbd_handshake_ask(
		talk, style == NBD_REPLIES_EXTENDED ? STATE_EXTENDED : STATE_STRUCTURED);
}

static int next_export(struct nbd_handshake *talk)
{
	talk->current++;
	return talk->current < talk->offers.count ? nbd_handshake_ask_export(talk, STATE_INFO)
						  : nbd_handshake_leave(talk);
}

static int after_contexts(struct nbd_handshake *talk)
{
	return talk->goal == NBD_GOAL_LIST ? next_export(talk) : ask_go(talk);
}

/* The server has opened the export: GO and INFO end here. */
static int export_opened(struct nbd_handshake *talk)
{
	const struct nbd_offer *offer = current_offer(talk);
	uint8_t farewell[NBD_CLIENT_FAREWELL_BYTES_MAX];

	nbd_offers_review(&talk->offers, offer);
	if (talk->goal == NBD_GOAL_GO) {
		talk->facts.style = talk->offers.style;
		nbd_facts_take_offer(&talk->facts, offer);
	} else {
		/* Ends the transmission phase. DISC has no reply (rule P80). */
		nbd_handshake_append(
			talk, farewell, nbd_client_farewell(talk->offers.style, farewell));
	}
	return nbd_handshake_finish(talk);
}

/* --- texts --------------------------------------------------------------------------------- */

/* Formats 'export "NAME"', escaped. Returns out. */
static const char *export_label(char out[LABEL_BYTES], const char *name)
{
	char quoted[LABEL_BYTES - 16];

	snprintf(out, LABEL_BYTES, "export \"%s\"",
		log_escape(quoted, sizeof(quoted), name, strlen(name)));
	return out;
}

/* --- replies with content ------------------------------------------------------------------ */

static int handle_server(struct nbd_handshake *talk)
{
	return nbd_offers_take_server(&talk->offers, talk->input, talk->reply_bytes, talk->error);
}

static int handle_context(struct nbd_handshake *talk)
{
	struct nbd_text name;
	int err;

	if (talk->reply_bytes < 5) {
		return error_set(talk->error, -EPROTO,
			"the server sent a reply about a metadata context with %u bytes, too few "
			"for a context name (rule P38)",
			talk->reply_bytes);
	}
	err = nbd_text_take(
		"a metadata context", talk->input + 4, talk->reply_bytes - 4, &name, talk->error);
	if (err != 0) {
		return err;
	}
	if (talk->state == STATE_CONTEXTS) {
		return nbd_offers_add_context(
			&talk->offers, current_offer(talk), name, talk->error);
	}
	if (talk->state == STATE_SELECT && talk->replies > CONTEXT_REPLIES_MAX) {
		return error_set(talk->error, -EPROTO,
			"the server selected more metadata contexts than requested (rule P41)");
	}
	if (talk->replies > TAKEOVER_REPLIES_MAX) {
		return error_set(talk->error, -EPROTO,
			"the server sent too many metadata contexts (rule P11)");
	}
	if (talk->state == STATE_SELECT) {
		nbd_facts_take_selected(&talk->facts, be32_load(talk->input), name);
	} else {
		nbd_facts_take_extension(&talk->facts, name);
	}
	return 0;
}

static int handle_info(struct nbd_handshake *talk)
{
	if (talk->replies > INFO_REPLIES_MAX) {
		return error_set(talk->error, -EPROTO,
			"the server sent more than %d replies with information to one %s option "
			"(rule P11)",
			INFO_REPLIES_MAX, nbd_option_name(states[talk->state].option));
	}
	return nbd_offers_take_info(
		&talk->offers, current_offer(talk), talk->input, talk->reply_bytes, talk->error);
}

/* --- acceptance ---------------------------------------------------------------------------- */

static int tls_accepted(struct nbd_handshake *talk)
{
	nbd_handshake_set_state(talk, STATE_ENCRYPT, 0);
	return 0;
}

static int style_accepted(struct nbd_handshake *talk)
{
	return after_style(talk,
		talk->state == STATE_EXTENDED ? NBD_REPLIES_EXTENDED : NBD_REPLIES_STRUCTURED);
}

static int list_accepted(struct nbd_handshake *talk)
{
	talk->offers.listed = true;
	return talk->is_missing || talk->names_only || talk->offers.count == 0
		       ? nbd_handshake_leave(talk)
		       : nbd_handshake_ask_export(talk, STATE_INFO);
}

static int contexts_accepted(struct nbd_handshake *talk)
{
	current_offer(talk)->contexts_known = true;
	return after_contexts(talk);
}

static int export_accepted(struct nbd_handshake *talk)
{
	const struct nbd_offer *offer = current_offer(talk);
	char label[LABEL_BYTES];

	if (!offer->known) {
		return error_set(talk->error, -EPROTO,
			"the server completed %s without the size of the export (rule P23)",
			nbd_option_name(states[talk->state].option));
	}
	if (talk->state == STATE_GO) {
		return export_opened(talk);
	}
	nbd_offers_review(&talk->offers, offer);
	if (offer->size == 0) {
		/* Some servers open the export only for GO, and report size 0 for INFO. */
		nbd_offers_note(&talk->offers,
			"%s: the server reports a size of 0 bytes, as some servers do for every "
			"export in a list; query this export alone to be sure",
			export_label(label, offer->name));
	}
	return has_contexts(talk) ? ask_contexts(talk, STATE_CONTEXTS, 0) : next_export(talk);
}

/* --- refusals ------------------------------------------------------------------------------ */

/* Returns whether the error reply ends the dialogue, whatever the option was (rules P19, P47). A
 * reply that demands TLS ends it, unless the demand may concern only the option's export (rule
 * P48). */
static bool refusal_is_final(struct nbd_handshake *talk)
{
	bool about_export = talk->goal != NBD_GOAL_GO &&
			    (EDGE(INFO) | EDGE(GO) | EDGE(CONTEXTS)) >> talk->state & 1;

	if (talk->reply_type == NBD_REP_ERR_SHUTDOWN) {
		error_set(&talk->outcome, -ESHUTDOWN, "%s", talk->refusal.text);
		return true;
	}
	if (talk->reply_type == NBD_REP_ERR_TLS_REQD && !about_export) {
		error_set(&talk->outcome, -EPROTONOSUPPORT, "%s%s", talk->refusal.text,
			talk->offers.protection.version != NULL ? ", although TLS is in use" : "");
		return true;
	}
	return false;
}

/* The dialogue cannot continue in cleartext (rules P53, P57). */
static int tls_refused(struct nbd_handshake *talk)
{
	error_set(&talk->outcome, -EPROTONOSUPPORT,
		"the server does not offer TLS, which the URI requires: %s; enable TLS on the "
		"server, or use nbd or nbd+unix if the network is trusted",
		talk->refusal.text);
	return nbd_handshake_leave(talk);
}

static int style_refused(struct nbd_handshake *talk)
{
	if (talk->reply_type != NBD_REP_ERR_UNSUP) {
		nbd_offers_note(&talk->offers, "%s: %s",
			nbd_option_name(states[talk->state].option), talk->refusal.text);
	}
	return ask_style(
		talk, talk->state == STATE_EXTENDED ? NBD_REPLIES_STRUCTURED : NBD_REPLIES_SIMPLE);
}

static int select_refused(struct nbd_handshake *talk)
{
	/* A selection that ends in an error does not count (rule P42). */
	talk->facts.allocation = false;
	return ask_go(talk);
}

static int list_refused(struct nbd_handshake *talk)
{
	if (talk->is_missing) {
		nbd_offers_note(&talk->offers, "LIST: %s", talk->refusal.text);
	} else {
		bool cannot = talk->reply_type == NBD_REP_ERR_UNSUP ||
			      talk->reply_type == NBD_REP_ERR_PLATFORM;

		error_set(&talk->outcome, cannot ? -EOPNOTSUPP : talk->refusal.code,
			"the server does not list its exports: %s", talk->refusal.text);
	}
	return nbd_handshake_leave(talk);
}

static int fence_refused(struct nbd_handshake *talk)
{
	int code = talk->reply_type == NBD_REP_ERR_INVALID    ? -EINVAL
		   : talk->reply_type == NBD_REP_ERR_PLATFORM ? -EIO
		   : talk->reply_type == NBD_REP_ERR_UNKNOWN  ? -ESRCH
							      : talk->refusal.code;

	error_set(&talk->outcome, code, "%s",
		talk->refusal.said[0] != '\0' ? talk->refusal.said : talk->refusal.text);
	return nbd_handshake_leave(talk);
}

static int keep_refusal(struct nbd_handshake *talk, char **slot)
{
	struct nbd_text text = { talk->refusal.text, (uint32_t)strlen(talk->refusal.text) };

	return nbd_offers_set_text(&talk->offers, slot, text, talk->error);
}

static int contexts_refused(struct nbd_handshake *talk)
{
	struct nbd_offer *offer = current_offer(talk);
	int err = keep_refusal(talk, &offer->contexts_refusal);

	if (err != 0) {
		return err;
	}
	nbd_offers_drop_contexts(&talk->offers, offer);
	return after_contexts(talk);
}

static int export_unsupported(struct nbd_handshake *talk)
{
	if (talk->offers.style == NBD_REPLIES_EXTENDED) {
		return error_set(talk->error, -EPROTO,
			"the server accepted extended headers but does not support %s (rule P108)",
			nbd_option_name(states[talk->state].option));
	}
	if (talk->goal != NBD_GOAL_LIST) {
		return ask_old_export(talk);
	}
	nbd_offers_note(&talk->offers,
		"the server does not support INFO, so only the names of its exports can be listed");
	return nbd_handshake_leave(talk);
}

static int export_refused(struct nbd_handshake *talk)
{
	struct nbd_offer *offer = current_offer(talk);
	char label[LABEL_BYTES];
	int err;

	if (talk->reply_type == NBD_REP_ERR_UNSUP) {
		return export_unsupported(talk);
	}
	err = keep_refusal(talk, &offer->refusal);
	if (err != 0) {
		return err;
	}
	offer->known = false;
	nbd_offers_review(&talk->offers, offer);
	if (talk->goal == NBD_GOAL_LIST) {
		return next_export(talk);
	}
	error_set(&talk->outcome, talk->refusal.code, "%s: %s", export_label(label, offer->name),
		talk->refusal.text);
	if (talk->reply_type != NBD_REP_ERR_UNKNOWN || talk->goal == NBD_GOAL_GO) {
		return nbd_handshake_leave(talk);
	}
	talk->is_missing = true;
	return nbd_handshake_ask(talk, STATE_LIST);
}

static int take_refusal(struct nbd_handshake *talk)
{
	return nbd_refusal_take(
		&talk->refusal, talk->reply_type, talk->input, talk->reply_bytes, talk->error);
}

/* --- messages ------------------------------------------------------------------------------ */

/* Checks the magic, the option and the length of a reply. */
static int handle_reply_header(struct nbd_handshake *talk)
{
	uint64_t magic = be64_load(talk->input);
	uint32_t option = be32_load(talk->input + 8);
	uint32_t asked = states[talk->state].option;

	talk->reply_type = be32_load(talk->input + 12);
	talk->reply_bytes = be32_load(talk->input + 16);
	if (magic != NBD_OPTION_REPLY_MAGIC) {
		return error_set(talk->error, -EPROTO,
			"an option reply starts with 0x%016llx instead of 0x%016llx: the stream is "
			"out of sync (rule P120)",
			(unsigned long long)magic, (unsigned long long)NBD_OPTION_REPLY_MAGIC);
	}
	if (option != asked) {
		return error_set(talk->error, -EPROTO,
			"the server replied to option %u (%s), but the request was %s (rule P11)",
			option, nbd_option_name(option), nbd_option_name(asked));
	}
	if (talk->reply_bytes > REPLY_BYTES_MAX) {
		return error_set(talk->error, -EPROTO,
			"the server announced a reply of %u bytes to %s; the maximum is %d (rule "
			"P1)",
			talk->reply_bytes, nbd_option_name(asked), REPLY_BYTES_MAX);
	}
	talk->in_payload = true;
	talk->input_wanted = talk->reply_bytes;
	return 0;
}

static int handle_reply(struct nbd_handshake *talk)
{
	const struct state_rule *rule = &states[talk->state];
	int err;

	talk->replies++;
	talk->in_payload = false;
	talk->input_wanted = sizeof(struct nbd_wire_option_reply);
	if (talk->reply_type == NBD_REP_ACK) {
		return rule->accepted(talk);
	}
	if ((talk->reply_type & NBD_REP_ERROR_BIT) != 0) {
		err = take_refusal(talk);
		if (err != 0 || talk->state == STATE_ABORT) {
			return err != 0 ? err : nbd_handshake_finish(talk);
		}
		return refusal_is_final(talk) ? nbd_handshake_leave(talk) : rule->refused(talk);
	}
	if (rule->content != NULL && talk->reply_type == rule->content_type) {
		return rule->content(talk);
	}
	return error_set(talk->error, -EPROTO,
		"the server answered %s with a reply of type %u, which is not valid for this "
		"option (rule P11)",
		nbd_option_name(rule->option), talk->reply_type);
}

/* The first 8 bytes already show whether the peer is an NBD server. */
static int handle_magic(struct nbd_handshake *talk)
{
	if (be64_load(talk->input) != NBD_MAGIC) {
		return error_set(talk->error, -EPROTO,
			"not an NBD server: its greeting is \"%s\" instead of \"NBDMAGIC\"",
			quote_bytes(talk->input, 8));
	}
	nbd_handshake_set_state(talk, STATE_STYLE, 8);
	return 0;
}

static int handle_style(struct nbd_handshake *talk)
{
	uint64_t style = be64_load(talk->input);

	if (style == NBD_OLDSTYLE_MAGIC) {
		return error_set(talk->error, -EPROTONOSUPPORT,
			"the server uses the oldstyle NBD protocol from before 2011, which gmblock "
			"does not support: update the server, or configure it for the newstyle "
			"protocol");
	}
	if (style != NBD_OPTION_MAGIC) {
		return error_set(talk->error, -EPROTO,
			"the server's greeting continues with 0x%016llx, which is neither the "
			"newstyle magic \"IHAVEOPT\" nor the oldstyle one (rule P4)",
			(unsigned long long)style);
	}
	nbd_handshake_set_state(talk, STATE_FLAGS, 2);
	return 0;
}

static int handle_flags(struct nbd_handshake *talk)
{
	struct be16 wire;
	uint16_t flags;

	memcpy(&wire, talk->input, sizeof(wire));
	flags = be16_get(wire);
	/* Rule P5: only flags that we know and that were offered. */
	append_u32(talk, flags & (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES));
	talk->offers.fixed = (flags & NBD_FLAG_FIXED_NEWSTYLE) != 0;
	talk->offers.no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	if (talk->offers.fixed) {
		return talk->tls ? nbd_handshake_ask(talk, STATE_TLS)
				 : ask_style(talk, talk->style_max);
	}
	if (talk->tls) {
		return error_set(talk->error, -EPROTONOSUPPORT,
			"the server does not offer TLS, which the URI requires");
	}
	if (talk->goal == NBD_GOAL_LIST || talk->goal == NBD_GOAL_FENCE) {
		return error_set(talk->error, -EOPNOTSUPP,
			"the server uses the first version of the newstyle protocol, which cannot "
			"list exports or fence nodes");
	}
	return ask_old_export(talk);
}

static int handle_old_export(struct nbd_handshake *talk)
{
	return nbd_offer_take_size(current_offer(talk), talk->input, talk->error)
		       ?: export_opened(talk);
}

static const struct state_rule states[STATE_COUNT] = {
	[STATE_MAGIC] = { 0, "the server's greeting; check that this is an NBD server", EDGE(STYLE),
		.message = handle_magic },
	[STATE_STYLE] = { 0, "the server's greeting", EDGE(FLAGS), .message = handle_style },
	[STATE_FLAGS] = { 0, "the server's greeting",
		EDGE(TLS) | EDGE(EXTENDED) | EDGE(STRUCTURED) | EDGE(TAKEOVER) | EDGE(GO) |
			EDGE(OLD_EXPORT) | EDGE(FENCE),
		.message = handle_flags },
	[STATE_TLS] = { NBD_OPT_STARTTLS, "the answer to STARTTLS", EDGE(ENCRYPT) | EDGE(ABORT),
		.accepted = tls_accepted, .refused = tls_refused },
	[STATE_ENCRYPT] = { 0, "the server's part of the TLS handshake",
		EDGE(EXTENDED) | EDGE(STRUCTURED) | EDGE(TAKEOVER) | EDGE(GO) | EDGE(FENCE) },
	[STATE_EXTENDED] = { NBD_OPT_EXTENDED_HEADERS, "the answer to EXTENDED_HEADERS",
		EDGE(STRUCTURED) | EDGE(TAKEOVER) | EDGE(SELECT) | EDGE(LIST) | EDGE(CONTEXTS) |
			EDGE(ABORT),
		.accepted = style_accepted, .refused = style_refused },
	[STATE_STRUCTURED] = { NBD_OPT_STRUCTURED_REPLY, "the answer to STRUCTURED_REPLY",
		EDGE(TAKEOVER) | EDGE(SELECT) | EDGE(GO) | EDGE(LIST) | EDGE(CONTEXTS) |
			EDGE(ABORT),
		.accepted = style_accepted, .refused = style_refused },
	[STATE_TAKEOVER] = { NBD_OPT_LIST_META_CONTEXT, "the answer to LIST_META_CONTEXT",
		EDGE(SELECT) | EDGE(GO) | EDGE(ABORT), NBD_REP_META_CONTEXT, handle_context,
		after_takeover, after_takeover },
	[STATE_SELECT] = { NBD_OPT_SET_META_CONTEXT, "the answer to SET_META_CONTEXT",
		EDGE(GO) | EDGE(ABORT), NBD_REP_META_CONTEXT, handle_context, ask_go,
		select_refused },
	[STATE_FENCE] = { NBD_OPT_FENCE, "the answer to FENCE", EDGE(ABORT),
		.accepted = nbd_handshake_leave, .refused = fence_refused },
	[STATE_LIST] = { NBD_OPT_LIST, "the answer to LIST", EDGE(INFO) | EDGE(ABORT),
		NBD_REP_SERVER, handle_server, list_accepted, list_refused },
	[STATE_CONTEXTS] = { NBD_OPT_LIST_META_CONTEXT, "the answer to LIST_META_CONTEXT",
		EDGE(INFO) | EDGE(GO) | EDGE(ABORT), NBD_REP_META_CONTEXT, handle_context,
		contexts_accepted, contexts_refused },
	[STATE_INFO] = { NBD_OPT_INFO, "the answer to INFO",
		EDGE(INFO) | EDGE(CONTEXTS) | EDGE(ABORT), NBD_REP_INFO, handle_info,
		export_accepted, export_refused },
	[STATE_GO] = { NBD_OPT_GO, "the answer to GO",
		EDGE(LIST) | EDGE(OLD_EXPORT) | EDGE(ABORT) | EDGE(FINISHED), NBD_REP_INFO,
		handle_info, export_accepted, export_refused },
	[STATE_OLD_EXPORT] = { NBD_OPT_EXPORT_NAME, "the answer to EXPORT_NAME", EDGE(FINISHED),
		.message = handle_old_export },
	[STATE_ABORT] = { NBD_OPT_ABORT, "the answer to ABORT", EDGE(FINISHED),
		.accepted = nbd_handshake_finish, .refused = nbd_handshake_finish },
	[STATE_FINISHED] = { 0, "nothing" },
};

/* Called when a complete message is in the input. */
static int handle_message(struct nbd_handshake *talk)
{
	talk->input_bytes = 0;
	if (states[talk->state].message != NULL) {
		return states[talk->state].message(talk);
	}
	return talk->in_payload ? handle_reply(talk) : handle_reply_header(talk);
}

int nbd_handshake_input(
	struct nbd_handshake *talk, const void *bytes, size_t len, struct error *error)
{
	const uint8_t *from = bytes;
	size_t taken = 0;

	talk->error = error;
	while (talk->output_bytes == 0 && talk->state != STATE_FINISHED &&
		talk->state != STATE_ENCRYPT) {
		size_t step = MIN(talk->input_wanted - talk->input_bytes, len - taken);
		int err;

		if (step > 0) {
			memcpy(talk->input + talk->input_bytes, from + taken, step);
		}
		talk->input_bytes += step;
		taken += step;
		if (talk->input_bytes < talk->input_wanted) {
			break;
		}
		err = handle_message(talk);
		if (err != 0) {
			return err;
		}
		seal_option(talk);
	}
	return (int)taken;
}

bool nbd_handshake_wants_tls(const struct nbd_handshake *talk)
{
	return talk->state == STATE_ENCRYPT;
}

void nbd_handshake_encrypted(struct nbd_handshake *talk, const struct nbd_protection *protection)
{
	GMB_ASSERT(talk->state == STATE_ENCRYPT && protection->version != NULL);
	talk->offers.protection = *protection;
	(void)ask_style(talk, talk->style_max); /* appends an option, which cannot fail */
	seal_option(talk);
}

int nbd_handshake_end_of_stream(struct nbd_handshake *talk, struct error *error)
{
	char label[LABEL_BYTES];

	if (talk->state == STATE_ABORT) {
		nbd_handshake_finish(talk);
	}
	if (talk->state == STATE_FINISHED) {
		talk->output_bytes = 0; /* the farewell need not be sent */
		return 0;
	}
	if (talk->state == STATE_OLD_EXPORT && talk->input_bytes == 0) {
		return error_set(error, -ENOENT,
			"%s: the server closed the connection, the only way to refuse an export "
			"with the option EXPORT_NAME",
			export_label(label, current_offer(talk)->name));
	}
	if (talk->state == STATE_MAGIC && talk->input_bytes == 0) {
		return error_set(error, -EPROTO,
			"the server closed the connection without a greeting: it might be at its "
			"client limit, or refuse this address");
	}
	return error_set(error, -EPROTO,
		"the server closed the connection in the middle of %s (rule P129)",
		nbd_handshake_awaits(talk));
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void copy_token(char out[NBD_HANDSHAKE_TOKEN_BYTES_MAX], const char *token)
{
	GMB_ASSERT(strlen(token) < NBD_HANDSHAKE_TOKEN_BYTES_MAX);
	memcpy(out, token, strlen(token) + 1);
}

static int nbd_handshake_take_options(struct nbd_handshake *talk,
	const struct nbd_handshake_options *options, struct error *error)
{
	struct nbd_text name = { .bytes = options->export_name };
	size_t bytes;

	talk->goal = options->goal;
	talk->tls = options->tls;
	talk->offers.host = options->host;
	talk->names_only = options->names_only;
	talk->style_max = options->goal == NBD_GOAL_GO ? options->style_max : NBD_REPLIES_EXTENDED;
	if (options->token != NULL) {
		GMB_ASSERT(options->replaces_count <= NBD_HANDSHAKE_REPLACES_MAX);
		copy_token(talk->token, options->token);
		talk->replaces_count = options->replaces_count;
		talk->alive_ms = options->alive_ms;
		snprintf(talk->lease, sizeof(talk->lease), "%s", options->lease ?: "");
		for (uint32_t i = 0; i < options->replaces_count; i++) {
			copy_token(talk->replaces[i], options->replaces[i]);
		}
	}
	if (options->goal == NBD_GOAL_FENCE) {
		GMB_ASSERT(strlen(options->fence_node) < sizeof(talk->fence_node));
		talk->fence_action = options->fence_action;
		memcpy(talk->fence_node, options->fence_node, strlen(options->fence_node) + 1);
	}
	if (options->goal == NBD_GOAL_LIST || options->goal == NBD_GOAL_FENCE) {
		return 0;
	}
	bytes = strlen(options->export_name);
	if (bytes > NBD_STRING_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"the export name has %zu bytes; NBD allows at most %d", bytes,
			NBD_STRING_BYTES_MAX);
	}
	name.length = (uint32_t)bytes;
	return nbd_offers_add(&talk->offers, name, (struct nbd_text){ 0 }, error);
}

int nbd_handshake_create(const struct nbd_handshake_options *options,
	struct nbd_handshake **handshake_out, struct error *error)
{
	struct nbd_handshake *talk = calloc(1, sizeof(*talk));
	int err;

	if (talk == NULL) {
		return error_oom(error);
	}
	talk->state = STATE_MAGIC;
	talk->input_wanted = 8;
	err = nbd_handshake_take_options(talk, options, error);
	if (err != 0) {
		nbd_handshake_destroy(talk);
		return err;
	}
	*handshake_out = talk;
	return 0;
}

void nbd_handshake_destroy(struct nbd_handshake *talk)
{
	if (talk != NULL) {
		nbd_offers_fini(&talk->offers);
		free(talk);
	}
}

const uint8_t *nbd_handshake_output(const struct nbd_handshake *talk, size_t *bytes)
{
	*bytes = talk->output_bytes;
	return talk->output;
}

void nbd_handshake_sent(struct nbd_handshake *talk)
{
	talk->output_bytes = 0;
}

bool nbd_handshake_is_finished(const struct nbd_handshake *talk)
{
	return talk->state == STATE_FINISHED && talk->output_bytes == 0;
}

int nbd_handshake_outcome(const struct nbd_handshake *talk, struct error *error)
{
	GMB_ASSERT(nbd_handshake_is_finished(talk));
	if (talk->outcome.code != 0 && error != NULL) {
		*error = talk->outcome;
	}
	return talk->outcome.code;
}

const char *nbd_handshake_awaits(const struct nbd_handshake *talk)
{
	return states[talk->state].awaits;
}

const struct nbd_facts *nbd_handshake_facts(const struct nbd_handshake *talk)
{
	return &talk->facts;
}

const struct nbd_offers *nbd_handshake_offers(const struct nbd_handshake *talk)
{
	return &talk->offers;
}
