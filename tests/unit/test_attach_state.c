// SPDX-License-Identifier: Apache-2.0
/* The state folder of attachments, where disks of the same name follow each other. */
#include <stdlib.h>
#include <unistd.h>

#include "attach/state.h"
#include "unit.h"

static char folder[] = "/tmp/gmblock-test-state-XXXXXX";

static int folder_make(void **state)
{
	return mkdtemp(folder) != NULL && setenv("GMBLOCK_ATTACH_DIR", folder, 1) == 0 ? 0 : -1;
}

static int folder_remove(void **state)
{
	return rmdir(folder);
}

static int entry_write(int32_t pid)
{
	char uri[] = "nbd://host/export";
	struct state_entry entry = {
		.name = "ublkb0",
		.kind = "ublk",
		.path = "/dev/ublkb0",
		.uri = uri,
		.pid = pid,
		.bytes = 4096,
	};
	struct error error;
	int fd = state_write(&entry, &error);

	assert_true(fd >= 0);
	return fd;
}

static int take_pid(const struct state_entry *entry, void *context)
{
	int32_t *pid = context;

	assert_true(entry->alive);
	*pid = entry->pid;
	return 0;
}

/* Of the only entry; 0: there is none. */
static int32_t pid_listed(void)
{
	struct error error;
	int32_t pid = 0;

	assert_int_equal(state_for_each(take_pid, &pid, &error), 0);
	return pid;
}

TEST(test_the_entry_of_the_next_disk_of_this_name_stays)
{
	int first = entry_write(1);
	int second = entry_write(2);

	state_remove_own("ublkb0", first);
	assert_int_equal(pid_listed(), 2);
	state_remove_own("ublkb0", second);
	assert_int_equal(pid_listed(), 0);
	close(first);
	close(second);
}

TEST(test_an_entry_that_is_gone_is_no_error)
{
	int fd = entry_write(1);

	state_remove("ublkb0");
	state_remove_own("ublkb0", fd);
	assert_int_equal(pid_listed(), 0);
	close(fd);
}

int main(void)
{
	return unit_run(folder_make, folder_remove);
}
