// SPDX-License-Identifier: Apache-2.0
/*
 * The validated configuration of a server: exports, listening addresses, limits and commands. The
 * command line and the configuration files fill it through the same tables of fields
 * (base/schema.h), so that a value is checked in the same way wherever it was given.
 *
 *   command line ──┐
 *                  ├─▶ fields ─▶ struct server_config ─▶ server_config_finish() ─▶ server_run()
 *   file (YAML) ───┘
 *
 * Threading: the main thread, before the server runs; read-only afterwards. Ownership: the config
 * owns every string; server_config_fini() frees them. Errors: -EINVAL, -ERANGE or -ENOMEM with an
 * error message for the user that names the value and its origin.
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
	SERVER_NAME_BYTES_MAX = 4096, /* limit of the protocol for export names and descriptions */
	SERVER_EXPORTS_MAX = 65536,
	SERVER_LISTENS_MAX = 64,
	SERVER_THREADS_MAX = 64,
	SERVER_PEER_DIVISOR = 2, /* default limit per peer: connections_max divided by this */
	/* the maximum number of handshakes of each thread is its share of connections_max, divided
	 * by this */
	SERVER_HANDSHAKE_DIVISOR = 8,
	SERVER_HANDSHAKES_MIN = 16,
	SERVER_RULE_BYTES = 400,
};

/* Access rules, in order. */
struct server_access {
	struct access_rule *rules;
	uint32_t rule_count;
};

/* Access rules on the command line for one export. */
struct server_access_option {
	char *export_name; /* NULL: the rules are for exports without rules of their own */
	struct server_access access;
};

/* Rate rules of identities, in order. Element i of `conditions` and element i of `rules` form one
 * rule. */
struct server_rates {
	struct server_access conditions; /* the rights in these rules are not used */
	struct rate_rule *rules;	 /* their `origin` texts belong to `conditions` */
};

/* The text given for a key or an option. */
struct server_setting {
	char *key;
	char *value; /* NULL: no value was given */
};

struct server_settings {
	struct server_setting *list;
	uint32_t count;
};

/* The way in which an export was described. Messages write the export's keys in this syntax. */
enum server_syntax {
	SERVER_SYNTAX_EXPORT, /* --export NAME=PATH,KEY=VALUE */
	SERVER_SYNTAX_PATH,   /* PATH alone */
	SERVER_SYNTAX_FILE,
	SERVER_SYNTAX_ADD, /* gmblock export add */
	SERVER_SYNTAX_SET, /* gmblock export set */
};

struct server_export {
	char *name; /* UTF-8, "" is the default export */
	char *path;
	char *description;	    /* or NULL */
	char *origin;		    /* where the export was described: file and line, or option */
	enum server_syntax syntax;  /* syntax in which the export was described */
	struct store_options store; /* store options, without the path */
	uint32_t connections_max;   /* 0 = no limit for this export */
	uint32_t overlap;	    /* bytes, PATH_OVERLAP_AUTO or PATH_OVERLAP_OFF */
	uint32_t writers;	    /* enum server_writers */
	struct rate_limits rate;
	uint64_t memory_max;		 /* 0 = no limit for this export */
	struct server_access access;	 /* rules in the file */
	struct server_settings settings; /* all keys as they were given */
	bool is_added;			 /* added by a command; not set in a copy */
	/* private: a bit for each of the server's own keys that was given, to detect repetitions */
	uint32_t keys_given;
};

/* How many clients may write to an export at the same time. */
enum server_writers { SERVER_WRITERS_ANY, SERVER_WRITERS_ONE };

/* Memory of a PCI device, for exports with mode=device. */
struct server_arena {
	bool given;
	bool waits; /* spill=wait was given */
	char bdf[P2PMEM_BDF_BYTES];
	uint64_t bytes; /* 0 = all of the free memory */
};

/* TLS settings of a listener. */
struct server_tls {
	enum tls_mode mode;
	enum tls_records records;
	bool verify_peer;
	char *certificates; /* NULL if not set, like the next two */
	char *psk;
	char *priority;
};

