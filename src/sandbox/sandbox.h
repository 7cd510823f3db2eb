// SPDX-License-Identifier: Apache-2.0
/*
 * Privileges that a process gives up before it reads a byte from the network: the root user,
 * capabilities, access to files outside of named folders (Landlock), and unneeded system calls
 * (seccomp).
 *
 *   sandbox_become() ─▶ open the disks ─▶ sandbox_allow(folder) ... ─▶ sandbox_enter()
 *     ─▶ start threads, create rings, listen ─▶ sandbox_seal() ─▶ accept
 *
 * Threads started later inherit the restrictions, which cannot be undone. Operations of io_uring
 * bypass the system call filter but not Landlock, because the kernel's workers have the credentials
 * of the submitter. So rings are restricted separately (ring_options.is_restricted), and no ring
 * can be created after sandbox_seal(). Rings must not use IORING_SETUP_SQPOLL, because its kernel
 * thread would keep the credentials from before sandbox_enter().
 *
 * Threading: before other threads start; sandbox_seal() and sandbox_explain() on any thread.
 */
#pragma once

#include <sys/types.h>

#include "base/error.h"

enum sandbox_mode {
	SANDBOX_AUTO, /* all layers that this kernel has */
	SANDBOX_ON,   /* all layers, or an error */
	SANDBOX_OFF,
};

/* Access below a folder, or to a file. */
enum sandbox_access {
	SANDBOX_READ = BIT(0),
	SANDBOX_WRITE = BIT(1),		/* write existing files; new files cannot be created */
	SANDBOX_DEVICES = BIT(2),	/* ioctl() on devices */
	SANDBOX_SOCKETS = BIT(3),	/* Unix sockets can be created, and files removed */
	SANDBOX_SHARED_MEMORY = BIT(4), /* files can be created, resized and removed */
};

struct sandbox_rule {
	char *path; /* resolved by realpath() */
	uint32_t access;
	/* The option that names the file, if the rule allows only the file itself because its
	 * folder is broad (sandbox_is_broad()); otherwise NULL. Used in a warning, because a file
	 * that later replaces this file cannot be read. Borrowed. */
	const char *alone_of;
};

enum { SANDBOX_PORTS_MAX = 16 };

/* TCP ports, at any address. All zero: none. */
struct sandbox_ports {
	uint16_t list[SANDBOX_PORTS_MAX];
	uint32_t count;
	bool any;
};

/* The rights that a process keeps inside the sandbox. All zero: none. */
struct sandbox {
	struct sandbox_rule *rules;
	uint32_t rule_count;
	/* A network library is loaded later, which maps code, connects and listens. */
	bool loads_code;
	bool renames; /* the server replaces files by rename() */
	/* The server connects to Unix sockets and TCP ports. */
	bool connects;
	/* Unix sockets are created after sandbox_seal(), in folders with SANDBOX_SOCKETS. The
	 * system call filter cannot see the address of bind(), so Landlock restricts TCP ports
	 * (Linux 6.7).
	 */
	bool makes_sockets;
	/* A port below 1024 will be opened after sandbox_enter(). */
	bool binds_low_port;
	struct sandbox_ports connect_ports; /* to which connections are allowed */
	struct sandbox_ports bind_ports;    /* that can be bound, with makes_sockets */
};

/* Adds a port. With port 0, or with more than SANDBOX_PORTS_MAX ports, all ports are allowed. */
void sandbox_allow_port(struct sandbox_ports *ports, uint16_t port);

struct sandbox_support {
	uint32_t landlock; /* version of Landlock's interface; 0: not in this kernel, or off */
	bool seccomp;
};

/* Finds out which layers this kernel has. */
void sandbox_probe(struct sandbox_support *support);

enum { SANDBOX_NAME_BYTES = 256 };

struct sandbox_user {
	char name[SANDBOX_NAME_BYTES];	/* "" if only the number is known */
	char group[SANDBOX_NAME_BYTES]; /* "" if only the number is known */
	uid_t uid;
	gid_t gid;
	bool is_own_group; /* gid is the group that the user has by default */
};

/* Looks up "USER" or "USER:GROUP", names or numbers. -ENOENT: unknown; -EINVAL: the user is root,
 * or its group is not known. */
GMB_MUST_CHECK int sandbox_find_user(
	const char *text, struct sandbox_user *user_out, struct error *error);
/* Returns whether the text names the user and group of the last sandbox_become(). The text is
 * compared with the names and numbers that sandbox_become() has stored, because a process in a
 * sandbox cannot look up users. */
bool sandbox_is_user(const char *text);
/* Becomes that user, with the user's supplementary groups and without capabilities. Only root can
 * change the user; for others, returns -EPERM unless they are that user already. */
GMB_MUST_CHECK int sandbox_become(const struct sandbox_user *user, struct error *error);

/* Allows access below a folder, or to one file. A path that does not exist is ignored. access:
 * bits of enum sandbox_access. -ENOMEM. */
GMB_MUST_CHECK int sandbox_allow(
	struct sandbox *sandbox, const char *path, uint32_t access, struct error *error);
/* Returns whether a folder is broad, that is, likely to contain more than files for one program:
 * the root, system folders such as /etc and /srv, a home, or a folder that everybody can write to,
 * such as /tmp. Also true if the folder does not exist. */
bool sandbox_is_broad(const char *folder);
/*
 * Like sandbox_allow(), for the folder of a file, so that the file can be replaced and further
 * files can be created in the folder. If the file is a device, or its folder is broad, only the
 * file is allowed. For a broad folder, sandbox_enter() then logs a warning that names `option`,
 * which is borrowed; NULL: no warning.
 */
GMB_MUST_CHECK int sandbox_allow_beside(struct sandbox *sandbox, const char *path, uint32_t access,
	const char *option, struct error *error);

void sandbox_fini(struct sandbox *sandbox);

/* Drops all rights that were not allowed, and logs the active layers. Fails only with SANDBOX_ON;
 * the error names the missing layer. */
GMB_MUST_CHECK int sandbox_enter(
	struct sandbox *sandbox, enum sandbox_mode mode, struct error *error);

/* Called after sandbox_enter(), with the same mode. Drops, in every thread, the rights that only
 * the start of a server needs: creating rings, binding addresses and, unless the server connects,
 * creating and connecting sockets. With makes_sockets, Unix sockets can still be created and
 * bound. */
GMB_MUST_CHECK int sandbox_seal(enum sandbox_mode mode, struct error *error);

/* If the sandbox is the reason why a file could not be opened or created, adds that to the message
 * in *error and returns true. writes: the file was opened for writing. remedy: the action to take
 * for an existing file, such as "restart the server". */
bool sandbox_explain(const char *path, bool writes, const char *remedy, struct error *error);
