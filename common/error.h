/* error.h - the one status and error type of the project.
 *
 * A status is for the program: it tells the caller's next act.  The text is for
 * the person.  Whoever first sees a failure writes the text, naming the file,
 * field and value; the layer that handles it logs it once; nobody in between
 * prints.  0 is success everywhere.  No allocation; any thread.
 */
#ifndef SILICEO_COMMON_ERROR_H
#define SILICEO_COMMON_ERROR_H

typedef enum status {
    STATUS_OK = 0,
    STATUS_BAD_INPUT,   /* the caller's data is wrong: report it, do not retry */
    STATUS_NO_MEMORY,   /* shed the work */
    STATUS_TIMEOUT,     /* retry elsewhere */
    STATUS_CANCELLED,   /* forget it */
    STATUS_IO,          /* the file or socket failed */
    STATUS_UNAVAILABLE, /* busy, full or not ready yet: try later or elsewhere */
    STATUS_DEVICE,      /* the compute device failed: restart the engine */
    STATUS_COUNT
} status;

typedef struct error {
    status code;
    char text[480];
} error;

/* Fill *err (NULL is allowed) with code and a formatted text, cut at its size. */
void error_record(error *err, status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As error_record, then ": " and the text of errno value errnum. */
void error_record_errno(error *err, status code, int errnum, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Expressions whose value is the code: failing is one line, and analyzers see a constant. */
#define error_set(err, code, ...) (error_record((err), (code), __VA_ARGS__), (code))
#define error_set_errno(err, code, errnum, ...)                                                \
    (error_record_errno((err), (code), (errnum), __VA_ARGS__), (code))

/* Stable lower-case name of a status, such as "bad-input". */
const char *status_name(status code);

/* Our own broken invariant: print file, line and expression, and abort.  Never
 * for bytes from outside, allocation or I/O. */
void check_failed(const char *file, int line, const char *expression) __attribute__((noreturn));
#define CHECK(x) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, #x))
#ifdef SILICEO_DEBUG
#define CHECK_HOT(x) CHECK(x)
#else
#define CHECK_HOT(x) ((void)0)
#endif

#endif
