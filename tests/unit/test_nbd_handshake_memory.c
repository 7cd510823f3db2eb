// SPDX-License-Identifier: Apache-2.0
/* The handshake when memory runs out: whichever allocation fails, it says so, stays whole and frees
 * everything. What it says and understands is tested from outside (tests/functional/info-*.py). */
#include <errno.h>
#include <string.h>

#include "nbd/client/handshake.h"
#include "unit.h"

/* Allocations until one fails; the linker sends the handshake's calls here. */
static int allocations_left = -1;

static bool allocation_fails(void)
{
	return allocations_left >= 0 && allocations_left-- == 0;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_reallocarray(void *old, size_t count, size_t bytes);
void *__wrap_reallocarray(void *old, size_t count, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
	return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_reallocarray(void *old, size_t count, size_t bytes)
{
	return allocation_fails() ? NULL : __real_reallocarray(old, count, bytes);
}

char *__wrap_strdup(const char *text)
{
	return allocation_fails() ? NULL : __real_strdup(text);
}

struct script {
	uint8_t bytes[2048];
	size_t size;
};

static void script_append(struct script *script, const void *bytes, size_t len)
{
	assert_true(len <= sizeof(script->bytes) - script->size);
	memcpy(script->bytes + script->size, bytes, len);
	script->size += len;
}

static void script_reply(
	struct script *script, uint32_t option, uint32_t type, const void *payload, size_t len)
{
	struct nbd_wire_option_reply reply = {
		.magic = be64_make(NBD_OPTION_REPLY_MAGIC),
		.option = be32_make(option),
		.type = be32_make(type),
		.length = be32_make((uint32_t)len),
	};

	script_append(script, &reply, sizeof(reply));
	script_append(script, payload, len);
}

/* Two exports with names, descriptions, notes and contexts: every allocation there is. */
static void script_fill(struct script *script)
{
	struct nbd_wire_info_export info = { .type = be16_make(NBD_INFO_EXPORT) };

	script->size = 0;
	script_append(script, "NBDMAGICIHAVEOPT\0\3", 18);
	script_reply(script, NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_POLICY, "no", 2);
	script_reply(script, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ACK, "", 0);
	script_reply(script, NBD_OPT_LIST, NBD_REP_SERVER, "\0\0\0\3oneabout", 12);
	script_reply(script, NBD_OPT_LIST, NBD_REP_SERVER, "\0\0\0\3two", 7);
	script_reply(script, NBD_OPT_LIST, NBD_REP_ACK, "", 0);
	script_reply(script, NBD_OPT_INFO, NBD_REP_INFO, &info, sizeof(info));
	script_reply(script, NBD_OPT_INFO, NBD_REP_INFO, "\0\1canonical", 11);
	script_reply(script, NBD_OPT_INFO, NBD_REP_INFO, "\0\2described", 11);
	script_reply(script, NBD_OPT_INFO, NBD_REP_ACK, "", 0);
	for (int i = 0; i < 3; i++) {
		script_reply(
			script, NBD_OPT_LIST_META_CONTEXT, NBD_REP_META_CONTEXT, "\0\0\0\0x:y", 7);
	}
	script_reply(script, NBD_OPT_LIST_META_CONTEXT, NBD_REP_ACK, "", 0);
	script_reply(script, NBD_OPT_INFO, NBD_REP_ERR_POLICY, "no", 2);
	script_reply(script, NBD_OPT_ABORT, NBD_REP_ACK, "", 0);
}

/* Plays the script; 0 or what the handshake returned. Sets *told to what was kept. */
static int play(const struct script *script, struct error *error, uint32_t *told)
{
	struct nbd_handshake *handshake;
	size_t at = 0;
	int code = nbd_handshake_create(
		&(struct nbd_handshake_options){ .export_name = "", .goal = NBD_GOAL_LIST },
		&handshake, error);

	if (code < 0) {
		return code;
	}
	while (!nbd_handshake_is_finished(handshake)) {
		code = nbd_handshake_input(handshake, script->bytes + at, script->size - at, error);
		if (code < 0) {
			break;
		}
		at += (size_t)code;
		assert_true(at < script->size || nbd_handshake_is_finished(handshake) || code > 0);
		nbd_handshake_sent(handshake);
	}
	if (code >= 0) {
		const struct nbd_offers *offers = nbd_handshake_offers(handshake);

		code = nbd_handshake_outcome(handshake, error);
		*told = offers->count * 100 + offers->list[0].context_count * 10 +
			offers->note_count;
	}
	nbd_handshake_destroy(handshake);
	return code;
}

TEST(test_every_allocation_may_fail)
{
	struct script script;
	struct error error;
	uint32_t told = 0;
	int failures = 0;
	int successes = 0;

	script_fill(&script);
	assert_int_equal(play(&script, &error, &told), 0);
	assert_int_equal(told, 233); /* 2 exports, 3 contexts, 3 notes */
	for (int n = 0; successes < 3; n++) {
		int code;

		memset(&error, 0, sizeof(error));
		allocations_left = n;
		code = play(&script, &error, &told);
		if (allocations_left >= 0) {
			successes++; /* nothing was left to fail */
			assert_int_equal(told, 233);
		} else if (code == 0) {
			assert_int_equal(told, 232); /* a note is not worth a failure */
		} else {
			failures++;
			assert_int_equal(code, -ENOMEM);
			assert_int_equal(error.code, -ENOMEM);
			assert_non_null(strstr(error.text, "memory"));
		}
		allocations_left = -1;
	}
	assert_true(failures >= 10);
}

TEST(test_an_export_name_beyond_the_protocol_is_refused)
{
	char name[NBD_STRING_BYTES_MAX + 2];
	struct nbd_handshake *handshake;
	struct error error;

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(
		nbd_handshake_create(&(struct nbd_handshake_options){ .goal = NBD_GOAL_INFO,
					     .export_name = name },
			&handshake, &error),
		-EINVAL);
	name[sizeof(name) - 2] = '\0';
	assert_int_equal(
		nbd_handshake_create(&(struct nbd_handshake_options){ .goal = NBD_GOAL_INFO,
					     .export_name = name },
			&handshake, &error),
		0);
	nbd_handshake_destroy(handshake);
}
