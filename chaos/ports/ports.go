// Package ports finds TCP ports for tests that must know them before anything
// listens there, or that end and start again who listens.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The range is below the one that the kernel takes ports of outgoing connections
// and of listeners on port 0 from, which begins at 32768 on Linux.
const first, end = 10_000, 32_000

var held struct {
	sync.Mutex
	all []net.PacketConn
}

// Reserve finds n consecutive TCP ports of 127.0.0.1 without a listener and returns their addresses. The caller owns
// them until its process ends. A UDP socket of the same number marks each port, so that no other call returns it, in
// this process or in another, while the port has no listener. It is safe for concurrent use.
func Reserve(n int) ([]string, error) {
	held.Lock()
	defer held.Unlock()
	for range 1000 {
		if addrs, marks := take(first+rand.IntN(end-first-n), n); addrs != nil {
			held.all = append(held.all, marks...)
			return addrs, nil
		}
	}
	return nil, errors.New("no free ports")
}

// take marks the n ports from port on, or none when one of them is in use.
func take(port, n int) (addrs []string, marks []net.PacketConn) {
	for i := range n {
		addr := fmt.Sprintf("127.0.0.1:%d", port+i)
		mark, err := net.ListenPacket("udp", addr)
		if err == nil {
			marks = append(marks, mark)
			err = listen(addr)
		}
		if err != nil {
			for _, m := range marks {
				m.Close()
			}
			return nil, nil
		}
		addrs = append(addrs, addr)
	}
	return addrs, marks
}

// listen returns the error of listening on addr, or nil.
func listen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}
