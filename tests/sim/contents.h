// SPDX-License-Identifier: Apache-2.0
/*
 * What is on the disks of a scenario: as they are, or, of a flash store, what whoever opens it
 * finds.
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

/* Blocks that the collector of its flash store has moved, asked on the engine that started it; else
 * 0.
 */
uint64_t contents_moved(struct engine *engine, const struct scenario_export *export);

/* After a crash that left this copy of the disk, of that name: all that was said to be durable is
 * there. */
void contents_check_durable(
	const struct scenario_export *export, struct sim_disk *copy, const char *name);
/* The same of all that was answered; the export's store is closed. */
void contents_check_current(const struct scenario_export *export);
