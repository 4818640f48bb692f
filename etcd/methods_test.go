package etcd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"northstar/api/token"
	"northstar/cluster"
)

// methodRoles states the least role of each method that needs one. A new method needs a line here.
var methodRoles = map[token.Role][]string{
	token.Observer: {
		pb.KV_Range_FullMethodName, pb.Watch_Watch_FullMethodName,
		pb.Lease_LeaseTimeToLive_FullMethodName, pb.Lease_LeaseLeases_FullMethodName,
		pb.Cluster_MemberList_FullMethodName, pb.Maintenance_Status_FullMethodName, pb.Maintenance_Alarm_FullMethodName,
		pb.Auth_AuthStatus_FullMethodName, "/v3electionpb.Election/Leader", "/v3electionpb.Election/Observe",
		grpc_health_v1.Health_Watch_FullMethodName, reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName,
		reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName,
	},
	token.Client: {
		pb.KV_Put_FullMethodName, pb.KV_DeleteRange_FullMethodName, pb.KV_Txn_FullMethodName,
		pb.Lease_LeaseGrant_FullMethodName, pb.Lease_LeaseRevoke_FullMethodName,
		pb.Lease_LeaseKeepAlive_FullMethodName,
		"/v3lockpb.Lock/Lock", "/v3lockpb.Lock/Unlock", "/v3electionpb.Election/Campaign",
		"/v3electionpb.Election/Proclaim", "/v3electionpb.Election/Resign",
	},
	token.Operator: {
		pb.KV_Compact_FullMethodName, pb.Maintenance_Defragment_FullMethodName,
		pb.Maintenance_MoveLeader_FullMethodName,
	},
}

// openMethods are served without an identity.
var openMethods = []string{
	pb.Auth_Authenticate_FullMethodName, grpc_health_v1.Health_Check_FullMethodName,
	grpc_health_v1.Health_List_FullMethodName,
}

// TestEveryMethodNeedsItsRole calls each method that is registered, over gRPC and over HTTP, and refuses it in Begin:
// none may answer otherwise, and each must ask for its role.
func TestEveryMethodNeedsItsRole(t *testing.T) {
	t.Parallel()
	want := map[string]token.Role{}
	for role, names := range methodRoles {
		for _, name := range names {
			want[name] = role
		}
	}
	for _, name := range openMethods {
		want[name] = token.None
	}
	var mu sync.Mutex
	asked := map[string]token.Role{}
	d := testDeps(newFakeNode(t))
	d.Begin = func(_ context.Context, _ *http.Request, _ any, kind CallKind) (Call, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[kind.Name] = kind.Role
		return nil, cluster.Errorf(cluster.CodeForbidden, "refused")
	}
	s, addr := serve(t, d, nil)
	conn := dial(t, addr)
	role := func(name string) token.Role {
		mu.Lock()
		defer mu.Unlock()
		r, ok := asked[name]
		delete(asked, name)
		if !ok {
			return token.None
		}
		return r
	}
	served := map[string]bool{}
	for service, info := range s.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			name := "/" + service + "/" + m.Name
			least, stated := want[name]
			err := callMethod(t, conn, name)
			if !stated && status.Code(err) == codes.Unimplemented {
				continue
			}
			if refused := status.Code(err) == codes.PermissionDenied; !stated || refused != (least != token.None) {
				t.Errorf("%s (role %q, stated: %v): %v", name, least, stated, err)
			}
			if got := role(name); got != least {
				t.Errorf("%s asks for %q, want %q", name, got, least)
			}
			served[name] = true
		}
	}
	for name := range want {
		if !served[name] {
			t.Errorf("%s is not served", name)
		}
	}
	for path, m := range s.paths {
		resp, err := http.Post("http://"+addr+path, "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if refused := resp.StatusCode == http.StatusForbidden; refused != (want[m.name] != token.None) {
			t.Errorf("POST %s answers %d", path, resp.StatusCode)
		}
		if got := role(m.name); got != want[m.name] {
			t.Errorf("POST %s asks for %q, want %q", path, got, want[m.name])
		}
	}
}

// callMethod calls a method with an empty message and returns its error.
func callMethod(t *testing.T, conn *grpc.ClientConn, name string) error {
	t.Helper()
	stream, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(&emptypb.Empty{})
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil || errors.Is(err, io.EOF) { // the answer came before the message was sent
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	return err
}

// TestInventedMethods: a method that is not registered is not asked for in Begin, which counts calls by their names.
func TestInventedMethods(t *testing.T) {
	t.Parallel()
	d := testDeps(newFakeNode(t))
	d.Begin = func(_ context.Context, _ *http.Request, _ any, kind CallKind) (Call, error) {
		t.Errorf("a call of %s has begun", kind.Name)
		return nil, cluster.Errorf(cluster.CodeForbidden, "refused")
	}
	_, addr := serve(t, d, nil)
	conn := dial(t, addr)
	for _, name := range []string{
		"/grpc.health.v1.Health/Invented", "/grpc.health.v1.Invented/Watch", "/grpc.reflection.v1.Invented/Invented",
		"/etcdserverpb.KV/Invented", "/Invented/Invented",
	} {
		err := conn.Invoke(within(t), name, &emptypb.Empty{}, &emptypb.Empty{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
}
