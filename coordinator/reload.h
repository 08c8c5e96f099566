/* reload.h - what may change while the coordinator runs: at SIGHUP, and by the database that it shares.
 *
 * SIGHUP reads the API keys, the allow-list, the certificate and, of the settings, upstreams and
 * aliases again.  What is wrong is logged and stays as it was; no stream is dropped.  `io` thread.
 */
#ifndef SILICEO_COORDINATOR_RELOAD_H
#define SILICEO_COORDINATOR_RELOAD_H

#include "common/error.h"
#include "coordinator/coordinator.h"

void reload_all(coordinator *c);
/* These servers are the upstreams from now on; libcurl's thread begins with the first of them. */
status reload_upstreams(coordinator *c, const char *servers, error *err);
/* Keys and their use go round the coordinators that share a database. */
void reload_shared_keys(coordinator *c, uint64_t now_ms);

#endif
