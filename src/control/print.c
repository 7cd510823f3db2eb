// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "control/control.h"

int control_print_json(const json_t *value, size_t flags)
{
	char *text = json_dumps(value, flags);
	int rc = text != NULL ? 0 : -ENOMEM;

	errno = 0;
	if (rc == 0 && !text_print_json(stdout, text)) {
		rc = errno != 0 ? -errno : -EIO;
	}
	free(text);
	return rc;
}
