// SPDX-License-Identifier: Apache-2.0
/*
 * The messages between two processes of a server when the second takes over:
 * docs/protocol/upgrade.md. A message is one packet of a SOCK_SEQPACKET socket, with at most one
 * descriptor, except for SESSION.
 *
 * Threading: pure or on the caller's socket. Ownership: a received message refers to its buffer and
 * owns its descriptors (upgrade_message_close()); a message to send is borrowed. Errors: -EPROTO
 * with an error message for an invalid packet, -EPROTONOSUPPORT for another version, and the errors
 * of the socket.
 */
#pragma once

#include "engine/handover.h"

enum {
	UPGRADE_MAGIC = 0x676d6255, /* the bytes "gmbU" */
	/* It changes with each change of the layout of a message or of a session's state. */
	UPGRADE_VERSION = 3, /* layouts 24eac655 */
	UPGRADE_PACKET_BYTES_MAX = 32 << 10,
	UPGRADE_NAME_BYTES_MAX = EXPORT_NAME_BYTES_MAX,
	UPGRADE_KIND_BYTES_MAX = 16,
	/* limit on the size of the strings in ADDED and SNAPSHOT */
	UPGRADE_STRINGS_BYTES_MAX = 16 << 10,
	UPGRADE_SETTINGS_MAX = 256,
	UPGRADE_RECEIVED_BYTES_MAX = 24 << 10, /* limit on the payload in one RECEIVED message */
};

enum upgrade_type {
	UPGRADE_HELLO = 1, /* from the new process: it is running */
	UPGRADE_LISTENER,  /* from the old process: a listening socket */
	UPGRADE_EXPORT,	   /* from the old process: a disk, with its claim */
	UPGRADE_PREPARE,   /* from the old process: all sockets and disks were sent */
	UPGRADE_READY,	   /* from the new process: everything is open */
	UPGRADE_SESSION,   /* from the old process: a connection */
	/* from the old process: all sessions were sent; no request is in flight */
	UPGRADE_SESSIONS_END,
	UPGRADE_STARTED,  /* from the new process: it owns everything from now on */
	UPGRADE_FAILED,	  /* from either process: the reason to give up */
	UPGRADE_ADDED,	  /* from the old process, after EXPORT: an export added by a command */
	UPGRADE_SNAPSHOT, /* from the old process: the settings of a snapshot's export */
	/* From the old process, before SESSION: received data for which SESSION has no room. */
	UPGRADE_RECEIVED,
	UPGRADE_STATE, /* from the old process, if it uses one: its locked state folder */
	UPGRADE_LEASE, /* from the old process, before SESSION: the holder of a lease */
	UPGRADE_TYPE_END
};

enum upgrade_listener_flag {
	UPGRADE_HAS_PATH = 1 << 0,   /* the socket file is removed at the end */
	UPGRADE_OF_MANAGER = 1 << 1, /* a socket of the service manager */
	UPGRADE_IS_CONTROL = 1 << 2,
	UPGRADE_IS_METRICS = 1 << 3,
	UPGRADE_LISTENER_FLAGS = (1 << 4) - 1,
};

struct upgrade_message {
	enum upgrade_type type;
	int fd; /* descriptor sent with the message, or -1 */

	uint32_t pid; /* in HELLO: the new process's ID */

	/* Members of LISTENER messages. */
	uint32_t flags;
	uint64_t device; /* device number of the socket file */
	uint64_t inode;

	/* Members of EXPORT messages; the export's name is in record.export. */
	enum store_hold hold;
	uint32_t session_count; /* current number of sessions of the export */
	uint64_t identity[2];	/* as in struct store_claim */
	uint64_t epoch;

	/* For SESSION messages. The record's member fd is not used; record.fds come after fd. */
	struct session_record record;

	/* Members of RECEIVED messages. Offset 0: the data of a session begins, and data sent
	 * earlier is discarded. */
	uint32_t offset;
	struct session_piece received;

	/* Members of SESSIONS_END messages. */
	uint32_t handed_over_count;
	uint32_t ended_count;

	/* ADDED and SNAPSHOT contain the name, the path, then each key with its value. The value
	 * starts with '=', or is empty if there is none. Each string ends with a zero. See
	 * added.h. */
	const char *strings;
	uint32_t strings_bytes;

	/* Members of FAILED and LEASE messages. */
	const char *text; /* text without a terminator */
	uint32_t text_bytes;
};

/* Closes the descriptors of a received message. */
void upgrade_message_close(struct upgrade_message *message);
/* Parses a packet; a pure function. fd_count: number of descriptors received with it. */
GMB_MUST_CHECK int upgrade_parse(const uint8_t *bytes, size_t count, uint32_t fd_count,
	struct upgrade_message *message, struct error *error);
/* Called after sending descriptors has failed with code. If the reason is that this user's programs
 * have too many descriptors in flight (ETOOMANYREFS), waits a moment and returns true to retry; for
 * at most two seconds in total. *tries starts at 0. */
GMB_MUST_CHECK bool upgrade_wait_for_descriptors(int code, uint32_t *tries);
/* Sends a message. Waits for room in the socket up to its send timeout. */
GMB_MUST_CHECK int upgrade_send(int channel, const struct upgrade_message *message);
/* Sends a message without waiting. After an error, such as -EAGAIN (the socket is full) or
 * -ETOOMANYREFS, the message was not sent. */
GMB_MUST_CHECK int upgrade_send_now(int channel, const struct upgrade_message *message);
/* Receives the next message into bytes. -EAGAIN: none came within timeout_ms. -ECONNRESET: the
 * other end has closed, and its last message has been received. */
GMB_MUST_CHECK int upgrade_receive(int channel, int timeout_ms,
	uint8_t bytes[UPGRADE_PACKET_BYTES_MAX], struct upgrade_message *message,
	struct error *error);
/* Returns the name of the type, such as "HELLO". */
const char *upgrade_type_name(enum upgrade_type type);
/* Sends UPGRADE_FAILED without waiting. A failure is ignored. */
void upgrade_send_failure(int channel, const char *text);
