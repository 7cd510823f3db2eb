// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "tls/context_private.h"

/* --- files ------------------------------------------------------------------------------------ */

void tls_bytes_free(struct tls_bytes *bytes)
{
	if (bytes->data != NULL) {
		explicit_bzero(bytes->data, bytes->len);
		free(bytes->data);
		bytes->data = NULL;
	}
	bytes->len = 0;
}

/* Returns whether anyone can read or write the file except its owner and the users in its access
 * control list. With such a list, the group bits of the mode are the list's mask (acl(5)): this is
 * how a service manager gives a key to the service's user. */
static bool context_files_is_shared(int fd, mode_t mode)
{
	union {
		struct posix_acl_xattr_header header;
		char bytes[sizeof(struct posix_acl_xattr_header) +
			   32 * sizeof(struct posix_acl_xattr_entry)];
	} acl;
	const struct posix_acl_xattr_entry *entries = (const void *)(&acl.header + 1);
	ssize_t got;

	if ((mode & 077) == 0) {
		return false;
	}
	got = fgetxattr(fd, "system.posix_acl_access", &acl, sizeof(acl));
	if ((mode & 07) != 0 || got < (ssize_t)sizeof(acl.header) ||
		le32toh(acl.header.a_version) != POSIX_ACL_XATTR_VERSION) {
		return true;
	}
	for (size_t i = 0; i < ((size_t)got - sizeof(acl.header)) / sizeof(*entries); i++) {
		uint16_t tag = le16toh(entries[i].e_tag);

		if ((tag == ACL_GROUP_OBJ || tag == ACL_GROUP) && le16toh(entries[i].e_perm) != 0) {
			return true;
		}
	}
	return false;
}

static int read_whole(int fd, size_t size, struct tls_bytes *out)
{
	size_t got = 0;

	out->data = malloc(size + 1);
	if (out->data == NULL) {
		return -ENOMEM;
	}
	out->len = size + 1;
	while (got < size + 1) {
		ssize_t n = read(fd, out->data + got, size + 1 - got);

		if (n < 0 && errno == EINTR) {
			continue;
		}
		if (n < 0) {
			return -errno;
		}
		if (n == 0) {
			break;
		}
		got += (size_t)n;
	}
	if (got != size) {
		return -EBUSY;
	}
	out->data[size] = '\0';
	out->len = size;
	return 0;
}

