// SPDX-License-Identifier: Apache-2.0
#include "engine/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Maximum length of a clone, zero or range piece, so that other sessions are served in between.
 * With a rate limit, zero and range pieces are shorter, because a long piece would book the rate
 * far into the future. */
#define STEP_BYTES_MAX	    (UINT64_C(64) << 20)
#define STEP_BYTES_MAX_RATE (UINT64_C(2) << 20)
/* Maximum range of the source in one block map request. */
#define MAP_BYTES_MAX (UINT64_C(1) << 30)

/* Number of extents in the block map of a copy that has little memory. */
enum { EXTENTS_FEW = 8 };

_Static_assert(STEP_BYTES_MAX <= STORE_COPY_BYTES_MAX, "the store accepts a step as one part");

enum piece_state {
	PIECE_IDLE,
	PIECE_READING,	/* reading from the source; no data is being written at the moment */
	PIECE_WRITING,	/* writing the data that was read last to the target */
	PIECE_CHANGING, /* changing the target in one step: zero, clone, range */
	PIECE_STATE_COUNT
};

static const uint32_t piece_edges[PIECE_STATE_COUNT] = {
	[PIECE_IDLE] = BIT(PIECE_READING) | BIT(PIECE_CHANGING),
	[PIECE_READING] = BIT(PIECE_WRITING) | BIT(PIECE_IDLE),
	[PIECE_WRITING] = BIT(PIECE_READING),
	[PIECE_CHANGING] = BIT(PIECE_IDLE),
};

/* The current work of a piece. Offsets are relative to the beginning of the copy. */
struct step {
	enum store_op op; /* STORE_READ: reads from the source and writes to the target */
	enum store_copy_way way;
	uint64_t begin;
	uint64_t bytes;
};

struct piece {
	struct list_node node; /* in copy->idle or copy->busy */
	struct session_copy *copy;
	enum piece_state state;
	struct step step;
	enum copy_method method;
	uint64_t written; /* number of bytes of the step that have been written */
	struct path_request read;
	struct path_request change;
	struct path_fragment fragment; /* valid in state PIECE_WRITING */
	struct mem_segment segment;    /* the fragment's memory */
};

/* Optional memory for more pieces and a larger block map. */
struct copy_room {
	struct store_extent extents[COPY_EXTENTS];
	struct piece pieces[COPY_PIECES - 1];
};

_Static_assert(sizeof(struct copy_room) <= 16 << 10, "the struct must fit into its block");

struct session_copy {
	struct session *session;
	/* the source; the export's entry stays in use until the copy ends */
	struct engine_export *source;
	struct session_copy_options options;
	uint64_t at; /* offset at which the next piece starts */
	/* offset of the first range that could not be copied; options.length if there is none */
	uint64_t held;
	int error;
	bool abandoned;
	bool is_done;		/* options.done() was called */
	uint32_t rights_serial; /* engine->rights_serial when rights were last checked */
	uint32_t ways;
	uint64_t clone_align;
	uint64_t bytes[COPY_METHOD_COUNT];

	/* The source's block map: extents without gaps from map_begin to map_end. */
	struct path_request map;
	bool mapping;
	bool no_map; /* there is no map: everything counts as data */
	uint64_t map_begin;
	uint64_t map_end;
	uint32_t extent_max;
	uint32_t extent_count;
	struct store_extent *extents;

	/* Members of the rate queues of the source (reads) and the target (writes); both are also
	 * in the identity's queue. */
	struct rate_member reads;
	struct rate_member writes;
	bool reads_granted; /* the rates have admitted the reads of the next piece */

	struct list_node idle;
	struct list_node busy;
	/* the piece that is a running clone or range, or NULL; no other piece starts until it ends
	 */
	struct piece *serial;
	struct arena_buf room;
	/* Used if `room` could not be allocated. */
	struct piece first;
	struct store_extent few[EXTENTS_FEW];
};

static void engine_copy_advance(struct session_copy *copy);

static void engine_copy_set_state(struct piece *piece, enum piece_state state)
{
	GMB_ASSERT((piece_edges[piece->state] & BIT(state)) != 0);
	piece->state = state;
}

static bool is_stopped(const struct session_copy *copy)
{
	return copy->error != 0 || copy->abandoned;
}

bool session_copy_is_idle(const struct session_copy *copy)
{
	return list_is_empty(&copy->busy) && !copy->mapping;
}

