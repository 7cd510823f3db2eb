// SPDX-License-Identifier: Apache-2.0
#include "sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "sandbox/layers.h"

/* Set by sandbox_enter() when access to files is restricted. */
static bool files_are_restricted;
/* Work left for sandbox_seal(). */
static struct {
	bool is_due;
	struct sandbox rights; /* without rules */
} to_seal;

void sandbox_fini(struct sandbox *sandbox)
{
	for (uint32_t i = 0; i < sandbox->rule_count; i++) {
		free(sandbox->rules[i].path);
	}
	free(sandbox->rules);
	*sandbox = (struct sandbox){ 0 };
}

/* Adds a rule. Takes ownership of the path. */
static int sandbox_add_rule(struct sandbox *sandbox, char *path, uint32_t access,
	const char *alone_of, struct error *error)
{
	struct sandbox_rule *rules = sandbox->rules;

	for (uint32_t i = 0; path != NULL && i < sandbox->rule_count; i++) {
		if (strcmp(rules[i].path, path) == 0) {
			rules[i].access |= access;
			free(path);
			return 0;
		}
	}
	if (path != NULL) {
		rules = reallocarray(rules, sandbox->rule_count + 1, sizeof(*rules));
	}
	if (path == NULL || rules == NULL) {
		free(path);
		return error_oom_for(error, "the rules of the sandbox");
	}
	sandbox->rules = rules;
	rules[sandbox->rule_count++] = (struct sandbox_rule){ path, access, alone_of };
	return 0;
}

/* Resolves a path. Returns 0 and *real_out NULL if there is no such file. */
static int sandbox_resolve(const char *path, char **real_out, struct error *error)
{
	*real_out = realpath(path, NULL);
	if (*real_out == NULL && errno == ENOENT && access(path, F_OK) == 0) {
		*real_out = strdup(path); /* for example, /dev/fd/3 of a removed file */
	}
	return *real_out == NULL && errno == ENOMEM
		       ? error_oom_for(error, "the rules of the sandbox")
		       : 0;
}

int sandbox_allow(struct sandbox *sandbox, const char *path, uint32_t access, struct error *error)
{
	char *real;
	int rc = sandbox_resolve(path, &real, error);

	return rc < 0 || real == NULL ? rc : sandbox_add_rule(sandbox, real, access, NULL, error);
}

void sandbox_allow_port(struct sandbox_ports *ports, uint16_t port)
{
	for (uint32_t i = 0; i < ports->count; i++) {
		if (ports->list[i] == port) {
			return;
		}
	}
	if (port == 0 || ports->count == SANDBOX_PORTS_MAX) {
		ports->any = true;
	} else {
		ports->list[ports->count++] = port;
	}
}

/* Folders of the Filesystem Hierarchy Standard 3.0, and those where distributions store keys. */
static const char *const system_folders[] = {
	"/",
	"/bin",
	"/boot",
	"/dev",
	"/etc",
	"/etc/pki",
	"/etc/pki/tls",
	"/etc/pki/tls/certs",
	"/etc/pki/tls/private",
	"/etc/ssl",
	"/etc/ssl/certs",
	"/etc/ssl/private",
	"/home",
	"/lib",
	"/media",
	"/mnt",
	"/opt",
	"/proc",
	"/root",
	"/run",
	"/run/lock",
	"/run/user",
	"/sbin",
	"/srv",
	"/sys",
	"/tmp",
	"/usr",
	"/usr/lib",
	"/usr/local",
	"/usr/local/etc",
	"/usr/share",
	"/var",
	"/var/cache",
	"/var/lib",
	"/var/log",
	"/var/spool",
	"/var/tmp",
};

/* Returns whether a folder is shared by all programs of one user, like /run/user/1000. */
static bool is_of_user(const char *folder)
{
	return fnmatch("/run/user/*", folder, FNM_PATHNAME) == 0;
}

/* Returns whether a folder is broad; see sandbox_is_broad(). folder: as returned by realpath(). */
static bool is_broad(const char *folder)
{
	const struct passwd *owner;
	struct stat status;
	char *home;
	bool broad;

	for (size_t i = 0; i < ARRAY_COUNT(system_folders); i++) {
		if (strcmp(folder, system_folders[i]) == 0) {
			return true;
		}
	}
	if (is_of_user(folder) || stat(folder, &status) < 0 || (status.st_mode & S_ISVTX) != 0) {
		return true;
	}
	owner = getpwuid(status.st_uid);
	home = owner != NULL ? realpath(owner->pw_dir, NULL) : NULL;
	broad = home != NULL && strcmp(home, folder) == 0;
	free(home);
	return broad;
}

bool sandbox_is_broad(const char *folder)
{
	char *real = realpath(folder, NULL);
	bool broad = real == NULL || is_broad(real);

	free(real);
	return broad;
}

