// Gives one server a wall clock that can be moved while the server runs, for the fault runner.
//
// Preloaded into Postgres, it adds an offset to the wall clock. The offset is a line over time
// (an amount at a moment, and a rate of change), so that one record is a step, a slew, or both.
// Monotonic clocks and the kernel's timers stay as they are.
//
// The file that PUNCTUAL_CLOCK names holds 256 records; its first byte says which one is valid.
// All processes map it, so a new record takes effect in all of them at the same moment. The writer
// fills the next record and then changes that one byte. Readers never lock, allocate, or open a
// file: Postgres reads the clock in signal handlers, too. libfaketime does all three there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// The offset is offset_us at since_us of the machine's clock and changes by ppm from then on.
struct record {
  int64_t since_us;
  int64_t offset_us;
  int64_t ppm;
};

struct clock_file {
  volatile uint8_t valid;
  uint8_t unused[sizeof(struct record) - 1];
  volatile struct record records[256];
};

static const struct clock_file *file;
static int (*machine_clock)(clockid_t, struct timespec *);

static void fail(const char *what) {
  perror(what);
  abort();
}

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("PUNCTUAL_CLOCK");
  if (path == NULL) fail("PUNCTUAL_CLOCK is not set");
  machine_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  if (machine_clock == NULL) fail("no clock_gettime");
  int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || lseek(descriptor, 0, SEEK_END) < (off_t)sizeof *file) fail(path);
  void *mapped = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) fail(path);
  close(descriptor);
  file = mapped;
}

// A record is written anew only after 255 others: one that was valid a moment ago is whole.
static int64_t offset_us(int64_t machine_us) {
  const volatile struct record *record = &file->records[file->valid];
  int64_t elapsed_us = machine_us - record->since_us;
  return record->offset_us + (elapsed_us > 0 ? elapsed_us * record->ppm / 1000000 : 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = machine_clock(clock, now);
  if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
  int64_t us = (int64_t)now->tv_sec * 1000000 + now->tv_nsec / 1000;
  int64_t moved_us = us + offset_us(us);
  now->tv_sec = moved_us / 1000000;
  now->tv_nsec = moved_us % 1000000 * 1000 + now->tv_nsec % 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  int result = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return result;
}

time_t time(time_t *seconds) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (seconds != NULL) *seconds = precise.tv_sec;
  return precise.tv_sec;
}
