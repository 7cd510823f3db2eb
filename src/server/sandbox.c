// SPDX-License-Identifier: Apache-2.0
#include "server/sandbox.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/manager.h"
#include "tls/kernel.h"

enum { LOW_PORTS = 1024 };

/* --- the user -------------------------------------------------------------------------------- */

static int give_socket(
	const struct listener *listener, const struct sandbox_user *user, struct error *error)
{
	const char *path = listener->unlink_path;
	gid_t group = listener->has_group ? (gid_t)-1 : user->gid;

	if (path != NULL && lchown(path, user->uid, group) < 0) {
		return error_set(error, -errno,
			"--user: cannot change the owner of the socket %s to user %u: %s", path,
			user->uid, strerror(errno));
	}
	return 0;
}

/* Calls listen() again as the new user: the kernel tells clients which user called listen()
 * last. */
static void show_user(const struct listener *listener)
{
	for (uint32_t i = 0; listener->uri.is_unix && i < listener->fd_count; i++) {
		if (!listener->of_manager) {
			(void)listen(listener->fds[i], SOMAXCONN);
		}
	}
}

int server_sandbox_become(const struct server_config *config, const struct listener *listeners,
	uint32_t listener_count, const struct listener *control, const struct listener *metrics,
	struct error *error)
{
	struct sandbox_user user;
	int rc = 0;

	if (config->user == NULL) {
		return 0;
	}
	rc = sandbox_find_user(config->user, &user, error);
	if (geteuid() == 0) { /* only root can change the owner of the sockets */
		for (uint32_t i = 0; rc == 0 && i < listener_count; i++) {
			rc = give_socket(&listeners[i], &user, error);
		}
		rc = rc ?: give_socket(control, &user, error);
		rc = rc ?: give_socket(metrics, &user, error);
	}
	rc = rc ?: sandbox_become(&user, error);
	for (uint32_t i = 0; rc == 0 && i < listener_count; i++) {
		show_user(&listeners[i]);
	}
	if (rc == 0) {
		show_user(control);
		show_user(metrics);
	}
	return rc;
}

/* --- files and system calls ------------------------------------------------------------------ */

/* Files that the C library and the statistics read in every server. */
static const char *const system_files[] = {
	"/proc",
	"/sys",
	"/usr",
	"/lib",
	"/lib64",
	"/etc/gai.conf",
	"/etc/host.conf",
	"/etc/hosts",
	"/etc/ld.so.cache",
	"/etc/localtime",
	"/etc/nsswitch.conf",
	"/etc/resolv.conf",
	"/etc/gnutls",
	"/etc/crypto-policies",
	"/dev/null",
	"/dev/random",
	"/dev/urandom",
};

static int allow_system(struct sandbox *sandbox, struct error *error)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < ARRAY_COUNT(system_files); i++) {
		rc = sandbox_allow(sandbox, system_files[i], SANDBOX_READ, error);
	}
	return rc;
}

/* Permits the folder of a memory file, because the server removes the file when it ends. */
static int server_sandbox_allow_memory(
	struct sandbox *sandbox, const struct server_export *entry, struct error *error)
{
	struct store_options options = entry->store;
	const char *folder;

	options.path = entry->path;
	folder = store_options_memory_folder(&options);
	return folder == NULL ? 0 : sandbox_allow(sandbox, folder, SANDBOX_SHARED_MEMORY, error);
}

/* Permits the disks, because each thread opens its disk again. Exports that commands added to the
 * previous process are skipped: this process may open them only if the sandbox permits their
 * folders anyway. */
static int allow_exports(
	struct sandbox *sandbox, const struct server_config *config, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < config->export_count; i++) {
		const struct server_export *entry = &config->exports[i];

		const char *file;

		if (entry->is_added) {
			continue;
		}
		rc = sandbox_allow_beside(sandbox, store_path_file(entry->path),
			SANDBOX_READ | SANDBOX_DEVICES |
				(store_options_reads_only(&entry->store) ? 0 : SANDBOX_WRITE),
			NULL, error);
		for (uint32_t k = 0;
			rc == 0 && (file = store_options_file(&entry->store, k)) != NULL; k++) {
			rc = sandbox_allow_beside(sandbox, file,
				SANDBOX_READ | (entry->store.read_only ? 0 : SANDBOX_WRITE), NULL,
				error);
		}
		rc = rc ?: server_sandbox_allow_memory(sandbox, entry, error);
	}
	return rc;
}

/* Permits the folders from which exports can be added while the server runs. */
static int allow_folders(
	struct sandbox *sandbox, const struct server_config *config, struct error *error)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < config->export_folder_count; i++) {
		rc = sandbox_allow(sandbox, config->export_folders[i],
			SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICES, error);
	}
	return rc;
}

/* Permits what a session kind with its own listeners needs to open them later, inside the sandbox:
 * a port, or the drivers of a network library. */
