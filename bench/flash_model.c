// SPDX-License-Identifier: Apache-2.0
#include "flash_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum stream { STREAM_HOT, STREAM_COLD, STREAM_META, STREAM_COUNT };

enum {
	NOWHERE = UINT32_MAX,
	VICTIMS_MAX = 4, /* in a row, of each segment */
};

struct open_segment {
	uint32_t segment; /* GC_NO_SEGMENT: none yet */
	uint32_t used_blocks;
	uint32_t record_left; /* blocks that the record has room for */
};

/* A cache of numbered pages: blocks of the disk, or leaves of the map. */
struct pages {
	struct cache_lru lru;
	struct cache_slot *slots;
	uint32_t *page_of_slot;
	uint32_t *slot_of_page;
};

/* The ids of the map's leaves follow those of the blocks. */
struct model {
	struct model_config config;
	struct model_counts counts;
	struct gc_table table;
	struct gc_segment *segments;
	struct open_segment streams[STREAM_COUNT];
	struct pages cache;
	struct pages leaves;
	uint32_t *place_of_id; /* segment * segment_blocks + index, or NOWHERE */
	uint32_t *id_at_place; /* NOWHERE: a header, or never written */
	uint32_t *free_queue;  /* a ring of segment_count */
	uint32_t free_first;
	uint64_t checkpoint_at; /* the log's length at which the next one is due */
	uint64_t log_blocks;
	bool is_collecting;
};

static uint32_t leaf_total(const struct model_config *config)
{
	return (config->blocks + MODEL_LEAF_BLOCKS - 1) / MODEL_LEAF_BLOCKS;
}

static uint32_t id_total(const struct model *model)
{
	return model->config.blocks + leaf_total(&model->config);
}

/* --- pages ------------------------------------------------------------------------------------ */

static bool pages_init(struct pages *pages, struct gc_table *table, uint32_t cold_percent,
	uint32_t slot_count, uint32_t page_count)
{
	pages->slots = calloc(slot_count + 1, sizeof(*pages->slots));
	pages->page_of_slot = calloc(slot_count + 1, sizeof(*pages->page_of_slot));
	pages->slot_of_page = malloc(page_count * sizeof(*pages->slot_of_page));
	if (!pages->slots || !pages->page_of_slot || !pages->slot_of_page) {
		return false;
	}
	for (uint32_t i = 0; i < page_count; i++) {
		pages->slot_of_page[i] = CACHE_NO_SLOT;
	}
	cache_lru_init(&pages->lru, table, cold_percent, pages->slots, slot_count);
	for (uint32_t i = 0; i < slot_count; i++) {
		pages->page_of_slot[i] = NOWHERE;
	}
	return true;
}

static void pages_fini(struct pages *pages)
{
	free(pages->slots);
	free(pages->page_of_slot);
	free(pages->slot_of_page);
}

static void pages_drop(struct pages *pages, uint32_t page)
{
	uint32_t slot = pages->slot_of_page[page];

	if (slot != CACHE_NO_SLOT) {
		cache_lru_set_free(&pages->lru, slot);
		pages->slot_of_page[page] = CACHE_NO_SLOT;
		pages->page_of_slot[slot] = NOWHERE;
	}
}

/* The page becomes the newest dirty one; false: all slots are dirty. */
static bool pages_set_dirty(struct pages *pages, uint32_t page, uint32_t home)
{
	uint32_t slot = pages->slot_of_page[page];

	if (slot != CACHE_NO_SLOT && pages->lru.slots[slot].state != CACHE_CLEAN) {
		cache_lru_touch(&pages->lru, slot);
		return true;
	}
	if (slot != CACHE_NO_SLOT) {
		cache_lru_set_busy(&pages->lru, slot);
	} else {
		slot = cache_lru_take(&pages->lru);
		if (slot == CACHE_NO_SLOT) {
			return false;
		}
		if (pages->page_of_slot[slot] != NOWHERE) {
			pages->slot_of_page[pages->page_of_slot[slot]] = CACHE_NO_SLOT;
		}
		pages->page_of_slot[slot] = page;
		pages->slot_of_page[page] = slot;
	}
	cache_lru_set_dirty(&pages->lru, slot, home);
	return true;
}

/* --- the log ---------------------------------------------------------------------------------- */

static uint32_t segment_of(const struct model *model, uint32_t place)
{
	return place == NOWHERE ? GC_NO_SEGMENT : place / model->config.segment_blocks;
}

