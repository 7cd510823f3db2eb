// SPDX-License-Identifier: Apache-2.0
#include "attach/health.h"

#include <stdio.h>

void health_init(struct health *health)
{
	pthread_mutex_init(&health->lock, NULL);
	health->connected = true;
	health->text[0] = '\0';
}

void health_set(struct health *health, bool connected, const char *text)
{
	pthread_mutex_lock(&health->lock);
	health->connected = connected;
	snprintf(health->text, sizeof(health->text), "%s", text != NULL ? text : "");
	pthread_mutex_unlock(&health->lock);
}

const char *health_describe(struct health *health, char *out, size_t out_bytes)
{
	pthread_mutex_lock(&health->lock);
	if (health->connected) {
		snprintf(out, out_bytes, "connected");
	} else {
		snprintf(out, out_bytes, "not connected: %s", health->text);
	}
	pthread_mutex_unlock(&health->lock);
	return out;
}

bool health_is_connected(struct health *health)
{
	bool connected;

	pthread_mutex_lock(&health->lock);
	connected = health->connected;
	pthread_mutex_unlock(&health->lock);
	return connected;
}
