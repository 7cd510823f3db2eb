// SPDX-License-Identifier: Apache-2.0
/* Opening an export: what the server may answer and what it must not, with the bytes in one piece,
 * one by one, and cut by chance; and what the client says to it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nbd/client/handshake.h"
#include "unit.h"

enum {
	REPLIES_MAX = 20,
	STREAM_BYTES_MAX = 64 << 10,
	SAID_BYTES_MAX = 16 << 10,
	TAIL_BYTES = 5,
	CLEAR_BYTES = 20
};

#define GREETING    "NBDMAGICIHAVEOPT\0\3"
#define EXPORT_INFO "\0\0\0\0\0\0\x40\0\0\0\0\xff"
#define ALLOCATION                                                                                 \
	"\0\0\0\x2a"                                                                               \
	"base:allocation"
#define HUGE "\0\0\x80\0\0\0\0\0\0\0\0\0"

/* One reply of the server; option 0: bytes as they are. */
struct said {
	uint32_t option;
	uint32_t type;
	const char *bytes;
	uint32_t len;
	uint32_t claimed; /* length in the header, if another */
	uint32_t fill;	  /* this many "x" after the bytes */
};

#define RAW(text)                                                                                  \
	{                                                                                          \
		.bytes = (text), .len = sizeof(text) - 1                                           \
	}
#define REPLY(option, type, text)                                                                  \
	{                                                                                          \
		NBD_OPT_##option, type, (text), sizeof(text) - 1                                   \
	}
#define ACK(option)   REPLY(option, NBD_REP_ACK, "")
#define EXTENDED_NO   REPLY(EXTENDED_HEADERS, NBD_REP_ERR_UNSUP, "")
#define STRUCTURED_NO REPLY(STRUCTURED_REPLY, NBD_REP_ERR_UNSUP, "what?")
#define TLS_NO(type)  REPLY(STARTTLS, type, "no")
#define SELECTED      REPLY(SET_META_CONTEXT, NBD_REP_META_CONTEXT, ALLOCATION)
#define INFO(text)    REPLY(GO, NBD_REP_INFO, text)
#define ANSWERED      INFO(EXPORT_INFO), ACK(GO)

struct dialogue_case {
	const char *name;
	enum nbd_reply_style style_max;
	int code; /* of the input, the end of the stream, or the outcome */
	const char *rule;
	const char *text;
	struct said said[REPLIES_MAX];
	bool tls; /* the URI asks for it */
};

