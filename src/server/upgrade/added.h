// SPDX-License-Identifier: Apache-2.0
/*
 * Exports that a command has added, or that snapshots have, on their way to the process that takes
 * over: the strings of the messages ADDED and SNAPSHOT (docs/protocol/upgrade.md).
 *
 * Threading: any. Ownership: reading makes an export of its own. Errors: a sentence.
 */
#pragma once

#include "server/config/config.h"
#include "server/upgrade/wire.h"

/* In out; returns how many bytes. -E2BIG: its keys do not fit into a message. */
GMB_MUST_CHECK int upgrade_added_write(
	const struct server_export *about, char out[UPGRADE_STRINGS_BYTES_MAX]);
/* *about_out is to be ended with server_export_fini(). The strings are a peer's. */
GMB_MUST_CHECK int upgrade_added_read(const struct upgrade_message *message,
	struct server_export *about_out, struct error *error);
/* Of a snapshot: keeps its keys for when it is served. Takes *about. */
GMB_MUST_CHECK int upgrade_added_keep_snapshot(
	struct server_config *config, struct server_export *about, struct error *error);
/* Appends it to the configuration, which wins when it has the name already. Takes *about. */
GMB_MUST_CHECK int upgrade_added_keep(
	struct server_config *config, struct server_export *about, struct error *error);
