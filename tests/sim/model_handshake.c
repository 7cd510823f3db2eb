// SPDX-License-Identifier: Apache-2.0
/* The model client's half of the negotiation: a random but lawful sequence of options, each with
 * the answer it must get. */
#include <inttypes.h>
#include <string.h>

#include "model_private.h"

enum {
	OPT_EXPORT_NAME = 1,
	OPT_ABORT = 2,
	OPT_LIST = 3,
	OPT_STARTTLS = 5,
	OPT_INFO = 6,
	OPT_GO = 7,
	OPT_STRUCTURED_REPLY = 8,
	OPT_LIST_META_CONTEXT = 9,
	OPT_SET_META_CONTEXT = 10,
	OPT_EXTENDED_HEADERS = 11,
	REP_ACK = 1,
	REP_SERVER = 2,
	REP_INFO = 3,
	REP_META_CONTEXT = 4,
	OPTION_DATA_MAX = 20000, /* the server keeps 16 KiB */
};

#define REP_FLAG_ERROR	   UINT32_C(0x80000000)
#define REP_ERR_UNSUP	   (REP_FLAG_ERROR | 1)
#define REP_ERR_POLICY	   (REP_FLAG_ERROR | 2)
#define REP_ERR_INVALID	   (REP_FLAG_ERROR | 3)
#define REP_ERR_UNKNOWN	   (REP_FLAG_ERROR | 6)
#define REP_ERR_SHUTDOWN   (REP_FLAG_ERROR | 7)
#define OPTION_MAGIC	   UINT64_C(0x49484156454f5054)
#define OPTION_REPLY_MAGIC UINT64_C(0x0003e889045565a9)

static bool coin(void)
{
	return sim_random() % 2 == 0;
}

static void add_step(struct model_client *client, enum model_step_kind step)
{
	GMB_ASSERT(client->step_count < MODEL_STEPS_MAX);
	client->steps[client->step_count++] = step;
}

static void add_noise(struct model_client *client)
{
	static const enum model_step_kind noise[] = { STEP_UNKNOWN, STEP_LIST, STEP_LIST_DATA,
		STEP_STRUCTURED_DATA, STEP_GO_MISSING, STEP_BAD_INFO, STEP_STARTTLS };

	while (client->plan.noise && coin() && client->step_count < 6) {
		add_step(client, noise[sim_random() % ARRAY_COUNT(noise)]);
	}
}

void model_handshake_plan(struct model_client *client)
{
	const struct model_plan *plan = &client->plan;

	if (plan->tls) {
		add_step(client, STEP_TLS);
	}
	add_noise(client);
	if (plan->style == MODEL_STRUCTURED) {
		add_step(client, STEP_STRUCTURED);
	} else if (plan->style == MODEL_EXTENDED) {
		add_step(client, STEP_EXTENDED);
	}
	add_noise(client);
	if (plan->style != MODEL_SIMPLE && plan->noise && coin()) {
		add_step(client, STEP_LIST_META);
	}
	if (plan->style != MODEL_SIMPLE && plan->want_status) {
		add_step(client, STEP_SET_META);
	}
	if (plan->noise && coin()) {
		add_step(client, STEP_INFO);
	}
	if (plan->end_in_abort) {
		add_step(client, STEP_ABORT);
	} else if (plan->export_name && plan->style != MODEL_EXTENDED) {
		add_step(client, STEP_EXPORT_NAME);
	} else {
		add_step(client, STEP_GO);
	}
}

/* --- sending options ------------------------------------------------------------------------ */

static void send_option(struct model_client *client, uint32_t option, const void *data, size_t len)
{
	uint8_t header[16];

	put64(header, OPTION_MAGIC);
	put32(header + 8, option);
	put32(header + 12, (uint32_t)len);
	client->option = option;
	client->replies = 0;
	client->got_export = false;
	model_send(client, header, sizeof(header));
	if (len > 0) {
		model_send(client, data, len);
	}
}

static size_t put_name(uint8_t *at, const char *name)
{
	size_t len = strlen(name);

	put32(at, (uint32_t)len);
	memcpy(at + 4, name, len);
	return 4 + len;
}

