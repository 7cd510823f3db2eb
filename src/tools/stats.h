// SPDX-License-Identifier: Apache-2.0
/*
 * Finds a server on this machine, asks it for its statistics over its control socket
 * (control/control.h), and shows them as text.
 *
 * Threading: the main thread; asking waits for the server, for at most some seconds. Ownership:
 * documents are the caller's (json_decref). Errors: a negative errno or NULL with a sentence.
 */
#pragma once

#include <jansson.h>
#include <sys/un.h>

#include "base/error.h"

enum { STATS_PATH_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) };

/* The control socket of a server: server is a URI that it serves, its process id, a path, or NULL
 * for the only one. Errors: -ENOENT none, -EINVAL several, -ENAMETOOLONG; what came of asking when
 * one could not be asked and no other fits. */
GMB_MUST_CHECK int stats_find(const char *server, char path[STATS_PATH_BYTES], struct error *error);

/* The document of the server at a control socket; NULL with a sentence (error may be NULL). */
json_t *stats_ask(const char *path, struct error *error);

/* Prints all there is since the server's start. */
void stats_show(const json_t *document);
/* Prints what happened between two documents of one server. */
void stats_show_changes(const json_t *document, const json_t *before);
