// SPDX-License-Identifier: Apache-2.0
/*
 * client REFERENCE COMMAND [NUMBER ...] [-ORB...]: calls the echo server, checks what comes back,
 * and prints "ok" or the name of the exception.
 *
 *   null N        so many calls without data
 *   echo BYTES N  so many calls with data in both directions
 *   oneway N      so many calls without an answer
 *   callback N    a call during which the server calls back so often
 *   bidirectional N   the same; the server may use the connection that the client has made
 *   threads T N   so many calls with data by each of T threads
 *   wait MS       a call that takes so long
 *   hold          a call for each line of standard input, with a line of output for each
 *   rate BYTES N  prints microseconds of time and of processor time, of both processes, per call
 */
#include <atomic>
#include <cstring>
#include <ctime>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "echo.hh"

namespace
{

class callback_impl : public POA_Callback
{
      public:
	void called(CORBA::Long number) override
	{
		in_order = in_order && number == count;
		count++;
	}

	CORBA::Long count = 0;
	bool in_order = true;
};

struct wrong_answer {
};

void require(bool right)
{
	if (!right) {
		throw wrong_answer();
	}
}

void echo(Echo_ptr server, unsigned long bytes, unsigned seed)
{
	Echo::Bytes data;

	data.length(CORBA::ULong(bytes));
	for (CORBA::ULong i = 0; i < data.length(); i++) {
		data[i] = CORBA::Octet((i * 31 + seed) >> (i % 5));
	}
	Echo::Bytes_var back = server->send_back(data);

	require(back->length() == data.length());
	require(bytes == 0 || memcmp(back->get_buffer(), data.get_buffer(), data.length()) == 0);
}

/* An adapter whose objects may be called by the connection that this program has made. */
PortableServer::POA_ptr both_ways(PortableServer::POA_ptr root)
{
	PortableServer::POAManager_var manager = root->the_POAManager();
	CORBA::PolicyList policies(1);

	policies.length(1);
	policies[0] = new BiDirPolicy::BidirectionalPolicy(BiDirPolicy::BOTH);
	return root->create_POA("both ways", manager, policies);
}

void call_back(CORBA::ORB_ptr orb, Echo_ptr server, CORBA::Long times, bool by_own_connection)
{
	CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
	PortableServer::POA_var root = PortableServer::POA::_narrow(object);
	PortableServer::POA_var poa =
		by_own_connection ? both_ways(root) : PortableServer::POA::_duplicate(root);
	PortableServer::POAManager_var manager = poa->the_POAManager();
	PortableServer::Servant_var<callback_impl> callback = new callback_impl;
	PortableServer::ObjectId_var id = poa->activate_object(callback);
	Callback_var self = callback->_this();

	manager->activate();
	server->call_back(self, times);
	require(callback->count == times && callback->in_order);
}

void by_threads(Echo_ptr server, unsigned long count, unsigned long calls)
{
	std::vector<std::thread> threads;
	std::atomic<unsigned long> good{ 0 };

	for (unsigned long i = 0; i < count; i++) {
		threads.emplace_back([=, &good] {
			try {
				for (unsigned long j = 0; j < calls; j++) {
					echo(server, (i * 7919 + j * 104729) % 300000,
						unsigned(i + j));
					good++;
				}
			} catch (const CORBA::Exception &exception) {
				std::cerr << exception._name() << std::endl;
			} catch (const wrong_answer &) {
			}
		});
	}
	for (std::thread &thread : threads) {
		thread.join();
	}
	require(good == count * calls);
}

double nanoseconds(clockid_t clock)
{
	timespec time;

	clock_gettime(clock, &time);
	return double(time.tv_sec) * 1e9 + double(time.tv_nsec);
}

void rate(Echo_ptr server, unsigned long bytes, unsigned long calls)
{
	Echo::Bytes data;
	const double server_start = double(server->processor_ns());
	const double own_start = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
	const double start = nanoseconds(CLOCK_MONOTONIC);

	data.length(CORBA::ULong(bytes));
	for (unsigned long i = 0; i < calls; i++) {
		if (bytes == 0) {
			server->nothing();
		} else {
			Echo::Bytes_var back = server->send_back(data);
		}
	}

	const double time = nanoseconds(CLOCK_MONOTONIC) - start;
	const double processor = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - own_start +
				 double(server->processor_ns()) - server_start;

	std::cout << time / 1e3 / double(calls) << " us " << processor / 1e3 / double(calls)
		  << " us processor" << std::endl;
}

void one_call(Echo_ptr server)
{
	try {
		server->nothing();
		std::cout << "ok" << std::endl;
	} catch (const CORBA::Exception &exception) {
		std::cout << exception._name() << std::endl;
	}
}

void run(CORBA::ORB_ptr orb, Echo_ptr server, const std::string &command,
	const std::vector<unsigned long> &numbers)
{
	const unsigned long first = numbers.empty() ? 0 : numbers.front();
	const unsigned long last = numbers.empty() ? 0 : numbers.back();

	if (command == "null") {
		for (unsigned long i = 0; i < first; i++) {
			server->nothing();
		}
	} else if (command == "echo") {
		for (unsigned long i = 0; i < last; i++) {
			echo(server, first, unsigned(i));
		}
	} else if (command == "oneway") {
		const CORBA::Long before = server->counted();

		for (unsigned long i = 0; i < first; i++) {
			server->count();
		}
		/* Nobody promises an order between calls of different threads of the server. */
		while (server->counted() != before + CORBA::Long(first)) {
		}
	} else if (command == "callback") {
		call_back(orb, server, CORBA::Long(first), false);
	} else if (command == "bidirectional") {
		call_back(orb, server, CORBA::Long(first), true);
	} else if (command == "threads") {
		by_threads(server, first, last);
	} else if (command == "wait") {
		server->wait_ms(CORBA::ULong(first));
	} else if (command == "rate") {
		rate(server, first, last);
	} else if (command == "hold") {
		for (std::string line; std::getline(std::cin, line);) {
			one_call(server);
		}
	} else {
		throw wrong_answer();
	}
}

} // namespace

int main(int argc, char **argv)
{
	int status = 1;

	try {
		CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
		std::vector<unsigned long> numbers;

		for (int i = 3; i < argc; i++) {
			numbers.push_back(strtoul(argv[i], nullptr, 10));
		}
		try {
			CORBA::Object_var object = orb->string_to_object(argc > 2 ? argv[1] : "");
			Echo_var server = Echo::_unchecked_narrow(object);

			run(orb, server, argc > 2 ? argv[2] : "", numbers);
			std::cout << "ok" << std::endl;
			status = 0;
		} catch (const CORBA::Exception &exception) {
			std::cout << exception._name() << std::endl;
		} catch (const wrong_answer &) {
			std::cout << "wrong answer" << std::endl;
		}
		orb->destroy();
	} catch (const CORBA::Exception &exception) {
		std::cout << exception._name() << std::endl;
	}
	return status;
}
