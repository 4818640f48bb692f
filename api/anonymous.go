package api

import (
	lists "container/list"
	"net/netip"
)

// anonymousConns holds the connections on which no caller with an identity has called, by address. It finds the
// address with most of them, so that a flood from some addresses closes its own connections. The mutex of connTable
// guards it.
type anonymousConns struct {
	count     int
	addresses map[netip.Prefix]*anonymousAddress
	bySize    []*lists.List // of *anonymousAddress; those with n connections are at n-1. The last list is not empty.
}

type anonymousAddress struct {
	conns lists.List     // of *conn; recently used ones are further back
	place *lists.Element // in bySize
}

func (a *anonymousConns) add(c *conn) {
	own := a.addresses[c.group]
	if own == nil {
		own = &anonymousAddress{}
		a.addresses[c.group] = own
	}
	c.inAnonymous = own.conns.PushBack(c)
	a.count++
	a.move(own, own.conns.Len()-1)
}

func (a *anonymousConns) remove(c *conn) {
	if c.inAnonymous == nil {
		return
	}
	own := a.addresses[c.group]
	own.conns.Remove(c.inAnonymous)
	c.inAnonymous = nil
	a.count--
	a.move(own, own.conns.Len()+1)
	if own.conns.Len() == 0 {
		delete(a.addresses, c.group)
	}
}

// move finds the place in bySize of an address that had before connections.
func (a *anonymousConns) move(own *anonymousAddress, before int) {
	if before > 0 {
		a.bySize[before-1].Remove(own.place)
	}
	if n := own.conns.Len(); n > 0 {
		if n > len(a.bySize) { // by one
			a.bySize = append(a.bySize, lists.New())
		}
		own.place = a.bySize[n-1].PushBack(own)
	}
	for n := len(a.bySize); n > 0 && a.bySize[n-1].Len() == 0; n-- {
		a.bySize = a.bySize[:n-1]
	}
}

// maxAddressScan limits the search for an idle connection among addresses whose connections all serve requests.
const maxAddressScan = 16

// closeOne closes an idle connection of the address that has most, if that one has any.
func (a *anonymousConns) closeOne(closeIdle func(*lists.List) bool) {
	scanned := 0
	for n := len(a.bySize); n > 0; n-- {
		for e := a.bySize[n-1].Front(); e != nil; e = e.Next() {
			if closeIdle(&e.Value.(*anonymousAddress).conns) {
				return
			}
			if scanned++; scanned == maxAddressScan {
				return
			}
		}
	}
}
