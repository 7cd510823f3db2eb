// SPDX-License-Identifier: Apache-2.0
/*
 * A session kind of the tests: says which user the server takes its peer for ("uid 1000\n"), then
 * does what the peer's first byte asks: 'e' sends everything back, 'd' takes everything and says
 * nothing. It needs no export.
 *
 * Threading and ownership: as struct session_kind. Errors: a peer that says something else is
 * ended.
 */
#pragma once

#include "engine/engine.h"

extern const struct session_kind echo_session_kind;
