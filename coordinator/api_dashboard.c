/* GET /: the dashboard. */
#include "coordinator/api.h"
#include "coordinator/dashboard.h"

void api_dashboard(coordinator *c, http_exchange *x) {
    (void)c;
    char policy[DASHBOARD_POLICY_SIZE];
    size_t length = 0;
    const char *page = dashboard_page_text(&length);
    dashboard_policy(policy);
    http_set_header(x, "Content-Security-Policy", policy);
    http_set_header(x, "X-Content-Type-Options", "nosniff");
    http_set_header(x, "Referrer-Policy", "no-referrer");
    http_set_header(x, "Cache-Control", "no-cache");
    http_reply(x, 200, "text/html; charset=utf-8", page, length);
}
