// SPDX-License-Identifier: Apache-2.0
/*
 * What is on the disks of a scenario: as they are, or, of a flash store, what whoever opens it
 * finds, with the file of its write cache. That of the disk "name" is in the folder "/name".
 *
 * Threading: one. Ownership: an export's oracle, and the contents it begins with, are made and
 * freed here. Errors: model_fail().
 */
#pragma once

#include "scenario.h"

/* A simulated disk of that name with a flash store in it becomes the export's; its size is drawn.
 */
void contents_make_flash(struct scenario_export *export, const char *disk);

/* The export's oracle starts from what is on its disk now; the one before is destroyed. */
void contents_begin(struct scenario_export *export);
void contents_end(struct scenario_export *export);

/* What its flash store counts by this name, asked on the engine that started it; else 0. */
uint64_t contents_counted(
	struct engine *engine, const struct scenario_export *export, const char *name);

/* The size of its flash store's write cache, and the folder of its file. */
void contents_choose_cache(const struct scenario_export *export, struct store_options *options);
/* Clients hear of what was lost since the first life, and of nothing else; its store was opened. */
void contents_check_epoch(struct scenario_export *export);

/* If the power failed now, all that was said to be durable would be there. If the server were
 * killed, all that was answered would be. */
void contents_crash(const struct scenario *scenario);
/* What the last crash of one of these kinds would have left is the export's disk from now on. */
void contents_go_on(struct scenario_export *export);
/* All that was answered is on the disk; the export's store is closed. */
void contents_check_current(const struct scenario_export *export);
