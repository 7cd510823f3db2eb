// SPDX-License-Identifier: Apache-2.0
/*
 * Echo server of the tests and the benchmark: prints its object reference, and serves until it is
 * killed or its standard input ends. "bidirectional": it may call back by the connections of its
 * clients. An ordinary omniORB program: clan is nothing that it knows of.
 */
#include <atomic>
#include <ctime>
#include <iostream>
#include <poll.h>
#include <string>

#include "echo.hh"

namespace
{

class echo_impl : public POA_Echo
{
      public:
	void nothing() override
	{
	}

	Echo::Bytes *send_back(const Echo::Bytes &data) override
	{
		return new Echo::Bytes(data);
	}

	void count() override
	{
		counter++;
	}

	CORBA::Long counted() override
	{
		return counter;
	}

	void call_back(Callback_ptr to, CORBA::Long times) override
	{
		for (CORBA::Long i = 0; i < times; i++) {
			to->called(i);
		}
	}

	void wait_ms(CORBA::ULong milliseconds) override
	{
		poll(nullptr, 0, int(milliseconds));
	}

	CORBA::ULongLong processor_ns() override
	{
		timespec time;

		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
		return CORBA::ULongLong(time.tv_sec) * 1000000000 + CORBA::ULongLong(time.tv_nsec);
	}

      private:
	std::atomic<CORBA::Long> counter{ 0 };
};

} // namespace

int main(int argc, char **argv)
{
	try {
		CORBA::ORB_var orb = CORBA::ORB_init(argc, argv);
		/* Its references are good for the next server of the same address. */
		CORBA::Object_var object = orb->resolve_initial_references("omniINSPOA");
		PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
		PortableServer::POAManager_var manager = poa->the_POAManager();
		PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId("echo");
		PortableServer::Servant_var<echo_impl> echo = new echo_impl;

		if (argc > 1 && std::string(argv[1]) == "bidirectional") {
			CORBA::PolicyList policies(1);

			policies.length(1);
			policies[0] = new BiDirPolicy::BidirectionalPolicy(BiDirPolicy::BOTH);
			object = orb->resolve_initial_references("RootPOA");
			poa = PortableServer::POA::_narrow(object);
			poa = poa->create_POA("both ways", manager, policies);
			poa->activate_object(echo);
		} else {
			poa->activate_object_with_id(id, echo);
		}
		manager->activate();
		Echo_var self = echo->_this();
		CORBA::String_var reference = orb->object_to_string(self);
		std::cout << reference.in() << std::endl;
		while (std::cin.get() != EOF) {
		}
		orb->destroy();
	} catch (const CORBA::Exception &exception) {
		std::cout << exception._name() << std::endl;
		return 1;
	}
	return 0;
}
