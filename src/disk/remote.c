// SPDX-License-Identifier: Apache-2.0
#include "disk/remote.h"

#include <linux/magic.h>
#include <sys/vfs.h>

bool disk_is_remote(int fd)
{
	static const uint32_t types[] = {
		AFS_FS_MAGIC,
		AFS_SUPER_MAGIC,
		CEPH_SUPER_MAGIC,
		CIFS_SUPER_MAGIC,
		CODA_SUPER_MAGIC,
		FUSE_SUPER_MAGIC,
		NFS_SUPER_MAGIC,
		OCFS2_SUPER_MAGIC,
		SMB_SUPER_MAGIC,
		SMB2_SUPER_MAGIC,
		V9FS_MAGIC,
		0x01161970 /* GFS2 */,
		0x0bd00bd0 /* Lustre */,
	};
	struct statfs status;

	if (fstatfs(fd, &status) < 0) {
		return true;
	}
	for (size_t i = 0; i < ARRAY_COUNT(types); i++) {
		if ((uint32_t)status.f_type == types[i]) {
			return true;
		}
	}
	return false;
}
