// SPDX-License-Identifier: Apache-2.0
/*
 * The journal of a copy that can be continued: a text file that says what is copied where, and up
 * to which byte the target is durable. Every line begins with the CRC-32C of its rest.
 *
 *   9f1c2a03 gmblock copy journal 1
 *   5e70b1d4 source KIND BYTES ID ID ID ID URI-CRC NAME
 *   0c6f2e11 target KIND BYTES ID ID ID ID URI-CRC NAME
 *   77ab90fe options ALLOCATE KNOWN-ZERO
 *   1d33c8a9 durable OFFSET                  appended, each after a flush of the target
 *
 * A last line that is torn (the machine went down while it was written) does not count. Everything
 * else that does not fit is refused: a wrong guess here is a corrupt copy.
 *
 * Threading: one thread; the calls block. Ownership: the file is locked while the journal is open.
 * Errors: a negative errno with a sentence.
 */
#pragma once

#include "tools/copy_end.h"

struct copy_journal {
	char *path;
	int fd; /* -1: there is no journal */
	bool resumed;
	bool target_zero; /* the target was known to read as zeroes when the copy began */
	uint64_t durable; /* every byte of the target below it is */
	uint64_t length;  /* where the next line goes */
};

/*
 * Opens or creates the file and locks it. When it holds a journal, resumed is set, and the copy it
 * speaks of has to be this one: -EINVAL (damaged, or not a journal), -ESTALE (of another copy),
 * -EBUSY (another process has it). path NULL: there is none, and the calls do nothing.
 */
GMB_MUST_CHECK int copy_journal_open(struct copy_journal *journal, const char *path,
	const struct copy_end *source, const struct copy_end *target, bool allocate,
	struct error *error);

/* Writes the head of a new journal, once the target has been prepared and made durable. */
GMB_MUST_CHECK int copy_journal_begin(struct copy_journal *journal, const struct copy_end *source,
	const struct copy_end *target, bool allocate, struct error *error);

/* Records that every byte of the target below offset is durable. */
GMB_MUST_CHECK int copy_journal_record(
	struct copy_journal *journal, uint64_t offset, struct error *error);

/* The copy is complete: removes the file. */
GMB_MUST_CHECK int copy_journal_remove(struct copy_journal *journal, struct error *error);

/* Lets go of the file and leaves it, but for an empty one. */
void copy_journal_close(struct copy_journal *journal);
