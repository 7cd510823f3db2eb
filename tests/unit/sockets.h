// SPDX-License-Identifier: Apache-2.0
/* Sockets with descriptors in them, and one that is slow to close. Errors: failed assertions. */
#pragma once

#include <stdbool.h>

/* Returns a socket whose closing waits for an hour for its peer, which reads nothing. */
int lingering_socket(int *peer_out);
/* Sends a text and a descriptor. Returns whether that succeeded. */
bool pass_fd(int socket, int fd, const char *text, int flags);
