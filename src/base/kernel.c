// SPDX-License-Identifier: Apache-2.0
#include "base/kernel.h"

#include <stdio.h>
#include <sys/utsname.h>

bool kernel_is_at_least(uint32_t major, uint32_t minor)
{
	struct utsname names;
	uint32_t own_major;
	uint32_t own_minor;

	if (uname(&names) != 0 || sscanf(names.release, "%u.%u", &own_major, &own_minor) != 2) {
		return false;
	}
	return own_major > major || (own_major == major && own_minor >= minor);
}
