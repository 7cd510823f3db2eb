// SPDX-License-Identifier: Apache-2.0
/* A build without the marker source says so, and opens everything else as before. */
#include <errno.h>
#include <string.h>

#include "harness.h"
#include "store/marker.h"
#include "store/store_private.h"

static void test_it_is_not_there(void **state)
{
	const struct store_options options = { .path = "memory:1M" };
	struct store *inner;
	struct store *store = NULL;
	struct error error;

	GMB_UNUSED(state);
	assert_false(store_has_markers());
	assert_int_equal(store_open(&options, &inner, &error), 0);
	assert_int_equal(marker_store_open(inner, "a disk", &store, &error), -ENOTSUP);
	assert_non_null(strstr(error.text, "no marker source"));
	assert_non_null(strstr(error.text, "a disk"));
	assert_null(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_it_is_not_there) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
