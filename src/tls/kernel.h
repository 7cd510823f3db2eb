// SPDX-License-Identifier: Apache-2.0
/*
 * Kernel TLS: a layer whose records are encrypted and decrypted by the kernel, after GnuTLS has
 * completed the handshake. This process still handles control messages: new keys, tickets, alerts.
 *
 *   handshake done, its last byte sent ── tls_kernel_take() ──▶ TCP_ULP, TLS_TX, TLS_RX
 *        -EOPNOTSUPP: nothing has changed, the GnuTLS session continues
 *        0: the session is freed, all bytes go through tls_kernel_send() and _receive()
 *
 *   receive ─▶ data
 *          └─▶ EIO: a control message is next ─▶ read it ─▶ new key for receiving, or the end
 *   send ─▶ [our key must change: KeyUpdate, new key for sending] ─▶ data
 *
 * Between TCP_ULP and TLS_TX the socket would send plain bytes, so no data is sent until both keys
 * are installed. MSG_WAITALL is never used for receives, because Linux 7.2 does not return from
 * such a receive if a control message interrupts the data. RFC 8446 (TLS 1.3), RFC 5288 and 7905
 * (TLS 1.2); Linux's Documentation/networking/tls.rst.
 *
 * Private to src/tls, except the first part. Threading: the ring's thread; features, keys and
 * control messages on any thread. Ownership: stated at each. Errors: a negative errno and an error
 * message.
 */
#pragma once

#include <linux/tls.h>

#include "stream/stream.h"
#include "tls/context.h"

struct gnutls_session_int;

/* --- features of the kernel ------------------------------------------------------------------ */

enum tls_cipher { TLS_AES_128_GCM, TLS_AES_256_GCM, TLS_CHACHA20, TLS_CIPHER_COUNT };

enum tls_version { TLS_1_2, TLS_1_3, TLS_VERSION_COUNT };

struct tls_kernel_features {
	/* Ciphers that worked, BIT(enum tls_cipher). If there are none, why_not has the reason. */
	uint32_t ciphers[TLS_VERSION_COUNT];
	/* Keys can be changed in both directions. Without this, a TLS 1.3 connection breaks when
	 * the peer changes its key; GnuTLS does so after 2^24 records. */
	bool has_rekeying;
	struct error why_not; /* code 0: all features are available */
};

/* Returns the features. The first caller finds them out with real connections on the loopback
 * interface; concurrent callers wait for it. Blocks for milliseconds. Any thread. */
const struct tls_kernel_features *tls_kernel_features(void);

/* Probes the features now if `records` needs them, before the process gives up the privileges for
 * the probe. Returns 0, or -EOPNOTSUPP with the reason if `records` requires TLS in the kernel, and
 * the kernel does not have it. */
GMB_MUST_CHECK int tls_kernel_look(enum tls_records records, struct error *error);

/* --- keys ------------------------------------------------------------------------------------- */

enum { TLS_SECRET_BYTES_MAX = 48, TLS_KEY_BYTES_MAX = 32, TLS_IV_BYTES_MAX = 12 };

/* Key of one direction of a session. Wiped by its owner. */
struct tls_key {
	enum tls_version version;
	enum tls_cipher cipher;
	uint8_t key[TLS_KEY_BYTES_MAX];
	uint8_t iv[TLS_IV_BYTES_MAX]; /* TLS 1.2 with GCM: 4 bytes; the rest is in each record */
	uint64_t sequence;
	/* TLS 1.3: the traffic secret from which the next key is derived. */
	uint8_t secret_bytes;
	uint8_t secret[TLS_SECRET_BYTES_MAX];
};

struct tls_keys {
	struct tls_key receive;
	struct tls_key send;
};

/* Stores the traffic secrets of TLS 1.3, for gnutls_handshake_set_secret_function(). NULL: not
 * stored. */
void tls_keys_keep_secrets(
	struct tls_keys *keys, const void *receive, const void *send, size_t secret_bytes);
/* Gets the current keys. The secrets of the session must be stored already. -EOPNOTSUPP: the kernel
 * does not have this cipher or version. */
GMB_MUST_CHECK int tls_keys_of_session(struct tls_keys *keys, struct gnutls_session_int *session);
void tls_keys_wipe(struct tls_keys *keys);

/* Derives the key after this one (RFC 8446, 7.2 and 7.3). -EIO: GnuTLS failed. */
GMB_MUST_CHECK int tls_key_next(struct tls_key *key);

union tls_crypto {
	struct tls_crypto_info info;
	struct tls12_crypto_info_aes_gcm_128 aes_128;
	struct tls12_crypto_info_aes_gcm_256 aes_256;
	struct tls12_crypto_info_chacha20_poly1305 chacha20;
};

/* Converts the key to the form that setsockopt() takes, and returns its size. The caller wipes
 * it. */
size_t tls_key_crypto(const struct tls_key *key, union tls_crypto *crypto_out);
/* Installs the key. direction: TLS_TX or TLS_RX. Returns 0 or a negative errno of setsockopt(). */
GMB_MUST_CHECK int tls_key_install(const struct tls_key *key, int fd, int direction);
/* Returns whether the socket has a key of this version and cipher. The key itself is not
 * compared. */
bool tls_key_is_installed(const struct tls_key *key, int fd, int direction);
/* Sets the length of a copied secret according to its version and cipher. */
void tls_key_adopt_secret(struct tls_key *key);
/* Returns "AES-128-GCM", for example; static. */
const char *tls_cipher_name(enum tls_cipher cipher);

