// SPDX-License-Identifier: Apache-2.0
/*
 * Predicts the effect of an upgrade on the connections (engine_foresee()), for a dry run and for
 * upgrades that must not end any connection.
 *
 * Threading: the main thread. Ownership: borrows its arguments. Errors: a negative errno, with an
 * error message.
 */
#pragma once

#include <jansson.h>

#include "engine/handover.h"

struct reactor;

/* Adds up the forecasts of all reactors. */
GMB_MUST_CHECK int upgrade_foresee(struct reactor *const *reactors, uint32_t reactor_count,
	struct engine_fate *fate, struct error *error);
/* Returns the number of connections that would end. in_handshake: includes clients that have not
 * chosen an export yet. */
uint32_t upgrade_fate_ends(const struct engine_fate *fate, bool in_handshake);
/* Returns the answer to a command; NULL: no memory. */
json_t *upgrade_fate_json(const struct engine_fate *fate);
/* Sets the error message that rejects the upgrade because it would end connections. Returns
 * -ECONNABORTED. */
int upgrade_fate_refuse(const struct engine_fate *fate, bool in_handshake, struct error *error);