/* --- the end of a piece ------------------------------------------------------------------------
 */

static void engine_copy_fail(struct session_copy *copy, int error, uint64_t at)
{
	if (copy->error == 0) {
		copy->error = error;
	}
	copy->held = MIN(copy->held, at);
	rate_give_up(&copy->reads);
	rate_give_up(&copy->writes);
}

static void engine_copy_count(struct session_copy *copy, const struct piece *piece)
{
	copy->bytes[piece->method] += piece->step.bytes;
	copy->session->engine->counters.bytes_copied[piece->method] += piece->step.bytes;
}

static void piece_end(struct piece *piece, int error)
{
	struct session_copy *copy = piece->copy;

	engine_copy_set_state(piece, PIECE_IDLE);
	list_remove(&piece->node);
	list_push_front(&copy->idle, &piece->node);
	if (copy->serial == piece) {
		copy->serial = NULL;
	}
	if (error == -EOPNOTSUPP && piece->step.op == STORE_COPY) {
		copy->ways &= ~(uint32_t)piece->step.way;
		copy->at = piece->step.begin; /* copy the range again, with another method */
	} else if (error != 0) {
		engine_copy_fail(copy, error, piece->step.begin);
	} else {
		engine_copy_count(copy, piece);
	}
}

/* --- read and write -------------------------------------------------------------------------- */

static void piece_look(struct piece *piece);

/* Returns the rights that the memory of a piece needs. MEM_CPU_READ is left out if only the disks
 * access the memory, so that the target's disk can write directly from device memory. */
static uint32_t memory_rights(const struct session_copy *copy, const struct step *step)
{
	const struct path_export *target = copy->session->path_export;
	const struct store_info *info = store_info(target->store);
	bool direct =
		store_info(copy->source->path.store)->read_direct && info->write_direct &&
		target->device_error == 0 &&
		is_aligned((copy->options.offset + step->begin) | step->bytes, info->offset_align);

	return store_rights(target->store, STORE_WRITE) | (direct ? 0 : (uint32_t)MEM_CPU_READ);
}

static void engine_copy_request_begin(const struct session_copy *copy, struct path_request *request,
	struct path_export *export, enum store_op op)
{
	request->client = &copy->session->client;
	request->op = op;
	request->flags = 0;
	request->requester = copy->session->peer.id;
	request->extent_max = copy->extent_max;
	request->window_bytes = PATH_WINDOW_BYTES;
	request->ascending = false;
	request->whole = false;
	request->internal = true;
	request->memory_rights = 0;
	request->placement = NULL;
	request->placement_count = 0;
	request->export = export;
}

/* Releases the memory of a fragment that was written, and continues the piece. */
static void written(struct piece *piece)
{
	engine_copy_set_state(piece, PIECE_READING);
	piece->written += piece->fragment.length;
	if (is_stopped(piece->copy)) {
		(void)path_abandon(&piece->read); /* the rest is not needed any more */
	}
	path_fragment_sent(&piece->fragment);
	piece_look(piece);
}

static void write_progress(struct path_request *request)
{
	struct piece *piece = container_of(request, struct piece, change);
	struct session_copy *copy = piece->copy;
	int error;

	if (!path_is_idle(request) ||
		(path_status(request) == PATH_PENDING && !request->abandoned)) {
		return;
	}
	error = request->error;
	if (error == -EOPNOTSUPP && request->op == STORE_COPY) {
		/* not a failure: the piece is copied again with another method */
		(void)path_abandon(request);
	}
	path_finish(request);
	if (piece->state == PIECE_WRITING) {
		if (error != 0) {
			engine_copy_fail(copy, error, piece->step.begin);
		}
		written(piece);
	} else {
		piece_end(piece, error != 0 || !request->abandoned ? error : -ECANCELED);
	}
	engine_copy_advance(copy);
}

