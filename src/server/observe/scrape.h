// SPDX-License-Identifier: Apache-2.0
/*
 * Metrics over HTTP: GET /metrics, in the formats of metrics.h, on a Unix socket or an address of
 * this machine. Other addresses are rejected unless insecure-network=yes is given.
 *
 *   http://HOST:PORT[/metrics][?insecure-network=yes]     http+unix:///[metrics]?socket=PATH
 *
 * Threading: the main thread. The reactors are called at most once in SCRAPE_NS, independent of the
 * number of connections; a slow connection delays only itself. Ownership: a scrape owns its
 * sockets. Errors: a negative errno and an error message.
 */
#pragma once

#include "server/control.h"

#define SCRAPE_NS UINT64_C(100000000)

struct scrape;

/* Parses the URI; its protocol is "http". Freed with export_uri_fini(). */
GMB_MUST_CHECK int scrape_uri_parse(const char *text, struct export_uri *uri, struct error *error);
/* Opens the listening sockets, before the server drops its privileges. text: the URI; NULL: no
 * sockets. take: process that may already have the sockets, or NULL. */
GMB_MUST_CHECK int scrape_listen(const char *text, struct upgrade_take *take,
	struct listener *listener, struct error *error);
/* Creates a struct scrape, which serves the metrics. Takes ownership of the listener, even on
 * failure. *scrape_out is NULL if the listener has no socket. */
GMB_MUST_CHECK int scrape_open(struct listener *listener, const struct server_view *view,
	struct scrape **scrape_out, struct error *error);
/* The following functions work like those with the prefix server_control_ (server/control.h). */
void scrape_begin(struct scrape *scrape);
void scrape_stop(struct scrape *scrape);
void scrape_close(struct scrape *scrape);
/* Returns the listener; NULL if scrape is NULL. */
struct listener *scrape_listener(struct scrape *scrape);
int scrape_fd(const struct scrape *scrape);
void scrape_run(struct scrape *scrape);
