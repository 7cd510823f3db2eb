// SPDX-License-Identifier: Apache-2.0
/*
 * Starts the threads of an attachment: signals stay with the main thread, and the stack is small,
 * since all memory of the daemon is locked.
 *
 * Threading: any thread. Ownership: the thread is joined or detached by the caller. Errors:
 * negative errno with a sentence.
 */
#pragma once

#include <pthread.h>

#include "base/error.h"

GMB_MUST_CHECK int thread_start(
	pthread_t *thread, void *(*run)(void *), void *argument, struct error *error);

/* Waits for a thread to end, for at most five seconds: false when it did not. */
GMB_MUST_CHECK bool thread_join_soon(pthread_t thread);
