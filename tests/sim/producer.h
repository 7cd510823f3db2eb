// SPDX-License-Identifier: Apache-2.0
/*
 * A store of ill will around a good one: what is read arrives late, piece by piece, over the bytes
 * of somebody else; it is told of rightly or not, stalls, or fails after it was told of.
 *
 *   path ──▶ producer ──▶ memory of its own ◀── the store below
 *     ▲          └── copies so much, tells so much, waits, and perhaps lies ──┐
 *     └── store_progress, store_finish ◀──────────────────────────────────────┘
 *
 * Threading: one. Ownership: producer_open() takes the store below. Errors: none; each lie and each
 * failure of its own is told to blame.c, so that a reply must have it.
 */
#pragma once

#include "scenario.h"

/* lies: now and then what it tells is impossible, or it fails in the middle. */
struct store *producer_open(
	struct scenario *scenario, struct scenario_export *export, struct store *inner, bool lies);
