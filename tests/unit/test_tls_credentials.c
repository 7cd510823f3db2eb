// SPDX-License-Identifier: Apache-2.0
/* Files of credentials: what is wrong with them, what changes in them, and what time does to them.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <gnutls/x509.h>

#include "tls_pair.h"
#include "unit.h"

/* The clock of this process and of GnuTLS; 0: the system's. */
static time_t clock_now;

time_t __real_time(time_t *out);
time_t __wrap_time(time_t *out);

time_t __wrap_time(time_t *out)
{
	time_t now = clock_now == 0 ? __real_time(NULL) : clock_now;

	if (out != NULL) {
		*out = now;
	}
	return now;
}

/* --- a folder of this test -------------------------------------------------------------------- */

static char scratch[512];

static const char *in_scratch(const char *name)
{
	static char paths[4][600];
	static unsigned next;
	char *path = paths[next++ % 4];

	snprintf(path, sizeof(paths[0]), "%s/%s", scratch, name);
	return path;
}

static void write_file(const char *path, const void *data, size_t bytes)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

static void write_text(const char *path, const char *text)
{
	write_file(path, text, strlen(text));
}

static gnutls_datum_t read_file(const char *path)
{
	gnutls_datum_t content;

	assert_int_equal(gnutls_load_file(path, &content), 0);
	return content;
}

static void copy(const char *from, const char *name)
{
	gnutls_datum_t content = read_file(pair_path(from));

	write_file(in_scratch(name), content.data, content.size);
	gnutls_free(content.data);
}

static const char *const names[] = { "ca-cert.pem", "ca-crl.pem", "server-cert.pem",
	"server-key.pem", "client-cert.pem", "client-key.pem", "keys.psk" };

static int set_up(void **state)
{
	clock_now = 0;
	snprintf(scratch, sizeof(scratch), "%s/gmblock-test-XXXXXX",
		getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(scratch));
	copy("crl/ca-cert.pem", "ca-cert.pem");
	copy("crl/ca-crl.pem", "ca-crl.pem");
	copy("crl/server-cert.pem", "server-cert.pem");
	copy("crl/server-key.pem", "server-key.pem");
	return 0;
}

static int tear_down(void **state)
{
	for (size_t i = 0; i < ARRAY_COUNT(names); i++) {
		unlink(in_scratch(names[i]));
	}
	rmdir(scratch);
	clock_now = 0;
	return 0;
}

static const struct tls_options *server_options(void)
{
	static struct tls_options options = { .role = TLS_SERVER, .verify_peer = true };

	options.certificates = scratch;
	return &options;
}

/* Loading must fail; the sentence. */
static const char *fails(const struct tls_options *options)
{
	static struct error error;
	struct tls_context *context = NULL;

	error.text[0] = '\0';
	if (tls_context_load(options, &context, &error) == 0) {
		tls_context_put(context);
		return "it was loaded";
	}
	return error.text;
}

static void assert_contains(const char *text, const char *part)
{
	if (strstr(text, part) == NULL) {
		fail_msg("'%s' is not in '%s'", part, text);
	}
}

/* Whether some warning has the words. */
static bool warns(const struct tls_context *context, const char *words)
{
	const char *text;

	for (uint32_t i = 0; (text = tls_context_warning(context, i)) != NULL; i++) {
		if (strstr(text, words) != NULL) {
			return true;
		}
	}
	return false;
}

/* --- certificates ----------------------------------------------------------------------------- */

TEST_WITH(test_half_written_file_is_refused_at_every_length, set_up, tear_down)
{
	static const char *const cut[] = { "ca-cert.pem", "ca-crl.pem", "server-cert.pem",
		"server-key.pem" };

	for (size_t i = 0; i < ARRAY_COUNT(cut); i++) {
		const char *path = in_scratch(cut[i]);
		gnutls_datum_t content = read_file(path);

		/* A whole file may lack its last end of line. */
		for (size_t bytes = 0; bytes + 1 < content.size; bytes += bytes > 40 ? 13 : 1) {
			write_file(in_scratch(cut[i]), content.data, bytes);
			assert_contains(fails(server_options()), cut[i]);
		}
		for (size_t less = 2; less < 30; less++) {
			write_file(in_scratch(cut[i]), content.data, content.size - less);
			assert_contains(fails(server_options()), cut[i]);
		}
		write_file(in_scratch(cut[i]), content.data, content.size);
		tls_context_put(pair_load(server_options()));
		gnutls_free(content.data);
	}
}

