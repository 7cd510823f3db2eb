// SPDX-License-Identifier: Apache-2.0
/*
 * The capabilities of the provider (fi_getinfo(3)), and addresses. They are IP addresses, because
 * ofi_rxm reads and compares them, but only addresses of this machine are valid. A port is a name
 * in its network namespace.
 */
#include "fi/provider.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#define CAPS                                                                                       \
	(FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |               \
		FI_REMOTE_WRITE | FI_LOCAL_COMM | FI_REMOTE_COMM)
#define TX_CAPS	   (FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE)
#define RX_CAPS	   (FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define TX_FLAGS   (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE)
#define RX_FLAGS   FI_COMPLETION
#define MR_MODE	   (FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY)
#define NAME	   "clan"
#define RMA_REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)
/* A ring preserves the order of everything that it carries. This does not apply to the answer to a
 * read, which can arrive after messages that were sent later. */
#define ORDER                                                                                      \
	(FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAW | FI_ORDER_WAS | FI_ORDER_RAW | FI_ORDER_RAS | \
		FI_ORDER_RAR)

/* --- addresses -------------------------------------------------------------------------------- */

size_t prov_address_bytes(const union prov_address *address)
{
	switch (address->sa.sa_family) {
	case AF_INET:
		return sizeof(address->in);
	case AF_INET6:
		return sizeof(address->in6);
	default:
		return 0;
	}
}

uint16_t prov_address_port(const union prov_address *address)
{
	return ntohs(
		address->sa.sa_family == AF_INET ? address->in.sin_port : address->in6.sin6_port);
}

void prov_address_set_port(union prov_address *address, uint16_t port)
{
	if (address->sa.sa_family == AF_INET) {
		address->in.sin_port = htons(port);
	} else {
		address->in6.sin6_port = htons(port);
	}
}

bool prov_address_copy(union prov_address *address, const void *from, size_t bytes)
{
	memset(address, 0, sizeof(*address));
	if (from == NULL || bytes < sizeof(address->sa.sa_family)) {
		return false;
	}
	memcpy(address, from, MIN(bytes, sizeof(*address)));
	return prov_address_bytes(address) != 0 && bytes >= prov_address_bytes(address);
}

static bool fi_info_same_host(const union prov_address *left, const union prov_address *right)
{
	if (left->sa.sa_family != right->sa.sa_family) {
		return false;
	}
	return left->sa.sa_family == AF_INET
		       ? left->in.sin_addr.s_addr == right->in.sin_addr.s_addr
		       : IN6_ARE_ADDR_EQUAL(&left->in6.sin6_addr, &right->in6.sin6_addr);
}

static bool is_unspecified(const union prov_address *address)
{
	return address->sa.sa_family == AF_INET ? address->in.sin_addr.s_addr == INADDR_ANY
						: IN6_IS_ADDR_UNSPECIFIED(&address->in6.sin6_addr);
}

bool prov_address_of(union prov_address *address, const void *from)
{
	const struct sockaddr *own = from;

	return own != NULL && prov_address_copy(address, own,
				      own->sa_family == AF_INET	   ? sizeof(address->in)
				      : own->sa_family == AF_INET6 ? sizeof(address->in6)
								   : 0);
}

