// SPDX-License-Identifier: Apache-2.0
/* One reply after the other that a server may or must not send: each through every way of cutting
 * it into pieces and compared with the model (nbd_client_trial.h), and the sentence that names the
 * rule. test_nbd_client_random.c does the same with streams by chance.
 *
 *   test_nbd_client [FOLDER]		with a folder: writes the cases there as seeds for
 * fuzz_nbd_client
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nbd_client_stream.h"
#include "unit.h"

/* The calls every case has. */
enum {
	READ_600 = 0,
	READ_WHOLE, /* 4096 bytes in one piece (DF) */
	READ_BIG,   /* 200000 bytes */
	READ_HIGH,  /* near 2^63 */
	WRITE_300,
	FLUSH,
	TRIM,
	STATUS,	    /* of 1 MiB */
	STATUS_ONE, /* the same with REQ_ONE */
	CALL_COUNT,
	SIZE = CALL_COUNT, /* the client's own question */
};

enum op {
	END = 0,
	DATA, /* place, length */
	HOLE, /* place, length */
	NONE,
	ERROR,	   /* error, text length */
	ERROR_AT,  /* error, text length, place */
	EXTENTS,   /* id, count, length of each */
	EXTENTS_2, /* id, length and length */
	ALIVE,
	RESIZED, /* size */
	SIMPLE,	 /* error */
	HEAD,	 /* type, length */
	OTHER,	 /* the next header has: cookie, offset (changed by) */
	BYTES,	 /* value, how many bytes */
	FILL,	 /* how many zero bytes */
};

struct step {
	enum op op;
	uint32_t call;
	uint16_t flags;
	uint64_t a;
	uint64_t b;
	uint64_t c;
};

enum style { SIM = BIT(0), STR = BIT(1), EXT = BIT(2), CHUNKS = STR | EXT };

enum { STEPS_MAX = 12, LAST = NBD_REPLY_FLAG_DONE, ID = TRIAL_ALLOCATION_ID };

struct reply_case {
	const char *name;
	uint32_t styles;
	const char *rule; /* NULL: lawful */
	const char *text; /* in the sentence, or in what the server said about the first call */
	int result;	  /* lawful: of the first call that is answered */
	struct step steps[STEPS_MAX];
};