TEST_WITH(test_second_certificate_half_written, set_up, tear_down)
{
	gnutls_datum_t first = read_file(pair_path("good/ca-cert.pem"));
	gnutls_datum_t second = read_file(pair_path("other-ca/ca-cert.pem"));
	char both[8192];
	size_t whole = first.size + second.size;

	assert_true(whole < sizeof(both));
	memcpy(both, first.data, first.size);
	memcpy(both + first.size, second.data, second.size);
	for (size_t bytes = first.size + 5; bytes + 1 < whole; bytes += 7) {
		write_file(in_scratch("ca-cert.pem"), both, bytes);
		assert_contains(fails(server_options()), "ca-cert.pem");
	}
	write_file(in_scratch("ca-cert.pem"), both, whole);
	tls_context_put(pair_load(server_options()));
	gnutls_free(first.data);
	gnutls_free(second.data);
}

TEST_WITH(test_crl_that_cannot_be_read_is_no_missing_one, set_up, tear_down)
{
	struct tls_context *context = pair_load(server_options());

	unlink(in_scratch("ca-crl.pem"));
	assert_true(tls_context_is_stale(context));
	tls_context_put(pair_load(server_options()));

	assert_int_equal(symlink("ca-crl.pem", in_scratch("ca-crl.pem")), 0);
	assert_true(tls_context_is_stale(context));
	assert_contains(fails(server_options()), "ca-crl.pem: Too many levels");
	unlink(in_scratch("ca-crl.pem"));

	assert_int_equal(mkdir(in_scratch("ca-crl.pem"), 0700), 0);
	assert_true(tls_context_is_stale(context));
	assert_contains(fails(server_options()), "ca-crl.pem is not a regular file");
	rmdir(in_scratch("ca-crl.pem"));

	assert_int_equal(mkfifo(in_scratch("ca-crl.pem"), 0600), 0);
	assert_contains(fails(server_options()), "ca-crl.pem is not a regular file");
	tls_context_put(context);
}

TEST_WITH(test_crl_must_be_signed_by_the_authority, set_up, tear_down)
{
	gnutls_datum_t pem, der;

	copy("other-ca/ca-cert.pem", "ca-cert.pem");
	assert_contains(fails(server_options()), "ca-crl.pem is not signed by an authority");
	copy("good/ca-cert.pem", "ca-cert.pem");

	/* One whose time is over is loaded, but not a forged one. */
	copy("crl-old/ca-crl.pem", "ca-crl.pem");
	tls_context_put(pair_load(server_options()));
	pem = read_file(in_scratch("ca-crl.pem"));
	assert_int_equal(gnutls_pem_base64_decode2("X509 CRL", &pem, &der), 0);
	der.data[der.size - 1] ^= 1;
	gnutls_free(pem.data);
	assert_int_equal(gnutls_pem_base64_encode2("X509 CRL", &der, &pem), 0);
	write_file(in_scratch("ca-crl.pem"), pem.data, pem.size);
	assert_contains(fails(server_options()), "ca-crl.pem is not signed by an authority");
	gnutls_free(pem.data);
	gnutls_free(der.data);
}

TEST_WITH(test_authority_must_be_one, set_up, tear_down)
{
	unlink(in_scratch("ca-crl.pem"));
	copy("good/server-cert.pem", "ca-cert.pem");
	assert_contains(fails(server_options()), "is not an authority");
}

TEST_WITH(test_encrypted_key, set_up, tear_down)
{
	write_text(in_scratch("server-key.pem"),
		"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE "
		"KEY-----\n");
	assert_contains(fails(server_options()), "is protected with a password");
}

