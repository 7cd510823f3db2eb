// SPDX-License-Identifier: Apache-2.0
#include "omniorb/channel.hh"

#include <cerrno>
#include <cstring>
#include <poll.h>
#include <unistd.h>

#include <omniORB4/CORBA.h>

namespace clan_omniorb
{

namespace
{

/* The hello of both sides. */
const char HELLO[] = "clan-giop 1";
const size_t HELLO_BYTES = sizeof(HELLO) - 1;

enum {
	BULK_SLOTS = 2048, /* slots of 64 bytes: the limit on data in flight in one direction */
	EVENTS_MAX = 8,
	BYTES_MAX = 1 << 30, /* limit on bytes per call */
	RETRY_MS = 1,	    /* interval of attempts to connect while the server's backlog is full */
	CONNECT_MS = 10000, /* time limit for connecting without a deadline */
	SLEEP_MS_MAX = 3600000,
	LOOKS_BETWEEN_YIELDS = 32, /* of a thread that polls */
};

const uint32_t edges[CHANNEL_STATE_COUNT] = {
	BIT(CHANNEL_OPEN) | BIT(CHANNEL_LOST) | BIT(CHANNEL_SHUT), /* CHANNEL_OPENING */
	BIT(CHANNEL_LOST) | BIT(CHANNEL_SHUT),			   /* CHANNEL_OPEN */
	BIT(CHANNEL_SHUT),					   /* CHANNEL_LOST */
	0,							   /* CHANNEL_SHUT */
};

omni_time_t now()
{
	omni_time_t time;

	omni_thread::get_time(time);
	return time;
}

bool has_passed(const omni_time_t &deadline)
{
	return deadline && deadline <= now();
}

/* Returns the time until the deadline, rounded up; -1 if there is no deadline. */
int milliseconds_until(const omni_time_t &deadline)
{
	if (!deadline) {
		return -1;
	}
	const omni_time_t time = now();

	if (deadline <= time) {
		return 0;
	}
	const omni_time_t left = deadline - time;

	if (left.s >= SLEEP_MS_MAX / 1000) {
		return SLEEP_MS_MAX;
	}
	return int(left.s * 1000 + (left.ns + 999999) / 1000000);
}

bool is_earlier(const omni_time_t &one, const omni_time_t &other)
{
	return one && (!other || one < other);
}

clan_conn_options conn_options()
{
	clan_conn_options options = {};

	options.size = sizeof(options);
	options.access = CLAN_ACCESS_OWNER;
	options.bulk_slots = BULK_SLOTS;
	options.peer_slots_max = BULK_SLOTS;
	/* Streams need no cookies, tripwires or regions. The smallest values are given, because 0
	 * selects the defaults. */
	options.cookies = 1;
	options.tripwires = 1;
	options.peer_regions_max = 1;
	options.peer_region_bytes_max = 4096;
	return options;
}

/* How this thread waits for messages, on any channel. */
thread_local spinner own_spinner;

} // namespace

/* The turn of a thread, during which it accesses the queue. */
class channel::turn
{
      public:
	explicit turn(channel &its_owner) : owner(its_owner)
	{
		owner.entering++;
		if (owner.asleep) {
			clan_queue_wake(owner.queue);
		}
		lock = std::unique_lock<std::mutex>(owner.mutex);
		owner.entering--;
	}

	/* This thread can have taken an event from the queue that would have woken the watching
	 * thread. So if there is input, the watching thread is notified here. */
	~turn()
	{
		if (owner.watched && !armed && owner.arm()) {
			owner.watched = false;
			owner.input_arrived();
		}
		owner.call_parked();
	}

	std::unique_lock<std::mutex> lock;
	bool armed = false; /* the queue is armed and has not been accessed since */