static void send_info(struct model_client *client, uint32_t option, const char *name)
{
	uint8_t data[OPTION_DATA_MAX];
	size_t len = put_name(data, name);
	uint16_t count = 0;
	size_t count_at = len;

	len += 2;
	if (client->plan.ask_block_size) {
		put16(data + len, 3);
		len += 2;
		count++;
	}
	if (coin()) {
		put16(data + len, 1);
		len += 2;
		count++;
	}
	if (coin()) {
		put16(data + len, 2);
		len += 2;
		count++;
	}
	if (coin()) {
		put16(data + len, 0x7777); /* unknown information is ignored: P23 */
		len += 2;
		count++;
	}
	put16(data + count_at, count);
	send_option(client, option, data, len);
}

static void send_meta(struct model_client *client, uint32_t option)
{
	static const char *const queries[] = { "base:allocation", "x-nobody:nothing",
		"base:unknown" };
	uint8_t data[OPTION_DATA_MAX];
	size_t len = put_name(data, client->plan.name);
	uint32_t count = option == OPT_LIST_META_CONTEXT ? (uint32_t)(sim_random() % 4)
							 : 1 + (uint32_t)(sim_random() % 3);

	put32(data + len, count);
	len += 4;
	for (uint32_t i = 0; i < count; i++) {
		len += put_name(data + len, queries[i]);
	}
	send_option(client, option, data, len);
}

void model_handshake_next(struct model_client *client)
{
	uint8_t data[OPTION_DATA_MAX];
	size_t len;

	GMB_ASSERT(client->step < client->step_count);
	client->state = MODEL_OPTION;
	switch (client->steps[client->step]) {
	case STEP_UNKNOWN:
		len = sim_random() % (coin() ? 2000 : OPTION_DATA_MAX);
		memset(data, 0x5a, len);
		send_option(client, 0x1000 + (uint32_t)(sim_random() % 1000), data, len);
		break;
	case STEP_LIST:
		send_option(client, OPT_LIST, NULL, 0);
		break;
	case STEP_LIST_DATA:
		send_option(client, OPT_LIST, "data", 4);
		break;
	case STEP_STRUCTURED:
		send_option(client, OPT_STRUCTURED_REPLY, NULL, 0);
		break;
	case STEP_STRUCTURED_DATA:
		send_option(client, OPT_STRUCTURED_REPLY, "x", 1);
		break;
	case STEP_EXTENDED:
		send_option(client, OPT_EXTENDED_HEADERS, NULL, 0);
		break;
	case STEP_LIST_META:
		send_meta(client, OPT_LIST_META_CONTEXT);
		break;
	case STEP_SET_META:
		client->has_context = false;
		send_meta(client, OPT_SET_META_CONTEXT);
		break;
	case STEP_INFO:
		send_info(client, OPT_INFO, client->plan.name);
		break;
	case STEP_GO_MISSING:
		send_info(client, OPT_GO, "there is no such export");
		break;
	case STEP_BAD_INFO:
		put32(data, 100000); /* a name longer than the option: P22 */
		put16(data + 4, 0);
		send_option(client, coin() ? OPT_INFO : OPT_GO, data, 6);
		break;
	case STEP_STARTTLS:
	case STEP_TLS:
		send_option(client, OPT_STARTTLS, NULL, 0);
		break;
	case STEP_ABORT:
		client->disconnecting = true;
		len = coin() ? 0 : sim_random() % OPTION_DATA_MAX;
		memset(data, 0x5a, len);
		send_option(client, OPT_ABORT, data, len);
		break;
	case STEP_GO:
		send_info(client, OPT_GO, client->plan.name);
		break;
	case STEP_EXPORT_NAME:
		send_option(client, OPT_EXPORT_NAME, client->plan.name, strlen(client->plan.name));
		client->state = MODEL_NAME_REPLY;
		break;
	}
}

/* --- answers -------------------------------------------------------------------------------- */