static const struct dialogue_case refused[] = {
	/* The greeting. */
	{ "another protocol", 2, -EPROTO, "", "SSH-2.0-", { RAW("SSH-2.0-OpenSSH_9.2\r\n") } },
	{ "half a magic", 2, -EPROTO, "P4", "IHAVE", { RAW("NBDMAGICIHAVEOPS\0\3") } },
	{ "oldstyle", 2, -EPROTONOSUPPORT, "", "oldstyle",
		{ RAW("NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53") } },
	{ "silence", 2, -EPROTO, "", "without a greeting", { RAW("") } },
	{ "the end in the greeting", 2, -EPROTO, "", "greeting", { RAW("NBDMAGICIHAVEOPT\0") } },

	/* Replies. */
	{ "another magic", 2, -EPROTO, "P120", "0x0003e889045565aa",
		{ RAW(GREETING), RAW("\0\3\xe8\x89\4\x55\x65\xaa\0\0\0\xb\0\0\0\1\0\0\0\0") } },
	{ "a reply to another option", 2, -EPROTO, "P11", "option 7", { RAW(GREETING), ACK(GO) } },
	{ "a second final reply", 2, -EPROTO, "P11", "option 11",
		{ RAW(GREETING), ACK(EXTENDED_HEADERS), ACK(EXTENDED_HEADERS) } },
	{ "a reply of 4 GiB", 2, -EPROTO, "P1", "4294967295 bytes",
		{ RAW(GREETING),
			{ NBD_OPT_EXTENDED_HEADERS, NBD_REP_ACK, .claimed = UINT32_MAX } } },
	{ "a reply one byte too long", 2, -EPROTO, "P1", "8197 bytes",
		{ RAW(GREETING),
			{ NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_UNSUP, .claimed = 8197 } } },
	{ "a text of 4097 bytes", 2, -EPROTO, "P1", "4097 bytes",
		{ RAW(GREETING), { NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_UNSUP, .fill = 4097 } } },
	{ "a text with a zero byte", 2, -EPROTO, "P1", "zero byte",
		{ RAW(GREETING), REPLY(EXTENDED_HEADERS, NBD_REP_ERR_UNSUP, "a\0b") } },
	{ "REP_SERVER to extended headers", 2, -EPROTO, "P11", "type 2",
		{ RAW(GREETING), REPLY(EXTENDED_HEADERS, NBD_REP_SERVER, "\0\0\0\0") } },
	{ "REP_INFO to structured replies", 1, -EPROTO, "P11", "type 3",
		{ RAW(GREETING), REPLY(STRUCTURED_REPLY, NBD_REP_INFO, EXPORT_INFO) } },
	{ "an unknown type that is no error", 0, -EPROTO, "P11", "type 99",
		{ RAW(GREETING), REPLY(GO, 99, "") } },
	{ "a context as an answer to GO", 0, -EPROTO, "P11", "type 4",
		{ RAW(GREETING), REPLY(GO, NBD_REP_META_CONTEXT, ALLOCATION) } },

	/* Contexts. */
	{ "a context without a name", 1, -EPROTO, "P38", "4 bytes",
		{ RAW(GREETING), ACK(STRUCTURED_REPLY),
			REPLY(SET_META_CONTEXT, NBD_REP_META_CONTEXT, "\0\0\0\1") } },
	{ "too many contexts", 1, -EPROTO, "P41", "more metadata contexts",
		{ RAW(GREETING), ACK(STRUCTURED_REPLY), SELECTED, SELECTED, SELECTED, SELECTED,
			SELECTED, SELECTED, SELECTED, SELECTED, SELECTED, SELECTED, SELECTED,
			SELECTED, SELECTED, SELECTED, SELECTED, SELECTED, SELECTED } },

	/* GO. */
	{ "GO without a size", 0, -EPROTO, "P23", "without the size", { RAW(GREETING), ACK(GO) } },
	{ "a size of 2^63", 0, -EPROTO, "P68", "0x8000000000000000",
		{ RAW(GREETING), INFO(HUGE) } },
	{ "INFO_EXPORT too short", 0, -EPROTO, "P23", "11 bytes",
		{ RAW(GREETING), INFO("\0\0\0\0\0\0\x40\0\0\0\0") } },
	{ "INFO_EXPORT too long", 0, -EPROTO, "P23", "13 bytes",
		{ RAW(GREETING), INFO(EXPORT_INFO "\0") } },
	{ "information without a type", 0, -EPROTO, "P23", "1 bytes",
		{ RAW(GREETING), INFO("\0") } },
	{ "block sizes too short", 0, -EPROTO, "P29", "13 bytes",
		{ RAW(GREETING), INFO("\0\3\0\0\0\1\0\0\x10\0\0\1\0") } },
	{ "a minimum of zero", 0, -EPROTO, "P58", "size 0",
		{ RAW(GREETING), INFO("\0\3\0\0\0\0\0\0\x10\0\0\1\0\0") } },
	{ "a minimum of 65537", 0, -EPROTO, "P58", "65537",
		{ RAW(GREETING), INFO("\0\3\0\1\0\1\0\2\0\0\0\4\0\0") } },
	{ "a minimum of 131072", 0, -EPROTO, "P58", "131072",
		{ RAW(GREETING), INFO("\0\3\0\2\0\0\0\2\0\0\0\4\0\0") } },
	{ "a preferred size of 256", 0, -EPROTO, "P59", "256",
		{ RAW(GREETING), INFO("\0\3\0\0\0\1\0\0\1\0\0\1\0\0") } },
	{ "a preferred size below the minimum", 0, -EPROTO, "P59", "512",
		{ RAW(GREETING), INFO("\0\3\0\0\x10\0\0\0\2\0\0\1\0\0") } },
	{ "a maximum below the preferred size", 0, -EPROTO, "P60", "2048",
		{ RAW(GREETING), INFO("\0\3\0\0\0\1\0\0\x10\0\0\0\x08\0") } },
	{ "a name of 4097 bytes", 0, -EPROTO, "P1", "4097",
		{ RAW(GREETING), { NBD_OPT_GO, NBD_REP_INFO, "\0\1", 2, .fill = 4097 } } },
	{ "a description with a zero byte", 0, -EPROTO, "P1", "zero byte",
		{ RAW(GREETING), INFO("\0\2a\0") } },
	{ "GO unknown after extended headers", 2, -EPROTO, "P108", "does not support GO",
		{ RAW(GREETING), ACK(EXTENDED_HEADERS), SELECTED, ACK(SET_META_CONTEXT),
			REPLY(GO, NBD_REP_ERR_UNSUP, "") } },
	{ "no such export", 0, -ENOENT, "", "no such export",
		{ RAW(GREETING), REPLY(GO, NBD_REP_ERR_UNKNOWN, "gone"), ACK(ABORT) } },
	{ "refused by policy, then a close", 0, -EACCES, "", "policy",
		{ RAW(GREETING), REPLY(GO, NBD_REP_ERR_POLICY, "\x1b[2J") } },
	{ "TLS wanted", 2, -EPROTONOSUPPORT, "", "TLS",
		{ RAW(GREETING), REPLY(EXTENDED_HEADERS, NBD_REP_ERR_TLS_REQD, ""), ACK(ABORT) } },

	/* TLS: what was asked for is had, or nothing is (P52, P53). */
	{ "STARTTLS unknown", 2, -EPROTONOSUPPORT, "", "does not offer TLS, which the URI requires",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_UNSUP), ACK(ABORT) }, .tls = true },
	{ "STARTTLS unknown, and gone", 2, -EPROTONOSUPPORT, "", "nbd or nbd+unix",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_UNSUP) }, .tls = true },
	{ "STARTTLS against the policy", 1, -EPROTONOSUPPORT, "", "the server's policy",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_POLICY), ACK(ABORT) }, .tls = true },
	{ "STARTTLS invalid according to the server", 0, -EPROTONOSUPPORT, "",
		"invalid according to the server",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_INVALID), ACK(ABORT) }, .tls = true },
	{ "TLS demanded for STARTTLS", 0, -EPROTONOSUPPORT, "", "demands TLS",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_TLS_REQD), ACK(ABORT) }, .tls = true },
	{ "shutting down before TLS", 0, -ESHUTDOWN, "", "shutting down",
		{ RAW(GREETING), TLS_NO(NBD_REP_ERR_SHUTDOWN), ACK(ABORT) }, .tls = true },
	{ "information instead of TLS", 2, -EPROTO, "P11", "type 3",
		{ RAW(GREETING), REPLY(STARTTLS, NBD_REP_INFO, EXPORT_INFO) }, .tls = true },
	{ "the answer to another option than STARTTLS", 2, -EPROTO, "P11", "option 11",
		{ RAW(GREETING), ACK(EXTENDED_HEADERS) }, .tls = true },
	{ "no fixed newstyle, no TLS", 2, -EPROTONOSUPPORT, "",
		"does not offer TLS, which the URI requires", { RAW("NBDMAGICIHAVEOPT\0\2") },
		.tls = true },
	{ "oldstyle, no TLS", 2, -EPROTONOSUPPORT, "", "oldstyle",
		{ RAW("NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53") }, .tls = true },
	{ "STARTTLS acknowledged twice", 2, -EPROTO, "P11", "option 5",
		{ RAW(GREETING), ACK(STARTTLS), ACK(STARTTLS) }, .tls = true },
	{ "TLS demanded under TLS", 2, -EPROTONOSUPPORT, "", "although TLS is in use",
		{ RAW(GREETING), ACK(STARTTLS), REPLY(EXTENDED_HEADERS, NBD_REP_ERR_TLS_REQD, ""),
			ACK(ABORT) },
		.tls = true },

	{ "shutting down", 1, -ESHUTDOWN, "", "shutting down",
		{ RAW(GREETING), REPLY(STRUCTURED_REPLY, NBD_REP_ERR_SHUTDOWN, "bye"),
			REPLY(ABORT, NBD_REP_ERR_SHUTDOWN, "") } },
	{ "an error type nobody knows", 0, -EPROTONOSUPPORT, "", "unknown error",
		{ RAW(GREETING), REPLY(GO, 0xffffffff, ""), ACK(ABORT) } },
	{ "a wrong reply to ABORT", 0, -EPROTO, "P11", "type 2",
		{ RAW(GREETING), REPLY(GO, NBD_REP_ERR_UNKNOWN, ""),
			REPLY(ABORT, NBD_REP_SERVER, "\0\0\0\0") } },

	/* EXPORT_NAME. */
	{ "a close after EXPORT_NAME", 0, -ENOENT, "", "EXPORT_NAME",
		{ RAW("NBDMAGICIHAVEOPT\0\0") } },
	{ "a negative size after EXPORT_NAME", 0, -EPROTO, "P68", "0xffffffffffffffff",
		{ RAW("NBDMAGICIHAVEOPT\0\2\xff\xff\xff\xff\xff\xff\xff\xff\0\1") } },
	{ "the end in the zeroes after EXPORT_NAME", 0, -EPROTO, "", "closed",
		{ RAW("NBDMAGICIHAVEOPT\0\0\0\0\0\0\0\1\0\0\0\1"), { .bytes = "", .fill = 123 } } },
};

