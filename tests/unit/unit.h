// SPDX-License-Identifier: Apache-2.0
/*
 * Unit tests, which cmocka runs. TEST defines a test and registers it:
 *
 *   TEST(a_gain_is_kept)
 *   {
 *           assert_int_equal(growth_cancel(&growth), GROWTH_STAY);
 *   }
 *
 * The main() of unit_main.c runs the tests of the program, in the order of their definitions. A
 * program that has a main() calls unit_run() there.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Defines a test that runs between set_up and tear_down, as in cmocka_unit_test_setup_teardown().
 * The test can use cmocka's argument, `state`. */
#define TEST_WITH(name, set_up, tear_down)                                                         \
	static void name(void **state);                                                            \
	__attribute__((constructor)) static void unit_add_##name(void)                             \
	{                                                                                          \
		unit_add(&(struct CMUnitTest){ #name, name, set_up, tear_down, NULL });            \
	}                                                                                          \
	static void name(void **state)

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* Registers a test, which is copied. Called before main(). */
void unit_add(const struct CMUnitTest *test);

/* Runs all tests between begin and finish, each of which can be NULL. Returns the number of failed
 * tests, which is the exit status of the program. */
int unit_run(CMFixtureFunction begin, CMFixtureFunction finish);

/* Runs all tests for each element of an array, which is the `state` of the tests and begins with
 * its name (const char *). Names of tests are "KIND: TEST". Returns the number of failed tests. */
int unit_run_kinds(const void *kinds, size_t kind_bytes, size_t kind_count);
