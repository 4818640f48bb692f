package cluster

import (
	"net/netip"
	"testing"
)

func TestAddressGroup(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8::1": "2001:db8::/64",
		"2001:db8::ffff:1": "2001:db8::/64", "fe80::1%eth0": "fe80::/64",
	} {
		if got := AddressGroup(netip.MustParseAddr(in)).String(); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	if got := AddressGroup(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("an invalid address: %v", got)
	}
}