struct agreed {
	struct dialogue_case dialogue;
	enum nbd_reply_style style;
	bool allocation;
	uint32_t minimum;
	uint32_t payload_max;
	uint64_t size;
};

static const struct agreed agreed[] = {
	{ { "everything", 2,
		  .said = { RAW(GREETING), ACK(EXTENDED_HEADERS), SELECTED, ACK(SET_META_CONTEXT),
			  INFO("\0\3\0\0\2\0\0\0\x10\0\0\x20\0\0"), INFO("\0\1disk"),
			  INFO("\0\2words"), INFO("\x12\x34unknown"), ANSWERED } },
		NBD_REPLIES_EXTENDED, true, 512, 2 << 20, UINT64_C(0x40000000) },
	{ { "structured replies at most", 1,
		  .said = { RAW(GREETING), ACK(STRUCTURED_REPLY), SELECTED, ACK(SET_META_CONTEXT),
			  ANSWERED } },
		NBD_REPLIES_STRUCTURED, true, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "no extended headers", 2,
		  .said = { RAW(GREETING), EXTENDED_NO, ACK(STRUCTURED_REPLY), SELECTED,
			  ACK(SET_META_CONTEXT), ANSWERED } },
		NBD_REPLIES_STRUCTURED, true, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "nothing of all that", 2,
		  .said = { RAW(GREETING), EXTENDED_NO, STRUCTURED_NO, ANSWERED } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "a selection that ends in an error does not count (P42)", 1,
		  .said = { RAW(GREETING), ACK(STRUCTURED_REPLY), SELECTED,
			  REPLY(SET_META_CONTEXT, NBD_REP_ERR_INVALID, "no"), ANSWERED } },
		NBD_REPLIES_STRUCTURED, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "another context than was asked for", 1,
		  .said = { RAW(GREETING), ACK(STRUCTURED_REPLY),
			  REPLY(SET_META_CONTEXT, NBD_REP_META_CONTEXT, "\0\0\0\1base:allocatio"),
			  ACK(SET_META_CONTEXT), ANSWERED } },
		NBD_REPLIES_STRUCTURED, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "the size told twice: the last counts", 0,
		  .said = { RAW(GREETING), INFO("\0\0\0\0\0\0\0\0\0\1\0\1"), ANSWERED } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "GO unknown: EXPORT_NAME, without zeroes", 2,
		  .said = { RAW(GREETING), EXTENDED_NO, STRUCTURED_NO,
			  REPLY(GO, NBD_REP_ERR_UNSUP, ""), RAW("\0\0\0\0\0\0\0\x09\0\xff") } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, 9 },
	{ { "first newstyle, with zeroes", 2,
		  .said = { RAW("NBDMAGICIHAVEOPT\0\0\0\0\0\0\0\0\0\x09\0\xff"),
			  { .bytes = "", .fill = 124 } } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, 9 },
	{ { "flags of the future are not echoed (P5)", 0,
		  .said = { RAW("NBDMAGICIHAVEOPT\xff\xff"), ANSWERED } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "under TLS", 2,
		  .said = { RAW(GREETING), ACK(STARTTLS), EXTENDED_NO, ACK(STRUCTURED_REPLY),
			  SELECTED, ACK(SET_META_CONTEXT), ANSWERED },
		  .tls = true },
		NBD_REPLIES_STRUCTURED, true, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "under TLS, with the least", 0, .said = { RAW(GREETING), ACK(STARTTLS), ANSWERED },
		  .tls = true },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, UINT64_C(0x40000000) },
	{ { "the largest size", 0,
		  .said = { RAW(GREETING), INFO("\0\0\x7f\xff\xff\xff\xff\xff\xff\xff\0\1"),
			  ACK(GO) } },
		NBD_REPLIES_SIMPLE, false, 512, 32 << 20, INT64_MAX },
};