static const struct reply_case lawful[] = {
	{ "a read in one chunk", CHUNKS, .steps = { { DATA, READ_600, LAST, 0, 600 } } },
	{ "a read and NONE", CHUNKS,
		.steps = { { DATA, READ_600, 0, 0, 600 }, { NONE, READ_600, LAST } } },
	{ "a read in pieces, the last first", CHUNKS,
		.steps = { { DATA, READ_600, 0, 500, 100 }, { DATA, READ_600, 0, 1, 499 },
			{ DATA, READ_600, LAST, 0, 1 } } },
	{ "a read that is all hole", CHUNKS, .steps = { { HOLE, READ_600, LAST, 0, 600 } } },
	{ "holes between data", CHUNKS,
		.steps = { { HOLE, READ_600, 0, 0, 1 }, { DATA, READ_600, 0, 1, 1 },
			{ HOLE, READ_600, 0, 2, 597 }, { DATA, READ_600, LAST, 599, 1 } } },
	{ "two reads in each other", CHUNKS,
		.steps = { { DATA, READ_600, 0, 300, 300 }, { DATA, READ_BIG, 0, 0, 100000 },
			{ DATA, READ_600, LAST, 0, 300 },
			{ DATA, READ_BIG, LAST, 100000, 100000 } } },
	{ "every other byte, then the rest", CHUNKS,
		.steps = { { DATA, READ_600, 0, 2, 1 }, { DATA, READ_600, 0, 4, 1 },
			{ DATA, READ_600, 0, 0, 1 }, { DATA, READ_600, 0, 3, 1 },
			{ DATA, READ_600, 0, 1, 1 }, { DATA, READ_600, LAST, 5, 595 } } },
	{ "data near the end of the address space", CHUNKS,
		.steps = { { DATA, READ_HIGH, LAST, 0, 50 } } },
	{ "a read with DF in one chunk", CHUNKS, .steps = { { DATA, READ_WHOLE, LAST, 0, 4096 } } },
	{ "unknown flags of a chunk (P96)", CHUNKS,
		.steps = { { DATA, READ_600, 0xfffe, 0, 600 }, { NONE, READ_600, 0xffff } } },
	{ "an error instead of data", CHUNKS, .result = -EIO, .text = "eee",
		.steps = { { ERROR, READ_600, LAST, NBD_EIO, 3 } } },
	{ "an error after half of the data", CHUNKS, .result = -EIO,
		.steps = { { DATA, READ_600, 0, 0, 300 }, { ERROR, READ_600, LAST, NBD_EIO, 0 } } },
	{ "an error, the padding after it, and NONE (P91)", CHUNKS, .result = -ENOSPC,
		.steps = { { ERROR_AT, READ_600, 0, NBD_ENOSPC, 0, 10 },
			{ DATA, READ_600, 0, 0, 600 }, { NONE, READ_600, LAST } } },
	{ "the first of two errors counts", CHUNKS, .result = -EPERM, .text = "e",
		.steps = { { ERROR, READ_600, 0, NBD_EPERM, 1 },
			{ ERROR_AT, READ_600, LAST, NBD_EIO, 5, 599 } } },
	{ "an error number nobody knows (P119)", CHUNKS, .result = -EINVAL,
		.steps = { { ERROR, WRITE_300, LAST, 0xfffffff0, 0 } } },
	{ "a text of 4096 bytes", CHUNKS, .result = -EIO,
		.steps = { { ERROR, FLUSH, LAST, NBD_EIO, 4096 } } },
	{ "a text of 4096 bytes with an offset", CHUNKS, .result = -EIO,
		.steps = { { ERROR_AT, TRIM, LAST, NBD_EIO, 4096, 5 } } },
	{ "an unknown error type (P97)", CHUNKS, .result = -EIO,
		.steps = { { HEAD, READ_600, LAST, 0x8003, 6 + 5000 }, { BYTES, .a = 5, .b = 4 },
			{ BYTES, .a = 5000, .b = 2 }, { FILL, .a = 5000 } } },
	{ "an unknown error type in the middle, with more than a text", CHUNKS, .result = -EPERM,
		.steps = { { DATA, READ_600, 0, 0, 10 }, { HEAD, READ_600, 0, 0xffff, 6 + 100 },
			{ BYTES, .a = 1, .b = 4 }, { BYTES, .a = 7, .b = 2 }, { FILL, .a = 100 },
			{ DATA, READ_600, LAST, 10, 590 } } },
	{ "an unknown error type of the longest kind", CHUNKS, .result = -EIO,
		.steps = { { HEAD, TRIM, LAST, 0x8abc, 1 << 20 }, { BYTES, .a = 5, .b = 4 },
			{ FILL, .a = (1 << 20) - 4 } } },
	{ "an extent", CHUNKS, .steps = { { EXTENTS, STATUS, LAST, ID, 1, 4096 } } },
	{ "extents up to the end, and NONE", CHUNKS,
		.steps = { { EXTENTS, STATUS, 0, ID, 16, 65536 }, { NONE, STATUS, LAST } } },
	{ "the last extent runs past the range (P101, P106)", CHUNKS,
		.steps = { { EXTENTS_2, STATUS, LAST, ID, 512, 0xfffffe00 } } },
	{ "an extent of 2^63 bytes (P107)", EXT,
		.steps = { { EXTENTS_2, STATUS, LAST, ID, 512, UINT64_C(1) << 63 } } },
	{ "an extent whose end overflows 64 bits", EXT,
		.steps = { { EXTENTS_2, STATUS, LAST, ID, 512, UINT64_MAX } } },
	{ "one extent where one is wanted", CHUNKS,
		.steps = { { EXTENTS, STATUS_ONE, LAST, ID, 1, 512 } } },
	{ "an error instead of extents", CHUNKS, .result = -EINVAL,
		.steps = { { ERROR, STATUS, LAST, NBD_EINVAL, 9 } } },
	{ "extents and then an error", CHUNKS, .result = -EIO,
		.steps = { { EXTENTS, STATUS, 0, ID, 3, 512 },
			{ ERROR, STATUS, LAST, NBD_EIO, 0 } } },
	{ "an error and then extents", CHUNKS, .result = -EIO,
		.steps = { { ERROR, STATUS, 0, NBD_EIO, 0 },
			{ EXTENTS, STATUS, LAST, ID, 3, 512 } } },
	{ "success of a write", CHUNKS, .steps = { { NONE, WRITE_300, LAST } } },
	{ "simple replies to what is no read (P88)", SIM | STR,
		.steps = { { SIMPLE, WRITE_300 }, { SIMPLE, FLUSH }, { SIMPLE, TRIM } } },
	{ "a simple error", SIM | STR, .result = -ENOSPC,
		.steps = { { SIMPLE, WRITE_300, .a = NBD_ENOSPC } } },
	{ "a simple read that fails, and another command", SIM, .result = -EIO,
		.steps = { { SIMPLE, READ_600, .a = NBD_EIO }, { SIMPLE, FLUSH } } },
	{ "ESHUTDOWN (P127)", CHUNKS, .result = -ESHUTDOWN,
		.steps = { { ERROR, READ_600, LAST, NBD_ESHUTDOWN, 0 } } },
	{ "signs of life in several replies", CHUNKS,
		.steps = { { ALIVE, READ_600 }, { ALIVE, FLUSH }, { ALIVE, STATUS },
			{ ALIVE, SIZE }, { ALIVE, READ_600 }, { DATA, READ_600, 0, 0, 300 },
			{ ALIVE, READ_600 }, { DATA, READ_600, LAST, 300, 300 },
			{ NONE, FLUSH, LAST }, { EXTENTS, STATUS, LAST, ID, 1, 512 } } },
	{ "a size", CHUNKS,
		.steps = { { NONE, FLUSH, LAST }, { RESIZED, SIZE, LAST, 5 },
			{ NONE, TRIM, LAST } } },
	{ "the size that it has", CHUNKS,
		.steps = { { NONE, FLUSH, LAST }, { RESIZED, SIZE, LAST, TRIAL_SIZE } } },
	{ "a size between the chunks of a read", CHUNKS,
		.steps = { { DATA, READ_600, 0, 0, 300 }, { RESIZED, SIZE, LAST, 0 },
			{ DATA, READ_600, LAST, 300, 300 } } },
	{ "an error in place of a size", CHUNKS,
		.steps = { { NONE, FLUSH, LAST }, { ERROR, SIZE, LAST, NBD_ESHUTDOWN, 3 } } },
	{ "a size after an error, which does not count", CHUNKS,
		.steps = { { NONE, FLUSH, LAST }, { ERROR, SIZE, 0, NBD_EIO, 0 },
			{ RESIZED, SIZE, LAST, 5 } } },
	{ "nothing at all", SIM | CHUNKS, .result = 1, .steps = { { END } } },
	{ "half a reply", CHUNKS, .result = 1,
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_DATA, 608 },
			{ BYTES, .a = 1000, .b = 8 }, { FILL, .a = 599 } } },
};

