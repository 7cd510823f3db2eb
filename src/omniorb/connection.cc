// SPDX-License-Identifier: Apache-2.0
#include "omniorb/transport.hh"

#include <new>

namespace clan_omniorb
{

/* --- collections ------------------------------------------------------------------------------ */

void collection::add(connection *member)
{
	std::lock_guard<std::mutex> lock(mutex);

	members.insert(member);
	addSocket(member);
}

void collection::remove(connection *member)
{
	{
		std::lock_guard<std::mutex> lock(mutex);

		members.erase(member);
	}
	removeSocket(member);
}

void collection::expect_watch()
{
	watch_expected = true;
}

bool collection::watch_once()
{
	if (watch_expected.exchange(false)) {
		std::lock_guard<std::mutex> lock(mutex);

		for (connection *member : members) {
			if (member->wants_watch.exchange(false)) {
				member->begin_watch();
			}
		}
	}
	return Select();
}

connection *collection::readable(omni::SocketHolder *holder)
{
	std::lock_guard<std::mutex> lock(mutex);
	connection *member = static_cast<connection *>(holder);

	return members.count(member) != 0 && member->is_readable() ? member : nullptr;
}

/* --- connections ------------------------------------------------------------------------------ */

connection::connection(collection &its_watcher) : SocketHolder(-1), watcher(its_watcher)
{
}

connection::~connection()
{
	if (pd_belong_to != nullptr) {
		clearSelectable();
		watcher.remove(this);
	}
}

/* Called when the channel is connected: initializes the other members and starts watching. */
void connection::begin(std::string own, std::string peer)
{
	const clan_peer who = process();

	own_address = std::move(own);
	peer_address = std::move(peer);
	identity = "uid=" + std::to_string(who.uid) + " pid=" + std::to_string(who.pid);
	pd_socket = fd();
	watcher.add(this);
}

/* Returns a name for one end of a connection that has no port. The descriptor, cut to the 16 bits
 * of a port number, makes it unique among the current connections of this process. */
static std::string end_text(int fd)
{
	return address_text(unsigned(fd) & 0xffff);
}

connection *connection::accept_at(unsigned port, int fd, collection &its_watcher)
{
	connection *made = new (std::nothrow) connection(its_watcher);
	const std::string own = address_text(port);

	if (made == nullptr) {
		close(fd);
		return nullptr;
	}
	if (!made->accept(fd, "connection to " + own)) {
		delete made;
		return nullptr;
	}
	made->begin(own, end_text(made->fd()));
	return made;
}

bool connection::connect_to(unsigned port, const omni_time_t &deadline, bool &timed_out)
{
	const std::string peer = address_text(port);

	if (!connect(socket_place(port), "connection to " + peer, deadline, timed_out)) {
		return false;
	}
	begin(end_text(fd()), peer);
	return true;
}

int connection::Send(void *buffer, size_t bytes, const omni_time_t &deadline)
{
	return send(buffer, bytes, deadline);
}

int connection::Recv(void *buffer, size_t bytes, const omni_time_t &deadline)
{
	return recv(buffer, bytes, deadline);
}

void connection::Shutdown()
{
	shutdown();
}

const char *connection::myaddress()
{
	return own_address.c_str();
}

const char *connection::peeraddress()
{
	return peer_address.c_str();
}

const char *connection::peeridentity()
{
	return identity.c_str();
}

/* --- watching --------------------------------------------------------------------------------- */

/* now: 0 = the watching thread starts the watch before it waits next, 1 = start it now, 2 = start
 * it now if a watch was requested. With 0, the watching thread might have started the watch
 * (wants_watch is false) before SocketHolder::setSelectable() made this connection selectable. In
 * this case it has ignored any input, so the watch is started again. */
void connection::setSelectable(int now, CORBA::Boolean data_in_buffer)
{
	if (data_in_buffer) {
		has_buffered = true;
	}
	if (now == 0) {
		wants_watch = true;
		watcher.expect_watch();
	}
	SocketHolder::setSelectable(now, data_in_buffer);
	if (now == 1 || wants_watch == (now == 2)) {
		wants_watch = false;
		begin_watch();
	}
}

void connection::clearSelectable()
{
	wants_watch = false;
	unwatch();
	SocketHolder::clearSelectable();
}

CORBA::Boolean connection::isSelectable()
{
	return watcher.isSelectable(pd_socket);
}

CORBA::Boolean connection::Peek()
{
	if (wants_watch.exchange(false)) {
		begin_watch();
	}
	return SocketHolder::Peek() && is_readable();
}

/* Starts the watch, after SocketHolder has made this connection selectable. Input that arrived
 * before the watch causes no wake-up, so it is reported here. */
void connection::begin_watch()
{
	if (watch()) {
		input_arrived();
	}
}

void connection::input_arrived()
{
	SocketHolder::setSelectable(2, 1);
}

/* Called when the watching thread was woken. If the message that caused the wake-up has already
 * been received, the watch continues. */
bool connection::is_readable()
{
	if (has_buffered.exchange(false) || readable()) {
		return true;
	}
	SocketHolder::setSelectable(1, 0);
	begin_watch();
	return false;
}

/* --- connections of clients ------------------------------------------------------------------- */

/* Never deleted, because connections can outlive all other objects. */
active_collection &active_collection::instance()
{
	static active_collection *const only = new active_collection;

	return *only;
}

const char *active_collection::type() const
{
	return TYPE;
}

void active_collection::Monitor(
	omni::giopConnection::notifyReadable_t its_function, void *its_cookie)
{
	function = its_function;
	cookie = its_cookie;
	while (!isEmpty() && watch_once()) {
	}
}

CORBA::Boolean active_collection::notifyReadable(omni::SocketHolder *holder)
{
	connection *member = readable(holder);

	if (member != nullptr) {
		function(cookie, member);
	}
	return 1;
}

CORBA::Boolean active_collection::isEmpty() const
{
	return monitored == 0 || ended;
}

void active_collection::deactivate()
{
	ended = true;
	wakeUp();
}

void active_collection::count(int more)
{
	monitored += more;
	if (more > 0) {
		ended = false;
	}
}

active_connection::active_connection() : connection(active_collection::instance())
{
}

active_connection::~active_connection()
{
	if (monitored) {
		active_collection::instance().count(-1);
	}
}

active_connection *active_connection::make(
	unsigned port, const omni_time_t &deadline, bool &timed_out)
{
	active_connection *made = new (std::nothrow) active_connection;

	if (made != nullptr && !made->connect_to(port, deadline, timed_out)) {
		delete made;
		return nullptr;
	}
	return made;
}

omni::giopActiveCollection *active_connection::registerMonitor()
{
	if (!monitored) {
		monitored = true;
		active_collection::instance().count(1);
	}
	return &active_collection::instance();
}

omni::giopConnection &active_connection::getConnection()
{
	return *this;
}

} // namespace clan_omniorb