/* --- making it so ---------------------------------------------------------------------------- */

struct text {
	uint8_t bytes[STREAM_BYTES_MAX];
	size_t len;
};

static void append(struct text *text, const void *bytes, size_t len)
{
	assert_true(len <= sizeof(text->bytes) - text->len);
	memcpy(text->bytes + text->len, bytes, len);
	text->len += len;
}

static void append_said(struct text *text, const struct said *said)
{
	if (said->option != 0) {
		struct nbd_wire_option_reply head = {
			.magic = be64_make(NBD_OPTION_REPLY_MAGIC),
			.option = be32_make(said->option),
			.type = be32_make(said->type),
			.length = be32_make(
				said->claimed != 0 ? said->claimed : said->len + said->fill),
		};

		append(text, &head, sizeof(head));
	}
	append(text, said->bytes != NULL ? said->bytes : "", said->len);
	for (uint32_t i = 0; i < said->fill; i++) {
		append(text, "x", 1);
	}
}

static void make_stream(const struct dialogue_case *one, struct text *text)
{
	text->len = 0;
	for (int i = 0; i < REPLIES_MAX; i++) {
		append_said(text, &one->said[i]);
	}
}

struct ending {
	int code;
	struct error error;
	struct nbd_facts facts;
	size_t taken;
	uint8_t said[SAID_BYTES_MAX];
	size_t said_bytes;
	bool wanted_tls;
};

