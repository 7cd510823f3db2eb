// SPDX-License-Identifier: Apache-2.0
/*
 * The output of commands: common parts, "gmblock info" and "gmblock stats", as text for people or
 * as JSON with stable keys (documented in the manual pages).
 *
 * Threading: the main thread; a query of a server waits for it, at most some seconds. Ownership: as
 * stated below. Errors: 0, or a negative errno or NULL, and an error message; text from peers is
 * escaped.
 */
#pragma once

#include <gmblock/gmblock.h>
#include <jansson.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/counter.h"
#include "base/error.h"
#include "nbd/client/offers.h"

/* --- print.c: durations, JSON, and the end of the output ------------------------------------ */

/* Formats "12.3 us", "1.20 ms", "2.00 s". Returns out. */
enum { PRINT_US_BYTES = 48 };
const char *print_us(char out[PRINT_US_BYTES], double us);

/* The callback gmb_options.event of a command: prints the report about a silent server, once if
 * several clients have it. Any thread. */
void show_silent(void *context, enum gmb_event event, const char *text);

/* Flushes standard output. Fails for example if the disk is full or the pipe is closed. */
GMB_MUST_CHECK int print_end(struct error *error);

/* Prints text from a server, escaped, so that it cannot control the terminal. NULL is a no-op. */
void print_peer_text(const char *text);

/* Prints an object of "leases" (docs/protocol/control.md): the kind of the lease, the separator,
 * the client, and the state of the lease. */
void print_lease(const json_t *lease, const char *separator);

/* Prints the name of an export, escaped; the empty name of the default export is printed as "". */
void print_export_name(const char *name);

/* Returns the text as JSON, which must be UTF-8: other bytes are escaped as for the terminal. NULL
 * becomes null. The caller owns the value; NULL: no memory. */
json_t *print_json_text(const char *text);

/* Prints root as formatted by json_dumps(), and flushes. Releases root. NULL: out of memory. */
GMB_MUST_CHECK int print_json(json_t *root, struct error *error);
/* Prints root on one line, for sequences of documents. Releases root. */
GMB_MUST_CHECK int print_json_line(json_t *root, struct error *error);
/* Like print_json(), with `digits` digits for each real number. */
GMB_MUST_CHECK int print_json_digits(json_t *root, int digits, struct error *error);

/* --- info.c ---------------------------------------------------------------------------------- */

/* Prints the label at the beginning of a line. */
enum { INFO_LABEL_COLUMNS = 20 };
void info_label(const char *label);

/* info_show_text() and info_show_json() print the exports and properties of a server. refusal:
 * NULL, or the reason why the export in the URI is not available. That export is then left out, and
 * the names of the others are printed. */
GMB_MUST_CHECK int info_show_text(
	const char *uri, const struct nbd_offers *offers, bool list, struct error *error);
/* Queries a server over gmb or vhost-user-blk (protocol, as in struct export_uri) for its exports;
 * freed with nbd_offers_fini(), also after an error. */
GMB_MUST_CHECK int info_probe(const char *protocol, const char *uri, bool list, uint64_t timeout_ns,
	struct nbd_offers *offers, struct error *error);
/* Describes the protection of a connection as a JSON value, for use inside JSON documents; JSON
 * false if there is none. */
json_t *info_json_tls(const struct nbd_protection *protection);
GMB_MUST_CHECK int info_show_json(const char *uri, const struct nbd_offers *offers, bool list,
	const char *refusal, struct error *error);

/* Prints the extents of an export: data, holes and zeroes. timeout_ns: for connecting; whole_ns:
 * for everything. -EOPNOTSUPP: the server does not report extents. */
GMB_MUST_CHECK int info_map(
	const char *uri, uint64_t timeout_ns, uint64_t whole_ns, bool json, struct error *error);

/* Lists the PCI devices that offer memory to others, with their properties. For each disk of a PCI
 * device, tests whether it can reach that memory by reading its first block into it. Returns
 * an array, which the caller owns. */
struct json_t *info_devices(void);
/* Prints the list of devices for people. */
void info_devices_print(const struct json_t *devices);

/* --- check.c --------------------------------------------------------------------------------- */

/* Describes the contents of a gmblock file, with a list "faults" of errors in it. base: NULL, or
 * the current path of an overlay's base. The caller owns the value; NULL with *error set. */
json_t *check_file(const char *path, const char *base, struct error *error);
/* Prints the description for people, one value per line; columns: width of the names. */
void check_print(const json_t *found, int columns);
/* Opens the flash store in the file for writing, with repairs (enum store_repair), and closes it.
 * Blocks. */
GMB_MUST_CHECK int check_repair(const char *path, uint32_t repairs, struct error *error);

/* --- info_local.c ---------------------------------------------------------------------------- */

/* Prints what this machine offers gmblock. path: a file or device to examine, or NULL. */
GMB_MUST_CHECK int info_local(const char *path, bool json, struct error *error);

/* --- find.c ---------------------------------------------------------------------------------- */

/* Lists the servers of this user on this machine, or all servers if the user is root: an array of
 * objects with pid, uid, socket, version, uris and exports, or with socket and error. timeout_ns:
 * limit for all servers. The caller owns the value; NULL with *error set. */
json_t *servers_list(uint64_t timeout_ns, struct error *error);
/* Prints the list of servers for people. */
void servers_print(const json_t *servers);

/* --- stats.c: the statistics of a server on this machine, over its control socket ----------- */

enum { STATS_PATH_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) };

/* Finds the control socket of a server. server: a URI that it serves, its process ID, a path, or
 * NULL for the only one. Errors: -ENOENT: none, -EINVAL: several, -ENAMETOOLONG; or the error of a
 * server that could not be queried, if no other matches. */
GMB_MUST_CHECK int stats_find(const char *server, char path[STATS_PATH_BYTES], struct error *error);
/* control_ask() at the server that stats_find() finds. Takes ownership of arguments. *result: owned
 * by the caller; NULL on failure. */
GMB_MUST_CHECK int server_ask(const char *server, const char *command, json_t *arguments,
	int timeout_ms, json_t **result, struct error *error);

/* Returns the document of the server at a control socket, which the caller owns (json_decref); NULL
 * with an error message (error may be NULL). */
json_t *stats_ask(const char *path, struct error *error);
/* Like stats_ask(), with a time limit. *peer is the server's process as the kernel reports it. */
json_t *stats_ask_within(const char *path, int timeout_ms, struct ucred *peer, struct error *error);

/* Prints the metrics of the server at a control socket in the Prometheus text format. */
GMB_MUST_CHECK int stats_print_metrics(const char *path, struct error *error);

/* Prints the values since the server's start. */
void stats_show(const json_t *document);
/* Returns a text of the statistics; "": there is none. */
const char *stats_text(const json_t *object, const char *key);
/* Fills the struct `values`, which the table describes, with the counters in an object of the
 * statistics. */
void stats_read(const struct counter_table *table, void *values, const json_t *object);

/* --- top.c ----------------------------------------------------------------------------------- */

/* Shows the activity of the server at a control socket, on the whole terminal, until the user
 * quits. -ENOTTY: standard output is not a terminal. */
GMB_MUST_CHECK int top_show(const char *path, uint64_t interval_ns, struct error *error);
