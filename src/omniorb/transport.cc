// SPDX-License-Identifier: Apache-2.0
#include "omniorb/transport.hh"

#include <cstring>
#include <fstream>
#include <new>
#include <sys/stat.h>
#include <vector>

#include <omniORB4/omniIOR.h>
#include <omniORB4/omniInterceptors.h>
#include <omniORB4/omniPolicy.h>
#include <omniORB4/omniURI.h>

#include <initialiser.h>
#include <transportRules.h>

namespace clan_omniorb
{

const char TYPE[] = "giop:clan";

namespace
{

const char LOOPBACK[] = "127.0.0.1";

enum { PORT_MAX = 65535 };

/* Tagged component ("CLAN") of an object reference. It contains the object's clan address: an
 * encapsulation of a string (the place) and an unsigned short (the port). */
const IOP::ComponentId COMPONENT = 0x434c414e;

/* Addresses for object references. Written only while the ORB starts. */
std::vector<std::string> published;

std::string find_place()
{
	std::ifstream file("/proc/sys/kernel/random/boot_id");
	std::string boot;
	struct stat net;

	if (!std::getline(file, boot) || stat("/proc/self/ns/net", &net) != 0) {
		return "";
	}
	return boot + "/" + std::to_string(net.st_dev) + "/" + std::to_string(net.st_ino);
}

/* Identifies the machine, since its last boot, and the network namespace. Processes with the same
 * place can connect to each other. "" if it cannot be determined. */
const std::string &place()
{
	static const std::string found = find_place();

	return found;
}

} // namespace

/* --- addresses -------------------------------------------------------------------------------- */

std::string address_text(unsigned port)
{
	return std::string(TYPE) + ":" + LOOPBACK + ":" + std::to_string(port);
}

bool parse_address(const char *text, unsigned &port)
{
	const char *colon = strrchr(text, ':');
	const std::string host = colon != nullptr ? std::string(text, colon) : std::string(text);
	char *end = nullptr;
	unsigned long number = 0;

	if (!host.empty() && host != LOOPBACK && host != "localhost") {
		return false;
	}
	if (colon != nullptr && colon[1] != '\0') {
		if (colon[1] < '0' || colon[1] > '9') {
			return false;
		}
		number = strtoul(colon + 1, &end, 10);
		if (*end != '\0' || number > PORT_MAX) {
			return false;
		}
	}
	port = unsigned(number);
	return true;
}

std::string socket_place(unsigned port)
{
	return "@clan-omniorb/" + std::to_string(port);
}

remote_address::remote_address(unsigned its_port) : port(its_port), text(address_text(its_port))
{
}

const char *remote_address::type() const
{
	return TYPE;
}

const char *remote_address::address() const
{
	return text.c_str();
}

omni::giopActiveConnection *remote_address::Connect(
	const omni_time_t &deadline, CORBA::ULong, CORBA::Boolean &timed_out) const
{
	bool late = false;
	active_connection *made = active_connection::make(port, deadline, late);

	timed_out = late;
	return made;
}

omni::giopAddress *remote_address::duplicate() const
{
	return new remote_address(port);
}

/* --- object references ------------------------------------------------------------------------ */

void publish_address(const char *text, bool alone)
{
	published.push_back(text);
	if (alone) {
		IIOP::Address none;

		/* No ORB connects to this TCP address, because omniORB does not try port 0. */
		none.host = CORBA::string_dup(LOOPBACK);
		none.port = 0;
		omniIOR::add_IIOP_ADDRESS(none, nullptr);
	}
}

namespace
{

void add_component(IOP::MultipleComponentProfile &components, const char *text)
{
	unsigned number;

	if (strncmp(text, TYPE, sizeof(TYPE) - 1) != 0 || text[sizeof(TYPE) - 1] != ':' ||
		!parse_address(text + sizeof(TYPE), number) || number == 0) {
		return;
	}

	IOP::TaggedComponent &component = omniIOR::newIIOPtaggedComponent(components);
	cdrEncapsulationStream stream(CORBA::ULong(0), CORBA::Boolean(1));
	const CORBA::UShort port = CORBA::UShort(number);

	component.tag = COMPONENT;
	stream.marshalRawString(place().c_str());
	port >>= stream;
	stream.setOctetSeq(component.component_data);
}

/* Called when an object reference is created. Its policies can select its addresses. */
CORBA::Boolean encode(omni::omniInterceptors::encodeIOR_T::info_T &info)
{
	if (info.iiop.version.major == 1 && info.iiop.version.minor == 0) {
		return 1; /* a reference of IIOP 1.0 has no components */
	}
	for (CORBA::ULong i = 0;
		info.hints.policies != nullptr && i < info.hints.policies->length(); i++) {
		omniPolicy::EndPointPublishPolicy_var own =
			omniPolicy::EndPointPublishPolicy::_narrow((*info.hints.policies)[i]);

		if (!CORBA::is_nil(own)) {
			for (CORBA::ULong j = 0; j < own->value().length(); j++) {
				add_component(info.iiop.components, own->value()[j]);
			}
			return 1;
		}
	}
	for (const std::string &text : published) {
		add_component(info.iiop.components, text.c_str());
	}
	return 1;
}

/* Decodes a component written by another process, which is untrusted. Its address is used only if
 * its place (machine and network namespace) is the same as ours. */
void decode_component(const IOP::TaggedComponent &component, omni::giopAddressList &addresses)
{
	cdrEncapsulationStream stream(component.component_data.get_buffer(),
		component.component_data.length(), CORBA::Boolean(1));
	CORBA::String_var its_place = stream.unmarshalRawString();
	CORBA::UShort port;

	port <<= stream;
	if (port != 0 && its_place[0] != '\0' && place() == its_place.in()) {
		addresses.push_back(new remote_address(port));
	}
}

CORBA::Boolean decode(omni::omniInterceptors::decodeIOR_T::info_T &info)
{
	const IOP::MultipleComponentProfile &components = info.iiop.components;

	for (CORBA::ULong i = 0; info.has_iiop_body && i < components.length(); i++) {
		if (components[i].tag != COMPONENT) {
			continue;
		}
		try {
			decode_component(components[i], info.ior.getIORInfo()->addresses());
		} catch (const CORBA::MARSHAL &) {
			if (omniORB::trace(1)) {
				omniORB::logger() << "clan: the address of clan in an object "
						     "reference is malformed, and ignored\n";
			}
		}
	}
	return 1;
}

/* --- rules ------------------------------------------------------------------------------------ */

/* omniORB uses a transport only if a rule names it. */
class any_rule : public omni::transportRules::Rule
{
      public:
	any_rule() : Rule("*")
	{
	}

