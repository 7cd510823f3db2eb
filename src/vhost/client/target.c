// SPDX-License-Identifier: Apache-2.0
/* URIs of vhost-user-blk, and connecting to their socket. The protocol has no export names: a
 * socket has one export, named by the URI. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/uri.h"
#include "vhost/client/client.h"

_Static_assert((int)CARRIER_LABEL_BYTES_MAX >= (int)EXPORT_URI_LABEL_BYTES, "labels");

static int check_front_uri(const struct export_uri *uri, uint32_t *queues, struct error *error)
{
	char *end = NULL;
	unsigned long number = 1;

	if (uri->user != NULL || uri->unknown_parameter != NULL) {
		return error_set(error, -EINVAL, "vhost-user-blk has no %s%s",
			uri->user != NULL ? "users" : "parameter ",
			uri->user != NULL ? "" : uri->unknown_parameter);
	}
	if (uri->queues != NULL) {
		number = strtoul(uri->queues, &end, 10);
	}
	if (number < 1 || number > FRONT_QUEUES_MAX || (end != NULL && *end != '\0')) {
		return error_set(error, -EINVAL, "the parameter 'queues' must be from 1 to %d",
			FRONT_QUEUES_MAX);
	}
	*queues = (uint32_t)number;
	return 0;
}

void front_target_destroy(struct carrier_target *base)
{
	struct front_target *target = container_of(base, struct front_target, base);

	if (target != NULL) {
		export_uri_fini(&target->uri);
		free(target);
	}
}

int front_target_create(const char *text, const struct gmb_options *options, struct tls_client *tls,
	struct carrier_target **target_out, struct error *error)
{
	struct front_target *target = calloc(1, sizeof(*target));
	char shown[CARRIER_LABEL_BYTES_MAX];
	int result;

	GMB_ASSERT(tls == NULL);
	if (target == NULL) {
		return error_oom(error);
	}
	result = export_uri_parse(text, &target->uri, error)
			 ?: export_uri_check_client(&target->uri, error);
	if (result == 0) {
		result = check_front_uri(&target->uri, &target->queues, error);
		if (result != 0) {
			error_prefix(error, "the URI '%s' cannot be used",
				log_escape(shown, sizeof(shown), text, strlen(text)));
		}
	}
	if (result == 0 && options->tls != NULL) {
		result = error_set(error, -EINVAL, "credentials for TLS need an nbds URI");
	}
	if (result != 0) {
		front_target_destroy(&target->base);
		return result;
	}
	target->base.host_count = 1;
	export_uri_label(target->base.labels[0], &target->uri);
	*target_out = &target->base;
	return 0;
}

int front_connect(const struct front_target *target, int *fd_out, struct error *error)
{
	const struct export_uri *uri = &target->uri;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
				      uri->socket_path_bytes + (uri->socket_path[0] != '\0'));
	const char *advice;
	int result;
	int fd;

	if (bytes > sizeof(address)) {
		return error_set(error, -ENAMETOOLONG, "the path of the socket is too long");
	}
	memcpy(address.sun_path, uri->socket_path, uri->socket_path_bytes);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, bytes) == 0) {
		/* io_uring does not wait on a socket that is non-blocking */
		(void)fcntl(fd, F_SETFL, 0); /* cannot fail for a socket */
		*fd_out = fd;
		return 0;
	}
	result = -errno;
	if (fd >= 0) {
		close(fd);
	}
	advice = uri_unix_advice(uri->socket_path, result);
	return error_set(error, result, "cannot connect: %s%s%s", uri_connect_reason(result),
		advice != NULL ? "; " : "", advice != NULL ? advice : "");
}

/* Does not connect, because a server that is in use does not accept another front end. */
int front_list(const char *uri, const struct gmb_options *options, carrier_found *found,
	void *context, struct error *error)
{
	struct gmb_export exported = { .size = sizeof(exported), .description = "" };
	struct carrier_target *base;
	int result = front_target_create(uri, options, NULL, &base, error);

	if (result == 0) {
		exported.name = container_of(base, struct front_target, base)->uri.export_name;
		found(context, &exported);
		front_target_destroy(base);
	}
	return result;
}
