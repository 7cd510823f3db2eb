// SPDX-License-Identifier: Apache-2.0
/*
 * What the parts of the program share that shows what calls on TCP sockets do (semantics.c).
 *
 * Threading: one case at a time. Ownership: a case may close the pair's descriptors, and sets them
 * to -1. Errors: what has nothing to do with the case ends the program.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

enum {
	ROUNDS = 24,
	WAIT_MS = 5000,
	SHORT_MS = 40,
	LONG_MS = 300,
};

struct pair {
	int client;
	int server;
};

/* Defines a case, which is "epoll-level" on the command line if its name is epoll_level. */
#define CASE(name)                                                                                 \
	static void name(struct pair *pair);                                                       \
	__attribute__((constructor)) static void case_add_##name(void)                             \
	{                                                                                          \
		case_add(#name, name);                                                             \
	}                                                                                          \
	static void name(struct pair *pair)

void case_add(const char *name, void (*run)(struct pair *pair));

/* One result: errno by name, so that lines can be read. */
void show(const char *what, long result);
void show_bytes(const char *what, const void *bytes, long length);
void must(bool condition, const char *what);
void set_nonblocking(int fd, bool on);
void connect_pair(struct pair *pair);
/* The same with an option set at both ends before they are connected; 0: none. */
void connect_pair_with(struct pair *pair, int level, int option);
/* Enough calls in both directions for the connection to be carried. */
void warm(const struct pair *pair);
void put(int fd, const char *text);
/* What poll() says; 0: nothing in that time. */
short wait_ready(int fd, short events, int timeout_ms);
/* TCP needs a moment, even to itself. */
void arrived(int fd, int bytes);
/* An epoll set with the descriptor in it. */
int make_set(int fd, uint32_t events);
struct epoll_event waited(int set, int timeout_ms, const char *what);
