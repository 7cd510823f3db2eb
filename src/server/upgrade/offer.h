// SPDX-License-Identifier: Apache-2.0
/*
 * The beginning of an upgrade (upgrade.h) in the process that is to be replaced: checks whether
 * everything it serves can be handed over, and offers it to the client that starts the new process.
 *
 * Threading: the main thread. Errors: a negative errno; with a struct error also an error message.
 */
#pragma once

#include "control/control.h"
#include "server/upgrade/upgrade.h"

/* Returns 0 if everything that the server serves can be handed over. */
GMB_MUST_CHECK int upgrade_offer_check(const struct upgrade_options *options, struct error *error);

/* Sends the client the descriptors that the new process needs from this one; the client starts the
 * new process. *channel_out: this process's end of the socket between both processes; -1 on
 * failure. */
GMB_MUST_CHECK int upgrade_offer(struct control_client *client, int *channel_out);
