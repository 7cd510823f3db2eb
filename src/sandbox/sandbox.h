// SPDX-License-Identifier: Apache-2.0
/*
 * What a process gives up before it reads a byte from the network: being root, capabilities, files
 * outside of named folders (Landlock), and system calls that it has no use for (seccomp).
 *
 *   sandbox_become() ─▶ open the disks ─▶ sandbox_allow(folder) ... ─▶ sandbox_enter()
 *     ─▶ start threads, make rings, listen ─▶ sandbox_seal() ─▶ accept
 *
 * All of it is inherited by the threads started later and cannot be taken back. Operations of
 * io_uring pass by the filter of system calls, but not by Landlock: the kernel's workers have the
 * credentials of whoever submitted the operation. So rings are confined themselves
 * (ring_options.is_confined), and there is no new one after sandbox_seal().
 *
 * Threading: the thread that is still alone; sandbox_seal() and sandbox_explain() on any thread.
 */
#pragma once

#include <sys/types.h>

#include "base/error.h"

enum sandbox_mode {
	SANDBOX_AUTO, /* what this kernel has */
	SANDBOX_ON,   /* all of it, or an error */
	SANDBOX_OFF,
};

/* What may be done below a folder, or with a file. */
enum sandbox_access {
	SANDBOX_READ = BIT(0),
	SANDBOX_WRITE = BIT(1),		/* existing files; nothing can be created */
	SANDBOX_DEVICES = BIT(2),	/* ioctl() on devices */
	SANDBOX_SOCKETS = BIT(3),	/* Unix sockets may be made, and files removed */
	SANDBOX_SHARED_MEMORY = BIT(4), /* files may be made, resized and removed */
};

struct sandbox_rule {
	char *path; /* as it was resolved */
	uint32_t access;
	/* A file whose folder has much more, so that another one cannot replace it: which option
	 * names it; borrowed. Else NULL. */
	const char *alone_of;
};

enum { SANDBOX_PORTS_MAX = 16 };

/* Zeroed: nothing is allowed. */
struct sandbox {
	struct sandbox_rule *rules;
	uint32_t rule_count;
	/* A network library is loaded late: its code is mapped, and it connects and listens. */
	bool loads_code;
	/* The server connects to others, at Unix sockets and TCP ports. */
	bool connects;
	/* A port below 1024 is still to be listened on. */
	bool binds_low_port;
	/* TCP ports that may be connected to, at any address. */
	uint16_t ports[SANDBOX_PORTS_MAX];
	uint32_t port_count;
	bool any_port;
};

/* Allows connections to that TCP port; 0, and more than SANDBOX_PORTS_MAX: to any. */
void sandbox_allow_port(struct sandbox *sandbox, uint16_t port);

struct sandbox_support {
	uint32_t landlock; /* version of its interface, 0: the kernel has none or it is off */
	bool seccomp;
};

/* What this kernel has. */
void sandbox_probe(struct sandbox_support *support);

enum { SANDBOX_NAME_BYTES = 256 };

struct sandbox_user {
	char name[SANDBOX_NAME_BYTES]; /* "" when only the number is known */
	uid_t uid;
	gid_t gid;
};

/* Finds "USER" or "USER:GROUP", names or numbers. -ENOENT; -EINVAL: root, or a group is missing. */
GMB_MUST_CHECK int sandbox_find_user(
	const char *text, struct sandbox_user *user_out, struct error *error);
/* Becomes that user, with the user's supplementary groups and no capabilities. -EPERM: only root
 * can, unless nothing changes. */
GMB_MUST_CHECK int sandbox_become(const struct sandbox_user *user, struct error *error);

/* Allows what is below a folder, or one file; what does not exist is passed over. access: bits of
 * enum sandbox_access. -ENOMEM. */
GMB_MUST_CHECK int sandbox_allow(
	struct sandbox *sandbox, const char *path, uint32_t access, struct error *error);
/* Whether a folder holds more than what somebody put there for one program: the root, folders of
 * the system such as /etc and /srv, a home, or one that everybody writes to, such as /tmp. Also
 * when there is none of that name. */
bool sandbox_is_broad(const char *folder);
/* The same as sandbox_allow() for the folder of a file, where the file may be replaced by another
 * one, or get a neighbour; for the file alone if it is a device, or if its folder is broad. In the
 * latter case sandbox_enter() warns, and names the option, which is borrowed; NULL: it does not. */
GMB_MUST_CHECK int sandbox_allow_beside(struct sandbox *sandbox, const char *path, uint32_t access,
	const char *option, struct error *error);

void sandbox_fini(struct sandbox *sandbox);

/* Gives everything else up. What is in force is logged. An error with SANDBOX_ON only: the sentence
 * says what is missing. */
GMB_MUST_CHECK int sandbox_enter(
	struct sandbox *sandbox, enum sandbox_mode mode, struct error *error);

/* After sandbox_enter() with the same mode: gives up what only the start of a server needs, in
 * every thread: new rings, addresses to listen at, and, unless it connects, new sockets and
 * connections.
 */
GMB_MUST_CHECK int sandbox_seal(enum sandbox_mode mode, struct error *error);

/* Completes the sentence about a file that could not be opened, or made, if the sandbox is why:
 * true. writes: it was to be written, too. remedy: what to do about one that is there, such as
 * "restart the server". */
bool sandbox_explain(const char *path, bool writes, const char *remedy, struct error *error);