static void collect_until_begun(struct model *model);
static void leaf_make_dirty(struct model *model, uint32_t leaf);

static void stream_open(struct model *model, enum stream stream)
{
	struct open_segment *open = &model->streams[stream];

	if (open->segment != GC_NO_SEGMENT) {
		gc_set_state(&model->table, open->segment, GC_CLOSED);
		open->segment = GC_NO_SEGMENT;
	}
	if (!model->is_collecting) {
		collect_until_begun(model);
		if (open->segment != GC_NO_SEGMENT) {
			return; /* a leaf that was moved needed one, too */
		}
	}
	GMB_ASSERT(model->table.state_counts[GC_FREE] > 0);
	open->segment = model->free_queue[model->free_first];
	model->free_first = (model->free_first + 1) % model->table.segment_count;
	gc_set_state(&model->table, open->segment, GC_OPEN);
	open->used_blocks = 0;
	open->record_left = 0;
	for (uint32_t i = 0; i < model->config.segment_blocks; i++) {
		model->id_at_place[open->segment * model->config.segment_blocks + i] = NOWHERE;
	}
}

static void record_begin(struct model *model, enum stream stream)
{
	model->streams[stream].record_left = 0;
}

/* The id's newest version is appended; from as for gc_append(). */
static void append(struct model *model, enum stream stream, uint32_t id, uint32_t from)
{
	struct open_segment *open = &model->streams[stream];
	uint32_t slot = id < model->config.blocks ? model->cache.slot_of_page[id] : CACHE_NO_SLOT;
	uint32_t old;

	while (open->segment == GC_NO_SEGMENT ||
		open->used_blocks + (open->record_left == 0 ? 2 : 1) >
			model->config.segment_blocks) {
		stream_open(model, stream);
	}
	if (open->record_left == 0) {
		open->used_blocks++;
		open->record_left = MODEL_RECORD_BLOCKS;
		model->counts.header++;
		model->log_blocks++;
	}
	/* Opening a segment may have moved the block. */
	old = model->place_of_id[id];
	if (slot != CACHE_NO_SLOT) {
		cache_lru_set_home(&model->cache.lru, slot, GC_NO_SEGMENT);
	}
	if (old != NOWHERE) {
		gc_dead(&model->table, segment_of(model, old));
	}
	gc_append(&model->table, open->segment, from);
	model->place_of_id[id] = open->segment * model->config.segment_blocks + open->used_blocks++;
	model->id_at_place[model->place_of_id[id]] = id;
	open->record_left--;
	model->log_blocks++;
	if (slot != CACHE_NO_SLOT) {
		cache_lru_set_home(&model->cache.lru, slot, open->segment);
	}
	if (id < model->config.blocks) {
		leaf_make_dirty(model, id / MODEL_LEAF_BLOCKS);
	} else {
		model->counts.leaf++;
	}
}

/* --- the map ---------------------------------------------------------------------------------- */

static void leaf_write(struct model *model, uint32_t slot)
{
	uint32_t leaf = model->leaves.page_of_slot[slot];

	/* Clean first: the append may collect a segment, and what that moves changes leaves. */
	cache_lru_set_busy(&model->leaves.lru, slot);
	cache_lru_set_clean(&model->leaves.lru, slot);
	append(model, STREAM_META, model->config.blocks + leaf, GC_NO_SEGMENT);
}

static void leaf_make_dirty(struct model *model, uint32_t leaf)
{
	while (!pages_set_dirty(&model->leaves, leaf, GC_NO_SEGMENT)) {
		leaf_write(model, cache_lru_oldest(&model->leaves.lru));
	}
}

static void checkpoint(struct model *model)
{
	uint32_t slot;

	record_begin(model, STREAM_META);
	while ((slot = cache_lru_oldest(&model->leaves.lru)) != CACHE_NO_SLOT) {
		leaf_write(model, slot);
	}
	for (uint32_t i = 0; i < model->table.segment_count; i++) {
		if (model->segments[i].state == GC_CLOSED) {
			gc_set_state(&model->table, i, GC_CANDIDATE);
		}
	}
	model->counts.checkpoints++;
	model->checkpoint_at = model->log_blocks + (uint64_t)model->config.checkpoint_segments *
							   model->config.segment_blocks;
}

/* --- garbage collection ----------------------------------------------------------------------- */

