// SPDX-License-Identifier: Apache-2.0
/*
 * The wire format of vhost-user-blk: messages on the Unix socket between a front end (a virtual
 * machine monitor) and a back end (a block server), the split rings in the memory of the guest, the
 * requests in these rings, and the record of requests in flight that survives a killed back end.
 * The sources are the virtio specification 1.2 and QEMU's vhost-user specification.
 *
 *   front end ──▶ struct vhost_head, payload, descriptors (SCM_RIGHTS) ──▶ back end
 *
 *   guest memory    desc[n]   struct vring_desc: address, bytes, flags, next
 *                   avail     flags, index, ring[n], used_event     written by the guest
 *                   used      flags, index, ring[n], avail_event    written by the back end
 *
 *   a request is a chain of descriptors: struct blk_head, payload, one byte of status
 *
 * All numbers are little-endian, because only little-endian hosts and devices with
 * VIRTIO_F_VERSION_1 are supported; vhost-user messages use the byte order of the host.
 *
 * Threading: none, only layouts and pure functions. A ring is written by the other side at any
 * time: read each member once, and check the value that was read.
 */
#pragma once

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/compiler.h"

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "layouts are used as they are");

/* --- messages -------------------------------------------------------------------------------- */

enum {
	VHOST_VERSION = 1,
	VHOST_FLAG_VERSION_MASK = 3,
	VHOST_FLAG_REPLY = 1 << 2,
	/* With VHOST_PROTOCOL_REPLY_ACK: the receiver answers with a uint64_t, 0 for success. */
	VHOST_FLAG_NEED_REPLY = 1 << 3,
	VHOST_REGIONS_TABLE_MAX = 8, /* regions in SET_MEM_TABLE, each with a descriptor */
	VHOST_CONFIG_BYTES_MAX = 256,
	VHOST_LOG_PAGE_BYTES = 4096, /* guest memory that one bit of the log describes */
};

struct vhost_head {
	uint32_t request; /* enum vhost_request, or enum vhost_back_request on the back channel */
	uint32_t flags;	  /* version and VHOST_FLAG_* */
	uint32_t bytes;	  /* size of the payload */
};

/* Messages of the front end; those for other devices, and for features that are not offered, are
 * missing. */
enum vhost_request {
	VHOST_GET_FEATURES = 1,
	VHOST_SET_FEATURES = 2,
	VHOST_SET_OWNER = 3,
	VHOST_RESET_OWNER = 4,
	VHOST_SET_MEM_TABLE = 5,
	VHOST_SET_LOG_BASE = 6,
	VHOST_SET_LOG_FD = 7,
	VHOST_SET_VRING_NUM = 8,
	VHOST_SET_VRING_ADDR = 9,
	VHOST_SET_VRING_BASE = 10,
	VHOST_GET_VRING_BASE = 11,
	VHOST_SET_VRING_KICK = 12,
	VHOST_SET_VRING_CALL = 13,
	VHOST_SET_VRING_ERR = 14,
	VHOST_GET_PROTOCOL_FEATURES = 15,
	VHOST_SET_PROTOCOL_FEATURES = 16,
	VHOST_GET_QUEUE_NUM = 17,
	VHOST_SET_VRING_ENABLE = 18,
	VHOST_SET_BACK_REQ_FD = 21,
	VHOST_GET_CONFIG = 24,
	VHOST_SET_CONFIG = 25,
	VHOST_GET_INFLIGHT_FD = 31,
	VHOST_SET_INFLIGHT_FD = 32,
	VHOST_RESET_DEVICE = 34,
	VHOST_GET_MAX_MEM_SLOTS = 36,
	VHOST_ADD_MEM_REG = 37,
	VHOST_REM_MEM_REG = 38,
	VHOST_SET_STATUS = 39,
	VHOST_GET_STATUS = 40,
	VHOST_REQUEST_COUNT
};

/* Messages of the back end, on the channel of SET_BACK_REQ_FD. */
enum vhost_back_request {
	VHOST_BACK_CONFIG_CHANGE = 2,
};

/* Bits of GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES. */
#define VHOST_PROTOCOL_MQ	      BIT64(0)
#define VHOST_PROTOCOL_LOG_SHMFD      BIT64(1)
#define VHOST_PROTOCOL_REPLY_ACK      BIT64(3)
#define VHOST_PROTOCOL_BACK_REQ	      BIT64(5)
#define VHOST_PROTOCOL_CONFIG	      BIT64(9)
#define VHOST_PROTOCOL_INFLIGHT_SHMFD BIT64(12)
#define VHOST_PROTOCOL_RESET_DEVICE   BIT64(13)
#define VHOST_PROTOCOL_MEM_SLOTS      BIT64(15)
#define VHOST_PROTOCOL_STATUS	      BIT64(16)

/* SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR: the low byte is the index of the queue. */
#define VHOST_VRING_INDEX_MASK UINT64_C(0xff)
#define VHOST_VRING_NO_FD      BIT64(8) /* the message has no descriptor */

/* SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE. */
struct vhost_vring_state {
	uint32_t index;
	uint32_t number; /* entries, index in the avail ring, or 1 for enabled */
};

enum { VHOST_VRING_LOG = 1 }; /* flag: writes to the used ring are logged */

/* SET_VRING_ADDR. Addresses are in the address space of the front end, except `log`. */
struct vhost_vring_address {
	uint32_t index;
	uint32_t flags;
	uint64_t desc;
	uint64_t used;
	uint64_t avail;
	uint64_t log; /* guest address of the used ring, for the log */
};

struct vhost_region {
	uint64_t guest_address;
	uint64_t bytes;
	uint64_t user_address; /* in the address space of the front end */
	uint64_t file_offset;
};

struct vhost_memory_table { /* SET_MEM_TABLE */
	uint32_t count;
	uint32_t padding;
	struct vhost_region regions[VHOST_REGIONS_TABLE_MAX]; /* count are sent */
};

struct vhost_memory_region { /* ADD_MEM_REG with a descriptor, REM_MEM_REG */
	uint64_t padding;
	struct vhost_region region;
};

struct vhost_log { /* SET_LOG_BASE with a descriptor */
	uint64_t bytes;
	uint64_t file_offset;
};

struct vhost_config { /* GET_CONFIG, SET_CONFIG; `bytes` bytes of data follow */
	uint32_t offset;
	uint32_t bytes;
	uint32_t flags;
};

struct vhost_inflight { /* GET_INFLIGHT_FD, SET_INFLIGHT_FD with a descriptor */
	uint64_t bytes;
	uint64_t file_offset;
	uint16_t queue_count;
	uint16_t queue_entries;
	uint8_t padding[4]; /* QEMU and others send it */
};

_Static_assert(sizeof(struct vhost_head) == 12, "wire layout");
_Static_assert(sizeof(struct vhost_vring_state) == 8, "wire layout");
_Static_assert(sizeof(struct vhost_vring_address) == 40, "wire layout");
_Static_assert(sizeof(struct vhost_region) == 32, "wire layout");
_Static_assert(sizeof(struct vhost_memory_table) == 8 + 8 * 32, "wire layout");
_Static_assert(sizeof(struct vhost_memory_region) == 40, "wire layout");
_Static_assert(sizeof(struct vhost_log) == 16, "wire layout");
_Static_assert(sizeof(struct vhost_config) == 12, "wire layout");
_Static_assert(sizeof(struct vhost_inflight) == 24, "wire layout");

enum {
	VHOST_HEAD_BYTES = 12,
	VHOST_PAYLOAD_BYTES_MAX = 12 + VHOST_CONFIG_BYTES_MAX, /* GET_CONFIG is the longest */
};
_Static_assert(sizeof(struct vhost_memory_table) <= VHOST_PAYLOAD_BYTES_MAX, "longest message");

/* --- features of the device ------------------------------------------------------------------ */

#define VIRTIO_BLK_SIZE_MAX	BIT64(1)
#define VIRTIO_BLK_SEG_MAX	BIT64(2)
#define VIRTIO_BLK_RO		BIT64(5)
#define VIRTIO_BLK_BLK_SIZE	BIT64(6)
#define VIRTIO_BLK_FLUSH	BIT64(9)
#define VIRTIO_BLK_TOPOLOGY	BIT64(10)
#define VIRTIO_BLK_CONFIG_WCE	BIT64(11)
#define VIRTIO_BLK_MQ		BIT64(12)
#define VIRTIO_BLK_DISCARD	BIT64(13)
#define VIRTIO_BLK_WRITE_ZEROES BIT64(14)
#define VHOST_LOG_ALL		BIT64(26) /* log every write to guest memory */
#define VIRTIO_RING_INDIRECT	BIT64(28)
#define VIRTIO_RING_EVENT_IDX	BIT64(29)
#define VHOST_PROTOCOL_FEATURES BIT64(30) /* GET_PROTOCOL_FEATURES can be used */
#define VIRTIO_VERSION_1	BIT64(32)

enum { VIRTIO_STATUS_DRIVER_OK = 4, VIRTIO_STATUS_FEATURES_OK = 8 }; /* SET_STATUS */

/* Configuration space of a virtio-blk device, for GET_CONFIG. Sectors have 512 bytes. */
struct blk_config {
	uint64_t sectors; /* size of the disk */
	uint32_t segment_bytes_max;
	uint32_t segments_max;
	uint8_t geometry[4];
	uint32_t block_bytes;
	uint8_t physical_block_exp;
	uint8_t alignment_offset;
	uint16_t min_io_blocks;
	uint32_t opt_io_blocks;
	uint8_t writeback; /* 1: writes need FLUSH to be durable; 0: writethrough */
	uint8_t unused0;
	uint16_t queue_count;
	uint32_t discard_sectors_max;
	uint32_t discard_segments_max;
	uint32_t discard_alignment_sectors;
	uint32_t zero_sectors_max;
	uint32_t zero_segments_max;
	uint8_t zero_may_unmap;
	uint8_t unused1[3];
};
_Static_assert(sizeof(struct blk_config) == 64, "wire layout"); /* 4 bytes are padding */
enum { BLK_CONFIG_BYTES = 60 };
_Static_assert(offsetof(struct blk_config, writeback) == 32, "wire layout");
_Static_assert(offsetof(struct blk_config, discard_sectors_max) == 36, "wire layout");
_Static_assert(offsetof(struct blk_config, zero_may_unmap) == 56, "wire layout");

