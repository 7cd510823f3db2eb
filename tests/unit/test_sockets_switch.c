// SPDX-License-Identifier: Apache-2.0
/*
 * The late switch of libclan-sockets, every interleaving of it: two sides that write, read, take
 * messages, let the other go, leave, close and die, over queues that keep their order each but not
 * among each other. The rules are those of src/sockets/switch.c itself; reading is modelled on
 * data_receive().
 *
 * What must hold: bytes are read in order and once; the end is seen only behind the last byte,
 * unless the writer died; no side finds a rule broken; and who goes on reading reads everything.
 * Each mutant breaks one of these.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sockets/switch.h"
#include "unit.h"

enum {
	BYTES = 2, /* that each side writes */
	QUEUE = 6, /* entries of a queue, more than are ever in it */
	TABLE_BITS = 20,
};

enum mutant {
	MUTANT_NONE,
	MUTANT_RING_FIRST, /* the reader takes the ring whatever the position */
	MUTANT_GO_LATE,	   /* GO is said with the position behind the first byte */
	MUTANT_NO_BACK,	   /* leaving is not said */
	MUTANT_NO_COUNT,   /* TCP is read without a look while the peer may go */
	MUTANT_COUNT
};

struct queue {
	uint8_t count;
	uint8_t type[QUEUE]; /* of a message; of bytes 0 */
	uint8_t value[QUEUE];
};

enum life { ALIVE, LEFT_CLAN, ENDED }; /* the clan connection ends before the TCP connection */

struct side {
	uint8_t out;
	uint8_t in;
	uint8_t out_place;
	uint8_t go_from; /* 255: nowhere */
	uint8_t switch_from;
	uint8_t may;
	uint8_t may_said;
	uint8_t life;
	uint8_t died; /* without a word */
	uint8_t lost; /* it knows that the other's clan connection has ended */
	uint8_t saw_end;
	struct queue tcp; /* to this side */
	struct queue ring;
	struct queue messages;
};

struct world {
	struct side side[2];
};

struct search {
	enum mutant mutant;
	struct world *table;
	uint8_t *used;
	uint64_t states;
	const char *broken;
};

/* --- between the bytes of a state and what the rules work on ---------------------------------- */

static uint64_t wide(uint8_t value)
{
	return value == UINT8_MAX ? SWITCH_NOWHERE : value;
}

static struct switch_side load(const struct side *side)
{
	return (struct switch_side){
		.out = side->out,
		.in = side->in,
		.out_place = (enum switch_out)side->out_place,
		.may = side->may,
		.may_said = side->may_said,
		.go_from = wide(side->go_from),
		.switch_from = wide(side->switch_from),
	};
}

static void store(struct side *side, const struct switch_side *rules)
{
	side->out_place = (uint8_t)rules->out_place;
	side->may = rules->may;
	side->may_said = rules->may_said;
	side->go_from = (uint8_t)rules->go_from;
	side->switch_from = (uint8_t)rules->switch_from;
}

static void push(struct queue *queue, uint8_t type, uint8_t value)
{
	assert_true(queue->count < QUEUE);
	queue->type[queue->count] = type;
	queue->value[queue->count++] = value;
}

static uint8_t pop(struct queue *queue, uint8_t *type)
{
	uint8_t value = queue->value[0];

	*type = queue->type[0];
	queue->count--;
	memmove(queue->type, queue->type + 1, queue->count);
	memmove(queue->value, queue->value + 1, queue->count);
	queue->type[queue->count] = 0;
	queue->value[queue->count] = 0;
	return value;
}

/* --- what a side can do ----------------------------------------------------------------------- */

static void leave(struct search *search, struct side *side, struct side *other)
{
	struct switch_side rules = load(side);
	struct switch_message message;

	if (switch_leave(&rules, &message)) {
		store(side, &rules);
		if (side->life == ALIVE && search->mutant != MUTANT_NO_BACK) {
			push(&other->messages, SWITCH_BACK, (uint8_t)message.from);
		}
	}
}

/* Takes all messages, and notices that the other has left. */
static void look(struct search *search, struct side *side, struct side *other)
{
	while (side->messages.count > 0) {
		struct switch_side rules = load(side);
		struct switch_message message;
		uint8_t type;
		int result;

		message.from = pop(&side->messages, &type);
		result = switch_received(&rules, type, &message);
		store(side, &rules);
		if (result < 0) {
			search->broken = "a rule";
		} else if (result == 1) {
			leave(search, side, other);
		}
	}
	if (other->life != ALIVE && !side->lost) {
		struct switch_side rules = load(side);

		side->lost = 1;
		rules.out_place = SWITCH_OUT_LEFT;
		if (rules.go_from == SWITCH_NOWHERE) {
			switch_ring_ended(&rules);
		}
		store(side, &rules);
	}
}

