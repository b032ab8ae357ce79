/* Device memory is the host's, a queue is empty as soon as it is filled, and a model that was
 * captured is a number that the observer is told about. */
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NO_MEMORY = 207001, NOT_READY = 1 };
enum { MAX_DEVICES = 16 };

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

/* ---- devices ---- */

static __thread int current;
static char contexts[MAX_DEVICES][8];

int aclrtGetDeviceCount(uint32_t* count) {
  *count = number("STANDIN_DEVICES", 1);
  return SUCCESS;
}
int aclrtSetDevice(int device) {
  current = device;
  return SUCCESS;
}
int aclrtGetDevice(int* device) {
  *device = current;
  return SUCCESS;
}
int aclrtGetCurrentContext(void** context) {
  *context = contexts[current];
  return SUCCESS;
}
const char* aclrtGetSocName(void) {
  const char* name = getenv("STANDIN_SOC");
  return name ? name : "Ascend910B2";
}
size_t aclGetCompileoptSize(int option) { return 8; }
int aclGetCompileopt(int option, char* value, size_t size) {
  memset(value, 0, size);
  if (size) value[0] = '1';
  return SUCCESS;
}

/* ---- memory ---- */

static size_t taken;

int aclrtMalloc(void** at, size_t size, int policy) {
  if (posix_memalign(at, 512, size ? size : 512)) return NO_MEMORY;
  taken += malloc_usable_size(*at);
  return SUCCESS;
}
int aclrtMallocAlign32(void** at, size_t size, int policy) { return aclrtMalloc(at, size, policy); }
int aclrtMallocWithCfg(void** at, size_t size, int policy, void* config) {
  return aclrtMalloc(at, size, policy);
}
int aclrtFree(void* at) {
  taken -= malloc_usable_size(at);
  free(at);
  return SUCCESS;
}
int aclrtMallocHost(void** at, size_t size) {
  return posix_memalign(at, 4096, size ? size : 512) ? NO_MEMORY : SUCCESS;
}
int aclrtMallocHostWithCfg(void** at, size_t size, void* config) {
  return aclrtMallocHost(at, size);
}
int aclrtFreeHost(void* at) {
  free(at);
  return SUCCESS;
}
int aclrtMemcpy(void* to, size_t room, const void* from, size_t size, int kind) {
  memcpy(to, from, size);
  return SUCCESS;
}
int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t size, int kind, void* stream) {
  memcpy(to, from, size);
  return SUCCESS;
}
int aclrtMemset(void* at, size_t room, int value, size_t size) {
  memset(at, value, size);
  return SUCCESS;
}
int aclrtMemsetAsync(void* at, size_t room, int value, size_t size, void* stream) {
  memset(at, value, size);
  return SUCCESS;
}
int aclrtGetMemInfo(int kind, size_t* left, size_t* total) {
  size_t all = (size_t)number("STANDIN_MEMORY_MIB", 4096) << 20;
  *total = all;
  *left = taken < all ? all - taken : 0;
  return SUCCESS;
}
int aclrtReserveMemAddress(void** at, size_t size, size_t align, void* expected, uint64_t flags) {
  return posix_memalign(at, 2 << 20, size) ? NO_MEMORY : SUCCESS;
}
int aclrtReleaseMemAddress(void* at) {
  free(at);
  return SUCCESS;
}
int aclrtMallocPhysical(void** handle, size_t size, const void* property, uint64_t flags) {
  *handle = malloc(8);
  return SUCCESS;
}

/* ---- streams and events ---- */

int aclrtCreateStream(void** stream) {
  *stream = calloc(1, 8);
  return SUCCESS;
}
int aclrtCreateStreamWithConfig(void** stream, uint32_t priority, uint32_t flags) {
  return aclrtCreateStream(stream);
}
int aclrtCreateEvent(void** event) {
  *event = calloc(1, 8);
  return SUCCESS;
}
int aclrtCreateEventWithFlag(void** event, uint32_t flags) { return aclrtCreateEvent(event); }
int aclrtCreateEventExWithFlag(void** event, uint32_t flags) { return aclrtCreateEvent(event); }
int aclrtQueryEventStatus(void* event, int* status) {
  *status = 1; /* recorded, and over */
  return SUCCESS;
}
int aclrtEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = 0;
  return SUCCESS;
}

/* ---- models captured from a stream ---- */

typedef void (*observer_fn)(int what, intptr_t handle);
enum { BEGIN = 1, END, RUN, DESTROY, GROUP_BEGIN, GROUP_END, UPDATE_BEGIN, UPDATE_END };

static observer_fn observer;
static void* capturing; /* the stream, and nobody's thread: there is one capture at a time */
static intptr_t models, groups, last_model;

void standin_observe(observer_fn told) { observer = told; }

static int tell(int what, intptr_t handle) {
  if (observer) observer(what, handle);
  return SUCCESS;
}
int aclmdlRICaptureBegin(void* stream, int mode) {
  capturing = stream;
  last_model = ++models;
  return tell(BEGIN, last_model);
}
int aclmdlRICaptureEnd(void* stream, intptr_t* model) {
  capturing = NULL;
  *model = last_model;
  return tell(END, last_model);
}
int aclmdlRICaptureGetInfo(void* stream, int* status, intptr_t* model) {
  *status = capturing != NULL && capturing == stream;
  if (model) *model = *status ? last_model : 0;
  return SUCCESS;
}
int aclmdlRIExecuteAsync(intptr_t model, void* stream) { return tell(RUN, model); }
int aclmdlRIDestroy(intptr_t model) { return tell(DESTROY, model); }
int aclmdlRICaptureTaskGrpBegin(void* stream) { return tell(GROUP_BEGIN, groups + 1); }
int aclmdlRICaptureTaskGrpEnd(void* stream, intptr_t* group) {
  *group = ++groups;
  return tell(GROUP_END, groups);
}
int aclmdlRICaptureTaskUpdateBegin(void* stream, intptr_t group) {
  return tell(UPDATE_BEGIN, group);
}
int aclmdlRICaptureTaskUpdateEnd(void* stream) { return tell(UPDATE_END, 0); }
