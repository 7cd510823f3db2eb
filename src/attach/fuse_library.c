// SPDX-License-Identifier: Apache-2.0
#include "attach/fuse.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

struct fuse_calls fuse;

#if FUSE_VERSION < FUSE_MAKE_VERSION(3, 17)

static int fuse_library_find(void *library, const char *name, void *call, struct error *error)
{
	void *found = dlsym(library, name);

	if (found == NULL) {
		return error_set(error, -ENOSYS, "libfuse has no %s: %s", name, dlerror());
	}
	memcpy(call, &found, sizeof(found)); /* C cannot cast void * to a function */
	return 0;
}

int fuse_library_load(struct error *error)
{
	void *library = dlopen("libfuse3.so.3", RTLD_NOW | RTLD_LOCAL);
	int rc = 0;

	if (library == NULL) {
		return error_set(
			error, -ENOENT, "cannot load libfuse 3, which --fuse needs: %s", dlerror());
	}
#define CALL_FIND(name)                                                                            \
	if (rc == 0) {                                                                             \
		rc = fuse_library_find(library, "fuse_" #name, &fuse.name, error);                 \
	}
	FUSE_CALLS(CALL_FIND)
#undef CALL_FIND
	return rc;
}

#else

int fuse_library_load(struct error *error)
{
#define CALL_TAKE(name) fuse.name = fuse_##name;
	FUSE_CALLS(CALL_TAKE)
#undef CALL_TAKE
	return 0;
}

#endif
