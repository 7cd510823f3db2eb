// SPDX-License-Identifier: Apache-2.0
/* The value of --access, and what the rule says of some peers. */
#include "fuzz.h"
#include "server/config/config.h"

static void check_network(const struct access_condition *condition)
{
	uint32_t bits = condition->data[ACCESS_ADDRESS_BYTES];

	GMB_ASSERT(condition->bytes == ACCESS_NETWORK_BYTES && bits <= 8 * ACCESS_ADDRESS_BYTES);
	for (; bits < 8 * ACCESS_ADDRESS_BYTES; bits++) {
		GMB_ASSERT((condition->data[bits / 8] & 0x80 >> bits % 8) == 0);
	}
}

/* A peer that has every value that the rule asks for. */
static void check_rule(const struct access_rule *rule)
{
	struct identity *identity =
		calloc(1, sizeof(*identity) + ACCESS_KIND_COUNT * sizeof(identity->values[0]));
	struct access_subject peer = { 0 };
	struct access *access;
	bool wants_clear = false;

	GMB_ASSERT(identity != NULL && rule->rights <= (ENGINE_RIGHT_READ | ENGINE_RIGHT_WRITE));
	for (uint32_t i = 0; i < rule->condition_count; i++) {
		const struct access_condition *condition = &rule->conditions[i];

		if (condition->kind == ACCESS_NETWORK) {
			check_network(condition);
			peer.address = condition->data;
		} else if (condition->kind == ACCESS_UID) {
			peer.uid = (const uint32_t *)(const void *)condition->data;
		} else if (condition->kind == ACCESS_TLS) {
			GMB_ASSERT(condition->bytes == 1 && condition->data[0] <= 1);
			wants_clear = condition->data[0] == 0;
		} else {
			GMB_ASSERT(condition->bytes > 0);
			identity->values[identity->value_count++] =
				(struct identity_value){ (enum identity_kind)condition->kind,
					condition->bytes, condition->data };
		}
	}
	peer.proved = wants_clear ? NULL : identity;
	GMB_ASSERT(access_create(rule, 1, &access) == 0);
	GMB_ASSERT(access_look(access, &peer).origin != NULL);
	GMB_ASSERT(access_look(access, &peer).rights == rule->rights);
	access_put(access);
	free(identity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct server_config config;
	struct error error = { 0 };

	server_config_init(&config);
	if (server_config_add_access(&config, text, &error) == 0) {
		GMB_ASSERT(config.access_option_count == 1);
		GMB_ASSERT(config.access_options[0].access.rule_count == 1);
		check_rule(&config.access_options[0].access.rules[0]);
	} else {
		GMB_ASSERT(error.code < 0 && error.text[0] != '\0');
	}
	server_config_fini(&config);
	free(text);
	return 0;
}
