// SPDX-License-Identifier: Apache-2.0
/*
 * What an upgrade would make of the connections (engine_foresee()), for whoever wants to know it
 * before, and for those who want none to end.
 *
 * Threading: the main thread. Ownership: borrows all. Errors: a negative errno, with a sentence.
 */
#pragma once

#include <jansson.h>

#include "engine/pass.h"

struct reactor;

/* The sum over all reactors. */
GMB_MUST_CHECK int upgrade_foresee(struct reactor *const *reactors, uint32_t reactor_count,
	struct engine_fate *fate, struct error *error);
/* Connections that would end if nobody chose an export any more; in_handshake: those that have not,
 * too. */
uint32_t upgrade_fate_ends(const struct engine_fate *fate, bool in_handshake);
/* For the answer to a command; NULL: no memory. */
json_t *upgrade_fate_json(const struct engine_fate *fate);
/* Why there is no upgrade, as some would end: -ECONNABORTED. */
int upgrade_fate_refuse(const struct engine_fate *fate, bool in_handshake, struct error *error);
