# SPDX-License-Identifier: Apache-2.0
"""Tests that known peers fail, and why, so that the suite can be run against any server.

Seen with nbdkit 1.32.5, qemu-nbd 7.2 and 10.0, nbd-server 3.24.  A listed test that fails is
reported as an expected deviation; one that passes is noted, since other versions differ.
gmblock has no list: every row it breaks is a defect.
"""

_NBDKIT_ABORT = ('a reply sent while another thread closes the connection hits an assertion '
                 '(raw_send_socket: sock >= 0) and aborts the server, now and then')

DEVIATIONS = {
    'nbdkit': {
        'options.error_texts': 'ERR_UNKNOWN comes without a text',
        'options.shutdown_answers_options': 'disconnects instead of answering ERR_SHUTDOWN',
        'meta.context_given_once': 'gives a context once for each query that matches',
        'meta.failed_set_replaces': 'keeps the old selection when a SET fails in the middle',
        'meta.set_for_missing_export': 'does not look whether the export exists',
        'meta.other_export_drops_selection': 'INFO of another export drops the selection',
        'structured.errors_of_other_commands': 'only READ errors are chunks, and none has a text',
        'errors.bad_magic_behind_good_requests': _NBDKIT_ABORT,
        'errors.bad_request_magic': _NBDKIT_ABORT,
        'errors.option_after_go': _NBDKIT_ABORT,
        'errors.request_in_handshake': _NBDKIT_ABORT,
        'disconnect.disc_waits_for_requests': 'answers ESHUTDOWN to what is in flight at DISC',
        'disconnect.disc_with_large_replies_pending': 'as disc_waits_for_requests',
        'disconnect.half_close_after_requests': _NBDKIT_ABORT,
        'disconnect.nothing_after_disc': _NBDKIT_ABORT,
        'disconnect.disc_with_odd_fields': _NBDKIT_ABORT,
        'disconnect.shutdown_finishes_requests': 'SIGTERM waits for idle clients, or drops them',
        'disconnect.shutdown_with_idle_clients': 'SIGTERM waits for idle clients for ever',
        'hostile.request_length_claims': _NBDKIT_ABORT,
        'hostile.write_claims_held_open': _NBDKIT_ABORT,
        'hostile.unread_replies': _NBDKIT_ABORT,
        'hostile.random_requests': _NBDKIT_ABORT,
        'hostile.random_bytes': _NBDKIT_ABORT,
        'hostile.awkward_orders': _NBDKIT_ABORT,
        'hostile.close_at_every_byte': _NBDKIT_ABORT,
        'hostile.half_close_at_every_byte': _NBDKIT_ABORT,
        'hostile.reset_at_every_byte': _NBDKIT_ABORT,
        'hostile.close_with_requests_in_flight': _NBDKIT_ABORT,
        'hostile.close_during_large_replies': _NBDKIT_ABORT,
        'resources.crowd_of_clients': _NBDKIT_ABORT,
    },
    'qemu-nbd': {
        'handshake.tcp_nodelay': '7.2 sets TCP_NODELAY only after the handshake',
        'options.info_then_go': '10.0 offers BLOCK_STATUS_PAYLOAD in INFO but not in GO',
        'meta.malformed_queries': 'disconnects on a query length of 4 GiB instead of ERR_INVALID',
        'transmission.odd_size': 'rounds the size of an image up to 512 bytes',
        'transmission.past_the_end': 'WRITE past the end is EINVAL',
        'transmission.read_only': 'WRITE to a read-only export is EINVAL',
        'extended.compact_request_is_fatal': 'answers a bad magic with EINVAL before it closes',
        'extended.extended_request_is_fatal': 'answers a bad magic with EINVAL before it closes',
        'extended.long_effects': 'CACHE is limited to the maximum payload',
        'errors.bad_request_magic': 'answers a bad magic with EINVAL before it closes',
        'errors.bad_magic_behind_good_requests': 'answers a bad magic with EINVAL before it closes',
        'errors.option_after_go': 'answers a bad magic with EINVAL before it closes',
        'disconnect.disc_with_large_replies_pending': 'closes at DISC with replies unsent',
        'disconnect.shutdown_with_a_deaf_client': 'waits for ever for a client that reads nothing',
        'hostile.echoed_text': 'echoes bytes that are not UTF-8 in its error text',
        'hostile.names_are_not_prefixes': 'EXPORT_NAME is compared as a C string, up to a NUL',
    },
    'nbd-server': {
        'handshake.greeting': 'ABORT closes without an ACK',
        'handshake.unknown_client_flag_drops': 'ignores some unknown client flags',
        'handshake.unoffered_client_flag_drops': 'ABORT closes without an ACK',
        'handshake.baseline': 'ABORT closes without an ACK',
        'options.one_final_reply_each': 'a LIST with data is not skipped, and ABORT has no ACK',
        'options.abort': 'ABORT closes without an ACK',
        'options.list_default_export': 'has no default export, only names',
        'options.list_with_data': 'answers LIST with data as if it had none, or twice',
        'options.error_texts': 'a LIST with data is not skipped',
        'options.malformed_info_and_go': 'waits for the bytes that the inner length claims',
        'options.info_then_go': 'GO after INFO gives another answer',
        'options.info_name': 'does not give INFO_NAME',
        'options.bytes_behind_starttls': 'has no default export to ask for',
        'options.long_names': 'waits for more bytes after an over-long name',
        'errors.misplaced_flags': 'ignores flags that belong to other commands',
        'hostile.option_data_streamed': 'loses its place in the stream after long option data',
        'hostile.moderate_option_data': 'disconnects on 4 KiB of data with LIST',
        'hostile.names_are_not_prefixes': 'names are compared as C strings, up to a NUL',
        'resources.too_many_clients_of_one_export': 'refuses by closing, not by an error',
    },
}