static const struct reply_case unlawful[] = {
	/* Streams that are lost. */
	{ "no reply magic", SIM | CHUNKS, "P120", "0x00000000", .steps = { { FILL, .a = 100 } } },
	{ "a simple reply under extended headers", EXT, "P120", "0x67446698",
		.steps = { { SIMPLE, WRITE_300 } } },
	{ "a structured reply under extended headers", EXT, "P120", "0x668e33ef",
		.steps = { { BYTES, .a = 0x668e33ef, .b = 4 }, { FILL, .a = 40 } } },
	{ "a structured reply to a simple client", SIM, "P120", "0x668e33ef",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_NONE, 0 } } },
	{ "an extended reply to a structured client", STR, "P120", "0x6e8a278c",
		.steps = { { BYTES, .a = 0x6e8a278c, .b = 4 }, { FILL, .a = 40 } } },
	{ "a request", SIM | CHUNKS, "P120", "0x25609513",
		.steps = { { BYTES, .a = 0x25609513, .b = 4 }, { FILL, .a = 40 } } },
	{ "text", SIM | CHUNKS, "P120", "0x48545450",
		.steps = { { BYTES, .a = 0x485454502f312e31, .b = 8 } } },
	{ "a byte too many after a reply", CHUNKS, "P120", "0x00",
		.steps = { { NONE, WRITE_300, LAST }, { FILL, .a = 1 }, { NONE, FLUSH, LAST } } },

	/* Cookies. */
	{ "a cookie nobody gave", CHUNKS, "P70", "not made",
		.steps = { { OTHER, .a = 1 }, { NONE, WRITE_300, LAST } } },
	{ "a cookie of another slot", CHUNKS, "P70", "not made",
		.steps = { { OTHER, .a = 1023 }, { NONE, WRITE_300, LAST } } },
	{ "a cookie of an earlier life", CHUNKS, "P70", "not made",
		.steps = { { OTHER, .a = UINT64_C(1) << 63 }, { NONE, WRITE_300, LAST } } },
	{ "a simple cookie nobody gave", SIM, "P70", "not made",
		.steps = { { OTHER, .a = UINT64_MAX }, { SIMPLE, WRITE_300 } } },
	{ "the same reply twice", CHUNKS, "P70", "already answered",
		.steps = { { NONE, WRITE_300, LAST }, { NONE, WRITE_300, LAST } } },
	{ "the same simple reply twice", SIM, "P70", "already answered",
		.steps = { { SIMPLE, FLUSH }, { SIMPLE, FLUSH } } },
	{ "data after the last chunk", CHUNKS, "P70", "already answered",
		.steps = { { DATA, READ_600, LAST, 0, 600 }, { DATA, READ_600, LAST, 0, 600 } } },
	{ "a chunk after an error with DONE", CHUNKS, "P70", "already answered",
		.steps = { { ERROR, READ_600, LAST, NBD_EIO, 0 }, { NONE, READ_600, LAST } } },
	{ "a different offset", EXT, "P110", "the offset in",
		.steps = { { OTHER, .b = 1 }, { NONE, WRITE_300, LAST } } },
	{ "a different offset near 2^64", EXT, "P110", "the offset in",
		.steps = { { OTHER, .b = UINT64_C(1) << 63 }, { DATA, READ_600, LAST, 0, 600 } } },

	/* Forms. */
	{ "a simple reply to a read (P88)", STR, "P88", "READ request",
		.steps = { { SIMPLE, READ_600 } } },
	{ "a simple error to a read (P88)", STR, "P88", "READ request",
		.steps = { { SIMPLE, READ_600, .a = NBD_EIO } } },
	{ "a simple reply to block status", STR, "P88", "BLOCK_STATUS",
		.steps = { { SIMPLE, STATUS } } },
	{ "NONE with a payload", CHUNKS, "P89", "has a payload",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_NONE, 1 } } },
	{ "NONE that is not the last", CHUNKS, "P89", "not the last",
		.steps = { { NONE, FLUSH, 0 } } },
	{ "an unknown type", CHUNKS, "P97", "unknown type 3",
		.steps = { { HEAD, READ_600, LAST, 3, 0 } } },
	{ "the highest type that is no error", CHUNKS, "P97", "unknown type 32767",
		.steps = { { HEAD, READ_600, LAST, 0x7fff, 8 } } },

	/* Data. */
	{ "data without data", CHUNKS, "P97", "of 8 bytes",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_DATA, 8 } } },
	{ "data without an offset", CHUNKS, "P97", "of 0 bytes",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_DATA, 0 } } },
	{ "data before the range", CHUNKS, "P90", "outside",
		.steps = { { DATA, READ_600, LAST, (uint64_t)-1, 600 } } },
	{ "data past the range by one", CHUNKS, "P90", "outside",
		.steps = { { DATA, READ_600, LAST, 1, 600 } } },
	{ "data at the end of the range", CHUNKS, "P90", "outside",
		.steps = { { DATA, READ_600, LAST, 600, 1 } } },
	{ "data whose end overflows", CHUNKS, "P90", "outside",
		.steps = { { DATA, READ_600, LAST, UINT64_MAX - 1099, 200 } } },
	{ "data of 4 GiB", CHUNKS, "P90", "outside",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_DATA, 0xffffffff },
			{ BYTES, .a = 1000, .b = 8 } } },
	{ "data of 2^64 bytes", EXT, "P90", "outside",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_DATA, UINT64_MAX },
			{ BYTES, .a = 1000, .b = 8 } } },
	{ "data that overflows near 2^63", EXT, "P90", "outside",
		.steps = { { HEAD, READ_HIGH, LAST, NBD_REPLY_TYPE_OFFSET_DATA, UINT64_C(1) << 63 },
			{ BYTES, .a = INT64_MAX - 100, .b = 8 } } },
	{ "data for a write", CHUNKS, "P97", "for a WRITE request",
		.steps = { { DATA, WRITE_300, LAST, 0, 300 } } },
	{ "data for a flush", CHUNKS, "P97", "for a FLUSH request",
		.steps = { { DATA, FLUSH, LAST, 0, 1 } } },
	{ "data for block status", CHUNKS, "P97", "for a BLOCK_STATUS request",
		.steps = { { DATA, STATUS, LAST, 0, 512 } } },
	{ "the whole twice", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 0, 600 }, { DATA, READ_600, LAST, 0, 600 } } },
	{ "a byte twice after the whole", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 0, 600 }, { DATA, READ_600, LAST, 599, 1 } } },
	{ "the whole after a byte", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 300, 1 }, { DATA, READ_600, LAST, 0, 600 } } },
	{ "overlap at the left", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 100, 100 }, { DATA, READ_600, LAST, 50, 51 } } },
	{ "overlap at the right", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 100, 100 }, { DATA, READ_600, LAST, 199, 10 } } },
	{ "overlap inside", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 100, 100 }, { DATA, READ_600, LAST, 150, 1 } } },
	{ "overlap around", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 100, 100 }, { DATA, READ_600, LAST, 0, 600 } } },
	{ "overlap with the second neighbour", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 0, 10 }, { DATA, READ_600, 0, 20, 10 },
			{ DATA, READ_600, LAST, 10, 11 } } },
	{ "a hole over data", CHUNKS, "P90", "twice",
		.steps = { { DATA, READ_600, 0, 0, 10 }, { HOLE, READ_600, LAST, 9, 2 } } },
	{ "data in a hole", CHUNKS, "P90", "twice",
		.steps = { { HOLE, READ_600, 0, 0, 600 }, { DATA, READ_600, LAST, 9, 2 } } },
	{ "nothing of the data", CHUNKS, "P90", "but some of its data is missing",
		.steps = { { NONE, READ_600, LAST } } },
	{ "a byte too few at the end", CHUNKS, "P90", "but some of its data is missing",
		.steps = { { DATA, READ_600, LAST, 0, 599 } } },
	{ "a byte too few at the beginning", CHUNKS, "P90", "but some of its data is missing",
		.steps = { { DATA, READ_600, LAST, 1, 599 } } },
	{ "a gap", CHUNKS, "P90", "but some of its data is missing",
		.steps = { { DATA, READ_600, 0, 0, 300 }, { DATA, READ_600, 0, 301, 299 },
			{ NONE, READ_600, LAST } } },
	{ "a split read with DF", CHUNKS, "P93", "must not be split",
		.steps = { { DATA, READ_WHOLE, 0, 0, 2048 },
			{ DATA, READ_WHOLE, LAST, 2048, 2048 } } },
	{ "a hole and data with DF", CHUNKS, "P93", "must not be split",
		.steps = { { HOLE, READ_WHOLE, 0, 0, 2048 },
			{ DATA, READ_WHOLE, LAST, 2048, 2048 } } },

	/* Holes. */
	{ "a hole chunk of another length", CHUNKS, "P97", "of 13 bytes",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_HOLE, 13 } } },
	{ "a hole chunk without a body", CHUNKS, "P97", "of 0 bytes",
		.steps = { { HEAD, READ_600, LAST, NBD_REPLY_TYPE_OFFSET_HOLE, 0 } } },
	{ "an empty hole", CHUNKS, "P90", "empty or outside",
		.steps = { { HOLE, READ_600, LAST, 0, 0 } } },
	{ "a hole before the range", CHUNKS, "P90", "outside",
		.steps = { { HOLE, READ_600, LAST, (uint64_t)-1, 600 } } },
	{ "a hole of 4 GiB", CHUNKS, "P90", "outside",
		.steps = { { HOLE, READ_600, LAST, 0, 0xffffffff } } },
	{ "a hole whose end overflows", CHUNKS, "P90", "outside",
		.steps = { { HOLE, READ_HIGH, LAST, UINT64_C(1) << 63, 0xffffffff } } },
	{ "a hole for a write", CHUNKS, "P97", "for a WRITE request",
		.steps = { { HOLE, WRITE_300, LAST, 0, 300 } } },

	/* Errors. */
	{ "an error of five bytes", CHUNKS, "P97", "of 5 bytes",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_ERROR, 5 } } },
	{ "an error with an offset of 13 bytes", CHUNKS, "P97", "of 13 bytes",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_ERROR_OFFSET, 13 } } },
	{ "an unknown error of five bytes", CHUNKS, "P97", "of 5 bytes",
		.steps = { { HEAD, FLUSH, LAST, 0x8003, 5 } } },
	{ "an unknown error of more than 1 MiB", CHUNKS, "P97", "of 1048577 bytes",
		.steps = { { HEAD, FLUSH, LAST, 0x8003, (1 << 20) + 1 } } },
	{ "an unknown error of 2^64 bytes", EXT, "P97", "of 18446744073709551615 bytes",
		.steps = { { HEAD, FLUSH, LAST, 0x8003, UINT64_MAX } } },
	{ "an unknown error with a text longer than itself", CHUNKS, "P92", "a wrong text length",
		.steps = { { HEAD, FLUSH, LAST, 0x8003, 10 }, { BYTES, .a = 5, .b = 4 },
			{ BYTES, .a = 5, .b = 2 }, { FILL, .a = 4 } } },
	{ "a text of 4097 bytes", CHUNKS, "P97", "of 4103 bytes",
		.steps = { { ERROR, FLUSH, LAST, NBD_EIO, 4097 } } },
	{ "an error of 4 GiB", CHUNKS, "P97", "of 4294967295 bytes",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_ERROR, 0xffffffff } } },
	{ "an error that is none", CHUNKS, "P92", "without an error",
		.steps = { { ERROR, FLUSH, LAST, 0, 0 } } },
	{ "an unknown error that is none", CHUNKS, "P92", "without an error",
		.steps = { { HEAD, FLUSH, LAST, 0x8003, 6 }, { FILL, .a = 6 } } },
	{ "a text shorter than its chunk", CHUNKS, "P92", "a wrong text length",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_ERROR, 8 },
			{ BYTES, .a = 5, .b = 4 }, { BYTES, .a = 1, .b = 2 }, { FILL, .a = 2 } } },
	{ "a text longer than its chunk", CHUNKS, "P92", "a wrong text length",
		.steps = { { HEAD, FLUSH, LAST, NBD_REPLY_TYPE_ERROR, 8 },
			{ BYTES, .a = 5, .b = 4 }, { BYTES, .a = 0xffff, .b = 2 },
			{ FILL, .a = 2 } } },
	{ "an error past the range", CHUNKS, "P92", "outside",
		.steps = { { ERROR_AT, READ_600, LAST, NBD_EIO, 0, 600 } } },
	{ "an error before the range", CHUNKS, "P92", "outside",
		.steps = { { ERROR_AT, READ_600, LAST, NBD_EIO, 3, (uint64_t)-1 } } },

	/* Block status. */
	{ "block status for a read", CHUNKS, "P97", "was not requested",
		.steps = { { EXTENTS, READ_600, LAST, ID, 1, 600 } } },
	{ "the structured form under extended headers", EXT, "P97", "was not requested",
		.steps = { { HEAD, STATUS, LAST, NBD_REPLY_TYPE_BLOCK_STATUS, 12 } } },
	{ "the extended form under structured replies", STR, "P97", "was not requested",
		.steps = { { HEAD, STATUS, LAST, NBD_REPLY_TYPE_BLOCK_STATUS_EXT, 24 } } },
	{ "no extent", CHUNKS, "P97", "of block status",
		.steps = { { EXTENTS, STATUS, LAST, ID, 0, 0 } } },
	{ "half an extent", STR, "P97", "of block status",
		.steps = { { HEAD, STATUS, LAST, NBD_REPLY_TYPE_BLOCK_STATUS, 4 + 8 + 4 },
			{ FILL, .a = 100 } } },
	{ "half an extended extent", EXT, "P97", "of block status",
		.steps = { { HEAD, STATUS, LAST, NBD_REPLY_TYPE_BLOCK_STATUS_EXT, 8 + 16 + 8 } } },
	{ "another context", CHUNKS, "P100", "not selected",
		.steps = { { EXTENTS, STATUS, LAST, ID + 1, 1, 512 } } },
	{ "the context twice", CHUNKS, "P100", "twice",
		.steps = { { EXTENTS, STATUS, 0, ID, 1, 512 },
			{ EXTENTS, STATUS, LAST, ID, 1, 512 } } },
	{ "an empty extent", CHUNKS, "P100", "empty extent",
		.steps = { { EXTENTS_2, STATUS, LAST, ID, 512, 0 } } },
	{ "an extent beyond the range", CHUNKS, "P101", "beyond the requested range",
		.steps = { { EXTENTS_2, STATUS, LAST, ID, 1 << 20, 1 } } },
	{ "extents past an overflow", EXT, "P101", "beyond the requested range",
		.steps = { { EXTENTS_2, STATUS, LAST, ID, UINT64_MAX, 2 } } },
	{ "more extents than are allowed", CHUNKS, "P103", "number of extents",
		.steps = { { EXTENTS, STATUS, LAST, ID, (1 << 20) + 1, 1 } } },
	{ "another count than there are", EXT, "P114", "number of extents",
		.steps = { { HEAD, STATUS, LAST, NBD_REPLY_TYPE_BLOCK_STATUS_EXT, 8 + 16 },
			{ BYTES, .a = ID, .b = 4 }, { BYTES, .a = 2, .b = 4 },
			{ FILL, .a = 16 } } },
	{ "two extents where one is wanted", CHUNKS, "P102", "2 extents",
		.steps = { { EXTENTS, STATUS_ONE, LAST, ID, 2, 512 } } },
	{ "success without extents", CHUNKS, "P100", "without a result",
		.steps = { { NONE, STATUS, LAST } } },

	/* Our own contexts. */
	{ "a size without a result", CHUNKS, "P100", "without a result",
		.steps = { { NONE, SIZE, LAST } } },
	{ "a size in the reply to another call", CHUNKS, "P100", "not selected",
		.steps = { { EXTENTS, STATUS, LAST, NBD_CONTEXT_ID_SIZE, 1, 512 } } },
	{ "a size in the reply to a flush", CHUNKS, "P97", "was not requested",
		.steps = { { EXTENTS, FLUSH, LAST, NBD_CONTEXT_ID_SIZE, 1, 512 } } },
	{ "a size twice", CHUNKS, "P70", "already answered",
		.steps = { { RESIZED, SIZE, LAST, 5 }, { RESIZED, SIZE, LAST, 6 } } },
	{ "a size that is not the end of its reply", CHUNKS, "x-gmblock:size",
		"not in the last chunk", .steps = { { RESIZED, SIZE, 0, 5 } } },
	{ "a size with three extents", CHUNKS, "x-gmblock:size", "extents (3)",
		.steps = { { EXTENTS, SIZE, LAST, NBD_CONTEXT_ID_SIZE, 3, 1 } } },
	{ "a size above 2^63", CHUNKS, "P68", "9223372036854775808 bytes",
		.steps = { { RESIZED, SIZE, LAST, UINT64_C(1) << 63 } } },
	{ "extents in place of a size", CHUNKS, "P97", "was not requested",
		.steps = { { EXTENTS, SIZE, LAST, ID, 1, 512 } } },
	{ "data in place of a size", CHUNKS, "P97", "", .steps = { { DATA, SIZE, LAST, 0, 10 } } },
	{ "a simple reply in place of a size", STR, "P88", "", .steps = { { SIMPLE, SIZE } } },
	{ "a sign of life at the end of a reply", CHUNKS, "x-gmblock:alive", "that ends a reply",
		.steps = { { ALIVE, FLUSH, LAST } } },
	{ "a sign of life with two extents", CHUNKS, "x-gmblock:alive", "it has 2",
		.steps = { { EXTENTS, FLUSH, 0, NBD_CONTEXT_ID_ALIVE, 2, 1 } } },
};