int sandbox_allow_beside(struct sandbox *sandbox, const char *path, uint32_t access,
	const char *option, struct error *error)
{
	const char *alone_of = NULL;
	struct stat status;
	char *real;
	char *slash;
	int rc = sandbox_resolve(path, &real, error);

	if (rc < 0 || real == NULL) {
		return rc;
	}
	slash = strrchr(real, '/');
	if (stat(real, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink > 0) {
		*slash = '\0';
		if (slash == real || is_broad(real)) {
			*slash = '/';
			alone_of = option;
		}
	}
	return sandbox_add_rule(sandbox, real, access, alone_of, error);
}

static size_t folder_bytes(const char *path)
{
	return (size_t)(strrchr(path, '/') - path);
}

/* Logs a warning for each folder that was not allowed because it is broad. */
static void warn_of_files_alone(const struct sandbox *sandbox)
{
	const char *before = NULL;

	for (uint32_t i = 0; i < sandbox->rule_count; i++) {
		const struct sandbox_rule *rule = &sandbox->rules[i];
		size_t bytes;

		if (rule->alone_of == NULL) {
			continue;
		}
		bytes = folder_bytes(rule->path);
		if (before == NULL || bytes != folder_bytes(before) ||
			memcmp(before, rule->path, bytes) != 0) {
			log_warning("%s: a later replacement of %s cannot be read, because the "
				    "sandbox does not allow all of %.*s; put the file into a "
				    "separate folder",
				rule->alone_of, rule->path, MAX((int)bytes, 1), rule->path);
		}
		before = rule->path;
	}
}

void sandbox_probe(struct sandbox_support *support)
{
	*support = (struct sandbox_support){
		.landlock = landlock_version(),
		.seccomp = seccomp_works(),
	};
}

/* Decides what the result of entering a layer of the sandbox means. rc 0: the layer is active.
 * rc < 0: the layer is missing or has failed; this is an error if the mode requires the layer,
 * otherwise it is only logged. */
static int sandbox_judge(enum sandbox_mode mode, const char *what, int rc, struct error *error)
{
	if (rc == 0) {
		return 0;
	}
	if (mode == SANDBOX_ON) {
		return error_set(error, rc,
			"--sandbox=on: %s is not available: %s; use --sandbox=auto to continue "
			"without it",
			what, strerror(-rc));
	}
	log_info("sandbox: without %s: %s", what, strerror(-rc));
	return 0;
}

int sandbox_enter(struct sandbox *sandbox, enum sandbox_mode mode, struct error *error)
{
	int files;
	int calls;
	int rc;

	if (mode == SANDBOX_OFF) {
		log_info("sandbox: off");
		return 0;
	}
	/* Landlock and seccomp require no_new_privs. Setting it has no cost, because the process
	 * does not start any program later that could gain privileges. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
		return sandbox_judge(mode, "no_new_privs", -errno, error);
	}
	rc = sandbox_judge(mode, "dropping capabilities", capabilities_drop(sandbox), error);
	if (rc < 0) {
		return rc;
	}
	files = landlock_enter(sandbox);
	rc = sandbox_judge(mode, "Landlock", files, error);
	calls = rc == 0 ? seccomp_enter(sandbox) : 0;
	rc = rc ?: sandbox_judge(mode, "seccomp", calls, error);
	if (rc == 0 && files == 0) {
		warn_of_files_alone(sandbox);
		files_are_restricted = true;
	}
	to_seal.is_due = rc == 0 && calls == 0;
	to_seal.rights = (struct sandbox){ .connects = sandbox->connects,
		.loads_code = sandbox->loads_code,
		.makes_sockets = sandbox->makes_sockets };
	if (rc == 0 && (files == 0 || calls == 0)) {
		log_info("sandbox: %s%s%s", files == 0 ? "Landlock" : "",
			files == 0 && calls == 0 ? " and " : "", calls == 0 ? "seccomp" : "");
	}
	return rc;
}

int sandbox_seal(enum sandbox_mode mode, struct error *error)
{
	if (!to_seal.is_due) {
		return 0;
	}
	to_seal.is_due = false;
	return sandbox_judge(
		mode, "the second seccomp filter", seccomp_seal(&to_seal.rights), error);
}

/* Returns whether a file at path, which does not exist, could be created according to the mode of
 * its folder. */
static bool is_in_writable_folder(const char *path)
{
	char folder[PATH_MAX];

	return snprintf(folder, sizeof(folder), "%s", path) < (int)sizeof(folder) &&
	       faccessat(AT_FDCWD, dirname(folder), W_OK, AT_EACCESS) == 0;
}

static int try_open(const char *path, int flags)
{
	int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);

	if (fd < 0) {
		return -errno;
	}
	close(fd);
	return 0;
}

/* Copies "cannot open 'path': reason; remedy" without the remedy, which would not help against the
 * sandbox. */
static void copy_without_remedy(char text[ERROR_TEXT_BYTES], const char *sentence)
{
	char *remedy;

	snprintf(text, ERROR_TEXT_BYTES, "%s", sentence);
	remedy = strrchr(text, ';');
	if (remedy != NULL && strchr(remedy, '\'') == NULL) {
		*remedy = '\0';
	}
}

bool sandbox_explain(const char *path, bool writes, const char *remedy, struct error *error)
{
	char text[ERROR_TEXT_BYTES];
	bool is_readable;
	int rc;

	if (!files_are_restricted || error->code != -EACCES) {
		return false;
	}
	rc = try_open(path, O_RDONLY);
	is_readable = rc == 0;
	if (is_readable && writes) {
		rc = try_open(path, O_RDWR);
	}
	copy_without_remedy(text, error->text);
	/* The sandbox is the reason if the file cannot be opened although the mode of the file, or
	 * of its folder, permits it. access() checks only the mode, because Landlock does not
	 * affect it. */
	if (rc == -ENOENT && writes && is_in_writable_folder(path)) {
		error_set(error, error->code,
			"%s (the sandbox does not allow creating files after the start: create the "
			"file first, as the server's user; an empty file is a new overlay)",
			text);
		return true;
	}
	if (rc != -EACCES ||
		faccessat(AT_FDCWD, path, R_OK | (writes ? W_OK : 0), AT_EACCESS) < 0) {
		return false;
	}
	error_set(error, error->code,
		is_readable ? "%s (the sandbox allows only reading there: add the export with "
			      "readonly, or %s, or start the server with --sandbox=off)"
			    : "%s (the sandbox allows only files in use when the server started: "
			      "%s, or start the server with --sandbox=off)",
		text, remedy);
	return true;
}
