// SPDX-License-Identifier: Apache-2.0
#include "base/identity.h"

#include <stdatomic.h>
#include <stdlib.h>

void identity_get(struct identity *identity)
{
	/* Relaxed: whoever calls has a reference already. */
	atomic_fetch_add_explicit(&identity->references, 1, memory_order_relaxed);
}

void identity_put(struct identity *identity)
{
	/* Acquire-release: what others did with it comes before it is freed. */
	if (identity != NULL &&
		atomic_fetch_sub_explicit(&identity->references, 1, memory_order_acq_rel) == 1) {
		free(identity);
	}
}