/* As openssl writes it, with other text around it, and as nobody should. */
TEST_WITH(test_forms_of_keys, set_up, tear_down)
{
	static const char parameters[] = "Some text, not ENCRYPTED\n-----BEGIN EC PARAMETERS-----\n"
					 "BggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n";
	const char *path = in_scratch("server-key.pem");
	gnutls_datum_t pem = read_file(path), pkcs8;
	gnutls_x509_privkey_t key;
	char text[2048];

	gnutls_x509_privkey_init(&key);
	assert_int_equal(gnutls_x509_privkey_import2(key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0), 0);
	assert_int_equal(gnutls_x509_privkey_export2_pkcs8(
				 key, GNUTLS_X509_FMT_PEM, NULL, GNUTLS_PKCS_PLAIN, &pkcs8),
		0);
	gnutls_x509_privkey_deinit(key);
	write_file(path, pkcs8.data, pkcs8.size);
	tls_context_put(pair_load(server_options()));
	assert_true(snprintf(text, sizeof(text), "%s%.*s", parameters, (int)pem.size,
			    (const char *)pem.data) < (int)sizeof(text));
	write_text(path, text);
	tls_context_put(pair_load(server_options()));

	write_text(path, parameters);
	assert_contains(fails(server_options()), "no valid key");
	*strchr(strstr(text, "PRIVATE KEY-----\n") + 17, 'A') = '*';
	write_text(path, text);
	assert_contains(fails(server_options()), "no valid key");
	write_text(path, "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n");
	assert_contains(fails(server_options()), "no valid key");
	write_text(path, "-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----");
	assert_contains(fails(server_options()), "no valid key");
	gnutls_free(pem.data);
	gnutls_free(pkcs8.data);
}

TEST_WITH(test_client_has_certificate_and_key_or_none, set_up, tear_down)
{
	struct tls_options options = *server_options();

	options.role = TLS_CLIENT;
	tls_context_put(pair_load(&options));
	copy("good/client-cert.pem", "client-cert.pem");
	assert_contains(fails(&options), "client-key.pem: No such file");
	copy("good/client-key.pem", "client-key.pem");
	tls_context_put(pair_load(&options));
	unlink(in_scratch("client-cert.pem"));
	assert_contains(fails(&options), "no client-cert.pem");
}

TEST_WITH(test_client_that_verifies_needs_authorities, set_up, tear_down)
{
	struct tls_options options = *server_options();

	options.role = TLS_CLIENT;
	unlink(in_scratch("ca-cert.pem"));
	assert_contains(fails(&options), "ca-cert.pem: No such file");
	options.verify_peer = false;
	tls_context_put(pair_load(&options));
}

TEST_WITH(test_key_that_others_read, set_up, tear_down)
{
	const char *path = in_scratch("server-key.pem");

	for (mode_t mode = 0604; mode <= 0660; mode++) {
		assert_int_equal(chmod(path, mode), 0);
		if ((mode & 077) == 0) {
			continue;
		}
		assert_contains(fails(server_options()), "other users");
	}
	assert_int_equal(chmod(path, 0400), 0);
	tls_context_put(pair_load(server_options()));
}

static struct posix_acl_xattr_entry acl_entry(uint16_t tag, uint16_t perm, uint32_t id)
{
	return (struct posix_acl_xattr_entry){ htole16(tag), htole16(perm), htole32(id) };
}

/* As a service manager hands a key to the user of a service: its mask stands in the mode. */
TEST_WITH(test_key_with_an_access_list, set_up, tear_down)
{
	struct {
		struct posix_acl_xattr_header header;
		struct posix_acl_xattr_entry entries[5];
	} acl = { { htole32(POSIX_ACL_XATTR_VERSION) },
		{ acl_entry(ACL_USER_OBJ, 4, ACL_UNDEFINED_ID), acl_entry(ACL_USER, 4, 12345),
			acl_entry(ACL_GROUP_OBJ, 0, ACL_UNDEFINED_ID),
			acl_entry(ACL_MASK, 4, ACL_UNDEFINED_ID),
			acl_entry(ACL_OTHER, 0, ACL_UNDEFINED_ID) } };
	const char *path = in_scratch("server-key.pem");
	struct stat st;

	if (setxattr(path, "system.posix_acl_access", &acl, sizeof(acl), 0) != 0) {
		assert_int_equal(errno, ENOTSUP);
		skip();
	}
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0440);
	tls_context_put(pair_load(server_options()));
	acl.entries[2].e_perm = htole16(4);
	assert_int_equal(setxattr(path, "system.posix_acl_access", &acl, sizeof(acl), 0), 0);
	assert_contains(fails(server_options()), "other users");
}

