/* A CUDA driver for tests of what is around it: it lists the GPUs that FAKE_CUDA_GPUS names (16-byte UUIDs in hex,
 * separated by commas) and "runs" the one kernel that seatrial launches. FAKE_CUDA_FAIL="function:number" makes one
 * function fail; FAKE_CUDA_WRONG spoils the results; FAKE_CUDA_SLEEP_S makes cuInit hang. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(const char *function) {
    const char *wanted = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(function);
    if (!wanted || strncmp(wanted, function, length) || wanted[length] != ':') return 0;
    return atoi(wanted + length + 1);
}
#define TRY(function) do { int status = fails(function); if (status) return status; } while (0)

static const char *gpus(void) { return getenv("FAKE_CUDA_GPUS") ? getenv("FAKE_CUDA_GPUS") : ""; }

int cuInit(unsigned flags) {
    if (getenv("FAKE_CUDA_SLEEP_S")) sleep(atoi(getenv("FAKE_CUDA_SLEEP_S")));
    TRY("cuInit");
    return *gpus() ? 0 : 100;
}
int cuGetErrorName(int status, const char **name) {
    *name = status == 999 ? "CUDA_ERROR_UNKNOWN" : status == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
    return 0;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = (strlen(gpus()) + 1) / 33; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "NVIDIA Fake"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        sscanf(gpus() + device * 33 + i * 2, "%2x", &byte);
        uuid[i] = byte;
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { TRY("cuDevicePrimaryCtxRetain"); *context = &gpus; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuCtxSynchronize(void) { TRY("cuCtxSynchronize"); return 0; }
int cuModuleLoadData(void **module, const char *image) { *module = (void *)image; return strstr(image, ".target") ? 0 : 218; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return strstr(module, name) ? 0 : 500; }
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) { *pointer = (uint64_t)malloc(bytes); return 0; }
int cuMemFree_v2(uint64_t pointer) { free((void *)pointer); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    uint32_t *out = *(uint32_t **)parameters[0];
    for (unsigned i = 0; i < bx; i++) out[i] = i * i + 7 + (getenv("FAKE_CUDA_WRONG") != NULL);
    return 0;
}
