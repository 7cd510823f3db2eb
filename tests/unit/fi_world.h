// SPDX-License-Identifier: Apache-2.0
/*
 * Two sides of the provider clan of libfabric in one process, each with a fabric of its own, driven
 * by the calls of the test. The provider is loaded by libfabric from FI_PROVIDER_PATH.
 *
 * Errors: every unexpected result fails the test.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#include <cmocka.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_pep *pep;
	struct fid_ep *ep;
};

struct pair {
	struct side server;
	struct side client;
};

/* Hints that the provider accepts; fi_freeinfo() them. */
struct fi_info *fi_world_hints(void);

/* A fabric with its queues; the completion queue has that wait object. */
void side_open(struct side *side, enum fi_wait_obj wait);

/* Listens at a free port, which is the result. */
uint16_t side_listen(struct side *side);

/* An endpoint that is bound and enabled, for an information with a handle or without. */
void side_make_ep(struct side *side, struct fi_info *info);

/* Begins to connect to a port of this machine. */
int side_connect(struct side *side, uint16_t port, const void *data, size_t bytes);

/* Closes everything; nothing may be left. */
void side_close(struct side *side);

/* Two sides with connected endpoints. */
void pair_open(struct pair *pair);
void pair_close(struct pair *pair);

/* Drives other (may be NULL) until the event queue of side has an event, which is taken. An error
 * event has the type 0 and is in *error. */
uint32_t await_event(struct side *side, struct side *other, struct fi_eq_cm_entry *entry,
	size_t bytes, struct fi_eq_err_entry *error);

/* Drives other (may be NULL) until the completion queue of side has an entry, which is taken.
 * Returns 0, or the errno of an error, which is in *error. */
int await_completion(struct side *side, struct side *other, struct fi_cq_data_entry *entry,
	struct fi_cq_err_entry *error);

/* A completion with that context and without an error. */
void await_done(struct side *side, struct side *other, void *context);

/* Called by drive(), unless NULL: lets a peer that is no side make progress. */
extern void (*drive_also)(void);

/* Carries out what peers of the side want. */
void drive(struct side *side);

/* Bytes that tell their place, and whether they are as they were made. */
void pattern_fill(uint8_t *bytes, size_t count, uint32_t seed);
void pattern_check(const uint8_t *bytes, size_t count, uint32_t seed);
