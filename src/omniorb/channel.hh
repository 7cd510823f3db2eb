// SPDX-License-Identifier: Apache-2.0
/*
 * A byte stream between two ORBs: one clan connection on its own passive queue, usable by any
 * number of threads.
 *
 *   send(), recv() ──▶ turn ──▶ clan_writev(), clan_readv() ──▶ clan connection and queue
 *   poll(fd()) ◀── watch()
 *
 * Invariant: only the thread that has the turn touches the queue. It keeps the turn while it sleeps
 * in the queue; a thread that wants the turn wakes it. Other waiting threads are parked, and are
 * called when the state has changed.
 *
 * Threading: any thread can make any call. Ownership: the channel owns the queue and the
 * connection. No thread may be inside a call when the channel is destroyed. Errors: as in
 * giopConnection; the reason is logged where it is detected.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

#include <gmblock/clan.h>
#include <omnithread.h>

extern "C" {
#include "base/compiler.h"
#include "base/spin.h"
}

namespace clan_omniorb
{

/* The states of a channel. */
enum channel_state {
	CHANNEL_OPENING, /* waits for the peer's hello */
	CHANNEL_OPEN,	 /* usable until either side ends the connection */
	CHANNEL_LOST,	 /* ended, waits for shutdown(); data that has arrived can be received */
	CHANNEL_SHUT,	 /* waits for the destructor */
	CHANNEL_STATE_COUNT
};

class channel
{
      public:
	channel() = default;
	virtual ~channel();
	channel(const channel &) = delete;
	channel &operator=(const channel &) = delete;

	/* Either accept() or connect() must be called, once, before any other function. They return
	 * false if there is no connection; the reason was logged. accept() owns fd, an accepted
	 * socket; the peer's hello arrives during the other calls. connect() waits for the answer.
	 * name: name of the channel for log messages. */
	bool accept(int fd, const std::string &name);
	bool connect(const std::string &place, const std::string &name, const omni_time_t &deadline,
		bool &timed_out);

	/*
	 * Return the number of bytes sent or received, at least 1. Return 0 if the deadline has
	 * passed (absolute; zero: none), or -1 if the connection has ended.
	 */
	int send(const void *data, size_t bytes, const omni_time_t &deadline);
	int recv(void *data, size_t bytes, const omni_time_t &deadline);

	/* Ends the connection for both sides. The peer receives all data sent before. */
	void shutdown();

	/* A descriptor for poll(2), valid after accept() or connect(). It is readable if there
	 * is data to receive, provided that watch() returned false. It can be readable without
	 * data. */
	int fd() const;
	/* Requests wake-ups from the peer, until unwatch() or the first input. Returns true if
	 * there is input already. Otherwise input_arrived() is called if another thread finds input
	 * during its own call. */
	bool watch();
	void unwatch();
	/* Returns true if recv() would return immediately. */
	bool readable();

	/* Returns the process at the other end. There must be a connection. */
	clan_peer process() const;

      protected:
	/* Called by the thread that has the turn. It must not call the channel, because that call
	 * would wait for the turn. */
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
	bool gone = true;		/* clan no longer has the connection */
	std::mutex mutex;		/* held by the thread that has the turn */
	std::atomic<int> entering{ 0 }; /* threads that want the turn */
	std::atomic<bool> asleep{ false };
	std::atomic<bool> watched{ false };
	std::condition_variable called;
	uint64_t calls = 0;
	int parked = 0;		  /* number of parked threads */
	omni_time_t parked_until; /* their earliest deadline; zero: none */
};

} // namespace clan_omniorb