static void take_output(struct nbd_handshake *handshake, struct ending *ending)
{
	size_t bytes;
	const uint8_t *output = nbd_handshake_output(handshake, &bytes);

	assert_true(bytes <= sizeof(ending->said) - ending->said_bytes);
	memcpy(ending->said + ending->said_bytes, output, bytes);
	ending->said_bytes += bytes;
	nbd_handshake_sent(handshake);
}

/* The client's flags and STARTTLS are all that was said in clear. */
static void encrypt(struct nbd_handshake *handshake, struct ending *ending)
{
	static const struct nbd_protection protection = { "TLS 1.3", "AES-128-GCM", true };

	if (nbd_handshake_wants_tls(handshake)) {
		assert_int_equal(ending->said_bytes, CLEAR_BYTES);
		ending->wanted_tls = true;
		nbd_handshake_encrypted(handshake, &protection);
		take_output(handshake, ending);
	}
}

/* With TLS nothing but STARTTLS and ABORT is said in clear. */
static void check_clear(const struct dialogue_case *one, const struct ending *ending)
{
	static const uint8_t starttls[] = "IHAVEOPT\0\0\0\5\0\0\0";
	static const uint8_t abort[] = "IHAVEOPT\0\0\0\2\0\0\0";
	const uint8_t *rest = ending->said + CLEAR_BYTES;

	if (!one->tls || ending->said_bytes <= 4) {
		return;
	}
	assert_true(ending->said_bytes >= CLEAR_BYTES);
	assert_memory_equal(ending->said + 4, starttls, 16);
	if (!ending->wanted_tls && ending->said_bytes > CLEAR_BYTES) {
		assert_int_equal(ending->said_bytes, CLEAR_BYTES + 16);
		assert_memory_equal(rest, abort, 16);
	}
}

