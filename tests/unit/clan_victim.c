// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "clan_victim.h"
#include "unit.h"

static const struct world_kind kinds[] = {
	{ "futex", 0, CLAN_BELL_FUTEX },
	{ "socket", 0, CLAN_BELL_SOCKET },
	{ "passive", CLAN_QUEUE_PASSIVE, CLAN_BELL_AUTO },
};

void world_address(struct world *world)
{
	static unsigned count;

	snprintf(world->address, sizeof(world->address), "shm:@clan-hostile-%d-%u", getpid(),
		count++);
}

/* --- what must not grow ----------------------------------------------------------------------- */

static unsigned count_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(folder);
	while (readdir(folder) != NULL) {
		count++;
	}
	closedir(folder);
	return count;
}

static unsigned count_maps(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned count = 0;
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL) {
		count += strstr(line, "/memfd:clan-") != NULL ||
			 strstr(line, "/memfd:hostile") != NULL;
	}
	fclose(maps);
	return count;
}

void victim_open(struct victim *victim, const struct world_kind *kind,
	const struct clan_conn_options *options)
{
	world_listen(&victim->world, kind, options);
	world_connect(&victim->world, NULL, victim->honest);
	world_settle(&victim->world);
	victim->fds = count_fds();
	victim->maps = count_maps();
}

void honest_still_talk(struct victim *victim)
{
	uint32_t sent = 4711;
	uint32_t got = 0;

	for (int side = 0; side < WORLD_SIDES; side++) {
		assert_int_equal(
			clan_send(victim->honest[side], CLAN_BULK, 1, &sent, sizeof(sent)), 0);
		world_recv(&victim->world, !side, victim->honest[!side], &got, sizeof(got));
		assert_int_equal(got, sent);
	}
}

void nothing_is_left(struct victim *victim)
{
	uint64_t until_ns = clock_now_ns() + WORLD_TIMEOUT_NS;

	while (count_fds() > victim->fds || count_maps() > victim->maps) {
		assert_true(clock_now_ns() < until_ns);
		world_settle(&victim->world);
	}
}

void victim_close(struct victim *victim)
{
	for (int side = 0; side < WORLD_SIDES; side++) {
		world_close_conn(&victim->world, side, victim->honest[side]);
	}
	world_close(&victim->world);
}

void hostile_come(struct victim *victim, struct hostile *hostile)
{
	hostile_open(hostile, victim->world.address);
	world_settle(&victim->world);
}

void wait_for_end(struct victim *victim, struct hostile *hostile)
{
	uint64_t until_ns = clock_now_ns() + WORLD_TIMEOUT_NS;
	uint8_t bytes[4200];

	while (hostile_receive(hostile, bytes, sizeof(bytes)) != 0) {
		assert_true(clock_now_ns() < until_ns);
		world_settle(&victim->world);
	}
}

/* --- memfds -------------------------------------------------------------------------------------
 */

int unsealed_memfd(size_t bytes)
{
	int fd = memfd_create("hostile-other", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

int sealed_memfd(size_t bytes)
{
	int fd = unsealed_memfd(bytes);

	assert_int_equal(fcntl(fd, F_ADD_SEALS,
				 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
		0);
	return fd;
}

int main(void)
{
	return unit_run_kinds(kinds, sizeof(kinds[0]), ARRAY_COUNT(kinds));
}