static int allow_network(struct sandbox *sandbox, const struct export_uri *uri, struct error *error)
{
	sandbox->binds_low_port |= uri->port > 0 && uri->port < LOW_PORTS;
	sandbox_allow_port(&sandbox->bind_ports, uri->port);
	if (uri->provider == NULL || strcmp(uri->provider, "tcp") == 0) {
		if (strcmp(uri->protocol, "push") == 0) {
			/* Permits all ports (0), because trusted clients may push to any port. */
			sandbox_allow_port(&sandbox->connect_ports, 0);
		}
		return 0;
	}
	sandbox->loads_code = true;
	return sandbox_allow(sandbox, "/dev/infiniband",
		       SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICES, error)
		?: sandbox_allow(sandbox, "/dev/shm", SANDBOX_SHARED_MEMORY, error)
		?: sandbox_allow(sandbox, "/etc/libibverbs.d", SANDBOX_READ, error);
}

static int allow_folder(
	struct sandbox *sandbox, const char *path, uint32_t access, struct error *error)
{
	char *copy = strdup(path);
	int rc = copy != NULL ? sandbox_allow(sandbox, dirname(copy), access, error)
			      : error_oom_for(error, "a path");

	free(copy);
	return rc;
}

/* Permits the folder of the socket, because the server removes the socket when it ends. */
static int allow_listener(
	struct sandbox *sandbox, const struct listener *listener, struct error *error)
{
	int rc = 0;

	if (listener->kind != NULL && strcmp(listener->uri.protocol, "push") == 0) {
		sandbox->connects = true; /* trusted clients may start pushes to other servers */
	}
	if (listener->unlink_path != NULL) {
		rc = allow_folder(sandbox, listener->unlink_path, SANDBOX_SOCKETS, error);
	}
	if (rc == 0 && listener->kind != NULL && listener->kind->listen != NULL &&
		!listener->uri.is_unix) {
		rc = allow_network(sandbox, &listener->uri, error);
	}
	return rc;
}

/* Permits what the configuration needs while the server runs. */
static int allow_configured(struct sandbox *sandbox, const struct server_config *config,
	const char *state, struct error *error)
{
	int rc = allow_system(sandbox, error) ?: allow_exports(sandbox, config, error)
			 ?: allow_folders(sandbox, config, error);

	for (uint32_t i = 0; i < config->push_place_count; i++) {
		const struct place *place = &config->push_places[i];

		/* An NBD destination needs its port; push destinations get all ports if this server
		 * also listens for push on the network (allow_network()). */
		if (place->path == NULL && strcmp(place->protocol, "nbd") == 0) {
			sandbox_allow_port(&sandbox->connect_ports, place->port);
		}
	}
	if (rc == 0 && state != NULL) {
		sandbox->renames = true;
		rc = sandbox_allow(sandbox, state, SANDBOX_SHARED_MEMORY, error);
	}
	for (uint32_t i = 0; rc == 0 && i < config->listen_count; i++) {
		const struct export_uri *uri = &config->listens[i].uri;

		if (uri->is_folder) {
			sandbox->makes_sockets = true;
			rc = sandbox_allow(sandbox, uri->socket_path, SANDBOX_SOCKETS, error);
		}
	}
	/* The configuration file is read again on a reload. */
	if (rc == 0 && config->file_path != NULL) {
		rc = sandbox_allow_beside(
			sandbox, config->file_path, SANDBOX_READ, "--config", error);
	}
	return rc;
}

int server_sandbox_enter(const struct server_config *config, const struct credentials *credentials,
	const struct listener *listeners, uint32_t listener_count, const struct listener *control,
	const struct listener *metrics, const char *record, const char *state, struct error *error)
{
	struct sandbox sandbox = { .connects = config->push_place_count > 0 };
	int rc;

	if (config->command_count > 0) {
		log_info("sandbox: off, because it would also confine the commands of --run");
		return 0;
	}
	manager_open();
	rc = allow_configured(&sandbox, config, state, error)
		     ?: credentials_allow(credentials, &sandbox, error)
		     ?: allow_listener(&sandbox, control, error)
		     ?: allow_listener(&sandbox, metrics, error);
	for (uint32_t i = 0; rc == 0 && i < listener_count; i++) {
		rc = allow_listener(&sandbox, &listeners[i], error);
	}
	if (rc == 0 && record[0] != '\0') {
		rc = allow_folder(&sandbox, record, SANDBOX_SOCKETS, error);
	}
	if (rc == 0 && sandbox.connects) {
		/* probes the kernel now, because the sandbox would prevent it */
		(void)tls_kernel_features();
	}
	rc = rc ?: sandbox_enter(&sandbox, config->sandbox, error);
	sandbox_fini(&sandbox);
	return rc;
}

int server_sandbox_seal(const struct server_config *config, struct error *error)
{
	return config->command_count > 0 ? 0 : sandbox_seal(config->sandbox, error);
}
