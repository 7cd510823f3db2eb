// SPDX-License-Identifier: Apache-2.0
/*
 * What servers send in the transmission phase, to commands that the input chooses, compared with a
 * model (tests/unit/nbd_client_trial.h says what must hold):
 *
 *   byte 0	bits 0-1 reply style (modulo 3), bit 2 base:allocation was selected, bit 3 the
 *		requests go out slowly, bit 4 the client asks for the size, bit 5 signs of life, bit
 *6 lent memory byte 1	how the replies are cut into pieces byte 2	number of commands, then 20
 *bytes each: type, flags, cut (2), length (8), offset (8) the rest	the server's bytes; cookies
 *are those of trial_cookie(), the question about the size comes after the commands
 */
#include "fuzz.h"
#include "nbd_client_trial.h"

enum { COMMAND_BYTES = 20, SMALL_BYTES_MAX = 8 << 10, LARGE_BYTES_MAX = 128 << 10 };

static uint64_t number(const uint8_t *bytes, size_t len)
{
	uint64_t value = 0;

	for (size_t i = 0; i < len; i++) {
		value = value << 8 | bytes[i];
	}
	return value;
}

/* Any bytes make a command that a client could send. */
static void make_call(struct trial_call *call, const uint8_t *bytes, enum nbd_reply_style style)
{
	uint64_t length = number(bytes + 4, 8);

	*call = (struct trial_call){
		.type = bytes[0] % (NBD_CMD_BLOCK_STATUS + 1),
		.flags = bytes[1],
		.cut = (uint16_t)number(bytes + 2, 2),
		.offset = number(bytes + 12, 8) % (UINT64_C(1) << 62),
	};
	if (call->type == NBD_CMD_DISC ||
		(call->type == NBD_CMD_BLOCK_STATUS && style == NBD_REPLIES_SIMPLE)) {
		call->type = NBD_CMD_FLUSH;
	}
	if (call->type == NBD_CMD_READ || call->type == NBD_CMD_WRITE) {
		call->length =
			1 + (length - 1) % (call->cut % 8 == 0 ? LARGE_BYTES_MAX : SMALL_BYTES_MAX);
	} else if (call->type == NBD_CMD_FLUSH) {
		call->offset = 0;
	} else {
		call->length = style == NBD_REPLIES_EXTENDED
				       ? 1 + (length - 1) % (UINT64_C(1) << 62)
				       : 1 + (length - 1) % UINT32_MAX;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct trial_way whole = { .split = TRIAL_WHOLE };
	struct trial_way way;
	struct trial_outcome first;
	struct trial_outcome other;
	struct trial trial = { 0 };

	if (size < 3) {
		return 0;
	}
	trial.style = (enum nbd_reply_style)((data[0] & 3) % 3);
	trial.allocation = (data[0] & 4) != 0;
	trial.says_size = (data[0] & 16) != 0;
	trial.says_alive = (data[0] & 32) != 0;
	trial.call_count = data[2] % (TRIAL_CALLS_MAX + 1);
	way = (struct trial_way){
		.split = (enum trial_split)(data[1] % 4),
		.send_slowly = (data[0] & 8) != 0,
		.is_lent = (data[0] & 64) != 0,
		.seed = data[1],
	};
	data += 3;
	size -= 3;
	if (size < trial.call_count * (size_t)COMMAND_BYTES) {
		return 0;
	}
	for (uint32_t i = 0; i < trial.call_count; i++) {
		make_call(&trial.calls[i], data, trial.style);
		data += COMMAND_BYTES;
		size -= COMMAND_BYTES;
	}
	trial.stream = data;
	trial.stream_bytes = size;
	trial_run(&trial, &whole, &first, NULL);
	trial_run(&trial, &way, &other, NULL);
	GMB_ASSERT(first.code == other.code);
	GMB_ASSERT(strcmp(first.error.text, other.error.text) == 0);
	return 0;
}
