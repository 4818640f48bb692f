package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"northstar/cluster"
	"northstar/etcd"
	"northstar/state"
)

// undecided is a call of an etcd client whose transaction is refused when decided is closed.
type undecided struct {
	etcd.Call
	proposed chan<- struct{}
	decided  <-chan struct{}
}

func (c undecided) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	if cmd.Txn == nil {
		return c.Call.Propose(ctx, cmd)
	}
	close(c.proposed)
	select {
	case <-c.decided:
		return state.Result{}, cluster.Errorf(cluster.CodeBusy, "try again")
	case <-ctx.Done():
		return state.Result{}, context.Cause(ctx)
	}
}

// TestStop_RequestsBesideAnEtcdCall: a call of an etcd client that goes on takes no time from native requests. They are
// waited for meanwhile, and the listener closes.
func TestStop_RequestsBesideAnEtcdCall(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(n *Node, end func()){
		"drain":     func(n *Node, end func()) { n.Drain(t.Context()); end() },
		"a restart": func(n *Node, _ func()) { n.requestRestart() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prepared := newCluster(t, 1, withEtcd)[0]
			n, err := New(prepared.cfg, prepared.env)
			if err != nil {
				t.Fatal(err)
			}
			n.etcd.Drain(t.Context()) // another one takes its place
			proposed, decided := make(chan struct{}), make(chan struct{})
			deps := n.etcdDeps()
			begin := deps.Begin
			deps.Begin = func(ctx context.Context, r *http.Request, conn any, kind etcd.CallKind) (etcd.Call, error) {
				call, err := begin(ctx, r, conn, kind)
				return undecided{call, proposed, decided}, err
			}
			n.etcd = etcd.New(deps)
			serving, served := make(chan struct{}), make(chan struct{})
			n.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				close(serving)
				<-served
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "{}")
			})
			ctx, end := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- n.Run(ctx) }()
			eventually(t, "it leads", func() bool { return n.Consensus().Status().LeaderID == n.cfg.ID })
			put, native := make(chan error, 1), make(chan error, 1)
			kv := pb.NewKVClient((&testNode{Node: n, t: t}).etcdClient())
			go func() {
				_, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a")})
				put <- err
			}()
			go func() {
				_, body, err := request(plain, "GET", "http://"+n.httpAddr+"/", "")
				if body != "{}" {
					err = errors.Join(err, errors.New("the answer is "+body))
				}
				native <- err
			}()
			<-proposed
			<-serving
			go stop(n, end)
			eventually(t, "the listener is closed", func() bool {
				c, err := net.Dial("tcp", n.httpAddr)
				if err == nil {
					c.Close()
				}
				return err != nil
			})
			close(served)
			if err := <-native; err != nil {
				t.Errorf("the native request: %v", err)
			}
			close(decided)
			if err := <-put; status.Code(err) != codes.ResourceExhausted {
				t.Errorf("the write: %v", err)
			}
			if err := <-ended; err != nil && !errors.Is(err, ErrRestart) {
				t.Error(err)
			}
		})
	}
}