/* --- making it so ---------------------------------------------------------------------------- */

static void trial_fill(struct trial *trial, enum nbd_reply_style style)
{
	*trial = (struct trial){ .style = style,
		.call_count = CALL_COUNT,
		.allocation = true,
		.says_size = true,
		.says_alive = true };
	trial->calls[SIZE].offset = TRIAL_SIZE;
	trial->calls[READ_600] =
		(struct trial_call){ NBD_CMD_READ, .offset = 1000, .length = 600, .cut = 12345 };
	trial->calls[READ_WHOLE] = (struct trial_call){ NBD_CMD_READ, NBD_CMD_FLAG_DF,
		.offset = 4096, .length = 4096, .cut = 7 };
	trial->calls[READ_BIG] =
		(struct trial_call){ NBD_CMD_READ, .offset = 1 << 20, .length = 200000, .cut = 99 };
	trial->calls[READ_HIGH] = (struct trial_call){ NBD_CMD_READ, .offset = INT64_MAX - 100,
		.length = 50, .cut = 3 };
	trial->calls[WRITE_300] =
		(struct trial_call){ NBD_CMD_WRITE, .offset = 512, .length = 300, .cut = 1005 };
	trial->calls[FLUSH] = (struct trial_call){ NBD_CMD_FLUSH };
	trial->calls[TRIM] =
		(struct trial_call){ NBD_CMD_TRIM, .offset = 100, .length = UINT32_C(1) << 31 };
	trial->calls[STATUS] = (struct trial_call){ NBD_CMD_BLOCK_STATUS, .length = 1 << 20 };
	trial->calls[STATUS_ONE] = (struct trial_call){ NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE,
		.length = 1 << 20 };
	if (style == NBD_REPLIES_SIMPLE) {
		trial->calls[READ_WHOLE].flags = 0;
		trial->call_count = STATUS;
	}
}

