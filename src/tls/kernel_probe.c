// SPDX-License-Identifier: Apache-2.0
/* Probe of kernel TLS with connections of our own, because version numbers and accepted options
 * reveal too little: modules might be missing, and Linux before 6.14 accepts a key only once. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "tls/kernel.h"

enum { TIME_LIMIT_S = 2, WORDS_BYTES = 5 };

static const uint8_t words[WORDS_BYTES] = "words";

/* A connection of this process to itself. */
struct pair {
	int listener;
	int from;
	int to;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct tls_kernel_features features;

/* --- a connection ----------------------------------------------------------------------------- */

static void pair_close(struct pair *pair)
{
	const int fds[] = { pair->listener, pair->from, pair->to };

	for (size_t i = 0; i < ARRAY_COUNT(fds); i++) {
		if (fds[i] >= 0) {
			close(fds[i]);
		}
	}
}

static int pair_connect(struct pair *pair)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in peer = { 0 };
	struct sockaddr_in own = { 0 };
	socklen_t bytes = sizeof(address);
	const struct timeval limit = { .tv_sec = TIME_LIMIT_S };

	*pair = (struct pair){
		.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
		.from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
		.to = -1,
	};
	if (pair->listener < 0 || pair->from < 0 ||
		bind(pair->listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
		listen(pair->listener, 1) != 0 ||
		getsockname(pair->listener, (struct sockaddr *)&address, &bytes) != 0 ||
		setsockopt(pair->from, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
		setsockopt(pair->listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
		connect(pair->from, (struct sockaddr *)&address, sizeof(address)) != 0 ||
		getsockname(pair->from, (struct sockaddr *)&own, &bytes) != 0) {
		return -errno;
	}
	pair->to = accept4(pair->listener, (struct sockaddr *)&peer, &bytes, SOCK_CLOEXEC);
	if (pair->to < 0 ||
		setsockopt(pair->to, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0) {
		return -errno;
	}
	/* If another program has connected to the listener before us, the probe fails instead of
	 * sending to that program. */
	return peer.sin_port == own.sin_port ? 0 : -ECONNREFUSED;
}

static int pair_install(const struct pair *pair, const struct tls_key *key)
{
	return tls_key_install(key, pair->from, TLS_TX) ?: tls_key_install(key, pair->to, TLS_RX);
}

static int kernel_probe_pair_start(struct pair *pair, const struct tls_key *key)
{
	int rc = pair_connect(pair);

	if (rc != 0) {
		return rc;
	}
	if (setsockopt(pair->from, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0 ||
		setsockopt(pair->to, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) != 0) {
		return errno == ENOENT ? -ENOSYS : -errno;
	}
	return pair_install(pair, key);
}

static int pair_talk(const struct pair *pair)
{
	uint8_t heard[WORDS_BYTES] = { 0 };

	errno = EIO; /* send() and recv() set no errno for a short count */
	if (send(pair->from, words, sizeof(words), MSG_NOSIGNAL) != sizeof(words) ||
		recv(pair->to, heard, sizeof(heard), 0) != sizeof(heard)) {
		return -errno;
	}
	return memcmp(heard, words, sizeof(words)) == 0 ? 0 : -EBADMSG;
}

/* --- probes ---------------------------------------------------------------------------------- */

/* Sends a KeyUpdate and receives it. Then installs the next key on both sockets, as the layer of a
 * real connection does. */
static int pair_change_key(const struct pair *pair, struct tls_key *key)
{
	static uint8_t update[] = { 24, 0, 0, 1, 0 };
	uint8_t heard[16];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(1)];
	} control = { 0 };
	struct iovec iov = { .iov_base = update, .iov_len = sizeof(update) };
	struct msghdr message = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };
	int rc;

	control.header = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(1), .cmsg_level = SOL_TLS, .cmsg_type = TLS_SET_RECORD_TYPE
	};
	*CMSG_DATA(&control.header) = TLS_HANDSHAKE;
	if (sendmsg(pair->from, &message, MSG_NOSIGNAL) != sizeof(update)) {
		return -errno;
	}
	iov = (struct iovec){ .iov_base = heard, .iov_len = sizeof(heard) };
	message.msg_controllen = sizeof(control);
	if (recvmsg(pair->to, &message, 0) != sizeof(update)) {
		return -errno;
	}
	rc = tls_key_next(key);
	return rc == 0 ? pair_install(pair, key) : rc;
}

static struct tls_key some_key(enum tls_version version, enum tls_cipher cipher)
{
	struct tls_key key = { .version = version,
		.cipher = cipher,
		.secret_bytes = cipher == TLS_AES_256_GCM ? 48 : 32 };

	memset(key.key, 1, sizeof(key.key));
	memset(key.iv, 2, sizeof(key.iv));
	return key;
}

static int try(enum tls_version version, enum tls_cipher cipher)
{
	struct tls_key key = some_key(version, cipher);
	struct pair pair;
	int rc = kernel_probe_pair_start(&pair, &key) ?: pair_talk(&pair);

	if (rc == 0) {
		features.ciphers[version] |= BIT(cipher);
	}
	if (rc == 0 && version == TLS_1_3 && cipher == TLS_AES_128_GCM) {
		rc = pair_change_key(&pair, &key) ?: pair_talk(&pair);
		features.has_rekeying = rc == 0;
		rc = 0;
	}
	pair_close(&pair);
	return rc;
}

static void kernel_probe_look(void)
{
	int rc = try(TLS_1_3, TLS_AES_128_GCM);

	if (rc == -ENOSYS) {
		error_set(&features.why_not, -EOPNOTSUPP,
			"the kernel's module tls is not loaded (modprobe tls) or is missing");
		return;
	}
	if (rc != 0) {
		error_set(&features.why_not, -EOPNOTSUPP,
			"a test of kernel TLS on the loopback interface failed: %s", strerror(-rc));
		return;
	}
	for (int version = 0; version < TLS_VERSION_COUNT; version++) {
		for (int cipher = 0; cipher < TLS_CIPHER_COUNT; cipher++) {
			if (!(features.ciphers[version] & BIT(cipher))) {
				(void)!try((enum tls_version)version, (enum tls_cipher)cipher);
			}
		}
	}
	if (!features.has_rekeying) {
		error_set(&features.why_not, -EOPNOTSUPP,
			"this kernel's TLS cannot change keys (requires Linux 6.14)");
	}
}

const struct tls_kernel_features *tls_kernel_features(void)
{
	pthread_once(&once, kernel_probe_look);
	return &features;
}

int tls_kernel_look(enum tls_records records, struct error *error)
{
	if (records == TLS_RECORDS_USER || tls_kernel_features()->ciphers[TLS_1_3] != 0 ||
		records == TLS_RECORDS_AUTO) {
		return 0;
	}
	return error_set(error, -EOPNOTSUPP, "the kernel cannot process TLS records: %.400s",
		features.why_not.text);
}

bool tls_kernel_is_wanted(enum tls_records records, int fd)
{
	int protocol = 0;
	socklen_t bytes = sizeof(protocol);

	/* Sockets that are not TCP are excluded first, because the last condition can cause a probe
	 * of the kernel. */
	return records != TLS_RECORDS_USER &&
	       getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) == 0 &&
	       protocol == IPPROTO_TCP && tls_kernel_features()->ciphers[TLS_1_3] != 0;
}
