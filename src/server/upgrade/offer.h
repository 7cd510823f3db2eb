// SPDX-License-Identifier: Apache-2.0
/*
 * The begin of an upgrade (upgrade.h) in the process that is to be replaced: whether what it serves
 * can go to another process, and the offer to whoever starts that process.
 *
 * Threading: the main thread.
 * Errors: a negative errno; where there is a struct error, with a sentence.
 */
#pragma once

#include "control/control.h"
#include "server/upgrade/upgrade.h"

/* 0: everything that is served can be passed. */
GMB_MUST_CHECK int upgrade_offer_check(const struct upgrade_options *options, struct error *error);

/* Whoever has asked starts the new process, with what only this one has. Gives *channel_out, this
 * process's end of the socket between both; -1 on failure. */
GMB_MUST_CHECK int upgrade_offer(struct control_client *client, int *channel_out);