/* --- requests -------------------------------------------------------------------------------- */

enum { BLK_SECTOR_BYTES = 512, BLK_ID_BYTES = 20 };

enum blk_type {
	BLK_READ = 0,
	BLK_WRITE = 1,
	BLK_FLUSH = 4,
	BLK_GET_ID = 8,
	BLK_DISCARD = 11,
	BLK_WRITE_ZEROES = 13,
};

struct blk_head {
	uint32_t type;
	uint32_t priority;
	uint64_t sector;
};
_Static_assert(sizeof(struct blk_head) == 16, "wire layout");

struct blk_range { /* payload of DISCARD and WRITE_ZEROES */
	uint64_t sector;
	uint32_t sectors;
	uint32_t flags;
};
_Static_assert(sizeof(struct blk_range) == 16, "wire layout");
enum { BLK_RANGE_UNMAP = 1 }; /* WRITE_ZEROES may leave a hole */

enum blk_status { BLK_OK = 0, BLK_IO_ERROR = 1, BLK_UNSUPPORTED = 2 };

/* --- split rings ----------------------------------------------------------------------------- */

enum { VRING_DESC_NEXT = 1, VRING_DESC_WRITE = 2, VRING_DESC_INDIRECT = 4 };

struct vring_desc {
	uint64_t address; /* in the guest */
	uint32_t bytes;
	uint16_t flags;
	uint16_t next;
};
_Static_assert(sizeof(struct vring_desc) == 16, "wire layout");

enum { VRING_AVAIL_NO_INTERRUPT = 1, VRING_USED_NO_NOTIFY = 1 };

struct vring_avail {
	uint16_t flags;
	uint16_t index;
	uint16_t ring[]; /* n entries, then used_event */
};

struct vring_used_element {
	uint32_t head;
	uint32_t bytes; /* bytes that were written to the chain */
};

struct vring_used {
	uint16_t flags;
	uint16_t index;
	struct vring_used_element ring[]; /* n entries, then avail_event (16 bits) */
};

/* Sizes of the parts of a ring with n entries, with the event indices. */
static inline uint64_t vring_desc_bytes(uint32_t entries)
{
	return sizeof(struct vring_desc) * (uint64_t)entries;
}

static inline uint64_t vring_avail_bytes(uint32_t entries)
{
	return sizeof(struct vring_avail) + sizeof(uint16_t) * ((uint64_t)entries + 1);
}

static inline uint64_t vring_used_bytes(uint32_t entries)
{
	return sizeof(struct vring_used) + sizeof(struct vring_used_element) * (uint64_t)entries +
	       sizeof(uint16_t);
}

/* Returns whether the step from old_index to new_index passes event, the index at which the other
 * side wants to be notified. */
static inline bool vring_needs_event(uint16_t event, uint16_t new_index, uint16_t old_index)
{
	return (uint16_t)(new_index - event - 1) < (uint16_t)(new_index - old_index);
}

/* --- record of requests in flight ------------------------------------------------------------ */

/*
 * The file of GET_INFLIGHT_FD and SET_INFLIGHT_FD: a record for each queue, each a multiple of
 * INFLIGHT_ALIGNMENT in size. The back end creates it zeroed and the front end keeps it. To add
 * used elements, the back end links the batch in last_batch_head, writes the elements and the index
 * of the used ring, then clears in_flight and sets used_index. After a crash, used_index differs
 * from the index of the used ring if the last batch was not cleared.
 */
enum { INFLIGHT_VERSION = 1, INFLIGHT_ALIGNMENT = 64 };

struct inflight_desc {
	uint8_t in_flight; /* 1: the chain with this head was taken and is not used yet */
	uint8_t padding[5];
	uint16_t next;	  /* next head of the last batch */
	uint64_t counter; /* order in which chains were taken */
};
_Static_assert(sizeof(struct inflight_desc) == 16, "wire layout");

struct inflight_queue {
	uint64_t features; /* 0 */
	uint16_t version;  /* INFLIGHT_VERSION; 0: the record was not used yet */
	uint16_t desc_count;
	uint16_t last_batch_head;
	uint16_t used_index;
	struct inflight_desc desc[];
};
_Static_assert(sizeof(struct inflight_queue) == 16, "wire layout");

/* Returns the size of the record of a queue. */
static inline uint64_t inflight_queue_bytes(uint32_t entries)
{
	uint64_t bytes =
		sizeof(struct inflight_queue) + sizeof(struct inflight_desc) * (uint64_t)entries;

	return align_up(bytes, INFLIGHT_ALIGNMENT);
}
