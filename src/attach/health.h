// SPDX-License-Identifier: Apache-2.0
/*
 * How the connection to the server is: written by the thread that has it, read by the one that
 * answers "gmblock attach --list".
 *
 * Threading: any thread. Ownership: the text is copied. Errors: none.
 */
#pragma once

#include <pthread.h>

#include "base/compiler.h"

enum { HEALTH_TEXT_BYTES = 256 };

struct health {
	pthread_mutex_t lock;
	bool connected;
	char text[HEALTH_TEXT_BYTES]; /* why not */
};

void health_init(struct health *health);
void health_set(struct health *health, bool connected, const char *text);

/* "connected", or "not connected: " and the reason. Returns out. */
const char *health_describe(struct health *health, char *out, size_t out_bytes);
bool health_is_connected(struct health *health);