static void write_byte(struct search *search, struct side *side, struct side *other)
{
	struct switch_side rules = load(side);

	if (switch_can_go(&rules)) {
		struct switch_message message = switch_go(&rules);

		push(&other->messages, SWITCH_GO,
			(uint8_t)(message.from + (search->mutant == MUTANT_GO_LATE)));
		store(side, &rules);
	}
	push(rules.out_place == SWITCH_OUT_RING ? &other->ring : &other->tcp, 0, side->out);
	side->out++;
}

static void take(struct search *search, struct side *side, struct queue *queue)
{
	uint8_t type;

	if (pop(queue, &type) != side->in) {
		search->broken = "the order of bytes";
	}
	side->in++;
}

/* One call that reads. */
static void read_byte(struct search *search, struct side *side, struct side *other)
{
	struct switch_side before = load(side);
	uint8_t counted = side->tcp.count;

	/* The other may act between the count and the look; what it does then is found by the look,
	 * and the bytes that were counted were there before it. */
	if (search->mutant != MUTANT_NO_COUNT && switch_may_turn(&before)) {
		look(search, side, other);
		before = load(side);
		if (switch_may_turn(&before)) {
			if (counted > 0) {
				take(search, side, &side->tcp);
			} else if (other->life == ENDED) {
				side->saw_end = 1;
			}
			return;
		}
	}
	for (int looks = 0; looks < 3; looks++) {
		struct switch_side rules = load(side);
		uint64_t limit;
		enum switch_place place = switch_place(&rules, &limit);

		if (search->mutant == MUTANT_RING_FIRST && side->ring.count > 0) {
			place = SWITCH_RING;
		}
		if (place == SWITCH_RING && side->ring.count > 0) {
			take(search, side, &side->ring);
			return;
		}
		if (place == SWITCH_RING && side->lost) {
			switch_ring_ended(&rules);
			store(side, &rules);
			continue;
		}
		if (place == SWITCH_TCP && side->tcp.count > 0) {
			take(search, side, &side->tcp);
			return;
		}
		if (looks == 2 || (place == SWITCH_TCP && looks == 1)) {
			if (place == SWITCH_RING && side->tcp.count > 0) {
				search->broken = "bytes by TCP that should come by ring";
			} else if (other->life == ENDED) {
				side->saw_end = 1;
			}
			return;
		}
		look(search, side, other);
	}
}

enum action { WRITE, READ, LOOK, SAY_MAY, LEAVE, CLOSE, DIE, ACTION_COUNT };

/* False: it cannot do that now. */
static bool act(struct search *search, struct world *world, int who, enum action action)
{
	struct side *side = &world->side[who];
	struct side *other = &world->side[1 - who];

	if (side->life == ENDED) {
		return false;
	}
	switch (action) {
	case WRITE:
		if (side->out == BYTES || side->life != ALIVE) {
			return false;
		}
		write_byte(search, side, other);
		return true;
	case READ:
		if (side->saw_end || side->life != ALIVE) {
			return false;
		}
		read_byte(search, side, other);
		return true;
	case LOOK:
		if (side->life != ALIVE) {
			return false;
		}
		look(search, side, other);
		return true;
	case SAY_MAY:
		if (side->may_said || side->life != ALIVE || side->lost) {
			return false;
		}
		side->may_said = 1;
		push(&other->messages, SWITCH_MAY, 0);
		return true;
	case LEAVE:
		if (side->life != ALIVE || side->out_place == SWITCH_OUT_LEFT) {
			return false;
		}
		leave(search, side, other);
		return true;
	case CLOSE:
		/* SWITCH, the end of the clan connection, the end of the TCP connection. */
		if (side->life == ALIVE) {
			leave(search, side, other);
			side->life = LEFT_CLAN;
		} else {
			side->life = ENDED;
		}
		return true;
	case DIE:
		if (side->life != ALIVE) {
			return false;
		}
		side->died = 1;
		side->life = LEFT_CLAN;
		return true;
	case ACTION_COUNT:
		break;
	}
	return false;
}

/* --- the search ------------------------------------------------------------------------------- */

static bool is_new(struct search *search, const struct world *world)
{
	const uint8_t *bytes = (const uint8_t *)world;
	uint64_t hash = 1469598103934665603U;
	size_t at;

	for (size_t i = 0; i < sizeof(*world); i++) {
		hash = (hash ^ bytes[i]) * 1099511628211U;
	}
	at = hash >> (64 - TABLE_BITS);
	while (search->used[at] && memcmp(&search->table[at], world, sizeof(*world)) != 0) {
		at = (at + 1) & ((1U << TABLE_BITS) - 1);
	}
	if (search->used[at]) {
		return false;
	}
	search->used[at] = 1;
	search->table[at] = *world;
	search->states++;
	assert_true(search->states < (1U << TABLE_BITS) / 4 * 3);
	return true;
}

