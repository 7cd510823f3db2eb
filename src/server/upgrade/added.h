// SPDX-License-Identifier: Apache-2.0
/*
 * Serializes exports added by a command, and exports of snapshots, for the process that takes over:
 * the strings of the messages ADDED and SNAPSHOT (docs/protocol/upgrade.md).
 *
 * Threading: any thread. Ownership: reading creates an independent export. Errors: an error
 * message.
 */
#pragma once

#include "server/config/config.h"
#include "server/upgrade/wire.h"

/* Writes to out and returns the number of bytes. -E2BIG: the export's keys do not fit into a
 * message. */
GMB_MUST_CHECK int upgrade_added_write(
	const struct server_export *about, char out[UPGRADE_STRINGS_BYTES_MAX]);
/* Parses the strings of a message, which are untrusted. The caller frees *about_out with
 * server_export_fini(). */
GMB_MUST_CHECK int upgrade_added_read(const struct upgrade_message *message,
	struct server_export *about_out, struct error *error);
/* Stores the snapshot's keys in the configuration until the snapshot is served. Takes ownership
 * of *about. */
GMB_MUST_CHECK int upgrade_added_keep_snapshot(
	struct server_config *config, struct server_export *about, struct error *error);
/* Appends the export to the configuration, unless the name is already in use there. Takes ownership
 * of *about. */
GMB_MUST_CHECK int upgrade_added_keep(
	struct server_config *config, struct server_export *about, struct error *error);
