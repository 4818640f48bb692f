package etcd

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"northstar/cluster"
)

// TestAlarms: each member without space for writes has an alarm, which status shows in etcd's form.
func TestAlarms(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	m := pb.NewMaintenanceClient(dial(t, addr))
	list := func(a pb.AlarmType) []*pb.AlarmMember {
		out, err := m.Alarm(within(t), &pb.AlarmRequest{Action: pb.AlarmRequest_GET, Alarm: a})
		if err != nil {
			t.Fatal(err)
		}
		return out.Alarms
	}
	if got := list(pb.AlarmType_NONE); len(got) != 0 {
		t.Errorf("alarms of a healthy cluster: %v", got)
	}
	n.setFull("n1", "n2")
	for _, kind := range []pb.AlarmType{pb.AlarmType_NONE, pb.AlarmType_NOSPACE} {
		got := list(kind)
		if len(got) != 2 || got[0].MemberID != memberID("c-1", "n1") || got[1].MemberID != memberID("c-1", "n2") ||
			got[1].Alarm != pb.AlarmType_NOSPACE {
			t.Errorf("alarms %v: %v", kind, got)
		}
	}
	if got := list(pb.AlarmType_CORRUPT); len(got) != 0 {
		t.Errorf("alarms of another kind: %v", got)
	}
	st, err := m.Status(within(t), &pb.StatusRequest{})
	if err != nil || len(st.Errors) != 2 || !strings.HasSuffix(st.Errors[0], " alarm:NOSPACE ") {
		t.Errorf("status: %v, %v", st, err)
	}
	if st.DowngradeInfo == nil {
		t.Error("status has no downgrade info: etcdctl 3.6 reads it without a check")
	}
	_, err = m.Alarm(within(t), &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an alarm is cleared: %v", err)
	}
}

// TestMoveLeader: leadership moves to voters only. The leader itself is no error, as in etcd.
func TestMoveLeader(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.peers = []cluster.Server{{ID: "n2", Suffrage: cluster.Voter}, {ID: "n3", Suffrage: cluster.NonVoter}}
	_, addr := serve(t, testDeps(n), nil)
	m := pb.NewMaintenanceClient(dial(t, addr))
	move := func(id uint64) error {
		_, err := m.MoveLeader(within(t), &pb.MoveLeaderRequest{TargetID: id})
		return err
	}
	for name, id := range map[string]uint64{"a non-voter": memberID("c-1", "n3"), "no member": 7} {
		if err := move(id); status.Convert(err).Message() != rpctypes.ErrorDesc(rpctypes.ErrGRPCBadLeaderTransferee) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := move(memberID("c-1", "n1")); err != nil || n.moves != 0 {
		t.Errorf("the leader: %v, %d moves", err, n.moves)
	}
	if err := move(memberID("c-1", "n2")); err != nil || n.moves != 1 || n.Status().LeaderID != "n2" {
		t.Errorf("a voter: %v, %d moves", err, n.moves)
	}
}

// TestUnsupportedMethods: what is not served is refused in one form, also by services that are not registered.
func TestUnsupportedMethods(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	conn := dial(t, addr)
	for method, want := range map[string]string{
		pb.Maintenance_Hash_FullMethodName:      "Hash",
		pb.Maintenance_HashKV_FullMethodName:    "HashKV",
		pb.Maintenance_Downgrade_FullMethodName: "Downgrade",
		pb.Cluster_MemberAdd_FullMethodName:     "MemberAdd: use northstarctl members",
		pb.Auth_UserAdd_FullMethodName:          "UserAdd: users and roles are the tokens and certificates of NorthStar",
		"/v3lockpb.Lock/Break":                  "Break", "/other.Service/Call": "Call",
	} {
		err := conn.Invoke(within(t), method, &emptypb.Empty{}, &emptypb.Empty{})
		st := status.Convert(err)
		if st.Code() != codes.Unimplemented || st.Message() != "etcdserver: not supported by NorthStar: "+want {
			t.Errorf("%s: %v", method, err)
		}
	}
	snapshot, err := pb.NewMaintenanceClient(conn).Snapshot(within(t), &pb.SnapshotRequest{})
	if err == nil {
		_, err = snapshot.Recv()
	}
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "northstarctl snapshot save") {
		t.Errorf("snapshot: %v", err)
	}
}
