package node

import (
	"context"
	"crypto/tls"
	"net/http"

	"northstar/api"
	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/etcd"
)

// etcdDeps connects the etcd API with the identities, limits and proposals of the native one.
func (n *Node) etcdDeps() etcd.Deps {
	return etcd.Deps{
		Node: etcdNode{n.consensus, n},
		Begin: func(ctx context.Context, r *http.Request, conn any, kind etcd.CallKind) (etcd.Call, error) {
			call, err := n.api.Begin(ctx, r, conn, api.CallSpec(kind))
			if err != nil {
				return nil, err
			}
			return etcdCall{call}, nil
		},
		NewConn: api.NewCallConn, NewShare: func(address string) etcd.Share { return n.api.NewShare(address) },
		AuthEnabled: n.api.AuthEnabled, CheckToken: n.api.CheckToken,
		ClientURL: n.etcdURL, TimeoutMax: n.cfg.Election.TimeoutMax, ProgressInterval: n.cfg.Etcd.ProgressInterval,
		LeaseGrace: n.cfg.Etcd.LeaseGrace, LeaseConnection: n.cfg.Etcd.LeaseConnection,
		Entropy: n.env.Entropy, Logger: n.log,
	}
}

// etcdCall is a call of the native API that can move leadership.
type etcdCall struct{ *api.Call }

// Watches returns the caller's share of the watches of the node.
func (c etcdCall) Watches() etcd.Share { return c.Call.Watches() }

// MoveLeader moves leadership as POST /admin/transfer does.
func (c etcdCall) MoveLeader(ctx context.Context, target cluster.NodeID) error {
	req := apiv1.Transfer{TargetLeaderID: string(target), Reason: "etcd MoveLeader"}
	return c.Native(ctx, apiv1.PathTransfer, req)
}

// etcdNode is this node as the etcd API sees it.
type etcdNode struct {
	*consensus.Node
	of *Node
}

// CheckCaughtUp returns an error until this node has applied what was committed when it started.
func (e etcdNode) CheckCaughtUp() error { return e.of.api.CheckCaughtUp() }

// Full returns the members whose disks are full, as far as this node has heard from them, and this node if the state is
// full.
func (e etcdNode) Full() (full []cluster.NodeID) {
	claims := e.of.transport.Claims()
	for _, s := range e.Status().Servers {
		heard := claims[s.ID]
		if heard.Connected && heard.Claim.Disk.ReadOnly ||
			s.ID == e.of.cfg.ID && (e.ReadOnly() || e.View().KeysFull()) {
			full = append(full, s.ID)
		}
	}
	return full
}

// etcdURL returns the URL of a node's etcd port, "" if this node has not met that node or it has none.
func (n *Node) etcdURL(id cluster.NodeID) string {
	if id == n.cfg.ID {
		return n.ownEtcdURL()
	}
	hello, _ := n.consensus.Hello(id)
	return hello.EtcdURL
}

// ownEtcdURL returns "" without etcd-addr.
func (n *Node) ownEtcdURL() string {
	switch {
	case n.etcdListener == nil:
		return ""
	case n.etcdTLS != nil:
		return "https://" + n.etcdAddr
	}
	return "http://" + n.etcdAddr
}

// serveEtcd serves the etcd API until ctx ends.
func (n *Node) serveEtcd(ctx context.Context) error {
	if n.etcd == nil {
		return nil
	}
	var secure *tls.Config
	if n.etcdTLS != nil {
		secure = n.etcdTLS.ServerConfig(false) // the splitter of etcd.Server adds its protocols
	}
	return n.etcd.Serve(ctx, n.api.LimitConnections(n.etcdListener), secure)
}

// watchers returns the number of open watches of both APIs, and by how many revisions the slowest is behind.
func (n *Node) watchers() (open int, lag uint64) {
	open, lag = n.api.Watchers()
	if n.etcd == nil {
		return open, lag
	}
	more, behind := n.etcd.Watchers()
	return open + more, max(lag, behind)
}

// drainEtcd sends etcd's clients elsewhere and waits for their calls until ctx ends.
func (n *Node) drainEtcd(ctx context.Context) {
	if n.etcd == nil {
		return
	}
	n.etcd.Drain(ctx)
}