struct server_listen {
	/* first member, so that a listener's TLS fields apply to it; see server_listen_field() */
	struct server_tls tls;
	char *text;	/* the URI as given */
	uint32_t given; /* a bit for each field that was given */
	struct export_uri uri;
	char *origin;
};

enum server_spin { SERVER_SPIN_AUTO, SERVER_SPIN_OFF };

/* Limits of the whole server. Members that were not given are filled in by
 * server_config_finish(). */
struct server_limits {
	uint64_t memory_bytes;
	uint64_t handshake_timeout_ns;
	uint64_t idle_timeout_ns; /* 0: none */
	uint32_t threads;
	/* Further threads, for connections that can delay their thread (session_kind.holds_thread);
	 * 0 if no address has such connections. At most SERVER_THREADS_MAX with `threads`. */
	uint32_t isolated_threads;
	uint32_t connections_max;
	uint32_t connections_per_peer_max;
	uint32_t inflight_max; /* limit per connection */
	enum server_spin spin;
};

struct server_config {
	struct server_export *exports;
	uint32_t export_count;
	struct server_listen *listens;
	uint32_t listen_count;
	struct server_limits limits;
	struct server_arena arena;
	struct server_tls tls; /* default for addresses without TLS settings */
	char *memory_origin;   /* origin of limits.memory_bytes, or NULL */
	char *control_path;    /* path of the control socket, "none", or NULL: the usual path */
	char *metrics;	       /* the URI of the metrics listener, or NULL */
	enum sandbox_mode sandbox;
	char *socket_mode;  /* default for Unix sockets, or NULL */
	char *socket_group; /* default for Unix sockets, or NULL */
	/* folder for state that survives the server, or NULL: the default */
	char *state_folder;
	char *user;	 /* user to switch to during the start, or NULL */
	char **commands; /* --run, in order */
	uint32_t command_count;
	struct server_access access; /* rules in the file, for exports without rules of their own */
	/* Nodes in the file: each rule has the condition ACCESS_NODE, which is the node's name, and
	 * others. A client belongs to a node if it meets the conditions of one of its rules. */
	struct server_access nodes;
	/* Rules on the command line; they come before those in the file. */
	struct server_access_option *access_options;
	uint32_t access_option_count;
	struct server_rates rates; /* rules in the file */
	char *file_path;	   /* the file that was loaded, or NULL */
	char **export_folders;	   /* folders from which exports can be added later */
	uint32_t export_folder_count;
	struct place *push_places; /* destinations that any client may push to */
	uint32_t push_place_count;
	char *config_path; /* argument of --config, or NULL */
	char *check_path;  /* argument of --check, or NULL */
	/* --read-only: for the export that the operand PATH creates */
	bool path_read_only;
	uint64_t given;			/* private: a bit for each field that was given */
	const char *origin;		/* private: origin of the value that is being set */
	struct server_settings options; /* options on the command line, in order */
	/* Settings of the snapshots that the previous process served; empty unless this process
	 * takes over from another one. */
	struct server_export *snapshots;
	uint32_t snapshot_count;
};

void server_config_init(struct server_config *config);
void server_config_fini(struct server_config *config);

/* --- one export (export.c) ------------------------------------------------------------ */

void server_export_init(struct server_export *entry);
void server_export_fini(struct server_export *entry);

/* Returns the idx-th export key, either a store key or one of the server; NULL after the last
 * one. */
const struct field *server_export_field(uint32_t idx);

/* Sets one key. value is NULL when none was given. Error messages do not contain the key, because
 * the caller adds it with its position. Exception: with -ENOENT (there is no such key) the message
 * contains the key. */
GMB_MUST_CHECK int server_export_set(
	struct server_export *entry, const char *key, const char *value, struct error *error);

/* Sets the name or the path, which is copied. */
GMB_MUST_CHECK int server_export_set_name(
	struct server_export *entry, const char *name, struct error *error);
GMB_MUST_CHECK int server_export_set_path(
	struct server_export *entry, const char *path, struct error *error);

/* Copies entry to *out, which is empty, and changes the copy by the settings: a key in settings
 * gets only the values given there. The value "default" removes a key, and the key "path" sets the
 * path. Access rules are not copied. Errors name the key. */
