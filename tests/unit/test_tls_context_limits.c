// SPDX-License-Identifier: Apache-2.0
/* Credentials at the limits: memory runs out while they are loaded, secrets are gone when they are
 * freed, and many handshakes share a context while it is replaced. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <gnutls/x509.h>

#include "tls_pair.h"
#include "unit.h"

/* Allocations of this thread until one fails; the linker sends those of the product here. */
static _Thread_local int allocations_left = -1;

static bool allocation_fails(void)
{
	return allocations_left >= 0 && allocations_left-- == 0;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);
int __real_vasprintf(char **out, const char *format, va_list args);
int __wrap_vasprintf(char **out, const char *format, va_list args);
int __wrap_asprintf(char **out, const char *format, ...);
/* What a build with -D_FORTIFY_SOURCE calls instead. */
int __wrap___vasprintf_chk(char **out, int flag, const char *format, va_list args);
int __wrap___asprintf_chk(char **out, int flag, const char *format, ...);

void *__wrap_malloc(size_t bytes)
{
	return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
	return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

char *__wrap_strdup(const char *text)
{
	return allocation_fails() ? NULL : __real_strdup(text);
}

int __wrap_vasprintf(char **out, const char *format, va_list args)
{
	return allocation_fails() ? -1 : __real_vasprintf(out, format, args);
}

int __wrap_asprintf(char **out, const char *format, ...)
{
	va_list args;
	int rc;

	va_start(args, format);
	rc = __wrap_vasprintf(out, format, args);
	va_end(args);
	return rc;
}

int __wrap___vasprintf_chk(char **out, int flag, const char *format, va_list args)
{
	return __wrap_vasprintf(out, format, args);
}

int __wrap___asprintf_chk(char **out, int flag, const char *format, ...)
{
	va_list args;
	int rc;

	va_start(args, format);
	rc = __wrap_vasprintf(out, format, args);
	va_end(args);
	return rc;
}

TEST(test_loading_without_memory)
{
	struct tls_options options = pair_options(TLS_SERVER, "crl-old");
	struct tls_context *context = NULL;
	int failures = 0;

	options.psk_file = pair_path("keys.psk");
	for (int n = 0;; n++) {
		struct error error = { 0 };
		bool was_reached;
		int rc;

		allocations_left = n;
		rc = tls_context_load(&options, &context, &error);
		was_reached = allocations_left < 0;
		allocations_left = -1;
		if (rc == 0) {
			tls_context_put(context);
			if (!was_reached) {
				break;
			}
			/* Only a warning may be lost. */
			continue;
		}
		assert_int_equal(rc, -ENOMEM);
		assert_int_equal(error.code, -ENOMEM);
		assert_non_null(strstr(error.text, "memory"));
		failures++;
	}
	assert_true(failures >= 10);
}

TEST(test_identity_without_memory)
{
	struct tls_options server = pair_options(TLS_SERVER, "good");
	struct tls_options client = pair_options(TLS_CLIENT, "good");
	struct identity *identity;
	struct pair pair;
	int n = 0, rc;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), "localhost", NULL);
	pair_run(&pair);
	do {
		struct error error = { 0 };

		allocations_left = n++;
		rc = tls_check_identity(&pair.server.check, pair.server.session, &identity, &error);
		allocations_left = -1;
		assert_true(rc == 0 || (rc == -ENOMEM && error.code == -ENOMEM));
	} while (rc != 0);
	assert_true(n > 3);
	identity_put(identity);
	pair_fini(&pair);
}

/* --- secrets in memory ------------------------------------------------------------------------
 * The test keeps what it looks for, and what it reads, with HIDE over it, so that it does not find
 * itself. */

enum { HIDE = 0xa5, WINDOW_BYTES = 1 << 20, SECRET_BYTES = 16 };

static uint8_t window[WINDOW_BYTES];

static void hide(uint8_t *data, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		data[i] ^= HIDE;
	}
}

/* Whether this process has the secret anywhere but on stacks. Shadow memory of sanitizers, which
 * has terabytes, is left out. */
static bool is_in_memory(const uint8_t hidden[SECRET_BYTES])
{
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	FILE *maps = fopen("/proc/self/maps", "re");
	bool is_found = false;
	char line[512];

	assert_true(memory >= 0 && maps != NULL);
	while (fgets(line, sizeof(line), maps) != NULL) {
		unsigned long begin, end;
		char rights[5];

		assert_int_equal(sscanf(line, "%lx-%lx %4s", &begin, &end, rights), 3);
		if (rights[1] != 'w' || strstr(line, "[stack") != NULL || end - begin > 1UL << 28) {
			continue;
		}
		for (unsigned long at = begin; at < end; at += WINDOW_BYTES - SECRET_BYTES) {
			ssize_t got =
				pread(memory, window, MIN(end - at, sizeof(window)), (off_t)at);

			if (got > 0) {
				hide(window, (size_t)got);
				is_found = is_found ||
					   memmem(window, (size_t)got, hidden, SECRET_BYTES);
			}
		}
	}
	fclose(maps);
	close(memory);
	return is_found;
}

/* Some bytes of a file, hidden. */
static void read_hidden(const char *path, off_t at, uint8_t out[SECRET_BYTES])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, out, SECRET_BYTES, at), SECRET_BYTES);
	hide(out, SECRET_BYTES);
	close(fd);
}

