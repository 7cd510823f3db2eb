// SPDX-License-Identifier: Apache-2.0
/*
 * Compiler attributes, assertions and the few macros that a function cannot replace.
 *
 * Threading: no state. Errors: a failed assertion logs the condition once and aborts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GMB_MUST_CHECK	 __attribute__((warn_unused_result))
#define GMB_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define GMB_NORETURN	 __attribute__((noreturn))
#define GMB_COLD	 __attribute__((cold))

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define ARRAY_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define BIT(n)	       (UINT32_C(1) << (n))
#define BIT64(n)       (UINT64_C(1) << (n))

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#define MIN(a, b)                                                                                  \
	({                                                                                         \
		__typeof__(a) a_ = (a);                                                            \
		__typeof__(b) b_ = (b);                                                            \
		a_ < b_ ? a_ : b_;                                                                 \
	})
#define MAX(a, b)                                                                                  \
	({                                                                                         \
		__typeof__(a) a_ = (a);                                                            \
		__typeof__(b) b_ = (b);                                                            \
		a_ > b_ ? a_ : b_;                                                                 \
	})

/* Logs the broken condition and aborts. Data from a peer must never cause this. */
GMB_NORETURN GMB_COLD void gmb_assert_fail(
	const char *condition, const char *file, int line, const char *function);

/* Checks one condition, also in release builds. A check fails only because of a programming error,
 * never because of data from a peer. */
#define GMB_ASSERT(cond)                                                                           \
	do {                                                                                       \
		if (unlikely(!(cond))) {                                                           \
			gmb_assert_fail(#cond, __FILE__, __LINE__, __func__);                      \
		}                                                                                  \
	} while (0)

/* Marks a result that is ignored. A parameter that is not used needs no mark. */
#define GMB_UNUSED(x) ((void)(x))
