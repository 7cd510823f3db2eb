// SPDX-License-Identifier: Apache-2.0
/*
 * Session kinds that listen by themselves ask the acceptor's door for each connection. When their
 * last listener is closed the acceptor may be freed, as by a start that fails at a later address:
 * whoever came before is refused without the door.
 */
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmb/server/server.h"
#include "push/server.h"
#include "reactor_world.h"
#include "stores.h"
#include "unit.h"

enum { CALLERS = 4 };

static const struct session_kind *const kinds[] = { &native_session_kind, &push_session_kind };

/* The rest is the reactor's, until all callers were refused. */
struct gate {
	struct engine_door door;
	const struct session_kind *kind;
	struct engine *engine;
	void *listener;
	int callers[CALLERS];
	uint32_t asked;
};

/* Of several that came at once the first one is refused, and the listener closed with that. */
static bool take_none(void *context, const struct session_kind *kind, const char *address)
{
	struct gate *gate = context;

	GMB_UNUSED(kind);
	if (gate->asked++ == 0) {
		engine_listen_end(gate->engine, gate->kind, gate->listener);
	}
	return false;
}

/* They are all there before the reactor looks. */
static void call(struct engine *engine, void *context)
{
	struct gate *gate = context;
	struct export_uri uri = { .host = (char *)(uintptr_t) "127.0.0.1" };
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct error error;

	gate->engine = engine;
	GMB_ASSERT(
		engine_listen(engine, gate->kind, &uri, &gate->door, &gate->listener, &error) == 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons(uri.port);
	for (int i = 0; i < CALLERS; i++) {
		gate->callers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		GMB_ASSERT(connect(gate->callers[i], (struct sockaddr *)&address,
				   sizeof(address)) == 0);
	}
}

TEST(a_door_is_forgotten_with_its_last_listener)
{
	struct reactor_world world;

	reactor_world_begin(&world, export_of_path("", "memory:1M"), kinds, ARRAY_COUNT(kinds));
	reactor_world_accept(&world);
	for (uint32_t i = 0; i < ARRAY_COUNT(kinds); i++) {
		struct gate gate = { .kind = kinds[i] };
		char byte;

		gate.door = (struct engine_door){ .take = take_none, .context = &gate };
		assert_int_equal(reactor_call(world.reactors[0], call, &gate), 0);
		for (int j = 0; j < CALLERS; j++) {
			(void)!recv(gate.callers[j], &byte, 1, 0); /* why, or the end */
			close(gate.callers[j]);
		}
		assert_int_equal(gate.asked, 1);
	}
	reactor_world_end(&world);
}
