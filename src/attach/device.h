// SPDX-License-Identifier: Apache-2.0
/*
 * What the three kinds of attachment have in common for the daemon that watches over them.
 *
 * Threading: one thread at a time, but for hurry(); the kinds have threads of their own inside.
 * Ownership: start() gives, destroy() frees. Errors: 0 or a negative errno with a sentence.
 */
#pragma once

#include "attach/attach.h"
#include "attach/health.h"

struct device;

struct device_ops {
	const char *kind; /* "ublk", "nbd", "fuse" */

	/* Removes the disk: what was written is flushed to the server. -EBUSY: somebody uses it,
	 * force was not given, and nothing has changed. Any other result: the disk is gone, and an
	 * error says what was lost on the way. */
	int (*stop)(struct device *device, bool force, struct error *error);

	/* While another thread is in stop() without force: it does not wait for the server any
	 * more, and what was not flushed is lost. It may still return -EBUSY, and the disk is there
	 * then, to be stopped by force only. */
	void (*hurry)(struct device *device);

	/* After stop(), or when ended_fd says that the disk is gone. */
	void (*destroy)(struct device *device);
};

struct device {
	const struct device_ops *ops;
	char path[ATTACH_PATH_BYTES]; /* of the disk */
	char name[64];		      /* a file name: "ublkb0", "nbd3", "fuse-1234" */
	int32_t number;		      /* of the kernel's device, or -1 */
	uint64_t bytes;		      /* size of the disk */
	bool read_only;
	bool made_file; /* the file at path was not there before */
	int ended_fd;	/* polls readable when the disk has gone without stop() */
	struct health health;
};

/* The three kinds. *device_out is set on success only: the disk can be used then. */
GMB_MUST_CHECK int ublk_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int nbd_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);
GMB_MUST_CHECK int fuse_device_start(
	const struct attach_options *options, struct device **device_out, struct error *error);

/* For the block devices: a disk has sectors, and its blocks must fit in a page. Sets the device's
 * bytes to the whole blocks of the export, and *block_bytes. -EINVAL: no disk can be made of it. */
GMB_MUST_CHECK int device_fit(struct device *device, uint64_t export_bytes, uint32_t block_minimum,
	uint32_t *block_bytes, struct error *error);

/* Removes what a daemon left that has died: by number (ublk, nbd) or by path (fuse). Something that
 * is gone already is no error; -EBUSY as with stop(). */
GMB_MUST_CHECK int ublk_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int nbd_device_remove(int32_t number, bool force, struct error *error);
GMB_MUST_CHECK int fuse_device_remove(const char *path, bool force, struct error *error);
