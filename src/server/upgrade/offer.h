// SPDX-License-Identifier: Apache-2.0
/*
 * The beginning of an upgrade (upgrade.h) in the process that is to be replaced: predicts the
 * effect on the connections (engine_foresee()), checks whether everything it serves can be handed
 * over, and offers it to the client that starts the new process.
 *
 * Threading: the main thread. Errors: a negative errno; with a struct error also an error message.
 */
#pragma once

#include "control/control.h"
#include "server/upgrade/upgrade.h"

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

/* Returns 0 if everything that the server serves can be handed over. */
GMB_MUST_CHECK int upgrade_offer_check(const struct upgrade_options *options, struct error *error);

/* Sends the client the descriptors that the new process needs from this one; the client starts the
 * new process. *channel_out: this process's end of the socket between both processes; -1 on
 * failure. */
GMB_MUST_CHECK int upgrade_offer(struct control_client *client, int *channel_out);