      private:
	channel &owner;
};

channel::~channel()
{
	if (state != CHANNEL_SHUT) {
		shut();
	}
	while (!gone) {
		take_events(-1);
	}
	if (clan_queue_destroy(queue) != 0) {
		GMB_ASSERT(!"a queue without connections");
	}
}

/* The only function that assigns the state. */
void channel::set_state(channel_state next)
{
	GMB_ASSERT((edges[state] & BIT(next)) != 0);
	state = next;
}

/* --- the start -------------------------------------------------------------------------------- */

bool channel::made(int result, const clan_error &error)
{
	if (result != 0 && omniORB::trace(1)) {
		omniORB::logger() << "clan: " << name.c_str() << ": " << error.text << "\n";
	}
	return result == 0;
}

bool channel::make_queue()
{
	clan_queue_options options = {};
	clan_error error;

	options.size = sizeof(options);
	options.flags = CLAN_QUEUE_PASSIVE;
	options.conns_max = 1;
	return made(clan_queue_create(&options, &queue, &error), error);
}

bool channel::accept(int fd, const std::string &its_name)
{
	const clan_conn_options options = conn_options();
	clan_error error;

	name = its_name;
	if (!make_queue()) {
		close(fd);
		return false;
	}
	if (!made(clan_adopt(queue, fd, &options, &conn, &error), error)) {
		return false;
	}
	gone = false;
	return true;
}

/* Retries while the server's backlog is full, because no event reports room in it. */
bool channel::connect(const std::string &place, const std::string &its_name,
	const omni_time_t &deadline, bool &timed_out)
{
	const clan_conn_options options = conn_options();
	const std::string where = "shm:" + place;
	omni_time_t until = deadline;
	clan_error error;
	int result;

	name = its_name;
	if (!until) {
		until = now() + omni_time_t(CONNECT_MS / 1000);
	}
	if (!make_queue()) {
		return false;
	}
	do {
		result = clan_connect(
			queue, where.c_str(), &options, HELLO, HELLO_BYTES, &conn, &error);
		if (result == -ENOBUFS) {
			poll(nullptr, 0, RETRY_MS);
		}
	} while (result == -ENOBUFS && !has_passed(until));
	if (result != 0) {
		timed_out = result == -ENOBUFS;
		if (omniORB::trace(20)) {
			omniORB::logger() << "clan: " << name.c_str() << ": " << error.text << "\n";
		}
		return false;
	}
	gone = false;

	turn mine(*this);

	while (state == CHANNEL_OPENING && wait(mine, until)) {
	}
	timed_out = state == CHANNEL_OPENING;
	return state == CHANNEL_OPEN;
}

clan_peer channel::process() const
{
	clan_peer peer;

	clan_conn_peer(conn, &peer);
	return peer;
}

static bool speaks_giop(const clan_conn *conn)
{
	size_t bytes;
	const void *hello = clan_conn_hello(conn, &bytes);

	return bytes == HELLO_BYTES && memcmp(hello, HELLO, HELLO_BYTES) == 0;
}

/* Called when a peer has connected and sent its hello. */
void channel::introduced()
{
	if (!speaks_giop(conn)) {
		clan_reject(conn, "this listener accepts only GIOP connections");
		conn = nullptr;
		lose(1, "the peer does not speak GIOP");
		return;
	}
	if (clan_accept(conn, HELLO, HELLO_BYTES) != 0) {
		lose(20, "the peer has disconnected, or there is not enough memory");
		return;
	}
	set_state(CHANNEL_OPEN);
}

/* Called when the listener has answered. Any user can bind the listener's name, so the user of the
 * listening process is checked here, where it is known for the first time. */
void channel::answered()
{
	const clan_peer peer = process();

	if (peer.uid != 0 && peer.uid != geteuid()) {
		lose(1, "the server is a process of another user");
	} else if (!speaks_giop(conn)) {
		lose(1, "the server does not speak GIOP");
	} else {
		set_state(CHANNEL_OPEN);
	}
}

/* --- the end ---------------------------------------------------------------------------------- */

void channel::lose(int level, const char *reason)
{
	set_state(CHANNEL_LOST);
	if (omniORB::trace(level)) {
		omniORB::logger() << "clan: " << name.c_str() << ": " << reason << "\n";
	}
}

void channel::shut()
{
	set_state(CHANNEL_SHUT);
	if (conn == nullptr) {
		return;
	}
	if (omniORB::trace(10)) {
		clan_conn_stats stats = {};

		stats.size = sizeof(stats);
		clan_conn_get_stats(conn, &stats);
		omniORB::logger() << "clan: " << name.c_str()
				  << " ends: " << (unsigned long)stats.bytes_sent << " bytes sent, "
				  << (unsigned long)stats.bytes_received << " received, "
				  << (unsigned long)stats.bells_rung << " bells rung\n";
	}
	clan_close(conn);
	conn = nullptr;
}

void channel::shutdown()
{
	turn mine(*this);

	if (state != CHANNEL_SHUT) {
		shut();
	}
}

/* --- waiting ---------------------------------------------------------------------------------- */

void channel::happened(const clan_event &event)
{
	if (event.type == CLAN_EVENT_CLOSED) {
		gone = true;
	} else if (state == CHANNEL_OPENING && event.type == CLAN_EVENT_CONNECT) {
		introduced();
	} else if (state == CHANNEL_OPENING && event.type == CLAN_EVENT_CONNECTED) {
		answered();
	} else if (state <= CHANNEL_OPEN && event.type == CLAN_EVENT_LOST) {
		lose(event.status == -ECONNRESET ? 20 : 1, clan_conn_reason(conn));
	}
	/* Other events need no action: they report that a call can be tried again, which every
	 * thread does after a wait, or belong to features that a stream does not use. */
}

/* Processes events. Returns false if there was none. */
bool channel::take_events(int timeout_ms)
{
	clan_event events[EVENTS_MAX];
	const int count = clan_queue_wait(queue, events, EVENTS_MAX, timeout_ms);

	for (int i = 0; i < count; i++) {
		happened(events[i]);
	}
	return count > 0;
}

/* Polls for events before a sleep, if this makes the calls of this thread faster: two processes
 * that are awake exchange data without system calls. Returns false if the caller should sleep. */
bool channel::spin()
{
	if (own_spinner.policy.cpu_ns == nullptr) {
		spinner_init(&own_spinner, true);
	}
	if (!spinner_begin(&own_spinner, UINT64_MAX, LOOKS_BETWEEN_YIELDS)) {
		return false;
	}
	do {
		if (take_events(0) || entering > 0) {
			return true;
		}
	} while (spin_goes_on(&own_spinner.spin));
	return false;
}

/* Waits until the state might have changed. The caller has the turn (the right to use the queue).
 * Returns false if the deadline has passed. */
bool channel::wait(turn &mine, const omni_time_t &deadline)
{
	if (has_passed(deadline)) {
		return false;
	}
	mine.armed = false;
	if (entering > 0) {
		park(mine, deadline);
		return true;
	}
	if (!spin()) {
		const omni_time_t &until =
			is_earlier(parked_until, deadline) ? parked_until : deadline;

		/* Stored before entering is checked; turn::turn() increments entering before it
		 * checks asleep. So either this thread does not sleep, or it is woken. */
		asleep = true;
		take_events(entering > 0 ? 0 : milliseconds_until(until));
		asleep = false;
	}
	call_parked();
	return true;
}

/* Gives the turn to other threads, and waits until another thread has finished a call. A thread
 * that sleeps in the queue at this time wakes at our deadline (parked_until) at the latest. */
void channel::park(turn &mine, const omni_time_t &deadline)
{
	const uint64_t seen = calls;

	parked++;
	if (is_earlier(deadline, parked_until)) {
		parked_until = deadline;
	}
	called.wait(mine.lock, [&] { return calls != seen; });
	entering--;
}

/* Wakes the parked threads (see park()), so that they get the turn before this thread sleeps
 * again. */
void channel::call_parked()
{
	if (parked > 0) {
		calls++;
		entering += parked;
		parked = 0;
		parked_until = omni_time_t();
		called.notify_all();
	}
}

/* --- the stream ------------------------------------------------------------------------------- */

int channel::send(const void *data, size_t bytes, const omni_time_t &deadline)
{
	const iovec iov = { const_cast<void *>(data), MIN(bytes, size_t(BYTES_MAX)) };
	turn mine(*this);

	for (;;) {
		if (state > CHANNEL_OPEN) {
			return -1;
		}
		if (state == CHANNEL_OPEN) {
			const ssize_t count = clan_writev(conn, &iov, 1);

			if (count > 0) {
				clan_flush(conn);
				return int(count);
			}
			if (count != -EAGAIN) {
				return -1;
			}
		}
		if (!wait(mine, deadline)) {
			return 0;
		}
	}
}

int channel::recv(void *data, size_t bytes, const omni_time_t &deadline)
{
	const iovec iov = { data, MIN(bytes, size_t(BYTES_MAX)) };
	turn mine(*this);

	for (;;) {
		if (state > CHANNEL_OPENING) {
			/* A lost connection still has the data that the peer sent before. */
			const ssize_t count = conn != nullptr ? clan_readv(conn, &iov, 1, 0) : -1;

			if (count > 0) {
				own_spinner.requests++;
				return int(count);
			}
			if (count != -EAGAIN) {
				return -1;
			}
		}
		if (!wait(mine, deadline)) {
			return 0;
		}
	}
}

/* --- watching --------------------------------------------------------------------------------- */

int channel::fd() const
{
	return clan_queue_fd(queue);
}

/* Returns true if recv() would return without waiting. The caller has the turn. */
bool channel::has_input()
{
	char byte;
	const iovec iov = { &byte, 1 };

	if (state == CHANNEL_OPENING) {
		return false;
	}
	return conn == nullptr || clan_readv(conn, &iov, 1, CLAN_READ_PEEK) != -EAGAIN;
}

/* Requests wake-ups from the peer. The caller has the turn. Returns true if there is input. */
bool channel::arm()
{
	do {
		take_events(0);
		if (has_input()) {
			return true;
		}
	} while (clan_queue_arm(queue) != 0);
	return false;
}

bool channel::watch()
{
	turn mine(*this);

	mine.armed = true;
	watched = !arm();
	return !watched;
}

void channel::unwatch()
{
	watched = false;
}

bool channel::readable()
{
	turn mine(*this);

	take_events(0);
	return has_input();
}

} // namespace clan_omniorb