GMB_MUST_CHECK int server_export_copy(const struct server_export *entry,
	const struct server_settings *settings, struct server_export *out, struct error *error);
/* Returns whether the field has the same value in both exports, however it was written. A key that
 * was not given has its default value. */
bool server_export_same(
	const struct server_export *a, const struct server_export *b, const struct field *field);

/* Appends a setting; key and value are copied. */
GMB_MUST_CHECK int server_settings_add(
	struct server_settings *settings, const char *key, const char *value, struct error *error);
void server_settings_fini(struct server_settings *settings);
/* Writes the values of a key, separated by commas; "" when there are none. Returns out. */
const char *server_settings_text(
	const struct server_settings *settings, const char *key, char *out, size_t out_bytes);
/* Returns whether the key has the same values in both settings, compared as text. */
bool server_settings_same_text(
	const struct server_settings *a, const struct server_settings *b, const char *key);

/* Parses "NAME=PATH[,key[=value]]...". A backslash escapes "=" and "\" in NAME, and "," and "\"
 * after it; any other backslash is an ordinary character. */
GMB_MUST_CHECK int server_export_parse(
	struct server_export *entry, const char *text, struct error *error);

/* --- access rules and rate rules (rules.c) ---------------------------------------------------- */

/* An access rule or a rate rule while it is being parsed. */
struct server_rule {
	struct access_rule access; /* conditions and rights */
	struct rate_rule rate;
	bool fence;		      /* the client may fence nodes */
	char text[SERVER_RULE_BYTES]; /* the conditions, in the syntax of --access */
};

/* Returns the idx-th rule key. The first one, "rights" or "rate", is required. */
const struct field *server_access_field(uint32_t idx);
const struct field *server_rate_field(uint32_t idx);
/* Returns the idx-th node key. The first one, "name", is required. */
const struct field *server_node_field(uint32_t idx);
/* Sets one rule key. */
GMB_MUST_CHECK int server_rule_set(struct server_rule *rule, const struct field *field,
	const char *value, struct error *error);
/* Adds a complete rule. Takes ownership of the rule, even on failure. origin is copied. */
GMB_MUST_CHECK int server_access_add(struct server_access *access, struct server_rule *rule,
	const char *origin, struct error *error);
GMB_MUST_CHECK int server_rate_add(struct server_rates *rates, struct server_rule *rule,
	const char *origin, struct error *error);
/* Adds a rule of config->nodes. Takes ownership of the rule, even on failure. origin is copied. */
GMB_MUST_CHECK int server_node_add(struct server_access *nodes, struct server_rule *rule,
	const char *origin, struct error *error);
void server_rule_fini(struct server_rule *rule);
void server_access_fini(struct server_access *access);
void server_rates_fini(struct server_rates *rates);

/* Parses "[NAME:] KEY=VALUE ... rights=RIGHTS". A backslash escapes ":", "=" and "\" in NAME, and
 * spaces and "\" in a value; any other backslash is an ordinary character. */
GMB_MUST_CHECK int server_config_add_access(
	struct server_config *config, const char *text, struct error *error);
/* Copies the text before the first unescaped character of stops, and returns a pointer to that
 * character. A backslash that escapes one of them or another backslash is dropped. */
const char *server_unescape(const char *from, const char *stops, char *out);
/* Frees the access rules of the command line. */
void server_access_options_fini(struct server_config *config);
/* Checks the rules against exports and addresses, such as conditions that no listener can
 * fulfil. */
GMB_MUST_CHECK int server_access_finish(const struct server_config *config, struct error *error);

/* Returns the idx-th list of access rules, except the lists of rates and nodes; NULL after the
 * last one. */
const struct server_access *server_access_list(const struct server_config *config, uint32_t idx);
/* Returns whether a rule can give rights to a user of this machine other than root and the server's
 * own user, which is the current one: before the server changes its user, rules for the later user
 * count as well. Rules that name a node count if their other conditions permit it. */
