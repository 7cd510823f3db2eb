// SPDX-License-Identifier: Apache-2.0
/*
 * Who a peer is. The first byte of the input chooses: the text of a rule of that kind, a file of
 * pre-shared keys, or a certificate in DER, as a stranger may show it.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "tls/context_private.h"

enum { KIND_PSK_FILE = IDENTITY_KIND_COUNT, KIND_CERTIFICATE, KIND_COUNT };

static void check_error(int code, const struct error *error)
{
	GMB_ASSERT(code < 0 && error->code == code && error->text[0] != '\0');
}

static void check_rule(enum identity_kind kind, const char *text)
{
	uint8_t bytes[IDENTITY_VALUE_BYTES_MAX];
	struct error error = { 0 };
	uint32_t len = 0;
	int code = identity_value_parse(kind, text, bytes, &len, &error);

	if (code != 0) {
		check_error(code, &error);
		return;
	}
	GMB_ASSERT(len > 0 && len <= sizeof(bytes));
	GMB_ASSERT(kind == IDENTITY_CERT_DN || len <= IDENTITY_STRING_BYTES_MAX);
}

static void check_psk_file(const uint8_t *data, size_t size)
{
	struct tls_options options = { .role = TLS_SERVER };
	struct tls_context *context;
	struct error error = { 0 };
	char path[40];
	int fd = memfd_create("keys", MFD_CLOEXEC);
	int code;

	GMB_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
	GMB_ASSERT(size == 0 || write(fd, data, size) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	options.psk_file = path;
	code = tls_context_load(&options, &context, &error);
	close(fd);
	if (code != 0) {
		check_error(code, &error);
		return;
	}
	GMB_ASSERT(context->psk_count > 0);
	for (uint32_t i = 0; i < context->psk_count; i++) {
		const struct tls_psk *psk = &context->psks[i];
		struct identity *identity;

		GMB_ASSERT(tls_psk_find(context, psk->name, psk->name_bytes) == psk);
		GMB_ASSERT(psk->key_bytes >= TLS_PSK_BYTES_MIN);
		GMB_ASSERT(tls_identity_of_psk(psk, &identity, &error) == 0);
		GMB_ASSERT(tls_context_recheck(context, identity, &error) == 0);
		identity_put(identity);
	}
	tls_context_put(context);
}

static void check_certificate(const uint8_t *data, size_t size)
{
	char *copy = fuzz_text(data, size);
	const gnutls_datum_t der = { (uint8_t *)copy, (unsigned)size };
	gnutls_datum_t ders[TLS_CHAIN_COUNT_MAX];
	const struct tls_trust unknown = { .until = 0 };
	struct tls_trust trust;
	struct identity *identity;
	struct error error = { 0 };
	int code = tls_identity_of_chain(&unknown, &der, 1, &identity, &error);

	if (code == 0) {
		GMB_ASSERT(identity->is_proved && identity->value_count >= 2);
		for (uint32_t i = 0; i < identity->value_count; i++) {
			const struct identity_value *value = &identity->values[i];

			GMB_ASSERT(value->bytes > 0 && value->bytes <= IDENTITY_VALUE_BYTES_MAX);
			GMB_ASSERT(value->kind == IDENTITY_CERT_DN ||
				   value->bytes <= IDENTITY_STRING_BYTES_MAX);
		}
		GMB_ASSERT(tls_identity_chain(identity, &trust, ders) == 1);
		GMB_ASSERT(ders[0].size == size && memcmp(ders[0].data, data, size) == 0);
		identity_put(identity);
	} else {
		check_error(code, &error);
	}
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned kind;

	if (size == 0) {
		return 0;
	}
	kind = data[0] % KIND_COUNT;
	if (kind == KIND_PSK_FILE) {
		check_psk_file(data + 1, size - 1);
	} else if (kind == KIND_CERTIFICATE) {
		check_certificate(data + 1, size - 1);
	} else {
		char *text = fuzz_text(data + 1, size - 1);

		check_rule((enum identity_kind)kind, text);
		free(text);
	}
	return 0;
}
