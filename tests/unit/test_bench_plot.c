// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/plot.h"

enum { NESTING_MAX = 16, NAME_BYTES = 32 };

static struct histogram *fresh(void)
{
	struct histogram *histogram = calloc(1, sizeof(*histogram));

	assert_non_null(histogram);
	return histogram;
}

/* One series; the texts are the caller's. */
static struct bench_plot plot_of(const struct histogram *latency, const char *title)
{
	return (struct bench_plot){
		.title = title,
		.subtitle = "s",
		.series = { { "read", latency } },
		.series_count = 1,
	};
}

/* The document; the caller frees it. */
static char *draw(const struct bench_plot *plot)
{
	struct error error = { 0 };
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	if (bench_plot_write(out, plot, &error) != 0) {
		fail_msg("%s", error.text);
	}
	fclose(out);
	assert_int_equal(strlen(text), bytes);
	return text;
}

/* --- a checker for the little XML that is written ------------------------------------------- */

/* Tags nest, attributes are quoted, no byte stands where XML wants a reference. */

static const char *check_reference(const char *p)
{
	const char *end = strchr(p, ';');

	assert_non_null(end);
	assert_true(end - p >= 3 && end - p <= 8);
	for (p++; p < end; p++) {
		assert_true(isalnum((unsigned char)*p) || *p == '#');
	}
	return end + 1;
}

static const char *check_attributes(const char *p)
{
	while (*p == ' ') {
		p++;
		assert_true(isalpha((unsigned char)*p));
		p += strcspn(p, "=<>\" ");
		assert_memory_equal(p, "=\"", 2);
		p += 2;
		while (*p != '"') {
			assert_true(*p != '\0' && *p != '<' && *p != '&');
			p++;
		}
		p++;
	}
	return p;
}

