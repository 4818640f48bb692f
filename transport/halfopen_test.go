package transport

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// fromAddress is a connection from an address.
type fromAddress struct {
	net.Conn
	from net.TCPAddr
}

func (c *fromAddress) RemoteAddr() net.Addr { return &c.from }

// A flood from one address closes only connections of that address: a peer that is slow keeps its place.
func TestHalfOpen_FloodOfOneAddress(t *testing.T) {
	t.Parallel()
	h := newHalfOpen(8, 4)
	peer := h.enterFrom(t, "192.0.2.1")
	for range 1000 {
		h.enterFrom(t, "192.0.2.66")
	}
	if got := h.len(); got != 5 {
		t.Errorf("%d half-open connections", got)
	}
	if peer.ended() {
		t.Error("the peer's connection was closed")
	}
}

// The addresses of one IPv6 network count as one, and the address with most connections makes room for others.
func TestHalfOpen_FloodOfOneNetwork(t *testing.T) {
	t.Parallel()
	h := newHalfOpen(maxHalfOpen, maxHalfOpenAddress)
	peer := h.enterFrom(t, "2001:db8:1::1")
	for i := range 300 {
		h.enterFrom(t, fmt.Sprintf("2001:db8:2::%x", i+1))
	}
	if got := h.len(); got != maxHalfOpenAddress+1 || peer.ended() {
		t.Errorf("%d half-open connections; the peer's was closed: %v", got, peer.ended())
	}
	for i := range 300 {
		h.enterFrom(t, fmt.Sprintf("2001:db8:%x::1", i%5+3))
	}
	if got := h.len(); got != maxHalfOpen || peer.ended() {
		t.Errorf("with six networks: %d half-open connections; the peer's was closed: %v", got, peer.ended())
	}
}

// A flood from many addresses leaves some places to those from which a member has come recently.
func TestHalfOpen_MembersKeepPlaces(t *testing.T) {
	t.Parallel()
	h := newHalfOpen(maxHalfOpen, maxHalfOpenAddress)
	flood := func() {
		for i := range 300 {
			h.enterFrom(t, fmt.Sprintf("192.0.%d.%d", i/200+2, i%200))
		}
	}
	stranger := h.enterFrom(t, "198.51.100.2")
	var member [keptHalfOpen]halfOpenEnd
	for i := range member {
		member[i] = h.enterFrom(t, "198.51.100.1")
	}
	h.remember(member[0].conn)
	flood()
	for i, c := range member {
		if c.ended() {
			t.Errorf("connection %d of a member was closed", i)
		}
	}
	if got := h.len(); got != maxHalfOpen || !stranger.ended() {
		t.Errorf("%d half-open connections; a stranger's stays: %v", got, !stranger.ended())
	}
	for i := range maxHalfOpenKnown {
		h.remember(h.enterFrom(t, fmt.Sprintf("203.0.113.%d", i)).conn)
	}
	if flood(); !member[0].ended() || len(h.known) != maxHalfOpenKnown {
		t.Errorf("%d addresses are kept, and the one before them: %v", len(h.known), !member[0].ended())
	}
}

// halfOpenEnd is the far end of a connection in a halfOpen, and the connection.
type halfOpenEnd struct {
	net.Conn
	conn net.Conn
}

// enterFrom adds a connection from an address.
func (h *halfOpen) enterFrom(t *testing.T, ip string) halfOpenEnd {
	a, b := net.Pipe()
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	conn := &fromAddress{a, net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	h.enter(conn)
	return halfOpenEnd{b, conn}
}

// ended reports whether the connection was closed.
func (e halfOpenEnd) ended() bool {
	_ = e.SetReadDeadline(time.Now())
	_, err := e.Read(make([]byte, 1))
	return err == io.EOF
}
