/* The header is C, and the library links to a program without C++. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocator/c_api.h"

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "line %d: %s failed: %s\n", __LINE__, #condition, poolgrad_last_error()); \
      return EXIT_FAILURE;                                                                      \
    }                                                                                           \
  } while (0)

int main(void) {
  enum { blocks = 100 };
  unsigned char* pointers[blocks];
  for (int i = 0; i < blocks; ++i) {
    pointers[i] = poolgrad_host_malloc(i * 100, 0, NULL);
    CHECK(pointers[i] != NULL);
    memset(pointers[i], i, (size_t)i * 100);
  }
  for (int i = 0; i < blocks; ++i) {
    CHECK(i == 0 || (pointers[i][0] == i && pointers[i][i * 100 - 1] == i));
    poolgrad_host_free(pointers[i], i * 100, 0, NULL);
  }
  CHECK(poolgrad_host_malloc(-1, 0, NULL) == NULL);
  CHECK(strstr(poolgrad_last_error(), "negative size") != NULL);
  char* json = poolgrad_statistics_json(POOLGRAD_CPU, 0);
  CHECK(json != NULL && strstr(json, "\"allocated_bytes.all.current\":0") != NULL);
  poolgrad_free_string(json);
  size_t released = 0;
  CHECK(poolgrad_trim(POOLGRAD_CPU, 0, SIZE_MAX, &released) == 0 && released > 0);
  return EXIT_SUCCESS;
}
