// SPDX-License-Identifier: Apache-2.0
#include "flash_load.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	SECTORS_PER_BLOCK = 8,
	BLOCKS_PER_PIECE = 512,
	LINE_BYTES = 512,
	RUN_BLOCKS_MAX = 64,
	WRITE_SECTORS_MAX = 1 << 20, /* of one line; the kernel's are smaller */
	BLOCKS_MAX = 1 << 28,	     /* as without a trace */

	/* TPC-C with its rows of 306, 655, 54 and 46 bytes in pages of 4 KiB. */
	TPCC_ITEMS = 100000,
	TPCC_ITEMS_PER_PAGE = 13,
	TPCC_STOCK_PAGES = (TPCC_ITEMS + TPCC_ITEMS_PER_PAGE - 1) / TPCC_ITEMS_PER_PAGE,
	TPCC_CUSTOMERS = 3000, /* of a district */
	TPCC_DISTRICTS = 10,
	TPCC_CUSTOMERS_PER_PAGE = 6,
	TPCC_CUSTOMER_PAGES = TPCC_CUSTOMERS * TPCC_DISTRICTS / TPCC_CUSTOMERS_PER_PAGE,
	TPCC_WAREHOUSE_PAGES = 1 + TPCC_STOCK_PAGES + TPCC_CUSTOMER_PAGES,
	TPCC_BLOCKS_PER_WAREHOUSE = TPCC_WAREHOUSE_PAGES * 5 / 4, /* the rest for orders */
	TPCC_LINES_PER_PAGE = 75,
	TPCC_PAYMENTS_PER_PAGE = 89,
	TPCC_OPS_MAX = 32, /* pages that a transaction changes */
};

#define SECTORS_MAX (UINT64_C(1) << 54)

typedef void load_fn(struct load *load, struct load_op *op);

struct load {
	load_fn *next;
	uint32_t blocks;
	uint64_t state; /* of the random numbers */
	uint64_t state_at_begin;
	uint32_t *order; /* of the blocks, by chance */
	double *sums;	 /* zipf: of the first i + 1 frequencies */
	/* A trace, or what is left of a transaction. */
	struct load_op *ops;
	uint64_t op_count;
	uint64_t op_next;
	/* tpcc: appended so far. */
	uint64_t order_lines;
	uint64_t payments;
	uint64_t delivered_lines;
};