static void put_extents(struct stream *stream, const struct step *step)
{
	uint32_t count = (uint32_t)step->b;
	struct stream_extent *extents = calloc(count + 1, sizeof(*extents));

	assert_non_null(extents);
	for (uint32_t i = 0; i < count; i++) {
		extents[i] = (struct stream_extent){ .length = step->c, .flags = i & 3 };
	}
	stream_status(stream, step->call, step->flags, (uint32_t)step->a, extents, count);
	free(extents);
}

static void put_step(struct stream *stream, const struct step *step)
{
	uint32_t call = step->call;
	uint16_t flags = step->flags;

	switch (step->op) {
	case END:
	case OTHER:
		break;
	case DATA:
		stream_data(stream, call, flags, step->a, step->b);
		break;
	case HOLE:
		stream_hole(stream, call, flags, step->a, (uint32_t)step->b);
		break;
	case NONE:
		stream_none(stream, call, flags);
		break;
	case ERROR:
		stream_error(stream, call, flags, (uint32_t)step->a, (uint32_t)step->b);
		break;
	case ERROR_AT:
		stream_error_offset(
			stream, call, flags, (uint32_t)step->a, (uint32_t)step->b, step->c);
		break;
	case EXTENTS:
		put_extents(stream, step);
		break;
	case EXTENTS_2:
		stream_status(stream, call, flags, (uint32_t)step->a,
			(struct stream_extent[]){ { step->b, 1 }, { step->c, UINT64_MAX } }, 2);
		break;
	case ALIVE:
		stream_status(stream, call, flags, NBD_CONTEXT_ID_ALIVE,
			&(struct stream_extent){ 1, 1 }, 1);
		break;
	case RESIZED:
		stream_size(stream, flags, step->a);
		break;
	case SIMPLE:
		stream_simple(stream, call, (uint32_t)step->a);
		break;
	case HEAD:
		stream_head(stream, call, flags, (uint16_t)step->a, step->b);
		break;
	case BYTES:
		stream_number(stream, step->a, step->b);
		break;
	case FILL:
		for (uint64_t i = 0; i < step->a; i++) {
			stream_number(stream, 0, 1);
		}
		break;
	}
}