static void move(struct model *model, uint32_t id, uint32_t victim)
{
	uint32_t slot;

	if (id >= model->config.blocks) {
		slot = model->leaves.slot_of_page[id - model->config.blocks];
		if (slot != CACHE_NO_SLOT && model->leaves.slots[slot].state >= CACHE_HOT) {
			leaf_write(model, slot);
		} else {
			append(model, STREAM_META, id, victim);
		}
		return;
	}
	slot = model->cache.slot_of_page[id];
	switch (cache_lru_gc_way(&model->cache.lru, slot)) {
	case GC_FROM_FLASH:
		append(model, STREAM_COLD, id, victim);
		model->counts.moved++;
		break;
	case GC_FROM_CLEAN_CACHE:
		append(model, STREAM_COLD, id, victim);
		model->counts.moved_from_cache++;
		break;
	case GC_WRITE_BACK:
		cache_lru_write_back(&model->cache.lru, slot);
		append(model, STREAM_COLD, id, victim);
		cache_lru_set_clean(&model->cache.lru, slot);
		model->counts.written_back++;
		break;
	}
}

static void no_space(const struct model *model)
{
	fprintf(stderr,
		"gmblock-flash-trace: a log of %" PRIu32 " segments cannot keep %" PRIu32
		" of them free; give it more --spare\n",
		model->table.segment_count, model->config.begin_segments);
	exit(1);
}

static void collect(struct model *model)
{
	enum gc_need need =
		model->table.state_counts[GC_FREE] < GC_RESERVE_SEGMENTS ? GC_SPACE : GC_CHEAP;
	uint32_t victim = gc_victim(&model->table, need);
	uint32_t begin;

	/* What is dead since the last checkpoint may be the cheapest of all: leaves are, soon. */
	if (victim == GC_NO_SEGMENT || model->table.state_counts[GC_FREE] < 2) {
		checkpoint(model);
		victim = gc_victim(&model->table, need);
	}
	if (victim == GC_NO_SEGMENT) {
		no_space(model);
	}
	gc_set_state(&model->table, victim, GC_VICTIM);
	model->counts.victims++;
	model->counts.victim_valid += model->segments[victim].valid;
	record_begin(model, STREAM_COLD);
	begin = victim * model->config.segment_blocks;
	for (uint32_t place = begin; place < begin + model->config.segment_blocks; place++) {
		uint32_t id = model->id_at_place[place];

		if (id != NOWHERE && model->place_of_id[id] == place) {
			move(model, id, victim);
		}
	}
	model->free_queue[(model->free_first + model->table.state_counts[GC_FREE]) %
			  model->table.segment_count] = victim;
	gc_set_state(&model->table, victim, GC_FREE);
}

/* Until there are as many free segments as there should be when a user's segment is opened. */
static void collect_until_begun(struct model *model)
{
	model->is_collecting = true;
	if (model->log_blocks >= model->checkpoint_at) {
		checkpoint(model);
	}
	for (uint32_t victims = 0;
		model->table.state_counts[GC_FREE] < model->config.begin_segments; victims++) {
		if (victims == VICTIMS_MAX * model->table.segment_count) {
			no_space(model);
		}
		collect(model);
	}
	model->is_collecting = false;
}

/* --- users ------------------------------------------------------------------------------------ */

static void write_slot(struct model *model, uint32_t slot)
{
	cache_lru_set_busy(&model->cache.lru, slot);
	append(model, STREAM_HOT, model->cache.page_of_slot[slot], GC_NO_SEGMENT);
	cache_lru_set_clean(&model->cache.lru, slot);
}

static void evict(struct model *model)
{
	uint32_t slot;

	record_begin(model, STREAM_HOT);
	for (uint32_t i = 0; i < model->config.batch_blocks; i++) {
		slot = cache_lru_oldest(&model->cache.lru);
		if (slot == CACHE_NO_SLOT) {
			break;
		}
		write_slot(model, slot);
		model->counts.evicted++;
	}
}

void model_write(struct model *model, uint32_t block, uint32_t count, bool durable)
{
	bool is_direct =
		durable || model->config.cache_blocks == 0 || count >= model->config.direct_blocks;

	model->counts.user += count;
	if (is_direct) {
		record_begin(model, STREAM_HOT);
	}
	for (uint32_t id = block; id < block + count; id++) {
		if (is_direct) {
			pages_drop(&model->cache, id);
			append(model, STREAM_HOT, id, GC_NO_SEGMENT);
			model->counts.direct++;
			continue;
		}
		while (!pages_set_dirty(
			&model->cache, id, segment_of(model, model->place_of_id[id]))) {
			evict(model);
		}
	}
}