static void write_fragment(struct piece *piece)
{
	struct session_copy *copy = piece->copy;
	struct path_request *change = &piece->change;
	struct path_export *target = copy->session->path_export;
	/* The target's store gets no CPU access to this memory, unless it needs that. Without CPU
	 * access, it writes a block that is not aligned in memory through the page cache. With CPU
	 * access it would copy the block to other memory, and could wait for that memory while this
	 * piece holds some. */
	uint32_t rights = store_rights(target->store, STORE_WRITE) | ~(uint32_t)MEM_CPU;

	piece->method = mem_may(piece->fragment.memory, MEM_CPU_READ) ? COPY_RAM : COPY_DEVICE;
	piece->segment = (struct mem_segment){
		.memory = mem_limit(piece->fragment.memory, rights),
		.bytes = piece->fragment.length,
	};
	engine_copy_request_begin(copy, change, target, STORE_WRITE);
	change->flags = copy->options.flags;
	change->offset =
		copy->options.offset + (piece->fragment.offset - copy->options.source_offset);
	change->length = piece->fragment.length;
	change->placement = &piece->segment;
	change->placement_count = 1;
	change->progress = write_progress;
	engine_copy_set_state(piece, PIECE_WRITING);
	path_start(copy->session->engine->path, change);
	/* path_start() keeps the placement only if the target's store can use the memory. It can,
	 * because the read has asked for memory with memory_rights(). */
	GMB_ASSERT(change->placement != NULL);
}

/* Called in state PIECE_READING: writes the next fragment that was read, or ends the piece. */
static void piece_look(struct piece *piece)
{
	struct path_request *read = &piece->read;
	struct session_copy *copy = piece->copy;

	if (is_stopped(copy)) {
		if (path_abandon(read)) {
			path_finish(read);
			piece_end(piece, copy->error != 0 ? copy->error : -ECANCELED);
		}
	} else if (path_next_fragment(read, UINT32_MAX, &piece->fragment)) {
		write_fragment(piece);
	} else if (path_status(read) == PATH_ABORTED) {
		int error = read->error;

		path_finish(read);
		piece_end(piece, error);
	} else if (path_status(read) == PATH_COMMITTED && piece->written == piece->step.bytes) {
		path_finish(read);
		piece_end(piece, 0);
	}
}

static void engine_copy_read_progress(struct path_request *request)
{
	struct piece *piece = container_of(request, struct piece, read);
	struct session_copy *copy = piece->copy;

	/* in PIECE_WRITING, written() calls this function again */
	if (piece->state == PIECE_READING) {
		piece_look(piece);
		engine_copy_advance(copy);
	}
}

/* --- block map of the source ----------------------------------------------------------------- */

static void engine_copy_map_progress(struct path_request *map)
{
	struct session_copy *copy = container_of(map, struct session_copy, map);

	if (path_status(map) == PATH_PENDING && !(map->abandoned && path_is_idle(map))) {
		return;
	}
	copy->mapping = false;
	if (map->error != 0) {
		/* Only the map is lost, and the copy works without one. If the disk has failed, the
		 * read of the range reports it. */
		copy->no_map = true;
	} else if (!map->abandoned) {
		copy->extent_count = map->extent_count;
		memcpy(copy->extents, map->extents, map->extent_count * sizeof(copy->extents[0]));
		copy->map_begin = map->offset - copy->options.source_offset;
		copy->map_end = copy->map_begin;
		for (uint32_t i = 0; i < copy->extent_count; i++) {
			copy->map_end += copy->extents[i].length;
		}
	}
	path_finish(map);
	engine_copy_advance(copy);
}

static void engine_copy_map_ask(struct session_copy *copy)
{
	struct path_request *map = &copy->map;

	engine_copy_request_begin(copy, map, &copy->source->path, STORE_EXTENTS);
	map->offset = copy->options.source_offset + copy->at;
	map->length = MIN(copy->options.length - copy->at, MAP_BYTES_MAX);
	map->progress = engine_copy_map_progress;
	copy->mapping = true;
	path_start(copy->session->engine->path, map);
}

/* Finds out whether zeroes or data follow at copy->at, and how many bytes. If the block map must be
 * read first, starts that read and returns false. */
static bool map_look(struct session_copy *copy, bool *zeroes, uint64_t *bytes)
{
	uint64_t end = copy->map_begin;

	*zeroes = false;
	*bytes = copy->options.length - copy->at;
	if (copy->no_map) {
		return true;
	}
	if (copy->at < copy->map_begin || copy->at >= copy->map_end) {
		engine_copy_map_ask(copy);
		return false;
	}
	for (uint32_t i = 0; i < copy->extent_count; i++) {
		end += copy->extents[i].length;
		if (copy->at < end) {
			*zeroes = (copy->extents[i].flags & STORE_EXTENT_ZERO) != 0;
			*bytes = MIN(*bytes, end - copy->at);
			break;
		}
	}
	return true;
}

