// SPDX-License-Identifier: Apache-2.0
/*
 * What the server was asked to do, checked: exports, listening addresses, limits and commands. It
 * is filled by the command line and by configuration files through the same tables of fields
 * (base/schema.h), so that a value is checked in one place whichever way it came.
 *
 *   command line ──┐
 *                  ├─▶ fields ─▶ struct server_config ─▶ server_config_finish() ─▶ server_run()
 *   file (YAML) ───┘
 *
 * Threading: the main thread, before the server runs; read-only afterwards.
 * Ownership: the config owns every string; server_config_fini() frees them.
 * Errors: -EINVAL or -ERANGE with a sentence for the user that names the value and its origin.
 */
#pragma once

#include "base/error.h"
#include "base/place.h"
#include "base/schema.h"
#include "engine/access.h"
#include "engine/rate_identity.h"
#include "memory/p2pmem.h"
#include "path/path.h"
#include "sandbox/sandbox.h"
#include "store/store.h"
#include "tls/context.h"

enum {
	SERVER_NAME_BYTES_MAX = 4096, /* export names and descriptions, by the protocol */
	SERVER_EXPORTS_MAX = 65536,
	SERVER_LISTENS_MAX = 64,
	SERVER_THREADS_MAX = 64,
	SERVER_PEER_DIVISOR = 2, /* a peer may have that part of the connections */
	SERVER_RULE_BYTES = 400,
};

/* Rules of access, in order. */
struct server_access {
	struct access_rule *rules;
	uint32_t rule_count;
};

/* Those that the command line has for one export. */
struct server_access_option {
	char *export_name; /* NULL: for exports without rules of their own */
	struct server_access access;
};

/* Rules of rates of identities, in order: each has its conditions at the same index. */
struct server_rates {
	struct server_access conditions; /* whose rights mean nothing */
	struct rate_rule *rules;	 /* their origins are those of the conditions */
};

/* What was written for a key or an option. */
struct server_setting {
	char *key;
	char *value; /* NULL: none */
};

struct server_settings {
	struct server_setting *list;
	uint32_t count;
};

/* Where an export was described, and so how its keys are written. */
enum server_syntax {
	SERVER_SYNTAX_EXPORT, /* --export NAME=PATH,KEY=VALUE */
	SERVER_SYNTAX_PATH,   /* a PATH alone */
	SERVER_SYNTAX_FILE,
	SERVER_SYNTAX_ADD, /* gmblock export add */
	SERVER_SYNTAX_SET, /* gmblock export set */
};

struct server_export {
	char *name; /* UTF-8, "" is the default export */
	char *path;
	char *description;	    /* or NULL */
	char *origin;		    /* where it was asked for, for messages */
	enum server_syntax syntax;  /* of that place */
	struct store_options store; /* without the path */
	uint32_t connections_max;   /* 0 = no limit of its own */
	uint32_t overlap;	    /* bytes, PATH_OVERLAP_AUTO or PATH_OVERLAP_OFF */
	struct rate_limits rate;
	uint64_t memory_max;		 /* 0 = no limit of its own */
	struct server_access access;	 /* of the file */
	struct server_settings settings; /* all of its keys, as they were set */
	bool is_added;			 /* by a command; not copied */
	uint32_t keys_given;		 /* private: bit per key of its own, finds repetitions */
};

/* Memory of a PCI device, for exports with mode=device. */
struct server_arena {
	bool given;
	bool waits; /* spill=wait */
	char bdf[P2PMEM_BDF_BYTES];
	uint64_t bytes; /* 0 = all that is free */
};

/* What a listener does about TLS. */
struct server_tls {
	enum tls_mode mode;
	enum tls_records records;
	bool verify_peer;
	char *certificates; /* or NULL, as the next two */
	char *psk;
	char *priority;
};

struct server_listen {
	struct server_tls tls; /* first, see server_listen_field() */
	char *text;	       /* the URI as it was written */
	uint32_t given;	       /* a bit for each field that was set */
	struct export_uri uri;
	char *origin;
};

