// SPDX-License-Identifier: Apache-2.0
#include "ring/news.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int news_add(const struct ring_news *news, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(news->poll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int ring_news_create(struct ring_news *news, struct io_uring *uring, int wake_fd)
{
	int result;

	news->event_fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
	news->poll_fd = news->event_fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
	result = news->poll_fd < 0 ? -errno : news_add(news, news->event_fd);
	result = result ?: news_add(news, wake_fd);
	result = result ?: io_uring_register_eventfd(uring, news->event_fd);
	if (result < 0) {
		ring_news_fini(news);
	}
	return result;
}

void ring_news_fini(struct ring_news *news)
{
	if (news->poll_fd >= 0) {
		close(news->poll_fd);
	}
	if (news->event_fd >= 0) {
		close(news->event_fd);
	}
	ring_news_init(news);
}

void ring_news_watch(struct ring_news *news, int fd)
{
	if (ring_news_exist(news) && fd >= 0 && news_add(news, fd) != 0) {
		news->is_incomplete = true;
	}
}

void ring_news_ignore(struct ring_news *news, int fd)
{
	if (ring_news_exist(news) && fd >= 0) {
		(void)epoll_ctl(news->poll_fd, EPOLL_CTL_DEL, fd, NULL);
	}
}

void ring_news_clear(struct ring_news *news)
{
	uint64_t value;

	(void)!read(news->event_fd, &value, sizeof(value));
}

void ring_news_tell(struct ring_news *news)
{
	const uint64_t one = 1;

	if (ring_news_exist(news)) {
		(void)!write(news->event_fd, &one, sizeof(one)); /* full: it is readable */
	}
}