/* pieces: 0 all at once, 1 byte by byte, else by chance. */
static void play(const struct dialogue_case *one, const struct text *text, unsigned pieces,
	struct ending *ending)
{
	struct nbd_handshake_options options = {
		.export_name = "disk", .tls = one->tls, .style_max = one->style_max
	};
	struct nbd_handshake *handshake;
	uint32_t random = pieces;

	memset(ending, 0, sizeof(*ending));
	assert_int_equal(nbd_handshake_create(&options, &handshake, &ending->error), 0);
	while (ending->taken < text->len && !nbd_handshake_is_finished(handshake)) {
		size_t len = text->len - ending->taken;

		random = random * 1664525 + 1013904223;
		len = pieces == 0 ? len : MIN(len, pieces == 1 ? 1 : 1 + (random >> 16) % 50);
		ending->code = nbd_handshake_input(
			handshake, text->bytes + ending->taken, len, &ending->error);
		if (ending->code < 0) {
			break;
		}
		assert_true((size_t)ending->code <= len);
		ending->taken += (size_t)ending->code;
		take_output(handshake, ending);
		encrypt(handshake, ending);
	}
	check_clear(one, ending);
	if (ending->code >= 0 && !nbd_handshake_is_finished(handshake)) {
		assert_non_null(strstr(nbd_handshake_awaits(handshake), "the "));
		ending->code = nbd_handshake_end_of_stream(handshake, &ending->error);
	}
	if (ending->code >= 0) {
		assert_true(nbd_handshake_is_finished(handshake));
		ending->code = nbd_handshake_outcome(handshake, &ending->error);
		ending->facts = *nbd_handshake_facts(handshake);
	}
	nbd_handshake_destroy(handshake);
}

TEST(test_what_a_server_must_not_answer)
{
	static struct text text;
	static struct ending ending;

	for (size_t i = 0; i < ARRAY_COUNT(refused); i++) {
		const struct dialogue_case *one = &refused[i];

		make_stream(one, &text);
		for (unsigned pieces = 0; pieces < 6; pieces++) {
			play(one, &text, pieces, &ending);
			if (ending.code != one->code || ending.error.code != one->code ||
				strstr(ending.error.text, one->text) == NULL ||
				strstr(ending.error.text, one->rule) == NULL) {
				fail_msg(
					"%s: %d \"%s\"", one->name, ending.code, ending.error.text);
			}
			/* What the server wrote is escaped. */
			for (const char *at = ending.error.text; *at != '\0'; at++) {
				assert_true(*at >= ' ' && *at < 0x7f);
			}
		}
	}
}