/* Changes the header that begins at a place. */
static void put_other(struct stream *stream, size_t at, const struct step *other)
{
	uint64_t cookie;

	memcpy(&cookie, stream->bytes + at + 8, sizeof(cookie));
	cookie ^= other->a;
	memcpy(stream->bytes + at + 8, &cookie, sizeof(cookie));
	for (int i = 0; i < 8 && other->b != 0; i++) {
		stream->bytes[at + 23 - (size_t)i] ^= (uint8_t)(other->b >> (8 * i));
	}
}

static const char *running; /* told when a promise of the trial is broken */

static void tell_running(int number)
{
	GMB_UNUSED(!write(STDERR_FILENO, running, strlen(running)));
	signal(number, SIG_DFL);
	raise(number);
}

/* Writes the replies of a case; the trial is filled for its style. */
static void make_stream(const struct reply_case *one, struct stream *stream)
{
	for (int i = 0; i < STEPS_MAX && one->steps[i].op != END; i++) {
		size_t at = stream->len;

		put_step(stream, &one->steps[i]);
		if (i > 0 && one->steps[i - 1].op == OTHER) {
			put_other(stream, at, &one->steps[i - 1]);
		}
	}
}

static void run_case(
	const struct reply_case *one, enum nbd_reply_style style, struct trial_outcome *outcome)
{
	struct trial trial;
	struct stream stream;
	const char *violation;

	running = one->name;
	trial_fill(&trial, style);
	stream_init(&stream, &trial);
	make_stream(one, &stream);
	trial.stream = stream.bytes;
	trial.stream_bytes = stream.len;
	*outcome = trial_run_all(&trial, &violation);
	stream_fini(&stream);
	assert_int_equal(violation != NULL, one->rule != NULL);
}

