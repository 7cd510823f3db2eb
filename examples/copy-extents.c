// SPDX-License-Identifier: Apache-2.0
/*
 * copy-extents SOURCE TARGET: copies the data of one export to another, without its holes.
 *
 *   cc copy-extents.c $(pkg-config --cflags --libs gmblock) -o copy-extents
 *
 * Two clients on one queue, blocking calls. Block status shows which ranges of the source read as
 * zeroes: these are zeroed on the target, without payload. The rest is read into a scatter list and
 * written from it, without a copy in between.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gmblock/gmblock.h>

enum { PIECES = 16, PIECE_BYTES = 64 << 10, EXTENTS = 64 };

struct copy {
	struct gmb_client *source;
	struct gmb_client *target;
	struct gmb_request request;
	struct iovec pieces[PIECES];
	uint64_t copied;
	uint64_t zeroed;
};

static int run(struct copy *copy, struct gmb_client *client)
{
	char text[512];
	int err = gmb_run(client, &copy->request);

	if (err != 0) {
		fprintf(stderr, "%s\n", gmb_explain(client, &copy->request, text, sizeof(text)));
	}
	return err;
}

static int copy_data(struct copy *copy, uint64_t offset, uint64_t bytes)
{
	uint32_t count = 0;
	int err;

	/* Divide the range into pieces; the last one may be shorter. */
	for (uint64_t left = bytes; left > 0; count++) {
		copy->pieces[count].iov_len = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
		left -= copy->pieces[count].iov_len;
	}
	gmb_prepare_readv(&copy->request, copy->pieces, count, offset);
	err = run(copy, copy->source);
	if (err != 0) {
		return err;
	}
	gmb_prepare_writev(&copy->request, copy->pieces, count, offset);
	copy->copied += bytes;
	return run(copy, copy->target);
}

static int copy_extent(struct copy *copy, const struct gmb_extent *extent)
{
	uint64_t offset = extent->offset;
	uint64_t left = extent->bytes;

	if ((extent->flags & GMB_EXTENT_ZERO) != 0) {
		gmb_prepare(&copy->request, GMB_ZERO, offset, left);
		copy->zeroed += left;
		return run(copy, copy->target);
	}
	while (left > 0) {
		uint64_t part = left < PIECES * PIECE_BYTES ? left : PIECES * PIECE_BYTES;
		int err = copy_data(copy, offset, part);

		if (err != 0) {
			return err;
		}
		offset += part;
		left -= part;
	}
	return 0;
}

static int copy_all(struct copy *copy)
{
	struct gmb_info info = { .size = sizeof(info) };
	struct gmb_extent extents[EXTENTS];
	bool maps;

	gmb_get_info(copy->source, &info);
	maps = (info.capabilities & GMB_CAN_STATUS) != 0;
	for (uint64_t offset = 0; offset < info.bytes;) {
		/* Without block status, the whole range counts as data. */
		uint32_t count = 1;
		int err = 0;

		extents[0] = (struct gmb_extent){ .offset = offset, .bytes = info.bytes - offset };
		if (maps) {
			gmb_prepare_status(
				&copy->request, extents, EXTENTS, offset, info.bytes - offset);
			err = run(copy, copy->source);
			count = copy->request.extent_count;
		}
		for (uint32_t i = 0; i < count && err == 0; i++) {
			err = copy_extent(copy, &extents[i]);
			offset += extents[i].bytes;
		}
		if (err != 0) {
			return err;
		}
	}
	gmb_prepare(&copy->request, GMB_FLUSH, 0, 0);
	return run(copy, copy->target);
}

static int copy_with_memory(struct copy *copy)
{
	int err = -ENOMEM;
	int i;

	for (i = 0; i < PIECES; i++) {
		copy->pieces[i].iov_base = malloc(PIECE_BYTES);
		if (copy->pieces[i].iov_base == NULL) {
			fprintf(stderr, "out of memory\n");
			break;
		}
	}
	if (i == PIECES) {
		err = copy_all(copy);
	}
	while (i > 0) {
		free(copy->pieces[--i].iov_base);
	}
	return err;
}

int main(int argc, char **argv)
{
	struct gmb_options options = { .size = sizeof(options), .flags = GMB_OPEN_READ_ONLY };
	struct gmb_queue *queue = NULL;
	struct copy copy = { 0 };
	struct gmb_error error;
	int err;

	if (argc != 3) {
		fprintf(stderr, "usage: copy-extents SOURCE TARGET\n");
		return 2;
	}
	err = gmb_queue_create(NULL, &queue, &error);
	if (err == 0) {
		err = gmb_open(queue, argv[1], &options, &copy.source, &error);
	}
	if (err == 0) {
		err = gmb_open(queue, argv[2], NULL, &copy.target, &error);
	}
	if (err != 0) {
		fprintf(stderr, "%s\n", error.text);
	} else if ((err = copy_with_memory(&copy)) == 0) {
		printf("%llu bytes copied, %llu zeroed\n", (unsigned long long)copy.copied,
			(unsigned long long)copy.zeroed);
	}
	gmb_close(copy.target);
	gmb_close(copy.source);
	gmb_queue_destroy(queue);
	return err == 0 ? 0 : 1;
}