/* Steele, Lea, Flood: SplitMix64 (OOPSLA 2014). */
static uint64_t chance(struct load *load)
{
	uint64_t z = load->state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

static double chance_part(struct load *load)
{
	return (double)(chance(load) >> 11) * 0x1p-53;
}

static uint32_t chance_below(struct load *load, uint32_t bound)
{
	return (uint32_t)(((unsigned __int128)chance(load) * bound) >> 64);
}

static uint32_t chance_between(struct load *load, uint32_t low, uint32_t high)
{
	return low + chance_below(load, high - low + 1);
}

static void one_block(struct load_op *op, uint32_t block)
{
	*op = (struct load_op){ .kind = LOAD_WRITE, .block = block, .count = 1 };
}

static void next_uniform(struct load *load, struct load_op *op)
{
	one_block(op, chance_below(load, load->blocks));
}

static void next_zipf(struct load *load, struct load_op *op)
{
	double part = chance_part(load) * load->sums[load->blocks - 1];
	uint32_t low = 0;
	uint32_t high = load->blocks - 1;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (load->sums[middle] > part) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	one_block(op, load->order[low]);
}

static void next_80_20(struct load *load, struct load_op *op)
{
	uint32_t hot = load->blocks / 5;

	one_block(op, load->order[chance_below(load, 5) != 0
					  ? chance_below(load, hot)
					  : hot + chance_below(load, load->blocks - hot)]);
}

/* Guests: three of ten writes change metadata, the others are runs, most of them in few places. */
static void next_vm(struct load *load, struct load_op *op)
{
	uint32_t metadata = load->blocks / 50 + 1;
	uint32_t places = (load->blocks - metadata) / RUN_BLOCKS_MAX;
	uint32_t place;

	if (chance_below(load, 10) < 3) {
		one_block(op, chance_below(load, metadata));
		return;
	}
	place = chance_below(load, 5) != 0 ? chance_below(load, places / 5 + 1)
					   : chance_below(load, places);
	*op = (struct load_op){
		.kind = LOAD_WRITE, .count = 1U << chance_below(load, 7), /* 1 to RUN_BLOCKS_MAX */
	};
	op->block = metadata + place * RUN_BLOCKS_MAX +
		    chance_below(load, RUN_BLOCKS_MAX - op->count + 1);
}

/* --- TPC-C ------------------------------------------------------------------------------------ */

static uint32_t nurand(struct load *load, uint32_t a, uint32_t low, uint32_t high)
{
	enum { C = 123 };
	uint32_t both = chance_between(load, 0, a) | chance_between(load, low, high);

	return (both + C) % (high - low + 1) + low;
}

static void tpcc_page(struct load *load, uint32_t page)
{
	GMB_ASSERT(load->op_count < TPCC_OPS_MAX);
	one_block(&load->ops[load->op_count++], page);
}

/* Behind the warehouses: a ring of pages, three quarters for orders, one for payments. */
static void tpcc_append(struct load *load, uint64_t page, bool is_payment)
{
	uint32_t warehouses = load->blocks / TPCC_BLOCKS_PER_WAREHOUSE;
	uint32_t begin = warehouses * TPCC_WAREHOUSE_PAGES;
	uint32_t room = load->blocks - begin;
	uint32_t orders = room / 4 * 3;

	tpcc_page(load, is_payment ? begin + orders + (uint32_t)(page % (room - orders))
				   : begin + (uint32_t)(page % orders));
}

static void tpcc_transaction(struct load *load)
{
	uint32_t warehouses = load->blocks / TPCC_BLOCKS_PER_WAREHOUSE;
	uint32_t first = chance_below(load, warehouses) * TPCC_WAREHOUSE_PAGES;
	uint32_t customer = chance_below(load, TPCC_DISTRICTS) * TPCC_CUSTOMERS +
			    nurand(load, 1023, 1, TPCC_CUSTOMERS) - 1;
	uint32_t customer_page = first + 1 + TPCC_STOCK_PAGES + customer / TPCC_CUSTOMERS_PER_PAGE;
	uint32_t kind = chance_below(load, 100);

	load->op_count = load->op_next = 0;
	if (kind < 45) { /* new order: 5 to 15 items, a new page now and then */
		uint32_t items = chance_between(load, 5, 15);

		tpcc_page(load, first);
		for (uint32_t i = 0; i < items; i++) {
			uint32_t item = nurand(load, 8191, 1, TPCC_ITEMS) - 1;

			tpcc_page(load, first + 1 + item / TPCC_ITEMS_PER_PAGE);
		}
		tpcc_append(load, load->order_lines / TPCC_LINES_PER_PAGE, false);
		load->order_lines += items;
	} else if (kind < 88) { /* payment */
		tpcc_page(load, first);
		tpcc_page(load, customer_page);
		tpcc_append(load, load->payments / TPCC_PAYMENTS_PER_PAGE, true);
		load->payments++;
	} else if (kind < 92) { /* delivery: the oldest orders of ten districts */
		for (uint32_t i = 0; i < TPCC_DISTRICTS; i++) {
			if (load->delivered_lines < load->order_lines) {
				tpcc_append(
					load, load->delivered_lines / TPCC_LINES_PER_PAGE, false);
				load->delivered_lines += 10;
			}
			tpcc_page(load,
				first + 1 + TPCC_STOCK_PAGES +
					(i * TPCC_CUSTOMERS + chance_below(load, TPCC_CUSTOMERS)) /
						TPCC_CUSTOMERS_PER_PAGE);
		}
	} /* the other two only read */
}

/* --- lists of operations ---------------------------------------------------------------------- */

static void next_tpcc(struct load *load, struct load_op *op)
{
	while (load->op_next == load->op_count) {
		tpcc_transaction(load);
	}
	*op = load->ops[load->op_next++];
}

static void next_of_trace(struct load *load, struct load_op *op)
{
	*op = load->ops[load->op_next];
	load->op_next = (load->op_next + 1) % load->op_count;
}

/* --- made up ---------------------------------------------------------------------------------- */

static bool make_order(struct load *load)
{
	load->order = malloc(load->blocks * sizeof(*load->order));
	if (load->order == NULL) {
		return false;
	}
	for (uint32_t i = 0; i < load->blocks; i++) {
		uint32_t other = chance_below(load, i + 1);

		load->order[i] = load->order[other];
		load->order[other] = i;
	}
	return true;
}

static bool make_zipf(struct load *load, double exponent)
{
	double sum = 0;

	load->sums = malloc(load->blocks * sizeof(*load->sums));
	if (load->sums == NULL || !make_order(load)) {
		return false;
	}
	for (uint32_t i = 0; i < load->blocks; i++) {
		sum += pow(i + 1.0, -exponent);
		load->sums[i] = sum;
	}
	return true;
}

static bool make_uniform(struct load *load)
{
	GMB_UNUSED(load);
	return true;
}

static bool make_zipf_08(struct load *load)
{
	return make_zipf(load, 0.8);
}

static bool make_zipf_099(struct load *load)
{
	return make_zipf(load, 0.99);
}

static bool make_tpcc(struct load *load)
{
	load->ops = malloc(TPCC_OPS_MAX * sizeof(*load->ops));
	return load->ops != NULL;
}

static const struct {
	const char *name;
	bool (*make)(struct load *load); /* false: no memory */
	load_fn *next;
	uint32_t blocks_min;
} loads[] = {
	{ "uniform", make_uniform, next_uniform, 1 },
	{ "zipf0.8", make_zipf_08, next_zipf, 1 },
	{ "zipf0.99", make_zipf_099, next_zipf, 1 },
	{ "80/20", make_order, next_80_20, 5 },
	{ "tpcc", make_tpcc, next_tpcc, TPCC_BLOCKS_PER_WAREHOUSE },
	{ "vm", make_uniform, next_vm, 16 * RUN_BLOCKS_MAX },
};

const char *load_name(uint32_t idx)
{
	return idx < ARRAY_COUNT(loads) ? loads[idx].name : NULL;
}

int load_create(const char *name, uint32_t blocks, uint64_t seed, struct load **load_out,
	struct error *error)
{
	struct load *load;
	uint32_t idx = 0;

	while (idx < ARRAY_COUNT(loads) && strcmp(name, loads[idx].name) != 0) {
		idx++;
	}
	if (idx == ARRAY_COUNT(loads)) {
		return error_set(error, -EINVAL, "no load is called '%s'", name);
	}
	if (blocks < loads[idx].blocks_min) {
		return error_set(error, -EINVAL,
			"the load '%s' needs a disk of at least %" PRIu32 " blocks", name,
			loads[idx].blocks_min);
	}
	load = calloc(1, sizeof(*load));
	if (load == NULL) {
		return error_set(error, -ENOMEM, "no memory for the load");
	}
	load->blocks = blocks;
	load->state = seed;
	load->next = loads[idx].next;
	if (!loads[idx].make(load)) {
		load_destroy(load);
		return error_set(error, -ENOMEM, "no memory for the load");
	}
	load->state_at_begin = load->state;
	*load_out = load;
	return 0;
}

/* --- the text of blkparse --------------------------------------------------------------------- */

/* What a line says, in blocks of the traced disk. */
struct event {
	struct load_op op; /* its place and length are not yet known */
	uint64_t begin;
	uint64_t end;
};

struct trace {
	struct event *events;
	uint64_t count;
	uint64_t room;
	uint64_t *pieces; /* that are written to, in order */
	uint64_t piece_count;
};

static bool trace_add(
	struct trace *trace, enum load_kind kind, bool durable, uint64_t begin, uint64_t end)
{
	if (trace->count == trace->room) {
		uint64_t room = trace->room == 0 ? 1024 : trace->room * 2;
		struct event *larger = realloc(trace->events, room * sizeof(*larger));

		if (larger == NULL) {
			return false;
		}
		trace->events = larger;
		trace->room = room;
	}
	trace->events[trace->count++] = (struct event){
		.op = { .kind = kind, .durable = durable },
		.begin = begin,
		.end = end,
	};
	return true;
}

/*
 *	8,0    3       11     0.009507758   697  Q FWFS 223490 + 8 [fsync]
 *
 * Flags: F before the operation is a flush, behind it FUA (kernel: blk_fill_rwbs()). Lines of
 * another form, and other operations, are passed over. False: no memory.
 */
static bool trace_add_line(struct trace *trace, const char *line, char action)
{
	char found_action;
	char flags[16];
	uint64_t sector = 0;
	uint32_t sectors = 0;
	const char *operation = flags;
	int behind = 0;

	if (sscanf(line, "%*u,%*u %*u %*u %*u.%*u %*u %c %15s%n", &found_action, flags, &behind) !=
			2 ||
		behind == 0 || found_action != action) {
		return true;
	}
	if (*operation == 'F') {
		if (!trace_add(trace, LOAD_FLUSH, false, 0, 0)) {
			return false;
		}
		operation++;
	}
	if (sscanf(line + behind, " %" SCNu64 " + %" SCNu32, &sector, &sectors) != 2 ||
		sectors == 0 || sector > SECTORS_MAX || sectors > SECTORS_MAX - sector) {
		return true;
	}
	if (*operation == 'W' && sectors <= WRITE_SECTORS_MAX) {
		return trace_add(trace, LOAD_WRITE, operation[1] == 'F', sector / SECTORS_PER_BLOCK,
			(sector + sectors + SECTORS_PER_BLOCK - 1) / SECTORS_PER_BLOCK);
	}
	if (*operation == 'D') {
		return trace_add(trace, LOAD_TRIM, false,
			(sector + SECTORS_PER_BLOCK - 1) / SECTORS_PER_BLOCK,
			(sector + sectors) / SECTORS_PER_BLOCK);
	}
	return true;
}

static int compare_pieces(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* The pieces that writes touch, in order and each once. False: no memory. */
static bool trace_find_pieces(struct trace *trace)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < trace->count; i++) {
		if (trace->events[i].op.kind == LOAD_WRITE) {
			count += (trace->events[i].end - 1) / BLOCKS_PER_PIECE -
				 trace->events[i].begin / BLOCKS_PER_PIECE + 1;
		}
	}
	trace->pieces = malloc((count + 1) * sizeof(*trace->pieces));
	if (trace->pieces == NULL) {
		return false;
	}
	count = 0;
	for (uint64_t i = 0; i < trace->count; i++) {
		if (trace->events[i].op.kind == LOAD_WRITE) {
			for (uint64_t piece = trace->events[i].begin / BLOCKS_PER_PIECE;
				piece <= (trace->events[i].end - 1) / BLOCKS_PER_PIECE; piece++) {
				trace->pieces[count++] = piece;
			}
		}
	}
	qsort(trace->pieces, count, sizeof(*trace->pieces), compare_pieces);
	for (uint64_t i = 0; i < count; i++) {
		if (i == 0 || trace->pieces[i] != trace->pieces[i - 1]) {
			trace->pieces[trace->piece_count++] = trace->pieces[i];
		}
	}
	return true;
}

