/* replay.c - main() of a fuzz target without libFuzzer: runs every file it is given.
 *
 * A folder stands for the files in it.  Exit 1 where nothing ran, so that a lost
 * corpus is seen.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes are copied to a block of their exact size, so a sanitizer sees a read past the end. */
static int run_file(const char *path) {
    FILE *in = fopen(path, "rb");
    struct stat info;
    if (in == NULL || fstat(fileno(in), &info) != 0) {
        perror(path);
        if (in != NULL) (void)fclose(in);
        return -1;
    }
    size_t size = (size_t)info.st_size;
    uint8_t *data = malloc(size + (size == 0));
    int rc = data != NULL && fread(data, 1, size, in) == size ? 0 : -1;
    (void)fclose(in);
    if (rc == 0) (void)LLVMFuzzerTestOneInput(data, size);
    if (rc != 0) (void)fprintf(stderr, "%s: cannot read %zu bytes\n", path, size);
    free(data);
    return rc;
}

/* The number of files run, or -1. */
static int run_folder(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) return run_file(path) == 0 ? 1 : -1;
    int n = 0;
    for (struct dirent *entry; n >= 0 && (entry = readdir(folder)) != NULL;) {
        char file[4096];
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        n = run_file(file) == 0 ? n + 1 : -1;
    }
    (void)closedir(folder);
    return n;
}

int main(int argc, char *argv[]) {
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = run_folder(argv[i]);
        if (n < 0) return 1;
        total += n;
    }
    (void)printf("%d inputs\n", total);
    return total > 0 ? 0 : 1;
}
