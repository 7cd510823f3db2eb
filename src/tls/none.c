// SPDX-License-Identifier: Apache-2.0
/*
 * TLS in a build without GnuTLS. Loading credentials and creating a pool fail, so the functions
 * that need credentials or a pool cannot be called.
 */
#include <errno.h>

#include "tls/kernel.h"
#include "tls/layer.h"

#define REFUSAL "gmblock was built without TLS"

const struct stream_ops tls_stream_ops;

/* --- what is refused ------------------------------------------------------------------------- */

int tls_context_load(
	const struct tls_options *options, struct tls_context **context_out, struct error *error)
{
	*context_out = NULL;
	return error_set(error, -EOPNOTSUPP, REFUSAL);
}

int tls_pool_create(
	const struct tls_pool_options *options, struct tls_pool **pool_out, struct error *error)
{
	*pool_out = NULL;
	return error_set(error, -EOPNOTSUPP, REFUSAL);
}

const struct tls_kernel_features *tls_kernel_features(void)
{
	static const struct tls_kernel_features none = { .why_not = { .code = -EOPNOTSUPP,
								 .text = REFUSAL } };

	return &none;
}

int tls_layer_adopt(const struct tls_layer_options *options, struct stream *stream,
	const uint8_t *bytes, uint32_t count, struct error *error)
{
	return error_set(error, -EOPNOTSUPP, REFUSAL);
}

/* --- no-ops with NULL ------------------------------------------------------------------------ */

void tls_context_put(struct tls_context *context)
{
	GMB_ASSERT(context == NULL);
}

void tls_pool_destroy(struct tls_pool *pool)
{
	GMB_ASSERT(pool == NULL);
}

/* --- functions that need credentials, a pool or a layer --------------------------------------- */

#define NEVER(function)                                                                            \
	function                                                                                   \
	{                                                                                          \
		gmb_assert_fail("TLS", __FILE__, __LINE__, __func__);                              \
	}

NEVER(void tls_context_get(struct tls_context *context))
NEVER(bool tls_context_is_stale(const struct tls_context *context))
NEVER(const char *tls_context_file(const struct tls_context *context, uint32_t idx))
NEVER(const char *tls_context_changed_file(
	const struct tls_context *before, const struct tls_context *after, uint32_t *idx))
NEVER(int tls_context_recheck(
	struct tls_context *context, const struct identity *identity, struct error *error))
NEVER(const char *tls_context_warning(const struct tls_context *context, uint32_t idx))
NEVER(void tls_pool_synchronize(struct tls_pool *pool))
NEVER(int tls_layer_create(const struct tls_layer_options *options, struct tls_layer **layer_out))
NEVER(bool tls_layer_can_hand_over(const struct stream *stream))
NEVER(uint32_t tls_layer_hand_over(const struct stream *stream, uint8_t *bytes))
NEVER(struct identity *tls_layer_identity(const struct stream *stream))
NEVER(const struct error *tls_layer_error(const struct stream *stream))
NEVER(struct tls_facts tls_layer_facts(const struct stream *stream))
