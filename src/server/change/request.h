// SPDX-License-Identifier: Apache-2.0
/*
 * Private to server/reload: a request to change what is served, from a command's words to a change
 * that is ready to be made.
 *
 * Threading: one thread at a time, but for what is under the lock of the reload. Ownership: a
 * request owns its words; news are the caller's to use or to drop. Errors: a sentence for who
 * asked.
 */
#pragma once

#include <time.h>

#include "server/change/reload.h"

#define RELOAD_DEADLINE_NS_MAX UINT64_C(3600000000000)

/* What is asked for. */
enum request_action {
	REQUEST_LOOK, /* whether the files of credentials have changed */
	REQUEST_RELOAD,
	REQUEST_ADD,
	REQUEST_SET,
	REQUEST_REMOVE,
	REQUEST_SNAPSHOT_CREATE,
	REQUEST_SNAPSHOT_DELETE,
	REQUEST_SNAPSHOTS_GONE, /* exports of those that their stores have dropped */
	REQUEST_RESIZE,		/* of one export, which may have grown */
};

struct reload_request {
	struct list_node node;
	enum request_action action;
	bool is_dry; /* nothing is to be changed */
	/* NULL: nobody waits for the answer. */
	struct control_client *client;
	char *name;
	char *path;
	char *view; /* the name of a snapshot */
	struct server_settings settings;
	uint64_t deadline_ns;

	/* Under the lock, from the commit on. */
	struct reload *reload;
	uint32_t closing_count; /* disks that are to be closed, and are not */
	bool is_answered;	/* the last of them frees it */
	bool is_told;		/* the main thread knows that it need not wait any more */
	struct timespec until;	/* it is answered, closed or not */
	uint32_t ended;		/* see struct outcome */
	json_t *lines;
};

/* What was read, and not used yet. */
struct reload_news {
	struct credentials_set *credentials;
	struct server_config *config; /* NULL: it stays */
	struct change *change;	      /* NULL: there is none */
	json_t *lines;		      /* for people, or NULL */
};

/* NULL: no memory. */
struct reload_request *reload_request_create(enum request_action action);
void reload_request_free(struct reload_request *request);
/* Reads what an export is to be, or not to be any more. */
GMB_MUST_CHECK int reload_request_take_export(
	struct reload_request *request, const json_t *arguments, struct error *error);

/* The same of a snapshot. */
GMB_MUST_CHECK int reload_request_take_snapshot(
	struct reload_request *request, const json_t *arguments, struct error *error);
/* reactor_post(); false: the server stops, and the reactor may be gone soon. Reload's thread. */
GMB_MUST_CHECK bool reload_post(
	struct reload *reload, struct reactor *reactor, struct reactor_task *task);

/* Reads files, compares, and opens disks; nothing is changed yet. configured: what was read last.
 * closed: told with the request, on any thread, of each disk that its change has closed. Blocks. */
GMB_MUST_CHECK int reload_request_read(const struct reload_options *options,
	const struct server_config *configured, struct reload_request *request,
	void (*closed)(void *context), struct reload_news *news, struct error *error);
/* What was not used. */
void reload_news_drop(struct reload_news *news);
/* NULL is a no-op. */
void reload_config_free(struct server_config *config);
/* Logs which disks have another size than before: whoever enlarges one need not say so. Blocks. */
void reload_look_at_sizes(const struct exports *exports);
