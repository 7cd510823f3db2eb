// SPDX-License-Identifier: Apache-2.0
#include "store/flash/gc_policy.h"

#include <math.h>

const struct gc_rule gc_rule_auto = {
	.name = "auto",
	.knows_cache = true,
	.cost_benefit = true,
	.weighs_cold = true,
	.cold_percent = 80,
};

static const uint32_t state_edges[GC_STATE_COUNT] = {
	/* Transitions when a log is opened: to closed by gc_restore(), or to erasing if the
	 * segment contains old data. */
	[GC_FREE] = BIT(GC_OPEN) | BIT(GC_CLOSED) | BIT(GC_ERASING),
	[GC_OPEN] = BIT(GC_CLOSED),
	[GC_CLOSED] = BIT(GC_CANDIDATE),
	[GC_CANDIDATE] = BIT(GC_CLOSED) | BIT(GC_VICTIM),
	[GC_VICTIM] = BIT(GC_CANDIDATE) | BIT(GC_ERASING) | BIT(GC_FREE),
	[GC_ERASING] = BIT(GC_FREE) | BIT(GC_CLOSED), /* CLOSED if the segment cannot be erased */
};

/* Returns the number of blocks that collecting a segment writes to flash in addition to those that
 * will be written in any case. */
static uint32_t net_of(
	const struct gc_rule *rule, const struct gc_table *table, const struct gc_segment *segment)
{
	uint64_t weight = rule->weighs_cold ? table->cold_weight : GC_WEIGHT_ONE;
	uint32_t used = MIN(segment->valid + segment->kept, table->segment_blocks);

	return rule->knows_cache ? used - (uint32_t)(segment->cold_dirty * weight / GC_WEIGHT_ONE)
				 : used;
}

/* Returns the score of a segment with a capacity of `blocks`, from its net cost (at most blocks)
 * and its age, as defined at the head of this file. The highest score is the best victim. Rules
 * without cost_benefit do not use the age. With cost_benefit the score is HUGE_VAL if collection
 * has no net cost. */
static double gc_score(const struct gc_rule *rule, uint32_t blocks, uint32_t net, uint64_t age)
{
	if (!rule->cost_benefit) {
		return -(double)net;
	}
	return net == 0 ? HUGE_VAL : (double)(blocks - net) * (double)age / (2.0 * net);
}

void gc_init(struct gc_table *table, const struct gc_rule *rule, struct gc_segment *segments,
	uint32_t segment_count, uint32_t segment_blocks)
{
	*table = (struct gc_table){
		.rule = rule,
		.segments = segments,
		.segment_count = segment_count,
		.segment_blocks = segment_blocks,
		.cold_weight = GC_WEIGHT_ONE,
		.state_counts = { [GC_FREE] = segment_count },
	};
	for (uint32_t i = 0; i < segment_count; i++) {
		segments[i] = (struct gc_segment){ .state = GC_FREE };
	}
}

static struct gc_segment *segment_at(struct gc_table *table, uint32_t segment)
{
	GMB_ASSERT(segment < table->segment_count);
	return &table->segments[segment];
}

void gc_set_state(struct gc_table *table, uint32_t segment, enum gc_state state)
{
	struct gc_segment *found = segment_at(table, segment);

	GMB_ASSERT(state_edges[found->state] & BIT(state));
	GMB_ASSERT((state != GC_FREE && state != GC_ERASING) ||
		   (found->valid == 0 && found->kept == 0));
	table->state_counts[found->state]--;
	table->state_counts[state]++;
	found->state = state;
	if (state == GC_OPEN) {
		found->stamp = 0;
	}
}

/* The age of a segment is the age of its youngest block. With the average age, more blocks would
 * have to be moved (docs/design/0025). */
void gc_append(struct gc_table *table, uint32_t segment, uint32_t from)
{
	struct gc_segment *found = segment_at(table, segment);
	uint64_t stamp;

	GMB_ASSERT(found->state == GC_OPEN && found->valid < table->segment_blocks);
	found->valid++;
	stamp = from == GC_NO_SEGMENT ? ++table->clock : segment_at(table, from)->stamp;
	found->stamp = MAX(found->stamp, stamp);
}

void gc_dead(struct gc_table *table, uint32_t segment)
{
	struct gc_segment *found = segment_at(table, segment);

	GMB_ASSERT(found->valid > found->cold_dirty);
	found->valid--;
}

void gc_restore(struct gc_table *table, uint32_t segment, uint32_t valid, uint64_t stamp)
{
	struct gc_segment *found = segment_at(table, segment);

	GMB_ASSERT(valid <= table->segment_blocks);
	gc_set_state(table, segment, GC_CLOSED);
	found->valid = valid;
	found->stamp = stamp;
	table->clock = MAX(table->clock, stamp);
}

uint32_t gc_victim(const struct gc_table *table, enum gc_need need)
{
	/* A client waits for a free segment. The fewer blocks are moved, the sooner it gets one.
	 * Writes that the cache would save later do not help this client. */
	static const struct gc_rule space = { .knows_cache = false, .cost_benefit = false };
	const struct gc_rule *rule = need == GC_SPACE ? &space : table->rule;
	uint32_t best = GC_NO_SEGMENT;
	double best_score = 0;

	for (uint32_t i = 0; i < table->segment_count; i++) {
		const struct gc_segment *segment = &table->segments[i];
		uint32_t net = net_of(rule, table, segment);
		double score;

		if (segment->state != GC_CANDIDATE || net == table->segment_blocks) {
			continue;
		}
		score = gc_score(rule, table->segment_blocks, net, table->clock - segment->stamp);
		if (best == GC_NO_SEGMENT || score > best_score ||
			(score == best_score && segment->stamp < table->segments[best].stamp)) {
			best = i;
			best_score = score;
		}
	}
	return best;
}