/* The private number of an EC key, which is what its file is about. */
static void read_hidden_number(const char *path, uint8_t out[SECRET_BYTES])
{
	gnutls_datum_t pem, x, y, k;
	gnutls_x509_privkey_t key;
	gnutls_ecc_curve_t curve;

	assert_int_equal(gnutls_load_file(path, &pem), 0);
	gnutls_x509_privkey_init(&key);
	assert_int_equal(gnutls_x509_privkey_import2(key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0), 0);
	assert_int_equal(gnutls_x509_privkey_export_ecc_raw(key, &curve, &x, &y, &k), 0);
	assert_true(k.size >= SECRET_BYTES);
	memcpy(out, k.data + k.size - SECRET_BYTES, SECRET_BYTES);
	hide(out, SECRET_BYTES);
	explicit_bzero(k.data, k.size);
	gnutls_free(x.data);
	gnutls_free(y.data);
	gnutls_free(k.data);
	gnutls_x509_privkey_deinit(key);
	explicit_bzero(pem.data, pem.size);
	gnutls_free(pem.data);
}

/* Loads, shakes hands, frees. */
static void use(const struct tls_options *server, const struct tls_options *client,
	const uint8_t hidden[SECRET_BYTES])
{
	struct pair pair;

	pair_end_init(&pair.server, TLS_SERVER, pair_load(server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(client), "localhost", NULL);
	assert_true(hidden == NULL || is_in_memory(hidden));
	pair_run(&pair);
	assert_int_equal(pair.server.result, 0);
	pair_fini(&pair);
}

TEST(test_no_secret_stays_in_memory)
{
	struct tls_options server = { .role = TLS_SERVER, .psk_file = pair_path("keys.psk") };
	struct tls_options client = { .role = TLS_CLIENT,
		.psk_file = pair_path("keys.psk"),
		.use_psk = true,
		.user = "alice" };
	const char *key = pair_path("good/server-key.pem");
	/* Of alice: 5c0d6d3b... */
	uint8_t psk[SECRET_BYTES] = { 0x5c, 0x0d, 0x6d, 0x3b, 0x0f, 0xb1, 0xa6, 0xe4, 0xd8, 0xa1,
		0xf9, 0xa2, 0x7e, 0x51, 0xc8, 0xb0 };
	uint8_t text[SECRET_BYTES], number[SECRET_BYTES];

	hide(psk, sizeof(psk));
	use(&server, &client, psk);
	assert_false(is_in_memory(psk));

	server = pair_options(TLS_SERVER, "good");
	client = pair_options(TLS_CLIENT, "good");
	read_hidden(key, 60, text);
	use(&server, &client, NULL);
	assert_false(is_in_memory(text));
	read_hidden_number(key, number);
	use(&server, &client, number);
	assert_false(is_in_memory(number));
}

/* --- sharing ---------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 25 };

struct sharing {
	struct tls_policy *policy;
	struct tls_context *client, *client_psk;
	_Atomic int done, failed;
	struct identity *last; /* under lock */
	pthread_mutex_t lock;
};

static void share_one(struct sharing *sharing, bool uses_psk)
{
	struct tls_context *client = uses_psk ? sharing->client_psk : sharing->client;
	struct identity *identity = NULL, *before;
	struct pair pair;

	tls_context_get(client);
	pair_end_init(&pair.server, TLS_SERVER, tls_policy_context(sharing->policy), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, client, "localhost", NULL);
	pair_run(&pair);
	if (pair.server.result != 0 ||
		tls_check_identity(&pair.server.check, pair.server.session, &identity, NULL) != 0) {
		atomic_fetch_add(&sharing->failed, 1);
	}
	pthread_mutex_lock(&sharing->lock);
	before = sharing->last;
	sharing->last = identity;
	pthread_mutex_unlock(&sharing->lock);
	identity_put(before);
	pair_fini(&pair);
}

static void *shake_hands(void *user)
{
	struct sharing *sharing = user;

	for (int i = 0; i < ROUNDS; i++) {
		share_one(sharing, i % 2 == 0);
	}
	atomic_fetch_add(&sharing->done, 1);
	return NULL;
}

TEST(test_replacing_while_hands_are_shaken)
{
	struct tls_options server = pair_options(TLS_SERVER, "crl");
	struct tls_options client = pair_options(TLS_CLIENT, "good");
	struct sharing sharing = { .policy = NULL };
	pthread_t threads[THREADS];
	int rechecks = 0;

	server.psk_file = client.psk_file = pair_path("keys.psk");
	client.user = "bob";
	sharing.client = pair_load(&client);
	client.use_psk = true;
	sharing.client_psk = pair_load(&client);
	pthread_mutex_init(&sharing.lock, NULL);
	assert_int_equal(
		tls_policy_create(TLS_REQUIRE, pair_load(&server), NULL, &sharing.policy), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_create(&threads[i], NULL, shake_hands, &sharing), 0);
	}
	do {
		struct tls_context *context = pair_load(&server);
		struct identity *last;

		assert_false(tls_context_is_stale(context));
		tls_context_get(context);
		tls_policy_replace(sharing.policy, context);
		pthread_mutex_lock(&sharing.lock);
		last = sharing.last;
		if (last != NULL) {
			identity_get(last);
		}
		pthread_mutex_unlock(&sharing.lock);
		if (last != NULL) {
			assert_int_equal(tls_context_recheck(context, last, NULL), 0);
			identity_put(last);
			rechecks++;
		}
		tls_context_put(context);
	} while (atomic_load(&sharing.done) < THREADS);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	assert_int_equal(atomic_load(&sharing.failed), 0);
	assert_true(rechecks > 0);
	identity_put(sharing.last);
	tls_policy_destroy(sharing.policy);
	tls_context_put(sharing.client);
	tls_context_put(sharing.client_psk);
	pthread_mutex_destroy(&sharing.lock);
}

int main(int argc, char **argv)
{
	pair_folder = argv[1];
	return unit_run(NULL, NULL);
}
