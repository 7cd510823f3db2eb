// SPDX-License-Identifier: Apache-2.0
/*
 * The NBD protocol on the wire: numbers, names and layouts, exactly as in doc/proto.md of the NBD
 * project and its extended-headers extension. Row numbers (P...) refer to docs/protocol/nbd.md.
 *
 * Threading: constants and pure functions. Ownership: none. All integers are big-endian (P1).
 */
#pragma once

#include "base/bytes.h"
#include "base/compiler.h"

/* --- magic numbers ------------------------------------------------------------------------- */

#define NBD_MAGIC		   UINT64_C(0x4e42444d41474943) /* "NBDMAGIC" */
#define NBD_OPTION_MAGIC	   UINT64_C(0x49484156454f5054) /* "IHAVEOPT" */
#define NBD_OLDSTYLE_MAGIC	   UINT64_C(0x00420281861253)
#define NBD_OPTION_REPLY_MAGIC	   UINT64_C(0x0003e889045565a9)
#define NBD_REQUEST_MAGIC	   UINT32_C(0x25609513)
#define NBD_SIMPLE_REPLY_MAGIC	   UINT32_C(0x67446698)
#define NBD_STRUCTURED_REPLY_MAGIC UINT32_C(0x668e33ef)
#define NBD_EXTENDED_REQUEST_MAGIC UINT32_C(0x21e41c71)
#define NBD_EXTENDED_REPLY_MAGIC   UINT32_C(0x6e8a278c)

/* --- metadata contexts --------------------------------------------------------------------- */

#define NBD_CONTEXT_ALLOCATION "base:allocation"
/* Our own contexts, which appear only in lists: docs/design/0006-reconnect.md. */
#define NBD_CONTEXT_EPOCH      "x-gmblock:epoch"
#define NBD_CONTEXT_CONNECTION "x-gmblock:connection="
#define NBD_CONTEXT_REPLACES   "x-gmblock:replaces="
#define NBD_CONTEXT_ALIVE      "x-gmblock:alive" /* a query adds "=" and milliseconds */
#define NBD_CONTEXT_SIZE       "x-gmblock:size"
#define NBD_CONTEXT_DISK       "x-gmblock:disk"
#define NBD_CONTEXT_LEASE      "x-gmblock:lease" /* a query adds "=" and the lease that it wants */
/* Context ids of our own block status chunks: the first shows only that the server is alive, the
 * second reports the size of the export. */
#define NBD_CONTEXT_ID_ALIVE UINT32_MAX
#define NBD_CONTEXT_ID_SIZE  (UINT32_MAX - 1)

/* --- limits -------------------------------------------------------------------------------- */

enum {
	NBD_STRING_BYTES_MAX = 4096,  /* P1 */
	NBD_OPTION_BYTES_MAX = 16384, /* P123: our own limit; longer options get ERR_TOO_BIG */
	/* sent after the reply to EXPORT_NAME, unless NO_ZEROES is set (P31) */
	NBD_OLD_REPLY_ZEROES = 124,
	NBD_PAYLOAD_BYTES_MAX = 64 << 20, /* our own limit for READ and WRITE */
	NBD_CONTEXT_QUERIES_MAX = 64,	  /* P41: our own limit; more queries get ERR_TOO_BIG */
	/* our own limit for tokens after NBD_CONTEXT_CONNECTION and _REPLACES */
	NBD_TOKEN_BYTES_MAX = 64,
	/* extents of a NBD_CONTEXT_ID_SIZE chunk without extended headers */
	NBD_SIZE_EXTENTS = 2,
};

/* --- handshake ----------------------------------------------------------------------------- */

enum nbd_handshake_flag {
	NBD_FLAG_FIXED_NEWSTYLE = 1 << 0,
	NBD_FLAG_NO_ZEROES = 1 << 1,
};

enum nbd_option {
	NBD_OPT_EXPORT_NAME = 1,
	NBD_OPT_ABORT = 2,
	NBD_OPT_LIST = 3,
	NBD_OPT_PEEK_EXPORT = 4, /* withdrawn */
	NBD_OPT_STARTTLS = 5,
	NBD_OPT_INFO = 6,
	NBD_OPT_GO = 7,
	NBD_OPT_STRUCTURED_REPLY = 8,
	NBD_OPT_LIST_META_CONTEXT = 9,
	NBD_OPT_SET_META_CONTEXT = 10,
	NBD_OPT_EXTENDED_HEADERS = 11,
	NBD_OPT_FENCE = 0x676d6246, /* our own, docs/protocol/nbd.md: "gmbF" */
};

/* The first 32 bits of the data of NBD_OPT_FENCE; the name of the node follows. */
enum nbd_fence_action {
	NBD_FENCE_LOOK = 0,
	NBD_FENCE_FENCE = 1,
	NBD_FENCE_UNFENCE = 2,
};

