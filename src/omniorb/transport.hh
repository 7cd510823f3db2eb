// SPDX-License-Identifier: Apache-2.0
/*
 * The transport giop:clan: of omniORB (clan-omniorb(7)), for the interface of omniORB's own
 * transports (omniORB4/giopEndpoint.h): addresses, endpoints and connections, and their encoding in
 * object references.
 *
 *   transport ── toAddress() ──▶ remote_address ── Connect() ──▶ active_connection ──┐
 *             └─ toEndpoint() ──▶ endpoint ── accepts ──▶ connection ◀──────────────┘ ── channel
 *
 * The address giop:clan:127.0.0.1:PORT is the abstract Unix socket clan-omniorb/PORT. It has the
 * form of a TCP address because omniORB's transport rules expect this form of every transport
 * except giop:unix.
 *
 * Threading and ownership: as documented for omniORB's interface. Any thread can use a connection.
 * A collection lives as long as its last connection. Errors: calls return the values that omniORB
 * expects and never throw; the reason is logged (-ORBtraceLevel).
 */
#pragma once

#include <set>

#include <omniORB4/CORBA.h>
#include <omniORB4/giopEndpoint.h>

#include <SocketCollection.h>

#include "omniorb/channel.hh"

namespace clan_omniorb
{

extern const char TYPE[]; /* "giop:clan" */

/* --- addresses (transport.cc) ----------------------------------------------------------------- */

std::string address_text(unsigned port);
/* Parses the part of an address after "giop:clan:". port: 0 if there is none. Returns false if it
 * is not an address of this machine. */
bool parse_address(const char *text, unsigned &port);
/* Returns the name of the socket, as clan_connect() takes it after "shm:". */
std::string socket_place(unsigned port);
/* Adds the address to all object references that are created from now on. alone: no other transport
 * has added the TCP address that every ORB expects in a reference. */
void publish_address(const char *text, bool alone);

class remote_address : public omni::giopAddress
{
      public:
	explicit remote_address(unsigned port);
	const char *type() const override;
	const char *address() const override;
	omni::giopActiveConnection *Connect(const omni_time_t &deadline, CORBA::ULong strand_flags,
		CORBA::Boolean &timed_out) const override;
	omni::giopAddress *duplicate() const override;

      private:
	const unsigned port;
	const std::string text;
};

/* --- connections (connection.cc) -------------------------------------------------------------- */

class connection;

/* Connections that a thread of omniORB watches. omniORB requests a watch with every call that it
 * executes, and usually cancels the watch before data could arrive. So the watch begins only when
 * the watching thread is about to wait. omniORB treats its own sockets in the same way. */
class collection : public omni::SocketCollection
{
      public:
	void add(connection *member);
	/* The collection might have been deleted when this call returns, so the member must not
	 * access it afterwards. */
	void remove(connection *member);
	void expect_watch();

      protected:
	/* Waits once, and calls notifyReadable(). Returns false if waiting is no longer
	 * possible. */
	bool watch_once();
	/* Called in notifyReadable(): returns the connection of its holder if the connection has
	 * data to receive. Returns NULL if there is no data, so that the watch continues, or if it
	 * is being deleted. */
	connection *readable(omni::SocketHolder *holder);

      private:
	std::mutex mutex; /* taken before the turns of channels */
	std::set<connection *> members;
	std::atomic<bool> watch_expected{ false };
};

class connection : public omni::giopConnection, public omni::SocketHolder, private channel
{
      public:
	/* Owns fd, an accepted socket. Returns NULL if there is no connection; the reason was
	 * logged. */
	static connection *accept_at(unsigned port, int fd, collection &watcher);

	int Send(void *buffer, size_t bytes, const omni_time_t &deadline) override;
	int Recv(void *buffer, size_t bytes, const omni_time_t &deadline) override;
	void Shutdown() override;
	const char *myaddress() override;
	const char *peeraddress() override;
	const char *peeridentity() override;
	void setSelectable(int now, CORBA::Boolean data_in_buffer) override;
	void clearSelectable() override;
	CORBA::Boolean isSelectable() override;
	CORBA::Boolean Peek() override;

      protected:
	explicit connection(collection &watcher);
	~connection() override;
	bool connect_to(unsigned port, const omni_time_t &deadline, bool &timed_out);

      private:
	friend class collection;

	void begin(std::string own, std::string peer);
	void begin_watch();
	bool is_readable();
	void input_arrived() override;

	collection &watcher;
	std::string own_address;
	std::string peer_address;
	std::string identity;
	std::atomic<bool> wants_watch{ false };
	std::atomic<bool> has_buffered{ false }; /* omniORB has buffered data of this connection */
};

/* Connections of clients, watched for calls in the other direction (bidirectional GIOP). */
class active_collection : public collection, public omni::giopActiveCollection
{
      public:
	static active_collection &instance();

	const char *type() const override;
	void Monitor(omni::giopConnection::notifyReadable_t function, void *cookie) override;
	CORBA::Boolean isEmpty() const override;
	void deactivate() override;
	void count(int more);

      private:
	CORBA::Boolean notifyReadable(omni::SocketHolder *holder) override;

	omni::giopConnection::notifyReadable_t function = nullptr;
	void *cookie = nullptr;
	std::atomic<int> monitored{ 0 };
	std::atomic<bool> ended{ false };
};

class active_connection : public omni::giopActiveConnection, public connection
{
      public:
	/* Connects to a port. Returns NULL if there is no connection. */
	static active_connection *make(unsigned port, const omni_time_t &deadline, bool &timed_out);

	omni::giopActiveCollection *registerMonitor() override;
	omni::giopConnection &getConnection() override;

      private:
	active_connection();
	~active_connection() override;

	bool monitored = false;
};

/* --- endpoints (endpoint.cc) ------------------------------------------------------------------ */

class endpoint : public omni::giopEndpoint, public collection, private omni::SocketHolder
{
      public:
	/* Creates an endpoint for a port; 0 selects a free one. */
	explicit endpoint(unsigned port);

	const char *type() const override;
	const char *address() const override;
	const omni::orbServer::EndpointList *addresses() const override;
	CORBA::Boolean publish(const omni::orbServer::PublishSpecs &specs, CORBA::Boolean all_specs,
		CORBA::Boolean all_endpoints, omni::orbServer::EndpointList &published) override;
	CORBA::Boolean Bind() override;
	omni::giopConnection *AcceptAndMonitor(
		omni::giopConnection::notifyReadable_t function, void *cookie) override;
	void Poke() override;
	void Shutdown() override;

      private:
	~endpoint() override;
	CORBA::Boolean notifyReadable(omni::SocketHolder *holder) override;
	int bind_to(unsigned number);
	bool publish_one(const char *spec, omni::orbServer::EndpointList &published);
	void accept_one();

	unsigned port;
	omni::orbServer::EndpointList texts;
	/* A spare descriptor, closed for a moment to reject a connection when no descriptors are
	 * left. */
	int spare_fd = -1;
	int accepted_fd = -1;
	omni::giopConnection::notifyReadable_t function = nullptr;
	void *cookie = nullptr;
	std::atomic<bool> poked{ false };
};

} // namespace clan_omniorb
