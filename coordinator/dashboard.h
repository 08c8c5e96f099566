/* dashboard.h - the page at `/` (coordinator/dashboard/index.html), part of the program. */
#ifndef SILICEO_COORDINATOR_DASHBOARD_H
#define SILICEO_COORDINATOR_DASHBOARD_H

#include <stddef.h>

enum { DASHBOARD_POLICY_SIZE = 512 };

/* The page and its length. */
const char *dashboard_page_text(size_t *length);
/* Its Content-Security-Policy: nothing but its own one script and one style, which are
 * named by their SHA-256, and requests to where it came from. */
void dashboard_policy(char policy[DASHBOARD_POLICY_SIZE]);

#endif
