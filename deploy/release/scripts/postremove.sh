#!/bin/sh
# The data in /var/lib/northstar and the user stay: they are the cluster's.
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
