// SPDX-License-Identifier: Apache-2.0
/* libfuse 3.17 and later, which is linked: the table has all of its calls. See libfuse317/. */
#include "attach/fuse.h"
#include "unit.h"

#if FUSE_VERSION < FUSE_MAKE_VERSION(3, 17)
#error "this is not what is tested"
#endif

TEST(test_every_call_is_there)
{
	struct error error;

	assert_int_equal(fuse_library_load(&error), 0);
#define CALL_CHECK(name) assert_non_null(fuse.name);
	FUSE_CALLS(CALL_CHECK)
#undef CALL_CHECK
}

TEST(test_a_session_can_be_made)
{
	static const struct fuse_lowlevel_ops ops = { 0 };
	char *words[] = { (char[]){ "test" }, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, words);
	struct fuse_session *session;
	struct error error;

	assert_int_equal(fuse_library_load(&error), 0);
	session = fuse.session_new(&args, &ops, sizeof(ops), NULL);
	assert_non_null(session);
	fuse.session_destroy(session);
	fuse.opt_free_args(&args);
}
