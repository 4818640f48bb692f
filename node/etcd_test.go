package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"northstar/api/token"
	"northstar/cluster"
)

// withEtcd serves the etcd API on a free port.
func withEtcd(_ int, c *Config) { c.EtcdAddr = "127.0.0.1:0" }

// etcdClient returns a connection to a node's etcd port.
func (n *testNode) etcdClient(options ...grpc.DialOption) *grpc.ClientConn {
	n.t.Helper()
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	c, err := grpc.NewClient(n.etcdAddr, options...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// TestEtcdAPI: keys of the etcd API are those of the native one, and a lease ends with its keys.
func TestEtcdAPI(t *testing.T) {
	t.Parallel()
	const grace = 700 * time.Millisecond
	all := newCluster(t, 1, func(i int, c *Config) { withEtcd(i, c); c.Etcd.LeaseGrace = grace })
	n := startAll(t, all)
	if got := n.etcdDeps().LeaseGrace; got != grace {
		t.Errorf("the etcd API knows a grace of %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := n.etcdClient()
	kv, leases := pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	if out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err != nil || out.Header.Revision == 0 {
		t.Errorf("range in an empty state: %v, %v", out, err)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	want(t, plain, "GET", "http://"+n.httpAddr+"/v1/kv/a", "", 200, "v")
	want(t, plain, "PUT", "http://"+n.httpAddr+"/v1/kv/b", "w", 200, "")
	out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c")})
	if err != nil || len(out.Kvs) != 2 || string(out.Kvs[1].Value) != "w" {
		t.Errorf("range: %v, %v", out, err)
	}
	watch, err := pb.NewWatchClient(conn).Watch(ctx)
	if err == nil {
		err = watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("x")},
		}})
	}
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watch counts", func() bool { open, _ := n.watchers(); return open == 1 })
	lease, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 3600})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("c"), Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	left, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease.ID, Keys: true})
	if err != nil || left.TTL < 1 || left.GrantedTTL != 3600 || len(left.Keys) != 1 {
		t.Errorf("time to live: %v, %v", left, err)
	}
	alive, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for id, ttl := range map[int64]int64{lease.ID: 3600, lease.ID + 1: 0} {
		if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		if r, err := alive.Recv(); err != nil || r.TTL != ttl || r.ID != id {
			t.Errorf("keep-alive of %d: %v, %v", id, r, err)
		}
	}
	if _, err := leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease.ID}); err != nil {
		t.Error(err)
	}
	want(t, plain, "GET", "http://"+n.httpAddr+"/v1/kv/c", "", 404, "")
}