enum server_spin { SERVER_SPIN_AUTO, SERVER_SPIN_OFF };

/* Of the whole server. server_config_finish() fills in the defaults. */
struct server_limits {
	uint64_t memory_bytes;
	uint64_t handshake_timeout_ns;
	uint64_t idle_timeout_ns; /* 0: none */
	uint32_t threads;
	uint32_t connections_max;
	uint32_t connections_per_peer_max;
	uint32_t handshakes_max;
	uint32_t inflight_max; /* per connection */
	uint32_t inflight_total_max;
	enum server_spin spin;
};

struct server_config {
	struct server_export *exports;
	uint32_t export_count;
	struct server_listen *listens;
	uint32_t listen_count;
	struct server_limits limits;
	struct server_arena arena;
	struct server_tls tls; /* of addresses that do not say otherwise */
	char *memory_origin;   /* where limits.memory_bytes was asked for, or NULL */
	char *control_path;    /* of the control socket, "none", or NULL: the usual place */
	char *metrics;	       /* the URI where they are served, or NULL */
	enum sandbox_mode sandbox;
	char *socket_mode;  /* of Unix sockets that do not say otherwise, or NULL */
	char *socket_group; /* the same */
	char *user;	    /* to become after the listeners are open, or NULL */
	char **commands;    /* --run, in order */
	uint32_t command_count;
	struct server_access access; /* of the file, for exports without rules of their own */
	struct server_access_option *access_options; /* of the command line; they come first */
	uint32_t access_option_count;
	struct server_rates rates;  /* of the file */
	char *file_path;	    /* that was loaded, or NULL */
	uint32_t file_export_first; /* of the exports from there */
	char **export_folders;	    /* from which exports may be added later */
	uint32_t export_folder_count;
	struct place *push_places; /* where anybody may have this server push to */
	uint32_t push_place_count;
	char *config_path;		/* of --config, or NULL */
	char *check_path;		/* of --check, or NULL */
	bool path_read_only;		/* the export that PATH becomes */
	uint64_t given;			/* private: a bit for each field that was set */
	const char *origin;		/* private: where the value that is being set stands */
	struct server_settings options; /* of the command line, in order */
	/* Snapshots that another process has served whose place this one takes: their keys. */
	struct server_export *snapshots;
	uint32_t snapshot_count;
};

void server_config_init(struct server_config *config);
void server_config_fini(struct server_config *config);

/* --- one export (export.c) ------------------------------------------------------------ */

void server_export_init(struct server_export *entry);
void server_export_fini(struct server_export *entry);

/* The keys that an export can have, from the store and from the server itself. */
const struct field *server_export_field(uint32_t idx);

/* Sets one key. value is NULL when none was written. The sentence does not name the key, which the
 * caller does by where it stands; -ENOENT, with a sentence that does: there is no such key. */
GMB_MUST_CHECK int server_export_set(
	struct server_export *entry, const char *key, const char *value, struct error *error);

/* Sets name or path; both are copied. */
GMB_MUST_CHECK int server_export_set_name(
	struct server_export *entry, const char *name, struct error *error);
GMB_MUST_CHECK int server_export_set_path(
	struct server_export *entry, const char *path, struct error *error);

/* Makes *out, which is empty, what entry is, with these settings in place of its own of the same
 * keys; the value "default" leaves a key out, and the key "path" is the path. Its rules of access
 * are not copied. Errors name the key. */
GMB_MUST_CHECK int server_export_copy(const struct server_export *entry,
	const struct server_settings *settings, struct server_export *out, struct error *error);
/* Whether both have the same value for that field, however it was written; a default is a value. */
bool server_export_same(
	const struct server_export *a, const struct server_export *b, const struct field *field);

/* Appends a setting; both are copied. */
GMB_MUST_CHECK int server_settings_add(
	struct server_settings *settings, const char *key, const char *value, struct error *error);
void server_settings_fini(struct server_settings *settings);
/* The values of a key, with commas between; "" when there are none. Returns out. */
const char *server_settings_text(
	const struct server_settings *settings, const char *key, char *out, size_t out_bytes);
