// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/schema.h"
#include "base/text.h"
#include "engine/rate.h"

static int set_bytes(void *object, const char *text, struct error *error)
{
	struct rate_limits *limits = object;
	uint64_t bytes;

	if (units_parse_bytes(text, &bytes, NULL) < 0 || bytes < RATE_BYTES_MIN ||
		bytes > RATE_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"'%s' is not a rate: expected bytes per second from 1K to 1T, such as "
			"100M, or requests=N",
			quote(text));
	}
	limits->per_second[RATE_BYTES] = bytes;
	return 0;
}

static int set_requests(void *object, const char *text, struct error *error)
{
	struct rate_limits *limits = object;
	uint32_t count = 0;
	int rc = units_parse_count(text, 1, RATE_REQUESTS_MAX, &count, error);

	limits->per_second[RATE_REQUESTS] = count;
	return rc;
}

static const struct field rate_settings[] = {
	{ "bytes", "BYTES", .flags = FIELD_PLACE | FIELD_BARE, .set = set_bytes },
	{ "requests", "N", .set = set_requests },
	{ "burst", "TIME", .type = FIELD_TIME, .min = RATE_BURST_NS_MIN, .max = RATE_BURST_NS_MAX,
		FIELD_IN(struct rate_limits, burst_ns) },
};

int rate_parse(const char *text, struct rate_limits *limits, struct error *error)
{
	struct rate_limits parsed = { .burst_ns = RATE_BURST_NS_DEFAULT };
	int rc;

	if (strcmp(text, "off") == 0) {
		*limits = (struct rate_limits){ 0 };
		return 0;
	}
	rc = field_set_parts(rate_settings, ARRAY_COUNT(rate_settings), &parsed, text, error);
	if (rc == 0 && rate_limits_are_off(&parsed)) {
		rc = error_set(
			error, -EINVAL, "a burst needs a rate; add a rate in bytes, or requests=N");
	}
	if (rc == 0) {
		*limits = parsed;
	}
	return rc;
}

static const char *format_time(char out[UNITS_TEXT_BYTES], uint64_t ns)
{
	static const struct {
		uint64_t ns;
		const char *unit;
	} units[] = { { 1000000000, "s" }, { 1000000, "ms" }, { 1000, "us" }, { 1, "ns" } };
	uint32_t i = 0;

	while (ns % units[i].ns != 0) {
		i++;
	}
	snprintf(out, UNITS_TEXT_BYTES, "%llu%s", (unsigned long long)(ns / units[i].ns),
		units[i].unit);
	return out;
}

const char *rate_format(const struct rate_limits *limits, char out[RATE_TEXT_BYTES])
{
	char bytes[UNITS_TEXT_BYTES] = "";
	char requests[UNITS_TEXT_BYTES] = "";
	char burst[UNITS_TEXT_BYTES];

	if (rate_limits_are_off(limits)) {
		snprintf(out, RATE_TEXT_BYTES, "off");
		return out;
	}
	if (limits->per_second[RATE_BYTES] > 0) {
		units_format_bytes(bytes, limits->per_second[RATE_BYTES]);
	}
	if (limits->per_second[RATE_REQUESTS] > 0) {
		snprintf(requests, sizeof(requests), "%srequests=%llu", bytes[0] != '\0' ? ":" : "",
			(unsigned long long)limits->per_second[RATE_REQUESTS]);
	}
	snprintf(out, RATE_TEXT_BYTES, "%s%s:burst=%s", bytes, requests,
		format_time(burst, limits->burst_ns));
	return out;
}

int rate_parse_memory(const char *text, uint64_t *bytes, struct error *error)
{
	uint64_t parsed = 0;

	if (strcmp(text, "off") != 0 &&
		(units_parse_bytes(text, &parsed, NULL) < 0 || parsed < RATE_MEMORY_MIN ||
			parsed > RATE_MEMORY_MAX)) {
		return error_set(error, -EINVAL,
			"'%s' is neither off nor a size from 2M to 1T, such as 64M", quote(text));
	}
	*bytes = parsed;
	return 0;
}

const char *rate_format_memory(uint64_t bytes, char out[RATE_TEXT_BYTES])
{
	char size[UNITS_TEXT_BYTES];

	snprintf(out, RATE_TEXT_BYTES, "%s", bytes > 0 ? units_format_bytes(size, bytes) : "off");
	return out;
}