/* Where a block of the traced disk is on the disk made of pieces; one that is on none of them has
 * the place of the next that is. */
static uint64_t place_of(const struct trace *trace, uint64_t block)
{
	uint64_t piece = block / BLOCKS_PER_PIECE;
	uint64_t low = 0;
	uint64_t high = trace->piece_count;

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (trace->pieces[middle] < piece) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low * BLOCKS_PER_PIECE + (low < trace->piece_count && trace->pieces[low] == piece
							? block % BLOCKS_PER_PIECE
							: 0);
}

static int trace_to_load(const struct trace *trace, struct load **load_out, uint32_t *blocks_out,
	struct error *error)
{
	struct load *load;

	if (trace->piece_count > BLOCKS_MAX / BLOCKS_PER_PIECE) {
		return error_set(error, -EFBIG, "the trace writes to more than %d million blocks",
			BLOCKS_MAX >> 20);
	}
	load = calloc(1, sizeof(*load));
	if (load == NULL || (load->ops = malloc(trace->count * sizeof(*load->ops))) == NULL) {
		load_destroy(load);
		return error_set(error, -ENOMEM, "no memory for the trace");
	}
	for (uint64_t i = 0; i < trace->count; i++) {
		uint64_t begin = place_of(trace, trace->events[i].begin);
		uint64_t end = place_of(trace, trace->events[i].end);
		struct load_op *op = &load->ops[load->op_count];

		*op = trace->events[i].op;
		if (op->kind != LOAD_FLUSH) {
			if (begin >= end) {
				continue; /* trimmed what is not there */
			}
			op->block = (uint32_t)begin;
			op->count = (uint32_t)(end - begin);
		}
		load->op_count++;
	}
	load->next = next_of_trace;
	*load_out = load;
	*blocks_out = (uint32_t)(trace->piece_count * BLOCKS_PER_PIECE);
	return 0;
}