/* Whether the values of a key were written alike in both. */
bool server_settings_same_text(
	const struct server_settings *a, const struct server_settings *b, const char *key);

/* Reads "NAME=PATH[,key[=value]]...". In NAME "\=" and "\\", after it "\," and "\\" stand for the
 * character itself; any other backslash is an ordinary one. */
GMB_MUST_CHECK int server_export_parse(
	struct server_export *entry, const char *text, struct error *error);

/* --- rules of access and of rates (rules.c) --------------------------------------------------- */

/* A rule while it is written: of access, or of rates. */
struct server_rule {
	struct access_rule access; /* conditions and rights */
	struct rate_rule rate;
	char text[SERVER_RULE_BYTES]; /* the conditions, as --access has them */
};

/* The keys of a rule; the first one, rights or rate, is needed. */
const struct field *server_access_field(uint32_t idx);
const struct field *server_rate_field(uint32_t idx);
/* Sets one of them. */
GMB_MUST_CHECK int server_rule_set(struct server_rule *rule, const struct field *field,
	const char *value, struct error *error);
/* Adds a rule that has all its keys; taken, also on failure. origin is copied. */
GMB_MUST_CHECK int server_access_add(struct server_access *access, struct server_rule *rule,
	const char *origin, struct error *error);
GMB_MUST_CHECK int server_rate_add(struct server_rates *rates, struct server_rule *rule,
	const char *origin, struct error *error);
void server_rule_fini(struct server_rule *rule);
void server_access_fini(struct server_access *access);
void server_rates_fini(struct server_rates *rates);

/* Reads "[NAME:] KEY=VALUE ... rights=RIGHTS". In NAME "\:", "\=" and "\\", in a value "\ " and
 * "\\" stand for the character itself; any other backslash is an ordinary one. */
GMB_MUST_CHECK int server_config_add_access(
	struct server_config *config, const char *text, struct error *error);
/* Frees what the options hold. */
void server_access_options_fini(struct server_config *config);
/* Checks the rules against exports and addresses. */
GMB_MUST_CHECK int server_access_finish(const struct server_config *config, struct error *error);

/* Fills sets, one for each export, NULL for those without rules: for each the rules of the command
 * line, then those of the file. */
GMB_MUST_CHECK int server_access_build(
	const struct server_config *config, struct access **sets, struct error *error);
/* The rules of an export that is in neither of them: the common ones; NULL: there are none. */
GMB_MUST_CHECK int server_access_common(
	const struct server_config *config, struct access **access_out, struct error *error);
void server_access_drop(struct access **sets, uint32_t count);

/* NULL in *rules_out: there are none. */
GMB_MUST_CHECK int server_rates_build(
	const struct server_rates *rates, struct rate_rules **rules_out, struct error *error);
/* Whether both have the same rules but for rates and memory, which change under their clients. */
bool server_rates_same(const struct server_rates *a, const struct server_rates *b);

/* --- addresses, and their TLS (tls.c) ----------------------------------------------------------
 */

/* The keys of an address in a file, uri first; the others are of struct server_tls as well. */
const struct field *server_listen_field(uint32_t idx);

extern const char *const server_tls_modes[];
extern const char *const server_tls_records[];

#define SERVER_TLS_AT(at, member)                                                                  \
	.offset = (at) + offsetof(struct server_tls, member),                                      \
	.bytes = sizeof(((struct server_tls *)0)->member)
