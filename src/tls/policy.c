// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "tls/context.h"

struct tls_policy {
	enum tls_mode mode;
	struct tls_pool *pool;
	pthread_mutex_t lock; /* protects context */
	struct tls_context *context;
};

int tls_policy_create(enum tls_mode mode, struct tls_context *context, struct tls_pool *pool,
	struct tls_policy **policy_out)
{
	struct tls_policy *policy = calloc(1, sizeof(*policy));

	GMB_ASSERT(mode == TLS_OFF || context != NULL);
	if (policy == NULL) {
		tls_context_put(context);
		return -ENOMEM;
	}
	policy->mode = mode;
	policy->pool = pool;
	policy->context = context;
	pthread_mutex_init(&policy->lock, NULL);
	*policy_out = policy;
	return 0;
}

void tls_policy_destroy(struct tls_policy *policy)
{
	if (policy != NULL) {
		tls_context_put(policy->context);
		pthread_mutex_destroy(&policy->lock);
		free(policy);
	}
}

enum tls_mode tls_policy_mode(const struct tls_policy *policy)
{
	return policy == NULL ? TLS_OFF : policy->mode;
}

struct tls_pool *tls_policy_pool(const struct tls_policy *policy)
{
	return policy->pool;
}

struct tls_context *tls_policy_context(struct tls_policy *policy)
{
	struct tls_context *context;

	pthread_mutex_lock(&policy->lock);
	context = policy->context;
	tls_context_get(context);
	pthread_mutex_unlock(&policy->lock);
	return context;
}

void tls_policy_replace(struct tls_policy *policy, struct tls_context *context)
{
	struct tls_context *before;

	pthread_mutex_lock(&policy->lock);
	before = policy->context;
	policy->context = context;
	pthread_mutex_unlock(&policy->lock);
	tls_context_put(before);
}