/* --- pre-shared keys -------------------------------------------------------------------------- */

#define KEY "5c0d6d3b0fb1a6e4d8a1f9a27e51c8b0"

TEST_WITH(test_psk_files, set_up, tear_down)
{
	static const struct {
		const char *text, *reason; /* NULL: good */
	} cases[] = {
		{ "alice:" KEY "\n", NULL },
		{ "# a comment\n\n  \nalice:" KEY " \r\nbob:" KEY "\n", NULL },
		{ "al ice:" KEY "\n", NULL },
		{ "", "has no keys" },
		{ "# alice:" KEY "\n", "has no keys" },
		{ "alice:" KEY, "ends within a line" },
		{ "alice\n", ":1: a line without a colon" },
		{ "alice:" KEY "\n:" KEY "\n", ":2: an empty name" },
		{ "alice:\n", ":1: a key of less than 16 bytes" },
		{ "alice:5c0d6d3b0fb1a6e4d8a1f9a27e51c8\n", ":1: a key of less than 16 bytes" },
		{ "alice:" KEY "0\n", ":1: an odd number" },
		{ "alice:" KEY "xy\n", ":1: a key that is not hexadecimal" },
		{ "alice:" KEY ":" KEY "0\n", ":1: a key that is not hexadecimal" },
		{ "alice:" KEY "\nbob:" KEY "\nalice:" KEY "00\n",
			":3: the name 'alice' is already used in line 1" },
		{ "al\x1b[1mice:" KEY "\nal\x1b[1mice:" KEY "\n", "'al\\x1b[1mice'" },
	};
	struct tls_options options = { .role = TLS_SERVER };

	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		const char *path = in_scratch("keys.psk");

		options.psk_file = i % 2 == 0 ? path : scratch;
		write_text(path, cases[i].text);
		if (cases[i].reason == NULL) {
			tls_context_put(pair_load(&options));
			continue;
		}
		assert_contains(fails(&options), cases[i].reason);
		assert_contains(fails(&options), "keys.psk");
		assert_null(strstr(fails(&options), "5c0d6d"));
	}
	assert_int_equal(chmod(in_scratch("keys.psk"), 0644), 0);
	assert_contains(fails(&options), "other users");
}

TEST_WITH(test_psk_name_bounds, set_up, tear_down)
{
	struct tls_options options = { .role = TLS_SERVER, .psk_file = in_scratch("keys.psk") };
	char text[400];

	memset(text, 'n', 257);
	snprintf(text + 256, sizeof(text) - 256, ":%s\n", KEY);
	write_text(in_scratch("keys.psk"), text);
	tls_context_put(pair_load(&options));
	text[256] = 'n';
	snprintf(text + 257, sizeof(text) - 257, ":%s\n", KEY);
	write_text(in_scratch("keys.psk"), text);
	assert_contains(fails(&options), ":1: a name of more than 256 bytes");
	write_file(in_scratch("keys.psk"), "a\0b:" KEY "\n", 4 + strlen(KEY) + 1);
	assert_contains(fails(&options), ":1: a zero byte");
}

TEST_WITH(test_psk_name_in_hexadecimal_is_warned_about, set_up, tear_down)
{
	struct tls_options options = { .role = TLS_SERVER, .psk_file = in_scratch("keys.psk") };
	struct tls_context *context;

	write_text(in_scratch("keys.psk"), "#cafe:" KEY "\n# bob:" KEY "\nalice:" KEY "\n");
	context = pair_load(&options);
	assert_true(warns(context, "keys.psk:1: '#' starts a comment"));
	assert_null(tls_context_warning(context, 1));
	tls_context_put(context);
}

TEST_WITH(test_client_names_its_key, set_up, tear_down)
{
	struct tls_options options = { .role = TLS_CLIENT,
		.psk_file = pair_path("keys.psk"),
		.use_psk = true,
		.user = "alic" };

	assert_contains(fails(&options), "has no key with the name 'alic'");
	options.user = NULL;
	assert_contains(fails(&options), "the login name; give the name of a key");
	options.user = "alice";
	tls_context_put(pair_load(&options));
	options.psk_file = NULL;
	assert_contains(fails(&options), "name the file");
}

