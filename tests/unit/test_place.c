// SPDX-License-Identifier: Apache-2.0
/* Networks, and places that an operator names. */

#include "base/place.h"
#include "unit.h"

static bool holds(const char *text, const char *uri_text)
{
	struct export_uri uri;
	struct place place;
	struct error error;
	bool found;

	assert_int_equal(place_parse(text, &place, &error), 0);
	assert_string_equal(place.text, text);
	assert_int_equal(export_uri_parse(uri_text, &uri, &error), 0);
	found = place_holds(&place, &uri);
	export_uri_fini(&uri);
	place_fini(&place);
	return found;
}

TEST(sockets)
{
	assert_true(holds("/run/a", "push+unix:///?socket=/run/a"));
	assert_false(holds("/run/a", "push+unix:///?socket=/run/ab"));
	assert_false(holds("/run/a", "push+unix:///?socket=/run/a/b"));
	assert_false(holds("/run/a", "push+unix:///?socket=run/a"));
	assert_false(holds("/run/a", "push+unix:///?socket=%00/run/a"));
	assert_false(holds("/run/a", "push://127.0.0.1"));
	assert_true(holds("//run/a", "push+unix:///?socket=//run/a"));
	assert_true(holds("/run/", "push+unix:///?socket=/run/a"));
	assert_false(holds("/run/", "push+unix:///?socket=/run/../a"));
	assert_false(holds("/run/", "push+unix:///?socket=/run/b/a"));
	assert_false(holds("/run/", "push+unix:///?socket=/runs"));
	assert_false(holds("0.0.0.0/0,port=any", "push+unix:///?socket=/run/a"));
}

TEST(networks)
{
	assert_true(holds("10.0.0.0/8", "push://10.1.2.3"));
	assert_false(holds("10.0.0.0/8", "push://11.1.2.3"));
	assert_false(holds("10.0.0.0/8", "push://10.1.2.3:10810"));
	assert_true(holds("10.0.0.0/8,port=any", "push://10.1.2.3:10810"));
	assert_true(holds("10.1.2.3,port=7", "push://10.1.2.3:7"));
	assert_false(holds("10.1.2.3,port=7", "push://10.1.2.4:7"));
	assert_true(holds("10.0.0.0/8", "push://[::ffff:10.1.2.3]"));
	assert_true(holds("2001:db8::/33", "push://[2001:db8:7fff::1]"));
	assert_false(holds("2001:db8::/33", "push://[2001:db8:8000::1]"));
	assert_true(holds("0.0.0.0/0", "push://10.1.2.3"));
	/* A network of IPv6 holds no IPv4 address, and names are not looked up. */
	assert_true(holds("::/0", "push://[2001:db8::1]"));
	assert_false(holds("::/0", "push://10.1.2.3"));
	assert_false(holds("127.0.0.1", "push://localhost"));
}

TEST(protocols)
{
	assert_true(holds("nbd:10.1.2.3", "nbd://10.1.2.3"));
	assert_true(holds("nbd:10.0.0.0/8,port=7", "nbd://10.1.2.3:7"));
	assert_true(holds("nbd:/run/", "nbd+unix:///x?socket=/run/a"));
	assert_false(holds("nbd:10.1.2.3,port=any", "push://10.1.2.3"));
	assert_false(holds("10.1.2.3,port=any", "nbd://10.1.2.3"));
	assert_false(holds("/run/", "nbd+unix:///x?socket=/run/a"));
	assert_false(holds("nbd:/run/a", "push+unix:///x?socket=/run/a"));
}

/* Whether both texts, with the same credentials or others, are one place. */
static bool same(const char *one, const char *other)
{
	struct place places[2];
	struct error error;
	bool is_same;

	assert_int_equal(place_parse(one, &places[0], &error), 0);
	assert_int_equal(place_parse(other, &places[1], &error), 0);
	is_same = place_same(&places[0], &places[1]);
	place_fini(&places[0]);
	place_fini(&places[1]);
	return is_same;
}

