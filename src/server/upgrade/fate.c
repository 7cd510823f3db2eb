// SPDX-License-Identifier: Apache-2.0
#include "server/upgrade/fate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/control.h"
#include "server/reactor.h"

enum { LIST_BYTES = 200 };

static void fate_foresee(struct engine *engine, void *context)
{
	engine_foresee(engine, context);
}

int upgrade_foresee(struct reactor *const *reactors, uint32_t reactor_count,
	struct engine_fate *fate, struct error *error)
{
	*fate = (struct engine_fate){ 0 };
	for (uint32_t i = 0; i < reactor_count; i++) {
		int rc = reactor_call(reactors[i], fate_foresee, fate);

		if (rc < 0) {
			return error_set(error, rc, "%s", server_call_error(rc));
		}
	}
	return 0;
}

uint32_t upgrade_fate_ends(const struct engine_fate *fate, bool in_handshake)
{
	uint32_t count = in_handshake ? fate->handshakes : 0;

	for (int i = 0; i < ENGINE_KINDS_MAX; i++) {
		count += fate->end[i].count;
	}
	return count;
}

static void fate_add(char list[LIST_BYTES], const char *what, uint32_t count)
{
	size_t used = strlen(list);

	if (count > 0) {
		snprintf(list + used, LIST_BYTES - used, "%s%s: %u", used > 0 ? ", " : "", what,
			count);
	}
}

/* Lists the connections that end, by reason. */
static void list_ends(const struct engine_fate *fate, bool in_handshake, char list[LIST_BYTES])
{
	list[0] = '\0';
	for (int i = 0; i < ENGINE_KINDS_MAX && fate->end[i].kind != NULL; i++) {
		const struct session_kind *kind = fate->end[i].kind;

		/* Sessions of a kind with can_hand_over end only because of their TLS layer. */
		fate_add(list,
			kind->can_hand_over != NULL ? "TLS not handled by the kernel" : kind->name,
			fate->end[i].count);
	}
	fate_add(list, "no export chosen yet", in_handshake ? fate->handshakes : 0);
}

json_t *upgrade_fate_json(const struct engine_fate *fate)
{
	char list[LIST_BYTES];

	list_ends(fate, false, list);
	return json_pack("{s:I, s:I, s:s, s:I}", "connections", (json_int_t)fate->handed_over,
		"connections_ended", (json_int_t)upgrade_fate_ends(fate, false), "ended", list,
		"handshakes", (json_int_t)fate->handshakes);
}

int upgrade_fate_refuse(const struct engine_fate *fate, bool in_handshake, struct error *error)
{
	char list[LIST_BYTES];

	list_ends(fate, in_handshake, list);
	return error_set(error, -ECONNABORTED,
		"connections would be closed (%s); close them first, or upgrade without "
		"--all-or-nothing",
		list);
}