/* --- the next piece -------------------------------------------------------------------------- */

static bool may_clone(const struct session_copy *copy)
{
	const struct session_copy_options *options = &copy->options;

	return (copy->ways & STORE_COPY_CLONE) != 0 &&
	       options->length - copy->at >= copy->clone_align &&
	       is_aligned((options->source_offset + copy->at) | (options->offset + copy->at),
		       copy->clone_align);
}

static uint64_t step_bytes_max(const struct session_copy *copy)
{
	return rate_is_limited(&copy->reads) || rate_is_limited(&copy->writes) ? STEP_BYTES_MAX_RATE
									       : STEP_BYTES_MAX;
}

/* Chooses the next step. Returns false if the map must be read first. */
static bool engine_copy_choose(struct session_copy *copy, struct step *step)
{
	bool zeroes;
	uint64_t left;

	step->begin = copy->at;
	if (may_clone(copy)) {
		step->op = STORE_COPY;
		step->way = STORE_COPY_CLONE;
		step->bytes = MIN(align_down(copy->options.length - copy->at, copy->clone_align),
			STEP_BYTES_MAX);
		return true;
	}
	if (!map_look(copy, &zeroes, &left)) {
		return false;
	}
	if (zeroes) {
		step->op = STORE_ZERO;
		step->bytes = MIN(left, step_bytes_max(copy));
	} else if ((copy->ways & STORE_COPY_RANGE) != 0) {
		step->op = STORE_COPY;
		step->way = STORE_COPY_RANGE;
		step->bytes = MIN(left, step_bytes_max(copy));
	} else {
		uint64_t offset = copy->options.source_offset + copy->at;

		step->op = STORE_READ;
		step->bytes =
			MIN(left, align_down(offset, COPY_PIECE_BYTES) + COPY_PIECE_BYTES - offset);
	}
	return true;
}

static bool may_move(struct rate_member *member, uint64_t bytes)
{
	if (!rate_is_limited(member)) {
		return true;
	}
	if (!rate_ask(member, bytes)) {
		return false;
	}
	rate_begun(member);
	return true;
}

/* Returns whether the rates admit the step. If not, engine_copy_advance() is called later. */
static bool has_turn(struct session_copy *copy, const struct step *step)
{
	bool moves =
		step->op == STORE_READ || (step->op == STORE_COPY && step->way == STORE_COPY_RANGE);
	uint64_t written = moves ? step->bytes
			   : step->op == STORE_ZERO
				   ? engine_request_bytes(copy->session, STORE_ZERO, 0,
					     copy->options.offset + step->begin, step->bytes)
				   : 0;

	if (!copy->reads_granted && moves && !may_move(&copy->reads, step->bytes)) {
		return false;
	}
	copy->reads_granted = true;
	if (written > 0 && !may_move(&copy->writes, written)) {
		return false;
	}
	copy->reads_granted = false;
	return true;
}

static void begin(struct session_copy *copy, const struct step *step)
{
	struct piece *piece = list_entry(list_pop_front(&copy->idle), struct piece, node);
	struct path *path = copy->session->engine->path;
	struct path_request *change = &piece->change;

	list_push_back(&copy->busy, &piece->node);
	piece->step = *step;
	piece->written = 0;
	copy->at = step->begin + step->bytes;
	if (step->op == STORE_READ) {
		engine_copy_request_begin(copy, &piece->read, &copy->source->path, STORE_READ);
		piece->read.memory_rights = memory_rights(copy, step);
		/* A window of 1 byte has two effects: only one part of the read is in memory at a
		 * time, and the read is never served from the page cache, because it is longer than
		 * its window. */
		piece->read.window_bytes = 1;
		piece->read.offset = copy->options.source_offset + step->begin;
		piece->read.length = step->bytes;
		piece->read.progress = engine_copy_read_progress;
		engine_copy_set_state(piece, PIECE_READING);
		path_start(path, &piece->read);
		return;
	}
	engine_copy_request_begin(copy, change, copy->session->path_export, step->op);
	change->flags = copy->options.flags;
	change->offset = copy->options.offset + step->begin;
	change->length = step->bytes;
	change->progress = write_progress;
	piece->method = COPY_ZEROES;
	if (step->op == STORE_COPY) {
		change->copy = (struct store_copy){ .source = copy->source->path.store,
			.offset = copy->options.source_offset + step->begin,
			.way = step->way };
		piece->method = step->way == STORE_COPY_CLONE ? COPY_REFLINK : COPY_RANGE;
		copy->serial = piece;
	}
	engine_copy_set_state(piece, PIECE_CHANGING);
	path_start(path, change);
}