static int trace_read(struct trace *trace, FILE *file, char action, struct error *error)
{
	char line[LINE_BYTES];

	while (fgets(line, sizeof(line), file) != NULL) {
		if (!trace_add_line(trace, line, action)) {
			return error_set(error, -ENOMEM, "no memory for the trace");
		}
	}
	if (ferror(file)) {
		return error_set(error, -EIO, "it cannot be read");
	}
	if (!trace_find_pieces(trace)) {
		return error_set(error, -ENOMEM, "no memory for the trace");
	}
	if (trace->piece_count == 0) {
		return error_set(error, -EINVAL,
			"no line is a write with the action '%c'; the text of blkparse is expected",
			action);
	}
	return 0;
}

int load_read_trace(const char *path, char action, struct load **load_out, uint32_t *blocks_out,
	struct error *error)
{
	struct trace trace = { 0 };
	FILE *file = fopen(path, "re");
	int result;

	if (file == NULL) {
		return error_set(error, -errno, "%s: %s", path, strerror(errno));
	}
	result = trace_read(&trace, file, action, error);
	if (result == 0) {
		result = trace_to_load(&trace, load_out, blocks_out, error);
	}
	if (result != 0) {
		error_prefix(error, "%s", path);
	}
	fclose(file);
	free(trace.events);
	free(trace.pieces);
	return result;
}

void load_destroy(struct load *load)
{
	if (load != NULL) {
		free(load->order);
		free(load->sums);
		free(load->ops);
		free(load);
	}
}

void load_next(struct load *load, struct load_op *op)
{
	load->next(load, op);
}

void load_rewind(struct load *load)
{
	load->state = load->state_at_begin;
	load->op_next = 0;
	if (load->next == next_tpcc) {
		load->op_count = 0;
		load->order_lines = load->payments = load->delivered_lines = 0;
	}
}