static void enter_transmission(struct model_client *client, uint64_t size, uint16_t flags)
{
	const struct model_plan *plan = &client->plan;

	if (!plan->size_may_change && size != plan->size) {
		model_fail("export size %" PRIu64 " instead of %" PRIu64, size, plan->size);
	}
	if ((flags & 1) == 0) {
		model_fail("P33: transmission flags without HAS_FLAGS");
	}
	if ((flags & ~(client->extended ? 0x1dff : 0x0dff)) != 0) {
		model_fail("P33: unknown transmission flags 0x%x", flags);
	}
	if (((flags & 0x1000) != 0) != (client->extended && client->has_context)) {
		model_fail("P115: flags 0x%x %s a context", flags,
			client->has_context ? "with" : "without");
	}
	if (client->info_seen && !plan->size_may_change &&
		(client->info_size != size || client->info_flags != flags)) {
		model_fail("P26: INFO and GO differ");
	}
	client->size = size;
	client->flags = flags;
	client->state = MODEL_TRANSMISSION;
	client->ops->ready(client);
}

static void info_reply(struct model_client *client, const uint8_t *data, uint32_t len)
{
	uint16_t type;

	if (client->option != OPT_INFO && client->option != OPT_GO) {
		model_fail("an information reply to option %u", client->option);
	}
	if (len < 2) {
		model_fail("an information reply of %u bytes", len);
	}
	type = get16(data);
	if (type == 0) {
		if (len != 12) {
			model_fail("P23: INFO_EXPORT of %u bytes", len);
		}
		client->got_export = true;
		client->info_size = get64(data + 2);
		client->info_flags = get16(data + 10);
	} else if (type == 3) {
		if (len != 14) {
			model_fail("P29: INFO_BLOCK_SIZE of %u bytes", len);
		}
		client->block_min = get32(data + 2);
		client->payload_max = get32(data + 10);
		if (client->block_min == 0 || client->block_min > 65536 ||
			(client->block_min & (client->block_min - 1)) != 0 ||
			get32(data + 6) < MAX(client->block_min, 512u) ||
			client->payload_max < get32(data + 6)) {
			model_fail("P58-P60: block sizes %u %u %u", client->block_min,
				get32(data + 6), client->payload_max);
		}
	}
}

static void meta_reply(struct model_client *client, const uint8_t *data, uint32_t len)
{
	bool allocation = len == 4 + 15 && memcmp(data + 4, "base:allocation", 15) == 0;

	if (len < 5) {
		model_fail("a context reply of %u bytes", len);
	}
	if (client->option == OPT_SET_META_CONTEXT) {
		if (!allocation || client->has_context) {
			model_fail("P39: a context that was not asked for, or twice");
		}
		client->has_context = true;
		client->context_id = get32(data);
	} else if (client->option != OPT_LIST_META_CONTEXT) {
		model_fail("a context reply to option %u", client->option);
	}
}

/* The final reply: is it the one this option must get? */
static bool final_is_right(const struct model_client *client, uint32_t type)
{
	switch (client->steps[client->step]) {
	case STEP_UNKNOWN:
		return type == REP_ERR_UNSUP;
	case STEP_LIST:
		return type == REP_ACK && client->replies > 0;
	case STEP_LIST_DATA:
	case STEP_STRUCTURED_DATA:
	case STEP_BAD_INFO:
		return (type & REP_FLAG_ERROR) != 0;
	case STEP_GO_MISSING:
		return type == REP_ERR_UNKNOWN;
	case STEP_STARTTLS:
		return client->tls != NULL ? type == REP_ERR_INVALID
					   : type == REP_ERR_UNSUP || type == REP_ERR_POLICY;
	case STEP_SET_META:
		return type == REP_ACK && client->has_context;
	case STEP_LIST_META:
		return type == REP_ACK ||
		       (!client->structured && !client->extended && type == REP_ERR_INVALID);
	case STEP_INFO:
	case STEP_GO:
		return type == REP_ACK && client->got_export;
	case STEP_ABORT:
	case STEP_STRUCTURED:
	case STEP_EXTENDED:
	case STEP_TLS:
		return type == REP_ACK;
	case STEP_EXPORT_NAME:
		break;
	}
	return false;
}