/* Called when the copy stops: abandons the reads in progress. Pieces that are being written are not
 * affected. */
static void stop_reading(struct session_copy *copy)
{
	list_for_each(node, &copy->busy)
	{
		struct piece *piece = list_entry(node, struct piece, node);

		if (piece->state == PIECE_READING) {
			piece_look(piece);
		}
	}
}

/* Returns 0, or the error with which the copy must stop. A copy can take long, so it checks
 * regularly that its session still has the required rights. */
static int may_go_on(struct session_copy *copy)
{
	const struct session *session = copy->session;
	struct engine *engine = session->engine;

	if (session->stopping) {
		return -ESHUTDOWN;
	}
	if (copy->source->removed) {
		return -ENOENT;
	}
	if (likely(copy->rights_serial == engine->rights_serial)) {
		return 0;
	}
	copy->rights_serial = engine->rights_serial;
	if ((engine_rights(session, copy->source->export) & ENGINE_RIGHT_READ) == 0) {
		return -ENOENT;
	}
	return (session->rights & ENGINE_RIGHT_WRITE) == 0 ? -EPERM : 0;
}

/* Starts all pieces that can start, or calls done if the copy has ended. */
static void engine_copy_advance(struct session_copy *copy)
{
	struct step step;

	if (!is_stopped(copy) && copy->at < copy->options.length) {
		int error = may_go_on(copy);

		if (error != 0) {
			engine_copy_fail(copy, error, copy->at);
		}
	}
	if (is_stopped(copy)) {
		stop_reading(copy);
	}
	while (!is_stopped(copy) && copy->at < copy->options.length && copy->serial == NULL &&
		!copy->mapping && !list_is_empty(&copy->idle) && !rate_waits(&copy->reads) &&
		!rate_waits(&copy->writes)) {
		if (!engine_copy_choose(copy, &step) || !has_turn(copy, &step)) {
			break;
		}
		begin(copy, &step);
	}
	if (session_copy_is_idle(copy) && !copy->is_done &&
		(is_stopped(copy) || copy->at == copy->options.length)) {
		copy->is_done = true;
		copy->options.done(copy->options.context);
	}
}

static void reads_ready(struct rate_member *member)
{
	engine_copy_advance(container_of(member, struct session_copy, reads));
}

static void writes_ready(struct rate_member *member)
{
	engine_copy_advance(container_of(member, struct session_copy, writes));
}

/* --- creation and end ------------------------------------------------------------------------ */

static int engine_copy_join_rates(struct session_copy *copy)
{
	struct session *session = copy->session;
	struct engine_identity *identity = session->of_identity;
	int rc = rate_join(&copy->reads, RATE_EXPORT, &copy->source->rate, session->of_peer);

	if (rc == 0) {
		rc = rate_join(
			&copy->writes, RATE_EXPORT, &session->chosen->rate, session->of_peer);
	}
	if (rc == 0 && identity != NULL) {
		rc = rate_join(&copy->reads, RATE_IDENTITY, &identity->rate, session->of_peer);
	}
	if (rc == 0 && identity != NULL) {
		rc = rate_join(&copy->writes, RATE_IDENTITY, &identity->rate, session->of_peer);
	}
	return rc;
}

/* Allocates memory for more pieces and a larger block map, if it is available. */
static void take_room(struct session_copy *copy)
{
	struct copy_room *room;

	copy->extents = copy->few;
	copy->extent_max = EXTENTS_FEW;
	copy->first.copy = copy;
	list_push_back(&copy->idle, &copy->first.node);
	if (path_client_get(&copy->session->client, sizeof(*room), &copy->room) != 0) {
		return;
	}
	room = (struct copy_room *)(void *)mem_cpu_write(copy->room.memory);
	memset(room, 0, sizeof(*room));
	copy->extents = room->extents;
	copy->extent_max = COPY_EXTENTS;
	for (uint32_t i = 0; i < COPY_PIECES - 1; i++) {
		room->pieces[i].copy = copy;
		list_push_back(&copy->idle, &room->pieces[i].node);
	}
}