TEST(credentials)
{
	static const char text[] = "nbds:10.0.0.0/8,port=7,tls-certificates=/c,tls-hostname=h";
	static const char key[] = "nbds:/run/s,tls-psk-file=/k,tls-username=u";
	static const struct place empty;
	struct place place;
	struct error error;

	assert_int_equal(place_parse(text, &place, &error), 0);
	assert_string_equal(place.text, "nbds:10.0.0.0/8,port=7");
	assert_true(place.tls);
	assert_int_equal(place.port, 7);
	assert_string_equal(place.tls_certificates, "/c");
	assert_string_equal(place.tls_hostname, "h");
	assert_null(place.tls_psk_file);
	assert_null(place.tls_username);
	place_fini(&place);
	assert_memory_equal(&place, &empty, sizeof(place));
	assert_int_equal(place_parse(key, &place, &error), 0);
	assert_string_equal(place.text, "nbds:/run/s");
	assert_string_equal(place.path, "/run/s");
	assert_string_equal(place.tls_psk_file, "/k");
	assert_string_equal(place.tls_username, "u");
	place_fini(&place);
	assert_true(same(text, "nbds:10.0.0.0/8,port=7,tls-hostname=h,tls-certificates=/c"));
	assert_true(same("nbds:10.0.0.1,tls-certificates=/c",
		"nbds:::ffff:10.0.0.1,port=10809,tls-certificates=/c"));
	assert_false(same(text, "nbds:10.0.0.0/8,port=7,tls-certificates=/d,tls-hostname=h"));
	assert_false(same(text, "nbds:10.0.0.0/8,port=7,tls-certificates=/c,tls-hostname=i"));
	assert_false(same(text, "nbds:10.0.0.0/8,port=7,tls-certificates=/c"));
	assert_false(same(text, "nbds:10.0.0.0/8,port=7,tls-psk-file=/c,tls-username=h"));
	assert_false(same(text, "nbd:10.0.0.0/8,port=7"));
	assert_false(same(key, "nbds:/run/s,tls-psk-file=/k,tls-username=v"));
	assert_false(same(key, "nbds:/run/s,tls-psk-file=/l,tls-username=u"));
}

/* With TLS or without, never both. */
TEST(tls_places)
{
	static const char text[] = "nbds:10.0.0.0/8,tls-certificates=/c";
	struct place place;
	struct export_uri uris[3];
	struct error error;

	assert_int_equal(place_parse(text, &place, &error), 0);
	assert_int_equal(export_uri_parse("nbds://10.1.2.3/x", &uris[0], &error), 0);
	assert_int_equal(export_uri_parse("nbd://10.1.2.3/x", &uris[1], &error), 0);
	assert_int_equal(export_uri_parse("nbds://10.1.2.3:7/x", &uris[2], &error), 0);
	assert_true(place_holds(&place, &uris[0]));
	assert_false(place_holds(&place, &uris[1]));
	assert_false(place_holds(&place, &uris[2]));
	place_fini(&place);
	for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
		export_uri_fini(&uris[i]);
	}
	assert_false(holds("nbd:10.0.0.0/8", "nbds://10.1.2.3"));
}

TEST(what_is_no_place)
{
	static const char *const texts[] = {
		"",
		"run/a",
		"localhost",
		"nbd:",
		"nbd:localhost",
		"gmb:10.0.0.1",
		"10.0.0.1/8",
		"10.0.0.0/33",
		"10.0.0.0/",
		"10.0.0.1,port=",
		"10.0.0.1,port=0",
		"10.0.0.1,port=65536",
		"10.0.0.1,sport=1",
		",port=1",
		"[::1]",
		"nbds:10.0.0.1",
		"nbds:/run/s",
		"nbds:/run/s,tls-certificates=/c",
		"nbds:10.0.0.1,tls-hostname=h",
		"nbds:10.0.0.1,tls-certificates=",
		"nbds:10.0.0.1,tls-certificates",
		"nbds:10.0.0.1,tls-certificates=/c,",
		"nbds:10.0.0.1,tls-certificates=/c,port=7",
		"nbds:10.0.0.1,tls-certificates=/c,tls-certificates=/c",
		"nbds:10.0.0.1,tls-certificates=/c,tls-psk-file=/k,tls-username=u",
		"nbds:10.0.0.1,tls-certificates=/c,tls-username=u",
		"nbds:10.0.0.1,tls-certificates=/c,tls-verify-peer=0",
		"nbds:10.0.0.1,tls-psk-file=/k",
		"nbds:10.0.0.1,tls-psk-file=/k,tls-username=u,tls-hostname=h",
		"nbd:10.0.0.1,tls-certificates=/c",
		"nbd:/run/s,tls-certificates=/c",
		"10.0.0.1,tls-certificates=/c",
		"nbds:localhost,tls-certificates=/c",
		"nbd://10.0.0.1",
		"nbds://10.0.0.1,tls-certificates=/c,tls-hostname=h",
	};
	struct place place;
	struct error error;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		assert_true(place_parse(texts[i], &place, &error) < 0);
	}
}

TEST(loopback)
{
	static const struct {
		const char *host;
		bool is_loopback;
	} hosts[] = {
		{ "127.0.0.1", true },
		{ "127.255.0.1", true },
		{ "::ffff:127.0.0.1", true },
		{ "::1", true },
		{ "126.0.0.1", false },
		{ "::2", false },
		{ "7f00::1", false },
	};
	uint8_t address[NETWORK_ADDRESS_BYTES];

	for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
		assert_true(address_parse(hosts[i].host, address));
		assert_int_equal(address_is_loopback(address), hosts[i].is_loopback);
	}
	assert_false(address_parse("localhost", address));
}