// repeatsUnavailable repeats a call that was answered "unavailable", for example because a busy machine had no leader
// for too long.
const repeatsUnavailable = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "1s", "maxBackoff": "5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]
}}]}`

// TestEtcdThroughFollowers: every node takes writes and reads, and a watch of a follower outlives the leader.
func TestEtcdThroughFollowers(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, func(i int, c *Config) {
		withEtcd(i, c)
		c.Failover.Hold = time.Minute // on a busy machine, an election may take longer than usual
		c.Election.TimeoutMin, c.Election.TimeoutMax = 500*time.Millisecond, time.Second
	})
	first := startAll(t, all)
	var others []*testNode
	for _, n := range all {
		if n != first {
			others = append(others, n)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	repeats := grpc.WithDefaultServiceConfig(repeatsUnavailable)
	one, two := others[0].etcdClient(repeats), others[1].etcdClient(repeats)
	members, err := pb.NewClusterClient(one).MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
	if err != nil || len(members.Members) != 3 {
		t.Fatalf("members: %v, %v", members, err)
	}
	for i, m := range members.Members {
		if want := "http://" + all[i].etcdAddr; m.Name != string(all[i].cfg.ID) || m.ClientURLs[0] != want {
			t.Errorf("member %d: %v, want the URL %s", i, m, want)
		}
	}
	watch, err := pb.NewWatchClient(one).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), StartRevision: 1},
	}}); err != nil {
		t.Fatal(err)
	}
	lease, err := pb.NewLeaseClient(one).LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 3600})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string) {
		t.Helper()
		if _, err := pb.NewKVClient(two).Put(ctx, &pb.PutRequest{Key: []byte(key), Lease: lease.ID}); err != nil {
			t.Fatal(err)
		}
		out, err := pb.NewKVClient(one).Range(ctx, &pb.RangeRequest{Key: []byte(key)})
		if err != nil || len(out.Kvs) != 1 || out.Kvs[0].Lease != lease.ID {
			t.Fatalf("range: %v, %v", out, err)
		}
	}
	put("k1")
	first.stop()
	put("k2")
	alive, err := pb.NewLeaseClient(two).LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: lease.ID}); err != nil {
		t.Fatal(err)
	}
	if r, err := alive.Recv(); err != nil || r.TTL != 3600 {
		t.Errorf("keep-alive: %v, %v", r, err)
	}
	var seen []string
	for len(seen) < 2 {
		r, err := watch.Recv()
		if err != nil || r.Canceled {
			t.Fatalf("watch: %v, %v", r, err)
		}
		for _, e := range r.Events {
			if key := string(e.Kv.Key); !slices.Contains(seen, key) { // a repeated write has a second event
				seen = append(seen, key)
			}
		}
	}
	if seen[0] != "k1" || seen[1] != "k2" {
		t.Errorf("the watch has seen %v", seen)
	}
}

// TestEtcdTokens: with tokens, a name and its token are a user with a password, and roles limit what it may do.
func TestEtcdTokens(t *testing.T) {
	t.Parallel()
	reader, readerHash := token.New()
	writer, writerHash := token.New()
	other, otherHash := token.New()
	file := writeFile(t, fmt.Sprintf("[[token]]\nname = \"r\"\nrole = \"observer\"\nhash = %q\n"+
		"[[token]]\nname = \"w\"\nrole = \"client\"\nhash = %q\n"+
		"[[token]]\nname = \"o\"\nrole = \"client\"\nhash = %q\n", readerHash, writerHash, otherHash))
	all := newCluster(t, 1, func(i int, c *Config) {
		withEtcd(i, c)
		c.Auth.Tokens = file
	})
	n := startAll(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := n.etcdClient()
	auth, kv := pb.NewAuthClient(conn), pb.NewKVClient(conn)
	for _, c := range []struct{ name, password, want string }{
		{"r", reader, ""},
		{"w", reader, "etcdserver: authentication failed, invalid user ID or password"},
		{"r", "wrong", "etcdserver: authentication failed, invalid user ID or password"},
	} {
		out, err := auth.Authenticate(ctx, &pb.AuthenticateRequest{Name: c.name, Password: c.password})
		if status.Convert(err).Message() != c.want || err == nil && out.Token != c.password {
			t.Errorf("%s: %v, %v", c.name, out, err)
		}
	}
	as := func(tok string) context.Context { return metadata.AppendToOutgoingContext(ctx, "token", tok) }
	key := []byte("k")
	for _, c := range []struct {
		what string
		ctx  context.Context
		want codes.Code
	}{
		{"writer", as(writer), codes.OK},
		{"reader", as(reader), codes.PermissionDenied},
		{"unknown", as("x"), codes.Unauthenticated},
		{"nobody", ctx, codes.Unauthenticated},
	} {
		if _, err := kv.Put(c.ctx, &pb.PutRequest{Key: key}); status.Code(err) != c.want {
			t.Errorf("put as %s: %v", c.what, err)
		}
	}
	if _, err := kv.Range(as(reader), &pb.RangeRequest{Key: key}); err != nil {
		t.Errorf("range as reader: %v", err)
	}
	_, err := kv.Compact(as(writer), &pb.CompactionRequest{Revision: 1})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("compaction as writer: %v", err)
	}
	lease, err := pb.NewLeaseClient(conn).LeaseGrant(as(writer), &pb.LeaseGrantRequest{TTL: 3600})
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := n.Consensus().View().Lease(lease.ID); !ok || s.Owner != "client w" {
		t.Errorf("the lease is %+v", s)
	}
	for tok, want := range map[string]codes.Code{other: codes.PermissionDenied, writer: codes.OK} {
		if _, err := kv.Put(as(tok), &pb.PutRequest{Key: key, Lease: lease.ID}); status.Code(err) != want {
			t.Errorf("put with the lease: %v, want %v", err, want)
		}
	}
	for _, c := range []struct {
		tok  string
		want codes.Code
	}{{other, codes.PermissionDenied}, {writer, codes.OK}} {
		_, err := pb.NewLeaseClient(conn).LeaseRevoke(as(c.tok), &pb.LeaseRevokeRequest{ID: lease.ID})
		if status.Code(err) != c.want {
			t.Errorf("the end of the lease: %v, want %v", err, c.want)
		}
	}
	eventually(t, "refusals are in the audit log, also those of leases", func() bool {
		refused := map[string]bool{}
		for r := range n.Consensus().View().AuditBackward {
			if r.Status == http.StatusForbidden && r.Code == cluster.CodeForbidden {
				refused[r.Who+" "+r.What] = true
			}
		}
		return refused["r POST /etcdserverpb.KV/Put"] && refused["o POST /etcdserverpb.KV/Put"] &&
			refused["o POST /etcdserverpb.Lease/LeaseRevoke"]
	})
}

// TestEtcdLeaseEndsWithItsConnection: a client that asks for it loses its lease when its machine closes the connection,
// and not when it ends its stream.
func TestEtcdLeaseEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, withEtcd)
	first := startAll(t, all)
	n := all[0]
	if n == first {
		n = all[1]
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	leases := pb.NewLeaseClient(n.etcdClient())
	lives := func(id int64) bool {
		t.Helper()
		left, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return left.TTL >= 0
	}
	held := func(end func(stop context.CancelFunc, socket net.Conn)) int64 {
		t.Helper()
		var sockets []net.Conn
		conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
				sockets = append(sockets, c)
				return c, err
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		lease, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 3600})
		if err != nil {
			t.Fatal(err)
		}
		streamCtx, stop := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "northstar-attach", "1"))
		t.Cleanup(stop)
		alive, err := pb.NewLeaseClient(conn).LeaseKeepAlive(streamCtx)
		if err != nil {
			t.Fatal(err)
		}
		if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: lease.ID}); err != nil {
			t.Fatal(err)
		}
		if r, err := alive.Recv(); err != nil || r.TTL != 3600 {
			t.Fatalf("keep-alive: %v, %v", r, err)
		}
		end(stop, sockets[0])
		return lease.ID
	}
	ended := held(func(stop context.CancelFunc, _ net.Conn) { stop() })
	died := held(func(_ context.CancelFunc, socket net.Conn) { socket.Close() }) // as when its process dies
	eventually(t, "the lease has ended with its connection", func() bool { return !lives(died) })
	if !lives(ended) {
		t.Error("a lease has ended with its stream")
	}
}

// TestEtcdCertificates: certificates of the cluster have the roles of their URIs, those without a NorthStar URI that of
// etcd.cert-role, and those of other clusters none.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ca")
	own := ca.issue("n1", "northstar://northstar/node/n1", nil)
	for i, c := range []struct {
		certRole, uri string
		read, write   codes.Code
	}{
		{"", "northstar://northstar/client/app", codes.OK, codes.OK},
		{"", "northstar://northstar/observer/app", codes.OK, codes.PermissionDenied},
		{"", "spiffe://elsewhere/app", codes.Unauthenticated, codes.Unauthenticated},
		{"observer", "spiffe://elsewhere/app", codes.OK, codes.PermissionDenied},
		{"observer", "northstar://northstar/client/app", codes.OK, codes.OK},
		{"client", "spiffe://elsewhere/app", codes.OK, codes.OK},
		{"client", "northstar://elsewhere/client/app", codes.Unauthenticated, codes.Unauthenticated},
		{"client", "northstar://northstar/king/app", codes.Unauthenticated, codes.Unauthenticated},
	} {
		app := ca.issue(fmt.Sprint("app", i), c.uri, nil)
		t.Run(c.certRole+" "+c.uri, func(t *testing.T) {
			t.Parallel()
			_, hash := token.New()
			tokens := writeFile(t, "[[token]]\nname = \"t\"\nrole = \"client\"\nhash = \""+hash+"\"\n")
			n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
				withEtcd(i, cfg)
				cfg.TLS = own
				cfg.Etcd.CertRole, cfg.Auth.Tokens = c.certRole, tokens
			}))
			cfg := ca.httpsClient(&app).Transport.(*http.Transport).TLSClientConfig
			conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			kv := pb.NewKVClient(conn)
			if _, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("k")}); status.Code(err) != c.read {
				t.Errorf("range: %v", err)
			}
			if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k")}); status.Code(err) != c.write {
				t.Errorf("put: %v", err)
			}
		})
	}
}

// TestEtcdOwnCertificates: certificates of an etcd port's own authorities have the role etcd.cert-role, also those
// that name an operator or a node of this cluster. The port does not trust those of tls.ca.
func TestEtcdOwnCertificates(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "etcd")
	own := ca.issue("n1", "northstar://northstar/node/n1", nil)
	port := other.issue("port", "spiffe://elsewhere/port", nil)
	n := startAll(t, newCluster(t, 1, func(i int, cfg *Config) {
		withEtcd(i, cfg)
		cfg.TLS, cfg.Etcd.TLS, cfg.Etcd.CertRole = own, EtcdTLSConfig(port), "client"
	}))
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	dial := func(client TLSConfig) *grpc.ClientConn {
		cfg := other.httpsClient(&client).Transport.(*http.Transport).TLSClientConfig
		conn, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for i, uri := range []string{
		"spiffe://elsewhere/app", "northstar://northstar/operator/app", "northstar://northstar/node/n1",
	} {
		conn := dial(other.issue(fmt.Sprint("app", i), uri, nil))
		if _, err := pb.NewKVClient(conn).Put(ctx, &pb.PutRequest{Key: []byte("k")}); err != nil {
			t.Errorf("put with %s: %v", uri, err)
		}
		_, err := pb.NewMaintenanceClient(conn).Defragment(ctx, &pb.DefragmentRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("an operator's call with %s: %v", uri, err)
		}
	}
	operator := ca.issue("op", "northstar://northstar/operator/op", nil)
	_, err := pb.NewKVClient(dial(operator)).Put(ctx, &pb.PutRequest{Key: []byte("k")})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a certificate of tls.ca on the etcd port: %v", err)
	}
	foreign := other.issue("foreign", "northstar://northstar/operator/foreign", nil)
	if code, _, err := request(ca.httpsClient(&foreign), "GET", "https://"+n.httpAddr+"/v1/kv/k", ""); err == nil {
		t.Errorf("a certificate of etcd.tls.ca on the HTTP port: %d", code)
	}
	members, err := pb.NewClusterClient(dial(other.issue("list", "spiffe://elsewhere/list", nil))).MemberList(ctx,
		&pb.MemberListRequest{})
	if err != nil || members.Members[0].ClientURLs[0] != "https://"+n.etcdAddr {
		t.Errorf("members: %v, %v", members, err)
	}
}

// TestEtcdOperatorCallsAreRecorded: the audit log has what operators do through the etcd API, and no client's writes.
func TestEtcdOperatorCallsAreRecorded(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, withEtcd)
	lead := startAll(t, all)
	n, target := all[0], all[1]
	if n == lead {
		n = all[2]
	}
	if target == lead {
		target = all[2]
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := n.etcdClient()
	kv, maintenance := pb.NewKVClient(conn), pb.NewMaintenanceClient(conn)
	out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: out.Header.Revision}); err != nil {
		t.Fatal(err)
	}
	members, err := pb.NewClusterClient(conn).MemberList(ctx, &pb.MemberListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maintenance.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: 7}); err == nil {
		t.Error("leadership was moved to no member")
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("k"), Lease: 7}); status.Code(err) != codes.NotFound {
		t.Errorf("put with an unknown lease: %v", err)
	}
	want(t, plain, "GET", "http://"+n.httpAddr+"/metrics", "", 200,
		`northstar_http_request_duration_ms_count{method="POST",route="/etcdserverpb.KV/Put",status="404"} 1`)
	for _, m := range members.Members {
		if m.Name != string(target.cfg.ID) {
			continue
		}
		eventually(t, "leadership has moved", func() bool { // refused until the target is healthy
			_, err := maintenance.MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: m.ID})
			if err != nil && status.Code(err) != codes.FailedPrecondition {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	if got := leader(t, all); got != target {
		t.Errorf("%s leads after the move to %s", got.cfg.ID, target.cfg.ID)
	}
	eventually(t, "the calls are in the audit log, and that the first move was refused", func() bool {
		what, refused := map[string]bool{}, false
		for r := range n.Consensus().View().AuditBackward {
			what[r.What] = true
			refused = refused || r.What == "POST /etcdserverpb.Maintenance/MoveLeader" && r.Code == cluster.CodeBadRequest &&
				r.Status == http.StatusBadRequest && r.Detail == "etcdserver: bad leader transferee"
		}
		if what["POST /etcdserverpb.KV/Put"] {
			t.Error("a client's write is recorded")
		}
		return refused && what["POST /etcdserverpb.KV/Compact"] && what["POST /admin/transfer"]
	})
}

// A write of an etcd client at a stopping leader waits for the next leader. Leadership moves while it waits.
func TestDrain_EtcdCallInProgress(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, func(i int, c *Config) { calm(i, c); withEtcd(i, c) })
	old := startAll(t, nodes)
	eventually(t, "somebody can take over", func() bool {
		return !slices.ContainsFunc(old.Consensus().Peers(), func(p cluster.PeerStatus) bool { return !p.Healthy })
	})
	kv := pb.NewKVClient(old.etcdClient())
	old.api.Drain() // from now on it serves no write as leader
	put := make(chan error, 1)
	go func() {
		_, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a"), Value: []byte("v")})
		put <- err
	}()
	eventually(t, "the write waits", func() bool { return old.api.QueuedWrites() == 1 })
	old.Drain(t.Context())
	if err := <-put; err != nil {
		t.Errorf("the write: %v", err)
	}
	if st := old.Consensus().Status(); st.LeaderID == "" || st.LeaderID == old.cfg.ID {
		t.Errorf("after Drain: leader %q", st.LeaderID)
	}
	old.stop()
}
