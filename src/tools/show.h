// SPDX-License-Identifier: Apache-2.0
/*
 * What commands print: the parts that all have in common, "gmblock info" and "gmblock stats", as
 * text for people or as JSON with stable keys (documented in the manual pages).
 *
 * Threading: the main thread; asking a server waits for it, for at most some seconds. Ownership: as
 * said below. Errors: 0, or a negative errno or NULL with a sentence; text of peers is escaped.
 */
#pragma once

#include <jansson.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/counter.h"
#include "base/error.h"
#include "nbd/client/offers.h"

/* --- print.c: times for people, JSON for programs, and the end of the output, which may be a full
 * disk or a closed pipe ------------------------------------------------------------------------ */

/* "12.3 us", "1.20 ms", "2.00 s". Returns out. */
enum { PRINT_US_BYTES = 48 };
const char *print_us(char out[PRINT_US_BYTES], double us);

/* Flushes standard output. */
GMB_MUST_CHECK int print_end(struct error *error);

/* What a server says, escaped: nothing in it steers the terminal. NULL is a no-op. */
void print_peer_text(const char *text);

/* The same of the name of an export; the empty one, of the default export, is printed as "". */
void print_export_name(const char *name);

/* The text as JSON, which holds UTF-8 only: other bytes are escaped as on the terminal. NULL
 * becomes null. The caller's; NULL without memory. */
json_t *print_json_text(const char *text);

/* Prints what json_dumps() makes of root, which it takes, and flushes. NULL: out of memory. */
GMB_MUST_CHECK int print_json(json_t *root, struct error *error);
/* The same on one line, for documents that follow each other. */
GMB_MUST_CHECK int print_json_line(json_t *root, struct error *error);
/* The same with that many digits of each real number. */
GMB_MUST_CHECK int print_json_digits(json_t *root, int digits, struct error *error);

/* --- info.c ---------------------------------------------------------------------------------- */

/* The beginning of a line: what its value is. */
enum { INFO_LABEL_COLUMNS = 20 };
void info_label(const char *label);

/* What a server offers. refusal is NULL, or why the export in the URI is not there: then only the
 * names of the others are shown. */
GMB_MUST_CHECK int info_show_text(
	const char *uri, const struct nbd_offers *offers, bool list, struct error *error);
/* Asks a server over gmb for the same; to be freed with nbd_offers_fini(), also after an error. */
GMB_MUST_CHECK int info_probe_gmb(const char *uri, bool list, uint64_t timeout_ns,
	struct nbd_offers *offers, struct error *error);
/* How a connection is protected, for other documents; false: it is not. */
json_t *info_json_tls(const struct nbd_protection *protection);
GMB_MUST_CHECK int info_show_json(const char *uri, const struct nbd_offers *offers, bool list,
	const char *refusal, struct error *error);

/* The extents of an export: what is data, a hole, zeroes. timeout_ns: for connecting; whole_ns: for
 * all. -EOPNOTSUPP when the server does not tell. */
GMB_MUST_CHECK int info_map(
	const char *uri, uint64_t timeout_ns, uint64_t whole_ns, bool json, struct error *error);

/* The PCI devices that offer memory to others, what is known of it, and for each disk of a PCI
 * device whether it can reach that memory: it reads its first block there. An array; gives a
 * reference. */
struct json_t *info_devices(void);
/* The same for people. */
void info_devices_print(const struct json_t *devices);

/* --- check.c --------------------------------------------------------------------------------- */

/* What is in a file of a format of gmblock, and the list "faults" of what is wrong; base: NULL, or
 * where the base of an overlay is now. The caller's; NULL with *error set. */
json_t *check_file(const char *path, const char *base, struct error *error);
/* The same for people, a line each, with the names of the values in so many columns. */
void check_print(const json_t *found, int columns);
/* Opens the flash store in the file for writing, with repairs (enum store_repair), and closes it.
 * Blocks. */
GMB_MUST_CHECK int check_repair(const char *path, uint32_t repairs, struct error *error);

/* --- info_local.c ---------------------------------------------------------------------------- */

/* What this machine offers gmblock; path is a file or device to look at, or NULL. */
GMB_MUST_CHECK int info_local(const char *path, bool json, struct error *error);

/* --- find.c ---------------------------------------------------------------------------------- */

/* The servers of this user on this machine, for root those of all users: an array of objects with
 * pid, uid, socket, version, uris and exports, or with socket and error. The caller's; NULL with
 * *error set. */
json_t *servers_list(struct error *error);
/* The same for people. */
void servers_print(const json_t *servers);

/* --- stats.c: the statistics of a server on this machine, over its control socket; documents are
 * the caller's (json_decref) ----------------------------------------------------------------- */

enum { STATS_PATH_BYTES = sizeof(((struct sockaddr_un *)0)->sun_path) };

/* The control socket of a server: server is a URI that it serves, its process id, a path, or NULL
 * for the only one. Errors: -ENOENT none, -EINVAL several, -ENAMETOOLONG; what came of asking when
 * one could not be asked and no other fits. */
GMB_MUST_CHECK int stats_find(const char *server, char path[STATS_PATH_BYTES], struct error *error);

/* The document of the server at a control socket; NULL with a sentence (error may be NULL). */
json_t *stats_ask(const char *path, struct error *error);
/* The same with a limit, and the server's process as the kernel says. */
json_t *stats_ask_within(const char *path, int timeout_ms, struct ucred *peer, struct error *error);

/* Prints the metrics of the server at a control socket, in the Prometheus text format. */
GMB_MUST_CHECK int stats_print_metrics(const char *path, struct error *error);

/* Prints all there is since the server's start. */
void stats_show(const json_t *document);
/* Sets the counters of a struct to those of an object in a document. */
void stats_read(const struct counter_table *table, void *values, const json_t *object);

/* --- top.c ----------------------------------------------------------------------------------- */

/* Shows what the server at a control socket does, on the whole terminal, until the user quits.
 * -ENOTTY: standard output is no terminal. */
GMB_MUST_CHECK int top_show(const char *path, uint64_t interval_ns, struct error *error);