/* All of 127/8 is this machine, whatever the interface reports. */
static bool fi_info_is_loopback(const union prov_address *address)
{
	return address->sa.sa_family == AF_INET
		       ? ntohl(address->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
		       : IN6_IS_ADDR_LOOPBACK(&address->in6.sin6_addr);
}

bool prov_address_is_local(const union prov_address *address)
{
	struct ifaddrs *all;
	bool found = is_unspecified(address) || fi_info_is_loopback(address);

	if (found || getifaddrs(&all) != 0) {
		return found;
	}
	for (const struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
		union prov_address own;

		found = prov_address_of(&own, one->ifa_addr) && fi_info_same_host(&own, address);
	}
	freeifaddrs(all);
	return found;
}

void prov_address_unspecified(union prov_address *address, uint32_t format)
{
	memset(address, 0, sizeof(*address));
	address->sa.sa_family = format == FI_SOCKADDR_IN6 ? AF_INET6 : AF_INET;
}

/* Returns an address of a network interface if there is one, because other machines would take a
 * loopback address for their own. Otherwise returns the loopback address. */
static void own_address(union prov_address *address, uint32_t format)
{
	struct ifaddrs *all = NULL;
	bool only_6 = format == FI_SOCKADDR_IN6;

	memset(address, 0, sizeof(*address));
	address->sa.sa_family = only_6 ? AF_INET6 : AF_INET;
	if (only_6) {
		address->in6.sin6_addr = in6addr_loopback;
	} else {
		address->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	}
	if (getifaddrs(&all) != 0) {
		return;
	}
	for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
		union prov_address candidate;

		/* Link-local addresses need a scope, which ofi_rxm does not store. */
		if (prov_address_of(&candidate, one->ifa_addr) &&
			candidate.sa.sa_family == address->sa.sa_family &&
			(one->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP &&
			!(only_6 && IN6_IS_ADDR_LINKLOCAL(&candidate.in6.sin6_addr))) {
			*address = candidate;
			break;
		}
	}
	freeifaddrs(all);
}

static bool format_fits(uint32_t format, const union prov_address *address)
{
	switch (format) {
	case FI_FORMAT_UNSPEC:
	case FI_SOCKADDR:
		return true;
	case FI_SOCKADDR_IN:
		return address->sa.sa_family == AF_INET;
	case FI_SOCKADDR_IN6:
		return address->sa.sa_family == AF_INET6;
	default:
		return false;
	}
}

static int fi_info_look_up(const char *node, const char *service, uint64_t flags, uint32_t format,
	union prov_address *address)
{
	struct addrinfo hints = {
		.ai_family = format == FI_SOCKADDR_IN6	? AF_INET6
			     : format == FI_SOCKADDR_IN ? AF_INET
							: AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = (flags & FI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0,
	};
	struct addrinfo *found;
	int result = getaddrinfo(node, service, &hints, &found);

	if (result != 0) {
		PROV_WARN(FI_LOG_FABRIC, "cannot look up %s: %s\n", node == NULL ? service : node,
			gai_strerror(result));
		return -FI_ENODATA;
	}
	result = prov_address_copy(address, found->ai_addr, found->ai_addrlen) ? 0 : -FI_ENODATA;
	freeaddrinfo(found);
	return result;
}

/* --- capabilities ----------------------------------------------------------------------------- */

/* Sends complete in order. Reads and writes complete when their answer arrives. */
static uint64_t tx_comp_order(uint64_t caps)
{
	return (caps & FI_RMA) != 0 ? FI_ORDER_NONE : FI_ORDER_STRICT;
}

/* Returns true if the requested attributes are within the limits. */
static bool sizes_fit(const struct fi_info *hints)
{
	const struct fi_tx_attr *tx = hints->tx_attr;
	const struct fi_rx_attr *rx = hints->rx_attr;
	const struct fi_ep_attr *ep = hints->ep_attr;

	if (tx != NULL &&
		(tx->size > PROV_OPS_MAX || tx->iov_limit > PROV_IOV_MAX || tx->rma_iov_limit > 1 ||
			tx->inject_size > PROV_INJECT_BYTES || (tx->msg_order & ~ORDER) != 0 ||
			(tx->op_flags & ~(uint64_t)TX_FLAGS) != 0 ||
			(tx->caps & ~(uint64_t)CAPS) != 0 ||
			(tx->comp_order & ~tx_comp_order(hints->caps == 0 ? CAPS : hints->caps)) !=
				0)) {
		return false;
	}
	if (rx != NULL &&
		(rx->size > PROV_OPS_MAX || rx->iov_limit > PROV_IOV_MAX ||
			(rx->msg_order & ~ORDER) != 0 || (rx->op_flags & ~RX_FLAGS) != 0 ||
			(rx->caps & ~(uint64_t)CAPS) != 0 ||
			(rx->comp_order & ~FI_ORDER_STRICT) != 0)) {
		return false;
	}
	return ep == NULL ||
	       ((ep->type == FI_EP_UNSPEC || ep->type == FI_EP_MSG) &&
		       ep->protocol == FI_PROTO_UNSPEC && ep->max_msg_size <= PROV_MESSAGE_MAX &&
		       ep->msg_prefix_size == 0 && ep->auth_key_size == 0 && ep->tx_ctx_cnt <= 1 &&
		       ep->rx_ctx_cnt <= 1); /* FI_SHARED_CONTEXT is SIZE_MAX */
}

/* Returns true if the program requested no name, or ours. */
static bool name_fits(const char *name)
{
	return name == NULL || strcmp(name, NAME) == 0;
}

/* Returns true if the program registers memory in the way that peers need for reads and writes.
 * Before version 1.5 programs did not specify it. Since then mode 0 means FI_MR_SCALABLE, which is
 * not offered. */
static bool can_be_target(uint32_t version, const struct fi_info *hints)
{
	const struct fi_domain_attr *domain = hints->domain_attr;

	if (domain == NULL || (domain->mr_mode & FI_MR_BASIC) != 0) {
		return true;
	}
	return (domain->mr_mode == FI_MR_UNSPEC && FI_VERSION_LT(version, FI_VERSION(1, 5))) ||
	       (domain->mr_mode & MR_MODE) == MR_MODE;
}

static bool domain_fits(uint32_t version, const struct fi_info *hints)
{
	const struct fi_domain_attr *domain = hints->domain_attr;
	bool remote = (hints->caps & RMA_REMOTE) != 0 ||
		      ((hints->caps & FI_RMA) != 0 && (hints->caps & (FI_READ | FI_WRITE)) == 0);

	if (domain == NULL) {
		return true;
	}
	return name_fits(domain->name) && domain->data_progress != FI_PROGRESS_AUTO &&
	       domain->control_progress != FI_PROGRESS_AUTO &&
	       domain->cq_data_size <= sizeof(uint64_t) && domain->mr_iov_limit <= 1 &&
	       (domain->caps & ~(uint64_t)(FI_LOCAL_COMM | FI_REMOTE_COMM)) == 0 &&
	       (!remote || can_be_target(version, hints));
}

static bool hints_fit(uint32_t version, const struct fi_info *hints)
{
	return (hints->caps & ~(uint64_t)CAPS) == 0 && sizes_fit(hints) &&
	       domain_fits(version, hints) &&
	       (hints->fabric_attr == NULL || name_fits(hints->fabric_attr->name));
}

/* Returns the memory registration mode, as the version of the interface that the program uses
 * defines it. */
static int mr_mode(uint32_t version, const struct fi_info *hints)
{
	int asked =
		hints == NULL || hints->domain_attr == NULL ? MR_MODE : hints->domain_attr->mr_mode;

	if (FI_VERSION_LT(version, FI_VERSION(1, 5)) || (asked & FI_MR_BASIC) != 0) {
		return FI_MR_BASIC;
	}
	return asked & MR_MODE;
}

static bool fi_info_set_address(
	void **place, size_t *bytes_place, const union prov_address *address)
{
	size_t bytes = address == NULL ? 0 : prov_address_bytes(address);

	free(*place);
	*place = NULL;
	*bytes_place = bytes;
	if (bytes == 0) {
		return true;
	}
	*place = malloc(bytes);
	if (*place == NULL) {
		return false;
	}
	memcpy(*place, address, bytes);
	return true;
}

struct fi_info *prov_info_with(
	const struct fi_info *info, const union prov_address *src, const union prov_address *dest)
{
	struct fi_info *copy = fi_dupinfo(info);

	if (copy != NULL &&
		(!fi_info_set_address(&copy->src_addr, &copy->src_addrlen, src) ||
			!fi_info_set_address(&copy->dest_addr, &copy->dest_addrlen, dest))) {
		fi_freeinfo(copy);
		return NULL;
	}
	if (copy != NULL) {
		copy->handle = NULL;
	}
	return copy;
}

static size_t asked_or(size_t asked, size_t otherwise)
{
	return asked == 0 ? otherwise : asked;
}

static struct fi_info *offer(uint32_t version, const struct fi_info *hints)
{
	static const struct fi_info empty = { 0 };
	const struct fi_info *asked = hints == NULL ? &empty : hints;
	struct fi_info *info = fi_allocinfo();

	if (info == NULL) {
		return NULL;
	}
	info->caps = asked->caps != 0		     ? asked->caps | FI_LOCAL_COMM | FI_REMOTE_COMM
		     : can_be_target(version, asked) ? CAPS
						     : CAPS & ~(uint64_t)RMA_REMOTE;
	info->addr_format =
		asked->addr_format == FI_FORMAT_UNSPEC ? FI_SOCKADDR : asked->addr_format;
	*info->tx_attr = (struct fi_tx_attr){
		.caps = info->caps & TX_CAPS,
		.op_flags = asked->tx_attr == NULL ? 0 : asked->tx_attr->op_flags,
		.msg_order = ORDER,
		.comp_order = tx_comp_order(info->caps),
		.inject_size = PROV_INJECT_BYTES,
		.size = asked_or(
			asked->tx_attr == NULL ? 0 : asked->tx_attr->size, PROV_OPS_DEFAULT),
		.iov_limit = PROV_IOV_MAX,
		.rma_iov_limit = 1,
	};
	*info->rx_attr = (struct fi_rx_attr){
		.caps = info->caps & RX_CAPS,
		.op_flags = asked->rx_attr == NULL ? 0 : asked->rx_attr->op_flags,
		.msg_order = ORDER,
		.comp_order = FI_ORDER_STRICT,
		.size = asked_or(
			asked->rx_attr == NULL ? 0 : asked->rx_attr->size, PROV_OPS_DEFAULT),
		.iov_limit = PROV_IOV_MAX,
	};
	*info->ep_attr = (struct fi_ep_attr){
		.type = FI_EP_MSG,
		.protocol = FI_PROTO_UNSPEC,
		.protocol_version = 1,
		.max_msg_size = PROV_MESSAGE_MAX,
		.max_order_raw_size = PROV_MESSAGE_MAX,
		.max_order_waw_size = PROV_MESSAGE_MAX,
		.tx_ctx_cnt = 1,
		.rx_ctx_cnt = 1,
	};
	*info->domain_attr = (struct fi_domain_attr){
		.name = strdup(NAME),
		.threading = FI_THREAD_SAFE,
		.control_progress = FI_PROGRESS_MANUAL,
		.data_progress = FI_PROGRESS_MANUAL,
		.resource_mgmt = FI_RM_ENABLED,
		.av_type = FI_AV_UNSPEC,
		.mr_mode = mr_mode(version, hints),
		.mr_key_size = sizeof(uint64_t),
		.cq_data_size = sizeof(uint64_t),
		.cq_cnt = 1 << 16,
		.ep_cnt = 1 << 15,
		.tx_ctx_cnt = 1 << 15,
		.rx_ctx_cnt = 1 << 15,
		.max_ep_tx_ctx = 1,
		.max_ep_rx_ctx = 1,
		.mr_iov_limit = 1,
		.caps = FI_LOCAL_COMM | FI_REMOTE_COMM,
		.max_err_data = PROV_CM_BYTES_MAX,
		.mr_cnt = 1 << 16,
	};
	info->fabric_attr->name = strdup(NAME);
	info->fabric_attr->prov_version = prov_provider.version;
	if (info->domain_attr->name == NULL || info->fabric_attr->name == NULL) {
		fi_freeinfo(info);
		return NULL;
	}
	return info;
}

/* Determines the addresses from node and service, or from the hints. */
static int find_addresses(const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, union prov_address *src, union prov_address *dest)
{
	uint32_t format = hints == NULL ? FI_FORMAT_UNSPEC : hints->addr_format;
	bool named = node != NULL || service != NULL;
	bool here = (flags & FI_SOURCE) != 0;
	int result = 0;

	memset(src, 0, sizeof(*src));
	memset(dest, 0, sizeof(*dest));
	if (hints != NULL && hints->src_addr != NULL &&
		!prov_address_copy(src, hints->src_addr, hints->src_addrlen)) {
		return -FI_ENODATA;
	}
	if (hints != NULL && hints->dest_addr != NULL &&
		!prov_address_copy(dest, hints->dest_addr, hints->dest_addrlen)) {
		return -FI_ENODATA;
	}
	if (node == NULL && service != NULL && here) {
		union prov_address port;

		result = fi_info_look_up(NULL, service, flags, format, &port);
		if (result == 0) {
			own_address(src, format);
			prov_address_set_port(src, prov_address_port(&port));
		}
	} else if (named) {
		result = fi_info_look_up(node, service, flags, format, here ? src : dest);
	}
	if (result == 0 && src->sa.sa_family == AF_UNSPEC) {
		if (dest->sa.sa_family != AF_UNSPEC) {
			/* A connection to an address of this machine has that same address as its
			 * source. */
			*src = *dest;
			prov_address_set_port(src, 0);
		} else {
			own_address(src, format);
		}
	}
	return result;
}

static bool fi_info_is_here(const char *what, const union prov_address *address)
{
	char text[INET6_ADDRSTRLEN] = "?";

	if (prov_address_is_local(address)) {
		return true;
	}
	getnameinfo(&address->sa, (socklen_t)prov_address_bytes(address), text, sizeof(text), NULL,
		0, NI_NUMERICHOST);
	PROV_WARN(FI_LOG_FABRIC,
		"the %s address %s is not on this machine, but clan connects processes of the same "
		"machine; use the provider tcp or verbs between machines\n",
		what, text);
	return false;
}

int prov_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	const struct fi_info *hints, struct fi_info **info_out)
{
	union prov_address src;
	union prov_address dest;
	struct fi_info *info;
	int result;

	if (hints != NULL && !hints_fit(version, hints)) {
		return -FI_ENODATA;
	}
	result = find_addresses(node, service, flags, hints, &src, &dest);
	if (result != 0) {
		return result;
	}
	if (!format_fits(hints == NULL ? FI_FORMAT_UNSPEC : hints->addr_format, &src) ||
		!fi_info_is_here("source", &src) ||
		(dest.sa.sa_family != AF_UNSPEC && !fi_info_is_here("destination", &dest))) {
		return -FI_ENODATA;
	}
	info = offer(version, hints);
	if (info == NULL) {
		return -FI_ENOMEM;
	}
	*info_out = prov_info_with(info, &src, dest.sa.sa_family == AF_UNSPEC ? NULL : &dest);
	fi_freeinfo(info);
	if (*info_out == NULL) {
		return -FI_ENOMEM;
	}
	(*info_out)->handle = hints == NULL ? NULL : hints->handle;
	return 0;
}
