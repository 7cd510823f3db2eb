// SPDX-License-Identifier: Apache-2.0
/* Connections to the kernel's nbd driver that cannot be made; the guests have those that can. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "attach/nbd_kernel.h"
#include "attach/process.h"
#include "unit.h"

void process_load_module(const char *name)
{
}

TEST(no_descriptor_is_left)
{
	struct rlimit limit;
	struct rlimit before;
	struct netlink netlink;
	struct error error = { 0 };
	int lowest = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);

	assert_true(lowest >= 0);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	limit = (struct rlimit){ (rlim_t)lowest, before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(nbd_kernel_open(&netlink, &error), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_string_equal(error.text, "cannot query the nbd driver: Too many open files");
	nbd_kernel_close(&netlink); /* no-op */
}