/* --- changes and time ------------------------------------------------------------------------- */

TEST_WITH(test_stale_is_about_content, set_up, tear_down)
{
	struct tls_context *context = pair_load(server_options());
	gnutls_datum_t crl = read_file(in_scratch("ca-crl.pem"));

	assert_false(tls_context_is_stale(context));
	/* The same again, as a new file. */
	write_file(in_scratch("ca-crl.pem"), crl.data, crl.size);
	assert_false(tls_context_is_stale(context));
	crl.data[crl.size / 2] ^= 1;
	write_file(in_scratch("ca-crl.pem"), crl.data, crl.size);
	assert_true(tls_context_is_stale(context));
	gnutls_free(crl.data);
	tls_context_put(context);

	/* A list that was not there. */
	unlink(in_scratch("ca-crl.pem"));
	context = pair_load(server_options());
	assert_false(tls_context_is_stale(context));
	copy("crl/ca-crl.pem", "ca-crl.pem");
	assert_true(tls_context_is_stale(context));
	tls_context_put(context);
}

static time_t crl_expires(void)
{
	gnutls_datum_t pem = read_file(in_scratch("ca-crl.pem"));
	gnutls_x509_crl_t crl;
	time_t expires;

	gnutls_x509_crl_init(&crl);
	assert_int_equal(gnutls_x509_crl_import(crl, &pem, GNUTLS_X509_FMT_PEM), 0);
	expires = gnutls_x509_crl_get_next_update(crl);
	gnutls_x509_crl_deinit(crl);
	gnutls_free(pem.data);
	return expires;
}

TEST_WITH(test_warnings_come_when_they_are_due, set_up, tear_down)
{
	const time_t day = 24 * 3600;
	struct tls_context *context;
	time_t expires;

	copy("crl-soon/ca-crl.pem", "ca-crl.pem");
	expires = crl_expires();
	clock_now = expires - 3 * day + 100;
	context = pair_load(server_options());
	assert_true(warns(context, "ca-crl.pem expires in 2 days, on "));
	assert_null(tls_context_warning(context, 1));
	assert_false(tls_context_is_stale(context));
	clock_now = expires + 1;
	assert_true(tls_context_is_stale(context));
	tls_context_put(context);
	context = pair_load(server_options());
	assert_true(warns(context, "ca-crl.pem expired on "));
	assert_false(tls_context_is_stale(context));
	tls_context_put(context);

	/* Ten years: nothing now, everything in its last week. */
	copy("crl/ca-crl.pem", "ca-crl.pem");
	clock_now = 0;
	context = pair_load(server_options());
	assert_null(tls_context_warning(context, 0));
	assert_false(tls_context_is_stale(context));
	clock_now = crl_expires() - 6 * day - 3600;
	assert_true(tls_context_is_stale(context));
	tls_context_put(context);
	context = pair_load(server_options());
	assert_true(warns(context, "ca-crl.pem expires in 6 days"));
	assert_true(warns(context, "server-cert.pem expires in 6 days"));
	assert_true(warns(context, "ca-cert.pem expires in 6 days"));
	assert_false(tls_context_is_stale(context));
	tls_context_put(context);
}

TEST_WITH(test_rsa_is_warned_about, set_up, tear_down)
{
	struct tls_options options = pair_options(TLS_SERVER, "rsa");
	struct tls_context *context = pair_load(&options);

	assert_true(
		warns(context, "an RSA key of 2048 bits makes handshakes 7 times as expensive"));
	tls_context_put(context);
	options.role = TLS_CLIENT;
	context = pair_load(&options);
	assert_null(tls_context_warning(context, 0));
	tls_context_put(context);
}

TEST_WITH(test_clock_that_jumps, set_up, tear_down)
{
	struct tls_context *context = pair_load(server_options());

	clock_now = 1000000; /* 1970 */
	assert_contains(fails(server_options()), "check the clock");
	assert_false(tls_context_is_stale(context));
	clock_now = 4102444800; /* 2100 */
	assert_contains(fails(server_options()), " expired on ");
	tls_context_put(context);
}