bool server_access_admits_others(const struct server_config *config);
/* Sets lists to the lists of rules of an export, in order; NULL: no list. */
void server_access_of(const struct server_config *config, const struct server_export *entry,
	const struct server_access *lists[2]);
/* Rejects a rule that can never match. The condition ACCESS_NODE is ignored. */
GMB_MUST_CHECK int server_access_check_rule(const struct access_rule *rule, struct error *error);

/* Fills sets with the rules of each export: first the command line's, then the
 * file's. Exports without rules of their own get the rules of server_access_common(). */
GMB_MUST_CHECK int server_access_build(
	const struct server_config *config, struct access **sets, struct error *error);
/* Returns the rules for exports that have no rules of their own; NULL: there are none. */
GMB_MUST_CHECK int server_access_common(
	const struct server_config *config, struct access **access_out, struct error *error);
void server_access_drop(struct access **sets, uint32_t count);

/* --- nodes (nodes.c) -------------------------------------------------------------------------- */

enum { SERVER_NODE_BYTES_MAX = 63 };

/* Checks that the text is a name for a node: 1 to SERVER_NODE_BYTES_MAX letters, digits, or after
 * the first character one of "._-". */
GMB_MUST_CHECK int server_node_check_name(const char *name, struct error *error);
/* Checks the access rules that name a node. */
GMB_MUST_CHECK int server_nodes_finish(const struct server_config *config, struct error *error);
/* Replaces each rule with the condition ACCESS_NODE by one rule for each rule of the node, which
 * has the conditions of both. Writes all rules to out, unless it is NULL; their memory belongs to
 * the two lists. Returns their number. */
uint32_t server_nodes_expand(const struct server_access *nodes, const struct server_access *access,
	struct access_rule *out);
/* If there are nodes, logs a warning for each export to which nodes can write and also clients that
 * belong to no node, because such clients cannot be fenced, and for each export with failover,
 * because another server of the disk does not know the fenced nodes. */
void server_nodes_warn(const struct server_config *config);

/* Builds the rate rules. *rules_out is NULL when there are none. */
GMB_MUST_CHECK int server_rates_build(
	const struct server_rates *rates, struct rate_rules **rules_out, struct error *error);
/* Returns whether both have the same rules. Rates and memory limits are not compared, because they
 * can change while clients are connected. */
bool server_rates_same(const struct server_rates *a, const struct server_rates *b);

/* --- addresses and their TLS (tls.c) -------------------------------------------------------- */

/* Returns the idx-th address key of a configuration file; the first one is "uri". The others
 * are also fields of struct server_tls. */
const struct field *server_listen_field(uint32_t idx);

extern const char *const server_tls_modes[];
extern const char *const server_tls_records[];

#define SERVER_TLS_AT(at, member)                                                                  \
	.offset = (at) + offsetof(struct server_tls, member),                                      \
	.bytes = sizeof(((struct server_tls *)0)->member)
/* Rows of a field table for a type that has a struct server_tls at offset `at`. */
#define SERVER_TLS_FIELDS(at)                                                                      \
	{ "tls",                                                                                   \
		.help = "whether to offer TLS: no (off, default), to clients that request it "     \
			"(on), or only TLS (require)",                                             \
		.type = FIELD_WORD, .words = server_tls_modes, SERVER_TLS_AT(at, mode),            \
		.heading = "TLS of nbd addresses; the configuration file can override this for "   \
			   "each address:" },                                                      \
		{ "tls-certificates", "FOLDER",                                                    \
			"folder with ca-cert.pem, server-cert.pem, server-key.pem and "            \
			"optionally ca-crl.pem",                                                   \
			.type = FIELD_TEXT, SERVER_TLS_AT(at, certificates) },                     \
		{ "tls-psk", "FILE", "file with pre-shared keys, in the format of psktool",        \
			.type = FIELD_TEXT, SERVER_TLS_AT(at, psk) },                              \
		{ "tls-verify-peer", .help = "require and verify a client certificate",            \
			.type = FIELD_FLAG, SERVER_TLS_AT(at, verify_peer) },                      \
		{ "tls-priority", "STRING", "GnuTLS priority string that replaces the default",    \
			.type = FIELD_TEXT, .flags = FIELD_NOT_EMPTY,                              \
			SERVER_TLS_AT(at, priority) },                                             \
	{                                                                                          \
		"tls-records",                                                                     \
			.help = "where to encrypt after the handshake: in the kernel, in the "     \
				"server (user), or in the kernel if it can (auto, default)",       \
			.type = FIELD_WORD, .words = server_tls_records,                           \
			SERVER_TLS_AT(at, records)                                                 \
	}

