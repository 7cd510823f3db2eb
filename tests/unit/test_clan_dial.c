// SPDX-License-Identifier: Apache-2.0
/*
 * A host with several addresses, over TCP: the next one is tried whatever fails with the one
 * before.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/compiler.h"
#include "clan_world.h"
#include "unit.h"

static const struct world_kind network = { .name = "network", .network = "tcp:127.0.0.1:0" };
static bool fails; /* the next socket cannot be prepared */

void world_address(struct world *world)
{
	GMB_UNUSED(world);
	fail(); /* every world here is on the network */
}

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **found_out);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **found_out);
int __real_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes);

/* Finds each address twice. */
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
	struct addrinfo **found_out)
{
	struct addrinfo *last;
	int result = __real_getaddrinfo(host, port, hints, found_out);

	if (result != 0) {
		return result;
	}
	for (last = *found_out; last->ai_next != NULL; last = last->ai_next) {
	}
	return __real_getaddrinfo(host, port, hints, &last->ai_next);
}

int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t bytes)
{
	if (fails && level == IPPROTO_TCP && option == TCP_NODELAY) {
		fails = false;
		errno = ENOBUFS;
		return -1;
	}
	return __real_setsockopt(fd, level, option, value, bytes);
}

TEST(the_next_address_is_tried)
{
	struct world world;

	fails = true;
	world_open(&world, &network, NULL);
	assert_false(fails);
	world_close(&world);
}
