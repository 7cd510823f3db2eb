// SPDX-License-Identifier: Apache-2.0
#include "server/observe/scrape.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/uri.h"
#include "control/control.h"
#include "server/listen/address.h"
#include "server/observe/metrics.h"
#include "server/upgrade/take.h"

enum { SHOWN_BYTES = 256, FORMATS = 2 };

static const char page_name[] = "metrics";

struct scrape {
	const struct server_view *view;
	struct listener listener;
	struct control_server *server;
	bool stopped;
	/* The last content of the page in each format. */
	struct {
		char *text;
		size_t bytes;
		uint64_t made_ns;
	} last[FORMATS];
};

/* --- the address --------------------------------------------------------------------------- */

static int scrape_take_parameter(
	struct export_uri *uri, struct uri_parameter *parameter, struct error *error)
{
	if (strcmp(parameter->name, "socket") == 0) {
		return 0; /* uri_parse() has processed the parameter */
	}
	if (strcmp(parameter->name, "insecure-network") != 0 || uri->is_unix) {
		return error_set(
			error, -EINVAL, "unknown parameter \"%s\"", quote(parameter->name));
	}
	if (strcmp(parameter->value, "yes") != 0 && strcmp(parameter->value, "no") != 0) {
		return error_set(error, -EINVAL, "insecure-network must be yes or no");
	}
	free(uri->insecure_network);
	uri->insecure_network = parameter->value;
	parameter->value = NULL;
	return 0;
}

static int scrape_take_parts(struct export_uri *uri, struct uri *parts, struct error *error)
{
	struct uri_parameter parameter;
	int rc;

	uri->protocol = "http";
	uri->is_unix = parts->is_unix;
	if (strcmp(parts->scheme, parts->is_unix ? "http+unix" : "http") != 0) {
		return error_set(
			error, -EINVAL, "write http://HOST:PORT or http+unix:///?socket=PATH");
	}
	if (parts->is_folder) {
		return error_set(error, -EINVAL, "write http+unix:///?socket=PATH");
	}
	if (parts->user != NULL) {
		return error_set(error, -EINVAL, "the URI for metrics cannot have a user name");
	}
	if (parts->path_bytes != 0 && strcmp(parts->path, page_name) != 0) {
		return error_set(
			error, -EINVAL, "the path in the URI for metrics must be /%s", page_name);
	}
	if (parts->host_count > 1) {
		return error_set(error, -EINVAL, "the URI for metrics can have only one host");
	}
	if (!parts->is_unix && !parts->hosts[0].has_port) {
		return error_set(error, -EINVAL,
			"the port is missing; write it as in http://127.0.0.1:9464");
	}
	while ((rc = uri_next_parameter(&parts->query, &parameter, error)) == 1) {
		rc = scrape_take_parameter(uri, &parameter, error);
		uri_parameter_fini(&parameter);
		if (rc < 0) {
			break;
		}
	}
	uri->host = parts->hosts[0].name;
	uri->port = parts->hosts[0].port;
	uri->socket_path = parts->socket_path;
	uri->socket_path_bytes = parts->socket_path_bytes;
	parts->hosts[0].name = NULL;
	parts->socket_path = NULL;
	return rc;
}

int scrape_uri_parse(const char *text, struct export_uri *uri, struct error *error)
{
	struct export_uri parsed = { 0 };
	struct uri parts = { 0 };
	int rc = strstr(text, "://") != NULL
			 ? uri_parse(text, &parts, error)
			 : error_set(error, -EINVAL,
				   "write http://HOST:PORT or http+unix:///?socket=PATH");

	rc = rc ?: scrape_take_parts(&parsed, &parts, error);
	uri_fini(&parts);
	if (rc < 0) {
		export_uri_fini(&parsed);
		return rc;
	}
	*uri = parsed;
	return 0;
}

/* Rejects addresses that other machines can reach, because metrics contain names of exports and
 * clients, and the connection has neither encryption nor a password. */
static int check_exposure(
	const struct export_uri *uri, const struct listener *listener, struct error *error)
{
	bool may_be_seen =
		uri->insecure_network != NULL && strcmp(uri->insecure_network, "yes") == 0;

	if (!listen_address_is_local(listener) && !may_be_seen) {
		return error_set(error, -EACCES,
			"any host that can reach the address could read the names of exports and "
			"clients; listen on 127.0.0.1 or a Unix socket, or add "
			"?insecure-network=yes to the URI on a trusted network");
	}
	return 0;
}

/* Adopts those sockets of the previous process that match the address, and closes the others. */
static int scrape_adopt_inherited(const struct export_uri *uri, struct upgrade_take *take,
	struct listener *listener, struct error *error)
{
	struct upgrade_socket socket;
	struct listener inherited;
	int rc = 0;

	while (rc == 0 && upgrade_take_socket(take, true, &socket)) {
		struct export_uri wanted;

		rc = listener_adopt_inherited(&socket, &inherited, error);
		if (rc < 0) {
			break;
		}
		inherited.uri.protocol = uri->protocol;
		wanted = listen_address_with_port(uri, &inherited);
		if (listen_address_overlaps(&inherited, &wanted) && listener->fd_count == 0) {
			*listener = inherited;
			continue;
		}
		if (listen_address_overlaps(&inherited, &wanted) &&
			listener->fd_count < LISTENER_SOCKETS_MAX) {
			listener->fds[listener->fd_count++] = inherited.fds[0];
			inherited.fd_count = 0;
		}
		listener_forget_path(&inherited); /* the old process may still use the path */
		listener_close(&inherited);
	}
	return rc;
}