static void check_unlawful(const struct reply_case *one, enum nbd_reply_style style)
{
	struct trial_outcome outcome;

	run_case(one, style, &outcome);
	if (strstr(outcome.error.text, one->rule) == NULL ||
		strstr(outcome.error.text, one->text) == NULL) {
		fail_msg("%s (style %d): \"%s\"", one->name, style, outcome.error.text);
	}
}

static void check_lawful(const struct reply_case *one, enum nbd_reply_style style)
{
	struct trial_outcome outcome;
	uint32_t call = one->steps[0].call;

	run_case(one, style, &outcome);
	if (outcome.code != 0 || outcome.results[call] != one->result ||
		strstr(outcome.said[call], one->text != NULL ? one->text : "") == NULL) {
		fail_msg("%s (style %d): result %d, \"%s\", said \"%s\"", one->name, style,
			outcome.results[call], outcome.error.text, outcome.said[call]);
	}
}

TEST(test_what_a_server_may_send)
{
	for (size_t i = 0; i < ARRAY_COUNT(lawful); i++) {
		for (uint32_t style = 0; style < 3; style++) {
			if ((lawful[i].styles & BIT(style)) != 0) {
				check_lawful(&lawful[i], (enum nbd_reply_style)style);
			}
		}
	}
}

TEST(test_what_a_server_must_not_send_ends_the_connection_with_the_rule)
{
	for (size_t i = 0; i < ARRAY_COUNT(unlawful); i++) {
		for (uint32_t style = 0; style < 3; style++) {
			if ((unlawful[i].styles & BIT(style)) != 0) {
				check_unlawful(&unlawful[i], (enum nbd_reply_style)style);
			}
		}
	}
}

TEST(test_errors_without_end_end)
{
	static const struct trial_way ways[] = {
		{ .split = TRIAL_WHOLE },
		{ .split = TRIAL_RANDOM, .send_slowly = true, .seed = 9 },
	};
	struct trial_outcome outcome;
	struct stream stream;
	struct trial trial;

	running = "errors without end";
	trial_fill(&trial, NBD_REPLIES_EXTENDED);
	stream_init(&stream, &trial);
	for (int i = 0; i < NBD_CLIENT_ERRORS_MAX; i++) {
		stream_error(&stream, READ_600, 0, NBD_EIO, 0);
	}
	trial.stream = stream.bytes;
	trial.stream_bytes = stream.len;
	trial_run(&trial, &ways[0], &outcome, NULL);
	assert_int_equal(outcome.code, 0);
	stream_error(&stream, READ_600, 0, NBD_EIO, 0);
	trial.stream = stream.bytes;
	trial.stream_bytes = stream.len;
	for (size_t i = 0; i < ARRAY_COUNT(ways); i++) {
		trial_run(&trial, &ways[i], &outcome, NULL);
		assert_int_equal(outcome.code, -EPROTO);
		assert_non_null(strstr(
			outcome.error.text, "more than 65536 errors for one request (rule P92)"));
	}
	stream_fini(&stream);
}

/* --- where bytes go ----------------------------------------------------------------------------
 */

static void fill_reads(struct trial *trial, enum nbd_reply_style style, uint32_t count)
{
	*trial = (struct trial){ .style = style, .call_count = count };
	for (uint32_t i = 0; i < count; i++) {
		trial->calls[i] = (struct trial_call){ NBD_CMD_READ, .offset = i * UINT64_C(4096),
			.length = 4096, .cut = 1 };
	}
}

static void put_answer(struct stream *stream, uint32_t call)
{
	if (stream->trial->style == NBD_REPLIES_SIMPLE) {
		stream_simple(stream, call, 0);
		stream_content(stream, stream->trial->calls[call].offset, 4096);
	} else {
		stream_data(stream, call, LAST, 0, 4096);
	}
}

static void run_reads(struct trial *trial, const uint32_t *order, struct trial_outcome *outcome)
{
	static const struct trial_way whole = { .split = TRIAL_WHOLE };
	struct stream stream;

	running = "the order of reads";
	stream_init(&stream, trial);
	for (uint32_t i = 0; i < trial->call_count; i++) {
		put_answer(&stream, order[i]);
	}
	trial->stream = stream.bytes;
	trial->stream_bytes = stream.len;
	trial_run(trial, &whole, outcome, NULL);
	assert_int_equal(outcome->code, 0);
	assert_int_equal(outcome->done_count, trial->call_count);
	stream_fini(&stream);
}

/* Answers in order are received in place; others are moved, and right nevertheless. */
TEST(test_what_is_received_in_place)
{
	struct trial_outcome outcome;
	struct trial trial;
	uint32_t order[32];

	for (uint32_t style = 0; style < 3; style++) {
		fill_reads(&trial, (enum nbd_reply_style)style, ARRAY_COUNT(order));
		for (uint32_t i = 0; i < ARRAY_COUNT(order); i++) {
			order[i] = i;
		}
		run_reads(&trial, order, &outcome);
		assert_int_equal(outcome.moved_bytes, 0);
		for (uint32_t i = 0; i < ARRAY_COUNT(order); i++) {
			order[i] = (uint32_t)ARRAY_COUNT(order) - 1 - i;
		}
		run_reads(&trial, order, &outcome);
		assert_true(outcome.moved_bytes > 0);
		/* It learns: with nothing predicted nothing has to be moved. */
		assert_true(outcome.moved_bytes < 16 * UINT64_C(4096));
	}
}