static void check_well_formed(const char *text)
{
	static const char declaration[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
	char open[NESTING_MAX][NAME_BYTES];
	int depth = 0;
	int roots = 0;
	const char *p = text + strlen(declaration);

	assert_memory_equal(text, declaration, strlen(declaration));
	while (*p != '\0') {
		bool closes = p[0] == '<' && p[1] == '/';
		char name[NAME_BYTES] = "";

		if (*p == '&') {
			p = check_reference(p);
			continue;
		}
		if (*p != '<') {
			assert_true((uint8_t)*p >= 0x20 || *p == '\n');
			assert_true(*p != '>');
			assert_true(depth > 0 || isspace((unsigned char)*p));
			p++;
			continue;
		}
		p += closes ? 2 : 1;
		for (int i = 0; isalpha((unsigned char)*p) && i < NAME_BYTES - 1; p++) {
			name[i++] = *p;
		}
		assert_true(name[0] != '\0');
		if (closes) {
			assert_true(depth > 0);
			assert_string_equal(open[--depth], name);
		} else {
			p = check_attributes(p);
			roots += depth == 0;
			if (p[0] == '/') {
				p++;
			} else {
				assert_true(depth < NESTING_MAX);
				memcpy(open[depth++], name, sizeof(name));
			}
		}
		assert_true(*p == '>');
		p++;
	}
	assert_int_equal(depth, 0);
	assert_int_equal(roots, 1);
}

static int count_of(const char *text, const char *piece)
{
	int count = 0;

	while ((text = strstr(text, piece)) != NULL) {
		text += strlen(piece);
		count++;
	}
	return count;
}

/* --- tests --------------------------------------------------------------------------------- */

static void one_series_is_well_formed(void **state)
{
	struct histogram *latency = fresh();
	struct bench_plot plot = plot_of(latency, "title");
	char *text;

	(void)state;
	for (uint64_t i = 1; i <= 1000; i++) {
		histogram_record(latency, i * 1000);
	}
	text = draw(&plot);
	check_well_formed(text);
	assert_int_equal(count_of(text, "class=\"curve\""), 1);
	assert_int_equal(count_of(text, "class=\"area\""), 1);
	assert_non_null(strstr(text, ">title</title>"));
	/* 500 us, to the precision of the buckets. */
	assert_non_null(strstr(text, "read: median 50"));
	assert_non_null(strstr(text, "longest 1 ms"));
	assert_non_null(strstr(text, ">99.9 %</text>"));
	/* The largest bin has about 9 % of the requests. */
	assert_non_null(strstr(text, ">2 %</text>"));
	assert_non_null(strstr(text, ">10 %</text>"));
	assert_null(strstr(text, "nan"));
	assert_null(strstr(text, "inf"));
	free(text);
	free(latency);
}

static void two_series_have_a_curve_each(void **state)
{
	struct histogram *reads = fresh();
	struct histogram *writes = fresh();
	struct bench_plot plot = {
		.title = "",
		.subtitle = "",
		.series = { { "read", reads }, { "write", writes } },
		.series_count = 2,
	};
	char *text;

	(void)state;
	histogram_record(reads, 10);
	histogram_record(writes, UINT64_C(1) << 40);
	text = draw(&plot);
	check_well_formed(text);
	assert_int_equal(count_of(text, "class=\"curve\""), 2);
	assert_int_equal(count_of(text, "class=\"area\""), 2);
	free(text);
	free(reads);
	free(writes);
}

/* A name may come from a server or a command line: any bytes. */
static void hostile_texts_stay_text(void **state)
{
	static const char hostile[] = "</text><script>\x01\x1b[2J & \"quoted\" \xff\xc0\x80 "
				      "\xef\xbf\xbf end";
	struct histogram *latency = fresh();
	struct bench_plot plot = plot_of(latency, hostile);
	char *text;

	(void)state;
	plot.subtitle = hostile;
	plot.series[0].name = hostile;
	histogram_record(latency, 5);
	text = draw(&plot);
	check_well_formed(text);
	assert_null(strstr(text, "<script"));
	assert_non_null(strstr(text, "&lt;script&gt;\\x01\\x1b[2J &amp; "));
	assert_non_null(strstr(text, "\\xff\\xc0\\x80 &#xfffd; end"));
	free(text);
	free(latency);
}

static void a_long_text_is_cut(void **state)
{
	struct histogram *latency = fresh();
	char *title = malloc(100001);
	struct bench_plot plot = plot_of(latency, title);
	char *text;

	(void)state;
	assert_non_null(title);
	memset(title, '<', 100000);
	title[100000] = '\0';
	histogram_record(latency, 5);
	text = draw(&plot);
	check_well_formed(text);
	assert_true(strlen(text) < 50000);
	free(text);
	free(title);
	free(latency);
}

/* Every number is a place on the canvas, whatever the values: one value only, zero, the largest. */
static void extremes_stay_on_the_canvas(void **state)
{
	static const uint64_t values[] = { 0, 1, 7, 999999999, UINT64_MAX };

	(void)state;
	for (size_t i = 0; i < ARRAY_COUNT(values); i++) {
		for (size_t j = i; j < ARRAY_COUNT(values); j++) {
			struct histogram *latency = fresh();
			struct bench_plot plot = plot_of(latency, "t");
			char *text;
			const char *p;

			histogram_record(latency, values[i]);
			histogram_record(latency, values[j]);
			text = draw(&plot);
			check_well_formed(text);
			assert_null(strstr(text, "nan"));
			assert_null(strstr(text, "inf"));
			p = strstr(text, "<path class=\"area\"");
			assert_non_null(p);
			for (p = strstr(p, " d=\"M") + 5; *p != '\0';) {
				char *end;
				double number = strtod(p, &end);

				if (end == p) {
					p++;
					continue;
				}
				if (*p != ' ') {
					assert_true(number >= 0 && number <= 1000);
				}
				p = end;
			}
			free(text);
			free(latency);
		}
	}
}

/* The curve only goes right and up: y grows downwards. */
static void the_curve_is_monotone(void **state)
{
	struct histogram *latency = fresh();
	struct bench_plot plot = plot_of(latency, "t");
	double x_last = 0;
	double y_last = 1e9;
	int points = 0;
	char *text;
	char *p;

	(void)state;
	for (uint64_t i = 0; i < 100000; i++) {
		histogram_record(latency, 20000 + (i * i) % 77777);
	}
	text = draw(&plot);
	p = strstr(text, "class=\"curve\"");
	assert_non_null(p);
	p = strstr(p, " d=\"M") + 5;
	for (;;) {
		double x = strtod(p, &p);
		double y = strtod(p, &p);

		assert_true(x >= x_last && y <= y_last);
		x_last = x;
		y_last = y;
		points++;
		if (*p != 'L') {
			break;
		}
		p++;
	}
	assert_true(*p == '"');
	assert_true(points > 20);
	free(text);
	free(latency);
}

static void ticks_are_round(void **state)
{
	(void)state;
	assert_true(fabs(svg_tick_step(1, 5) / 0.2 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(1.01, 5) / 0.5 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(13, 5) / 5 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(5, 5) / 1 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(26, 5) / 10 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(3e9, 5) / 1e9 - 1) < 1e-9);
	assert_true(fabs(svg_tick_step(0.00042, 5) / 0.0001 - 1) < 1e-9);
}

static void axes_have_round_values_up_to_their_ends(void **state)
{
	const struct svg_panel panel = {
		.left = 100, .right = 200, .bottom = 80, .total_ns = 1170000, .bytes = 300 << 10
	};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	(void)state;
	assert_non_null(out);
	svg_panel_axes(out, &panel);
	fclose(out);
	assert_non_null(strstr(text, ">0</text>"));
	assert_non_null(strstr(text, ">500 \xc2\xb5s</text>"));
	assert_non_null(strstr(text, ">1 ms</text>"));
	assert_null(strstr(text, ">1.5 ms</text>"));
	/* 256 of 300 KiB: 80 - 80 * 256 / 300. */
	assert_non_null(strstr(text, "d=\"M100.0 11.7H200.0\""));
	assert_non_null(strstr(text, ">256 KiB</text>"));
	assert_int_equal(count_of(text, " KiB</text>"), 5);
	assert_int_equal(count_of(text, "class=\"grid\""), 8);
	free(text);
}

static void a_full_disk_is_told(void **state)
{
	struct histogram *latency = fresh();
	struct bench_plot plot = plot_of(latency, "t");
	struct error error = { 0 };
	FILE *out = fopen("/dev/full", "w");

	(void)state;
	assert_non_null(out);
	histogram_record(latency, 5);
	assert_int_equal(bench_plot_write(out, &plot, &error), -ENOSPC);
	assert_int_equal(error.code, -ENOSPC);
	assert_string_equal(error.text, strerror(ENOSPC));
	fclose(out);
	free(latency);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_series_is_well_formed),
		cmocka_unit_test(two_series_have_a_curve_each),
		cmocka_unit_test(hostile_texts_stay_text),
		cmocka_unit_test(a_long_text_is_cut),
		cmocka_unit_test(extremes_stay_on_the_canvas),
		cmocka_unit_test(the_curve_is_monotone),
		cmocka_unit_test(ticks_are_round),
		cmocka_unit_test(axes_have_round_values_up_to_their_ends),
		cmocka_unit_test(a_full_disk_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
