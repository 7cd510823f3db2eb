// SPDX-License-Identifier: Apache-2.0
/*
 * What two processes of a server say to each other when the second takes over:
 * docs/protocol/upgrade.md. One message is one packet of a SOCK_SEQPACKET socket, with one
 * descriptor or none.
 *
 * Threading: none of its own. Ownership: a message that was received refers to its buffer, and owns
 * its descriptor; one that is sent is borrowed. Errors: -EPROTO with a sentence for a packet that
 * is none of these messages, -EPROTONOSUPPORT for another version, and those of the socket.
 */
#pragma once

#include "engine/pass.h"

enum {
	UPGRADE_MAGIC = 0x676d6255, /* "gmbU" */
	UPGRADE_VERSION = 1,
	UPGRADE_PACKET_BYTES_MAX = 32 << 10,
	UPGRADE_NAME_BYTES_MAX = EXPORT_NAME_BYTES_MAX,
	UPGRADE_KIND_BYTES_MAX = 16,
	UPGRADE_STRINGS_BYTES_MAX = 16 << 10, /* of ADDED */
	UPGRADE_SETTINGS_MAX = 256,
	UPGRADE_RECEIVED_BYTES_MAX = 24 << 10, /* of one message */
};

enum upgrade_type {
	UPGRADE_HELLO = 1,    /* new: it runs */
	UPGRADE_LISTENER,     /* old: a listening socket */
	UPGRADE_EXPORT,	      /* old: a disk, with its claim */
	UPGRADE_PREPARE,      /* old: that was all */
	UPGRADE_READY,	      /* new: everything is open */
	UPGRADE_SESSION,      /* old: a connection */
	UPGRADE_SESSIONS_END, /* old: that was all; nothing is in flight any more */
	UPGRADE_STARTED,      /* new: from here on everything is its own */
	UPGRADE_FAILED,	      /* either: why it gives up */
	UPGRADE_ADDED,	      /* old, after EXPORT: an export that a command has added */
	UPGRADE_SNAPSHOT,     /* old: the keys of a snapshot's export */
	UPGRADE_RECEIVED,     /* old, before SESSION: what its state is too short for */
	UPGRADE_TYPE_END
};

enum upgrade_listener_flag {
	UPGRADE_HAS_PATH = 1 << 0,   /* the socket file, which is to be removed at the end */
	UPGRADE_OF_MANAGER = 1 << 1, /* a socket of the service manager */
	UPGRADE_IS_CONTROL = 1 << 2,
	UPGRADE_IS_METRICS = 1 << 3,
	UPGRADE_LISTENER_FLAGS = (1 << 4) - 1,
};

struct upgrade_message {
	enum upgrade_type type;
	int fd; /* or -1 */

	uint32_t pid; /* HELLO */

	/* LISTENER */
	uint32_t flags;
	uint64_t device; /* of the socket file */
	uint64_t inode;

	/* EXPORT, with its name in record.export */
	enum store_hold hold;
	uint32_t session_count; /* that use it now */
	uint64_t identity[2];	/* as in struct store_claim */
	uint64_t epoch;

	struct session_record record; /* SESSION; its fd is not used */

	/* RECEIVED; 0: of another session than the messages before */
	uint32_t offset;
	struct session_piece received;

	/* SESSIONS_END */
	uint32_t passed_count;
	uint32_t ended_count;

	/* ADDED, SNAPSHOT: the name, the path, then each key with its value, which begins with '=',
	 * or is empty when there is none. Each ends with a zero. See added.h. */
	const char *strings;
	uint32_t strings_bytes;

	/* FAILED */
	const char *text; /* without a terminator */
	uint32_t text_bytes;
};

/* Pure: fd_count descriptors came along. */
GMB_MUST_CHECK int upgrade_parse(const uint8_t *bytes, size_t count, uint32_t fd_count,
	struct upgrade_message *message, struct error *error);
/* After a send with descriptors that failed with code: true when it is to be tried again, as other
 * programs of this user have too many of them on their way (ETOOMANYREFS). Waits a moment, and for
 * two seconds in all; *tries begins with 0. */
GMB_MUST_CHECK bool upgrade_wait_for_descriptors(int code, uint32_t *tries);
/* Waits for room as long as the socket is set to. */
GMB_MUST_CHECK int upgrade_send(int channel, const struct upgrade_message *message);
/* Does not wait: -EAGAIN when there is no room, -ETOOMANYREFS as above; nothing was sent. */
GMB_MUST_CHECK int upgrade_send_now(int channel, const struct upgrade_message *message);
/* The next message, in bytes. timeout_ms: 0 does not wait (-EAGAIN). -ECONNRESET: the other end has
 * gone. */
GMB_MUST_CHECK int upgrade_receive(int channel, int timeout_ms,
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX], struct upgrade_message *message,
	struct error *error);
/* "HELLO" */
const char *upgrade_type_name(enum upgrade_type type);
/* UPGRADE_FAILED, without waiting; whether it arrives matters to nobody. */
void upgrade_send_failure(int channel, const char *text);