	CORBA::Boolean match(const char *) override
	{
		return 1;
	}
};

/* Replaces omniORB's default rule, "* unix,ssl,tcp", which it adds if there is no other. */
void add_default_rule(omni::transportRules &rules)
{
	static const char *const transports[] = { "clan", "unix", "ssl", "tcp" };
	CORBA::String_var first = rules.dumpRule(0);
	CORBA::StringSeq actions;

	if (first.in() != nullptr) {
		return;
	}
	actions.length(ARRAY_COUNT(transports));
	for (CORBA::ULong i = 0; i < actions.length(); i++) {
		actions[i] = CORBA::string_dup(transports[i]);
	}
	rules.addRule(new any_rule, actions);
}

/* --- the transport ---------------------------------------------------------------------------- */

class transport : public omni::giopTransportImpl
{
      public:
	transport() : giopTransportImpl(TYPE)
	{
	}

	omni::giopEndpoint *toEndpoint(const char *text) override
	{
		unsigned port;

		return text != nullptr && parse_address(text, port) ? new endpoint(port) : nullptr;
	}

	omni::giopAddress *toAddress(const char *text) override
	{
		unsigned port;

		return text != nullptr && parse_address(text, port) && port != 0
			       ? new remote_address(port)
			       : nullptr;
	}

	CORBA::Boolean isValid(const char *text) override
	{
		unsigned port;

		return text != nullptr && parse_address(text, port) && port != 0;
	}

	/* Called for an address from a policy. */
	CORBA::Boolean addToIOR(const char *text, omni::IORPublish *addresses) override
	{
		IIOP::Address none;

		if (!isValid(text)) {
			return 0;
		}
		none.host = CORBA::string_dup(LOOPBACK);
		none.port = 0;
		omniIOR::add_IIOP_ADDRESS(none, addresses);
		return 1;
	}

	const omnivector<const char *> *getInterfaceAddress() override
	{
		return &no_interfaces;
	}

	void initialise() override
	{
		add_default_rule(omni::transportRules::clientRules());
		add_default_rule(omni::transportRules::serverRules());
	}

      private:
	omnivector<const char *> no_interfaces;
};

/* Attached after omniORB's own initialisers, whose interceptors run first. */
class hooks : public omni::omniInitialiser
{
      public:
	hooks()
	{
		install(this);
	}

	void attach() override
	{
		omniORB::getInterceptors()->encodeIOR.add(encode);
		omniORB::getInterceptors()->decodeIOR.add(decode);
	}

	void detach() override
	{
		published.clear();
	}
};

transport the_transport;
hooks the_hooks;

} // namespace

} // namespace clan_omniorb