/* Adopts the previous process's sockets if they cover the address completely, otherwise none. */
static int scrape_take_over(const struct export_uri *uri, struct upgrade_take *take,
	struct listener *listener, struct error *error)
{
	int rc = scrape_adopt_inherited(uri, take, listener, error);
	struct export_uri wanted = listen_address_with_port(uri, listener);

	if (rc == 0 && listener->fd_count > 0 && !listen_address_is_served(listener, 1, &wanted)) {
		listener_forget_path(listener);
		listener_close(listener);
	}
	return rc;
}

int scrape_listen(
	const char *text, struct upgrade_take *take, struct listener *listener, struct error *error)
{
	struct export_uri uri = { 0 };
	uint32_t retries = LISTENER_RETRIES;
	int rc;

	*listener = (struct listener){ 0 };
	if (text == NULL) {
		return 0;
	}
	rc = scrape_uri_parse(text, &uri, error) ?: scrape_take_over(&uri, take, listener, error);
	if (rc == 0 && listener->fd_count == 0) {
		rc = listener_open(&uri, NULL, &retries, listener, error);
	}
	if (rc == 0) {
		rc = check_exposure(&uri, listener, error);
		if (rc < 0) {
			listener_close(listener);
		}
	}
	export_uri_fini(&uri);
	if (rc < 0) {
		error_prefix(error, "--metrics");
	}
	return rc;
}

/* --- the page ------------------------------------------------------------------------------ */

static int make_text(struct scrape *scrape, bool openmetrics, struct error *error)
{
	char *text;
	size_t bytes;
	int rc = metrics_format(scrape->view, openmetrics, &text, &bytes);

	if (rc < 0) {
		return error_set(error, rc, "%s", reactor_call_text(rc));
	}
	free(scrape->last[openmetrics].text);
	scrape->last[openmetrics].text = text;
	scrape->last[openmetrics].bytes = bytes;
	scrape->last[openmetrics].made_ns = clock_now_ns();
	return 0;
}

static int scrape_get(void *context, bool openmetrics, const char **text_out, size_t *bytes_out,
	struct error *error)
{
	struct scrape *scrape = context;
	uint64_t age_ns = clock_now_ns() - scrape->last[openmetrics].made_ns;

	if (scrape->last[openmetrics].text == NULL || age_ns >= SCRAPE_NS) {
		int rc = make_text(scrape, openmetrics, error);

		if (rc < 0) {
			return rc;
		}
	}
	*text_out = scrape->last[openmetrics].text;
	*bytes_out = scrape->last[openmetrics].bytes;
	return 0;
}

static const struct control_page page = {
	.path = "/metrics",
	.type = METRICS_TEXT_TYPE,
	.openmetrics_type = METRICS_OPENMETRICS_TYPE,
	.get = scrape_get,
};

/* --- life ---------------------------------------------------------------------------------- */

_Static_assert((int)CONTROL_SOCKETS_MAX >= (int)LISTENER_SOCKETS_MAX,
	"one slot for each socket of an address");

int scrape_open(struct listener *listener, const struct server_view *view,
	struct scrape **scrape_out, struct error *error)
{
	char shown[SHOWN_BYTES];
	struct scrape *scrape;
	int rc;

	*scrape_out = NULL;
	if (listener->fd_count == 0) {
		return 0;
	}
	scrape = calloc(1, sizeof(*scrape));
	if (scrape == NULL) {
		listener_close(listener);
		return error_oom_for(error, "metrics");
	}
	scrape->view = view;
	scrape->listener = *listener;
	*listener = (struct listener){ 0 };
	rc = control_page_serve(&page, scrape, scrape->listener.fds, scrape->listener.fd_count,
		&scrape->server, error);
	if (rc < 0) {
		if (scrape->listener.was_inherited) { /* the old process still uses the socket */
			listener_forget_path(&scrape->listener);
		}
		scrape_close(scrape);
		return rc;
	}
	if (export_uri_format(&scrape->listener.uri, page_name, sizeof(page_name) - 1, shown,
		    sizeof(shown)) == 0) {
		log_info("metrics: %s", shown);
	}
	*scrape_out = scrape;
	return 0;
}

void scrape_begin(struct scrape *scrape)
{
	if (scrape != NULL) {
		control_server_begin(scrape->server);
	}
}

void scrape_stop(struct scrape *scrape)
{
	if (scrape == NULL || scrape->stopped) {
		return;
	}
	scrape->stopped = true;
	if (scrape->server != NULL) {
		control_server_stop(scrape->server);
	}
	listener_close(&scrape->listener);
}

void scrape_close(struct scrape *scrape)
{
	if (scrape == NULL) {
		return;
	}
	scrape_stop(scrape);
	control_server_destroy(scrape->server);
	for (int i = 0; i < FORMATS; i++) {
		free(scrape->last[i].text);
	}
	free(scrape);
}

struct listener *scrape_listener(struct scrape *scrape)
{
	return scrape != NULL ? &scrape->listener : NULL;
}

int scrape_fd(const struct scrape *scrape)
{
	return scrape != NULL ? control_server_fd(scrape->server) : -1;
}

void scrape_run(struct scrape *scrape)
{
	control_server_run(scrape->server);
}
