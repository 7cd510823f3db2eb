// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/change: a request to change what is served, from a command's arguments to a
 * change that is ready to be committed.
 *
 * Threading: one thread at a time, except for the members under the lock of the reload. Ownership:
 * a request owns its strings; the caller uses or drops news. Errors: an error message for the
 * requester.
 */
#pragma once

#include <time.h>

#include "server/change/reload.h"

#define RELOAD_DEADLINE_NS_MAX UINT64_C(3600000000000)

/* The requested action. */
enum request_action {
	REQUEST_LOOK, /* check whether credential files have changed */
	REQUEST_RELOAD,
	REQUEST_ADD,
	REQUEST_SET,
	REQUEST_REMOVE,
	REQUEST_SNAPSHOT_CREATE,
	REQUEST_SNAPSHOT_DELETE,
	REQUEST_SNAPSHOTS_DROPPED, /* remove exports of snapshots that stores have dropped */
	REQUEST_RESIZE,		   /* the disk of one export might have grown */
};

struct reload_request {
	struct list_node node;
	enum request_action action;
	bool is_dry; /* dry run: only report the effect */
	/* Client that waits for the answer; NULL: none. */
	struct control_client *client;
	char *name;
	char *path;
	char *snapshot; /* name of a snapshot */
	struct server_settings settings;
	uint64_t deadline_ns;

	/* The following members are protected by the reload's lock from the commit on. */
	struct reload *reload;
	uint32_t closing_count; /* disks that are still to be closed */
	bool is_answered;	/* the answer was sent; the last disk to close frees the request */
	bool is_told;		/* the main thread was woken to answer the request */
	struct timespec until;	/* when to answer, even if disks are still open */
	uint32_t ended;		/* see struct outcome */
	json_t *lines;
};

/* What was read for a request and is not in use yet. */
struct reload_news {
	struct credentials_set *credentials;
	struct server_config *config; /* NULL: unchanged */
	struct change *change;	      /* NULL: no change */
	json_t *lines;		      /* lines of text for the answer, or NULL */
};

/* NULL: no memory. */
struct reload_request *reload_request_create(enum request_action action);
void reload_request_free(struct reload_request *request);
/* Reads the arguments of a request to add, change or remove an export. */
GMB_MUST_CHECK int reload_request_take_export(
	struct reload_request *request, const json_t *arguments, struct error *error);

/* Reads the arguments of a request to create or delete a snapshot. */
GMB_MUST_CHECK int reload_request_take_snapshot(
	struct reload_request *request, const json_t *arguments, struct error *error);
/* Calls reactor_post(). Returns false if the server is stopping, because the reactor may soon be
 * destroyed. Reload thread. */
GMB_MUST_CHECK bool reload_post(
	struct reload *reload, struct reactor *reactor, struct reactor_task *task);

/* Reads files, compares, and opens disks, without changing the server. configured: the
 * configuration that was last read. closed: function to call on any thread, with the request, for
 * each disk that the change has closed. Blocks. */
GMB_MUST_CHECK int reload_request_read(const struct reload_options *options,
	const struct server_config *configured, struct reload_request *request,
	void (*closed)(void *context), struct reload_news *news, struct error *error);
/* Frees what was read if it is not used. */
void reload_news_drop(struct reload_news *news);
/* NULL is a no-op. */
void reload_config_free(struct server_config *config);
