package cluster

import "net/netip"

// AddressGroup returns what limits count as one address: an IPv4 address, or the /64 of an IPv6 address, which is the
// network of one client. The result is the zero Prefix if addr is invalid.
func AddressGroup(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits) // fails for no address
	return p
}