void server_listen_fini(struct server_listen *entry);
void server_tls_fini(struct server_tls *tls);
/* Returns whether both have the same settings. */
bool server_tls_equal(const struct server_tls *a, const struct server_tls *b);
/* Copies TLS settings that an address does not have from the common settings. Checks that the
 * settings fit the URIs and each other. */
GMB_MUST_CHECK int server_tls_finish(struct server_config *config, struct error *error);

/* --- options of the whole server (options.c) ---------------------------------------------------
 */

/* Returns the idx-th field: first the options of the command line, then the operand, then fields
 * that are only used to compare two configurations. */
const struct field *server_config_field(uint32_t idx);
uint32_t server_config_option_count(void);
/* Returns whether the field was given, on the command line or in the file. */
bool server_config_has(const struct server_config *config, const struct field *field);
/* Returns whether two finished configurations have the same value for the field. */
bool server_config_same(
	const struct server_config *a, const struct server_config *b, const struct field *field);
/* Sets an option of the command line and records it for server_config_again(). "path" is the
 * operand, which comes after the options. text is NULL for an option without a value. An error
 * message names the option. */
GMB_MUST_CHECK int server_config_option(
	struct server_config *config, const char *key, const char *text, struct error *error);
/* Sets a field from the file, unless the command line has it; the value of a repeatable field is
 * added to the values of the command line. origin: position in the file, which an error message
 * does not contain. */
GMB_MUST_CHECK int server_config_file_option(struct server_config *config,
	const struct field *field, const char *text, const char *origin, struct error *error);
/* Fills in the limits that were not given. */
GMB_MUST_CHECK int server_config_set_defaults(
	struct server_config *config, const struct server_limits *limits, struct error *error);
/* Frees the values of the fields. */
void server_config_clear_fields(struct server_config *config);

/* Builds the configuration again, from the options of config and the current content of its file,
 * and finishes it (server_config_finish()). config is only read. Any thread. */
GMB_MUST_CHECK int server_config_again(
	const struct server_config *config, struct server_config *again, struct error *error);

/* --- the configuration as a whole ------------------------------------------------------------ */

/* Adds an export. Takes ownership of *entry, even on failure, and leaves it empty. origin is
 * copied. */
GMB_MUST_CHECK int server_config_add_export(struct server_config *config,
	struct server_export *entry, const char *origin, struct error *error);
/* Adds the address in entry->text. Takes ownership of *entry, even on failure. origin is copied. */
GMB_MUST_CHECK int server_config_add_listen(struct server_config *config,
	struct server_listen *entry, const char *origin, struct error *error);
/* Checks that the text is a mode for a Unix socket. */
GMB_MUST_CHECK int server_config_check_mode(const char *text, struct error *error);
/* Grows an array with count elements if needed, so that one more fits. array_inout: the address of
 * the pointer to the array, which is not changed on -ENOMEM. */
GMB_MUST_CHECK int array_grow(void *array_inout, uint32_t count, size_t element_bytes);

/* Reads a configuration file (gmblock.conf(5)): adds its exports and addresses, and sets those
 * limits that config does not have yet. Errors begin with FILE:LINE:COLUMN. (file.c) */
GMB_MUST_CHECK int server_config_load(
	struct server_config *config, const char *path, struct error *error);

/* Checks the configuration as a whole (at least one export, no name or address twice) and fills in
 * the defaults. The default address is not added here, because it depends on socket activation. */
GMB_MUST_CHECK int server_config_finish(struct server_config *config, struct error *error);
/* Returns whether there is an address for virtual machines (vhost-user-blk). */
bool server_config_has_guests(const struct server_config *config);