#define NBD_REP_ERROR_BIT UINT32_C(0x80000000)

enum nbd_option_reply {
	NBD_REP_ACK = 1,
	NBD_REP_SERVER = 2,
	NBD_REP_INFO = 3,
	NBD_REP_META_CONTEXT = 4,
};
#define NBD_REP_ERR_UNSUP	    (NBD_REP_ERROR_BIT + 1)
#define NBD_REP_ERR_POLICY	    (NBD_REP_ERROR_BIT + 2)
#define NBD_REP_ERR_INVALID	    (NBD_REP_ERROR_BIT + 3)
#define NBD_REP_ERR_PLATFORM	    (NBD_REP_ERROR_BIT + 4)
#define NBD_REP_ERR_TLS_REQD	    (NBD_REP_ERROR_BIT + 5)
#define NBD_REP_ERR_UNKNOWN	    (NBD_REP_ERROR_BIT + 6)
#define NBD_REP_ERR_SHUTDOWN	    (NBD_REP_ERROR_BIT + 7)
#define NBD_REP_ERR_BLOCK_SIZE_REQD (NBD_REP_ERROR_BIT + 8)
#define NBD_REP_ERR_TOO_BIG	    (NBD_REP_ERROR_BIT + 9)
#define NBD_REP_ERR_EXT_HEADER_REQD (NBD_REP_ERROR_BIT + 10)
#define NBD_REP_ERR_IN_PROGRESS	    (NBD_REP_ERROR_BIT + 0x676d6246) /* our own */

enum nbd_info {
	NBD_INFO_EXPORT = 0,
	NBD_INFO_NAME = 1,
	NBD_INFO_DESCRIPTION = 2,
	NBD_INFO_BLOCK_SIZE = 3,
};

struct nbd_wire_greeting {
	struct be64 magic;
	struct be64 option_magic;
	struct be16 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_greeting) == 18, "greeting");

struct nbd_wire_option {
	struct be64 magic;
	struct be32 option;
	struct be32 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_option) == 16, "option header");

struct nbd_wire_option_reply {
	struct be64 magic;
	struct be32 option;
	struct be32 type;
	struct be32 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_option_reply) == 20, "option reply header");

struct nbd_wire_info_export {
	struct be16 type;
	struct be64 size;
	struct be16 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_info_export) == 12, "INFO_EXPORT");

struct nbd_wire_info_block_size {
	struct be16 type;
	struct be32 minimum;
	struct be32 preferred;
	struct be32 maximum;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_info_block_size) == 14, "INFO_BLOCK_SIZE");

/* Answer to EXPORT_NAME, followed by 124 zero bytes unless NO_ZEROES. */
struct nbd_wire_old_reply {
	struct be64 size;
	struct be16 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_old_reply) == 10, "EXPORT_NAME reply");

/* --- transmission -------------------------------------------------------------------------- */

enum nbd_transmission_flag {
	NBD_FLAG_HAS_FLAGS = 1 << 0,
	NBD_FLAG_READ_ONLY = 1 << 1,
	NBD_FLAG_SEND_FLUSH = 1 << 2,
	NBD_FLAG_SEND_FUA = 1 << 3,
	NBD_FLAG_ROTATIONAL = 1 << 4,
	NBD_FLAG_SEND_TRIM = 1 << 5,
	NBD_FLAG_SEND_WRITE_ZEROES = 1 << 6,
	NBD_FLAG_SEND_DF = 1 << 7,
	NBD_FLAG_CAN_MULTI_CONN = 1 << 8,
	NBD_FLAG_SEND_RESIZE = 1 << 9,
	NBD_FLAG_SEND_CACHE = 1 << 10,
	NBD_FLAG_SEND_FAST_ZERO = 1 << 11,
	NBD_FLAG_BLOCK_STATUS_PAYLOAD = 1 << 12,
};

enum nbd_command {
	NBD_CMD_READ = 0,
	NBD_CMD_WRITE = 1,
	NBD_CMD_DISC = 2,
	NBD_CMD_FLUSH = 3,
	NBD_CMD_TRIM = 4,
	NBD_CMD_CACHE = 5,
	NBD_CMD_WRITE_ZEROES = 6,
	NBD_CMD_BLOCK_STATUS = 7,
	NBD_CMD_RESIZE = 8,
};

enum nbd_command_flag {
	NBD_CMD_FLAG_FUA = 1 << 0,
	NBD_CMD_FLAG_NO_HOLE = 1 << 1,
	NBD_CMD_FLAG_DF = 1 << 2,
	NBD_CMD_FLAG_REQ_ONE = 1 << 3,
	NBD_CMD_FLAG_FAST_ZERO = 1 << 4,
	NBD_CMD_FLAG_PAYLOAD_LEN = 1 << 5,
};