static int context_files_read_file(
	const char *path, enum tls_file_kind kind, struct tls_bytes *out, struct error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int rc = fd < 0 ? -errno : 0;
	struct stat st;

	*out = (struct tls_bytes){ .data = NULL };
	if (rc == 0 && fstat(fd, &st) != 0) {
		rc = -errno;
	}
	if (rc != 0) {
		error_set(error, rc, "cannot open %s: %s", path, strerror(-rc));
	} else if (!S_ISREG(st.st_mode)) {
		rc = error_set(error, -EINVAL, "%s is not a regular file", path);
	} else if (st.st_size > TLS_FILE_BYTES_MAX) {
		rc = error_set(
			error, -EFBIG, "%s is larger than %d MiB", path, TLS_FILE_BYTES_MAX >> 20);
	} else if (kind == TLS_FILE_SECRET && context_files_is_shared(fd, st.st_mode)) {
		rc = error_set(error, -EACCES,
			"%s contains a key, but other users can read or write it; use 'chmod 600 "
			"%s'",
			path, path);
	} else {
		rc = read_whole(fd, (size_t)st.st_size, out);
		if (rc != 0) {
			tls_bytes_free(out);
			error_set(error, rc, "cannot read %s: %s", path,
				rc == -EBUSY ? "it is being written" : strerror(-rc));
		}
	}
	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

static int digest(const struct tls_bytes *bytes, uint8_t out[IDENTITY_DIGEST_BYTES])
{
	return gnutls_hash_fast(GNUTLS_DIG_SHA256, bytes->data, bytes->len, out) < 0 ? -ENOMEM : 0;
}

int tls_context_read(struct tls_context *context, const char *folder, const char *name,
	enum tls_file_kind kind, bool is_optional, struct tls_bytes *out, struct error *error)
{
	struct tls_file *file = &context->files[context->file_count];
	int rc;

	GMB_ASSERT(context->file_count < TLS_FILES_MAX);
	*out = (struct tls_bytes){ .data = NULL };
	if (asprintf(&file->path, "%s%s%s", folder == NULL ? "" : folder, folder == NULL ? "" : "/",
		    name) < 0) {
		file->path = NULL;
		return error_oom(error);
	}
	context->file_count++;
	rc = context_files_read_file(file->path, kind, out, error);
	if (rc == -ENOENT && is_optional) {
		return 0;
	}
	if (rc == 0) {
		file->is_there = true;
		rc = digest(out, file->digest);
		if (rc != 0) {
			tls_bytes_free(out);
			error_set(error, rc, "no memory");
		}
	}
	return rc;
}

const char *tls_context_path(const struct tls_context *context)
{
	return context->files[context->file_count - 1].path;
}

bool tls_file_is_stale(const struct tls_file *file)
{
	uint8_t now[IDENTITY_DIGEST_BYTES];
	struct tls_bytes bytes;
	/* The mode is only checked when loading, so that the operator sees an error if it is too
	 * open. */
	int rc = context_files_read_file(file->path, TLS_FILE_PUBLIC, &bytes, NULL);
	bool is_same = rc == 0 ? file->is_there && digest(&bytes, now) == 0 &&
					 memcmp(now, file->digest, sizeof(now)) == 0
			       : rc == -ENOENT && !file->is_there;

	tls_bytes_free(&bytes);
	return !is_same;
}

/* --- pre-shared keys --------------------------------------------------------------------------
 * Lines NAME:HEX, as written by psktool; '#' starts a comment. Keys are decoded in place. */

static int context_files_compare_names(
	const struct tls_psk *psk, const void *name, size_t name_bytes)
{
	if (psk->name_bytes != name_bytes) {
		return psk->name_bytes < name_bytes ? -1 : 1;
	}
	return memcmp(psk->name, name, name_bytes);
}

static int compare_psks(const void *a, const void *b)
{
	const struct tls_psk *other = b;

	return context_files_compare_names(a, other->name, other->name_bytes);
}

/* Returns NULL, or what is wrong with the line from begin to end. */
static const char *context_files_parse_line(char *begin, char *end, struct tls_psk *psk)
{
	char *colon = memchr(begin, ':', (size_t)(end - begin));
	char *hex;
	uint8_t *key;

	if (memchr(begin, '\0', (size_t)(end - begin)) != NULL) {
		return "a zero byte";
	}
	if (colon == NULL) {
		return "a line without a colon; expected 'NAME:HEX'";
	}
	if (colon == begin) {
		return "an empty name";
	}
	if (colon - begin > IDENTITY_STRING_BYTES_MAX) {
		return "a name of more than 256 bytes";
	}
	hex = colon + 1;
	if ((end - hex) % 2 != 0) {
		return "an odd number of hexadecimal digits";
	}
	if ((end - hex) / 2 < TLS_PSK_BYTES_MIN) {
		return "a key of less than 16 bytes; create one with 'psktool -u NAME -p FILE'";
	}
	if ((end - hex) / 2 > TLS_PSK_BYTES_MAX) {
		return "a key of more than 512 bytes";
	}
	key = (uint8_t *)hex;
	for (char *at = hex; at < end; at += 2) {
		int high = text_hex_digit(at[0]), low = text_hex_digit(at[1]);

		if (high < 0 || low < 0) {
			return "a key that is not hexadecimal";
		}
		*key++ = (uint8_t)(high << 4 | low);
	}
	psk->name = begin;
	psk->name_bytes = (uint32_t)(colon - begin);
	psk->key = (const uint8_t *)hex;
	psk->key_bytes = (uint32_t)(end - hex) / 2;
	return NULL;
}

_Static_assert(
	IDENTITY_STRING_BYTES_MAX == 256 && TLS_PSK_BYTES_MIN == 16 && TLS_PSK_BYTES_MAX == 512,
	"the messages of parse_line() name these limits");

/* psktool writes a name with unprintable bytes as '#' and hexadecimal digits. Such lines cannot be
 * distinguished from comments. */
static bool looks_like_hex_name(const char *begin, const char *end)
{
	const char *at = begin + 1;

	while (at < end && text_hex_digit(*at) >= 0) {
		at++;
	}
	return at < end && *at == ':' && at > begin + 1;
}

static int parse_psks(struct tls_context *context, const char *path, struct error *error)
{
	struct tls_bytes *bytes = &context->psk_bytes;
	char *limit = bytes->data + bytes->len;
	uint32_t line = 0;

	for (char *begin = bytes->data, *next; begin < limit; begin = next) {
		char *end = memchr(begin, '\n', (size_t)(limit - begin));
		struct tls_psk *psk = &context->psks[context->psk_count];
		const char *problem;

		line++;
		if (end == NULL) {
			return error_set(error, -EINVAL,
				"%s:%u: the file ends within a line; perhaps it is still being "
				"written",
				path, line);
		}
		next = end + 1;
		while (end > begin && strchr(" \t\r", end[-1]) != NULL && end[-1] != '\0') {
			end--;
		}
		if (begin == end || *begin == '#') {
			if (begin != end && looks_like_hex_name(begin, end)) {
				tls_context_warn(context,
					"%s:%u: '#' starts a comment; names in hexadecimal are not "
					"supported",
					path, line);
			}
			continue;
		}
		problem = context_files_parse_line(begin, end, psk);
		if (problem != NULL) {
			return error_set(error, -EINVAL, "%s:%u: %s", path, line, problem);
		}
		psk->line = line;
		context->psk_count++;
	}
	if (context->psk_count == 0) {
		return error_set(error, -EINVAL,
			"%s has no keys; create one with 'psktool -u NAME -p %s'", path, path);
	}
	qsort(context->psks, context->psk_count, sizeof(context->psks[0]), compare_psks);
	for (uint32_t i = 1; i < context->psk_count; i++) {
		const struct tls_psk *a = &context->psks[i - 1], *b = &context->psks[i];

		if (compare_psks(a, b) == 0) {
			return error_set(error, -EINVAL,
				"%s:%u: the name '%s' is already used in line %u", path,
				MAX(a->line, b->line), quote_bytes(a->name, a->name_bytes),
				MIN(a->line, b->line));
		}
	}
	return 0;
}

int tls_psk_load(struct tls_context *context, const char *path, struct error *error)
{
	struct stat st;
	bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	size_t lines = 1;
	int rc = tls_context_read(context, is_folder ? path : NULL, is_folder ? "keys.psk" : path,
		TLS_FILE_SECRET, false, &context->psk_bytes, error);

	if (rc != 0) {
		return rc;
	}
	for (size_t i = 0; i < context->psk_bytes.len; i++) {
		lines += context->psk_bytes.data[i] == '\n';
	}
	context->psks = calloc(lines, sizeof(context->psks[0]));
	if (context->psks == NULL) {
		return error_oom_for(error, "the keys of %s", path);
	}
	return parse_psks(context, tls_context_path(context), error);
}

const struct tls_psk *tls_psk_find(
	const struct tls_context *context, const void *name, size_t name_bytes)
{
	uint32_t low = 0, high = context->psk_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		int order = context_files_compare_names(&context->psks[middle], name, name_bytes);

		if (order == 0) {
			return &context->psks[middle];
		}
		low = order < 0 ? middle + 1 : low;
		high = order < 0 ? high : middle;
	}
	return NULL;
}

int tls_psk_digest(const struct tls_psk *psk, uint8_t out[IDENTITY_DIGEST_BYTES])
{
	return gnutls_hmac_fast(GNUTLS_MAC_SHA256, psk->key, psk->key_bytes, psk->name,
		       psk->name_bytes, out) < 0
		       ? -ENOMEM
		       : 0;
}
