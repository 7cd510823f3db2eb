// SPDX-License-Identifier: Apache-2.0
/*
 * A stream of bytes between two ORBs: one connection of clan on a passive queue of its own, for
 * any number of threads.
 *
 *   send(), recv() ──▶ turn ──▶ clan_writev(), clan_readv()     threads that wait: one sleeps in
 * the poll(fd()) ◀── watch()       queue of clan                   queue, the others are parked
 *
 * Threading: every call may be made by any thread. A thread has its turn while it touches the
 * queue, and keeps it while it sleeps there; who wants a turn wakes it up. Threads that wait too
 * are parked, and are called when something has changed.
 *
 * Ownership: the channel owns the queue and the connection. Nobody may be inside a call when it is
 * destroyed. Errors: as giopConnection has them; the reason is logged where it is found.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

#include <gmblock/clan.h>
#include <omnithread.h>

extern "C" {
#include "base/clock.h"
#include "base/compiler.h"
}

namespace clan_omniorb
{

/* Named for what they wait for. */
enum channel_state {
	CHANNEL_OPENING, /* the peer's introduction */
	CHANNEL_OPEN,	 /* the end of either side */
	CHANNEL_LOST,	 /* shutdown(); what the peer sent before can be received */
	CHANNEL_SHUT,	 /* nothing */
	CHANNEL_STATE_COUNT
};

class channel
{
      public:
	channel() = default;
	virtual ~channel();
	channel(const channel &) = delete;
	channel &operator=(const channel &) = delete;

	/* One of these, once, before anything else. False: there is no connection, and the reason
	 * was logged. accept() takes fd, a socket that was accepted; the peer introduces itself
	 * while the other calls are made. connect() waits for the answer. name: of the channel, for
	 * people. */
	bool accept(int fd, const std::string &name);
	bool connect(const std::string &place, const std::string &name, const omni_time_t &deadline,
		bool &timed_out);

	/*
	 * Returns how many of the bytes were taken (sent) or copied (received), at least 1; 0 when
	 * the deadline has passed (absolute; zero: there is none), -1 when the connection is over.
	 */
	int send(const void *data, size_t bytes, const omni_time_t &deadline);
	int recv(void *data, size_t bytes, const omni_time_t &deadline);

	/* Ends the connection for both sides. The peer receives what was sent before. */
	void shutdown();

	/* For poll(2), from accept() or connect() on: readable when there is something to receive,
	 * provided that watch() returned false. It may be readable without reason. */
	int fd() const;
	/* The peer rings from now on, until unwatch() or the first input. True: there is something
	 * to receive already. Otherwise, when a thread finds it by the way, input_arrived() is
	 * called. */
	bool watch();
	void unwatch();
	/* Whether recv() would return at once. */
	bool readable();

	/* The process at the other end. Once there is a connection. */
	clan_peer process() const;

      protected:
	/* Called in turn: it must not call the channel. */
	virtual void input_arrived() = 0;

      private:
	class turn;

	bool make_queue();
	bool made(int result, const clan_error &error);
	void set_state(channel_state next);
	void happened(const clan_event &event);
	void introduced();
	void answered();
	void lose(int level, const char *reason);
	void shut();
	bool take_events(int timeout_ms);
	bool spin();
	bool wait(turn &mine, const omni_time_t &deadline);
	void park(turn &mine, const omni_time_t &deadline);
	void call_parked();
	bool has_input();
	bool arm();

	std::string name;
	clan_queue *queue = nullptr;
	clan_conn *conn = nullptr;
	channel_state state = CHANNEL_OPENING;
	bool gone = true;		/* clan has nothing of the connection any more */
	std::mutex mutex;		/* whose turn it is */
	std::atomic<int> entering{ 0 }; /* threads that want a turn */
	std::atomic<bool> asleep{ false };
	std::atomic<bool> watched{ false };
	std::condition_variable called;
	uint64_t calls = 0;
	int parked = 0;		  /* threads that wait to be called */
	omni_time_t parked_until; /* the earliest of their deadlines; zero: there is none */
	unsigned spin_misses = 0; /* one after the other */
	unsigned spins_skipped = 0;
};

} // namespace clan_omniorb
