// SPDX-License-Identifier: Apache-2.0
/*
 * A peer of libclan made by hand from docs/protocol/clan.md, so that it can break every rule of it.
 * It connects to a listener of the library under test and owns its segments as plain memory.
 *
 * Threading: one thread, but for the bytes of the segments. Ownership: hostile_open() to
 * hostile_close(). Errors: false, or an assertion for what the test's own machine must do.
 */
#pragma once

#include "clan/shm_layout.h"

#include <stdbool.h>
#include <sys/types.h>

enum { HOSTILE_FDS_MAX = 253, HOSTILE_ADDRESS_BYTES = 64 };

struct hostile {
	int socket;
	/* Ours. */
	uint8_t *segment;
	size_t segment_bytes;
	int segment_fd;
	struct shm_conn_head *head;
	struct shm_group_head *group;
	int group_fd;
	struct shm_hello hello; /* as it will be sent */
	size_t hello_bytes;	/* of it, with what follows */
	int fds[HOSTILE_FDS_MAX];
	uint32_t fd_count;
	uint32_t sequence[SHM_CLASS_COUNT];
	uint32_t write[SHM_CLASS_COUNT];
	/* The victim's, once it has accepted. */
	uint32_t victim_number;
	uint32_t victim_bell; /* enum clan_bell */
	uint64_t victim_group_id;
	const struct shm_conn_head *victim;
	size_t victim_bytes;
	const struct shm_group_head *victim_group;
};

/* A socket for the victim to listen on, at an abstract address that the kernel chooses. */
int hostile_listen(char address[HOSTILE_ADDRESS_BYTES]);
/* Connects, and prepares segments and a HELLO without a fault. */
void hostile_open(struct hostile *hostile, const char *address);
/* Sends HELLO as it stands; the segments are sealed before if they are to be. Returns false if the
 * kernel did not take it, as it does before the victim has accepted the connection. */
void hostile_seal(struct hostile *hostile);
bool hostile_send_hello(struct hostile *hostile);
/* Takes WELCOME. False: something else came, or the end. */
bool hostile_welcomed(struct hostile *hostile);
void hostile_close(struct hostile *hostile);

/* Sends any message of the socket. False: the victim has gone. */
bool hostile_send(struct hostile *hostile, const void *bytes, size_t length, const int *fds,
	uint32_t fd_count);
/* The next message of the socket, without waiting: its length, 0 at the end, -1 none yet. */
ssize_t hostile_receive(struct hostile *hostile, void *bytes, size_t size);

/* Writes a message head and payload into a ring as the rules are; publish with
 * hostile_publish(). */
void hostile_put(struct hostile *hostile, enum shm_class class, struct shm_message_head head,
	const void *payload, size_t bytes);
/* Stores write, puts the connection on the ready ring and rings by all means. */
void hostile_publish(struct hostile *hostile);
void hostile_ring(struct hostile *hostile);
