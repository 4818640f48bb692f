// Package compat compares NorthStar's etcd API with etcd: its tests run both, one as processes of northstar-node and
// the other embedded.
package compat