void model_trim(struct model *model, uint32_t block, uint32_t count)
{
	for (uint32_t id = block; id < block + count; id++) {
		pages_drop(&model->cache, id);
		if (model->place_of_id[id] != NOWHERE) {
			gc_dead(&model->table, segment_of(model, model->place_of_id[id]));
			model->place_of_id[id] = NOWHERE;
			leaf_make_dirty(model, id / MODEL_LEAF_BLOCKS);
		}
	}
}

void model_flush(struct model *model)
{
	uint32_t slot;

	record_begin(model, STREAM_HOT);
	while ((slot = cache_lru_oldest(&model->cache.lru)) != CACHE_NO_SLOT) {
		write_slot(model, slot);
		model->counts.flushed++;
	}
}

const struct model_counts *model_counts(const struct model *model)
{
	return &model->counts;
}

uint32_t model_segment_count(const struct model *model)
{
	return model->table.segment_count;
}

/* --- begin and end ---------------------------------------------------------------------------- */

static uint32_t segments_for(const struct model_config *config)
{
	double blocks = ((double)config->blocks + leaf_total(config)) / (1 - config->spare);

	return (uint32_t)(blocks / config->segment_blocks) + 1 + GC_RESERVE_SEGMENTS;
}

static bool model_init(struct model *model)
{
	const struct model_config *config = &model->config;
	uint32_t segments = segments_for(config);
	uint32_t places = segments * config->segment_blocks;

	model->segments = calloc(segments, sizeof(*model->segments));
	model->free_queue = malloc(segments * sizeof(*model->free_queue));
	model->place_of_id = malloc(id_total(model) * sizeof(*model->place_of_id));
	model->id_at_place = malloc(places * sizeof(*model->id_at_place));
	if (!model->segments || !model->free_queue || !model->place_of_id || !model->id_at_place ||
		!pages_init(&model->cache, &model->table, config->cold_percent,
			config->cache_blocks, config->blocks) ||
		!pages_init(&model->leaves, &model->table, 0,
			MIN(config->leaf_count, leaf_total(config)), leaf_total(config))) {
		return false;
	}
	gc_init(&model->table, gc_rules[config->policy], model->segments, segments,
		config->segment_blocks);
	if (config->begin_segments == 0) {
		model->config.begin_segments =
			gc_begin_segments(&model->table, GC_RESERVE_SEGMENTS);
	}
	for (uint32_t i = 0; i < segments; i++) {
		model->free_queue[i] = i;
	}
	for (uint32_t i = 0; i < id_total(model); i++) {
		model->place_of_id[i] = NOWHERE;
	}
	for (uint32_t i = 0; i < STREAM_COUNT; i++) {
		model->streams[i].segment = GC_NO_SEGMENT;
	}
	checkpoint(model);
	for (uint32_t id = 0; id < config->blocks; id++) {
		append(model, STREAM_HOT, id, GC_NO_SEGMENT);
	}
	return true;
}

struct model *model_create(const struct model_config *config)
{
	struct model *model = calloc(1, sizeof(*model));

	if (model != NULL) {
		model->config = *config;
		if (!model_init(model)) {
			model_destroy(model);
			model = NULL;
		}
	}
	return model;
}

void model_destroy(struct model *model)
{
	if (model != NULL) {
		pages_fini(&model->cache);
		pages_fini(&model->leaves);
		free(model->segments);
		free(model->free_queue);
		free(model->place_of_id);
		free(model->id_at_place);
		free(model);
	}
}

void model_verify(const struct model *model)
{
	for (uint32_t segment = 0; segment < model->table.segment_count; segment++) {
		uint32_t begin = segment * model->config.segment_blocks;
		uint32_t valid = 0;
		uint32_t cold_dirty = 0;

		for (uint32_t i = 0; i < model->config.segment_blocks; i++) {
			uint32_t id = model->id_at_place[begin + i];
			uint32_t slot;

			if (model->segments[segment].state == GC_FREE || id == NOWHERE ||
				model->place_of_id[id] != begin + i) {
				continue;
			}
			valid++;
			slot = id < model->config.blocks ? model->cache.slot_of_page[id]
							 : CACHE_NO_SLOT;
			cold_dirty += slot != CACHE_NO_SLOT &&
				      model->cache.slots[slot].state == CACHE_COLD;
		}
		GMB_ASSERT(valid == model->segments[segment].valid);
		GMB_ASSERT(cold_dirty == model->segments[segment].cold_dirty);
	}
}
