// SPDX-License-Identifier: Apache-2.0
/* Capabilities of the export, from the features and the configuration of the device. */
#include <string.h>

#include "vhost/client/client.h"

enum { BLOCK_PREFERRED = 4096 };

/* Returns the larger number if it is a reasonable power of two, otherwise the smaller one. */
static uint32_t block_max(uint32_t block, uint64_t larger)
{
	bool is_usable =
		larger > block && larger <= HUB_COMMAND_BYTES_MAX && is_power_of_two(larger);

	return is_usable ? (uint32_t)larger : block;
}

static uint32_t front_preferred(const struct front_carrier *carrier, uint32_t block)
{
	const struct blk_config *config = &carrier->config;
	uint32_t preferred = block_max(block, BLOCK_PREFERRED);

	if ((carrier->features & VIRTIO_BLK_TOPOLOGY) != 0 && config->physical_block_exp < 16) {
		preferred = block_max(preferred, (uint64_t)block << config->physical_block_exp);
		preferred = block_max(preferred, (uint64_t)block * config->min_io_blocks);
	}
	return preferred;
}

static uint32_t front_capabilities(uint64_t features)
{
	bool has_flush = (features & VIRTIO_BLK_FLUSH) != 0;

	if ((features & VIRTIO_BLK_RO) != 0) {
		return has_flush ? GMB_CAN_FLUSH : 0;
	}
	/* Without FLUSH the device is writethrough: each write is durable when it is done. */
	return GMB_CAN_WRITE | (uint32_t)(has_flush ? GMB_CAN_FLUSH : GMB_CAN_FUA) |
	       ((features & VIRTIO_BLK_DISCARD) != 0 ? (uint32_t)GMB_CAN_TRIM : 0) |
	       ((features & VIRTIO_BLK_WRITE_ZEROES) != 0 ? (uint32_t)GMB_CAN_ZERO : 0);
}

static uint64_t range_max(const struct front_carrier *carrier, uint32_t block)
{
	uint32_t sectors = UINT32_MAX;

	if ((carrier->features & VIRTIO_BLK_DISCARD) != 0) {
		sectors = MIN(sectors, carrier->config.discard_sectors_max);
	}
	if ((carrier->features & VIRTIO_BLK_WRITE_ZEROES) != 0) {
		sectors = MIN(sectors, carrier->config.zero_sectors_max);
	}
	return align_down((uint64_t)sectors * BLK_SECTOR_BYTES, block);
}

/* Finds out how much memory a chain can have. Returns the limit on a command's payload. A limit of
 * 0 means none: qemu-storage-daemon offers SIZE_MAX without a value. */
static uint32_t find_segments(struct front_carrier *carrier, uint32_t block)
{
	bool indirect = (carrier->features & VIRTIO_RING_INDIRECT) != 0;
	uint32_t count = indirect ? FRONT_SEGMENTS_MAX : FRONT_DIRECT - 2;
	uint32_t bytes = HUB_COMMAND_BYTES_MAX;

	if ((carrier->features & VIRTIO_BLK_SEG_MAX) != 0 && carrier->config.segments_max > 0) {
		count = MIN(count, carrier->config.segments_max);
	}
	if ((carrier->features & VIRTIO_BLK_SIZE_MAX) != 0 &&
		carrier->config.segment_bytes_max > 0) {
		bytes = MIN(bytes, carrier->config.segment_bytes_max);
	}
	carrier->segments_max = count;
	carrier->segment_bytes_max = bytes;
	return (uint32_t)align_down(
		MIN((uint64_t)count * bytes, (uint64_t)HUB_COMMAND_BYTES_MAX), block);
}

const char *front_facts(struct front_carrier *carrier)
{
	const struct blk_config *config = &carrier->config;
	struct carrier_facts *facts = &carrier->base.facts;
	uint32_t block = (carrier->features & VIRTIO_BLK_BLK_SIZE) != 0 ? config->block_bytes
									: BLK_SECTOR_BYTES;

	if ((carrier->features & VIRTIO_VERSION_1) == 0) {
		return "V6: the server does not offer VIRTIO_F_VERSION_1";
	}
	if (!is_power_of_two(block) || block < BLK_SECTOR_BYTES || block > HUB_COMMAND_BYTES_MAX) {
		return "V7: the block size must be a power of two from 512 bytes to 1 MiB";
	}
	if (config->sectors > INT64_MAX / BLK_SECTOR_BYTES) {
		return "V7: the disk is larger than 2^63 bytes";
	}
	memset(facts, 0, sizeof(*facts));
	facts->bytes = config->sectors * BLK_SECTOR_BYTES;
	facts->capabilities = front_capabilities(carrier->features);
	facts->identity = (uint32_t)(carrier->features & VIRTIO_BLK_RO);
	facts->request_block = block;
	facts->block_minimum = block;
	facts->block_preferred = front_preferred(carrier, block);
	facts->payload_max = find_segments(carrier, block);
	facts->range_max = range_max(carrier, block);
	facts->replies = GMB_REPLIES_PLACED;
	memcpy(facts->name, carrier->target->uri.export_name,
		strlen(carrier->target->uri.export_name) + 1);
	if (facts->payload_max == 0 || facts->range_max == 0) {
		return "V7: the limits of requests are smaller than a block";
	}
	return NULL;
}
