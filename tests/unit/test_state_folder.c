// SPDX-License-Identifier: Apache-2.0
/* The state folder of a server: who has it, in an upgrade too, and its files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "server/config/config.h"
#include "server/fence/list.h"
#include "server/state_folder.h"
#include "unit.h"

static char place[] = "/tmp/gmblock-state-XXXXXX";
static char *large; /* one byte longer than a file can be */

static int create_place(void **state)
{
	log_set_level(LOG_LEVEL_ERROR);
	unsetenv("STATE_DIRECTORY");
	large = malloc(STATE_FILE_BYTES_MAX + 1);
	if (large != NULL) {
		memset(large, 'x', STATE_FILE_BYTES_MAX + 1);
	}
	return large == NULL || mkdtemp(place) == NULL ? -1 : 0;
}

static int remove_place(void **state)
{
	char path[64];

	free(large);
	snprintf(path, sizeof(path), "%s/file", place);
	(void)unlink(path);
	return rmdir(place);
}

static int open_place(struct state_folder *folder, bool is_named, bool is_taking)
{
	const struct server_config config = { .state_folder = is_named ? place : NULL };
	struct error error;

	return state_folder_open(&config, is_taking, folder, &error);
}

static void check_file(const struct state_folder *folder, const char *expected)
{
	char *text;
	size_t bytes;

	assert_int_equal(state_folder_read(folder, "file", &text, &bytes), 0);
	assert_int_equal(bytes, strlen(expected));
	assert_string_equal(text, expected);
	free(text);
}

/* What can be written can be read, and nothing else replaces a file. */
TEST(test_files)
{
	struct state_folder folder;
	struct error error;
	char *text;
	size_t bytes;

	assert_int_equal(open_place(&folder, true, false), 0);
	assert_int_equal(state_folder_read(&folder, "file", &text, &bytes), -ENOENT);
	assert_int_equal(
		state_folder_replace(&folder, "file", large, STATE_FILE_BYTES_MAX, &error), 0);
	assert_int_equal(state_folder_read(&folder, "file", &text, &bytes), 0);
	assert_int_equal(bytes, STATE_FILE_BYTES_MAX);
	assert_memory_equal(text, large, bytes);
	free(text);
	assert_int_equal(state_folder_replace(&folder, "file", "old", 3, &error), 0);
	assert_int_equal(
		state_folder_replace(&folder, "file", large, STATE_FILE_BYTES_MAX + 1, &error),
		-EFBIG);
	assert_non_null(strstr(error.text, "/file: File too large"));
	check_file(&folder, "old");
	state_folder_close(&folder);
}

/* The data, and then the name, are flushed. These files and folders cannot be flushed, and
 * otherwise behave like others. */
TEST(test_a_replaced_file_is_durable)
{
	struct state_folder folder;
	struct error error;
	char fifo[64];
	int reader;

	assert_int_equal(open_place(&folder, true, false), 0);
	assert_int_equal(state_folder_replace(&folder, "file", "old", 3, &error), 0);
	snprintf(fifo, sizeof(fifo), "%s/file.new", place);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	reader = open(fifo, O_RDONLY | O_NONBLOCK);
	assert_true(reader >= 0);
	assert_int_equal(state_folder_replace(&folder, "file", "new", 3, &error), -EINVAL);
	close(reader);
	assert_int_equal(unlink(fifo), 0);
	check_file(&folder, "old");
	close(folder.fd);
	folder.fd = open(place, O_PATH | O_DIRECTORY);
	assert_int_equal(state_folder_replace(&folder, "file", "new", 3, &error), -EBADF);
	state_folder_close(&folder);
}

/* A folder that was given belongs to one server. One of the environment is not worth a failure. */
TEST(test_two_servers)
{
	struct state_folder first;
	struct state_folder second;
	struct error error;

	assert_int_equal(open_place(&first, false, false), 0);
	assert_int_equal(first.fd, -1);
	state_folder_close(&first);
	setenv("STATE_DIRECTORY", place, 1);
	assert_int_equal(open_place(&first, false, false), 0);
	assert_true(first.fd >= 0);
	assert_int_equal(open_place(&second, false, false), 0);
	assert_int_equal(second.fd, -1);
	state_folder_close(&second);
	assert_int_equal(open_place(&second, true, false), -EBUSY);
	state_folder_close(&second);
	state_folder_close(&first);
	/* Another server uses the folder, and it has fenced nodes. */
	setenv("STATE_DIRECTORY", place, 1);
	assert_int_equal(open_place(&first, false, false), 0);
	assert_int_equal(state_folder_replace(&first, fence_list_file, "", 0, &error), 0);
	assert_int_equal(open_place(&second, false, false), -EBUSY);
	state_folder_close(&second);
	assert_int_equal(unlinkat(first.fd, fence_list_file, 0), 0);
	state_folder_close(&first);
	/* The folder cannot be read. */
	setenv("STATE_DIRECTORY", "/dev/null", 1);
	assert_int_equal(open_place(&first, false, false), -ENOTDIR);
	state_folder_close(&first);
	setenv("STATE_DIRECTORY", "/nowhere", 1);
	assert_int_equal(open_place(&first, false, false), 0);
	assert_int_equal(first.fd, -1);
	state_folder_close(&first);
	unsetenv("STATE_DIRECTORY");
}

/* The new process writes when it serves. The lock has no gap. */
TEST(test_an_upgrade)
{
	struct state_folder old;
	struct state_folder new;
	struct state_folder third;
	struct error error;

	assert_int_equal(open_place(&old, true, false), 0);
	assert_int_equal(state_folder_replace(&old, "file", "old", 3, &error), 0);
	assert_int_equal(open_place(&new, true, true), 0);
	assert_int_equal(state_folder_inherit(&new, dup(old.fd), &error), 0);
	check_file(&new, "old");
	assert_int_equal(state_folder_replace(&new, "file", "new", 3, &error), -EBUSY);
	state_folder_close(&old);
	assert_int_equal(open_place(&third, true, false), -EBUSY);
	state_folder_close(&third);
	state_folder_take_over(&new);
	assert_int_equal(state_folder_replace(&new, "file", "new", 3, &error), 0);
	check_file(&new, "new");
	state_folder_close(&new);
}

TEST(test_refused_upgrades)
{
	struct state_folder old;
	struct state_folder new;
	struct error error;

	assert_int_equal(open_place(&old, true, false), 0);
	/* a third server has the folder */
	assert_int_equal(open_place(&new, true, true), 0);
	assert_int_equal(state_folder_inherit(&new, -1, &error), -EBUSY);
	state_folder_close(&new);
	/* the new process has none */
	assert_int_equal(open_place(&new, false, true), 0);
	assert_int_equal(state_folder_inherit(&new, dup(old.fd), &error), -EBUSY);
	assert_non_null(strstr(error.text, "has a state folder"));
	state_folder_close(&new);
	/* the new process has another one */
	setenv("STATE_DIRECTORY", "/tmp", 1);
	assert_int_equal(open_place(&new, false, true), 0);
	assert_int_equal(state_folder_inherit(&new, dup(old.fd), &error), -EBUSY);
	assert_non_null(strstr(error.text, "has another state folder"));
	state_folder_close(&new);
	unsetenv("STATE_DIRECTORY");
	state_folder_close(&old);
}

int main(void)
{
	return unit_run(create_place, remove_place);
}
