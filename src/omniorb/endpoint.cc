// SPDX-License-Identifier: Apache-2.0
#include "omniorb/transport.hh"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <objectAdapter.h>

namespace clan_omniorb
{

/* The range of free ports: the range from which the kernel chooses TCP ports. */
enum { PORT_FIRST = 32768, PORT_COUNT = 28232, RETRY_MS = 10 };

endpoint::endpoint(unsigned its_port) : SocketHolder(-1), port(its_port)
{
}

endpoint::~endpoint()
{
	if (pd_socket >= 0) {
		close(pd_socket);
	}
	if (spare_fd >= 0) {
		close(spare_fd);
	}
	if (accepted_fd >= 0) {
		close(accepted_fd);
	}
}

const char *endpoint::type() const
{
	return TYPE;
}

const char *endpoint::address() const
{
	return texts.length() > 0 ? (const char *)texts[0] : TYPE;
}

const omni::orbServer::EndpointList *endpoint::addresses() const
{
	return &texts;
}

/* --- publishing ------------------------------------------------------------------------------- */

/* An object reference needs a TCP address, even if no process listens there. */
static bool has_tcp(const omni::orbServer::EndpointList &published)
{
	for (CORBA::ULong i = 0; i < published.length(); i++) {
		if (strncmp(published[i], "giop:tcp:", 9) == 0) {
			return true;
		}
	}
	return false;
}

/* Publishes the address that spec selects: an address of this transport, or "addr" for the
 * endpoint's own address. Returns false if nothing was published. */
bool endpoint::publish_one(const char *spec, omni::orbServer::EndpointList &published)
{
	const size_t type_length = strlen(TYPE);
	CORBA::String_var text;
	unsigned number;

	if (strncmp(spec, TYPE, type_length) == 0 && spec[type_length] == ':') {
		if (!parse_address(spec + type_length + 1, number)) {
			return false;
		}
		text = number == 0 ? CORBA::string_dup(address())
				   : CORBA::string_dup(address_text(number).c_str());
	} else if (!no_publish() && strcmp(spec, "addr") == 0) {
		text = CORBA::string_dup(address());
	} else {
		return false;
	}
	if (!omni::omniObjAdapter::endpointInList(text, published)) {
		const CORBA::ULong count = published.length();

		publish_address(text, !has_tcp(published));
		published.length(count + 1);
		published[count] = text._retn();
	}
	return true;
}

CORBA::Boolean endpoint::publish(const omni::orbServer::PublishSpecs &specs,
	CORBA::Boolean all_specs, CORBA::Boolean all_endpoints,
	omni::orbServer::EndpointList &published)
{
	bool any = false;

	(void)all_endpoints; /* an endpoint has only one address */
	for (CORBA::ULong i = 0; i < specs.length() && (all_specs || !any); i++) {
		any = publish_one(specs[i], published) || any;
	}
	return any;
}

/* --- listening -------------------------------------------------------------------------------- */

/* Binds the socket to the name of port `number`. Returns 0 or an errno. */
int endpoint::bind_to(unsigned number)
{
	const std::string place = socket_place(number);
	sockaddr_un name = {};

	/* place is "@NAME". An abstract name starts with a zero byte instead of the @, and its
	 * length is significant. */
	name.sun_family = AF_UNIX;
	GMB_ASSERT(place.size() <= sizeof(name.sun_path));
	place.copy(name.sun_path, place.size());
	name.sun_path[0] = '\0';
	if (bind(pd_socket, reinterpret_cast<const sockaddr *>(&name),
		    socklen_t(offsetof(sockaddr_un, sun_path) + place.size())) != 0) {
		return errno;
	}
	port = number;
	return 0;
}

CORBA::Boolean endpoint::Bind()
{
	int error = 0;

	pd_socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (pd_socket < 0 || spare_fd < 0) {
		error = errno;
	} else if (port != 0) {
		error = bind_to(port);
	} else {
		unsigned start = 0;

		if (getrandom(&start, sizeof(start), 0) != ssize_t(sizeof(start))) {
			start = unsigned(getpid());
		}
		error = EADDRINUSE;
		for (unsigned i = 0; error == EADDRINUSE && i < PORT_COUNT; i++) {
			error = bind_to(PORT_FIRST + (start % PORT_COUNT + i) % PORT_COUNT);
		}
	}
	if (error == 0 && listen(pd_socket, SOMAXCONN) != 0) {
		error = errno;
	}
	if (error != 0) {
		if (omniORB::trace(1)) {
			omniORB::logger() << "clan: cannot listen at port " << port << ": "
					  << strerror(error) << "\n";
		}
		return 0;
	}
	texts.length(1);
	texts[0] = CORBA::string_dup(address_text(port).c_str());
	addSocket(this);
	return 1;
}

void endpoint::Poke()
{
	poked = true;
	wakeUp();
}

void endpoint::Shutdown()
{
	::shutdown(pd_socket, SHUT_RDWR);
	removeSocket(this);
	decrRefCount(); /* deletes the endpoint, unless a connection still refers to it */
}

/* --- accepting -------------------------------------------------------------------------------- */

omni::giopConnection *endpoint::AcceptAndMonitor(
	omni::giopConnection::notifyReadable_t its_function, void *its_cookie)
{
	function = its_function;
	cookie = its_cookie;
	SocketHolder::setSelectable(1, 0);
	while (!poked && watch_once()) {
		if (accepted_fd >= 0) {
			connection *made = connection::accept_at(port, accepted_fd, *this);

			accepted_fd = -1;
			if (made != nullptr) {
				return made;
			}
		}
	}
	return nullptr;
}

/* Accepts one connection into accepted_fd, or rejects it if the process has no descriptor left. */
void endpoint::accept_one()
{
	int fd = accept4(pd_socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
		if (omniORB::trace(1)) {
			omniORB::logger()
				<< "clan: a connection to " << address()
				<< " is refused: this process has too many open descriptors\n";
		}
		/* Rejects the connection, because otherwise the socket would stay readable. */
		close(spare_fd);
		fd = accept(pd_socket, nullptr, nullptr);
		if (fd >= 0) {
			close(fd);
		} else {
			poll(nullptr, 0, RETRY_MS); /* other threads took the descriptor */
		}
		spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		return;
	}
	accepted_fd = fd;
}

CORBA::Boolean endpoint::notifyReadable(omni::SocketHolder *holder)
{
	if (holder == static_cast<omni::SocketHolder *>(this)) {
		accept_one();
		SocketHolder::setSelectable(1, 0);
		return 1;
	}

	connection *member = readable(holder);

	if (member != nullptr) {
		function(cookie, member);
	}
	return 1;
}

} // namespace clan_omniorb
