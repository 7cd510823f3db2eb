// SPDX-License-Identifier: Apache-2.0
#include "memory/p2pmem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

enum { PATH_BYTES = 128, TEXT_BYTES = 64, BARS = 6 };

int p2pmem_parse_bdf(const char *text, char bdf[P2PMEM_BDF_BYTES], struct error *error)
{
	unsigned int domain = 0;
	unsigned int bus;
	unsigned int device;
	unsigned int function;
	int end = -1;

	if (sscanf(text, "%4x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 ||
		text[end] != '\0') {
		domain = 0;
		end = -1;
		if (sscanf(text, "%2x:%2x.%1x%n", &bus, &device, &function, &end) != 3 ||
			text[end] != '\0') {
			return error_set(error, -EINVAL,
				"'%s' is not the address of a PCI device; write "
				"DOMAIN:BUS:DEVICE.FUNCTION, such as 0000:01:00.0",
				quote(text));
		}
	}
	snprintf(bdf, P2PMEM_BDF_BYTES, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff,
		device & 0xff, function & 0xf);
	return 0;
}

static void path_of(const char *bdf, const char *name, char path[PATH_BYTES])
{
	snprintf(path, PATH_BYTES, "/sys/bus/pci/devices/%s%s%s", bdf, name[0] != '\0' ? "/" : "",
		name);
}

/* Reads a number from the device's folder in sysfs; 0 if it does not exist. */
static uint64_t p2pmem_read_number(const char *bdf, const char *name)
{
	char path[PATH_BYTES];
	char text[TEXT_BYTES] = "";
	int fd;
	ssize_t count;

	path_of(bdf, name, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return 0;
	}
	count = read(fd, text, sizeof(text) - 1);
	close(fd);
	return count > 0 ? strtoull(text, NULL, 0) : 0;
}

int p2pmem_open(const char *bdf, struct p2pmem *memory, struct error *error)
{
	char path[PATH_BYTES];
	int fd;

	path_of(bdf, "", path);
	if (access(path, F_OK) < 0) {
		return error_set(error, -ENODEV,
			"no PCI device %s; \"lspci -D\" lists the devices of this machine", bdf);
	}
	path_of(bdf, "p2pmem", path);
	if (access(path, F_OK) < 0) {
		return error_set(error, -EOPNOTSUPP,
			"PCI device %s has no memory for other devices: the device has no such "
			"memory, its driver does not offer it, or this kernel does not support it "
			"(CONFIG_PCI_P2PDMA)",
			bdf);
	}
	if (p2pmem_read_number(bdf, "p2pmem/published") == 0) {
		return error_set(error, -EOPNOTSUPP,
			"the driver of PCI device %s does not publish its memory (p2pmem/published "
			"is 0)",
			bdf);
	}
	path_of(bdf, "p2pmem/allocate", path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		return error_set(error, -errno, "cannot open %s: %s%s", path, strerror(errno),
			errno == EACCES	  ? "; this requires root"
			: errno == ENOENT ? "; this requires Linux 6.2 or later"
					  : "");
	}
	*memory = (struct p2pmem){
		.fd = fd,
		.bytes = p2pmem_read_number(bdf, "p2pmem/size"),
		.free_bytes = p2pmem_read_number(bdf, "p2pmem/available"),
	};
	snprintf(memory->bdf, sizeof(memory->bdf), "%s", bdf);
	return 0;
}

void p2pmem_close(struct p2pmem *memory)
{
	if (memory->fd >= 0) {
		close(memory->fd);
		memory->fd = -1;
	}
}

/* --- mapping ---------------------------------------------------------------------------------- */

static int p2pmem_map(void *context, uint64_t bytes, uint8_t **base_out)
{
	const struct p2pmem *memory = context;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);

	if (base == MAP_FAILED) {
		return -errno;
	}
	*base_out = base;
	return 0;
}

static void unmap(void *context, uint8_t *base, uint64_t bytes)
{
	munmap(base, bytes);
}

struct arena_source p2pmem_source(struct p2pmem *memory)
{
	return (struct arena_source){
		.kind = memory->bdf,
		/* The kernel supports this memory neither as fixed buffers nor for zero-copy
		 * sends. */
		.rights = MEM_ADDRESS | MEM_SOCKET,
		.map = p2pmem_map,
		.unmap = unmap,
		.context = memory,
	};
}

