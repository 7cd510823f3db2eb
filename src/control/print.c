// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "control/control.h"

int control_print_json(const json_t *value, size_t flags)
{
	bool has_precision = (flags & JSON_REAL_PRECISION(31)) != 0;
	/* jansson's default of 17 digits shows 0.1 as 0.10000000000000001. */
	char *text = json_dumps(value, has_precision ? flags : flags | JSON_REAL_PRECISION(15));
	int rc = text != NULL ? 0 : -ENOMEM;

	errno = 0;
	if (rc == 0 && !text_print_json(stdout, text)) {
		rc = errno != 0 ? -errno : -EIO;
	}
	free(text);
	return rc;
}
