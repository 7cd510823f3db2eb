// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <string.h>

#include <gnutls/gnutls.h>

#include "tls/kernel.h"

enum { NEW_SESSION_TICKET = 4, KEY_UPDATE = 24, KEY_UPDATE_BYTES = 5, HEADER_BYTES = 4 };

enum { ALERT_WARNING = 1 };

#define NS_PER_S UINT64_C(1000000000)

static int kernel_control_refuse(
	enum tls_alert *alert_out, enum tls_alert alert, struct error *error, const char *what)
{
	*alert_out = alert;
	return error_set(error, -EPROTO, "the peer broke the TLS protocol: %s", what);
}

/* --- alerts ----------------------------------------------------------------------------------- */

/* An alert has a level, warning or fatal. TLS 1.3 ignores the level: every alert except
 * close_notify and user_canceled is an error that ends the connection (RFC 8446, 6). */
static int take_alert(struct tls_control *control, const uint8_t *bytes, size_t count,
	enum tls_event *event_out, enum tls_alert *alert_out, struct error *error)
{
	const char *name;

	if (count != 2) {
		return kernel_control_refuse(
			alert_out, TLS_ALERT_DECODE_ERROR, error, "an alert does not have 2 bytes");
	}
	if (bytes[1] == TLS_ALERT_CLOSE_NOTIFY) {
		*event_out = TLS_EVENT_CLOSED;
		return 0;
	}
	if (bytes[1] == TLS_ALERT_USER_CANCELED ||
		(control->version == TLS_1_2 && bytes[0] == ALERT_WARNING)) {
		return ++control->warnings <= TLS_WARNING_ALERTS_MAX
			       ? 0
			       : kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE,
					 error, "too many warning alerts");
	}
	name = gnutls_alert_get_name((gnutls_alert_description_t)bytes[1]);
	return error_set(error, -ECONNABORTED, "the peer closed the connection with alert %u (%s)",
		bytes[1], name == NULL ? "unknown" : name);
}

/* --- handshake messages ----------------------------------------------------------------------- */

static int take_update(struct tls_control *control, const uint8_t *bytes, size_t count,
	uint64_t now_ns, enum tls_event *event_out, enum tls_alert *alert_out, struct error *error)
{
	/* The next record uses another key, so a KeyUpdate must be the last message in its record
	 * (RFC 8446, 5.1). */
	if (count != KEY_UPDATE_BYTES || bytes[1] != 0 || bytes[2] != 0 || bytes[3] != 1 ||
		bytes[4] > 1) {
		return kernel_control_refuse(
			alert_out, TLS_ALERT_DECODE_ERROR, error, "a malformed KeyUpdate");
	}
	if (now_ns - control->updates_since_ns >= NS_PER_S || control->updates == 0) {
		control->updates_since_ns = now_ns;
		control->updates = 0;
	}
	if (++control->updates > TLS_UPDATES_PER_S_MAX) {
		return kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE, error,
			"more than 8 key changes in a second");
	}
	*event_out = bytes[4] == 1 ? TLS_EVENT_UPDATE_BOTH : TLS_EVENT_UPDATE;
	return 0;
}

/* Processes the complete header of a handshake message. Only a session ticket for a client is
 * expected here. */
static int take_header(struct tls_control *control, enum tls_alert *alert_out, struct error *error)
{
	const uint8_t *header = control->header;

	control->header_bytes = 0;
	control->skip_bytes = (uint32_t)header[1] << 16 | (uint32_t)header[2] << 8 | header[3];
	if (header[0] != NEW_SESSION_TICKET || control->role != TLS_CLIENT) {
		return kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE, error,
			"a handshake message after the handshake");
	}
	if (++control->tickets > TLS_TICKETS_MAX || control->skip_bytes > TLS_TICKET_BYTES_MAX) {
		return kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE, error,
			"too many session tickets, or a session ticket that is too long");
	}
	return 0;
}

/* The only permitted handshake message here is a session ticket. Sessions are never resumed, so
 * tickets are only counted and skipped. */
static int take_handshake(struct tls_control *control, const uint8_t *bytes, size_t count,
	enum tls_alert *alert_out, struct error *error)
{
	size_t at = 0;
	int rc = 0;

	while (rc == 0 && at < count) {
		size_t part = MIN((size_t)control->skip_bytes, count - at);

		at += part;
		control->skip_bytes -= (uint32_t)part;
		part = MIN(HEADER_BYTES - control->header_bytes, count - at);
		memcpy(control->header + control->header_bytes, bytes + at, part);
		at += part;
		control->header_bytes += (uint32_t)part;
		if (control->header_bytes == HEADER_BYTES) {
			rc = take_header(control, alert_out, error);
		}
	}
	return rc;
}

int tls_control_input(struct tls_control *control, uint8_t content, const uint8_t *bytes,
	size_t count, uint64_t now_ns, enum tls_event *event_out, enum tls_alert *alert_out,
	struct error *error)
{
	bool is_between = control->header_bytes == 0 && control->skip_bytes == 0;

	*event_out = TLS_EVENT_NONE;
	if (count == 0 || (content != TLS_HANDSHAKE && !is_between)) {
		return kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE, error,
			"an empty or incomplete control message");
	}
	if (content == TLS_ALERT) {
		return take_alert(control, bytes, count, event_out, alert_out, error);
	}
	if (content != TLS_HANDSHAKE || control->version != TLS_1_3) {
		return kernel_control_refuse(alert_out, TLS_ALERT_UNEXPECTED_MESSAGE, error,
			"a record that is neither data nor an alert");
	}
	if (is_between && bytes[0] == KEY_UPDATE) {
		return take_update(control, bytes, count, now_ns, event_out, alert_out, error);
	}
	return take_handshake(control, bytes, count, alert_out, error);
}