static int handshake(struct pair *pair)
{
	struct tls_options client = pair_options(TLS_CLIENT, "good");

	pair_end_init(&pair->server, TLS_SERVER, pair_load(server_options()), NULL, NULL);
	pair_end_init(&pair->client, TLS_CLIENT, pair_load(&client), "localhost", NULL);
	pair_run(pair);
	return pair->server.result;
}

/* A context that is loaded again judges those who were let in before. */
static int recheck(const struct identity *identity, struct error *error)
{
	struct tls_context *context = pair_load(server_options());
	int rc = tls_context_recheck(context, identity, error);

	tls_context_put(context);
	return rc;
}

TEST_WITH(test_recheck_of_certificates, set_up, tear_down)
{
	struct identity *identity;
	struct pair pair;
	struct error error;

	unlink(in_scratch("ca-crl.pem"));
	assert_int_equal(handshake(&pair), 0);
	assert_int_equal(
		tls_check_identity(&pair.server.check, pair.server.session, &identity, &error), 0);
	pair_fini(&pair);

	assert_int_equal(recheck(identity, &error), 0);
	copy("crl/ca-crl.pem", "ca-crl.pem");
	assert_int_equal(recheck(identity, &error), 0);
	copy("crl-good/ca-crl.pem", "ca-crl.pem");
	assert_int_equal(recheck(identity, &error), -EACCES);
	assert_contains(error.text, "CN=host-a,O=Example");
	assert_contains(error.text, "revoked by its authority");
	copy("crl-old/ca-crl.pem", "ca-crl.pem");
	assert_int_equal(recheck(identity, &error), -EACCES);
	assert_contains(error.text, "revocation list");
	unlink(in_scratch("ca-crl.pem"));
	copy("other-ca/ca-cert.pem", "ca-cert.pem");
	assert_int_equal(recheck(identity, &error), -EACCES);
	assert_contains(error.text, "not signed by a trusted authority");
	identity_put(identity);
}

/* The same identity whose certificate has another last byte: its signature is wrong now. */
static struct identity *with_broken_signature(const struct identity *identity)
{
	uint8_t *proof = malloc(identity->proof_bytes);
	struct identity_facts facts = { true, identity->text, identity->principal, identity->values,
		identity->value_count, proof, identity->proof_bytes };
	struct identity *broken;

	assert_non_null(proof);
	memcpy(proof, identity->proof, identity->proof_bytes);
	proof[identity->proof_bytes - 1] ^= 1;
	broken = identity_create(&facts);
	assert_non_null(broken);
	free(proof);
	return broken;
}

/* A reload with the same authorities and lists costs no signature for each session. */
TEST_WITH(test_recheck_verifies_what_has_changed, set_up, tear_down)
{
	struct identity *identity, *broken;
	struct pair pair;
	struct error error;

	assert_int_equal(handshake(&pair), 0);
	assert_int_equal(
		tls_check_identity(&pair.server.check, pair.server.session, &identity, &error), 0);
	pair_fini(&pair);
	broken = with_broken_signature(identity);
	copy("rsa/server-cert.pem", "server-cert.pem");
	copy("rsa/server-key.pem", "server-key.pem");
	assert_int_equal(recheck(broken, &error), 0);
	unlink(in_scratch("ca-crl.pem"));
	assert_int_equal(recheck(identity, &error), 0);
	assert_int_equal(recheck(broken, &error), -EACCES);
	identity_put(identity);
	identity_put(broken);
}

TEST_WITH(test_clock_jumps_after_a_handshake, set_up, tear_down)
{
	struct identity *identity;
	struct pair pair;
	struct error error;

	assert_int_equal(handshake(&pair), 0);
	assert_int_equal(
		tls_check_identity(&pair.server.check, pair.server.session, &identity, &error), 0);
	clock_now = 4102444800;
	assert_int_equal(tls_context_recheck(pair.server.context, identity, &error), -EACCES);
	assert_contains(error.text, "has expired");
	clock_now = 1000000;
	assert_int_equal(tls_context_recheck(pair.server.context, identity, &error), -EACCES);
	assert_contains(error.text, "not yet valid");
	clock_now = 0;
	assert_int_equal(tls_context_recheck(pair.server.context, identity, &error), 0);
	identity_put(identity);
	pair_fini(&pair);
}

