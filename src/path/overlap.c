// SPDX-License-Identifier: Apache-2.0
#include "path/overlap.h"

/* Processor time of one more part on both sides: submission, completion, header, place in a send.
 * See docs/design/0008. */
#define PART_COST_NS UINT64_C(16000)
#define SECOND_NS    UINT64_C(1000000000)
/* The disk's rate is looked at after so long at the latest. */
#define BUSY_NS_MAX UINT64_C(10000000)

enum {
	AVERAGE_SHIFT = 3,	   /* a new value counts an eighth */
	BUSY_BYTES_MIN = 64 << 10, /* less says nothing about a rate */
	EARLY_MIN = OVERLAP_EARLY_ONE / 16,
	GAIN_MIN = 2, /* times the cost */
	TRY_EVERY = 64,
	CONTROL_SUSPICIOUS_EVERY = 8,
	CONTROL_EVERY = 256,
};

void overlap_init(struct overlap *overlap)
{
	*overlap = (struct overlap){ .early = OVERLAP_EARLY_ONE / 2 };
}

static uint64_t average(uint64_t old, uint64_t new)
{
	if (old == 0) {
		return new;
	}
	return old - (old >> AVERAGE_SHIFT) + (new >> AVERAGE_SHIFT);
}

/* The power of two that is nearest to sqrt(bytes * cost * rate), within bounds. */
static uint32_t best(uint64_t bytes, uint64_t rate)
{
	/* In units of 1 KiB each, so that the product fits. */
	uint64_t square = (bytes >> 10) * (rate >> 10) / (SECOND_NS / PART_COST_NS);
	uint64_t part_size = OVERLAP_BYTES_MIN >> 10;

	while (part_size < OVERLAP_BYTES_MAX >> 10 && 2 * part_size * part_size < square) {
		part_size *= 2;
	}
	return (uint32_t)part_size << 10;
}

/* True when parts of so many bytes bring clearly more than they cost. What they bring is the time
 * of all parts but one at the faster end; of which others in flight have taken their share already.
 */
static bool pays(const struct overlap *overlap, uint64_t length, uint32_t bytes, uint64_t rate)
{
	uint64_t more_ns = (length - 1) / bytes * PART_COST_NS;
	uint64_t gain_bytes;

	if (rate == 0 || bytes >= length) {
		return false;
	}
	gain_bytes = (length - bytes) * (length >> 10) / (overlap->request_bytes >> 10);
	return (rate >> 10) * GAIN_MIN * more_ns / SECOND_NS <= gain_bytes >> 10;
}

/* Parts come all at the end, or cost clearly more time than whole requests do. (Of those a part of
 * the time is not seen: what the network still carries when the socket has taken all.) */
static bool is_harmful(const struct overlap *overlap)
{
	return overlap->early < EARLY_MIN ||
	       (overlap->cut_rate > 0 && overlap->cut_rate / 4 * 5 < overlap->whole_rate);
}

/* Now and then a request is left whole all the same, to compare with: some of the first, later
 * seldom, but often while it looks as if that were better. */
static bool is_control(const struct overlap *overlap)
{
	bool suspicious = overlap->cut_rate / 9 * 10 < overlap->whole_rate;

	return overlap->cuts == 2 || overlap->cuts == 4 || overlap->cuts % CONTROL_EVERY == 0 ||
	       (suspicious && overlap->cuts % CONTROL_SUSPICIOUS_EVERY == 0);
}

uint32_t overlap_choose(struct overlap *overlap, uint64_t length, uint32_t chunk, uint32_t members)
{
	uint64_t rate = MAX(overlap->disk_rate, overlap->network_rate);
	uint32_t bytes = best(overlap->request_bytes, rate);

	/* Members with less than a part each are busy with one part together. */
	if (chunk >= OVERLAP_BYTES_MIN) {
		uint64_t together = bytes;

		members = (uint32_t)MIN((length - 1) / chunk + 1, (uint64_t)members);
		while (bytes > OVERLAP_BYTES_MIN && (uint64_t)bytes * members > together) {
			bytes /= 2;
		}
		bytes = MIN(bytes, chunk);
	}
	if (!pays(overlap, length, bytes, rate)) {
		return OVERLAP_BYTES_MAX;
	}
	if (is_harmful(overlap) && ++overlap->since_try < TRY_EVERY) {
		return OVERLAP_BYTES_MAX;
	}
	overlap->since_try = 0;
	overlap->cuts++;
	if (is_control(overlap)) {
		return OVERLAP_BYTES_MAX;
	}
	overlap->chosen = bytes;
	return bytes;
}

void overlap_learn_request(struct overlap *overlap, uint64_t bytes, uint64_t took_ns, bool cut)
{
	/* In KiB and 1024 ns: it fits, and a request takes more than that. */
	uint64_t rate = (bytes >> 10) * (SECOND_NS >> 10) / MAX(took_ns >> 10, UINT64_C(1)) << 10;

	if (cut) {
		overlap->cut_rate = average(overlap->cut_rate, rate);
	} else {
		overlap->whole_rate = average(overlap->whole_rate, rate);
	}
}

/* --- the disk ------------------------------------------------------------------------------ */

static void busy_end(struct overlap *overlap, uint64_t now_ns)
{
	uint64_t busy_ns = now_ns - overlap->busy_since_ns;

	if (overlap->busy_bytes >= BUSY_BYTES_MIN && busy_ns > 0) {
		/* At most a few GiB in a hundredth of a second: in KiB it fits. */
		uint64_t rate = (overlap->busy_bytes >> 10) * SECOND_NS / busy_ns << 10;

		overlap->disk_rate = average(overlap->disk_rate, rate);
	}
	overlap->busy_since_ns = now_ns;
	overlap->busy_bytes = 0;
}

void overlap_disk_begin(struct overlap *overlap, uint64_t now_ns)
{
	if (overlap->inflight++ == 0) {
		overlap->busy_since_ns = now_ns;
		overlap->busy_bytes = 0;
	}
}

void overlap_disk_end(struct overlap *overlap, uint64_t bytes, uint64_t now_ns)
{
	GMB_ASSERT(overlap->inflight > 0);
	overlap->busy_bytes += bytes;
	if (--overlap->inflight == 0 || now_ns - overlap->busy_since_ns >= BUSY_NS_MAX) {
		busy_end(overlap, now_ns);
	}
}

void overlap_learn_early(struct overlap *overlap, uint64_t mean_ns, uint64_t whole_ns)
{
	uint64_t early = 0;

	if (whole_ns > 0 && mean_ns < whole_ns) {
		early = (whole_ns - mean_ns) * OVERLAP_EARLY_ONE / whole_ns;
	}
	overlap->early_measured = true;
	/* Not average(): nothing is a measurement, too. */
	overlap->early =
		(overlap->early * ((1 << AVERAGE_SHIFT) - 1) + (uint32_t)early) >> AVERAGE_SHIFT;
}

void overlap_learn_network(struct overlap *overlap, uint64_t bytes, uint64_t busy_ns)
{
	/* In KiB, and milliseconds at least: it fits. */
	overlap->network_rate = average(
		overlap->network_rate, ((bytes >> 10) * (SECOND_NS >> 10) / (busy_ns >> 10)) << 10);
}