/* Who goes on reading reads what was written, in as many calls as there are bytes and ends. */
static void check_rest(struct search *search, const struct world *world, int who)
{
	struct world copy = *world;
	struct side *side = &copy.side[who];
	struct side *other = &copy.side[1 - who];

	if (side->life != ALIVE) {
		return;
	}
	for (int i = 0; i < BYTES + 2 && search->broken == NULL; i++) {
		read_byte(search, side, other);
	}
	if (search->broken == NULL && side->in != other->out) {
		search->broken = "a byte was lost";
	}
}

static void explore(struct search *search, const struct world *world)
{
	if (search->broken != NULL || !is_new(search, world)) {
		return;
	}
	for (int who = 0; who < 2; who++) {
		check_rest(search, world, who);
		for (int action = 0; action < ACTION_COUNT; action++) {
			struct world next = *world;
			struct side *reader = &next.side[who];

			if (act(search, &next, who, (enum action)action)) {
				if (reader->saw_end && reader->in != next.side[1 - who].out) {
					search->broken = "the end before the last byte";
				}
				explore(search, &next);
			}
		}
	}
}

static const char *run(enum mutant mutant, uint64_t *states_out)
{
	struct search search = {
		.mutant = mutant,
		.table = calloc(1U << TABLE_BITS, sizeof(struct world)),
		.used = calloc(1U << TABLE_BITS, 1),
	};
	struct world world;

	assert_non_null(search.table);
	assert_non_null(search.used);
	memset(&world, 0, sizeof(world));
	for (int who = 0; who < 2; who++) {
		struct switch_side rules = load(&world.side[who]);

		switch_begin(&rules);
		store(&world.side[who], &rules);
	}
	explore(&search, &world);
	free(search.table);
	free(search.used);
	*states_out = search.states;
	return search.broken;
}

TEST(every_interleaving)
{
	uint64_t states;
	const char *broken = run(MUTANT_NONE, &states);

	print_message("%llu states\n", (unsigned long long)states);
	if (broken != NULL) {
		fail_msg("%s", broken);
	}
	assert_true(states > 1000);
}

TEST(mutants_are_found)
{
	for (int mutant = MUTANT_NONE + 1; mutant < MUTANT_COUNT; mutant++) {
		uint64_t states;
		const char *broken = run((enum mutant)mutant, &states);

		if (broken == NULL) {
			fail_msg("mutant %d does no harm", mutant);
		}
		print_message("mutant %d: %s\n", mutant, broken);
	}
}

/* What a hostile peer can say. */
TEST(broken_rules)
{
	struct switch_message zero = { 0 };
	struct switch_message five = { .from = 5 };
	struct switch_message nowhere = { .from = SWITCH_NOWHERE };
	struct switch_side side = { 0 };

	switch_begin(&side);
	assert_int_equal(switch_received(&side, 0, &zero), -EPROTO);
	assert_int_equal(switch_received(&side, 99, &zero), -EPROTO);
	assert_int_equal(switch_received(&side, SWITCH_MAY, &five), -EPROTO);
	assert_int_equal(
		switch_received(&side, SWITCH_GO, &five), -EPROTO); /* not told that it may */
	side.may_said = true;
	atomic_store(&side.in, 6);
	assert_int_equal(switch_received(&side, SWITCH_GO, &five), -EPROTO); /* behind us */
	assert_int_equal(switch_received(&side, SWITCH_GO, &nowhere), -EPROTO);
	atomic_store(&side.in, 3);
	assert_int_equal(switch_received(&side, SWITCH_GO, &five), 0);
	assert_int_equal(switch_received(&side, SWITCH_GO, &five), -EPROTO);   /* twice */
	assert_int_equal(switch_received(&side, SWITCH_BACK, &zero), -EPROTO); /* before GO */
	assert_int_equal(switch_received(&side, SWITCH_BACK, &nowhere), -EPROTO);
	assert_int_equal(switch_received(&side, SWITCH_BACK_SLOW, &five), 1);
	assert_int_equal(switch_received(&side, SWITCH_BACK_SLOW, &five), -EPROTO);
	assert_int_equal(switch_received(&side, SWITCH_BACK, &five), -EPROTO);
	assert_int_equal(switch_received(&side, SWITCH_MAY, &zero), 0);
	assert_int_equal(switch_received(&side, SWITCH_MAY, &zero), -EPROTO);
}
