// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "engine/rate.h"

static int parse_bytes(struct rate_limits *limits, const char *text, struct error *error)
{
	char shown[RATE_TEXT_BYTES];
	uint64_t bytes;

	if (units_parse_bytes(text, &bytes, NULL) < 0 || bytes < RATE_BYTES_MIN ||
		bytes > RATE_BYTES_MAX) {
		return error_set(error, -EINVAL,
			"'%s' is not a rate: expected bytes per second from 1K to 1T, such as "
			"100M, or requests=N",
			log_escape(shown, sizeof(shown), text, strlen(text)));
	}
	limits->per_second[RATE_BYTES] = bytes;
	return 0;
}

static int parse_requests(struct rate_limits *limits, const char *text, struct error *error)
{
	uint32_t count;
	int rc = units_parse_count(text, 1, RATE_REQUESTS_MAX, &count, error);

	if (rc == 0) {
		limits->per_second[RATE_REQUESTS] = count;
	}
	return rc;
}

static int parse_burst(struct rate_limits *limits, const char *text, struct error *error)
{
	int rc = units_parse_time(text, &limits->burst_ns, error);

	if (rc == 0 &&
		(limits->burst_ns < RATE_BURST_NS_MIN || limits->burst_ns > RATE_BURST_NS_MAX)) {
		char shown[RATE_TEXT_BYTES];

		return error_set(error, -ERANGE,
			"'%s' is not a burst: expected a time from 10ms to 60s",
			log_escape(shown, sizeof(shown), text, strlen(text)));
	}
	return rc;
}

static int rate_text_parse_part(
	struct rate_limits *limits, const char *part, uint32_t *given, struct error *error)
{
	static const struct {
		const char *key; /* the key, including its '=' */
		int (*parse)(struct rate_limits *limits, const char *text, struct error *error);
	} keys[] = {
		{ "requests=", parse_requests },
		{ "burst=", parse_burst },
		{ "", parse_bytes },
	};
	uint32_t i = 0;

	while (strncmp(part, keys[i].key, strlen(keys[i].key)) != 0) {
		i++;
	}
	if (keys[i].key[0] == '\0' && strchr(part, '=') != NULL) {
		char shown[RATE_TEXT_BYTES];

		return error_set(error, -EINVAL,
			"'%s' is unknown in a rate: expected bytes per second, requests=N or "
			"burst=TIME",
			log_escape(shown, sizeof(shown), part, strlen(part)));
	}
	if ((*given & BIT(i)) != 0) {
		return error_set(error, -EINVAL, "%s is given twice",
			keys[i].key[0] != '\0' ? keys[i].key : "the rate in bytes");
	}
	*given |= BIT(i);
	return keys[i].parse(limits, part + strlen(keys[i].key), error);
}

int rate_parse(const char *text, struct rate_limits *limits, struct error *error)
{
	struct rate_limits parsed = { .burst_ns = RATE_BURST_NS_DEFAULT };
	char copy[RATE_TEXT_BYTES];
	char *rest = copy;
	char *part;
	uint32_t given = 0;

	if (strcmp(text, "off") == 0) {
		*limits = (struct rate_limits){ 0 };
		return 0;
	}
	if (strlen(text) >= sizeof(copy)) {
		return error_set(error, -EINVAL, "the text is too long for a rate");
	}
	memcpy(copy, text, strlen(text) + 1);
	while ((part = strsep(&rest, ":")) != NULL) {
		int rc = rate_text_parse_part(&parsed, part, &given, error);

		if (rc < 0) {
			return rc;
		}
	}
	if (rate_limits_are_off(&parsed)) {
		return error_set(
			error, -EINVAL, "a burst needs a rate; add a rate in bytes, or requests=N");
	}
	*limits = parsed;
	return 0;
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
	char shown[RATE_TEXT_BYTES];
	uint64_t parsed = 0;

	if (strcmp(text, "off") != 0 &&
		(units_parse_bytes(text, &parsed, NULL) < 0 || parsed < RATE_MEMORY_MIN ||
			parsed > RATE_MEMORY_MAX)) {
		return error_set(error, -EINVAL,
			"'%s' is neither off nor a size from 2M to 1T, such as 64M",
			log_escape(shown, sizeof(shown), text, strlen(text)));
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