/* --- lives of a slot ---------------------------------------------------------------------------
 */

static struct nbd_call again; /* submitted from inside done */
static uint32_t lives;

static void done_again(struct nbd_client *client, struct nbd_call *call)
{
	lives++;
	if (call != &again) {
		again = (struct nbd_call){ .type = NBD_CMD_FLUSH };
		nbd_client_add(client, &again);
	}
}

static int give(struct nbd_client *client, const void *bytes, size_t len, struct error *error)
{
	const struct iovec *iov;
	uint32_t count;
	size_t room;
	bool whole;

	iov = nbd_client_input(client, &count, &room, &whole);
	assert_true(iov[0].iov_len >= len);
	memcpy(iov[0].iov_base, bytes, len);
	return nbd_client_received(client, len, error);
}

/* A reply to the last life of a slot does not match the next one (rule P70), nor does one to a
 * request that was not sent yet. */
TEST(test_a_late_reply_does_not_match_a_slot_that_is_used_again)
{
	static const struct nbd_client_handler handler = { .done = done_again };
	static const struct nbd_facts facts = { .style = NBD_REPLIES_STRUCTURED };
	struct nbd_wire_structured_reply reply = { .magic = be32_make(NBD_STRUCTURED_REPLY_MAGIC),
		.flags = be16_make(LAST) };
	struct nbd_call first = { .type = NBD_CMD_TRIM, .length = 1 };
	struct iovec iov[4];
	struct error error;
	struct nbd_client *client = calloc(1, sizeof(*client));
	uint64_t late;
	bool was_sent;

	assert_non_null(client);
	nbd_client_init(client, &handler, &facts, 5);
	nbd_client_add(client, &first);
	late = reply.cookie = first.cookie;
	assert_int_equal(nbd_client_output(client, iov, 4), 1);
	nbd_client_sent(client, 28);
	assert_int_equal(give(client, &reply, sizeof(reply), &error), 0);
	assert_int_equal(lives, 1);
	assert_int_equal(
		again.cookie & (NBD_CLIENT_SLOTS_MAX - 1), late & (NBD_CLIENT_SLOTS_MAX - 1));
	reply.cookie = again.cookie; /* guessed before it was sent */
	assert_int_equal(give(client, &reply, sizeof(reply), &error), -EPROTO);
	assert_non_null(strstr(error.text, "rule P70"));
	client->stage_bytes = 0;
	assert_int_equal(nbd_client_output(client, iov, 4), 1);
	nbd_client_sent(client, 28);
	reply.cookie = late;
	assert_int_equal(give(client, &reply, sizeof(reply), &error), -EPROTO);
	assert_non_null(strstr(error.text, "rule P70"));
	assert_ptr_equal(nbd_client_take_back(client, &was_sent), &again);
	assert_true(was_sent);
	assert_null(nbd_client_take_back(client, &was_sent));
	nbd_client_fini(client);
	free(client);
	assert_int_equal(lives, 1);
}

/* --- seeds for tests/fuzz/fuzz_nbd_client.c
 * --------------------------------------------------------- */

enum { SEED_BYTES_MAX = 4096 };

static void write_seed(const char *folder, const char *kind, size_t number,
	const struct reply_case *one, enum nbd_reply_style style)
{
	struct stream seed;
	struct stream replies;
	struct trial trial;
	char path[512];
	FILE *file;

	trial_fill(&trial, style);
	stream_init(&replies, &trial);
	make_stream(one, &replies);
	stream_init(&seed, &trial);
	stream_number(&seed, (uint64_t)style | 4 | 16 | 32 | (number % 2) << 3, 1);
	stream_number(&seed, number, 1);
	stream_number(&seed, trial.call_count, 1);
	for (uint32_t i = 0; i < trial.call_count; i++) {
		const struct trial_call *call = &trial.calls[i];

		stream_number(&seed, call->type, 1);
		stream_number(&seed, call->flags, 1);
		stream_number(&seed, call->cut, 2);
		stream_number(&seed, i == READ_BIG ? 5000 : call->length, 8);
		stream_number(&seed, call->offset, 8);
	}
	stream_append(&seed, replies.bytes, replies.len);
	snprintf(path, sizeof(path), "%s/%s-%03zu-%d", folder, kind, number, (int)style);
	file = seed.len <= SEED_BYTES_MAX ? fopen(path, "wb") : NULL;
	if (file != NULL) {
		fwrite(seed.bytes, 1, seed.len, file);
		fclose(file);
	}
	stream_fini(&seed);
	stream_fini(&replies);
}

/* One style each is enough of what can be said in several. */
static uint32_t seed_style(uint32_t styles, size_t number)
{
	for (uint32_t style = (uint32_t)number % 3;; style = (style + 1) % 3) {
		if ((styles & BIT(style)) != 0) {
			return style;
		}
	}
}

static int write_seeds(const char *folder)
{
	for (size_t i = 0; i < ARRAY_COUNT(lawful); i++) {
		write_seed(folder, "lawful", i, &lawful[i],
			(enum nbd_reply_style)seed_style(lawful[i].styles, i));
	}
	for (size_t i = 0; i < ARRAY_COUNT(unlawful); i++) {
		write_seed(folder, "unlawful", i, &unlawful[i],
			(enum nbd_reply_style)seed_style(unlawful[i].styles, i));
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2) {
		return write_seeds(argv[1]);
	}
	signal(SIGABRT, tell_running);
	return unit_run(NULL, NULL);
}