/* The rows of what has a struct server_tls at that offset. */
#define SERVER_TLS_FIELDS(at)                                                                      \
	{ "tls", .help = "no TLS (default), for clients that ask for it, or nothing without it",   \
		.type = FIELD_WORD, .words = server_tls_modes, SERVER_TLS_AT(at, mode),            \
		.heading = "TLS of nbd addresses that have no keys of their own in the "           \
			   "configuration file:" },                                                \
		{ "tls-certificates", "DIR",                                                       \
			"the folder with ca-cert.pem, server-cert.pem, server-key.pem and "        \
			"perhaps ca-crl.pem",                                                      \
			.type = FIELD_TEXT, SERVER_TLS_AT(at, certificates) },                     \
		{ "tls-psk", "FILE", "pre-shared keys, as psktool writes them",                    \
			.type = FIELD_TEXT, SERVER_TLS_AT(at, psk) },                              \
		{ "tls-verify-peer", .help = "demand a certificate of clients, and verify it",     \
			.type = FIELD_FLAG, SERVER_TLS_AT(at, verify_peer) },                      \
		{ "tls-priority", "STRING", "of GnuTLS, in place of ours", .type = FIELD_TEXT,     \
			.flags = FIELD_NOT_EMPTY, SERVER_TLS_AT(at, priority) },                   \
	{                                                                                          \
		"tls-records", .help = "who encrypts after the handshake (auto)",                  \
			       .type = FIELD_WORD, .words = server_tls_records,                    \
			       SERVER_TLS_AT(at, records)                                          \
	}

void server_listen_fini(struct server_listen *entry);
void server_tls_fini(struct server_tls *tls);
/* Whether both say the same. */
bool server_tls_equal(const struct server_tls *a, const struct server_tls *b);
/* Fits the settings of the addresses together: with their URIs, the common ones and each other. */
GMB_MUST_CHECK int server_tls_finish(struct server_config *config, struct error *error);

/* --- options of the whole server (options.c) ---------------------------------------------------
 */

/* Options of the command line, and behind them the operand, and what is compared beside them. */
const struct field *server_config_field(uint32_t idx);
uint32_t server_config_option_count(void);
/* Whether it was given, by the command line or the file. */
bool server_config_has(const struct server_config *config, const struct field *field);
/* Whether two finished configurations have the same value for it. */
bool server_config_same(
	const struct server_config *a, const struct server_config *b, const struct field *field);
/* Sets an option of the command line, and remembers it for server_config_again(). "path" is the
 * operand, and behind the options. text is NULL where there is none. The sentence names the
 * option. */
GMB_MUST_CHECK int server_config_option(
	struct server_config *config, const char *key, const char *text, struct error *error);
/* Sets a field of the file, unless the command line has it; what repeats is added to that from
 * there. origin: where it stands. The sentence does not name it. */
GMB_MUST_CHECK int server_config_file_option(struct server_config *config,
	const struct field *field, const char *text, const char *origin, struct error *error);
/* Fills in the limits that are not given. */
GMB_MUST_CHECK int server_config_set_defaults(
	struct server_config *config, const struct server_limits *limits, struct error *error);
/* Frees what the fields hold. */
void server_config_clear_fields(struct server_config *config);

/* Makes *again what the options and the file of config say now, finished. config is only read; on
 * any thread. */
GMB_MUST_CHECK int server_config_again(
	const struct server_config *config, struct server_config *again, struct error *error);

/* --- the whole ------------------------------------------------------------------------------- */

/* Takes *entry, also on failure, and leaves it empty. origin is copied. */
GMB_MUST_CHECK int server_config_add_export(struct server_config *config,
	struct server_export *entry, const char *origin, struct error *error);
/* Adds the address of entry->text. The same. */
GMB_MUST_CHECK int server_config_add_listen(struct server_config *config,
	struct server_listen *entry, const char *origin, struct error *error);
/* Whether it is a mode for a Unix socket. */
GMB_MUST_CHECK int server_config_check_mode(const char *text, struct error *error);
/* Makes room for one more element of an array. */
GMB_MUST_CHECK int server_config_grow(void *array_inout, uint32_t count, size_t element_bytes);

/* Reads a configuration file (gmblock.conf(5)): adds its exports and addresses, and its limits
 * where config has none yet. Errors begin with FILE:LINE:COLUMN. (file.c) */
GMB_MUST_CHECK int server_config_load(
	struct server_config *config, const char *path, struct error *error);

/* Checks the whole (something to serve, no name or address twice) and fills in the defaults. The
 * default address is not added here: socket activation decides about it. */
GMB_MUST_CHECK int server_config_finish(struct server_config *config, struct error *error);
