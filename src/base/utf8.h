// SPDX-License-Identifier: Apache-2.0
/*
 * Recognises UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, nothing
 * above U+10FFFF.
 *
 * Threading: pure functions. Ownership: none. Errors: 0 or false.
 */
#pragma once

#include "base/compiler.h"

/* Length of the valid sequence at p (1 to 4 bytes), or 0. left > 0. */
size_t utf8_sequence(const void *p, size_t left);

/* True when all len bytes are whole, valid sequences. Zero bytes are characters here. */
bool utf8_valid(const void *bytes, size_t len);