static void option_done(struct model_client *client, uint32_t type)
{
	enum model_step_kind step = client->steps[client->step];

	if (type == REP_ERR_SHUTDOWN && client->forgive) {
		client->disconnecting = true;
		send_option(client, OPT_ABORT, NULL, 0);
		client->steps[client->step] = STEP_ABORT;
		return;
	}
	if (!final_is_right(client, type)) {
		model_fail("option %u (step %d) got reply 0x%x", client->option, (int)step, type);
	}
	if (step == STEP_GO) {
		enter_transmission(client, client->info_size, client->info_flags);
		return;
	}
	if (step == STEP_ABORT) {
		return; /* the server closes now */
	}
	client->structured = client->structured || step == STEP_STRUCTURED;
	client->extended = client->extended || step == STEP_EXTENDED;
	client->info_seen = client->info_seen || step == STEP_INFO;
	client->step++;
	if (step == STEP_TLS) {
		model_tls_begin(client);
	} else {
		model_handshake_next(client);
	}
}

static size_t parse_option_reply(struct model_client *client, const uint8_t *p, size_t n)
{
	uint64_t info_size = client->info_size;
	uint16_t info_flags = client->info_flags;
	uint32_t option;
	uint32_t type;
	uint32_t len;

	if (n < 20) {
		return 0;
	}
	option = get32(p + 8);
	type = get32(p + 12);
	len = get32(p + 16);
	if (get64(p) != OPTION_REPLY_MAGIC) {
		model_fail("bad option reply magic");
	}
	if (option != client->option) {
		model_fail("P11: reply to option %u while %u was sent", option, client->option);
	}
	if (len > 65536) {
		model_fail("an option reply of %u bytes", len);
	}
	if (n < 20 + (size_t)len) {
		return 0;
	}
	switch (type) {
	case REP_SERVER:
		if (option != OPT_LIST || len < 4 || get32(p + 20) > len - 4) {
			model_fail("P16: bad server reply");
		}
		client->replies++;
		break;
	case REP_INFO:
		info_reply(client, p + 20, len);
		if (client->info_seen && client->got_export && !client->plan.size_may_change &&
			(client->info_size != info_size || client->info_flags != info_flags)) {
			model_fail("P26: INFO and GO differ");
		}
		break;
	case REP_META_CONTEXT:
		meta_reply(client, p + 20, len);
		break;
	default:
		if (type == REP_ACK && len != 0) {
			model_fail("an ACK with data");
		}
		option_done(client, type);
		break;
	}
	return 20 + (size_t)len;
}

static size_t parse_greeting(struct model_client *client, const uint8_t *p, size_t n)
{
	uint8_t flags[4];
	uint16_t offered;

	if (n < 18) {
		return 0;
	}
	offered = get16(p + 16);
	if (memcmp(p, "NBDMAGICIHAVEOPT", 16) != 0) {
		model_fail("P4: not a newstyle greeting");
	}
	if ((offered & ~3) != 0 || (offered & 1) == 0) {
		model_fail("P4: handshake flags 0x%x", offered);
	}
	client->plan.no_zeroes = client->plan.no_zeroes && (offered & 2) != 0;
	put32(flags, 1u | (client->plan.no_zeroes ? 2u : 0u));
	model_send(client, flags, sizeof(flags));
	model_handshake_next(client);
	return 18;
}

static size_t parse_name_reply(struct model_client *client, const uint8_t *p, size_t n)
{
	size_t need = 10 + (client->plan.no_zeroes ? 0u : 124u);

	if (n < need) {
		return 0;
	}
	for (size_t i = 10; i < need; i++) {
		if (p[i] != 0) {
			model_fail("P31: the padding is not zero");
		}
	}
	enter_transmission(client, get64(p), get16(p + 8));
	return need;
}

size_t model_handshake_parse(struct model_client *client, const uint8_t *p, size_t n)
{
	if (client->state == MODEL_GREETING) {
		return parse_greeting(client, p, n);
	}
	return client->state == MODEL_OPTION ? parse_option_reply(client, p, n)
					     : parse_name_reply(client, p, n);
}
