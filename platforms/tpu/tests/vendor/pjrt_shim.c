/* A PJRT plugin that hands everything to another one, whose path is in $SHIM_PLUGIN, so that
   TorchTPU can drive XLA's CPU client where there is no TPU.  What it changes:

   - TPU-only options for making a client are left out;
   - where outputs live is answered with the device's default memory, which CPU clients leave open;
   - memory statistics, which CPU clients have none of, are the process's own: its resident bytes,
     and a limit of $SHIM_MEMORY bytes (1 GiB if unset);
   - compilations are counted: shim_compilations() says how many programs were compiled so far.

   cc -shared -fPIC -O1 -I HEADERS pjrt_shim.c -o pjrt_shim.so -ldl */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt_c_api.h"

static PJRT_Api *real, *changed;
static atomic_long compilations;

long shim_compilations(void) { return atomic_load(&compilations); }

static PJRT_Error *create_client(PJRT_Client_Create_Args *args) {
  PJRT_Client_Create_Args without = *args;
  without.create_options = NULL;
  without.num_options = 0;
  PJRT_Error *error = real->PJRT_Client_Create(&without);
  args->client = without.client;
  return error;
}

static PJRT_Error *compile(PJRT_Client_Compile_Args *args) {
  atomic_fetch_add(&compilations, 1);
  return real->PJRT_Client_Compile(args);
}

static PJRT_Error *output_memory_kinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  PJRT_Error *error = real->PJRT_Executable_OutputMemoryKinds(args);
  if (error == NULL) return NULL;
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE,
                                     .error = error};
  real->PJRT_Error_Destroy(&destroy);
  PJRT_Executable_NumOutputs_Args outputs = {
      .struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE, .executable = args->executable};
  error = real->PJRT_Executable_NumOutputs(&outputs);
  if (error != NULL) return error;
  /* The caller keeps the arrays as long as the executable, which has no place for them. */
  const char **kinds = malloc(sizeof(*kinds) * (outputs.num_outputs + 1));
  size_t *sizes = malloc(sizeof(*sizes) * (outputs.num_outputs + 1));
  for (size_t i = 0; i < outputs.num_outputs; i++) {
    kinds[i] = "device";
    sizes[i] = strlen("device");
  }
  args->num_outputs = outputs.num_outputs;
  args->memory_kinds = kinds;
  args->memory_kind_sizes = sizes;
  return NULL;
}

static PJRT_Error *memory_stats(PJRT_Device_MemoryStats_Args *args) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file != NULL) {
    if (fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    fclose(file);
  }
  const char *limit = getenv("SHIM_MEMORY");
  args->bytes_in_use = pages * sysconf(_SC_PAGESIZE);
  args->bytes_limit = args->bytes_in_use + (limit != NULL ? atoll(limit) : 1L << 30);
  args->bytes_limit_is_set = true;
  return NULL;
}

const PJRT_Api *GetPjrtApi(void) {
  if (changed != NULL) return changed;
  const char *path = getenv("SHIM_PLUGIN");
  void *plugin = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (plugin == NULL) {
    fprintf(stderr, "pjrt_shim: SHIM_PLUGIN: %s\n", path != NULL ? dlerror() : "not set");
    abort();
  }
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))dlsym(plugin, "GetPjrtApi");
  real = (PJRT_Api *)get();
  size_t size = real->struct_size > sizeof(PJRT_Api) ? real->struct_size : sizeof(PJRT_Api);
  changed = calloc(1, size);
  memcpy(changed, real, real->struct_size);
  changed->PJRT_Client_Create = create_client;
  changed->PJRT_Client_Compile = compile;
  changed->PJRT_Executable_OutputMemoryKinds = output_memory_kinds;
  changed->PJRT_Device_MemoryStats = memory_stats;
  return changed;
}