static bool engine_copy_overlaps(struct session *session, struct engine_export *source,
	const struct session_copy_options *options)
{
	struct store_place from;
	struct store_place to;
	uint64_t distance = options->offset > options->source_offset
				    ? options->offset - options->source_offset
				    : options->source_offset - options->offset;

	if (source == session->chosen) {
		return distance < options->length;
	}
	if (!store_place(source->export->store, &from) ||
		!store_place(session->chosen->export->store, &to)) {
		return false;
	}
	from.at += options->source_offset;
	to.at += options->offset;
	return store_places_meet(&from, &to, options->length);
}

static int engine_copy_check(struct session *session, const struct session_copy_options *options,
	struct engine_export **source_out, const char **text)
{
	struct engine_export *source =
		session_export_find(session, options->source_name, options->source_name_bytes);

	if (source == NULL || (engine_rights(session, source->export) & ENGINE_RIGHT_READ) == 0) {
		*text = "the source export does not exist";
		return -ENOENT;
	}
	if (source->export->epoch != options->source_epoch) {
		*text = "the source export may have lost writes";
		return -ESTALE;
	}
	if (!range_inside(
		    options->source_offset, options->length, store_size(source->export->store))) {
		*text = "the range extends past the end of the source export";
		return -EINVAL;
	}
	if (engine_copy_overlaps(session, source, options)) {
		*text = "the ranges overlap on the same disk";
		return -EINVAL;
	}
	*source_out = source;
	return 0;
}

int session_copy_start(struct session *session, const struct session_copy_options *options,
	struct session_copy **copy_out, const char **text)
{
	struct engine_export *source;
	struct session_copy *copy;
	int rc = engine_copy_check(session, options, &source, text);

	if (rc != 0) {
		return rc;
	}
	copy = calloc(1, sizeof(*copy));
	if (copy == NULL) {
		*text = "the server is out of memory";
		return -ENOMEM;
	}
	copy->session = session;
	copy->source = source;
	copy->options = *options;
	copy->held = options->length;
	copy->ways = store_copy_ways(
		session->path_export->store, source->path.store, &copy->clone_align);
	copy->no_map = (store_info(source->path.store)->caps & STORE_CAP_EXTENTS) == 0;
	list_init(&copy->idle);
	list_init(&copy->busy);
	copy->rights_serial = session->engine->rights_serial;
	take_room(copy);
	rate_member_init(&copy->reads, reads_ready);
	rate_member_init(&copy->writes, writes_ready);
	source->session_count++;
	if (engine_copy_join_rates(copy) != 0) {
		session_copy_end(copy);
		*text = "the server is out of memory";
		return -ENOMEM;
	}
	*copy_out = copy;
	engine_copy_advance(copy);
	return 0;
}

int session_copy_result(const struct session_copy *copy, uint64_t *done_bytes)
{
	*done_bytes = MIN(copy->held, copy->at);
	return copy->error;
}

const uint64_t *session_copy_bytes(const struct session_copy *copy)
{
	return copy->bytes;
}

void session_copy_drain(struct session_copy *copy)
{
	engine_copy_advance(copy);
}

bool session_copy_abandon(struct session_copy *copy)
{
	copy->abandoned = true;
	rate_give_up(&copy->reads);
	rate_give_up(&copy->writes);
	if (copy->mapping && path_abandon(&copy->map)) {
		copy->mapping = false;
		path_finish(&copy->map);
	}
	list_for_each(node, &copy->busy)
	{
		struct piece *piece = list_entry(node, struct piece, node);

		if (piece->state == PIECE_READING) {
			piece_look(piece);
		} else if (path_abandon(&piece->change)) {
			/* the store has not started the change */
			path_finish(&piece->change);
			if (piece->state == PIECE_WRITING) {
				written(piece);
			} else {
				piece_end(piece, -ECANCELED);
			}
		}
	}
	copy->is_done = session_copy_is_idle(copy);
	return copy->is_done;
}

void session_copy_end(struct session_copy *copy)
{
	GMB_ASSERT(session_copy_is_idle(copy));
	rate_leave(&copy->reads);
	rate_leave(&copy->writes);
	engine_export_leave(copy->session->engine, copy->source);
	if (copy->room.memory.rights != 0) {
		path_client_put(&copy->session->client, &copy->room);
	}
	free(copy);
}