TEST_WITH(test_recheck_of_psks, set_up, tear_down)
{
	struct tls_options server = { .role = TLS_SERVER, .psk_file = in_scratch("keys.psk") };
	struct tls_options client = { .role = TLS_CLIENT,
		.psk_file = pair_path("keys.psk"),
		.use_psk = true,
		.user = "alice" };
	static const struct {
		const char *psks, *reason;
	} cases[] = {
		{ "keys.psk", NULL },
		{ "other.psk", "has changed" },
		{ "bob.psk", "was removed" },
	};
	struct identity *identity;
	struct pair pair;
	struct error error;

	copy("keys.psk", "keys.psk");
	pair_end_init(&pair.server, TLS_SERVER, pair_load(&server), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, pair_load(&client), NULL, NULL);
	pair_run(&pair);
	assert_int_equal(
		tls_check_identity(&pair.server.check, pair.server.session, &identity, &error), 0);
	pair_fini(&pair);
	for (size_t i = 0; i < ARRAY_COUNT(cases); i++) {
		struct tls_context *context;
		int rc;

		copy(cases[i].psks, "keys.psk");
		context = pair_load(&server);
		rc = tls_context_recheck(context, identity, &error);
		assert_int_equal(rc, cases[i].reason == NULL ? 0 : -EACCES);
		if (rc != 0) {
			assert_contains(error.text, cases[i].reason);
		}
		tls_context_put(context);
	}
	identity_put(identity);
}

/* Who is nobody may stay only where nobody is welcome. */
TEST_WITH(test_recheck_of_nobody, set_up, tear_down)
{
	const struct tls_options keys_only = { .role = TLS_SERVER,
		.psk_file = in_scratch("keys.psk") };
	struct tls_options options = *server_options();
	struct tls_context *context;
	struct identity *identity;
	struct pair pair;
	struct error error;

	options.verify_peer = false;
	pair_end_init(&pair.server, TLS_SERVER, pair_load(&options), NULL, NULL);
	pair_end_init(&pair.client, TLS_CLIENT, NULL, NULL, "good");
	pair_run(&pair);
	assert_int_equal(pair.server.result, 0);
	assert_int_equal(
		tls_check_identity(&pair.server.check, pair.server.session, &identity, &error), 0);
	assert_false(identity->is_proved);
	assert_int_equal(identity->value_count, 0);
	assert_string_equal(identity->text, "nobody");
	assert_int_equal(tls_context_recheck(pair.server.context, identity, &error), 0);
	assert_int_equal(recheck(identity, &error), -EACCES);
	copy("keys.psk", "keys.psk");
	context = pair_load(&keys_only);
	assert_int_equal(tls_context_recheck(context, identity, &error), -EACCES);
	assert_contains(error.text, "pre-shared keys are now required");
	tls_context_put(context);
	identity_put(identity);
	pair_fini(&pair);
}

TEST_WITH(test_default_folders, set_up, tear_down)
{
	struct tls_options options = { .role = TLS_SERVER, .verify_peer = false };
	const char *home = getenv("HOME");
	bool is_root = geteuid() == 0;
	char saved[512];

	snprintf(saved, sizeof(saved), "%s", home == NULL ? "/" : home);
	assert_int_equal(chmod(scratch, 0755), 0);
	if (is_root) {
		assert_int_equal(seteuid(65534), 0);
	}
	setenv("HOME", scratch, 1);
	assert_contains(fails(&options), "or create ~/.pki/gmblock");
	if (is_root) {
		assert_int_equal(seteuid(0), 0);
	}
	assert_int_equal(mkdir(in_scratch(".pki"), 0755), 0);
	assert_int_equal(mkdir(in_scratch(".pki/gmblock"), 0755), 0);
	if (is_root) {
		assert_int_equal(seteuid(65534), 0);
	}
	assert_contains(fails(&options), "/.pki/gmblock/server-cert.pem: No such file");
	if (is_root) {
		assert_int_equal(seteuid(0), 0);
	}
	setenv("HOME", saved, 1);
	rmdir(in_scratch(".pki/gmblock"));
	rmdir(in_scratch(".pki"));
}

int main(int argc, char **argv)
{
	pair_folder = argv[1];
	gnutls_global_set_time_function(__wrap_time);
	return unit_run(NULL, NULL);
}
