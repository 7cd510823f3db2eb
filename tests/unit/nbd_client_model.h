// SPDX-License-Identifier: Apache-2.0
/*
 * What a server's replies mean, worked out the slow and simple way: from all bytes at once, with a
 * map of the bytes of each read. The client must come to the same results whatever pieces it gets.
 *
 * Threading: one thread. Ownership: model_call_fini() frees what a call holds; the calls are the
 * caller's. Errors: none; a broken rule is a result.
 */
#pragma once

#include "base/bytes.h"
#include "base/compiler.h"
#include "nbd/wire.h"

enum { MODEL_ERRORS_MAX = 65536 };

enum model_style { MODEL_SIMPLE, MODEL_STRUCTURED, MODEL_EXTENDED };

struct model_call {
	/* The request; length of a READ is small enough to be allocated. */
	uint16_t type;
	uint16_t flags;
	uint64_t offset;
	uint64_t length;
	uint64_t cookie;

	/* The answer. */
	bool done;
	uint32_t error; /* the first, as on the wire; 0 = none */
	bool described;
	uint64_t described_bytes;
	uint64_t story;	  /* digest of holes and extents in the order they came */
	uint8_t *memory;  /* READ: what was read */
	uint8_t *covered; /* READ: one byte each, nonzero = came */
	uint64_t covered_bytes;
	uint32_t errors; /* chunks */
};

struct model {
	enum model_style style;
	bool allocation;
	uint32_t allocation_id;
	struct model_call *calls;
	uint32_t call_count;
	bool says_alive;
	struct model_call *size_call; /* the question about the size, or NULL */
	uint64_t size;		      /* of the export; the answer changes it */

	const char *violation; /* the rule that was broken, as "P90"; NULL = none */
	uint32_t done_count;   /* of calls */
	/* private */
	const uint8_t *at;
	size_t left;
};

/* Prepares the answer part of a call whose request part is set. */
void model_call_init(struct model_call *call);
void model_call_fini(struct model_call *call);

/* Reads replies until the bytes are used up, what is left is not a whole reply, or a rule is
 * broken. */
void model_run(struct model *model, const uint8_t *bytes, size_t len);

/* The digest of a call's story; both sides of a comparison use them. */
uint64_t model_story_hole(uint64_t story, uint64_t offset, uint64_t length);
uint64_t model_story_extent(uint64_t story, uint64_t length, uint32_t flags);
