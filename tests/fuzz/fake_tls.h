// SPDX-License-Identifier: Apache-2.0
/* What fuzz_session.c knows of the TLS that is none (fake_tls.c). Only constants. */
#pragma once

#include <stdint.h>

enum {
	FAKE_TLS_HELLO = 'T', /* from the client: the whole handshake */
	FAKE_TLS_KEY = 0x5a,  /* what every byte of the server is changed by */
};

/* The same for eight bytes. */
#define FAKE_TLS_KEY_WORD UINT64_C(0x5a5a5a5a5a5a5a5a)