/* --- examination ------------------------------------------------------------------------------ */

/* Returns the physical address of a mapped page; 0 if this user may not read it. */
static uint64_t physical_address(const uint8_t *page)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t entry = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	ssize_t count;

	if (fd < 0) {
		return 0;
	}
	count = pread(
		fd, &entry, sizeof(entry), (off_t)((uintptr_t)page / page_bytes * sizeof(entry)));
	close(fd);
	/* See Documentation/admin-guide/mm/pagemap.rst: bit 63: present; bits 0-54: page frame
	 * number. */
	if (count != (ssize_t)sizeof(entry) || (entry >> 63) == 0) {
		return 0;
	}
	return (entry & ((UINT64_C(1) << 55) - 1)) * page_bytes;
}

/* Returns the number of the BAR (address range of the PCI device) that contains the address, and
 * its range; -1 if no BAR contains the address. */
static int find_bar(const char *bdf, uint64_t address, uint64_t *begin, uint64_t *last)
{
	char path[PATH_BYTES];
	char line[128];
	int bar = -1;
	FILE *file;

	path_of(bdf, "resource", path);
	file = fopen(path, "re");
	if (file == NULL) {
		return -1;
	}
	for (int i = 0; i < BARS && bar < 0 && fgets(line, sizeof(line), file) != NULL; i++) {
		char *end;

		*begin = strtoull(line, &end, 16);
		*last = strtoull(end, NULL, 16);
		if (*last > 0 && address >= *begin && address <= *last) {
			bar = i;
		}
	}
	fclose(file);
	return bar;
}

int p2pmem_examine(struct p2pmem *memory, char answer[P2PMEM_ANSWER_BYTES])
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t address;
	uint64_t begin = 0;
	uint64_t last = 0;
	uint8_t *page = NULL;
	int result = p2pmem_map(memory, page_bytes, &page);
	int bar;

	if (result < 0) {
		snprintf(answer, P2PMEM_ANSWER_BYTES, "cannot be mapped: %s%s", strerror(-result),
			result == -ENOMEM ? "; all of the device's memory is in use" : "");
		return result;
	}
	address = physical_address(page);
	unmap(memory, page, page_bytes);
	if (address == 0) {
		snprintf(answer, P2PMEM_ANSWER_BYTES,
			"can be mapped; only root can see the address of a page");
		return 0;
	}
	bar = find_bar(memory->bdf, address, &begin, &last);
	if (bar < 0) {
		snprintf(answer, P2PMEM_ANSWER_BYTES,
			"a page is at 0x%llx, which is in no BAR of the device",
			(unsigned long long)address);
		return -EFAULT;
	}
	snprintf(answer, P2PMEM_ANSWER_BYTES, "a page is at 0x%llx, in BAR %d (0x%llx-0x%llx)",
		(unsigned long long)address, bar, (unsigned long long)begin,
		(unsigned long long)last);
	return 0;
}

int p2pmem_reach(struct p2pmem *memory, int direct_fd, uint32_t bytes)
{
	uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t mapped = align_up((uint64_t)bytes, page_bytes);
	uint8_t *base = NULL;
	ssize_t count;
	int result = p2pmem_map(memory, mapped, &base);

	if (result < 0) {
		return result;
	}
	do {
		count = pread(direct_fd, base, bytes, 0);
	} while (count < 0 && errno == EINTR);
	result = count < 0 ? -errno : 0;
	unmap(memory, base, mapped);
	return result;
}

const char *p2pmem_reach_text(int result)
{
	switch (result) {
	case 0:
		return "can be reached";
	case -EREMOTEIO:
	case -EINVAL: /* newer kernels return this instead of -EREMOTEIO */
		return "cannot be reached: the kernel allows no path between the two devices (they "
		       "are not below the same PCIe switch, or not on a host bridge that is known "
		       "to forward), or the disk's driver does not support it";
	case -EFAULT:
	case -EOPNOTSUPP:
		return "cannot be reached: the disk's driver accepts only memory of this machine";
	default:
		return strerror(-result);
	}
}