static void check_agreed(const struct agreed *one, const struct ending *ending, size_t len)
{
	const struct nbd_facts *facts = &ending->facts;

	if (ending->code != 0) {
		fail_msg("%s: %d \"%s\"", one->dialogue.name, ending->code, ending->error.text);
	}
	assert_int_equal(facts->style, one->style);
	assert_int_equal(facts->allocation, one->allocation);
	assert_true(!facts->allocation || facts->allocation_id == 0x2a);
	assert_int_equal(facts->sizes.minimum, one->minimum);
	assert_int_equal(facts->sizes.payload_max, one->payload_max);
	assert_true(facts->size == one->size);
	/* What follows belongs to the transmission phase. */
	assert_int_equal(ending->taken, len - TAIL_BYTES);
	/* Only known flags are echoed, and EXPORT_NAME or GO ask for the right name. */
	assert_int_equal(ending->said[3] & ~3, 0);
	assert_int_equal(ending->said[0] | ending->said[1] | ending->said[2], 0);
	assert_non_null(memmem(ending->said, ending->said_bytes, "disk", 4));
}

TEST(test_what_a_server_may_answer)
{
	static struct text text;
	static struct ending ending;

	for (size_t i = 0; i < ARRAY_COUNT(agreed); i++) {
		make_stream(&agreed[i].dialogue, &text);
		append(&text, "later", TAIL_BYTES);
		for (unsigned pieces = 0; pieces < 6; pieces++) {
			play(&agreed[i].dialogue, &text, pieces, &ending);
			check_agreed(&agreed[i], &ending, text.len);
		}
	}
}

/* A close at every byte of a good dialogue is an error, and none of them is the same as success. */
TEST(test_a_close_at_every_byte)
{
	static struct text text;
	static struct ending ending;

	for (size_t i = 0; i < ARRAY_COUNT(agreed); i++) {
		size_t whole;

		make_stream(&agreed[i].dialogue, &text);
		whole = text.len;
		for (text.len = 0; text.len < whole; text.len++) {
			play(&agreed[i].dialogue, &text, 0, &ending);
			assert_true(ending.code < 0);
			assert_non_null(strstr(ending.error.text, "closed the connection"));
		}
	}
}

/* The server goes while the client takes its leave: what was not sent is not missed. */
TEST(test_a_farewell_that_is_not_sent)
{
	static const struct {
		enum nbd_goal goal;
		int code;
		struct dialogue_case dialogue;
	} leaving[] = {
		{ NBD_GOAL_GO, -ENOENT,
			{ .said = { RAW(GREETING), REPLY(GO, NBD_REP_ERR_UNKNOWN, "") } } },
		{ NBD_GOAL_INFO, 0,
			{ .said = { RAW(GREETING), EXTENDED_NO, STRUCTURED_NO, ANSWERED } } },
	};
	static struct text text;

	for (size_t i = 0; i < ARRAY_COUNT(leaving); i++) {
		struct nbd_handshake_options options = { .goal = leaving[i].goal,
			.export_name = "disk" };
		struct nbd_handshake *handshake;
		struct error error;
		size_t taken = 0;
		size_t bytes;

		make_stream(&leaving[i].dialogue, &text);
		assert_int_equal(nbd_handshake_create(&options, &handshake, &error), 0);
		while (taken < text.len) {
			int took;

			nbd_handshake_sent(handshake);
			took = nbd_handshake_input(
				handshake, text.bytes + taken, text.len - taken, &error);
			assert_true(took > 0);
			taken += (size_t)took;
		}
		(void)nbd_handshake_output(handshake, &bytes);
		assert_true(bytes > 0);
		assert_false(nbd_handshake_is_finished(handshake));
		assert_int_equal(nbd_handshake_end_of_stream(handshake, &error), 0);
		assert_true(nbd_handshake_is_finished(handshake));
		assert_int_equal(nbd_handshake_outcome(handshake, &error), leaving[i].code);
		nbd_handshake_destroy(handshake);
	}
}

/* Between the server's consent and the encrypted stream nothing is taken: what comes then is for
 * the owner to refuse (P56). */