/* --- control messages --------------------------------------------------------------------------
 * Records that are not data, in pieces as the kernel delivers them. */

enum tls_content { TLS_CHANGE_CIPHER = 20, TLS_ALERT = 21, TLS_HANDSHAKE = 22, TLS_DATA = 23 };

enum tls_alert {
	TLS_ALERT_CLOSE_NOTIFY = 0,
	TLS_ALERT_UNEXPECTED_MESSAGE = 10,
	TLS_ALERT_DECODE_ERROR = 50,
	TLS_ALERT_INTERNAL_ERROR = 80,
	TLS_ALERT_USER_CANCELED = 90,
};

enum {
	TLS_TICKETS_MAX = 16,
	TLS_TICKET_BYTES_MAX = 65536,
	TLS_WARNING_ALERTS_MAX = 4,
	TLS_UPDATES_PER_S_MAX = 8,
};

enum tls_event {
	TLS_EVENT_NONE,
	TLS_EVENT_CLOSED, /* close_notify */
	TLS_EVENT_UPDATE, /* the next record uses the next key */
	/* like TLS_EVENT_UPDATE; the peer also requests that our key changes */
	TLS_EVENT_UPDATE_BOTH
};

/* Parser of control messages. Initially all members except role and version are 0. */
struct tls_control {
	enum tls_role role; /* our role */
	enum tls_version version;
	uint8_t header[4]; /* received part of a handshake message's header */
	uint32_t header_bytes;
	uint32_t skip_bytes; /* bytes of a ticket that have not arrived yet */
	uint32_t tickets;
	uint32_t warnings;
	uint32_t updates; /* in the second that started at updates_since_ns */
	uint64_t updates_since_ns;
};

/* Processes a piece of a control message. -EPROTO: the peer violated the protocol, and *alert_out
 * is the alert for it; -ECONNABORTED: the peer ended the connection with an alert. */
GMB_MUST_CHECK int tls_control_input(struct tls_control *control, uint8_t content,
	const uint8_t *bytes, size_t count, uint64_t now_ns, enum tls_event *event_out,
	enum tls_alert *alert_out, struct error *error);

/* --- the layer -------------------------------------------------------------------------------- */

struct tls_kernel;

/* Returns whether a connection that is about to start its handshake might use kernel records: it is
 * a TCP socket, and `records` and the kernel permit this. Its secrets must then be stored. */
bool tls_kernel_is_wanted(enum tls_records records, int fd);

/*
 * Hands the session's records over to the kernel. The handshake is complete, its last byte was
 * sent, and no byte was received beyond it. keys: with the stored secrets; wiped in any case.
 * error: receives the description of later failures, and must exist as long as *kernel_out.
 * Afterwards the session is unusable, and the caller frees it.
 *
 * -EOPNOTSUPP: the kernel does not accept these keys. Nothing was sent, and the session can
 * continue. Any other error: the connection is lost.
 */
GMB_MUST_CHECK int tls_kernel_take(struct stream *stream, enum tls_role role,
	enum tls_records records, struct gnutls_session_int *session, struct tls_keys *keys,
	struct error *error, struct tls_kernel **kernel_out);
/* Frees a layer, which must be idle, and wipes the secrets. NULL is a no-op. */
void tls_kernel_free(struct tls_kernel *kernel);

/* The state that another process needs, in addition to a copy of the socket, to continue the
 * connection. The socket contains the current keys. The state contains the secrets from which the
 * next keys are derived. */
struct tls_kernel_state {
	struct tls_keys keys; /* version, cipher and secrets, which their owner wipes */
	uint64_t blocks_left; /* blocks until the sending key must change */
};

/* Fills in the state for another process. The layer must be idle, and must not have received a
 * part of a control message. */
void tls_kernel_hand_over(const struct tls_kernel *kernel, struct tls_kernel_state *state_out);
/* Called in the process that takes over the connection: creates the layer from the state.
 * secret_bytes need not be set in it. -EOPNOTSUPP: the kernel does not process the socket's records
 * with this version and cipher, or `records` no longer permits kernel TLS. After an error nothing
 * has changed. */
GMB_MUST_CHECK int tls_kernel_adopt(struct stream *stream, enum tls_role role,
	enum tls_records records, const struct tls_kernel_state *state, struct error *error,
	struct tls_kernel **kernel_out);

/* Implement the members of struct stream_ops with the same names. */
void tls_kernel_receive(
	struct tls_kernel *kernel, struct ring_op *op, struct msghdr *message, bool whole);
void tls_kernel_send(struct tls_kernel *kernel, struct ring_op *op, const struct msghdr *message);
GMB_MUST_CHECK ssize_t tls_kernel_receive_now(struct tls_kernel *kernel, struct msghdr *message);
GMB_MUST_CHECK ssize_t tls_kernel_send_now(struct tls_kernel *kernel, const struct msghdr *message);
GMB_MUST_CHECK ssize_t tls_kernel_sendfile_now(
	struct tls_kernel *kernel, struct mem_ref bytes, size_t count);
void tls_kernel_cancel(struct tls_kernel *kernel, struct ring_op *op);
void tls_kernel_shutdown(struct tls_kernel *kernel);
void tls_kernel_shutdown_send(struct tls_kernel *kernel);
bool tls_kernel_is_idle(const struct tls_kernel *kernel);

/* See tls_layer_was_cut(). */
bool tls_kernel_was_cut(const struct tls_kernel *kernel);