enum nbd_reply_flag { NBD_REPLY_FLAG_DONE = 1 << 0 };

enum nbd_reply_type {
	NBD_REPLY_TYPE_NONE = 0,
	NBD_REPLY_TYPE_OFFSET_DATA = 1,
	NBD_REPLY_TYPE_OFFSET_HOLE = 2,
	NBD_REPLY_TYPE_BLOCK_STATUS = 5,
	NBD_REPLY_TYPE_BLOCK_STATUS_EXT = 6,
	NBD_REPLY_TYPE_ERROR_BIT = 1 << 15,
	NBD_REPLY_TYPE_ERROR = (1 << 15) + 1,
	NBD_REPLY_TYPE_ERROR_OFFSET = (1 << 15) + 2,
};

enum nbd_error {
	NBD_SUCCESS = 0,
	NBD_EPERM = 1,
	NBD_EIO = 5,
	NBD_ENOMEM = 12,
	NBD_EINVAL = 22,
	NBD_ENOSPC = 28,
	NBD_EOVERFLOW = 75,
	NBD_ENOTSUP = 95,
	NBD_ESHUTDOWN = 108,
};

struct nbd_wire_request {
	struct be32 magic;
	struct be16 flags;
	struct be16 type;
	uint64_t cookie; /* opaque: echoed unchanged (P69) */
	struct be64 offset;
	struct be32 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_request) == 28, "request");

struct nbd_wire_extended_request {
	struct be32 magic;
	struct be16 flags;
	struct be16 type;
	uint64_t cookie;
	struct be64 offset;
	struct be64 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_extended_request) == 32, "extended request");

struct nbd_wire_simple_reply {
	struct be32 magic;
	struct be32 error;
	uint64_t cookie;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_simple_reply) == 16, "simple reply");

struct nbd_wire_structured_reply {
	struct be32 magic;
	struct be16 flags;
	struct be16 type;
	uint64_t cookie;
	struct be32 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_structured_reply) == 20, "structured reply");

struct nbd_wire_extended_reply {
	struct be32 magic;
	struct be16 flags;
	struct be16 type;
	uint64_t cookie;
	struct be64 offset;
	struct be64 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_extended_reply) == 32, "extended reply");

struct nbd_wire_offset_hole {
	struct be64 offset;
	struct be32 length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_offset_hole) == 12, "OFFSET_HOLE");

/* ERROR: error, text length, text. ERROR_OFFSET: ERROR followed by the 64-bit offset. */
struct nbd_wire_error {
	struct be32 error;
	struct be16 text_length;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_error) == 6, "ERROR");

struct nbd_wire_extent {
	struct be32 length;
	struct be32 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_extent) == 8, "BLOCK_STATUS extent");

/* BLOCK_STATUS_EXT: context id and count, followed by these extents. */
struct nbd_wire_extent_ext {
	struct be64 length;
	struct be64 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct nbd_wire_extent_ext) == 16, "BLOCK_STATUS_EXT extent");

/* --- names, for logs and tools ------------------------------------------------------------- */

/* Return the name of an option or command, or "unknown". */
const char *nbd_option_name(uint32_t option);
const char *nbd_command_name(uint32_t command);

/* Maps a negative errno, or 0, to the error on the wire (P118); EIO for each errno that has no
 * own error. */
uint32_t nbd_error_from_errno(int code);
/* Maps an error on the wire to a negative errno, for clients. Unknown values become -EINVAL
 * (P119). */
int nbd_error_to_errno(uint32_t error);

/* --- data of handshake options ---------------------------------------------------------------- */

/* Parsers of data from clients, which may be hostile. Results point into the caller's bytes. If
 * lengths and counts do not agree exactly (P22, P37), a parser returns false and stores a static
 * sentence in *reason, and the caller replies ERR_INVALID. */

struct option_string {
	const uint8_t *bytes;
	uint32_t length;
};

/* INFO and GO: the export name and the list of information requests. */
struct option_go {
	struct option_string name;
	const uint8_t *requests; /* big-endian 16-bit numbers */
	uint32_t request_count;
};
bool option_go_parse(
	const uint8_t *data, uint32_t length, struct option_go *go, const char **reason);
/* Returns whether the client requests this information. */
bool option_go_asks(const struct option_go *go, enum nbd_info info);

/* LIST_META_CONTEXT and SET_META_CONTEXT: the export name and the queries. */
struct option_context {
	struct option_string name;
	uint32_t query_count;
	/* query_count strings, each a 32-bit length and its bytes; the lengths are checked */
	const uint8_t *queries;
};
bool option_context_parse(
	const uint8_t *data, uint32_t length, struct option_context *context, const char **reason);
/* Removes the next query from *queries and returns it. */
struct option_string option_context_next(const uint8_t **queries);