TEST(test_nothing_is_taken_before_the_stream_is_encrypted)
{
	static const struct dialogue_case consent = { "", 2,
		.said = { RAW(GREETING), ACK(STARTTLS), ACK(EXTENDED_HEADERS) }, .tls = true };
	struct nbd_handshake_options options = { .export_name = "disk", .tls = true };
	struct nbd_handshake *handshake;
	static struct ending ending;
	static struct text text;
	struct error error;
	size_t bytes;

	make_stream(&consent, &text);
	memset(&ending, 0, sizeof(ending));
	assert_int_equal(nbd_handshake_create(&options, &handshake, &error), 0);
	for (int i = 0; i < 4; i++) {
		int took = nbd_handshake_input(
			handshake, text.bytes + ending.taken, text.len - ending.taken, &error);

		assert_true(took >= 0);
		ending.taken += (size_t)took;
		take_output(handshake, &ending);
	}
	assert_true(nbd_handshake_wants_tls(handshake));
	assert_int_equal(ending.taken, text.len - sizeof(struct nbd_wire_option_reply));
	(void)nbd_handshake_output(handshake, &bytes);
	assert_int_equal(bytes, 0);
	assert_false(nbd_handshake_is_finished(handshake));
	assert_int_equal(nbd_handshake_end_of_stream(handshake, &error), -EPROTO);
	assert_non_null(strstr(error.text, "the server's part of the TLS handshake"));
	nbd_handshake_destroy(handshake);
}

TEST(test_information_without_end)
{
	static const struct dialogue_case endless = { "", 0, .said = { RAW(GREETING) } };
	static const struct said unknown = INFO("\x12\x34more");
	static struct text text;
	static struct ending ending;

	make_stream(&endless, &text);
	while (text.len < sizeof(text.bytes) - 100) {
		append_said(&text, &unknown);
	}
	play(&endless, &text, 0, &ending);
	assert_int_equal(ending.code, -EPROTO);
	assert_non_null(strstr(ending.error.text, "replies with information"));
	assert_true(ending.taken < text.len);
}

TEST(test_a_name_beyond_the_protocol_is_refused)
{
	char name[NBD_STRING_BYTES_MAX + 2];
	struct nbd_handshake_options options = { .export_name = name,
		.style_max = NBD_REPLIES_EXTENDED };
	struct nbd_handshake *handshake;
	struct error error;

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(nbd_handshake_create(&options, &handshake, &error), -EINVAL);
	assert_non_null(strstr(error.text, "4097 bytes; NBD allows at most 4096"));
}

/* The longest name in every option that carries it. */
TEST(test_the_longest_name_is_sent)
{
	static char name[NBD_STRING_BYTES_MAX + 1];
	static struct text text;
	struct nbd_handshake_options options = { .export_name = name,
		.style_max = NBD_REPLIES_EXTENDED };
	struct nbd_handshake *handshake;
	struct error error;
	size_t taken = 0;
	size_t longest = 0;
	size_t bytes;

	memset(name, 'n', sizeof(name) - 1);
	make_stream(&agreed[0].dialogue, &text);
	assert_int_equal(nbd_handshake_create(&options, &handshake, &error), 0);
	while (!nbd_handshake_is_finished(handshake)) {
		int took = nbd_handshake_input(
			handshake, text.bytes + taken, text.len - taken, &error);

		assert_true(took >= 0);
		taken += (size_t)took;
		(void)nbd_handshake_output(handshake, &bytes);
		longest = MAX(longest, bytes);
		nbd_handshake_sent(handshake);
	}
	assert_true(longest > NBD_STRING_BYTES_MAX + 16);
	assert_int_equal(nbd_handshake_outcome(handshake, &error), 0);
	/* The server's own name replaces it. */
	assert_string_equal(nbd_handshake_facts(handshake)->name, "disk");
	assert_string_equal(nbd_handshake_facts(handshake)->description, "words");
	nbd_handshake_destroy(handshake);
}
