// SPDX-License-Identifier: Apache-2.0
#include "base/lease_watch.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/compiler.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

enum {
	INTERVAL_SHARE = 32, /* of the time of the lease */
	/* A server ends the connection of a client that neither sends nor acknowledges a byte for
	 * this time (docs/design/0011-sharing.md). Then the time of the lease begins. */
	SERVER_PATIENCE_MS = 30000,
	/* Shorter leases do without the real-time clock, which counts seconds. Reading it takes up
	 * to a millisecond. */
	RTC_LEASE_MS_MIN = 10000,
};

void lease_watch_init(struct lease_watch *watch, const struct lease_watch_times *times)
{
	uint64_t interval_ms = times->lease_ms / INTERVAL_SHARE + 1;
	uint64_t stop_ms = MIN(times->lease_ms / 2, (uint64_t)SERVER_PATIENCE_MS);
	uint64_t late_ms =
		MAX(times->request_ms, (uint64_t)SERVER_PATIENCE_MS) - SERVER_PATIENCE_MS;

	/* A slow attempt to connect is no stop. */
	stop_ms = MAX(stop_ms, times->connect_ms + 2 * interval_ms);
	*watch = (struct lease_watch){
		.interval_ns = interval_ms * NS_PER_MS,
		.stop_ns = stop_ms * NS_PER_MS,
		.left_ns = (times->lease_ms - MIN(late_ms, times->lease_ms)) * NS_PER_MS,
		.wants_rtc = times->lease_ms >= RTC_LEASE_MS_MIN,
	};
}

/* Returns the real-time clock of the machine in seconds, or 0 if there is none. */
static uint64_t read_rtc(void)
{
	int fd = open("/sys/class/rtc/rtc0/since_epoch", O_RDONLY | O_CLOEXEC);
	char text[24];
	ssize_t bytes = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0) {
		close(fd);
	}
	text[MAX(bytes, 0)] = '\0';
	return strtoull(text, NULL, 10);
}

struct lease_moment lease_watch_moment(const struct lease_watch *watch, uint64_t now_ns)
{
	return (struct lease_moment){ now_ns, watch->wants_rtc ? read_rtc() : 0 };
}

/* Returns how long ago a moment was. */
static uint64_t passed_ns(const struct lease_moment *from, const struct lease_moment *now)
{
	uint64_t ns = now->now_ns - from->now_ns;
	uint64_t rtc_ns = now->rtc_s > from->rtc_s ? (now->rtc_s - from->rtc_s) * NS_PER_S : 0;

	/* Two readings of seconds can be one second more or less apart than they say. After a
	 * pause, the longer time counts. */
	return from->rtc_s != 0 && rtc_ns > ns + NS_PER_S ? rtc_ns + NS_PER_S : ns;
}

void lease_watch_accept(struct lease_watch *watch, const struct lease_moment *started)
{
	for (size_t i = 0; i < ARRAY_COUNT(watch->looks); i++) {
		if (started->now_ns > watch->looks[i].now_ns) {
			watch->looks[i] = *started;
		}
	}
	if (started->now_ns > watch->doubt.now_ns) {
		watch->doubt = *started;
	}
}

bool lease_watch_look(struct lease_watch *watch, const struct lease_moment *now)
{
	if (passed_ns(&watch->looks[1], now) >= watch->stop_ns) {
		return false; /* the outage begins before the stop */
	}
	watch->looks[0] = watch->looks[1];
	watch->looks[1] = *now;
	return true;
}

bool lease_watch_check(struct lease_watch *watch, uint64_t now_ns)
{
	struct lease_moment now;

	if (watch->interval_ns == 0 || now_ns - watch->looks[1].now_ns < watch->interval_ns) {
		return true;
	}
	now = lease_watch_moment(watch, now_ns);
	return lease_watch_look(watch, &now);
}

int lease_watch_poll_ms(const struct lease_watch *watch)
{
	return watch->interval_ns != 0 ? (int)(watch->interval_ns / NS_PER_MS) : -1;
}

void lease_watch_doubt(struct lease_watch *watch)
{
	watch->doubt = watch->looks[0];
}

bool lease_watch_is_over(
	const struct lease_watch *watch, bool in_outage, const struct lease_moment *now)
{
	return passed_ns(in_outage ? &watch->doubt : &watch->looks[0], now) >= watch->left_ns;
}
