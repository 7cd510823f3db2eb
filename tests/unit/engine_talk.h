// SPDX-License-Identifier: Apache-2.0
/*
 * What tests of the engine share, on real rings and on simulated ones: exports, and the words of an
 * NBD client that only reads.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/export.h"
#include "nbd/wire.h"

/* Of a store as it is without options. */
static inline struct export *export_of_path(const char *name, const char *path)
{
	struct export_options about = { .name = name, .name_bytes = (uint32_t)strlen(name) };
	struct export *export;
	struct error error;

	assert_int_equal(
		store_open(&(struct store_options){ .path = path }, &about.store, &error), 0);
	assert_int_equal(export_create(&about, &export, &error), 0);
	return export;
}

/* Before the name of the export; the answer is a greeting and an old reply. */
struct talk_hello {
	struct be32 flags;
	struct nbd_wire_option option;
} __attribute__((packed));

enum { TALK_HELLO_BYTES = sizeof(struct nbd_wire_greeting) + sizeof(struct nbd_wire_old_reply) };

static inline struct talk_hello talk_hello(const char *name)
{
	return (struct talk_hello){
		.flags = be32_make(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
		.option = { .magic = be64_make(NBD_OPTION_MAGIC),
			.option = be32_make(NBD_OPT_EXPORT_NAME),
			.length = be32_make((uint32_t)strlen(name)) },
	};
}

static inline struct nbd_wire_request talk_request(
	enum nbd_command command, uint64_t offset, uint32_t length)
{
	return (struct nbd_wire_request){
		.magic = be32_make(NBD_REQUEST_MAGIC),
		.type = be16_make((uint16_t)command),
		.offset = be64_make(offset),
		.length = be32_make(length),
	};
}
